//! Certificates: who is a machine of a grid, as what, and until when.
//!
//! The grid key signs administrators, and may sign any machine; an administrator's machine signs members and submitters
//! with its own key. So a chain has one certificate or two, and every machine checks it by the grid id alone. Bytes:
//! `docs/formats.md`.
//!
//! Left out: a date before which a certificate is not valid (a machine whose clock is slow would turn all others away;
//! a certificate is issued to be used at once).

use std::{fmt, iter};

use idlewood_overlay::{GridId, PeerId};
use libp2p::identity::ed25519;
use serde::{Deserialize, Serialize};

use super::canonical::{self, Malformed, grid_id};

/// Prefix of a certificate's body when it is signed.
const DOMAIN: &[u8] = b"idlewood certificate v1";

/// Version of certificates.
const VERSION: u8 = 1;

/// Longest encoding of a certificate. Ours have up to 211 bytes.
pub const CERTIFICATE_BYTES_MAX: usize = 256;

/// Longest encoding of a chain.
pub const CHAIN_BYTES_MAX: usize = 2 * CERTIFICATE_BYTES_MAX + 16;

/// What a machine may do in its grid. Each role includes those before it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Accepts tasks of other machines.
    Member,
    /// Submits bags of its own.
    Submitter,
    /// Invites, renews and revokes.
    Admin,
}

impl Role {
    /// Its number in a certificate or invitation.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Member => 0,
            Self::Submitter => 1,
            Self::Admin => 2,
        }
    }

    /// The role of a number in a certificate or invitation.
    pub(super) fn from_code(code: u8) -> Result<Self, Malformed> {
        match code {
            0 => Ok(Self::Member),
            1 => Ok(Self::Submitter),
            2 => Ok(Self::Admin),
            _ => Err(Malformed),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Member => "member",
            Self::Submitter => "submitter",
            Self::Admin => "admin",
        })
    }
}

/// Why a machine is not admitted. The numbers travel in handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub enum Refused {
    /// Bytes that are no certificate of this version.
    #[error("what it shows is not a certificate")]
    Malformed = 1,
    /// A certificate of another grid.
    #[error("its certificate is of another grid")]
    WrongGrid = 2,
    /// Not signed by the grid key or an administrator.
    #[error("its certificate is not signed by the grid")]
    Forged = 3,
    /// Another machine's certificate.
    #[error("its certificate belongs to another machine")]
    NotTheirs = 4,
    /// Its own certificate or its administrator's has run out.
    #[error("its certificate has expired")]
    Expired = 5,
    /// It was revoked, or the administrator that certified it.
    #[error("its certificate was revoked")]
    Revoked = 6,
    /// There is no such invitation, or it is used up or has expired.
    #[error("the invitation is not known, used up or expired")]
    NotInvited = 7,
    /// The issuer cannot sign such a certificate now.
    #[error("the issuer cannot sign certificates of this role now")]
    CannotIssue = 8,
}

impl Refused {
    /// The reason with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        [
            Self::Malformed,
            Self::WrongGrid,
            Self::Forged,
            Self::NotTheirs,
            Self::Expired,
            Self::Revoked,
            Self::NotInvited,
            Self::CannotIssue,
        ]
        .into_iter()
        .find(|refused| *refused as u8 == code)
    }
}

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// The content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The grid.
    pub grid: GridId,
    /// The machine that is certified: its public key.
    pub peer: PeerId,
    /// Its role.
    pub role: Role,
    /// When it was issued, in seconds of Unix time.
    pub issued_s: u64,
    /// When it expires, in seconds of Unix time.
    pub expires_s: u64,
    /// Drawn by the issuer for a machine's first certificate and kept by renewals, so that nobody can choose a place on
    /// the line by trying keys.
    pub nonce: [u8; 16],
}

/// A signed certificate. The signature is checked by [`Chain::verify`] alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The content.
    pub terms: Terms,
    /// The public key that signed: the grid's, or that of an administrator's machine.
    pub issuer: [u8; 32],
    signature: [u8; 64],
}

/// Version, grid, peer, role, issued, expires, nonce, issuer.
#[derive(Serialize, Deserialize)]
struct Body(
    u8,
    #[serde(with = "serde_bytes")] [u8; 32],
    #[serde(with = "serde_bytes")] [u8; 32],
    u8,
    u64,
    u64,
    #[serde(with = "serde_bytes")] [u8; 16],
    #[serde(with = "serde_bytes")] [u8; 32],
);

impl Certificate {
    /// Signs `terms`.
    pub fn issue(terms: Terms, key: &ed25519::Keypair) -> Self {
        let mut certificate = Self { terms, issuer: key.public().to_bytes(), signature: [0; 64] };
        certificate.signature = canonical::sign(key, DOMAIN, &certificate.body());
        certificate
    }

