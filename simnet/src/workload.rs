//! The workload: bags that arrive at random machines, and the properties of those machines.
//!
//! The paper's load (Celaya and Marchal 2010, §7): bags arrive as a Poisson process; each has a number of tasks in
//! proportion to the number of machines and tasks of a log-uniform length. On demand the number of tasks is
//! log-uniform, too: the heavy tail of production grids. Or sizes and run times are those of such a grid by their
//! quantiles (`docs/design/defaults.md`) or follow other distributions, or the bags are those of a log or of workflows;
//! run times are taken for those on a machine of [`REFERENCE_MOPS`]. The scheduler takes the tasks of a bag for equal;
//! their true work may vary.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::BagId;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use crate::churn::{Churn, Owner};
use crate::random::{
    NORMAL_QUARTILE, SmallStream, digest, exp, exponential, happens, ln, log_uniform, lognormal, normal_quantile,
    quantile, stream,
};
use crate::scenario::{Equipment, GivenEndless, Scenario, Speeds, TASKS_MAX, Workload, loaded};

pub use crate::observed_bag::ObservedBag;

/// Speed of the machine that the run times of a log were measured on, in Mop/s: the paper's mean speed, our choice.
pub const REFERENCE_MOPS: f64 = 2_000.0;
/// Tasks per bag of a production grid, capped at the largest count.
const GRID_TASKS: [(f64, f64); 6] = [(0.0, 1.0), (0.5, 2.0), (0.75, 10.0), (0.95, 84.0), (0.99, 221.0), (1.0, 1_000.0)];
/// Run times of that grid, in seconds. The longest is chosen so that the mean is the published 7,990 s.
const GRID_TASK_S: [(f64, f64); 4] = [(0.0, 1.0), (0.5, 255.0), (0.95, 39_940.0), (1.0, 167_000.0)];
/// Cores of home computers, with our ends.
const HOME_CORES: [(f64, f64); 8] =
    [(0.0, 2.0), (0.05, 4.0), (0.25, 6.0), (0.5, 8.0), (0.75, 10.0), (0.9, 16.0), (0.99, 24.0), (1.0, 32.0)];
/// Third quartile of the speed of home computers over the first.
const HOME_SPEED_QUARTILES: f64 = 5.0;
/// How far the speed of a home computer can be from the median, as a factor: our choice.
const HOME_SPEED_SPREAD: f64 = 20.0;
/// Bandwidths of homes, up and down, in Mb/s: the quartiles.
const HOME_UP_MBIT_S: (f64, f64, f64) = (13.0, 20.0, 37.0);
const HOME_DOWN_MBIT_S: (f64, f64, f64) = (23.0, 36.0, 69.0);
/// Shortest work of a task, in Mop.
const TASK_MOPS_MIN: f64 = 1.0;

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
    /// Declared value of a, in Mop.
    pub declared_mops: f64,
    /// The machine from which its user submits: [`USER`] that of the one user who has a share of all bags (`user_percent`), others
    /// those of the users of a log; none: a random machine.
    pub seat: Option<u32>,
    /// The bag of which it is a piece, by order of arrival before bags were split.
    pub whole: usize,
    /// Which task of that bag is its first one.
    pub first: u64,
    /// Of a bag without an end, whose `tasks` are 0 here.
    pub endless: Option<GivenEndless>,
}

/// The machine of the user who has a share of all bags.
pub const USER: u32 = 0;

impl Bag {
    /// Whether it is of the one user who has a share of all bags.
    pub fn is_users(&self) -> bool {
        self.seat == Some(USER)
    }

    /// The paper's application size w = n·a, in Mop.
    pub fn application_size_mops(&self) -> f64 {
        self.tasks as f64 * self.task_mops
    }
}

