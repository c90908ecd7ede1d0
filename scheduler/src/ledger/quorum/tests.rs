//! Tests of replicas and quorums, with machines that lie.

use std::time::Duration;

use proptest::prelude::*;

use super::super::Holding;
use super::super::avoided::FAILED_IN_ROW;
use super::super::failures::CRASHED_ON_MAX;
use super::super::outputs::UNFETCHED_MAX;
use super::super::tests::{TASKS, assert_accounted, contact, io, ledger, result, said};
use super::votes::VOTES_MAX;
use super::*;
use idlewood_overlay::WallTime;

use crate::bag::{BlobId, DeclineReason};
use crate::message::Lease;
use crate::peer::Effect;

mod elsewhere;

const TRUTH: u8 = 1;
const NOW: WallTime = WallTime(0);

/// Machines that run their tasks at once, some of which lie.
struct Machines {
    ledger: Ledger,
    io: Io,
    config: Config,
    /// The output that each machine claims, by number from 1.
    say: Vec<u8>,
    held: BTreeMap<u8, IntervalSet>,
    version: u64,
    /// The machine that the tree finds next.
    next: u8,
    /// Runs of tasks.
    ran: u64,
}

impl Machines {
    fn new(replication: Replication, say: &[u8]) -> Self {
        let mut io = io();
        io.secret = 5;
        Self::with(replication, say, io)
    }

    fn with(replication: Replication, say: &[u8], io: Io) -> Self {
        let mut ledger = ledger(&io, 2);
        ledger.votes = Votes::new(replication);
        let (config, held) = (Config::default(), BTreeMap::new());
        Self { ledger, io, config, say: say.to_vec(), held, version: 0, next: 0, ran: 0 }
    }

    fn machines(&self) -> u8 {
        self.say.len() as u8
    }

    /// Odd machines are in one half of the line, even ones in the other.
    fn right(peer: PeerId) -> bool {
        peer.0[0].is_multiple_of(2)
    }

    fn give(&mut self, machine: u8, ranges: &IntervalSet) {
        self.held.entry(machine).or_default().extend_with(ranges);
        self.speak(machine);
    }

    fn speak(&mut self, machine: u8) {
        self.version += 1;
        let held = self.held.get(&machine).cloned().unwrap_or_default();
        self.ledger.holding(said(machine, self.version, held), &mut self.io, &self.config);
        let dropped = self.io.effects.drain(..).filter_map(|effect| match effect {
            Effect::Send { to, message: Message::Lease(Lease { drop, .. }) } if to.peer == contact(machine).peer => {
                Some(drop)
            }
            _ => None,
        });
        let dropped: Vec<IntervalSet> = dropped.collect();
        dropped.iter().for_each(|drop| self.held.entry(machine).or_default().subtract(drop));
    }

    fn distrust(&mut self, peer: PeerId) {
        for _ in 0..3 {
            self.io.reputations.note(peer, false, self.io.wall(Time::ZERO));
        }
    }

    fn known(&self) -> Vec<Known> {
        let contacts = (1..=self.machines()).map(contact);
        contacts.map(|contact| Known { right: Self::right(contact.peer), contact }).collect()
    }

    /// The copies that go out, and their receivers.
    fn copies(&mut self) -> Vec<(u8, IntervalSet)> {
        let known = self.known();
        let copies = self.ledger.copies_due(|| known, Self::right, &mut self.io, &self.config);
        assert_accounted(&self.ledger);
        copies.into_iter().map(|(to, request)| (to.peer.0[0], request.ranges)).collect()
    }

    /// Delivers all requests; those through the tree in shares of `share` tasks.
    fn place(&mut self, share: u64) {
        loop {
            let mut issued = self.ledger.requests(&self.io, &self.config);
            let copies = self.copies();
            if issued.is_empty() && copies.is_empty() {
                return;
            }
            for mut ranges in issued.drain(..).map(|request| request.ranges) {
                while !ranges.is_empty() {
                    let part = ranges.take_first(share);
                    self.next = self.next % self.machines() + 1;
                    self.give(self.next, &part);
                }
            }
            for (to, ranges) in copies {
                self.give(to, &ranges);
            }
        }
    }

