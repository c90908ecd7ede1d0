//! The offline bound, which no scheduler can pass.
//!
//! One machine as fast as all machines together that are up, which may divide itself among bags as it likes and knows
//! every arrival: on it a maximum stretch is feasible exactly if earliest deadline first with preemption meets all
//! deadlines (Horn 1974). Any schedule of the real machines is possible there, too. Moreover, no bag is done before one
//! of its tasks could be on the fastest machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::instance::Instance;

/// Relative error of the bound, downwards: it stays a bound.
const ERROR: f64 = 1e-7;

/// The smallest maximum of (C − r)/size that any schedule can have, to a relative 10⁻⁷; 0 where there are no bags.
///
/// Machines that are down contribute nothing. Work due after the horizon is not required.
pub fn offline_bound(instance: &Instance, sizes: &[f64]) -> f64 {
    let capacity = Capacity::of(instance);
    let fastest = instance.machines.iter().map(|machine| machine.speed_mops).fold(0.0, f64::max);
    let alone = sizes.iter().enumerate().map(|(number, size)| {
        // Work unfinished at the horizon counts as finished then.
        let remaining_s = instance.horizon.since(instance.bags[number].arrival).as_secs_f64();
        (instance.work_mops(number).1 / fastest).min(remaining_s) / size
    });
    let mut low = alone.fold(0.0, f64::max);
    if low == 0.0 || capacity.is_feasible(instance, sizes, low) {
        return low;
    }
    let mut high = low * 2.0;
    while !capacity.is_feasible(instance, sizes, high) {
        low = high;
        high *= 2.0;
    }
    while high - low > ERROR * low {
        let middle = low + (high - low) / 2.0;
        if capacity.is_feasible(instance, sizes, middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    low
}

/// The work that all machines together can do by a time: piecewise linear.
struct Capacity {
    /// Where a piece begins: second, Mop done until then, Mop/s from then on.
    pieces: Vec<(f64, f64, f64)>,
    horizon_s: f64,
}

impl Capacity {
    fn of(instance: &Instance) -> Self {
        let mut changes = Vec::new();
        for machine in &instance.machines {
            let speed_mops = machine.speed_mops * f64::from(machine.slots);
            for session in &machine.sessions {
                changes.push((session.from, speed_mops));
                changes.push((session.to, -speed_mops));
            }
        }
        changes.sort_by_key(|change| change.0);
        let mut pieces = vec![(0.0, 0.0, 0.0)];
        for (at, change) in changes {
            let (from_s, work, speed_mops) = pieces[pieces.len() - 1];
            let at_s = at.as_secs_f64();
            // The rest of a sum that should be 0 is rounding, not speed.
            let speed_mops_then = speed_mops + change;
            let speed_mops_then = if speed_mops_then > 1e-6 { speed_mops_then } else { 0.0 };
            pieces.push((at_s, work + (at_s - from_s) * speed_mops, speed_mops_then));
        }
        Self { pieces, horizon_s: instance.horizon.as_secs_f64() }
    }

    fn work_mops(&self, at_s: f64) -> f64 {
        if at_s >= self.horizon_s {
            return f64::INFINITY;
        }
        let after = self.pieces.partition_point(|piece| piece.0 <= at_s);
        let (from_s, work, speed_mops) = self.pieces[after.saturating_sub(1)];
        work + (at_s - from_s) * speed_mops
    }

    /// Earliest deadline first with preemption, on an axis of work instead of time: there the machine has speed 1.
    fn is_feasible(&self, instance: &Instance, sizes: &[f64], stretch: f64) -> bool {
        let mut jobs: Vec<(f64, f64, f64)> = Vec::with_capacity(sizes.len());
        for (number, (bag, size)) in instance.bags.iter().zip(sizes).enumerate() {
            let release_s = bag.arrival.as_secs_f64();
            let due = self.work_mops(release_s + stretch * size);
            jobs.push((self.work_mops(release_s), due, instance.work_mops(number).0));
        }
        jobs.sort_by(|one, other| one.0.total_cmp(&other.0));
        // By deadline: the bits of positive numbers sort like the numbers.
        let mut waiting: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut left: Vec<f64> = jobs.iter().map(|job| job.2).collect();
        let mut next = 0;
        let mut done = 0.0;
        loop {
            if waiting.is_empty() {
                let Some(job) = jobs.get(next) else { return true };
                done = job.0.max(done);
            }
            while let Some(job) = jobs.get(next).filter(|job| job.0 <= done) {
                waiting.push(Reverse((job.1.to_bits(), next)));
                next += 1;
            }
            let Some(&Reverse((_, first))) = waiting.peek() else { return true };
            let until = jobs.get(next).map_or(f64::INFINITY, |job| job.0);
            if done + left[first] <= until {
                done += left[first];
                if done > jobs[first].1 * (1.0 + 1e-12) {
                    return false;
                }
                waiting.pop();
            } else {
                left[first] -= until - done;
                done = until;
            }
        }
    }
}
