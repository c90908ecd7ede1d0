//! The encoded length of any message or record, and a digest of its content, in one pass that writes nothing.
//!
//! Lengths are those of plain CBOR as `ciborium` writes it (RFC 8949, lengths in front, fractions as short as they are
//! exact): what the agent sends. Simulations with [`Wire::Bytes`](crate::overlay::Wire::Bytes) compare them with the
//! real encoding of every message. The digest mixes all values, not the names of fields; it is for traces, not for
//! security.

use std::fmt;

use serde::ser::{self, Serialize};

/// Result of one pass over a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of its CBOR encoding.
    pub bytes: u64,
    /// Digest of its content.
    pub digest: u64,
}

/// Measures a value.
///
/// # Panics
/// When its length is not known before it is written, which is never so of messages and records.
pub fn size_of<T: Serialize>(value: &T) -> Size {
    let mut pass = Pass(Size::default());
    value.serialize(&mut pass).expect("messages and records hold nothing that has no length");
    pass.0
}

/// Adds a word to a digest.
pub(crate) fn mix(digest: u64, word: u64) -> u64 {
    let mixed = (digest.rotate_left(26) ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
    mixed ^ mixed >> 32
}

struct Pass(Size);

/// A sequence or a map that does not say how long it is.
#[derive(Debug)]
struct NoLength(String);

impl fmt::Display for NoLength {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for NoLength {}

impl ser::Error for NoLength {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// Bytes of a fraction: the shortest of three forms that holds it exactly.
fn float_bytes(value: f64) -> u64 {
    let bits = value.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1023;
    let mantissa = bits & ((1 << 52) - 1);
    let zeros = if mantissa == 0 { 52 } else { mantissa.trailing_zeros() as i32 };
    let is_half = match exponent {
        // Zero and infinities; numbers below every normal one are far below the halves.
        -1023 | 1024 => mantissa == 0,
        -14..=15 => zeros >= 42,
        // Each step below the smallest normal half costs a bit.
        -24..=-15 => zeros >= 42 + (-14 - exponent),
        _ => false,
    };
    if is_half {
        3
    } else if f64::from(value as f32).to_bits() == bits {
        5
    } else {
        9
    }
}

impl Pass {
    /// A major type with its number: one byte, and what the number needs.
    fn head(&mut self, number: u64) {
        self.0.bytes += match number {
            0..24 => 1,
            24..0x100 => 2,
            0x100..0x1_0000 => 3,
            0x1_0000..0x1_0000_0000 => 5,
            _ => 9,
        };
    }

    fn word(&mut self, word: u64) {
        self.0.digest = mix(self.0.digest, word);
    }

    fn name(&mut self, name: &str) {
        self.head(name.len() as u64);
        self.0.bytes += name.len() as u64;
    }

    fn block(&mut self, bytes: &[u8]) {
        self.head(bytes.len() as u64);
        self.0.bytes += bytes.len() as u64;
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.word(u64::from(*byte)));
    }

    fn sequence(&mut self, len: Option<usize>) -> Result<&mut Self, NoLength> {
        let Some(len) = len else { return Err(NoLength("sequence of unknown length".to_owned())) };
        self.head(len as u64);
        self.word(len as u64);
        Ok(self)
    }

    /// A map of one entry, from the variant's name.
    fn variant(&mut self, index: u32, name: &'static str) {
        self.head(1);
        self.name(name);
        self.word(u64::from(index));
    }
}

impl ser::Serializer for &mut Pass {
    type Ok = ();
    type Error = NoLength;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), NoLength> {
        self.0.bytes += 1;
        self.word(u64::from(value));
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), NoLength> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), NoLength> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), NoLength> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), NoLength> {
        // Negative numbers count from −1.
        self.head(if value < 0 { !value as u64 } else { value as u64 });
        self.word(value as u64);
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), NoLength> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), NoLength> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), NoLength> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), NoLength> {
        self.head(value);
        self.word(value);
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), NoLength> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), NoLength> {
        self.0.bytes += float_bytes(value);
        self.word(value.to_bits());
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), NoLength> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), NoLength> {
        self.block(value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), NoLength> {
        self.block(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), NoLength> {
        self.0.bytes += 1;
        self.word(0);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), NoLength> {
        self.word(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), NoLength> {
        self.0.bytes += 1;
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), NoLength> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, name: &'static str) -> Result<(), NoLength> {
        self.name(name);
        self.word(u64::from(index));
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), NoLength> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), NoLength> {
        self.variant(index, name);
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self, NoLength> {
        self.sequence(len)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self, NoLength> {
        self.sequence(Some(len))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Self, NoLength> {
        self.sequence(Some(len))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Self, NoLength> {
        self.variant(index, name);
        self.sequence(Some(len))
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self, NoLength> {
        self.sequence(len)
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Self, NoLength> {
        self.head(len as u64);
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Self, NoLength> {
        self.variant(index, name);
        self.head(len as u64);
        Ok(self)
    }
}

impl ser::SerializeSeq for &mut Pass {
    type Ok = ();
    type Error = NoLength;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NoLength> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), NoLength> {
        Ok(())
    }
}

impl ser::SerializeTuple for &mut Pass {
    type Ok = ();
    type Error = NoLength;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NoLength> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), NoLength> {
        Ok(())
    }
}

impl ser::SerializeTupleStruct for &mut Pass {
    type Ok = ();
    type Error = NoLength;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NoLength> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), NoLength> {
        Ok(())
    }
}

impl ser::SerializeTupleVariant for &mut Pass {
    type Ok = ();
    type Error = NoLength;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NoLength> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), NoLength> {
        Ok(())
    }
}

impl ser::SerializeStruct for &mut Pass {
    type Ok = ();
    type Error = NoLength;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), NoLength> {
        self.name(name);
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), NoLength> {
        Ok(())
    }
}

impl ser::SerializeStructVariant for &mut Pass {
    type Ok = ();
    type Error = NoLength;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), NoLength> {
        self.name(name);
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), NoLength> {
        Ok(())
    }
}

impl ser::SerializeMap for &mut Pass {
    type Ok = ();
    type Error = NoLength;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), NoLength> {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NoLength> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), NoLength> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Serialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize)]
    enum Value {
        Nothing,
        Whole(i64),
        Fraction(f64),
        Text(String),
        Pair(u64, Option<bool>),
        Map(BTreeMap<u8, i16>),
        Record { first: Vec<u32>, second: char },
    }

    fn value() -> impl Strategy<Value = Value> {
        let whole = prop_oneof![any::<i64>(), -300..300i64, (0..63u32).prop_map(|bit| 1 << bit)];
        let fraction = prop_oneof![
            any::<f64>(),
            any::<f32>().prop_map(f64::from),
            // All that a half can hold, and its neighbours that it cannot.
            (-2100i32..2100, -30..20i32).prop_map(|(mantissa, exponent)| f64::from(mantissa) * 2f64.powi(exponent)),
            Just(f64::INFINITY),
            Just(-0.0),
        ];
        prop_oneof![
            Just(Value::Nothing),
            whole.prop_map(Value::Whole),
            fraction.prop_filter("messages hold no NaN", |value| !value.is_nan()).prop_map(Value::Fraction),
            ".{0,300}".prop_map(Value::Text),
            (any::<u64>(), any::<Option<bool>>()).prop_map(|(number, flag)| Value::Pair(number, flag)),
            prop::collection::btree_map(any::<u8>(), any::<i16>(), 0..40).prop_map(Value::Map),
            (prop::collection::vec(any::<u32>(), 0..40), any::<char>())
                .prop_map(|(first, second)| Value::Record { first, second }),
        ]
    }

    fn encoded(value: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        ciborium::into_writer(value, &mut bytes).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn lengths_are_those_of_the_encoding(value in value()) {
            prop_assert_eq!(size_of(&value).bytes, encoded(&value).len() as u64);
        }

        #[test]
        fn digests_follow_the_content(one in value(), other in value()) {
            prop_assert_eq!(size_of(&one).digest == size_of(&other).digest, encoded(&one) == encoded(&other));
            prop_assert_eq!(size_of(&one), size_of(&one.clone()));
        }
    }
}
