//! What our schedule is compared with in the model: mappings that stay as they are, and a clairvoyant.
//!
//! - *Static*: mapped once, by predictions or evenly, on the slots that are there at the beginning. A process that is
//!   interrupted begins anew when its slot is back; what is on a slot that never comes back is submitted again when
//!   the rest of its stage has ended.
//! - *Clairvoyant*: knows how long each process takes, and when each slot will be there, so that it never begins what will
//!   be interrupted. It is greedy, each process going to the slot that completes it first, and tries two orders. It is no
//!   bound: a better schedule may exist.

use std::cmp::Reverse;

use idlewood_scheduler::rounds::{Costs, Mapping, Mode, Placement, Process, Slot, Stage, map};

use super::world::World;

/// When the best of the static mappings ends; none if none does.
pub(super) fn best_static_s(world: &World, costs: &Costs, mode: Mode) -> Option<f64> {
    let slots = there(world, 0.0);
    let by_prediction = map(mode, &world.processes, &slots, costs);
    let mappings = by_prediction.into_iter().chain(evenly(world, mode, &slots));
    mappings.filter_map(|mapping| static_s(world, costs, mode, mapping)).min_by(f64::total_cmp)
}

/// The slots; those that are not there at this moment are never free.
pub(super) fn there(world: &World, now_s: f64) -> Vec<Slot> {
    let seen = |(number, slot): (usize, &Slot)| Slot {
        free_s: if world.is_up(number, now_s) { now_s } else { f64::INFINITY },
        ..*slot
    };
    world.slots.iter().enumerate().map(seen).collect()
}

/// As many processes on each slot that is there, in the order in which they come.
fn evenly(world: &World, mode: Mode, slots: &[Slot]) -> Option<Mapping> {
    let numbers: Vec<usize> = (0..slots.len()).filter(|&slot| slots[slot].free_s.is_finite()).collect();
    // One of each class after the other, so that stages are mixed.
    let mut order: Vec<usize> = (0..world.processes.len()).collect();
    let mut seen = vec![0; 1 + world.processes.iter().map(|process| process.class).max()?];
    order.sort_by_cached_key(|&process| {
        let class = world.processes[process].class;
        seen[class] += 1;
        (seen[class], class)
    });
    let size = if mode == Mode::Asynchronous { order.len() } else { numbers.len() };
    let place = |(place, &process): (usize, &usize)| Placement {
        process,
        slot: numbers[place % numbers.len()],
        iterations: world.processes[process].iterations,
        begins_s: 0.0,
        ends_s: 0.0,
    };
    let stage =
        |processes: &[usize]| Stage { placements: processes.iter().enumerate().map(place).collect(), ends_s: 0.0 };
    (size > 0).then(|| Mapping { stages: order.chunks(size).map(stage).collect(), ends_s: 0.0 })
}

/// When all processes of a mapping have ended that nobody changes.
fn static_s(world: &World, costs: &Costs, mode: Mode, mapping: Mapping) -> Option<f64> {
    let merge_s = if mode == Mode::Asynchronous { 0.0 } else { costs.merge_s };
    let mut now_s = 0.0;
    for mut stage in mapping.stages {
        loop {
            let mut free_s = vec![now_s; world.slots.len()];
            let (mut last_s, mut missing) = (now_s, vec![false; world.processes.len()]);
            for placement in &stage.placements {
                match world.end_s(placement.process, placement.slot, free_s[placement.slot]) {
                    Some(end_s) => {
                        free_s[placement.slot] = end_s;
                        last_s = f64::max(last_s, end_s);
                    }
                    None => missing[placement.process] = true,
                }
            }
            // Where no session that has begun is long enough, the user waits for the next one.
            now_s = if last_s > now_s { last_s } else { world.next_change_s(now_s)? };
            if !missing.contains(&true) {
                break;
            }
            let rest = |(process, missing): (&Process, bool)| Process {
                iterations: if missing { process.iterations } else { 0 },
                ..*process
            };
            let rest: Vec<Process> = world.processes.iter().zip(missing).map(rest).collect();
            let again = map(Mode::Asynchronous, &rest, &there(world, now_s), costs)?;
            stage = again.stages.into_iter().next()?;
        }
        now_s += merge_s;
    }
    Some(now_s)
}

/// When the clairvoyant ends; none if it never does.
pub(super) fn clairvoyant_s(world: &World, costs: &Costs, mode: Mode) -> Option<f64> {
    let longest_first = by_length(world);
    let ends = match mode {
        Mode::Asynchronous => {
            [longest_first.concat(), in_turn(&longest_first)].map(|order| completed_s(world, &order, 0.0))
        }
        Mode::Synchronous { .. } => [true, false].map(|all_slots| stages_s(world, costs, &longest_first, all_slots)),
    };
    ends.into_iter().flatten().min_by(f64::total_cmp)
}

