//! Outputs of this machine's bags on their way here: a few at a time, of each machine and each bag fewer, and a bounded number that
//! waits, of each machine no more than is free beside it; machines come in turns.
//!
//! What there is no room for waits aside, so that what has room goes past it, and is tried again for as long as its bag is open. Of a
//! bag that is closed everything is let go at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use blake3::Hash;
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BagId, BlobId, Checkpoint, Event, TaskId};
use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;

use super::driver::{Done, Driver};
use super::pin::Pin;
use super::task::{PrepareError, Supplies};

/// Outputs that are fetched at the same time: altogether, from one machine, of one bag. The fetcher downloads fewer; the others
/// wait for their source.
const UNDER_WAY_MAX: usize = 32;
const UNDER_WAY_OF_SOURCE_MAX: usize = 8;
const UNDER_WAY_OF_BAG_MAX: usize = 24;
/// Outputs that wait for that, and as many that wait for room. What exceeds it is offered again by its executor.
const WAITING_MAX: usize = 4096;

/// Between a try to keep an output for which there is no room here and the next.
const ROOM_PAUSE: Duration = Duration::from_secs(5);

/// As [`idlewood_scheduler::Effect::FetchOutput`] says it.
#[derive(Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) task: TaskId,
    pub(super) output: BlobId,
    pub(super) output_bytes: u64,
    pub(super) unfinished: bool,
    pub(super) from: Contact,
}

impl Wanted {
    /// How much room it takes: a checkpoint is kept once more, with a signature.
    fn bytes(&self) -> u64 {
        self.output_bytes.saturating_mul(if self.unfinished { 2 } else { 1 })
    }
}

/// One that is being fetched.
#[derive(Debug)]
struct UnderWay {
    from: PeerId,
    /// `None` for the moment until it is begun.
    job: Option<AbortHandle>,
}

/// What is wanted and what is on its way.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// By the machine that has them, the next one first.
    waiting: VecDeque<(PeerId, VecDeque<Wanted>)>,
    waits: usize,
    under_way: BTreeMap<TaskId, UnderWay>,
    /// What had no room when it was tried last.
    without_room: Vec<Wanted>,
    /// When one of these is tried again, if none is under way.
    retry_at: Option<Instant>,
    /// The one of these that is under way: halves of several would take the room from each other.
    again: Option<TaskId>,
}

impl Outputs {
    /// Whether there was room for it: a machine may have as many waiting as there is room beside them.
    fn push(&mut self, wanted: Wanted) -> bool {
        let from = wanted.from.peer;
        let place = self.waiting.iter().position(|(peer, _)| *peer == from);
        let of_source = place.map_or(0, |place| self.waiting[place].1.len());
        if self.waits + of_source >= WAITING_MAX {
            return false;
        }
        self.waits += 1;
        match place {
            Some(place) => self.waiting[place].1.push_back(wanted),
            None => self.waiting.push_back((from, [wanted].into())),
        }
        true
    }

