//! I8: the summary of each router is the sum of those published by the leaves below it, within the stated staleness.
//!
//! Source: Celaya and Marchal 2010, §5.2 and §5.3 (summaries are added at each router, and travel under a rate limit);
//! `docs/design/overlay.md` ("at most 20 % at the root of 10⁶ leaves"). Why: the global scheduler relies on it. A
//! missing leaf idles; a leaf that is counted twice, or was not removed, is promised work that it cannot do.
//!
//! When it must hold: for a router whose leaves have published nothing new for [`staleness`], while the tree was the
//! true one and no request was sent down (those are subtracted until the next report). Then the sum of its two
//! children's payloads must have exactly the leaves below it, by the oracle, and their speed but for what single precision rounds down, and for every
//! sample request no more tasks than these can take, and no less than four fifths: the most that rounding down at every
//! level may cost. What is below a router that the one above it leaves out, since requests get lost there, is not offered.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Node, Overlay, PeerId, PositionKey, Time};
use idlewood_scheduler::summary::{STRETCHES, Summary};

use super::i6_tree;
use super::rule::{Invariant, Violation};
use crate::Simulation;
use crate::event_queue::HostIndex;
use crate::overlay::Tree;
use crate::simulation::Deed;

/// I8.
pub const RULE: Invariant =
    Invariant { name: "I8", rule: "each router's summary is that of the leaves below it, within the staleness" };

/// The most that rounding down at every level may cost.
const LOSS_MAX: f64 = 0.2;
/// The most that rounding speeds down to single precision may cost, as a share: 2⁻²³ at each of some sixteen levels.
const ROUNDED_MAX: f64 = 2e-6;
/// Sizes of sample requests, in Mop: a task, and the whole bag.
const SAMPLES: [(f64, f64); 6] = [(1e3, 1e5), (3e4, 3e6), (2.4e5, 2.4e6), (2.4e5, 2.4e8), (1e6, 1e7), (1e4, 1e9)];

/// How old a summary may be: on each level a report may have to wait for the rate limit and be repeated once after a
/// loss; a second for both, and two heartbeats for other delays. Requests that were sent down are subtracted for as
/// long as placements may take.
pub fn staleness(simulation: &Simulation, height: u32) -> Duration {
    let policy = &simulation.scenario().peer;
    let heartbeats = Duration::from_millis(2 * policy.overlay.heartbeat_ms);
    policy.placement_timeout + heartbeats + Duration::from_secs(1) * height
}

/// Since when nothing changes.
#[derive(Debug)]
pub struct Summaries {
    published: BTreeMap<HostIndex, (Vec<u8>, Time)>,
    /// Machines that were up, and their lives.
    lives: Vec<(HostIndex, u64)>,
    /// The routers that each machine leaves out.
    left_out: BTreeMap<HostIndex, Vec<PeerId>>,
    /// When the tree was last wrong, a machine came or went, left a router out or took it back, or a request was last sent down.
    disturbed: Time,
    /// Routers compared so far.
    pub compared: u64,
}

impl Default for Summaries {
    fn default() -> Self {
        Self {
            published: BTreeMap::new(),
            lives: Vec::new(),
            left_out: BTreeMap::new(),
            disturbed: Time::ZERO,
            compared: 0,
        }
    }
}

/// All peers that are up.
pub(crate) fn members(simulation: &Simulation) -> Vec<(HostIndex, PositionKey, &Overlay)> {
    let member = |host: &HostIndex| {
        let overlay = simulation.peer(*host)?.overlay_view();
        Some((*host, overlay.me().key(simulation.grid()), overlay))
    };
    simulation.up().iter().filter_map(member).collect()
}

impl Summaries {
    /// Notes the simulation's last step.
    pub fn stepped(&mut self, simulation: &Simulation) {
        if simulation.deeds().iter().any(|(_, deed)| matches!(deed, Deed::SentDown { .. })) {
            self.disturbed = simulation.now();
        }
    }

