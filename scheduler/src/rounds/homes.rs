//! On which machine each process of a round that is due begins (Netto and others 2011, §4.3, for a submitter that has slots of its own nowhere).
//!
//! A process stays where its state is, unless a fresh mapping of all that are due, transfers included, leaves less than
//! [`WORTH_MOVING_SHARE`](super::WORTH_MOVING_SHARE) of the time that staying leaves: then all follow the fresh one ([`remap`]). Within a
//! round processes wait for none of each other, so that both are mapped by Algorithm 2, with a class for each process: the most costly of all is
//! next to go to the slot that ends it first. With classes of several, of which Algorithm 2 takes one in turn, the last of the most costly would
//! have the slowest slots, and a synchronous round waits for it.
//!
//! Where processes are to fill their time (Algorithm 1, lines 14 and 15), the last one on each slot does more iterations, until the last of all
//! ends, up to [`FILL_MAX`] times as many.

use std::num::NonZeroU64;

use super::mapping::{Costs, Curve, Mapping, Mode, Placement, Process, Slot, Stage};
use super::plan::FILL_MAX;
use super::remap::remap;
use super::synchronous::fill_up;

/// Most slots of all machines that are mapped. Our choice: a round of 4,096 processes is mapped within a tenth of a second.
const SLOTS_MAX: usize = 2048;

/// A machine on which processes may begin.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Work of a process in Mop that each slot does in a second: by its speed, and by how much longer the program takes there.
    pub speed_mops: f64,
    /// Its slots, at least 1.
    pub slots: u32,
    /// How long each process that it has already is predicted to take still, in seconds.
    pub busy_s: Vec<f64>,
}

/// A process that is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Due {
    /// Its work, in Mop, above 0.
    pub work_mops: f64,
    /// The machine that has its state, by its place in the list.
    pub home: Option<usize>,
}

/// Where and when a process is predicted to run, in seconds from now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Home {
    /// The machine, by its place in the list.
    pub machine: usize,
    /// When it begins.
    pub begins_s: f64,
    /// When it ends, the transfer of its state included.
    pub ends_s: f64,
    /// How many iterations it does; 1 where they are not counted.
    pub iterations: u64,
}

/// Where each of these processes begins; none where no machine is known. `transfer_s`: to bring a state to another machine. `fill`: the iterations
/// of each, of which those that would wait do more; `None`: none does.
pub fn homes(due: &[Due], machines: &[Machine], transfer_s: f64, fill: Option<NonZeroU64>) -> Vec<Option<Home>> {
    let mut homes = vec![None; due.len()];
    let (slots, of_machine) = slots(machines);
    let iterations = fill.map_or(1, NonZeroU64::get);
    let curve = |machine: &Machine, work_mops: f64| Curve {
        start_s: 0.0,
        iteration_s: work_mops / machine.speed_mops / iterations as f64,
    };
    let of = |machine: &Machine| due.iter().map(|due| curve(machine, due.work_mops)).collect();
    let costs = Costs { curves: machines.iter().map(of).collect(), transfer_s, merge_s: 0.0 };
    let process = |(class, due): (usize, &Due)| Process { class, iterations, home: due.home };
    let processes: Vec<Process> = due.iter().enumerate().map(process).collect();
    let Some(mut mapping) = remap(Mode::Asynchronous, &staying(due, &of_machine), 0.0, &processes, &slots, &costs)
    else {
        return homes;
    };
    if fill.is_some() {
        let most = iterations.saturating_mul(FILL_MAX);
        let ends_s = mapping.ends_s;
        mapping.stages.iter_mut().for_each(|stage| fill_up(stage, ends_s, Some(most), &processes, &slots, &costs));
    }
    for placement in mapping.stages.iter().flat_map(|stage| &stage.placements) {
        let Placement { process, slot, iterations, begins_s, ends_s } = *placement;
        homes[process] = Some(Home { machine: slots[slot].machine, begins_s, ends_s, iterations });
    }
    homes
}

/// All slots, and those of each machine, the earliest free ones first.
pub(super) fn slots(machines: &[Machine]) -> (Vec<Slot>, Vec<Vec<usize>>) {
    let most = (SLOTS_MAX / machines.len().max(1)).max(1);
    let mut slots = Vec::new();
    let mut of_machine = Vec::new();
    for (number, machine) in machines.iter().enumerate() {
        let mut free_s: Vec<f64> = vec![0.0; (machine.slots as usize).clamp(1, most)];
        for busy_s in &machine.busy_s {
            if let Some(first) = free_s.iter_mut().min_by(|one, other| one.total_cmp(other)) {
                *first += busy_s;
            }
        }
        free_s.sort_by(f64::total_cmp);
        of_machine.push((slots.len()..slots.len() + free_s.len()).collect());
        slots.extend(free_s.into_iter().map(|free_s| Slot { machine: number, free_s }));
    }
    (slots, of_machine)
}

