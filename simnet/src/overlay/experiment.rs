//! Experiments on the overlay, each in a grid of its own.
//!
//! An experiment takes a grid that grew by real joins until its tree was the true one, disturbs it, and records
//! samples. Repair ends at the last moment at which the number of machines with a wrong link ([`Watch`]) became zero,
//! checked after every event; with a wrong link or count for samples named `counts`. A repair that does not end within
//! [`LIMIT`] is recorded as that long and as one `unhealed`.
//!
//! The amount of work per machine falls with the number of machines N, so that large grids stay affordable:
//!
//! | experiment | up to 2,000 machines | falls as 1/N to |
//! |---|---|---|
//! | `steady`: calm before, then traffic is counted | 150 s, 120 s | 60 s, 60 s; from 500,000 machines on 20 s, 20 s |
//! | `join`: machines, one a second on average | 10 to 100, a third of N | 100 |
//! | `crash`, `leave`: machines, one after the other, a third each routers, the last of the line, roots | 30 | 12 |
//! | `mass`: 10, 50, 80 % at once, calm before | 30 s | 30 s |
//! | `partition`: two random halves are apart (`strangers`: never were together) | 300 s | 120 s |
//! | `partition-hour` | 1 h | 1 h |
//! | `churn-4h`, `churn-10min`: looked at for, after 60 s or 120 s of the same churn | 900 s | 180 s |
//! | `trace`: looked at for | 1 h | 180 s |

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use idlewood_overlay::{Node, Overlay, State, Time};
use rand::RngExt;

use super::survey::{Watch, paths};
use super::truth::Tree;
use super::world::{Memory, Settings, Step, World};
use crate::availability::{Availability, Machine};
use crate::event_queue::HostIndex;
use crate::random::{SmallStream, exponential, happens};
use crate::report::MessageCount;

/// Time in which growth doubles the grid: our choice; ten times a join, so that few join at a time.
const WAVE: Duration = Duration::from_secs(8);
/// A repair that takes longer counts as never: our choice, ten times the slowest goal.
pub const LIMIT: Duration = Duration::from_secs(600);
/// A machine whose session ended is replaced by another one after so long: our choice, longer than a leave lingers.
const SUCCESSION: Duration = Duration::from_millis(1_500);
/// A repair counts once nothing has been wrong for so long: our choice, a heartbeat.
const STAYS: Duration = Duration::from_secs(5);
/// How long a grid follows a trace before it is measured: our choice.
const TRACE_CALM: Duration = Duration::from_secs(60);
/// Interval between measurements of paths: our choice, a heartbeat.
const PATHS_EVERY: Duration = Duration::from_secs(5);

/// The experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Experiment {
    /// The tree's shape, and traffic when nothing happens.
    Steady,
    /// Machines join one by one.
    Join,
    /// Machines crash one by one.
    Crash,
    /// Machines leave one by one, announced.
    Leave,
    /// Shares of all machines crash at once.
    Mass,
    /// Two halves do not hear each other for some minutes, or never did.
    Partition,
    /// The same for an hour.
    PartitionHour,
    /// Sessions of four hours on average.
    Churn4h,
    /// Sessions of ten minutes on average.
    Churn10min,
    /// Machines come and go as in a trace.
    Trace,
}

impl Experiment {
    /// All, in their order.
    pub const ALL: [Self; 10] = [
        Self::Steady,
        Self::Join,
        Self::Crash,
        Self::Leave,
        Self::Mass,
        Self::Partition,
        Self::PartitionHour,
        Self::Churn4h,
        Self::Churn10min,
        Self::Trace,
    ];

    /// Its name on the command line and of its CSV.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Join => "join",
            Self::Crash => "crash",
            Self::Leave => "leave",
            Self::Mass => "mass",
            Self::Partition => "partition",
            Self::PartitionHour => "partition-hour",
            Self::Churn4h => "churn-4h",
            Self::Churn10min => "churn-10min",
            Self::Trace => "trace",
        }
    }

    /// Whether such a case begins with a grown grid; else it grows what it needs.
    pub fn begins_grown(case: &str) -> bool {
        case != STRANGERS
    }

    /// Its cases, each with a grid of its own.
    pub fn cases(self) -> &'static [&'static str] {
        match self {
            Self::Steady | Self::Join | Self::Crash | Self::Leave | Self::Trace => &[""],
            Self::Mass => &["10", "50", "80"],
            Self::Partition => &["halves", STRANGERS],
            Self::PartitionHour => &["halves"],
            Self::Churn4h | Self::Churn10min => &["crashes", "announced"],
        }
    }
}

