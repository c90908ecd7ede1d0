//! Machines that do what they are asked, in any order: some tasks fail, some bring their worker down, outputs come late, and
//! every message is repeated. Every bag ends, with true results.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::ledger::failures::CRASHED_ON_MAX;
use crate::ledger::outputs::UNFETCHED_MAX;
use crate::ledger::quorum::{Known, Replication};
use crate::message::Lease;

const MACHINES: u8 = 6;
/// So many fetches of an output fail in a row, fewer than those after which the task is run again.
const MISSES_MAX: u32 = UNFETCHED_MAX - 2;

/// How a task ends, wherever it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Succeeds,
    Fails,
    Crashes,
}

#[derive(Clone, Debug)]
enum Turn {
    Speak(u8),
    Run(u8),
    Tell(u8),
    Fetch { here: bool },
    Issue(u8),
    Wait(u64),
}

fn turn() -> impl Strategy<Value = Turn> {
    let machine = || 1..=MACHINES;
    prop_oneof![
        1 => machine().prop_map(Turn::Speak),
        3 => machine().prop_map(Turn::Run),
        3 => machine().prop_map(Turn::Tell),
        3 => any::<bool>().prop_map(|here| Turn::Fetch { here }),
        2 => machine().prop_map(Turn::Issue),
        1 => (1..2_000_u64).prop_map(Turn::Wait),
    ]
}

#[derive(Default)]
struct Machine {
    /// The tasks to run, and their attempts.
    waiting: BTreeMap<u64, u32>,
    outbox: BTreeMap<u64, TaskResult>,
    version: u64,
}

struct Grid {
    ledger: Ledger,
    io: Io,
    config: Config,
    fates: BTreeMap<u64, Fate>,
    machines: BTreeMap<u8, Machine>,
    /// Outputs on their way, the oldest first.
    fetches: VecDeque<u64>,
    misses: BTreeMap<u64, u32>,
    runs: BTreeMap<u64, u32>,
}

impl Grid {
    fn new(replication: Replication, retries_max: u32, fates: &[(u64, Fate)]) -> Self {
        let io = io();
        let mut ledger = ledger(&io, retries_max);
        ledger.votes = Votes::new(replication);
        Self {
            ledger,
            io,
            config: Config::default(),
            fates: fates.iter().copied().collect(),
            machines: (1..=MACHINES).map(|number| (number, Machine::default())).collect(),
            fetches: VecDeque::new(),
            misses: BTreeMap::new(),
            runs: BTreeMap::new(),
        }
    }

    fn fate(&self, index: u64) -> Fate {
        self.fates.get(&index).copied().unwrap_or(Fate::Succeeds)
    }

    fn machine(&mut self, number: u8) -> &mut Machine {
        self.machines.get_mut(&number).expect("one of them")
    }

    /// Delivers the ledger's messages, once their writes are durable.
    fn deliver(&mut self) {
        persist_all(&mut self.io);
        for effect in std::mem::take(&mut self.io.effects) {
            match effect {
                Effect::FetchOutput { task, .. } => self.fetches.push_back(task.index),
                Effect::Send { to, message } => self.receive(to.peer.0[0], message),
                _ => {}
            }
        }
    }

    fn receive(&mut self, number: u8, message: Message) {
        let machine = self.machine(number);
        match message {
            Message::ResultsAck { attempt, indices, .. } => {
                machine.outbox.retain(|&index, result| !indices.contains(index) || result.attempt != attempt);
            }
            Message::Lease(Lease { drop, .. }) => {
                machine.outbox.retain(|&index, _| !drop.contains(index));
                machine.waiting.retain(|&index, _| !drop.contains(index));
            }
            _ => {}
        }
    }

    fn speak(&mut self, number: u8) {
        let machine = self.machine(number);
        machine.version += 1;
        let outbox = machine.outbox.values().map(|result| (result.index, result.attempt));
        let held: BTreeMap<u64, u32> =
            machine.waiting.iter().map(|(&index, &attempt)| (index, attempt)).chain(outbox).collect();
        let ranges = held.keys().map(|&index| index..index + 1).collect();
        let attempt = held.values().copied().max().unwrap_or(0);
        let holding = Holding { attempt, ..said(number, machine.version, ranges) };
        self.ledger.holding(holding, &mut self.io, &self.config);
        self.deliver();
    }

    fn run(&mut self, number: u8) {
        let machine = self.machine(number);
        let Some((index, attempt)) = machine.waiting.pop_first() else { return };
        let fate = self.fate(index);
        let result = TaskResult { attempt, crashed: fate == Fate::Crashes, ..result(index, fate == Fate::Succeeds) };
        self.machine(number).outbox.insert(index, result);
        *self.runs.entry(index).or_default() += 1;
    }

