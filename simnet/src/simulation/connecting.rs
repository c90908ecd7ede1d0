//! How connections between simulated machines are opened, reset and closed, and what waits for them.
//!
//! A dial takes the round trips of an agent's handshakes (`connect_round_trips`, with TCP's own) before the first message can leave, and either side's
//! link the bytes of these (`connect_bytes`). A machine that is down, or cut off, does not answer, and the dial fails after the agent's ten seconds; one
//! that has no room refuses. The peer hears of both, and of a connection that is reset, as in the agent. Nobody hears of a power cut.

use std::time::Duration;

use idlewood_machine::connections::CONNECT_TIMEOUT;
use idlewood_overlay::Time;
use idlewood_scheduler::Event;

use super::shard::{Occurrence, Shard};
use super::surroundings::Surroundings;
use crate::connections::{Heard, Way};
use crate::event_queue::HostIndex;
use crate::fetching::Ask;
use crate::letter::{Dial, Passenger};

/// Bytes of the packets that end a connection: two, with their headers alone.
const RESET_BYTES: u64 = 2 * 52;

impl Shard {
    /// Sends something over the connection to a machine, now or once it is open.
    pub(super) fn board(&mut self, host: HostIndex, to: HostIndex, passenger: Passenger, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        if !around.has_connections() || to >= around.scenario.nodes {
            return self.ride(host, to, passenger, around);
        }
        let life = machine.life;
        match machine.connections.send(now, to, passenger) {
            Way::Open(passenger) => self.ride(host, to, passenger, around),
            Way::Waits => {}
            Way::Dial(number) => {
                self.cause(host, now + CONNECT_TIMEOUT, host, Occurrence::DialLate { life, to, number });
                if around.network.reaches(host, to) {
                    let travel = self.travel(host, to, around);
                    let dial = Dial { from: host, life, number };
                    self.cause(host, now + travel, to, Occurrence::Dialled { dial });
                }
            }
            Way::Refused { item, is_new } => {
                self.strand(host, [item]);
                if is_new {
                    self.counts.connections_refused += 1;
                    self.cause(host, now, host, Occurrence::Unreachable { life, to });
                }
            }
        }
    }

    fn ride(&mut self, host: HostIndex, to: HostIndex, passenger: Passenger, around: &Surroundings) {
        match passenger {
            Passenger::Letter(letter) => self.dispatch(host, to, letter, around),
            Passenger::Ask(ask) => self.send_ask(host, to, ask, around),
        }
    }

    fn ride_all(&mut self, host: HostIndex, to: HostIndex, passengers: Vec<Passenger>, around: &Surroundings) {
        passengers.into_iter().for_each(|passenger| self.ride(host, to, passenger, around));
    }

    /// What cannot go: messages were for nothing, and whoever asked for a piece is told at this instant.
    fn strand(&mut self, host: HostIndex, passengers: impl IntoIterator<Item = Passenger>) {
        for passenger in passengers {
            match passenger {
                Passenger::Letter(_) => self.counts.messages_in_vain += 1,
                Passenger::Ask(Ask { life, download: number, request, .. }) => {
                    self.cause(host, self.now, host, Occurrence::PieceLate { life, number, request });
                }
            }
        }
    }

    fn travel(&mut self, host: HostIndex, to: HostIndex, around: &Surroundings) -> Duration {
        around.network.latency(&mut self.host_mut(host).network_rng, host, to)
    }

    // ---- the machine that is dialled ----

    /// A handshake begins.
    pub(super) fn dialled(&mut self, host: HostIndex, dial: Dial, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        if !machine.is_up() {
            return;
        }
        let life = machine.life;
        if machine.connections.knock() {
            let further = around.scenario.connect_round_trips.saturating_sub(1);
            let takes = 2 * self.travel(host, dial.from, around) * further;
            self.cause(host, now + takes, host, Occurrence::Shaken { life, dial });
        } else {
            self.answer_dial(host, now, dial, false, around);
        }
    }

    /// A handshake is over.
    pub(super) fn shaken(&mut self, host: HostIndex, dial: Dial, around: &Surroundings) {
        let (now, bytes, machine) = (self.now, around.scenario.connect_bytes, self.host_mut(host));
        machine.link.receive(now, bytes, false);
        let sent = machine.link.send(now, bytes, false);
        let admitted = machine.connections.admit(now, dial.from);
        self.counts.connections.bytes += bytes;
        self.answer_dial(host, sent, dial, admitted.is_some(), around);
        if let Some(passengers) = admitted {
            self.ride_all(host, dial.from, passengers, around);
        }
        self.make_room(host, around);
    }

