//! The smallest maximum stretch at which a leaf's queue can be served (paper §4).
//!
//! A stretch S gives every bag a deadline; the queue is served by earliest deadline first. [`meets_deadlines`] is
//! Algorithm 1, [`max_stretch`] Algorithm 2. Beside it stands an exact method of ours, [`max_stretch_exact`],
//! which is the faster one and the default.
//!
//! All of them compute in work instead of time: a bag that is due at d meets its deadline if its work and that ahead of it
//! are at most what the slots surely do by d ([`crate::queue`]). On one slot that is the paper's e ≤ d, multiplied by the
//! speed.

use crate::queue::{Capacity, Load, Prefix, earlier};

/// Relative error of [`max_stretch`] unless another is asked for.
pub const EPSILON_DEFAULT: f64 = 1e-6;

/// A bag that still has work, as the algorithms see it; times are relative to now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Its index among the load's entries.
    pub(crate) index: usize,
    /// How long ago it was released, seconds.
    pub(crate) age_s: f64,
    /// w, Mop.
    pub(crate) size_mops: f64,
    /// a, Mop.
    pub(crate) task_mops: f64,
    /// N·a, Mop.
    pub(crate) left_mops: f64,
    /// N, a partly done task included.
    pub(crate) tasks: f64,
    /// Deadline in seconds from now at the last stretch given to [`Jobs::sort`].
    pub(crate) due_s: f64,
}

impl Job {
    /// Adds this bag to a prefix.
    pub(crate) fn join(&self, prefix: &mut Prefix) {
        prefix.add(self.left_mops, self.task_mops, self.tasks);
    }
}

/// The bags with work left, kept sorted by deadline from one stretch to the next: orders at neighbouring stretches differ
/// little, so that sorting again is fast.
#[derive(Clone, Debug)]
pub(crate) struct Jobs(pub(crate) Vec<Job>);

impl Jobs {
    pub(crate) fn new(load: &Load) -> Self {
        let with_work = load.entries.iter().enumerate().filter(|(_, entry)| entry.left > 0.0);
        Self(
            with_work
                .map(|(index, entry)| Job {
                    index,
                    age_s: load.now_s - entry.release_s,
                    size_mops: entry.application_size_mops,
                    task_mops: entry.task_mops,
                    left_mops: entry.left_mops(),
                    tasks: entry.left.ceil(),
                    due_s: 0.0,
                })
                .collect(),
        )
    }

    /// Sets the deadlines for `stretch` and sorts by them.
    pub(crate) fn sort(&mut self, stretch: f64) {
        for job in &mut self.0 {
            job.due_s = stretch * job.size_mops - job.age_s;
        }
        self.0.sort_by(|one, other| earlier((one.due_s, one.size_mops), (other.due_s, other.size_mops)));
    }

    /// Algorithm 1 on sorted jobs: whether each prefix is surely done by its last deadline.
    fn fit(&self, capacity: &Capacity) -> bool {
        let mut prefix = Prefix::default();
        self.0.iter().all(|job| {
            job.join(&mut prefix);
            capacity.fits(job.due_s, &prefix)
        })
    }

    /// An upper bound on the maximum stretch of serving the jobs in their present order, and the last position that has it.
    fn stretch_of_order(&self, capacity: &Capacity) -> (f64, usize) {
        let mut ahead = Prefix::default();
        let mut worst = (0.0, 0);
        for (position, job) in self.0.iter().enumerate() {
            job.join(&mut ahead);
            let stretch = (capacity.done_in(&ahead) + job.age_s) / job.size_mops;
            if stretch >= worst.0 {
                worst = (stretch, position);
            }
        }
        worst
    }

    /// The smallest stretch, but for rounding, and the last position that has it in the order
    /// by deadline, in which the jobs are left.
    fn fixed_point(&mut self, capacity: &Capacity) -> (f64, usize) {
        // Begin with the order at an infinite stretch; any order gives a feasible stretch.
        self.0.sort_by(|one, other| one.size_mops.total_cmp(&other.size_mops));
        let mut worst = self.stretch_of_order(capacity);
        loop {
            self.sort(worst.0);
            let next = self.stretch_of_order(capacity);
            if next.0 >= worst.0 {
                return (worst.0, next.1);
            }
            worst = next;
        }
    }

