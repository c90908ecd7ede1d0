//! Rates of DATA-CENTRIC (§4.5): bandwidth-centric ones of the application with the most bytes for an operation, of which tasks are replaced by those
//! of others until all have nearly the same throughput. Where the paper is silent, docs/lab/steady.md says what we chose.

use idlewood_scheduler::shares::Task;

use super::bandwidth_centric::{by_bandwidth, rates as single};
use super::platform::{Platform, Rates};

/// "until we reach a satisfying balance".
const BALANCE: f64 = 0.05;
/// Bus de-saturation: by what tasks are scaled down.
const SCALED_DOWN: f64 = 0.9;
/// Operations at most; it may never end.
const STEPS_MAX: usize = 5_000;
/// An operation that changes less than this share of the larger throughput is not worth doing.
const WORTH: f64 = 1e-4;

struct State<'a> {
    platform: &'a Platform,
    /// ω_k tasks as one, so that all weights are 1.
    tasks: Vec<Task>,
    children: Vec<Vec<usize>>,
    rates: Rates,
}

/// Rates after the last operation.
pub(super) fn rates(platform: &Platform) -> Rates {
    let scaled = |of: &super::platform::Application| Task { mop: of.weight * of.mflop, bytes: of.weight * of.mb * 1e6 };
    let tasks: Vec<Task> = platform.applications.iter().map(scaled).collect();
    let ratio = |task: &Task| task.bytes / task.mop;
    let first = (0..tasks.len()).max_by(|one, other| ratio(&tasks[*one]).total_cmp(&ratio(&tasks[*other])));
    let first = first.expect("a platform has applications");
    let of_machine = |rate: &f64| (0..tasks.len()).map(|at| if at == first { *rate } else { 0.0 }).collect();
    let rates = single(platform, tasks[first]).iter().map(of_machine).collect();
    let mut state = State { platform, tasks, children: by_bandwidth(platform), rates };
    for _ in 0..STEPS_MAX {
        if !state.step() {
            break;
        }
    }
    let mut rates = state.rates;
    for of in &mut rates {
        of.iter_mut().zip(&platform.applications).for_each(|(rate, application)| *rate *= application.weight);
    }
    rates
}

impl State<'_> {
    /// One operation, of the first kind that is possible; none once the throughputs are balanced.
    fn step(&mut self) -> bool {
        let sum = |application: usize| self.rates.iter().map(|of| of[application]).sum::<f64>();
        let sums: Vec<f64> = (0..self.tasks.len()).map(sum).collect();
        let by_sum = |one: &usize, other: &usize| sums[*one].total_cmp(&sums[*other]);
        let most = (0..sums.len()).max_by(by_sum).expect("a platform has applications");
        let least = (0..sums.len()).min_by(by_sum).expect("a platform has applications");
        let difference = sums[most] - sums[least];
        if difference < BALANCE * sums[least] || most == least {
            return false;
        }
        let worth = WORTH * sums[most];
        self.trade_communication(most, least, difference, worth)
            || self.fill_gap(least, difference, worth)
            || self.desaturate(most, worth)
            || self.trade_at_root(most, least, difference, worth)
    }

    /// What the processor of a machine does not use.
    fn idle_mops(&self, machine: usize) -> f64 {
        let used: f64 = self.tasks.iter().zip(&self.rates[machine]).map(|(task, rate)| task.mop * rate).sum();
        (self.platform.machines[machine].mflop_s - used).max(0.0)
    }

    /// What the port of each machine does not use, as a share of its time.
    fn idle_ports(&self) -> Vec<f64> {
        let mut idle = vec![1.0; self.rates.len()];
        for (machine, received) in self.platform.machines.iter().zip(self.platform.received(&self.rates)) {
            if let Some(parent) = machine.parent {
                let bytes: f64 = self.tasks.iter().zip(&received).map(|(task, rate)| task.bytes * rate).sum();
                idle[parent] -= bytes / (machine.mb_s * 1e6);
            }
        }
        idle
    }

    /// A machine whose processor is not fully used gets others of the same bytes.
    fn trade_communication(&mut self, most: usize, least: usize, difference: f64, worth: f64) -> bool {
        let instead = self.tasks[most].bytes / self.tasks[least].bytes;
        let more_mop = instead * self.tasks[least].mop - self.tasks[most].mop;
        if more_mop <= 0.0 {
            return false;
        }
        let of = |machine: usize| {
            let traded = self.rates[machine][most].min(difference / (1.0 + instead));
            traded.min(self.idle_mops(machine) / more_mop)
        };
        let Some((machine, traded)) = largest((1..self.rates.len()).map(|machine| (machine, of(machine)))) else {
            return false;
        };
        if traded <= worth {
            return false;
        }
        self.rates[machine][most] -= traded;
        self.rates[machine][least] += traded * instead;
        true
    }

    /// A machine whose processor is not fully used gets more, if all ports towards it have time.
    fn fill_gap(&mut self, least: usize, difference: f64, worth: f64) -> bool {
        let idle = self.idle_ports();
        let mut reaching = vec![f64::INFINITY; self.rates.len()];
        for (number, machine) in self.platform.machines.iter().enumerate() {
            if let Some(parent) = machine.parent {
                let through = idle[parent].max(0.0) * machine.mb_s * 1e6 / self.tasks[least].bytes;
                reaching[number] = reaching[parent].min(through);
            }
        }
        let of =
            |machine: usize| reaching[machine].min(difference).min(self.idle_mops(machine) / self.tasks[least].mop);
        let Some((machine, more)) = largest((0..self.rates.len()).map(|machine| (machine, of(machine)))) else {
            return false;
        };
        if more <= worth {
            return false;
        }
        self.rates[machine][least] += more;
        true
    }

    /// The branch of the root with the smallest bandwidth that has such tasks gets fewer of them.
    fn desaturate(&mut self, most: usize, worth: f64) -> bool {
        let received = self.platform.received(&self.rates);
        let Some(&branch) = self.children[0].iter().rev().find(|child| received[**child][most] > worth) else {
            return false;
        };
        let mut is_below = vec![false; self.rates.len()];
        is_below[branch] = true;
        for machine in branch + 1..self.rates.len() {
            is_below[machine] = self.platform.machines[machine].parent.is_some_and(|parent| is_below[parent]);
        }
        for (of, _) in self.rates.iter_mut().zip(is_below).filter(|(_, is_below)| *is_below) {
            of[most] *= SCALED_DOWN;
        }
        true
    }

    /// The root computes others instead.
    fn trade_at_root(&mut self, most: usize, least: usize, difference: f64, worth: f64) -> bool {
        let instead = self.tasks[most].mop / self.tasks[least].mop;
        let traded = self.rates[0][most].min(difference / (1.0 + instead));
        if traded <= worth {
            return false;
        }
        self.rates[0][most] -= traded;
        self.rates[0][least] += traded * instead;
        true
    }
}

fn largest(values: impl Iterator<Item = (usize, f64)>) -> Option<(usize, f64)> {
    values.max_by(|one, other| one.1.total_cmp(&other.1))
}
