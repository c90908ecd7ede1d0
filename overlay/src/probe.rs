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
    /// Of the first ping; the others have the next numbers.
    pub(crate) nonce: u32,
    /// Pings sent.
    pub(crate) tries: u32,
    pub(crate) tries_max: u32,
    /// When the first ping was sent.
    pub(crate) sent: Time,
    /// When the last ping was sent.
    sent_last: Time,
    /// When the last ping counts as lost.
    pub(crate) expires: Time,
    /// How long the last ping waits for its answer.
    timeout: Duration,
}

impl Probe {
    /// A probe whose first ping is sent now.
    pub(crate) fn new(now: Time, contact: Member, nonce: u32, tries_max: u32, timeout: Duration) -> Self {
        Self { contact, nonce, tries: 1, tries_max, sent: now, sent_last: now, expires: now + timeout, timeout }
    }

    /// Whether this is the nonce of a ping of this probe that was sent.
    pub(crate) fn is_answered_by(&self, nonce: u32) -> bool {
        nonce.wrapping_sub(self.nonce) < self.tries
    }

    /// What the answer with this nonce took, if that is known: it is of the first and of the last ping.
    pub(crate) fn round_trip(&self, nonce: u32, now: Time) -> Option<Duration> {
        let tries_before = nonce.wrapping_sub(self.nonce);
        if tries_before == 0 {
            return Some(now.since(self.sent));
        }
        (tries_before + 1 == self.tries).then(|| now.since(self.sent_last))
    }
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
            // What answers to earlier pings took is not to be measured.
            let nonce = probe.nonce.wrapping_add(probe.tries);
            *probe = Probe::new(now, probe.contact.clone(), nonce, probe.tries_max, probe.timeout);
        }
        self.refresh();
        self.list.iter().map(|probe| probe.contact.clone()).collect()
    }

    /// Takes a probe whose last ping is lost: with tries remaining it counts one more and is returned for another ping,
    /// else it is removed. The last ping waits twice as long as the others, but no longer than `timeout_max`.
    pub(crate) fn expire(&mut self, now: Time, timeout_max: Duration) -> Option<Expired> {
        if self.next > now {
            return None;
        }
        let probe = self.list.iter_mut().find(|probe| probe.expires <= now)?;
        if probe.tries < probe.tries_max {
            let nonce = probe.nonce.wrapping_add(probe.tries);
            probe.tries += 1;
            // Others make up for a ping that is lost, but none for the last.
            if probe.tries == probe.tries_max {
                probe.timeout = (probe.timeout * 2).min(timeout_max).max(probe.timeout);
            }
            (probe.sent_last, probe.expires) = (now, now + probe.timeout);
            let retry = Expired::Retry { to: probe.contact.clone(), nonce, tries: probe.tries };
            self.refresh();
            return Some(retry);
        }
        let peer = probe.contact.peer;
        self.end(peer).map(|probe| Expired::Failed { waited: now.since(probe.sent), contact: probe.contact })
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Expired {
    /// Send another ping; `tries` counts it.
    Retry { to: Member, nonce: u32, tries: u32 },
    /// No try was answered in all that time.
    Failed { contact: Member, waited: Duration },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_probes_is_bounded() {
        let mut probes = Probes::default();
        let mut begin = |number: u32| {
            let peer = PeerId(*blake3::hash(&number.to_le_bytes()).as_bytes());
            probes.begin(Probe::new(Time::ZERO, peer.into(), 7, 3, Duration::from_secs(1)))
        };
        assert!((0..PROBES_MAX as u32).all(&mut begin));
        assert!(!begin(PROBES_MAX as u32), "there is no room");
        assert!(begin(5), "one under way may begin anew");
        assert_eq!(probes.list.len(), PROBES_MAX);
    }

    #[test]
    fn a_silent_target_fails_after_its_tries_of_which_the_last_waits_twice_as_long() {
        let failed_after = |timeout_max: Duration| {
            let mut probes = Probes::default();
            let nonce = u32::MAX;
            probes.begin(Probe::new(Time::ZERO, PeerId([1; 32]).into(), nonce, 3, Duration::from_millis(250)));
            let mut nonces = vec![nonce];
            loop {
                let now = probes.deadline();
                match probes.expire(now, timeout_max).unwrap() {
                    Expired::Retry { nonce, .. } => nonces.push(nonce),
                    Expired::Failed { waited, .. } => {
                        assert!(probes.is_empty());
                        assert_eq!(nonces, [u32::MAX, 0, 1], "each ping has its own number");
                        assert_eq!(Time::ZERO + waited, now);
                        break now.as_micros();
                    }
                }
            }
        };
        assert_eq!(failed_after(Duration::from_secs(4)), 250_000 + 250_000 + 500_000);
        assert_eq!(failed_after(Duration::from_millis(300)), 250_000 + 250_000 + 300_000);
    }

    #[test]
    fn an_answer_is_measured_where_its_ping_is_known() {
        let mut probes = Probes::default();
        let contact: Member = PeerId([1; 32]).into();
        probes.begin(Probe::new(Time::ZERO, contact.clone(), 7, 3, Duration::from_secs(1)));
        probes.expire(probes.deadline(), Duration::from_secs(4));
        probes.expire(probes.deadline(), Duration::from_secs(4));
        let probe = probes.get(contact.peer).unwrap();
        let now = Time::ZERO + Duration::from_millis(2_500);
        let round_trip = |nonce| probe.is_answered_by(nonce).then(|| probe.round_trip(nonce, now));
        // The pings were sent after 0, 1 and 2 s.
        let (first, last) = (Duration::from_millis(2_500), Duration::from_millis(500));
        assert_eq!([7, 8, 9].map(round_trip), [Some(Some(first)), Some(None), Some(Some(last))]);
        assert_eq!([6, 10].map(round_trip), [None, None]);
    }
}
