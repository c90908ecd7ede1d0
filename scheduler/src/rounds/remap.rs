//! Where processes run from now on: a first mapping, and another one when things have changed (Netto and others 2011,
//! §4.3).
//!
//! At the end of a round, or when a slot comes or goes, the old mapping is predicted anew with the slots as they are now:
//! processes stay where they are, and those whose slot is gone go to the slot that completes them first. A fresh
//! mapping by the same algorithm, with the transfers that it needs, replaces it if it is worth that. So a remap is never
//! predicted to end later than if nothing but the lost processes moved, and noise in predictions moves nothing.

use super::mapping::{Costs, Mapping, Mode, Placement, Process, Slot, Stage, place, place_earliest};
use super::{asynchronous, synchronous};

/// A fresh mapping is taken if the time that it leaves is below this share of what the old one leaves (our choice,
/// docs/adr/0050).
pub const WORTH_MOVING_SHARE: f64 = 0.9;

/// Gives each process that has iterations to do to a slot; `None` if no process has, or no slot is there.
///
/// # Panics
/// If `costs` lacks a machine of a slot or home, or a class of a process.
pub fn map(mode: Mode, processes: &[Process], slots: &[Slot], costs: &Costs) -> Option<Mapping> {
    match mode {
        Mode::Synchronous { fill } => synchronous::map(processes, slots, costs, fill),
        Mode::Asynchronous => asynchronous::map(processes, slots, costs),
    }
}

/// The mapping to go on with from `now_s` on: the old one without what is done and with what has lost its slot
/// elsewhere, or a fresh one if that is worth it; `None` if no process has iterations to do, or no slot is there.
///
/// Processes and slots have the numbers that they had in `old`, new slots are added behind; processes that `old` does not
/// have are new, too. No slot is free before `now_s`.
///
/// # Panics
/// If `costs` lacks a machine of a slot or home, or a class of a process, or the lists are shorter than `old` says.
pub fn remap(
    mode: Mode,
    old: &Mapping,
    now_s: f64,
    processes: &[Process],
    slots: &[Slot],
    costs: &Costs,
) -> Option<Mapping> {
    let fresh = map(mode, processes, slots, costs)?;
    let kept = keep(mode, old, processes, slots, costs)?;
    let is_worth_it = fresh.ends_s - now_s < WORTH_MOVING_SHARE * (kept.ends_s - now_s);
    Some(if is_worth_it { fresh } else { kept })
}

/// What is left of a stage.
#[derive(Default)]
struct Left<'a> {
    /// On slots that are there, in their order.
    there: Vec<&'a Placement>,
    /// Processes whose slot is gone, or that never had one.
    elsewhere: Vec<usize>,
}

/// The old mapping on the slots that there are; `None` if nothing is to be done, or no slot is there.
fn keep(mode: Mode, old: &Mapping, processes: &[Process], slots: &[Slot], costs: &Costs) -> Option<Mapping> {
    let mut free_s: Vec<f64> = slots.iter().map(|slot| slot.free_s).collect();
    let mut kept: Vec<Stage> = Vec::new();
    for Left { there, elsewhere } in left(old, processes, slots) {
        let stays = there.into_iter().map(|old| place(old.process, old.slot, processes, slots, costs, &mut free_s));
        let mut placements: Vec<Placement> = stays.collect();
        for process in elsewhere {
            placements.push(place_earliest(process, processes, slots, costs, &mut free_s)?);
        }
        kept.push(match mode {
            Mode::Synchronous { fill } => synchronous::close(placements, processes, slots, costs, fill, &mut free_s),
            Mode::Asynchronous => {
                let ends_s = placements.iter().map(|placement| placement.ends_s).fold(f64::NEG_INFINITY, f64::max);
                Stage { placements, ends_s }
            }
        });
    }
    Mapping::of(kept)
}

/// What is to be done of each stage, but for stages of which nothing is. Processes that are new belong to the last.
fn left<'a>(old: &'a Mapping, processes: &[Process], slots: &[Slot]) -> Vec<Left<'a>> {
    let mut is_new: Vec<bool> = processes.iter().map(|process| process.iterations > 0).collect();
    let mut stages = Vec::new();
    for stage in &old.stages {
        let mut left = Left::default();
        for placement in &stage.placements {
            match std::mem::take(&mut is_new[placement.process]) {
                true if slots[placement.slot].free_s.is_finite() => left.there.push(placement),
                true => left.elsewhere.push(placement.process),
                false => {}
            }
        }
        stages.push(left);
    }
    let new = (0..processes.len()).filter(|&process| is_new[process]);
    match stages.last_mut() {
        Some(last) => last.elsewhere.extend(new),
        None => stages.push(Left { elsewhere: new.collect(), ..Left::default() }),
    }
    stages.retain(|left| !left.there.is_empty() || !left.elsewhere.is_empty());
    stages
}
