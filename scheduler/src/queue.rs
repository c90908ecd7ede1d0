//! A leaf's queue in plain numbers, and how fast its slots work it off.
//!
//! The paper (Celaya and Marchal 2010, §4) has one processor per leaf, a queue of bags and deadlines that follow
//! from a stretch: d = r + S·w. All tasks of a bag are alike, so everything here is in the number of bags.
//!
//! Ours: a leaf may have k identical slots. `Capacity` bounds how much of the queue is done by a moment: it is exact for
//! one slot and never optimistic for more. Algorithms 1 to 3 need nothing else of the machine.
//!
//! Left out: which task runs where, freezing, memory. That is the executor's.

use std::cmp::Ordering;

/// Most bags a load may hold: what [`Load::validate`] accepts.
pub const ENTRIES_MAX: usize = 65_536;
/// Most slots of one leaf that the arithmetic takes; the settings of a peer allow fewer.
pub const SLOTS_MAX: u32 = 4_096;
/// Slowest slot, Mop/s.
pub const SPEED_MOPS_MIN: f64 = 1e-3;
/// Fastest slot, Mop/s.
pub const SPEED_MOPS_MAX: f64 = 1e12;
/// Smallest task and application, Mop.
pub const WORK_MOPS_MIN: f64 = 1e-6;
/// Largest task, running rest and application, Mop: the bound of the arithmetic, far above that of a bag
/// ([`crate::BAG_WORK_MOPS_MAX`]), so that an effective size or a sum of parts stays within it.
pub const WORK_MOPS_MAX: f64 = 1e24;
/// Most tasks left of one bag: what a floating point number still counts; a bag has at most [`crate::BAG_TASKS_MAX`].
pub const TASKS_MAX: f64 = 1e15;
/// Furthest from its origin that a moment may lie, in seconds (about 30,000 years).
pub const MOMENT_S_MAX: f64 = 1e12;

/// A bag in a leaf's queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// When the bag was submitted (r), in seconds from the origin of [`Load::now_s`]; not in the future.
    pub release_s: f64,
    /// Size of the whole bag (w, or the effective size w'), in Mop.
    pub application_size_mops: f64,
    /// Size of one of its tasks (a), in Mop.
    pub task_mops: f64,
    /// Tasks of it left here (N), with a fraction where one is partly done. A bag without tasks left is ignored. On several
    /// slots each partly done task is an entry of its own.
    pub left: f64,
}

impl Entry {
    /// Work left of the bag on this leaf (N·a), in Mop.
    pub fn left_mops(&self) -> f64 {
        self.left * self.task_mops
    }
}

/// A leaf's queue and the machine that works on it, at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The moment (t0), in seconds from any origin.
    pub now_s: f64,
    /// Speed of one slot, in Mop/s.
    pub speed_mops: f64,
    /// Number of identical slots (k).
    pub slots: u32,
    /// Whether a running task is frozen for a bag that comes ahead of its own (ours; `false` is the paper's case). Then the
    /// rests of begun tasks belong to their bags' `left`, and the slots are free from now on.
    pub preemptive: bool,
    /// Without preemption: the rests of the running tasks, in Mop, one per busy slot. They come first and have no deadline.
    /// With preemption: empty.
    pub running_mops: Vec<f64>,
    /// The bags in the queue, in any order.
    pub entries: Vec<Entry>,
}

/// Why a load is not valid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// No slot, or more than [`SLOTS_MAX`].
    #[error("{0} slots: give 1 to {SLOTS_MAX}")]
    Slots(u32),
    /// The speed is not a number in range.
    #[error("a speed of {0} Mop/s: give {SPEED_MOPS_MIN} to {SPEED_MOPS_MAX}")]
    Speed(f64),
    /// The moment is not a number in range.
    #[error("the moment {0} s is not within {MOMENT_S_MAX} s of the origin")]
    Now(f64),
    /// More running tasks than slots, or a rest that is not a number in range.
    #[error("running tasks: at most one per slot, each with 0 to {WORK_MOPS_MAX} Mop left")]
    Running,
    /// Running tasks beside the queue of a machine that freezes them for others.
    #[error("running tasks with preemption: give none, and count their rests in what is left of their bags")]
    Preempted,
    /// More than [`ENTRIES_MAX`] bags.
    #[error("{0} bags in one queue: at most {ENTRIES_MAX}")]
    Entries(usize),
    /// A bag that is released in the future, or whose release is not a number in range.
    #[error("bag {0} is released after now, or more than {MOMENT_S_MAX} s from the origin")]
    Release(usize),
    /// A bag whose size, task size or number of tasks is not a number in range.
    #[error("the sizes of bag {0} are out of range")]
    Size(usize),
}

