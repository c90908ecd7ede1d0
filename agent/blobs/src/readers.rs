//! Loans: which blobs of this machine other machines may read. By default none.
//!
//! A blob is lent for a bag, to all machines (the bag's signed blob, by which they judge whether the bag may queue), to
//! machines that prove with the bag's key that they hold tasks of it (manifest, program, inputs, checkpoints), or to
//! the bag's submitter and the keeper that acts for it (results). Knowing a blob's hash gives no right.
//!
//! Left out: withdrawing the key from former holders of the bag's tasks. They can read only what they could read
//! before.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use blake3::Hash;
use idlewood_overlay::PeerId;
use idlewood_scheduler::{BagId, BagKey};

/// The machines to which a blob is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// All machines of the grid.
    Everybody,
    /// Machines with the bag's key, none while this machine does not know it; and its keepers, which have it, too.
    Holders(Option<BagKey>),
    /// The bag's submitter, whoever acts for it ([`Blobs::set_keeper`](crate::Blobs::set_keeper)), and, on a machine that keeps the bag, its other
    /// keepers ([`Blobs::set_keepers`](crate::Blobs::set_keepers)).
    Submitter(PeerId),
}

/// `To` without key and submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Everybody,
    Holders,
    Submitter,
}

impl From<To> for Group {
    fn from(to: To) -> Self {
        match to {
            To::Everybody => Self::Everybody,
            To::Holders(_) => Self::Holders,
            To::Submitter(_) => Self::Submitter,
        }
    }
}

/// One loan of a blob; [`Blobs::take_back`](crate::Blobs::take_back) ends it.
#[derive(Debug)]
pub struct Loan {
    bag: BagId,
    group: Group,
}

/// The bag for which a machine asks for a blob, and, if it has the bag's key, the proof of that ([`BagKey::proof`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The bag.
    pub bag: BagId,
    /// The proof.
    pub proof: Option<[u8; 32]>,
}

/// Number of loans of a blob, by group.
#[derive(Debug, Default)]
struct Times {
    everybody: u32,
    holders: u32,
    submitter: u32,
}

/// The loans for one bag.
#[derive(Debug, Default)]
struct OfBag {
    key: Option<BagKey>,
    submitter: Option<PeerId>,
    /// The keeper that acts for the submitter.
    keeper: Option<PeerId>,
    /// All keepers, where this machine is one of them.
    keepers: Vec<PeerId>,
    blobs: HashMap<Hash, Times>,
}

impl OfBag {
    fn is_empty(&self) -> bool {
        self.blobs.is_empty() && self.keeper.is_none() && self.keepers.is_empty()
    }
}

/// All loans.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<HashMap<BagId, OfBag>>);

