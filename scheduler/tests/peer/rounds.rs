//! Applications in rounds: what their tasks begin with, in whatever order others end, and how they end themselves.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use idlewood_scheduler::rounds::{Part, Plan};
use proptest::prelude::*;

use super::*;

fn plan(processes: u64, rounds: u64, merges: bool, is_asynchronous: bool) -> Plan {
    Plan { processes, rounds, rounds_min: 0, merges, is_asynchronous, fill: None, at_once: false }
}

fn application(plan: Plan, retries_max: u32) -> Submission {
    let conditions = Conditions { rounds: Some(plan), ..Conditions::default() };
    Submission { conditions, retries_max, ..submission(plan.tasks(), 1000.0) }
}

fn host(plan: Plan, retries_max: u32) -> Host {
    let config = Config { slots: 4, ..Config::default() };
    let mut host = Host::restore(1, config, Vec::new());
    host.give(Event::Submitted(application(plan, retries_max)));
    host
}

impl Host {
    /// Tasks of the application that run now, the first first.
    fn runs(&mut self) -> Vec<u64> {
        self.pass(Duration::from_secs(1));
        let running: BTreeSet<u64> = self.peer.running().into_iter().map(|running| running.task.index).collect();
        running.into_iter().collect()
    }

    fn end(&mut self, index: u64, success: bool) {
        self.finish(TaskId { bag: BAG, index }, success);
    }

    fn end_all(&mut self) {
        while let Some(&index) = self.runs().first() {
            self.end(index, true);
        }
    }

    /// The machine is killed, and comes back with what was durable.
    fn come_back(self) -> Self {
        let config = Config { slots: 4, ..Config::default() };
        let makes_starts = self.makes_starts;
        let mut host = Self::restore_at(1, config, self.store.into_values().collect(), self.now);
        host.makes_starts = makes_starts;
        host
    }

    /// Done, failed, and whether the bag is over.
    fn state(&self) -> (u64, u64, bool) {
        let view = self.peer.bag(BAG).expect("submitted");
        (view.done, view.failed, view.closed.is_some())
    }
}

#[test]
fn a_round_begins_when_the_merge_before_it_has_ended() {
    let mut host = host(plan(2, 2, true, false), 0);
    assert_eq!((host.runs(), host.starts.len()), (vec![0, 1], 0));
    host.end(1, true);
    assert_eq!((host.runs(), host.starts.len()), (vec![0], 0), "the merge waits for all");
    host.end(0, true);
    assert_eq!(host.runs(), [2]);
    let results = vec![(0, 0), (1, 1)];
    assert_eq!(host.starts, [(2, Sources { results, ..Sources::default() })]);
    host.end(2, true);
    assert_eq!(host.runs(), [3, 4]);
    let of = |process| Sources { state: Some(process), merged: Some(2), ..Sources::default() };
    assert_eq!(host.starts[1..], [(3, of(0)), (4, of(1))]);
    let named = host.going_on.iter().map(|(&index, checkpoint)| (index, checkpoint.bytes)).collect::<Vec<_>>();
    assert_eq!(named, [(2, 2), (3, 3), (4, 4)], "each is told what it begins with");
    host.end_all();
    assert_eq!(host.state(), (6, 0, true));
    assert!(
        !host.store.keys().any(|key| matches!(key, RecordKey::Checkpoint(..))),
        "nothing is left of what they began with"
    );
}

#[test]
fn what_was_not_recorded_is_made_again_after_a_restart_and_nothing_else() {
    let mut host = host(plan(2, 2, true, false), 0);
    host.makes_starts = |_| StartMade::NotNow;
    host.runs();
    [0, 1].into_iter().for_each(|index| host.end(index, true));
    assert_eq!(host.runs(), [] as [u64; 0], "it could not be made");
    let mut host = host.come_back();
    assert!(!host.starts.is_empty(), "made again");
    host.makes_starts = start;
    host.pass(Duration::from_secs(10));
    assert_eq!(host.runs(), [2], "after a pause");
    let mut host = host.come_back();
    assert_eq!((host.runs(), host.starts.as_slice()), (vec![2], &[][..]), "that was recorded");
    host.end_all();
    assert_eq!(host.state(), (6, 0, true));
}

