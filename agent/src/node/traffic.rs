//! Messages on their way: results that leave this machine are signed, and those that come are checked before the peer hears of them.
//!
//! Which results share a message and a signature is decided by the machine. Program and inputs are read off the manifest, which both
//! have: where it has to be fetched first the results are left to the executor's next repetition.
//!
//! A submitter whose disk lost a bag's manifest cannot check results of it, and takes them as they come.

use std::sync::Arc;

use idlewood_net::NetEvent;
use idlewood_overlay::{Contact, Member, PeerId};
use idlewood_scheduler::{BagId, Event, Message, Peer, Speaker, TaskResult};
use idlewood_trust::Batch;

use super::appointments::Appointments;
use super::done::Done;
use super::pins::Pins;
use super::receipts;
use super::shared::Shared;
use super::signed;
use super::supplies;

/// Counts what came and was not to be heard.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// Results of this machine's bags that came without their machine's signature.
    results_unsigned: u64,
    /// Messages that came whole and are none.
    malformed_messages: u64,
    /// Messages with an appointment that its submitter did not sign.
    appointments_forged: u64,
    appointments: Appointments,
}

impl Traffic {
    /// Results of this machine's bags that came without their machine's signature.
    pub(super) fn results_unsigned(&self) -> u64 {
        self.results_unsigned
    }

    /// Messages that came whole and are none.
    pub(super) fn malformed_messages(&self) -> u64 {
        self.malformed_messages
    }

    /// Messages with an appointment that its submitter did not sign.
    pub(super) fn appointments_forged(&self) -> u64 {
        self.appointments_forged
    }

    /// The results that a keeper hands over, those that their machines signed: a steward cannot make up what others ran. `None`: the bag has to
    /// be read first.
    fn proven(
        &mut self,
        bag: BagId,
        mut results: Vec<(PeerId, TaskResult)>,
        peer: &Peer,
        shared: &mut Shared,
    ) -> Option<Vec<(PeerId, TaskResult)>> {
        if results.is_empty() || peer.bag(bag).is_none() && !peer.keeps(bag) {
            return Some(results);
        }
        let Some(manifest) = shared.manifests.get(bag) else {
            look_for_manifest(bag, peer.kept_for(bag).unwrap_or(peer.me()), peer, shared);
            return None;
        };
        let (gate, before) = (shared.gate(), results.len());
        results.retain(|(executor, result)| {
            receipts::is_its_output(result) && receipts::is_proven(gate.grid(), bag, &manifest, *executor, result)
        });
        let unsigned = (before - results.len()) as u64;
        if unsigned > 0 {
            self.results_unsigned += unsigned;
            tracing::info!(%bag, unsigned, "results from a steward that their machines did not sign");
        }
        let bytes: u64 = results.iter().map(|(_, result)| result.content_bytes() as u64).sum();
        if bytes > 0 && shared.supplies.blobs.make_room_in_records(bytes).is_err() {
            results.retain(|(_, result)| result.content.is_none());
        }
        Some(results)
    }

    /// Something came over the network.
    pub(super) fn came(&mut self, event: NetEvent, pins: &Pins, peer: &Peer, shared: &mut Shared) {
        match event {
            NetEvent::Received { from, bytes } => match Message::decode(&bytes) {
                Ok(message) => self.received(from, message, pins, peer, shared),
                Err(error) => {
                    self.malformed_messages += 1;
                    tracing::debug!(?from, %error, "message refused");
                }
            },
            NetEvent::Unreachable(peer) => shared.events.tell(Event::ConnectionLost(peer)),
            // To join through, or to find that the grid has another half.
            NetEvent::Found(contact) => shared.events.tell(Event::Bootstrap(contact)),
            NetEvent::Connected { .. } | NetEvent::Listening(_) => {}
        }
    }

    fn received(&mut self, from: PeerId, message: Message, pins: &Pins, peer: &Peer, shared: &mut Shared) {
        let Some(message) = self.checked(from, message, pins, peer, shared) else { return };
        match shared.gate().nonce_of(from) {
            Some(nonce) => shared.events.tell(Event::Certified { peer: from, nonce }),
            // Its connection has ended meanwhile. Where it stands is known, or it is not heard.
            None if peer.is_certified(from) => {}
            None => return,
        }
        shared.events.tell(Event::Received { from, message });
    }

