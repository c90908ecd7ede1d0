//! Our schedule in the model: `scheduler::rounds` decides, and hears what happens to the model's slots and processes.

use idlewood_scheduler::rounds::{Costs, Happening, Mode, Schedule};

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

/// Runs the application; `costs` are the predictions.
pub(super) fn run(world: &World, costs: &Costs, mode: Mode) -> Outcome {
    let mut schedule = Schedule::new(mode, world.processes.clone(), world.slots.clone(), costs.clone());
    let slots = 0..world.slots.len();
    let mut is_up = vec![false; slots.len()];
    // When the process on each slot ends.
    let mut ends_s: Vec<Option<f64>> = vec![None; slots.len()];
    let (mut now_s, mut restarts) = (0.0, 0);
    loop {
        let mut happenings = Vec::new();
        for slot in slots.clone() {
            if ends_s[slot].is_some_and(|ends_s| ends_s <= now_s) {
                ends_s[slot] = None;
                happenings.push(Happening::Ended(slot));
            }
            let was_up = std::mem::replace(&mut is_up[slot], world.is_up(slot, now_s));
            match (was_up, is_up[slot]) {
                (false, true) => happenings.push(Happening::Came(slot)),
                (true, false) => {
                    restarts += usize::from(ends_s[slot].take().is_some());
                    happenings.push(Happening::Went(slot));
                }
                _ => {}
            }
        }
        for begin in schedule.handle(now_s, &happenings) {
            ends_s[begin.slot] = Some(now_s + world.time_s(begin.process, begin.slot));
        }
        let ended_s = schedule.is_done(now_s).then_some(now_s);
        // What happens first: a process ends, a slot comes or goes, or a merge ends.
        let has_ended = happenings.iter().any(|it| matches!(it, Happening::Ended(_)));
        // A merge that takes no time ends now; one that waits for a slot is not looked at again before something happens.
        let merged_s = schedule.deadline_s().filter(|&merged_s| merged_s > now_s || has_ended && merged_s == now_s);
        let next_s = ends_s.iter().flatten().copied().chain(world.next_change_s(now_s)).chain(merged_s);
        match next_s.min_by(f64::total_cmp).filter(|_| ended_s.is_none()) {
            Some(next_s) => now_s = next_s,
            None => return Outcome { ended_s, open: schedule.open(), restarts },
        }
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::rounds::map;

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

    /// Two processes of 10 s; the only slot is away from 11 s to 100 s, and the first merge ends at 12 s.
    #[test]
    fn a_merge_that_ends_while_no_slot_is_up_is_followed_by_a_stage_once_one_comes() {
        let world = World::by_hand(&[10.0; 2], vec![vec![session(0.0, 11.0), session(100.0, f64::INFINITY)]], 2.0);
        let expected = Outcome { ended_s: Some(112.0), open: 0, restarts: 0 };
        assert_eq!(run(&world, &world.costs, MODES[0]), expected);
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
