//! The two ends of a link of the tree: a child as its router knows it, and a node of ours as it reports to its parent.
//!
//! Who may be linked to whom is decided in `subtree`; when messages go out, in `tree`.

use std::time::Duration;

use crate::identity::Member;
use crate::message::Verdict;
use crate::node::{Node, Side};
use crate::path::Path;
use crate::payload::{Load, Payload, PayloadCodec};
use crate::subtree::{Prefixes, Subtree};
use crate::time::Time;

/// Every so many payloads one travels whole, so that a mistake in a difference does not last. Our choice.
pub(crate) const WHOLE_EVERY: u32 = 16;

/// A linked child, as last reported.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) contact: Member,
    pub(crate) node: Node,
    pub(crate) version: u64,
    pub(crate) tree: Subtree,
    pub(crate) prefixes: Prefixes,
    pub(crate) load: Load,
    /// Rises with each new child and each new payload.
    pub(crate) generation: u64,
    pub(crate) heard: Time,
    /// Digest of the root, and depth, that the child was told last.
    pub(crate) announced: (u32, Option<u32>),
    /// The next push to the child is no earlier.
    pub(crate) push_after: Time,
    /// Another machine handed this child over: the child's own report replaces it whatever its version.
    pub(crate) is_handed: bool,
}

/// The structure that a child reports.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    pub(crate) node: Node,
    /// Rises with every change, within one life of the child.
    pub(crate) version: u64,
    pub(crate) tree: Subtree,
    /// Of the tree's span.
    pub(crate) prefixes: Prefixes,
}

/// A child that was refused: it may know a change of the line that has not reached us yet.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) contact: Member,
    pub(crate) node: Node,
    pub(crate) version: u64,
}

/// What `take_report` did with a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// Stored.
    Taken,
    /// Ignored: a later report is stored already.
    Late,
    /// Ignored: of an incarnation that is over.
    PastLife,
}

/// What `take_load` did with a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Stored.
    New,
    /// Ignored: this payload, or a newer one, is stored already.
    Known,
    /// Not stored: a difference to a payload that we do not hold. We ask for the whole.
    OtherBase,
    /// Not stored: a difference that does not apply. We ask for the whole.
    Nonsense,
}

impl Slot {
    /// A child that is linked now, without a payload; `Links::link` numbers its generation.
    pub(crate) fn new(now: Time, contact: Member, structure: Structure) -> Self {
        let Structure { node, version, tree, prefixes } = structure;
        Self {
            contact,
            node,
            version,
            tree,
            prefixes,
            load: Load::default(),
            generation: 0,
            heard: now,
            announced: (0, None),
            push_after: now,
            is_handed: false,
        }
    }

    /// Stores the structure that this child reports, unless a later report came before.
    pub(crate) fn take_report(&mut self, now: Time, sender: &Member, structure: Structure) -> Reported {
        let Structure { version, tree, prefixes, .. } = structure;
        let is_first = std::mem::take(&mut self.is_handed);
        if !is_first && sender.incarnation < self.contact.incarnation {
            // Versions, of payloads too, mean nothing across incarnations.
            return Reported::PastLife;
        }
        let order = |contact: &Member, version| (contact.incarnation, version);
        if !is_first && order(sender, version) < order(&self.contact, self.version) {
            return Reported::Late;
        }
        if self.contact.incarnation != sender.incarnation {
            self.load.version = 0;
        }
        self.contact = sender.clone();
        (self.version, self.tree, self.prefixes, self.heard) = (version, tree, prefixes, now);
        Reported::Taken
    }

    /// Stores a payload if it is newer than the stored one.
    pub(crate) fn take_load(&mut self, load: Payload, codec: &PayloadCodec) -> Taken {
        if load.version <= self.load.version {
            return Taken::Known;
        }
        let version = load.version;
        let bytes = match load.base {
            // Bytes that do not unpack count as an empty payload.
            None => load.unpack(None, codec).unwrap_or_default(),
            // The payload between was lost, or comes later.
            Some(base) if base != self.load.version => return Taken::OtherBase,
            Some(_) => match load.unpack(Some(&self.load.bytes), codec) {
                Some(bytes) => bytes,
                None => return Taken::Nonsense,
            },
        };
        self.load = Load { version, bytes };
        Taken::New
    }

    /// Whether the child is the leaf of this machine: no other leaf ends at our side of the gap. Decided without the
    /// peer id, which lies far away in memory.
    pub(crate) fn is_own_leaf(&self) -> bool {
        self.node == Node::Leaf && self.prefixes.side() == Some(Side::Left)
    }

    /// Whether the child should be told the root or depth anew. Losing our own parent for a moment is no reason.
    pub(crate) fn lags(&self, (root, depth): (u32, Option<u32>)) -> bool {
        self.announced.0 != root || (depth.is_some() && self.announced.1 != depth)
    }
}

