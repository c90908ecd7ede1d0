//! The event loop: handles pending events one after another, and sends the peers' messages.

use std::time::Duration;

use idlewood_overlay::{Body, Effect, Event, Message, Notice, PeerId, Time};

use super::machine::tag;
use super::{Delivery, Due, Letter, Step, Wire, World};
use crate::condition::Pause;
use crate::event_queue::{HostIndex, Key};
use crate::host::host_index;
use crate::overlay::measure::{Measure, measure};
use crate::size::mix;

/// Source of events that no machine causes.
const WORLD: HostIndex = HostIndex::MAX;
/// Wakes in a row that one machine may have at one instant before it counts as a live-lock.
const WAKES_AT_ONE_INSTANT_MAX: u16 = 1_000;

impl World {
    /// Makes a step return [`Step::Planned`] at a future time.
    pub fn plan(&mut self, at: Time, host: HostIndex, code: u32) {
        self.sequence += 1;
        let key = Key { at: at.max(self.now), target: host, source: WORLD, sequence: self.sequence };
        self.queue.push(key, Due::Plan(code));
    }

    /// Handles all events up to a moment. Ignores planned actions that come due.
    pub fn run_until(&mut self, until: Time) {
        while self.step(until).is_some() {}
    }

    /// Handles the next event up to `until`; none: it is `until` now.
    pub fn step(&mut self, until: Time) -> Option<Step> {
        let Some((Key { at, target, .. }, due)) = self.queue.pop_until(until) else {
            self.now = self.now.max(until);
            return None;
        };
        self.now = at;
        Some(self.meet(target, due))
    }

    fn meet(&mut self, host: HostIndex, due: Due) -> Step {
        self.delivery = None;
        if let Due::Plan(code) = due {
            return Step::Planned { host, code };
        }
        let machine = &self.hosts[host as usize];
        if let Some(pause) = machine.pause() {
            match (pause, due) {
                (Pause::Lose, Due::Deliver(letter) | Due::Late(letter)) => self.lose(letter),
                _ => self.deferred.entry(host).or_default().push(due),
            }
            return Step::Nothing;
        }
        match due {
            Due::Wake(life) => return self.wake(host, life),
            Due::Deliver(letter) => {
                let slow = machine.condition.as_ref().map_or(Duration::ZERO, |condition| condition.slow);
                if slow == Duration::ZERO {
                    return self.deliver(host, letter);
                }
                self.cause(host, self.now + slow, host, Due::Late(letter));
            }
            Due::Late(letter) => return self.deliver(host, letter),
            Due::Plan(_) => {}
        }
        Step::Nothing
    }

    fn wake(&mut self, host: HostIndex, life: u32) -> Step {
        let machine = &mut self.hosts[host as usize];
        // A wake that was replaced by an earlier one, or of a life that is over.
        if machine.wake != self.now || machine.life != life {
            if machine.life == life && machine.wake < self.now {
                // It waited for a lid to be opened.
                machine.wake = Time::MAX;
                self.arm(host);
            }
            return Step::Nothing;
        }
        machine.wake = Time::MAX;
        if machine.deadline() > self.now {
            self.arm(host);
            return Step::Nothing;
        }
        machine.wakes_at_once += 1;
        assert!(
            machine.wakes_at_once <= WAKES_AT_ONE_INSTANT_MAX,
            "live-lock: the deadline of machine {host} is due again and again at {:?}",
            self.now,
        );
        self.give(host, Event::DeadlineReached, 3);
        let machine = &mut self.hosts[host as usize];
        if machine.wake != self.now {
            machine.wakes_at_once = 0;
        }
        Step::Handled(host)
    }

    fn deliver(&mut self, host: HostIndex, letter: u32) -> Step {
        let Letter { from, message, digest, tag } = self.letters.take(letter);
        let machine = &mut self.hosts[host as usize];
        // Another machine may have this index by now.
        if machine.overlay.is_none() || machine.tag != tag {
            self.traffic.in_vain += 1;
            return Step::Nothing;
        }
        machine.messages += 1;
        self.delivery = Some(Delivery {
            to: host,
            from: from.peer,
            incarnation: message.incarnation,
            is_answer: matches!(message.body, Body::Ack { .. }),
        });
        self.give(host, Event::Received { from, message }, digest);
        Step::Handled(host)
    }

