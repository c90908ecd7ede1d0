//! Links of the tree: who is whose parent, and who accepts whom (paper §3.2; the rules are ours).
//!
//! A node spans the leaves [l..r]; its outer neighbours on the line are lo and ro. With a = LCP(lo, l) and
//! b = LCP(r, ro), −1 where there is none, the parent is the router on lo if a > b, else the router on r; with both
//! −1 the node is the root. The parent accepts a child only if the two agree on the gap between them (*fencing*).
//! Each accepted link strictly shortens the prefix (I4), so accepted links never form a cycle, whatever changes.

use std::time::Duration;

use crate::message::{COUNT_MAX, Load, Payload, PayloadCodec, Subtree};
use crate::{GridId, Member, Node, Side, Time};

/// Every so many payloads one travels whole, so that a mistake in a difference does not last. Our choice.
pub(crate) const WHOLE_EVERY: u32 = 16;

/// The part of the line below a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The neighbour below the first leaf.
    pub lo: Option<Member>,
    /// The first leaf.
    pub l: Member,
    /// The last leaf.
    pub r: Member,
    /// The neighbour above the last leaf.
    pub ro: Option<Member>,
}

/// Prefix lengths in bits: with the span, all that the rules of parent and child look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefixes {
    /// a = LCP(lo, l).
    pub(crate) before: Option<u16>,
    /// LCP(l, r): the node's own; 256 for a leaf.
    pub(crate) own: u16,
    /// b = LCP(r, ro).
    pub(crate) after: Option<u16>,
}

impl Prefixes {
    /// None when the span is out of order.
    pub(crate) fn of(grid: GridId, span: &Span) -> Option<Self> {
        let key = |contact: &Member| contact.key(grid);
        let (l, r) = (key(&span.l), key(&span.r));
        let (lo, ro) = (span.lo.as_ref().map(key), span.ro.as_ref().map(key));
        let in_order = l <= r && lo.is_none_or(|lo| lo < l) && ro.is_none_or(|ro| r < ro);
        in_order.then(|| Self {
            before: lo.map(|lo| lo.common_prefix(&l)),
            own: l.common_prefix(&r),
            after: ro.map(|ro| r.common_prefix(&ro)),
        })
    }

    /// On which side of its parent the node hangs; none for the root.
    pub(crate) fn side(&self) -> Option<Side> {
        match (self.before, self.after) {
            (None, None) => None,
            (before, after) if before > after => Some(Side::Right),
            _ => Some(Side::Left),
        }
    }
}

impl Span {
    /// The machine of the parent.
    pub(crate) fn parent(&self, prefixes: &Prefixes) -> Option<&Member> {
        match prefixes.side()? {
            Side::Right => self.lo.as_ref(),
            Side::Left => Some(&self.r),
        }
    }
}

/// The accept rule of the router on `me` with successor `succ`: the side on which it takes such a node as a child, if
/// any.
pub(crate) fn fence(me: &Member, succ: &Member, gap: u16, span: &Span, prefixes: &Prefixes) -> Option<Side> {
    let is = |contact: Option<&Member>, other: &Member| contact.is_some_and(|contact| contact.peer == other.peer);
    let agrees = match prefixes.side()? {
        Side::Left => span.r.peer == me.peer && is(span.ro.as_ref(), succ),
        Side::Right => is(span.lo.as_ref(), me) && span.l.peer == succ.peer,
    };
    if agrees && prefixes.own > gap { prefixes.side() } else { None }
}

/// Fits a child's report for another gap to this gap: the same node of the trie, whose boundary next to the gap has
/// moved. None if the node is another one by now, or does not meet at this gap.
///
/// A guess, except for the height, of what the child will report.
pub(crate) fn refit(
    grid: GridId,
    me: &Member,
    succ: &Member,
    gap: u16,
    tree: &Subtree,
) -> Option<(Side, Subtree, Prefixes)> {
    let own = Prefixes::of(grid, &tree.span)?.own;
    let key = |contact: &Member| contact.key(grid);
    let refits = [Side::Left, Side::Right].map(|side| {
        let mut tree = tree.clone();
        let (inner, outer) = match side {
            Side::Left => (&mut tree.span.r, &mut tree.span.ro),
            Side::Right => (&mut tree.span.l, &mut tree.span.lo),
        };
        let (new, beyond) = if side == Side::Left { (me, succ) } else { (succ, me) };
        if inner.peer == new.peer && inner.incarnation != new.incarnation {
            // A report of an earlier incarnation is void.
            return None;
        }
        let (old_key, new_key) = (key(inner), key(new));
        let grows = (side == Side::Left) == (new_key > old_key);
        if old_key != new_key {
            tree.count =
                if grows { tree.count.saturating_add(1).min(COUNT_MAX) } else { tree.count.saturating_sub(1).max(1) };
        }
        (*inner, *outer) = (new.clone(), Some(beyond.clone()));
        let prefixes = Prefixes::of(grid, &tree.span)?;
        let fits = prefixes.own == own && fence(me, succ, gap, &tree.span, &prefixes) == Some(side);
        fits.then_some((side, tree, prefixes))
    });
    refits.into_iter().flatten().next()
}

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

