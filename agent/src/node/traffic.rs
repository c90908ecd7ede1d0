//! Messages on their way: results that leave this machine are signed, and those that come are checked before the peer hears of them.
//!
//! Which results share a message and a signature is decided by the machine. Program and inputs are read off the manifest, which both
//! have: where it has to be fetched first the results are left to the executor's next repetition.
//!
//! A submitter whose disk lost a bag's manifest cannot check results of it, and takes them as they come.

use std::sync::Arc;

use idlewood_overlay::{Contact, Member, PeerId};
use idlewood_scheduler::{BagId, Event, Message, Speaker, TaskResult};
use idlewood_trust::Batch;

use super::done::Done;
use super::driver::Driver;
use super::receipts;
use super::signed;
use super::supplies;

impl Driver {
    /// The driver has done what it was woken for: results that wait leave.
    pub(super) fn end_turn(&mut self) {
        loop {
            self.settle();
            let mut effects = Vec::new();
            self.machine.end_turn(&mut effects);
            if effects.is_empty() {
                return;
            }
            effects.into_iter().for_each(|effect| self.carry_out(effect));
        }
    }

    /// Signs and sends results.
    pub(super) fn send_results(&mut self, to: Member, bag: BagId, executor: Speaker, results: Vec<TaskResult>) {
        let Some(manifest) = self.shared.manifests.get(bag) else { return self.look_for_manifest(bag, &to) };
        let batch = Batch::new(&receipts::statements(self.shared.gate().grid(), bag, &manifest, &results));
        let signature = Some(self.shared.gate().sign_results(&batch).to_vec());
        self.send(to, Message::Results { bag, executor, results, signature });
    }

    /// Sends a message. What there is no room for comes back to the peer.
    pub(super) fn send(&mut self, to: Member, message: Message) {
        let bytes = message.encode();
        if matches!(message, Message::Overlay(_)) {
            self.shared.net.send_of_tree(&to, bytes);
        } else if !self.shared.net.send(&to, bytes) {
            self.shared.events.follow_up(Event::Unsent { to, message });
        }
    }

    /// The manifest is needed and not at hand.
    fn look_for_manifest(&mut self, bag: BagId, submitter: &Contact) {
        let (supplies, origin) = (self.shared.supplies.clone(), supplies::origin(self.peer(), bag, submitter));
        let look = async move {
            let manifest = signed::manifest_alone(&supplies, bag, &origin).await;
            let manifest = manifest.inspect_err(
                |error| tracing::info!(%bag, error = format!("{error:#}"), "results wait for their bag's manifest"),
            );
            Done::ManifestRead { bag, manifest: manifest.ok().map(Arc::new) }
        };
        self.shared.jobs.spawn(look, Done::ManifestRead { bag, manifest: None });
    }

    /// A message as the peer may hear it: results of this machine's bags if their executor signed them, each with what
    /// proves it. Outputs that come with results are what these say. `None`: it is not to be heard.
    pub(super) fn checked(&mut self, from: PeerId, message: Message) -> Option<Message> {
        let Message::Results { bag, executor, mut results, signature } = message else { return Some(message) };
        if !results.iter().all(receipts::is_its_output) {
            self.results_unsigned += results.len() as u64;
            tracing::info!(%bag, ?from, "results with other outputs than they name");
            return None;
        }
        let is_foreign = self.pins.description(bag).is_none() && !self.pins.is_unread(bag);
        if is_foreign || results.is_empty() {
            return Some(Message::Results { bag, executor, results, signature });
        }
        let Some(manifest) = self.shared.manifests.get(bag) else {
            let here = self.peer().me().clone();
            self.look_for_manifest(bag, &here);
            return None;
        };
        if !receipts::prove(self.shared.gate().grid(), bag, &manifest, from, &mut results, signature.as_deref()) {
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
        if bytes > 0 && self.shared.supplies.blobs.make_room_in_records(bytes).is_err() {
            // Machines say them again and again: that there is no room is told as the owner's state, once.
            tracing::debug!(bytes, "there is no room for small outputs, which stay where they are");
            results.retain(|result| result.content.is_none());
        }
    }
}