    fn says(&self, machine: u8, index: u64) -> TaskResult {
        let content = self.say[usize::from(machine) - 1];
        TaskResult { output: BlobId([content; 32]), ..result(index, true) }
    }

    /// A machine's result reaches the submitter, which fetches the output if it wants it.
    fn end(&mut self, machine: u8, index: u64) {
        self.end_as(self.says(machine, index), machine);
    }

    fn end_as(&mut self, result: TaskResult, machine: u8) {
        self.ran += 1;
        let index = result.index;
        self.ledger.results(&contact(machine), vec![result], &mut self.io, &self.config);
        let is_fetched = self.io.effects.drain(..).any(|effect| matches!(effect, Effect::FetchOutput { .. }));
        if is_fetched {
            self.ledger.fetched(index, true, None, &mut self.io);
        }
    }

    /// Runs the bag to its end; returns the recorded result of each task.
    fn run(&mut self, share: u64) -> BTreeMap<u64, u8> {
        let mut recorded = BTreeMap::new();
        let mut told: BTreeSet<(u8, u64)> = BTreeSet::new();
        for _ in 0..10_000 {
            self.place(share);
            let over = |ledger: &Ledger, index| ledger.ended.contains(index);
            let next = self.held.iter().find_map(|(&machine, held)| {
                let index =
                    held.indices().find(|&index| !told.contains(&(machine, index)) && !over(&self.ledger, index));
                index.map(|index| (machine, index))
            });
            let Some((machine, index)) = next else {
                // Only time helps.
                let Some(deadline) = self.ledger.deadline().filter(|_| !self.ledger.is_closed()) else { break };
                self.io.now = deadline.max(self.io.now);
                for machine in 1..=self.machines() {
                    self.speak(machine);
                }
                self.ledger.expire(&mut self.io);
                continue;
            };
            told.insert((machine, index));
            self.ran += 1;
            let said = self.says(machine, index);
            self.ledger.results(&contact(machine), vec![said], &mut self.io, &self.config);
            let wanted = self.io.effects.drain(..).find_map(|effect| match effect {
                Effect::FetchOutput { output, from, .. } => Some((output, from)),
                _ => None,
            });
            if let Some((output, from)) = wanted {
                assert_eq!(output.0[0], self.say[usize::from(from.peer.0[0]) - 1], "from one that has it");
                recorded.insert(index, output.0[0]);
                self.ledger.fetched(index, true, None, &mut self.io);
                if self.ledger.is_closed() {
                    break;
                }
                assert_accounted(&self.ledger);
            }
        }
        recorded
    }
}

fn replication(replicas: u32, quorum: u32, recheck: u32) -> Replication {
    let replication = Replication { replicas, quorum, recheck };
    assert!(replication.is_valid());
    replication
}

#[test]
fn invalid_replications_are_refused() {
    for (replicas, quorum) in [(0, 0), (1, 0), (1, 2), (2, 1), (8, 1), (2, 3), (9, 2)] {
        assert!(!Replication { replicas, quorum, recheck: 0 }.is_valid(), "{quorum} of {replicas}");
    }
}

#[test]
fn copies_go_to_other_machines_and_first_to_the_other_half() {
    let mut machines = Machines::new(replication(3, 2, 0), &[TRUTH; 6]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    let second = machines.copies();
    assert!(second.iter().all(|(to, _)| to % 2 == 0), "{second:?}");
    let all: u64 = second.iter().map(|(_, ranges)| ranges.len()).sum();
    assert!(all == TASKS && second.iter().all(|(_, ranges)| ranges.len() <= TASKS / 2), "shared out: {second:?}");
    assert!(machines.copies().is_empty(), "they are on their way");
    for (to, ranges) in second.clone() {
        machines.give(to, &ranges);
    }
    let third = machines.copies();
    for (to, ranges) in &third {
        assert_ne!(*to, 1);
        let other = second.iter().find(|(other, _)| other == to);
        assert!(other.is_none_or(|(_, second)| second.intersection(ranges).is_empty()), "{to} has a copy already");
        machines.give(*to, ranges);
    }
    assert_eq!(third.iter().map(|(_, ranges)| ranges.len()).sum::<u64>(), TASKS);
    assert!(machines.copies().is_empty(), "three are enough");
    assert_eq!(machines.ledger.view().placed, TASKS);
}

#[test]
fn two_equal_votes_decide_and_one_does_not() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH, 9, TRUTH]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    for _ in 0..3 {
        machines.end(1, 7);
    }
    assert_eq!(machines.ledger.view().done, 0, "the same machine again is one vote");
    // A second vote differs; then a third machine is asked.
    let copies = machines.copies();
    assert!(copies.iter().any(|(to, ranges)| *to == 2 && ranges.contains(7)), "{copies:?}");
    copies.into_iter().for_each(|(to, ranges)| machines.give(to, &ranges));
    machines.end(2, 7);
    assert_eq!(machines.ledger.view().done, 0);
    let copies = machines.copies();
    assert_eq!(copies, [(3, IntervalSet::from(7..8))]);
    machines.give(3, &IntervalSet::from(7..8));
    machines.end(3, 7);
    let view = machines.ledger.view();
    assert_eq!((view.done, view.disputed), (1, 1));
    let dissents = |number: u8| machines.io.reputation(contact(number).peer).dissents;
    assert_eq!([1, 2, 3].map(dissents), [0, 1, 0]);
    assert_accounted(&machines.ledger);
}

