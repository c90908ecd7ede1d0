//! Tests of tasks that are declined, or reach a machine that may not have them: they go to others.

use super::super::super::tests::persist_all;
use super::*;

/// The ledger's requests at its next deadline: receivers and tasks.
fn next_requests(machines: &mut Machines) -> Vec<(Option<u8>, IntervalSet)> {
    let deadline = machines.ledger.deadline().expect("it is issued again");
    machines.io.now = deadline.max(machines.io.now);
    machines.ledger.expire(&mut machines.io);
    let known = machines.known();
    let requests = machines.ledger.issue(|| known.clone(), &machines.io, &machines.config);
    requests.into_iter().map(|(to, request)| (to.map(|to| to.peer.0[0]), request.ranges)).collect()
}

#[test]
fn tasks_that_reach_a_distrusted_machine_go_elsewhere() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 3]);
    for _ in 0..3 {
        machines.io.reputations.note(contact(2).peer, false, machines.io.wall(Time::ZERO));
    }
    assert!(machines.io.reputation(contact(2).peer).is_distrusted());
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    let (some, rest) = (IntervalSet::from(0..10), IntervalSet::from(10..TASKS));
    machines.give(2, &some);
    assert!(machines.held[&2].is_empty(), "it is told to drop them");
    assert_accounted(&machines.ledger);
    assert!(machines.ledger.issues.iter().all(|issue| issue.ranges == rest), "{:?}", machines.ledger.issues);
    let wait = machines.ledger.deadline().expect("as above").since(machines.io.now);
    assert!(wait <= Duration::from_secs(2), "as long as for what is declined, not as for what was lost: {wait:?}");
    // The tree brings them to that machine again: the next time another machine gets them, the one with fewest of those that
    // may have them.
    assert_eq!(next_requests(&mut machines), [(None, some.clone())]);
    machines.give(2, &some);
    machines.give(1, &IntervalSet::from(10..20));
    machines.give(3, &IntervalSet::from(20..TASKS));
    assert_eq!(next_requests(&mut machines), [(Some(1), some.clone())]);
    assert_accounted(&machines.ledger);
}

/// At the end of a bag no machine holds tasks of it, and the submitter's own may be distrusted, too.
#[test]
fn tasks_that_reach_only_distrusted_machines_go_to_a_neighbour() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 4]);
    let me = machines.io.me.peer;
    for peer in [me, contact(2).peer, contact(3).peer] {
        machines.distrust(peer);
    }
    let all = IntervalSet::from(0..TASKS);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(2, &all);
    assert_eq!(next_requests(&mut machines), [(None, all.clone())]);
    machines.give(2, &all);
    assert_eq!(next_requests(&mut machines), [(Some(1), all.clone())]);
    // If that machine does not answer another one is asked.
    assert_eq!(next_requests(&mut machines), [(Some(4), all.clone())]);
    machines.give(4, &all);
    assert_eq!(machines.held[&4], all);
    assert_accounted(&machines.ledger);
}

/// One of the two remaining machines has voted on each of these tasks.
#[test]
fn declined_tasks_go_in_one_request_to_each_willing_machine() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 2]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    for (number, index) in (3..15).flat_map(|index| [(1 + (index % 3 == 0) as u8, index), (0, index)]) {
        let result = TaskResult { output: BlobId([number + 100; 32]), ..result(index, true) };
        let vote = Vote { executor: contact(number), result };
        machines.ledger.votes.by_task.entry(index).or_default().push(vote);
    }
    let voted = IntervalSet::from(3..15);
    machines.held.entry(1).or_default().subtract(&voted);
    machines.speak(1);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.ledger.declined(contact(9).peer, &voted, DeclineReason::Quota, &mut machines.io);
    assert_eq!(next_requests(&mut machines), [(None, voted.clone())]);
    machines.ledger.declined(contact(9).peer, &voted, DeclineReason::Quota, &mut machines.io);
    let second: IntervalSet = (3..15).step_by(3).map(|index| index..index + 1).collect();
    assert_eq!(next_requests(&mut machines), [(Some(1), second.clone()), (Some(2), voted.difference(&second))]);
}

