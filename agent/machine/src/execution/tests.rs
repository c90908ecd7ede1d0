use std::iter;

use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BlobId, Finished};

use super::*;

mod machine;
mod random;
mod workers;

const BAG: BagId = BagId([1; 32]);

fn task(index: u64) -> TaskId {
    TaskId { bag: BAG, index }
}

fn header(bag: BagId) -> BagHeader {
    let submitter = Contact { peer: PeerId([9; 32]), incarnation: 1, address: "".into(), nonce: None };
    BagHeader { id: bag, submitter, tasks: 20, task_mops: 1.0, application_size_mops: 20.0, declared: true }
}

fn config(slots: u32) -> Config {
    Config { slots, frozen_max: 1, ..Config::default() }
}

/// What came of an attempt, which its work tells.
fn finished(attempt: u32) -> TaskOutcome {
    let (success, crashed, output, output_bytes, exit_code) = (true, false, BlobId([2; 32]), 1, Some(0));
    let work_mops = f64::from(attempt);
    TaskOutcome::Finished(Finished {
        success,
        crashed,
        output,
        output_bytes,
        content: None,
        work_mops,
        exit_code,
        fingerprint: None,
        times: 1.0,
    })
}

fn at(milliseconds: u64) -> Time {
    Time::ZERO + Duration::from_millis(milliseconds)
}

/// A job that is ahead.
fn job(index: u64, attempt: u32) -> Job {
    let (id, memory_bytes) = (JobId(index), 10);
    Job { id, task: task(index), attempt, memory_bytes, place: None, condemned: false }
}

/// Tasks 0 to 9 are held. Of attempt 1, 0 to 2 are with workers, of 3 the output is being kept, and 4 is over.
fn ahead() -> Execution {
    let mut execution = Execution::new(&config(2));
    execution.jobs = 100;
    let mut effects = Vec::new();
    execution.note_held(BAG, Some(&(0..10).into()), &mut effects);
    assert!(execution.learn(task(4), 1, 10));
    execution.runs[0].jobs = [job(0, 1), job(1, 1)].into();
    execution.runs[1].jobs = [job(2, 1)].into();
    execution.early.insert(task(3), Early { job: JobId(3), attempt: 1, outcome: None });
    execution.early.insert(task(4), Early { job: JobId(4), attempt: 1, outcome: Some(finished(1)) });
    execution
}

fn start(execution: &mut Execution, place: usize, task: TaskId, attempt: u32) -> Vec<Effect> {
    let mut effects = Vec::new();
    execution.start(place, task, attempt, header(task.bag), None, &mut effects);
    effects
}

fn settle(execution: &mut Execution, now: Time) -> Vec<Effect> {
    let mut effects = Vec::new();
    execution.settle(now, &mut effects);
    effects
}

fn handle(execution: &mut Execution, now: Time, event: WorkEvent) -> Vec<Effect> {
    let mut effects = Vec::new();
    execution.handle(now, event, &mut effects);
    execution.settle(now, &mut effects);
    effects
}

fn ended(execution: &mut Execution) -> Vec<(TaskId, TaskOutcome)> {
    iter::from_fn(|| execution.next_ended()).map(|ended| (ended.task, ended.outcome)).collect()
}

fn work(orders: impl IntoIterator<Item = WorkOrder>) -> Vec<Effect> {
    orders.into_iter().map(Effect::Work).collect()
}

