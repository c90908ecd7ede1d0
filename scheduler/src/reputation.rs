//! Reputations: how often a machine's outputs agreed with the winner's in bags with a quorum, and how often they dissented
//! (docs/adr/0015). A submitter keeps them for itself. Failures do not count: a machine on which tasks fail that succeed
//! elsewhere is avoided for a while (`ledger/failures`), but it does not lie.
//!
//! A distrusted machine gets no tasks, and so cannot show that it has changed: with time its dissents are forgotten one by
//! one. A machine that goes on lying then has one vote in each such period, which the others outvote.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{PeerId, WallTime};
use serde::{Deserialize, Serialize};

/// Machines that are remembered. Our choice: more than a submitter meets, and half a megabyte.
const MACHINES_MAX: usize = 4096;
/// After so many agreements in a row a machine is believed alone, where a bag asks for that. Our choice.
pub(crate) const CLEAN_AFTER: u32 = 20;
/// A machine is distrusted after so many dissents, until it has agreed so often in a row. Our choice: thrice is no accident.
const DISSENTS_MAX: u32 = 3;
const FORGIVEN_AFTER: u32 = 50;
/// For each such period without a dissent, one dissent is forgotten. Our choice: a repaired machine is back within weeks.
const DISSENT_FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// A machine's record in votes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reputation {
    /// Outputs like the winner's since it last dissented.
    pub agreed_in_row: u32,
    /// Outputs unlike the winner's, less those that are forgotten.
    pub dissents: u32,
    /// When the last dissent was; `None` in older records: long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dissented: Option<WallTime>,
}

impl Reputation {
    /// Whether it is believed alone, where a bag asks for that.
    pub fn is_clean(self) -> bool {
        self.agreed_in_row >= CLEAN_AFTER && !self.is_distrusted()
    }

    /// Whether it gets no tasks.
    pub fn is_distrusted(self) -> bool {
        self.dissents >= DISSENTS_MAX && self.agreed_in_row < FORGIVEN_AFTER
    }

    /// The reputation now, without forgotten dissents.
    fn at(self, now: WallTime) -> Self {
        let since = now.since(self.dissented.unwrap_or(WallTime(0)));
        let forgotten = u32::try_from(since.as_secs() / DISSENT_FORGOTTEN_AFTER.as_secs()).unwrap_or(u32::MAX);
        Self { dissents: self.dissents.saturating_sub(forgotten), ..self }
    }
}

/// The reputations of all machines.
#[derive(Debug, Default)]
pub(crate) struct Reputations(BTreeMap<PeerId, Reputation>);

impl Reputations {
    pub(crate) fn restore(&mut self, peer: PeerId, reputation: Reputation) {
        self.0.insert(peer, reputation);
    }

    pub(crate) fn of(&self, peer: PeerId, now: WallTime) -> Reputation {
        self.0.get(&peer).copied().unwrap_or_default().at(now)
    }

    /// A machine's vote agreed with the winner, or dissented. Returns its new reputation, and the machine that is forgotten
    /// for lack of room.
    pub(crate) fn note(&mut self, peer: PeerId, agreed: bool, now: WallTime) -> (Reputation, Option<PeerId>) {
        let mut pushed_out = None;
        if !self.0.contains_key(&peer) && self.0.len() >= MACHINES_MAX {
            let least = self.0.iter().min_by_key(|(_, known)| (known.dissents, known.agreed_in_row));
            pushed_out = least.map(|(&peer, _)| peer);
            self.0.retain(|peer, _| Some(*peer) != pushed_out);
        }
        let known = self.0.entry(peer).or_default();
        if agreed {
            known.agreed_in_row = known.agreed_in_row.saturating_add(1);
        } else {
            let dissents = known.at(now).dissents.saturating_add(1);
            *known = Reputation { agreed_in_row: 0, dissents, dissented: Some(now) };
        }
        (*known, pushed_out)
    }

    pub(crate) fn all(&self, now: WallTime) -> impl Iterator<Item = (PeerId, Reputation)> + '_ {
        self.0.iter().map(move |(&peer, reputation)| (peer, reputation.at(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallTime = WallTime(1_700_000_000_000_000);

    fn peer(number: u32) -> PeerId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        PeerId(id)
    }

    #[test]
    fn a_clean_reputation_takes_time_and_is_lost_at_once() {
        let mut known = Reputations::default();
        for vote in 1..=CLEAN_AFTER {
            assert!(!known.of(peer(1), NOW).is_clean(), "before vote {vote}");
            known.note(peer(1), true, NOW);
        }
        assert!(known.of(peer(1), NOW).is_clean());
        for dissent in 1..=DISSENTS_MAX {
            assert!(!known.of(peer(1), NOW).is_distrusted(), "before dissent {dissent}");
            known.note(peer(1), false, NOW);
            assert!(!known.of(peer(1), NOW).is_clean());
        }
        for vote in 0..FORGIVEN_AFTER {
            assert!(known.of(peer(1), NOW).is_distrusted() && !known.of(peer(1), NOW).is_clean(), "after {vote} votes");
            known.note(peer(1), true, NOW);
        }
        assert!(known.of(peer(1), NOW).is_clean(), "forgiven, until the next time");
        known.note(peer(1), false, NOW);
        assert!(known.of(peer(1), NOW).is_distrusted());
    }

    #[test]
    fn dissents_are_forgotten_one_a_week() {
        let mut known = Reputations::default();
        let day = |days: i64| WallTime(days * 86_400_000_000);
        for _ in 0..4 {
            known.note(peer(1), false, day(20_000));
        }
        let dissents = |known: &Reputations, days| known.of(peer(1), day(days)).dissents;
        assert_eq!(
            [20_000, 20_006, 20_007, 20_013, 20_014, 20_028, 30_000].map(|now| dissents(&known, now)),
            [4, 4, 3, 3, 2, 0, 0]
        );
        assert!(known.of(peer(1), day(20_013)).is_distrusted() && !known.of(peer(1), day(20_014)).is_distrusted());
        // A clock that was set back forgives nothing.
        assert_eq!(dissents(&known, 10), 4);
        // The next dissent counts with those that are not forgotten, from its own time on.
        known.note(peer(1), false, day(20_014));
        assert_eq!([20_014, 20_020, 20_021].map(|now| dissents(&known, now)), [3, 3, 2]);
        // A restored reputation is the same.
        let (_, stored) = known.all(day(20_014)).next().expect("one");
        let mut later = Reputations::default();
        later.restore(peer(1), stored);
        assert_eq!([20_014, 20_021].map(|now| dissents(&later, now)), [3, 2]);
        // Older records have no time.
        later.restore(peer(1), Reputation { dissented: None, ..stored });
        assert_eq!(dissents(&later, 20_014), 0);
    }

    #[test]
    fn reputations_are_bounded_and_dissenters_stay() {
        let mut known = Reputations::default();
        known.note(peer(0), false, NOW);
        for number in 1..=MACHINES_MAX as u32 {
            let (_, pushed_out) = known.note(peer(number), true, NOW);
            assert_eq!(pushed_out.is_some(), number == MACHINES_MAX as u32);
        }
        assert_eq!(known.all(NOW).count(), MACHINES_MAX);
        assert_eq!(known.of(peer(0), NOW).dissents, 1);
    }
}