#[test]
fn a_task_that_fails_for_good_ends_the_application_until_it_is_run_again() {
    let mut host = host(plan(2, 3, true, false), 0);
    host.runs();
    host.end(1, false);
    assert_eq!((host.runs(), host.state()), (vec![0], (0, 1, false)), "others go on as far as they can");
    host.end(0, true);
    assert_eq!((host.runs(), host.state()), (Vec::new(), (1, 1, true)));
    let mut host = host.come_back();
    assert_eq!((host.runs(), host.state()), (Vec::new(), (1, 1, true)), "over is over");
    host.give(Event::Rerun { bag: BAG, tasks: IntervalSet::from(1..2) });
    host.end_all();
    assert_eq!(host.state(), (9, 0, true), "it goes on from there");
}

#[test]
fn a_failed_merge_that_runs_again_begins_with_the_same() {
    let mut host = host(plan(2, 2, true, false), 0);
    host.runs();
    [0, 1].into_iter().for_each(|index| host.end(index, true));
    host.runs();
    host.end(2, false);
    assert_eq!((host.runs(), host.state()), (Vec::new(), (2, 1, true)));
    host.give(Event::Rerun { bag: BAG, tasks: IntervalSet::from(2..3) });
    assert_eq!(host.runs(), [2]);
    assert_eq!(host.starts[0], host.starts[1]);
    host.end_all();
    assert_eq!(host.state(), (6, 0, true));
}

#[test]
fn a_try_that_fails_is_tried_again_with_what_the_first_one_began_with() {
    let mut host = host(plan(1, 2, false, false), 2);
    host.runs();
    host.end(0, true);
    assert_eq!(host.runs(), [1]);
    host.end(1, false);
    host.going_on.clear();
    host.pass(Duration::from_secs(600));
    assert_eq!((host.runs(), host.going_on.len(), host.starts.len()), (vec![1], 1, 1), "it is there still");
    host.end_all();
    assert_eq!(host.state(), (2, 0, true));
}

#[test]
fn an_application_that_has_converged_ends_early() {
    let with_min = |rounds_min| {
        let mut host = host(Plan { rounds_min, ..plan(2, 4, true, false) }, 0);
        host.makes_starts = |index| match start(index) {
            // The merge of the second round says so, and each after that.
            StartMade::Here { start, .. } => StartMade::Here { start, has_converged: index >= 6 },
            StartMade::NotNow => StartMade::NotNow,
        };
        host.end_all();
        host
    };
    assert_eq!(with_min(0).state(), (6, 0, true));
    assert_eq!(with_min(3).state(), (9, 0, true));
    let host = with_min(2).come_back();
    assert_eq!((host.state(), host.starts.len()), ((6, 0, true), 0), "also after a restart");
}

#[test]
fn no_machine_is_sent_more_tasks_than_it_can_hold_with_what_they_begin_with() {
    let plan = plan(10_000, 2, true, false);
    let config = Config { slots: 64, ..Config::default() };
    let mut host = Host::restore(1, config, Vec::new());
    host.give(Event::Submitted(application(plan, 0)));
    let mut most = 0;
    for _ in 0..4000 {
        if host.state() == (plan.tasks(), 0, true) {
            break;
        }
        host.pass(Duration::from_secs(1));
        let view = host.peer.bag(BAG).expect("submitted");
        most = most.max(view.placed + view.unheard);
        host.finish_running();
    }
    assert_eq!(host.state(), (plan.tasks(), 0, true));
    assert_eq!((most, host.peer.bag(BAG).expect("submitted").reissued), (4096, 0));
}

#[test]
fn plans_that_are_none_are_refused() {
    let host = Host::new(1);
    let with = |plan: Plan| host.peer.check(&application(plan, 0));
    assert_eq!(with(plan(2, 2, true, false)), Ok(()));
    assert!(matches!(with(plan(2, 0, true, false)), Err(SubmitError::Rounds(_) | SubmitError::Tasks(_))));
    assert!(matches!(with(plan(300, 2, false, false)), Err(SubmitError::Rounds(_))));
    let short = Submission { tasks: 3, ..application(plan(2, 2, true, false), 0) };
    assert!(matches!(host.peer.check(&short), Err(SubmitError::Rounds(_))));
    let replication = Replication { replicas: 3, quorum: 2, recheck: 0 };
    let voted = Submission { replication, ..application(plan(2, 2, true, false), 0) };
    assert!(matches!(host.peer.check(&voted), Err(SubmitError::Rounds(_))));
}