/// A child that was refused: it may know a change of the line that has not reached us yet.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) contact: Member,
    pub(crate) node: Node,
    pub(crate) version: u64,
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
        }
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

    /// The parent says which payload it holds; 0 asks for the whole.
    pub(crate) fn load_is_held(&mut self, version: u64) {
        let is_whole_under_way = self.differences == 0 && self.load_acked < self.load_sent.version;
        self.load_acked = version;
        if version == 0 && !is_whole_under_way {
            self.load_sent = Load::default();
        }
    }

    /// The parent holds no payload of this node: the next one is sent whole.
    pub(crate) fn load_is_lost(&mut self) {
        self.load_acked = 0;
        self.load_sent = Load::default();
    }

    /// Whether there is a payload that has not gone out yet.
    pub(crate) fn has_unsent(&self) -> bool {
        self.load.version > self.load_sent.version
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contact, PeerId};

    const GRID: GridId = GridId([9; 32]);

    /// Contacts in the order of the line.
    fn line(len: u8) -> Vec<Member> {
        let mut line: Vec<Member> = (0..len).map(|byte| PeerId([byte; 32]).into()).collect();
        line.sort_by_key(|contact| contact.key(GRID));
        line
    }

    fn span(line: &[Member], l: usize, r: usize) -> Span {
        let lo = l.checked_sub(1).map(|lo| line[lo].clone());
        Span { lo, l: line[l].clone(), r: line[r].clone(), ro: line.get(r + 1).cloned() }
    }

    #[test]
    fn a_leaf_is_accepted_by_its_parent_and_by_no_other_router() {
        let line = line(40);
        for leaf in 0..line.len() {
            let span = span(&line, leaf, leaf);
            let prefixes = Prefixes::of(GRID, &span).unwrap();
            let parent = span.parent(&prefixes).unwrap();
            for pair in line.windows(2) {
                let key = |contact: &Member| contact.key(GRID);
                let gap = key(&pair[0]).common_prefix(&key(&pair[1]));
                let side = fence(&pair[0], &pair[1], gap, &span, &prefixes);
                assert_eq!(side.is_some(), pair[0] == *parent);
            }
        }
    }

    #[test]
    fn a_parent_with_another_successor_refuses() {
        let line = line(40);
        for leaf in 0..line.len() {
            let span = span(&line, leaf, leaf);
            let prefixes = Prefixes::of(GRID, &span).unwrap();
            let parent = span.parent(&prefixes).unwrap();
            let place = line.iter().position(|contact| contact == parent).unwrap();
            for (other, succ) in line.iter().enumerate() {
                assert_eq!(fence(parent, succ, 0, &span, &prefixes).is_some(), other == place + 1);
            }
        }
    }

    #[test]
    fn a_link_that_does_not_shorten_the_prefix_is_refused() {
        let line = line(10);
        let span = span(&line, 4, 4);
        let prefixes = Prefixes::of(GRID, &span).unwrap();
        let parent = span.parent(&prefixes).unwrap();
        let succ = if parent == &line[4] { &line[5] } else { &line[4] };
        assert!(fence(parent, succ, 255, &span, &prefixes).is_some());
        assert_eq!(fence(parent, succ, 256, &span, &prefixes), None);
    }

    #[test]
    fn a_span_out_of_order_has_no_prefixes() {
        let line = line(4);
        let twisted = Span { lo: None, l: line[2].clone(), r: line[1].clone(), ro: None };
        assert_eq!(Prefixes::of(GRID, &twisted), None);
    }

    #[test]
    fn a_leaf_is_at_one_place_of_the_line() {
        let at = |nonce| {
            Member::from(Contact { nonce: Some(Box::new([nonce; 16])), ..(*Member::from(PeerId([1; 32]))).clone() })
        };
        let mut ends = [at(1), at(2)];
        ends.sort_by_key(|end| end.key(GRID));
        let [l, r] = ends;
        for (r, is_leaf) in [(l.clone(), true), (r, false)] {
            let span = Span { lo: None, l: l.clone(), r, ro: None };
            let own = Prefixes::of(GRID, &span).unwrap().own;
            assert_eq!(span.holds(&l, Node::Leaf, GRID, own), is_leaf);
        }
    }

    #[test]
    fn a_report_of_an_earlier_incarnation_fits_nowhere() {
        let line = line(10);
        let tree = Subtree { span: span(&line, 4, 4), count: 1, height: 0 };
        let gap = |one: usize| {
            let key = |contact: &Member| contact.key(GRID);
            key(&line[one]).common_prefix(&key(&line[one + 1]))
        };
        let fits = |me: &Member, succ: &Member, gap: u16| refit(GRID, me, succ, gap, &tree).is_some();
        assert!(fits(&line[3], &line[4], gap(3)) || fits(&line[4], &line[5], gap(4)));
        let reborn = Contact { incarnation: 2, ..(*line[4]).clone() }.into();
        assert!(!fits(&line[3], &reborn, gap(3)) && !fits(&reborn, &line[5], gap(4)));
    }
}
