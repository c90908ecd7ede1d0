//! The world outside of all machines: who is up, the users with their bags, and the simulator's own record.
//!
//! The world acts only between the windows in which machines run on their own: when a machine is switched on (it has to
//! know others) and when a user submits a bag (at a machine that is up). A window ends where the world acts next, and
//! observations of shards are taken in by time and machine, so that the result is that of a single thread.

use std::collections::BTreeSet;

use idlewood_overlay::Time;
use rand::RngExt;

use super::history::History;
use super::observed::{Observation, Observed};
use crate::event_queue::HostIndex;
use crate::random::SmallStream;
use crate::record::Record;

/// An act of the world. At the same moment it comes before all events on machines, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    /// Switches a machine on.
    Start(HostIndex),
    /// A user submits a bag, by its number, or checks on it.
    Submit(usize),
}

/// The world outside of all machines.
pub(super) struct World {
    plans: BTreeSet<(Time, Act)>,
    /// Machines that are up, in no particular order, and the index of each there.
    up: Vec<HostIndex>,
    places: Vec<u32>,
    submitter_rng: SmallStream,
    /// Users sit at the machines below this number.
    seats: HostIndex,
    pub(super) record: Record,
    /// The history, if one is written.
    pub(super) history: Option<History>,
}

/// Index of a machine that is down.
const NOWHERE: u32 = u32::MAX;

impl World {
    /// Users sit at the first `seats` of the hosts.
    pub(super) fn new(hosts: u32, seats: HostIndex, submitter_rng: SmallStream, record: Record) -> Self {
        let places = vec![NOWHERE; hosts as usize];
        Self { plans: BTreeSet::new(), up: Vec::new(), places, submitter_rng, seats, record, history: None }
    }

    /// Plans something.
    pub(super) fn plan(&mut self, at: Time, act: Act) {
        self.plans.insert((at, act));
    }

    /// When the world acts next.
    pub(super) fn next(&self) -> Option<Time> {
        self.plans.first().map(|(at, _)| *at)
    }

    /// Takes the next act.
    pub(super) fn take(&mut self) -> Option<(Time, Act)> {
        self.plans.pop_first()
    }

    pub(super) fn up(&self) -> &[HostIndex] {
        &self.up
    }

    /// A machine was switched on.
    pub(super) fn started(&mut self, host: HostIndex, now: Time) {
        self.record.up(host, now);
        self.places[host as usize] = self.up.len() as u32;
        self.up.push(host);
    }

    fn stopped(&mut self, host: HostIndex, now: Time) {
        self.record.down(host, now);
        let place = std::mem::replace(&mut self.places[host as usize], NOWHERE) as usize;
        self.up.swap_remove(place);
        if let Some(&moved) = self.up.get(place) {
            self.places[moved as usize] = place as u32;
        }
    }

    /// A random machine that is up and not this one, which is down.
    pub(super) fn somebody(&self, rng: &mut SmallStream) -> Option<HostIndex> {
        (!self.up.is_empty()).then(|| self.up[rng.random_range(0..self.up.len())])
    }

    /// The machine of the next user.
    pub(super) fn submitter(&mut self) -> Option<HostIndex> {
        let free: Vec<HostIndex> = self.up.iter().copied().filter(|&host| host < self.seats).collect();
        (!free.is_empty()).then(|| free[self.submitter_rng.random_range(0..free.len())])
    }

    /// Takes in the observations of shards, and empties their lists.
    pub(super) fn hear<'a>(&mut self, shards: impl Iterator<Item = &'a mut Vec<Observation>>) {
        let mut all: Vec<Observation> = Vec::new();
        for observed in shards {
            if all.is_empty() {
                std::mem::swap(&mut all, observed);
            } else {
                all.append(observed);
            }
        }
        // Observations on one machine stay in their order.
        all.sort_by_key(|observation| (observation.at, observation.host));
        for observation in all {
            if let Some(history) = &mut self.history {
                history.observe(&observation, &self.record);
            }
            let Observation { at, host, observed } = observation;
            match observed {
                Observed::Down { until } => {
                    self.stopped(host, at);
                    self.plan(until, Act::Start(host));
                }
                Observed::Accepted(bag) => self.record.accepted(bag, at),
                Observed::Closed(bag) => self.record.closed(bag, at),
                Observed::Predicted(bag, predicted) => self.record.predicted(bag, predicted),
                Observed::Started(task) => self.record.started(task),
                Observed::Frozen(_) | Observed::Thawed(_) | Observed::Stopped(_) | Observed::Owner { .. } => {}
                Observed::Ended { task, ending } => self.record.run_ended(task, ending, at),
                Observed::Journalled { task, success, has_output } => {
                    self.record.journalled(task, host, success, has_output, at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observations are taken in by time, whichever shard made them.
    #[test]
    fn observations_are_taken_in_by_time_and_machine() {
        let at = Time::from_micros;
        let down = |micros, host| Observation { at: at(micros), host, observed: Observed::Down { until: at(50) } };
        let world = |mut shards: Vec<Vec<Observation>>| {
            let mut world = World::new(6, 6, SmallStream::new(1, "submitter", 0), Record::new(Vec::new()));
            (0..6).for_each(|host| world.started(host, Time::ZERO));
            world.hear(shards.iter_mut());
            assert!(shards.iter().all(Vec::is_empty));
            world.up().to_vec()
        };
        let one = world(vec![vec![down(10, 2), down(20, 0), down(20, 4)]]);
        assert_eq!(one, [3, 1, 5]);
        assert_eq!(world(vec![vec![down(20, 0), down(20, 4)], vec![down(10, 2)]]), one);
        assert_eq!(world(vec![vec![down(20, 4)], vec![down(10, 2)], vec![down(20, 0)]]), one);
    }
}
