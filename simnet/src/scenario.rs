//! Everything that defines a simulation. The same scenario gives the same trace.
//!
//! A scenario can be read from a TOML file ([`Scenario::read`]); settings missing there have their defaults.
//! `scenarios/default.toml` has all settings, with what they mean.

mod choices;
mod duration;
mod given;
mod inputs;
mod policy;
mod shipped;
mod unread;
mod valid;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::policy::OwnerSettings;
use idlewood_overlay::Time;
use idlewood_scheduler::Replication;
use serde::{Deserialize, Serialize};

pub use self::choices::{BadRouting, Equipment, Flaw, Latencies, Owners, Sessions, Speeds, Workload};
pub use self::duration::parse_duration;
use self::duration::{from_text, optional_from_text, optional_seconds, seconds};
pub use self::given::{GivenBag, GivenEndless, GivenMachine, GivenRounds};
pub use self::inputs::Inputs;
pub(crate) use self::inputs::loaded;
pub use self::policy::{papers_links, papers_scheme};
pub(crate) use self::valid::{HORIZON_MAX, TASKS_MAX};
use crate::availability::Availability;
use crate::distribution::Distribution;
use crate::input::shortened;
use crate::latency::matrix::Matrix;
use crate::log;
use crate::processor_load::ProcessorLoad;
use crate::quality::Quality;
use crate::random::ln;
use crate::survey::{Bandwidths, Cores};
use crate::workflow;

/// The file that has every default and its source: what `simnet run --print-scenario` prints.
pub const DEFAULTS: &str = include_str!("../scenarios/default.toml");

/// At first machines are switched on one by one at this interval, until the grid doubles in [`START_DOUBLING`].
const START_INTERVAL: Duration = Duration::from_millis(100);
/// Later the grid doubles in this time: our choice, a few times the duration of a join.
const START_DOUBLING: Duration = Duration::from_secs(16);

