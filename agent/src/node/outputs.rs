//! Outputs of this machine's bags: fetches them as the machine orders ([`idlewood_machine::Effect::Fetch`]).

use std::collections::{BTreeMap, BTreeSet};

use blake3::Hash;
use idlewood_machine::{Event, FetchEnd, FetchId, Wanted};
use idlewood_scheduler::{BagId, Checkpoint};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::done::{Done, Fetched};
use super::driver::Driver;
use super::pin::Pin;
use super::supplies::{PrepareError, Supplies};

/// The fetches that are under way.
#[derive(Debug, Default)]
pub(super) struct Fetches(BTreeMap<FetchId, AbortHandle>);

async fn keep(supplies: &Supplies, wanted: Wanted) -> Result<Fetched, PrepareError> {
    let Wanted { task, output, output_bytes, unfinished, from } = wanted;
    if unfinished {
        let packed = Checkpoint { blob: output, bytes: output_bytes };
        let (checkpoint, pin) = supplies.keep_checkpoint(task, packed, from).await?;
        return Ok((pin, Some(checkpoint)));
    }
    Ok((supplies.keep_output(task.bag, output, output_bytes, from).await?, None))
}

impl Driver {
    pub(super) fn fetch_output(&mut self, fetch: FetchId, wanted: Wanted) {
        let hash = Hash::from_bytes(wanted.output.0);
        let pin = Pin::new(&self.shared.supplies.blobs, hash);
        let is_here = || {
            self.shared.supplies.blobs.is_durable(hash)
                && self.shared.supplies.blobs.len(hash) == Some(wanted.output_bytes)
        };
        if !wanted.unfinished && is_here() {
            // Executed here, or like another that is here.
            self.shared.events.pin(pin);
            self.shared.events.follow_up(Event::FetchEnded { fetch, end: FetchEnd::Here { checkpoint: None } });
            return;
        }
        let supplies = self.shared.supplies.clone();
        let bytes = wanted.output_bytes;
        let get = async move {
            let kept = match keep(&supplies, wanted).await {
                Ok(kept) => Ok(kept),
                // Its executor keeps it: to run the task again would not help.
                Err(error) if error.is_for_want_of_room() => {
                    tracing::debug!(bytes, "there is no room for a result, which stays where it is");
                    Err(FetchEnd::NoRoom)
                }
                Err(error) => {
                    tracing::info!(error = format!("{error:#}"), "a result could not be fetched yet");
                    Err(FetchEnd::NotHad)
                }
            };
            Done::OutputKept { fetch, kept }
        };
        let job = self.shared.jobs.spawn(get, Done::OutputKept { fetch, kept: Err(FetchEnd::NotHad) });
        self.fetches.0.insert(fetch, job);
    }

    pub(super) fn abandon_fetch(&mut self, fetch: FetchId) {
        if let Some(job) = self.fetches.0.remove(&fetch) {
            job.abort();
        }
    }

    pub(super) fn output_kept(&mut self, fetch: FetchId, kept: Result<Fetched, FetchEnd>) {
        // Where it is not there its bag was closed the moment the output was here.
        if self.fetches.0.remove(&fetch).is_none() {
            return;
        }
        let end = match &kept {
            Ok((_, checkpoint)) => FetchEnd::Here { checkpoint: *checkpoint },
            Err(end) => *end,
        };
        let lacked_room = self.machine.lacks_room_for_outputs();
        self.feed(Event::FetchEnded { fetch, end });
        if !lacked_room && self.machine.lacks_room_for_outputs() {
            tracing::warn!("there is no room for a result, which stays where it is");
        }
        // By now the peer's record pins the output, or nobody wants it.
        drop(kept);
    }

    /// Removes partial blobs that are old, or of bags neither held nor open here.
    pub(super) fn tidy_partial_blobs(&self) {
        let held: BTreeSet<BagId> = self.peer().held().into_iter().map(|held| held.bag).collect();
        let is_open = |bag| self.peer().bag(bag).is_some_and(|bag| bag.closed.is_none());
        self.shared.supplies.blobs.tidy_partials(Instant::now(), |bag| held.contains(&bag) || is_open(bag));
    }
}
