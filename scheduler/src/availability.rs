//! How many tasks of a new bag a leaf can take with nobody's stretch above S (paper §5.1, Algorithm 3).
//!
//! The paper computes latest starts from the last bag to the first. The same is said here in work: with W_i the
//! work of the queue up to bag i in the order of deadlines and cap(d) what the slots surely do by d, a new bag
//! with deadline d_new may bring at most
//!
//! ```text
//! h = min( cap(d_new) − Σ W before it,  min over all bags i behind it of cap(d_i) − W_i )
//! ```
//!
//! and nothing if any bag of the queue already misses. On one slot cap(d) = s·(d − t0), and h is the paper's
//! (min(d_new, x_k) − e_k)·s. The release time of a new bag is never in the future here: what lies ahead of now
//! would not be a lower bound when the request comes early (the paper's r "near in the future" serves matrices
//! that are equal for five minutes; our cells are relative to the moment of the report instead).
//!
//! h grows with w (Proposition 1) and with S (Proposition 2).

use crate::queue::{Capacity, Load, Prefix};
use crate::stretch::Jobs;

/// Work, in Mop, that a new bag of size `application_size_mops` (w), released at `release_s` (r, in seconds from
/// the origin of [`Load::now_s`], taken as now when it is later), may bring with nobody's stretch above `stretch`:
/// the paper's h.
///
/// On more than one slot this is for tasks no larger than the largest in the queue; [`available_tasks`] takes the
/// new tasks' size into account. 0 when somebody would miss, for a load that does not validate, and for arguments
/// that are not finite.
pub fn available_work(load: &Load, stretch: f64, release_s: f64, application_size_mops: f64) -> f64 {
    work_for(load, stretch, release_s, application_size_mops, 0.0)
}

/// Number of tasks of `task_mops` (a) of a new bag that the leaf can take with nobody's stretch above `stretch`:
/// the paper's n = ⌊h/a⌋ (Equation 2). The other arguments as in [`available_work`].
///
/// On one slot exact but for rounding; on more never too many. Falls with a.
pub fn available_tasks(load: &Load, stretch: f64, release_s: f64, application_size_mops: f64, task_mops: f64) -> u64 {
    if !(task_mops > 0.0 && task_mops.is_finite()) {
        return 0;
    }
    // The cast saturates.
    (work_for(load, stretch, release_s, application_size_mops, task_mops) / task_mops) as u64
}

fn work_for(load: &Load, stretch: f64, release_s: f64, application_size_mops: f64, task_mops: f64) -> f64 {
    if load.validate().is_err() || ![stretch, release_s, application_size_mops].iter().all(|x| x.is_finite()) {
        return 0.0;
    }
    let capacity = Capacity::new(load);
    let mut jobs = Jobs::new(load);
    jobs.sort(stretch);
    let due_s = stretch * application_size_mops - (load.now_s - release_s).max(0.0);
    let mut slack = Slack::new();
    slack.fill(&jobs, &capacity, task_mops);
    slack.work_by(due_s, &jobs, &capacity)
}

/// What a queue in the order of deadlines leaves to a newcomer with tasks of one size: h as a function of the
/// newcomer's deadline alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slack {
    task_mops: f64,
    /// Whether all bags meet their deadlines without the newcomer.
    feasible: bool,
    /// What is before bag i. One more than bags.
    ahead: Vec<Prefix>,
    /// The least slack of bag i and all behind it, in Mop; infinite behind the last.
    behind_mops: Vec<f64>,
}

