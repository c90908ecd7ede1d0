//! When a bag that is about to be submitted is predicted to end: by its declared work, and by the slots that are free in the grid now.
//!
//! Tasks are taken to be alike and the slots to stay free: no other bag, no owner, no transfer. What ended tasks show corrects that once the
//! bag runs (`idlewood bag show`).

use idlewood_api::client::Client;
use idlewood_api::{MachineState, MachinesWanted, SubmitRequest};
use idlewood_units::clock::{iso, wall_now};

use super::context::Context;
use super::machines::page;
use crate::output;

/// Most machines that are asked for their slots. Our choice: eight pages, some seconds.
const MACHINES_MAX: usize = 1000;

/// The prediction in words.
pub(super) fn forecast(context: &Context, request: &SubmitRequest) -> String {
    let Some(work_mops) = request.work_mops else {
        return "not known before the first task has ended: --work declares what one is".to_owned();
    };
    if request.endless.is_some() {
        return "none: the bag has no last task".to_owned();
    }
    let client = match context.client() {
        Ok(client) => client,
        Err(_) => return "not known: no agent answers here (idlewood run starts one)".to_owned(),
    };
    let speeds = match free_slots(&client) {
        Ok(speeds) => speeds,
        Err(_) => return "not known: the machines of the grid could not be listed".to_owned(),
    };
    let rounds = request.rounds.as_ref().map(|rounds| (rounds.plan.processes, rounds.plan.rounds));
    let (tasks, times) = rounds.unwrap_or((request.tasks, 1));
    match ends_s(tasks, work_mops, &speeds) {
        None => "not known: no slot of the grid is free now".to_owned(),
        Some(once_s) => {
            let after_s = once_s * times as f64;
            let at = wall_now() + std::time::Duration::try_from_secs_f64(after_s).unwrap_or(std::time::Duration::MAX);
            let slots = output::count(speeds.len() as u64, "slot");
            let free = if speeds.len() == 1 { "is" } else { "are" };
            let after = output::duration(after_s);
            format!("{}, {after} after it begins, on the {slots} that {free} free now", output::when(&iso(at)))
        }
    }
}

/// The speeds of all slots of the grid that are free, in Mop/s.
fn free_slots(client: &Client) -> anyhow::Result<Vec<f64>> {
    let state = vec![MachineState::Idle, MachineState::Working];
    let mut wanted = MachinesWanted { state, ..MachinesWanted::default() };
    let (mut speeds, mut machines) = (Vec::new(), 0);
    loop {
        let page = page(client, &wanted)?;
        machines += page.machines.len();
        for machine in page.machines {
            let busy = u64::from(machine.running.unwrap_or(0)) + machine.waiting.unwrap_or(0);
            let free = u64::from(machine.slots.unwrap_or(0)).saturating_sub(busy);
            speeds.extend((0..free).filter_map(|_| machine.speed_mops));
        }
        match page.next.filter(|_| machines < MACHINES_MAX) {
            Some(after) => wanted.after = Some(after),
            None => return Ok(speeds),
        }
    }
}

/// How long so many tasks of this work take on slots of these speeds, each going to the slot that ends it first; none without slots.
fn ends_s(tasks: u64, work_mops: f64, speeds_mops: &[f64]) -> Option<f64> {
    let fastest = speeds_mops.iter().copied().filter(|speed| *speed > 0.0).max_by(f64::total_cmp)?;
    // By then the slots have ended so many; the fastest alone would need the longest.
    let ended =
        |within_s: f64| speeds_mops.iter().map(|speed| (within_s * speed / work_mops + 1e-9).floor()).sum::<f64>();
    let (mut too_short_s, mut enough_s) = (0.0, tasks as f64 * work_mops / fastest);
    for _ in 0..64 {
        let middle_s = (too_short_s + enough_s) / 2.0;
        *if ended(middle_s) < tasks as f64 { &mut too_short_s } else { &mut enough_s } = middle_s;
    }
    Some(enough_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_divided_among_slots_by_their_speed() {
        let about =
            |tasks, work, speeds: &[f64]| ends_s(tasks, work, speeds).map(|ends_s| (ends_s * 1000.0).round() / 1000.0);
        assert_eq!(about(10, 1000.0, &[]), None);
        assert_eq!(about(10, 1000.0, &[100.0]), Some(100.0));
        // The fast slot ends ten while the slow one ends its first.
        assert_eq!(about(11, 1000.0, &[100.0, 1000.0]), Some(10.0));
        assert_eq!(about(12, 1000.0, &[100.0, 1000.0]), Some(11.0));
        assert_eq!(about(3, 1000.0, &[100.0, 100.0]), Some(20.0));
    }
}
