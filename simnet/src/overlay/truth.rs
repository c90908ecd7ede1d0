//! The tree as a function of the membership: a sort and a stack.
//!
//! This is the oracle: it shares no code with the protocol, not even the length of a common prefix. The tree is the
//! Cartesian tree of the gaps between neighbours on the line, the shorter the common prefix the higher.

use idlewood_overlay::{Node, PositionKey};

use crate::event_queue::HostIndex;

/// The truth about one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truth {
    /// The next below on the line.
    pub pred: Option<HostIndex>,
    /// The next above.
    pub succ: Option<HostIndex>,
    /// The machine of its leaf's parent; none: it is alone.
    pub leaf_parent: Option<HostIndex>,
    /// Links between its leaf and the root.
    pub leaf_depth: u32,
    /// Its router; none: it is the last on the line.
    pub router: Option<Router>,
}

/// The truth about a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Router {
    /// The machine of its parent; none: it is the root.
    pub parent: Option<HostIndex>,
    /// Links between it and the root.
    pub depth: u32,
    /// Left and right.
    pub children: [Child; 2],
}

/// The truth about a router's child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its machine.
    pub host: HostIndex,
    /// Which of its nodes.
    pub node: Node,
    /// Leaves below it.
    pub count: u64,
    /// Links on the longest way down.
    pub height: u32,
}

/// The true tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// By machine; none if it is not a member.
    truths: Vec<Option<Truth>>,
    /// The machine of the root; none while there is no router.
    pub root: Option<HostIndex>,
    /// Members.
    pub count: u64,
    /// Links on the longest way from the root to a leaf.
    pub height: u32,
    /// Links between a leaf and the root, on average.
    pub mean_depth: f64,
}

/// Length in bits of the common prefix of two keys.
fn common_bits(one: &PositionKey, other: &PositionKey) -> u32 {
    let words = |key: &PositionKey| {
        let (high, low) = key.0.split_at(16);
        [high, low].map(|half| half.iter().fold(0u128, |word, byte| word << 8 | u128::from(*byte)))
    };
    let ([high, low], [other_high, other_low]) = (words(one), words(other));
    if high == other_high { 128 + (low ^ other_low).leading_zeros() } else { (high ^ other_high).leading_zeros() }
}

/// The gaps of a line as a binary tree.
struct Gaps<'a> {
    line: &'a [(PositionKey, HostIndex)],
    /// By gap: the highest gap below it on the left and on the right; none: the leaf at that end.
    below: [Vec<Option<usize>>; 2],
}

impl Tree {
    /// The tree of these members, whose number is below `hosts`.
    pub fn of(members: impl Iterator<Item = (PositionKey, HostIndex)>, hosts: u32) -> Self {
        let mut line: Vec<_> = members.collect();
        line.sort_unstable();
        let count = line.len();
        let mut truths = vec![None; hosts as usize];
        for (place, (_, host)) in line.iter().enumerate() {
            truths[*host as usize] = Some(Truth {
                pred: place.checked_sub(1).map(|place| line[place].1),
                succ: line.get(place + 1).map(|(_, host)| *host),
                leaf_parent: None,
                leaf_depth: 0,
                router: None,
            });
        }
        let mut tree = Self { truths, root: None, count: count as u64, height: 0, mean_depth: 0.0 };
        let mut below = [vec![None; count], vec![None; count]];
        let mut stack: Vec<(u32, usize)> = Vec::new();
        for gap in 0..count.saturating_sub(1) {
            let prefix = common_bits(&line[gap].0, &line[gap + 1].0);
            while let Some((_, lower)) = stack.pop_if(|(top, _)| *top > prefix) {
                below[0][gap] = Some(lower);
            }
            if let Some((_, higher)) = stack.last() {
                below[1][*higher] = Some(gap);
            }
            stack.push((prefix, gap));
        }
        if let Some((_, root)) = stack.first() {
            tree.root = Some(line[*root].1);
            tree.height = tree.describe(&Gaps { line: &line, below }, *root, None, 0).height;
            let depths: u64 = tree.truths.iter().flatten().map(|truth| u64::from(truth.leaf_depth)).sum();
            tree.mean_depth = depths as f64 / count as f64;
        }
        tree
    }

