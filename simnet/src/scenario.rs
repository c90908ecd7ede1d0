//! Everything that defines a run. The same scenario gives the same trace.

use std::time::Duration;

use idlewood_overlay::Time;
use serde::Serialize;
use serde::ser::SerializeMap;

use crate::network::Quality;
use crate::random::ln;

/// Machines are switched on at first one in this time each, as before the grid could double in [`START_DOUBLING`].
const START_INTERVAL: Duration = Duration::from_millis(100);
/// Later the grid doubles in this time: our choice, some times what a join takes.
const START_DOUBLING: Duration = Duration::from_secs(16);

/// Parameters of one run, with their defaults and where those come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// Machines, 1 to 1,000,000. Default 100: our choice.
    pub nodes: u32,
    /// Bags submitted, at most 1,000,000. Default 20: our choice.
    pub bags: u32,
    /// Mean session of a machine, at least 1 s; none: machines stay up. Default none, as in the paper's first case; its
    /// other one is 4 h.
    #[serde(rename = "churn_s", serialize_with = "optional_seconds")]
    pub churn: Option<Duration>,
    /// Mean time a machine stays down; 0: a failure is a restart, as in the paper. No machine comes back sooner than the
    /// shortest latency. Default 10 min: our choice; desktops stay away for hours (median 1.4 h), which only leaves less
    /// to simulate.
    #[serde(rename = "downtime_s", serialize_with = "seconds")]
    pub downtime: Duration,
    /// Whether a failure resets what the machine held for others, queue and finished results, as in the paper; bags that
    /// were submitted from it stay. Default false: all that is durable stays, as in the agent.
    pub queue_lost: bool,
    /// Share of sessions that end with a farewell instead of a crash, in percent. Default 0: the harder case.
    pub leave_percent: f64,
    /// Seed of all randomness.
    pub seed: u64,
    /// Messages lost, in percent, below 100. Default 0, as in the paper.
    pub loss_percent: f64,
    /// One way, at most 60,000 ms. Default 50, the paper's.
    pub latency_ms: u64,
    /// Spread of the latency, ± percent, at most 100. Default 10: our choice, so that messages overtake each other.
    pub jitter_percent: u64,
    /// Messages that arrive twice, in percent, at most 100. Default 0, as in the paper.
    pub duplicate_percent: f64,
    /// Messages held back for up to `reorder_ms`, in percent, at most 100. Default 0: the jitter reorders enough.
    pub reorder_percent: f64,
    /// At most 60,000 ms. Default 1,000: our choice.
    pub reorder_ms: u64,
    /// Of each uplink and of each downlink, at least 1 B/s. Default 125,000: the paper's 1 Mb/s.
    pub bandwidth_bytes_s: u64,
    /// Bytes that a message takes on links beside its own, at most 10,000. Default 0, as the paper counts.
    pub overhead_bytes: u64,
    /// Size of a task's output. Default 1,000: our choice, so that the paper's links do not delay what the paper does not
    /// count (a thousand of its machines end 20 tasks a second, and one link takes 125 such outputs).
    pub output_bytes: u64,
    /// Outputs that a submitter fetches at the same time, at least 1. Default 256: our choice; at 100 ms each way and back
    /// that is 2,560 a second, what 10^5 of the paper's machines end.
    pub fetches_max: u32,
    /// Time that one durable write takes; a disk does one at a time. Default 5 ms: our guess of an fsync.
    #[serde(rename = "persist_s", serialize_with = "seconds")]
    pub persist: Duration,
    /// Tasks of a usual bag per machine, at least 1. Default 10, the paper's.
    pub tasks_per_node: u64,
    /// Spread of the number of tasks, ± percent, at most 100. Default 20, the paper's.
    pub tasks_spread_percent: u64,
    /// Whether the number of tasks is log-uniform between 1 and that of a usual bag instead, as production grids see
    /// it. Default false.
    pub heavy_tailed: bool,
    /// Mean time between two bags. Default 10 s, the paper's.
    #[serde(rename = "bag_interval_s", serialize_with = "seconds")]
    pub bag_interval: Duration,
    /// Shortest task, in Mop, above 0. Default 30,000, the paper's.
    pub task_mops_min: f64,
    /// Longest task, in Mop. Default 240,000, the paper's.
    pub task_mops_max: f64,
    /// Whether submitters say how much work a task is, or have it measured. Default true, as in the paper.
    pub declared: bool,
    /// Slowest machine, in Mop/s per slot, at least 1. Default 1,000, the paper's.
    pub speed_mops_min: u64,
    /// Fastest machine, in Mop/s per slot. Default 3,000, the paper's.
    pub speed_mops_max: u64,
    /// Step between speeds, in Mop/s. Default 200, the paper's.
    pub speed_mops_step: u64,
    /// Tasks that a machine runs at the same time, 1 to 1024. Default 1, as in the paper.
    pub slots: u32,
    /// Time between the start of the last machine and the first moment a bag can arrive. Default 30 s: our choice,
    /// several heartbeats.
    #[serde(rename = "warm_up_s", serialize_with = "seconds")]
    pub warm_up: Duration,
    /// When the run ends at the latest, in simulated time. Default 30 days: our choice, never reached in good order.
    #[serde(rename = "horizon_s", serialize_with = "seconds")]
    pub horizon: Duration,
    /// Settings of the peers; `slots`, `speed_mops` and `expects_grid` are overwritten for each
    /// machine.
    #[serde(rename = "policy", serialize_with = "policy")]
    pub peer: idlewood_scheduler::Config,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            nodes: 100,
            bags: 20,
            churn: None,
            downtime: Duration::from_secs(600),
            queue_lost: false,
            leave_percent: 0.0,
            seed: 1,
            loss_percent: 0.0,
            latency_ms: 50,
            jitter_percent: 10,
            duplicate_percent: 0.0,
            reorder_percent: 0.0,
            reorder_ms: 1_000,
            bandwidth_bytes_s: 125_000,
            overhead_bytes: 0,
            output_bytes: 1_000,
            fetches_max: 256,
            persist: Duration::from_millis(5),
            tasks_per_node: 10,
            tasks_spread_percent: 20,
            heavy_tailed: false,
            bag_interval: Duration::from_secs(10),
            task_mops_min: 30_000.0,
            task_mops_max: 240_000.0,
            declared: true,
            speed_mops_min: 1_000,
            speed_mops_max: 3_000,
            speed_mops_step: 200,
            slots: 1,
            warm_up: Duration::from_secs(30),
            horizon: Duration::from_secs(30 * 24 * 3600),
            peer: idlewood_scheduler::Config::default(),
        }
    }
}

