//! Whom an executor answers to about a bag: the keeper that acts (`steward`), as far as this machine has heard.
//!
//! It begins with the submitter, and changes when a keeper says that it acts with a higher standing. A keeper that does not answer
//! for half a lease is asked once more, by a message that is answered at once, since an output that waits to be fetched may be acknowledged much
//! later; if it is silent then, too, it is left for the next one of the appointment, which is *tried*: it can say that it acts, and until then its leases do not count,
//! since a machine that has lost its copy would have all tasks dropped.

use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time, WallTime};

use super::Executor;
use super::held_bag::HeldBag;
use crate::bag::BagId;
use crate::config::Config;
use crate::io::Io;
use crate::record::{Change, Record, RecordKey};
use crate::steward::{Acting, Standing};

/// A keeper that was asked once more has this part of the time to answer.
const PROBED: u32 = 3;

/// The keepers of a bag, as its executor knows them.
#[derive(Debug)]
pub(super) struct Keepers {
    /// To whom this machine writes.
    contact: Contact,
    /// By what right the keeper acts that has the highest standing heard of; `None`: as submitter, without stewards.
    acting: Option<Box<Acting>>,
    /// The rank of `contact`, where that is another keeper, which is tried.
    tried: Option<u8>,
    /// Since when an answer is awaited.
    asked: Option<Time>,
    /// How long it is awaited.
    patience: Duration,
    /// Whether the keeper has been asked once more since.
    is_probed: bool,
}

impl Keepers {
    pub(super) fn new(submitter: &Contact, config: &Config) -> Self {
        let (contact, patience) = (submitter.clone(), config.lease / 2);
        Self { contact, acting: None, tried: None, asked: None, patience, is_probed: false }
    }

    /// To whom this machine writes.
    pub(super) fn contact(&self) -> &Contact {
        &self.contact
    }

    /// Whether this machine does what that one says.
    pub(super) fn is_obeyed(&self, peer: PeerId) -> bool {
        self.contact.peer == peer && self.tried.is_none_or(|rank| rank == 0)
    }

    /// Whether the store says whom this machine obeys.
    pub(super) fn has_record(&self) -> bool {
        self.acting.is_some()
    }

    /// All keepers that may have the bag's files, the one that is written to first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Contact> {
        let others = self.acting.iter().flat_map(|acting| &acting.appointment.keepers);
        [&self.contact].into_iter().chain(others)
    }

    /// A message was sent that is answered.
    pub(super) fn ask(&mut self, now: Time) {
        self.asked.get_or_insert(now);
    }

    /// The keeper has answered.
    pub(super) fn answered(&mut self) {
        (self.asked, self.is_probed) = (None, false);
    }

    /// When the keeper is asked once more, or the next one is tried; `None` where there is no other, or no answer is awaited.
    pub(super) fn silent_at(&self) -> Option<Time> {
        let others = self.acting.as_ref().is_some_and(|acting| acting.appointment.keepers.len() > 1);
        let patience = if self.is_probed { self.patience / PROBED } else { self.patience };
        self.asked.filter(|_| others).map(|asked| asked + patience)
    }

    /// The keeper is silent. Returns whether it is to be asked once more.
    fn probe(&mut self, now: Time) -> bool {
        let is_first = !std::mem::replace(&mut self.is_probed, true);
        if is_first {
            self.asked = Some(now);
        }
        is_first
    }

    fn standing(&self) -> Standing {
        self.acting.as_ref().map_or(Standing::NONE, |acting| acting.standing())
    }

    /// A keeper acts, by its own word: it is obeyed if its standing is the highest. Returns whether that changes anything.
    fn hear(&mut self, acting: &Acting, submitter: PeerId, now: WallTime) -> bool {
        let bag = acting.appointment.bag;
        let Some(keeper) = acting.keeper().filter(|_| acting.is_of(bag, submitter, now)) else { return false };
        if acting.standing() < self.standing() {
            return false;
        }
        let is_same = keeper.peer == self.contact.peer;
        let changes = self.acting.as_deref() != Some(acting) || !is_same || self.tried.is_some();
        if !is_same {
            self.contact = keeper.clone();
            self.answered();
        }
        self.tried = None;
        self.acting = Some(Box::new(acting.clone()));
        changes
    }

    /// Tries the next keeper.
    fn try_next(&mut self, now: Time) {
        let Some(acting) = &self.acting else { return };
        let keepers = &acting.appointment.keepers;
        let present = self.tried.map_or(usize::from(acting.rank), usize::from);
        let next = (present + 1) % keepers.len().max(1);
        let Some(contact) = keepers.get(next) else { return };
        self.contact = contact.clone();
        self.tried = u8::try_from(next).ok().filter(|&next| next != acting.rank);
        (self.asked, self.is_probed) = (Some(now), false);
    }

    /// The keeper says where it is now.
    pub(super) fn moved(&mut self, keeper: &Contact) {
        if keeper.peer == self.contact.peer {
            self.contact = keeper.clone();
        }
    }
}

