//! Gives events to peers, and carries out the orders that they answer with.

use std::sync::Arc;

use idlewood_machine::Effect as Order;
use idlewood_overlay::{Body, Node, PeerId};
use idlewood_scheduler::{Appointment, Change, Event, Message, Notice, Peer, Record as StoreRecord, RecordKey};

use super::deed::Deed;
use super::listed::Listed;
use super::observed::Observed;
use super::shard::{Occurrence, Shard};
use super::surroundings::Surroundings;
use super::trace::Trace;
use crate::event_queue::HostIndex;
use crate::fetching::Purpose;
use crate::host::{Host, signature};
use crate::record::Predicted;

/// The node and version of a message that carries what a node published.
fn published(message: &Message) -> Option<(Node, u64)> {
    let Message::Overlay(message) = message else { return None };
    let Body::Report(report) = &message.body else { return None };
    Some((report.node, report.load.as_ref()?.version))
}

impl Shard {
    /// Gives an event to a machine that is up, and carries out its orders.
    pub(super) fn give(&mut self, host: HostIndex, event: impl Into<idlewood_machine::Event>, around: &Surroundings) {
        let event = event.into();
        self.counts.events += 1;
        let now = self.now;
        let machine = &mut self.hosts[(host / self.count) as usize];
        let version_of_router = |peer: &Peer| peer.overlay_view().published_version(Node::Router);
        let router = if self.is_watched { machine.peer().map_or(0, version_of_router) } else { 0 };
        if self.is_watched
            && let idlewood_machine::Event::Peer(Event::Received { from, message }) = &event
            && let Some((node, version)) = published(message)
        {
            self.deeds.push((host, Deed::Heard { from: *from, node, version, router }));
        }
        let said = |machine: &Host| machine.peer().map(|peer| peer.overlay_view().published(Node::Leaf).to_vec());
        let said_before = if self.is_watched { said(machine) } else { None };
        let mut trace = Trace(&mut machine.trace);
        trace.word(now.as_micros() as u64);
        trace.of_machine(&event);
        let mut effects = std::mem::take(&mut self.effects);
        machine.handle(now, event, &mut effects);
        if said_before.is_some() && said_before != said(machine) {
            self.deeds.push((host, Deed::Published { router }));
        }
        let mut left = false;
        for effect in effects.drain(..) {
            left |= effect == Order::Notify(Notice::Left);
            self.carry_out(host, effect, around);
        }
        self.effects = effects;
        if left {
            self.leave(host, around);
        } else {
            self.arm(host);
        }
    }

    /// The ticket of a bag is written anew, as the agent does when it signs who keeps the bag.
    fn write_ticket(&mut self, host: HostIndex, appointment: &Appointment) {
        let bag = appointment.bag;
        let mut records = self.host(host).peer().map(|peer| peer.records_of(bag)).unwrap_or_default();
        records.retain(|record| record.key() != RecordKey::Stewards(bag));
        records.push(StoreRecord::Stewards { appointment: appointment.clone(), adopts: false });
        self.host_mut(host).tickets.insert(bag, records);
    }