impl Load {
    /// Slots for which there is no task, running or waiting.
    pub fn idle_slots(&self) -> u32 {
        // The cast saturates.
        let waiting = self.entries.iter().fold(0, |sum: u32, entry| sum.saturating_add(entry.left.ceil() as u32));
        self.slots.saturating_sub(waiting).saturating_sub(self.running_mops.len() as u32)
    }

    /// Checks that all numbers are finite and in range, so that no sum or product of them overflows.
    ///
    /// # Errors
    /// The first rule that is broken. Functions that take a load do not panic for one that does not validate, and promise
    /// nothing.
    pub fn validate(&self) -> Result<(), LoadError> {
        let moment = |moment_s: f64| moment_s.abs() <= MOMENT_S_MAX;
        let work = |mops: f64| (WORK_MOPS_MIN..=WORK_MOPS_MAX).contains(&mops);
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            return Err(LoadError::Slots(self.slots));
        }
        if !(SPEED_MOPS_MIN..=SPEED_MOPS_MAX).contains(&self.speed_mops) {
            return Err(LoadError::Speed(self.speed_mops));
        }
        if !moment(self.now_s) {
            return Err(LoadError::Now(self.now_s));
        }
        if self.running_mops.len() > self.slots as usize
            || !self.running_mops.iter().all(|rest| (0.0..=WORK_MOPS_MAX).contains(rest))
        {
            return Err(LoadError::Running);
        }
        if self.preemptive && !self.running_mops.is_empty() {
            return Err(LoadError::Preempted);
        }
        if self.entries.len() > ENTRIES_MAX {
            return Err(LoadError::Entries(self.entries.len()));
        }
        for (index, entry) in self.entries.iter().enumerate() {
            if !moment(entry.release_s) || entry.release_s > self.now_s {
                return Err(LoadError::Release(index));
            }
            let sizes = work(entry.task_mops) && work(entry.application_size_mops);
            if !sizes || !(0.0..=TASKS_MAX).contains(&entry.left) {
                return Err(LoadError::Size(index));
            }
        }
        Ok(())
    }

    /// The indices of all bags, earliest deadline at `stretch` first; ties by smaller application, then by index.
    pub fn order(&self, stretch: f64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by(|&one, &other| {
            let (one, other) = (&self.entries[one], &self.entries[other]);
            earlier(
                (self.due_in(one, stretch), one.application_size_mops),
                (self.due_in(other, stretch), other.application_size_mops),
            )
        });
        order
    }

    /// When a bag must be done for its stretch to be at most `stretch`: d = r + S·w (paper §4, Equation 1), in seconds
    /// from now. Computed from its age, which loses less to rounding.
    pub(crate) fn due_in(&self, entry: &Entry, stretch: f64) -> f64 {
        stretch * entry.application_size_mops - (self.now_s - entry.release_s)
    }
}

/// The order of the queue: (deadline, application size), the stable sort adds the index.
pub(crate) fn earlier(one: (f64, f64), other: (f64, f64)) -> Ordering {
    one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
}

/// Up to so many tasks per slot a prefix is also counted in whole tasks: beyond, that bound is better by less than a hundredth.
const UNIFORM_TASKS_MAX: f64 = 64.0;

/// The first bags of an ordered list, in sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prefix {
    /// Their work, in Mop.
    pub(crate) work_mops: f64,
    /// Their largest task, in Mop.
    pub(crate) largest_mops: f64,
    /// The number of their tasks, those partly done included.
    pub(crate) tasks: f64,
}