impl Slack {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Computes the slacks of sorted `jobs`; keeps the allocations of earlier calls.
    pub(crate) fn fill(&mut self, jobs: &Jobs, capacity: &Capacity, task_mops: f64) {
        let jobs = &jobs.0;
        self.task_mops = task_mops;
        self.feasible = true;
        self.ahead.clear();
        self.behind_mops.clear();
        let mut prefix = Prefix::default();
        self.ahead.push(prefix);
        for job in jobs {
            job.join(&mut prefix);
            self.feasible &= capacity.fits(job.due_s, &prefix);
            self.behind_mops.push(capacity.room(job.due_s, &prefix, task_mops));
            self.ahead.push(prefix);
        }
        self.behind_mops.push(f64::INFINITY);
        for i in (0..jobs.len()).rev() {
            self.behind_mops[i] = self.behind_mops[i].min(self.behind_mops[i + 1]);
        }
    }

    /// h for a newcomer that is due in `due_s` seconds, in Mop.
    pub(crate) fn work_by(&self, due_s: f64, jobs: &Jobs, capacity: &Capacity) -> f64 {
        if !self.feasible {
            return 0.0;
        }
        let position = jobs.0.partition_point(|job| job.due_s < due_s);
        let own_mops = capacity.room(due_s, &self.ahead[position], self.task_mops);
        own_mops.min(self.behind_mops[position]).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::Entry;
    use crate::queue::tests::{loads, simulate, tasks_of};
    use crate::stretch::{max_stretch_exact, meets_deadlines};

    /// A new bag: a stretch as a multiple of the load's own, its age, how many of its tasks one idle slot could do
    /// before it is due (few more often than many), and the size of a task.
    fn newcomers() -> impl Strategy<Value = (f64, f64, f64, f64)> {
        let stretch = prop_oneof![Just(1.0), 0.3..1.0_f64, 1.0..2.0_f64, 1.0..100.0_f64];
        let age_s = prop_oneof![Just(0.0), 0.0..1e4_f64, 0.0..1e6_f64];
        let fitting = prop_oneof![0.0..4.0_f64, 0.0..14.0_f64];
        (stretch, age_s, fitting, 0.0..22.0_f64)
            .prop_map(|(factor, age_s, log_fitting, log_task)| (factor, age_s, log_fitting.exp2(), log_task.exp2()))
    }

    /// The size of the whole bag that makes it due when one idle slot could do so many of its tasks.
    fn size(load: &Load, stretch: f64, age_s: f64, fitting: f64, a: f64) -> f64 {
        (fitting * a / load.speed_mops + age_s) / stretch
    }

    /// The load's own maximum stretch times the factor; around 0.01 for an idle one.
    fn at(load: &Load, factor: f64) -> f64 {
        let own = max_stretch_exact(load);
        if own > 0.0 { own * factor } else { 0.01 * factor }
    }

    /// Whether everybody, the newcomer with `tasks` tasks included, has a stretch of at most `stretch` when the
    /// queue is served by earliest deadline first; by simulation of each task.
    fn keeps(load: &Load, stretch: f64, age_s: f64, w: f64, a: f64, tasks: u64, tolerance: f64) -> bool {
        let mut load = load.clone();
        let release_s = load.now_s - age_s;
        load.entries.push(Entry { release_s, application_size_mops: w, task_mops: a, left: tasks as f64 });
        let mut order: Vec<usize> = (0..load.entries.len()).collect();
        let due = |index: usize| load.entries[index].release_s + stretch * load.entries[index].application_size_mops;
        order.sort_by(|&a, &b| due(a).total_cmp(&due(b)));
        let queue: Vec<_> = order.iter().map(|&index| tasks_of(&load.entries[index])).collect();
        let done = simulate(&load, &queue);
        order.iter().zip(done).all(|(&index, done_s)| {
            let entry = &load.entries[index];
            (done_s + (load.now_s - entry.release_s)) / entry.application_size_mops <= stretch * (1.0 + tolerance)
        })
    }

    /// The paper's Algorithm 3 with design.md's corrections, in latest starts, one slot; moments relative to now.
    fn latest_starts(load: &Load, stretch: f64, age_s: f64, w: f64) -> f64 {
        let s = load.speed_mops;
        let t0 = load.running_mops.iter().sum::<f64>() / s;
        let mut bags: Vec<(f64, f64)> = load
            .entries
            .iter()
            .map(|e| (e.release_s - load.now_s + stretch * e.application_size_mops, e.left * e.task_mops / s))
            .collect();
        bags.sort_by(|a, b| a.0.total_cmp(&b.0));
        let d_new = stretch * w - age_s;
        let mut x = vec![f64::INFINITY; bags.len() + 1];
        for i in (0..bags.len()).rev() {
            x[i] = bags[i].0.min(x[i + 1]) - bags[i].1;
        }
        if x[0] < t0 {
            return 0.0;
        }
        let k = bags.iter().filter(|bag| bag.0 < d_new).count();
        let e_k = t0 + bags[..k].iter().map(|bag| bag.1).sum::<f64>();
        ((d_new.min(x[k]) - e_k) * s).max(0.0)
    }

    proptest! {
        #[test]
        fn what_is_promised_is_kept(load in loads(prop_oneof![Just(1), Just(2), Just(4), Just(16)], 6), new in newcomers()) {
            let (factor, age_s, fitting, a) = new;
            let stretch = at(&load, factor);
            let w = size(&load, stretch, age_s, fitting, a);
            let n = available_tasks(&load, stretch, load.now_s - age_s, w, a);
            // What is promised in total is bounded, so that the simulation stays short.
            let n = n.min(3000);
            if n > 0 {
                prop_assert!(keeps(&load, stretch, age_s, w, a, n, 1e-9));
                prop_assert!(keeps(&load, stretch, age_s, w, a, n.div_ceil(2), 1e-9));
            }
        }

        #[test]
        fn on_one_slot_one_more_is_too_many(load in loads(Just(1), 6), new in newcomers()) {
            let (factor, age_s, fitting, a) = new;
            let stretch = at(&load, factor);
            let w = size(&load, stretch, age_s, fitting, a);
            let n = available_tasks(&load, stretch, load.now_s - age_s, w, a);
            // What has very many is left out, so that the simulation stays short.
            if n < 3000 {
                prop_assert!(!keeps(&load, stretch, age_s, w, a, n + 1, -1e-9));
            }
        }

        #[test]
        fn on_one_slot_it_is_the_papers_function(load in loads(Just(1), 10), new in newcomers()) {
            let (factor, age_s, fitting, a) = new;
            let stretch = at(&load, factor * 1.0001);
            let w = size(&load, stretch, age_s, fitting, a);
            let mine = available_work(&load, stretch, load.now_s - age_s, w);
            let papers = latest_starts(&load, stretch, age_s, w);
            let scale = load.speed_mops * (stretch * w + age_s + 1e6);
            prop_assert!((mine - papers).abs() <= 1e-9 * scale, "{} and {}", mine, papers);
            prop_assert_eq!(papers > 1e-6 * scale, mine > 1e-6 * scale);
        }

        #[test]
        fn the_place_among_the_deadlines_is_exact(
            load in loads(Just(1), 6), factor in 1.0..3.0_f64, neighbour in any::<usize>(), offset_s in -1.5..1.5_f64,
        ) {
            // Due within a second or so of a bag of the queue: a place that is wrong by less than that shows.
            prop_assume!(!load.entries.is_empty());
            let stretch = at(&load, factor * 1.0001);
            let neighbour = &load.entries[neighbour % load.entries.len()];
            let due_s = load.due_in(neighbour, stretch) + offset_s;
            prop_assume!(due_s > 0.0);
            let w = due_s / stretch;
            let mine = available_work(&load, stretch, load.now_s, w);
            let papers = latest_starts(&load, stretch, 0.0, w);
            // A hundredth of a second of work.
            let scale = load.speed_mops * (stretch * w).max(1e6);
            prop_assert!((mine - papers).abs() <= 1e-8 * scale, "{} and {}", mine, papers);
        }

        #[test]
        fn a_release_after_now_counts_as_now(
            load in loads(prop_oneof![Just(1), Just(2), Just(4), Just(16)], 6), new in newcomers(),
            ahead_s in prop_oneof![0.0..10.0_f64, 0.0..1e6_f64],
        ) {
            let (factor, _, fitting, a) = new;
            let stretch = at(&load, factor);
            let w = size(&load, stretch, 0.0, fitting, a);
            let n = available_tasks(&load, stretch, load.now_s + ahead_s, w, a);
            // By simulation of a newcomer that is released now, and so due earlier than what was asked for.
            if n > 0 {
                prop_assert!(keeps(&load, stretch, 0.0, w, a, n.min(3000), 1e-9));
            }
            if load.slots == 1 && n < 3000 {
                prop_assert!(!keeps(&load, stretch, 0.0, w, a, n + 1, -1e-9));
            }
        }

        #[test]
        fn proposition_1_more_for_a_larger_application(
            load in loads(prop_oneof![1_u32..=4, Just(16)], 10), new in newcomers(), growth in 1.0..100.0_f64,
        ) {
            let (factor, age_s, fitting, a) = new;
            let (stretch, release_s) = (at(&load, factor), load.now_s - age_s);
            let w = size(&load, stretch, age_s, fitting, a);
            let small = available_work(&load, stretch, release_s, w);
            let large = available_work(&load, stretch, release_s, w * growth);
            prop_assert!(small <= large + 1e-9 * (small + 1e8), "{} > {}", small, large);
            let small = available_tasks(&load, stretch, release_s, w, a);
            let large = available_tasks(&load, stretch, release_s, w * growth * (1.0 + 1e-9), a * (1.0 - 1e-9));
            prop_assert!(small <= large, "{} > {}", small, large);
        }

        #[test]
        fn proposition_2_more_at_a_larger_stretch(
            load in loads(prop_oneof![1_u32..=4, Just(16)], 10), new in newcomers(), growth in 1.0..100.0_f64,
        ) {
            let (factor, age_s, fitting, a) = new;
            let (stretch, release_s) = (at(&load, factor), load.now_s - age_s);
            let w = size(&load, stretch, age_s, fitting, a);
            let small = available_work(&load, stretch, release_s, w);
            let large = available_work(&load, stretch * growth, release_s, w);
            prop_assert!(small <= large + 1e-9 * (small + 1e8), "{} > {}", small, large);
            let small = available_tasks(&load, stretch, release_s, w, a);
            let large = available_tasks(&load, stretch * growth * (1.0 + 1e-9), release_s, w, a * (1.0 - 1e-9));
            prop_assert!(small <= large, "{} > {}", small, large);
        }

        #[test]
        fn fewer_of_larger_tasks_and_nothing_below_the_own_stretch(
            load in loads(prop_oneof![1_u32..=4, Just(16)], 10), new in newcomers(), growth in 1.0..10.0_f64,
        ) {
            let (factor, age_s, fitting, a) = new;
            let (stretch, release_s) = (at(&load, factor), load.now_s - age_s);
            let w = size(&load, stretch, age_s, fitting, a);
            let small = available_tasks(&load, stretch, release_s, w, a);
            let large = available_tasks(&load, stretch, release_s, w, a * growth * (1.0 + 1e-9));
            prop_assert!(large <= small, "{} > {}", large, small);
            if !meets_deadlines(&load, stretch) {
                prop_assert_eq!(small, 0);
            }
        }

        #[test]
        fn more_slots_never_offer_less_than_one(load in loads(Just(1), 6), new in newcomers(), slots in 2_u32..6) {
            let (factor, age_s, fitting, a) = new;
            let (stretch, release_s) = (at(&load, factor), load.now_s - age_s);
            let w = size(&load, stretch, age_s, fitting, a);
            let wide = Load { slots, ..load.clone() };
            let one = available_work(&load, stretch, release_s, w);
            let many = available_work(&wide, stretch, release_s, w);
            prop_assert!(one <= many * (1.0 + 1e-9) + 1e-3, "{} > {}", one, many);
        }
    }

    /// The most tasks that the simulation of the list could still take, up to `most`.
    fn simulated_most(load: &Load, stretch: f64, age_s: f64, w: f64, a: f64, most: u64) -> u64 {
        let takes = |n| keeps(load, stretch, age_s, w, a, n, 1e-9);
        if !takes(0) {
            return 0;
        }
        // On a given list a task more delays all others or none.
        let (mut low, mut high) = (0, most + 1);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if takes(middle) { low = middle } else { high = middle }
        }
        low
    }