/// Refuses a loaded scenario whose bags, given here, are too many to be run, or cannot reach its load.
///
/// # Errors
/// A sentence that says what to write instead.
pub fn check(scenario: &Scenario, bags: &[Bag]) -> Result<(), String> {
    if scenario.load.is_some() && capacity_mops(scenario) <= 0.0 {
        return Err("load is a share of nothing, since owners are never away: raise owner_percent, or leave out load"
            .to_owned());
    }
    let intervals = scenario.inputs.intervals.as_ref().filter(|_| scenario.workload == Workload::Distributions);
    if scenario.load.is_some() && intervals.is_some_and(|intervals| intervals.mean() <= 0.0) {
        return Err("load cannot stretch times between bags that are all 0: leave it out, or intervals_file".to_owned());
    }
    let tasks = bags.iter().fold(0_u64, |sum, bag| sum.saturating_add(bag.tasks));
    if tasks > TASKS_MAX {
        return Err(format!("bags have {tasks} tasks: give fewer bags, at most {TASKS_MAX} tasks in all"));
    }
    Ok(())
}

/// All bags of a simulation, in the order of their arrival. Files that the scenario names must be loaded first:
/// [`Scenario::load`].
pub fn bags(scenario: &Scenario) -> Vec<Bag> {
    if scenario.workload == Workload::Given {
        return given_bags(scenario).collect();
    }
    let mut rng = stream(scenario.seed, "workload", 0);
    // In units of mean intervals between bags.
    const INTERVAL: u64 = 1_000_000;
    let mut after = 0;
    // The users of a log in the order in which they come.
    let mut users = BTreeMap::new();
    let log = (scenario.workload == Workload::Log).then(|| loaded(&scenario.inputs.bags));
    let number = log.map_or(scenario.bags as usize, |log| log.len().min(scenario.bags as usize));
    let intervals = scenario.inputs.intervals.as_ref().filter(|_| scenario.workload == Workload::Distributions);
    let interval_s = intervals.map_or(scenario.bag_interval.as_secs_f64(), |intervals| intervals.mean());
    let mut bags: Vec<(u64, Bag)> = (0..number)
        .map(|number| {
            after += match intervals {
                Some(intervals) => share_of(intervals.quantile(rng.random()), interval_s, INTERVAL),
                None => exponential(&mut rng, INTERVAL),
            };
            let (tasks, task_mops) = match observed_bag(scenario, number) {
                Some(bag) => (bag.tasks_s.len() as u64, (bag.mean_s() * REFERENCE_MOPS).max(TASK_MOPS_MIN)),
                None => size(scenario, &mut rng),
            };
            let id = BagId(digest(scenario.seed, "bag", number as u64));
            let is_users = happens(&mut SmallStream::new(scenario.seed, "user", number as u64), scenario.user_percent);
            let honesty = if is_users { scenario.user_declares_percent / 100.0 } else { 1.0 };
            let declared_mops = (task_mops * honesty).max(TASK_MOPS_MIN.min(task_mops));
            let seat = if is_users { Some(USER) } else { seat(scenario, number, &mut users) };
            let (arrival, whole, first, endless) = (Time::ZERO, number, 0, None);
            (after, Bag { id, arrival, tasks, task_mops, declared_mops, seat, whole, first, endless })
        })
        .collect();
    let work_mops: f64 = bags.iter().map(|(_, bag)| bag.application_size_mops()).sum();
    // At a given load: the time that all machines need for the work, over the load.
    let span_s = scenario.load.map(|load| work_mops / (capacity_mops(scenario) * load));
    let observed = log.map(|log| &log[log_start(scenario, log.len())..]).unwrap_or_default();
    let observed_from = observed.first().map_or(Duration::ZERO, |bag| bag.arrival);
    let since_first_s = |bag: &ObservedBag| (bag.arrival - observed_from).as_secs_f64();
    let observed_span_s = observed.get(number.saturating_sub(1)).map_or(0.0, since_first_s);
    for (number, (after, bag)) in bags.iter_mut().enumerate() {
        let arrival_s = match (observed.get(number), span_s) {
            (Some(observed), None) => since_first_s(observed),
            (Some(observed), Some(span_s)) => since_first_s(observed) / observed_span_s.max(1e-6) * span_s,
            (None, span_s) => {
                let mean_s = span_s.map_or(interval_s, |span_s| span_s / number_of(scenario));
                *after as f64 / INTERVAL as f64 * mean_s
            }
        };
        bag.arrival = scenario.first_arrival() + Duration::from_micros((arrival_s * 1e6).round().max(1.0) as u64);
    }
    bags.into_iter().flat_map(|(_, bag)| pieces(scenario, bag)).collect()
}