#[test]
fn a_machine_whose_lease_ended_has_the_copy_as_another_attempt() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 2]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    for machine in 1..=2 {
        machines.give(machine, &IntervalSet::from(0..TASKS));
        machines.copies();
    }
    let held = machines.ledger.attempt;
    let end = machines.ledger.first_end().unwrap();
    machines.io.now = end - Duration::from_secs(1);
    machines.speak(1);
    machines.io.now = end;
    machines.ledger.expire(&mut machines.io);
    assert!(
        machines.ledger.placed.of(contact(1).peer).is_some() && machines.ledger.placed.of(contact(2).peer).is_none()
    );
    // The only other machine gets them again.
    let known = || vec![Known { contact: contact(2), right: true }];
    let copies = machines.ledger.copies_due(known, Machines::right, &mut machines.io, &machines.config);
    assert!(
        !copies.is_empty() && copies.iter().all(|(to, request)| to.peer == contact(2).peer && request.attempt > held)
    );
}

/// A machine says that it cannot say when these tasks end.
fn stand_still(machines: &mut Machines, machine: u8, tasks: &[u64]) {
    let tasks = tasks.iter().map(|&index| (index, 0)).collect();
    machines.ledger.shared_out(contact(machine).peer, tasks, &mut machines.io);
}

#[test]
fn a_copy_that_stands_still_is_not_waited_for() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 5]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    for (to, ranges) in machines.copies() {
        machines.give(to, &ranges);
    }
    let holds = |machines: &Machines, index| -> Vec<u8> {
        (1..=5).filter(|machine| machines.ledger.placed.holds(contact(*machine).peer, index)).collect()
    };
    let (first, other) = (holds(&machines, 3), holds(&machines, 4));
    assert_eq!((first.len(), other.len(), machines.copies()), (2, 2, vec![]));
    // Without a vote: one more. The other task has one vote already.
    machines.end(other[0], 4);
    stand_still(&mut machines, first[1], &[3]);
    let copies = machines.copies();
    let [(third, ref ranges)] = copies[..] else { panic!("{copies:?}") };
    assert!(!first.contains(&third) && *ranges == IntervalSet::from(3..4), "{copies:?}");
    machines.give(third, ranges);
    stand_still(&mut machines, first[1], &[3]);
    assert_eq!(machines.copies(), [], "two run");
    stand_still(&mut machines, other[1], &[4]);
    let copies = machines.copies();
    let [(fourth, ref ranges)] = copies[..] else { panic!("{copies:?}") };
    assert!(!other.contains(&fourth) && *ranges == IntervalSet::from(4..5), "{copies:?}");
    machines.give(fourth, ranges);
    machines.end(first[0], 3);
    machines.end(third, 3);
    machines.end(fourth, 4);
    assert!(machines.ledger.ended.contains(3) && machines.ledger.ended.contains(4));
    machines.ledger.assert_consistent();
}

#[test]
fn tasks_that_stand_still_everywhere_have_so_many_copies() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 12]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    for _ in 0..20 {
        for (to, ranges) in machines.copies() {
            machines.give(to, &ranges);
        }
        (1..=12).for_each(|machine| stand_still(&mut machines, machine, &[7]));
    }
    assert_eq!(machines.ledger.placed.copies_of(7), 2 + super::super::copies::RUNS_MAX);
    assert_eq!(machines.ledger.placed.copies_of(8), 2);
}

