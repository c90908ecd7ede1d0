//! What a driver does to a world: starts and stops machines, and disturbs them and their links.

use std::time::Duration;

use idlewood_overlay::{Contact, Event, Overlay, PayloadCodec, State, Time};
use rand::{Rng, RngExt};

use super::machine::{NOWHERE, address, identity, tag};
use super::{Due, Memory, World};
use crate::condition::Pause;
use crate::event_queue::HostIndex;
use crate::host::EPOCH;
use crate::network::Network;
use crate::random::SmallStream;

/// Contacts of a starting machine, as an agent has some from its user and its last run.
const CONTACTS: usize = 3;
/// Candidates examined to find a member that can be reached.
const CONTACT_TRIES: usize = 8;

impl World {
    /// Starts a machine that is down; it joins through random ones that are up, if there are any.
    pub fn start(&mut self, host: HostIndex, memory: Memory) {
        let contacts: Vec<_> = (0..CONTACTS).filter_map(|_| self.somebody_else(host)).collect();
        self.start_through(host, memory, contacts.first().copied());
        for contact in contacts.into_iter().skip(1) {
            self.introduce(host, contact);
        }
    }

    /// Starts all machines, in waves that each double the grid: the machines of a wave start at random moments in it,
    /// and join through members. Returns at the end of the last wave; machines may still be joining.
    ///
    /// Starts only the first `hosts` machines. `look` sees the world after each start.
    pub fn grow(&mut self, hosts: u32, wave: Duration, mut look: impl FnMut(&Self)) {
        let micros = u64::try_from(wave.as_micros()).unwrap_or(u64::MAX).max(1);
        let mut rng = SmallStream::new(self.settings.seed, "growth", 0);
        let mut next = 0;
        while next < hosts {
            let end = next.saturating_mul(2).clamp(1, hosts);
            let mut starts: Vec<_> = (next..end).map(|host| (rng.random_range(0..micros), host)).collect();
            starts.sort_unstable();
            let begin = self.now;
            for (after, host) in starts {
                self.run_until(begin + Duration::from_micros(after));
                self.start(host, Memory::Kept);
                look(self);
            }
            self.run_until(begin + wave);
            next = end;
        }
    }

    /// Starts a machine that is down; it joins through `contact`, or is alone.
    ///
    /// # Panics
    /// When it is not down.
    pub fn start_through(&mut self, host: HostIndex, memory: Memory, contact: Option<HostIndex>) {
        self.count_time_up();
        let place = self.up.len() as u32;
        let now = self.now;
        let machine = &mut self.hosts[host as usize];
        assert!(machine.overlay.is_none(), "machine {host} is up");
        machine.life += 1;
        machine.started = now;
        machine.wake = Time::MAX;
        machine.messages = 0;
        machine.place = place;
        let mut wall = EPOCH + now.since(Time::ZERO);
        if let Some(condition) = &mut machine.condition {
            condition.restart();
            wall = condition.wall(wall);
        }
        let wall_ms = u64::try_from(wall.0 / 1000).unwrap_or(0);
        machine.incarnation = match memory {
            Memory::Kept => wall_ms.max(machine.incarnation + 1),
            Memory::Lost => wall_ms,
            Memory::Stale => machine.incarnation.saturating_sub(1),
            Memory::Stranger => {
                machine.identity += 1;
                wall_ms
            }
        };
        machine.tag = tag(identity(self.settings.seed, host, machine.identity));
        let (incarnation, life) = (machine.incarnation, machine.life);
        let number = u64::from(host) << 32 | u64::from(life);
        let seed = SmallStream::new(self.settings.seed, "peer", number).next_u64();
        let me = Contact { peer: self.peer_id(host), incarnation, address: address(host), nonce: None };
        let config = self.config.clone();
        let overlay = Overlay::new(config, self.grid, me, seed, Time::ZERO, PayloadCodec::WHOLE);
        let machine = &mut self.hosts[host as usize];
        machine.deadline = overlay.deadline().unwrap_or(Time::MAX);
        machine.overlay = Some(Box::new(overlay));
        self.up.push(host);
        match contact {
            Some(contact) => self.introduce(host, contact),
            None => self.arm(host),
        }
    }

