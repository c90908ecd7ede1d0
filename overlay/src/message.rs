//! Messages between peers: their content and the checks before anything looks inside.
//!
//! Every message carries the grid and the sender's incarnation, so that each one is evidence of life at that
//! incarnation; the transport names the sender. Messages are idempotent: loss, delay, duplication and reordering are
//! tolerated. [`Message::check`] runs on every received message first. Their bytes are in `wire`.

use std::sync::Arc;

use crate::digest::Digest;
use crate::identity::{ADDRESS_BYTES_MAX, Member, PositionKey};
use crate::node::Node;
use crate::payload::{PAYLOAD_BYTES_MAX, Payload};
use crate::subtree::{COUNT_MAX, HEIGHT_MAX, Span, Subtree};

/// Most contacts in a list: both sides of the largest leaf set that a configuration allows.
pub(crate) const CONTACTS_MAX: usize = 64;

/// One message of the overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// [`GridId::tag`](crate::GridId::tag): messages of other grids are ignored.
    pub grid: u64,
    /// The sender's incarnation.
    pub incarnation: u64,
    /// The address at which the sender can be dialled; none if the receiver knows it. Retransmissions always carry it.
    pub address: Option<Box<str>>,
    /// The content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Asks for an [`Body::Ack`].
    Ping {
        /// Repeated in the answer.
        nonce: u32,
        /// Digest of the sender's leaf set; if we do not know it we ask for the set.
        mine: u32,
        /// Digest of the receiver's leaf set as the sender knows it; 0 is none.
        seen: u32,
    },
    /// Answers a ping.
    Ack {
        /// Number of the ping.
        nonce: u32,
        /// Digest of the sender's leaf set.
        mine: u32,
        /// The sender's leaf set, unless the ping showed that it is known.
        set: Option<Vec<Member>>,
        /// A ping inside the answer: asks for an answer with this nonce; 0 asks for none. Saves a message where two
        /// strangers verify each other.
        ask: u32,
    },
    /// Asks for the peers next to a place on the line.
    Find {
        /// Repeated in the answer.
        nonce: u32,
        /// The place.
        key: PositionKey,
    },
    /// Answers a find.
    Found {
        /// Number of the find.
        nonce: u32,
        /// The nearest peers that the sender knows on either side, itself included.
        near: Vec<Member>,
    },
    /// A node reports to the router that it takes for its parent.
    Report(Report),
    /// The presumed parent answers.
    ReportAck(ReportAck),
    /// What the root announces, or the depth, changed: a parent tells its child at once.
    RootChanged {
        /// Which node of the receiver is the child.
        node: Node,
        /// The new root; none when only the depth changed.
        root: Option<Arc<RootInfo>>,
        /// Depth of the sender's router; none while it is not attached.
        depth: Option<u32>,
        /// See [`ReportAck::edition`].
        edition: u32,
    },
    /// The sender probed this peer in vain and unlinked it. Also sent to that peer itself, which refutes it.
    Dead(Member),
    /// The sender suspects that this peer is dead; its neighbours should probe it.
    Suspect(Member),
    /// Peers that the receiver may want to know: it probes them first.
    Hint(Vec<Member>),
    /// The sender leaves now.
    Leave(Leave),
    /// The role of a router moved to the receiver, or is about to: the children that the sender knew.
    Handover(Handover),
}

/// The farewell of a leaving peer, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leave {
    /// Its neighbours on the line, which become each other's.
    pub near: Vec<Member>,
    /// By side, below and above: whether the line ended with the sender, as far as it made sure. The line then ends
    /// with its other neighbour, which need not look that up.
    pub ends: [bool; 2],
}

/// The children of a router, for the peer that takes over its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// At most two.
    pub children: Vec<HandoverChild>,
}

/// The latest report of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoverChild {
    /// Its machine.
    pub contact: Member,
    /// Which node of that machine.
    pub node: Node,
    /// Version of the report.
    pub version: u64,
    /// The structure.
    pub tree: Subtree,
    /// The payload, whole; its version is 0 where there is none.
    pub load: Payload,
}

/// A node's message to its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Which node of the sender reports.
    pub node: Node,
    /// Rises with every change of the structure, within one life of the sender.
    pub version: u64,
    /// The structure; none when this version is acknowledged.
    pub tree: Option<Box<Subtree>>,
    /// The newest payload; none when it was acknowledged or has to wait for the rate limit.
    pub load: Option<Payload>,
    /// Digest of the root as the sender knows it; 0 is nothing.
    pub root: u32,
}

/// Answer to a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportAck {
    /// Node of the report.
    pub node: Node,
    /// Version of the report.
    pub version: u64,
    /// Whether the link stands.
    pub verdict: Verdict,
    /// The root, unless the report showed that it is known.
    pub root: Option<Arc<RootInfo>>,
    /// Rises with every change of what the sender tells its children (the root, its depth), within one incarnation: a
    /// receiver ignores older editions that arrive late.
    pub edition: u32,
}

