//! Serde form of 32-byte identities: bytes in binary formats, lower-case hex where people read.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserializer, Serializer};

/// For `#[serde(with)]`.
///
/// # Errors
/// The serialiser's.
pub fn serialize<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        serializer.serialize_str(&hex::encode(bytes))
    } else {
        serializer.serialize_bytes(bytes)
    }
}

/// For `#[serde(with)]`.
///
/// # Errors
/// Refuses anything but exactly 32 bytes.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
    if deserializer.is_human_readable() {
        deserializer.deserialize_str(Bytes32)
    } else {
        deserializer.deserialize_bytes(Bytes32)
    }
}

struct Bytes32;

impl<'de> Visitor<'de> for Bytes32 {
    type Value = [u8; 32];

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("32 bytes, or 64 hexadecimal digits")
    }

    fn visit_str<E: Error>(self, digits: &str) -> Result<Self::Value, E> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes)
            .map_err(|_| E::invalid_value(serde::de::Unexpected::Str(digits), &self))?;
        Ok(bytes)
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let mut bytes = [0; 32];
        for (position, byte) in bytes.iter_mut().enumerate() {
            *byte = sequence.next_element()?.ok_or_else(|| A::Error::invalid_length(position, &Self))?;
        }
        Ok(bytes)
    }
}