impl Readers {
    fn bags(&self) -> MutexGuard<'_, HashMap<BagId, OfBag>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lend(&self, bag: BagId, hash: Hash, to: To) -> Loan {
        let mut bags = self.bags();
        let of_bag = bags.entry(bag).or_default();
        let times = of_bag.blobs.entry(hash).or_default();
        match to {
            To::Everybody => times.everybody += 1,
            To::Holders(key) => {
                times.holders += 1;
                of_bag.key = key.or(of_bag.key);
            }
            To::Submitter(submitter) => {
                times.submitter += 1;
                of_bag.submitter = Some(submitter);
            }
        }
        Loan { bag, group: to.into() }
    }

    pub(super) fn take_back(&self, hash: Hash, Loan { bag, group }: &Loan) {
        let mut bags = self.bags();
        let Entry::Occupied(mut of_bag) = bags.entry(*bag) else { return };
        if let Entry::Occupied(mut times) = of_bag.get_mut().blobs.entry(hash) {
            let all = times.get_mut();
            match group {
                Group::Everybody => all.everybody -= 1,
                Group::Holders => all.holders -= 1,
                Group::Submitter => all.submitter -= 1,
            }
            if all.everybody + all.holders + all.submitter == 0 {
                times.remove();
            }
        }
        if of_bag.get().is_empty() {
            of_bag.remove();
        }
    }

    pub(super) fn set_keeper(&self, bag: BagId, keeper: Option<PeerId>) {
        let mut bags = self.bags();
        if keeper.is_some() {
            bags.entry(bag).or_default().keeper = keeper;
        } else if let Entry::Occupied(mut of_bag) = bags.entry(bag) {
            of_bag.get_mut().keeper = None;
            if of_bag.get().is_empty() {
                of_bag.remove();
            }
        }
    }

    pub(super) fn set_keepers(&self, bag: BagId, keepers: Vec<PeerId>) {
        let mut bags = self.bags();
        let of_bag = bags.entry(bag).or_default();
        of_bag.keepers = keepers;
        if of_bag.is_empty() {
            bags.remove(&bag);
        }
    }

    pub(super) fn may_read(&self, me: PeerId, reader: PeerId, hash: Hash, claim: Claim) -> bool {
        let bags = self.bags();
        let Some(of_bag) = bags.get(&claim.bag) else { return false };
        let Some(times) = of_bag.blobs.get(&hash) else { return false };
        let is_keeper = of_bag.keepers.contains(&reader);
        let is_submitter = [of_bag.submitter, of_bag.keeper].contains(&Some(reader)) || is_keeper;
        let is_holder = || {
            let (Some(key), Some(proof)) = (of_bag.key, claim.proof) else { return false };
            key.is_proven(proof, reader, me)
        };
        times.everybody > 0 || times.submitter > 0 && is_submitter || times.holders > 0 && (is_keeper || is_holder())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blobs;

    const BAG: BagId = BagId([1; 32]);
    const ME: PeerId = PeerId([2; 32]);
    const HOLDER: PeerId = PeerId([3; 32]);
    const SUBMITTER: PeerId = PeerId([4; 32]);

    fn blobs() -> (tempfile::TempDir, Blobs) {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let blobs = Blobs::open(directory.path(), 1 << 20).expect("an empty directory");
        (directory, blobs)
    }

    #[test]
    fn a_hash_opens_nothing() {
        let (_directory, blobs) = blobs();
        let (program, other) = (blake3::hash(b"program"), blake3::hash(b"other"));
        let key = BagKey::from([7; 32]);
        let proof = |key: BagKey, reader, server| Some(key.proof(reader, server));
        let may = |reader, hash, bag, proof| blobs.may_read(ME, reader, hash, Claim { bag, proof });
        let good = proof(key, HOLDER, ME);
        assert!(!may(HOLDER, program, BAG, good), "nothing is lent");
        let lent = blobs.lend(BAG, program, To::Holders(Some(key)));
        assert!(may(HOLDER, program, BAG, good));
        assert!(!may(HOLDER, program, BAG, None), "without a proof");
        assert!(!may(SUBMITTER, program, BAG, good), "with another's");
        assert!(!may(HOLDER, program, BAG, proof(key, HOLDER, SUBMITTER)), "with one for another machine");
        assert!(!may(HOLDER, program, BAG, proof(BagKey::from([8; 32]), HOLDER, ME)), "with another key");
        assert!(!may(HOLDER, other, BAG, good), "what is not lent");
        assert!(!may(HOLDER, program, BagId([9; 32]), good), "for another bag");
        let twice = blobs.lend(BAG, program, To::Holders(None));
        blobs.take_back(program, &lent);
        assert!(may(HOLDER, program, BAG, good), "it is lent once more, and the key is known");
        blobs.take_back(program, &twice);
        assert!(!may(HOLDER, program, BAG, good));
        assert!(blobs.readers.bags().is_empty(), "nothing is left of it");
    }

    #[test]
    fn results_are_for_the_submitter_and_its_signed_blob_is_for_all() {
        let (_directory, blobs) = blobs();
        let (result, envelope) = (blake3::hash(b"result"), blake3::hash(b"envelope"));
        let key = BagKey::from([7; 32]);
        let may = |reader, hash| {
            let proof = Some(key.proof(reader, ME));
            blobs.may_read(ME, reader, hash, Claim { bag: BAG, proof })
        };
        blobs.lend(BAG, result, To::Submitter(SUBMITTER));
        blobs.lend(BAG, envelope, To::Everybody);
        blobs.lend(BAG, blake3::hash(b"program"), To::Holders(Some(key)));
        assert!(may(SUBMITTER, result) && !may(HOLDER, result));
        assert!(blobs.may_read(ME, HOLDER, envelope, Claim { bag: BAG, proof: None }));
    }

    #[test]
    fn results_are_also_for_whoever_acts_for_the_submitter() {
        let (_directory, blobs) = blobs();
        let (result, key) = (blake3::hash(b"result"), BagKey::from([7; 32]));
        let may = |reader| {
            let proof = Some(key.proof(reader, ME));
            blobs.may_read(ME, reader, result, Claim { bag: BAG, proof })
        };
        let (one, other) = (PeerId([5; 32]), PeerId([6; 32]));
        blobs.set_keeper(BAG, Some(one));
        assert!(!may(one), "nothing is lent to it");
        let loan = blobs.lend(BAG, result, To::Submitter(SUBMITTER));
        assert_eq!([SUBMITTER, one, other, HOLDER].map(may), [true, true, false, false]);
        blobs.set_keeper(BAG, Some(other));
        assert_eq!([SUBMITTER, one, other].map(may), [true, false, true], "one at a time");
        blobs.take_back(result, &loan);
        assert!(!may(other));
        blobs.set_keeper(BAG, None);
        assert!(blobs.readers.bags().is_empty(), "nothing is left of it");
    }
}
