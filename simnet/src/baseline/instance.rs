//! A scenario as a scheduling problem.

use idlewood_overlay::Time;

use crate::churn::{Churn, Owner};
use crate::network::Network;
use crate::scenario::{Scenario, Workload};
use crate::workload::{self, Bag, true_speed_mops};

/// A time during which a machine is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// When it comes up.
    pub from: Time,
    /// When it goes down.
    pub to: Time,
}

/// A machine as a centralised scheduler sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Speed of each slot, in Mop/s.
    pub speed_mops: f64,
    /// Tasks that it runs at the same time.
    pub slots: u32,
    /// When it is up, in order and without overlap.
    pub sessions: Vec<Session>,
    /// When its owner is at it, or counts as being, so that tasks stand still there: in order, without overlap, within sessions.
    pub visits: Vec<Session>,
}

/// A scheduling problem.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instance {
    /// All machines.
    pub machines: Vec<Machine>,
    /// All bags, in the order of their arrival.
    pub bags: Vec<Bag>,
    /// True work of each bag's tasks, in Mop, unknown to schedulers; empty if all are as declared.
    pub true_mops: Vec<Vec<f64>>,
    /// Time between two checkpoints of a task, in µs, which survive a failure of its machine; none if they do not.
    pub checkpoint_us: Option<i64>,
    /// Whose bag each is, for schedulers that take a user's bags as one application as ours do (`per_submitter = "line"`); empty
    /// for those that take each for another user's.
    pub submitters: Vec<u32>,
    /// How many tasks the effective size of each bag counts with; empty where that is max(n, machines that are up).
    pub widths: Vec<u64>,
    /// Later events do not count.
    pub horizon: Time,
}

impl Instance {
    /// The machines and bags of a scenario, up to its horizon, from the same random streams as the simulation.
    pub fn of(scenario: &Scenario) -> Self {
        let horizon = Time::ZERO + scenario.horizon;
        let downtime_min = Network::of(scenario).latency_min();
        let machine = |(host, mut from)| {
            let mut churn = Churn::new(scenario, host);
            let mut sessions = Vec::new();
            while from < horizon {
                let Some(session) = churn.session() else {
                    sessions.push(Session { from, to: horizon });
                    break;
                };
                let to = from + session;
                sessions.push(Session { from, to });
                // The simulation draws a farewell between the two.
                churn.leaves();
                from = to + churn.downtime().max(downtime_min);
            }
            let visits = visits(scenario, host, &sessions);
            Machine {
                speed_mops: true_speed_mops(scenario, host),
                slots: workload::slots(scenario, host),
                sessions,
                visits,
            }
        };
        let mut bags = workload::bags(scenario);
        bags.truncate(bags.partition_point(|bag| bag.arrival < horizon));
        let true_mops = |(number, bag): (usize, &Bag)| -> Vec<f64> {
            (0..bag.tasks).map(|index| workload::work_mops(scenario, number, bag, index)).collect()
        };
        let is_recorded = matches!(scenario.workload, Workload::Log | Workload::Workflows);
        let is_varied = scenario.task_cv > 0.0 || is_recorded;
        let true_mops = if is_varied { bags.iter().enumerate().map(true_mops).collect() } else { Vec::new() };
        let checkpoint_us = scenario.checkpoint_interval.filter(|_| !scenario.queue_lost);
        let checkpoint_us = checkpoint_us.map(|interval| interval.as_micros() as i64);
        let machines = workload::starts(scenario).map(machine).collect();
        Self { machines, bags, true_mops, checkpoint_us, horizon, ..Self::default() }
    }

    /// True work of a task, in Mop.
    pub(super) fn task_mops(&self, bag: usize, index: u64) -> f64 {
        self.true_mops.get(bag).map_or(self.bags[bag].task_mops, |tasks| tasks[index as usize])
    }

    /// True work of a bag, and of its longest task, in Mop.
    pub(super) fn work_mops(&self, bag: usize) -> (f64, f64) {
        let declared = &self.bags[bag];
        let declared = (declared.application_size_mops(), declared.task_mops);
        self.true_mops
            .get(bag)
            .map_or(declared, |tasks| (tasks.iter().sum(), tasks.iter().copied().fold(0.0, f64::max)))
    }

