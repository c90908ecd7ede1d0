//! Which task of an application in rounds follows from which: the application as one bag.
//!
//! A bag in rounds has a task for each process and round, and one for each merge. Their order in the bag is that of rounds, in each the
//! processes before the merges:
//!
//! | mode | merges | a process of round r > 0 waits for | a merge waits for |
//! |---|---|---|---|
//! | synchronous | one after each round | the merge of round r − 1, or without merges all processes of it | all processes of its round |
//! | asynchronous | one after each process, and one of all at the end | its own merge of round r − 1, or its own task of it | its process; the last one for all |
//!
//! What a synchronous task begins with ([`Sources`]) follows from its index alone, so that the same tasks get the same inputs
//! in whatever order others end, fail or are run again. An asynchronous one takes the newest result of each other process.
//!
//! Pure arithmetic on indices: who runs a task, and what its files are, is for others to say.

use std::ops::Range;

use super::plan::{Part, Plan, Sources};
use crate::ranges::IntervalSet;

/// How far an application in rounds is: which of its tasks have succeeded, and so which may begin, with what.
#[derive(Clone, Debug)]
pub struct Progress {
    plan: Plan,
    done: IntervalSet,
    /// Processes that have done each round, for rounds that any has.
    done_in_round: std::collections::BTreeMap<u64, u64>,
    /// How many rounds each process has done: one more than its newest.
    rounds_done: Vec<u64>,
}

impl Progress {
    /// Nothing has ended yet.
    pub fn new(plan: Plan) -> Self {
        let processes = usize::try_from(plan.processes).unwrap_or(0);
        let (done, done_in_round) = (IntervalSet::new(), std::collections::BTreeMap::new());
        Self { plan, done, done_in_round, rounds_done: vec![0; processes] }
    }

    /// These tasks have succeeded.
    pub fn restore(plan: Plan, done: &IntervalSet) -> Self {
        let mut progress = Self::new(plan);
        done.indices().filter(|&index| index < plan.tasks()).for_each(|index| progress.note(index));
        progress
    }

    fn note(&mut self, index: u64) {
        if !self.done.insert_index(index) {
            return;
        }
        if let Part::Process { round, process } = self.plan.part(index) {
            *self.done_in_round.entry(round).or_default() += 1;
            if let Some(rounds) = usize::try_from(process).ok().and_then(|process| self.rounds_done.get_mut(process)) {
                *rounds = (*rounds).max(round + 1);
            }
        }
    }

    /// A task has succeeded: the tasks that wait for nothing since.
    pub fn succeeded(&mut self, index: u64) -> Vec<u64> {
        self.note(index);
        let plan = self.plan;
        let all_of = |round| (0..plan.processes).map(move |process| plan.index(Part::Process { round, process }));
        let next = match plan.part(index) {
            // Where results come in another order than tasks end, as from a steward, a merge may be done before what it merges.
            Part::Process { round, process } if plan.merges => {
                let next = (round + 1 < plan.rounds).then(|| plan.index(Part::Process { round: round + 1, process }));
                std::iter::once(plan.merge_after(round, process)).chain(next).collect()
            }
            Part::Process { round, .. } | Part::Merge { round, .. } if round + 1 == plan.rounds => Vec::new(),
            Part::Process { round, .. } | Part::Merge { round, of: None } if !plan.is_asynchronous => {
                all_of(round + 1).collect()
            }
            Part::Process { round, process } | Part::Merge { round, of: Some(process) } => {
                vec![plan.index(Part::Process { round: round + 1, process })]
            }
            Part::Merge { of: None, .. } => Vec::new(),
        };
        next.into_iter().filter(|&next| self.is_due(next) && !self.done.contains(next)).collect()
    }

    /// Whether all processes have done this round.
    fn is_complete(&self, round: u64) -> bool {
        self.done_in_round.get(&round) == Some(&self.plan.processes)
    }

    /// Whether all that a task waits for has succeeded.
    pub fn is_due(&self, index: u64) -> bool {
        match self.plan.part(index) {
            Part::Process { round: 0, .. } => true,
            Part::Process { round, process } if self.plan.merges => {
                let has_state = self.done.contains(self.plan.index(Part::Process { round: round - 1, process }));
                has_state && self.done.contains(self.plan.merge_after(round - 1, process))
            }
            Part::Process { round, process } if self.plan.is_asynchronous => {
                self.done.contains(self.plan.index(Part::Process { round: round - 1, process }))
            }
            Part::Process { round, .. } => self.is_complete(round - 1),
            Part::Merge { round, of: Some(process) } => {
                self.done.contains(self.plan.index(Part::Process { round, process }))
            }
            Part::Merge { round, of: None } => self.is_complete(round),
        }
    }

