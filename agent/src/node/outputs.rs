//! Outputs of this machine's bags: fetches them as the machine orders ([`idlewood_machine::Effect::Fetch`]).

use std::collections::{BTreeMap, BTreeSet};

use blake3::Hash;
use idlewood_blobs::Blobs;
use idlewood_machine::{Event, FetchEnd, FetchId, Machine, Wanted};
use idlewood_scheduler::{BagId, Checkpoint, Peer};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::done::{Done, Fetched};
use super::pin::Pin;
use super::shared::Shared;
use super::supplies::{PrepareError, Supplies};

/// The fetches that are under way.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    fetches: BTreeMap<FetchId, AbortHandle>,
    /// Whether outputs waited for room when that was looked at last.
    lacked_room: bool,
}

/// Brings an output here. What came back before its end becomes part of what it began with, if it is one of a later round.
async fn keep(supplies: &Supplies, wanted: Wanted, start: Option<Checkpoint>) -> Result<Fetched, PrepareError> {
    let Wanted { task, output, output_bytes, unfinished, from } = wanted;
    if unfinished {
        let packed = Checkpoint { blob: output, bytes: output_bytes };
        let (checkpoint, pin) = supplies.keep_checkpoint(task, packed, start, from).await?;
        return Ok((pin, Some(checkpoint)));
    }
    Ok((supplies.keep_output(task.bag, output, output_bytes, from).await?, None))
}

impl Outputs {
    pub(super) fn fetch(&mut self, fetch: FetchId, wanted: Wanted, peer: &Peer, shared: &mut Shared) {
        let start = peer.start_of(wanted.task);
        let blobs = &shared.supplies.blobs;
        let hash = Hash::from_bytes(wanted.output.0);
        let pin = Pin::new(blobs, hash);
        if !wanted.unfinished && blobs.is_durable(hash) && blobs.len(hash) == Some(wanted.output_bytes) {
            // Executed here, or like another that is here.
            shared.events.pin(pin);
            shared.events.follow_up(Event::FetchEnded { fetch, end: FetchEnd::Here { checkpoint: None } });
            return;
        }
        let supplies = shared.supplies.clone();
        let bytes = wanted.output_bytes;
        let get = async move {
            let kept = match keep(&supplies, wanted, start).await {
                Ok(kept) => Ok(kept),
                // Its executor keeps it: to run the task again would not help.
                Err(error) if error.is_for_want_of_room() => {
                    tracing::debug!(bytes, "there is no room for a result, which stays where it is");
                    Err(FetchEnd::NoRoom)
                }
                Err(error) => {
                    tracing::info!(error = format!("{error:#}"), "a result could not be fetched yet");
                    Err(if error.is_for_good() { FetchEnd::NotHad } else { FetchEnd::PutOff })
                }
            };
            Done::OutputKept { fetch, kept }
        };
        let job = shared.jobs.spawn(get, Done::OutputKept { fetch, kept: Err(FetchEnd::PutOff) });
        self.fetches.insert(fetch, job);
    }

    pub(super) fn abandon(&mut self, fetch: FetchId) {
        if let Some(job) = self.fetches.remove(&fetch) {
            job.abort();
        }
    }

    /// A fetch has ended.
    pub(super) fn kept(&mut self, fetch: FetchId, kept: Result<Fetched, FetchEnd>, shared: &mut Shared) {
        // Where it is not there its bag was closed the moment the output was here.
        if self.fetches.remove(&fetch).is_none() {
            return;
        }
        let end = match kept {
            Ok((pin, checkpoint)) => {
                shared.events.pin(pin);
                FetchEnd::Here { checkpoint }
            }
            Err(end) => end,
        };
        shared.events.tell(Event::FetchEnded { fetch, end });
    }

    /// Says when outputs begin to wait for room. To be called after each event of the machine's.
    pub(super) fn note_room(&mut self, machine: &Machine) {
        let lacks_room = machine.lacks_room_for_outputs();
        if !std::mem::replace(&mut self.lacked_room, lacks_room) && lacks_room {
            tracing::warn!("there is no room for a result, which stays where it is");
        }
    }
}

/// Removes partial blobs that are old, or of bags neither held nor open here.
pub(super) fn tidy_partial_blobs(blobs: &Blobs, peer: &Peer) {
    let held: BTreeSet<BagId> = peer.held().into_iter().map(|held| held.bag).collect();
    let is_open = |bag| peer.bag(bag).is_some_and(|bag| bag.closed.is_none());
    blobs.tidy_partials(Instant::now(), |bag| held.contains(&bag) || is_open(bag));
}
