//! Algorithm 1 (Netto and others 2011, §4.2): processes that wait for each other.
//!
//! Each stage has one process for each slot, the same number of each class, the most costly on the fastest slots. A stage
//! ends with its last process, and with the merging of its results. With `fill` (lines 14 and 15) processes that would
//! wait iterate on.
//!
//! The paper has as many processes of each class as a multiple of the slots. Otherwise the first classes have one more
//! in a stage, and the places that a class has no processes left for go to the most costly ones that remain; so only
//! the last stage has fewer processes than slots.
//!
//! Every slot that is there takes part, however slow: that is for whoever asks for slots to decide (§4.3, step 1).

use std::collections::VecDeque;

use super::mapping::{Costs, Mapping, Process, Slot, Stage, place, queues, usable};

/// Maps all processes; `None` if none needs a slot, or there is no slot.
pub(super) fn map(processes: &[Process], slots: &[Slot], costs: &Costs, fill: bool) -> Option<Mapping> {
    let ranked = by_power(slots, costs);
    if ranked.is_empty() {
        return None;
    }
    let mut queues = queues(processes, slots, costs);
    let mut free_s: Vec<f64> = slots.iter().map(|slot| slot.free_s).collect();
    let mut stages = Vec::new();
    while queues.iter().any(|queue| !queue.is_empty()) {
        let chosen = next_of_each(&mut queues, ranked.len());
        let pairs = chosen.into_iter().zip(&ranked);
        let placements =
            pairs.map(|(process, &slot)| place(process, slot, processes, slots, costs, &mut free_s)).collect();
        stages.push(close(placements, processes, slots, costs, fill, &mut free_s));
    }
    Mapping::of(stages)
}

/// Ends a stage: fills it if asked, and lets no slot begin with the next before its results are merged.
pub(super) fn close(
    placements: Vec<super::Placement>,
    processes: &[Process],
    slots: &[Slot],
    costs: &Costs,
    fill: bool,
    free_s: &mut [f64],
) -> Stage {
    let last_s = placements.iter().map(|placement| placement.ends_s).fold(f64::NEG_INFINITY, f64::max);
    let mut stage = Stage { placements, ends_s: last_s + costs.merge_s };
    if fill {
        fill_up(&mut stage, last_s, None, processes, slots, costs);
    }
    for free_s in free_s {
        *free_s = free_s.max(stage.ends_s);
    }
    stage
}

/// Lets the last process on each slot iterate until the stage's last process ends, with at most so many iterations.
pub(super) fn fill_up(
    stage: &mut Stage,
    last_s: f64,
    most: Option<u64>,
    processes: &[Process],
    slots: &[Slot],
    costs: &Costs,
) {
    let mut filled = vec![false; slots.len()];
    for placement in stage.placements.iter_mut().rev() {
        if std::mem::replace(&mut filled[placement.slot], true) {
            continue;
        }
        let curve = costs.curves[slots[placement.slot].machine][processes[placement.process].class];
        let more = ((last_s - placement.ends_s) / curve.iteration_s).floor();
        let more = most.map_or(more, |most| more.min(most.saturating_sub(placement.iterations) as f64));
        placement.iterations += more as u64;
        placement.ends_s += more * curve.iteration_s;
    }
}

/// Slots by decreasing speed: by the time that one iteration of each class takes there.
fn by_power(slots: &[Slot], costs: &Costs) -> Vec<usize> {
    let time_s = |slot: usize| -> f64 { costs.curves[slots[slot].machine].iter().map(|curve| curve.iteration_s).sum() };
    let mut ranked: Vec<usize> = usable(slots).collect();
    ranked.sort_by(|&one, &other| time_s(one).total_cmp(&time_s(other)));
    ranked
}

/// Takes the processes of a stage with so many places, the most costly first.
fn next_of_each(queues: &mut Vec<VecDeque<usize>>, places: usize) -> Vec<usize> {
    queues.retain(|queue| !queue.is_empty());
    let (each, rest) = (places / queues.len(), places % queues.len());
    let shares = queues.iter().enumerate().map(|(rank, queue)| (each + usize::from(rank < rest)).min(queue.len()));
    let mut counts: Vec<usize> = shares.collect();
    let mut spare = places - counts.iter().sum::<usize>();
    for (count, queue) in counts.iter_mut().zip(&*queues) {
        let more = spare.min(queue.len() - *count);
        *count += more;
        spare -= more;
    }
    queues.iter_mut().zip(counts).flat_map(|(queue, count)| queue.drain(..count)).collect()
}