/// A trace, and how many times faster than real time it is replayed.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The file, as the user named it.
    pub path: PathBuf,
    /// When machines were up.
    pub availability: Availability,
    /// At least 1.
    pub speedup: u32,
}

impl Replay {
    /// How much of the trace a grid of so many machines goes through.
    fn window(&self, nodes: u32) -> Duration {
        (TRACE_CALM + trace_watched(nodes)) * self.speedup
    }

    /// Refuses a trace that is shorter than the measurement of a grid of so many machines.
    ///
    /// # Errors
    /// A sentence that says what to give instead.
    pub fn validate(&self, nodes: u32) -> Result<(), String> {
        let longest = self.availability.machines().iter().map(Machine::span).max().unwrap_or_default();
        let window = self.window(nodes);
        if longest > window {
            return Ok(());
        }
        let (longest, window, speedup) = (longest.as_secs(), window.as_secs(), self.speedup);
        Err(format!(
            "the trace follows no machine for longer than {longest} s, and {window} s of it are replayed at trace-speedup {speedup}: \
             give a longer one{}",
            if speedup > 1 { " or a smaller --trace-speedup" } else { "" }
        ))
    }
}

/// One measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The case of the experiment.
    pub case: &'static str,
    /// The quantity, with its unit.
    pub quantity: &'static str,
    /// The value.
    pub value: f64,
}

/// Per peer and second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Messages sent.
    pub messages: f64,
    /// Their encoded size.
    pub bytes: f64,
}

/// The result of one case of an experiment with one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// In the order they were taken.
    pub samples: Vec<Sample>,
    /// Leaves by depth, if measured.
    pub depths: Vec<u64>,
    /// Traffic by kind of message, if measured.
    pub rates: Vec<(&'static str, Rate)>,
    /// Events given to peers, without those of growth.
    pub events: u64,
    /// Simulated time of all machines together, without that of growth.
    pub time_up: Duration,
    /// Trace hash of the world.
    pub trace: blake3::Hash,
}

/// A case that is being run: its parameters, its world, and its measurements.
struct CaseRun<'a> {
    nodes: u32,
    case: &'static str,
    world: World,
    /// For the experiment's own choices.
    rng: SmallStream,
    samples: Vec<Sample>,
    depths: Vec<u64>,
    rates: Vec<(&'static str, Rate)>,
    /// For each joining machine: whether it is a member, and whether its nodes are linked.
    joined: Vec<(bool, bool)>,
    /// Called with the simulated time and the number of events now and then.
    progress: &'a mut dyn FnMut(Time, u64),
    reported: u64,
}

/// The case of two grids that were never one.
const STRANGERS: &str = "strangers";
/// Events between two calls of the progress function.
const PROGRESS_EVENTS: u64 = 1 << 14;
/// From so many machines on, less is measured.
const HUGE: u32 = 500_000;
/// The driver's codes.
const END: u32 = 0;
const START: u32 = 1;

/// A grid that grew by real joins until its tree was exact: the start of experiments. Cases of one seed may begin with
/// copies of one; the results are the same as if each had grown its own.
#[derive(Clone, Debug)]
pub struct Grid {
    world: World,
    samples: Vec<Sample>,
}

impl Grid {
    /// Grows a grid of so many machines. The same arguments give the same grid.
    pub fn grow(nodes: u32, seed: u64, progress: &mut dyn FnMut(Time, u64)) -> Self {
        let mut run = CaseRun::new("", "growth", nodes, seed, Self::empty(nodes, seed), progress);
        run.grow();
        let repair = run.repair("");
        run.sample("growth_s", repair.counts.as_secs_f64());
        Self { world: run.world, samples: run.samples }
    }

    fn empty(nodes: u32, seed: u64) -> Self {
        let settings = Settings { hosts: nodes + joins(nodes), ..Settings::new(nodes, seed) };
        Self { world: World::new(settings), samples: Vec::new() }
    }

    /// Events given to its peers so far.
    pub fn events(&self) -> u64 {
        self.world.events()
    }

