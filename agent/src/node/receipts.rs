//! Results on their way: what leaves this machine is signed, and what comes is checked before the peer hears of it.
//!
//! Which results share a message and a signature is decided by the machine. What a machine signs is in `grid/receipt`; program and inputs are read off the manifest, which both have: where
//! it has to be fetched first the results are left to the executor's next repetition. Results of this machine's own tasks
//! never travel; their receipts are signed when somebody asks for them.
//!
//! A submitter whose disk lost a bag's manifest cannot check results of it, and takes them as they come.

use std::sync::Arc;

use idlewood_overlay::{Contact, GridId, Member, PeerId};
use idlewood_scheduler::{BagId, Event, Message, RESULTS_MAX, Speaker, TaskResult};
use idlewood_trust::manifest::Manifest;
use idlewood_trust::{Batch, Ending, Proof, Receipt, Statement};

use super::driver::{Done, Driver};
use super::pins;
use super::results::{self, Finished};
use crate::handle::{Page, Refusal, Reply, answer};

/// What its executor says of a task.
fn statement(grid: GridId, bag: BagId, manifest: &Manifest, result: &TaskResult) -> Statement {
    let ending = match result {
        TaskResult { unfinished: true, .. } => Ending::HandedBack,
        TaskResult { crashed: true, .. } => Ending::Crashed,
        TaskResult { success: true, .. } => Ending::Succeeded,
        _ => Ending::Failed,
    };
    Statement {
        grid,
        bag: bag.0,
        index: result.index,
        attempt: result.attempt,
        program: manifest.program.blob.0,
        input: manifest.input_hash(result.index),
        output: result.output.0,
        ending,
        exit_code: result.exit_code,
        work_kop: (result.work_mops * 1e3) as u64,
    }
}

fn statements(grid: GridId, bag: BagId, manifest: &Manifest, results: &[TaskResult]) -> Vec<Statement> {
    results.iter().map(|result| statement(grid, bag, manifest, result)).collect()
}

/// Puts what proves it to each result, if this machine signed all of them.
fn prove(
    grid: GridId,
    bag: BagId,
    manifest: &Manifest,
    executor: PeerId,
    results: &mut [TaskResult],
    signature: Option<&[u8]>,
) -> bool {
    let batch = Batch::new(&statements(grid, bag, manifest, results));
    let signature = signature.and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
    let Some(signature) = signature.filter(|signature| batch.is_signed_by(executor, signature)) else { return false };
    for (position, result) in results.iter_mut().enumerate() {
        result.receipt = Some(batch.proof(position, signature).encode());
    }
    true
}

/// Whether a result comes without its output, or with the one that it names.
fn is_its_output(result: &TaskResult) -> bool {
    result.content.as_ref().is_none_or(|content| blake3::hash(content.bytes()) == result.output.0)
}

impl Driver {
    /// The driver has done what it was woken for: results that wait leave.
    pub(super) fn end_turn(&mut self) {
        loop {
            let mut effects = std::mem::take(&mut self.effects);
            self.machine.end_turn(&mut effects);
            for effect in effects.drain(..) {
                self.carry_out(effect);
            }
            self.effects = effects;
            // There was no room for results.
            let Some(event) = self.follow_ups.pop_front() else { return };
            self.feed(event);
        }
    }

    /// Signs and sends results.
    pub(super) fn send_results(&mut self, to: Member, bag: BagId, executor: Speaker, results: Vec<TaskResult>) {
        let Some(manifest) = self.manifests.get(bag) else { return self.look_for_manifest(bag, &to) };
        let batch = Batch::new(&statements(self.grid, bag, &manifest, &results));
        let signature = Some(self.gate.sign_results(&batch).to_vec());
        self.send(to, Message::Results { bag, executor, results, signature });
    }

    /// Sends a message. What there is no room for comes back to the peer.
    pub(super) fn send(&mut self, to: Member, message: Message) {
        let bytes = message.encode();
        if matches!(message, Message::Overlay(_)) {
            self.net.send_of_tree(&to, bytes);
        } else if !self.net.send(&to, bytes) {
            self.follow_ups.push_back(Event::Unsent { to, message }.into());
        }
    }