#[test]
fn a_start_claims_a_job_ahead_only_of_the_same_attempt() {
    for (index, attempt, expected) in [
        (0, 1, "given"),
        (1, 1, "given"),
        (2, 1, "given"),
        (3, 1, "keeping"),
        (4, 1, "over"),
        (5, 1, "prepared"),
        (0, 2, "prepared, recalls 0"),
        (1, 0, "prepared, recalls 0"),
        (2, 2, "prepared, recalls 1"),
        (3, 2, "prepared"),
        (4, 2, "prepared"),
    ] {
        let mut execution = ahead();
        let effects = start(&mut execution, 2, task(index), attempt);
        let prepares = effects.iter().any(|effect| matches!(effect, Effect::Work(WorkOrder::Prepare { .. })));
        let recalls: Vec<usize> = (0..2).filter(|&slot| execution.runs[slot].recall.is_some()).collect();
        let over = ended(&mut execution);
        let claim = match execution.places[2].as_ref().map(|started| started.stage) {
            None => {
                assert_eq!(over, [(task(index), finished(attempt))]);
                "over".to_owned()
            }
            Some(Stage::Given) => "given".to_owned(),
            Some(Stage::Keeping) => "keeping".to_owned(),
            Some(Stage::Preparing) => match recalls[..] {
                [] => "prepared".to_owned(),
                [slot] => format!("prepared, recalls {slot}"),
                _ => panic!("{recalls:?}"),
            },
            Some(Stage::Ready) => panic!("nothing is frozen"),
        };
        assert_eq!(claim, expected, "task {index}, attempt {attempt}");
        assert_eq!(prepares, claim.starts_with("prepared"));
        assert!(!execution.early.contains_key(&task(index)));
        execution.assert_consistent();
    }
}

/// Else the peer would sign one attempt's result as the other's, and the running attempt would have no place.
#[test]
fn the_outcome_of_an_attempt_goes_only_to_the_place_of_that_attempt() {
    let keeping = |id, index, attempt| Some(Started::new(JobId(id), task(index), attempt, Stage::Keeping));
    for (place, told, kept) in [
        (keeping(3, 3, 1), true, false),
        (keeping(50, 3, 2), false, false),
        (keeping(50, 11, 1), false, true),
        (None, false, true),
    ] {
        let (mut execution, what) = (ahead(), format!("{place:?}"));
        if place.as_ref().is_some_and(|started| started.task == task(3)) {
            execution.early.remove(&task(3));
        }
        execution.places[1] = place;
        let over = WorkEvent::Over { job: JobId(3), task: task(3), outcome: finished(1) };
        let effects = handle(&mut execution, at(0), over);
        assert_eq!(ended(&mut execution), told.then_some((task(3), finished(1))).as_slice(), "{what}");
        let early = execution.early.get(&task(3)).map(|early| (early.job, early.outcome.is_some()));
        assert_eq!(early, kept.then_some((JobId(3), true)), "{what}");
        let forgotten = !told && !kept;
        assert_eq!(effects, work(forgotten.then_some(WorkOrder::Forget { job: JobId(3) })), "{what}");
    }
    // Neither the result of a task that is not held is remembered, nor an outcome of one that did not run.
    let not_started = TaskOutcome::NotStarted { retry_after: Duration::ZERO };
    for (index, outcome) in [(20, finished(1)), (5, not_started)] {
        let mut execution = ahead();
        let (slot, job) = (0, Job { id: JobId(50), ..job(index, 1) });
        execution.runs[slot].jobs = [job].into();
        let ended = WorkEvent::Ended { slot, job: JobId(50), wall: None, outcome: Some(outcome) };
        assert_eq!(handle(&mut execution, at(0), ended), work([WorkOrder::Forget { job: JobId(50) }]));
        assert_eq!(execution.early.len(), 2);
    }
}

