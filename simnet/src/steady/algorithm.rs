//! The algorithms that are compared, and what each of them comes to on a platform.

use clap::ValueEnum;
use idlewood_scheduler::shares::{Task, quota};

use super::bandwidth_centric::{coarse_grain, macro_task};
use super::platform::{Platform, Rates};
use super::policy::{Lane, Policy, Room};
use super::tasks::throughputs;
use super::{data_centric, periodic, waves};

/// How rates or tasks are found.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Algorithm {
    /// The best rates, by a general solver, and their periodic schedule.
    Periodic,
    /// The best rates, in the demand-driven algorithm with one buffer (the paper's LP).
    DemandDriven,
    /// First come, first served.
    Fcfs,
    /// Coarse-grain bandwidth-centric.
    Cgbc,
    /// Parallel bandwidth-centric.
    Pbc,
    /// Bandwidth-centric rates, traded until they are balanced.
    DataCentric,
    /// idlewood's: column generation by waves, and quotas by time.
    CgWave,
}

/// What an algorithm comes to on one platform. Throughputs are the smallest ρ_k/ω_k.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Of the rates that the algorithm computes.
    pub(super) fair_of_rates: Option<f64>,
    /// Of whole tasks in simulation.
    pub(super) fair_of_tasks: f64,
    /// How full the fullest processor or port is with the rates.
    pub(super) load: Option<f64>,
    /// CG-WAVE: throughput after each wave, and whether it is certified.
    pub(super) waves: Option<(Vec<f64>, bool)>,
    /// Periodic: seconds of a period, and tasks in the largest buffer.
    pub(super) period: Option<(f64, u64)>,
}

/// What the simulations of tasks take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    /// Tasks of an application of the smallest weight.
    pub(super) tasks: u64,
    /// Tasks of any kind that a machine has room for.
    pub(super) buffer: u64,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Periodic, Self::DemandDriven, Self::Fcfs, Self::Cgbc, Self::Pbc, Self::DataCentric, Self::CgWave];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Periodic => "periodic",
            Self::DemandDriven => "demand_driven",
            Self::Fcfs => "fcfs",
            Self::Cgbc => "cgbc",
            Self::Pbc => "pbc",
            Self::DataCentric => "data_centric",
            Self::CgWave => "cg_wave",
        }
    }

    /// Runs it; `best` are the best rates.
    pub(super) fn run(self, platform: &Platform, best: &Rates, setting: Setting) -> Outcome {
        match self {
            Self::Periodic => {
                let of = periodic::run(platform, best);
                let period = Some((of.period_s, of.buffer_tasks_max));
                Outcome { fair_of_tasks: of.fair, period, ..of_rates(platform, best) }
            }
            Self::DemandDriven => {
                Outcome { fair_of_tasks: by_rates(platform, best, setting), ..of_rates(platform, best) }
            }
            Self::Fcfs => {
                let policy = Policy::FirstCome { weights: platform.weights() };
                Outcome { fair_of_tasks: one_lane(platform, policy, untyped(setting), setting), ..Outcome::default() }
            }
            Self::Cgbc => {
                let lane = Lane { kinds: vec![0], policy: Policy::BandwidthCentric, room: untyped(setting) };
                let found = throughputs(platform, &[macro_task(platform)], vec![lane], &[setting.tasks]);
                Outcome { fair_of_tasks: found[0], ..of_rates(platform, &coarse_grain(platform)) }
            }
            Self::Pbc => {
                let lane =
                    |kind: usize| Lane { kinds: vec![kind], policy: Policy::BandwidthCentric, room: untyped(setting) };
                let lanes = (0..platform.applications.len()).map(lane).collect();
                Outcome { fair_of_tasks: simulated(platform, lanes, setting), ..Outcome::default() }
            }
            Self::DataCentric => {
                let rates = data_centric::rates(platform);
                Outcome { fair_of_tasks: by_rates(platform, &rates, setting), ..of_rates(platform, &rates) }
            }
            Self::CgWave => {
                let of = waves::run(platform);
                let received = platform.received(&of.rates);
                let room = Room::Typed(quotas(platform, &of.rates, &received));
                let policy = Policy::Rates { own: of.rates.clone(), received };
                let fair_of_tasks = one_lane(platform, policy, room, setting);
                let waves = Some((of.fair, of.is_certified));
                Outcome { fair_of_tasks, load: Some(of.load), waves, ..of_rates(platform, &of.rates) }
            }
        }
    }
}

fn of_rates(platform: &Platform, rates: &Rates) -> Outcome {
    Outcome { fair_of_rates: Some(platform.fair_of(rates)), load: Some(platform.load(rates)), ..Outcome::default() }
}

fn untyped(setting: Setting) -> Room {
    Room::Untyped(setting.buffer)
}

/// Whole tasks at these rates, with one buffer for all kinds.
fn by_rates(platform: &Platform, rates: &Rates, setting: Setting) -> f64 {
    let policy = Policy::Rates { own: rates.clone(), received: platform.received(rates) };
    one_lane(platform, policy, untyped(setting), setting)
}

fn one_lane(platform: &Platform, policy: Policy, room: Room, setting: Setting) -> f64 {
    let lane = Lane { kinds: (0..platform.applications.len()).collect(), policy, room };
    simulated(platform, vec![lane], setting)
}

fn simulated(platform: &Platform, lanes: Vec<Lane>, setting: Setting) -> f64 {
    let weights = platform.weights();
    let smallest = weights.iter().copied().fold(f64::INFINITY, f64::min);
    let count = |weight: &f64| (setting.tasks as f64 * weight / smallest).round() as u64;
    let counts: Vec<u64> = weights.iter().map(count).collect();
    platform.fair(&throughputs(platform, &platform.tasks(), lanes, &counts))
}

/// Quotas of each machine and application.
fn quotas(platform: &Platform, own: &Rates, received: &Rates) -> Vec<Vec<u64>> {
    let (tasks, children) = (platform.tasks(), platform.children());
    let of_machine = |machine: usize| -> Vec<u64> {
        let of = &platform.machines[machine];
        let mut longest_s = 0.0_f64;
        for (kind, Task { mop, bytes }) in tasks.iter().enumerate() {
            let is_there = |rates: &Rates, of: usize| rates[of][kind] > 0.0;
            if is_there(own, machine) {
                longest_s = longest_s.max(mop / of.mflop_s);
            }
            if is_there(received, machine) {
                longest_s = longest_s.max(bytes / (of.mb_s * 1e6));
            }
            let sent = children[machine].iter().filter(|child| is_there(received, **child));
            longest_s = sent.map(|child| bytes / (platform.machines[*child].mb_s * 1e6)).fold(longest_s, f64::max);
        }
        received[machine].iter().map(|rate| quota(*rate, longest_s)).collect()
    };
    (0..platform.machines.len()).map(of_machine).collect()
}