impl Prefix {
    /// Adds a bag.
    pub(crate) fn add(&mut self, left_mops: f64, task_mops: f64, tasks: f64) {
        self.work_mops += left_mops;
        self.largest_mops = self.largest_mops.max(task_mops);
        self.tasks += tasks;
    }
}

/// How much work the slots of a leaf surely finish by a moment, tasks taken from an ordered list.
///
/// Whenever a slot falls free it takes the next task of the list (list scheduling). Take the task of a prefix of
/// the list that ends last; its size is at most p, the largest of the prefix. Until it starts at σ no slot that
/// had finished its running task was ever idle, and all that it did belongs to the prefix. So F(σ) ≤ W − (its size),
/// with W the work of the prefix and F(t) the sum over the slots of what each can do between falling free and t.
/// Hence the prefix is done by F⁻¹(W − p) + p/s (Graham's bound, with slots that start late; ours).
///
/// Where tasks are few, another bound is better: were all the tasks of the prefix as large as the largest, each slot
/// would do so many of them one after the other, in whatever order, and no task would end earlier, since the list
/// hands a longer task's successors to no earlier slot. The smaller of the two bounds holds; both grow with the prefix.
///
/// That the bound depends on the set of the tasks alone, not on their order, and grows with it, is all that
/// Propositions 1 and 2 and the optimality of the earliest deadline need: they hold for it as they hold on one slot,
/// where it is exact.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    speed_mops: f64,
    /// When each slot falls free, seconds from now, ascending.
    free_s: Vec<f64>,
    /// Sum of the first j + 1 of `free_s`.
    free_sums_s: Vec<f64>,
}

impl Capacity {
    /// The capacity of a valid load's machine.
    pub(crate) fn new(load: &Load) -> Self {
        let idle = load.slots as usize - load.running_mops.len();
        let mut free_s = vec![0.0; idle];
        free_s.extend(load.running_mops.iter().map(|rest| rest / load.speed_mops));
        free_s.sort_by(f64::total_cmp);
        let mut sum = 0.0;
        let free_sums_s = free_s
            .iter()
            .map(|free| {
                sum += free;
                sum
            })
            .collect();
        Self { speed_mops: load.speed_mops, free_s, free_sums_s }
    }

    /// Whether [`Self::work_by`] depends on the size of the tasks.
    pub(crate) fn depends_on_tasks(&self) -> bool {
        self.free_s.len() > 1
    }

    /// The largest amount of work, in Mop, that a prefix with tasks up to `largest_mops` may have so as to be done
    /// `due_s` seconds from now; negative when not even a slot is free by then. Grows with `due_s`, falls with
    /// `largest_mops`.
    pub(crate) fn work_by(&self, due_s: f64, largest_mops: f64) -> f64 {
        let first_free_s = self.free_s[0];
        let start_s = due_s - largest_mops / self.speed_mops;
        if self.free_s.len() == 1 || start_s <= first_free_s {
            return (due_s - first_free_s) * self.speed_mops;
        }
        let slots = self.free_s.partition_point(|&free| free <= start_s);
        (slots as f64 * start_s - self.free_sums_s[slots - 1]) * self.speed_mops + largest_mops
    }

    /// How many tasks of `size_mops`, above 0, are done `due_s` seconds from now when there are no others: at most
    /// [`UNIFORM_TASKS_MAX`] per slot. Grows with `due_s`, falls with `size_mops`.
    pub(crate) fn tasks_by(&self, due_s: f64, size_mops: f64) -> f64 {
        let of_slot = |free_s: f64| ((due_s - free_s) * self.speed_mops / size_mops).floor().max(0.0);
        // Most slots are free from now on.
        let idle = self.free_s.partition_point(|&free| free <= 0.0);
        let busy = self.free_s[idle..].iter().map(|&free| of_slot(free)).take_while(|&tasks| tasks > 0.0);
        (idle as f64 * of_slot(0.0) + busy.sum::<f64>()).min(self.uniform_tasks_max())
    }

