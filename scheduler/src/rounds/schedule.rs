//! When processes are mapped, and mapped anew (Netto and others 2011, §4.3): a state machine that hears what happens to slots and
//! processes, and says which process begins where.
//!
//! All is mapped anew at every end of a round, and whenever a slot comes or goes; where nobody waits, at every end of a process, too.
//! It knows predictions, what has ended, and which slots are there now. A process whose slot goes begins anew elsewhere.

use std::collections::VecDeque;

use super::mapping::{Costs, Mapping, Mode, Process, Slot};
use super::remap::{map, remap};

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The process on this slot has ended.
    Ended(usize),
    /// This slot is there.
    Came(usize),
    /// This slot is gone, and what ran on it is interrupted.
    Went(usize),
}

/// A process that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Which one.
    pub process: usize,
    /// Where.
    pub slot: usize,
}

/// A process on its slot.
#[derive(Clone, Copy, Debug)]
struct Run {
    process: usize,
    predicted_end_s: f64,
}

/// What is under way of a round, or of all where nobody waits.
#[derive(Clone, Debug)]
struct Current {
    mapping: Mapping,
    /// Whether each process belongs to it.
    members: Vec<bool>,
    queues: Vec<VecDeque<usize>>,
}

/// The schedule of one application, which has as many iterations to do as its processes say.
#[derive(Clone, Debug)]
pub struct Schedule {
    mode: Mode,
    costs: Costs,
    /// Those that have ended have no iterations any more.
    processes: Vec<Process>,
    slots: Vec<Slot>,
    is_up: Vec<bool>,
    running: Vec<Option<Run>>,
    /// The last mapping of all stages.
    plan: Option<Mapping>,
    current: Option<Current>,
    /// When the merge of the last stage ends; a further stage begins no sooner.
    merged_s: f64,
}

impl Schedule {
    /// No slot is there yet. `costs` are the predictions.
    pub fn new(mode: Mode, processes: Vec<Process>, slots: Vec<Slot>, costs: Costs) -> Self {
        let (is_up, running) = (vec![false; slots.len()], vec![None; slots.len()]);
        let merged_s = f64::NEG_INFINITY;
        Self { mode, costs, processes, slots, is_up, running, plan: None, current: None, merged_s }
    }

    /// Something has happened, or [`Schedule::deadline_s`] has come: which processes begin now. `now_s` never decreases.
    ///
    /// # Panics
    /// If the costs lack a machine of a slot or home, or a class of a process, or a slot does not exist.
    pub fn handle(&mut self, now_s: f64, happenings: &[Happening]) -> Vec<Begin> {
        let (mut is_change, mut is_end) = (false, false);
        for happening in happenings {
            match *happening {
                Happening::Ended(slot) => {
                    if let Some(run) = self.running[slot].take() {
                        self.processes[run.process].iterations = 0;
                        is_end = true;
                    }
                }
                Happening::Came(slot) => (self.is_up[slot], is_change) = (true, true),
                Happening::Went(slot) => {
                    self.running[slot] = None;
                    (self.is_up[slot], is_change) = (false, true);
                }
            }
        }
        match self.current.take() {
            Some(mut current) => {
                if is_change || is_end && self.mode == Mode::Asynchronous {
                    let open = self.open_of(&current.members);
                    // Without slots, or where all the rest runs, there is nothing to map.
                    let next = self.anew(now_s, Mode::Asynchronous, Some(&current.mapping), &open);
                    current.queues =
                        next.as_ref().map_or_else(|| vec![VecDeque::new(); self.slots.len()], |next| self.queues(next));
                    current.mapping = next.unwrap_or(current.mapping);
                }
                self.current = Some(current);
            }
            None if now_s >= self.merged_s => self.begin_stage(now_s),
            None => {}
        }
        let begun = self.begin(now_s);
        if let Some(current) = &self.current
            && !self.open_of(&current.members).contains(&true)
        {
            self.current = None;
            self.merged_s = if self.mode == Mode::Asynchronous { now_s } else { now_s + self.costs.merge_s };
        }
        begun
    }

    /// When the next stage may begin, or all is done: the merge of the last one has ended then. `None` while a stage is under way, and before the
    /// first one; a moment that has passed while a slot is waited for.
    pub fn deadline_s(&self) -> Option<f64> {
        (self.current.is_none() && self.merged_s.is_finite()).then_some(self.merged_s)
    }

    /// Whether all processes have ended, and the last merge.
    pub fn is_done(&self, now_s: f64) -> bool {
        self.open() == 0 && now_s >= self.merged_s
    }

    /// How many processes have not ended.
    pub fn open(&self) -> usize {
        self.processes.iter().filter(|process| process.iterations > 0).count()
    }

    /// Whether each process has not ended, and is one of these.
    fn open_of(&self, members: &[bool]) -> Vec<bool> {
        self.processes.iter().zip(members).map(|(process, is_one)| process.iterations > 0 && *is_one).collect()
    }