    /// The next to be fetched, if another may be; it counts as under way until [`Outputs::ended`] or [`Outputs::had_no_room`].
    fn next(&mut self, now: Instant, is_wanted: impl Fn(&Wanted) -> bool) -> Option<Wanted> {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return None;
        }
        if self.again.is_none() && self.retry_at.is_some_and(|at| at <= now) {
            self.without_room.retain(&is_wanted);
            // Where that has none, none has.
            let smallest = (0..self.without_room.len()).min_by_key(|&position| self.without_room[position].bytes());
            self.retry_at = smallest.and(self.retry_at);
            if let Some(position) = smallest {
                let wanted = self.without_room.swap_remove(position);
                self.again = Some(wanted.task);
                return Some(self.begun(wanted));
            }
        }
        // Each machine has one turn.
        for _ in 0..self.waiting.len() {
            let (from, mut of_source) = self.waiting.pop_front()?;
            let before = of_source.len();
            let wanted = self.first_that_may(from, &mut of_source, &is_wanted);
            self.waits -= before - of_source.len();
            if !of_source.is_empty() {
                self.waiting.push_back((from, of_source));
            }
            if let Some(wanted) = wanted {
                return Some(self.begun(wanted));
            }
        }
        None
    }

    /// The first of one machine's that may be fetched now; those before it that nobody wants go.
    fn first_that_may(
        &self,
        from: PeerId,
        of_source: &mut VecDeque<Wanted>,
        is_wanted: impl Fn(&Wanted) -> bool,
    ) -> Option<Wanted> {
        let under_way = self.under_way.values().filter(|under_way| under_way.from == from).count();
        if under_way >= UNDER_WAY_OF_SOURCE_MAX {
            return None;
        }
        let mut of_bags: BTreeMap<BagId, usize> = BTreeMap::new();
        for task in self.under_way.keys() {
            *of_bags.entry(task.bag).or_default() += 1;
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

    fn begun(&mut self, wanted: Wanted) -> Wanted {
        self.under_way.insert(wanted.task, UnderWay { from: wanted.from.peer, job: None });
        wanted
    }

    fn began(&mut self, task: TaskId, job: AbortHandle) {
        if let Some(under_way) = self.under_way.get_mut(&task) {
            under_way.job = Some(job);
        }
    }

    /// Whether this is the job that fetches the output, and not one that was let go the moment it ended.
    fn is_fetched_by(&self, task: TaskId, job: Id) -> bool {
        let fetches = |under_way: &UnderWay| under_way.job.as_ref().is_some_and(|fetch| fetch.id() == job);
        self.under_way.get(&task).is_some_and(fetches)
    }

    fn ended(&mut self, task: TaskId) {
        self.under_way.remove(&task);
        self.again = self.again.filter(|again| *again != task);
    }

    /// Nothing of this bag is wanted any more: what is under way stops, and its places are free.
    fn let_go(&mut self, bag: BagId) {
        for (_, of_source) in &mut self.waiting {
            let before = of_source.len();
            of_source.retain(|wanted| wanted.task.bag != bag);
            self.waits -= before - of_source.len();
        }
        self.waiting.retain(|(_, of_source)| !of_source.is_empty());
        self.without_room.retain(|wanted| wanted.task.bag != bag);
        let gone: Vec<TaskId> = self.under_way.keys().filter(|task| task.bag == bag).copied().collect();
        for task in gone {
            if let Some(UnderWay { job: Some(job), .. }) = self.under_way.get(&task) {
                job.abort();
            }
            self.ended(task);
        }
    }

    /// It ended for want of room, and is tried again if there is room for it here. Whether there is.
    fn had_no_room(&mut self, now: Instant, wanted: Wanted) -> bool {
        let is_again = self.again == Some(wanted.task);
        self.ended(wanted.task);
        if is_again || self.retry_at.is_none() {
            self.retry_at = Some(now + ROOM_PAUSE);
        }
        let has_room = self.without_room.len() < WAITING_MAX;
        if has_room {
            self.without_room.push(wanted);
        }
        has_room
    }
}

/// What came of a fetch: what must stay, and of a checkpoint its name with a signature.
pub(super) type Fetched = (Pin, Option<Checkpoint>);

async fn keep(supplies: &Supplies, wanted: &Wanted) -> Result<Fetched, PrepareError> {
    let &Wanted { task, output, output_bytes, unfinished, ref from } = wanted;
    if unfinished {
        let packed = Checkpoint { blob: output, bytes: output_bytes };
        let (checkpoint, pin) = supplies.keep_checkpoint(task, packed, from.clone()).await?;
        return Ok((pin, Some(checkpoint)));
    }
    Ok((supplies.keep_output(task.bag, output, output_bytes, from.clone()).await?, None))
}

impl Driver {
    pub(super) fn fetch_output(&mut self, wanted: Wanted) {
        let (task, hash) = (wanted.task, Hash::from_bytes(wanted.output.0));
        let pin = Pin::new(&self.supplies.blobs, hash);
        let is_here =
            || self.supplies.blobs.is_durable(hash) && self.supplies.blobs.len(hash) == Some(wanted.output_bytes);
        if !wanted.unfinished && is_here() {
            // Executed here, or like another that is here.
            self.pins.push(pin);
            self.follow_ups.push_back(Event::Fetched { task, here: true, checkpoint: None });
            return;
        }
        if !self.outputs.push(wanted) {
            self.follow_ups.push_back(Event::Fetched { task, here: false, checkpoint: None });
        }
        self.fetch_outputs();
    }

    /// To be called also as time passes: what has no room is tried again.
    pub(super) fn fetch_outputs(&mut self) {
        // Of a bag that was closed since nothing is wanted any more, and the peer waits for nothing.
        let is_open = |wanted: &Wanted| self.peer.bag(wanted.task.bag).is_some_and(|bag| bag.closed.is_none());
        while let Some(wanted) = self.outputs.next(Instant::now(), is_open) {
            let task = wanted.task;
            let supplies = self.supplies.clone();
            let fetch = async move {
                match keep(&supplies, &wanted).await {
                    Ok(kept) => Done::OutputKept { task, kept: Some(kept) },
                    // Its executor keeps it: to run the task again would not help.
                    Err(error) if error.is_for_want_of_room() => Done::NoRoom { wanted },
                    Err(error) => {
                        tracing::info!(error = format!("{error:#}"), "a result could not be fetched yet");
                        Done::OutputKept { task, kept: None }
                    }
                }
            };
            let job = self.jobs.spawn(fetch, Done::OutputKept { task, kept: None });
            self.outputs.began(task, job);
        }
    }

    /// A bag is closed: nobody waits for what is on its way of it.
    pub(super) fn let_go_of_outputs(&mut self, bag: BagId) {
        self.outputs.let_go(bag);
    }

    /// What has come of blobs goes with the bags that wanted them.
    pub(super) fn tidy_partial_blobs(&self) {
        let held: BTreeSet<BagId> = self.peer.held().into_iter().map(|held| held.bag).collect();
        let is_open = |bag| self.peer.bag(bag).is_some_and(|bag| bag.closed.is_none());
        self.supplies.blobs.tidy_partials(Instant::now(), |bag| held.contains(&bag) || is_open(bag));
    }

    pub(super) fn output_kept(&mut self, job: Id, task: TaskId, kept: Option<Fetched>) {
        if !self.outputs.is_fetched_by(task, job) {
            // Its bag was closed the moment it was here.
            return self.fetch_outputs();
        }
        self.outputs.ended(task);
        let (here, checkpoint) = (kept.is_some(), kept.as_ref().and_then(|(_, checkpoint)| *checkpoint));
        self.feed(Event::Fetched { task, here, checkpoint });
        // By now the peer's record pins what was kept, or nobody wants it.
        drop(kept);
        self.fetch_outputs();
    }

    pub(super) fn no_room_for(&mut self, job: Id, wanted: Wanted) {
        if !self.outputs.is_fetched_by(wanted.task, job) {
            return self.fetch_outputs();
        }
        let (task, bytes) = (wanted.task, wanted.output_bytes);
        if self.outputs.without_room.is_empty() {
            tracing::warn!(bytes, "there is no room for a result, which stays where it is");
        }
        if !self.outputs.had_no_room(Instant::now(), wanted) {
            self.feed(Event::Fetched { task, here: false, checkpoint: None });
        }
        self.fetch_outputs();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most of one machine.
    const OF_ONE: u64 = UNDER_WAY_OF_SOURCE_MAX as u64;

    fn wanted(index: u64) -> Wanted {
        of(1, 2, index)
    }

    fn of(source: u8, bag: u8, index: u64) -> Wanted {
        let from = Contact { peer: PeerId([source; 32]), incarnation: 1, address: "".into(), nonce: None };
        let task = TaskId { bag: BagId([bag; 32]), index };
        Wanted { task, output: BlobId([3; 32]), output_bytes: 1, unfinished: false, from }
    }

    #[test]
    fn no_machine_and_no_bag_has_all_that_is_under_way_and_all_that_waits() {
        let (mut outputs, now) = (Outputs::default(), Instant::now());
        let fill = |outputs: &mut Outputs, source: u8, bag: u8| {
            (0..10_000).take_while(|&index| outputs.push(of(source, bag, u64::from(source) << 32 | index))).count()
        };
        assert_eq!(fill(&mut outputs, 1, 1), WAITING_MAX / 2);
        assert_eq!(fill(&mut outputs, 2, 1), WAITING_MAX / 4);
        let begin = |outputs: &mut Outputs| {
            std::iter::from_fn(|| outputs.next(now, |_| true)).map(|wanted| wanted.from.peer.0[0]).collect::<Vec<u8>>()
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
        outputs.let_go(BagId([1; 32]));
        assert_eq!((outputs.waits, outputs.waiting.len(), outputs.under_way.len()), (0, 0, 1));
        assert_eq!(fill(&mut outputs, 1, 3), WAITING_MAX / 2);
        assert_eq!(begin(&mut outputs).len(), UNDER_WAY_OF_SOURCE_MAX);
    }

    #[tokio::test]
    async fn what_a_closed_bag_wanted_stops_and_what_comes_of_it_late_is_nothing() {
        let mut outputs = Outputs::default();
        let now = Instant::now();
        let task = wanted(0).task;
        let begin = |outputs: &mut Outputs| {
            assert!(outputs.push(wanted(0)));
            assert_eq!(outputs.next(now, |_| true).map(|wanted| wanted.task), Some(task));
            let job = tokio::spawn(std::future::pending::<()>());
            outputs.began(task, job.abort_handle());
            job
        };
        let first = begin(&mut outputs);
        assert!(outputs.is_fetched_by(task, first.id()));
        outputs.let_go(task.bag);
        let second = begin(&mut outputs);
        assert!(!outputs.is_fetched_by(task, first.id()) && outputs.is_fetched_by(task, second.id()));
        assert!(first.await.is_err_and(|error| error.is_cancelled()));
        second.abort();
    }

    #[test]
    fn a_few_are_fetched_and_what_is_not_wanted_is_left_out() {
        let (mut outputs, now) = (Outputs::default(), Instant::now());
        assert!((0..30).all(|index| outputs.push(wanted(index))));
        let begun: Vec<u64> =
            std::iter::from_fn(|| outputs.next(now, |_| true)).map(|wanted| wanted.task.index).collect();
        assert_eq!(begun, (0..OF_ONE).collect::<Vec<_>>());
        outputs.ended(wanted(0).task);
        let next = outputs.next(now, |wanted| wanted.task.index >= 20);
        assert_eq!(next, Some(wanted(20)), "what is not wanted is left out");
        assert_eq!(outputs.next(now, |_| true), None);
    }

    #[test]
    fn what_has_no_room_leaves_its_place_to_others_and_is_tried_again_one_at_a_time() {
        let (mut outputs, now) = (Outputs::default(), Instant::now());
        let large = |index| Wanted { output_bytes: 1000 - index, ..wanted(index) };
        let tasks = OF_ONE + 1;
        assert!((0..tasks).all(|index| outputs.push(large(index))));
        for _ in 0..tasks {
            let next = outputs.next(now, |_| true).expect("a place is free");
            assert!(outputs.had_no_room(now, next));
        }
        assert!(outputs.push(wanted(tasks)));
        assert_eq!(outputs.next(now, |_| true), Some(wanted(tasks)), "it goes past them");
        outputs.ended(wanted(tasks).task);
        let soon = now + ROOM_PAUSE.mul_f64(0.9);
        assert_eq!(outputs.next(soon, |_| true), None, "room does not come at once");

        // The smallest whose bag is open, again and again.
        let is_open = |wanted: &Wanted| wanted.task.index < tasks - 1;
        let mut then = now + ROOM_PAUSE;
        for _ in 0..3 {
            let next = outputs.next(then, is_open).expect("it is time");
            assert_eq!((next.task.index, outputs.next(then, is_open)), (tasks - 2, None));
            assert!(outputs.had_no_room(then, next));
            assert_eq!(outputs.next(then, is_open), None);
            then += ROOM_PAUSE;
        }
        // Where it has room, others follow at once.
        let next = outputs.next(then, is_open).expect("it is time");
        outputs.ended(next.task);
        assert_eq!(outputs.next(then, is_open).map(|wanted| wanted.task.index), Some(tasks - 3));
        outputs.ended(large(tasks - 3).task);
        assert_eq!(outputs.next(then, |_| false), None, "all bags are closed");
        assert_eq!((outputs.without_room.len(), outputs.under_way.len(), outputs.retry_at), (0, 0, None));
    }
}
