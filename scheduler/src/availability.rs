//! How many tasks of a new bag a leaf can take with nobody's stretch above S (paper §5.1, Algorithm 3).
//!
//! The paper computes latest starts from the last bag to the first. Here the same is computed in work: with W_i the
//! work of the queue up to bag i in the order of deadlines and cap(d) the work that the slots surely do by d, a new bag
//! with deadline d_new may bring at most
//!
//! ```text
//! h = min( cap(d_new) − Σ W before it,  min over all bags i behind it of cap(d_i) − W_i )
//! ```
//!
//! and nothing if any bag of the queue already misses its deadline. On one slot cap(d) = s·(d − t0), and h is the paper's
//! (min(d_new, x_k) − e_k)·s. Where the new bag is released later than now (the paper's r "near in the future"), the
//! queue is first advanced to that moment, [`queue_at`]. Summaries never do that: a cell for a later moment would not
//! be a lower bound for a request that comes earlier, so their cells are for the moment of the report.
//!
//! h grows with w (Proposition 1) and with S (Proposition 2).

use crate::queue::{Capacity, Entry, Load, Prefix};
use crate::stretch::Jobs;

/// Work, in Mop, that a new bag of size `application_size_mops` (w) with tasks of `task_mops` (a), released at
/// `release_s` (r, in seconds from the origin of [`Load::now_s`]), may bring with nobody's stretch above `stretch`:
/// the paper's h.
///
/// On one slot exact but for rounding, for any a; on more never too much, and less for larger tasks: on random queues
/// of up to six bags, on 2, 4 and 16 slots, 0.93 to 0.94 of what the list schedule could still take on average, 0.88 to 0.91
/// where that is less than eight tasks a slot and 0.97 above; on queues with tasks of more unequal sizes 0.83 to 0.89.
/// 0 when a bag would miss its deadline, for a load that does not validate, and for arguments that are not finite.
pub fn available_work(load: &Load, stretch: f64, release_s: f64, application_size_mops: f64, task_mops: f64) -> f64 {
    let arguments = [stretch, release_s, application_size_mops, task_mops];
    if load.validate().is_err() || !arguments.iter().all(|x| x.is_finite()) {
        return 0.0;
    }
    if release_s > load.now_s {
        let then = queue_at(load, stretch, release_s);
        return available_work(&then, stretch, release_s, application_size_mops, task_mops);
    }
    let capacity = Capacity::new(load);
    let mut jobs = Jobs::new(load);
    jobs.sort(stretch);
    let due_s = stretch * application_size_mops - (load.now_s - release_s);
    let mut slack = Slack::new();
    slack.fill(&jobs, &capacity, task_mops);
    slack.work_by(due_s, &jobs, &capacity)
}

/// Number of tasks of `task_mops` (a) of a new bag that the leaf can take with nobody's stretch above `stretch`:
/// the paper's n = ⌊h/a⌋ (Equation 2). The other arguments as in [`available_work`]. Falls with a.
pub fn available_tasks(load: &Load, stretch: f64, release_s: f64, application_size_mops: f64, task_mops: f64) -> u64 {
    if task_mops <= 0.0 {
        return 0;
    }
    // The cast saturates, and makes 0 of NaN.
    (available_work(load, stretch, release_s, application_size_mops, task_mops) / task_mops) as u64
}

/// The queue as it will be at `moment_s`, if no bag comes until then: tasks go to the slot that is free first, in
/// the order of their deadlines at `stretch` (paper §5.1: "the queue as it will be at r"). Tasks done by then are
/// gone, late ones too. `load` is valid, `stretch` and `moment_s` are finite, and the moment is not before
/// [`Load::now_s`].
pub fn queue_at(load: &Load, stretch: f64, moment_s: f64) -> Load {
    let ahead_s = moment_s - load.now_s;
    // When each slot falls free, and the bag whose task it runs until then.
    let mut slots = vec![(0.0, None); load.slots as usize];
    for (slot, rest_mops) in slots.iter_mut().zip(&load.running_mops) {
        slot.0 = rest_mops / load.speed_mops;
    }
    let mut entries = Vec::with_capacity(load.entries.len());
    for index in load.order(stretch) {
        let mut entry = load.entries[index];
        // A part of a task is a task, the bag's first.
        let part = entry.left.fract();
        if part > 0.0 && start(&mut slots, 1.0, part * entry.task_mops / load.speed_mops, ahead_s, &entry) > 0.0 {
            entry.left -= part;
        }
        entry.left -= start(&mut slots, entry.left.floor(), entry.task_mops / load.speed_mops, ahead_s, &entry);
        entries.push(entry);
    }
    let mut running_mops = Vec::new();
    for (free_s, of) in slots {
        let rest_mops = (free_s - ahead_s) * load.speed_mops;
        match of {
            _ if rest_mops <= 0.0 => {}
            Some(entry) if load.preemptive => {
                entries.push(Entry { left: rest_mops / entry.task_mops, ..entry });
            }
            _ => running_mops.push(rest_mops),
        }
    }
    entries.retain(|entry| entry.left > 0.0);
    Load { now_s: moment_s, running_mops, entries, ..load.clone() }
}

