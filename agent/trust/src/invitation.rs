//! Invitations: a text by which machines can join a grid, a limited number of times and until it expires.
//!
//! It names the machine that issued it and its addresses; the secret in it is shown to that machine alone, which stores
//! its hash. The last eight bytes are a checksum against bad copying. Bytes: `docs/formats.md`.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use idlewood_overlay::{GridId, PeerId};
use serde::{Deserialize, Serialize};

use super::canonical;
use super::certificate::Role;

/// First characters of an invitation.
const PREFIX: &str = "idlewood1.";

/// Version of the bytes within.
const VERSION: u8 = 1;

/// Domain of the hash at its end.
const CHECK_DOMAIN: &[u8] = b"idlewood invitation v1";

/// Longest invitation, decoded.
const BYTES_MAX: usize = 1024;

/// Addresses that one may hold.
pub const ADDRESSES_MAX: usize = 4;

/// Longest address.
pub(super) const ADDRESS_BYTES_MAX: usize = 128;

/// The content of an invitation.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    /// The grid.
    pub grid: GridId,
    /// The machine that issued it, and issues the certificates.
    pub issuer: PeerId,
    /// Where to dial it.
    pub addresses: Vec<String>,
    /// Proves to the issuer that a guest was invited.
    pub secret: [u8; 16],
    /// Role of the machines that join. For people to read: the issuer uses its own record.
    pub role: Role,
    /// When it expires, in seconds of Unix time; for people to read.
    pub expires_s: u64,
    /// How many machines may join with it; for people to read.
    pub uses: u32,
}

impl fmt::Debug for Invitation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "invitation to {:?} as {}, by {:?}", self.grid, self.role, self.issuer)
    }
}

/// Version, grid, issuer, addresses, secret, role, expires, uses.
#[derive(Serialize, Deserialize)]
struct Fields(
    u8,
    #[serde(with = "serde_bytes")] [u8; 32],
    #[serde(with = "serde_bytes")] [u8; 32],
    Vec<String>,
    #[serde(with = "serde_bytes")] [u8; 16],
    u8,
    u64,
    u32,
);

/// A text that is not an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvitationError {
    /// It does not begin like an invitation.
    #[error("this is not an invitation: one begins with {PREFIX} and is printed by `idlewood grid invite`")]
    NotOne,
    /// It begins like an invitation.
    #[error("the invitation is damaged: copy the whole line that `idlewood grid invite` printed")]
    Damaged,
}

fn check(bytes: &[u8]) -> [u8; 8] {
    let hash = blake3::Hasher::new().update(CHECK_DOMAIN).update(bytes).finalize();
    let mut check = [0; 8];
    check.copy_from_slice(&hash.as_bytes()[..8]);
    check
}

impl fmt::Display for Invitation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grid, issuer, addresses, secret, role, expires_s, uses } = self;
        let mut bytes = canonical::encode(&Fields(
            VERSION,
            grid.0,
            issuer.0,
            addresses.clone(),
            *secret,
            role.code(),
            *expires_s,
            *uses,
        ));
        bytes.extend(check(&bytes));
        write!(formatter, "{PREFIX}{}", BASE64URL_NOPAD.encode(&bytes))
    }
}

impl Invitation {
    /// Whether a text begins like an invitation; it may still be damaged.
    pub fn looks_like_one(text: &str) -> bool {
        text.trim_start().starts_with(PREFIX)
    }
}

impl FromStr for Invitation {
    type Err = InvitationError;

    fn from_str(line: &str) -> Result<Self, InvitationError> {
        let text = line.trim().strip_prefix(PREFIX).ok_or(InvitationError::NotOne)?;
        if text.len() > BYTES_MAX * 4 / 3 {
            return Err(InvitationError::Damaged);
        }
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| InvitationError::Damaged)?;
        let (bytes, end) = bytes.split_last_chunk::<8>().ok_or(InvitationError::Damaged)?;
        if check(bytes) != *end {
            return Err(InvitationError::Damaged);
        }
        let Fields(version, grid, issuer, addresses, secret, role, expires_s, uses) =
            canonical::decode(bytes, BYTES_MAX).map_err(|_| InvitationError::Damaged)?;
        let are_short = addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX);
        if version != VERSION || addresses.len() > ADDRESSES_MAX || !are_short {
            return Err(InvitationError::Damaged);
        }
        let role = Role::from_code(role).map_err(|_| InvitationError::Damaged)?;
        Ok(Self { grid: GridId(grid), issuer: PeerId(issuer), addresses, secret, role, expires_s, uses })
    }
}