    /// The manifest is needed and not at hand.
    fn look_for_manifest(&mut self, bag: BagId, submitter: &Contact) {
        let (supplies, origin) = (self.supplies.clone(), self.origin(bag, submitter));
        let look = async move {
            let manifest = supplies.manifest_alone(bag, &origin).await;
            let manifest = manifest.inspect_err(
                |error| tracing::info!(%bag, error = format!("{error:#}"), "results wait for their bag's manifest"),
            );
            Done::ManifestRead { bag, manifest: manifest.ok().map(Arc::new) }
        };
        self.jobs.spawn(look, Done::ManifestRead { bag, manifest: None });
    }

    /// A message as the peer may hear it: results of this machine's bags if their executor signed them, each with what
    /// proves it. Outputs that come with results are what these say. `None`: it is not to be heard.
    pub(super) fn checked(&mut self, from: PeerId, message: Message) -> Option<Message> {
        let Message::Results { bag, executor, mut results, signature } = message else { return Some(message) };
        if !results.iter().all(is_its_output) {
            self.results_unsigned += results.len() as u64;
            tracing::info!(%bag, ?from, "results with other outputs than they name");
            return None;
        }
        let is_foreign = self.pins.description(bag).is_none() && !self.pins.is_unread(bag);
        if is_foreign || results.is_empty() {
            return Some(Message::Results { bag, executor, results, signature });
        }
        let Some(manifest) = self.manifests.get(bag) else {
            let here = self.peer().me().clone();
            self.look_for_manifest(bag, &here);
            return None;
        };
        if !prove(self.grid, bag, &manifest, from, &mut results, signature.as_deref()) {
            self.results_unsigned += results.len() as u64;
            tracing::info!(%bag, ?from, "results that their machine did not sign");
            return None;
        }
        self.leave_what_has_no_room(&mut results);
        Some(Message::Results { bag, executor, results, signature })
    }

    /// Of results that come with their outputs, those for which there is no room stay with their executor, which says them
    /// again.
    fn leave_what_has_no_room(&self, results: &mut Vec<TaskResult>) {
        let bytes: u64 = results.iter().map(|result| result.content_bytes() as u64).sum();
        if bytes > 0 && self.supplies.blobs.make_room_in_records(bytes).is_err() {
            // Machines say them again and again: that there is no room is told as the owner's state, once.
            tracing::debug!(bytes, "there is no room for small outputs, which stay where they are");
            results.retain(|result| result.content.is_none());
        }
    }

