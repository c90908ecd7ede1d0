//! Messages that wait before they are sent: acknowledgements, for others that follow within milliseconds, and messages for
//! which the driver has no room, until it has.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::{Member, PeerId, Time};

use crate::bag::{BagId, HELD_INTERVALS_MAX};
use crate::message::Message;
use crate::ranges::IntervalSet;

/// How long an acknowledgement waits at most for others. Our choice: the results of one message are journalled within that
/// time, and an executor waits for seconds before it sends results again.
const PATIENCE: Duration = Duration::from_millis(20);
/// Most acknowledgements that wait. Those beyond it are sent at once.
const ACKS_MAX: usize = 4096;
/// Most peers for which messages wait, and most messages for one; those beyond are lost, as messages on the way may be. Our
/// choice: the driver's own room is far larger, and the most frequent messages, `Results` and `ResultsAck`, are not
/// counted.
const CROWDS_MAX: usize = 1024;
const HELD_BACK_MAX: usize = 32;

/// The subject of one `ResultsAck`: results of one attempt of one bag, to one machine.
type Subject = (PeerId, BagId, u32);

#[derive(Debug)]
struct Ack {
    to: Member,
    indices: IntervalSet,
    due: Time,
}

/// Acknowledgements that wait for others.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    waiting: BTreeMap<Subject, Ack>,
    /// At or before the moment at which the first is sent.
    due: Option<Time>,
}

impl Acks {
    /// These results are journalled. Returns the acknowledgement to be sent at once where there is no room for it here.
    pub(crate) fn add(
        &mut self,
        to: &Member,
        bag: BagId,
        attempt: u32,
        indices: &IntervalSet,
        now: Time,
    ) -> Option<(Member, Message)> {
        let subject = (to.peer, bag, attempt);
        if self.waiting.len() >= ACKS_MAX && !self.waiting.contains_key(&subject) {
            return Some((to.clone(), Message::ResultsAck { bag, attempt, indices: indices.clone() }));
        }
        let due = now + PATIENCE;
        let ack =
            self.waiting.entry(subject).or_insert_with(|| Ack { to: to.clone(), indices: IntervalSet::new(), due });
        self.due = Some(self.due.map_or(ack.due, |first| first.min(ack.due)));
        let is_full = ack.indices.intervals() + indices.intervals() > HELD_INTERVALS_MAX;
        let full = is_full.then(|| std::mem::take(&mut ack.indices));
        ack.indices.extend_with(indices);
        full.map(|indices| (ack.to.clone(), Message::ResultsAck { bag, attempt, indices }))
    }

    /// When to call [`Self::take_due`] next; it may be too early, but never too late.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Takes all acknowledgements of one bag to one machine.
    pub(crate) fn take_of(&mut self, peer: PeerId, bag: BagId) -> Vec<(Member, Message)> {
        let subjects = self.waiting.range((peer, bag, 0)..=(peer, bag, u32::MAX));
        let subjects: Vec<Subject> = subjects.map(|(subject, _)| *subject).collect();
        let taken = subjects.into_iter().filter_map(|subject| Some(message(subject, self.waiting.remove(&subject)?)));
        let taken = taken.collect();
        if self.waiting.is_empty() {
            self.due = None;
        }
        taken
    }

    /// Takes the acknowledgements that have waited long enough, without those to peers that `may_leave` excludes.
    pub(crate) fn take_due(&mut self, now: Time, may_leave: impl Fn(PeerId) -> bool) -> Vec<(Member, Message)> {
        let is_due = |subject: &Subject, ack: &mut Ack| ack.due <= now && may_leave(subject.0);
        let taken = self.waiting.extract_if(.., is_due).map(|(subject, ack)| message(subject, ack)).collect();
        let left = self.waiting.iter().filter(|(subject, _)| may_leave(subject.0));
        self.due = left.map(|(_, ack)| ack.due).min();
        taken
    }
}

fn message((_, bag, attempt): Subject, ack: Ack) -> (Member, Message) {
    (ack.to, Message::ResultsAck { bag, attempt, indices: ack.indices })
}

/// Peers for whose messages the driver has no room, and the messages that wait.
#[derive(Debug, Default)]
pub(crate) struct Crowds(BTreeMap<PeerId, VecDeque<(Member, Message)>>);

impl Crowds {
    pub(crate) fn is_crowded(&self, peer: PeerId) -> bool {
        self.0.contains_key(&peer)
    }

