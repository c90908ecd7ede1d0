//! Co-allocation: where an application in rounds begins its rounds at once ([`Plan::at_once`](crate::rounds::Plan), docs/adr/0064), which processes
//! have a slot somewhere, and when all of them begin.
//!
//! The processes of a round that has not begun are requested as such ([`BOOKED`]). Machines keep a slot free for each, and say so ([`Message::Booked`]).
//! As soon as all have one, that the round has begun is journalled, and each machine is told ([`Message::Begin`]), at once and again whenever it says that it
//! still waits. What comes back before that is requested again after a pause, which doubles with each try, all together, so that routers see how many
//! slots they have to find; pauses differ between bags, so that two that need each other's slots do not ask for them in step for ever.
//!
//! A task of a round that has begun, and is lost with its machine, begins again as soon as it can: the others go on meanwhile. So do tasks that their
//! user runs again. What a message takes on its way is all that lies between the first and the last start; where a `Begin` is lost, some seconds more.

use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use super::Ledger;
use super::failures::{doubled, pause_end};
use crate::io::{Io, Then};
use crate::message::Message;
use crate::ranges::IntervalSet;
use crate::record::Change;
use crate::rounds::{BOOKED, Part, WHENEVER};

/// The shortest pause before slots are asked for again, which doubles with each try of a round. Our choice: by then routers know which are idle.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// The longest pause. Our choice: an application that needs more slots than there are keeps some of them empty for a twentieth of the time.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(600);
/// A machine that keeps slots says so every four seconds; one that has not for so long is taken to keep none.
const BELIEVED_FOR: Duration = Duration::from_secs(12);
/// For each of 256 steps by which pauses of bags differ.
const AGAIN_STEP: Duration = Duration::from_millis(25);

/// The processes of a round that begin at once.
#[derive(Debug)]
pub(super) struct Together {
    /// Counted from 0.
    round: u64,
    pub(super) tasks: IntervalSet,
}

impl Ledger {
    /// The processes of the round that is to begin at once, and has not.
    pub(super) fn together(&self) -> Option<Together> {
        let plan = self.conditions.rounds.filter(|plan| plan.at_once)?;
        let round = self.conditions.rounds_begun;
        let first = plan.index(Part::Process { round, process: 0 });
        (round < plan.rounds).then(|| Together { round, tasks: IntervalSet::from(first..first + plan.processes) })
    }

    /// Within how many seconds these tasks of an application in rounds have to begin: [`BOOKED`] where they begin at once with others, else
    /// [`WHENEVER`]. `None`: the bag is no such application.
    pub(super) fn begins_within(&self, ranges: &IntervalSet) -> Option<u32> {
        self.rounds.as_ref()?;
        let is_together = |it: Together| ranges.difference(&it.tasks).is_empty();
        Some(if self.together().is_some_and(is_together) { BOOKED } else { WHENEVER })
    }

    /// Those of these tasks that one request takes: what is to begin at once goes apart from what is not.
    pub(super) fn apart(&self, ranges: IntervalSet) -> IntervalSet {
        let together = self.together().map(|it| it.tasks.intersection(&ranges));
        together.filter(|together| !together.is_empty()).unwrap_or(ranges)
    }

    /// Tasks came back: where they are of a round that has not begun, their slots are forgotten, and another try begins, unless one is coming already. Returns when they go
    /// out again; `None`: they are not of such a round.
    pub(super) fn together_again(&mut self, ranges: &IntervalSet, io: &Io) -> Option<Time> {
        let is_together = self.together().is_some_and(|it| !it.tasks.intersection(ranges).is_empty());
        let spread = u32::from(self.bag.id.0[self.attempt as usize % self.bag.id.0.len()]);
        let rounds = self.rounds.as_mut().filter(|_| is_together)?;
        // Slots of this try are no longer kept for them, also where they come to the same machine again.
        rounds.booked.values_mut().for_each(|(booked, _)| booked.subtract(ranges));
        let known = rounds.together_again.filter(|at| *at > io.now);
        let at = known.unwrap_or_else(|| {
            rounds.together_tries += 1;
            let pause = doubled(AGAIN_AFTER + spread * AGAIN_STEP, rounds.together_tries - 1, AGAIN_AFTER_MAX);
            pause_end(io.now + pause)
        });
        rounds.together_again = Some(at);
        Some(at)
    }

    /// A machine keeps slots for these tasks: once all of the round have one, they begin.
    pub(crate) fn booked(&mut self, executor: PeerId, tasks: &IntervalSet, io: &mut Io) {
        let bag = self.bag.id;
        let Some(placement) = self.placed.of(executor).filter(|_| !self.is_closed()) else { return };
        let (to, held) = (placement.executor.clone(), tasks.intersection(&placement.ranges));
        let together = self.together();
        let wait = together.as_ref().map_or_else(IntervalSet::new, |it| held.intersection(&it.tasks));
        let begun = held.difference(&wait);
        if !begun.is_empty() {
            // The message that said so was lost, or it waits for the round's beginning to be durable, as this one does.
            io.persist(vec![Change::Put(self.record(io))], vec![Then::Send(to, Message::Begin { bag, tasks: begun })]);
        }
        let Some((rounds, together)) = self.rounds.as_mut().zip(together) else { return };
        rounds.booked.insert(executor, (wait, io.now));
        let by_machine = self.slots_booked(io.now);
        let booked: u64 = by_machine.iter().map(|(_, tasks)| tasks.len()).sum();
        if booked < together.tasks.len() {
            return;
        }
        self.conditions.rounds_begun = together.round + 1;
        if let Some(rounds) = &mut self.rounds {
            rounds.booked.clear();
            rounds.together_tries = 0;
        }
        let to = |executor| self.placed.of(executor).map(|placement| placement.executor.clone());
        let begin = |(executor, tasks)| Some(Then::Send(to(executor)?, Message::Begin { bag, tasks }));
        let then = by_machine.into_iter().filter_map(begin).collect();
        io.persist(vec![Change::Put(self.record(io))], then);
    }

    /// The tasks of a round that has not begun for which machines keep a slot, as they said lately.
    fn slots_booked(&self, now: Time) -> Vec<(PeerId, IntervalSet)> {
        let Some(rounds) = &self.rounds else { return Vec::new() };
        let held = |executor| self.placed.of(executor).map(|placement| &placement.ranges);
        let lately = rounds.booked.iter().filter(|(_, (_, said))| now.since(*said) < BELIEVED_FOR);
        lately.filter_map(|(&executor, (tasks, _))| Some((executor, tasks.intersection(held(executor)?)))).collect()
    }

    /// How many processes of a round that is to begin at once have a slot; `None`: no round waits to begin so.
    pub(crate) fn booked_slots(&self, now: Time) -> Option<u64> {
        self.together().filter(|_| !self.is_closed())?;
        Some(self.slots_booked(now).iter().map(|(_, tasks)| tasks.len()).sum())
    }
}