    fn uniform_tasks_max(&self) -> f64 {
        self.free_s.len() as f64 * UNIFORM_TASKS_MAX
    }

    /// Whether a prefix is surely done `due_s` seconds from now.
    pub(crate) fn fits(&self, due_s: f64, prefix: &Prefix) -> bool {
        prefix.work_mops <= self.work_by(due_s, prefix.largest_mops)
            || self.depends_on_tasks()
                && prefix.tasks <= self.uniform_tasks_max()
                && prefix.tasks <= self.tasks_by(due_s, prefix.largest_mops)
    }

    /// How much work, in Mop, may join a prefix that is due in `due_s` seconds, in tasks of `task_mops` or of a size
    /// that does not matter (0). Negative when the prefix is late already.
    pub(crate) fn room(&self, due_s: f64, prefix: &Prefix, task_mops: f64) -> f64 {
        let largest_mops = prefix.largest_mops.max(task_mops);
        let by_work = self.work_by(due_s, largest_mops) - prefix.work_mops;
        if !self.depends_on_tasks() || task_mops <= 0.0 || prefix.tasks > self.uniform_tasks_max() {
            return by_work;
        }
        // A few ulps more than whole tasks, so that dividing by their size gives their number again.
        let tasks = self.tasks_by(due_s, largest_mops) - prefix.tasks;
        by_work.max(tasks * task_mops * (1.0 + 4.0 * f64::EPSILON))
    }

    /// By when, in seconds from now, a prefix is surely done: the inverse of [`Self::fits`].
    pub(crate) fn done_in(&self, prefix: &Prefix) -> f64 {
        let by_work = self.work_done_in(prefix.work_mops, prefix.largest_mops);
        if !self.depends_on_tasks() || prefix.tasks > self.uniform_tasks_max() {
            return by_work;
        }
        by_work.min(self.tasks_done_in(prefix.tasks, prefix.largest_mops))
    }

    /// The inverse of [`Self::tasks_by`].
    fn tasks_done_in(&self, tasks: f64, size_mops: f64) -> f64 {
        let task_s = size_mops / self.speed_mops;
        // The time by which divisible tasks of that much work would be done: within one task's time from then, each slot
        // ends one more.
        let begin_s = self.work_done_in(tasks * size_mops, 0.0);
        let mut done = 0.0;
        let mut next_s: Vec<f64> = Vec::with_capacity(self.free_s.len());
        for &free in &self.free_s {
            let whole = ((begin_s - free) / task_s).floor().max(0.0);
            done += whole;
            next_s.push(free + (whole + 1.0) * task_s);
        }
        let missing = (tasks - done).max(0.0) as usize;
        if missing == 0 {
            return begin_s;
        }
        next_s.sort_by(f64::total_cmp);
        next_s.get(missing - 1).copied().unwrap_or(f64::INFINITY)
    }

