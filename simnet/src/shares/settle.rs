//! How long shares take to be right again after a change: until what all leaves together may do of each bag is within 2 % of the best for
//! the machines that are up, and stays so for a while.
//!
//! Rates are what is watched: tasks that began before take as long as they take.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::BagId;

use super::optimum::{Application, Capacity, best};
use crate::Simulation;
use crate::invariant::{i6_tree, i8_summary};

/// Rates are right within this share of the best.
const WITHIN: f64 = 0.02;
/// For so long they have to be.
const STAYS: Duration = Duration::from_secs(2);
/// How often they are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Nothing is waited for longer than this.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// What a change took, in seconds; all of the time that was waited for where that was not enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settled {
    /// Until rates were right.
    pub(super) rates_s: f64,
    /// Until the tree was the true one.
    pub(super) tree_s: f64,
}

/// Bags without an end that are there now, by id.
pub(super) type There = BTreeMap<BagId, Application>;

/// Mop/s of each bag that all leaves together may do, in the order of ids.
pub(super) fn rates(simulation: &Simulation, there: &There) -> Vec<f64> {
    let mut rates: BTreeMap<BagId, f64> = there.keys().map(|bag| (*bag, 0.0)).collect();
    for peer in simulation.up().iter().filter_map(|host| simulation.peer(*host)) {
        for (bag, rate) in peer.endless_shares() {
            if let Some(sum) = rates.get_mut(&bag) {
                *sum += rate;
            }
        }
    }
    rates.into_values().collect()
}

/// Watches from this moment on, in which the change happens.
pub(super) fn watch(simulation: &mut Simulation, there: &There, capacities: &[Capacity], since: Time) -> Settled {
    let applications: Vec<Application> = there.values().copied().collect();
    let (mut rates_s, mut tree_s) = (None, None);
    let mut right_since: Option<Time> = None;
    let mut known: (Vec<u32>, Vec<f64>) = Default::default();
    while simulation.now() < since + WAIT_MAX && (rates_s.is_none() || tree_s.is_none()) {
        simulation.run_until(simulation.now().max(since) + LOOK_EVERY);
        let now = simulation.now();
        if known.0 != simulation.up() {
            let up = simulation.up().to_vec();
            let best = best(&applications, up.iter().map(|host| capacities[*host as usize]));
            known = (up, best);
        }
        let is_right =
            rates(simulation, there).iter().zip(&known.1).all(|(rate, best)| (rate - best).abs() <= WITHIN * best);
        right_since = if is_right { right_since.or(Some(now)) } else { None };
        if let Some(right) = right_since.filter(|right| *right + STAYS <= now) {
            rates_s.get_or_insert(right.since(since).as_secs_f64());
        }
        if tree_s.is_none() && i6_tree::check(&i8_summary::members(simulation), simulation.scenario().nodes).is_ok() {
            tree_s = Some(now.since(since).as_secs_f64());
        }
    }
    let or_all = |took_s: Option<f64>| took_s.unwrap_or(WAIT_MAX.as_secs_f64());
    Settled { rates_s: or_all(rates_s), tree_s: or_all(tree_s) }
}