    /// See [`max_stretch_exact`].
    pub(crate) fn max_stretch(&mut self, capacity: &Capacity) -> f64 {
        if self.0.is_empty() {
            return 0.0;
        }
        let stretch = self.fixed_point(capacity).0;
        // Rounding may leave the bottleneck an ulp late; the value returned passes Algorithm 1.
        let mut step = f64::EPSILON;
        while !self.fit(capacity) && step < 1.0 {
            self.sort(stretch * (1.0 + step));
            if self.fit(capacity) {
                return stretch * (1.0 + step);
            }
            step *= 2.0;
        }
        stretch
    }
}

/// Whether every bag can be done by its deadline at `stretch` (paper §4, Algorithm 1).
///
/// Exact for one slot; for more, `true` is a promise and `false` may be too careful. Monotone: what holds at one
/// stretch holds at every larger one. `false` for a load that does not validate or a stretch that is not finite.
pub fn meets_deadlines(load: &Load, stretch: f64) -> bool {
    if load.validate().is_err() || !stretch.is_finite() {
        return false;
    }
    let mut jobs = Jobs::new(load);
    jobs.sort(stretch);
    jobs.fit(&Capacity::new(load))
}

/// The smallest stretch, in s/Mop, at which all bags meet their deadlines, at most a factor 1 + `epsilon` above
/// the true one and feasible itself (paper §4, Algorithm 2; the paper's ε is absolute, ours relative, since
/// stretches span many orders of magnitude). 0 for a queue without work.
///
/// `epsilon` is taken as at least 1e-12. Infinite for a load that does not validate.
pub fn max_stretch(load: &Load, epsilon: f64) -> f64 {
    if load.validate().is_err() {
        return f64::INFINITY;
    }
    let capacity = Capacity::new(load);
    let mut jobs = Jobs::new(load);
    if jobs.0.is_empty() {
        return 0.0;
    }
    let epsilon = epsilon.max(1e-12);
    let alone = |job: &Job| {
        let mut prefix = Prefix::default();
        job.join(&mut prefix);
        (capacity.done_in(&prefix) + job.age_s) / job.size_mops
    };
    let least = jobs.0.iter().map(alone).fold(0.0, f64::max);
    let mut feasible = |stretch: f64| {
        jobs.sort(stretch);
        jobs.fit(&capacity)
    };
    // Bracket: `low` fails, `high` holds. No stretch is below what the worst bag would have were it alone. The sizes and
    // times of a valid load are bounded, and so is its stretch.
    let mut low = 0.0;
    let mut high = least.max(f64::MIN_POSITIVE);
    while !feasible(high) && high.is_finite() {
        low = high;
        high *= 2.0;
    }
    if low == 0.0 {
        return high;
    }
    while high - low > epsilon * low {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        if feasible(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// The smallest stretch, in s/Mop, at which all bags meet their deadlines: on one slot exact but for rounding, and
/// feasible by [`meets_deadlines`]. On more slots exact as to [`meets_deadlines`], which may be too careful:
/// up to 1.08, 1.24 and 1.64 times the stretch of the list schedule on 2, 4 and 16 slots (at most 1.03 on average), measured on
/// random queues. 0 for a queue without work, infinite for a load that does not validate.
///
/// Ours. From a feasible stretch, serve by earliest deadline and take the largest stretch that results; repeat
/// until it no longer falls. Each step keeps feasibility. At the fixed point the bag that attains the maximum ends
/// at its deadline d; all bags before it are due by d, and earlier at any smaller stretch, yet in any order the last of
/// them ends at d or later. About three sorts in practice.
pub fn max_stretch_exact(load: &Load) -> f64 {
    if load.validate().is_err() {
        return f64::INFINITY;
    }
    Jobs::new(load).max_stretch(&Capacity::new(load))
}

/// The smallest maximum stretch, and the entries that decide it: those up to the bottleneck, in the order by deadline. 0
/// and none for a queue without work or a load that does not validate.
pub(crate) fn bottleneck(load: &Load) -> (f64, Vec<usize>) {
    let mut jobs = Jobs::new(load);
    if jobs.0.is_empty() || load.validate().is_err() {
        return (0.0, Vec::new());
    }
    let (stretch, last) = jobs.fixed_point(&Capacity::new(load));
    (stretch, jobs.0[..=last].iter().map(|job| job.index).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::Entry;
    use crate::queue::tests::{loads, simulate, tasks_of};

    /// The largest stretch of a bag when they are served in this order, by simulation.
    fn simulated_stretch(load: &Load, order: &[usize]) -> f64 {
        let queue: Vec<_> = order.iter().map(|&index| tasks_of(&load.entries[index])).collect();
        let done_s = simulate(load, &queue);
        let stretches = order.iter().zip(done_s).map(|(&index, done_s)| {
            let entry = &load.entries[index];
            (done_s + (load.now_s - entry.release_s)) / entry.application_size_mops
        });
        stretches.fold(0.0, f64::max)
    }

    /// The largest stretch of a bag in this order by the bound of `Capacity`, gathered task by task: on no slot anything
    /// else runs until the largest task of the prefix begins; or all its tasks are as large, and few.
    fn bounded_stretch(load: &Load, order: &[usize]) -> f64 {
        let mut free_s = vec![0.0_f64; load.slots as usize];
        for (slot, rest) in load.running_mops.iter().enumerate() {
            free_s[slot] = rest / load.speed_mops;
        }
        let (mut tasks, mut largest, mut worst): (Vec<f64>, f64, f64) = (Vec::new(), 0.0, 0.0);
        for &index in order {
            let entry = &load.entries[index];
            tasks.extend(tasks_of(entry));
            largest = largest.max(entry.task_mops);
            let work: f64 = tasks.iter().sum();
            let last = largest.min(work);
            // By when the slots have done all but the last, by halving.
            let done = |t: f64| free_s.iter().map(|free| (t - free).max(0.0) * load.speed_mops).sum::<f64>();
            let first = free_s.iter().copied().fold(f64::INFINITY, f64::min);
            let (mut low, mut high) = (first, first + work / load.speed_mops + 1e-9);
            for _ in 0..200 {
                let middle = f64::midpoint(low, high);
                if done(middle) >= work - last { high = middle } else { low = middle }
            }
            let mut done_s = high + last / load.speed_mops;
            if tasks.len() <= 64 * free_s.len() {
                let alike = vec![largest; tasks.len()];
                done_s = done_s.min(simulate(load, &[alike])[0]);
            }
            worst = worst.max((done_s + (load.now_s - entry.release_s)) / entry.application_size_mops);
        }
        worst
    }

    /// All orders of 0..n.
    fn permutations(n: usize) -> Vec<Vec<usize>> {
        let mut all = vec![vec![]];
        for next in 0..n {
            all = all
                .into_iter()
                .flat_map(|order| {
                    (0..=order.len()).map(move |at| {
                        let mut order = order.clone();
                        order.insert(at, next);
                        order
                    })
                })
                .collect();
        }
        all
    }

    fn assert_agree(load: &Load) {
        let exact = max_stretch_exact(load);
        let searched = max_stretch(load, EPSILON_DEFAULT);
        assert!(meets_deadlines(load, exact), "the exact stretch {exact} is not feasible");
        assert!(meets_deadlines(load, searched), "the searched stretch {searched} is not feasible");
        assert!((searched - exact).abs() <= 1.01 * EPSILON_DEFAULT * exact, "{searched} and {exact}");
    }

    fn entry(release_s: f64, application_size_mops: f64, left: f64) -> Entry {
        Entry { release_s, application_size_mops, task_mops: 7.0, left }
    }

    fn single(entries: Vec<Entry>) -> Load {
        Load { now_s: 100.0, speed_mops: 50.0, slots: 1, preemptive: false, running_mops: vec![], entries }
    }

    proptest! {
        #[test]
        fn both_methods_agree(load in loads(1_u32..=5, 25)) {
            assert_agree(&load);
        }

        #[test]
        fn both_methods_agree_where_all_sizes_or_releases_are_equal(
            load in loads(1_u32..=3, 12), sizes in any::<bool>(),
        ) {
            let mut load = load;
            for entry in &mut load.entries {
                if sizes {
                    entry.application_size_mops = 5e6;
                } else {
                    entry.release_s = load.now_s - 77.0;
                }
            }
            assert_agree(&load);
        }

        #[test]
        fn no_order_is_better_on_one_slot(load in loads(Just(1), 5)) {
            prop_assume!(!load.entries.is_empty());
            let best = permutations(load.entries.len())
                .iter()
                .map(|order| simulated_stretch(&load, order))
                .fold(f64::INFINITY, f64::min);
            let exact = max_stretch_exact(&load);
            prop_assert!((exact - best).abs() <= 1e-9 * best, "{} and {}", exact, best);
        }

        #[test]
        fn no_order_has_a_smaller_bound_on_several_slots(load in loads(2_u32..=5, 5)) {
            prop_assume!(!load.entries.is_empty());
            let best = permutations(load.entries.len())
                .iter()
                .map(|order| bounded_stretch(&load, order))
                .fold(f64::INFINITY, f64::min);
            let exact = max_stretch_exact(&load);
            prop_assert!((exact - best).abs() <= 1e-9 * best, "{} and {}", exact, best);
        }

        #[test]
        fn the_order_at_the_maximum_stretch_keeps_it(load in loads(1_u32..=6, 10)) {
            let stretch = max_stretch_exact(&load);
            let simulated = simulated_stretch(&load, &load.order(stretch));
            prop_assert!(simulated <= stretch * (1.0 + 1e-9), "{} > {}", simulated, stretch);
        }

        #[test]
        fn feasibility_is_monotone_in_the_stretch(
            load in loads(1_u32..=5, 12), below in 0.0..1.0_f64, factor in 1.0..50.0_f64,
        ) {
            let stretch = max_stretch_exact(&load);
            prop_assert!(meets_deadlines(&load, stretch * factor * (1.0 + 1e-9)));
            if !load.entries.is_empty() {
                prop_assert!(!meets_deadlines(&load, stretch * below * (1.0 - 1e-9)));
            }
        }
    }

    #[test]
    fn small_cases_by_hand() {
        assert_eq!(max_stretch(&single(vec![]), EPSILON_DEFAULT), 0.0);
        assert_eq!(max_stretch_exact(&single(vec![])), 0.0);
        assert_eq!(max_stretch_exact(&single(vec![entry(0.0, 700.0, 0.0)])), 0.0);
        assert!(meets_deadlines(&single(vec![]), 0.0));
        // One bag, 100 s old, 7 of its 100 tasks here: 49 Mop at 50 Mop/s.
        let one = single(vec![entry(0.0, 700.0, 7.0)]);
        assert!((max_stretch_exact(&one) - 100.98 / 700.0).abs() < 1e-12);
        assert_agree(&one);
        // The same behind a running task of 25 Mop.
        let behind = Load { running_mops: vec![25.0], ..one };
        assert!((max_stretch_exact(&behind) - 101.48 / 700.0).abs() < 1e-12);
        // A deadline in the past at a stretch that the newcomer alone could have.
        let old = single(vec![entry(0.0, 70.0, 1.0), entry(100.0, 7e6, 1e4)]);
        assert!(!meets_deadlines(&old, 1.0));
        assert!((max_stretch_exact(&old) - 100.14 / 70.0).abs() < 1e-12);
        assert_agree(&old);
        // Two slots: the four small tasks end by 12 s at the latest, since the large one ahead may end that late.
        let large = Entry { release_s: 100.0, application_size_mops: 10.0, task_mops: 10.0, left: 1.0 };
        let small = Entry { release_s: 100.0, application_size_mops: 11.0, task_mops: 1.0, left: 4.0 };
        let two = Load { speed_mops: 1.0, slots: 2, ..single(vec![small, large]) };
        assert!((max_stretch_exact(&two) - 12.0 / 11.0).abs() < 1e-12);
        assert_agree(&two);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn both_methods_agree_on_three_hundred_bags(load in loads(1_u32..=4, 300)) {
            assert_agree(&load);
        }
    }

    #[test]
    fn extreme_valid_loads_do_not_break_the_search() {
        for (age_s, w, a, left) in [(1e12, 1e-6, 1e-6, 1e15), (0.0, 1e24, 1e-6, 1e-3), (0.0, 1e-6, 1e24, 1e15)] {
            let entry = Entry { release_s: -age_s, application_size_mops: w, task_mops: a, left };
            for (speed_mops, slots) in [(1e-3, 1), (1e12, 1), (1e-3, 4096), (1e12, 7)] {
                let load = Load {
                    now_s: 0.0,
                    speed_mops,
                    slots,
                    preemptive: true,
                    running_mops: vec![],
                    entries: vec![entry],
                };
                assert_eq!(load.validate(), Ok(()));
                assert_agree(&load);
            }
        }
        let broken = Load { slots: 0, ..single(vec![]) };
        assert_eq!(max_stretch(&broken, 0.1), f64::INFINITY);
        assert_eq!(max_stretch_exact(&broken), f64::INFINITY);
        assert!(!meets_deadlines(&broken, 1.0) && !meets_deadlines(&single(vec![]), f64::NAN));
    }
}