/// The bags that the scenario gives.
fn given_bags(scenario: &Scenario) -> impl Iterator<Item = Bag> {
    scenario.given_bags.iter().enumerate().map(|(number, given)| Bag {
        id: BagId(digest(scenario.seed, "bag", number as u64)),
        arrival: scenario.first_arrival() + given.at,
        tasks: given.tasks,
        task_mops: given.task_mops,
        declared_mops: given.task_mops,
        seat: Some(given.submitter),
        whole: number,
        first: 0,
        endless: given.endless,
    })
}

/// Bag `number` of the log, or, of workflows, the one drawn for it.
fn observed_bag(scenario: &Scenario, number: usize) -> Option<&ObservedBag> {
    let bags = || loaded(&scenario.inputs.bags);
    match scenario.workload {
        Workload::Log => bags().get(log_start(scenario, bags().len()) + number),
        Workload::Workflows => {
            let bags = bags();
            let mut rng = SmallStream::new(scenario.seed, "workflow", number as u64);
            bags.get(rng.random_range(0..bags.len()))
        }
        Workload::Paper | Workload::Desktops | Workload::Distributions | Workload::Given => None,
    }
}

/// Which bag of a log of so many is the first one.
fn log_start(scenario: &Scenario, log_len: usize) -> usize {
    let last = log_len.saturating_sub(scenario.bags as usize);
    if scenario.log_anywhere { SmallStream::new(scenario.seed, "log", 0).random_range(0..=last) } else { 0 }
}

/// The machine of the user of bag `number` of a log: one for each of the users of these bags, in the order in which they come, until
/// there are more users than machines to submit from. That of [`USER`] is left to that user where there is another one.
fn seat(scenario: &Scenario, number: usize, users: &mut BTreeMap<u32, u32>) -> Option<u32> {
    let user = observed_bag(scenario, number)?.user?;
    let users_len = users.len() as u32;
    let place = *users.entry(user).or_insert(users_len);
    Some(1 + place % (scenario.seats() - 1).max(1)).filter(|seat| *seat < scenario.seats())
}

/// `value` in parts of the mean, which has `whole`; 0 where all are 0.
fn share_of(value: f64, mean: f64, whole: u64) -> u64 {
    if mean > 0.0 { (value / mean * whole as f64).round() as u64 } else { 0 }
}

/// The bags submitted for one bag: itself, or, for the user who splits its bags, so many of about as many tasks each.
fn pieces(scenario: &Scenario, bag: Bag) -> Vec<Bag> {
    let count = if bag.is_users() { scenario.user_splits_into.min(bag.tasks) } else { 1 };
    let piece = |number: u64| {
        let first = bag.tasks * number / count;
        let tasks = bag.tasks * (number + 1) / count - first;
        let id = BagId(digest(scenario.seed, "piece", (bag.whole as u64) << 32 | number));
        Bag { id: if number == 0 { bag.id } else { id }, tasks, first, ..bag.clone() }
    };
    (0..count).map(piece).collect()
}

fn number_of(scenario: &Scenario) -> f64 {
    f64::from(scenario.bags.max(1))
}

/// n and a of a bag drawn at random.
fn size(scenario: &Scenario, rng: &mut ChaCha8Rng) -> (u64, f64) {
    if scenario.workload == Workload::Desktops {
        let tasks = (quantile(&GRID_TASKS, rng.random()).round() as u64).max(1);
        return (tasks, (quantile(&GRID_TASK_S, rng.random()) * REFERENCE_MOPS).max(TASK_MOPS_MIN));
    }
    let inputs = &scenario.inputs;
    if scenario.workload == Workload::Distributions {
        let tasks = (loaded(&inputs.tasks).quantile(rng.random()).round() as u64).max(1);
        return (tasks, loaded(&inputs.lengths).quantile(rng.random()).max(TASK_MOPS_MIN));
    }
    let usual = u64::from(scenario.nodes) * scenario.tasks_per_node;
    let spread = usual * scenario.tasks_spread_percent / 100;
    let tasks = if scenario.heavy_tailed {
        (log_uniform(rng, 1.0, usual as f64).round() as u64).max(1)
    } else {
        rng.random_range(usual - spread..=usual + spread).max(1)
    };
    (tasks, log_uniform(rng, scenario.task_mops_min, scenario.task_mops_max))
}