#[test]
fn declined_tasks_never_go_to_a_machine_that_may_not_have_them() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 4]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    for (number, tasks) in [(1, 0..2), (2, 2..9), (3, 9..14), (4, 14..15)] {
        machines.give(number, &IntervalSet::from(tasks));
    }
    let one = IntervalSet::from(20..21);
    let willing = |machines: &Machines| {
        let willing = machines.ledger.willing(&one, Vec::new, &machines.io);
        willing.map(|(contact, _)| contact.peer.0[0])
    };
    assert_eq!(willing(&machines), Some(4), "it has fewest");
    machines.ledger.declined(contact(4).peer, &IntervalSet::from(15..16), DeclineReason::Quota, &mut machines.io);
    assert_eq!(willing(&machines), Some(1), "who declines is not asked");
    for _ in 0..3 {
        machines.io.reputations.note(contact(1).peer, false, machines.io.wall(Time::ZERO));
    }
    assert_eq!(willing(&machines), Some(3), "nor who is distrusted");
    let vote = |machines: &mut Machines, number: u8| {
        let vote = Vote { executor: contact(number), result: machines.says(number, 20) };
        machines.ledger.votes.by_task.entry(20).or_default().push(vote);
    };
    vote(&mut machines, 3);
    assert_eq!(willing(&machines), Some(2), "nor who has voted");
    vote(&mut machines, 2);
    assert_eq!(willing(&machines), Some(machines.io.me.peer.0[0]));
    let me = Vote { executor: Contact::clone(&machines.io.me), result: machines.says(1, 20) };
    machines.ledger.votes.by_task.entry(20).or_default().push(me);
    assert_eq!(willing(&machines), None);
    let known = (4..=5).map(|number| Known { contact: contact(number), right: false }).collect();
    let willing = machines.ledger.willing(&one, || known, &machines.io).map(|(contact, _)| contact.peer.0[0]);
    assert_eq!(willing, Some(5), "the neighbour that may have it");
    // A machine that has voted may not have the task when the tree brings it.
    machines.held.remove(&3);
    machines.give(3, &IntervalSet::from(9..14).union(&IntervalSet::from(20..21)));
    assert!(!machines.held[&3].contains(20) && machines.ledger.issues.iter().all(|issue| !issue.ranges.contains(20)));
    assert_accounted(&machines.ledger);
}

#[test]
fn a_declined_copy_goes_to_another_machine_at_once() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 4]);
    let all = IntervalSet::from(0..TASKS);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &all);
    let decline = |machines: &mut Machines, number: u8, ranges: &IntervalSet| {
        machines.ledger.declined(contact(number).peer, ranges, DeclineReason::Program, &mut machines.io);
    };
    let mut open: Vec<(u8, IntervalSet)> = machines.copies();
    let mut asked = BTreeSet::new();
    while let Some((number, ranges)) = open.pop() {
        assert!(asked.insert((number, ranges.first())), "{number} was asked for {ranges:?} already");
        decline(&mut machines, number, &ranges);
        assert_accounted(&machines.ledger);
        open.extend(machines.copies());
    }
    assert!((3..=12).contains(&asked.len()), "all but the one that has them: {asked:?}");
    assert_eq!(machines.ledger.view().placed, TASKS, "what has one copy stays placed");
    // They are asked again later, after a longer pause each time.
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let before = machines.io.now;
        loop {
            machines.io.now = machines.ledger.deadline().expect("it looks again");
            machines.speak(1);
            machines.ledger.expire(&mut machines.io);
            open = machines.copies();
            if !open.is_empty() {
                break;
            }
        }
        pauses.push(machines.io.now.since(before).as_secs());
        while let Some((number, ranges)) = open.pop() {
            decline(&mut machines, number, &ranges);
            open.extend(machines.copies());
        }
    }
    assert!(pauses.is_sorted() && pauses[0] <= 16 && (60..=75).contains(&pauses[7]), "{pauses:?}");
    // A machine that takes a task is asked at once again.
    machines.io.now += Duration::from_secs(61);
    machines.ledger.votes.look_for_copies();
    machines.speak(1);
    let (number, ranges) = machines.copies().swap_remove(0);
    machines.give(number, &ranges);
    let declines = |machines: &Machines| machines.ledger.declined.has_declined(contact(number).peer);
    assert!(!machines.held[&number].is_empty() && !declines(&machines));
}

