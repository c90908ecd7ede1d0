//! The rival that knows nothing of what goes on elsewhere: a bag is split among the machines in proportion to their speed when it
//! arrives, and each machine orders what it has by its own smallest maximum stretch.
//!
//! There are no summaries, no tree and no centre. What a good scheduler gains over this rival is what knowing the grid's state is
//! worth; on a load where this rival comes near the offline bound, no scheduler can show anything. Each machine preempts as ours
//! do, and counts a bag with the size of the whole. Fewer tasks than slots go to the fastest machines.
//!
//! Left out: moving tasks. Those of a machine that goes down wait until it comes up again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use idlewood_overlay::Time;

use super::central::schedule;
use super::instance::Instance;
use super::policy::Policy;
use crate::workload::Bag;

/// Schedules the bags; returns when each was complete, none if it was not by the horizon.
pub fn speed_split(instance: &Instance, frozen_max: usize) -> Vec<Option<Time>> {
    let mut completed: Vec<Option<Time>> = instance.bags.iter().map(|bag| Some(bag.arrival)).collect();
    // Of each machine the bags that it has tasks of, and which.
    let mut parts: Vec<Vec<(usize, Vec<u64>)>> = vec![Vec::new(); instance.machines.len()];
    for (number, bag) in instance.bags.iter().enumerate() {
        for (part, tasks) in parts.iter_mut().zip(shares(instance, bag)).filter(|(_, tasks)| !tasks.is_empty()) {
            part.push((number, tasks));
        }
    }
    for (machine, part) in instance.machines.iter().zip(parts) {
        let alone = Instance {
            machines: vec![machine.clone()],
            bags: part.iter().map(|(bag, tasks)| piece(&instance.bags[*bag], tasks.len())).collect(),
            true_mops: true_mops(instance, &part),
            submitters: part.iter().filter_map(|(bag, _)| instance.submitters.get(*bag).copied()).collect(),
            widths: part.iter().map(|(bag, _)| width(instance, &instance.bags[*bag])).collect(),
            ..*instance
        };
        for ((bag, _), at) in part.iter().zip(schedule(&alone, Policy::min_cent_plus(frozen_max))) {
            completed[*bag] = completed[*bag].zip(at).map(|(known, at)| known.max(at));
        }
    }
    completed
}

/// The part of a bag with so many of its tasks.
fn piece(bag: &Bag, tasks: usize) -> Bag {
    Bag { tasks: tasks as u64, ..bag.clone() }
}

/// Whether a machine is up at this moment.
fn is_up(instance: &Instance, machine: usize, at: Time) -> bool {
    instance.machines[machine].sessions.iter().any(|session| session.from <= at && at < session.to)
}

/// max(n, machines that are up): the effective size is this many tasks.
fn width(instance: &Instance, bag: &Bag) -> u64 {
    let up = (0..instance.machines.len()).filter(|&machine| is_up(instance, machine, bag.arrival)).count();
    bag.tasks.max(up as u64)
}

/// The tasks of a bag that each machine gets: one after the other goes to the machine that would end it first if it had nothing
/// else to do. All machines take part where none is up.
fn shares(instance: &Instance, bag: &Bag) -> Vec<Vec<u64>> {
    let machines = 0..instance.machines.len();
    let up: Vec<usize> = machines.clone().filter(|&machine| is_up(instance, machine, bag.arrival)).collect();
    let takes = |machine: usize, tasks: usize| {
        let machine = &instance.machines[machine];
        // Whole rounds of its slots.
        let time = tasks.div_ceil(machine.slots as usize) as f64 / machine.speed_mops;
        Reverse(time.to_bits())
    };
    let all = if up.is_empty() { machines.collect() } else { up };
    let mut next: BinaryHeap<_> = all.into_iter().map(|machine| (takes(machine, 1), Reverse(machine))).collect();
    let mut shares = vec![Vec::new(); instance.machines.len()];
    for index in 0..bag.tasks {
        let Some((_, Reverse(machine))) = next.pop() else { break };
        shares[machine].push(index);
        next.push((takes(machine, shares[machine].len() + 1), Reverse(machine)));
    }
    shares
}

/// The true work of these tasks of each of these bags; empty if all are as declared.
fn true_mops(instance: &Instance, part: &[(usize, Vec<u64>)]) -> Vec<Vec<f64>> {
    let of = |(bag, tasks): &(usize, Vec<u64>)| {
        instance.true_mops.get(*bag).map(|all| tasks.iter().map(|&index| all[index as usize]).collect())
    };
    part.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::BagId;

    use super::*;
    use crate::baseline::{Machine, Session};

    fn at(seconds: f64) -> Time {
        Time::from_micros((seconds * 1e6).round() as i64)
    }

    fn bag(arrival_s: f64, tasks: u64, task_mops: f64) -> Bag {
        let (id, arrival, declared_mops) = (BagId([0; 32]), at(arrival_s), task_mops);
        Bag { id, arrival, tasks, task_mops, declared_mops, seat: None, whole: 0, first: 0, endless: None }
    }

    fn instance(speeds: &[f64], bags: Vec<Bag>) -> Instance {
        let horizon = at(1e7);
        let sessions = vec![Session { from: Time::ZERO, to: horizon }];
        let machine =
            |&speed_mops: &f64| Machine { speed_mops, slots: 1, sessions: sessions.clone(), visits: Vec::new() };
        Instance { machines: speeds.iter().map(machine).collect(), bags, horizon, ..Instance::default() }
    }

    fn seconds(completed: &[Option<Time>]) -> Vec<f64> {
        completed.iter().map(|completed| completed.map_or(f64::NAN, |at| at.as_secs_f64())).collect()
    }

    #[test]
    fn bags_are_split_by_speed_whatever_the_machines_have_already() {
        // Four of six tasks go to the faster machine: 20 s on both. A single task goes there, too, though it is behind; it is
        // small, and comes ahead.
        let all = instance(&[10.0, 20.0], vec![bag(0.0, 6, 100.0), bag(1.0, 1, 10.0)]);
        assert_eq!(seconds(&speed_split(&all, 2)), [20.5, 1.5]);
        // Without preemption it waits for the running task.
        assert_eq!(seconds(&speed_split(&all, 0)), [20.5, 5.5]);
    }

    #[test]
    fn tasks_stay_where_they_are_while_their_machine_is_down() {
        let mut all = instance(&[10.0, 10.0], vec![bag(0.0, 2, 100.0)]);
        all.machines[1].sessions =
            vec![Session { from: at(0.0), to: at(5.0) }, Session { from: at(100.0), to: at(1e7) }];
        assert_eq!(seconds(&speed_split(&all, 2)), [110.0]);
        all.machines[1].sessions.remove(0);
        assert_eq!(seconds(&speed_split(&all, 2)), [20.0], "a machine that is down gets no tasks");
    }

    #[test]
    fn each_machine_has_the_true_work_of_its_tasks() {
        let mut all = instance(&[10.0, 10.0], vec![bag(0.0, 2, 100.0)]);
        all.true_mops = vec![vec![50.0, 300.0]];
        assert_eq!(seconds(&speed_split(&all, 2)), [30.0]);
    }
}
