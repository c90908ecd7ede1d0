//! The signed blob of a bag, with proof of who submits it.
//!
//! The blob whose hash is the bag's id holds the bag's envelope, which names the manifest, the submitter's certificate,
//! and a signature by the submitter's key. So neither content nor submitter of a bag can be changed, and nobody can
//! pass another's work off as their own. Earlier agents signed the manifest itself. Bytes: `docs/formats.md`.

use idlewood_overlay::PeerId;
use libp2p::identity::ed25519;
use serde::{Deserialize, Serialize};

use super::canonical::{self, Malformed};
use super::certificate::CHAIN_BYTES_MAX;

/// Form of the signed content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignedForm {
    /// The manifest, as earlier agents signed it.
    Manifest,
    /// The envelope.
    Envelope,
}

impl SignedForm {
    fn version(self) -> u8 {
        match self {
            Self::Manifest => 1,
            Self::Envelope => 2,
        }
    }

    /// Prefix of the hash of the content when it is signed.
    fn domain(self) -> &'static [u8] {
        match self {
            Self::Manifest => b"idlewood manifest v1",
            Self::Envelope => b"idlewood envelope v1",
        }
    }
}

/// Most bytes added to the content.
const ADDED_BYTES_MAX: usize = CHAIN_BYTES_MAX + 128;

/// The signed blob of a bag, as it travels and is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedBag {
    /// The form of the content.
    pub form: SignedForm,
    /// The bytes that are signed.
    pub content: Vec<u8>,
    /// The submitter's chain of certificates at the time of submission.
    pub chain: Vec<u8>,
    signature: [u8; 64],
}

/// Version, content, chain, signature.
#[derive(Serialize, Deserialize)]
struct Fields(
    u8,
    #[serde(with = "serde_bytes")] Vec<u8>,
    #[serde(with = "serde_bytes")] Vec<u8>,
    #[serde(with = "serde_bytes")] [u8; 64],
);

impl SignedBag {
    /// Signs an envelope with the submitter's key.
    pub(super) fn sign(envelope: Vec<u8>, chain: Vec<u8>, key: &ed25519::Keypair) -> Self {
        Self::sign_as(SignedForm::Envelope, envelope, chain, key)
    }

    pub(super) fn sign_as(form: SignedForm, content: Vec<u8>, chain: Vec<u8>, key: &ed25519::Keypair) -> Self {
        let signature = canonical::sign(key, form.domain(), blake3::hash(&content).as_bytes());
        Self { form, content, chain, signature }
    }

    /// Its one encoding.
    pub fn encode(self) -> Vec<u8> {
        canonical::encode(&Fields(self.form.version(), self.content, self.chain, self.signature))
    }

    /// Reads a signed bag whose content has at most so many bytes; verifies nothing.
    ///
    /// # Errors
    /// For everything but the one encoding of a signed bag in one of these forms.
    pub fn decode(bytes: &[u8], content_bytes_max: usize) -> Result<Self, Malformed> {
        let Fields(version, content, chain, signature) =
            canonical::decode(bytes, content_bytes_max.saturating_add(ADDED_BYTES_MAX))?;
        let forms = [SignedForm::Manifest, SignedForm::Envelope];
        let form = forms.into_iter().find(|form| form.version() == version).ok_or(Malformed)?;
        if chain.len() > CHAIN_BYTES_MAX || content.len() > content_bytes_max {
            return Err(Malformed);
        }
        Ok(Self { form, content, chain, signature })
    }

    /// Whether `submitter` signed it.
    pub(super) fn is_signed_by(&self, submitter: PeerId) -> bool {
        let hash = blake3::hash(&self.content);
        canonical::is_signed_by(&submitter.0, self.form.domain(), hash.as_bytes(), &self.signature)
    }
}
