//! Outputs of this machine's bags on their way here: a few at a time, and a bounded number that waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use blake3::Hash;
use idlewood_overlay::Contact;
use idlewood_scheduler::{BlobId, Checkpoint, Event, TaskId};
use tokio::sync::Mutex;

use super::driver::{Done, Driver};
use super::pin::Pin;
use super::task::{PrepareError, Supplies};

/// Outputs that are fetched at the same time. The fetcher downloads fewer; the others wait for their source.
const UNDER_WAY_MAX: usize = 16;
/// Outputs that wait for that. What exceeds it is offered again by its executor.
const WAITING_MAX: usize = 4096;

/// Between two tries to keep an output for which there is no room here.
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

/// What is wanted and what is on its way.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    waiting: VecDeque<Wanted>,
    under_way: usize,
    /// Held by the one that is fetched while there is no room for all.
    narrow: Arc<Mutex<()>>,
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

    /// The next to be fetched, if another may be; it counts as under way until [`Outputs::ended`].
    fn next(&mut self, is_wanted: impl Fn(&Wanted) -> bool) -> Option<Wanted> {
        while self.under_way < UNDER_WAY_MAX {
            let wanted = self.waiting.pop_front()?;
            if is_wanted(&wanted) {
                self.under_way += 1;
                return Some(wanted);
            }
        }
        None
    }

    fn ended(&mut self) {
        self.under_way -= 1;
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

fn is_for_want_of_room(kept: &Result<Fetched, PrepareError>) -> bool {
    kept.as_ref().is_err_and(PrepareError::is_for_want_of_room)
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

    fn fetch_outputs(&mut self) {
        // Of a bag that was closed since nothing is wanted any more, and the peer waits for nothing.
        let is_open = |wanted: &Wanted| self.peer.bag(wanted.task.bag).is_some_and(|bag| bag.closed.is_none());
        while let Some(wanted) = self.outputs.next(is_open) {
            let task = wanted.task;
            let (supplies, narrow) = (self.supplies.clone(), self.outputs.narrow.clone());
            let fetch = async move {
                let mut kept = keep(&supplies, &wanted).await;
                if is_for_want_of_room(&kept) {
                    tracing::warn!(
                        bytes = wanted.output_bytes,
                        "there is no room for a result, which stays where it is"
                    );
                    // Halves of several would take the room from each other.
                    let _turn = narrow.lock().await;
                    // Its executor keeps it: to run the task again would not help.
                    while is_for_want_of_room(&kept) {
                        tokio::time::sleep(ROOM_PAUSE).await;
                        kept = keep(&supplies, &wanted).await;
                    }
                }
                if let Err(error) = &kept {
                    tracing::info!(error = format!("{error:#}"), "a result could not be fetched yet");
                }
                Done::OutputKept { task, kept: kept.ok() }
            };
            self.jobs.spawn(fetch, Done::OutputKept { task, kept: None });
        }
    }

    pub(super) fn output_kept(&mut self, task: TaskId, kept: Option<Fetched>) {
        self.outputs.ended();
        let (here, checkpoint) = (kept.is_some(), kept.as_ref().and_then(|(_, checkpoint)| *checkpoint));
        self.feed(Event::Fetched { task, here, checkpoint });
        // By now the peer's record pins what was kept, or nobody wants it.
        drop(kept);
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
        let mut outputs = Outputs::default();
        let taken = (0..10_000).take_while(|&index| outputs.push(wanted(index))).count();
        assert_eq!(taken, WAITING_MAX);
        let begun: Vec<u64> = std::iter::from_fn(|| outputs.next(|_| true)).map(|wanted| wanted.task.index).collect();
        assert_eq!(begun, (0..UNDER_WAY_MAX as u64).collect::<Vec<_>>());
        assert!(outputs.push(wanted(0)));
        outputs.ended();
        assert_eq!(outputs.next(|wanted| wanted.task.index >= 20), Some(wanted(20)), "what is not wanted is left out");
        assert_eq!(outputs.next(|_| true), None);
    }
}