    /// Simulated time of all its machines together.
    pub fn time_up(&self) -> Duration {
        self.world.time_up()
    }
}

/// Runs one case of an experiment, beginning with `grid`, made by [`Grid::grow`] for the same machines and seed; none
/// if [`Experiment::begins_grown`] is false. The same arguments give the same outcome.
pub fn run(
    experiment: Experiment,
    case: &'static str,
    nodes: u32,
    seed: u64,
    grid: Option<Grid>,
    trace: Option<&Replay>,
    progress: &mut dyn FnMut(Time, u64),
) -> Outcome {
    let grid = grid.unwrap_or_else(|| Grid::empty(nodes, seed));
    let (events, time_up) = (grid.events(), grid.time_up());
    let mut run = CaseRun::new(case, experiment.name(), nodes, seed, grid, progress);
    match experiment {
        Experiment::Steady => run.steady(),
        Experiment::Join => run.join(),
        Experiment::Crash => run.one_by_one(false),
        Experiment::Leave => run.one_by_one(true),
        Experiment::Mass => run.mass(),
        Experiment::Partition => run.partition(Duration::from_secs(scaled(nodes, 120, 300))),
        Experiment::PartitionHour => run.partition(Duration::from_secs(3_600)),
        Experiment::Churn4h => run.churn(Duration::from_secs(4 * 3_600), Duration::from_secs(60)),
        Experiment::Churn10min => run.churn(Duration::from_secs(600), Duration::from_secs(120)),
        Experiment::Trace => run.replay(trace.expect("the trace was read before")),
    }
    Outcome {
        events: run.world.events() - events,
        time_up: run.world.time_up() - time_up,
        trace: run.world.trace_hash(),
        samples: run.samples,
        depths: run.depths,
        rates: run.rates,
    }
}

/// A number that falls from `high` for small grids to `low` for large ones, for work that takes time in proportion to
/// the number of machines.
fn scaled(nodes: u32, low: u64, high: u64) -> u64 {
    (high * 2_000 / u64::from(nodes.max(1))).clamp(low, high)
}

/// How long a grid that follows a trace is measured.
fn trace_watched(nodes: u32) -> Duration {
    Duration::from_secs(scaled(nodes, 180, 3_600))
}

/// Number of machines that join one by one.
fn joins(nodes: u32) -> u32 {
    (nodes / 3).clamp(10, 100)
}

impl<'a> CaseRun<'a> {
    fn new(
        case: &'static str,
        purpose: &str,
        nodes: u32,
        seed: u64,
        Grid { world, samples }: Grid,
        progress: &'a mut dyn FnMut(Time, u64),
    ) -> Self {
        let reported = world.events();
        let joined = vec![(false, false); joins(nodes) as usize];
        let rng = SmallStream::new(seed, purpose, 0);
        Self { nodes, case, world, rng, samples, depths: Vec::new(), rates: Vec::new(), joined, progress, reported }
    }

    // ---- time ----

    fn sample(&mut self, quantity: &'static str, value: f64) {
        self.samples.push(Sample { case: self.case, quantity, value });
    }

    fn step(&mut self, until: Time) -> Option<Step> {
        tell(&self.world, &mut self.reported, self.progress);
        self.world.step(until)
    }

    fn wait(&mut self, duration: Duration) {
        let until = self.world.now() + duration;
        while self.step(until).is_some() {}
    }

