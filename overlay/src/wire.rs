//! The bytes of messages: lists of values instead of maps with names.
//!
//! Most messages are heartbeats, and names would be most of their bytes. So a message is a list of values in a fixed
//! order, its content begins with a number that names the variant, and a contact is three values, or four. Everywhere
//! else contacts are stored with names.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};

use crate::identity::{Contact, Member};
use crate::message::{Body, Handover, HandoverChild, Leave, Message, Report, ReportAck, RootInfo, Verdict};
use crate::node::Node;
use crate::payload::Payload;
use crate::subtree::{Span, Subtree};

/// Serialises the contacts inside as lists of values.
struct Flat<T>(T);

impl Serialize for Flat<&Member> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Contact { peer, incarnation, address, nonce } = &**self.0;
        match nonce {
            None => (peer, incarnation, address).serialize(serializer),
            Some(nonce) => (peer, incarnation, address, serde_bytes::Bytes::new(&**nonce)).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Flat<Member> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(List::<ContactList>(PhantomData)).map(|list| Self(list.0.into()))
    }
}

/// Three values, or four with a nonce.
struct ContactList(Contact);

impl FromList for ContactList {
    fn from_list<'de, A: SeqAccess<'de>>(list: &mut A) -> Result<Self, A::Error> {
        let (peer, incarnation, address) = (next(list)?, next(list)?, next(list)?);
        let nonce: Option<serde_bytes::ByteArray<16>> = list.next_element()?;
        Ok(Self(Contact { peer, incarnation, address, nonce: nonce.map(|nonce| Box::new(nonce.into_array())) }))
    }
}

impl Serialize for Flat<&Option<Member>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().map(Flat).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Flat<Option<Member>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let contact: Option<Flat<Member>> = Deserialize::deserialize(deserializer)?;
        Ok(Self(contact.map(|contact| contact.0)))
    }
}

impl Serialize for Flat<&Vec<Member>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Flat))
    }
}

impl<'de> Deserialize<'de> for Flat<Vec<Member>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let contacts: Vec<Flat<Member>> = Deserialize::deserialize(deserializer)?;
        Ok(Self(contacts.into_iter().map(|contact| contact.0).collect()))
    }
}

impl Serialize for Flat<&Option<Vec<Member>>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().map(Flat).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Flat<Option<Vec<Member>>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let contacts: Option<Flat<Vec<Member>>> = Deserialize::deserialize(deserializer)?;
        Ok(Self(contacts.map(|contacts| contacts.0)))
    }
}

/// Payload bytes as one byte string.
impl Serialize for Flat<&[u8]> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de> Deserialize<'de> for Flat<Vec<u8>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde_bytes::deserialize(deserializer).map(Self)
    }
}

/// Reads a list of values through [`FromList`].
struct List<T>(PhantomData<T>);

/// A type that reads its values from a list one by one.
trait FromList: Sized {
    fn from_list<'de, A: SeqAccess<'de>>(list: &mut A) -> Result<Self, A::Error>;
}

fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(list: &mut A) -> Result<T, A::Error> {
    list.next_element()?.ok_or_else(|| A::Error::custom("a value is missing"))
}

fn flat<'de, T, A: SeqAccess<'de>>(list: &mut A) -> Result<T, A::Error>
where
    Flat<T>: Deserialize<'de>,
{
    Ok(next::<Flat<T>, A>(list)?.0)
}

impl<'de, T: FromList> Visitor<'de> for List<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<T, A::Error> {
        let value = T::from_list(&mut list)?;
        match list.next_element::<IgnoredAny>()? {
            None => Ok(value),
            Some(IgnoredAny) => Err(A::Error::custom("a value too many")),
        }
    }
}

/// Implements the list form for a type: the number of values, how they are written and how they are read.
macro_rules! list {
    ($type:ty, $len:expr, |$value:ident, $out:ident| $write:expr, |$list:ident| $read:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $value = self;
                let mut $out = serializer.serialize_tuple($len)?;
                $write;
                $out.end()
            }
        }

        impl FromList for $type {
            fn from_list<'de, A: SeqAccess<'de>>($list: &mut A) -> Result<Self, A::Error> {
                Ok($read)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_seq(List(PhantomData))
            }
        }
    };
}

list!(
    Message,
    4,
    |value, out| {
        out.serialize_element(&value.grid)?;
        out.serialize_element(&value.incarnation)?;
        out.serialize_element(&value.address)?;
        out.serialize_element(&value.body)?;
    },
    |list| Self { grid: next(list)?, incarnation: next(list)?, address: next(list)?, body: next(list)? }
);

