//! A router's arithmetic (paper §6): at which stretch its children can take a request, whether that is good
//! enough, and which child gets how many tasks. No task is lost or invented, whatever the inputs.

use std::cmp::Reverse;

use crate::ranges::IntervalSet;
use crate::summary::{STRETCHES, Summary};

/// Splits `n` tasks in proportion to `weights`; the remainders go where they are largest, ties to the first.
///
/// No part exceeds its `room` while another has room left: what does not fit one part goes to the others in
/// proportion, to parts of weight 0 (evenly) only when all others are full, and what fits none is split in
/// proportion without regard to room (evenly where all weights are 0). The parts sum to `n`; there are none for no
/// weights.
///
/// # Panics
/// When `weights` and `room` differ in length.
pub fn proportional_split(n: u64, weights: &[u64], room: &[u64]) -> Vec<u64> {
    assert_eq!(weights.len(), room.len(), "one room for each weight");
    let mut parts = vec![0; weights.len()];
    let mut left = n;
    // Those with weight first, then those without, as if they had equal ones.
    let weighted = |index: usize| weights[index] > 0;
    let share = |index: usize| if weighted(index) { weights[index] } else { 1 };
    for with_weight in [true, false] {
        let mut open: Vec<usize> =
            (0..parts.len()).filter(|&index| weighted(index) == with_weight && room[index] > 0).collect();
        // Whoever gets more than fits is filled up; the others then share the rest.
        while left > 0 && !open.is_empty() {
            let sum: u128 = open.iter().map(|&index| u128::from(share(index))).sum();
            let overflows =
                |&index: &usize| u128::from(left) * u128::from(share(index)) > u128::from(room[index]) * sum;
            let (full, rest): (Vec<usize>, Vec<usize>) = open.iter().partition(|index| overflows(index));
            if full.is_empty() {
                distribute(left, &open, share, &mut parts);
                left = 0;
            }
            for index in full {
                parts[index] = room[index];
                left -= room[index];
            }
            open = rest;
        }
    }
    let all: Vec<usize> = (0..parts.len()).collect();
    if weights.iter().any(|&weight| weight > 0) {
        distribute(left, &all, |index| weights[index], &mut parts);
    } else {
        distribute(left, &all, |_| 1, &mut parts);
    }
    parts
}

/// Adds `n` to the parts with the given indices, in proportion to their shares, by largest remainders.
fn distribute(n: u64, indices: &[usize], share: impl Fn(usize) -> u64, parts: &mut [u64]) {
    let sum: u128 = indices.iter().map(|&index| u128::from(share(index))).sum();
    if n == 0 || sum == 0 {
        return;
    }
    let mut left = n;
    let mut remainders = Vec::with_capacity(indices.len());
    for &index in indices {
        let exact = u128::from(n) * u128::from(share(index));
        // A share of n is at most n.
        let whole = (exact / sum) as u64;
        parts[index] += whole;
        left -= whole;
        remainders.push((Reverse(exact % sum), index));
    }
    remainders.sort_unstable();
    for &(_, index) in remainders.iter().take(left as usize) {
        parts[index] += 1;
    }
}

/// Splits `n` tasks where no stretch is feasible: by the children's sums of speeds; by their numbers of leaves
/// where no speed is positive; evenly where there are no leaves either (paper §6; the fallback is ours).
///
/// # Panics
/// When the lengths differ.
pub fn split_by_speed(n: u64, speeds_mops: &[f64], leaves: &[u64]) -> Vec<u64> {
    assert_eq!(speeds_mops.len(), leaves.len(), "one number of leaves for each speed");
    let unlimited = vec![u64::MAX; leaves.len()];
    let usable = |speed: f64| if speed > 0.0 && speed.is_finite() { speed } else { 0.0 };
    let fastest = speeds_mops.iter().copied().map(usable).fold(0.0, f64::max);
    if fastest == 0.0 {
        return proportional_split(n, leaves, &unlimited);
    }
    // To whole numbers: 40 bits below the fastest, at least 1 where there is any speed.
    let weight = |speed: f64| {
        if speed > 0.0 { ((speed / fastest * (1_u64 << 40) as f64) as u64).max(1) } else { 0 }
    };
    let weights: Vec<u64> = speeds_mops.iter().copied().map(usable).map(weight).collect();
    proportional_split(n, &weights, &unlimited)
}

/// Splits a request's tasks among children at the stretch that was chosen: in proportion to what each has
/// available there, never more than that while another has some left; by speed where there is no such stretch or
/// nothing is available at it.
pub fn split_tasks(children: &[&Summary], request: &Request, s_index: Option<usize>) -> Vec<u64> {
    let available: Vec<u64> = children
        .iter()
        .map(|child| {
            s_index.map_or(0, |index| {
                child.tasks(index, request.age_s, request.application_size_mops, request.task_mops)
            })
        })
        .collect();
    if available.iter().any(|&tasks| tasks > 0) {
        return proportional_split(request.tasks, &available, &available);
    }
    let speeds_mops: Vec<f64> = children.iter().map(|child| child.speed_mops).collect();
    let leaves: Vec<u64> = children.iter().map(|child| child.leaves).collect();
    split_by_speed(request.tasks, &speeds_mops, &leaves)
}

/// Cuts a set of task indices into parts of the given sizes, in ascending order, so that each part has as few
/// intervals as possible. Where the sizes sum to less than the set holds, the last part gets the rest; where they
/// sum to more, the last ones come short. There are no parts, and nothing is kept, for no sizes.
pub fn split_ranges(set: IntervalSet, parts: &[u64]) -> Vec<IntervalSet> {
    let mut rest = set;
    let mut cut: Vec<IntervalSet> = parts.iter().map(|&size| rest.take_first(size)).collect();
    if let Some(last) = cut.last_mut() {
        last.extend_with(&rest);
    }
    cut
}

/// What a router needs to know of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Number of tasks that this request places (n); may be fewer than the bag has.
    pub tasks: u64,
    /// Size of one task (a), Mop.
    pub task_mops: f64,
    /// Size of the whole bag, real or effective (w or w'), Mop.
    pub application_size_mops: f64,
    /// Seconds since the bag was submitted (g).
    pub age_s: f64,
}

/// What a router does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The sample of the stretch at which the subtree can take it, an index into
    /// [`STRETCHES`]; `None` where there is none.
    pub s_index: Option<usize>,
    /// Whether to place it here; else it climbs to the parent.
    pub good_enough: bool,
}

/// Finds the smallest stretch at which `children` can take the request and judges it (paper §6): accept if and
/// only if S ≤ `bound` · `minimum_stretch`, the bound B ≥ 1 and the platform's S_min as spread from the root.
/// With `accepts_always` (the root, or a request that comes from above) even a request that fits nowhere is taken.
///
/// S is a sample, so it lies up to a factor 1.5 above what would do; a bound below 1.5 makes nearly all climb, and
/// all do while any machine is idle, since S_min is then 0.
pub fn choose(
    children: &[&Summary],
    request: &Request,
    bound: f64,
    minimum_stretch: f64,
    accepts_always: bool,
) -> Decision {
    let s_index = Summary::smallest_stretch(
        children,
        request.tasks,
        request.age_s,
        request.application_size_mops,
        request.task_mops,
    );
    let bounded = s_index.is_some_and(|index| STRETCHES[index] <= bound * minimum_stretch);
    Decision { s_index, good_enough: accepts_always || bounded }
}