    fn answer_dial(&mut self, host: HostIndex, sent: Time, dial: Dial, accepts: bool, around: &Surroundings) {
        self.counts.connections_refused += u64::from(!accepts);
        if around.network.reaches(host, dial.from) {
            let travel = self.travel(host, dial.from, around);
            self.cause(host, sent + travel, dial.from, Occurrence::DialAnswered { dial, by: host, accepts });
        }
    }

    // ---- the machine that dials ----

    /// A dial has been answered.
    pub(super) fn dial_answered(
        &mut self,
        host: HostIndex,
        dial: Dial,
        by: HostIndex,
        accepts: bool,
        around: &Surroundings,
    ) {
        let (now, machine) = (self.now, self.host_mut(host));
        if !accepts {
            return self.dial_failed(host, by, dial.number, around);
        }
        match machine.connections.answered(now, by, dial.number) {
            Some(Ok(passengers)) => self.opened(host, by, passengers, around),
            Some(Err(passengers)) => {
                self.counts.connections_refused += 1;
                self.strand(host, passengers);
                self.unreachable(host, by, around);
            }
            None => {}
        }
    }

    /// A connection that this machine has dialled is open.
    fn opened(&mut self, host: HostIndex, with: HostIndex, passengers: Vec<Passenger>, around: &Surroundings) {
        let (now, bytes, machine) = (self.now, around.scenario.connect_bytes, self.host_mut(host));
        machine.link.receive(now, bytes, false);
        machine.link.send(now, bytes, false);
        self.counts.connections.count += 1;
        self.counts.connections.bytes += bytes;
        self.ride_all(host, with, passengers, around);
        self.make_room(host, around);
    }

    /// A dial has been refused, or was not answered in time.
    pub(super) fn dial_failed(&mut self, host: HostIndex, to: HostIndex, number: u64, around: &Surroundings) {
        let now = self.now;
        if let Some(passengers) = self.host_mut(host).connections.failed(now, to, number) {
            self.strand(host, passengers);
            self.unreachable(host, to, around);
        }
    }

    /// The peer hears that a machine could not be reached, or that its connection was lost.
    pub(super) fn unreachable(&mut self, host: HostIndex, other: HostIndex, around: &Surroundings) {
        self.give(host, Event::ConnectionLost(around.peer_ids[other as usize]), around);
    }

    // ---- open connections ----

    /// Something has come over a connection. False: this machine does not have it, and resets it.
    pub(super) fn hears(&mut self, host: HostIndex, from: HostIndex, around: &Surroundings) -> bool {
        let (now, machine) = (self.now, self.host_mut(host));
        if !around.has_connections() || from == host {
            return true;
        }
        match machine.connections.hear(now, from) {
            Heard::Known => true,
            Heard::Dialled(passengers) => {
                self.opened(host, from, passengers, around);
                true
            }
            Heard::Unknown => {
                let sent = machine.link.send(now, RESET_BYTES, false);
                self.reset(host, sent, from, around);
                false
            }
        }
    }

    /// The end of a connection arrives after all that was sent over it, however long each part of that is under way.
    fn reset(&mut self, host: HostIndex, sent: Time, other: HostIndex, around: &Surroundings) {
        if around.network.reaches(host, other) {
            let travel = self.travel(host, other, around) + self.travel(host, other, around);
            self.cause(host, sent + travel, other, Occurrence::Reset { by: host });
        }
    }

    /// Closes connections that further ones need the room of.
    fn make_room(&mut self, host: HostIndex, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        for other in machine.connections.make_room(now) {
            let sent = self.host_mut(host).link.send(now, RESET_BYTES, false);
            self.reset(host, sent, other, around);
        }
    }

    /// The other side of a connection no longer has it.
    pub(super) fn was_reset(&mut self, host: HostIndex, by: HostIndex, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        if !machine.is_up() || !machine.connections.reset(by) {
            return;
        }
        let (life, other) = (machine.life, around.peer_ids[by as usize]);
        for (number, request) in machine.fetching.asked_of(other) {
            self.cause(host, now, host, Occurrence::PieceLate { life, number, request });
        }
        self.unreachable(host, by, around);
    }

    /// A machine leaves in good order: it closes its connections once all that it has sent has left. What still waits for a connection does not get one.
    pub(super) fn close_connections(&mut self, host: HostIndex, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        let (with, passengers) = machine.connections.clear();
        let sent = machine.link.send(now, RESET_BYTES * with.len() as u64, false);
        with.into_iter().for_each(|other| self.reset(host, sent, other, around));
        self.strand(host, passengers);
    }