/// The mapping in which each process that has a home stays there, on its slots by turns.
fn staying(due: &[Due], of_machine: &[Vec<usize>]) -> Mapping {
    let mut turns = vec![0; of_machine.len()];
    let mut placements = Vec::new();
    for (process, home) in due.iter().enumerate().filter_map(|(process, due)| Some((process, due.home?))) {
        let slots = &of_machine[home];
        let slot = slots[turns[home] % slots.len()];
        turns[home] += 1;
        placements.push(Placement { process, slot, iterations: 1, begins_s: 0.0, ends_s: 0.0 });
    }
    Mapping { stages: vec![Stage { placements, ends_s: 0.0 }], ends_s: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(speed_mops: f64, slots: u32) -> Machine {
        Machine { speed_mops, slots, busy_s: Vec::new() }
    }

    fn chosen(due: &[(f64, Option<usize>)], machines: &[Machine], transfer_s: f64) -> Vec<usize> {
        let due: Vec<Due> = due.iter().map(|&(work_mops, home)| Due { work_mops, home }).collect();
        homes(&due, machines, transfer_s, None)
            .into_iter()
            .map(|home| home.expect("there is a machine").machine)
            .collect()
    }

    #[test]
    fn a_process_stays_unless_it_would_end_a_tenth_earlier_elsewhere() {
        let machines = |other| [machine(100.0, 1), machine(other, 1)];
        assert_eq!(chosen(&[(1000.0, Some(0))], &machines(110.0), 0.0), [0], "9 % are not worth it");
        assert_eq!(chosen(&[(1000.0, Some(0))], &machines(115.0), 0.0), [1]);
        // 10 s where it is; 8 s and the transfer elsewhere.
        assert_eq!(chosen(&[(1000.0, Some(0))], &machines(125.0), 0.5), [1]);
        assert_eq!(chosen(&[(1000.0, Some(0))], &machines(125.0), 1.5), [0]);
    }

    #[test]
    fn the_most_costly_begin_on_the_fastest_and_busy_machines_are_left_alone() {
        let machines = [machine(100.0, 1), machine(150.0, 1)];
        assert_eq!(chosen(&[(500.0, None), (1000.0, None)], &machines, 0.0), [0, 1]);
        let busy = [machine(100.0, 1), Machine { busy_s: vec![20.0, 20.0], ..machine(1000.0, 2) }];
        assert_eq!(chosen(&[(1000.0, None)], &busy, 0.0), [0]);
        assert!(homes(&[Due { work_mops: 1.0, home: None }], &[], 0.0, None) == [None]);
    }

    #[test]
    fn the_last_of_the_most_costly_has_no_slow_machine() {
        let machines = [machine(400.0, 1), machine(300.0, 1), machine(200.0, 1), machine(100.0, 1)];
        let costly_first = chosen(&[(1000.0, None), (1000.0, None), (100.0, None), (80.0, None)], &machines, 0.0);
        assert_eq!(costly_first, [0, 1, 2, 3]);
        let moved = chosen(&[(1000.0, Some(3)), (1000.0, Some(2)), (100.0, Some(1)), (80.0, Some(0))], &machines, 0.0);
        assert_eq!(moved[..2], [0, 1]);
    }

    /// All whose homes are one slow machine spread over others; those who wait at home begin later.
    #[test]
    fn several_for_each_slot_are_predicted_one_after_the_other() {
        let due = [Due { work_mops: 1000.0, home: Some(0) }; 3];
        let homes = homes(&due, &[machine(100.0, 1)], 0.0, None);
        let begins: Vec<f64> = homes.iter().flatten().map(|home| home.begins_s.round()).collect();
        assert_eq!(begins, [0.0, 10.0, 20.0]);
        let moved = chosen(&[(1000.0, Some(0)); 3], &[machine(100.0, 1), machine(100.0, 1), machine(100.0, 1)], 0.1);
        assert_eq!(moved.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    }

    #[test]
    fn what_would_wait_iterates_on_until_the_last_ends_up_to_a_factor() {
        let filled = |works: &[f64], machines: &[Machine]| -> Vec<(usize, u64, f64)> {
            let due: Vec<Due> = works.iter().map(|&work_mops| Due { work_mops, home: None }).collect();
            let homes = homes(&due, machines, 0.0, NonZeroU64::new(50)).into_iter().flatten();
            homes.map(|home| (home.machine, home.iterations, home.ends_s.round())).collect()
        };
        // Two on the fastest machine end after 8 s; the third would after 6.6 s, and does a fifth more.
        let machines = [machine(100.0, 1), machine(250.0, 1), machine(151.0, 1)];
        assert_eq!(filled(&[1000.0; 3], &machines), [(1, 50, 4.0), (2, 60, 8.0), (1, 50, 8.0)]);
        let alike = [machine(100.0, 1), machine(100.0, 1)];
        assert_eq!(filled(&[1000.0, 100.0], &alike), [(0, 50, 10.0), (1, 100, 2.0)], "twice as many at most");
        assert_eq!(filled(&[1000.0], &alike), [(0, 50, 10.0)], "it waits for nobody");
    }

    #[test]
    fn many_processes_on_many_machines_are_mapped() {
        let due: Vec<Due> =
            (0..4096).map(|number| Due { work_mops: 1.0 + number as f64, home: Some(number % 256) }).collect();
        let machines: Vec<Machine> = (0..256).map(|number| machine(100.0 + number as f64, 16)).collect();
        assert!(homes(&due, &machines, 1.0, None).iter().all(Option::is_some));
    }
}
