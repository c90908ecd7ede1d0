//! A router's arithmetic (paper §6): at which stretch its children can take a request, whether that is good
//! enough, and which child gets how many tasks. No task is lost or invented, whatever the inputs.

use std::cmp::Reverse;

use crate::ranges::IntervalSet;
use crate::summary::{Idle, STRETCH_COUNT, STRETCHES, Summary, SummaryForm, fastest, soonest};

/// Splits `n` tasks among children in proportion to each child's availability at the chosen stretch (paper §6). No child gets
/// more than that while another has room left; the largest remainders get one more, ties to the first.
///
/// Tasks beyond the sum of all availabilities are split by the children's sums of speeds (Mop/s); by their numbers of
/// leaves where no speed is positive; evenly where there are no leaves either (ours; the paper has no such case). The parts
/// sum to `n`; there are none for no children.
///
/// # Panics
/// When the three slices differ in length.
fn proportional_split(n: u64, available: &[u64], speeds_mops: &[f64], leaves: &[u64]) -> Vec<u64> {
    assert!(
        available.len() == speeds_mops.len() && available.len() == leaves.len(),
        "one availability, speed and number of leaves for each child"
    );
    let total: u128 = available.iter().map(|&tasks| u128::from(tasks)).sum();
    if u128::from(n) <= total {
        // A share never exceeds the child's availability, remainder included.
        return distribute(n, available);
    }
    // `total` is less than n, so it fits.
    let excess = distribute(n - total as u64, &weights_by_speed(speeds_mops, leaves));
    available.iter().zip(excess).map(|(tasks, more)| tasks + more).collect()
}

/// Weights for tasks for which no child has room: the speeds in steps of 2^-40 of the fastest, at least one step for any
/// positive speed; the numbers of leaves where there is none.
fn weights_by_speed(speeds_mops: &[f64], leaves: &[u64]) -> Vec<u64> {
    let usable = |speed: &f64| if speed.is_finite() { speed.max(0.0) } else { 0.0 };
    let fastest = speeds_mops.iter().map(usable).fold(0.0, f64::max);
    if fastest == 0.0 {
        return leaves.to_vec();
    }
    let steps = |speed: f64| if speed > 0.0 { ((speed / fastest * 2_f64.powi(40)) as u64).max(1) } else { 0 };
    speeds_mops.iter().map(usable).map(steps).collect()
}

/// Splits `n` in proportion to `weights` by largest remainders, ties to the first; evenly where all are 0.
fn distribute(n: u64, weights: &[u64]) -> Vec<u64> {
    let mut sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let even = sum == 0;
    if even {
        sum = weights.len() as u128;
    }
    let mut left = n;
    let mut remainders = Vec::with_capacity(weights.len());
    let mut parts = Vec::with_capacity(weights.len());
    for (index, &weight) in weights.iter().enumerate() {
        let exact = u128::from(n) * if even { 1 } else { u128::from(weight) };
        // A part of n is at most n.
        let whole = (exact / sum) as u64;
        parts.push(whole);
        left -= whole;
        remainders.push((Reverse(exact % sum), index));
    }
    remainders.sort_unstable();
    // Fewer are left than there are remainders above 0.
    for &(_, index) in remainders.iter().take(left as usize) {
        parts[index] += 1;
    }
    parts
}

/// Splits a request's tasks among children by their availability at the chosen stretch (`proportional_split`); where
/// `s_index` is `None` no child has any. With the paper's summaries in proportion to their availability whatever their sum (§6).
pub fn split_tasks(children: &[&Summary], request: &Demand, s_index: Option<usize>) -> Vec<u64> {
    let available = |child: &&Summary| {
        let Demand { task_mops, application_size_mops, age_s, .. } = *request;
        s_index.map_or(0, |s_index| child.tasks(s_index, age_s, application_size_mops, task_mops))
    };
    let available: Vec<u64> = children.iter().map(available).collect();
    if is_papers(children) && available.iter().any(|&tasks| tasks > 0) {
        return distribute(request.tasks, &available);
    }
    let speeds_mops: Vec<f64> = children.iter().map(|child| child.speed_mops).collect();
    let leaves: Vec<u64> = children.iter().map(|child| child.leaves).collect();
    proportional_split(request.tasks, &available, &speeds_mops, &leaves)
}

