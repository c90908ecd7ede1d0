//! Algorithm 2 (Netto and others 2011, §4.2): processes that go on without waiting for each other.
//!
//! One process of each class in turn, the most costly class first, goes to the slot that completes it first. A turn
//! takes one of each class so that results of all classes are there early.
//!
//! It is a greedy rule: no slot is idle while another could end its processes later, but it is not the best mapping, and
//! where fast slots are few it can end later than Algorithm 1 without merging (`scheduler/tests/rounds.rs` has such a
//! case, and the cases in which it cannot).

use super::mapping::{Costs, Mapping, Process, Slot, Stage, place_earliest, queues};

/// Maps all processes in one stage; `None` if none needs a slot, or there is no slot.
pub(super) fn map(processes: &[Process], slots: &[Slot], costs: &Costs) -> Option<Mapping> {
    let mut queues = queues(processes, slots, costs);
    let mut free_s: Vec<f64> = slots.iter().map(|slot| slot.free_s).collect();
    let mut stage = Stage { placements: Vec::new(), ends_s: f64::NEG_INFINITY };
    while queues.iter().any(|queue| !queue.is_empty()) {
        for process in queues.iter_mut().filter_map(|queue| queue.pop_front()) {
            let placement = place_earliest(process, processes, slots, costs, &mut free_s)?;
            stage.ends_s = stage.ends_s.max(placement.ends_s);
            stage.placements.push(placement);
        }
    }
    (!stage.placements.is_empty()).then_some(vec![stage]).and_then(Mapping::of)
}