    /// A message as the peer may hear it: results of this machine's bags if their executor signed them, each with what
    /// proves it. Outputs that come with results are what these say. `None`: it is not to be heard.
    fn checked(
        &mut self,
        from: PeerId,
        message: Message,
        pins: &Pins,
        peer: &Peer,
        shared: &mut Shared,
    ) -> Option<Message> {
        if !self.appointments.are_signed(&message) {
            self.appointments_forged += 1;
            tracing::info!(?from, "an appointment that its submitter did not sign");
            return None;
        }
        let (bag, executor, mut results, signature) = match message {
            Message::Results { bag, executor, results, signature } => (bag, executor, results, signature),
            Message::Kept { acting, tasks, results } => {
                let results = self.proven(acting.appointment.bag, results, peer, shared)?;
                return Some(Message::Kept { acting, tasks, results });
            }
            Message::Request { mut request, node, climbing } => {
                if from == request.bag.submitter.peer {
                    shared.lines.detach(&mut request);
                }
                return Some(Message::Request { request, node, climbing });
            }
            message => return Some(message),
        };
        if !results.iter().all(receipts::is_its_output) {
            self.results_unsigned += results.len() as u64;
            tracing::info!(%bag, ?from, "results with other outputs than they name");
            return None;
        }
        // Of a bag that was adopted the manifest comes from those who keep it: until then executors keep the results.
        let is_to_come = || peer.keeps(bag) || peer.stewards(bag).next().is_some();
        let is_foreign = pins.description(bag).is_none() && !pins.is_unread(bag) && !is_to_come();
        if is_foreign || results.is_empty() {
            return Some(Message::Results { bag, executor, results, signature });
        }
        let Some(manifest) = shared.manifests.get(bag) else {
            look_for_manifest(bag, peer.kept_for(bag).unwrap_or(peer.me()), peer, shared);
            return None;
        };
        if !receipts::prove(shared.gate().grid(), bag, &manifest, from, &mut results, signature.as_deref()) {
            self.results_unsigned += results.len() as u64;
            tracing::info!(%bag, ?from, "results that their machine did not sign");
            return None;
        }
        leave_what_has_no_room(&mut results, shared);
        Some(Message::Results { bag, executor, results, signature })
    }
}

/// Sends a message of the peer's: results that this machine took for another go with what proves them.
pub(super) fn send_of_peer(to: Member, message: Message, peer: &Peer, shared: &mut Shared) {
    let Message::Kept { acting, tasks, mut results } = message else { return send(to, message, shared) };
    let bag = acting.appointment.bag;
    let Some(manifest) = shared.manifests.get(bag) else { return look_for_manifest(bag, &to, peer, shared) };
    receipts::sign_own(shared.gate(), bag, &manifest, &mut results);
    send(to, Message::Kept { acting, tasks, results }, shared);
}

/// Signs and sends results.
pub(super) fn send_results(
    to: Member,
    bag: BagId,
    executor: Speaker,
    results: Vec<TaskResult>,
    peer: &Peer,
    shared: &mut Shared,
) {
    let Some(manifest) = shared.manifests.get(bag) else { return look_for_manifest(bag, &to, peer, shared) };
    let batch = Batch::new(&receipts::statements(shared.gate().grid(), bag, &manifest, &results));
    let signature = Some(shared.gate().sign_results(&batch).to_vec());
    send(to, Message::Results { bag, executor, results, signature }, shared);
}

/// Sends a message. What there is no room for comes back to the peer.
pub(super) fn send(to: Member, mut message: Message, shared: &mut Shared) {
    shared.lines.attach(&mut message);
    let bytes = message.encode();
    shared.sent.count(&message, bytes.len());
    if matches!(message, Message::Overlay(_)) {
        shared.net.send_of_tree(&to, bytes);
    } else if !shared.net.send(&to, bytes) {
        shared.events.follow_up(Event::Unsent { to, message });
    }
}

/// The manifest is needed and not at hand.
fn look_for_manifest(bag: BagId, submitter: &Contact, peer: &Peer, shared: &mut Shared) {
    let (supplies, origin) = (shared.supplies.clone(), supplies::origin(peer, bag, submitter));
    let look = async move {
        let manifest = signed::manifest_alone(&supplies, bag, &origin).await;
        let manifest = manifest.inspect_err(
            |error| tracing::info!(%bag, error = format!("{error:#}"), "results wait for their bag's manifest"),
        );
        Done::ManifestRead { bag, manifest: manifest.ok().map(Arc::new) }
    };
    shared.jobs.spawn(look, Done::ManifestRead { bag, manifest: None });
}

/// Of results that come with their outputs, those for which there is no room stay with their executor, which says them again.
fn leave_what_has_no_room(results: &mut Vec<TaskResult>, shared: &Shared) {
    let bytes: u64 = results.iter().map(|result| result.content_bytes() as u64).sum();
    if bytes > 0 && shared.supplies.blobs.make_room_in_records(bytes).is_err() {
        // Machines say them again and again: that there is no room is told as the owner's state, once.
        tracing::debug!(bytes, "there is no room for small outputs, which stay where they are");
        results.retain(|result| result.content.is_none());
    }
}
