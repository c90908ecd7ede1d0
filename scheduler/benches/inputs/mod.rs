//! Inputs of the benchmarks, from a fixed seed, and plain implementations to compare with: the algorithms as the
//! paper writes them, one sample at a time, without the care for speed.

use idlewood_scheduler::availability::available_tasks;
use idlewood_scheduler::queue::{Entry, Load};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::split::{Demand, choose, split_ranges, split_tasks};
use idlewood_scheduler::summary::{HORIZON_COUNT, HORIZONS_S, STRETCH_COUNT, STRETCHES, Summary, TASK_SIZES_MOPS};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Seed of all inputs.
pub(crate) const SEED: u64 = 3;
/// Lengths of the queue, bags.
pub(crate) const LENGTHS: [usize; 4] = [1, 10, 100, 1000];
/// Leaves below each child of the router.
pub(crate) const LEAVES: u64 = 16;

/// A leaf with so many bags: task sizes of 30 to 240 s on its one slot, ages up to a day, bags of 1 to 10,000 tasks
/// of which it holds up to 8.
pub(crate) fn load(bags: usize, leaf: u64) -> Load {
    let mut random = ChaCha8Rng::seed_from_u64(SEED ^ (bags as u64) << 32 ^ leaf << 16);
    let speed_mops = random.random_range(500.0..3000.0);
    let entries = (0..bags)
        .map(|_| {
            let task_mops = 1000.0 * random.random_range(30.0_f64.ln()..240.0_f64.ln()).exp();
            let tasks = random.random_range(0.0..10_000_f64.ln()).exp().ceil();
            let left = random.random_range(1.0..=tasks.min(8.0)).floor();
            let release_s = -random.random_range(0.0..86_400.0);
            Entry { release_s, application_size_mops: tasks * task_mops, task_mops, left }
        })
        .collect();
    Load { now_s: 0.0, speed_mops, slots: 1, preemptive: true, running_mops: vec![], entries }
}

/// The sum of the reports of [`LEAVES`] leaves, from leaf `first` on.
pub(crate) fn report(bags: usize, first: u64) -> Summary {
    let mut sum = Summary::empty();
    for leaf in first..first + LEAVES {
        sum.merge(&Summary::of_leaf(&load(bags, leaf)));
    }
    sum
}

/// The two children of a router.
pub(crate) fn children(bags: usize) -> [Summary; 2] {
    [report(bags, 0), report(bags, LEAVES)]
}

/// A request for 1,000 tasks of two minutes on a usual leaf.
pub(crate) fn request() -> Demand {
    Demand { tasks: 1000, task_mops: 120e3, application_size_mops: 120e6, age_s: 0.1 }
}

/// What a router does with one request: Algorithm 4, the split, the ranges, and the booking.
pub(crate) fn route(children: &mut [Summary; 2]) -> Vec<IntervalSet> {
    let request = request();
    let both = [&children[0], &children[1]];
    let decision = choose(&both, &request, 1.2, 1.0, true);
    let parts = split_tasks(&both, &request, decision.s_index);
    if let Some(s_index) = decision.s_index {
        for (child, part) in children.iter_mut().zip(&parts) {
            child.reserve(s_index, *part, request.task_mops);
        }
    }
    split_ranges(IntervalSet::from(0..request.tasks), &parts)
}

/// Plain implementations.
pub(crate) mod plain {
    use super::*;

    /// (deadline, work) of all bags, earliest deadline first.
    pub(crate) fn sorted(load: &Load, stretch: f64) -> Vec<(f64, f64)> {
        let mut bags: Vec<(f64, f64)> = load
            .entries
            .iter()
            .map(|entry| (entry.release_s + stretch * entry.application_size_mops, entry.left * entry.task_mops))
            .collect();
        bags.sort_by(|one, other| one.partial_cmp(other).expect("no bag has a deadline that is not a number"));
        bags
    }

    /// Algorithm 1.
    fn meets_deadlines(load: &Load, stretch: f64) -> bool {
        let mut end_s = load.now_s;
        sorted(load, stretch).into_iter().all(|(due_s, work_mops)| {
            end_s += work_mops / load.speed_mops;
            end_s <= due_s
        })
    }