    fn tell(&mut self, number: u8) {
        let results: Vec<TaskResult> = self.machine(number).outbox.values().cloned().collect();
        self.ledger.results(&contact(number), results, &mut self.io, &self.config);
        self.deliver();
    }

    fn fetch(&mut self, here: bool) {
        let Some(index) = self.fetches.pop_front() else { return };
        let misses = self.misses.entry(index).or_default();
        let here = here || *misses >= MISSES_MAX;
        *misses = if here { 0 } else { *misses + 1 };
        self.ledger.fetched(index, here, None, &mut self.io);
        self.deliver();
    }

    /// Delivers requests through the tree to one machine, and direct ones to their receivers.
    fn issue(&mut self, number: u8) {
        let known = || (1..=MACHINES).map(|number| Known { contact: contact(number), right: number > 3 }).collect();
        let right = |peer: PeerId| peer.0[0] > 3;
        let copies = self.ledger.copies_due(known, right, &mut self.io, &self.config);
        let copies = copies.into_iter().map(|(to, request)| (to.peer.0[0], request));
        let requests = self.ledger.issue(known, &self.io, &self.config).into_iter();
        let requests = requests.map(|(to, request)| (to.map_or(number, |to| to.peer.0[0]), request));
        for (to, request) in copies.chain(requests).collect::<Vec<_>>() {
            let machine = self.machine(to);
            for index in request.ranges.indices() {
                if !machine.outbox.contains_key(&index) {
                    machine.waiting.insert(index, request.attempt);
                }
            }
            self.speak(to);
        }
        self.deliver();
    }

    /// All machines renew their leases.
    fn wait(&mut self, millis: u64) {
        self.io.now += Duration::from_millis(millis);
        self.ledger.expire(&mut self.io);
        self.deliver();
        (1..=MACHINES).for_each(|number| self.speak(number));
    }

    fn take(&mut self, turn: Turn) {
        match turn {
            Turn::Speak(number) => self.speak(number),
            Turn::Run(number) => self.run(number),
            Turn::Tell(number) => self.tell(number),
            Turn::Fetch { here } => self.fetch(here),
            Turn::Issue(number) => self.issue(number),
            Turn::Wait(millis) => self.wait(millis),
        }
        if !self.ledger.is_closed() {
            assert_accounted(&self.ledger);
        }
    }

    /// Runs until the bag is closed.
    fn finish(&mut self) {
        for round in 0..2_000_u64 {
            if self.ledger.is_closed() {
                return;
            }
            for number in 1..=MACHINES {
                self.take(Turn::Run(number));
                self.take(Turn::Tell(number));
                self.take(Turn::Fetch { here: true });
            }
            self.take(Turn::Issue((round % u64::from(MACHINES)) as u8 + 1));
            self.take(Turn::Wait(1_000));
        }
        panic!("the bag never ends: {:?}", self.ledger.view());
    }
}

proptest! {
    #[test]
    fn every_bag_ends_with_true_results(
        replicas in 1..=3_u32,
        retries_max in 0..=1_u32,
        fates in prop::collection::vec((0..TASKS, prop_oneof![Just(Fate::Fails), Just(Fate::Crashes)]), 0..=2),
        turns in prop::collection::vec(turn(), 0..150),
    ) {
        let quorum = replicas.min(2);
        let mut grid = Grid::new(Replication { replicas, quorum, recheck: 0 }, retries_max, &fates);
        for turn in turns {
            grid.take(turn);
        }
        grid.finish();
        for index in 0..TASKS {
            let fate = grid.fate(index);
            prop_assert_eq!(grid.ledger.ended().0.contains(index), fate == Fate::Succeeds, "task {}", index);
            prop_assert_eq!(grid.ledger.ended().1.contains(index), fate != Fate::Succeeds, "task {}", index);
            let runs = grid.runs[&index];
            if replicas == 1 {
                // No machine was away, so that no task was run in vain.
                let (least, most) = match fate {
                    Fate::Succeeds => (1, 1),
                    Fate::Fails => (retries_max + 1, retries_max + 1),
                    Fate::Crashes => (retries_max + 2, retries_max + CRASHED_ON_MAX as u32),
                };
                prop_assert!((least.min(CRASHED_ON_MAX as u32)..=most).contains(&runs), "task {index}: {runs} runs");
            }
        }
        // All votes were alike.
        let wall = grid.io.wall(grid.io.now);
        prop_assert_eq!(grid.io.reputations.all(wall).map(|(_, reputation)| reputation.dissents).sum::<u32>(), 0);
        prop_assert_eq!(grid.ledger.counts.unasked, 0);
    }
}