    /// Checks the whole grid: to be called at least once a second.
    ///
    /// # Errors
    /// The router whose summary differs from the leaves below it.
    pub fn check(&mut self, simulation: &Simulation) -> Result<(), Violation> {
        let (now, members) = (simulation.now(), members(simulation));
        let hosts = simulation.scenario().nodes;
        for (host, _, overlay) in &members {
            let payload = overlay.published(Node::Leaf);
            let known = self.published.entry(*host).or_insert_with(|| (Vec::new(), now));
            if known.0 != payload {
                *known = (payload.to_vec(), now);
            }
        }
        // A machine that comes back between two checks may be in the tree before its summary is.
        let lives: Vec<_> = members.iter().map(|(host, _, overlay)| (*host, overlay.me().incarnation)).collect();
        let left_out: BTreeMap<_, _> =
            members.iter().filter_map(|(host, ..)| Some((*host, simulation.peer(*host)?.left_out()))).collect();
        if i6_tree::check(&members, hosts).is_err() || lives != self.lives || left_out != self.left_out {
            (self.disturbed, self.lives, self.left_out) = (now, lives, left_out);
            return Ok(());
        }
        let peers: BTreeMap<_, _> = members.iter().map(|(host, _, overlay)| (*host, overlay.me().peer)).collect();
        let tree = Tree::of(members.iter().map(|(host, key, _)| (*key, *host)), hosts);
        let still_since = now - staleness(simulation, tree.height);
        if members.len() < 2 || self.disturbed > still_since {
            return Ok(());
        }
        for (host, _, overlay) in &members {
            let mut leaves = Vec::new();
            // What this router leaves out itself it takes off when it reports.
            let offers = |router, child| router == *host || !self.left_out[&router].contains(&peers[&child]);
            let left_out = leaves_below(&tree, *host, &offers, &mut leaves);
            if leaves.is_empty() || leaves.iter().any(|leaf| self.published[leaf].1 > still_since) {
                continue;
            }
            let below = leaves.iter().map(|leaf| read(&self.published[leaf].0));
            // A router that is left out counts as one machine that takes no work.
            let below = below.chain(std::iter::repeat_with(Summary::unavailable).take(left_out));
            let held = overlay.children().into_iter().flatten().map(|child| read(child.payload));
            compare(&sum(held), &sum(below)).map_err(|what| Violation {
                invariant: RULE,
                at: now,
                host: Some(*host),
                what: format!("{what}; {} leaves are below it", leaves.len()),
            })?;
            self.compared += 1;
        }
        Ok(())
    }
}

/// A summary; an empty one stands for a machine that takes no work.
fn read(payload: &[u8]) -> Summary {
    Summary::of_flat(payload).unwrap_or_else(Summary::unavailable)
}

fn sum(summaries: impl Iterator<Item = Summary>) -> Summary {
    summaries.fold(Summary::empty(), |mut sum, summary| {
        sum.merge(&summary);
        sum
    })
}

/// Machines whose leaf is below the router on `host`; none without a router. `offers` says of a router and of one that is its child
/// whether the first offers what is below the other. Returns how many do not.
fn leaves_below(
    tree: &Tree,
    host: HostIndex,
    offers: &impl Fn(HostIndex, HostIndex) -> bool,
    leaves: &mut Vec<HostIndex>,
) -> usize {
    let Some(router) = tree.truth(host).and_then(|truth| truth.router.as_ref()) else { return 0 };
    let mut left_out = 0;
    for child in router.children {
        match child.node {
            Node::Leaf => leaves.push(child.host),
            Node::Router if offers(host, child.host) => left_out += leaves_below(tree, child.host, offers, leaves),
            Node::Router => left_out += 1,
        }
    }
    left_out
}

/// Whether `held` is `below`, rounded down.
fn compare(held: &Summary, below: &Summary) -> Result<(), String> {
    let is_all = (below.speed_mops * (1.0 - ROUNDED_MAX)..=below.speed_mops).contains(&held.speed_mops);
    if held.leaves != below.leaves || !is_all {
        return Err(format!(
            "it has {} leaves with {} Mop/s, below it are {} with {}",
            held.leaves, held.speed_mops, below.leaves, below.speed_mops
        ));
    }
    for (task_mops, size_mops) in SAMPLES {
        for (s_index, stretch) in STRETCHES.iter().enumerate() {
            let tasks = |summary: &Summary| summary.tasks(s_index, 0.0, size_mops, task_mops);
            let (held, below) = (tasks(held), tasks(below));
            if held > below || (held as f64) < (below as f64 * (1.0 - LOSS_MAX)).floor() {
                return Err(format!(
                    "of tasks of {task_mops} Mop in {size_mops} at stretch {stretch:e} it offers {held}, not {below}"
                ));
            }
        }
    }
    Ok(())
}
