//! Results of this machine's bags, read from the store for whoever asks: there may be millions, and nobody keeps them in
//! memory.

use idlewood_overlay::{PeerId, WallTime};
use idlewood_scheduler::{BagId, Record, RecordKey, TaskResult};
use idlewood_store::Reader;
use idlewood_trust::identity;
use idlewood_units::clock::iso;

use super::driver::{Done, Driver};
use super::pins;
use crate::handle::{Page, Refusal, Reply, answer};

/// Records that are read together.
const READ_TOGETHER: usize = 1024;

/// A task that is over.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub(super) executor: PeerId,
    pub(super) at: WallTime,
    pub(super) result: TaskResult,
}

/// The results of a bag that are durable, of the tasks from `from` on and at most `most`, by index: some at a time. Blocks.
fn read(reader: &Reader, bag: BagId, Page { from, most }: Page, mut each: impl FnMut(Finished)) -> Result<(), Refusal> {
    let last = RecordKey::Done(bag, u64::MAX).to_bytes();
    let (mut next, mut left) = (Some(from), usize::try_from(most).unwrap_or(usize::MAX));
    while let Some(from) = next.filter(|_| left > 0) {
        let wanted = left.min(READ_TOGETHER);
        let records = reader.range(RecordKey::Done(bag, from).to_bytes(), last.clone(), wanted);
        let records = records.map_err(|error| Refusal::Unavailable(error.to_string()))?;
        next = None;
        for (key, value) in &records {
            let index = key.last_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            next = index.and_then(|index| index.checked_add(1)).filter(|_| records.len() == wanted);
            // One that cannot be read was left out at the start, too.
            if let Ok(Record::Done { executor, finished, result, .. }) = Record::decode(value) {
                each(Finished { executor, at: finished, result });
            }
        }
        left -= records.len();
    }
    Ok(())
}

/// All of them together. Blocks.
pub(super) fn collect(reader: &Reader, bag: BagId, page: Page) -> Result<Vec<Finished>, Refusal> {
    let mut all = Vec::new();
    read(reader, bag, page, |finished| all.push(finished))?;
    Ok(all)
}

impl Driver {
    /// Answers beside the loop: the entries are in the manifest, which may have to be read.
    pub(super) fn results(&mut self, bag: BagId, page: Page, reply: Reply<Vec<idlewood_api::TaskResult>>) {
        let (known, blobs) = (self.manifests.get(bag), self.supplies.blobs.clone());
        let reader = self.store.reader();
        let look = move || {
            let manifest = match pins::manifest(known, &blobs, bag) {
                Ok(manifest) => manifest,
                Err(refusal) => {
                    answer(reply, Err(refusal));
                    return Done::Discarded;
                }
            };
            let mut results = Vec::new();
            let read = read(&reader, bag, page, |Finished { executor, at, result }| {
                let entry = manifest.as_ref().map(|manifest| manifest.entry(result.index).text);
                results.push(idlewood_api::TaskResult {
                    index: result.index,
                    entry: entry.unwrap_or_default(),
                    attempt: result.attempt,
                    success: result.success,
                    machine: identity::to_libp2p(executor).to_string(),
                    finished: iso(at),
                    work_mops: result.work_mops,
                    output: hex::encode(result.output.0),
                    output_bytes: result.output_bytes,
                });
            });
            answer(reply, read.map(|()| results));
            Done::ManifestRead { bag, manifest }
        };
        self.answers.spawn_blocking(look, Done::ManifestRead { bag, manifest: None });
    }

    /// The output of a task that is over, where it is in the record of its result; else the hash of the blob that it is.
    pub(super) fn output(&mut self, bag: BagId, index: u64, reply: Reply<Result<Vec<u8>, blake3::Hash>>) {
        let reader = self.store.reader();
        let look = move || {
            let found = collect(&reader, bag, Page { from: index, most: 1 }).and_then(|found| {
                let is_it = |finished: &Finished| finished.result.index == index;
                let not_over = || Refusal::NotFound(format!("task {index} of bag {bag} is not over"));
                let Finished { result, .. } = found.into_iter().find(is_it).ok_or_else(not_over)?;
                let blob = || blake3::Hash::from_bytes(result.output.0);
                Ok(result.content.map(|content| content.bytes().to_vec()).ok_or_else(blob))
            });
            answer(reply, found);
            Done::Discarded
        };
        self.answers.spawn_blocking(look, Done::Discarded);
    }

    /// What another machine needs to go on with a bag.
    pub(super) fn ticket(&mut self, id: &str, with_results: bool, reply: Reply<idlewood_api::Ticket>) {
        let view = match self.find(id) {
            Ok(view) => view,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let bag = view.bag.id;
        if view.closed.is_some() {
            let over = format!("bag {bag} is over: `idlewood bag get` saves its results");
            return answer(reply, Err(Refusal::Conflict(over)));
        }
        let (mut records, reader) = (self.peer().records_of(bag), self.store.reader());
        let look = move || {
            let page = Page { from: 0, most: if with_results { u64::MAX } else { 0 } };
            let ticket = collect(&reader, bag, page).map(|finished| {
                let in_blobs = finished.iter().filter(|finished| finished.result.content.is_none());
                let mut results: Vec<String> = in_blobs.map(|finished| hex::encode(finished.result.output.0)).collect();
                results.sort_unstable();
                results.dedup();
                let done = finished.len() as u64;
                let results_bytes = finished.iter().map(|finished| finished.result.output_bytes).sum();
                records.extend(finished.into_iter().map(|Finished { executor, at, result }| Record::Done {
                    bag,
                    executor,
                    finished: at,
                    result,
                }));
                let records = records.iter().map(|record| hex::encode(record.encode())).collect();
                idlewood_api::Ticket { bag: hex::encode(bag.0), records, done, results, results_bytes }
            });
            answer(reply, ticket);
            Done::Discarded
        };
        self.answers.spawn_blocking(look, Done::Discarded);
    }
}