list!(
    Span,
    4,
    |value, out| {
        out.serialize_element(&Flat(&value.lo))?;
        out.serialize_element(&Flat(&value.l))?;
        out.serialize_element(&Flat(&value.r))?;
        out.serialize_element(&Flat(&value.ro))?;
    },
    |list| Self { lo: flat(list)?, l: flat(list)?, r: flat(list)?, ro: flat(list)? }
);

list!(
    Subtree,
    3,
    |value, out| {
        out.serialize_element(&value.span)?;
        out.serialize_element(&value.count)?;
        out.serialize_element(&value.height)?;
    },
    |list| Self { span: next(list)?, count: next(list)?, height: next(list)? }
);

list!(
    Payload,
    3,
    |value, out| {
        out.serialize_element(&value.version)?;
        out.serialize_element(&value.base)?;
        out.serialize_element(&Flat(&value.bytes[..]))?;
    },
    |list| Self::new(next(list)?, next(list)?, flat(list)?)
);

list!(
    RootInfo,
    5,
    |value, out| {
        out.serialize_element(&Flat(&value.contact))?;
        out.serialize_element(&value.stamp)?;
        out.serialize_element(&value.count)?;
        out.serialize_element(&value.height)?;
        out.serialize_element(&Flat(&value.payload[..]))?;
    },
    |list| Self {
        contact: flat(list)?,
        stamp: next(list)?,
        count: next(list)?,
        height: next(list)?,
        payload: flat(list)?
    }
);

list!(
    HandoverChild,
    5,
    |value, out| {
        out.serialize_element(&Flat(&value.contact))?;
        out.serialize_element(&is_router(value.node))?;
        out.serialize_element(&value.version)?;
        out.serialize_element(&value.tree)?;
        out.serialize_element(&value.load)?;
    },
    |list| Self {
        contact: flat(list)?,
        node: node(next(list)?),
        version: next(list)?,
        tree: next(list)?,
        load: next(list)?
    }
);

fn shared(root: &Option<Arc<RootInfo>>) -> Option<&RootInfo> {
    root.as_deref()
}

fn is_router(node: Node) -> bool {
    node == Node::Router
}

fn node(is_router: bool) -> Node {
    if is_router { Node::Router } else { Node::Leaf }
}

/// Numbers of verdicts and of message variants: never reused once released.
mod number {
    pub(super) const LINKED: u8 = 0;
    pub(super) const UNKNOWN: u8 = 1;
    pub(super) const REFUSED: u8 = 2;

    pub(super) const PING: u8 = 0;
    pub(super) const ACK: u8 = 1;
    pub(super) const FIND: u8 = 2;
    pub(super) const FOUND: u8 = 3;
    pub(super) const REPORT: u8 = 4;
    pub(super) const REPORT_ACK: u8 = 5;
    pub(super) const ROOT_CHANGED: u8 = 6;
    pub(super) const DEAD: u8 = 7;
    pub(super) const SUSPECT: u8 = 8;
    pub(super) const HINT: u8 = 9;
    pub(super) const LEAVE: u8 = 10;
    pub(super) const HANDOVER: u8 = 11;
}

list!(
    Verdict,
    match value {
        Verdict::Unknown => 1,
        Verdict::Linked { .. } | Verdict::Refused { .. } => 3,
    },
    |value, out| match value {
        Verdict::Linked { load, depth } => {
            out.serialize_element(&number::LINKED)?;
            out.serialize_element(load)?;
            out.serialize_element(depth)?;
        }
        Verdict::Unknown => out.serialize_element(&number::UNKNOWN)?,
        Verdict::Refused { pred, succ } => {
            out.serialize_element(&number::REFUSED)?;
            out.serialize_element(&Flat(pred))?;
            out.serialize_element(&Flat(succ))?;
        }
    },
    |list| match next(list)? {
        number::LINKED => Self::Linked { load: next(list)?, depth: next(list)? },
        number::UNKNOWN => Self::Unknown,
        number::REFUSED => Self::Refused { pred: flat(list)?, succ: flat(list)? },
        other => return Err(A::Error::custom(format_args!("no verdict {other}"))),
    }
);