    #[test]
    fn on_several_slots_little_is_left_to_the_simulation() {
        use proptest::strategy::ValueTree;
        use proptest::test_runner::TestRunner;
        let mut runner = TestRunner::deterministic();
        for slots in [1, 2, 4, 16] {
            for bags in [0, 1, 6] {
                let (mut shares, mut count, mut mine, mut theirs) = (0.0, 0.0, 0, 0);
                for _ in 0..400 {
                    let load = loads(Just(slots), bags).new_tree(&mut runner).unwrap().current();
                    let (factor, age_s, fitting, a) = newcomers().new_tree(&mut runner).unwrap().current();
                    let stretch = at(&load, factor);
                    let w = size(&load, stretch, age_s, fitting.min(200.0), a);
                    let n = available_tasks(&load, stretch, load.now_s - age_s, w, a);
                    let best = simulated_most(&load, stretch, age_s, w, a, 3200);
                    assert!(n <= best || best == 3200, "{n} promised, {best} possible");
                    if best > 0 && best < 3200 {
                        shares += n as f64 / best as f64;
                        count += 1.0;
                        mine += n;
                        theirs += best;
                    }
                }
                let total = mine as f64 / theirs as f64;
                println!(
                    "{slots} slots, up to {bags} bags: mean share {:.3}, of all {total:.3}, {count} cases",
                    shares / count
                );
                assert!(total >= 0.9, "{slots} slots, up to {bags} bags: {total}");
            }
        }
    }