    /// Speed of all slots of all machines, up or down, in Mop/s.
    pub fn speed_mops(&self) -> f64 {
        self.machines.iter().map(|machine| machine.speed_mops * f64::from(machine.slots)).sum()
    }

    /// Median speed of a slot by machines, in Mop/s.
    pub fn median_speed_mops(&self) -> f64 {
        let mut speeds: Vec<f64> = self.machines.iter().map(|machine| machine.speed_mops).collect();
        speeds.sort_by(f64::total_cmp);
        speeds.get(speeds.len() / 2).copied().unwrap_or(1.0)
    }

    /// The size by which each bag's time from release to completion is divided.
    pub fn sizes(&self, measure: Measure) -> Vec<f64> {
        let median = self.median_speed_mops();
        let (all, machines) = (self.speed_mops(), self.machines.len() as u64);
        let size = |bag: &Bag| match measure {
            Measure::Application => bag.application_size_mops(),
            Measure::Effective => bag.tasks.max(machines) as f64 * bag.task_mops,
            Measure::Dedicated => (bag.application_size_mops() / all).max(bag.task_mops / median),
        };
        self.bags.iter().map(size).collect()
    }

    /// The stretch of each bag by a measure; a bag that is not complete counts with the time up to the horizon.
    pub fn stretches(&self, completed: &[Option<Time>], measure: Measure) -> Vec<f64> {
        let sizes = self.sizes(measure);
        let ends = completed.iter().map(|completed| completed.unwrap_or(self.horizon));
        let times = self.bags.iter().zip(ends).map(|(bag, end)| end.since(bag.arrival).as_secs_f64());
        times.zip(sizes).map(|(time_s, size)| time_s / size).collect()
    }
}

/// The visits of a machine's owner, from the same random stream as the simulation's: drawn owners are away at the beginning of each session.
fn visits(scenario: &Scenario, host: u32, sessions: &[Session]) -> Vec<Session> {
    let mut owner = Owner::new(scenario, host);
    let mut visits: Vec<Session> = Vec::new();
    for session in sessions {
        let mut now = session.from;
        while let Some(away) = owner.away(now).filter(|away| now + *away < session.to) {
            let from = now + away;
            // For good, or beyond the session: the machine goes down before.
            let to = owner.session(from).map(|stay| from + stay).filter(|to| *to < session.to);
            let counts_to = to.map_or(session.to, |to| (to + scenario.owner_idle).min(session.to));
            match visits.last_mut().filter(|last| last.to >= from && last.from >= session.from) {
                Some(last) => last.to = counts_to,
                None => visits.push(Session { from, to: counts_to }),
            }
            let Some(to) = to else { break };
            now = to;
        }
    }
    visits
}

/// The size that a stretch relates a bag's time to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The paper's w = n·a, in Mop; stretches are in s/Mop.
    Application,
    /// w' = a·max(n, machines), in Mop; stretches are in s/Mop.
    Effective,
    /// The time that the bag would take alone, max(w/s, a/median speed), in seconds; stretches are plain numbers.
    Dedicated,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn owners_are_there_for_as_long_as_the_load_counts_with() {
        let seconds = Duration::from_secs;
        let scenario = Scenario {
            nodes: 40,
            owner_session: Some(seconds(1200)),
            owner_away: seconds(3600),
            horizon: seconds(4_000_000),
            ..Scenario::default()
        };
        let (mut there_s, mut expected_s) = (0.0, 0.0);
        for host in 0..scenario.nodes {
            let session = Session { from: Time::ZERO, to: Time::ZERO + scenario.horizon };
            let visits = visits(&scenario, host, &[session]);
            let is_ordered = visits.windows(2).all(|two| two[0].to < two[1].from);
            assert!(is_ordered && visits.iter().all(|visit| visit.from < visit.to && visit.to <= session.to));
            there_s += visits.iter().map(|visit| visit.to.since(visit.from).as_secs_f64()).sum::<f64>();
            expected_s += (1.0 - Owner::new(&scenario, host).share_away()) * scenario.horizon.as_secs_f64();
        }
        assert!((there_s / expected_s - 1.0).abs() < 0.02, "{there_s} instead of {expected_s}");
    }
}
