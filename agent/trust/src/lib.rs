//! Who belongs to a grid, how everybody can tell, and what else is signed.
//!
//! A grid is a key pair; its id is the hash of the public half. A machine belongs to it by a certificate
//! (`certificate`), gets one by an invitation (`invitation`), and loses it by a revocation (`revocation`). What it submits
//! it signs (`signed`), what tasks of that go on from (`checkpoint`), and the results that it gives (`receipt`). Bytes are
//! canonical and signatures separated by domain (`canonical`); `docs/formats.md` has them all.
//!
//! Of a bag its [`label`] and its [`manifest`] are what is signed, in an [`envelope`]; a [`ticket`] is what it needs to go on
//! elsewhere. The machine's own key is its [`identity`]; addresses are read here ([`address`]), and nothing is opened.
//!
//! Left out: changing a grid's key (a new key is a new grid).

pub mod address;
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
mod welcome;

#[cfg(test)]
mod format_tests;

pub use canonical::{Malformed, grid_id};
pub use certificate::{CERTIFICATE_BYTES_MAX, CHAIN_BYTES_MAX, Certificate, Chain, Refused, Role, Terms};
pub use checkpoint::{CHECKPOINT_ADDED_BYTES, open_checkpoint};
pub use gate::{Admissions, Gate, GateError, Offer, Outcome, RenewFrom, Unauthorised, now_s};
pub use invitation::{ADDRESSES_MAX, Invitation, InvitationError};
pub use key::{GRID_KEY_FILE, GridKeyError};
pub use membership::{Membership, MembershipError, MembershipFiles, NAME_BYTES_MAX, USES_MAX};
pub use receipt::{Batch, Ending, Proof, RECEIPT_BYTES_MAX, Receipt, Statement};
pub use revocation::{REVOCATION_BYTES_MAX, REVOCATIONS_MAX, Revocation, Revocations};
pub use signed::{SignedBag, SignedForm};
pub use welcome::{WelcomeError, keep};