    #[test]
    fn small_cases_by_hand() {
        let mut load =
            Load { now_s: 100.0, speed_mops: 50.0, slots: 1, preemptive: false, running_mops: vec![], entries: vec![] };
        // Idle: s·S·w, less the age.
        assert_eq!(available_work(&load, 0.1, 100.0, 1000.0), 5000.0);
        assert_eq!(available_work(&load, 0.1, 60.0, 1000.0), 3000.0);
        assert_eq!(available_work(&load, 0.1, 500.0, 1000.0), 5000.0);
        assert_eq!(available_work(&load, 0.1, -100.0, 1000.0), 0.0);
        assert_eq!(available_tasks(&load, 0.1, 100.0, 1000.0, 700.0), 7);
        // A task of 500 Mop that runs.
        load.running_mops = vec![500.0];
        assert_eq!(available_work(&load, 0.1, 100.0, 1000.0), 4500.0);
        // A bag of 2,000 Mop that is due in 120 s at 0.1: 120·50 − 500 − 2000 are left ahead of it.
        load.entries = vec![Entry { release_s: 80.0, application_size_mops: 1400.0, task_mops: 100.0, left: 20.0 }];
        assert_eq!(available_work(&load, 0.1, 100.0, 1190.0), 3500.0);
        assert_eq!(available_work(&load, 0.1, 100.0, 1300.0), 4000.0);
        assert_eq!(available_work(&load, 0.01, 100.0, 1e9), 0.0);
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert_eq!(available_tasks(&load, 0.1, 100.0, 1300.0, bad), 0);
            assert_eq!(available_tasks(&load, bad, 100.0, 1300.0, 1.0), 0);
        }
    }
}