    fn begin_stage(&mut self, now_s: f64) {
        let left = self.open_of(&vec![true; self.processes.len()]);
        if !left.contains(&true) {
            return;
        }
        let Some(mut next) = self.anew(now_s, self.mode, self.plan.as_ref(), &left) else { return };
        self.merged_s = f64::NEG_INFINITY;
        if self.mode == Mode::Asynchronous {
            let queues = self.queues(&next);
            self.current = Some(Current { mapping: next, members: left, queues });
            return;
        }
        let stage = next.stages.remove(0);
        let mut members = vec![false; left.len()];
        stage.placements.iter().for_each(|placement| members[placement.process] = true);
        self.plan = Some(next);
        let mapping = Mapping { ends_s: stage.ends_s, stages: vec![stage] };
        let queues = self.queues(&mapping);
        self.current = Some(Current { mapping, members, queues });
    }

    /// The mapping from now on of these processes but for those that run.
    fn anew(&self, now_s: f64, mode: Mode, old: Option<&Mapping>, members: &[bool]) -> Option<Mapping> {
        let mut processes = self.processes.clone();
        for (process, _) in processes.iter_mut().zip(members).filter(|(_, is_one)| !**is_one) {
            process.iterations = 0;
        }
        self.running.iter().flatten().for_each(|run| processes[run.process].iterations = 0);
        let slots: Vec<Slot> =
            self.slots.iter().enumerate().map(|(number, slot)| self.seen(now_s, number, *slot)).collect();
        match old {
            Some(old) => remap(mode, old, now_s, &processes, &slots, &self.costs),
            None => map(mode, &processes, &slots, &self.costs),
        }
    }

    /// A slot as it is seen now.
    fn seen(&self, now_s: f64, number: usize, slot: Slot) -> Slot {
        let free_s = match self.running[number] {
            _ if !self.is_up[number] => f64::INFINITY,
            // What takes longer than predicted may end any moment.
            Some(run) => run.predicted_end_s.max(now_s),
            None => now_s,
        };
        Slot { free_s, ..slot }
    }

    fn queues(&self, mapping: &Mapping) -> Vec<VecDeque<usize>> {
        let mut queues = vec![VecDeque::new(); self.slots.len()];
        for placement in mapping.stages.iter().flat_map(|stage| &stage.placements) {
            queues[placement.slot].push_back(placement.process);
        }
        queues
    }

    /// Gives each idle slot the next process of its queue.
    fn begin(&mut self, now_s: f64) -> Vec<Begin> {
        let Some(current) = &mut self.current else { return Vec::new() };
        let mut begun = Vec::new();
        for (slot, queue) in current.queues.iter_mut().enumerate() {
            if self.running[slot].is_some() || !self.is_up[slot] {
                continue;
            }
            self.running[slot] = queue.pop_front().map(|process| {
                begun.push(Begin { process, slot });
                let Process { class, iterations, .. } = self.processes[process];
                let predicted_s = self.costs.curves[slot][class].time_s(iterations);
                Run { process, predicted_end_s: now_s + predicted_s }
            });
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::Curve;

    fn schedule(mode: Mode, processes: usize, slots: usize) -> Schedule {
        let process = Process { class: 0, iterations: 10, home: None };
        let curves = vec![vec![Curve { start_s: 0.0, iteration_s: 1.0 }]; slots];
        let costs = Costs { curves, transfer_s: 0.0, merge_s: 2.0 };
        let slots = (0..slots).map(|machine| Slot { machine, free_s: 0.0 }).collect();
        Schedule::new(mode, vec![process; processes], slots, costs)
    }

    #[test]
    fn a_stage_begins_when_the_merge_before_it_has_ended() {
        use Happening::{Came, Ended};
        let mut schedule = schedule(Mode::Synchronous { fill: false }, 3, 2);
        assert_eq!(schedule.handle(0.0, &[]), [], "no slot is there");
        assert_eq!(schedule.handle(1.0, &[Came(0), Came(1)]).len(), 2);
        assert_eq!((schedule.handle(11.0, &[Ended(0)]), schedule.deadline_s()), (Vec::new(), None));
        assert_eq!((schedule.handle(12.0, &[Ended(1)]), schedule.deadline_s()), (Vec::new(), Some(14.0)));
        assert_eq!(schedule.handle(13.0, &[]), [], "results are merged");
        let last = schedule.handle(14.0, &[]);
        assert_eq!((last.len(), schedule.open()), (1, 1));
        schedule.handle(24.0, &[Ended(last[0].slot)]);
        assert_eq!((schedule.is_done(24.0), schedule.is_done(26.0)), (false, true));
    }

    #[test]
    fn what_its_slot_left_begins_anew_elsewhere() {
        use Happening::{Came, Ended, Went};
        let mut schedule = schedule(Mode::Asynchronous, 2, 2);
        let begun = schedule.handle(0.0, &[Came(0), Came(1)]);
        assert_eq!(schedule.handle(5.0, &[Went(0)]), [], "the other slot is busy");
        assert_eq!(schedule.handle(10.0, &[Ended(1)]), [Begin { process: begun[0].process, slot: 1 }]);
        schedule.handle(20.0, &[Ended(1)]);
        assert!(schedule.is_done(20.0), "nobody waits for a merge");
    }
}