/// What all machines can do in the long run, in Mop/s: while they are up, and their owners away.
pub fn capacity_mops(scenario: &Scenario) -> f64 {
    let machine = |host| {
        let share = Churn::new(scenario, host).share_up() * Owner::new(scenario, host).share_away();
        speed_mops(scenario, host) * f64::from(slots(scenario, host)) * share
    };
    (0..scenario.nodes).map(machine).sum()
}

/// The true work of a task of bag `number`, in Mop; its bag's `task_mops` is the mean.
pub fn work_mops(scenario: &Scenario, number: usize, bag: &Bag, index: u64) -> f64 {
    let observed = observed_bag(scenario, bag.whole);
    if let Some(run_s) = observed.and_then(|observed| observed.tasks_s.get((bag.first + index) as usize)) {
        return (f64::from(*run_s) * REFERENCE_MOPS).max(TASK_MOPS_MIN);
    }
    let rounds = scenario.given_bag(bag.whole).and_then(|given| given.rounds.as_ref());
    let (varies, mean_mops) = rounds.map_or((true, bag.task_mops), |rounds| rounds.work_mops(index));
    if scenario.task_cv == 0.0 || !varies {
        return mean_mops;
    }
    let mut rng = SmallStream::new(scenario.seed ^ (number as u64) << 32, "task", index);
    let variance = ln(1.0 + scenario.task_cv * scenario.task_cv);
    (mean_mops * lognormal(&mut rng, -variance / 2.0, variance.sqrt())).max(TASK_MOPS_MIN)
}

/// Output size of a task of this bag, in bytes.
pub fn output_bytes(scenario: &Scenario, bag: &Bag, index: u64) -> u64 {
    let observed = observed_bag(scenario, bag.whole);
    let bytes = observed.and_then(|observed| observed.outputs_bytes.get((bag.first + index) as usize));
    let given = || scenario.given_bag(bag.whole).and_then(|given| given.output_bytes);
    bytes.copied().or_else(given).unwrap_or(scenario.output_bytes)
}

/// When machines are switched on for the first time, the first one at the beginning: ten a second until the grid
/// doubles in 16 s at that pace, then at that doubling time, each at a random moment of its turn; a machine that is
/// absent at first starts later.
pub fn starts(scenario: &Scenario) -> impl Iterator<Item = (u32, Time)> {
    let mut rng = SmallStream::new(scenario.seed, "start", 0);
    (0..scenario.nodes).map(move |host| {
        let (from, to) = (scenario.start_turn(host), scenario.start_turn(host + 1));
        let within = if host == 0 { 0 } else { rng.random_range(0..(to - from).as_micros().max(1) as u64) };
        (host, Time::ZERO + from + Duration::from_micros(within) + Churn::new(scenario, host).absence())
    })
}

/// The speed of machine number `host`, in Mop/s per slot.
pub fn speed_mops(scenario: &Scenario, host: u32) -> f64 {
    if let Some(speed_mops) = scenario.given_machine(host).and_then(|given| given.speed_mops) {
        return speed_mops;
    }
    match scenario.speeds {
        Speeds::Paper => {
            let steps = (scenario.speed_mops_max - scenario.speed_mops_min) / scenario.speed_mops_step;
            let step = stream(scenario.seed, "speed", u64::from(host)).random_range(0..=steps);
            (scenario.speed_mops_min + step * scenario.speed_mops_step) as f64
        }
        Speeds::Desktops => {
            let mut rng = SmallStream::new(scenario.seed, "speed", u64::from(host));
            let sigma = ln(HOME_SPEED_QUARTILES) / (2.0 * NORMAL_QUARTILE);
            let factor = lognormal(&mut rng, 0.0, sigma).clamp(1.0 / HOME_SPEED_SPREAD, HOME_SPEED_SPREAD);
            (scenario.speed_mops_median * factor / f64::from(slots(scenario, host))).max(1.0)
        }
    }
}