list!(
    Body,
    match value {
        Body::Dead(_) | Body::Suspect(_) | Body::Hint(_) | Body::Handover(_) => 2,
        Body::Find { .. } | Body::Found { .. } | Body::Leave(_) => 3,
        Body::Ping { .. } => 4,
        Body::Ack { .. } | Body::RootChanged { .. } => 5,
        Body::Report(_) | Body::ReportAck(_) => 6,
    },
    |value, out| match value {
        Body::Ping { nonce, mine, seen } => {
            out.serialize_element(&number::PING)?;
            out.serialize_element(nonce)?;
            out.serialize_element(mine)?;
            out.serialize_element(seen)?;
        }
        Body::Ack { nonce, mine, set, ask } => {
            out.serialize_element(&number::ACK)?;
            out.serialize_element(nonce)?;
            out.serialize_element(mine)?;
            out.serialize_element(&Flat(set))?;
            out.serialize_element(ask)?;
        }
        Body::Find { nonce, key } => {
            out.serialize_element(&number::FIND)?;
            out.serialize_element(nonce)?;
            out.serialize_element(key)?;
        }
        Body::Found { nonce, near } => {
            out.serialize_element(&number::FOUND)?;
            out.serialize_element(nonce)?;
            out.serialize_element(&Flat(near))?;
        }
        Body::Report(report) => {
            out.serialize_element(&number::REPORT)?;
            out.serialize_element(&is_router(report.node))?;
            out.serialize_element(&report.version)?;
            out.serialize_element(&report.tree)?;
            out.serialize_element(&report.load)?;
            out.serialize_element(&report.root)?;
        }
        Body::ReportAck(ack) => {
            out.serialize_element(&number::REPORT_ACK)?;
            out.serialize_element(&is_router(ack.node))?;
            out.serialize_element(&ack.version)?;
            out.serialize_element(&ack.verdict)?;
            out.serialize_element(&shared(&ack.root))?;
            out.serialize_element(&ack.edition)?;
        }
        Body::RootChanged { node, root, depth, edition } => {
            out.serialize_element(&number::ROOT_CHANGED)?;
            out.serialize_element(&is_router(*node))?;
            out.serialize_element(&shared(root))?;
            out.serialize_element(depth)?;
            out.serialize_element(edition)?;
        }
        Body::Dead(contact) => {
            out.serialize_element(&number::DEAD)?;
            out.serialize_element(&Flat(contact))?;
        }
        Body::Suspect(contact) => {
            out.serialize_element(&number::SUSPECT)?;
            out.serialize_element(&Flat(contact))?;
        }
        Body::Hint(contacts) => {
            out.serialize_element(&number::HINT)?;
            out.serialize_element(&Flat(contacts))?;
        }
        Body::Leave(Leave { near, ends }) => {
            out.serialize_element(&number::LEAVE)?;
            out.serialize_element(&Flat(near))?;
            out.serialize_element(ends)?;
        }
        Body::Handover(handover) => {
            out.serialize_element(&number::HANDOVER)?;
            out.serialize_element(&handover.children)?;
        }
    },
    |list| match next(list)? {
        number::PING => Self::Ping { nonce: next(list)?, mine: next(list)?, seen: next(list)? },
        number::ACK => Self::Ack { nonce: next(list)?, mine: next(list)?, set: flat(list)?, ask: next(list)? },
        number::FIND => Self::Find { nonce: next(list)?, key: next(list)? },
        number::FOUND => Self::Found { nonce: next(list)?, near: flat(list)? },
        number::REPORT => Self::Report(Report {
            node: node(next(list)?),
            version: next(list)?,
            tree: next(list)?,
            load: next(list)?,
            root: next(list)?,
        }),
        number::REPORT_ACK => Self::ReportAck(ReportAck {
            node: node(next(list)?),
            version: next(list)?,
            verdict: next(list)?,
            root: next::<Option<RootInfo>, _>(list)?.map(Arc::new),
            edition: next(list)?,
        }),
        number::ROOT_CHANGED => Self::RootChanged {
            node: node(next(list)?),
            root: next::<Option<RootInfo>, _>(list)?.map(Arc::new),
            depth: next(list)?,
            edition: next(list)?,
        },
        number::DEAD => Self::Dead(flat(list)?),
        number::SUSPECT => Self::Suspect(flat(list)?),
        number::HINT => Self::Hint(flat(list)?),
        number::LEAVE => Self::Leave(Leave { near: flat(list)?, ends: next(list)? }),
        number::HANDOVER => Self::Handover(Handover { children: next(list)? }),
        other => return Err(A::Error::custom(format_args!("no message {other}"))),
    }
);
