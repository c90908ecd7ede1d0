//! Rounds against oracles that share no code with them: schedules are checked from the statement of the problem alone,
//! bounds are Graham's and those of exhaustive search, fits are compared with the line that made the runs.

use std::time::Duration;

use idlewood_scheduler::rounds::{
    Costs, Curve, Estimate, ITERATIONS_MAX, Mapping, Mode, PartialRun, Process, Slot, Step, Sweep, WORTH_MOVING_SHARE,
    map, remap,
};
use proptest::prelude::*;

const MODES: [Mode; 3] = [Mode::Asynchronous, Mode::Synchronous { fill: false }, Mode::Synchronous { fill: true }];

/// Relative to seconds: sums in another order differ in the last digits.
fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * (1.0 + one.abs().max(other.abs()))
}

#[derive(Clone, Debug)]
struct Case {
    processes: Vec<Process>,
    slots: Vec<Slot>,
    costs: Costs,
}

impl Case {
    fn map(&self, mode: Mode) -> Option<Mapping> {
        map(mode, &self.processes, &self.slots, &self.costs)
    }

    /// A process on the machine of a slot, by the definition of costs.
    fn time_s(&self, process: usize, slot: usize, iterations: u64) -> f64 {
        let (process, machine) = (self.processes[process], self.slots[slot].machine);
        let curve = self.costs.curves[machine][process.class];
        let moved = matches!(process.home, Some(home) if home != machine);
        f64::from(u8::from(moved)) * self.costs.transfer_s + curve.start_s + iterations as f64 * curve.iteration_s
    }

    /// Fails unless this is a schedule: each process once, no slot twice at a time, nothing before its time.
    fn check(&self, mode: Mode, mapping: &Mapping) {
        let is_synchronous = matches!(mode, Mode::Synchronous { .. });
        let mut runs = vec![0; self.processes.len()];
        let mut free_s: Vec<f64> = self.slots.iter().map(|slot| slot.free_s).collect();
        let mut begins_s = f64::NEG_INFINITY;
        assert!(is_synchronous || mapping.stages.len() == 1);
        for stage in &mapping.stages {
            assert!(!stage.placements.is_empty());
            let mut last_s = f64::NEG_INFINITY;
            for placement in &stage.placements {
                runs[placement.process] += 1;
                assert!(self.slots[placement.slot].free_s.is_finite(), "{placement:?} is on a slot that is gone");
                assert!(
                    placement.begins_s >= free_s[placement.slot] && placement.begins_s >= begins_s,
                    "{placement:?}"
                );
                let took_s = self.time_s(placement.process, placement.slot, placement.iterations);
                assert!(close(placement.ends_s, placement.begins_s + took_s), "{placement:?} takes {took_s}");
                let asked = self.processes[placement.process].iterations;
                let may_be_more = mode == Mode::Synchronous { fill: true };
                assert!(placement.iterations == asked || may_be_more && placement.iterations > asked);
                free_s[placement.slot] = placement.ends_s;
                last_s = last_s.max(placement.ends_s);
            }
            let merge_s = if is_synchronous { self.costs.merge_s } else { 0.0 };
            assert!(close(stage.ends_s, last_s + merge_s), "{} after {last_s}", stage.ends_s);
            begins_s = stage.ends_s;
        }
        assert_eq!(mapping.ends_s, begins_s);
        for (process, runs) in self.processes.iter().zip(runs) {
            assert_eq!(runs, usize::from(process.iterations > 0), "{process:?}");
        }
    }
}

prop_compose! {
    fn costs(machines: usize, classes: usize)(
        curves in prop::collection::vec(
            prop::collection::vec((0.0..5.0, 0.05..10.0f64), classes), machines),
        transfer_s in 0.0..50.0f64,
        merge_s in 0.0..20.0f64,
    ) -> Costs {
        let curve = |&(start_s, iteration_s): &(f64, f64)| Curve { start_s, iteration_s };
        let curves = curves.iter().map(|row| row.iter().map(curve).collect()).collect();
        Costs { curves, transfer_s, merge_s }
    }
}

prop_compose! {
    /// Anything at all: finished processes, states elsewhere, slots that are gone or not yet free.
    fn cases()(machines in 1..5usize, classes in 1..5usize)(
        costs in costs(machines, classes),
        processes in prop::collection::vec((0..classes, 0..30u64, prop::option::of(0..machines)), 0..25),
        slots in prop::collection::vec((0..machines, 0.0..100.0f64, prop::bool::weighted(0.2)), 0..8),
    ) -> Case {
        let processes = processes.into_iter().map(|(class, iterations, home)| Process { class, iterations, home });
        let slots = slots.into_iter().map(|(machine, free_s, is_gone)| {
            Slot { machine, free_s: if is_gone { f64::INFINITY } else { free_s } }
        });
        Case { processes: processes.collect(), slots: slots.collect(), costs }
    }
}

