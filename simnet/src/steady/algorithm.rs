//! The algorithms that are compared, and what each of them comes to on a platform.

use clap::ValueEnum;
use idlewood_scheduler::shares::{Task, quota};

use super::bandwidth_centric::{coarse_grain, macro_task};
use super::platform::{Application, Machine, Platform, Rates};
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
                let rates = trimmed(platform, &of.rates);
                let received = platform.received(&rates);
                let room = Room::Typed(quotas(platform, &rates, &received));
                let policy = Policy::Rates { own: rates, received, is_paced: true };
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

/// The same rates without what any application has beyond the smallest ρ_k/ω_k. Otherwise one that has ten times as much ends all its tasks, and so the
/// measurement, while the first of the others are still underway.
fn trimmed(platform: &Platform, rates: &Rates) -> Rates {
    let fair = platform.fair_of(rates);
    let sums = &platform.received(rates)[0];
    let share = |(of, sum): (&Application, &f64)| if *sum > 0.0 { (fair * of.weight / sum).min(1.0) } else { 0.0 };
    let shares: Vec<f64> = platform.applications.iter().zip(sums).map(share).collect();
    rates.iter().map(|of| of.iter().zip(&shares).map(|(rate, share)| rate * share).collect()).collect()
}

/// Whole tasks at these rates, with one buffer for all kinds.
fn by_rates(platform: &Platform, rates: &Rates, setting: Setting) -> f64 {
    let rates = trimmed(platform, rates);
    let policy = Policy::Rates { received: platform.received(&rates), own: rates, is_paced: false };
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

/// Quotas of each machine and application: for the longest while in which its processor, its port or that of its parent does one thing.
fn quotas(platform: &Platform, own: &Rates, received: &Rates) -> Vec<Vec<u64>> {
    let tasks = platform.tasks();
    let (mut processors_s, mut ports_s) = (vec![0.0_f64; own.len()], vec![0.0_f64; own.len()]);
    for (number, machine) in platform.machines.iter().enumerate() {
        for (kind, Task { mop, bytes }) in tasks.iter().enumerate() {
            if own[number][kind] > 0.0 {
                processors_s[number] = processors_s[number].max(mop / machine.mflop_s);
            }
            if let Some(parent) = machine.parent.filter(|_| received[number][kind] > 0.0) {
                ports_s[parent] = ports_s[parent].max(bytes / (machine.mb_s * 1e6));
            }
        }
    }
    let of_machine = |(number, machine): (usize, &Machine)| -> Vec<u64> {
        let of_parent_s = machine.parent.map_or(0.0, |parent| ports_s[parent]);
        let longest_s = processors_s[number].max(ports_s[number]).max(of_parent_s);
        received[number].iter().map(|rate| quota(*rate, longest_s)).collect()
    };
    platform.machines.iter().enumerate().map(of_machine).collect()
}
