//! What is outside of all machines: who is up, the users with their bags, and the simulator's own record.
//!
//! The world acts only between the windows in which machines run on their own: when a machine is switched on (it has to
//! know of others) and when somebody submits a bag (at a machine that is up). A window ends where the world acts next,
//! and what shards have to tell is taken in by time and machine, so that all of it is as if there were one thread.

use std::collections::BTreeSet;

use idlewood_overlay::Time;
use idlewood_scheduler::{BagId, TaskId};
use rand::RngExt;

use super::history::History;
use crate::event_queue::HostIndex;
use crate::host::Ending;
use crate::random::SmallStream;
use crate::record::Record;

/// What the world does. At one moment it comes before everything on machines, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    /// Switches a machine on.
    Start(HostIndex),
    /// A user submits a bag, by its number, or looks after it.
    Submit(usize),
}

/// What a shard tells the world.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// The machine went down; it is to be started then.
    Down {
        until: Time,
    },
    Accepted(BagId),
    Closed(BagId),
    Started(TaskId),
    /// A task stands still for others.
    Frozen(TaskId),
    /// It goes on.
    Thawed(TaskId),
    /// A task was stopped before its end.
    Stopped(TaskId),
    /// The owner of the machine is there again, or has left.
    Owner {
        here: bool,
    },
    /// A task has run for as long as it takes.
    Ended {
        task: TaskId,
        ending: Ending,
    },
    /// A result is durable in the journal of the machine.
    Journalled {
        task: TaskId,
        success: bool,
        has_output: bool,
    },
}

/// News of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) at: Time,
    pub(super) host: HostIndex,
    pub(super) news: News,
}

/// Outside of all machines.
pub(super) struct World {
    plans: BTreeSet<(Time, Act)>,
    /// Machines that are up, in no particular order, and where each stands there.
    up: Vec<HostIndex>,
    places: Vec<u32>,
    submitter_rng: SmallStream,
    /// Where users sit: at the machines below this number.
    desks: HostIndex,
    pub(super) record: Record,
    /// Where somebody wants one.
    pub(super) history: Option<History>,
}

/// Of a machine that is down.
const NOWHERE: u32 = u32::MAX;

impl World {
    /// Users sit at the first `desks` of the hosts.
    pub(super) fn new(hosts: u32, desks: HostIndex, submitter_rng: SmallStream, record: Record) -> Self {
        let places = vec![NOWHERE; hosts as usize];
        Self { plans: BTreeSet::new(), up: Vec::new(), places, submitter_rng, desks, record, history: None }
    }

    /// Plans something.
    pub(super) fn plan(&mut self, at: Time, act: Act) {
        self.plans.insert((at, act));
    }

    /// When the world acts next.
    pub(super) fn next(&self) -> Option<Time> {
        self.plans.first().map(|(at, _)| *at)
    }

    /// What it does then.
    pub(super) fn take(&mut self) -> Option<(Time, Act)> {
        self.plans.pop_first()
    }

    pub(super) fn up(&self) -> &[HostIndex] {
        &self.up
    }

    /// A machine was switched on.
    pub(super) fn started(&mut self, host: HostIndex) {
        self.places[host as usize] = self.up.len() as u32;
        self.up.push(host);
    }

    fn stopped(&mut self, host: HostIndex) {
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

    /// Where the next user sits.
    pub(super) fn submitter(&mut self) -> Option<HostIndex> {
        let seats: Vec<HostIndex> = self.up.iter().copied().filter(|&host| host < self.desks).collect();
        (!seats.is_empty()).then(|| seats[self.submitter_rng.random_range(0..seats.len())])
    }

    /// Takes in what shards have to tell, and empties it.
    pub(super) fn hear<'a>(&mut self, shards: impl Iterator<Item = &'a mut Vec<Item>>) {
        let mut all: Vec<Item> = Vec::new();
        for news in shards {
            if all.is_empty() {
                std::mem::swap(&mut all, news);
            } else {
                all.append(news);
            }
        }
        // What one machine tells stays in its order.
        all.sort_by_key(|item| (item.at, item.host));
        for item in all {
            if let Some(history) = &mut self.history {
                history.hear(&item, &self.record);
            }
            let Item { at, host, news } = item;
            match news {
                News::Down { until } => {
                    self.stopped(host);
                    self.plan(until, Act::Start(host));
                }
                News::Accepted(bag) => self.record.accepted(bag, at),
                News::Closed(bag) => self.record.closed(bag, at),
                News::Started(task) => self.record.started(task),
                News::Frozen(_) | News::Thawed(_) | News::Stopped(_) | News::Owner { .. } => {}
                News::Ended { task, ending } => self.record.run_ended(task, ending, at),
                News::Journalled { task, success, has_output } => {
                    self.record.journalled(task, host, success, has_output, at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What shards tell is heard in the order in which it happened, whichever of them tells it.
    #[test]
    fn news_are_taken_in_by_time_and_machine() {
        let at = Time::from_micros;
        let down = |micros, host| Item { at: at(micros), host, news: News::Down { until: at(50) } };
        let world = |mut shards: Vec<Vec<Item>>| {
            let mut world = World::new(6, 6, SmallStream::new(1, "submitter", 0), Record::new(Vec::new()));
            (0..6).for_each(|host| world.started(host));
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
