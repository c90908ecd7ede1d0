//! Our schedule in the model: mapped by predictions, mapped anew at every end of a round and whenever a slot comes or
//! goes. It knows predictions, what has ended, and who is there now.

use std::collections::VecDeque;

use idlewood_scheduler::rounds::{Costs, Mapping, Mode, Process, Slot, map, remap};

use super::world::World;

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Outcome {
    /// When all was done; none if that never was.
    pub(super) ended_s: Option<f64>,
    /// Processes that had not ended then.
    pub(super) open: usize,
    /// Times that a process was interrupted, and began anew.
    pub(super) restarts: usize,
}

/// A process on its slot.
#[derive(Clone, Copy, Debug)]
struct Run {
    process: usize,
    ends_s: f64,
    predicted_end_s: f64,
}

struct Schedule<'a> {
    world: &'a World,
    /// Predicted.
    costs: &'a Costs,
    /// Those that have ended have no iterations any more.
    processes: Vec<Process>,
    running: Vec<Option<Run>>,
    now_s: f64,
    restarts: usize,
}

/// Whom a mapping is for: all who have not ended, or those of one stage.
type Members = Vec<bool>;

/// Runs the application; `costs` are the predictions.
pub(super) fn run(world: &World, costs: &Costs, mode: Mode) -> Outcome {
    let processes = world.processes.clone();
    let mut schedule =
        Schedule { world, costs, running: vec![None; world.slots.len()], now_s: 0.0, restarts: 0, processes };
    let ended = schedule.all_stages(mode).is_some();
    let open = schedule.processes.iter().filter(|process| process.iterations > 0).count();
    Outcome { ended_s: ended.then_some(schedule.now_s), open, restarts: schedule.restarts }
}