    /// Answers beside the loop, as for results.
    pub(super) fn receipts(&mut self, bag: BagId, reply: Reply<Vec<idlewood_api::Receipt>>) {
        let reader = self.store.reader();
        let (known, blobs) = (self.manifests.get(bag), self.supplies.blobs.clone());
        let (grid, gate) = (self.grid, self.gate.clone());
        let read =
            move || {
                let missing = || Refusal::Unavailable(format!("the manifest of bag {bag} is missing on this disk"));
                let known = match pins::manifest(known, &blobs, bag).and_then(|known| known.ok_or_else(missing)) {
                    Ok(known) => known,
                    Err(refusal) => {
                        answer(reply, Err(refusal));
                        return Done::Discarded;
                    }
                };
                let finished = match results::collect(&reader, bag, Page::ALL) {
                    Ok(finished) => finished,
                    Err(refusal) => {
                        answer(reply, Err(refusal));
                        return Done::Discarded;
                    }
                };
                let (own, others): (Vec<_>, Vec<_>) = finished.into_iter().partition(|done| done.executor == gate.me());
                let mut receipts = Vec::new();
                let own_results: Vec<TaskResult> = own.into_iter().map(|done| done.result).collect();
                for results in own_results.chunks(RESULTS_MAX) {
                    let said = statements(grid, bag, &known, results);
                    let batch = Batch::new(&said);
                    let signature = gate.sign_results(&batch);
                    receipts.extend(said.into_iter().enumerate().map(|(position, said)| {
                        let index = said.index;
                        (index, Receipt::new(said, gate.me(), batch.proof(position, signature)))
                    }));
                }
                for Finished { executor, result, .. } in others {
                    let proof = result.receipt.as_deref().and_then(|bytes| Proof::decode(bytes).ok());
                    receipts.extend(proof.map(|proof| {
                        (result.index, Receipt::new(statement(grid, bag, &known, &result), executor, proof))
                    }));
                }
                receipts.sort_unstable_by_key(|(index, _)| *index);
                let views = receipts
                    .into_iter()
                    .map(|(index, receipt)| idlewood_api::Receipt { index, receipt: hex::encode(receipt.encode()) });
                answer(reply, Ok(views.collect()));
                Done::ManifestRead { bag, manifest: Some(known) }
            };
        self.answers.spawn_blocking(read, Done::ManifestRead { bag, manifest: None });
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::{BlobId, SmallOutput};
    use libp2p::identity::Keypair;

    use super::super::task::tests::manifest;
    use super::*;
    use idlewood_trust::Gate;

    fn result(index: u64) -> TaskResult {
        TaskResult {
            index,
            attempt: 0,
            success: true,
            crashed: false,
            unfinished: false,
            output: BlobId([index as u8; 32]),
            output_bytes: 9,
            content: None,
            work_mops: 2.5,
            exit_code: Some(0),
            receipt: Some(vec![1, 2, 3]),
        }
    }

    #[test]
    fn an_output_that_comes_with_a_result_is_the_one_that_it_names() {
        let content = SmallOutput::new(b"what it printed");
        let named = TaskResult { output: BlobId(*blake3::hash(b"what it printed").as_bytes()), ..result(1) };
        assert!(is_its_output(&named), "it may be fetched");
        assert!(is_its_output(&TaskResult { content: content.clone(), ..named }));
        assert!(!is_its_output(&TaskResult { content, ..result(1) }));
    }

    #[test]
    fn results_are_taken_as_their_machine_signed_them_and_not_otherwise() {
        let [gate, other] = [(); 2].map(|()| Gate::open(&Keypair::generate_ed25519(), None).expect("alone"));
        let (grid, bag, manifest) = (GridId([7; 32]), BagId([8; 32]), manifest());
        let results: Vec<TaskResult> = (0..3).map(result).collect();
        let signature = gate.sign_results(&Batch::new(&statements(grid, bag, &manifest, &results)));
        let taken = |change: &dyn Fn(&mut Vec<TaskResult>)| {
            let mut results = results.clone();
            change(&mut results);
            prove(grid, bag, &manifest, gate.me(), &mut results, Some(&signature)).then_some(results)
        };
        let proven = taken(&|_| ()).expect("it is signed");
        for result in proven {
            let proof = Proof::decode(&result.receipt.clone().expect("it has one")).expect("ours");
            let receipt = Receipt::new(statement(grid, bag, &manifest, &result), gate.me(), proof);
            let read = Receipt::verify(&receipt.encode()).expect("it can be checked alone");
            let said = read.statement;
            assert_eq!((said.index, said.output, said.work_kop), (result.index, result.output.0, 2500));
            assert_eq!((said.ending, said.exit_code, said.program), (Ending::Succeeded, Some(0), [3; 32]));
        }
        assert!(taken(&|results| results[1].output = BlobId([9; 32])).is_none());
        assert!(taken(&|results| results[1].success = false).is_none());
        assert!(taken(&|results| results[1].exit_code = Some(1)).is_none());
        assert!(taken(&|results| results[1].work_mops = 1.0).is_none());
        assert!(taken(&|results| results.swap(0, 2)).is_none());
        assert!(taken(&|results| drop(results.pop())).is_none());
        let mut results = results;
        let mut proves = |grid, bag, executor, signature: Option<&[u8]>| {
            prove(grid, bag, &manifest, executor, &mut results, signature)
        };
        assert!(proves(grid, bag, gate.me(), Some(&signature)));
        assert!(!proves(grid, bag, other.me(), Some(&signature)));
        assert!(!proves(GridId([1; 32]), bag, gate.me(), Some(&signature)));
        assert!(!proves(grid, BagId([1; 32]), gate.me(), Some(&signature)));
        assert!(!proves(grid, bag, gate.me(), None));
        assert!(!proves(grid, bag, gate.me(), Some(&signature[1..])));
    }
}
