//! Probes under way, by target.
//!
//! Tries are counted per target and not per message, so that a heartbeat shorter than the timeout still finds a crash
//! (prototype: 55 % → 93 % of paths available). One table serves neighbours, candidates and lost peers: what a
//! failure means depends on what the target is to us by then.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Contact, PeerId, Time};

/// More at once are not begun: candidates come again by hearsay, neighbours by their heartbeat.
const PROBES_MAX: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) contact: Contact,
    pub(crate) nonce: u32,
    /// Pings sent.
    pub(crate) tries: u32,
    pub(crate) tries_max: u32,
    pub(crate) sent: Time,
    /// When the last ping counts as lost.
    pub(crate) expires: Time,
    pub(crate) timeout: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Probes {
    by_target: BTreeMap<PeerId, Probe>,
}

impl Probes {
    pub(crate) fn get(&self, peer: PeerId) -> Option<&Probe> {
        self.by_target.get(&peer)
    }

    pub(crate) fn contains(&self, peer: PeerId) -> bool {
        self.by_target.contains_key(&peer)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_target.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Probe> {
        self.by_target.values()
    }

    /// False when the table is full.
    pub(crate) fn begin(&mut self, probe: Probe) -> bool {
        if self.by_target.len() >= PROBES_MAX && !self.contains(probe.contact.peer) {
            return false;
        }
        self.by_target.insert(probe.contact.peer, probe);
        true
    }

    pub(crate) fn end(&mut self, peer: PeerId) -> Option<Probe> {
        self.by_target.remove(&peer)
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.iter().map(|probe| probe.expires).min()
    }

    /// A probe whose last ping is lost: with tries left it counts one more and is returned to be sent again, else it
    /// is removed.
    pub(crate) fn expire(&mut self, now: Time) -> Option<Expired> {
        let peer = self.iter().find(|probe| probe.expires <= now)?.contact.peer;
        let probe = self.by_target.get_mut(&peer)?;
        if probe.tries < probe.tries_max {
            probe.tries += 1;
            probe.expires = now + probe.timeout;
            return Some(Expired::Again { to: probe.contact.clone(), nonce: probe.nonce });
        }
        self.by_target.remove(&peer).map(|probe| Expired::Failed(probe.contact))
    }
}

#[derive(Debug)]
pub(crate) enum Expired {
    /// Ping again.
    Again { to: Contact, nonce: u32 },
    /// No try was answered.
    Failed(Contact),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_target_fails_after_its_tries() {
        let contact = Contact { peer: PeerId([1; 32]), incarnation: 1, address: "".into() };
        let timeout = Duration::from_millis(250);
        let mut probes = Probes::default();
        let expires = Time::ZERO + timeout;
        probes.begin(Probe { contact, nonce: 7, tries: 1, tries_max: 3, sent: Time::ZERO, expires, timeout });
        let mut pings = 1;
        loop {
            let now = probes.deadline().unwrap();
            match probes.expire(now).unwrap() {
                Expired::Again { nonce, .. } => pings += u32::from(nonce == 7),
                Expired::Failed(_) => {
                    assert_eq!((pings, now.as_micros()), (3, 750_000));
                    break;
                }
            }
        }
        assert!(probes.is_empty());
    }
}