    /// There is no room for messages to this peer.
    pub(crate) fn begin(&mut self, peer: PeerId) {
        if self.0.len() < CROWDS_MAX {
            self.0.entry(peer).or_default();
        }
    }

    /// A message waits for room.
    pub(crate) fn push(&mut self, to: Member, message: Message) {
        self.begin(to.peer);
        let Some(waiting) = self.0.get_mut(&to.peer) else { return };
        if let Message::Holding { bag, .. } = &message {
            // The newest `Holding` of a bag replaces earlier ones.
            waiting.retain(|(_, other)| !matches!(other, Message::Holding { bag: of, .. } if of == bag));
        }
        waiting.push_back((to, message));
        if waiting.len() > HELD_BACK_MAX {
            waiting.pop_front();
        }
    }

    /// There is room again: removes and returns the messages that waited.
    pub(crate) fn end(&mut self, peer: PeerId) -> VecDeque<(Member, Message)> {
        self.0.remove(&peer).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::Contact;

    use super::*;

    const BAG: BagId = BagId([7; 32]);

    fn member(number: u8) -> Member {
        Contact { peer: PeerId([number; 32]), incarnation: 1, address: "".into(), nonce: None }.into()
    }

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    fn ack(attempt: u32, indices: IntervalSet) -> Message {
        Message::ResultsAck { bag: BAG, attempt, indices }
    }

    #[test]
    fn acknowledgements_leave_together_within_20_ms() {
        let mut acks = Acks::default();
        for index in 0..1000 {
            assert_eq!(acks.add(&member(1), BAG, 0, &IntervalSet::from(index..index + 1), at(index / 100)), None);
        }
        acks.add(&member(1), BAG, 3, &IntervalSet::from(5..6), at(12));
        acks.add(&member(2), BAG, 0, &IntervalSet::from(8..9), at(15));
        assert_eq!((acks.due(), acks.take_due(at(19), |_| true)), (Some(at(20)), vec![]));
        assert_eq!(
            acks.take_due(at(32), |_| true),
            [(member(1), ack(0, IntervalSet::from(0..1000))), (member(1), ack(3, IntervalSet::from(5..6)))]
        );
        assert_eq!(acks.due(), Some(at(35)));
        assert_eq!(acks.take_due(at(99), |peer| peer != member(2).peer), []);
        assert_eq!(acks.due(), None, "nobody is woken for what cannot leave");
        assert_eq!(acks.take_of(member(2).peer, BAG), [(member(2), ack(0, IntervalSet::from(8..9)))]);
    }

    #[test]
    fn acknowledgements_fit_in_messages_and_a_bounded_number_waits() {
        let mut acks = Acks::default();
        let mut left = Vec::new();
        for index in 0..10_000 {
            left.extend(acks.add(&member(1), BAG, 0, &IntervalSet::from(2 * index..2 * index + 1), at(0)));
        }
        left.extend(acks.take_due(at(20), |_| true));
        let sets: Vec<usize> = left
            .iter()
            .map(|(_, message)| {
                assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(message));
                let Message::ResultsAck { indices, .. } = message else { unreachable!() };
                indices.intervals()
            })
            .collect();
        assert_eq!(sets, [4096, 4096, 10_000 - 2 * 4096]);
        let at_once =
            (0..10_000).filter_map(|attempt| acks.add(&member(1), BAG, attempt, &IntervalSet::from(0..1), at(0)));
        assert_eq!(at_once.count(), 10_000 - ACKS_MAX);
    }

    #[test]
    fn the_newest_messages_wait_for_room() {
        let mut crowds = Crowds::default();
        let holding = |version| Message::Holding {
            bag: BAG,
            executor: (&member(9)).into(),
            version,
            attempt: 0,
            ranges: IntervalSet::new(),
            finished: IntervalSet::new(),
            capacity: None,
        };
        (0..100).for_each(|version| crowds.push(member(1), holding(version)));
        assert!(crowds.is_crowded(member(1).peer) && !crowds.is_crowded(member(2).peer));
        assert_eq!(crowds.end(member(1).peer), [(member(1), holding(99))]);
        assert!(!crowds.is_crowded(member(1).peer));
        let renewed = |number: u64| Message::Renewed { bags: vec![(BAG, number)], term: Duration::ZERO };
        (0..100).for_each(|number| crowds.push(member(1), renewed(number)));
        assert_eq!(crowds.end(member(1).peer).len(), HELD_BACK_MAX);
    }
}
