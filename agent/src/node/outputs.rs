//! Outputs of this machine's bags on their way here: a few at a time, and a bounded number that waits.
//!
//! What there is no room for waits aside, so that what has room goes past it, and is tried again for as long as its bag is open.

use std::collections::VecDeque;
use std::time::Duration;

use blake3::Hash;
use idlewood_overlay::Contact;
use idlewood_scheduler::{BlobId, Checkpoint, Event, TaskId};
use tokio::time::Instant;

use super::driver::{Done, Driver};
use super::pin::Pin;
use super::task::{PrepareError, Supplies};

/// Outputs that are fetched at the same time. The fetcher downloads fewer; the others wait for their source.
const UNDER_WAY_MAX: usize = 16;
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

/// What is wanted and what is on its way.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    waiting: VecDeque<Wanted>,
    under_way: usize,
    /// What had no room when it was tried last.
    without_room: Vec<Wanted>,
    /// When one of these is tried again, if none is under way.
    retry_at: Option<Instant>,
    /// The one of these that is under way: halves of several would take the room from each other.
    again: Option<TaskId>,
}

impl Outputs {
    /// Whether there was room for it.
    fn push(&mut self, wanted: Wanted) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push_back(wanted);
        }
        has_room
    }

    /// The next to be fetched, if another may be; it counts as under way until [`Outputs::ended`] or [`Outputs::had_no_room`].
    fn next(&mut self, now: Instant, is_wanted: impl Fn(&Wanted) -> bool) -> Option<Wanted> {
        if self.under_way < UNDER_WAY_MAX && self.again.is_none() && self.retry_at.is_some_and(|at| at <= now) {
            self.without_room.retain(&is_wanted);
            // Where that has none, none has.
            let smallest = (0..self.without_room.len()).min_by_key(|&position| self.without_room[position].bytes());
            self.retry_at = smallest.and(self.retry_at);
            if let Some(position) = smallest {
                let wanted = self.without_room.swap_remove(position);
                self.again = Some(wanted.task);
                self.under_way += 1;
                return Some(wanted);
            }
        }
        while self.under_way < UNDER_WAY_MAX {
            let wanted = self.waiting.pop_front()?;
            if is_wanted(&wanted) {
                self.under_way += 1;
                return Some(wanted);
            }
        }
        None
    }

    fn ended(&mut self, task: TaskId) {
        self.under_way -= 1;
        self.again = self.again.filter(|again| *again != task);
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
    Ok((supplies.keep_output(output, output_bytes, from.clone()).await?, None))
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
            self.jobs.spawn(fetch, Done::OutputKept { task, kept: None });
        }
    }

    pub(super) fn output_kept(&mut self, task: TaskId, kept: Option<Fetched>) {
        self.outputs.ended(task);
        let (here, checkpoint) = (kept.is_some(), kept.as_ref().and_then(|(_, checkpoint)| *checkpoint));
        self.feed(Event::Fetched { task, here, checkpoint });
        // By now the peer's record pins what was kept, or nobody wants it.
        drop(kept);
        self.fetch_outputs();
    }

    pub(super) fn no_room_for(&mut self, wanted: Wanted) {
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
    use idlewood_overlay::PeerId;
    use idlewood_scheduler::BagId;

    use super::*;

    fn wanted(index: u64) -> Wanted {
        let from = Contact { peer: PeerId([1; 32]), incarnation: 1, address: "".into(), nonce: None };
        let task = TaskId { bag: BagId([2; 32]), index };
        Wanted { task, output: BlobId([3; 32]), output_bytes: 1, unfinished: false, from }
    }

    #[test]
    fn a_few_are_fetched_and_a_bounded_number_waits() {
        let (mut outputs, now) = (Outputs::default(), Instant::now());
        let taken = (0..10_000).take_while(|&index| outputs.push(wanted(index))).count();
        assert_eq!(taken, WAITING_MAX);
        let begun: Vec<u64> =
            std::iter::from_fn(|| outputs.next(now, |_| true)).map(|wanted| wanted.task.index).collect();
        assert_eq!(begun, (0..UNDER_WAY_MAX as u64).collect::<Vec<_>>());
        assert!(outputs.push(wanted(0)));
        outputs.ended(wanted(0).task);
        let next = outputs.next(now, |wanted| wanted.task.index >= 20);
        assert_eq!(next, Some(wanted(20)), "what is not wanted is left out");
        assert_eq!(outputs.next(now, |_| true), None);
    }

    #[test]
    fn what_has_no_room_leaves_its_place_to_others_and_is_tried_again_one_at_a_time() {
        let (mut outputs, now) = (Outputs::default(), Instant::now());
        let large = |index| Wanted { output_bytes: 1000 - index, ..wanted(index) };
        let tasks = UNDER_WAY_MAX as u64 + 1;
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
        assert_eq!((outputs.without_room.len(), outputs.under_way, outputs.retry_at), (0, 0, None));
    }
}