/// Two machines run an application of two processes; which machine (2 submits) ran each task, and the machines that tasks were sent to by
/// preference. `at` is told of each running task before it ends.
fn run_on_two(plan: Plan, mut at: impl FnMut(u8, u64, &mut Host)) -> (BTreeMap<u64, u8>, u32, u32) {
    let [mut host, mut other] = pair();
    host.give(Event::Submitted(application(plan, 0)));
    let (mut ran, mut preferred, mut declined) = (BTreeMap::new(), 0, 0);
    for _ in 0..600 {
        talk_and(&mut host, &mut other, 1, |message| match message {
            Message::Request { request, .. } => {
                preferred += u32::from(request.begins_within.is_some_and(|within_s| within_s != u32::MAX))
            }
            Message::Decline { reason: DeclineReason::Later, .. } => declined += 1,
            _ => {}
        });
        for (number, one) in [(2, &mut host), (3, &mut other)] {
            for running in one.peer.running() {
                ran.insert(running.task.index, number);
                at(number, running.task.index, one);
                if !one.peer.running().is_empty() {
                    // A merge is short, so that a process waits for one where its state is.
                    let is_merge = matches!(plan.part(running.task.index), Part::Merge { .. });
                    one.finish_with(running.task, true, if is_merge { 1.0 } else { 1000.0 });
                }
            }
        }
        if host.state().2 {
            return (ran, preferred, declined);
        }
    }
    panic!("it does not end: {:?}", host.state());
}

#[test]
fn a_process_stays_where_its_state_is() {
    for is_asynchronous in [false, true] {
        let plan = plan(2, 6, true, is_asynchronous);
        let (ran, preferred, declined) = run_on_two(plan, |_, _, _| ());
        assert_eq!((ran.len() as u64, declined), (plan.tasks(), 0), "nothing is lost or declined");
        assert!(preferred > 0);
        // Machines say what they can do with their first task: from the second round on processes stay.
        for process in 0..2 {
            let on = |round| ran[&plan.index(Part::Process { round, process })];
            assert!((1..6).all(|round| on(round) == on(0)), "{process}: {ran:?}");
        }
    }
}

/// The other machine's process ends at once, and the submitter's after more than a lease. The other one holds nothing meanwhile, and is still known
/// when the next round begins.
#[test]
fn a_machine_whose_process_ended_long_before_the_round_is_preferred_in_the_next_one() {
    let plan = plan(2, 4, true, false);
    let [mut host, mut other] = pair();
    host.give(Event::Submitted(Submission { task_mops: Some(200_000.0), ..application(plan, 0) }));
    let (mut there, mut straight, mut ran_s) = (BTreeSet::new(), BTreeSet::new(), 0);
    for _ in 0..1200 {
        talk_and(&mut host, &mut other, 1, |message| {
            if let Message::Request { request, .. } = message
                && request.begins_within.is_some_and(|within_s| within_s != u32::MAX)
            {
                straight.extend(request.ranges.indices());
            }
        });
        for running in other.peer.running() {
            there.insert(running.task.index);
            other.finish_with(running.task, true, 200_000.0);
        }
        for running in host.peer.running() {
            ran_s += 1;
            if ran_s > 150 || matches!(plan.part(running.task.index), Part::Merge { .. }) {
                host.finish_with(running.task, true, 200_000.0);
                ran_s = 0;
            }
        }
    }
    assert!(host.state().2, "{:?}", host.state());
    let is_later = |index: &u64| matches!(plan.part(*index), Part::Process { round: 1.., .. });
    let there: BTreeSet<u64> = there.into_iter().filter(is_later).collect();
    assert_eq!((there.len(), &straight), (3, &there), "one process of each round but the first");
}

