//! I4: every accepted link leads to a router with a shorter prefix; so accepted links never form a cycle.
//!
//! Source: `docs/design/overlay.md`, "accept a child (fencing)". Why: summaries are added up along the links and requests climb
//! them. A cycle would count machines for ever and send requests round.
//!
//! A link is *accepted* while both ends have it: the child has the parent's acknowledgement, and the parent holds the
//! child. The prefix of a router is that of its present gap, a leaf's is the whole key. A link comes, goes or changes
//! its ends' prefixes only when one end handles an event; so checking the links of the machine that has just done so,
//! up and down, covers the whole grid at every instant, and strictly falling lengths exclude cycles.
//!
//! Moreover each child that a router holds, whatever its present state, must have reported a longer prefix.

use idlewood_overlay::{Node, Overlay, Side};

use super::keys::Keys;
use super::rule::Invariant;
use crate::event_queue::HostIndex;
use crate::overlay::World;

/// I4.
pub const RULE: Invariant = Invariant { name: "I4", rule: "accepted links strictly decrease the common prefix" };

/// Checks all links of the machine that has just handled an event.
///
/// # Errors
/// The link that does not lead to a shorter prefix.
pub fn check(world: &World, keys: &mut Keys, host: HostIndex, overlay: &Overlay) -> Result<(), String> {
    for node in [Node::Leaf, Node::Router] {
        if let Some(above) = accepted_parent(world, host, node) {
            check_link(world, keys, host, node, above)?;
        }
    }
    for (side, child) in [Side::Left, Side::Right].into_iter().zip(overlay.children()) {
        let Some(child) = child else { continue };
        if let Some(below) = world.host_of(child.contact.peer)
            && accepted_parent(world, below, child.node) == Some(host)
        {
            check_link(world, keys, below, child.node, host)?;
        }
        let Some(span) = overlay.child_span(side) else { return Err(format!("its {side:?} child covers nothing")) };
        let (child, gap) = (keys.prefix_bits(span.l.peer, span.r.peer), keys.gap_bits(overlay));
        if gap.is_none_or(|gap| child <= gap) {
            return Err(format!("its {side:?} child reported a prefix of {child} bits, its own has {gap:?}"));
        }
    }
    Ok(())
}

/// The machine of the router that a node is linked to, if both ends have the link.
pub fn accepted_parent(world: &World, host: HostIndex, node: Node) -> Option<HostIndex> {
    let overlay = world.overlay(host)?;
    let above = world.host_of(overlay.parent(node)?.peer)?;
    let me = overlay.me().peer;
    let children = world.overlay(above)?.children();
    children.iter().flatten().any(|child| child.contact.peer == me && child.node == node).then_some(above)
}

fn check_link(world: &World, keys: &mut Keys, below: HostIndex, node: Node, above: HostIndex) -> Result<(), String> {
    let mut gap = |host| world.overlay(host).and_then(|overlay| keys.gap_bits(overlay));
    let prefix = if node == Node::Leaf { Some(256) } else { gap(below) };
    match (prefix, gap(above)) {
        (Some(prefix), Some(shorter)) if shorter < prefix => Ok(()),
        (prefix, other) => {
            Err(format!("the {node:?} of {below} with prefix {prefix:?} is linked to {above} with {other:?}"))
        }
    }
}