#[test]
fn the_majority_wins_over_liars() {
    for (replicas, quorum) in [(2, 2), (3, 2), (5, 3)] {
        // A third lie, different from the others.
        let say = [TRUTH, 90, TRUTH, TRUTH, 91, TRUTH, TRUTH, 92, TRUTH];
        let mut machines = Machines::new(replication(replicas, quorum, 0), &say);
        let recorded = machines.run(5);
        assert_eq!(recorded.len() as u64, TASKS);
        assert!(recorded.values().all(|&content| content == TRUTH), "{quorum} of {replicas}: {recorded:?}");
        let view = machines.ledger.view();
        assert_eq!((view.done, view.failed), (TASKS, 0), "{quorum} of {replicas}");
        assert!(view.disputed > 0, "{view:?}");
        for (number, content) in (1..).zip(say) {
            let dissents = machines.io.reputation(contact(number).peer).dissents;
            assert!(if content == TRUTH { dissents == 0 } else { dissents > 0 }, "machine {number}: {dissents}");
        }
    }
    // Without a quorum the first result counts.
    let mut machines = Machines::new(Replication::default(), &[90, TRUTH]);
    assert!(machines.run(5).values().any(|&content| content == 90));
}

#[test]
fn a_machine_with_three_dissents_gets_no_tasks() {
    let say = [TRUTH, 90, TRUTH, TRUTH];
    let mut machines = Machines::new(replication(2, 2, 0), &say);
    machines.run(2);
    assert!(machines.io.reputation(contact(2).peer).is_distrusted());
    // The same for the next bag, and after a restart.
    let mut later = io();
    machines.io.reputations.all(NOW).for_each(|(peer, known)| later.reputations.restore(peer, known));
    let mut machines = Machines::with(replication(2, 2, 0), &say, later);
    machines.run(2);
    assert_eq!(machines.ledger.view().disputed, 0);
    assert!(machines.held.get(&2).is_none_or(IntervalSet::is_empty), "{:?}", machines.held);
}

#[test]
fn clean_machines_are_believed_but_for_rechecks() {
    let clean = |numbers: &[u8]| {
        let mut io = io();
        io.secret = 5;
        for &number in numbers {
            for _ in 0..crate::reputation::CLEAN_AFTER {
                io.reputations.note(contact(number).peer, true, NOW);
            }
        }
        io
    };
    let mut all = Machines::with(replication(2, 2, 0), &[TRUTH; 4], clean(&[1, 2, 3, 4]));
    assert_eq!((all.run(5).len() as u64, all.ran), (TASKS, 2 * TASKS), "without a word about it all are checked");
    let mut some = Machines::with(replication(2, 2, 5), &[TRUTH; 4], clean(&[1, 2, 3, 4]));
    assert_eq!(some.run(5).len() as u64, TASKS);
    let checked = some.ran - TASKS;
    assert!((2..=20).contains(&checked), "{checked} of {TASKS} are checked");
    // Unknown machines are not believed alone.
    let mut strangers = Machines::new(replication(2, 2, 5), &[TRUTH; 4]);
    strangers.run(5);
    assert!(strangers.ran > TASKS + 20, "{}", strangers.ran);
    // A machine that begins to lie is found out, and not believed alone again.
    let mut liar = Machines::with(replication(2, 2, 2), &[90, TRUTH, TRUTH, TRUTH], clean(&[1, 2, 3, 4]));
    liar.run(5);
    let known = liar.io.reputation(contact(1).peer);
    assert!(known.dissents > 0 && !known.is_clean(), "{known:?}");
}

/// Runs a task on which no two machines agree.
fn asked_in_vain(success: bool, crashed: bool) -> Machines {
    let say: Vec<u8> = (100..120).collect();
    let mut machines = Machines::new(replication(2, 2, 0), &say);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    for machine in 1..=20 {
        machines.held.insert(machine, IntervalSet::from(0..1));
        machines.ledger.votes.look_for_copies();
        machines.ledger.waiting.add(&IntervalSet::from(0..1));
        machines.speak(machine);
        machines.end_as(TaskResult { success, crashed, ..machines.says(machine, 0) }, machine);
        if machines.ledger.view().failed == 1 {
            break;
        }
    }
    machines
}