impl Schedule<'_> {
    /// Goes on until all processes have ended; `None` if no slot is there any more.
    fn all_stages(&mut self, mode: Mode) -> Option<()> {
        let mut plan: Option<Mapping> = None;
        loop {
            let left = self.members(|_| true);
            if !left.contains(&true) {
                return Some(());
            }
            while !(0..self.running.len()).any(|slot| self.world.is_up(slot, self.now_s)) {
                self.now_s = self.world.next_change_s(self.now_s)?;
            }
            let mut next = self.anew(mode, plan.as_ref(), &left)?;
            if mode == Mode::Asynchronous {
                return self.stage(next, &left, true);
            }
            let stage = next.stages.remove(0);
            let mut members = vec![false; left.len()];
            stage.placements.iter().for_each(|placement| members[placement.process] = true);
            plan = Some(next);
            let ends_s = stage.ends_s;
            self.stage(Mapping { stages: vec![stage], ends_s }, &members, false)?;
            self.now_s += self.costs.merge_s;
        }
    }

    /// Runs processes until all of them have ended. They are mapped anew when slots come and go, and at their ends if
    /// asked.
    fn stage(&mut self, mut mapping: Mapping, members: &Members, at_ends: bool) -> Option<()> {
        let mut queues = self.queues(&mapping);
        loop {
            self.begin(&mut queues);
            let open = self.members(|process| members[process]);
            if !open.contains(&true) {
                return Some(());
            }
            let first_end_s = self.running.iter().flatten().map(|run| run.ends_s).min_by(f64::total_cmp);
            let change_s = self.world.next_change_s(self.now_s);
            self.now_s = first_end_s.into_iter().chain(change_s).min_by(f64::total_cmp)?;
            self.end();
            let is_change = change_s == Some(self.now_s);
            if at_ends || is_change {
                let open = self.members(|process| members[process]);
                // Without slots, or where all the rest runs, there is nothing to map.
                let next = self.anew(Mode::Asynchronous, Some(&mapping), &open);
                queues =
                    next.as_ref().map_or_else(|| vec![VecDeque::new(); self.running.len()], |next| self.queues(next));
                mapping = next.unwrap_or(mapping);
            }
        }
    }

    /// Whether each process has not ended, and is one of these.
    fn members(&self, is_one: impl Fn(usize) -> bool) -> Members {
        self.processes.iter().enumerate().map(|(number, process)| process.iterations > 0 && is_one(number)).collect()
    }

    /// The mapping from now on of these processes but for those that run.
    fn anew(&self, mode: Mode, old: Option<&Mapping>, members: &Members) -> Option<Mapping> {
        let mut processes = self.processes.clone();
        for (process, _) in processes.iter_mut().zip(members).filter(|(_, is_one)| !**is_one) {
            process.iterations = 0;
        }
        self.running.iter().flatten().for_each(|run| processes[run.process].iterations = 0);
        let slots: Vec<Slot> =
            self.world.slots.iter().enumerate().map(|(number, slot)| self.seen(number, *slot)).collect();
        match old {
            Some(old) => remap(mode, old, self.now_s, &processes, &slots, self.costs),
            None => map(mode, &processes, &slots, self.costs),
        }
    }

    /// A slot as it is seen now.
    fn seen(&self, number: usize, slot: Slot) -> Slot {
        let free_s = match self.running[number] {
            _ if !self.world.is_up(number, self.now_s) => f64::INFINITY,
            // What takes longer than predicted may end any moment.
            Some(run) => run.predicted_end_s.max(self.now_s),
            None => self.now_s,
        };
        Slot { free_s, ..slot }
    }

    fn queues(&self, mapping: &Mapping) -> Vec<VecDeque<usize>> {
        let mut queues = vec![VecDeque::new(); self.running.len()];
        for placement in mapping.stages.iter().flat_map(|stage| &stage.placements) {
            queues[placement.slot].push_back(placement.process);
        }
        queues
    }

    /// Gives each idle slot the next process of its queue.
    fn begin(&mut self, queues: &mut [VecDeque<usize>]) {
        for (slot, queue) in queues.iter_mut().enumerate() {
            if self.running[slot].is_some() || !self.world.is_up(slot, self.now_s) {
                continue;
            }
            self.running[slot] = queue.pop_front().map(|process| {
                let Process { class, iterations, .. } = self.processes[process];
                let predicted_s = self.costs.curves[slot][class].time_s(iterations);
                let ends_s = self.now_s + self.world.time_s(process, slot);
                Run { process, ends_s, predicted_end_s: self.now_s + predicted_s }
            });
        }
    }

    /// Ends what ends now, and what runs on slots that have gone.
    fn end(&mut self) {
        for (slot, running) in self.running.iter_mut().enumerate() {
            let Some(run) = running else { continue };
            if run.ends_s <= self.now_s {
                self.processes[run.process].iterations = 0;
                *running = None;
            } else if !self.world.is_up(slot, self.now_s) {
                self.restarts += 1;
                *running = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::world::{Machines, Session};

    const MODES: [Mode; 2] = [Mode::Synchronous { fill: false }, Mode::Asynchronous];

    fn session(from_s: f64, to_s: f64) -> Session {
        Session { from_s, to_s }
    }

    #[test]
    fn what_is_predicted_exactly_ends_when_it_is_predicted() {
        let world = World::draw(Machines::Stay, 0.0, 1);
        for mode in MODES {
            let predicted_s = map(mode, &world.processes, &world.slots, &world.costs).expect("there are slots").ends_s;
            let outcome = run(&world, &world.costs, mode);
            assert_eq!((outcome.open, outcome.restarts), (0, 0));
            let ended_s = outcome.ended_s.expect("it ends");
            // Mapped anew without news: never later than predicted, up to rounding.
            assert!(ended_s <= predicted_s * (1.0 + 1e-9) && ended_s > 0.9 * predicted_s, "{ended_s} {predicted_s}");
        }
    }

    /// Four processes of 10 s on two slots, one of which is away from 15 s to 100 s.
    #[test]
    fn what_is_interrupted_begins_anew_elsewhere() {
        let sessions = vec![vec![session(0.0, f64::INFINITY)], vec![session(0.0, 15.0), session(100.0, f64::INFINITY)]];
        let world = World::by_hand(&[10.0; 4], sessions, 2.0);
        let ended = |mode| run(&world, &world.costs, mode);
        assert_eq!(ended(Mode::Asynchronous), Outcome { ended_s: Some(30.0), open: 0, restarts: 1 });
        // The second stage begins at 12 s, and its interrupted process at 22 s on the other slot; both merge for 2 s.
        assert_eq!(ended(MODES[0]), Outcome { ended_s: Some(34.0), open: 0, restarts: 1 });
    }

    #[test]
    fn what_no_slot_is_left_for_stays_open() {
        let world = World::by_hand(&[10.0; 3], vec![vec![session(0.0, 15.0)]], 0.0);
        for mode in MODES {
            assert_eq!(run(&world, &world.costs, mode), Outcome { ended_s: None, open: 2, restarts: 1 });
        }
    }

    #[test]
    fn nothing_is_lost_whatever_comes_and_goes() {
        for machines in [Machines::Owners, Machines::Vanish, Machines::Desktop] {
            for mode in MODES {
                let outcome = run(&World::draw(machines, 0.3, 2), &World::draw(machines, 0.3, 2).costs, mode);
                assert!(outcome.open == 0 && outcome.ended_s.is_some(), "{machines:?} {mode:?}: {outcome:?}");
            }
        }
    }
}