#[test]
fn tasks_no_longer_held_are_recalled_and_their_early_results_forgotten() {
    for (held, recalled, early) in [
        (Some(0..10), vec![], 2),
        (Some(0..3), vec![], 0),
        (Some(0..4), vec![], 1),
        // As many tasks come as go.
        (Some(4..14), vec![0, 1], 1),
        (Some(0..9), vec![], 2),
        (Some(0..2), vec![1], 0),
        (None, vec![0, 1], 0),
    ] {
        let mut execution = ahead();
        let (after, mut effects) = (held.clone().map(IntervalSet::from), Vec::new());
        execution.note_held(BAG, after.as_ref(), &mut effects);
        let asked = |slot: &usize| execution.runs[*slot].recall == Some(Recall::UNCLAIMED);
        assert_eq!((0..2).filter(asked).collect::<Vec<_>>(), recalled, "{held:?}");
        assert_eq!(execution.early.len(), early, "{held:?}");
        assert_eq!(execution.kits.contains_key(&BAG), held.is_some());
        let is_example = |effect: &Effect| *effect == Effect::Work(WorkOrder::ForgetExample { bag: BAG });
        assert_eq!(effects.iter().any(is_example), held.is_none());
    }
    // A single one of them.
    for index in [3, 4] {
        let (mut execution, mut effects) = (ahead(), Vec::new());
        let held = IntervalSet::from(0..10).difference(&IntervalSet::from(index..index + 1));
        execution.note_held(BAG, Some(&held), &mut effects);
        assert_eq!(execution.early.len(), 1, "{index}");
        // The end of what is being kept is told once more.
        assert_eq!(effects, work((index == 4).then_some(WorkOrder::Forget { job: JobId(4) })));
    }
}

#[test]
fn time_in_which_all_stand_still_makes_no_task_slow() {
    let mut execution = Execution::new(&config(2));
    (execution.runs[0].moved, execution.runs[1].moved) = (at(0), at(25_000));
    let allow = |execution: &mut Execution, now, stands_still| {
        let mut effects = Vec::new();
        execution.allow(now, stands_still, true, &mut effects);
        effects
    };
    assert_eq!(allow(&mut execution, at(10_000), true), work([WorkOrder::FreezeAll]));
    assert_eq!(allow(&mut execution, at(12_000), true), []);
    assert_eq!(allow(&mut execution, at(30_000), false), work([WorkOrder::ThawAll]));
    assert_eq!(execution.runs[0].moved, at(20_000), "it stood still for twenty seconds");
    assert_eq!(execution.runs[1].moved, at(30_000), "its first task came meanwhile");
    assert_eq!(allow(&mut execution, at(31_000), false), []);
    assert_eq!(execution.runs[0].moved, at(20_000));
}

/// Two tasks are started, at places 0 and 1, which the first worker has both.
fn two_in_one_run() -> Execution {
    let mut execution = ahead();
    assert_eq!(start(&mut execution, 0, task(0), 1), []);
    assert_eq!(start(&mut execution, 1, task(1), 1), []);
    execution
}

#[test]
fn stops_and_freezes_are_done_when_the_worker_has_answered() {
    let mut execution = two_in_one_run();
    execution.stop(1, task(1));
    assert_eq!(settle(&mut execution, at(0)), work([WorkOrder::TakeBack { slot: 0 }]));
    // Until the worker has answered it is neither asked again nor given anything.
    execution.freeze(0, task(0));
    assert_eq!(settle(&mut execution, at(1)), []);
    let answer = WorkEvent::TakenBack { slot: 0, jobs: vec![JobId(1)] };
    assert_eq!(handle(&mut execution, at(2), answer.clone()), work([WorkOrder::Freeze { slot: 0 }]));
    assert_eq!(ended(&mut execution), [(task(1), TaskOutcome::Stopped)]);
    assert_eq!(handle(&mut execution, at(3), answer), [], "nobody asked");
    execution.assert_consistent();

    // Before the worker answers, the task to be frozen is thawed, and the one to be stopped has ended.
    let mut execution = two_in_one_run();
    execution.freeze(1, task(1));
    execution.stop(0, task(0));
    assert_eq!(settle(&mut execution, at(0)), work([WorkOrder::TakeBack { slot: 0 }]));
    execution.thaw(1, task(1));
    let (job, wall, outcome) = (JobId(0), Some(Duration::ZERO), Some(finished(1)));
    let end = WorkEvent::Ended { slot: 0, job, wall, outcome };
    assert_eq!(handle(&mut execution, at(1), end), []);
    assert_eq!(ended(&mut execution), [(task(0), finished(1))]);
    let answer = WorkEvent::TakenBack { slot: 0, jobs: vec![] };
    assert_eq!(handle(&mut execution, at(2), answer), [], "it has begun, and goes on");
    execution.assert_consistent();
}