fn is_papers(children: &[&Summary]) -> bool {
    children.first().is_some_and(|child| child.form == SummaryForm::Paper)
}

/// Splits a request's tasks among children so that all end soonest on idle slots (ours, docs/adr/0021), since cells do not
/// show which machines are fast. `None` where there are fewer idle slots than tasks, and where the cells have an earlier
/// horizon by which all can be done at the chosen stretch, as on a fast machine that would preempt its running tasks.
pub fn split_among_idle(children: &[&Summary], request: &Demand, s_index: Option<usize>) -> Option<Vec<u64>> {
    let Demand { tasks, task_mops, .. } = *request;
    let idle: Vec<&Idle> = children.iter().map(|child| &child.idle).collect();
    let (by_s, parts) = soonest(&idle, tasks, task_mops)?;
    if Summary::earliest_s(children, s_index?, tasks, task_mops).is_some_and(|earliest_s| earliest_s < by_s) {
        return None;
    }
    // Of the tasks that end last, as many as are missing.
    let last: Vec<u64> = parts.iter().map(|part| part.1).collect();
    let missing = parts.iter().fold(tasks, |missing, part| missing - part.0);
    Some(parts.iter().zip(distribute(missing, &last)).map(|((least, _), more)| least + more).collect())
}

/// Splits tasks that are to begin at once, one on each idle slot, the fastest slots first, and those for which there is none as any others
/// (ours). Returns the parts, and whether each task has an idle slot.
pub fn split_at_once(children: &[&Summary], request: &Demand, s_index: Option<usize>) -> (Vec<u64>, bool) {
    let idle: Vec<&Idle> = children.iter().map(|child| &child.idle).collect();
    let (parts, missing) = fastest(&idle, request.tasks);
    let rest = split_tasks(children, &Demand { tasks: missing, ..*request }, s_index);
    (parts.iter().zip(rest).map(|(part, more)| part + more).collect(), missing == 0)
}

/// Cuts a set of task indices into parts of the given sizes, in ascending order, so that each part has as few
/// intervals as possible. Where the sizes sum to less than the set's, the last part gets the rest; where they
/// sum to more, the last parts come short. Without sizes there are no parts, and the set is lost.
pub fn split_ranges(set: IntervalSet, parts: &[u64]) -> Vec<IntervalSet> {
    let mut rest = set;
    let mut cut: Vec<IntervalSet> = parts.iter().map(|&size| rest.take_first(size)).collect();
    if let Some(last) = cut.last_mut() {
        last.extend_with(&rest);
    }
    cut
}

/// The numbers of a [`crate::Request`] that this arithmetic needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Number of tasks that it places (n); may be fewer than the bag has.
    pub tasks: u64,
    /// Size of one task (a), Mop.
    pub task_mops: f64,
    /// Size of the whole bag, real or effective (w or w'), Mop.
    pub application_size_mops: f64,
    /// Seconds since the bag was submitted (g).
    pub age_s: f64,
}

/// A router's decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The smallest sample of the stretch at which the subtree can take all tasks, an index into [`STRETCHES`];
    /// `None` where there is none.
    pub s_index: Option<usize>,
    /// Whether to place the request here; else it climbs to the parent.
    pub good_enough: bool,
}

