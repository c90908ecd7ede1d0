//! Messages between machines: measured, counted, carried by the links, and given to their receivers.

use std::time::Duration;

use idlewood_overlay::{Node, PeerId};
use idlewood_scheduler::{Appointment, Event, Message};

use super::shard::{Parcel, Shard};
use super::surroundings::Surroundings;
use super::trace::{Trace, tag};
use crate::event_queue::HostIndex;
use crate::host::{host_index, nonce, signature};
use crate::letter::{Content, Letter, Passenger};
use crate::network::Arrivals;
use crate::overlay::Wire;
use crate::scenario::BadRouting;
use crate::size::size_of;

/// Length of an Ed25519 signature.
const SIGNATURE_BYTES: usize = 64;

impl Shard {
    pub(super) fn send(&mut self, host: HostIndex, to: PeerId, mut message: Message, around: &Surroundings) {
        let now = self.now;
        // An agent's driver signs them; here zeros of the same length stand for the signature, which is not checked.
        if let Message::Results { signature, .. } = &mut message {
            *signature = Some(vec![0; SIGNATURE_BYTES]);
        }
        self.falsify(host, &mut message, around);
        let size = size_of(&message);
        let target = host_index(to);
        let is_tree = matches!(message, Message::Overlay(_));
        let machine = self.host_mut(host);
        // An answer that carries it is counted already.
        let is_carried = is_tree && machine.answers.carry(target, now);
        let bytes = size.bytes + if is_carried { 0 } else { around.scenario.overhead_bytes };
        Trace(&mut machine.trace).word(size.digest);
        let from = machine.id;
        let count = &mut self.counts.messages.0[message.kind_index()];
        count.count += 1;
        count.bytes += bytes;
        if is_carried {
            let count = &mut self.counts.carried.0[message.kind_index()];
            count.count += 1;
            count.bytes += bytes;
        }
        if matches!(message, Message::WhichMachines { .. } | Message::Machines { .. }) {
            let count = self.counts.listings.entry(host).or_default();
            count.count += 1;
            count.bytes += bytes;
        }
        let content = match around.wire {
            Wire::Sizes => Content::Value(message),
            Wire::Bytes => {
                let encoded = message.encode();
                assert_eq!(encoded.len() as u64, size.bytes, "the length of {message:?} was measured wrong");
                Content::Bytes(encoded)
            }
        };
        let (digest, is_held_back) = (size.digest, false);
        let letter = Letter { from, to: tag(to), content, digest, bytes, is_tree, is_carried, is_held_back };
        if is_carried {
            // It goes over the connection of the message that is answered.
            self.dispatch(host, target, letter, around);
        } else {
            self.board(host, target, Passenger::Letter(letter), around);
        }
    }

    /// Gives a message to the uplink and to the network.
    pub(super) fn dispatch(&mut self, host: HostIndex, target: HostIndex, letter: Letter, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        let sent = machine.link.send(now, letter.bytes, letter.is_tree);
        let mut arrivals = around.network.carry(&mut machine.network_rng, host, target);
        // A message that the network loses, or carries to no machine, uses the uplink like any other.
        if arrivals.first.is_none() {
            self.counts.messages_lost += 1;
        } else if target >= around.scenario.nodes {
            self.counts.messages_in_vain += 1;
            arrivals = Arrivals { first: None, second: None };
        } else if !letter.is_carried && around.scenario.answer_bytes > 0 {
            // The answer takes its time here at once: when it comes is not simulated.
            machine.link.receive(now, around.scenario.answer_bytes, letter.is_tree);
        }
        self.carry(host, sent, arrivals, target, letter);
    }