    /// What a task that is due begins with.
    pub fn sources(&self, index: u64) -> Sources {
        let plan = self.plan;
        match plan.part(index) {
            Part::Process { round: 0, .. } => Sources::default(),
            Part::Process { round, process } => Sources {
                state: Some(plan.index(Part::Process { round: round - 1, process })),
                merged: plan.merges.then(|| plan.merge_after(round - 1, process)),
                results: if plan.merges { Vec::new() } else { self.results(round - 1) },
                iterations: None,
            },
            Part::Merge { round, .. } => Sources { results: self.results(round), ..Sources::default() },
        }
    }

    /// The results of a round, or the newest of each process that has any.
    fn results(&self, round: u64) -> Vec<(u64, u64)> {
        let newest = |process: u64| {
            let done = usize::try_from(process).ok().and_then(|process| self.rounds_done.get(process)).copied();
            done.and_then(|done| done.checked_sub(1))
        };
        let round_of = |process| if self.plan.is_asynchronous { newest(process) } else { Some(round) };
        let result = |process| Some((process, self.plan.index(Part::Process { round: round_of(process)?, process })));
        (0..self.plan.processes).filter_map(result).collect()
    }

    /// The shape of the application.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// How many rounds each process has done.
    pub fn rounds_done(&self) -> &[u64] {
        &self.rounds_done
    }

    /// The last round that all processes have done, from 0: the application can go on from their results, and those of its merges and of
    /// later rounds that are there.
    pub fn last_complete(&self) -> Option<u64> {
        let complete = |(_, done): &(&u64, &u64)| **done == self.plan.processes;
        self.done_in_round.iter().rfind(complete).map(|(round, _)| *round)
    }

    /// Tasks whose results are not needed to go on.
    pub fn past(&self) -> Range<u64> {
        self.plan.before(self.last_complete().unwrap_or(0))
    }

    /// Rounds that all processes have done, and whose merge has ended where all wait for one.
    pub fn rounds_complete(&self) -> u64 {
        let is_merged = |round| self.plan.merge_of_all(round).is_none_or(|merge| self.done.contains(merge));
        (0..self.plan.rounds).take_while(|&round| self.is_complete(round) && is_merged(round)).count() as u64
    }

