//! How long a message is when encoded, and a digest of its content, in one pass that writes nothing.
//!
//! Lengths are those of plain CBOR as `ciborium` writes it (RFC 8949 with lengths in front): what the agent sends. A
//! test and every run with [`Wire::Bytes`](super::Wire::Bytes) compare them with the real encoding. The digest mixes
//! all values, not the names of fields; it is for traces, not for safety.

use std::fmt;

use idlewood_overlay::Body;
use serde::ser::{self, Serialize};

/// What one pass over a value finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    /// Bytes of its CBOR encoding.
    pub bytes: u64,
    /// Of its content.
    pub digest: u64,
    /// What kind of message it is.
    pub kind: &'static str,
    /// The same as a number, in the order of the protocol.
    pub variant: u32,
}

/// Measures an overlay message as it travels between agents, inside the scheduler's envelope.
pub fn measure(message: &idlewood_overlay::Message) -> Measure {
    // The envelope is an enum's variant: a map of one entry, from its name.
    let mut pass = Pass(Measure { bytes: 1 + 1 + "Overlay".len() as u64, ..Measure::default() });
    message.serialize(&mut pass).expect("messages hold nothing that has no length");
    let (variant, kind) = kind(&message.body);
    Measure { kind, variant, ..pass.0 }
}

fn kind(body: &Body) -> (u32, &'static str) {
    match body {
        Body::Ping { .. } => (0, "Ping"),
        Body::Ack { .. } => (1, "Ack"),
        Body::Find { .. } => (2, "Find"),
        Body::Found { .. } => (3, "Found"),
        Body::Report(_) => (4, "Report"),
        Body::ReportAck(_) => (5, "ReportAck"),
        Body::RootChanged { .. } => (6, "RootChanged"),
        Body::Dead(_) => (7, "Dead"),
        Body::Suspect(_) => (8, "Suspect"),
        Body::Hint(_) => (9, "Hint"),
        Body::Leave(_) => (10, "Leave"),
        Body::Handover(_) => (11, "Handover"),
    }
}