    /// Records the truth about the router of a gap and everything below it. No deeper than keys have bits.
    fn describe(&mut self, gaps: &Gaps<'_>, gap: usize, parent: Option<HostIndex>, depth: u32) -> Child {
        let host = gaps.line[gap].1;
        let children = [0, 1].map(|side| match gaps.below[side][gap] {
            Some(lower) => self.describe(gaps, lower, Some(host), depth + 1),
            None => {
                let leaf = gaps.line[gap + side].1;
                let truth = self.truths[leaf as usize].as_mut().expect("it is on the line");
                (truth.leaf_parent, truth.leaf_depth) = (Some(host), depth + 1);
                Child { host: leaf, node: Node::Leaf, count: 1, height: 0 }
            }
        });
        let truth = self.truths[host as usize].as_mut().expect("it is on the line");
        let [left, right] = &children;
        let (count, height) = (left.count + right.count, left.height.max(right.height) + 1);
        truth.router = Some(Router { parent, depth, children });
        Child { host, node: Node::Router, count, height }
    }

    /// The truth about a machine; none if it is not a member.
    pub fn truth(&self, host: HostIndex) -> Option<&Truth> {
        self.truths[host as usize].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bits: &str) -> PositionKey {
        let mut key = [0; 32];
        for (index, bit) in bits.bytes().enumerate() {
            key[index / 8] |= (bit - b'0') << (7 - index % 8);
        }
        PositionKey(key)
    }

    /// 0 and 1 share two bits, 2 shares none with 1, 3 shares one with 2: worked out by hand.
    #[test]
    fn a_small_tree_is_as_drawn_by_hand() {
        let members = [(key("1101"), 3), (key("0001"), 0), (key("1000"), 2), (key("0010"), 1)];
        let tree = Tree::of(members.into_iter(), 5);
        assert_eq!((tree.root, tree.count, tree.height, tree.mean_depth), (Some(1), 4, 2, 2.0));
        let leaf = |host| Child { host, node: Node::Leaf, count: 1, height: 0 };
        let router = |host| Child { host, node: Node::Router, count: 2, height: 1 };
        let truth = |host: HostIndex| tree.truth(host).unwrap();
        assert_eq!(truth(1).router, Some(Router { parent: None, depth: 0, children: [router(0), router(2)] }));
        assert_eq!(truth(0).router, Some(Router { parent: Some(1), depth: 1, children: [leaf(0), leaf(1)] }));
        assert_eq!(truth(2).router, Some(Router { parent: Some(1), depth: 1, children: [leaf(2), leaf(3)] }));
        assert_eq!(truth(3).router, None);
        let parents: Vec<_> = (0..4).map(|host| truth(host).leaf_parent).collect();
        assert_eq!(parents, [Some(0), Some(0), Some(2), Some(2)]);
        assert_eq!((truth(2).pred, truth(2).succ, truth(0).pred, truth(3).succ), (Some(1), Some(3), None, None));
        assert!(tree.truth(4).is_none());
    }

    #[test]
    fn one_member_stands_alone() {
        let tree = Tree::of([(key("1"), 0)].into_iter(), 1);
        assert_eq!((tree.root, tree.count, tree.height), (None, 1, 0));
        assert_eq!(tree.truth(0).unwrap().leaf_parent, None);
    }

    #[test]
    fn prefixes_end_at_the_first_bit_that_differs() {
        let other = |bit: usize| {
            let mut bytes = [0x5a; 32];
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            PositionKey(bytes)
        };
        for bit in [0, 1, 7, 8, 63, 64, 127, 128, 200, 255] {
            assert_eq!(common_bits(&PositionKey([0x5a; 32]), &other(bit)), bit as u32);
        }
        assert_eq!(common_bits(&other(3), &other(3)), 256);
    }
}