impl Scenario {
    /// Refuses nonsense.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        let check = |valid: bool, sentence: &str| if valid { Ok(()) } else { Err(sentence.to_owned()) };
        let second = Duration::from_secs(1);
        let year = Duration::from_secs(366 * 24 * 3600);
        check((1..=1_000_000).contains(&self.nodes), "nodes must be between 1 and 1000000")?;
        check(self.bags <= 1_000_000, "bags must be at most 1000000")?;
        check(
            self.churn.is_none_or(|session| (second..=year).contains(&session)),
            "churn must be none or a mean session between 1s and 366d",
        )?;
        check(self.downtime <= year, "downtime must be at most 366d")?;
        check((0.0..=100.0).contains(&self.leave_percent), "leave_percent must be between 0 and 100")?;
        check((0.0..100.0).contains(&self.loss_percent), "loss must be at least 0 and below 100 percent")?;
        check(self.latency_ms <= 60_000, "latency-ms must be at most 60000")?;
        check(self.jitter_percent <= 100, "jitter_percent must be at most 100")?;
        check((0.0..=100.0).contains(&self.duplicate_percent), "duplicate_percent must be between 0 and 100")?;
        check((0.0..=100.0).contains(&self.reorder_percent), "reorder_percent must be between 0 and 100")?;
        check(self.reorder_ms <= 60_000, "reorder_ms must be at most 60000")?;
        check(self.bandwidth_bytes_s >= 1, "bandwidth_bytes_s must be at least 1")?;
        check(self.overhead_bytes <= 10_000, "overhead_bytes must be at most 10000")?;
        check(self.fetches_max >= 1, "fetches_max must be at least 1")?;
        check((1..=1_000_000).contains(&self.tasks_per_node), "tasks-per-node must be between 1 and 1000000")?;
        check(self.tasks_spread_percent <= 100, "tasks_spread_percent must be at most 100")?;
        check(
            self.task_mops_min >= 1e-3 && self.task_mops_max >= self.task_mops_min && self.task_mops_max <= 1e9,
            "task_mops_min must be at least 0.001, and task_mops_max at least that and at most 1e9",
        )?;
        check(
            self.speed_mops_min >= 1 && self.speed_mops_max >= self.speed_mops_min && self.speed_mops_step >= 1,
            "speed_mops_min must be at least 1, speed_mops_max at least that, speed_mops_step at least 1",
        )?;
        check((1..=1024).contains(&self.slots), "slots must be between 1 and 1024")?;
        check((second..=year).contains(&self.horizon), "horizon must be between 1s and 366d")?;
        self.peer.validate()
    }

    /// How its links behave.
    pub fn quality(&self) -> Quality {
        let latency_us = self.latency_ms * 1000;
        Quality {
            latency_us,
            jitter_us: latency_us * self.jitter_percent / 100,
            loss_percent: self.loss_percent,
            duplicate_percent: self.duplicate_percent,
            reorder_percent: self.reorder_percent,
            reorder_us: self.reorder_ms * 1000,
        }
    }

    /// When the turn of a machine to be switched on begins, after the start of the run.
    pub(crate) fn start_turn(&self, host: u32) -> Duration {
        let each = START_INTERVAL.as_secs_f64();
        let linear = START_DOUBLING.as_secs_f64() / each / std::f64::consts::LN_2;
        let host = f64::from(host);
        Duration::from_secs_f64(if host <= linear { host * each } else { linear * each * (1.0 + ln(host / linear)) })
    }

    /// Machines start within this time.
    pub fn start_window(&self) -> Duration {
        self.start_turn(self.nodes).max(Duration::from_secs(1))
    }

    /// The first moment at which a bag can arrive.
    pub fn first_arrival(&self) -> Time {
        Time::ZERO + self.start_window() + self.warm_up
    }
}

