//! What both algorithms speak of: processes, slots, what a process costs where, and a mapping.

use std::collections::{BTreeMap, VecDeque};

/// How long a run takes by its iterations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    /// Before the first iteration.
    pub start_s: f64,
    /// Of each iteration, above 0.
    pub iteration_s: f64,
}

impl Curve {
    /// How long so many iterations take.
    pub fn time_s(&self, iterations: u64) -> f64 {
        self.start_s + self.iteration_s * iterations as f64
    }
}

/// A process of the application. Its number is its place in the list that [`map`](super::map) is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Processes of one class cost the same for each iteration.
    pub class: usize,
    /// Iterations to do; with 0 it needs no slot.
    pub iterations: u64,
    /// The machine that has its state; none if it has no state yet.
    pub home: Option<usize>,
}

/// Room for one process at a time. Its number is its place in the list that [`map`](super::map) is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// Whose slot it is.
    pub machine: usize,
    /// When it can begin, in seconds; infinite: never, it is gone.
    pub free_s: f64,
}

/// What is predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// By machine, then by class.
    pub curves: Vec<Vec<Curve>>,
    /// To move the state of a process to another machine.
    pub transfer_s: f64,
    /// From the end of the last process of a stage until the next stage can begin: merging, and transfers between
    /// sites. Nobody waits for it in the asynchronous mode.
    pub merge_s: f64,
}

impl Costs {
    /// How long this process takes on this machine, its transfer included.
    pub(super) fn time_s(&self, process: &Process, machine: usize) -> f64 {
        let transfer_s = if process.home.is_some_and(|home| home != machine) { self.transfer_s } else { 0.0 };
        transfer_s + self.curves[machine][process.class].time_s(process.iterations)
    }
}

/// How results get mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All processes of a stage wait for each other. With `fill` they iterate on instead of waiting (Algorithm 1,
    /// lines 14 and 15).
    Synchronous {
        /// Whether processes that would wait iterate on.
        fill: bool,
    },
    /// Nobody waits.
    Asynchronous,
}

/// Where and when a process runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Which process.
    pub process: usize,
    /// On which slot.
    pub slot: usize,
    /// Its own, and those that fill its time.
    pub iterations: u64,
    /// When it begins, in seconds.
    pub begins_s: f64,
    /// When it is predicted to end, in seconds.
    pub ends_s: f64,
}

/// Processes that wait for each other before the next stage begins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    /// Those of one slot in the order in which they run.
    pub placements: Vec<Placement>,
    /// When the next stage can begin, in seconds: all processes have ended, and their results are merged.
    pub ends_s: f64,
}

/// Where all processes run: several stages in the synchronous mode, one in the asynchronous.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    /// In the order of time.
    pub stages: Vec<Stage>,
    /// When all is done, in seconds: the predicted end.
    pub ends_s: f64,
}

impl Mapping {
    /// `None` if nothing is mapped.
    pub(super) fn of(stages: Vec<Stage>) -> Option<Self> {
        let ends_s = stages.last()?.ends_s;
        Some(Self { stages, ends_s })
    }
}

/// Numbers of the slots that are there at all.
pub(super) fn usable(slots: &[Slot]) -> impl Iterator<Item = usize> {
    slots.iter().enumerate().filter(|(_, slot)| slot.free_s.is_finite()).map(|(number, _)| number)
}

/// Processes that need a slot, by class: the class with the most costly iterations on these slots first, in each class
/// those with the most iterations first.
pub(super) fn queues(processes: &[Process], slots: &[Slot], costs: &Costs) -> Vec<VecDeque<usize>> {
    let mut classes: BTreeMap<usize, VecDeque<usize>> = BTreeMap::new();
    for (number, process) in processes.iter().enumerate().filter(|(_, process)| process.iterations > 0) {
        classes.entry(process.class).or_default().push_back(number);
    }
    let demand =
        |class: usize| -> f64 { usable(slots).map(|slot| costs.curves[slots[slot].machine][class].iteration_s).sum() };
    let mut queues: Vec<_> = classes.into_iter().map(|(class, queue)| (demand(class), queue)).collect();
    // Stable: equal classes, and equal processes, stay in the order of their numbers.
    queues.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    for (_, queue) in &mut queues {
        queue.make_contiguous().sort_by_key(|&process| std::cmp::Reverse(processes[process].iterations));
    }
    queues.into_iter().map(|(_, queue)| queue).collect()
}

/// Gives a process to the slot that completes it first (the first of equal ones), and the slot's time with it.
/// `free_s` says when each slot can begin.
pub(super) fn place_earliest(
    process: usize,
    processes: &[Process],
    slots: &[Slot],
    costs: &Costs,
    free_s: &mut [f64],
) -> Option<Placement> {
    let ends_s = |slot: usize| free_s[slot] + costs.time_s(&processes[process], slots[slot].machine);
    let slot = usable(slots).min_by(|&one, &other| ends_s(one).total_cmp(&ends_s(other)))?;
    Some(place(process, slot, processes, slots, costs, free_s))
}

/// Gives a process to this slot.
pub(super) fn place(
    process: usize,
    slot: usize,
    processes: &[Process],
    slots: &[Slot],
    costs: &Costs,
    free_s: &mut [f64],
) -> Placement {
    let begins_s = free_s[slot];
    let ends_s = begins_s + costs.time_s(&processes[process], slots[slot].machine);
    free_s[slot] = ends_s;
    Placement { process, slot, iterations: processes[process].iterations, begins_s, ends_s }
}