    /// By when, in seconds from now, a prefix of `work_mops` with tasks up to `largest_mops` is done: the inverse
    /// of [`Self::work_by`].
    fn work_done_in(&self, work_mops: f64, largest_mops: f64) -> f64 {
        if self.free_s.len() == 1 {
            return self.free_s[0] + work_mops / self.speed_mops;
        }
        let last_mops = largest_mops.min(work_mops);
        let before_s = (work_mops - last_mops) / self.speed_mops;
        // Slots that fall free before the work is spent: the work done at the moment the j-th falls free grows with j.
        let (mut slots, mut more) = (1, self.free_s.len() + 1);
        while more - slots > 1 {
            let middle = slots.midpoint(more);
            if middle as f64 * self.free_s[middle - 1] - self.free_sums_s[middle - 1] <= before_s {
                slots = middle;
            } else {
                more = middle;
            }
        }
        (before_s + self.free_sums_s[slots - 1]) / slots as f64 + last_mops / self.speed_mops
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Loads with `slots` slots and up to `bags` bags, with and without preemption: sizes spread over orders of
    /// magnitude, with ties.
    pub(crate) fn loads(slots: impl Strategy<Value = u32>, bags: usize) -> impl Strategy<Value = Load> {
        let age_s = prop_oneof![0.0..1e5_f64, 0.0..100.0_f64];
        let entry = (age_s, 0_i32..14, 1_u32..5, 0.1..30.0_f64, prop::bool::ANY, 1.0..400.0_f64).prop_map(
            |(age_s, log_task, step, left, whole, others)| {
                let task_mops = 2_f64.powi(log_task) * f64::from(step) * 10.0;
                let left = if whole { left.ceil() } else { left };
                // Ages repeat now and then.
                let age_s = if step == 1 { (age_s / 1e4).floor() * 1e4 } else { age_s };
                let application_size_mops = task_mops * if whole { left + others.floor() } else { left + others };
                (age_s, Entry { release_s: 0.0, application_size_mops, task_mops, left })
            },
        );
        let running = prop::collection::vec(0.0..2e5_f64, 0..5);
        let machine = (slots, any::<bool>(), 100.0..4000.0_f64);
        (machine, -1e6..1e6_f64, running, prop::collection::vec(entry, 0..=bags)).prop_map(
            |((slots, preemptive, speed_mops), now_s, mut running_mops, aged)| {
                running_mops.truncate(if preemptive { 0 } else { slots as usize });
                let entries =
                    aged.into_iter().map(|(age_s, entry)| Entry { release_s: now_s - age_s, ..entry }).collect();
                Load { now_s, speed_mops, slots, preemptive, running_mops, entries }
            },
        )
    }

    /// The task sizes of a bag: whole ones, and one for the fraction.
    pub(crate) fn tasks_of(entry: &Entry) -> Vec<f64> {
        let whole = entry.left.floor();
        let mut tasks = vec![entry.task_mops; whole as usize];
        if entry.left > whole {
            tasks.push((entry.left - whole) * entry.task_mops);
        }
        tasks
    }

    /// When each bag of `queue` (its task sizes, in the order in which bags are served) is done, in seconds from
    /// now: task after task on the slot that is free first.
    pub(crate) fn simulate(load: &Load, queue: &[Vec<f64>]) -> Vec<f64> {
        let mut free_s = vec![0.0_f64; load.slots as usize];
        for (slot, rest) in load.running_mops.iter().enumerate() {
            free_s[slot] = rest / load.speed_mops;
        }
        queue
            .iter()
            .map(|tasks| {
                let mut done_s = 0.0_f64;
                for task in tasks {
                    let slot = (0..free_s.len()).min_by(|&a, &b| free_s[a].total_cmp(&free_s[b])).unwrap();
                    free_s[slot] += task / load.speed_mops;
                    done_s = done_s.max(free_s[slot]);
                }
                done_s
            })
            .collect()
    }

    fn load() -> Load {
        let entry = Entry { release_s: 5.0, application_size_mops: 100.0, task_mops: 10.0, left: 2.5 };
        Load {
            now_s: 10.0,
            speed_mops: 50.0,
            slots: 2,
            preemptive: false,
            running_mops: vec![5.0],
            entries: vec![entry],
        }
    }

    #[test]
    fn loads_out_of_range_are_refused() {
        assert_eq!(load().validate(), Ok(()));
        let broken = |change: fn(&mut Load)| {
            let mut load = load();
            change(&mut load);
            load.validate().unwrap_err()
        };
        assert_eq!(broken(|load| load.slots = 0), LoadError::Slots(0));
        assert_eq!(broken(|load| load.slots = SLOTS_MAX + 1), LoadError::Slots(SLOTS_MAX + 1));
        assert_eq!(broken(|load| load.speed_mops = 0.0), LoadError::Speed(0.0));
        assert!(matches!(broken(|load| load.speed_mops = f64::NAN), LoadError::Speed(_)));
        assert_eq!(broken(|load| load.now_s = f64::INFINITY), LoadError::Now(f64::INFINITY));
        assert_eq!(broken(|load| load.running_mops = vec![1.0; 3]), LoadError::Running);
        assert_eq!(broken(|load| load.running_mops = vec![-1.0]), LoadError::Running);
        assert_eq!(broken(|load| load.preemptive = true), LoadError::Preempted);
        assert_eq!(broken(|load| load.entries = vec![load.entries[0]; ENTRIES_MAX + 1]), LoadError::Entries(65_537));
        assert_eq!(broken(|load| load.entries[0].release_s = 10.5), LoadError::Release(0));
        assert_eq!(broken(|load| load.entries[0].release_s = f64::NAN), LoadError::Release(0));
        assert_eq!(broken(|load| load.entries[0].left = -0.5), LoadError::Size(0));
        assert_eq!(broken(|load| load.entries[0].task_mops = f64::INFINITY), LoadError::Size(0));
        assert_eq!(broken(|load| load.entries[0].application_size_mops = 0.0), LoadError::Size(0));
    }

    #[test]
    fn the_earliest_deadline_comes_first_and_ties_go_to_the_smaller_bag() {
        let entry = |release_s, w| Entry { release_s, application_size_mops: w, task_mops: 1.0, left: 1.0 };
        let entries = vec![entry(0.0, 30.0), entry(5.0, 20.0), entry(5.0, 20.0), entry(8.0, 17.0), entry(1.0, 29.0)];
        let load = Load { now_s: 10.0, speed_mops: 1.0, slots: 1, preemptive: false, running_mops: vec![], entries };
        assert_eq!(load.due_in(&load.entries[3], 2.0), 32.0);
        // At 0.5: 15, 15, 15, 16.5, 15.5; at 1: 30, 25, 25, 25, 30.
        assert_eq!(load.order(0.5), [1, 2, 0, 4, 3]);
        assert_eq!(load.order(1.0), [3, 1, 2, 4, 0]);
    }

    proptest! {
        #[test]
        fn list_scheduling_keeps_the_capacity(load in loads(1_u32..=6, 8)) {
            prop_assert_eq!(load.validate(), Ok(()));
            let capacity = Capacity::new(&load);
            let queue: Vec<_> = load.entries.iter().map(tasks_of).collect();
            let mut finished_s = 0.0_f64;
            let mut prefix = Prefix::default();
            for (entry, done_s) in load.entries.iter().zip(simulate(&load, &queue)) {
                finished_s = finished_s.max(done_s);
                prefix.add(entry.left_mops(), entry.task_mops, entry.left.ceil());
                let bound_s = capacity.done_in(&prefix);
                let slack_s = 1e-9 * bound_s;
                prop_assert!(finished_s <= bound_s + slack_s, "{} > {}", finished_s, bound_s);
                if load.slots == 1 {
                    prop_assert!(finished_s >= bound_s - slack_s, "{} < {}", finished_s, bound_s);
                }
                // A promise that is no worse than one after the other on the slot that falls free first.
                prop_assert!(bound_s <= capacity.free_s[0] + prefix.work_mops / load.speed_mops + slack_s);
                prop_assert!(capacity.fits(bound_s * (1.0 + 1e-9) + 1e-9, &prefix));
                prop_assert!(!capacity.fits(bound_s * (1.0 - 1e-9) - 1e-9, &prefix));
            }
        }

        #[test]
        fn work_by_and_done_in_are_inverse_and_monotone(
            load in loads(1_u32..=6, 0), work in 1.0..1e7_f64, more in 0.0..1e6_f64, largest in 1.0..1e6_f64,
        ) {
            let capacity = Capacity::new(&load);
            let done_s = capacity.work_done_in(work, largest);
            let back = capacity.work_by(done_s, largest);
            prop_assert!((back - work).abs() <= 1e-9 * (work + 1e7), "{} {}", back, work);
            prop_assert!(capacity.work_done_in(work + more, largest) >= done_s);
            prop_assert!(capacity.work_done_in(work, largest + more) >= done_s * (1.0 - 1e-12));
            prop_assert!(capacity.work_by(done_s + more, largest) >= back);
            prop_assert!(capacity.work_by(done_s, largest + more) <= back + 1e-9 * (work + 1e7));
        }
    }
}