    /// A random duration between two in seconds.
    fn some_seconds(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.rng.random_range(low * 1_000_000..high * 1_000_000))
    }

    /// Lets the grid, which is exact, rest; returns its tree.
    fn rest(&mut self, calm: Duration) -> Tree {
        let tree = Watch::new(&self.world).into_tree();
        self.wait(calm);
        tree
    }

    fn grow(&mut self) {
        let (reported, progress) = (&mut self.reported, &mut *self.progress);
        self.world.grow(self.nodes, WAVE, |world| tell(world, reported, progress));
    }

    /// Waits until everything is right, and for a while that it stays so.
    fn repair(&mut self, case: &'static str) -> Repair {
        let begin = self.world.now();
        let mut watch = Watch::new(&self.world);
        let (mut links, mut counts) = (begin, begin);
        let mut until = begin + if watch.wrong_counts == 0 { STAYS } else { LIMIT };
        while let Some(step) = self.step(until) {
            let Step::Handled(host) = step else { continue };
            let before = (watch.wrong_links, watch.wrong_counts);
            watch.update(&self.world, host);
            let now = self.world.now();
            if before.0 > 0 && watch.wrong_links == 0 {
                links = now;
            }
            if before.1 > 0 && watch.wrong_counts == 0 {
                counts = now;
                until = (now + STAYS).min(begin + LIMIT);
            } else if before.1 == 0 && watch.wrong_counts > 0 {
                until = begin + LIMIT;
            }
        }
        if watch.wrong_counts > 0 {
            self.samples.push(Sample { case, quantity: "unhealed", value: 1.0 });
        }
        let took = |wrong: u32, last: Time| if wrong == 0 { last.since(begin) } else { LIMIT };
        Repair {
            links: took(watch.wrong_links, links),
            counts: took(watch.wrong_counts, counts),
            tree: watch.into_tree(),
        }
    }

    fn sample_repair(&mut self, case: &'static str) -> Tree {
        let repair = self.repair(case);
        let mut sample = |quantity, took: Duration| {
            self.samples.push(Sample { case, quantity, value: took.as_secs_f64() });
        };
        sample("links_s", repair.links);
        sample("counts_s", repair.counts);
        repair.tree
    }

    fn somebody(&mut self) -> HostIndex {
        let choice = self.rng.random_range(0..self.world.up().len());
        self.world.up()[choice]
    }

    // ---- experiments ----

    fn steady(&mut self) {
        // The look-up of the own key doubles its period up to a minute: after two minutes it has reached that.
        let is_huge = self.nodes >= HUGE;
        let tree = self.rest(Duration::from_secs(if is_huge { 20 } else { scaled(self.nodes, 60, 150) }));
        let root = tree.root.and_then(|root| self.world.overlay(root)?.root());
        let (count, height) = root.map_or((0, 0), |root| (root.count, root.height));
        self.sample("root_count", count as f64);
        self.sample("height", height.into());
        let world = &self.world;
        let depths = world.up().iter().filter_map(|host| world.overlay(*host)?.depth(Node::Leaf));
        let mut histogram = Vec::new();
        for depth in depths {
            let depth = depth as usize;
            if depth >= histogram.len() {
                histogram.resize(depth + 1, 0);
            }
            histogram[depth] += 1;
        }
        let known: u64 = histogram.iter().sum();
        let sum: u64 = histogram.iter().zip(0u64..).map(|(leaves, depth)| leaves * depth).sum();
        self.sample("mean_depth", sum as f64 / known.max(1) as f64);
        self.depths = histogram;
        let (before, time_up) = (self.world.traffic().clone(), self.world.time_up());
        self.wait(Duration::from_secs(if is_huge { 20 } else { scaled(self.nodes, 60, 120) }));
        let peer_s = (self.world.time_up() - time_up).as_secs_f64();
        let per_peer_s = |now: MessageCount, before: MessageCount| Rate {
            messages: (now.count - before.count) as f64 / peer_s,
            bytes: (now.bytes - before.bytes) as f64 / peer_s,
        };
        let traffic = self.world.traffic();
        let earlier = |kind| before.kinds().find(|(other, _)| *other == kind).map(|(_, count)| count);
        let rates = traffic.kinds().map(|(kind, count)| (kind, per_peer_s(count, earlier(kind).unwrap_or_default())));
        self.rates = rates.collect();
        let total = per_peer_s(traffic.total(), before.total());
        self.sample("messages_per_peer_s", total.messages);
        self.sample("bytes_per_peer_s", total.bytes);
    }

    fn join(&mut self) {
        self.rest(Duration::from_secs(30));
        let all = self.nodes..self.nodes + joins(self.nodes);
        for host in all.clone() {
            let after = Duration::from_micros(exponential(&mut self.rng, 1_000_000));
            self.wait_for_joins(after, &all);
            self.world.start(host, Memory::Kept);
        }
        self.wait_for_joins(Duration::from_secs(60), &all);
        let missing = all.len() - self.samples.iter().filter(|sample| sample.quantity == "linked_s").count();
        (0..missing).for_each(|_| self.sample("unhealed", 1.0));
    }

    /// Lets time pass, and notes when each joining machine becomes a member, and has its nodes linked.
    fn wait_for_joins(&mut self, duration: Duration, joining: &Range<HostIndex>) {
        let until = self.world.now() + duration;
        while let Some(step) = self.step(until) {
            let Step::Handled(host) = step else { continue };
            let Some(progress) = host.checked_sub(joining.start).map(|index| self.joined[index as usize]) else {
                continue;
            };
            let Some(overlay) = self.world.overlay(host) else { continue };
            let (is_member, is_linked) = (overlay.state() == State::Member, is_linked(overlay));
            let took = self.world.now().since(self.world.started(host)).as_secs_f64();
            if is_member && !progress.0 {
                self.sample("member_s", took);
            }
            if is_linked && !progress.1 {
                self.sample("linked_s", took);
                self.sample("messages", self.world.messages(host).into());
            }
            self.joined[(host - joining.start) as usize] = (progress.0 | is_member, progress.1 | is_linked);
        }
    }

    /// Machines crash, or leave, one after the other, and others replace them: in turn any that hosts a router, the
    /// last on the line, which hosts none, and the root.
    fn one_by_one(&mut self, announced: bool) {
        let mut tree = self.rest(Duration::from_secs(60));
        for place in ["router", "leaf", "root"].iter().cycle().take(scaled(self.nodes, 12, 30) as usize) {
            let calm = self.some_seconds(2, 8);
            self.wait(calm);
            let is_last = |host: &HostIndex| tree.truth(*host).is_some_and(|truth| truth.succ.is_none());
            let up = self.world.up();
            let victim = match *place {
                "root" => tree.root,
                "leaf" => up.iter().copied().find(is_last),
                _ => {
                    let is_router = |host: &HostIndex| !is_last(host) && Some(*host) != tree.root;
                    let routers: Vec<HostIndex> = up.iter().copied().filter(is_router).collect();
                    let choice = self.rng.random_range(0..routers.len().max(1));
                    routers.get(choice).copied()
                }
            };
            // A grid of two machines has only the root and the last.
            let Some(victim) = victim else { continue };
            if announced {
                self.world.leave(victim);
            } else {
                self.world.crash(victim);
            }
            self.sample_repair(place);
            if self.world.overlay(victim).is_some() {
                // It has not heard that it may go.
                self.world.crash(victim);
            }
            self.world.start(victim, Memory::Stranger);
            tree = self.repair("succession").tree;
        }
    }

    fn mass(&mut self) {
        self.rest(Duration::from_secs(30));
        let share: u32 = self.case.parse().expect("cases are percentages");
        let victims = u64::from(self.nodes) * u64::from(share) / 100;
        for _ in 0..victims {
            let victim = self.somebody();
            self.world.crash(victim);
        }
        self.sample_repair(self.case);
    }

    /// Two random halves that do not hear each other: a grid that was one, or two that never were, of which one machine
    /// is given a contact of the other when they can.
    fn partition(&mut self, apart: Duration) {
        let mut halves = [Vec::new(), Vec::new()];
        for host in 0..self.nodes {
            let half = usize::from(self.rng.random::<bool>());
            halves[half].push(host);
            self.world.network_mut().put_into(half as u8, host);
        }
        if self.case == STRANGERS {
            self.world.network_mut().partition(0, 1);
            self.grow();
            self.wait(Duration::from_secs(60));
        } else {
            self.rest(Duration::from_secs(30));
            self.world.network_mut().partition(0, 1);
            self.wait(apart);
        }
        let wrong: u32 = halves.iter().map(|half| Watch::among(&self.world, half).wrong_counts).sum();
        self.sample("wrong_while_apart", wrong.into());
        self.world.network_mut().heal();
        if self.case == STRANGERS
            && let [Some(one), Some(other)] = halves.map(|half| half.first().copied())
        {
            self.world.introduce(one, other);
        }
        self.sample_repair(self.case);
    }

    /// Exponential sessions; a machine that goes is replaced by another one, so that the grid keeps its size.
    fn churn(&mut self, session: Duration, calm: Duration) {
        self.rest(Duration::from_secs(10));
        let announced_percent = if self.case == "announced" { 80.0 } else { 0.0 };
        let session_us = u64::try_from(session.as_micros()).unwrap_or(u64::MAX);
        let now = self.world.now();
        for host in 0..self.nodes {
            let ends = now + Duration::from_micros(exponential(&mut self.rng, session_us));
            self.world.plan(ends, host, END);
        }
        let mut departures = 0u64;
        let duration = Duration::from_secs(scaled(self.nodes, 180, 900));
        self.look_at_paths(calm, duration, |run, host, code| {
            let now = run.world.now();
            if code == END {
                departures += 1;
                if happens(&mut run.rng, announced_percent) {
                    run.world.leave(host);
                } else {
                    run.world.crash(host);
                }
                run.world.plan(now + SUCCESSION, host, START);
            } else if run.world.overlay(host).is_some() {
                run.world.plan(now + SUCCESSION, host, START);
            } else {
                run.world.start(host, Memory::Stranger);
                let ends = now + Duration::from_micros(exponential(&mut run.rng, session_us));
                run.world.plan(ends, host, END);
            }
        });
        self.sample("departures", departures as f64);
    }

    /// Every machine follows one of the trace, from a random moment that leaves enough of it. An unavailability in the
    /// trace is a crash, and the machine comes back with its memory. A machine whose part of the trace is shorter than
    /// the replay follows all of it, and is then down for good.
    fn replay(&mut self, trace: &Replay) {
        self.rest(Duration::from_secs(10));
        let Replay { availability, speedup, .. } = trace;
        let window = trace.window(self.nodes);
        let machines = availability.machines();
        let mut later = Vec::new();
        for host in 0..self.nodes {
            let machine = &machines[host as usize % machines.len()];
            let room = machine.span().saturating_sub(window);
            let offset = machine.first() + Duration::from_secs(self.rng.random_range(0..=room.as_secs()));
            if !machine.is_up(offset) {
                self.world.leave(host);
            }
            let changes = machine.changes(offset, offset + window);
            later.extend(changes.map(|(at, up)| ((at - offset) / *speedup, host, up)));
        }
        // Machines that are down at first have gone by then.
        self.wait(Duration::from_secs(30));
        let now = self.world.now();
        for (after, host, up) in later {
            self.world.plan(now + after, host, if up { START } else { END });
        }
        let (mut arrivals, mut departures) = (0u64, 0u64);
        self.look_at_paths(TRACE_CALM, trace_watched(self.nodes), |run, host, code| {
            let is_up = run.world.overlay(host).is_some();
            if code == END && is_up {
                departures += 1;
                run.world.crash(host);
            } else if code == START && !is_up {
                arrivals += 1;
                run.world.start(host, Memory::Kept);
            }
        });
        self.sample("arrivals", arrivals as f64);
        self.sample("departures", departures as f64);
    }

    /// Measures the paths regularly after `calm`; planned events go to `happen`.
    fn look_at_paths(&mut self, calm: Duration, duration: Duration, mut happen: impl FnMut(&mut Self, HostIndex, u32)) {
        let end = self.world.now() + calm + duration;
        let mut next = self.world.now() + calm;
        let (mut leaves, mut available) = (0, 0);
        let mut least = 1.0f64;
        while next <= end {
            while let Some(step) = self.step(next) {
                if let Step::Planned { host, code } = step {
                    happen(self, host, code);
                }
            }
            let paths = paths(&self.world);
            leaves += paths.leaves;
            available += paths.available;
            least = least.min(paths.available as f64 / paths.leaves.max(1) as f64);
            next += PATHS_EVERY;
        }
        self.sample("path_available", available as f64 / leaves.max(1) as f64);
        self.sample("path_available_least", least);
    }
}

/// Reports the progress of a world now and then.
fn tell(world: &World, reported: &mut u64, progress: &mut dyn FnMut(Time, u64)) {
    if world.events() >= *reported + PROGRESS_EVENTS {
        *reported = world.events();
        progress(world.now(), *reported);
    }
}

/// How long it took until everything was right, and stayed so.
struct Repair {
    links: Duration,
    counts: Duration,
    tree: Tree,
}

/// Whether the nodes of a machine have their parents.
fn is_linked(overlay: &Overlay) -> bool {
    let router = !overlay.hosts_router() || overlay.is_root() || overlay.parent(Node::Router).is_some();
    overlay.state() == State::Member && router && overlay.parent(Node::Leaf).is_some()
}