/// Slots of machines that differ by a factor, and no start: what is faster for one class is faster for all.
fn related(speeds: &[f64], class_s: &[f64], merge_s: f64, each_class: usize) -> Case {
    let row = |speed: &f64| class_s.iter().map(|time| Curve { start_s: 0.0, iteration_s: time / speed }).collect();
    Case {
        processes: (0..class_s.len() * each_class)
            .map(|number| Process { class: number % class_s.len(), iterations: 1, home: None })
            .collect(),
        slots: (0..speeds.len()).map(|machine| Slot { machine, free_s: 0.0 }).collect(),
        costs: Costs { curves: speeds.iter().map(row).collect(), transfer_s: 0.0, merge_s },
    }
}

/// The shortest makespan of all ways to give processes to slots.
fn shortest_s(case: &Case) -> f64 {
    let (slots, processes) = (case.slots.len(), case.processes.len());
    let ways = slots.pow(processes as u32);
    (0..ways)
        .map(|way| {
            let mut busy_s = vec![0.0; slots];
            let mut digits = way;
            for process in 0..processes {
                busy_s[digits % slots] += case.time_s(process, digits % slots, case.processes[process].iterations);
                digits /= slots;
            }
            busy_s.into_iter().fold(0.0, f64::max)
        })
        .fold(f64::INFINITY, f64::min)
}

/// The shortest time in which each of these processes can end if each has a slot of its own.
fn shortest_stage_s(case: &Case, processes: &[usize], taken: &mut Vec<usize>) -> f64 {
    let Some((&process, rest)) = processes.split_first() else { return 0.0 };
    let mut best_s = f64::INFINITY;
    for slot in 0..case.slots.len() {
        if !taken.contains(&slot) {
            taken.push(slot);
            let own_s = case.time_s(process, slot, case.processes[process].iterations);
            best_s = best_s.min(own_s.max(shortest_stage_s(case, rest, taken)));
            taken.pop();
        }
    }
    best_s
}

