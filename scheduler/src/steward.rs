//! Keepers: the machines that know where the tasks of a bag are, so that a bag outlives the machine it was submitted from.
//!
//! A bag's keepers are its submitter, of rank 0, and *stewards*, of ranks 1 to k, whom the submitter chose (`choice`) and named in
//! an [`Appointment`] that it signed. One keeper acts: it issues tasks, renews leases and takes results. The others have a copy of
//! what it knows: it sends them the changes of the bag's records every few seconds (`feed`), and they count once they are durable
//! there (`copy`). A steward that hears nothing of the keepers before it for 30 s times its rank acts itself (`acting`): a ledger
//! is restored from its copy, as a submitter's is after a restart. It closes nothing, and keeps the results that it takes until
//! the submitter has them.
//!
//! A submitter that comes back asks its stewards what they know before it issues anything (`returning`), unites that with its
//! own ledger, and takes a higher term. Executors obey the highest [`Standing`] that they have heard of. Two keepers that act at
//! once cost work that is done twice, and nothing else.
//!
//! The bag's submitter alone can appoint, and its driver signs; a receiver's driver drops messages with an appointment
//! that its submitter did not sign. A keeper's claim to act in a term within an appointment is its own word: a steward that lies
//! can withhold a bag until the submitter appoints anew, no more (docs/adr/0041).
//!
//! Where the bag's user wishes so, stewards keep its results, too (`giving`).
//!
//! Left out: bags with a quorum, whose votes no record holds; endless bags whose tasks are lines or files of the submitter's machine
//! (docs/adr/0067); checkpoints, which a steward does not copy.

mod acks;
pub(crate) mod acting;
pub(crate) mod choice;
pub(crate) mod copy;
pub(crate) mod feed;
pub(crate) mod giving;
pub(crate) mod handing;
pub(crate) mod keeping;
pub(crate) mod leaving;
mod past;
pub(crate) mod results;
pub(crate) mod returning;
pub(crate) mod submitting;
mod view;

use std::cmp::Reverse;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, WallTime};
use serde::{Deserialize, Serialize};

use crate::bag::BagId;

/// Most stewards of one bag.
pub const STEWARDS_MAX: u32 = 4;
/// How many a bag of an agent has whose submitter does not say. Our choice: either of two may die with the submitter.
pub const STEWARDS_DEFAULT: u32 = 2;
/// A keeper that was heard of within so long is there. Our choice: three lost messages.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_secs(30);
/// In an acknowledgement in place of a delta's number: the submitter has other stewards, which have all that there is to know, so that
/// the receiver need not keep the bag any longer.
pub(crate) const DISMISSED: u64 = u64::MAX;
/// A steward that was silent for so long is replaced.
pub(crate) const REPLACE_AFTER: Duration = Duration::from_secs(600);
/// How often a keeper that acts tells the others what has changed, all bags of a pair of machines together.
pub(crate) const DELTA_EVERY: Duration = Duration::from_secs(5);
/// How often it says that it is there, where nothing has changed.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// How long an appointment lasts: as long as a bag can be old.
pub(crate) const APPOINTED_FOR: Duration = crate::bag::AGE_MAX;
/// How far the terms of a bag's next life are above those of the last: a machine that adopts a bag begins another life of its terms, so
/// that the first machine, which knows nothing of that, cannot rise above it by its clock. Our choice: seconds never reach it.
pub(crate) const LIFE: u64 = 1 << 40;
/// Length of a signature.
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// Who keeps a bag, by order of its submitter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appointment {
    /// Which bag.
    #[serde(rename = "b")]
    pub bag: BagId,
    /// Rises with each appointment of the bag, from 1: the submitter's wall clock in seconds, or one more than the last. Each adoption
    /// raises it by a life (2^40) more.
    #[serde(rename = "t")]
    pub term: u64,
    /// The keepers by rank: the submitter, then the stewards.
    #[serde(rename = "k")]
    pub keepers: Vec<Contact>,
    /// Nobody obeys it after that.
    #[serde(rename = "u")]
    pub until: WallTime,
    /// The submitter's signature under [`Self::statement`], 64 bytes; its driver makes it.
    #[serde(rename = "z", with = "serde_bytes")]
    pub signature: Vec<u8>,
}

