//! Envelopes: what a submitter signs of a bag. An envelope holds the bag's label, by which any machine judges whether
//! the bag may run there, and the hash of its manifest, which only holders of its tasks can read.
//!
//! The signed envelope is a blob; its BLAKE3 is the bag's id, visible to the routers on a request's way. Earlier agents
//! signed the manifest itself, readable by all; their bags still run.

use idlewood_scheduler::{BagId, BlobId};
use serde::{Deserialize, Serialize};

use crate::label::Label;
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestError};
use crate::signed::{SignedBag, SignedForm};

/// Version of envelopes.
pub const ENVELOPE_VERSION: u32 = 1;

/// The content of a signed envelope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// [`ENVELOPE_VERSION`].
    pub version: u32,
    /// Public facts about the bag.
    pub label: Label,
    /// The manifest's blob.
    pub manifest: BlobId,
    /// The manifest's size.
    pub manifest_bytes: u64,
}

/// The signed content of a bag.
#[derive(Clone, Debug, PartialEq)]
pub enum Opened {
    /// An envelope; the manifest is a blob of its own.
    Envelope(Envelope),
    /// The manifest, as earlier agents signed it.
    Manifest(Box<Manifest>),
}

impl Envelope {
    /// The envelope of a manifest with this encoding.
    pub fn of(manifest: &Manifest, bytes: &[u8]) -> Self {
        let name = BlobId(*blake3::hash(bytes).as_bytes());
        let (version, label) = (ENVELOPE_VERSION, manifest.label());
        Self { version, label, manifest: name, manifest_bytes: bytes.len() as u64 }
    }

    /// The bytes that are signed.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        ciborium::into_writer(self, &mut bytes).expect("a Vec takes every write, and numbers and names can be written");
        bytes
    }

    /// Reads an envelope.
    ///
    /// # Errors
    /// [`ManifestError`]: none of it may be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let envelope: Self = ciborium::de::from_reader_with_recursion_limit(bytes, 16)
            .map_err(|error| ManifestError::Malformed(error.to_string()))?;
        if envelope.version != ENVELOPE_VERSION {
            return Err(ManifestError::Version(envelope.version));
        }
        if envelope.label.tasks == 0 || envelope.manifest_bytes > MANIFEST_BYTES_MAX {
            return Err(ManifestError::Malformed("its envelope promises what no manifest can be".to_owned()));
        }
        Ok(envelope)
    }

    /// Reads and validates the manifest of this envelope.
    ///
    /// # Errors
    /// [`ManifestError`]: none of it may be used.
    pub fn manifest(&self, bytes: &[u8]) -> Result<Manifest, ManifestError> {
        if blake3::hash(bytes) != blake3::Hash::from_bytes(self.manifest.0) {
            return Err(ManifestError::Malformed("it is not the one that its submitter signed".to_owned()));
        }
        let manifest = Manifest { blob: Some(self.manifest), ..Manifest::decode(bytes)? };
        if manifest.label() != self.label {
            return Err(ManifestError::Malformed("it is not what its envelope says".to_owned()));
        }
        Ok(manifest)
    }
}

impl Opened {
    /// Splits the signed blob of a bag; decodes neither envelope nor manifest.
    ///
    /// # Errors
    /// [`ManifestError::Malformed`].
    pub fn unsealed(bytes: &[u8]) -> Result<SignedBag, ManifestError> {
        SignedBag::decode(bytes, MANIFEST_BYTES_MAX as usize)
            .map_err(|_| ManifestError::Malformed("it is not signed".to_owned()))
    }

    /// Decodes the signed content. Does not verify the signature.
    ///
    /// # Errors
    /// [`ManifestError`]: none of it may be used.
    pub fn read(signed: &SignedBag) -> Result<Self, ManifestError> {
        match signed.form {
            SignedForm::Envelope => Envelope::decode(&signed.content).map(Self::Envelope),
            SignedForm::Manifest => Manifest::decode(&signed.content).map(Box::new).map(Self::Manifest),
        }
    }

    /// The manifest's own blob, if it has one.
    pub fn manifest_blob(&self) -> Option<BlobId> {
        match self {
            Self::Envelope(envelope) => Some(envelope.manifest),
            Self::Manifest(_) => None,
        }
    }

    /// Public facts about the bag.
    pub fn label(&self) -> Label {
        match self {
            Self::Envelope(envelope) => envelope.label,
            Self::Manifest(manifest) => manifest.label(),
        }
    }
}

/// A bag's id: the hash of its signed blob.
pub fn id(signed: &[u8]) -> BagId {
    BagId(*blake3::hash(signed).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gate;
    use crate::manifest::tests::manifest;

    fn alone() -> Gate {
        Gate::open(&libp2p::identity::Keypair::generate_ed25519(), None).expect("no key to read")
    }

    #[test]
    fn an_envelope_is_that_of_one_manifest() {
        let manifest = manifest();
        let bytes = manifest.encode();
        let envelope = Envelope::of(&manifest, &bytes);
        assert_eq!(Envelope::decode(&envelope.encode()).expect("it is sound"), envelope);
        let read = envelope.manifest(&bytes).expect("it is its own");
        assert_eq!((read.blob, read.label()), (Some(envelope.manifest), envelope.label));
        let other = Manifest { nonce: 99, ..manifest.clone() };
        assert!(envelope.manifest(&other.encode()).is_err(), "another manifest");
        // A submitter whose label promises less memory use than its manifest wants.
        let label = Label { memory_bytes: 1, ..envelope.label };
        assert!(Envelope { label, ..envelope.clone() }.manifest(&bytes).is_err());
        for odd in [
            Envelope { version: 2, ..envelope.clone() },
            Envelope { manifest_bytes: MANIFEST_BYTES_MAX + 1, ..envelope.clone() },
            Envelope { label: Label { tasks: 0, ..envelope.label }, ..envelope },
        ] {
            assert!(Envelope::decode(&odd.encode()).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn a_bag_that_an_earlier_agent_signed_is_read() {
        let gate = alone();
        let signed = gate.sign_earlier_manifest(manifest().encode()).encode();
        let signed = Opened::unsealed(&signed).expect("it is signed");
        assert_eq!(gate.authorise(&signed, gate.me()), Ok(()));
        let opened = Opened::read(&signed).expect("it is sound");
        assert_eq!((opened.label(), opened.manifest_blob()), (manifest().label(), None));
        // An envelope does not pass for a manifest, nor a manifest for an envelope.
        let envelope = Envelope::of(&manifest(), &manifest().encode()).encode();
        let as_manifest = gate.sign_earlier_manifest(envelope);
        assert!(Opened::read(&as_manifest).is_err());
        let as_envelope = gate.sign_bag(manifest().encode()).expect("alone, it may");
        assert!(Opened::read(&as_envelope).is_err());
    }

    #[test]
    fn mutations_of_envelopes() {
        let envelope = Envelope::of(&manifest(), &manifest().encode());
        idlewood_testing::mutations("envelope", vec![envelope.encode()], |bytes| {
            let Ok(read) = Envelope::decode(bytes) else { return false };
            assert_eq!(Envelope::decode(&read.encode()).expect("it was read before"), read);
            true
        });
    }
}
