//! One look-up: finding the neighbours of a place on the line in O(log N) steps.
//!
//! We ask the nearest known peer on either side of the place for nearer ones, until the nearest on both sides have
//! answered. Fingers make that O(log N) questions. `lookups` says when there is a look-up, and whom it asks first.

use std::time::Duration;

use crate::identity::{Member, PeerId, PositionKey};
use crate::time::Time;

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
    key: PositionKey,
    contact: Member,
    status: Status,
    /// Asked even if others are nearer.
    is_seed: bool,
}

impl Candidate {
    fn expires(&self) -> Option<Time> {
        match self.status {
            Status::Asked { expires, .. } => Some(expires),
            Status::New | Status::Answered | Status::Failed => None,
        }
    }

    /// Whether it failed, or its answer is overdue.
    fn is_silent(&self) -> bool {
        matches!(self.status, Status::Failed | Status::Asked { tries: TRIES.., .. })
    }
}

/// A look-up under way.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    pub(crate) key: PositionKey,
    pub(crate) nonce: u32,
    /// In the order of the line.
    candidates: Vec<Candidate>,
    asks: u32,
    answers: u32,
    /// When the first answer is overdue.
    next: Time,
    /// Asks on both sides of the place at once; else the nearer side first, which takes half as many messages.
    is_urgent: bool,
}

impl Lookup {
    pub(crate) fn new(key: PositionKey, nonce: u32, is_urgent: bool) -> Self {
        Self { key, nonce, candidates: Vec::new(), asks: 0, answers: 0, next: Time::MAX, is_urgent }
    }

    /// Whether any peer has answered.
    pub(crate) fn has_answers(&self) -> bool {
        self.answers > 0
    }

    /// From now on the look-up asks on both sides at once.
    pub(crate) fn hurry(&mut self) {
        self.is_urgent = true;
    }

    /// Candidates in the order of the line, each place once, and within bounds.
    #[cfg(debug_assertions)]
    pub(crate) fn assert_ordered(&self) {
        debug_assert!(self.candidates.len() <= CANDIDATES_MAX && self.asks <= ASKS_MAX, "a look-up without bounds");
        let is_sorted = self.candidates.is_sorted_by(|one, other| one.key < other.key);
        debug_assert!(is_sorted, "candidates out of order");
        let first = self.candidates.iter().filter_map(Candidate::expires).fold(Time::MAX, Time::min);
        debug_assert!(self.next <= first, "an answer that is overdue is not noticed");
    }

    fn place(&self, key: &PositionKey) -> Result<usize, usize> {
        self.candidates.binary_search_by(|candidate| candidate.key.cmp(key))
    }

    /// Adds a peer; one that is `known` need not be asked. A candidate that has answered keeps its place, whatever
    /// others say.
    pub(crate) fn add(&mut self, key: PositionKey, contact: Member, known: bool) {
        let has_answered = |other: &Candidate| other.contact.peer == contact.peer && other.status == Status::Answered;
        if let Err(place) = self.place(&key)
            && self.candidates.len() < CANDIDATES_MAX
            && !self.candidates.iter().any(has_answered)
        {
            let status = if known { Status::Answered } else { Status::New };
            self.candidates.insert(place, Candidate { key, contact, status, is_seed: false });
        }
    }

    /// Adds a peer that must be asked even if it was known.
    pub(crate) fn seed(&mut self, key: PositionKey, contact: Member) {
        let candidate = Candidate { key, contact, status: Status::New, is_seed: true };
        match self.place(&key) {
            Ok(place) => self.candidates[place] = candidate,
            Err(place) if self.candidates.len() < CANDIDATES_MAX => self.candidates.insert(place, candidate),
            Err(_) => {}
        }
    }

    /// The nearest candidate on either side that neither failed nor is late with its answer.
    pub(crate) fn nearest(&self) -> impl Iterator<Item = &Member> {
        self.nearest_places().into_iter().flatten().map(|place| &self.candidates[place].contact)
    }

    fn nearest_places(&self) -> [Option<usize>; 2] {
        let end = self.place(&self.key).unwrap_or_else(|place| place);
        let (below, above) = self.candidates.split_at(end);
        let lives = |candidate: &Candidate| !candidate.is_silent();
        [below.iter().rposition(lives), above.iter().position(lives).map(|place| end + place)]
    }

    /// The nearest candidates to ask next: both if urgent, else the nearer one that has not answered.
    fn next_places(&self) -> [Option<usize>; 2] {
        let nearest = self.nearest_places();
        if self.is_urgent {
            return nearest;
        }
        let distance = |place: &usize| self.candidates[*place].key.head().abs_diff(self.key.head());
        let is_open = |place: &usize| self.candidates[*place].status != Status::Answered;
        [nearest.into_iter().flatten().filter(is_open).min_by_key(distance), None]
    }