/// The link of a node of ours to its parent.
#[derive(Clone, Debug)]
pub(crate) struct Uplink {
    /// Version of `tree`.
    pub(crate) version: u64,
    /// The subtree to report; none while a child is missing or there is no such node.
    pub(crate) tree: Option<Box<Subtree>>,
    /// The parent's machine by the rule; this machine for the leaf below the own router.
    pub(crate) target: Option<Member>,
    /// Whether the target is this machine.
    pub(crate) is_own: bool,
    /// Version that the target acknowledged last, while it keeps the link.
    pub(crate) acked: Option<u64>,
    /// Depth of the parent's router.
    pub(crate) parent_depth: Option<u32>,
    /// The parent's incarnation and edition that `parent_depth` came with.
    pub(crate) depth_edition: (u64, u32),
    /// The parent's incarnation and edition of the last root that it announced.
    pub(crate) root_edition: (u64, u32),
    /// The newest payload published; version 0 is none.
    pub(crate) load: Load,
    /// Version of the payload that the parent holds.
    pub(crate) load_acked: u64,
    /// The payload sent last, base of the next difference; version 0 after the parent asked for the whole.
    pub(crate) load_sent: Load,
    /// Differences sent since the last whole payload.
    pub(crate) differences: u32,
    /// The rate limit lets the next payload pass no earlier.
    pub(crate) load_after: Time,
    /// When the next report is due.
    pub(crate) next: Time,
    pub(crate) last_sent: Option<Time>,
    /// Reports sent since the last answer.
    pub(crate) unanswered: u32,
    /// When the first of the unanswered reports was sent.
    pub(crate) asked: Option<Time>,
    /// Refusals since the last acceptance.
    pub(crate) refusals: u32,
    /// What answers to reports take, where the parent is no neighbour.
    pub(crate) path: Path,
}

impl Uplink {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            version: 0,
            tree: None,
            target: None,
            is_own: false,
            acked: None,
            parent_depth: None,
            depth_edition: (0, 0),
            root_edition: (0, 0),
            load: Load::default(),
            load_acked: 0,
            load_sent: Load::default(),
            differences: 0,
            load_after: now,
            next: Time::MAX,
            last_sent: None,
            unanswered: 0,
            asked: None,
            refusals: 0,
            path: Path::default(),
        }
    }

    /// Whether the link has a subtree to report to another machine.
    pub(crate) fn reports(&self) -> bool {
        self.tree.is_some() && self.target.is_some() && !self.is_own
    }

    /// The parent's machine once it accepted the link.
    pub(crate) fn parent(&self) -> Option<&Member> {
        self.acked.and(self.target.as_ref())
    }

    /// Starts over with another parent, or none.
    pub(crate) fn retarget(&mut self, now: Time, target: Option<Member>) {
        *self = Self {
            version: self.version,
            tree: self.tree.take(),
            target,
            load: std::mem::take(&mut self.load),
            ..Self::new(now)
        };
    }

    /// Stores the depth that the parent announces unless a newer edition came before.
    pub(crate) fn take_depth(&mut self, depth: Option<u32>, edition: (u64, u32)) {
        if edition >= self.depth_edition {
            (self.parent_depth, self.depth_edition) = (depth, edition);
        }
    }

    /// Whether this edition of the root is no older than the latest from this parent; remembers it.
    pub(crate) fn is_current_edition(&mut self, edition: (u64, u32)) -> bool {
        let is_current_edition = edition >= self.root_edition;
        self.root_edition = self.root_edition.max(edition);
        is_current_edition
    }

    /// The newest payload as it travels: the difference to the payload sent before it, which mostly arrives first; else
    /// the parent asks for the whole. Retransmissions, and every 16th payload ([`WHOLE_EVERY`]), are sent in full.
    pub(crate) fn send_load(&mut self, codec: &PayloadCodec) -> Payload {
        let is_base = (1..self.load.version).contains(&self.load_sent.version) && self.differences + 1 < WHOLE_EVERY;
        let base = Some(&self.load_sent).filter(|_| is_base);
        let difference = base.and_then(|base| self.load.packed_against(Some(base), codec));
        self.differences = if difference.is_some() { self.differences + 1 } else { 0 };
        self.load_sent.clone_from(&self.load);
        difference.unwrap_or_else(|| self.load.packed(codec))
    }

    /// The parent keeps the link as of the newest version, and holds this version of the payload; 0 asks for the whole.
    pub(crate) fn accepted(&mut self, load_version: u64) {
        self.acked = Some(self.version);
        self.refusals = 0;
        let is_whole_under_way = self.differences == 0 && self.load_acked < self.load_sent.version;
        self.load_acked = load_version;
        if load_version == 0 && !is_whole_under_way {
            self.load_sent = Load::default();
        }
    }

    /// The parent does not keep the link, and holds no payload: the next report is whole.
    pub(crate) fn voided(&mut self) {
        self.acked = None;
        self.load_acked = 0;
        self.load_sent = Load::default();
    }

    /// Whether there is a payload that has not gone out yet.
    pub(crate) fn has_unsent(&self) -> bool {
        self.load.version > self.load_sent.version
    }

    /// Notes an answer to the newest version. Returns when the report that it answers was sent, if that is known: only
    /// while no other report is unanswered.
    pub(crate) fn answered(&mut self, verdict: &Verdict) -> Option<Time> {
        let is_last = matches!(verdict, Verdict::Linked { load, .. } if *load == self.load_sent.version);
        let sent = self.last_sent.filter(|_| is_last && self.unanswered == 1);
        self.unanswered = 0;
        self.asked = None;
        sent
    }

    /// Whether the answer to a report should have come by now.
    pub(crate) fn is_overdue(&self, now: Time, timeout: Duration) -> bool {
        self.asked.is_some_and(|asked| asked + timeout <= now)
    }

    /// Whether the parent lacks the newest payload.
    pub(crate) fn owes_load(&self) -> bool {
        self.load.version > self.load_acked
    }
}