/// Of the peers' settings, those that decide the order of work.
fn policy<S: serde::Serializer>(peer: &idlewood_scheduler::Config, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(5))?;
    map.serialize_entry("preemptive", &peer.preemptive)?;
    map.serialize_entry("frozen_max", &peer.frozen_max)?;
    map.serialize_entry("lexicographic", &peer.lexicographic)?;
    map.serialize_entry("effective_size", &peer.effective_size)?;
    map.serialize_entry("stretch_bound", &peer.stretch_bound)?;
    map.end()
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

fn optional_seconds<S: serde::Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration.map(|duration| duration.as_secs_f64()).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_nonsense_is_refused_by_name() {
        assert_eq!(Scenario::default().validate(), Ok(()));
        let refused = |scenario: Scenario, name: &str| {
            let sentence = scenario.validate().unwrap_err();
            assert!(sentence.contains(name), "{sentence}");
        };
        refused(Scenario { nodes: 0, ..Scenario::default() }, "nodes");
        refused(Scenario { loss_percent: 100.0, ..Scenario::default() }, "loss");
        refused(Scenario { loss_percent: f64::NAN, ..Scenario::default() }, "loss");
        refused(Scenario { churn: Some(Duration::from_millis(3)), ..Scenario::default() }, "churn");
        refused(Scenario { slots: 0, ..Scenario::default() }, "slots");
    }
}
