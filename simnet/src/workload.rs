//! The paper's load (Celaya and Marchal 2010, §7): bags of identical tasks that arrive at random machines.
//!
//! Bags arrive as a Poisson process; each has a number of tasks in proportion to the number of machines and tasks of
//! a log-uniform length. On demand the number of tasks is log-uniform, too: the heavy tail of production grids.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::BagId;
use rand::RngExt;

use crate::random::{SmallStream, digest, exponential, log_uniform, stream};
use crate::scenario::Scenario;

/// A bag to come.
#[derive(Clone, Debug, PartialEq)]
pub struct Bag {
    /// Its identity.
    pub id: BagId,
    /// When it is submitted.
    pub arrival: Time,
    /// n.
    pub tasks: u64,
    /// a, in Mop.
    pub task_mops: f64,
}

impl Bag {
    /// The paper's application size w = n·a, in Mop.
    pub fn application_size_mops(&self) -> f64 {
        self.tasks as f64 * self.task_mops
    }
}

/// All bags of a run, in the order of their arrival.
pub fn bags(scenario: &Scenario) -> Vec<Bag> {
    let mut rng = stream(scenario.seed, "workload", 0);
    let interval = u64::try_from(scenario.bag_interval.as_micros()).unwrap_or(u64::MAX);
    let usual = u64::from(scenario.nodes) * scenario.tasks_per_node;
    let spread = usual * scenario.tasks_spread_percent / 100;
    let mut arrival = scenario.first_arrival();
    (0..scenario.bags)
        .map(|number| {
            arrival += Duration::from_micros(exponential(&mut rng, interval));
            Bag {
                id: BagId(digest(scenario.seed, "bag", u64::from(number))),
                arrival,
                tasks: if scenario.heavy_tailed {
                    (log_uniform(&mut rng, 1.0, usual as f64).round() as u64).max(1)
                } else {
                    rng.random_range(usual - spread..=usual + spread).max(1)
                },
                task_mops: log_uniform(&mut rng, scenario.task_mops_min, scenario.task_mops_max),
            }
        })
        .collect()
}

/// When machines are switched on for the first time, the first one at the beginning: ten a second until there are as
/// many as then double in 16 s, then so many more, each in its own moment of its turn.
pub fn starts(scenario: &Scenario) -> impl Iterator<Item = (u32, Time)> {
    let mut rng = SmallStream::new(scenario.seed, "start", 0);
    (0..scenario.nodes).map(move |host| {
        let (from, to) = (scenario.start_turn(host), scenario.start_turn(host + 1));
        let within = if host == 0 { 0 } else { rng.random_range(0..(to - from).as_micros().max(1) as u64) };
        (host, Time::ZERO + from + Duration::from_micros(within))
    })
}

/// The speed of machine number `host`, in Mop/s per slot.
pub fn speed_mops(scenario: &Scenario, host: u32) -> f64 {
    let steps = (scenario.speed_mops_max - scenario.speed_mops_min) / scenario.speed_mops_step;
    let step = stream(scenario.seed, "speed", u64::from(host)).random_range(0..=steps);
    (scenario.speed_mops_min + step * scenario.speed_mops_step) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_load() {
        let scenario = Scenario { nodes: 50, bags: 2000, ..Scenario::default() };
        let bags = bags(&scenario);
        assert!(bags.iter().all(|bag| (400..=600).contains(&bag.tasks)));
        assert!(bags.iter().all(|bag| (30_000.0..=240_000.0).contains(&bag.task_mops)));
        let first = bags[0].arrival;
        let mean = bags[1999].arrival.since(first).as_secs_f64() / 1999.0;
        assert!((9.0..11.0).contains(&mean), "{mean}");
        let speeds: std::collections::BTreeSet<u64> = (0..500).map(|host| speed_mops(&scenario, host) as u64).collect();
        assert_eq!(speeds.into_iter().collect::<Vec<_>>(), (1000..=3000).step_by(200).collect::<Vec<u64>>());
    }
}