/// Finds the smallest stretch S at which `children` together can take the request, and judges it (paper §6): good
/// enough if and only if S ≤ `bound` · `reference`, with the bound B ≥ 1 and as reference the platform's S_min as spread
/// from the root (the paper's rule) or the stretch that the whole grid would give this request (ours). With
/// `accepts_always` (at the root, or for a request from above) any S is good enough.
///
/// S is a sample, up to a factor 1.5 above the smallest sufficient stretch; with the paper's rule and a bound below 1.5
/// nearly all requests climb, and all do while any machine is idle, since S_min is then 0. With the paper's summaries S is the largest
/// sample where none suffices, as Algorithm 4 has it.
pub fn choose(children: &[&Summary], request: &Demand, bound: f64, reference: f64, accepts_always: bool) -> Decision {
    let Demand { tasks, task_mops, application_size_mops, age_s } = *request;
    let mut s_index = Summary::smallest_stretch(children, tasks, age_s, application_size_mops, task_mops);
    if is_papers(children) {
        s_index = s_index.or(Some(STRETCH_COUNT - 1));
    }
    let bounded = s_index.is_some_and(|index| STRETCHES[index] <= bound * reference);
    Decision { s_index, good_enough: accepts_always || bounded }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::{Entry, Load};

    fn sizes() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 0_u64..20, 0_u64..=1 << 40, any::<u64>()]
    }

    fn children() -> impl Strategy<Value = Vec<(u64, f64, u64)>> {
        let speed = prop_oneof![Just(0.0), 0.0..1e9_f64, Just(f64::NAN), Just(f64::INFINITY), Just(-4.0)];
        prop::collection::vec((sizes(), speed, sizes()), 1..7)
    }

    fn split(n: u64, children: &[(u64, f64, u64)]) -> Vec<u64> {
        let available: Vec<_> = children.iter().map(|child| child.0).collect();
        let speeds: Vec<_> = children.iter().map(|child| child.1).collect();
        let leaves: Vec<_> = children.iter().map(|child| child.2).collect();
        proportional_split(n, &available, &speeds, &leaves)
    }

    fn sum(parts: &[u64]) -> u128 {
        parts.iter().map(|&part| u128::from(part)).sum()
    }

    proptest! {
        #[test]
        fn no_task_is_lost_or_invented(n in sizes(), children in children()) {
            prop_assert_eq!(sum(&split(n, &children)), u128::from(n));
        }

        #[test]
        fn no_child_gets_more_than_available_while_another_has_room(n in sizes(), children in children()) {
            let parts = split(n, &children);
            let over = parts.iter().zip(&children).any(|(&part, child)| part > child.0);
            let under = parts.iter().zip(&children).any(|(&part, child)| part < child.0);
            prop_assert!(!(over && under), "{:?}", parts);
        }

        #[test]
        fn parts_are_within_one_of_their_share(
            n in 0_u64..1 << 40, available in prop::collection::vec(0_u64..1 << 40, 1..7),
        ) {
            let children: Vec<_> = available.iter().map(|&tasks| (tasks, 1.0, 1)).collect();
            let total: u128 = sum(&available);
            prop_assume!(u128::from(n) <= total && total > 0);
            for (part, tasks) in split(n, &children).iter().zip(available) {
                // |part − n·tasks/total| < 1, in whole numbers.
                let difference = (u128::from(*part) * total).abs_diff(u128::from(n) * u128::from(tasks));
                prop_assert!(difference < total);
            }
        }

        #[test]
        fn ranges_are_cut_in_order_and_none_is_lost(
            list in prop::collection::vec((0_u64..100, 1_u64..10), 0..8),
            parts in prop::collection::vec(0_u64..30, 1..5),
        ) {
            let set: IntervalSet = list.iter().map(|&(start, length)| start..start + length).collect();
            let cut = split_ranges(set.clone(), &parts);
            prop_assert_eq!(cut.len(), parts.len());
            let joined: Vec<u64> = cut.iter().flat_map(IntervalSet::indices).collect();
            prop_assert_eq!(joined, set.indices().collect::<Vec<_>>());
            let mut left = set.len();
            for (part, size) in cut.iter().zip(&parts).take(parts.len() - 1) {
                prop_assert_eq!(part.len(), left.min(*size));
                left -= part.len();
            }
        }
    }

    #[test]
    fn small_cases_by_hand() {
        assert_eq!(split(10, &[(30, 1.0, 1), (10, 1.0, 1)]), [8, 2]);
        assert_eq!(split(10, &[(10, 1.0, 1), (10, 1.0, 1), (10, 1.0, 1)]), [4, 3, 3]);
        // Tasks beyond the availabilities by speed; without speed by leaves; else evenly.
        assert_eq!(split(50, &[(30, 1.0, 1), (10, 4.0, 1)]), [32, 18]);
        assert_eq!(split(50, &[(0, 1.0, 1), (0, 4.0, 1)]), [10, 40]);
        assert_eq!(split(50, &[(0, 0.0, 4), (0, 0.0, 1)]), [40, 10]);
        assert_eq!(split(50, &[(0, 0.0, 0), (0, f64::NAN, 0)]), [25, 25]);
        assert_eq!(split(50, &[(0, 5.0, 0), (0, f64::NAN, 9)]), [50, 0]);
        assert_eq!(split(7, &[(0, 1e-300, 0), (0, 1e300, 9)]), [0, 7]);
        assert!(split(0, &[]).is_empty());
        assert!(split(3, &[]).is_empty());
    }

    #[test]
    fn few_tasks_go_to_the_idle_slots_that_end_them_soonest() {
        let leaf = |speed_mops, slots, left| {
            let entry = Entry { release_s: 0.0, application_size_mops: 1e5, task_mops: 1e3, left };
            let entries = if left > 0.0 { vec![entry] } else { vec![] };
            Summary::of_leaf(&Load { now_s: 0.0, speed_mops, slots, preemptive: true, running_mops: vec![], entries })
        };
        let (slow, fast) = (leaf(1e3, 1, 0.0), leaf(3e3, 2, 0.0));
        let split = |children: &[&Summary], tasks| {
            let request = Demand { tasks, task_mops: 1e6, application_size_mops: 1e8, age_s: 0.0 };
            let decision = choose(children, &request, 1.0, 0.0, true);
            split_among_idle(children, &request, decision.s_index)
        };
        assert_eq!(
            [1, 2, 3].map(|n| split(&[&slow, &fast], n)),
            [[0, 1], [0, 2], [0, 3]].map(|parts| Some(parts.to_vec()))
        );
        assert_eq!(split(&[&slow, &leaf(1.1e3, 3, 0.0)], 4), Some(vec![1, 3]));
        // Not to a busy machine, even if it is faster, unless the tasks end sooner there.
        let busy = leaf(3e3, 1, 1000.0);
        assert_eq!(split(&[&slow, &busy], 1), Some(vec![1, 0]));
        let crawling = leaf(1.0, 1, 0.0);
        assert_eq!(split(&[&crawling, &busy], 1), None);
        assert_eq!(split(&[&slow, &fast], 4), None);
        // One of four slots is free.
        assert_eq!(split(&[&leaf(2e3, 4, 3.0), &slow], 1), Some(vec![1, 0]));
        assert_eq!(split(&[&leaf(2e3, 4, 4000.0), &slow], 1), Some(vec![0, 1]));
    }

    #[test]
    fn a_request_is_good_enough_up_to_the_bound() {
        let entry = Entry { release_s: 0.0, application_size_mops: 1e6, task_mops: 1e3, left: 100.0 };
        let load = Load {
            now_s: 0.0,
            speed_mops: 1e3,
            slots: 1,
            preemptive: false,
            running_mops: vec![],
            entries: vec![entry],
        };
        let busy = Summary::of_leaf(&load);
        let request = |tasks| Demand { tasks, task_mops: 1e3, application_size_mops: 1e6, age_s: 0.0 };
        let decide = |n, bound, minimum| choose(&[&busy], &request(n), bound, minimum, false);
        // 100 tasks behind 100 at a task a second: 200 s for a bag of 10^6 Mop, and T rounds down by up to 2.
        let placed = decide(100, 1.0, 0.0);
        let stretch = STRETCHES[placed.s_index.unwrap()];
        assert!((2e-4..=2e-4 * 3.0).contains(&stretch), "{stretch}");
        assert!(!placed.good_enough);
        assert!(decide(100, 2.0, stretch / 2.0).good_enough);
        assert!(!decide(100, 2.0, stretch / 2.1).good_enough);
        let nowhere = Decision { s_index: None, good_enough: false };
        assert_eq!(decide(1 << 40, 2.0, f64::INFINITY), nowhere);
        assert_eq!(choose(&[], &request(1), 2.0, 1.0, false), nowhere);
        // The root keeps any request.
        assert_eq!(choose(&[], &request(1), 2.0, 1.0, true), Decision { good_enough: true, ..nowhere });
        assert_eq!(choose(&[&busy], &request(100), 1.0, 0.0, true), Decision { good_enough: true, ..placed });
        // The leaf next to one that is suspended gets everything, feasible or not.
        let away = Summary::unavailable();
        assert_eq!(split_tasks(&[&away, &busy], &request(100), placed.s_index), [0, 100]);
        assert_eq!(split_tasks(&[&away, &busy], &request(1 << 40), None), [0, 1 << 40]);
        assert_eq!(split_tasks(&[&busy, &busy], &request(5), placed.s_index), [3, 2]);
    }
}