/// Processes of each class by decreasing true length; classes by that of their longest.
fn by_length(world: &World) -> Vec<Vec<usize>> {
    let length = |process: usize| Reverse(world.time_s(process, 0).to_bits());
    let classes = 1 + world.processes.iter().map(|process| process.class).max().unwrap_or(0);
    let mut queues = vec![Vec::new(); classes];
    for (number, process) in world.processes.iter().enumerate() {
        queues[process.class].push(number);
    }
    queues.iter_mut().for_each(|queue| queue.sort_by_key(|&process| length(process)));
    queues.retain(|queue| !queue.is_empty());
    queues.sort_by_key(|queue| length(queue[0]));
    queues
}

/// One of each class after the other.
fn in_turn(queues: &[Vec<usize>]) -> Vec<usize> {
    let longest = queues.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|turn| queues.iter().filter_map(move |queue| queue.get(turn).copied())).collect()
}

/// When the last of these processes ends, each in its turn on the slot that completes it first.
fn completed_s(world: &World, order: &[usize], from_s: f64) -> Option<f64> {
    let mut free_s = vec![from_s; world.slots.len()];
    let mut last_s = from_s;
    for &process in order {
        let ends = (0..free_s.len()).filter_map(|slot| Some((world.end_s(process, slot, free_s[slot])?, slot)));
        let (end_s, slot) = ends.min_by(|(one_s, _), (other_s, _)| one_s.total_cmp(other_s))?;
        free_s[slot] = end_s;
        last_s = last_s.max(end_s);
    }
    Some(last_s)
}

/// The synchronous mode: each stage has the same share of each class, and one process for each slot that is there when it
/// begins, or for all slots.
fn stages_s(world: &World, costs: &Costs, longest_first: &[Vec<usize>], all_slots: bool) -> Option<f64> {
    let mut order = in_turn(longest_first);
    let mut now_s = 0.0;
    while !order.is_empty() {
        let up = (0..world.slots.len()).filter(|&slot| world.is_up(slot, now_s)).count();
        let size = if all_slots { world.slots.len() } else { up.max(1) };
        let mut stage: Vec<usize> = order.drain(..size.min(order.len())).collect();
        stage.sort_by_key(|&process| Reverse(world.time_s(process, 0).to_bits()));
        now_s = completed_s(world, &stage, now_s)? + costs.merge_s;
    }
    Some(now_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::world::Session;

    const SYNCHRONOUS: Mode = Mode::Synchronous { fill: false };

    fn session(from_s: f64, to_s: f64) -> Session {
        Session { from_s, to_s }
    }

    #[test]
    fn a_static_mapping_waits_for_its_slots() {
        // Two processes on each slot; the second slot is away from 15 to 100, and loses 5 s.
        let sessions = vec![vec![session(0.0, f64::INFINITY)], vec![session(0.0, 15.0), session(100.0, f64::INFINITY)]];
        let world = World::by_hand(&[10.0; 4], sessions, 0.0);
        assert_eq!(best_static_s(&world, &world.costs, Mode::Asynchronous), Some(110.0));
        assert_eq!(best_static_s(&world, &world.costs, SYNCHRONOUS), Some(110.0));
        // Who knows the future runs three on the first.
        assert_eq!(clairvoyant_s(&world, &world.costs, Mode::Asynchronous), Some(30.0));
        // In stages: one each until 10 s, and then both on the slot that stays.
        assert_eq!(clairvoyant_s(&world, &world.costs, SYNCHRONOUS), Some(30.0));
    }

    #[test]
    fn what_never_comes_back_is_submitted_again_at_the_end() {
        let sessions = vec![vec![session(0.0, f64::INFINITY)], vec![session(0.0, 15.0)]];
        let world = World::by_hand(&[10.0; 4], sessions, 2.0);
        assert_eq!(best_static_s(&world, &world.costs, Mode::Asynchronous), Some(30.0));
        // First stage until 10 s and merged until 12 s; the second has its other process from 22 s on.
        assert_eq!(best_static_s(&world, &world.costs, SYNCHRONOUS), Some(34.0));
    }

    #[test]
    fn nobody_ends_without_slots() {
        let world = World::by_hand(&[10.0; 2], vec![vec![session(0.0, 15.0)]], 0.0);
        assert_eq!(best_static_s(&world, &world.costs, Mode::Asynchronous), None);
        assert_eq!(clairvoyant_s(&world, &world.costs, Mode::Asynchronous), None);
    }
}