#[test]
fn a_task_without_agreement_fails_without_dissents() {
    for success in [true, false] {
        let machines = asked_in_vain(success, false);
        assert_eq!(machines.ran, VOTES_MAX as u64);
        assert_eq!(machines.io.reputations.all(NOW).count(), 0);
    }
}

/// A task over its time limit crashes so, with different outputs.
#[test]
fn a_task_that_crashes_everywhere_has_failed() {
    let machines = asked_in_vain(false, true);
    assert_eq!((machines.ledger.view().failed, machines.ran), (1, CRASHED_ON_MAX as u64 + 1));
    let all = machines.io.reputations.all(NOW);
    assert_eq!(all.map(|(_, reputation)| reputation.dissents).sum::<u32>(), 0);
}

/// The machine repeats its result until there is a decision.
#[test]
fn a_crash_that_is_a_vote_counts_once() {
    let mut machines = Machines::new(replication(3, 2, 0), &[TRUTH; 4]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(4, &IntervalSet::from(0..TASKS));
    for index in 1..7 {
        machines.ledger.ended.insert(index, true);
    }
    let crash = TaskResult { crashed: true, ..result(0, false) };
    for machine in 1..=3 {
        machines.held.insert(machine, IntervalSet::from(0..1));
        machines.ledger.waiting.add(&IntervalSet::from(0..1));
        machines.speak(machine);
        machines.end_as(crash.clone(), machine);
    }
    assert_eq!(machines.ledger.votes.count(0), 1);
    for _ in 0..2 * FAILED_IN_ROW {
        machines.end_as(crash.clone(), 3);
    }
    assert_eq!(machines.ledger.avoided.tries_failed(), 3);
    assert!(machines.ledger.placed.of(contact(3).peer).is_some(), "it is not avoided");
}

#[test]
fn a_voter_without_the_output_may_try_again() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 2]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    for (to, ranges) in machines.copies() {
        machines.give(to, &ranges);
    }
    machines.end(1, 0);
    for _ in 0..UNFETCHED_MAX {
        let result = machines.says(2, 0);
        machines.ledger.results(&contact(2), vec![result], &mut machines.io, &machines.config);
        machines.ledger.fetched(0, false, None, &mut machines.io);
    }
    machines.held.entry(2).or_default().remove_index(0);
    assert_eq!(machines.copies(), [(2, IntervalSet::from(0..1))]);
    machines.give(2, &IntervalSet::from(0..1));
    machines.end(2, 0);
    assert_eq!(machines.ledger.view().done, 1);
}