proptest! {
    #[test]
    fn each_process_runs_once_and_no_slot_has_two_at_a_time(case in cases()) {
        let has_work = case.processes.iter().any(|process| process.iterations > 0);
        let has_room = case.slots.iter().any(|slot| slot.free_s.is_finite());
        for mode in MODES {
            let mapping = case.map(mode);
            prop_assert_eq!(mapping.is_some(), has_work && has_room);
            mapping.iter().for_each(|mapping| case.check(mode, mapping));
        }
    }

    /// Graham 1969: no slot of a list schedule is idle before the last process begins.
    #[test]
    fn on_equal_slots_asynchronous_ends_within_grahams_bound(
        slots in 1..9usize,
        class_s in prop::collection::vec(0.1..50.0f64, 1..5),
        each_class in 1..8usize,
    ) {
        let case = related(&vec![1.0; slots], &class_s, 0.0, each_class);
        let total_s: f64 = class_s.iter().sum::<f64>() * each_class as f64;
        let longest_s = class_s.iter().copied().fold(0.0, f64::max);
        let bound_s = total_s / slots as f64 + longest_s * (1.0 - 1.0 / slots as f64);
        let ends_s = case.map(Mode::Asynchronous).expect("there are slots").ends_s;
        prop_assert!(ends_s <= bound_s * (1.0 + 1e-9), "{} of {}", ends_s, bound_s);
    }

    /// The minimum completion time is at most as many times the optimum as there are slots, whatever the machines
    /// (Ibarra and Kim 1977), and 2 − 1/slots times where they are equal.
    #[test]
    fn asynchronous_is_near_the_best_of_all_mappings(
        speeds in prop::collection::vec(0.1..1.0f64, 1..4),
        class_s in prop::collection::vec(0.1..50.0f64, 1..3),
        each_class in 1..4usize,
    ) {
        let slots = speeds.len() as f64;
        let unequal = related(&speeds, &class_s, 0.0, each_class);
        let equal = related(&vec![1.0; speeds.len()], &class_s, 0.0, each_class);
        for (case, factor) in [(unequal, slots), (equal, 2.0 - 1.0 / slots)] {
            let ends_s = case.map(Mode::Asynchronous).expect("there are slots").ends_s;
            let best_s = shortest_s(&case);
            prop_assert!(ends_s >= best_s * (1.0 - 1e-9) && ends_s <= factor * best_s * (1.0 + 1e-9));
        }
    }

    #[test]
    fn each_synchronous_stage_is_the_shortest_for_its_processes(
        speeds in prop::collection::vec(0.1..1.0f64, 1..5),
        class_s in prop::collection::vec(0.1..50.0f64, 1..5),
        each_class in 1..4usize,
        merge_s in 0.0..5.0f64,
    ) {
        let case = related(&speeds, &class_s, merge_s, each_class);
        let mapping = case.map(Mode::Synchronous { fill: false }).expect("there are slots");
        prop_assert_eq!(mapping.stages.len(), case.processes.len().div_ceil(speeds.len()));
        let mut begins_s = 0.0;
        for stage in &mapping.stages {
            let processes: Vec<usize> = stage.placements.iter().map(|placement| placement.process).collect();
            let best_s = shortest_stage_s(&case, &processes, &mut Vec::new());
            prop_assert!(close(stage.ends_s - begins_s, best_s + merge_s), "{:?}: {}", stage, best_s);
            begins_s = stage.ends_s;
        }
    }

    /// All wait for the same moment as without, and nobody could do another iteration by then.
    #[test]
    fn filling_uses_the_time_and_delays_nothing(case in cases()) {
        let plain = case.map(Mode::Synchronous { fill: false });
        let filled = case.map(Mode::Synchronous { fill: true });
        prop_assert_eq!(plain.as_ref().map(|mapping| mapping.ends_s), filled.as_ref().map(|mapping| mapping.ends_s));
        for stage in filled.iter().flat_map(|mapping| &mapping.stages) {
            let last_s = stage.ends_s - case.costs.merge_s;
            for placement in &stage.placements {
                let machine = case.slots[placement.slot].machine;
                let iteration_s = case.costs.curves[machine][case.processes[placement.process].class].iteration_s;
                prop_assert!(placement.ends_s <= last_s + 1e-6);
                prop_assert!(placement.ends_s + iteration_s > last_s - 1e-6, "{:?} until {}", placement, last_s);
            }
        }
    }

    /// Where slots are equal and each stage has the same number of each class: when a process is mapped, some slot has
    /// none of its stage yet, so that it ends no later than that stage.
    #[test]
    fn on_equal_slots_asynchronous_is_never_later_than_synchronous(
        class_s in prop::collection::vec(0.1..50.0f64, 1..5),
        slots_for_each in 1..4usize,
        stages in 1..5usize,
        merge_s in 0.0..5.0f64,
    ) {
        let speeds = vec![1.0; class_s.len() * slots_for_each];
        let case = related(&speeds, &class_s, merge_s, slots_for_each * stages);
        let ends_s = |mode| case.map(mode).expect("there are slots").ends_s;
        let (asynchronous_s, synchronous_s) = (ends_s(Mode::Asynchronous), ends_s(Mode::Synchronous { fill: false }));
        prop_assert!(asynchronous_s <= synchronous_s * (1.0 + 1e-9), "{} and {}", asynchronous_s, synchronous_s);
    }

    /// What was mapped goes on on other slots, at other speeds, partly done.
    #[test]
    fn a_remap_has_everything_once_and_is_never_worse_than_staying(
        case in cases(),
        news in prop::collection::vec((0..4u8, 0.0..2.0f64), 40),
        faster in 0.2..5.0f64,
    ) {
        for mode in MODES {
            let Some(old) = case.map(mode) else { continue };
            let mut later = case.clone();
            for (slot, &(what, _)) in later.slots.iter_mut().zip(&news) {
                if what == 0 {
                    slot.free_s = f64::INFINITY;
                }
            }
            for (process, &(what, _)) in later.processes.iter_mut().zip(&news[10..]) {
                if what == 1 {
                    process.iterations = 0;
                }
            }
            for curve in later.costs.curves.iter_mut().flatten().zip(&news).filter(|(_, (what, _))| *what == 2) {
                curve.0.iteration_s *= faster;
            }
            later.slots.push(Slot { machine: 0, free_s: 7.0 });
            later.processes.push(Process { class: 0, iterations: 3, home: None });
            let new = remap(mode, &old, 0.0, &later.processes, &later.slots, &later.costs).expect("there is a slot");
            later.check(mode, &new);
            let fresh = later.map(mode).expect("there is a slot");
            if new != fresh {
                // Stayed: all that could has, and the fresh mapping was not worth it.
                prop_assert!(fresh.ends_s >= WORTH_MOVING_SHARE * new.ends_s);
                let place = |mapping: &Mapping, process| {
                    let mut all = mapping.stages.iter().flat_map(|stage| &stage.placements);
                    all.find(|placement| placement.process == process).map(|placement| placement.slot)
                };
                for process in (0..case.processes.len()).filter(|&process| later.processes[process].iterations > 0) {
                    let slot = place(&old, process).expect("it was mapped");
                    let stays = !later.slots[slot].free_s.is_finite() || place(&new, process) == Some(slot);
                    prop_assert!(stays, "{} has left slot {}", process, slot);
                }
            }
        }
    }

    /// Staying is easy to predict where no slot is lost: each slot does what is left for it, one after the other.
    #[test]
    fn a_remap_ends_no_later_than_staying_does(case in cases(), done in prop::collection::vec(any::<bool>(), 25)) {
        let Some(old) = case.map(Mode::Asynchronous) else { return Ok(()) };
        let mut later = case.clone();
        for (process, _) in later.processes.iter_mut().zip(done).filter(|(_, done)| *done) {
            process.iterations = 0;
        }
        let mut busy_s: Vec<f64> = later.slots.iter().map(|slot| slot.free_s).collect();
        let mut stay_s = 0.0f64;
        for placement in &old.stages[0].placements {
            if later.processes[placement.process].iterations > 0 {
                busy_s[placement.slot] += later.time_s(placement.process, placement.slot, placement.iterations);
                stay_s = stay_s.max(busy_s[placement.slot]);
            }
        }
        let new = remap(Mode::Asynchronous, &old, 0.0, &later.processes, &later.slots, &later.costs);
        let ends_s = new.map_or(0.0, |mapping| mapping.ends_s);
        prop_assert!(ends_s <= stay_s * (1.0 + 1e-9), "{} and {}", ends_s, stay_s);
    }

    #[test]
    fn a_remap_without_news_is_the_old_mapping(case in cases()) {
        for mode in MODES {
            let Some(old) = case.map(mode) else { continue };
            let again = remap(mode, &old, 0.0, &case.processes, &case.slots, &case.costs);
            prop_assert_eq!(again, Some(old));
        }
    }

    /// Without noise three runs tell everything, start-up included.
    #[test]
    fn a_line_is_found_by_three_runs(start_s in 0.0..20.0f64, iteration_s in 0.05..5.0f64) {
        let (estimate, runs) = sweep(ITERATIONS_MAX, |iterations| start_s + iteration_s * iterations as f64);
        prop_assert_eq!(runs, [3, 6, 12]);
        prop_assert!((estimate.curve.iteration_s / iteration_s - 1.0).abs() < 1e-3, "{:?}", estimate);
        prop_assert!((estimate.curve.start_s - start_s).abs() < 1e-3, "{:?}", estimate);
    }

    /// Whatever the clock says, the sweep ends, and with numbers that can be used.
    #[test]
    fn a_sweep_ends_whatever_runs_take(times in prop::collection::vec(0.0..1e4f64, 20), most in 0..4000u64) {
        let mut times = times.into_iter();
        let (estimate, runs) = sweep(most, |_| times.next().expect("a sweep has fewer runs"));
        prop_assert!(runs.is_sorted_by(|one, next| one < next) && runs[runs.len() - 1] <= most.max(1));
        prop_assert!(estimate.curve.start_s >= 0.0 && estimate.curve.iteration_s >= 0.0);
        prop_assert!(estimate.curve.time_s(most).is_finite() && !estimate.within_share.is_nan());
    }
}