#[test]
fn a_machine_whose_owner_is_back_declines_and_its_processes_go_elsewhere() {
    let plan = plan(2, 6, true, false);
    let is_process = |index: u64| matches!(plan.part(index), Part::Process { .. });
    let (ran, _, declined) = run_on_two(plan, |number, index, host| {
        // The owner comes when the fourth round ends there, and stays.
        if number == 3 && index >= 9 && is_process(index) {
            host.finish(TaskId { bag: BAG, index }, true);
            host.give(Event::OwnerReturned { stands_still: true });
        }
    });
    assert_eq!(ran.len() as u64, plan.tasks(), "nothing is lost");
    assert!(declined > 0 && ran[&15] == 2 && ran[&16] == 2, "{declined} {ran:?}");
}

/// Process 1 has twice the work of process 0, on machines that are alike.
#[test]
fn a_process_that_would_wait_does_more_iterations_which_are_no_more_work_of_a_round() {
    let plan = Plan { fill: NonZeroU64::new(50), ..plan(2, 7, true, false) };
    let mut iterations: BTreeMap<u64, Option<NonZeroU64>> = BTreeMap::new();
    run_on_two(plan, |_, index, host| {
        iterations.extend(host.starts.iter().map(|(index, from)| (*index, from.iterations)));
        if let Part::Process { process, .. } = plan.part(index) {
            let done = iterations.get(&index).copied().flatten().map_or(50, NonZeroU64::get);
            host.finish_with(TaskId { bag: BAG, index }, true, ((1 + process) * 20 * done) as f64);
        }
    });
    let of_part = |part| iterations.get(&plan.index(part)).copied().flatten();
    let of = |round, process| of_part(Part::Process { round, process }).map_or(0, NonZeroU64::get);
    // Machines and works are known from the second round on.
    for round in 1..7 {
        assert!((99..=100).contains(&of(round, 0)) && of(round, 1) == 50, "{round}: {iterations:?}");
    }
    assert!((0..7).all(|round| of_part(Part::Merge { round, of: None }).is_none()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever fails, crashes, comes back with a checkpoint or is restarted: each task succeeds once, and begins with the same.
    #[test]
    fn whatever_happens_each_task_begins_with_the_same(
        processes in 1_u64..4, rounds in 1_u64..4, merges: bool, is_asynchronous: bool,
        fates in prop::collection::vec((0_usize..9, 0_u8..10), 60),
    ) {
        let plan = plan(processes, rounds, merges, is_asynchronous);
        let mut host = host(plan, 100);
        let mut starts: BTreeMap<u64, Sources> = BTreeMap::new();
        for (pick, fate) in fates {
            let running = host.runs();
            let Some(&index) = running.get(pick % running.len().max(1)) else {
                host.pass(Duration::from_secs(600));
                continue;
            };
            match fate {
                0 => {
                    let made = std::mem::take(&mut host.starts);
                    let others = note(&mut starts, made, is_asynchronous);
                    prop_assert!(others.is_none(), "{:?}", others);
                    host = host.come_back();
                }
                1 => host.end(index, false),
                2 => {
                    let task = TaskId { bag: BAG, index };
                    host.give(Event::TaskEnded { task, outcome: TaskOutcome::NotStarted { retry_after: Duration::from_secs(1) } });
                }
                _ => host.end(index, true),
            }
        }
        while host.state() != (plan.tasks(), 0, true) {
            let before = host.state().0;
            host.pass(Duration::from_secs(4000));
            host.end_all();
            prop_assert!(host.state().0 > before || host.state().2, "nothing is lost: {:?}", host.state());
        }
        let made = std::mem::take(&mut host.starts);
        prop_assert!(note(&mut starts, made, is_asynchronous).is_none());
        let later = (plan.first().end..plan.tasks()).filter(|index| !starts.contains_key(index)).count();
        prop_assert_eq!(later, 0, "each of a later round began with something");
    }
}

/// Notes what tasks begin with; one that begins with something else than before, unless the newest results are another.
fn note(
    starts: &mut BTreeMap<u64, Sources>,
    made: Vec<(u64, Sources)>,
    is_asynchronous: bool,
) -> Option<(u64, Sources)> {
    made.into_iter().find(|(index, sources)| {
        let before = starts.insert(*index, sources.clone());
        !is_asynchronous && before.is_some_and(|before| before != *sources)
    })
}