/// Its machine may get another copy, whose result must not be acknowledged with that of this one.
#[test]
fn a_copy_that_comes_back_goes_out_again_as_another_attempt() {
    let mut machines = Machines::new(replication(3, 2, 0), &[TRUTH; 3]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    for machine in 1..=3 {
        machines.give(machine, &IntervalSet::from(0..TASKS));
        machines.copies();
    }
    let held = machines.ledger.attempt;
    let back = TaskResult { success: false, unfinished: true, attempt: held, ..machines.says(2, 3) };
    machines.ledger.results(&contact(2), vec![back], &mut machines.io, &machines.config);
    let acks = machines.io.effects.iter().filter_map(|effect| match effect {
        Effect::Send { message: Message::ResultsAck { attempt, indices, .. }, .. } => Some((*attempt, indices.clone())),
        _ => None,
    });
    assert_eq!(acks.collect::<Vec<_>>(), [(held, IntervalSet::from(3..4))]);
    let known = || vec![Known { contact: contact(2), right: true }];
    let copies = machines.ledger.copies_due(known, Machines::right, &mut machines.io, &machines.config);
    let [(to, request)] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!((to.peer, &request.ranges), (contact(2).peer, &IntervalSet::from(3..4)));
    assert!(request.attempt > held, "{} after {held}", request.attempt);
}

#[test]
fn a_failure_is_a_vote_like_any_other() {
    let mut machines = Machines::new(replication(3, 2, 0), &[TRUTH; 3]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    for machine in 1..=3 {
        let copies = if machine == 1 { vec![(1, IntervalSet::from(0..TASKS))] } else { machines.copies() };
        copies.into_iter().for_each(|(to, ranges)| machines.give(to, &ranges));
    }
    let fail = |machines: &mut Machines, machine: u8, index: u64| {
        let failed = TaskResult { success: false, ..machines.says(machine, index) };
        machines.ledger.results(&contact(machine), vec![failed], &mut machines.io, &machines.config);
        if machines.io.effects.drain(..).any(|effect| matches!(effect, Effect::FetchOutput { .. })) {
            machines.ledger.fetched(index, true, None, &mut machines.io);
        }
    };
    // One failing vote decides nothing; two alike do, without further tries.
    fail(&mut machines, 1, 3);
    machines.end(2, 3);
    machines.end(3, 3);
    assert_eq!((machines.ledger.view().done, machines.ledger.view().failed), (1, 0));
    fail(&mut machines, 1, 4);
    fail(&mut machines, 2, 4);
    assert_eq!((machines.ledger.view().done, machines.ledger.view().failed), (1, 1));
}

fn failed(machines: &Machines, machine: u8, index: u64) -> TaskResult {
    TaskResult { success: false, ..machines.says(machine, index) }
}

/// All tasks on all of these machines.
fn held_by_all(replication: Replication, say: &[u8], io: Io) -> Machines {
    let mut machines = Machines::with(replication, say, io);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    loop {
        let copies = machines.copies();
        if copies.is_empty() {
            return machines;
        }
        copies.into_iter().for_each(|(to, ranges)| machines.give(to, &ranges));
    }
}

#[test]
fn failures_and_successes_against_the_quorum_are_no_dissents() {
    let mut machines = held_by_all(replication(3, 2, 0), &[TRUTH; 3], io());
    for index in 0..4 {
        machines.end_as(failed(&machines, 1, index), 1);
        machines.end(2, index);
        machines.end(3, index);
    }
    for index in 4..8 {
        machines.end(2, index);
        machines.end_as(failed(&machines, 1, index), 1);
        machines.end_as(failed(&machines, 3, index), 3);
    }
    let view = machines.ledger.view();
    assert_eq!((view.done, view.failed, view.disputed), (4, 4, 8));
    let known = |number: u8| machines.io.reputation(contact(number).peer);
    assert_eq!([1, 2, 3].map(|number| known(number).dissents), [0, 0, 0]);
    assert_eq!([1, 2, 3].map(|number| known(number).agreed_in_row), [0, 4, 4], "a failure is no merit either");
}

#[test]
fn a_machine_on_which_only_failures_come_is_avoided() {
    let mut machines = held_by_all(replication(3, 2, 0), &[TRUTH; 3], io());
    let avoided = |machines: &Machines, number: u8| {
        !machines.ledger.avoided.avoided_for(contact(number).peer, machines.io.now).is_zero()
    };
    let mut ended = 0;
    while !avoided(&machines, 1) {
        machines.end_as(failed(&machines, 1, ended), 1);
        machines.end(2, ended);
        machines.end(3, ended);
        ended += 1;
        assert!(ended <= u64::from(FAILED_IN_ROW) + 1, "{:?}", machines.ledger.avoided);
        assert_accounted(&machines.ledger);
    }
    assert_eq!(ended, u64::from(FAILED_IN_ROW) + 1, "it is noticed with its next word");
    assert!(!avoided(&machines, 2) && !avoided(&machines, 3));
    let lie = TaskResult { output: BlobId([99; 32]), ..result(ended, true) };
    machines.end_as(lie, 1);
    machines.end(2, ended);
    machines.end(3, ended);
    assert!(avoided(&machines, 1), "a false output is no sign that tasks run there");
    assert!(!machines.io.reputation(contact(1).peer).is_distrusted());
    machines.io.now += Duration::from_secs(61);
    assert!(!avoided(&machines, 1));
}

#[test]
fn a_failure_is_never_believed_alone() {
    let mut io = io();
    for _ in 0..crate::reputation::CLEAN_AFTER {
        io.reputations.note(contact(1).peer, true, NOW);
    }
    let mut machines = Machines::with(replication(2, 2, u32::MAX), &[TRUTH; 3], io);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    machines.end(1, 0);
    assert_eq!((machines.ledger.view().done, machines.copies().len()), (1, 0), "its outputs are");
    machines.end_as(failed(&machines, 1, 1), 1);
    assert_eq!(machines.ledger.view().failed, 0);
    let copies = machines.copies();
    assert!(matches!(&copies[..], [(2, ranges)] if *ranges == IntervalSet::from(1..2)), "{copies:?}");
}

#[test]
fn too_few_machines_decide_nothing_and_wait() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    assert!(machines.copies().is_empty());
    assert!(machines.ledger.deadline().is_some(), "and looks again later");
    machines.end(1, 0);
    assert_eq!(machines.ledger.view().done, 0);
    machines.say.push(TRUTH);
    machines.io.now = machines.ledger.deadline().expect("as above");
    machines.ledger.expire(&mut machines.io);
    let copies = machines.copies();
    assert!(matches!(&copies[..], [(2, ranges)] if ranges.len() == TASKS), "{copies:?}");
}

#[test]
fn a_crash_of_one_copy_ends_no_other_and_makes_room_for_one_more() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 4]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    for (to, ranges) in machines.copies() {
        machines.give(to, &ranges);
    }
    let crash = |machines: &mut Machines, index| {
        let crash = TaskResult { crashed: true, ..result(index, false) };
        machines.ledger.results(&contact(2), vec![crash], &mut machines.io, &machines.config);
        machines.held.entry(2).or_default().remove_index(index);
        machines.copies()
    };
    assert!(machines.held[&2].contains(0) && machines.held[&2].contains(1), "{:?}", machines.held);
    // The machines that were sent fewest tasks come first: that on which the task crashed, then the other.
    assert_eq!(crash(&mut machines, 0), [(2, IntervalSet::from(0..1))]);
    assert_eq!(crash(&mut machines, 1), [(4, IntervalSet::from(1..2))]);
    machines.give(4, &IntervalSet::from(1..2));
    assert!(machines.held[&4].contains(1), "a copy like any other, of whatever attempt");
    for (attempt, is_kept) in [(0, false), (machines.ledger.attempt, true)] {
        machines.version += 1;
        let ranges = machines.held[&2].union(&IntervalSet::from(0..1));
        let holding = Holding { attempt, ..said(2, machines.version, ranges) };
        machines.ledger.holding(holding, &mut machines.io, &machines.config);
        let is_held = machines.ledger.placed.of(contact(2).peer).unwrap().ranges.contains(0);
        assert_eq!(is_held, is_kept, "attempt {attempt}: what crashed there is no new placement, what came since is");
    }
    assert_accounted(&machines.ledger);
    // The first copy fails by itself: that vote stays until there is a decision.
    machines.io.effects.clear();
    let fails = TaskResult { output: BlobId([9; 32]), ..result(0, false) };
    machines.ledger.results(&contact(1), vec![fails], &mut machines.io, &machines.config);
    assert_eq!((machines.ledger.votes.count(0), &machines.io.effects[..]), (1, &[][..]));
}