#[test]
fn a_task_waits_until_the_one_stands_still_that_it_came_ahead_of() {
    let mut execution = Execution::new(&config(1));
    let prepared = |job| WorkEvent::Prepared { job, memory_bytes: 1, is_example: false };
    let give = |slot, job| WorkOrder::Give { slot, job: JobId(job), task: task(job), attempt: 0 };
    start(&mut execution, 0, task(1), 0);
    assert_eq!(handle(&mut execution, at(0), prepared(JobId(1))), work([give(0, 1)]));
    execution.freeze(0, task(1));
    start(&mut execution, 1, task(2), 0);
    assert_eq!(handle(&mut execution, at(1), prepared(JobId(2))), work([WorkOrder::TakeBack { slot: 0 }]));
    let nothing = |slot| WorkEvent::TakenBack { slot, jobs: vec![] };
    assert_eq!(handle(&mut execution, at(2), nothing(0)), work([WorkOrder::Freeze { slot: 0 }, give(1, 2)]));
    // And back.
    execution.freeze(1, task(2));
    execution.thaw(0, task(1));
    assert_eq!(settle(&mut execution, at(3)), work([WorkOrder::TakeBack { slot: 1 }]));
    let orders = [WorkOrder::Freeze { slot: 1 }, WorkOrder::Thaw { slot: 0 }];
    assert_eq!(handle(&mut execution, at(4), nothing(1)), work(orders));
}

#[test]
fn jobs_taken_back_go_to_an_idle_worker() {
    let mut execution = two_in_one_run();
    execution.runs[1].jobs.clear();
    assert_eq!(execution.deadline(), Some(at(100)));
    execution.relieve(at(99));
    assert_eq!(settle(&mut execution, at(99)), []);
    execution.relieve(at(100));
    assert_eq!(settle(&mut execution, at(100)), work([WorkOrder::TakeBack { slot: 0 }]));
    let answer = WorkEvent::TakenBack { slot: 0, jobs: vec![JobId(1)] };
    let give = WorkOrder::Give { slot: 1, job: JobId(1), task: task(1), attempt: 1 };
    assert_eq!(handle(&mut execution, at(101), answer), work([give]));
    assert_eq!(execution.deadline(), None);
}

#[test]
fn jobs_ahead_give_way_to_started_tasks() {
    let mut execution = ahead();
    let prepare = start(&mut execution, 2, TaskId { bag: BagId([2; 32]), index: 0 }, 0);
    let [Effect::Work(WorkOrder::Prepare { job, task: other, .. })] = prepare[..] else { panic!("{prepare:?}") };
    assert_eq!(settle(&mut execution, at(0)), []);
    let ready = WorkEvent::Prepared { job, memory_bytes: 1, is_example: true };
    // The third worker is its own, and one too many: the others have nothing that is claimed, and give way first.
    let take_back = |slot| WorkOrder::TakeBack { slot };
    assert_eq!(handle(&mut execution, at(0), ready), work([take_back(0), take_back(1)]));
    let answer = WorkEvent::TakenBack { slot: 0, jobs: vec![JobId(1)] };
    let give = WorkOrder::Give { slot: 2, job, task: other, attempt: 0 };
    let orders = [WorkOrder::Stop { slot: 0 }, WorkOrder::Forget { job: JobId(1) }, give];
    assert_eq!(handle(&mut execution, at(0), answer), work(orders));
}

