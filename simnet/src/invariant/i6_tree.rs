//! I6: when faults have stopped, the tree becomes the true one, and every machine knows its size.
//!
//! Source: `docs/design/overlay.md`, the oracle. Why: everything else relies on it. The tree is a function of the
//! membership, so there is exactly one right outcome, whatever happened before.
//!
//! The oracle ([`Tree`]) sorts the keys and uses a stack; it shares no code with the protocol. For every machine that
//! is up it gives neighbours (in their present life), parents, children and what is below them. Besides, every machine
//! must know the root, and the number of leaves and the height that the root counts. [`bound`] gives the time.

use std::time::Duration;

use idlewood_overlay::{Config, Node, Overlay, PositionKey, State};

use super::rule::Invariant;
use crate::event_queue::HostIndex;
use crate::overlay::{Child, Tree};

/// I6.
pub const RULE: Invariant =
    Invariant { name: "I6", rule: "the quiescent tree is that of the membership, and the root counts all" };

/// Fixed times of the protocol: joins and contacts are retried after up to 15 s.
const FIXED: Duration = Duration::from_secs(30);

/// How long after the last fault the tree must be the true one, with any settings, if faults lasted for `faulty`: two
/// rounds of each period involved, since lost peers are visited a few at a time and links are lost with their leases;
/// one look-up; tombstones have to expire; and contacts that answered all the time are asked again after as long. By
/// default 256 s and the time of the faults; in practice seconds (`simnet swarm` reports them).
pub fn bound(config: &Config, faulty: Duration) -> Duration {
    let tries = config.probe_timeout_ms_max * u64::from(config.probe_tries);
    let twice = config.graveyard_probe_ms + config.heartbeat_ms + config.child_lease_ms + tries;
    FIXED + Duration::from_millis(2 * twice + config.lookup_ms + config.tombstone_ms) + faulty
}

/// Compares all members with the oracle. `members` are all machines that are up and not leaving.
///
/// # Errors
/// The first machine that is wrong, and its mistake.
pub fn check(members: &[(HostIndex, PositionKey, &Overlay)], hosts: u32) -> Result<(), (Option<HostIndex>, String)> {
    let tree = Tree::of(members.iter().map(|(host, key, _)| (*key, *host)), hosts);
    let peer_of =
        |host: HostIndex| members.iter().find(|(other, ..)| *other == host).map(|(_, _, overlay)| overlay.me().peer);
    for (host, _, overlay) in members {
        let wrong = |what: String| Err((Some(*host), what));
        let Some(truth) = tree.truth(*host) else { return wrong("the oracle does not know it".into()) };
        let state = if members.len() == 1 { State::Alone } else { State::Member };
        if overlay.state() != state {
            return wrong(format!("it is {:?}, not {state:?}", overlay.state()));
        }
        let router_parent = truth.router.as_ref().and_then(|router| router.parent);
        let links = [
            ("predecessor", overlay.predecessor(), truth.pred),
            ("successor", overlay.successor(), truth.succ),
            ("leaf's parent", overlay.parent(Node::Leaf), truth.leaf_parent),
            ("router's parent", overlay.parent(Node::Router), router_parent),
        ];
        // Neighbours are known in their present life; parents may be known in an earlier one.
        for (believed, truth) in [(overlay.predecessor(), truth.pred), (overlay.successor(), truth.succ)] {
            let life =
                |host| members.iter().find(|(other, ..)| *other == host).map(|(_, _, peer)| peer.me().incarnation);
            if believed.map(|contact| contact.incarnation) != truth.and_then(life) {
                return wrong(format!("its neighbour is {believed:?}, in another life than machine {truth:?}"));
            }
        }
        for (name, believed, truth) in links {
            if believed.map(|contact| contact.peer) != truth.and_then(peer_of) {
                return wrong(format!("its {name} is {believed:?}, not machine {truth:?}"));
            }
        }
        let children: [Option<Child>; 2] =
            truth.router.as_ref().map_or([None, None], |router| router.children.map(Some));
        for (believed, truth) in overlay.children().iter().zip(children) {
            let fits = match (believed, truth) {
                (None, None) => true,
                (Some(child), Some(truth)) => {
                    Some(child.contact.peer) == peer_of(truth.host)
                        && (child.node, child.count, child.height) == (truth.node, truth.count, truth.height)
                }
                (None, Some(_)) | (Some(_), None) => false,
            };
            if !fits {
                return wrong(format!("its child is {believed:?}, not {truth:?}"));
            }
        }
        let depths =
            [(Node::Leaf, Some(truth.leaf_depth)), (Node::Router, truth.router.as_ref().map(|router| router.depth))];
        for (node, depth) in depths {
            if overlay.depth(node) != depth {
                return wrong(format!("its {node:?} is at depth {:?}, not {depth:?}", overlay.depth(node)));
            }
        }
        let root = tree.root.or(Some(*host)).and_then(peer_of);
        let known = overlay.root().map(|root| (Some(root.contact.peer), root.count, root.height));
        if known != Some((root, tree.count, tree.height)) {
            return wrong(format!("it takes {known:?} for the root, not {:?}", (root, tree.count, tree.height)));
        }
    }
    Ok(())
}