proptest! {
    /// Runs of holders agree with asking each machine about each task.
    #[test]
    fn runs_of_holders_agree_with_a_full_search(
        held in prop::collection::vec(prop::collection::vec((0_u64..80, 1_u64..9), 0..6), 1..6),
        voted in prop::collection::vec((0_u64..80, 1_u8..8), 0..8),
        wanted in prop::collection::vec((0_u64..80, 1_u64..20), 0..5),
    ) {
        let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 8]);
        let set = |ranges: &[(u64, u64)]| ranges.iter().map(|&(start, len)| start..start + len).collect::<IntervalSet>();
        for (number, ranges) in (1..).zip(&held) {
            let (executor, ranges) = (contact(number), set(ranges));
            let (since, until, version, withdrawn) = (Time::ZERO, Time::ZERO, 1, false);
            let placement = super::super::super::placed::Placement { executor, ranges, since, until, version, withdrawn, asks_left: 0 };
            machines.ledger.placed.insert_uncounted(placement);
        }
        for (index, number) in voted {
            let vote = Vote { executor: contact(number), result: machines.says(number, index) };
            machines.ledger.votes.by_task.entry(index).or_default().push(vote);
        }
        let wanted = set(&wanted);
        let runs = machines.ledger.holders(&wanted);
        prop_assert_eq!(runs.iter().map(|(range, _)| range.clone()).collect::<IntervalSet>(), wanted.clone());
        prop_assert_eq!(runs.iter().map(|(range, _)| range.end - range.start).sum::<u64>(), wanted.len());
        for (range, holders) in runs {
            for index in range {
                let has = |peer: &PeerId| {
                    machines.ledger.placed.holds(*peer, index)
                        || machines.ledger.votes.voters(index).contains(peer)
                };
                let expected: Vec<PeerId> = (1..9).map(|number| contact(number).peer).filter(has).collect();
                prop_assert_eq!(&holders, &expected);
            }
        }
    }
}

/// The first machine's result of task 3: this attempt failed.
fn fail_as(machines: &mut Machines, attempt: u32) {
    let failed = TaskResult { attempt, ..failed(machines, 1, 3) };
    machines.end_as(failed, 1);
}

/// Lets copies be looked for `times` times, with all writes durable.
fn wait(machines: &mut Machines, times: u32) {
    assert_eq!(machines.copies(), []);
    for _ in 0..times {
        machines.io.now = machines.ledger.votes.look_again_at().expect("it looks again");
        machines.ledger.expire(&mut machines.io);
        assert_eq!(machines.copies(), []);
        persist_all(&mut machines.io);
        assert_accounted(&machines.ledger);
    }
}

/// A machine sends a `Holding` of task 3 with the newest attempt; returns that attempt.
fn say_anew(machines: &mut Machines, machine: u8) -> u32 {
    machines.version += 1;
    let attempt = machines.ledger.attempt;
    let holding = Holding { attempt, ..said(machine, machines.version, machines.held[&machine].clone()) };
    machines.ledger.holding(holding, &mut machines.io, &machines.config);
    assert!(machines.ledger.placed.of(contact(machine).peer).unwrap().ranges.contains(3));
    attempt
}

/// Task 3 has failed on the first of two machines and not on the second, and goes to the first again.
fn tried_again() -> Machines {
    let mut machines = held_by_all(replication(2, 2, 0), &[TRUTH; 2], io());
    machines.end(2, 3);
    fail_as(&mut machines, 0);
    assert_eq!((machines.ledger.votes.count(3), machines.copies(), machines.ledger.view().undecided), (2, vec![], 1));
    wait(&mut machines, 1);
    assert_eq!(machines.copies(), [(1, IntervalSet::from(3..4))]);
    machines
}

/// In a grid of two machines a quorum of two could never be reached after one failure by chance.
#[test]
fn a_stuck_task_is_tried_again_where_it_failed() {
    let (mut machines, task) = (tried_again(), IntervalSet::from(3..4));
    for tries in 1..=machines.ledger.tries.retries_max() {
        let told = machines.io.effects.drain(..).any(|effect| {
            matches!(effect, Effect::Send { to, message: Message::ResultsAck { .. } } if to.peer == contact(1).peer)
        });
        assert!(told, "it forgets what came of it");
        let attempt = say_anew(&mut machines, 1);
        fail_as(&mut machines, attempt);
        assert_eq!((machines.ledger.votes.count(3), machines.copies()), (2, vec![]));
        wait(&mut machines, 1);
        let again = if tries < machines.ledger.tries.retries_max() { vec![(1, task.clone())] } else { vec![] };
        assert_eq!(machines.copies(), again, "after {tries}");
    }
    assert_eq!(
        (machines.ledger.votes.count(3), machines.ledger.view().undecided),
        (2, 1),
        "but no more often than that"
    );
    assert_eq!(machines.ledger.avoided.failed_in_row(contact(1).peer), 0, "nothing shows that it succeeds elsewhere");
    // A machine that joins is asked as ever.
    machines.say.push(TRUTH);
    machines.ledger.votes.look_for_copies();
    assert_eq!((machines.copies(), machines.ledger.view().undecided), (vec![(3, task.clone())], 0));
    machines.give(3, &task);
    machines.end(3, 3);
    assert!(machines.ledger.ended().0.contains(3));
}

