//! The tree as a function of the membership: a sort and a stack. Shares no code with the protocol.

use std::collections::BTreeMap;

use idlewood_overlay::{Node, Overlay, PeerId, PositionKey, State};

use super::{GRID, World, payload};

type Place = (PeerId, Node);

/// What is true of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Truth {
    parent: Option<Place>,
    children: Option<[Place; 2]>,
    count: u64,
    height: u32,
    depth: u32,
}

fn prefix_len(a: &PositionKey, b: &PositionKey) -> u32 {
    let bit = |key: &PositionKey, index: u32| key.0[index as usize / 8] >> (7 - index % 8) & 1;
    (0..256).find(|index| bit(a, *index) != bit(b, *index)).unwrap_or(256)
}

/// The truth about every node of a grid of these peers, who are in the order of the line.
fn truth(line: &[PeerId]) -> BTreeMap<Place, Truth> {
    let keys: Vec<_> = line.iter().map(|peer| PositionKey::new(GRID, *peer)).collect();
    let mut left: Vec<Option<usize>> = vec![None; line.len()];
    let mut right: Vec<Option<usize>> = vec![None; line.len()];
    let mut stack: Vec<(u32, usize)> = Vec::new();
    for gap in 0..line.len().saturating_sub(1) {
        let prefix = prefix_len(&keys[gap], &keys[gap + 1]);
        while stack.last().is_some_and(|(top, _)| *top > prefix) {
            left[gap] = stack.pop().map(|(_, below)| below);
        }
        if let Some((_, top)) = stack.last() {
            right[*top] = Some(gap);
        }
        stack.push((prefix, gap));
    }
    let mut truths: BTreeMap<_, _> = line.iter().map(|peer| ((*peer, Node::Leaf), Truth::default())).collect();
    let Some((_, root)) = stack.first() else {
        truths.values_mut().for_each(|truth| truth.count = 1);
        return truths;
    };
    describe(*root, 0, None, line, [&left, &right], &mut truths);
    truths
}

fn describe(
    gap: usize,
    depth: u32,
    parent: Option<Place>,
    line: &[PeerId],
    below: [&[Option<usize>]; 2],
    truths: &mut BTreeMap<Place, Truth>,
) -> (u64, u32) {
    let place = (line[gap], Node::Router);
    let (mut count, mut height, mut children) = (0, 0, [place; 2]);
    for (side, leaf) in [gap, gap + 1].into_iter().enumerate() {
        let (below_count, below_height) = match below[side][gap] {
            Some(child) => {
                children[side] = (line[child], Node::Router);
                describe(child, depth + 1, Some(place), line, below, truths)
            }
            None => {
                children[side] = (line[leaf], Node::Leaf);
                let truth = Truth { parent: Some(place), children: None, count: 1, height: 0, depth: depth + 1 };
                truths.insert(children[side], truth);
                (1, 0)
            }
        };
        count += below_count;
        height = height.max(below_height + 1);
    }
    truths.insert(place, Truth { parent, children: Some(children), count, height, depth });
    (count, height)
}

/// The first difference between the distributed tree and the truth; none when they are the same.
pub(crate) fn difference(world: &World) -> Option<String> {
    let sides: std::collections::BTreeSet<_> = world.alive().iter().map(|index| world.machines[*index].side).collect();
    sides.into_iter().find_map(|side| difference_on(world, side))
}

fn difference_on(world: &World, side: u8) -> Option<String> {
    let up = world.alive().into_iter().map(|index| &world.machines[index]).filter(|machine| machine.side == side);
    let mut peers: Vec<&Overlay> = up.filter_map(|machine| machine.overlay.as_ref()).collect();
    peers.sort_by_key(|overlay| PositionKey::new(GRID, overlay.me().peer));
    let line: Vec<_> = peers.iter().map(|overlay| overlay.me().peer).collect();
    let truths = truth(&line);
    let root = truths.iter().filter(|(_, truth)| truth.parent.is_none()).max_by_key(|(_, truth)| truth.count)?;
    for (place, overlay) in peers.iter().enumerate() {
        let wrong = line_difference(overlay, &line, place)
            .or_else(|| node_difference(overlay, Node::Leaf, &truths))
            .or_else(|| node_difference(overlay, Node::Router, &truths))
            .or_else(|| root_difference(overlay, root));
        if let Some(wrong) = wrong {
            return Some(format!("{:?} (place {place} of {}): {wrong}", overlay.me(), line.len()));
        }
    }
    None
}

fn line_difference(overlay: &Overlay, line: &[PeerId], place: usize) -> Option<String> {
    let state = if line.len() == 1 { State::Alone } else { State::Member };
    let pred = place.checked_sub(1).map(|below| line[below]);
    let succ = line.get(place + 1).copied();
    let seen = (overlay.predecessor().map(|c| c.peer), overlay.successor().map(|c| c.peer));
    if overlay.state() != state {
        return Some(format!("state {:?}, not {state:?}", overlay.state()));
    }
    (seen != (pred, succ)).then(|| format!("neighbours {seen:?}, not {:?}", (pred, succ)))
}

fn node_difference(overlay: &Overlay, node: Node, truths: &BTreeMap<Place, Truth>) -> Option<String> {
    let Some(truth) = truths.get(&(overlay.me().peer, node)) else {
        return overlay.hosts_router().then(|| "a router that should not be".to_owned());
    };
    let parent = overlay.parent(node).map(|contact| (contact.peer, Node::Router));
    if parent != truth.parent {
        return Some(format!("parent of {node:?} {parent:?}, not {:?}", truth.parent));
    }
    if overlay.depth(node) != Some(truth.depth) {
        return Some(format!("depth of {node:?} {:?}, not {}", overlay.depth(node), truth.depth));
    }
    let children = (node == Node::Router).then_some(truth.children).flatten()?;
    for (child, expected) in overlay.children().into_iter().zip(children) {
        let below = &truths[&expected];
        let Some(child) = child else { return Some(format!("no child {expected:?}")) };
        let seen = ((child.contact.peer, child.node), child.count, child.height);
        if seen != (expected, below.count, below.height) {
            return Some(format!("child {seen:?}, not {:?}", (expected, below.count, below.height)));
        }
        if child.payload != payload(expected.0, expected.1) {
            return Some(format!("payload of child {expected:?} is not what it published"));
        }
    }
    None
}

fn root_difference(overlay: &Overlay, (place, truth): (&Place, &Truth)) -> Option<String> {
    let expected = (place.0, truth.count, truth.height, place.0.0.to_vec());
    let seen = overlay.root().map(|root| (root.contact.peer, root.count, root.height, root.payload.clone()));
    if overlay.is_root() != (overlay.me().peer == place.0) {
        return Some(format!("is_root {}", overlay.is_root()));
    }
    (seen.as_ref() != Some(&expected)).then(|| format!("root {seen:?}, not {expected:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oracle_counts_every_leaf_once() {
        let mut line: Vec<_> = (0..50).map(|byte| PeerId([byte; 32])).collect();
        line.sort_by_key(|peer| PositionKey::new(GRID, *peer));
        let truths = truth(&line);
        assert_eq!(truths.len(), 99);
        assert_eq!(truths.values().filter(|truth| truth.parent.is_none()).map(|truth| truth.count).sum::<u64>(), 50);
    }
}