/// How much slower a slowed machine is than it says.
const SLOWED_TIMES: f64 = 10.0;

/// The speed at which tasks run on machine number `host`, in Mop/s per slot: less than what it says of itself if it is slowed.
pub fn true_speed_mops(scenario: &Scenario, host: u32) -> f64 {
    let mut rng = SmallStream::new(scenario.seed, "slowed", u64::from(host));
    let is_slowed = scenario.slowed_percent > 0.0 && crate::random::happens(&mut rng, scenario.slowed_percent);
    speed_mops(scenario, host) / if is_slowed { SLOWED_TIMES } else { 1.0 }
}

/// Tasks that machine number `host` runs at the same time.
pub fn slots(scenario: &Scenario, host: u32) -> u32 {
    let mut rng = SmallStream::new(scenario.seed, "cores", u64::from(host));
    match scenario.cores {
        Equipment::Paper => scenario.slots,
        Equipment::Desktops => quantile(&HOME_CORES, rng.random()).round() as u32,
        Equipment::Survey => loaded(&scenario.inputs.cores).quantile(rng.random()),
    }
}

/// Bandwidth of the uplink and of the downlink of machine number `host`, in bytes a second.
pub fn bandwidths_bytes_s(scenario: &Scenario, host: u32) -> (u64, u64) {
    let (up, down) = usual_bandwidths_bytes_s(scenario, host);
    let given = scenario.given_machine(host);
    (given.and_then(|given| given.up_bytes_s).unwrap_or(up), given.and_then(|given| given.down_bytes_s).unwrap_or(down))
}

