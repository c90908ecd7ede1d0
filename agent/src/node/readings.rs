//! What users ask of a bag's results, read from the store and answered beside the loop: there may be millions.

use idlewood_scheduler::{BagId, BagView, Peer, Record, TaskId};
use idlewood_store::Reader;
use idlewood_trust::identity;
use idlewood_units::clock::iso;

use super::bag_views::find;
use super::done::Done;
use super::pins::{self, Pins};
use super::receipts;
use super::results::{self, Finished};
use super::shared::Shared;
use super::tasks;
use crate::handle::{Page, Reading, Refusal, Reply, answer};

/// Answers a question about a bag of this machine with what its records say.
pub(super) fn read(question: Reading, reader: Reader, pins: &Pins, peer: &Peer, shared: &mut Shared) {
    match question {
        Reading::Results(id, page, reply) => match find(peer, pins, &id) {
            Ok(view) => results(view.bag.id, page, reply, reader, shared),
            Err(refusal) => answer(reply, Err(refusal)),
        },
        Reading::Tasks(id, query, reply) => match find(peer, pins, &id) {
            Ok(view) => tasks::answer_with(&view, query, reply, reader, peer, shared),
            Err(refusal) => answer(reply, Err(refusal)),
        },
        Reading::Output(id, index, reply) => match find(peer, pins, &id) {
            Ok(view) => output(view.bag.id, index, reply, reader, shared),
            Err(refusal) => answer(reply, Err(refusal)),
        },
        Reading::Receipts(id, reply) => match find(peer, pins, &id) {
            Ok(view) => receipts(view.bag.id, reply, reader, shared),
            Err(refusal) => answer(reply, Err(refusal)),
        },
        Reading::Ticket(id, with_results, reply) => match find(peer, pins, &id) {
            Ok(view) => ticket(&view, with_results, reply, reader, peer, shared),
            Err(refusal) => answer(reply, Err(refusal)),
        },
    }
}

/// Answers beside the loop: the entries are in the manifest, which may have to be read.
fn results(bag: BagId, page: Page, reply: Reply<Vec<idlewood_api::TaskResult>>, reader: Reader, shared: &mut Shared) {
    let (known, blobs) = (shared.manifests.get(bag), shared.supplies.blobs.clone());
    let lines = shared.lines.clone();
    let look = move || {
        let manifest = match pins::manifest(known, &blobs, bag) {
            Ok(manifest) => manifest,
            Err(refusal) => {
                answer(reply, Err(refusal));
                return Done::Discarded;
            }
        };
        let mut views = Vec::new();
        let read = results::read(&reader, bag, page, |Finished { executor, at, result }| {
            let line = lines.get(TaskId { bag, index: result.index });
            let entry = match &manifest {
                Some(manifest) => Some(manifest.text_of(result.index, line)),
                None => line,
            };
            views.push(idlewood_api::TaskResult {
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
        answer(reply, read.map(|()| views));
        Done::ManifestRead { bag, manifest }
    };
    shared.answers.spawn_blocking(look, Done::ManifestRead { bag, manifest: None });
}

/// The output of a task that is over, where it is in the record of its result; else the hash of the blob that it is.
fn output(bag: BagId, index: u64, reply: Reply<Result<Vec<u8>, blake3::Hash>>, reader: Reader, shared: &mut Shared) {
    let look = move || {
        let found = results::collect(&reader, bag, Page { from: index, most: 1 }).and_then(|found| {
            let is_it = |finished: &Finished| finished.result.index == index;
            let not_over = || Refusal::NotFound(format!("task {index} of bag {bag} is not over"));
            let Finished { result, .. } = found.into_iter().find(is_it).ok_or_else(not_over)?;
            let blob = || blake3::Hash::from_bytes(result.output.0);
            Ok(result.content.map(|content| content.bytes().to_vec()).ok_or_else(blob))
        });
        answer(reply, found);
        Done::Discarded
    };
    shared.answers.spawn_blocking(look, Done::Discarded);
}

/// What another machine needs to go on with a bag.
fn ticket(
    view: &BagView,
    with_results: bool,
    reply: Reply<idlewood_api::Ticket>,
    reader: Reader,
    peer: &Peer,
    shared: &mut Shared,
) {
    let bag = view.bag.id;
    if view.closed.is_some() {
        let over = format!("bag {bag} is over: `idlewood bag get` saves its results");
        return answer(reply, Err(Refusal::Conflict(over)));
    }
    let mut records = peer.records_of(bag);
    let look = move || {
        let page = Page { from: 0, most: if with_results { u64::MAX } else { 0 } };
        let ticket = results::collect(&reader, bag, page).map(|finished| {
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
    shared.answers.spawn_blocking(look, Done::Discarded);
}

/// What machines signed of a bag's results.
fn receipts(bag: BagId, reply: Reply<Vec<idlewood_api::Receipt>>, reader: Reader, shared: &mut Shared) {
    let (known, blobs, gate) = (shared.manifests.get(bag), shared.supplies.blobs.clone(), shared.supplies.gate.clone());
    let read = move || {
        let missing = || Refusal::Unavailable(format!("the manifest of bag {bag} is missing on this disk"));
        let manifest = pins::manifest(known, &blobs, bag).and_then(|known| known.ok_or_else(missing));
        let read = manifest.and_then(|manifest| Ok((results::collect(&reader, bag, Page::ALL)?, manifest)));
        let (finished, manifest) = match read {
            Ok(read) => read,
            Err(refusal) => {
                answer(reply, Err(refusal));
                return Done::Discarded;
            }
        };
        let receipts = receipts::of(&gate, bag, &manifest, finished).into_iter();
        let views =
            receipts.map(|(index, receipt)| idlewood_api::Receipt { index, receipt: hex::encode(receipt.encode()) });
        answer(reply, Ok(views.collect()));
        Done::ManifestRead { bag, manifest: Some(manifest) }
    };
    shared.answers.spawn_blocking(read, Done::ManifestRead { bag, manifest: None });
}
