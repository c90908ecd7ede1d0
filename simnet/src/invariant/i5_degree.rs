//! I5: a machine has at most one router, and that at most two children, one at each end of its gap.
//!
//! Source: Celaya and Marchal 2010, §3.2: a binary tree of routing nodes, one per machine at most;
//! `docs/design/overlay.md`. Why: it bounds a machine's work for the grid, and two overlapping children would count
//! machines twice.
//!
//! There are two slots by construction. Their content can be wrong: a child without a router (no successor), the same
//! node twice, or parts of the line that do not meet exactly at the gap.

use idlewood_overlay::{Node, Overlay, Side};

use super::keys::Keys;
use super::rule::Invariant;

/// I5.
pub const RULE: Invariant = Invariant { name: "I5", rule: "at most two children and one router role" };

/// Checks the router of one machine.
///
/// # Errors
/// The excess.
pub fn check(keys: &mut Keys, overlay: &Overlay) -> Result<(), String> {
    let children = overlay.children();
    let Some(succ) = overlay.gap() else {
        return match children.iter().flatten().next() {
            Some(child) => Err(format!("it hosts no router, yet {:?} is its child", child.contact)),
            None if overlay.parent(Node::Router).is_some() => Err("it hosts no router, yet that has a parent".into()),
            None => Ok(()),
        };
    };
    if let [Some(left), Some(right)] = &children
        && (left.contact.peer, left.node) == (right.contact.peer, right.node)
    {
        return Err(format!("{:?} of {:?} is both its children", left.node, left.contact));
    }
    let me = overlay.me().peer;
    for (side, child) in [Side::Left, Side::Right].into_iter().zip(&children) {
        let (Some(child), Some(span)) = (child, overlay.child_span(side)) else { continue };
        let meets = match side {
            Side::Left => span.r.peer == me && span.ro.as_ref().is_some_and(|ro| ro.peer == succ.peer),
            Side::Right => span.l.peer == succ.peer && span.lo.as_ref().is_some_and(|lo| lo.peer == me),
        };
        let in_order = keys.of(span.l.peer) <= keys.of(span.r.peer);
        let is_leaf = child.node == Node::Leaf;
        let alone = span.l.peer == child.contact.peer && span.r.peer == child.contact.peer && child.count == 1;
        if !meets || !in_order || is_leaf != alone {
            return Err(format!("its {side:?} child {child:?} covers {span:?}, its gap is that to {succ:?}"));
        }
    }
    Ok(())
}
