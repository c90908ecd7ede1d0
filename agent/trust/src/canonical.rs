//! Canonical CBOR, and signatures over it.
//!
//! A value has one encoding: arrays of definite length, numbers and lengths in their shortest form, no field omitted
//! (RFC 8949, 4.2.1; there are no maps, hence no order of keys). Decoding encodes the value again and compares the
//! bytes, so that nobody can make a second certificate from a first by writing it differently. Sizes are checked before
//! decoding.

use idlewood_overlay::GridId;
use libp2p::identity::ed25519;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Deepest nesting; our values need four levels.
const RECURSION_MAX: usize = 8;

/// Domain of grid ids.
const GRID_DOMAIN: &[u8] = b"idlewood grid id v1";

/// Bytes that are not the one encoding of a value, or too many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are damaged")]
pub struct Malformed;

/// The one encoding of a value.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("memory takes what it is given");
    bytes
}

/// The value of at most `bytes_max` bytes, if they are its one encoding.
pub(super) fn decode<T: Serialize + DeserializeOwned>(bytes: &[u8], bytes_max: usize) -> Result<T, Malformed> {
    if bytes.len() > bytes_max {
        return Err(Malformed);
    }
    let value = ciborium::de::from_reader_with_recursion_limit(bytes, RECURSION_MAX).map_err(|_| Malformed)?;
    if encode(&value) == bytes { Ok(value) } else { Err(Malformed) }
}

/// Body and signature: the outermost array of all signed values.
#[derive(Serialize, Deserialize)]
struct Envelope(#[serde(with = "serde_bytes")] Vec<u8>, #[serde(with = "serde_bytes")] [u8; 64]);

/// A signed body on its way.
pub(super) fn seal(body: &[u8], signature: [u8; 64]) -> Vec<u8> {
    encode(&Envelope(body.to_vec(), signature))
}

/// Splits a signed value into body and signature; does not verify.
pub(super) fn open(bytes: &[u8], bytes_max: usize) -> Result<(Vec<u8>, [u8; 64]), Malformed> {
    let Envelope(body, signature) = decode(bytes, bytes_max)?;
    Ok((body, signature))
}

/// Signs `body`. The domain makes the signature worthless for any other purpose.
pub(super) fn sign(key: &ed25519::Keypair, domain: &[u8], body: &[u8]) -> [u8; 64] {
    key.sign(&[domain, body].concat()).try_into().expect("an Ed25519 signature has 64 bytes")
}

/// Whether `key` signed `body` for this domain.
pub(super) fn is_signed_by(key: &[u8; 32], domain: &[u8], body: &[u8], signature: &[u8; 64]) -> bool {
    ed25519::PublicKey::try_from_bytes(key).is_ok_and(|key| key.verify(&[domain, body].concat(), signature))
}

/// The id of the grid whose public key this is.
pub fn grid_id(public: &[u8; 32]) -> GridId {
    GridId(*blake3::Hasher::new().update(GRID_DOMAIN).update(public).finalize().as_bytes())
}