/// Starts up to `tasks` tasks of `task_s` seconds before `end_s`, each on the slot that is free first. Returns how many.
fn start(slots: &mut [(f64, Option<Entry>)], tasks: f64, task_s: f64, end_s: f64, of: &Entry) -> f64 {
    // How many tasks begin on a slot before a moment, the one that begins when it falls free included.
    let begun = |free_s: f64, by_s: f64| if free_s < by_s { ((by_s - free_s) / task_s).ceil().max(1.0) } else { 0.0 };
    let begun_by =
        |slots: &[(f64, Option<Entry>)], by_s: f64| slots.iter().map(|slot| begun(slot.0, by_s)).sum::<f64>();
    // The latest moment by which no more than `tasks` begin.
    let mut by_s = end_s;
    if begun_by(slots, end_s) > tasks {
        let (mut low_s, mut high_s) = (0.0, end_s);
        loop {
            let middle_s = f64::midpoint(low_s, high_s);
            if middle_s <= low_s || middle_s >= high_s {
                break;
            }
            if begun_by(slots, middle_s) > tasks { high_s = middle_s } else { low_s = middle_s }
        }
        by_s = low_s;
    }
    let mut left = tasks;
    for slot in &mut *slots {
        let count = begun(slot.0, by_s);
        if count > 0.0 {
            *slot = (slot.0 + count * task_s, Some(*of));
            left -= count;
        }
    }
    // The tasks that begin at that very moment.
    slots.sort_by(|one, other| one.0.total_cmp(&other.0));
    for slot in &mut *slots {
        if left < 1.0 || slot.0 >= end_s {
            break;
        }
        *slot = (slot.0 + task_s, Some(*of));
        left -= 1.0;
    }
    tasks - left
}