    /// The peers to ask now; they count as asked until `expires`.
    pub(crate) fn ask(&mut self, expires: Time) -> Vec<Member> {
        let mut asked = Vec::new();
        let nearest = self.next_places();
        for (place, candidate) in self.candidates.iter_mut().enumerate() {
            let is_next = candidate.is_seed || nearest.contains(&Some(place));
            if is_next && candidate.status == Status::New && self.asks < ASKS_MAX {
                self.asks += 1;
                candidate.status = Status::Asked { tries: 1, expires };
                asked.push(candidate.contact.clone());
                self.next = self.next.min(expires);
            }
        }
        asked
    }

    /// Whether the nearest on both sides have answered, or the questions are used up, and no seed is still to answer.
    pub(crate) fn is_done(&self) -> bool {
        let waits = |place: usize| match self.candidates[place].status {
            Status::Asked { .. } => true,
            Status::New => self.asks < ASKS_MAX,
            Status::Answered | Status::Failed => false,
        };
        let awaits = |candidate: &Candidate| {
            candidate.is_seed && !candidate.is_silent() && matches!(candidate.status, Status::Asked { .. })
        };
        !self.nearest_places().into_iter().flatten().any(waits) && !self.candidates.iter().any(awaits)
    }

    /// Notes an answer of `sender`, who stands at `key`; false if it was not asked. Candidates that name it with
    /// another nonce, and so at another place, are dropped, and the question moves to its own place.
    pub(crate) fn answered(&mut self, key: &PositionKey, sender: &Member) -> bool {
        let is_asked =
            |other: &Candidate| other.contact.peer == sender.peer && matches!(other.status, Status::Asked { .. });
        // The candidate at its own place first: others are hearsay.
        let own = self.place(key).ok().filter(|place| is_asked(&self.candidates[*place]));
        let Some(asked) = own.or_else(|| self.candidates.iter().position(is_asked)) else { return false };
        let mut candidate = self.candidates[asked].clone();
        candidate.status = Status::Answered;
        if candidate.key != *key {
            (candidate.key, candidate.contact) = (*key, sender.clone());
        }
        self.candidates.retain(|other| other.contact.peer != sender.peer);
        let place = self.place(key).unwrap_or_else(|place| place);
        self.candidates.insert(place, candidate);
        self.answers += 1;
        self.refresh();
        true
    }

    fn refresh(&mut self) {
        self.next = self.candidates.iter().filter_map(Candidate::expires).fold(Time::MAX, Time::min);
    }

    /// When the first answer is overdue.
    pub(crate) fn deadline(&self) -> Time {
        self.next
    }

