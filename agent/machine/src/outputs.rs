//! Outputs of this machine's bags on their way here: a few at a time, of each machine and each bag fewer, and a bounded number that
//! waits, of each machine no more than is free beside it; machines come in turns.
//!
//! An output for which the disk has no room waits aside, so that smaller ones go past it, and is tried again for as long as its bag
//! is open. When a bag is closed all its fetches are abandoned at once. Outputs that this machine made itself wait for nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};
use idlewood_scheduler::{BagId, TaskId};

use crate::effect::{Effect, FetchId, Wanted};
use crate::event::FetchEnd;

/// Outputs that are fetched at the same time: altogether, from one machine, of one bag. Our choice. The agent's fetcher downloads
/// fewer; the others wait for their source.
pub const FETCHES_MAX: u32 = 32;
const UNDER_WAY_MAX: usize = FETCHES_MAX as usize;
const UNDER_WAY_OF_SOURCE_MAX: usize = 8;
const UNDER_WAY_OF_BAG_MAX: usize = 24;
/// Outputs that wait for a place, and as many that wait for room on the disk. Their executors offer again what exceeds it.
const WAITING_MAX: usize = 4096;
/// Time between a try to keep an output for which there is no room here and the next one.
const ROOM_PAUSE: Duration = Duration::from_secs(5);

/// How much room an output takes: a checkpoint is kept once more, with a signature.
fn room_bytes(wanted: &Wanted) -> u64 {
    wanted.output_bytes.saturating_mul(if wanted.unfinished { 2 } else { 1 })
}

/// What is wanted and what is on its way.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    /// By the machine that has them, the next one first.
    waiting: VecDeque<(PeerId, VecDeque<Wanted>)>,
    waiting_count: usize,
    under_way: BTreeMap<FetchId, Wanted>,
    /// Whether another fetch may begin: an output was wanted, or a fetch ended, since the last one that could not begin.
    may_begin: bool,
    /// Fetches of outputs that this machine made itself: they only have to be made durable, and take no place.
    own: BTreeMap<FetchId, Wanted>,
    /// Number of the last fetch.
    fetches: u64,
    /// Outputs for which there was no room at their last try.
    without_room: Vec<Wanted>,
    /// When an output of `without_room` is tried again, if none of them is under way.
    retry_at: Option<Time>,
    /// The retry that is under way; one at a time, since parts of several would take the room from each other.
    retried: Option<FetchId>,
}

impl Outputs {
    /// Another output is wanted. False: too many wait.
    pub(crate) fn push(&mut self, wanted: Wanted) -> bool {
        let from = wanted.from.peer;
        let place = self.waiting.iter().position(|(peer, _)| *peer == from);
        let of_source = place.map_or(0, |place| self.waiting[place].1.len());
        if self.waiting_count + of_source >= WAITING_MAX {
            return false;
        }
        self.waiting_count += 1;
        self.may_begin = true;
        match place {
            Some(place) => self.waiting[place].1.push_back(wanted),
            None => self.waiting.push_back((from, [wanted].into())),
        }
        true
    }

    /// An output of this very machine is wanted: it only has to be made durable.
    pub(crate) fn keep_own(&mut self, wanted: Wanted) -> Effect {
        let fetch = self.number();
        self.own.insert(fetch, wanted.clone());
        Effect::Fetch { fetch, wanted }
    }

    fn number(&mut self) -> FetchId {
        self.fetches += 1;
        FetchId(self.fetches)
    }

    /// Fetches as many as may be under way; `is_wanted` says whether the bag of an output is open still.
    pub(crate) fn fetch(&mut self, now: Time, is_wanted: impl Fn(&Wanted) -> bool, effects: &mut Vec<Effect>) {
        if !self.may_begin && self.deadline().is_none_or(|at| at > now) {
            return;
        }
        while let Some((fetch, wanted)) = self.next(now, &is_wanted) {
            effects.push(Effect::Fetch { fetch, wanted });
        }
        self.may_begin = false;
    }