#[test]
fn results_before_a_new_try_are_no_votes() {
    let (mut machines, task) = (tried_again(), IntervalSet::from(3..4));
    // The machine lists the task, since it was not told yet to forget its result.
    machines.speak(1);
    assert!(!machines.ledger.placed.of(contact(1).peer).unwrap().ranges.contains(3));
    // The machine has the task again, and its old result comes once more.
    machines.held.entry(1).or_default().extend_with(&task);
    for _ in 0..2 {
        say_anew(&mut machines, 1);
        let is_doubtful = machines.ledger.placed.of(contact(1).peer).unwrap().withdrawn;
        assert!(is_doubtful, "it may have been the old attempt: it says so again");
    }
    let attempt = machines.ledger.attempt;
    fail_as(&mut machines, 0);
    assert_eq!(machines.ledger.votes.count(3), 1);
    let success = TaskResult { attempt, ..machines.says(1, 3) };
    machines.end_as(success, 1);
    assert!(machines.ledger.ended().0.contains(3));
    assert!(machines.ledger.votes.stuck.is_empty() && machines.ledger.votes.counts_from.is_empty());
}

/// A further try is useless with one machine too few for a quorum, or on a machine that may not have tasks.
#[test]
fn a_stuck_task_is_not_tried_again_without_hope_of_a_quorum() {
    let mut few = held_by_all(replication(3, 3, 0), &[TRUTH; 2], io());
    let mut distrusted = held_by_all(replication(2, 2, 0), &[TRUTH; 2], io());
    distrusted.distrust(contact(1).peer);
    for machines in [&mut few, &mut distrusted] {
        machines.end(2, 3);
        fail_as(machines, 0);
        assert_eq!(machines.copies(), []);
        wait(machines, 3);
        assert_eq!(
            (machines.ledger.votes.count(3), machines.copies(), machines.ledger.view().undecided),
            (2, vec![], 1)
        );
    }
}

#[test]
fn a_quorum_of_three_forms_after_two_failures_of_three() {
    let mut machines = held_by_all(replication(3, 3, 0), &[TRUTH; 3], io());
    machines.end(3, 3);
    for machine in [1, 2] {
        machines.end_as(failed(&machines, machine, 3), machine);
    }
    for machine in [1, 2] {
        wait(&mut machines, 1);
        assert_eq!(machines.copies(), [(machine, IntervalSet::from(3..4))]);
        let attempt = say_anew(&mut machines, machine);
        machines.end_as(TaskResult { attempt, ..machines.says(machine, 3) }, machine);
    }
    assert!(machines.ledger.ended().0.contains(3));
}

#[test]
fn no_machine_is_believed_alone_on_a_retried_task() {
    let mut known = io();
    for _ in 0..crate::reputation::CLEAN_AFTER {
        known.reputations.note(contact(2).peer, true, NOW);
    }
    let mut machines = held_by_all(replication(2, 2, u32::MAX), &[TRUTH; 2], known);
    fail_as(&mut machines, 0);
    let copies = machines.copies();
    copies.into_iter().for_each(|(to, ranges)| machines.give(to, &ranges));
    machines.end(2, 3);
    wait(&mut machines, 1);
    assert_eq!((machines.ledger.votes.count(3), machines.copies()), (1, vec![(1, IntervalSet::from(3..4))]));
    machines.end(2, 3);
    assert!(!machines.ledger.ended().0.contains(3), "its word came before, and another machine said otherwise");
    let attempt = say_anew(&mut machines, 1);
    machines.end_as(TaskResult { attempt, ..machines.says(1, 3) }, 1);
    assert!(machines.ledger.ended().0.contains(3));
}