/// The room that a queue in the order of deadlines leaves to a newcomer with tasks of one size: h as a function of the
/// newcomer's deadline alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slack {
    task_mops: f64,
    /// Whether all bags meet their deadlines without the newcomer.
    feasible: bool,
    /// The bags before bag i. One more than bags.
    ahead: Vec<Prefix>,
    /// The least slack of bag i and all bags behind it, in Mop; infinite behind the last.
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

    /// The paper's Algorithm 3 as `docs/design/scheduler.md` has it, in latest starts, one slot; moments relative to now.
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
        fn promised_work_is_done_in_time(
            load in loads(prop_oneof![Just(1), Just(2), Just(4), Just(16)], 6), new in newcomers(),
        ) {
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
        fn one_more_task_on_one_slot_misses_a_deadline(load in loads(Just(1), 6), new in newcomers()) {
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
        fn one_slot_gives_the_papers_function(load in loads(Just(1), 10), new in newcomers()) {
            let (factor, age_s, fitting, a) = new;
            let stretch = at(&load, factor * 1.0001);
            let w = size(&load, stretch, age_s, fitting, a);
            let mine = available_work(&load, stretch, load.now_s - age_s, w, a);
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
            let mine = available_work(&load, stretch, load.now_s, w, 1.0);
            let papers = latest_starts(&load, stretch, 0.0, w);
            // A hundredth of a second of work.
            let scale = load.speed_mops * (stretch * w).max(1e6);
            prop_assert!((mine - papers).abs() <= 1e-8 * scale, "{} and {}", mine, papers);
        }

        #[test]
        fn proposition_1_a_larger_application_gets_no_less(
            load in loads(prop_oneof![1_u32..=4, Just(16)], 10), new in newcomers(), growth in 1.0..100.0_f64,
        ) {
            let (factor, age_s, fitting, a) = new;
            let (stretch, release_s) = (at(&load, factor), load.now_s - age_s);
            let w = size(&load, stretch, age_s, fitting, a);
            let small = available_work(&load, stretch, release_s, w, a);
            let large = available_work(&load, stretch, release_s, w * growth, a);
            prop_assert!(small <= large + 1e-9 * (small + 1e8), "{} > {}", small, large);
            let small = available_tasks(&load, stretch, release_s, w, a);
            let large = available_tasks(&load, stretch, release_s, w * growth * (1.0 + 1e-9), a * (1.0 - 1e-9));
            prop_assert!(small <= large, "{} > {}", small, large);
        }

        #[test]
        fn proposition_2_a_larger_stretch_gives_no_less(
            load in loads(prop_oneof![1_u32..=4, Just(16)], 10), new in newcomers(), growth in 1.0..100.0_f64,
        ) {
            let (factor, age_s, fitting, a) = new;
            let (stretch, release_s) = (at(&load, factor), load.now_s - age_s);
            let w = size(&load, stretch, age_s, fitting, a);
            let small = available_work(&load, stretch, release_s, w, a);
            let large = available_work(&load, stretch * growth, release_s, w, a);
            prop_assert!(small <= large + 1e-9 * (small + 1e8), "{} > {}", small, large);
            let small = available_tasks(&load, stretch, release_s, w, a);
            let large = available_tasks(&load, stretch * growth * (1.0 + 1e-9), release_s, w, a * (1.0 - 1e-9));
            prop_assert!(small <= large, "{} > {}", small, large);
        }

        #[test]
        fn larger_tasks_fit_in_smaller_numbers_and_none_below_the_own_stretch(
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
            let one = available_work(&load, stretch, release_s, w, a);
            let many = available_work(&wide, stretch, release_s, w, a);
            prop_assert!(one <= many * (1.0 + 1e-9) + 1e-3, "{} > {}", one, many);
        }
    }

    /// What is left of each bag and of each running task at a moment: task after task on the slot that is free first.
    fn left_at(load: &Load, stretch: f64, moment_s: f64) -> (Vec<f64>, Vec<f64>) {
        let until_s = moment_s - load.now_s;
        let mut order: Vec<usize> = (0..load.entries.len()).collect();
        let due = |index: usize| {
            let entry = &load.entries[index];
            (stretch * entry.application_size_mops - (load.now_s - entry.release_s), entry.application_size_mops)
        };
        order.sort_by(|&a, &b| due(a).partial_cmp(&due(b)).unwrap());
        let mut free_s = vec![0.0_f64; load.slots as usize];
        let mut of = vec![None; load.slots as usize];
        for (slot, rest) in load.running_mops.iter().enumerate() {
            free_s[slot] = rest / load.speed_mops;
        }
        let mut left = vec![0.0; load.entries.len()];
        for index in order {
            for task in tasks_of(&load.entries[index]).into_iter().rev() {
                let slot = (0..free_s.len()).min_by(|&a, &b| free_s[a].total_cmp(&free_s[b])).unwrap();
                if free_s[slot] < until_s {
                    free_s[slot] += task / load.speed_mops;
                    of[slot] = Some(index);
                } else {
                    left[index] += task;
                }
            }
        }
        let mut running = Vec::new();
        for (slot, index) in of.into_iter().enumerate() {
            let rest = (free_s[slot] - until_s).max(0.0) * load.speed_mops;
            match index {
                Some(index) if load.preemptive => left[index] += rest,
                _ => running.push(rest),
            }
        }
        (left, running)
    }

    proptest! {
        #[test]
        fn queue_at_agrees_with_list_scheduling(
            load in loads(prop_oneof![Just(1), Just(2), Just(4), Just(16)], 6), factor in 0.3..3.0_f64,
            share in 0.0..1.3_f64,
        ) {
            let stretch = at(&load, factor);
            let work: f64 = load.entries.iter().map(Entry::left_mops).chain(load.running_mops.iter().copied()).sum();
            let moment_s = load.now_s + share * work / load.speed_mops / f64::from(load.slots);
            let then = queue_at(&load, stretch, moment_s);
            prop_assert_eq!(then.validate(), Ok(()));
            let (left, running) = left_at(&load, stretch, moment_s);
            // A task that begins or ends at that very moment may be on either side of it.
            let (mut total, mut known) = (0.0, then.running_mops.iter().sum::<f64>());
            for (entry, left) in load.entries.iter().zip(left) {
                let same = |other: &&Entry| Entry { left: 0.0, ..**other } == Entry { left: 0.0, ..*entry };
                let alike = load.entries.iter().filter(same).count();
                let mine: f64 = then.entries.iter().filter(same).map(Entry::left_mops).sum();
                let tolerance = 1e-6 * (work + 1.0);
                prop_assert!(alike > 1 || load.preemptive && (mine - left).abs() <= tolerance
                    || (mine - left).abs() <= tolerance
                    || (mine - left).abs() <= entry.task_mops * 1.000_001, "{} and {}", mine, left);
                total += left;
                known += if alike > 1 { left } else { mine };
            }
            total += running.iter().sum::<f64>();
            prop_assert!((total - known).abs() <= 1e-6 * (work + 1.0), "{} and {}", total, known);
        }

        #[test]
        fn a_promise_to_a_later_release_is_kept_and_one_more_task_misses(
            load in loads(Just(1), 6), new in newcomers(), share in 0.0..1.2_f64,
        ) {
            let (factor, _, fitting, a) = new;
            let stretch = at(&load, factor);
            let w = size(&load, stretch, 0.0, fitting, a);
            let work: f64 = load.entries.iter().map(Entry::left_mops).chain(load.running_mops.iter().copied()).sum();
            let release_s = load.now_s + share * work / load.speed_mops;
            let n = available_tasks(&load, stretch, release_s, w, a);
            // By brute force: the queue as a list of tasks runs until then, and the rest with the new one.
            let (left, running) = left_at(&load, stretch, release_s);
            let mut then = Load { now_s: release_s, running_mops: running, ..load.clone() };
            for (entry, left) in then.entries.iter_mut().zip(left) {
                entry.left = left / entry.task_mops;
            }
            then.running_mops.retain(|rest| *rest > 0.0);
            then.entries.retain(|entry| entry.left > 0.0);
            if n > 0 {
                prop_assert!(keeps(&then, stretch, 0.0, w, a, n.min(3000), 1e-7));
            }
            if n < 3000 {
                prop_assert!(!keeps(&then, stretch, 0.0, w, a, n + 1, -1e-7));
            }
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
    fn the_bound_on_several_slots_is_close_to_simulation() {
        use proptest::strategy::ValueTree;
        use proptest::test_runner::TestRunner;
        let mut runner = TestRunner::deterministic();
        for slots in [1, 2, 4, 16] {
            for bags in [0, 1, 6] {
                // Where the simulation takes few tasks and where many: sum of the shares, cases; and all tasks of both.
                let mut strata = [(0.0, 0.0); 2];
                let (mut mine, mut theirs) = (0, 0);
                for _ in 0..400 {
                    let load = loads(Just(slots), bags).new_tree(&mut runner).unwrap().current();
                    let (factor, age_s, fitting, a) = newcomers().new_tree(&mut runner).unwrap().current();
                    let stretch = at(&load, factor);
                    let w = size(&load, stretch, age_s, fitting.min(200.0), a);
                    let n = available_tasks(&load, stretch, load.now_s - age_s, w, a);
                    let best = simulated_most(&load, stretch, age_s, w, a, 3200);
                    assert!(n <= best || best == 3200, "{n} promised, {best} possible");
                    if best > 0 && best < 3200 {
                        let stratum = &mut strata[usize::from(best >= 8 * u64::from(slots))];
                        *stratum = (stratum.0 + n as f64 / best as f64, stratum.1 + 1.0);
                        mine += n;
                        theirs += best;
                    }
                }
                let total = mine as f64 / theirs as f64;
                let [few, many] = strata.map(|(shares, count)| shares / count);
                let mean = strata.iter().map(|stratum| stratum.0).sum::<f64>() / (strata[0].1 + strata[1].1);
                println!(
                    "{slots} slots, up to {bags} bags: mean {mean:.3}, few {few:.3}, many {many:.3}, all {total:.3}"
                );
                assert!(mean >= 0.9 && many >= 0.9, "{slots} slots, up to {bags} bags: mean {mean}, of many {many}");
                assert!(total >= 0.9, "{slots} slots, up to {bags} bags: {total}");
            }
        }
    }

    #[test]
    fn small_cases_by_hand() {
        let mut load =
            Load { now_s: 100.0, speed_mops: 50.0, slots: 1, preemptive: false, running_mops: vec![], entries: vec![] };
        // Idle: s·S·w, less the age.
        assert_eq!(available_work(&load, 0.1, 100.0, 1000.0, 1.0), 5000.0);
        assert_eq!(available_work(&load, 0.1, 60.0, 1000.0, 1.0), 3000.0);
        assert_eq!(available_work(&load, 0.1, 500.0, 1000.0, 1.0), 5000.0);
        assert_eq!(available_work(&load, 0.1, -100.0, 1000.0, 1.0), 0.0);
        assert_eq!(available_tasks(&load, 0.1, 100.0, 1000.0, 700.0), 7);
        // A task of 500 Mop that runs.
        load.running_mops = vec![500.0];
        assert_eq!(available_work(&load, 0.1, 100.0, 1000.0, 1.0), 4500.0);
        // A bag of 2,000 Mop that is due in 120 s at 0.1: 120·50 − 500 − 2000 are left ahead of it.
        load.entries = vec![Entry { release_s: 80.0, application_size_mops: 1400.0, task_mops: 100.0, left: 20.0 }];
        assert_eq!(available_work(&load, 0.1, 100.0, 1190.0, 1.0), 3500.0);
        assert_eq!(available_work(&load, 0.1, 100.0, 1300.0, 1.0), 4000.0);
        assert_eq!(available_work(&load, 0.01, 100.0, 1e9, 1.0), 0.0);
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert_eq!(available_tasks(&load, 0.1, 100.0, 1300.0, bad), 0);
            assert_eq!(available_tasks(&load, bad, 100.0, 1300.0, 1.0), 0);
        }
    }
}
