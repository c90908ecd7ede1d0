//! Subtrees: which part of the line a node spans, who is its parent, and who accepts it (paper §3.2; the rules are ours).
//!
//! A node spans the leaves [l..r]; its outer neighbours on the line are lo and ro. With a = LCP(lo, l) and
//! b = LCP(r, ro), −1 where there is none, the parent is the router on lo if a > b, else the router on r; with both
//! −1 the node is the root. The parent accepts a child only if the two agree on the gap between them (*fencing*).
//! Each accepted link strictly shortens the prefix (I4), so accepted links never form a cycle, whatever changes.

use crate::identity::{GridId, Member};
use crate::node::{Node, Side};

/// No trie over 256-bit keys is higher.
pub(crate) const HEIGHT_MAX: u32 = 256;
/// More machines than there will be; keeps sums far from overflow.
pub(crate) const COUNT_MAX: u64 = 1 << 40;

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

/// The subtree below a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subtree {
    /// Which part of the line it covers.
    pub span: Span,
    /// Leaves in it.
    pub count: u64,
    /// Links on the longest way down; 0 for a leaf.
    pub height: u32,
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

    /// Whether such a node can stand on the machine of `sender`: a leaf at one place of the line, a router on the last
    /// machine of its left half, where its span, of this prefix length, splits.
    pub(crate) fn holds(&self, sender: &Member, node: Node, grid: GridId, own: u16) -> bool {
        match node {
            Node::Leaf => own == 256 && self.l.peer == sender.peer && self.r.peer == sender.peer,
            Node::Router => {
                let (key, last) = (sender.key(grid), self.r.key(grid));
                self.l.key(grid) <= key && key < last && key.common_prefix(&last) == own
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Contact, PeerId};

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
