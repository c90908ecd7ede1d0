//! What this machine knows of others from bags with a quorum: who said what the others said, and who did not
//! (docs/adr/0015). The submitter's own; nobody else is told.

use std::collections::BTreeMap;

use idlewood_overlay::PeerId;
use serde::{Deserialize, Serialize};

/// Machines that are remembered. Our choice: more than a submitter meets, and half a megabyte.
const MACHINES_MAX: usize = 4096;
/// After so many agreements in a row a machine is believed alone, where a bag asks for that. Our choice.
pub(crate) const CLEAN_AFTER: u32 = 20;
/// Who dissented so often gets nothing, until it has agreed so often in a row since. Our choice: thrice is no accident.
const DISSENTS_MAX: u32 = 3;
const FORGIVEN_AFTER: u32 = 50;

/// A machine's past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reputation {
    /// Votes like the winner's since it last dissented.
    pub agreed_in_row: u32,
    /// Votes unlike the winner's, ever.
    pub dissents: u32,
}

impl Reputation {
    /// Whether it is believed alone, where a bag asks for that.
    pub fn is_clean(self) -> bool {
        self.agreed_in_row >= CLEAN_AFTER && !self.is_distrusted()
    }

    /// Whether it gets nothing.
    pub fn is_distrusted(self) -> bool {
        self.dissents >= DISSENTS_MAX && self.agreed_in_row < FORGIVEN_AFTER
    }
}

/// What is known of all.
#[derive(Debug, Default)]
pub(crate) struct Reputations(BTreeMap<PeerId, Reputation>);

impl Reputations {
    pub(crate) fn restore(&mut self, peer: PeerId, reputation: Reputation) {
        self.0.insert(peer, reputation);
    }

    pub(crate) fn of(&self, peer: PeerId) -> Reputation {
        self.0.get(&peer).copied().unwrap_or_default()
    }

    /// A machine voted; its reputation now, and whom that pushed out.
    pub(crate) fn note(&mut self, peer: PeerId, agreed: bool) -> (Reputation, Option<PeerId>) {
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
            *known = Reputation { agreed_in_row: 0, dissents: known.dissents.saturating_add(1) };
        }
        (*known, pushed_out)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (PeerId, Reputation)> + '_ {
        self.0.iter().map(|(&peer, &reputation)| (peer, reputation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> PeerId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        PeerId(id)
    }

    #[test]
    fn trust_takes_time_and_is_lost_at_once() {
        let mut known = Reputations::default();
        for vote in 1..=CLEAN_AFTER {
            assert!(!known.of(peer(1)).is_clean(), "before vote {vote}");
            known.note(peer(1), true);
        }
        assert!(known.of(peer(1)).is_clean());
        for dissent in 1..=DISSENTS_MAX {
            assert!(!known.of(peer(1)).is_distrusted(), "before dissent {dissent}");
            known.note(peer(1), false);
            assert!(!known.of(peer(1)).is_clean());
        }
        for vote in 0..FORGIVEN_AFTER {
            assert!(known.of(peer(1)).is_distrusted() && !known.of(peer(1)).is_clean(), "after {vote} votes");
            known.note(peer(1), true);
        }
        assert!(known.of(peer(1)).is_clean(), "forgiven, until the next time");
        known.note(peer(1), false);
        assert!(known.of(peer(1)).is_distrusted());
    }

    #[test]
    fn memory_is_bounded_and_liars_stay_in_it() {
        let mut known = Reputations::default();
        known.note(peer(0), false);
        for number in 1..=MACHINES_MAX as u32 {
            let (_, pushed_out) = known.note(peer(number), true);
            assert_eq!(pushed_out.is_some(), number == MACHINES_MAX as u32);
        }
        assert_eq!(known.all().count(), MACHINES_MAX);
        assert_eq!(known.of(peer(0)).dissents, 1);
    }
}