    /// The power of a machine is cut: what has waited for a connection is lost.
    pub(super) fn lose_connections(&mut self, host: HostIndex) {
        let (_, passengers) = self.host_mut(host).connections.clear();
        self.counts.messages_lost += passengers.iter().filter(|one| matches!(one, Passenger::Letter(_))).count() as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use idlewood_overlay::PeerId;
    use idlewood_scheduler::Message;

    use super::*;
    use crate::{Execution, Scenario, Simulation};

    /// A moment, in milliseconds, after the use of links begins to be counted.
    fn at(milliseconds: u64) -> Time {
        Scenario::default().first_arrival() + Duration::from_millis(milliseconds)
    }

    /// Two machines 50 ms apart, both up, neither of which knows the other, with next to endless links.
    fn two() -> (Arc<Surroundings>, Box<Shard>, [PeerId; 2]) {
        let scenario = Scenario {
            nodes: 2,
            jitter_percent: 0,
            bandwidth_bytes_s: 1_000_000_000,
            message_us: 0,
            ..Scenario::default()
        };
        let execution = Execution { threads: 1, ..Execution::usual(2) };
        let mut simulation = Simulation::with(scenario, execution).expect("a valid scenario");
        let (around, mut shard) = (Arc::clone(&simulation.around), simulation.shards.remove(0));
        (0..2).for_each(|host| shard.start(host, Vec::new(), at(0), &around));
        let ids = [0, 1].map(|host| shard.host(host).id);
        (around, shard, ids)
    }

    fn send(shard: &mut Shard, to: PeerId, now: Time, around: &Surroundings) {
        shard.now = now;
        shard.send(0, to, Message::Ticket { ticket: 7 }, around);
    }

    /// Answers to messages so far, one for each that has come.
    fn came(shard: &mut Shard, until: Time, around: &Surroundings) -> u64 {
        shard.process(around, until);
        shard.counts.answers.count
    }

    #[test]
    fn the_first_message_waits_for_the_handshakes_and_the_next_goes_at_once() {
        let (around, mut shard, ids) = two();
        let round_trips = u64::from(around.scenario.connect_round_trips);
        let first = 100 * round_trips + 50;
        send(&mut shard, ids[1], at(0), &around);
        assert_eq!(came(&mut shard, at(first), &around), 0);
        assert_eq!(came(&mut shard, at(first + 1), &around), 1);
        send(&mut shard, ids[1], at(2000), &around);
        assert_eq!(came(&mut shard, at(2050), &around), 1);
        assert_eq!(came(&mut shard, at(2051), &around), 2);
        let opened = shard.counts.connections;
        assert_eq!((opened.count, opened.bytes), (1, 2 * around.scenario.connect_bytes));
        // Nothing has gone over it for two minutes.
        send(&mut shard, ids[1], at(125_000), &around);
        assert_eq!(came(&mut shard, at(125_100), &around), 2);
        assert_eq!(came(&mut shard, at(126_000), &around), 3);
        assert_eq!((shard.counts.connections.count, shard.host(0).connections.most()), (2, 1));
    }

    #[test]
    fn a_machine_that_was_off_resets_a_connection_and_is_dialled_anew() {
        let (around, mut shard, ids) = two();
        send(&mut shard, ids[1], at(0), &around);
        assert_eq!(came(&mut shard, at(1000), &around), 1);
        shard.now = at(1000);
        shard.crash_for(1, Some(Duration::from_secs(1)), &around);
        shard.start(1, Vec::new(), at(2000), &around);
        let in_vain = shard.counts.messages_in_vain;
        send(&mut shard, ids[1], at(3000), &around);
        assert_eq!(came(&mut shard, at(4000), &around), 1);
        assert_eq!(shard.counts.messages_in_vain, in_vain + 1);
        send(&mut shard, ids[1], at(5000), &around);
        assert_eq!(came(&mut shard, at(6000), &around), 2);
    }

    #[test]
    fn a_machine_that_is_down_does_not_answer_and_one_that_leaves_says_so() {
        let (around, mut shard, ids) = two();
        send(&mut shard, ids[1], at(0), &around);
        assert_eq!(came(&mut shard, at(1000), &around), 1);
        shard.now = at(1000);
        shard.leave(1, &around);
        let in_vain = shard.counts.messages_in_vain;
        shard.process(&around, at(2000));
        // So it is dialled, in vain.
        send(&mut shard, ids[1], at(2000), &around);
        shard.process(&around, at(11_000));
        assert_eq!(shard.counts.messages_in_vain, in_vain);
        shard.process(&around, at(13_000));
        assert_eq!(shard.counts.messages_in_vain, in_vain + 1);
        assert_eq!(shard.counts.connections.count, 1);
    }
}
