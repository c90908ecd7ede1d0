//! Signed manifests: what a bag runs, with proof of who wants it.
//!
//! The blob whose hash is the bag's id holds the manifest, the submitter's certificate and a signature by the submitter's
//! key, so that neither content nor submitter of a bag can be changed, and nobody can give another's work as their own.
//! Bytes: `docs/formats.md`.

use idlewood_overlay::PeerId;
use libp2p::identity::ed25519;
use serde::{Deserialize, Serialize};

use super::canonical::{self, Malformed};
use super::certificate::CHAIN_BYTES_MAX;

/// What precedes a manifest's hash when it is signed.
const DOMAIN: &[u8] = b"idlewood manifest v1";

/// Version of signed manifests.
const VERSION: u8 = 1;

/// What is added to a manifest at most.
const ADDED_BYTES_MAX: usize = CHAIN_BYTES_MAX + 128;

/// A manifest as it travels and lies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedManifest {
    /// The manifest's bytes.
    pub manifest: Vec<u8>,
    /// The submitter's certificate with what proves it, as it was when the bag was submitted.
    pub chain: Vec<u8>,
    signature: [u8; 64],
}

/// Version, manifest, chain, signature.
#[derive(Serialize, Deserialize)]
struct Fields(
    u8,
    #[serde(with = "serde_bytes")] Vec<u8>,
    #[serde(with = "serde_bytes")] Vec<u8>,
    #[serde(with = "serde_bytes")] [u8; 64],
);

impl SignedManifest {
    /// Signs a manifest with the submitter's key.
    pub(super) fn sign(manifest: Vec<u8>, chain: Vec<u8>, key: &ed25519::Keypair) -> Self {
        let signature = canonical::sign(key, DOMAIN, blake3::hash(&manifest).as_bytes());
        Self { manifest, chain, signature }
    }

    /// Its one encoding.
    pub fn encode(self) -> Vec<u8> {
        canonical::encode(&Fields(VERSION, self.manifest, self.chain, self.signature))
    }

    /// Reads one whose manifest has at most so many bytes; nothing is verified.
    ///
    /// # Errors
    /// For everything but the one encoding of a signed manifest of this version.
    pub fn decode(bytes: &[u8], manifest_bytes_max: usize) -> Result<Self, Malformed> {
        match canonical::decode(bytes, manifest_bytes_max.saturating_add(ADDED_BYTES_MAX))? {
            Fields(VERSION, manifest, chain, signature)
                if chain.len() <= CHAIN_BYTES_MAX && manifest.len() <= manifest_bytes_max =>
            {
                Ok(Self { manifest, chain, signature })
            }
            Fields(..) => Err(Malformed),
        }
    }

    /// Whether `submitter` signed it.
    pub(super) fn is_signed_by(&self, submitter: PeerId) -> bool {
        canonical::is_signed_by(&submitter.0, DOMAIN, blake3::hash(&self.manifest).as_bytes(), &self.signature)
    }
}