/// Adds a word to a digest.
pub(crate) fn mix(digest: u64, word: u64) -> u64 {
    let mixed = (digest.rotate_left(26) ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
    mixed ^ mixed >> 32
}

struct Pass(Measure);

/// Something that overlay messages do not contain.
#[derive(Debug)]
struct Unmeasured(String);

impl fmt::Display for Unmeasured {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Unmeasured {}

impl ser::Error for Unmeasured {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

fn unmeasured<T>(what: &str) -> Result<T, Unmeasured> {
    Err(Unmeasured(format!("overlay messages hold no {what}")))
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

    fn sequence(&mut self, len: Option<usize>) -> Result<&mut Self, Unmeasured> {
        let Some(len) = len else { return unmeasured("sequence of unknown length") };
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
    type Error = Unmeasured;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = ser::Impossible<(), Unmeasured>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), Unmeasured> {
        self.0.bytes += 1;
        self.word(u64::from(value));
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), Unmeasured> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Unmeasured> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Unmeasured> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Unmeasured> {
        // Negative numbers count from −1.
        self.head(if value < 0 { !value as u64 } else { value as u64 });
        self.word(value as u64);
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), Unmeasured> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), Unmeasured> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), Unmeasured> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Unmeasured> {
        self.head(value);
        self.word(value);
        Ok(())
    }

    fn serialize_f32(self, _: f32) -> Result<(), Unmeasured> {
        unmeasured("fraction")
    }

    fn serialize_f64(self, _: f64) -> Result<(), Unmeasured> {
        unmeasured("fraction")
    }

    fn serialize_char(self, _: char) -> Result<(), Unmeasured> {
        unmeasured("character")
    }

    fn serialize_str(self, value: &str) -> Result<(), Unmeasured> {
        self.block(value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Unmeasured> {
        self.block(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Unmeasured> {
        self.0.bytes += 1;
        self.word(0);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unmeasured> {
        self.word(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Unmeasured> {
        self.0.bytes += 1;
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Unmeasured> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, name: &'static str) -> Result<(), Unmeasured> {
        self.name(name);
        self.word(u64::from(index));
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Unmeasured> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), Unmeasured> {
        self.variant(index, name);
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self, Unmeasured> {
        self.sequence(len)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self, Unmeasured> {
        self.sequence(Some(len))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Self, Unmeasured> {
        self.sequence(Some(len))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Self, Unmeasured> {
        self.variant(index, name);
        self.sequence(Some(len))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Unmeasured> {
        unmeasured("map")
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Self, Unmeasured> {
        self.head(len as u64);
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Self, Unmeasured> {
        self.variant(index, name);
        self.head(len as u64);
        Ok(self)
    }
}

impl ser::SerializeSeq for &mut Pass {
    type Ok = ();
    type Error = Unmeasured;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unmeasured> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Unmeasured> {
        Ok(())
    }
}

impl ser::SerializeTuple for &mut Pass {
    type Ok = ();
    type Error = Unmeasured;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unmeasured> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Unmeasured> {
        Ok(())
    }
}

impl ser::SerializeTupleStruct for &mut Pass {
    type Ok = ();
    type Error = Unmeasured;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unmeasured> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Unmeasured> {
        Ok(())
    }
}

impl ser::SerializeTupleVariant for &mut Pass {
    type Ok = ();
    type Error = Unmeasured;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unmeasured> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Unmeasured> {
        Ok(())
    }
}

impl ser::SerializeStruct for &mut Pass {
    type Ok = ();
    type Error = Unmeasured;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Unmeasured> {
        self.name(name);
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Unmeasured> {
        Ok(())
    }
}

impl ser::SerializeStructVariant for &mut Pass {
    type Ok = ();
    type Error = Unmeasured;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Unmeasured> {
        self.name(name);
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Unmeasured> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use idlewood_overlay::{
        Body, Contact, GridId, Handover, HandoverChild, Leave, Member, Message, Node, Payload, PeerId, PositionKey,
        Report, ReportAck, RootInfo, Span, Subtree, Verdict,
    };

    use super::*;

    /// Around every length that a number's head can have.
    const NUMBERS: [u64; 10] = [0, 23, 24, 255, 256, 65_535, 65_536, u32::MAX as u64, u32::MAX as u64 + 1, u64::MAX];

    fn contact(number: u64) -> Member {
        let address = "a".repeat(number.min(256) as usize).into();
        Contact { peer: PeerId([number as u8; 32]), incarnation: number, address }.into()
    }

    fn bodies(number: u64) -> Vec<Body> {
        let (digest, node) = (number as u32, Node::Router);
        let nonce = digest;
        let list = || vec![contact(number); number.min(30) as usize];
        let root = || {
            Arc::new(RootInfo { contact: contact(1), stamp: number, count: number, height: 3, payload: vec![7; 24] })
        };
        let span = Span { lo: None, l: contact(1), r: contact(2), ro: Some(contact(number)) };
        let tree = Subtree { span, count: number, height: digest };
        let load = Payload { version: number, base: Some(number), bytes: vec![1; number.min(300) as usize] };
        let child =
            HandoverChild { contact: contact(number), node, version: number, tree: tree.clone(), load: load.clone() };
        let (tree, load) = (Some(Box::new(tree)), Some(load));
        let ack = |verdict, root| Body::ReportAck(ReportAck { node, version: number, verdict, root, edition: digest });
        vec![
            Body::Ping { nonce, mine: digest, seen: !digest },
            Body::Ack { nonce, mine: digest, set: Some(list()), ask: 0 },
            Body::Ack { nonce, mine: digest, set: None, ask: digest },
            Body::Find { nonce, key: PositionKey([9; 32]) },
            Body::Found { nonce, near: list() },
            Body::Report(Report { node: Node::Leaf, version: number, tree, load, root: digest }),
            Body::Report(Report { node, version: number, tree: None, load: None, root: 0 }),
            ack(Verdict::Linked { load: number, depth: Some(nonce) }, Some(root())),
            ack(Verdict::Unknown, None),
            ack(Verdict::Refused { pred: None, succ: Some(contact(number)) }, None),
            Body::RootChanged { node, root: Some(root()), depth: None, edition: digest },
            Body::Dead(contact(number)),
            Body::Leave(Leave { near: list(), ends: [false, true] }),
            Body::Handover(Handover { children: vec![child] }),
        ]
    }

    #[test]
    fn lengths_are_those_of_the_encoding() {
        for number in NUMBERS {
            for body in bodies(number) {
                let address = (number > 0).then(|| contact(number).address.clone());
                let message = Message { grid: GridId([3; 32]).tag(), incarnation: number, address, body };
                let found = measure(&message);
                let kind = format!("{:?}", message.body);
                assert!(kind.starts_with(found.kind), "{kind} is not {}", found.kind);
                let bytes = idlewood_scheduler::Message::Overlay(message).encode();
                assert_eq!(found.bytes, bytes.len() as u64, "{kind}");
            }
        }
    }

    #[test]
    fn digests_follow_the_content() {
        let bodies = NUMBERS.into_iter().flat_map(bodies);
        let messages = bodies.map(|body| Message { grid: GridId([3; 32]).tag(), incarnation: 1, address: None, body });
        let (mut encoded, mut digests) = (Vec::new(), Vec::new());
        for message in messages {
            digests.push(measure(&message).digest);
            encoded.push(idlewood_scheduler::Message::Overlay(message).encode());
        }
        for (one, other) in (0..digests.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
            assert_eq!(digests[one] == digests[other], encoded[one] == encoded[other], "{one} and {other}");
        }
    }
}