/// Whether a parent takes the child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The link stands.
    Linked {
        /// Version of the payload that the parent holds; 0 is none, or asks for the whole one.
        load: u64,
        /// Depth of the parent's router; none while it is not attached.
        depth: Option<u32>,
    },
    /// The report had no structure and the parent does not know that version: send the structure.
    Unknown,
    /// The sender is not the parent of such a node; these are its neighbours.
    Refused {
        /// Its predecessor.
        pred: Option<Member>,
        /// Its successor.
        succ: Option<Member>,
    },
}

/// What the root announces to everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// The machine of the root.
    pub contact: Member,
    /// Rises with every change, within one life of the root.
    pub stamp: u64,
    /// Leaves in the whole tree.
    pub count: u64,
    /// Links on the longest way from the root to a leaf.
    pub height: u32,
    /// Bytes of the layer above, from the root's machine to everybody.
    pub payload: Vec<u8>,
}

impl RootInfo {
    /// Identifies this root information in few bytes; never 0.
    pub(crate) fn digest(&self) -> u32 {
        let mut digest = Digest::default();
        digest.add_contact(&self.contact);
        digest.add(self.stamp);
        digest.short()
    }

    fn check(&self) -> Result<(), Refusal> {
        check_counts(self.count, self.height)?;
        check_payload(&self.payload)?;
        check_contacts([&self.contact])
    }
}

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A payload or list is longer than allowed.
    Oversized,
    /// A field has a value that no correct peer sends.
    Malformed,
}

impl Message {
    /// Checks everything that can be checked without knowing the line.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.address.as_ref().is_some_and(|address| address.len() > ADDRESS_BYTES_MAX) {
            return Err(Refusal::Oversized);
        }
        match &self.body {
            Body::Ping { .. } | Body::Find { .. } => Ok(()),
            Body::Ack { set, .. } => set.as_deref().map_or(Ok(()), check_list),
            Body::Found { near: list, .. } | Body::Hint(list) | Body::Leave(Leave { near: list, .. }) => {
                check_list(list)
            }
            Body::Dead(contact) | Body::Suspect(contact) => check_contacts([contact]),
            Body::Report(report) => check_report(report),
            Body::ReportAck(ack) => {
                if let Verdict::Refused { pred, succ } = &ack.verdict {
                    check_contacts(pred.iter().chain(succ))?;
                }
                ack.root.as_deref().map_or(Ok(()), RootInfo::check)
            }
            Body::RootChanged { root, .. } => root.as_deref().map_or(Ok(()), RootInfo::check),
            Body::Handover(handover) => check_handover(handover),
        }
    }
}

fn check_report(report: &Report) -> Result<(), Refusal> {
    if let Some(load) = &report.load {
        check_payload(&load.bytes)?;
        // Version 0 stands for no payload.
        if load.version <= load.base.unwrap_or(0) || load.base == Some(0) {
            return Err(Refusal::Malformed);
        }
    }
    report.tree.as_deref().map_or(Ok(()), |tree| check_tree(report.node, tree))
}

fn check_tree(node: Node, tree: &Subtree) -> Result<(), Refusal> {
    check_counts(tree.count, tree.height)?;
    let Span { lo, l, r, ro } = &tree.span;
    check_contacts([l, r].into_iter().chain(lo).chain(ro))?;
    if (node == Node::Leaf) == (tree.height == 0 && tree.count == 1 && l == r) {
        Ok(())
    } else {
        Err(Refusal::Malformed)
    }
}

fn check_handover(handover: &Handover) -> Result<(), Refusal> {
    if handover.children.len() > 2 {
        return Err(Refusal::Oversized);
    }
    for child in &handover.children {
        check_contacts([&child.contact])?;
        check_tree(child.node, &child.tree)?;
        check_payload(&child.load.bytes)?;
        if child.load.base.is_some() {
            return Err(Refusal::Malformed);
        }
    }
    Ok(())
}

fn check_counts(count: u64, height: u32) -> Result<(), Refusal> {
    if (1..=COUNT_MAX).contains(&count) && height <= HEIGHT_MAX { Ok(()) } else { Err(Refusal::Malformed) }
}

fn check_payload(bytes: &[u8]) -> Result<(), Refusal> {
    if bytes.len() <= PAYLOAD_BYTES_MAX { Ok(()) } else { Err(Refusal::Oversized) }
}

fn check_list(list: &[Member]) -> Result<(), Refusal> {
    if list.len() > CONTACTS_MAX {
        return Err(Refusal::Oversized);
    }
    check_contacts(list)
}

fn check_contacts<'a>(contacts: impl IntoIterator<Item = &'a Member>) -> Result<(), Refusal> {
    if contacts.into_iter().all(|member| member.is_valid()) { Ok(()) } else { Err(Refusal::Oversized) }
}