    pub(super) fn deliver(&mut self, host: HostIndex, letter: Letter, around: &Surroundings) {
        let now = self.now;
        let Letter { from, to, content, digest, bytes, is_tree, is_carried, is_held_back } = letter;
        let machine = self.host_mut(host);
        if !machine.is_up() || tag(machine.id) != to {
            self.counts.messages_in_vain += 1;
            return;
        }
        if !is_held_back {
            if !self.hears(host, host_index(from), around) {
                self.counts.messages_in_vain += 1;
                return;
            }
            if !is_carried {
                self.acknowledge(host, from, is_tree, around);
            }
        }
        let machine = self.host_mut(host);
        let mut trace = Trace(&mut machine.trace);
        trace.word(tag(from));
        trace.word(digest);
        let message = match content {
            Content::Value(message) => message,
            Content::Bytes(bytes) => {
                let message = Message::decode(&bytes)
                    .unwrap_or_else(|error| panic!("{from:?} sent at {now:?} what its receiver refuses: {error}"));
                assert_eq!(size_of(&message).digest, digest, "{message:?} is not what was encoded");
                message
            }
        };
        let passes =
            matches!(message, Message::Request { node: Node::Router, .. } | Message::Ask { node: Node::Router, .. });
        let is_signed = |appointment: &Appointment| {
            let submitter = appointment.submitter();
            submitter.is_some_and(|one| appointment.signature == signature(one.peer, &appointment.statement()))
        };
        if !message.appointments().all(is_signed) {
            // As the agent's driver does.
            return;
        }
        match self.host_mut(host).bad_routing.filter(|_| passes && !is_held_back) {
            Some(how) => {
                let content = Content::Value(message);
                let is_held_back = true;
                let letter = Letter { from, to, content, digest, bytes, is_tree, is_carried, is_held_back };
                self.misroute(host, how, letter, around);
            }
            None => {
                self.certify(host, from, around);
                self.give(host, Event::Received { from, message }, around);
            }
        }
    }
}

impl Shard {
    /// The answer to a message leaves, alone or with a message of the tree. Its way is not simulated, only the time that it takes on the
    /// answering machine's uplink, and on the other's downlink.
    fn acknowledge(&mut self, host: HostIndex, to: PeerId, is_tree: bool, around: &Surroundings) {
        let (now, bytes) = (self.now, around.scenario.answer_bytes);
        let machine = self.host_mut(host);
        machine.answers.owe(host_index(to), now);
        if bytes > 0 {
            machine.link.send(now, bytes, is_tree);
            self.counts.answers.count += 1;
            self.counts.answers.bytes += bytes;
        }
    }
}

impl Shard {
    /// A machine has seen the certificate of another, with which it is connected: it learns the nonce in it before the first message.
    fn certify(&mut self, host: HostIndex, from: PeerId, around: &Surroundings) {
        if self.host(host).peer().is_some_and(|peer| !peer.is_certified(from)) {
            let nonce = nonce(around.scenario.seed, host_index(from));
            self.give(host, Event::Certified { peer: from, nonce }, around);
        }
    }
}

/// How long a bad router delays what it forwards.
const HELD_BACK: Duration = Duration::from_secs(60);

