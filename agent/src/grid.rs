//! Grids: who belongs to one, and how everybody can tell.
//!
//! A grid is a key pair; its id is the hash of the public half. A machine belongs to it by a certificate
//! (`certificate`), gets one by an invitation (`invitation`), and loses it by a revocation (`revocation`). What it submits
//! it signs (`signed`), what tasks of that go on from (`checkpoint`), and the results that it gives (`receipt`). Bytes are
//! canonical and signatures separated by domain (`canonical`); `docs/formats.md` has them all.
//!
//! Left out: changing a grid's key (a new key is a new grid).

mod canonical;
mod certificate;
mod checkpoint;
mod files;
mod gate;
mod invitation;
mod joining;
mod key;
mod membership;
pub(crate) mod message;
mod receipt;
mod revocation;
mod signed;

#[cfg(test)]
mod format_tests;

pub use canonical::{Malformed, grid_id};
pub use certificate::{CERTIFICATE_BYTES_MAX, CHAIN_BYTES_MAX, Certificate, Chain, Refused, Role, Terms};
pub(crate) use checkpoint::{CHECKPOINT_ADDED_BYTES, open_checkpoint};
pub use gate::{Admissions, Gate, GateError, Offer, Unauthorised, now_s};
pub(crate) use gate::{Outcome, RenewFrom};
pub use invitation::{ADDRESSES_MAX, Invitation, InvitationError};
pub(crate) use joining::join_beside;
pub use joining::{JoiningError, join};
pub use key::{GRID_KEY_FILE, GridKeyError};
pub use membership::{Membership, MembershipError, MembershipFiles, NAME_BYTES_MAX, USES_MAX};
pub(crate) use receipt::{Batch, Proof};
pub use receipt::{Ending, RECEIPT_BYTES_MAX, Receipt, Statement};
pub use revocation::{REVOCATION_BYTES_MAX, REVOCATIONS_MAX, Revocation, Revocations};
pub use signed::{SignedBag, SignedForm};
