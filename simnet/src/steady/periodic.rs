//! The periodic schedule of §3.2: what is received in one period is computed or sent on in the next one.
//!
//! The paper's period is the least common multiple of the rates' denominators, "extraordinarily large". Here it is doubled from the time of one task of
//! each application on, until rounding down to whole tasks costs little; what fits into a period at the rates still fits when it is rounded down.

use super::platform::{Platform, Rates};

/// What rounding may cost of the fair throughput.
const ROUNDING: f64 = 0.01;
/// Periods after the one in which the furthest machine receives its first tasks.
const PERIODS: usize = 20;
/// Rounding errors of the times in a period.
const LATE: f64 = 1.0 + 1e-9;

/// What the schedule does in simulation.
pub(super) struct Outcome {
    /// Smallest ρ_k/ω_k in the last [`PERIODS`].
    pub(super) fair: f64,
    pub(super) period_s: f64,
    /// Most tasks that a machine holds for computing and sending on.
    pub(super) buffer_tasks_max: u64,
}

/// Tasks of one period by machine and application.
struct Schedule {
    own: Vec<Vec<u64>>,
    /// Of the machine and all below it.
    received: Vec<Vec<u64>>,
}

impl Schedule {
    fn new(platform: &Platform, rates: &Rates, period_s: f64) -> Self {
        // Rates of which the product is a whole number must not lose a task to rounding errors.
        let whole = |rate: &f64| (rate * period_s * (1.0 + 1e-12)).floor() as u64;
        let own: Vec<Vec<u64>> = rates.iter().map(|of| of.iter().map(whole).collect()).collect();
        let mut received = own.clone();
        for machine in (1..own.len()).rev() {
            let of = received[machine].clone();
            let parent = platform.machines[machine].parent.expect("only the root has no parent");
            received[parent].iter_mut().zip(of).for_each(|(sum, tasks)| *sum += tasks);
        }
        Self { own, received }
    }

    fn fair(&self, platform: &Platform, period_s: f64) -> f64 {
        platform.fair(&self.received[0].iter().map(|tasks| *tasks as f64 / period_s).collect::<Vec<f64>>())
    }
}

/// The schedule of these rates, in simulation.
pub(super) fn run(platform: &Platform, rates: &Rates) -> Outcome {
    let fair = platform.fair_of(rates);
    let mut period_s = fair.recip();
    let mut schedule = Schedule::new(platform, rates, period_s);
    while schedule.fair(platform, period_s) < (1.0 - ROUNDING) * fair {
        period_s *= 2.0;
        schedule = Schedule::new(platform, rates, period_s);
    }
    let done = simulate(platform, &schedule, period_s);
    let per_s = |tasks: &u64| *tasks as f64 / (period_s * PERIODS as f64);
    Outcome {
        fair: platform.fair(&done.iter().map(per_s).collect::<Vec<f64>>()),
        period_s,
        buffer_tasks_max: 2 * schedule.received.iter().skip(1).map(|of| of.iter().sum::<u64>()).max().unwrap_or(0),
    }
}

/// Tasks of each application that are done in the last periods. A machine begins a task only if it had arrived before the
/// period, and what does not end within the period is not done.
fn simulate(platform: &Platform, schedule: &Schedule, period_s: f64) -> Vec<u64> {
    let (children, count) = (platform.children(), platform.applications.len());
    let mut held = vec![vec![0_u64; count]; platform.machines.len()];
    let mut done = vec![0; count];
    let fill = platform.height();
    for period in 0..fill + PERIODS {
        let mut arrived = vec![vec![0_u64; count]; platform.machines.len()];
        held[0].clone_from(&schedule.received[0]);
        for (machine, of) in platform.machines.iter().enumerate() {
            let (mut computed_s, mut sent_s) = (0.0, 0.0);
            for (application, task) in platform.applications.iter().enumerate() {
                let have = &mut held[machine][application];
                for _ in 0..schedule.own[machine][application].min(*have) {
                    computed_s += task.mflop / of.mflop_s;
                    *have -= 1;
                    done[application] += u64::from(computed_s <= period_s * LATE && period >= fill);
                }
                for &child in &children[machine] {
                    for _ in 0..schedule.received[child][application].min(*have) {
                        sent_s += task.mb / platform.machines[child].mb_s;
                        *have -= 1;
                        arrived[child][application] += u64::from(sent_s <= period_s * LATE);
                    }
                }
            }
        }
        for (held, arrived) in held.iter_mut().zip(arrived) {
            held.iter_mut().zip(arrived).for_each(|(held, arrived)| *held += arrived);
        }
    }
    done
}