    /// The processes for which the others wait: those that have not done a round that another one has; none where nobody waits.
    pub fn waited_for(&self) -> Vec<u64> {
        let first = self.rounds_done.iter().max().copied().unwrap_or(0);
        let lags = |(process, &done): (usize, &u64)| (done < first).then_some(process as u64);
        if self.plan.is_asynchronous {
            Vec::new()
        } else {
            self.rounds_done.iter().enumerate().filter_map(lags).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn plan(processes: u64, rounds: u64, merges: bool, is_asynchronous: bool) -> Plan {
        Plan { processes, rounds, rounds_min: 0, merges, is_asynchronous, fill: None, at_once: false }
    }

    /// What a task has come to, by what it began with.
    type Values = BTreeMap<u64, u64>;

    fn value(index: u64, inputs: impl Iterator<Item = u64>) -> u64 {
        inputs.fold(index + 1, |value, input| value.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(input))
    }

    fn run(progress: &Progress, index: u64, values: &Values) -> u64 {
        let Sources { state, merged, results, .. } = progress.sources(index);
        let inputs = state.into_iter().chain(merged).chain(results.into_iter().map(|(_, result)| result));
        value(index, inputs.map(|input| values[&input]))
    }

    /// The application as one would write it without a grid: loops.
    fn by_loops(processes: u64, rounds: u64, merges: bool) -> Vec<u64> {
        let stride = processes + u64::from(merges);
        let (mut all, mut merged) = (Vec::new(), None);
        let mut states: Vec<u64> = Vec::new();
        for round in 0..rounds {
            let before = states.clone();
            states = (0..processes)
                .map(|process| {
                    let state = before.get(process as usize).copied();
                    let results = if merges { Vec::new() } else { before.clone() };
                    value(round * stride + process, state.into_iter().chain(merged).chain(results))
                })
                .collect();
            all.extend(&states);
            if merges {
                let of_all = value(round * stride + processes, states.iter().copied());
                merged = Some(of_all);
                all.push(of_all);
            }
        }
        all
    }

    proptest! {
        /// In whatever order tasks end, fail and are run again, and however often the submitter is restarted, each task runs once
        /// to its success, after those that it waits for, and in synchronous applications with the inputs that loops would give it.
        #[test]
        fn any_order_gives_the_same_inputs(
            processes in 1_u64..6, rounds in 1_u64..6, merges: bool, is_asynchronous: bool,
            choices in prop::collection::vec((0_usize..100, 0_u8..10), 400),
        ) {
            let plan = plan(processes, rounds, merges, is_asynchronous);
            let mut progress = Progress::new(plan);
            let mut waiting: BTreeSet<u64> = plan.first().collect();
            let (mut values, mut done) = (Values::new(), IntervalSet::new());
            for (pick, fate) in choices {
                let Some(&index) = waiting.iter().nth(pick % waiting.len().max(1)) else { break };
                if fate == 0 {
                    // The submitter is killed: what it knows is what has succeeded.
                    progress = Progress::restore(plan, &done);
                    let due: BTreeSet<u64> =
                        (0..plan.tasks()).filter(|&index| !done.contains(index) && progress.is_due(index)).collect();
                    prop_assert_eq!(&due, &waiting);
                } else if fate > 2 {
                    waiting.remove(&index);
                    prop_assert!(values.insert(index, run(&progress, index, &values)).is_none());
                    done.insert_index(index);
                    for next in progress.succeeded(index) {
                        prop_assert!(waiting.insert(next), "{} twice", next);
                    }
                }
            }
            while let Some(index) = waiting.pop_first() {
                values.insert(index, run(&progress, index, &values));
                done.insert_index(index);
                waiting.extend(progress.succeeded(index));
            }
            prop_assert_eq!(values.len() as u64, plan.tasks(), "nothing is lost");
            prop_assert_eq!(progress.rounds_complete(), rounds);
            if !is_asynchronous {
                let values: Vec<u64> = values.into_values().collect();
                prop_assert_eq!(values, by_loops(processes, rounds, merges));
            }
        }
    }

    proptest! {
        /// A machine that adopts the bag has the results of tasks that have ended in whatever order stewards hand them over.
        #[test]
        fn results_in_any_order_make_the_same_tasks_due_once(
            processes in 1_u64..5, rounds in 1_u64..5, merges: bool, is_asynchronous: bool,
            picks in prop::collection::vec(0_usize..100, 0..60), order in prop::collection::vec(0_usize..100, 60),
        ) {
            let plan = plan(processes, rounds, merges, is_asynchronous);
            let mut progress = Progress::new(plan);
            let mut due: BTreeSet<u64> = plan.first().collect();
            let mut ended = Vec::new();
            for pick in picks {
                let Some(&index) = due.iter().nth(pick % due.len().max(1)) else { break };
                due.remove(&index);
                ended.push(index);
                due.extend(progress.succeeded(index));
            }
            let mut again = Progress::new(plan);
            let mut ordered: BTreeSet<u64> = plan.first().collect();
            let mut given = BTreeSet::new();
            for pick in order {
                if ended.is_empty() {
                    break;
                }
                let index = ended.remove(pick % ended.len());
                given.insert(index);
                for next in again.succeeded(index) {
                    prop_assert!(ordered.insert(next) || given.contains(&next), "{} twice", next);
                }
            }
            let left: BTreeSet<u64> = ordered.difference(&given).copied().collect();
            prop_assert_eq!(left, due);
            prop_assert_eq!((again.last_complete(), again.past()), (progress.last_complete(), progress.past()));
        }
    }

    #[test]
    fn rounds_before_the_last_complete_one_are_past() {
        let plan = plan(2, 4, true, false);
        let mut progress = Progress::new(plan);
        for index in 0..7 {
            progress.succeeded(index);
        }
        // Process 0 has done its third round, process 1 has not.
        assert_eq!((progress.last_complete(), progress.past()), (Some(1), 0..3));
        assert_eq!(plan.before(9), 0..9, "the last round is never past");
    }

    #[test]
    fn nobody_waits_in_an_asynchronous_application_and_the_last_merge_has_all() {
        let plan = plan(3, 4, true, true);
        let mut progress = Progress::new(plan);
        let mut next = 0;
        for round in 0..3 {
            let merge = progress.succeeded(next);
            assert_eq!(merge, [plan.index(Part::Merge { round, of: Some(0) })]);
            assert_eq!(progress.sources(merge[0]).results, [(0, next)], "of others there is nothing yet");
            next = progress.succeeded(merge[0])[0];
        }
        assert_eq!(progress.succeeded(next), [], "the last merge is of all");
        assert_eq!(progress.rounds_done(), [4, 0, 0]);
        for process in [2, 1] {
            for round in 0..4 {
                let due = progress.succeeded(plan.index(Part::Process { round, process }));
                if round < 3 {
                    progress.succeeded(due[0]);
                }
            }
        }
        let last = plan.tasks() - 1;
        assert!(progress.is_due(last));
        let of_last_round = |process| (process, plan.index(Part::Process { round: 3, process }));
        assert_eq!(progress.sources(last).results, [of_last_round(0), of_last_round(1), of_last_round(2)]);
        assert_eq!(progress.waited_for(), [] as [u64; 0]);
    }

    #[test]
    fn whom_others_wait_for() {
        let plan = plan(3, 2, true, false);
        let mut progress = Progress::new(plan);
        assert_eq!(progress.waited_for(), [] as [u64; 0]);
        progress.succeeded(1);
        assert_eq!(progress.waited_for(), [0, 2]);
        assert_eq!(progress.rounds_complete(), 0);
        for index in [0, 2] {
            progress.succeeded(index);
        }
        assert_eq!(progress.rounds_complete(), 0, "its merge has not ended");
        progress.succeeded(3);
        assert_eq!((progress.rounds_complete(), progress.waited_for()), (1, Vec::new()));
    }
}