    fn carry_out(&mut self, host: HostIndex, order: Order, around: &Surroundings) {
        Trace(&mut self.host_mut(host).trace).order(&order);
        match order {
            Order::Send { to, message } => self.send_of_peer(host, to.peer, message, around),
            Order::Authorise { bag, envelope } => self.look_at(host, &bag, &envelope, around),
            Order::KeepCheckpoints { stop, bag, tasks } => self.keep_checkpoints(host, stop, bag, &tasks, around),
            Order::MakeStart { task, .. } => self.make_start(host, task, around),
            Order::SignAppointment(mut appointment) => {
                appointment.signature = signature(self.host(host).id, &appointment.statement());
                self.write_ticket(host, &appointment);
                let (now, life) = (self.now, self.host(host).life);
                self.cause(host, now, host, Occurrence::Signed { life, appointment: Box::new(appointment) });
            }
            Order::KeepFiles { bag, from, .. } => self.keep_files(host, bag.id, from, around),
            Order::ReadResults { bag, tasks, to } => self.read_results(host, bag, &tasks, to),
            // Files stay: the disks are large.
            Order::ForgetFiles { .. } => {}
            Order::List { ticket, page } => self.listed.push(Listed { at: self.now, host, ticket, page: *page }),
            Order::Notify(Notice::BagAccepted(bag)) => {
                self.tell(host, Observed::Accepted(bag));
                if around.is_endless(bag) {
                    self.drain_later(host, bag);
                }
            }
            Order::Notify(Notice::BagClosed(bag)) => {
                let predicted = self.host(host).peer().and_then(|peer| Predicted::of(peer, bag));
                predicted.into_iter().for_each(|predicted| self.tell(host, Observed::Predicted(bag, predicted)));
                self.host_mut(host).tickets.remove(&bag);
                self.tell(host, Observed::Closed(bag));
            }
            Order::Notify(
                Notice::BagChanged(_)
                | Notice::BagDrained(_)
                | Notice::BagRemoved(_)
                | Notice::BagElsewhere(_)
                | Notice::BagGivenUp { .. }
                | Notice::Joined
                | Notice::Left,
            ) => {}
            Order::Fetch { fetch, wanted } => self.fetch(host, fetch, &wanted, around),
            Order::AbandonFetch { fetch } => {
                let machine = self.host_mut(host);
                machine.fetches.remove(&fetch);
                machine.fetching.forget(|purpose| *purpose == Purpose::Output(fetch));
                self.proceed(host, None, around);
            }
            Order::RunFirstTask { bag, time_limit, .. } => self.run_first_task(host, bag, time_limit, around),
            // Here it ends as if it had not been stopped.
            Order::StopFirstTask { .. } => {}
            Order::Work(order) => self.work(host, order, around),
            Order::Changed(changes) => self.note_held(host, &changes),
            Order::Write { write, changes, .. } => {
                let (now, machine) = (self.now, self.host_mut(host));
                let life = machine.life;
                let at = machine.store.begin(write, changes, now, around.scenario.persist);
                self.cause(host, at, host, Occurrence::Durable { life });
            }
            Order::SendResults { to, bag, executor, results } => {
                self.send(host, to.peer, Message::Results { bag, executor, results, signature: None }, around);
            }
            // The owner's limits of memory and of the connection are not simulated.
            Order::Judged(_) => {}
            Order::FreezeMeasurer | Order::ThawMeasurer | Order::KeepPause(_) | Order::End | Order::Unwritten(_) => {
                unreachable!("{order:?}, though no owner here orders anything and no disk fails")
            }
        }
    }

    /// Records of what machines hold, as they change.
    fn note_held(&mut self, host: HostIndex, changes: &[Arc<Change>]) {
        if self.is_watched {
            let held = changes.iter().filter_map(|change| match &**change {
                Change::Put(StoreRecord::Held { bag, .. }) => Some((host, Deed::Held { bag: bag.id })),
                Change::Put(_) | Change::Delete(_) => None,
            });
            self.deeds.extend(held);
        }
    }

    /// Sends a message of a peer, and notes what checks want of it.
    fn send_of_peer(&mut self, host: HostIndex, to: PeerId, message: Message, around: &Surroundings) {
        let machine = &mut self.hosts[(host / self.count) as usize];
        if let Message::Request { request, climbing: false, .. } = &message {
            let decided = Some((host, request.bag.id, request.number));
            let overlay = machine.peer().map(Peer::overlay_view);
            let depth =
                overlay.and_then(|overlay| if overlay.is_root() { Some(0) } else { overlay.depth(Node::Router) });
            if request.path.len() == 1 && self.decided != decided {
                self.decided = decided;
                *self.counts.decided.entry(depth.unwrap_or(u32::MAX)).or_default() += 1;
            }
            if self.is_watched {
                let (bag, number, path) = (request.bag.id, request.number, request.path.clone());
                self.deeds.push((host, Deed::SentDown { bag, number, path }));
            }
        }
        if self.is_watched
            && let Some((node, version)) = published(&message)
        {
            self.deeds.push((host, Deed::Reported { node, version }));
        }
        self.send(host, to, message, around);
    }
}
