//! Validation of a scenario: the simulator can do what each number says, each setting that reads a file has one, and
//! each file that is named is read.
//!
//! A refusal is a sentence that begins with the name of the field, or of the field's flag. By that name
//! [`Scenario::parse`] finds the field's line in the scenario's file.

use std::ops::RangeInclusive;
use std::time::Duration;

use idlewood_scheduler::{WEIGHT_MAX, WEIGHT_MIN};

use super::Scenario;
use super::choices::{Equipment, Latencies, Owners, Sessions, Workload};

const SECOND: Duration = Duration::from_secs(1);
/// Longest duration of a simulation, and of anything in it.
pub(crate) const HORIZON_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Most tasks of a simulation: each takes twelve bytes of the record.
pub(crate) const TASKS_MAX: u64 = 500_000_000;
const PERCENT: RangeInclusive<f64> = 0.0..=100.0;

fn check(valid: bool, sentence: &str) -> Result<(), String> {
    if valid { Ok(()) } else { Err(sentence.to_owned()) }
}

fn is_at_least_a_second(time: Duration) -> bool {
    (SECOND..=HORIZON_MAX).contains(&time)
}

impl Scenario {
    /// Refuses a scenario that cannot be run.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        self.check_machines()?;
        self.check_presence()?;
        self.check_links()?;
        self.check_bags()?;
        self.check_given()?;
        self.check_user()?;
        self.check_misfortunes()?;
        self.check_files_are_there()?;
        self.check_files_are_read()?;
        self.peer.validate()
    }

    /// How many machines there are, what they are like, and how long the simulation lasts.
    fn check_machines(&self) -> Result<(), String> {
        check((1..=1_000_000).contains(&self.nodes), "nodes must be between 1 and 1000000")?;
        check(PERCENT.contains(&self.liars_percent), "liars_percent must be between 0 and 100")?;
        check(PERCENT.contains(&self.choosy_percent), "choosy_percent must be between 0 and 100")?;
        check(PERCENT.contains(&self.slowed_percent), "slowed_percent must be between 0 and 100")?;
        check(PERCENT.contains(&self.bad_routers_percent), "bad_routers_percent must be between 0 and 100")?;
        check(PERCENT.contains(&self.flawed_percent), "flawed_percent must be between 0 and 100")?;
        check(
            self.speed_mops_min >= 1
                && self.speed_mops_max >= self.speed_mops_min
                && self.speed_mops_max <= 1_000_000_000
                && self.speed_mops_step >= 1,
            "speed_mops_min must be at least 1, speed_mops_max at least that and at most 1000000000, speed_mops_step at least 1",
        )?;
        check(
            self.speed_mops_median >= 1.0 && self.speed_mops_median <= 1e9,
            "speed_mops_median must be between 1 and 1e9",
        )?;
        check((1..=1024).contains(&self.slots), "slots must be between 1 and 1024")?;
        check(self.persist <= HORIZON_MAX, "persist must be at most 366d")?;
        check(self.warm_up <= HORIZON_MAX, "warm_up must be at most 366d")?;
        check(is_at_least_a_second(self.horizon), "horizon must be between 1s and 366d")
    }

    /// When machines are up, and when their owners are there.
    fn check_presence(&self) -> Result<(), String> {
        check(self.churn.is_none_or(is_at_least_a_second), "churn must be none or a mean session between 1s and 366d")?;
        check(self.downtime <= HORIZON_MAX, "downtime must be at most 366d")?;
        check(PERCENT.contains(&self.leave_percent), "leave_percent must be between 0 and 100")?;
        check(PERCENT.contains(&self.steady_percent), "steady_percent must be between 0 and 100")?;
        check(
            self.owner_session.is_none_or(is_at_least_a_second),
            "owner_session must be none or a mean time between 1s and 366d",
        )?;
        check(is_at_least_a_second(self.owner_away), "owner_away must be between 1s and 366d")?;
        check(self.owner_idle <= Duration::from_secs(24 * 3600), "owner_idle must be at most 1d")?;
        check(self.owner_percent <= 100, "owner_percent must be at most 100")
    }

    fn check_links(&self) -> Result<(), String> {
        check((0.0..100.0).contains(&self.loss_percent), "loss must be at least 0 and below 100 percent")?;
        check(self.latency_ms <= 60_000, "latency-ms must be at most 60000")?;
        check(self.jitter_percent <= 100, "jitter_percent must be at most 100")?;
        check(PERCENT.contains(&self.duplicate_percent), "duplicate_percent must be between 0 and 100")?;
        check(PERCENT.contains(&self.reorder_percent), "reorder_percent must be between 0 and 100")?;
        check(self.reorder_ms <= 60_000, "reorder_ms must be at most 60000")?;
        check(self.bandwidth_bytes_s >= 1, "bandwidth_bytes_s must be at least 1")?;
        check(self.overhead_bytes <= 10_000, "overhead_bytes must be at most 10000")?;
        check(self.answer_bytes <= 10_000, "answer_bytes must be at most 10000")?;
        check(self.connect_round_trips <= 20, "connect_round_trips must be at most 20")?;
        check(self.connect_bytes <= 100_000, "connect_bytes must be at most 100000")?;
        check(self.message_us <= 1_000_000, "message_us must be at most 1000000")?;
        check(self.data_queue <= Duration::from_secs(10), "data_queue must be at most 10s")
    }

    /// What bags are like, and how many machines run each task.
    fn check_bags(&self) -> Result<(), String> {
        check(self.bags <= 1_000_000, "bags must be at most 1000000")?;
        check(
            self.replication().is_valid(),
            "quorum must be at least 2 and at most replicas, and these at most 8; without replicas both are 1",
        )?;
        check(
            u64::from(self.replicas) <= u64::from(self.nodes),
            "replicas must be at most nodes: each runs on a machine of its own",
        )?;
        check((1..=1_000_000).contains(&self.tasks_per_node), "tasks-per-node must be between 1 and 1000000")?;
        check(self.tasks_spread_percent <= 100, "tasks_spread_percent must be at most 100")?;
        check(
            self.task_mops_min >= 1e-3 && self.task_mops_max >= self.task_mops_min && self.task_mops_max <= 1e9,
            "task_mops_min must be at least 0.001, and task_mops_max at least that and at most 1e9",
        )?;
        check((0.0..=10.0).contains(&self.task_cv), "task_cv must be between 0 and 10")?;
        check(self.output_bytes <= 1 << 40, "output_bytes must be at most 1099511627776")?;
        check((1..=1 << 20).contains(&self.envelope_bytes), "envelope_bytes must be between 1 and 1048576")?;
        check((1..=1 << 40).contains(&self.manifest_bytes), "manifest_bytes must be between 1 and 1099511627776")?;
        check(self.program_bytes <= 1 << 40, "program_bytes must be at most 1099511627776")?;
        check(self.input_bytes <= 1 << 40, "input_bytes must be at most 1099511627776")?;
        check((1..=256).contains(&self.programs), "programs must be between 1 and 256")?;
        check(self.program_start <= Duration::from_secs(60), "program_start must be at most 60s")?;
        check(self.bag_interval <= HORIZON_MAX, "bag_interval must be at most 366d")?;
        check(
            self.load.is_none_or(|load| (1e-6..=10.0).contains(&load)),
            "load must be none or between 0.000001 and 10",
        )?;
        let tasks = u64::from(self.bags).saturating_mul(u64::from(self.nodes)).saturating_mul(self.tasks_per_node);
        check(
            self.workload != Workload::Paper || tasks <= TASKS_MAX,
            &format!("bags by nodes by tasks-per-node are {tasks} tasks: give fewer, at most {TASKS_MAX} in all"),
        )
    }

    /// Machines and bags that are given one by one.
    fn check_given(&self) -> Result<(), String> {
        let is_given = self.workload == Workload::Given;
        check(
            is_given != self.given_bags.is_empty(),
            "given_bags are read with workload = \"given\", which needs at least one: set both, or neither",
        )?;
        check(
            self.given_bags.is_sorted_by_key(|bag| bag.at),
            "given_bags must be in the order of their times: sort them by at",
        )?;
        for bag in &self.given_bags {
            check(bag.submitter < self.nodes, "given_bags must have a submitter below nodes: machines count from 0")?;
            check(
                bag.endless.is_some() || (1..=TASKS_MAX).contains(&bag.tasks),
                "given_bags must have at least one task each: set tasks, or endless = {}",
            )?;
            check(
                bag.endless.is_none() || bag.tasks == 0,
                "given_bags that are endless have no tasks: leave tasks out",
            )?;
            check(
                bag.endless.is_none_or(|endless| {
                    let percents = [endless.announces_mops_percent, endless.announces_bytes_percent];
                    (WEIGHT_MIN..=WEIGHT_MAX).contains(&endless.weight)
                        && percents.into_iter().all(|percent| (0.0..=1e4).contains(&percent))
                        && endless.announces_mops_percent > 0.0
                }),
                "given_bags that are endless must have a weight between 0.001 and 1000, and announce up to 10000 percent",
            )?;
            check((1e-3..=1e9).contains(&bag.task_mops), "given_bags must have task_mops between 0.001 and 1e9")?;
            let are_sane = bag.rounds.as_ref().is_none_or(|rounds| rounds.is_valid(bag.tasks));
            check(
                are_sane,
                "given_bags with rounds need work between 0.001 and 1e9 Mop of at least one class and of merges, and as many tasks as the \
                 rounds make: processes and one merge a round, or, asynchronous, a merge for each process and round but the last, and one",
            )?;
            check(bag.at <= HORIZON_MAX, "given_bags must arrive within 366d")?;
        }
        for (place, machine) in self.given_machines.iter().enumerate() {
            let is_new = self.given_machines[..place].iter().all(|before| before.number != machine.number);
            check(
                is_new && machine.number < self.nodes,
                "given_machines must each have a number of its own below nodes",
            )?;
            check(
                machine.speed_mops.is_none_or(|speed| (1.0..=1e9).contains(&speed))
                    && machine.up_bytes_s.is_none_or(|rate| rate >= 1)
                    && machine.down_bytes_s.is_none_or(|rate| rate >= 1),
                "given_machines must have a speed between 1 and 1e9, and links of at least 1 byte a second",
            )?;
        }
        Ok(())
    }

    /// The user who has a share of all bags.
    fn check_user(&self) -> Result<(), String> {
        check(PERCENT.contains(&self.user_percent), "user_percent must be between 0 and 100")?;
        check((1..=10_000).contains(&self.user_splits_into), "user_splits_into must be between 1 and 10000")?;
        check(
            self.user_declares_percent > 0.0 && self.user_declares_percent <= 1e4,
            "user_declares_percent must be above 0 and at most 10000",
        )
    }

    /// Checkpoints, and failures of tasks and of fetches.
    fn check_misfortunes(&self) -> Result<(), String> {
        check(
            self.checkpoint_interval.is_none_or(is_at_least_a_second),
            "checkpoint_interval must be none or between 1s and 366d",
        )?;
        check(PERCENT.contains(&self.fails_percent), "fails_percent must be between 0 and 100")?;
        check(PERCENT.contains(&self.crashes_percent), "crashes_percent must be between 0 and 100")?;
        check(
            self.fails_percent + self.crashes_percent <= 100.0,
            "fails_percent and crashes_percent must be at most 100 together: a try that crashes is none that fails",
        )?;
        check(
            (0.0..100.0).contains(&self.unfetched_percent),
            "unfetched_percent must be at least 0 and below 100: an output that never comes is never there",
        )
    }

    /// Every setting that reads a file has one.
    fn check_files_are_there(&self) -> Result<(), String> {
        check(
            self.sessions != Sessions::Trace || self.sessions_file.is_some(),
            "sessions_file must name a trace where sessions are those of a trace",
        )?;
        check(
            self.latencies != Latencies::Matrix || self.latency_file.is_some(),
            "latency_file must name a matrix where latencies are those of a matrix",
        )?;
        check(
            self.workload != Workload::Log || self.log_file.is_some(),
            "log_file must name a log where the workload is that of a log",
        )?;
        check(
            self.workload != Workload::Workflows || !self.workflow_files.is_empty(),
            "workflow_files must name at least one workflow where the workload is that of workflows",
        )?;
        check(
            self.workload != Workload::Distributions || self.tasks_file.is_some() && self.lengths_file.is_some(),
            "tasks_file and lengths_file must name distributions where the workload is that of distributions",
        )?;
        check(
            self.owners != Owners::Load || self.owner_file.is_some(),
            "owner_file must name loads of processors where owners are there by load",
        )?;
        check(
            self.cores != Equipment::Survey || self.cores_file.is_some(),
            "cores_file must name a survey where cores are those of a survey",
        )?;
        check(
            self.bandwidths != Equipment::Survey || self.bandwidths_file.is_some(),
            "bandwidths_file must name an index where bandwidths are those of a survey",
        )
    }

    /// Every file that is named is read.
    fn check_files_are_read(&self) -> Result<(), String> {
        let is_matrix = self.latencies == Latencies::Matrix;
        let are_surveyed = self.bandwidths == Equipment::Survey;
        let are_workflows = self.workload == Workload::Workflows;
        let is_distributed = self.workload == Workload::Distributions;
        for (is_named, is_read, file, instead) in [
            (self.sessions_file.is_some(), self.sessions == Sessions::Trace, "sessions_file", "sessions = \"trace\""),
            (self.owner_file.is_some(), self.owners == Owners::Load, "owner_file", "owners = \"load\""),
            (self.latency_file.is_some(), is_matrix, "latency_file", "latencies = \"matrix\""),
            (self.cores_file.is_some(), self.cores == Equipment::Survey, "cores_file", "cores = \"survey\""),
            (self.bandwidths_file.is_some(), are_surveyed, "bandwidths_file", "bandwidths = \"survey\""),
            (self.log_file.is_some(), self.workload == Workload::Log, "log_file", "workload = \"log\""),
            (self.log_anywhere, self.workload == Workload::Log, "log_anywhere", "workload = \"log\""),
            (!self.workflow_files.is_empty(), are_workflows, "workflow_files", "workload = \"workflows\""),
            (self.tasks_file.is_some(), is_distributed, "tasks_file", "workload = \"distributions\""),
            (self.lengths_file.is_some(), is_distributed, "lengths_file", "workload = \"distributions\""),
            (self.intervals_file.is_some(), is_distributed, "intervals_file", "workload = \"distributions\""),
        ] {
            check(
                !is_named || is_read,
                &format!("{file} is read only with {instead}: set that, or leave the file out"),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{GivenBag, GivenEndless, GivenMachine};
    use super::*;

    #[test]
    fn the_default_is_valid_and_each_refusal_names_the_field() {
        assert_eq!(Scenario::default().validate(), Ok(()));
        let refused = |scenario: Scenario, name: &str| {
            let sentence = scenario.validate().unwrap_err();
            assert!(sentence.contains(name), "{sentence}");
        };
        refused(Scenario { nodes: 0, ..Scenario::default() }, "nodes");
        refused(Scenario { loss_percent: 100.0, ..Scenario::default() }, "loss");
        refused(Scenario { loss_percent: f64::NAN, ..Scenario::default() }, "loss");
        refused(Scenario { churn: Some(Duration::from_millis(3)), ..Scenario::default() }, "churn");
        refused(Scenario { speed_mops_max: u64::MAX, ..Scenario::default() }, "speed_mops_max");
        refused(Scenario { manifest_bytes: 0, ..Scenario::default() }, "manifest_bytes");
        refused(Scenario { program_bytes: u64::MAX, ..Scenario::default() }, "program_bytes");
        refused(Scenario { answer_bytes: 10_001, ..Scenario::default() }, "answer_bytes");
        refused(Scenario { connect_round_trips: 21, ..Scenario::default() }, "connect_round_trips");
        refused(Scenario { connect_bytes: 100_001, ..Scenario::default() }, "connect_bytes");
        refused(Scenario { message_us: 1_000_001, ..Scenario::default() }, "message_us");
        refused(Scenario { data_queue: Duration::MAX, ..Scenario::default() }, "data_queue");
        refused(Scenario { output_bytes: u64::MAX, ..Scenario::default() }, "output_bytes");
        refused(Scenario { warm_up: Duration::MAX, ..Scenario::default() }, "warm_up");
        refused(Scenario { nodes: 4, replicas: 8, quorum: 8, ..Scenario::default() }, "replicas must be at most nodes");
        refused(Scenario { replicas: 3, ..Scenario::default() }, "quorum must be at least 2");
        refused(Scenario { bags: 1_000_000, ..Scenario::default() }, "bags by nodes by tasks-per-node are 1000000000");
        refused(Scenario { slots: 0, ..Scenario::default() }, "slots");
        refused(Scenario { fails_percent: -1.0, ..Scenario::default() }, "fails_percent");
        refused(Scenario { crashes_percent: f64::NAN, ..Scenario::default() }, "crashes_percent");
        let (fails_percent, crashes_percent) = (60.0, 60.0);
        refused(Scenario { fails_percent, crashes_percent, ..Scenario::default() }, "at most 100 together");
        refused(Scenario { unfetched_percent: 100.0, ..Scenario::default() }, "unfetched_percent");
        refused(Scenario { load: Some(0.0), ..Scenario::default() }, "load");
        refused(Scenario { workload: Workload::Log, ..Scenario::default() }, "log_file");
        refused(Scenario { workload: Workload::Workflows, ..Scenario::default() }, "workflow_files");
        let tasks_file = Some(PathBuf::from("tasks"));
        refused(Scenario { workload: Workload::Distributions, tasks_file, ..Scenario::default() }, "lengths_file");
        refused(Scenario { owners: Owners::Load, ..Scenario::default() }, "owner_file");
        refused(Scenario { owner_percent: 101, ..Scenario::default() }, "owner_percent");
        refused(Scenario { cores: Equipment::Survey, ..Scenario::default() }, "cores_file");
        let file = || Some(PathBuf::from("trace.txt"));
        refused(Scenario { sessions_file: file(), ..Scenario::default() }, "sessions_file is read only with");
        refused(Scenario { log_file: file(), ..Scenario::default() }, "log_file is read only with workload");
        refused(Scenario { bandwidths: Equipment::Survey, ..Scenario::default() }, "bandwidths_file");
        let bag = |at_s, submitter| GivenBag {
            at: Duration::from_secs(at_s),
            submitter,
            tasks: 1,
            task_mops: 1.0,
            output_bytes: None,
            rounds: None,
            endless: None,
        };
        let given = |given_bags| Scenario { workload: Workload::Given, given_bags, ..Scenario::default() };
        assert_eq!(given(vec![bag(0, 0), bag(3, 99)]).validate(), Ok(()));
        refused(given(vec![]), "needs at least one");
        refused(Scenario { workload: Workload::Paper, ..given(vec![bag(0, 0)]) }, "set both, or neither");
        refused(given(vec![bag(3, 0), bag(0, 0)]), "sort them by at");
        refused(given(vec![bag(0, 100)]), "submitter below nodes");
        let endless = |endless| GivenBag { tasks: 0, endless, ..bag(0, 0) };
        let of_weight = |weight| endless(Some(GivenEndless { weight, ..GivenEndless::default() }));
        assert_eq!(given(vec![of_weight(2.0)]).validate(), Ok(()));
        refused(given(vec![endless(None)]), "set tasks, or endless");
        refused(given(vec![GivenBag { tasks: 1, ..of_weight(1.0) }]), "leave tasks out");
        refused(given(vec![of_weight(0.0)]), "weight between 0.001 and 1000");
        let machine = |number| GivenMachine { down_bytes_s: Some(1), ..GivenMachine::of(number) };
        let given = |numbers: &[u32]| Scenario {
            given_machines: numbers.iter().map(|number| machine(*number)).collect(),
            ..Scenario::default()
        };
        assert_eq!(given(&[0, 99]).validate(), Ok(()));
        refused(given(&[100]), "below nodes");
        refused(given(&[1, 1]), "number of its own");
    }
}