/// Its vote is kept here. If it kept the task, each of its `Holding`s would claim the copy on its way to another machine.
#[test]
fn a_voter_without_a_lease_is_told_to_drop_the_task() {
    let mut machines = Machines::new(replication(2, 2, 0), &[TRUTH; 3]);
    machines.ledger.issue(Vec::new, &machines.io, &machines.config);
    machines.give(1, &IntervalSet::from(0..TASKS));
    let vote = machines.says(1, 0);
    machines.ledger.results(&contact(1), vec![vote], &mut machines.io, &machines.config);
    machines.io.now += machines.ledger.term(&machines.io, &machines.config) * 2;
    machines.ledger.expire(&mut machines.io);
    assert_eq!((machines.ledger.votes.count(0), machines.ledger.former().count()), (1, 1));
    machines.io.effects.clear();
    let finished = IntervalSet::from(0..1);
    let claim = Holding { finished: finished.clone(), ..said(1, machines.version + 1, finished.clone()) };
    machines.ledger.holding(claim, &mut machines.io, &machines.config);
    let told = machines.io.effects.iter().find_map(|effect| match effect {
        Effect::Send { message: Message::Lease(Lease { drop, .. }), .. } => Some(drop.clone()),
        _ => None,
    });
    assert_eq!(told, Some(finished));
}