/// Parameters of one simulation, with their defaults and where those come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Machines, 1 to 1,000,000. Default 100: our choice.
    pub nodes: u32,
    /// Bags submitted, at most 1,000,000. Default 20: our choice.
    pub bags: u32,
    /// Mean session of a machine, at least 1 s; none: machines stay up. Default none, as in the paper's first case; its
    /// other one is 4 h.
    #[serde(
        rename(serialize = "churn_s"),
        serialize_with = "optional_seconds",
        deserialize_with = "optional_from_text"
    )]
    pub churn: Option<Duration>,
    /// Mean time a machine stays down; 0: a failure is a restart, as in the paper. No machine comes back sooner than the
    /// shortest latency. Default 10 min: our choice; desktops stay away for hours (median 1.4 h), which only leaves less
    /// to simulate.
    #[serde(rename(serialize = "downtime_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub downtime: Duration,
    /// How long machines are up and down: exponentially with the two means above, as in the paper, or as desktops,
    /// servers, or the machines of a trace are. Default exponential, the paper's.
    pub sessions: Sessions,
    /// When real machines were up: `event_trace.tab` of the Failure Trace Archive, or spot instances as JSON.
    pub sessions_file: Option<PathBuf>,
    /// When owners are at their machines: exponentially with the two means below, or while real machines were busy. Default
    /// exponential: our guess.
    pub owners: Owners,
    /// Loads of processors every five minutes of a day, as from CoMon.
    pub owner_file: Option<PathBuf>,
    /// The owner is there while that load is above so many percent, at most 100. Default 25: our choice; of the values from
    /// PlanetLab 12 and 16 percent are, on two days.
    pub owner_percent: u8,
    /// Mean time that the owner stays at a machine, at least 1 s; none: owners are always away. Default none, as in the
    /// paper.
    #[serde(
        rename(serialize = "owner_session_s"),
        serialize_with = "optional_seconds",
        deserialize_with = "optional_from_text"
    )]
    pub owner_session: Option<Duration>,
    /// Mean time that the owner is away from a machine that is up, at least 1 s. Default 2 h: our guess.
    #[serde(rename(serialize = "owner_away_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub owner_away: Duration,
    /// How long after their last input the owner counts as present, by the machine's settings, at most one day. Default 5 min: the
    /// agent's.
    #[serde(rename(serialize = "owner_idle_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub owner_idle: Duration,
    /// Whether a failure loses what the machine held for others, queue and finished results, as in the paper; bags
    /// submitted from it stay. Default false: all that is durable stays, as in the agent.
    pub queue_lost: bool,
    /// Whether stewards keep the results of bags, too (`submit --keep-results`); `stewards` of `[policy]` has to be above 0. Default false.
    pub keep_results: bool,
    /// Share of sessions that end with a farewell instead of a crash, in percent. Default 0: the harder case.
    pub leave_percent: f64,
    /// Share of machines that never go down, in percent; above 0, bags are submitted from these alone, and there is at
    /// least one. Default 0: submitters come and go like all others.
    pub steady_percent: f64,
    /// Machines that invent the result of every task, each a different one, in percent, at most 100. Default 0, as in
    /// the paper.
    pub liars_percent: f64,
    /// Machines whose owner lets only some bags run there, in percent, at most 100: each declines a share of all bags
    /// of its own, from nearly none to nearly all. Default 0, as in the paper.
    pub choosy_percent: f64,
    /// Machines whose router does not forward correctly what others send through it, in percent, at most 100. Default
    /// 0, as in the paper.
    pub bad_routers_percent: f64,
    /// What these routers do. Default drop.
    pub bad_routing: BadRouting,
    /// Machines that break a promise on purpose, in percent, at most 100: a negative control, under which tasks are lost or never
    /// end. Default 0.
    pub flawed_percent: f64,
    /// Which promise they break. Default that no task is forgotten.
    pub flaw: Flaw,
    /// Machines that run each task, 1 to 8, and how many of them have to agree on its result, from 2 to as many, or 1
    /// where one machine runs it. Default 1 and 1.
    pub replicas: u32,
    /// See `replicas`.
    pub quorum: u32,
    /// With a quorum, of the tasks of machines that agreed with others often enough one in so many is checked by
    /// another machine, too; 0: all are. Default 0.
    pub recheck: u32,
    /// Machines whose tasks take ten times as long as the machine believes, in percent, at most 100. Default 0.
    pub slowed_percent: f64,
    /// Seed of all randomness.
    pub seed: u64,
    /// Messages lost, in percent, below 100. Default 0, as in the paper.
    pub loss_percent: f64,
    /// How far machines are from each other: all equally, or by pairs. Default constant, as in the paper.
    pub latencies: Latencies,
    /// A matrix of round trips in milliseconds.
    pub latency_file: Option<PathBuf>,
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
    /// Bandwidth of each uplink and of each downlink, at least 1 B/s. Default 125,000: the paper's 1 Mb/s.
    pub bandwidth_bytes_s: u64,
    /// Whether all links have that bandwidth, or those of homes: medians 36 Mb/s down and 20 up, or means of places in
    /// `bandwidths_file`, drawn for each link. Default paper.
    pub bandwidths: Equipment,
    /// Bandwidths of cities or countries, as JSON.
    pub bandwidths_file: Option<PathBuf>,
    /// Bytes that a message takes on links beside its own, at most 10,000: its frame, its stream, encryption, and the headers of its
    /// packets. None where an answer carries it. Default 312, as measured on the agent's network (`agent/net/src/tests/overhead.rs`); the paper counts
    /// none.
    pub overhead_bytes: u64,
    /// Bytes that the answer to a message takes on its receiver's uplink, at most 10,000. Default 387, measured in the same way.
    pub answer_bytes: u64,
    /// Round trips from a dial to the first message on the new connection, TCP's own among them, at most 20; 0: machines are connected with all others, as
    /// in the paper. Default 3, measured in the same way.
    pub connect_round_trips: u32,
    /// Bytes that a new connection takes on the uplink of either side, at most 100,000: handshakes, certificates, and what agents tell of themselves.
    /// Default 3,600, measured in the same way.
    pub connect_bytes: u64,
    /// Time that a machine's processor takes for a message that comes, in microseconds, at most 1,000,000. Default 300: what an exchange takes an idle agent
    /// (docs/lab/footprint.md); the paper has none.
    pub message_us: u64,
    /// Longest that a message waits for files and outputs before it in the queue of a link, at most 10 s. Default none: messages go first.
    #[serde(rename(serialize = "data_queue_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub data_queue: Duration,
    /// Size of a task's output. Default 1,000: our choice, so that the paper's links do not delay what the paper does not
    /// count (a thousand of its machines end 20 tasks a second, and one link takes 125 such outputs).
    pub output_bytes: u64,
    /// Sizes of what a submitter signs of a bag, which a machine fetches before the bag may queue there, and of its manifest, which it
    /// fetches before the first task begins; at least 1. Defaults 689 and 269: those of a bag with one program, as a test measures them.
    pub envelope_bytes: u64,
    /// See `envelope_bytes`.
    pub manifest_bytes: u64,
    /// Sizes of a bag's program and of its input, which a machine fetches before the first task begins, at most 1 TiB; 0: nothing is fetched.
    /// Default 0: the paper has none.
    pub program_bytes: u64,
    /// See `program_bytes`.
    pub input_bytes: u64,
    /// How many programs there are, 1 to 256: bags run them by turns, and a machine fetches each of them once. Default 8: our choice.
    pub programs: u32,
    /// How long a slot takes to start a program that its machine has not run before, give or take a fifth, at most 60 s. Default 0, the paper's.
    #[serde(rename(serialize = "program_start_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub program_start: Duration,
    /// Time that a flush takes, of one write or of all those that came while the disk was busy. Default 5 ms: our guess
    /// of an fsync.
    #[serde(rename(serialize = "persist_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub persist: Duration,
    /// Where bags come from: the paper's generator (the numbers below), the sizes and run times of a production grid, those of
    /// other distributions, a log, or runs of workflows. Default paper.
    pub workload: Workload,
    /// A log in the Standard Workload Format; its first bags are submitted, those of a user from one machine.
    pub log_file: Option<PathBuf>,
    /// Whether the bags are those from a place on that is drawn by the seed, instead of the first ones of the log. Default false.
    pub log_anywhere: bool,
    /// Workflows in WfFormat; each bag is the largest set of tasks of one kind at one depth of a workflow drawn at
    /// random.
    pub workflow_files: Vec<PathBuf>,
    /// Distribution of the tasks of a bag; it has one at least.
    pub tasks_file: Option<PathBuf>,
    /// Distribution of the work of tasks, in Mop.
    pub lengths_file: Option<PathBuf>,
    /// Distribution of the time between two bags, in seconds; none: as the workload has it otherwise.
    pub intervals_file: Option<PathBuf>,
    /// Share of what all machines can do (while up and with their owners away) that the bags demand, above 0 and at
    /// most 10: their arrivals are spaced so that work per time is that. None: `bag_interval`, or the log's own times.
    /// Default none.
    pub load: Option<f64>,
    /// Bags that one user submits, all from the first machine, in percent, at most 100; the others come from random machines.
    /// Default 0.
    pub user_percent: f64,
    /// Into how many bags that user splits each of its bags, 1 to 10,000; no piece is less than a task. Default 1: an honest
    /// user.
    pub user_splits_into: u64,
    /// Share of the work of a task that this user declares, in percent, above 0. Default 100: an honest user.
    pub user_declares_percent: f64,
    /// Coefficient of variation of the true work of tasks of one bag, 0 to 10; lognormal, with the declared work as
    /// mean. Default 0, the paper's; a production grid's is 0.45. A log has its own.
    pub task_cv: f64,
    /// Time between two checkpoints of a task, at least 1 s, from which it continues after its machine was down, or on
    /// another machine after an owner stayed; a task that moves for other reasons starts from the beginning. None: it always does. Default none, as in the paper.
    #[serde(
        rename(serialize = "checkpoint_interval_s"),
        serialize_with = "optional_seconds",
        deserialize_with = "optional_from_text"
    )]
    pub checkpoint_interval: Option<Duration>,
    /// Tries of tasks that fail at their end, independently and on any machine but those of `liars_percent`, in
    /// percent, at most 100 together with `crashes_percent`. Each task has three further tries; with a quorum, failed
    /// tries of a task agree, and are votes. Default 0, as in the paper.
    pub fails_percent: f64,
    /// The same for tries at whose end the worker dies, which a task may cause on two machines. Default 0, as in the
    /// paper.
    pub crashes_percent: f64,
    /// Fetches of outputs from other machines that fail, independently, in percent, below 100: the output is offered
    /// again. Default 0: only crashes and full links stop one.
    pub unfetched_percent: f64,
    /// Tasks of a usual bag per machine, at least 1. Default 10, the paper's.
    pub tasks_per_node: u64,
    /// Spread of the number of tasks, ± percent, at most 100. Default 20, the paper's.
    pub tasks_spread_percent: u64,
    /// Whether the number of tasks is log-uniform between 1 and that of a usual bag instead, as production grids see
    /// it. Default false.
    pub heavy_tailed: bool,
    /// Mean time between two bags. Default 10 s, the paper's.
    #[serde(rename(serialize = "bag_interval_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub bag_interval: Duration,
    /// Shortest task, in Mop, above 0. Default 30,000: our choice, the paper leaves it open.
    pub task_mops_min: f64,
    /// Longest task, in Mop. Default 240,000: our choice, the paper leaves it open.
    pub task_mops_max: f64,
    /// Whether submitters declare the work of a task, or have it measured. Default true, as in the paper.
    pub declared: bool,
    /// Slowest machine, in Mop/s per slot, at least 1. Default 1,000, the paper's.
    pub speed_mops_min: u64,
    /// Fastest machine, in Mop/s per slot. Default 3,000, the paper's.
    pub speed_mops_max: u64,
    /// Step between speeds, in Mop/s. Default 200, the paper's.
    pub speed_mops_step: u64,
    /// Whether speeds are those above, or lognormal as in homes: median `speed_mops_median` for the whole machine, third
    /// quartile five times the first. Default paper.
    pub speeds: Speeds,
    /// Median speed of a machine with speeds as in homes, in Mop/s of all its slots, at least 1. Default 2,000: the
    /// paper's mean.
    pub speed_mops_median: f64,
    /// Whether each machine has `slots` slots, or one for each core of a home computer: 8 in the median, or as in `cores_file`.
    /// Default paper.
    pub cores: Equipment,
    /// A survey of the cores of home computers, as CSV.
    pub cores_file: Option<PathBuf>,
    /// Tasks that a machine runs at the same time, 1 to 1024. Default 1, as in the paper.
    pub slots: u32,
    /// Time between the start of the last machine and the first moment a bag can arrive. Default 30 s: our choice,
    /// several heartbeats.
    #[serde(rename(serialize = "warm_up_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub warm_up: Duration,
    /// When the run ends at the latest, in simulated time. Default 30 days: our choice, never reached in good order.
    #[serde(rename(serialize = "horizon_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub horizon: Duration,
    /// The bags of `workload = "given"`, in the order of their arrival. Default none.
    pub given_bags: Vec<GivenBag>,
    /// Machines that differ from what is said of all, each at most once. Default none.
    pub given_machines: Vec<GivenMachine>,
    /// What the files hold: filled in by [`Scenario::load`].
    #[serde(skip)]
    pub inputs: Inputs,
    /// Settings of the peers; `slots`, `speed_mops` and `expects_grid` are overwritten for each
    /// machine.
    #[serde(rename = "policy", with = "policy")]
    pub peer: idlewood_scheduler::Config,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            nodes: 100,
            bags: 20,
            churn: None,
            downtime: Duration::from_secs(600),
            sessions: Sessions::default(),
            sessions_file: None,
            owners: Owners::default(),
            owner_file: None,
            owner_percent: 25,
            owner_session: None,
            owner_away: Duration::from_secs(2 * 3600),
            owner_idle: OwnerSettings::default().idle,
            queue_lost: false,
            keep_results: false,
            leave_percent: 0.0,
            steady_percent: 0.0,
            liars_percent: 0.0,
            choosy_percent: 0.0,
            bad_routers_percent: 0.0,
            bad_routing: BadRouting::default(),
            flawed_percent: 0.0,
            flaw: Flaw::default(),
            replicas: 1,
            quorum: 1,
            recheck: 0,
            slowed_percent: 0.0,
            seed: 1,
            loss_percent: 0.0,
            latencies: Latencies::default(),
            latency_file: None,
            latency_ms: 50,
            jitter_percent: 10,
            duplicate_percent: 0.0,
            reorder_percent: 0.0,
            reorder_ms: 1_000,
            bandwidth_bytes_s: 125_000,
            bandwidths: Equipment::default(),
            bandwidths_file: None,
            overhead_bytes: 312,
            answer_bytes: 387,
            connect_round_trips: 3,
            connect_bytes: 3600,
            message_us: 300,
            data_queue: Duration::ZERO,
            output_bytes: 1_000,
            envelope_bytes: 689,
            manifest_bytes: 269,
            program_bytes: 0,
            input_bytes: 0,
            programs: 8,
            program_start: Duration::ZERO,
            persist: Duration::from_millis(5),
            workload: Workload::default(),
            log_file: None,
            log_anywhere: false,
            workflow_files: Vec::new(),
            tasks_file: None,
            lengths_file: None,
            intervals_file: None,
            load: None,
            user_percent: 0.0,
            user_splits_into: 1,
            user_declares_percent: 100.0,
            task_cv: 0.0,
            checkpoint_interval: None,
            fails_percent: 0.0,
            crashes_percent: 0.0,
            unfetched_percent: 0.0,
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
            speeds: Speeds::default(),
            speed_mops_median: 2_000.0,
            cores: Equipment::default(),
            cores_file: None,
            slots: 1,
            warm_up: Duration::from_secs(30),
            horizon: Duration::from_secs(30 * 24 * 3600),
            given_bags: Vec::new(),
            given_machines: Vec::new(),
            inputs: Inputs::default(),
            peer: shipped::shipped(),
        }
    }
}

