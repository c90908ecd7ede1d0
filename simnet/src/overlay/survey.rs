//! Surveys of a world from outside: whether the distributed tree is the true one, and which leaves can reach the root.

use idlewood_overlay::{Contact, Node, Overlay, PositionKey, State};

use super::truth::{Tree, Truth};
use super::world::World;
use crate::event_queue::HostIndex;

/// Mistakes in a machine's view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wrong {
    /// A neighbour, an acknowledged parent or a child is not the true one.
    pub links: bool,
    /// A link is wrong, or the count or height of a child.
    pub counts: bool,
}

/// Compares one machine with the truth.
fn compare(world: &World, overlay: &Overlay, truth: &Truth) -> Wrong {
    let host = |contact: Option<&Contact>| contact.map(|contact| world.host_of(contact.peer));
    let is = |contact: Option<&Contact>, truth: Option<HostIndex>| host(contact) == truth.map(Some);
    let is_alone = truth.succ.is_none() && truth.pred.is_none();
    let router_parent = truth.router.as_ref().and_then(|router| router.parent);
    let mut links = overlay.state() == if is_alone { State::Alone } else { State::Member }
        && is(overlay.predecessor(), truth.pred)
        && is(overlay.successor(), truth.succ)
        && is(overlay.parent(Node::Leaf), truth.leaf_parent)
        && is(overlay.parent(Node::Router), router_parent);
    let mut counts = true;
    if let Some(router) = &truth.router {
        for (child, truth) in overlay.children().iter().zip(&router.children) {
            links &= is(child.as_ref().map(|child| child.contact), Some(truth.host));
            links &= child.as_ref().is_some_and(|child| child.node == truth.node);
            counts &= child.as_ref().is_some_and(|child| (child.count, child.height) == (truth.count, truth.height));
        }
    }
    Wrong { links: !links, counts: !(links && counts) }
}

/// Counts the machines with mistakes, updated as they handle events.
#[derive(Debug)]
pub struct Watch {
    tree: Tree,
    wrong: Vec<Wrong>,
    /// Machines with a wrong link.
    pub wrong_links: u32,
    /// Machines with a wrong link or count.
    pub wrong_counts: u32,
}

impl Watch {
    /// Checks every machine that is up.
    pub fn new(world: &World) -> Self {
        Self::among(world, world.up())
    }

    /// Checks these machines as if there were no others: one side of a partition.
    pub fn among(world: &World, members: &[HostIndex]) -> Self {
        let tree = Tree::of(members.iter().map(|host| (world.position(*host), *host)), world.hosts());
        let wrong = vec![Wrong::default(); world.hosts() as usize];
        let mut watch = Self { tree, wrong, wrong_links: 0, wrong_counts: 0 };
        for host in members {
            watch.update(world, *host);
        }
        watch
    }

    /// Checks a machine again, which has handled an event.
    pub fn update(&mut self, world: &World, host: HostIndex) {
        let Some(truth) = self.tree.truth(host) else { return };
        let worst = Wrong { links: true, counts: true };
        let new = world.overlay(host).map_or(worst, |overlay| compare(world, overlay, truth));
        let old = std::mem::replace(&mut self.wrong[host as usize], new);
        self.wrong_links = self.wrong_links + u32::from(new.links) - u32::from(old.links);
        self.wrong_counts = self.wrong_counts + u32::from(new.counts) - u32::from(old.counts);
    }

    /// The mistakes of a machine.
    pub fn wrong(&self, host: HostIndex) -> Wrong {
        self.wrong[host as usize]
    }

    /// The true tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The true tree, at the end of the watch.
    pub fn into_tree(self) -> Tree {
        self.tree
    }
}

/// How many leaves can reach the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// Leaves of machines that are up and not leaving, joining ones included.
    pub leaves: u64,
    /// Leaves whose chain of links, acknowledged and held by each parent, leads through machines that are up to the
    /// true root.
    pub available: u64,
}

/// Follows the links upwards from every leaf. The true root is that of all machines that have joined.
pub fn paths(world: &World) -> Paths {
    const UNKNOWN: u8 = 0;
    const REACHES: u8 = 1;
    const ENDS: u8 = 2;
    let is_member = |host: &&HostIndex| world.overlay(**host).is_some_and(|overlay| overlay.state() == State::Member);
    let members = world.up().iter().filter(is_member).map(|host| (world.position(*host), *host));
    let root = true_root(&members.collect::<Vec<_>>());
    let mut known = vec![UNKNOWN; world.hosts() as usize];
    let mut paths = Paths::default();
    let mut way = Vec::new();
    for leaf in world.up() {
        paths.leaves += 1;
        let Some(root) = root else {
            paths.available += u64::from(world.up().len() == 1);
            continue;
        };
        let mut at = parent(world, *leaf, Node::Leaf);
        let outcome = loop {
            match at {
                None => break ENDS,
                Some(router) if router == root => break REACHES,
                Some(router) if known[router as usize] != UNKNOWN => break known[router as usize],
                Some(router) => {
                    // A cycle would lead here again: it ends.
                    known[router as usize] = ENDS;
                    way.push(router);
                    at = parent(world, router, Node::Router);
                }
            }
        };
        for router in way.drain(..) {
            known[router as usize] = outcome;
        }
        paths.available += u64::from(outcome == REACHES);
    }
    paths
}

/// The machine of the router that a node is linked to from both ends.
fn parent(world: &World, host: HostIndex, node: Node) -> Option<HostIndex> {
    let overlay = world.overlay(host)?;
    let above = world.host_of(overlay.parent(node)?.peer).filter(|above| world.is_up(*above))?;
    let me = overlay.me().peer;
    let children = world.overlay(above)?.children();
    children.iter().flatten().any(|child| child.contact.peer == me && child.node == node).then_some(above)
}

/// The machine at the left of the gap with the shortest common prefix: the gap across the highest bit that differs
/// anywhere, between the last key that has it clear and the first that has it set.
fn true_root(members: &[(PositionKey, HostIndex)]) -> Option<HostIndex> {
    let (first, last) = (members.iter().min()?.0, members.iter().max()?.0);
    let mut differing = first.0.iter().zip(last.0).map(|(one, other)| one ^ other).enumerate();
    let (byte, bits) = differing.find(|(_, bits)| *bits != 0)?;
    let bit = 0x80 >> bits.leading_zeros();
    let below = members.iter().filter(|(key, _)| key.0[byte] & bit == 0);
    below.max().map(|(_, host)| *host)
}