    /// Gives a machine that is up another first contact.
    pub fn introduce(&mut self, host: HostIndex, contact: HostIndex) {
        let contact = Contact { peer: self.peer_id(contact), incarnation: 0, address: address(contact), nonce: None };
        self.give(host, Event::Bootstrap(contact), 1);
    }

    /// A random other machine that is up and can be reached by this one, from this one's stream: a member, if there is
    /// one. If chance finds none, the first of the list.
    fn somebody_else(&mut self, host: HostIndex) -> Option<HostIndex> {
        let (rng, somebody) = self.choose_somebody(host, self.hosts[host as usize].contact_rng.clone());
        self.hosts[host as usize].contact_rng = rng;
        somebody
    }

    fn choose_somebody(&self, host: HostIndex, mut contact_rng: SmallStream) -> (SmallStream, Option<HostIndex>) {
        let place = self.hosts[host as usize].place;
        let others = self.up.len() - usize::from(place != NOWHERE);
        let is_member = |host| self.overlay(host).is_some_and(|overlay| overlay.state() == State::Member);
        for _ in 0..CONTACT_TRIES.min(others) {
            let choice = contact_rng.random_range(0..others);
            let choice = self.up[if choice >= place as usize { choice + 1 } else { choice }];
            if self.network.reaches(host, choice) && is_member(choice) {
                return (contact_rng, Some(choice));
            }
        }
        let reachable = || self.up.iter().copied().filter(|other| *other != host && self.network.reaches(host, *other));
        let member = reachable().find(|other| is_member(*other));
        (contact_rng, member.or_else(|| reachable().next()))
    }

    /// Cuts the power of a machine.
    pub fn crash(&mut self, host: HostIndex) {
        self.take_down(host);
        let machine = &mut self.hosts[host as usize];
        if let Some(overlay) = machine.overlay.take() {
            // What a driver keeps on disk: an incarnation is durable before it is used.
            machine.incarnation = machine.incarnation.max(overlay.me().incarnation);
        }
        (machine.wake, machine.deadline) = (Time::MAX, Time::MAX);
        if let Some(condition) = &mut machine.condition {
            condition.pause = None;
        }
        for due in self.deferred.remove(&host).unwrap_or_default() {
            if let Due::Deliver(letter) | Due::Late(letter) = due {
                self.letters.take(letter);
                self.traffic.in_vain += 1;
            }
        }
    }

    /// Asks a machine to leave in good order; it goes down when its peer is done.
    pub fn leave(&mut self, host: HostIndex) {
        if self.is_up(host) {
            self.take_down(host);
            self.give(host, Event::Leave, 2);
        }
    }

    /// Removes it from those that are up.
    fn take_down(&mut self, host: HostIndex) {
        let place = std::mem::replace(&mut self.hosts[host as usize].place, NOWHERE);
        if place == NOWHERE {
            return;
        }
        self.count_time_up();
        self.up.swap_remove(place as usize);
        if let Some(moved) = self.up.get(place as usize) {
            self.hosts[*moved as usize].place = place;
        }
    }

    // ---- faults ----

    /// The links.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The links; changes affect messages sent from now on.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Shuts the lid of a machine that is up: it handles nothing, its clocks run.
    pub fn pause(&mut self, host: HostIndex, pause: Pause) {
        if self.hosts[host as usize].overlay.is_some() {
            self.hosts[host as usize].condition_mut().pause = Some(pause);
        }
    }

    /// Opens the lid of a machine again.
    pub fn resume(&mut self, host: HostIndex) {
        if self.hosts[host as usize].pause().is_none() {
            return;
        }
        self.hosts[host as usize].condition_mut().pause = None;
        let now = self.now;
        for due in self.deferred.remove(&host).unwrap_or_default() {
            self.cause(host, now, host, due);
        }
        self.arm(host);
    }

    /// From now on a machine handles everything with this delay; zero: at once again.
    pub fn slow_down(&mut self, host: HostIndex, by: Duration) {
        self.hosts[host as usize].condition_mut().slow = by;
    }

    /// The wall clock of a machine jumps, either way; forward, its monotonic clock leaps, too.
    pub fn jump_clock(&mut self, host: HostIndex, by_us: i64) {
        self.hosts[host as usize].condition_mut().jump(by_us);
        self.arm(host);
    }
}
