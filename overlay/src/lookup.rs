//! Finding a place on the line, step by step.
//!
//! We ask the nearest known peer on either side of the place for those it knows nearer, until the nearest on both
//! sides have answered. Fingers make that O(log N) questions. The own key is looked up to join, after changes next to
//! us, when a lost peer answers again, and once a minute: whoever the line forgot comes back that way.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Contact, Member, PeerId, PositionKey, Time};

/// Questions that one look-up may ask.
const ASKS_MAX: u32 = 64;
/// Candidates remembered on one look-up.
const CANDIDATES_MAX: usize = 128;
/// Times that one candidate is asked.
const TRIES: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    New,
    Asked { tries: u32, expires: Time },
    Answered,
    Failed,
}

#[derive(Clone, Debug)]
struct Candidate {
    contact: Contact,
    status: Status,
}

/// A look-up under way.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) key: PositionKey,
    pub(crate) nonce: u32,
    candidates: BTreeMap<PositionKey, Candidate>,
    asks: u32,
}

impl Lookup {
    pub(crate) fn new(key: PositionKey, nonce: u32) -> Self {
        Self { key, nonce, candidates: BTreeMap::new(), asks: 0 }
    }

    /// Adds a peer; one that is `known` need not be asked.
    pub(crate) fn add(&mut self, member: Member, known: bool) {
        if self.candidates.len() < CANDIDATES_MAX {
            let status = if known { Status::Answered } else { Status::New };
            self.candidates.entry(member.key).or_insert(Candidate { contact: member.contact, status });
        }
    }

    /// Adds a peer that must be asked even if it was known.
    pub(crate) fn seed(&mut self, member: Member) {
        self.candidates.insert(member.key, Candidate { contact: member.contact, status: Status::New });
    }

    /// The nearest candidate on either side that did not fail.
    pub(crate) fn nearest(&self) -> impl Iterator<Item = &Contact> {
        self.nearest_keys().into_iter().flatten().filter_map(|key| Some(&self.candidates.get(&key)?.contact))
    }

    fn nearest_keys(&self) -> [Option<PositionKey>; 2] {
        let lives = |(key, candidate): (&PositionKey, &Candidate)| (candidate.status != Status::Failed).then_some(*key);
        [self.candidates.range(..self.key).rev().find_map(lives), self.candidates.range(self.key..).find_map(lives)]
    }

    /// Whom to ask now; they count as asked until `expires`.
    pub(crate) fn ask(&mut self, expires: Time) -> Vec<Contact> {
        let mut asked = Vec::new();
        for key in self.nearest_keys().into_iter().flatten() {
            if let Some(candidate) = self.candidates.get_mut(&key)
                && candidate.status == Status::New
                && self.asks < ASKS_MAX
            {
                self.asks += 1;
                candidate.status = Status::Asked { tries: 1, expires };
                asked.push(candidate.contact.clone());
            }
        }
        asked
    }

    /// Whether the nearest on both sides have answered, or we asked enough.
    pub(crate) fn is_done(&self) -> bool {
        let waits = |key| match self.candidates.get(&key).map(|candidate| candidate.status) {
            Some(Status::Asked { .. }) => true,
            Some(Status::New) => self.asks < ASKS_MAX,
            Some(Status::Answered | Status::Failed) | None => false,
        };
        !self.nearest_keys().into_iter().flatten().any(waits)
    }

    /// Whether `peer` was asked; it has answered now.
    pub(crate) fn answered(&mut self, key: &PositionKey, peer: PeerId) -> bool {
        match self.candidates.get_mut(key) {
            Some(candidate) if candidate.contact.peer == peer && matches!(candidate.status, Status::Asked { .. }) => {
                candidate.status = Status::Answered;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        let expiry = |candidate: &Candidate| match candidate.status {
            Status::Asked { expires, .. } => Some(expires),
            Status::New | Status::Answered | Status::Failed => None,
        };
        self.candidates.values().filter_map(expiry).min()
    }

    /// Candidates whose answer is overdue: to be asked again, and those given up.
    pub(crate) fn expire(&mut self, now: Time, timeout: Duration) -> (Vec<Contact>, Vec<PeerId>) {
        let (mut again, mut failed) = (Vec::new(), Vec::new());
        for candidate in self.candidates.values_mut() {
            let Status::Asked { tries, expires } = candidate.status else { continue };
            if expires > now {
                continue;
            }
            if tries < TRIES {
                candidate.status = Status::Asked { tries: tries + 1, expires: now + timeout };
                again.push(candidate.contact.clone());
            } else {
                candidate.status = Status::Failed;
                failed.push(candidate.contact.peer);
            }
        }
        (again, failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GridId;

    fn member(byte: u8) -> Member {
        let contact = Contact { peer: PeerId([byte; 32]), incarnation: 1, address: "".into() };
        Member { key: PositionKey([byte; 32]), ..Member::new(GridId([0; 32]), contact) }
    }

    fn ask(lookup: &mut Lookup) -> Vec<u8> {
        lookup.ask(Time::from_micros(500_000)).iter().map(|contact| contact.peer.0[0]).collect()
    }

    #[test]
    fn asks_the_nearest_on_either_side_until_they_have_answered() {
        let mut lookup = Lookup::new(PositionKey([100; 32]), 1);
        lookup.seed(member(10));
        assert_eq!(ask(&mut lookup), [10]);
        assert!(!lookup.is_done());
        assert!(lookup.answered(&member(10).key, member(10).contact.peer));
        [50, 90, 120, 200].iter().for_each(|byte| lookup.add(member(*byte), false));
        assert_eq!(ask(&mut lookup), [90, 120]);
        assert!(lookup.answered(&member(120).key, member(120).contact.peer));
        assert!(!lookup.is_done());
        assert!(lookup.answered(&member(90).key, member(90).contact.peer));
        assert!(lookup.is_done());
    }

    #[test]
    fn passes_over_those_that_do_not_answer() {
        let mut lookup = Lookup::new(PositionKey([100; 32]), 1);
        [50, 90].iter().for_each(|byte| lookup.seed(member(*byte)));
        assert_eq!(ask(&mut lookup), [90]);
        let timeout = Duration::from_millis(500);
        assert_eq!(lookup.expire(Time::from_micros(500_000), timeout).0.len(), 1);
        assert_eq!(lookup.expire(Time::from_micros(1_000_000), timeout).1, [PeerId([90; 32])]);
        assert_eq!(ask(&mut lookup), [50]);
    }
}
