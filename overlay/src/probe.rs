//! Probes under way, by target.
//!
//! Tries are counted per target and not per message, so that a heartbeat shorter than the timeout still finds a crash
//! (prototype: 55 % → 93 % of paths available). One table serves neighbours, candidates and lost peers: what a
//! failure means depends on what the target is to us by then.

use std::time::Duration;

use crate::identity::{Member, PeerId};
use crate::time::Time;

/// Further probes are not begun: candidates are named again, neighbours come up with their next heartbeat.
const PROBES_MAX: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) contact: Member,
    pub(crate) nonce: u32,
    /// Pings sent.
    pub(crate) tries: u32,
    pub(crate) tries_max: u32,
    pub(crate) sent: Time,
    /// When the last ping counts as lost.
    pub(crate) expires: Time,
    pub(crate) timeout: Duration,
}

/// A list, since there are few at a time.
#[derive(Clone, Debug)]
pub(crate) struct Probes {
    list: Vec<Probe>,
    next: Time,
}

impl Default for Probes {
    fn default() -> Self {
        Self { list: Vec::new(), next: Time::MAX }
    }
}

impl Probes {
    pub(crate) fn get(&self, peer: PeerId) -> Option<&Probe> {
        self.list.iter().find(|probe| probe.contact.peer == peer)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Probe> {
        self.list.iter()
    }

    /// One probe of each peer, and the first that expires is known.
    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self) {
        debug_assert!(self.list.len() <= PROBES_MAX, "{} probes", self.list.len());
        let first = self.list.iter().map(|probe| probe.expires).fold(Time::MAX, Time::min);
        debug_assert_eq!(self.next, first, "which probe expires first");
        let mut peers: Vec<PeerId> = self.list.iter().map(|probe| probe.contact.peer).collect();
        peers.sort_unstable();
        debug_assert!(peers.is_sorted_by(|one, other| one < other), "a peer is probed twice");
    }

    /// Registers a probe. False when the table is full.
    pub(crate) fn begin(&mut self, probe: Probe) -> bool {
        if let Some(known) = self.list.iter_mut().find(|known| known.contact.peer == probe.contact.peer) {
            *known = probe;
            self.refresh();
            return true;
        }
        let has_room = self.list.len() < PROBES_MAX;
        if has_room {
            self.next = self.next.min(probe.expires);
            self.list.push(probe);
        }
        has_room
    }

    pub(crate) fn end(&mut self, peer: PeerId) -> Option<Probe> {
        let place = self.list.iter().position(|probe| probe.contact.peer == peer)?;
        let probe = self.list.swap_remove(place);
        if self.list.is_empty() {
            // Release the memory of a burst.
            self.list = Vec::new();
        }
        self.refresh();
        Some(probe)
    }

    fn refresh(&mut self) {
        self.next = self.list.iter().map(|probe| probe.expires).fold(Time::MAX, Time::min);
    }

    /// When the next ping counts as lost.
    pub(crate) fn deadline(&self) -> Time {
        self.next
    }

    /// A witness counts as tries: the probe fails with the next lost ping.
    pub(crate) fn is_last_try(&mut self, peer: PeerId) {
        if let Some(probe) = self.list.iter_mut().find(|probe| probe.contact.peer == peer) {
            probe.tries_max = probe.tries_max.min(probe.tries.max(2));
        }
    }

    /// A pause passed in which no peer could answer: restarts all probes; returns their targets.
    pub(crate) fn begin_anew(&mut self, now: Time) -> Vec<Member> {
        for probe in &mut self.list {
            (probe.tries, probe.sent) = (1, now);
            probe.expires = now + probe.timeout;
        }
        self.refresh();
        self.list.iter().map(|probe| probe.contact.clone()).collect()
    }

    /// Takes a probe whose last ping is lost: with tries remaining it counts one more and is returned for another ping,
    /// else it is removed.
    pub(crate) fn expire(&mut self, now: Time) -> Option<Expired> {
        if self.next > now {
            return None;
        }
        let probe = self.list.iter_mut().find(|probe| probe.expires <= now)?;
        if probe.tries < probe.tries_max {
            probe.tries += 1;
            probe.expires = now + probe.timeout;
            let retry = Expired::Retry { to: probe.contact.clone(), nonce: probe.nonce, tries: probe.tries };
            self.refresh();
            return Some(retry);
        }
        let peer = probe.contact.peer;
        self.end(peer).map(|probe| Expired::Failed(probe.contact))
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Expired {
    /// Send another ping; `tries` counts it.
    Retry { to: Member, nonce: u32, tries: u32 },
    /// No try was answered.
    Failed(Member),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_probes_is_bounded() {
        let mut probes = Probes::default();
        let mut begin = |number: u32| {
            let peer = PeerId(*blake3::hash(&number.to_le_bytes()).as_bytes());
            let (sent, timeout) = (Time::ZERO, Duration::from_secs(1));
            probes.begin(Probe {
                contact: peer.into(),
                nonce: 7,
                tries: 1,
                tries_max: 3,
                sent,
                expires: sent + timeout,
                timeout,
            })
        };
        assert!((0..PROBES_MAX as u32).all(&mut begin));
        assert!(!begin(PROBES_MAX as u32), "there is no room");
        assert!(begin(5), "one under way may begin anew");
        assert_eq!(probes.list.len(), PROBES_MAX);
    }

    #[test]
    fn a_silent_target_fails_after_its_tries() {
        let contact = PeerId([1; 32]).into();
        let timeout = Duration::from_millis(250);
        let mut probes = Probes::default();
        let expires = Time::ZERO + timeout;
        probes.begin(Probe { contact, nonce: 7, tries: 1, tries_max: 3, sent: Time::ZERO, expires, timeout });
        let mut pings = 1;
        loop {
            let now = probes.deadline();
            match probes.expire(now).unwrap() {
                Expired::Retry { nonce, .. } => pings += u32::from(nonce == 7),
                Expired::Failed(_) => {
                    assert_eq!((pings, now.as_micros()), (3, 750_000));
                    break;
                }
            }
        }
        assert!(probes.is_empty());
    }
}