    /// Removes expired questions: the candidates to ask once more, and those given up.
    pub(crate) fn expire(&mut self, now: Time, timeout: Duration) -> (Vec<Member>, Vec<PeerId>) {
        let (mut again, mut failed) = (Vec::new(), Vec::new());
        for candidate in &mut self.candidates {
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
        self.refresh();
        (again, failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(byte: u8) -> PeerId {
        PeerId([byte; 32])
    }

    fn seed(lookup: &mut Lookup, byte: u8) {
        lookup.seed(PositionKey([byte; 32]), peer(byte).into());
    }

    fn add(lookup: &mut Lookup, byte: u8) {
        lookup.add(PositionKey([byte; 32]), peer(byte).into(), false);
    }

    fn ask(lookup: &mut Lookup) -> Vec<u8> {
        lookup.ask(Time::from_micros(500_000)).iter().map(|contact| contact.peer.0[0]).collect()
    }

    #[test]
    fn a_look_up_asks_the_nearest_on_either_side_until_they_answer() {
        let mut lookup = Lookup::new(PositionKey([100; 32]), 1, true);
        seed(&mut lookup, 10);
        assert_eq!(ask(&mut lookup), [10]);
        assert!(!lookup.is_done());
        assert!(lookup.answered(&PositionKey([10; 32]), &peer(10).into()));
        [50, 90, 120, 200].iter().for_each(|byte| add(&mut lookup, *byte));
        assert_eq!(ask(&mut lookup), [90, 120]);
        assert!(lookup.answered(&PositionKey([120; 32]), &peer(120).into()));
        assert!(!lookup.is_done());
        assert!(lookup.answered(&PositionKey([90; 32]), &peer(90).into()));
        assert!(lookup.is_done());
    }

    /// It answers with its own nonce, which is not the one that others gave it.
    #[test]
    fn an_answering_peer_moves_from_a_claimed_place_to_its_own() {
        let mut lookup = Lookup::new(PositionKey([100; 32]), 1, true);
        lookup.seed(PositionKey([99; 32]), peer(10).into());
        add(&mut lookup, 90);
        assert_eq!(ask(&mut lookup), [10]);
        assert!(lookup.answered(&PositionKey([10; 32]), &peer(10).into()));
        assert!(!lookup.answered(&PositionKey([11; 32]), &peer(11).into()), "nobody asked it");
        assert_eq!(ask(&mut lookup), [90], "it is not the nearest any more");
        assert_eq!(lookup.candidates.iter().map(|other| other.key.0[0]).collect::<Vec<_>>(), [10, 90]);
    }

    /// A peer named with another nonce: neither does that displace it before its answer, nor move it after.
    #[test]
    fn hearsay_does_not_displace_an_asked_peer() {
        // Asked at its own place, or at the one that others claim.
        for asked in [10, 99] {
            let mut lookup = Lookup::new(PositionKey([100; 32]), 1, true);
            lookup.seed(PositionKey([asked; 32]), peer(10).into());
            assert_eq!(ask(&mut lookup), [10]);
            for named in [10, 98, 99] {
                lookup.add(PositionKey([named; 32]), peer(10).into(), false);
            }
            assert!(lookup.answered(&PositionKey([10; 32]), &peer(10).into()), "it was asked at {asked}");
            lookup.add(PositionKey([97; 32]), peer(10).into(), false);
            let places: Vec<_> = lookup.candidates.iter().map(|other| (other.key.0[0], other.status)).collect();
            assert_eq!(places, [(10, Status::Answered)], "at its own place, and nowhere else");
            assert!(lookup.is_done(), "nobody is waited for any more");
            assert!(!lookup.answered(&PositionKey([10; 32]), &peer(10).into()), "it counts once");
        }
    }

    #[test]
    fn asks_every_seed_however_far() {
        let mut lookup = Lookup::new(PositionKey([100; 32]), 1, true);
        [10, 90, 200].iter().for_each(|byte| seed(&mut lookup, *byte));
        assert_eq!(ask(&mut lookup), [10, 90, 200]);
        for byte in [90, 200] {
            assert!(lookup.answered(&PositionKey([byte; 32]), &peer(byte).into()));
        }
        assert!(!lookup.is_done());
        lookup.expire(Time::from_micros(500_000), Duration::from_millis(500));
        assert!(lookup.is_done(), "one that is late is not waited for");
    }

    #[test]
    fn a_look_up_that_is_not_urgent_asks_one_at_a_time() {
        let mut lookup = Lookup::new(PositionKey([100; 32]), 1, false);
        [80, 90, 120].iter().for_each(|byte| add(&mut lookup, *byte));
        assert_eq!(ask(&mut lookup), [90], "the nearer side first");
        assert_eq!(ask(&mut lookup), [0; 0], "while it may still answer");
        assert!(lookup.answered(&PositionKey([90; 32]), &peer(90).into()) && !lookup.is_done());
        add(&mut lookup, 99);
        assert_eq!(ask(&mut lookup), [99]);
        lookup.expire(Time::from_micros(500_000), Duration::from_millis(500));
        assert_eq!(ask(&mut lookup), [120], "one that is late is not waited for");
        assert!(lookup.answered(&PositionKey([120; 32]), &peer(120).into()) && lookup.is_done());
    }

    #[test]
    fn candidates_and_questions_are_bounded() {
        let mut lookup = Lookup::new(PositionKey([100; 32]), 1, true);
        let peer = |number: u32| PeerId(*blake3::hash(&number.to_le_bytes()).as_bytes());
        for number in 0..CANDIDATES_MAX as u32 * 2 {
            lookup.seed(PositionKey(peer(number).0), peer(number).into());
            lookup.add(PositionKey(peer(number + 1_000).0), peer(number + 1_000).into(), false);
        }
        assert_eq!(lookup.candidates.len(), CANDIDATES_MAX);
        assert!(lookup.candidates.is_sorted_by_key(|candidate| candidate.key));
        let asked: usize = (0..10).map(|_| ask(&mut lookup).len()).sum();
        assert_eq!(asked, ASKS_MAX as usize);
    }

    #[test]
    fn a_look_up_passes_over_silent_peers() {
        let mut lookup = Lookup::new(PositionKey([100; 32]), 1, true);
        [50, 90].iter().for_each(|byte| add(&mut lookup, *byte));
        assert_eq!(ask(&mut lookup), [90]);
        let timeout = Duration::from_millis(500);
        assert_eq!(lookup.expire(Time::from_micros(500_000), timeout).0.len(), 1);
        assert_eq!(ask(&mut lookup), [50], "meanwhile");
        assert_eq!(lookup.expire(Time::from_micros(1_000_000), timeout).1, [PeerId([90; 32])]);
    }
}