impl Scenario {
    /// Reads a scenario, and the files that it names; those are found from where it is.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what may stand there.
    pub fn read(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name} cannot be read: {error}"))?;
        let mut scenario = Self::parse(&text).map_err(|sentence| format!("{name}: {sentence}"))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        let named = [
            &mut scenario.sessions_file,
            &mut scenario.owner_file,
            &mut scenario.latency_file,
            &mut scenario.bandwidths_file,
            &mut scenario.cores_file,
            &mut scenario.log_file,
            &mut scenario.tasks_file,
            &mut scenario.lengths_file,
            &mut scenario.intervals_file,
        ];
        for file in named.into_iter().flatten().chain(&mut scenario.workflow_files) {
            *file = directory.join(&*file);
        }
        scenario.load()?;
        Ok(scenario)
    }

    /// Reads the files that it names, unless it did before.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what is expected there.
    pub fn load(&mut self) -> Result<(), String> {
        fn fill<T>(
            input: &mut Option<Arc<T>>,
            is_used: bool,
            file: Option<&PathBuf>,
            read: fn(&Path) -> Result<T, String>,
        ) -> Result<(), String> {
            if let (true, Some(path), None) = (is_used, file, &input) {
                *input = Some(Arc::new(read(path)?));
            }
            Ok(())
        }
        let inputs = &mut self.inputs;
        fill(&mut inputs.sessions, self.sessions == Sessions::Trace, self.sessions_file.as_ref(), Availability::read)?;
        fill(&mut inputs.owners, self.owners == Owners::Load, self.owner_file.as_ref(), ProcessorLoad::read)?;
        fill(&mut inputs.latencies, self.latencies == Latencies::Matrix, self.latency_file.as_ref(), Matrix::read)?;
        let is_surveyed = self.bandwidths == Equipment::Survey;
        fill(&mut inputs.bandwidths, is_surveyed, self.bandwidths_file.as_ref(), Bandwidths::read)?;
        fill(&mut inputs.cores, self.cores == Equipment::Survey, self.cores_file.as_ref(), Cores::read)?;
        fill(&mut inputs.bags, self.workload == Workload::Log, self.log_file.as_ref(), log::read)?;
        if self.workload == Workload::Workflows && inputs.bags.is_none() {
            let bags = self.workflow_files.iter().map(|path| workflow::read(path)).collect::<Result<_, _>>()?;
            inputs.bags = Some(Arc::new(bags));
        }
        let is_distributed = self.workload == Workload::Distributions;
        fill(&mut inputs.tasks, is_distributed, self.tasks_file.as_ref(), Distribution::read)?;
        fill(&mut inputs.lengths, is_distributed, self.lengths_file.as_ref(), Distribution::read)?;
        fill(&mut inputs.intervals, is_distributed, self.intervals_file.as_ref(), Distribution::read)?;
        Ok(())
    }

    /// Parses a scenario; the files that it names are not read.
    ///
    /// # Errors
    /// What is wrong, in which line, and what may stand there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let scenario: Self = toml::from_str(text).map_err(|error| {
            // The message quotes the line.
            let lines: Vec<String> =
                error.to_string().trim_end().lines().map(|line| shortened(line.to_owned())).collect();
            lines.join("\n")
        })?;
        let valid = scenario.validate().map_err(|sentence| sentence.replace("summary_patience", "patience"));
        valid.map_err(|sentence| {
            // The sentence begins with the field's name, or with that of its flag.
            let field = sentence.split(' ').next().unwrap_or_default().replace('-', "_");
            let is_field = |line: &str| line.split_once('=').is_some_and(|(name, _)| name.trim().starts_with(&field));
            let line = text.lines().position(is_field);
            line.map_or_else(|| sentence.clone(), |line| format!("line {}: {sentence}", line + 1))
        })?;
        Ok(scenario)
    }

    /// What is given of machine number `host` alone.
    pub(crate) fn given_machine(&self, host: u32) -> Option<&GivenMachine> {
        self.given_machines.iter().find(|machine| machine.number == host)
    }

    /// The bag that is given as this number, where bags are given.
    pub(crate) fn given_bag(&self, number: usize) -> Option<&GivenBag> {
        self.given_bags.get(number).filter(|_| self.workload == Workload::Given)
    }

    /// Whether owners ever come.
    pub fn has_owners(&self) -> bool {
        self.owners == Owners::Load || self.owner_session.is_some()
    }

    /// Whether tries of tasks ever fail.
    pub fn has_failing_tries(&self) -> bool {
        self.fails_percent > 0.0 || self.crashes_percent > 0.0
    }

    /// How many machines run each task.
    pub fn replication(&self) -> Replication {
        Replication { replicas: self.replicas, quorum: self.quorum, recheck: self.recheck }
    }

    /// Whether stewards keep the results of its bags, which have some.
    pub fn keeps_results(&self) -> bool {
        self.keep_results && self.peer.stewards > 0 && self.replicas == 1
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

    /// How many machines never go down; they are the first.
    pub fn steady(&self) -> u32 {
        (f64::from(self.nodes) * self.steady_percent / 100.0).ceil() as u32
    }

    /// How many machines users submit from; they are the first.
    pub fn seats(&self) -> u32 {
        if self.steady() > 0 { self.steady() } else { self.nodes }
    }

    /// The first moment at which a bag can arrive.
    pub fn first_arrival(&self) -> Time {
        Time::ZERO + self.start_window() + self.warm_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every setting is in the file of defaults, with its default.
    #[test]
    fn the_file_of_defaults_has_every_field() {
        assert_eq!(Scenario::parse(DEFAULTS), Ok(Scenario::default()));
        let file: toml::Table = DEFAULTS.parse().unwrap();
        let names = |value: &serde_json::Value| -> Vec<String> {
            value.as_object().unwrap().keys().map(|name| name.trim_end_matches("_s").to_owned()).collect()
        };
        let all = serde_json::to_value(Scenario::default()).unwrap();
        // A setting whose default is none and cannot be written is in a comment.
        let is_there = |table: &toml::Table, name: &str| {
            table.keys().any(|key| key.trim_end_matches("_s") == name) || DEFAULTS.contains(&format!("\n# {name} = "))
        };
        for name in names(&all) {
            assert!(is_there(&file, &name), "{name} is missing");
        }
        for name in names(&all["policy"]) {
            assert!(is_there(file["policy"].as_table().unwrap(), &name), "policy.{name} is missing");
        }
    }

    #[test]
    fn an_error_in_a_file_names_its_line_and_what_is_allowed() {
        for (text, parts) in [
            ("nodes = 5\nnode = 6\n", ["line 2", "unknown field `node`, expected one of `nodes`, `bags`"]),
            ("latencies = \"near\"\n", ["line 1", "expected one of `constant`, `internet`, `homes`, `matrix`"]),
            ("\nchurn = \"4 hours\"\n", ["line 2", "write a whole number and one of ms, s, m, h, d"]),
            ("nodes = 5\n\nloss_percent = 120.0\n", ["line 3", "loss must be at least 0 and below 100 percent"]),
            ("[policy]\nfrozen = 1\n", ["line 2", "unknown field `frozen`, expected one of `preemptive`"]),
            ("nodes = -1\n", ["line 1", "expected u32"]),
            ("[policy]\npatience = \"61s\"\n", ["line 2: ", ": patience must be at most 60 s"]),
        ] {
            let error = Scenario::parse(text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        let long = format!("nodes = 5\nbags = \"{}\"\n", "x".repeat(100_000));
        let error = Scenario::parse(&long).unwrap_err();
        assert!(error.contains("line 2") && error.contains("expected u32") && error.len() < 2_000, "{error}");
    }

    /// All variants called the paper's have the same settings, those of the file.
    #[test]
    fn the_paper_s_scenario_has_the_paper_s_scheme() {
        let mut peer = idlewood_scheduler::Config::default();
        papers_scheme(&mut peer);
        let scenario = Scenario::parse(include_str!("../scenarios/paper.toml")).unwrap();
        assert_eq!(scenario.peer, peer);
        let mut links = scenario.clone();
        papers_links(&mut links);
        assert_eq!(scenario, links);
        assert_ne!(peer, idlewood_scheduler::Config::default());
    }
}