impl Shard {
    /// Handles a message that reached a router which does not forward correctly.
    fn misroute(&mut self, host: HostIndex, how: BadRouting, letter: Letter, around: &Surroundings) {
        match how {
            BadRouting::Drop => {}
            BadRouting::Delay => {
                let later = self.now + HELD_BACK;
                self.post(host, later, host, Parcel::Letter(letter));
            }
            BadRouting::OneChild => {
                let child = self.host_mut(host).peer().and_then(|peer| {
                    let child = peer.overlay_view().children().into_iter().flatten().next()?;
                    Some((child.contact.peer, child.node))
                });
                match (child, letter.content) {
                    (Some((to, node)), Content::Value(Message::Request { request, .. })) => {
                        let message = Message::Request { request, node, climbing: false };
                        if self.host_mut(host).id == to {
                            self.give(host, Event::Received { from: to, message }, around);
                        } else {
                            self.send(host, to, message, around);
                        }
                    }
                    (_, content) => self.deliver(host, Letter { content, ..letter }, around),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use idlewood_overlay::Time;
    use idlewood_scheduler::{BagId, Lease};

    use super::*;
    use crate::{Execution, Scenario, Simulation};

    /// A moment after the use of links begins to be counted.
    fn at(milliseconds: u64) -> Time {
        Scenario::default().first_arrival() + Duration::from_millis(milliseconds)
    }

    /// Two machines, each with a link of its own; one has sent three messages in the same instant, each of which takes
    /// its uplink 100 ms. Returns the surroundings and the shard with both.
    fn three_sent(loss_percent: f64, duplicate_percent: f64) -> (Arc<Surroundings>, Box<Shard>) {
        let (nodes, connect_round_trips) = (2, 0);
        let scenario = Scenario { nodes, connect_round_trips, loss_percent, duplicate_percent, ..Scenario::default() };
        let execution = Execution { threads: 1, ..Execution::usual(2) };
        let mut simulation = Simulation::with(scenario, execution).expect("a valid scenario");
        let lease = Message::Lease(Lease { version: 1, term: Duration::from_secs(1), ..Lease::of(BagId([3; 32])) });
        let around = Arc::make_mut(&mut simulation.around);
        around.scenario.overhead_bytes = around.scenario.bandwidth_bytes_s / 10 - size_of(&lease).bytes;
        around.scenario.answer_bytes = 0;
        let (around, mut shard) = (Arc::clone(&simulation.around), simulation.shards.remove(0));
        let to = shard.host(1).id;
        shard.now = at(0);
        (0..3).for_each(|_| shard.send(0, to, lease.clone(), &around));
        (around, shard)
    }

    /// Messages lost, messages that reached the other machine, which is down, and how long the uplink was busy.
    fn counted(mut shard: Box<Shard>, around: &Surroundings) -> (u64, u64, u64) {
        shard.process(around, at(10_000));
        let (messages_lost, messages_in_vain) = (shard.counts.messages_lost, shard.counts.messages_in_vain);
        (messages_lost, messages_in_vain, shard.host(0).link.up.messages.busy_us / 1000)
    }

    #[test]
    fn a_message_that_would_have_come_twice_is_lost_once() {
        for (duplicate_percent, copies) in [(0.0, 1), (100.0, 2)] {
            let (around, mut shard) = three_sent(0.0, duplicate_percent);
            shard.now = at(50);
            shard.crash(0, &around);
            assert_eq!(counted(shard, &around), (2, copies, 100), "the first had begun to leave");
        }
    }

    #[test]
    fn messages_in_an_uplink_are_sent_if_their_machine_leaves_but_not_if_it_crashes() {
        let (around, mut shard) = three_sent(0.0, 0.0);
        shard.now = at(50);
        shard.leave(0, &around);
        assert_eq!(counted(shard, &around), (0, 3, 300));
        // Crashed while the second message leaves.
        let (around, mut shard) = three_sent(0.0, 0.0);
        shard.process(&around, at(150));
        shard.now = at(150);
        shard.crash(0, &around);
        assert_eq!(counted(shard, &around), (1, 2, 200));
    }

    #[test]
    fn a_lost_message_uses_its_uplink_like_any_other_and_is_counted_once() {
        for (crash, busy) in [(50, 100), (150, 200)] {
            let (around, mut shard) = three_sent(99.999_999, 0.0);
            shard.process(&around, at(crash));
            shard.now = at(crash);
            shard.crash(0, &around);
            assert_eq!(counted(shard, &around), (3, 0, busy));
        }
    }

    /// What a message of the tree, and one about a bag, cost a machine that has just received one: an answer carries the former.
    #[test]
    fn an_answer_carries_a_message_of_the_tree_and_costs_its_machine() {
        let scenario = Scenario { nodes: 2, connect_round_trips: 0, ..Scenario::default() };
        let (overhead, answer) = (scenario.overhead_bytes, scenario.answer_bytes);
        let execution = Execution { threads: 1, ..Execution::usual(2) };
        let mut simulation = Simulation::with(scenario, execution).expect("a valid scenario");
        let (around, mut shard) = (Arc::clone(&simulation.around), simulation.shards.remove(0));
        let ids = [0, 1].map(|host| shard.host(host).id);
        shard.start(1, Vec::new(), at(0), &around);
        let message = Message::Ticket { ticket: 7 };
        let size = size_of(&message).bytes;
        shard.send(0, ids[1], message.clone(), &around);
        let before = shard.counts.clone();
        assert_eq!(before.messages.0.iter().map(|of| of.bytes).sum::<u64>(), size + overhead);
        assert_eq!(shard.host(0).link.down.messages.busy_us, shard.host(0).link.down.takes(answer).as_micros() as u64);
        shard.process(&around, at(100));
        assert_eq!((shard.counts.answers.count, shard.counts.answers.bytes), (1, answer));
        let tree = Message::Overlay(idlewood_overlay::Message {
            grid: 0,
            incarnation: 1,
            address: None,
            body: idlewood_overlay::Body::Hint(Vec::new()),
        });
        let tree_bytes = size_of(&tree).bytes;
        let costs = [tree.clone(), message, tree].map(|message| {
            let before: u64 = shard.counts.messages.0.iter().map(|of| of.bytes).sum();
            shard.now = at(55);
            shard.send(1, ids[0], message, &around);
            shard.counts.messages.0.iter().map(|of| of.bytes).sum::<u64>() - before
        });
        assert_eq!(costs, [tree_bytes, size + overhead, tree_bytes + overhead]);
    }
}