/// What a sweep finds out of a program that takes so long, and the iterations of its runs.
fn sweep(iterations_max: u64, mut time_s: impl FnMut(u64) -> f64) -> (Estimate, Vec<u64>) {
    let (mut sweep, mut runs) = (Sweep::new(iterations_max), Vec::new());
    loop {
        match sweep.step() {
            Step::Known(estimate) => return (estimate, runs),
            Step::Run(iterations) => {
                runs.push(iterations);
                sweep.ended(PartialRun { iterations, took: Duration::from_secs_f64(time_s(iterations)) });
            }
        }
    }
}

/// Noise that is the same in every run of the test: sums of uniform numbers, so nearly normal, of mean 0 and deviation 1.
fn noise(state: &mut u64) -> f64 {
    let mut sum = -6.0;
    for _ in 0..12 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sum += (*state >> 11) as f64 / (1u64 << 53) as f64;
    }
    sum
}

#[test]
fn the_cost_of_an_iteration_is_as_well_known_as_the_sweep_says() {
    let (mut state, mut within, mut known, mut longest) = (1, 0, 0, 0);
    for _ in 0..1000 {
        let (estimate, runs) =
            sweep(ITERATIONS_MAX, |iterations| (2.0 + 0.3 * iterations as f64) * (1.0 + 0.02 * noise(&mut state)));
        known += usize::from(estimate.within_share <= 0.05);
        within += usize::from((estimate.curve.iteration_s / 0.3 - 1.0).abs() <= 0.05);
        longest = longest.max(runs[runs.len() - 1]);
    }
    assert!(known > 950, "{known} of 1000 sweeps ended because the cost was known");
    assert!(within > 900, "{within} of 1000 sweeps were within 5 %");
    assert!(longest > 100, "2 % of noise takes more than the three runs of a line");
}