    fn lose(&mut self, letter: u32) {
        self.letters.take(letter);
        self.traffic.in_vain += 1;
    }

    /// Queues an event caused by a machine.
    pub(super) fn cause(&mut self, source: HostIndex, at: Time, target: HostIndex, due: Due) {
        let key = self.hosts[source as usize].key(at, source, target);
        self.queue.push(key, due);
    }

    /// Moves the pending wake forward.
    pub(super) fn arm(&mut self, host: HostIndex) {
        let machine = &mut self.hosts[host as usize];
        if machine.deadline == Time::MAX {
            return;
        }
        let at = machine.deadline().max(self.now);
        if machine.wake <= at {
            return;
        }
        machine.wake = at;
        let life = machine.life;
        self.cause(host, at, host, Due::Wake(life));
    }

    /// Gives an event to the peer of a machine, and carries out its effects. `digest` stands for the event in the
    /// trace.
    pub(super) fn give(&mut self, host: HostIndex, event: Event, digest: u64) {
        let machine = &mut self.hosts[host as usize];
        let Some(overlay) = &mut machine.overlay else { return };
        self.events += 1;
        let clock = match &machine.condition {
            Some(condition) => condition.clock(machine.started, self.now),
            None => Time::from_micros(self.now.as_micros() - machine.started.as_micros()),
        };
        let mut effects = std::mem::take(&mut self.effects);
        overlay.handle(clock, event, &mut effects);
        machine.deadline = overlay.deadline().unwrap_or(Time::MAX);
        machine.trace = mix(mix(machine.trace, self.now.as_micros() as u64), digest);
        let mut left = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, message } => self.send(host, to.peer, message),
                Effect::Notify(notice) => {
                    left |= notice == Notice::Left;
                    let machine = &mut self.hosts[host as usize];
                    machine.trace = mix(machine.trace, notice as u64);
                }
            }
        }
        self.effects = effects;
        if left {
            self.crash(host);
        } else {
            self.arm(host);
        }
    }

    fn send(&mut self, host: HostIndex, to: PeerId, message: Message) {
        let (message, measure) = self.encode(message);
        self.traffic.note(&measure);
        let target = host_index(to);
        let machine = &mut self.hosts[host as usize];
        let Some(from) = machine.overlay.as_ref().map(|overlay| overlay.me_shared().clone()) else { return };
        machine.messages += 1;
        machine.trace = mix(mix(machine.trace, u64::from(target)), measure.digest);
        let arrivals = self.network.carry(&mut machine.network_rng, host, target);
        let Some(first) = arrivals.first else {
            self.traffic.lost += 1;
            return;
        };
        if target >= self.settings.hosts {
            self.traffic.in_vain += 1;
            return;
        }
        let (digest, tag) = (measure.digest, tag(to));
        if let Some(second) = arrivals.second {
            let letter = self.letters.insert(Letter { from: from.clone(), message: message.clone(), digest, tag });
            self.cause(host, self.now + second, target, Due::Deliver(letter));
        }
        let letter = self.letters.insert(Letter { from, message, digest, tag });
        self.cause(host, self.now + first, target, Due::Deliver(letter));
    }

    /// A message as it arrives, and its measures.
    ///
    /// # Panics
    /// When encoding and decoding changes it, or its measured length is not that of its encoding.
    fn encode(&self, message: Message) -> (Message, Measure) {
        if self.settings.wire == Wire::Sizes {
            let measure = measure(&message);
            return (message, measure);
        }
        let bytes = idlewood_scheduler::Message::Overlay(message).encode();
        match idlewood_scheduler::Message::decode(&bytes) {
            Ok(idlewood_scheduler::Message::Overlay(message)) => {
                let measure = measure(&message);
                assert_eq!(measure.bytes, bytes.len() as u64, "the measured length of {message:?}");
                (message, measure)
            }
            other => panic!("a peer sends what is decoded to {other:?}"),
        }
    }
}