impl Appointment {
    /// The bytes that the submitter signs.
    pub fn statement(&self) -> Vec<u8> {
        let mut bytes = b"idlewood appointment 1\0".to_vec();
        let keepers: Vec<_> =
            self.keepers.iter().map(|keeper| (keeper.peer, keeper.incarnation, &keeper.address)).collect();
        ciborium::into_writer(&(self.bag, self.term, keepers, self.until), &mut bytes)
            .expect("a Vec takes every write, and an appointment holds no unserialisable value");
        bytes
    }

    /// Who submitted the bag, as the appointment has it.
    pub fn submitter(&self) -> Option<&Contact> {
        self.keepers.first()
    }

    /// The rank of this machine, if it is a keeper.
    pub(crate) fn rank_of(&self, peer: PeerId) -> Option<u8> {
        self.keepers.iter().position(|keeper| keeper.peer == peer).and_then(|rank| u8::try_from(rank).ok())
    }

    /// Whether what a remote peer sent can be an appointment. The signature is the driver's to check.
    pub(crate) fn is_valid(&self) -> bool {
        let count = self.keepers.len();
        (1..=1 + STEWARDS_MAX as usize).contains(&count)
            && self.term > 0
            && self.keepers.iter().all(Contact::is_valid)
            && (0..count).all(|one| (0..one).all(|other| self.keepers[one].peer != self.keepers[other].peer))
            && self.signature.len() == SIGNATURE_BYTES
    }
}

/// By which right a keeper acts: terms of the submitter count first, then those that stewards take within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Term {
    /// [`Appointment::term`].
    #[serde(rename = "a")]
    pub appointed: u64,
    /// 0 for the submitter; a steward that begins to act takes one more than any that it has heard of.
    #[serde(rename = "t")]
    pub acting: u32,
}

/// What keepers are obeyed by: the highest. Of equal terms the lower rank is higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Standing {
    pub(crate) term: Term,
    pub(crate) rank: Reverse<u8>,
}

impl Standing {
    /// Of a submitter that has appointed nobody.
    pub(crate) const NONE: Self = Self { term: Term { appointed: 0, acting: 0 }, rank: Reverse(u8::MAX) };
}

/// "I act": a keeper says by which appointment it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acting {
    /// The appointment.
    #[serde(rename = "p")]
    pub appointment: Appointment,
    /// [`Term::acting`].
    #[serde(rename = "t")]
    pub acting: u32,
    /// Who acts, by its place among the keepers.
    #[serde(rename = "r")]
    pub rank: u8,
}

impl Acting {
    /// The term in which it acts.
    pub fn term(&self) -> Term {
        Term { appointed: self.appointment.term, acting: self.acting }
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing { term: self.term(), rank: Reverse(self.rank) }
    }

    /// Who acts.
    pub fn keeper(&self) -> Option<&Contact> {
        self.appointment.keepers.get(usize::from(self.rank))
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.appointment.is_valid() && self.keeper().is_some()
    }

    /// Whether it is about this bag of this submitter, and in force at this time.
    pub(crate) fn is_of(&self, bag: BagId, submitter: PeerId, now: WallTime) -> bool {
        let appointment = &self.appointment;
        let is_submitter = appointment.submitter().is_some_and(|first| first.peer == submitter);
        is_submitter && appointment.bag == bag && now < appointment.until
    }
}

/// A keeper of a bag, as the peer's view shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperView {
    /// Which machine.
    pub peer: PeerId,
    /// Its rank; 0 is the submitter.
    pub rank: u8,
    /// Whether it acts, as far as this machine knows.
    pub acting: bool,
    /// Whether it has, durably, all that this machine has told it, and that was whole once.
    pub is_up_to_date: bool,
    /// Whether it has answered, or spoken, within the last half a minute; of this machine always.
    pub is_heard: bool,
}

/// Where the results of a bag are that was submitted here, and whose stewards keep them, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultsKept {
    /// Tasks that have ended, by results that are durable here or are about to be.
    pub ended: u64,
    /// Those of them whose results a steward that was heard of lately has, too.
    pub elsewhere: u64,
    /// Whether a steward has said that it has no room for more.
    pub lacks_room: bool,
}