/// The paper's script (Fig. 3) on a program that starts for 20 s: it goes on to 1,118 iterations, and says 64 s of
/// 200 iterations that take 80.
#[test]
fn start_up_is_not_taken_for_throughput() {
    let time_s = |iterations: u64| 20.0 + 0.3 * iterations as f64;
    let (mut iterations, mut throughput, mut before, mut longest) = (3, 0.0, 0.0, 0);
    while iterations < 1500 {
        (throughput, longest) = (iterations as f64 / time_s(iterations), iterations);
        if (throughput / before - 1.0f64).abs() <= 0.05 {
            break;
        }
        (before, iterations) = (throughput, (iterations as f64 * 1.15 + iterations as f64) as u64);
    }
    let papers_s = 200.0 / throughput;
    assert!((63.0..65.0).contains(&papers_s) && longest > 1000, "{papers_s} after {longest}");
    let (estimate, runs) = sweep(ITERATIONS_MAX, time_s);
    assert!(close(estimate.curve.time_s(200), 80.0) && runs[runs.len() - 1] == 12, "{estimate:?}");
}

#[test]
fn a_short_process_is_run_as_a_whole() {
    assert_eq!(sweep(1, |_| 4.0), (Estimate { curve: line(0.0, 4.0), within_share: f64::INFINITY }, vec![1]));
    let (estimate, runs) = sweep(5, |iterations| 1.0 + iterations as f64);
    assert_eq!(runs, [3, 5]);
    assert!(
        close(estimate.curve.start_s, 1.0) && close(estimate.curve.iteration_s, 1.0) && estimate.within_share > 1.0
    );
}

fn line(start_s: f64, iteration_s: f64) -> Curve {
    Curve { start_s, iteration_s }
}

/// Two fast slots and two that are ten times slower. By turns the second large process comes when the small one of the
/// first turn has a fast slot already: 11 s, where Algorithm 1 without merging takes 10 s.
#[test]
fn asynchronous_can_be_later_where_fast_slots_are_few() {
    let case = related(&[1.0, 1.0, 0.1, 0.1], &[10.0, 1.0], 0.0, 2);
    let ends_s = |mode| case.map(mode).expect("there are slots").ends_s;
    assert!(close(ends_s(Mode::Asynchronous), 11.0) && close(ends_s(Mode::Synchronous { fill: false }), 10.0));
}

/// By hand: the slower machine alone, and a fast one comes that is worth the transfers or not.
#[test]
fn processes_move_when_it_is_worth_it() {
    let slow_only = |transfer_s| {
        let costs = Costs { curves: vec![vec![line(0.0, 1.0)], vec![line(0.0, 0.1)]], transfer_s, merge_s: 0.0 };
        let processes = vec![Process { class: 0, iterations: 10, home: Some(0) }; 2];
        Case { processes, slots: vec![Slot { machine: 0, free_s: 0.0 }], costs }
    };
    for (transfer_s, ends_s) in [(0.0, 2.0), (9.0, 10.0), (17.5, 20.0)] {
        let mut case = slow_only(transfer_s);
        let old = case.map(Mode::Asynchronous).expect("there is a slot");
        assert!(close(old.ends_s, 20.0));
        case.slots.push(Slot { machine: 1, free_s: 0.0 });
        let new = remap(Mode::Asynchronous, &old, 0.0, &case.processes, &case.slots, &case.costs);
        assert!(close(new.expect("there are slots").ends_s, ends_s), "transfers of {transfer_s} s");
    }
}