    /// Algorithm 2.
    pub(crate) fn max_stretch(load: &Load) -> f64 {
        let (mut low, mut high) = (0.0, 1e-9);
        while !meets_deadlines(load, high) {
            low = high;
            high *= 2.0;
        }
        while high - low > 1e-6 * low {
            let middle = (low + high) / 2.0;
            if meets_deadlines(load, middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    /// A matrix with all its cells.
    pub(crate) type Matrix = Vec<u64>;

    /// Algorithm 3 for each sample on its own.
    pub(crate) fn matrix(load: &Load) -> Matrix {
        let mut cells = Vec::new();
        for stretch in STRETCHES {
            for horizon_s in HORIZONS_S {
                for task_mops in TASK_SIZES_MOPS {
                    cells.push(available_tasks(load, stretch, load.now_s, horizon_s / stretch, task_mops));
                }
            }
        }
        cells
    }

    /// The matrix of a summary.
    pub(crate) fn dense(summary: &Summary) -> Matrix {
        let mut cells = Vec::new();
        for (s_index, stretch) in STRETCHES.iter().enumerate() {
            for horizon_s in HORIZONS_S {
                for task_mops in TASK_SIZES_MOPS {
                    cells.push(summary.tasks(s_index, 0.0, horizon_s * (1.0 + 1e-12) / stretch, task_mops));
                }
            }
        }
        cells
    }

    /// Adds all cells.
    pub(crate) fn merge(one: &Matrix, other: &Matrix) -> Matrix {
        one.iter().zip(other).map(|(one, other)| one.saturating_add(*other)).collect()
    }

    /// All cells in variable-length integers.
    pub(crate) fn encode(cells: &Matrix) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &cell in cells {
            let mut rest = cell;
            while rest > 127 {
                bytes.push(rest as u8 | 128);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
        bytes
    }

    /// Reads what [`encode`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Matrix {
        let (mut cells, mut value, mut shift) = (Vec::new(), 0, 0);
        for &byte in bytes {
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                cells.push(value);
                (value, shift) = (0, 0);
            }
        }
        cells
    }

    /// One task after the other to the child with the largest share still open.
    pub(crate) fn split(n: u64, available: [u64; 2]) -> [u64; 2] {
        let total = (available[0] + available[1]) as f64;
        let mut parts = [0, 0];
        for _ in 0..n {
            let open = |child: usize| available[child] as f64 * n as f64 / total - parts[child] as f64;
            parts[usize::from(open(1) > open(0))] += 1;
        }
        parts
    }

    /// What a router does with one request, on matrices with all their cells.
    pub(crate) fn route(children: &mut [Matrix; 2]) -> [u64; 2] {
        let request = request();
        let at = |s_index: usize| {
            let horizon_s = STRETCHES[s_index] * request.application_size_mops - request.age_s;
            let horizon = HORIZONS_S.iter().rposition(|sample| *sample <= horizon_s)?;
            let size = TASK_SIZES_MOPS.iter().position(|sample| *sample >= request.task_mops)?;
            Some((s_index * HORIZON_COUNT + horizon) * TASK_SIZES_MOPS.len() + size)
        };
        let chosen = (0..STRETCH_COUNT).find_map(|s_index| {
            let at = at(s_index)?;
            let available = [children[0][at], children[1][at]];
            (available[0] + available[1] >= request.tasks).then_some((s_index, available))
        });
        let Some((s_index, available)) = chosen else { return [request.tasks, 0] };
        let parts = split(request.tasks, available);
        let kept = s_index * HORIZON_COUNT * TASK_SIZES_MOPS.len();
        for (child, part) in children.iter_mut().zip(parts) {
            for (position, cell) in child.iter_mut().enumerate().skip(kept) {
                let size = TASK_SIZES_MOPS[position % TASK_SIZES_MOPS.len()];
                let loss = (part as f64 * request.task_mops / size).ceil() as u64 + part.min(LEAVES);
                *cell = cell.saturating_sub(loss);
            }
        }
        parts
    }
}