    fn body(&self) -> Vec<u8> {
        let Terms { grid, peer, role, issued_s, expires_s, nonce } = &self.terms;
        canonical::encode(&Body(VERSION, grid.0, peer.0, role.code(), *issued_s, *expires_s, *nonce, self.issuer))
    }

    /// Its one encoding.
    pub fn encode(&self) -> Vec<u8> {
        canonical::seal(&self.body(), self.signature)
    }

    /// Reads a certificate; its signature is not checked.
    ///
    /// # Errors
    /// For everything but the one encoding of a certificate of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (body, signature) = canonical::open(bytes, CERTIFICATE_BYTES_MAX)?;
        let Body(version, grid, peer, role, issued_s, expires_s, nonce, issuer) =
            canonical::decode(&body, CERTIFICATE_BYTES_MAX)?;
        if version != VERSION || issued_s > expires_s {
            return Err(Malformed);
        }
        let role = Role::from_code(role)?;
        let terms = Terms { grid: GridId(grid), peer: PeerId(peer), role, issued_s, expires_s, nonce };
        Ok(Self { terms, issuer, signature })
    }

    /// Whether `issuer` signed it.
    fn is_signed(&self) -> bool {
        canonical::is_signed_by(&self.issuer, DOMAIN, &self.body(), &self.signature)
    }

    /// Checks that it makes its machine an administrator: of this grid, signed by the grid key. Ignores expiry.
    pub(super) fn verify_admin(&self, grid: GridId) -> Result<(), Refused> {
        if self.terms.grid != grid {
            return Err(Refused::WrongGrid);
        }
        if self.terms.role != Role::Admin || grid_id(&self.issuer) != grid || !self.is_signed() {
            return Err(Refused::Forged);
        }
        Ok(())
    }
}

/// A certificate, with the one that entitles its issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The machine's own.
    pub own: Certificate,
    /// The certificate of the administrator that signed `own`; none if the grid key did.
    pub admin: Option<Certificate>,
}

#[derive(Serialize, Deserialize)]
struct ChainFields(#[serde(with = "serde_bytes")] Vec<u8>, #[serde(with = "serde_bytes")] Vec<u8>);

impl Chain {
    /// Its one encoding.
    pub fn encode(&self) -> Vec<u8> {
        let admin = self.admin.as_ref().map(Certificate::encode).unwrap_or_default();
        canonical::encode(&ChainFields(self.own.encode(), admin))
    }

    /// Reads a chain; nothing of it is verified.
    ///
    /// # Errors
    /// As [`Certificate::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let ChainFields(own, admin) = canonical::decode(bytes, CHAIN_BYTES_MAX)?;
        let admin = if admin.is_empty() { None } else { Some(Certificate::decode(&admin)?) };
        Ok(Self { own: Certificate::decode(&own)?, admin })
    }

    /// When the first of its certificates expires.
    pub fn expires_s(&self) -> u64 {
        let admin = self.admin.as_ref().map_or(u64::MAX, |admin| admin.terms.expires_s);
        self.own.terms.expires_s.min(admin)
    }

    /// Checks that it makes `peer` a machine of `grid` at `now_s`, given the known revocations.
    ///
    /// # Errors
    /// The first reason why not: a forged certificate is never called expired or revoked.
    pub fn verify(
        &self,
        grid: GridId,
        peer: PeerId,
        now_s: u64,
        is_revoked: impl Fn(PeerId, Role) -> bool,
    ) -> Result<(), Refused> {
        let own = &self.own;
        if own.terms.grid != grid {
            return Err(Refused::WrongGrid);
        }
        if own.terms.peer != peer {
            return Err(Refused::NotTheirs);
        }
        match &self.admin {
            None if grid_id(&own.issuer) != grid => return Err(Refused::Forged),
            None => {}
            Some(admin) => {
                admin.verify_admin(grid)?;
                // The grid key alone makes administrators: else chains could be of any length.
                if own.issuer != admin.terms.peer.0 || own.terms.role == Role::Admin {
                    return Err(Refused::Forged);
                }
            }
        }
        if !own.is_signed() {
            return Err(Refused::Forged);
        }
        self.still_valid(now_s, is_revoked)
    }

    /// Checks a chain verified earlier for expiry and revocation at `now_s`: cheap, without signatures.
    ///
    /// # Errors
    /// [`Refused::Revoked`] or [`Refused::Expired`].
    pub fn still_valid(&self, now_s: u64, is_revoked: impl Fn(PeerId, Role) -> bool) -> Result<(), Refused> {
        let mut all = iter::once(&self.own).chain(&self.admin).map(|certificate| &certificate.terms);
        if all.any(|terms| is_revoked(terms.peer, terms.role)) {
            return Err(Refused::Revoked);
        }
        if self.expires_s() <= now_s {
            return Err(Refused::Expired);
        }
        Ok(())
    }
}
