//! Revocations: machines that are machines of the grid no more, whatever their certificates say.
//!
//! They are a set that only grows, spread from machine to machine: two that connect compare digests of theirs, and what
//! is new to one of them it passes on. The first that is known of a machine counts. Bytes: `docs/formats.md`.
//!
//! Left out: taking a revocation back (a machine that was revoked by mistake joins with a new key).

use std::collections::BTreeMap;

use idlewood_overlay::{GridId, PeerId};
use libp2p::identity::ed25519;
use serde::{Deserialize, Serialize};

use super::canonical::{self, Malformed, grid_id};
use super::certificate::{CERTIFICATE_BYTES_MAX, Certificate, Refused};

/// What precedes a revocation's body when it is signed.
const DOMAIN: &[u8] = b"idlewood revocation v1";

/// Version of revocations.
const VERSION: u8 = 1;

/// Longest encoding of a revocation. Ours have up to 398 bytes.
pub const REVOCATION_BYTES_MAX: usize = CERTIFICATE_BYTES_MAX + 224;

/// Revocations that are kept. Our choice: far more machines than a grid loses between two terms of its certificates.
/// Of too many those with the oldest date go, whose certificates have expired by then.
pub const REVOCATIONS_MAX: usize = 4096;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The grid.
    pub grid: GridId,
    /// Who is revoked.
    pub peer: PeerId,
    /// When, in seconds of Unix time, by the clock of whoever revoked.
    pub when_s: u64,
    /// The public key that signed: the grid's, or an administrator's machine.
    pub issuer: [u8; 32],
    /// The administrator's certificate, where one signed.
    pub admin: Option<Certificate>,
    signature: [u8; 64],
}

/// Version, grid, peer, when, issuer.
#[derive(Serialize, Deserialize)]
struct Body(
    u8,
    #[serde(with = "serde_bytes")] [u8; 32],
    #[serde(with = "serde_bytes")] [u8; 32],
    u64,
    #[serde(with = "serde_bytes")] [u8; 32],
);

/// The signed part, and the administrator's certificate or nothing.
#[derive(Serialize, Deserialize)]
struct Fields(#[serde(with = "serde_bytes")] Vec<u8>, #[serde(with = "serde_bytes")] Vec<u8>);

impl Revocation {
    /// Signs a revocation; `admin` is the certificate of the key's owner, or none for the grid key.
    pub fn issue(grid: GridId, peer: PeerId, when_s: u64, key: &ed25519::Keypair, admin: Option<Certificate>) -> Self {
        let issuer = key.public().to_bytes();
        let mut revocation = Self { grid, peer, when_s, issuer, admin, signature: [0; 64] };
        revocation.signature = canonical::sign(key, DOMAIN, &revocation.body());
        revocation
    }

    fn body(&self) -> Vec<u8> {
        canonical::encode(&Body(VERSION, self.grid.0, self.peer.0, self.when_s, self.issuer))
    }

    /// Its one encoding.
    pub fn encode(&self) -> Vec<u8> {
        let admin = self.admin.as_ref().map(Certificate::encode).unwrap_or_default();
        canonical::encode(&Fields(canonical::seal(&self.body(), self.signature), admin))
    }

    /// Reads a revocation; its signature is not checked.
    ///
    /// # Errors
    /// For everything but the one encoding of a revocation of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let Fields(sealed, admin) = canonical::decode(bytes, REVOCATION_BYTES_MAX)?;
        let (body, signature) = canonical::open(&sealed, REVOCATION_BYTES_MAX)?;
        let Body(version, grid, peer, when_s, issuer) = canonical::decode(&body, REVOCATION_BYTES_MAX)?;
        if version != VERSION {
            return Err(Malformed);
        }
        let admin = if admin.is_empty() { None } else { Some(Certificate::decode(&admin)?) };
        Ok(Self { grid: GridId(grid), peer: PeerId(peer), when_s, issuer, admin, signature })
    }

    /// Whether somebody who may revoke in `grid` signed it. That an administrator's certificate has expired since does
    /// not matter: what was revoked stays so.
    ///
    /// # Errors
    /// [`Refused::WrongGrid`] or [`Refused::Forged`].
    pub fn verify(&self, grid: GridId) -> Result<(), Refused> {
        if self.grid != grid {
            return Err(Refused::WrongGrid);
        }
        match &self.admin {
            None if grid_id(&self.issuer) != grid => return Err(Refused::Forged),
            None => {}
            Some(admin) => {
                admin.verify_admin(grid)?;
                if self.issuer != admin.terms.peer.0 {
                    return Err(Refused::Forged);
                }
            }
        }
        if !canonical::is_signed_by(&self.issuer, DOMAIN, &self.body(), &self.signature) {
            return Err(Refused::Forged);
        }
        Ok(())
    }
}

/// All that this machine knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    by_peer: BTreeMap<PeerId, Revocation>,
}

impl Revocations {
    /// Whether `peer` is revoked.
    pub fn contains(&self, peer: PeerId) -> bool {
        self.by_peer.contains_key(&peer)
    }

    /// Adds a verified one; whether it was news.
    pub fn insert(&mut self, revocation: Revocation) -> bool {
        let peer = revocation.peer;
        if self.contains(peer) {
            return false;
        }
        self.by_peer.insert(peer, revocation);
        if self.by_peer.len() > REVOCATIONS_MAX
            && let Some(oldest) = self.by_peer.values().min_by_key(|known| (known.when_s, known.peer)).map(|it| it.peer)
        {
            self.by_peer.remove(&oldest);
            return oldest != peer;
        }
        true
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_peer.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_peer.is_empty()
    }

    /// All, by peer.
    pub fn iter(&self) -> impl Iterator<Item = &Revocation> {
        self.by_peer.values()
    }

    /// Equal for equal sets of machines.
    pub fn digest(&self) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new();
        for peer in self.by_peer.keys() {
            hasher.update(&peer.0);
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        digest
    }
}