impl HeldBag {
    /// Another keeper is written to: it hears of all that is held here, and of all results, anew.
    fn keeper_changed(&mut self, now: Time, config: &Config) {
        self.outbox.unsend();
        self.updates.hand_back(config);
        self.updates.send_holding_now(now);
        self.updates.send_results_at(now);
        self.updates.results_acknowledged(config);
    }

    /// As [`Keepers::hear`]. Returns the change of the store.
    pub(super) fn hear(&mut self, acting: &Acting, io: &Io, config: &Config) -> Option<Change> {
        let before = self.keepers.contact().peer;
        if acting.appointment.bag != self.bag.id || !self.keepers.hear(acting, self.bag.submitter.peer, io.wall(io.now))
        {
            return None;
        }
        if self.keepers.contact().peer != before {
            self.keeper_changed(io.now, config);
        }
        Some(Change::Put(Record::Obeyed { acting: acting.clone() }))
    }
}

impl Executor {
    /// A keeper says that it acts.
    pub(crate) fn acts(&mut self, from: PeerId, acting: &Acting, io: &mut Io, config: &Config) {
        if acting.keeper().is_none_or(|keeper| keeper.peer != from) {
            return;
        }
        let bag = acting.appointment.bag;
        let change = self.bags.get_mut(&bag).and_then(|held| held.hear(acting, io, config));
        if let Some(change) = change {
            io.persist_held(bag, vec![change], Vec::new());
        }
    }

    /// Restores whom this machine obeys about a bag.
    pub(crate) fn restore_obeyed(&mut self, acting: &Acting, io: &Io, config: &Config) {
        match self.bags.get_mut(&acting.appointment.bag) {
            Some(held) => drop(held.hear(acting, io, config)),
            None => self.obeyed_before.push(acting.appointment.bag),
        }
    }

    /// Deletes the records of whom this machine obeyed about bags that are not here any more.
    pub(super) fn forget_obeyed(&mut self, io: &mut Io) {
        for bag in std::mem::take(&mut self.obeyed_before) {
            if !self.bags.contains_key(&bag) {
                io.persist(vec![Change::Delete(RecordKey::Obeyed(bag))], Vec::new());
            }
        }
    }

    /// Whoever may have the files of a bag that is here, or has been asked for: its keepers, the one that acts first.
    pub(crate) fn keepers(&self, bag: BagId) -> Vec<Contact> {
        let held = self.bags.get(&bag).map(|held| held.keepers.all().cloned().collect());
        held.unwrap_or_else(|| self.unauthorised.keeper(bag).into_iter().cloned().collect())
    }

    /// Whether this one may know what tasks of a bag do here: the bag's submitter, or the keeper that acts for it.
    pub(crate) fn answers_to(&self, bag: BagId, peer: PeerId) -> bool {
        self.bags.get(&bag).is_some_and(|held| held.bag.submitter.peer == peer || held.keepers.is_obeyed(peer))
    }

    /// Tries the next keepers of bags whose keeper does not answer.
    pub(super) fn leave_silent(&mut self, due: &[BagId], now: Time, config: &Config) {
        for bag in due {
            let is_silent = |held: &&mut HeldBag| held.keepers.silent_at().is_some_and(|at| at <= now);
            let Some(held) = self.bags.get_mut(bag).filter(is_silent) else { continue };
            if held.keepers.probe(now) {
                held.updates.send_holding_now(now);
                continue;
            }
            held.keepers.try_next(now);
            held.keeper_changed(now, config);
        }
    }
}