fn usual_bandwidths_bytes_s(scenario: &Scenario, host: u32) -> (u64, u64) {
    let drawn: f64 = SmallStream::new(scenario.seed, "bandwidth", u64::from(host)).random();
    match scenario.bandwidths {
        Equipment::Paper => (scenario.bandwidth_bytes_s, scenario.bandwidth_bytes_s),
        Equipment::Survey => loaded(&scenario.inputs.bandwidths).draw(drawn),
        Equipment::Desktops => {
            // A fast downlink goes with a fast uplink: one draw for both, our choice.
            let normal = normal_quantile(drawn);
            let drawn = |(low, median, high): (f64, f64, f64)| {
                let sigma = ln(high / low) / (2.0 * NORMAL_QUARTILE);
                (median * exp(sigma * normal) * 125_000.0).max(1_000.0) as u64
            };
            (drawn(HOME_UP_MBIT_S), drawn(HOME_DOWN_MBIT_S))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::distribution::Distribution;
    use crate::log;
    use crate::survey::{Bandwidths, Cores};

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

    /// The value below which a share of all lies.
    fn at(mut values: Vec<f64>, share: f64) -> f64 {
        values.sort_by(f64::total_cmp);
        values[(values.len() as f64 * share) as usize]
    }

    #[track_caller]
    fn near(found: f64, expected: f64, part: f64) {
        assert!((found / expected - 1.0).abs() < part, "{found} instead of {expected}");
    }

    #[test]
    fn bags_of_a_production_grid() {
        let scenario = Scenario { bags: 20_000, workload: Workload::Desktops, ..Scenario::default() };
        let bags = bags(&scenario);
        let tasks: Vec<f64> = bags.iter().map(|bag| bag.tasks as f64).collect();
        for (share, expected) in [(0.5, 2.0), (0.75, 10.0), (0.95, 84.0), (0.99, 221.0)] {
            near(at(tasks.clone(), share), expected, 0.12);
        }
        let run_s: Vec<f64> = bags.iter().map(|bag| bag.task_mops / REFERENCE_MOPS).collect();
        near(run_s.iter().sum::<f64>() / 20_000.0, 7_990.0, 0.05);
        near(at(run_s, 0.5), 255.0, 0.05);
    }

    #[test]
    fn a_load_is_a_share_of_what_the_machines_can_do() {
        let hour = Duration::from_secs(3600);
        for churn in [None, Some(hour)] {
            let base = Scenario {
                bags: 5_000,
                churn,
                downtime: hour,
                owner_session: churn,
                owner_away: hour,
                owner_idle: Duration::ZERO,
                ..Scenario::default()
            };
            let scenario = Scenario { load: Some(0.7), ..base };
            let all: f64 = (0..scenario.nodes).map(|host| speed_mops(&scenario, host)).sum();
            let share = if churn.is_some() { 0.25 } else { 1.0 };
            near(capacity_mops(&scenario), all * share, 1e-9);
            let bags = bags(&scenario);
            let work: f64 = bags.iter().map(Bag::application_size_mops).sum();
            let span = bags[4_999].arrival.since(scenario.first_arrival()).as_secs_f64();
            near(work / span / capacity_mops(&scenario), 0.7, 0.05);
        }
    }

    #[test]
    fn a_user_s_pieces_are_its_bags_and_change_nothing_of_the_others() {
        let honest = Scenario { nodes: 20, bags: 200, heavy_tailed: true, user_percent: 30.0, ..Scenario::default() };
        let cheat = Scenario { user_splits_into: 10, user_declares_percent: 25.0, ..honest.clone() };
        let (wholes, pieces) = (bags(&honest), bags(&cheat));
        let users = wholes.iter().filter(|bag| bag.is_users()).count();
        assert!((40..80).contains(&users), "{users}");
        for (number, whole) in wholes.iter().enumerate() {
            let of_it: Vec<&Bag> = pieces.iter().filter(|bag| bag.whole == number).collect();
            if !whole.is_users() {
                assert_eq!(of_it, [whole]);
                continue;
            }
            assert_eq!((of_it.len() as u64, of_it[0].id), (whole.tasks.min(10), whole.id));
            assert_eq!(of_it.iter().map(|bag| bag.tasks).sum::<u64>(), whole.tasks);
            let (least, most) = (of_it.iter().map(|bag| bag.tasks).min(), of_it.iter().map(|bag| bag.tasks).max());
            assert!(least.unwrap() >= 1 && most.unwrap() <= least.unwrap() + 1);
            for bag in of_it {
                assert_eq!((bag.arrival, bag.task_mops), (whole.arrival, whole.task_mops));
                near(bag.declared_mops, whole.task_mops / 4.0, 1e-9);
            }
        }
        let ids: std::collections::BTreeSet<BagId> = pieces.iter().map(|bag| bag.id).collect();
        assert_eq!(ids.len(), pieces.len());
    }

    #[test]
    fn tasks_of_a_bag_vary_as_much_as_they_should() {
        let scenario = Scenario { task_cv: 0.45, ..Scenario::default() };
        let (id, arrival, task_mops, declared_mops) = (BagId([0; 32]), Time::ZERO, 5_000.0, 5_000.0);
        let bag =
            Bag { id, arrival, tasks: 20_000, task_mops, declared_mops, seat: None, whole: 3, first: 0, endless: None };
        let works: Vec<f64> = (0..bag.tasks).map(|index| work_mops(&scenario, 3, &bag, index)).collect();
        let mean = works.iter().sum::<f64>() / 2e4;
        let variance = works.iter().map(|work| (work - mean) * (work - mean)).sum::<f64>() / 2e4;
        near(mean, 5_000.0, 0.02);
        near(variance.sqrt() / mean, 0.45, 0.04);
        assert_eq!(work_mops(&Scenario::default(), 3, &bag, 7), 5_000.0);
    }

    #[test]
    fn homes_have_fast_and_slow_machines_and_links() {
        let homes = Equipment::Desktops;
        let scenario = Scenario { speeds: Speeds::Desktops, cores: homes, bandwidths: homes, ..Scenario::default() };
        let of =
            |value: fn(&Scenario, u32) -> f64| -> Vec<f64> { (0..8_000).map(|host| value(&scenario, host)).collect() };
        let speeds = of(|scenario, host| speed_mops(scenario, host) * f64::from(slots(scenario, host)));
        near(at(speeds.clone(), 0.75) / at(speeds.clone(), 0.25), 5.0, 0.07);
        near(at(speeds, 0.5), 2_000.0, 0.05);
        let cores = of(|scenario, host| f64::from(slots(scenario, host)));
        assert_eq!([0.25, 0.5, 0.9].map(|share| at(cores.clone(), share)), [6.0, 8.0, 16.0]);
        for (share, up, down) in [(0.25, 13.0, 23.0), (0.5, 20.0, 36.0), (0.75, 37.0, 69.0)] {
            // Quartiles of a lognormal through the outer two: the median is a little off the middle one.
            near(at(of(|scenario, host| bandwidths_bytes_s(scenario, host).0 as f64 / 125e3), share), up, 0.12);
            near(at(of(|scenario, host| bandwidths_bytes_s(scenario, host).1 as f64 / 125e3), share), down, 0.12);
        }
    }

    #[test]
    fn a_log_s_bags_come_as_they_did_or_at_a_load() {
        let text = "1 0 0 100 2 0 0 0 0 0 0 1 0 0 0 0 0 0\n2 500 0 300 1 0 0 0 0 0 0 1 0 0 0 0 0 0\n";
        let mut scenario = Scenario { workload: Workload::Log, bags: 9, nodes: 2, ..Scenario::default() };
        scenario.inputs.bags = Some(Arc::new(log::parse(text).unwrap()));
        let found = bags(&scenario);
        let since = |bag: &Bag| bag.arrival.since(scenario.first_arrival()).as_secs_f64();
        let seen: Vec<_> = found.iter().map(|bag| (bag.tasks, bag.task_mops, since(bag).round())).collect();
        assert_eq!(seen, [(2, 200_000.0, 0.0), (1, 600_000.0, 500.0)]);
        assert_eq!(work_mops(&scenario, 1, &found[1], 0), 600_000.0);
        let capacity = capacity_mops(&scenario);
        let scenario = Scenario { load: Some(0.5), ..scenario.clone() };
        near(since(&bags(&scenario)[1]), 1e6 / capacity / 0.5, 1e-6);
    }

    #[test]
    fn users_of_a_log_have_machines_of_their_own_wherever_its_bags_begin() {
        let bag = |number: u32| ObservedBag {
            arrival: Duration::from_secs(u64::from(number)),
            tasks_s: vec![1.0],
            outputs_bytes: Vec::new(),
            // Ever new users: those of any six bags that follow each other are four, of which two come twice.
            user: Some(number / 2 + number % 2),
        };
        let mut scenario =
            Scenario { workload: Workload::Log, bags: 6, nodes: 6, log_anywhere: true, ..Scenario::default() };
        scenario.inputs.bags = Some(Arc::new((0..100).map(bag).collect()));
        for seed in 0..20 {
            let scenario = Scenario { seed, ..scenario.clone() };
            let users = (0..6).map(|number| observed_bag(&scenario, number).unwrap().user);
            let seats = bags(&scenario).into_iter().map(|bag| bag.seat);
            let pairs: std::collections::BTreeSet<_> = users.zip(seats).collect();
            let [users, seats] = [0, 1].map(|which| {
                let of = |pair: &(Option<u32>, Option<u32>)| [pair.0, pair.1][which];
                pairs.iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
            });
            assert_eq!((pairs.len(), seats), (users, users), "seed {seed}: {pairs:?}");
        }
    }

    /// Also for a user who splits its bags: a piece has the tasks of its part.
    #[test]
    fn bags_of_workflows_are_drawn_and_their_tasks_are_those_of_the_run() {
        let bag = |tasks_s: &[f32], outputs_bytes: &[u64]| ObservedBag {
            arrival: Duration::ZERO,
            tasks_s: tasks_s.into(),
            outputs_bytes: outputs_bytes.into(),
            user: None,
        };
        let workflows = [bag(&[0.5, 1.5, 4.0], &[7, 8, 9]), bag(&[10.0], &[1])];
        let mut scenario =
            Scenario { workload: Workload::Workflows, bags: 60, user_percent: 50.0, ..Scenario::default() };
        scenario.inputs.bags = Some(Arc::new(workflows.into()));
        let scenario = Scenario { user_splits_into: 2, ..scenario };
        let found = bags(&scenario);
        assert!(found.windows(2).all(|pair| pair[0].arrival <= pair[1].arrival));
        let mut kinds: BTreeMap<(Vec<u64>, Vec<u64>), usize> = BTreeMap::new();
        for (number, bag) in found.iter().enumerate() {
            let works = (0..bag.tasks).map(|index| work_mops(&scenario, number, bag, index) as u64).collect();
            let outputs = (0..bag.tasks).map(|index| output_bytes(&scenario, bag, index)).collect();
            *kinds.entry((works, outputs)).or_default() += 1;
        }
        let expected: [(&[u64], &[u64]); 4] =
            [(&[1_000], &[7]), (&[1_000, 3_000, 8_000], &[7, 8, 9]), (&[3_000, 8_000], &[8, 9]), (&[20_000], &[1])];
        let expected = expected.map(|(works, outputs)| (works.to_vec(), outputs.to_vec()));
        assert_eq!(kinds.keys().cloned().collect::<Vec<_>>(), expected);
        assert!(kinds.values().all(|&count| count >= 5), "{kinds:?}");
        assert_eq!(output_bytes(&Scenario::default(), &found[0], 0), 1_000);
    }

    #[test]
    fn bags_follow_the_distributions_of_files() {
        let distribution = |text| Some(Arc::new(Distribution::parse(text).unwrap()));
        let mut scenario = Scenario { workload: Workload::Distributions, bags: 4_000, ..Scenario::default() };
        scenario.inputs.tasks = distribution("0 0\n1 0.5\n40 1\n");
        scenario.inputs.lengths = distribution("10000 0.25\n20000 1\n");
        let spaced = |scenario: &Scenario| {
            let found = bags(scenario);
            let share = |is: fn(&Bag) -> bool| found.iter().filter(|bag| is(bag)).count() as f64 / 4e3;
            near(share(|bag| bag.tasks == 1), 0.5, 0.05);
            near(share(|bag| bag.tasks == 40 && bag.task_mops == 20_000.0), 0.375, 0.07);
            let between = found.windows(2).map(|pair| pair[1].arrival.since(pair[0].arrival).as_secs_f64());
            between.collect::<Vec<f64>>()
        };
        let mean = |between: &[f64]| between.iter().sum::<f64>() / between.len() as f64;
        near(mean(&spaced(&scenario)), 10.0, 0.05);
        scenario.inputs.intervals = distribution("0 0.5\n60 1\n");
        let between = spaced(&scenario);
        near(mean(&between), 30.0, 0.05);
        assert!(between.iter().all(|between| [0.0, 60.0].iter().any(|of| (between - of).abs() < 0.01)));
        let all_mops: f64 = bags(&scenario).iter().map(Bag::application_size_mops).sum();
        let scenario = Scenario { load: Some(0.5), ..scenario };
        near(mean(&spaced(&scenario)) * 4e3, all_mops / capacity_mops(&scenario) / 0.5, 0.05);
    }

    #[test]
    fn machines_may_be_as_a_survey_found_them() {
        let survey = Equipment::Survey;
        let mut scenario = Scenario { cores: survey, bandwidths: survey, ..Scenario::default() };
        scenario.inputs.cores = Some(Arc::new(
            Cores::parse("2026-04-01,Physical CPUs,4 cpus,,0.25\n2026-04-01,Physical CPUs,8 cpus,,0.75\n").unwrap(),
        ));
        let text = r#"{"cities": {"a": {"up_mbits": 1, "down_mbits": 2}, "b": {"up_mbits": 3, "down_mbits": 9}}}"#;
        scenario.inputs.bandwidths = Some(Arc::new(Bandwidths::parse(text).unwrap()));
        let all = || 0..2_000;
        assert!(all().all(|host| [4, 8].contains(&slots(&scenario, host))));
        near(all().filter(|&host| slots(&scenario, host) == 8).count() as f64, 1_500.0, 0.05);
        let fast = (375_000, 1_125_000);
        assert!(all().all(|host| [(125_000, 250_000), fast].contains(&bandwidths_bytes_s(&scenario, host))));
        near(all().filter(|&host| bandwidths_bytes_s(&scenario, host) == fast).count() as f64, 1_000.0, 0.1);
    }
}