    /// The next to be fetched, if another may be; it is under way until [`Outputs::ended`].
    fn next(&mut self, now: Time, is_wanted: impl Fn(&Wanted) -> bool) -> Option<(FetchId, Wanted)> {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return None;
        }
        if self.retried.is_none() && self.retry_at.is_some_and(|at| at <= now) {
            self.without_room.retain(&is_wanted);
            // If the smallest has no room, none has.
            let smallest = (0..self.without_room.len()).min_by_key(|&at| room_bytes(&self.without_room[at]));
            self.retry_at = smallest.and(self.retry_at);
            if let Some(smallest) = smallest {
                let wanted = self.without_room.swap_remove(smallest);
                let begun = self.begin(wanted);
                self.retried = Some(begun.0);
                return Some(begun);
            }
        }
        // Each machine has one turn.
        for _ in 0..self.waiting.len() {
            let (from, mut of_source) = self.waiting.pop_front()?;
            let before = of_source.len();
            let wanted = self.first_that_may(from, &mut of_source, &is_wanted);
            self.waiting_count -= before - of_source.len();
            if !of_source.is_empty() {
                self.waiting.push_back((from, of_source));
            }
            if let Some(wanted) = wanted {
                return Some(self.begin(wanted));
            }
        }
        None
    }

    /// The first output of one machine that may be fetched now; outputs of closed bags before it are dropped.
    fn first_that_may(
        &self,
        from: PeerId,
        of_source: &mut VecDeque<Wanted>,
        is_wanted: impl Fn(&Wanted) -> bool,
    ) -> Option<Wanted> {
        if self.under_way.values().filter(|wanted| wanted.from.peer == from).count() >= UNDER_WAY_OF_SOURCE_MAX {
            return None;
        }
        let mut of_bags: BTreeMap<BagId, usize> = BTreeMap::new();
        for wanted in self.under_way.values() {
            *of_bags.entry(wanted.task.bag).or_default() += 1;
        }
        let mut at = 0;
        while let Some(wanted) = of_source.get(at) {
            if of_bags.get(&wanted.task.bag).is_some_and(|&count| count >= UNDER_WAY_OF_BAG_MAX) {
                at += 1;
            } else if is_wanted(wanted) {
                return of_source.remove(at);
            } else {
                of_source.remove(at);
            }
        }
        None
    }

    fn begin(&mut self, wanted: Wanted) -> (FetchId, Wanted) {
        let fetch = self.number();
        self.under_way.insert(fetch, wanted.clone());
        (fetch, wanted)
    }

    /// A fetch has ended: the task whose output the peer is to hear of, and how. `None`: it was abandoned before, or the output
    /// `waits` for room.
    pub(crate) fn ended(
        &mut self,
        fetch: FetchId,
        end: FetchEnd,
        waits: impl Fn(TaskId) -> bool,
        now: Time,
    ) -> Option<(TaskId, FetchEnd)> {
        self.may_begin = true;
        let is_retried = self.retried == Some(fetch);
        self.retried = self.retried.filter(|retried| *retried != fetch);
        let wanted = self.under_way.remove(&fetch).or_else(|| self.own.remove(&fetch))?;
        let task = wanted.task;
        if end != FetchEnd::NoRoom {
            return Some((task, end));
        }
        if !waits(task) {
            return Some((task, FetchEnd::PutOff));
        }
        if is_retried || self.retry_at.is_none() {
            self.retry_at = Some(now + ROOM_PAUSE);
        }
        if self.without_room.len() >= WAITING_MAX {
            return Some((task, FetchEnd::PutOff));
        }
        self.without_room.push(wanted);
        None
    }

    /// A bag is closed: nothing of it is wanted any more, and the places of its fetches are free.
    pub(crate) fn let_go(&mut self, bag: BagId, effects: &mut Vec<Effect>) {
        for (_, of_source) in &mut self.waiting {
            let before = of_source.len();
            of_source.retain(|wanted| wanted.task.bag != bag);
            self.waiting_count -= before - of_source.len();
        }
        self.waiting.retain(|(_, of_source)| !of_source.is_empty());
        self.without_room.retain(|wanted| wanted.task.bag != bag);
        self.may_begin = true;
        let all = self.under_way.iter().chain(&self.own);
        let gone: Vec<FetchId> = all.filter(|(_, wanted)| wanted.task.bag == bag).map(|(&fetch, _)| fetch).collect();
        for fetch in gone {
            self.under_way.remove(&fetch);
            self.own.remove(&fetch);
            self.retried = self.retried.filter(|retried| *retried != fetch);
            effects.push(Effect::AbandonFetch { fetch });
        }
    }

    /// When an output that had no room is to be tried again.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.retry_at.filter(|_| self.retried.is_none() && self.under_way.len() < UNDER_WAY_MAX)
    }

    /// How many outputs of a bag wait for room.
    pub(crate) fn without_room_of(&self, bag: BagId) -> u64 {
        let retried = self.retried.and_then(|fetch| self.under_way.get(&fetch));
        let waiting = self.without_room.iter().chain(retried);
        waiting.filter(|wanted| wanted.task.bag == bag && !wanted.unfinished).count() as u64
    }

    /// Whether outputs wait for room.
    pub(crate) fn lack_room(&self) -> bool {
        !self.without_room.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::Contact;
    use idlewood_scheduler::BlobId;

    use super::*;

    /// The most of one machine.
    const OF_ONE: u64 = UNDER_WAY_OF_SOURCE_MAX as u64;
    const NOW: Time = Time::ZERO;

    fn wanted(index: u64) -> Wanted {
        of(1, 2, index)
    }

    fn of(source: u8, bag: u8, index: u64) -> Wanted {
        let from = Contact { peer: PeerId([source; 32]), incarnation: 1, address: "".into(), nonce: None };
        let task = TaskId { bag: BagId([bag; 32]), index };
        Wanted { task, output: BlobId([3; 32]), output_bytes: 1, unfinished: false, from }
    }

    fn begin(outputs: &mut Outputs, now: Time, is_wanted: impl Fn(&Wanted) -> bool) -> Vec<(FetchId, Wanted)> {
        let mut effects = Vec::new();
        outputs.fetch(now, is_wanted, &mut effects);
        let fetch = |effect| match effect {
            Effect::Fetch { fetch, wanted } => (fetch, wanted),
            other => panic!("{other:?}"),
        };
        effects.into_iter().map(fetch).collect()
    }

    fn here() -> FetchEnd {
        FetchEnd::Here { checkpoint: None }
    }

    #[test]
    fn one_machine_or_bag_never_fills_all_fetches_and_the_queue() {
        let mut outputs = Outputs::default();
        let fill = |outputs: &mut Outputs, source: u8, bag: u8| {
            (0..10_000).take_while(|&index| outputs.push(of(source, bag, u64::from(source) << 32 | index))).count()
        };
        assert_eq!(fill(&mut outputs, 1, 1), WAITING_MAX / 2);
        assert_eq!(fill(&mut outputs, 2, 1), WAITING_MAX / 4);
        let begin = |outputs: &mut Outputs| {
            begin(outputs, NOW, |_| true).into_iter().map(|(_, wanted)| wanted.from.peer.0[0]).collect::<Vec<u8>>()
        };
        let begun = begin(&mut outputs);
        assert_eq!(begun[..4], [1, 2, 1, 2], "by turns");
        assert_eq!(begun.len(), 2 * UNDER_WAY_OF_SOURCE_MAX);
        for source in 3..=9 {
            fill(&mut outputs, source, 1);
        }
        assert_eq!(begun.len() + begin(&mut outputs).len(), UNDER_WAY_OF_BAG_MAX);
        assert!(outputs.push(of(10, 2, 0)), "there is room for others still");
        assert_eq!(begin(&mut outputs), [10]);
        // All of it goes at once, and what comes after it has the places.
        let mut effects = Vec::new();
        outputs.let_go(BagId([1; 32]), &mut effects);
        assert_eq!(effects.len(), UNDER_WAY_OF_BAG_MAX);
        assert_eq!((outputs.waiting_count, outputs.waiting.len(), outputs.under_way.len()), (0, 0, 1));
        assert_eq!(fill(&mut outputs, 1, 3), WAITING_MAX / 2);
        assert_eq!(begin(&mut outputs).len(), UNDER_WAY_OF_SOURCE_MAX);
    }

    #[test]
    fn the_late_end_of_an_abandoned_fetch_is_ignored() {
        let mut outputs = Outputs::default();
        assert!(outputs.push(wanted(0)));
        let (first, _) = begin(&mut outputs, NOW, |_| true).remove(0);
        let mut effects = Vec::new();
        outputs.let_go(wanted(0).task.bag, &mut effects);
        assert_eq!(effects, [Effect::AbandonFetch { fetch: first }]);
        assert!(outputs.push(wanted(0)));
        let (second, _) = begin(&mut outputs, NOW, |_| true).remove(0);
        assert_eq!(outputs.ended(first, here(), |_| true, NOW), None);
        assert_eq!(outputs.ended(second, here(), |_| true, NOW), Some((wanted(0).task, here())));
    }

    #[test]
    fn a_few_are_fetched_and_those_that_nobody_wants_are_left_out() {
        let mut outputs = Outputs::default();
        assert!((0..30).all(|index| outputs.push(wanted(index))));
        let begun = begin(&mut outputs, NOW, |_| true);
        let indices: Vec<u64> = begun.iter().map(|(_, wanted)| wanted.task.index).collect();
        assert_eq!(indices, (0..OF_ONE).collect::<Vec<_>>());
        assert!(outputs.ended(begun[0].0, here(), |_| true, NOW).is_some());
        let next = begin(&mut outputs, NOW, |wanted| wanted.task.index >= 20);
        assert_eq!(next.into_iter().map(|(_, next)| next).collect::<Vec<_>>(), [wanted(20)]);
    }

    #[test]
    fn own_outputs_wait_for_no_place() {
        let mut outputs = Outputs::default();
        assert!((0..30).all(|index| outputs.push(wanted(index))));
        begin(&mut outputs, NOW, |_| true);
        let Effect::Fetch { fetch, wanted: own } = outputs.keep_own(wanted(40)) else { panic!("it is made durable") };
        assert_eq!(own, wanted(40));
        assert_eq!(outputs.ended(fetch, here(), |_| true, NOW), Some((own.task, here())));
        assert_eq!(begin(&mut outputs, NOW, |_| true), [], "it had no place that is free now");
    }

    #[test]
    fn an_output_without_room_leaves_its_place_to_others_and_is_tried_again_alone() {
        let mut outputs = Outputs::default();
        let large = |index| Wanted { output_bytes: 1000 - index, ..wanted(index) };
        let tasks = OF_ONE + 1;
        assert!((0..tasks).all(|index| outputs.push(large(index))));
        for _ in 0..tasks {
            let (fetch, _) = outputs.next(NOW, |_| true).expect("a place is free");
            assert_eq!(outputs.ended(fetch, FetchEnd::NoRoom, |_| true, NOW), None);
        }
        assert!(outputs.push(wanted(tasks)));
        let (fetch, next) = outputs.next(NOW, |_| true).expect("it goes past them");
        assert_eq!(next, wanted(tasks));
        assert!(outputs.ended(fetch, here(), |_| true, NOW).is_some());
        let soon = NOW + ROOM_PAUSE.mul_f64(0.9);
        assert_eq!(outputs.next(soon, |_| true), None, "room does not come at once");
        assert_eq!(outputs.deadline(), Some(NOW + ROOM_PAUSE));

        // The smallest whose bag is open, again and again.
        let is_open = |wanted: &Wanted| wanted.task.index < tasks - 1;
        let mut then = NOW + ROOM_PAUSE;
        for _ in 0..3 {
            let (fetch, next) = outputs.next(then, is_open).expect("it is time");
            assert_eq!((next.task.index, outputs.next(then, is_open)), (tasks - 2, None));
            assert_eq!(outputs.ended(fetch, FetchEnd::NoRoom, |_| true, then), None);
            assert_eq!(outputs.next(then, is_open), None);
            then += ROOM_PAUSE;
        }
        // Where it has room, others follow at once.
        let (fetch, _) = outputs.next(then, is_open).expect("it is time");
        assert!(outputs.ended(fetch, here(), |_| true, then).is_some());
        let (fetch, next) = outputs.next(then, is_open).expect("there may be room for more");
        assert_eq!(next.task.index, tasks - 3);
        assert!(outputs.ended(fetch, here(), |_| true, then).is_some());
        assert_eq!(outputs.next(then, |_| false), None, "all bags are closed");
        assert_eq!((outputs.lack_room(), outputs.under_way.len(), outputs.deadline()), (false, 0, None));
    }
}
