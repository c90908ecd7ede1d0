//! Update times: how long a leaf's change takes to reach the root (paper §7.2, Fig. 4b).
//!
//! A change happens when a leaf takes tasks of a bag that it had none of. It is then traced: it is part of the leaf's
//! next published summary, of the report that carries that, of the summary published by the router that receives it,
//! and so on, until the root's router receives it. Reports carry versions, and the newest wins, so that a version
//! carries all changes that its sender knew when it published it; a retransmission carries nothing new. Links are
//! assumed to lose nothing.

use std::collections::{BTreeMap, BTreeSet};

use idlewood_overlay::{Node, PeerId, Time};
use idlewood_scheduler::BagId;

use crate::event_queue::HostIndex;
use crate::simulation::{Deed, Simulation};

/// Traces all changes of a simulation.
#[derive(Debug, Default)]
pub(super) struct Updates {
    known: BTreeSet<(HostIndex, BagId)>,
    /// Changes of leaves not published yet.
    unpublished: BTreeMap<HostIndex, Vec<Time>>,
    /// Changes that a node of a machine has yet to report, in a version above this one.
    unreported: BTreeMap<(HostIndex, Node), Vec<(Time, u64)>>,
    /// Changes under way, by the sender's node and version.
    reported: BTreeMap<(PeerId, Node, u64), Vec<Time>>,
    /// Times of changes that reached the root, in seconds.
    pub(super) times_s: Vec<f64>,
}

impl Updates {
    /// Processes the events of the last step.
    pub(super) fn look(&mut self, simulation: &Simulation) {
        // A leaf publishes after it has taken tasks, and nodes report after that.
        for (host, deed) in simulation.deeds() {
            if let Deed::Held { bag } = deed
                && self.known.insert((*host, *bag))
            {
                self.unpublished.entry(*host).or_default().push(simulation.now());
            }
        }
        for (host, deed) in simulation.deeds() {
            let Some(peer) = simulation.peer(*host) else { continue };
            let me = peer.overlay_view().me().peer;
            match deed {
                Deed::Published { router } => {
                    let Some(changes) = self.unpublished.remove(host) else { continue };
                    if peer.overlay_view().parent(Node::Leaf).is_some_and(|parent| parent.peer == me) {
                        self.arrive(simulation, *host, changes, *router);
                    } else {
                        let changes = changes.into_iter().map(|at| (at, 0));
                        self.unreported.entry((*host, Node::Leaf)).or_default().extend(changes);
                    }
                }
                Deed::Reported { node, version } => {
                    let Some(changes) = self.unreported.get_mut(&(*host, *node)) else { continue };
                    let reported = changes.extract_if(.., |(_, after)| *version > *after).map(|(at, _)| at);
                    self.reported.entry((me, *node, *version)).or_default().extend(reported);
                }
                Deed::Heard { from, node, version, router } => {
                    if let Some(changes) = self.reported.remove(&(*from, *node, *version)) {
                        self.arrive(simulation, *host, changes, *router);
                    }
                }
                Deed::Held { .. } | Deed::Started { .. } | Deed::SentDown { .. } => {}
            }
        }
    }

    /// A router receives changes, which are not part of what it had published before.
    fn arrive(&mut self, simulation: &Simulation, host: HostIndex, changes: Vec<Time>, published: u64) {
        if simulation.peer(host).is_some_and(|peer| peer.overlay_view().is_root()) {
            let now = simulation.now();
            self.times_s.extend(changes.into_iter().map(|at| now.since(at).as_secs_f64()));
        } else {
            let changes = changes.into_iter().map(|at| (at, published));
            self.unreported.entry((host, Node::Router)).or_default().extend(changes);
        }
    }
}
