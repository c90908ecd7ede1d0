//! Trust: membership of grids by certificates, and everything that machines sign.
//!
//! A grid is a key pair; its id is the hash of the public half. A machine belongs to it by a certificate
//! (`certificate`), gets one by an invitation (`invitation`), and loses it by a revocation (`revocation`). It signs the
//! bags that it submits (`signed`), the checkpoints of their tasks (`checkpoint`), who keeps them (`appointment`), and the results of
//! tasks that it ran (`receipt`). Bytes are canonical and signatures separated by domain (`canonical`); `docs/formats.md` has them all.
//!
//! A submitter signs a bag's [`envelope`], which holds its [`label`] and names its [`manifest`]; a [`ticket`] lets
//! another machine take the submitter's place. [`identity`] is the machine's own key; [`address`] parses addresses,
//! without using them.
//!
//! Left out: changing a grid's key (a new key is a new grid).

pub mod address;
mod appointment;
mod canonical;
mod certificate;
mod checkpoint;
pub mod envelope;
mod files;
mod gate;
pub mod identity;
mod invitation;
mod key;
pub mod label;
pub mod manifest;
mod membership;
pub mod message;
mod receipt;
mod revocation;
mod signed;
pub mod ticket;
mod unix_time;
mod welcome;

#[cfg(test)]
mod format_tests;

pub use appointment::is_signed_by_its_submitter;
pub use canonical::{Malformed, grid_id};
pub use certificate::{CERTIFICATE_BYTES_MAX, CHAIN_BYTES_MAX, Certificate, Chain, Refused, Role, Terms};
pub use checkpoint::{CHECKPOINT_ADDED_BYTES, open_checkpoint};
pub use gate::{Admissions, Gate, GateError, Offer, Outcome, RenewFrom, Unauthorised};
pub use invitation::{ADDRESSES_MAX, Invitation, InvitationError};
pub use key::{GRID_KEY_FILE, GridKeyError, former_keys};
pub use membership::{
    DIRECTORY as MEMBERSHIP_DIRECTORY, Membership, MembershipError, MembershipFiles, NAME_BYTES_MAX, USES_MAX,
};
pub use receipt::{Batch, Ending, Proof, RECEIPT_BYTES_MAX, Receipt, Statement};
pub use revocation::{REVOCATION_BYTES_MAX, REVOCATIONS_MAX, Revocation, Revocations};
pub use signed::{SignedBag, SignedForm};
pub use unix_time::now_s;
pub use welcome::{WelcomeError, keep};
