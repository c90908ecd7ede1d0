//! Revocations: they end a machine's membership whatever its certificate says.
//!
//! They are a set that only grows and spreads from machine to machine: two machines that connect compare digests, and
//! pass on what is new to them. The first known revocation of a machine counts, except that one by the grid's key
//! replaces others. An administrator cannot revoke administrators: only the grid's key can, so that its holder
//! prevails. Bytes: `docs/formats.md`.
//!
//! Left out: taking a revocation back (a machine that was revoked by mistake joins with a new key).

use std::collections::BTreeMap;

use idlewood_overlay::{GridId, PeerId};
use libp2p::identity::ed25519;
use serde::{Deserialize, Serialize};

use super::canonical::{self, Malformed, grid_id};
use super::certificate::{CERTIFICATE_BYTES_MAX, Certificate, Refused, Role};

/// Prefix of a revocation's body when it is signed.
const DOMAIN: &[u8] = b"idlewood revocation v1";

/// Version of revocations.
const VERSION: u8 = 1;

/// Longest encoding of a revocation. Ours have up to 398 bytes.
pub const REVOCATION_BYTES_MAX: usize = CERTIFICATE_BYTES_MAX + 224;

/// Most revocations kept. Our choice: far more machines than a grid loses during one lifetime of its certificates.
/// Beyond that, the oldest ones of the issuer with most are dropped, whose certificates have expired by then; those by
/// the grid's key last. So an administrator that revokes everything displaces only its own revocations.
pub const REVOCATIONS_MAX: usize = 4096;

/// One revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The grid.
    pub grid: GridId,
    /// The revoked machine.
    pub peer: PeerId,
    /// When, in seconds of Unix time, by the issuer's clock.
    pub when_s: u64,
    /// The public key that signed: the grid's, or that of an administrator's machine.
    pub issuer: [u8; 32],
    /// The administrator's certificate, if one signed.
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

    /// Checks that a holder of the right to revoke in `grid` signed it. An administrator's certificate may have expired
    /// since: revocations stay.
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

/// The revocations that this machine knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    by_peer: BTreeMap<PeerId, Revocation>,
}

impl Revocations {
    /// Whether a certificate of `peer` for this role is void.
    pub fn revokes(&self, peer: PeerId, role: Role) -> bool {
        self.by_peer.get(&peer).is_some_and(|known| known.admin.is_none() || role != Role::Admin)
    }

    /// Whether it adds to the known revocations.
    pub(super) fn is_new(&self, revocation: &Revocation) -> bool {
        let known = self.by_peer.get(&revocation.peer);
        known.is_none_or(|known| known.admin.is_some() && revocation.admin.is_none())
    }

    /// Adds a verified revocation; true if it was new, and there was room.
    pub fn insert(&mut self, revocation: Revocation) -> bool {
        if !self.is_new(&revocation) {
            return false;
        }
        let peer = revocation.peer;
        self.by_peer.insert(peer, revocation);
        if self.by_peer.len() <= REVOCATIONS_MAX {
            return true;
        }
        let mut counts: BTreeMap<(bool, [u8; 32]), usize> = BTreeMap::new();
        for known in self.by_peer.values() {
            *counts.entry((known.admin.is_some(), known.issuer)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|&((is_admin, issuer), count)| (is_admin, count, issuer));
        let theirs = self.by_peer.values().filter(|known| most.is_some_and(|((_, issuer), _)| known.issuer == issuer));
        let Some(oldest) = theirs.min_by_key(|known| (known.when_s, known.peer)).map(|known| known.peer) else {
            return true;
        };
        self.by_peer.remove(&oldest);
        oldest != peer
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

    /// Equal if the same machines are revoked, by the grid's key or not.
    pub fn digest(&self) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new();
        for (peer, known) in &self.by_peer {
            hasher.update(&peer.0).update(&[u8::from(known.admin.is_none())]);
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        digest
    }
}