#[test]
fn a_worker_whose_only_job_is_being_killed_gets_nothing_ahead_beyond_the_slots() {
    for (condemned, given) in [(false, true), (true, false)] {
        let mut execution = ahead();
        execution.note_span(BAG, Duration::from_millis(1));
        execution.runs[0].jobs = [job(0, 1), Job { condemned, ..job(1, 1) }].into();
        // Two slots run what the peer has started.
        execution.runs[2].jobs = [job(5, 1)].into();
        for (place, index) in [(0, 2), (1, 5)] {
            assert_eq!(start(&mut execution, place, task(index), 1), []);
        }
        execution.slots = if condemned { 2 } else { 3 };
        let (job, wall, outcome) = (JobId(0), Some(Duration::from_millis(1)), Some(finished(1)));
        let effects = handle(&mut execution, at(0), WorkEvent::Ended { slot: 0, job, wall, outcome });
        let is_give = |effect: &Effect| matches!(effect, Effect::Work(WorkOrder::Give { .. }));
        assert_eq!(effects.iter().any(is_give), given, "{effects:?}");
    }
}

/// The end of what it ran is on its way: it has nothing to give back, and says so at once each time.
#[test]
fn a_worker_is_asked_once_for_jobs_that_it_has_no_more() {
    let mut execution = ahead();
    execution.runs[0].jobs = [job(0, 1), job(1, 1)].into();
    (execution.runs[1].jobs, execution.slots) = ([job(2, 1)].into(), 3);
    execution.runs[0].recall(Recall::UNCLAIMED);
    assert_eq!(handle(&mut execution, at(0), WorkEvent::MemoryMax(u64::MAX)), work([WorkOrder::TakeBack { slot: 0 }]));
    let answer = WorkEvent::TakenBack { slot: 0, jobs: Vec::new() };
    assert_eq!(handle(&mut execution, at(0), answer), work([WorkOrder::Stop { slot: 0 }]));
    assert!(!execution.runs[0].has_unclaimed() && !execution.runs[0].is_running());
}

#[test]
fn each_run_counts_the_memory_of_its_largest_task() {
    let mut execution = Execution::new(&config(3));
    let of = |index, memory_bytes| Job { memory_bytes, ..job(index, 0) };
    execution.runs[0].jobs = [of(0, 40), of(1, 24), of(2, 50)].into();
    execution.runs[0].jobs[0].place = Some(0);
    execution.runs[1].jobs = [of(3, 10)].into();
    execution.runs[1].frozen = Some(JobId(3));
    assert_eq!(execution.memory_bytes_with(2, 7), 50 + 10 + 7);
    assert_eq!(execution.memory_bytes_with(1, 7), 50 + 10, "it runs after the other");
    assert_eq!(execution.memory_bytes_with(1, 12), 50 + 12);
    assert_eq!(execution.memory_bytes_with(2, u64::MAX), u64::MAX);
    execution.memory_max_bytes = 40 + 7;
    assert!(!execution.fits(2, 7) && execution.fits_without_ahead(2, 7));
    assert!(!execution.fits_without_ahead(2, 8));
}

#[test]
fn tasks_end_until_the_others_are_within_a_smaller_limit_of_memory() {
    let mut execution = two_in_one_run();
    assert_eq!(start(&mut execution, 2, task(2), 1), []);
    // There is memory for one worker's tasks.
    let orders = [0, 1].map(|slot| WorkOrder::TakeBack { slot });
    assert_eq!(handle(&mut execution, at(0), WorkEvent::MemoryMax(15)), work(orders[1..].to_vec()));
    let answer = WorkEvent::TakenBack { slot: 1, jobs: vec![JobId(2)] };
    assert_eq!(handle(&mut execution, at(0), answer), []);
    assert_eq!(ended(&mut execution), [(task(2), TaskOutcome::Stopped)]);
    assert_eq!(handle(&mut execution, at(1), WorkEvent::MemoryMax(5)), work(orders[..1].to_vec()));
    let answer = WorkEvent::TakenBack { slot: 0, jobs: vec![JobId(1)] };
    assert_eq!(handle(&mut execution, at(1), answer), work([WorkOrder::Stop { slot: 0 }]));
    assert_eq!(ended(&mut execution), [(task(1), TaskOutcome::Stopped)]);
    execution.assert_consistent();
}
