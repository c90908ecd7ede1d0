//! A submitter that comes back: what its stewards know is united with its own ledger before it issues anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::copy::Told;
use super::feed::Delta;
use super::{Appointment, Term};
use crate::config::Config;
use crate::io::Io;
use crate::ledger::Ledger;
use crate::message::Message;
use crate::ranges::IntervalSet;

/// How long stewards are waited for. One that does not answer may act all the same: then work is done twice. Our choice:
/// as long as a request is waited for.
const WAIT: Duration = Duration::from_secs(15);
/// How often they are asked.
const ASK_EVERY: Duration = Duration::from_secs(3);

/// What was learned so far.
#[derive(Debug)]
pub(crate) struct Returning {
    until: Time,
    asked: Option<Time>,
    /// Others that keep the bag by an appointment of before: asked by a machine that adopts the bag.
    others: BTreeMap<PeerId, Contact>,
    /// Stewards that have told all, or know nothing more.
    answered: BTreeSet<PeerId>,
    told: BTreeMap<PeerId, (Term, Told)>,
    /// Those of them that act, or acted, themselves in the term that they tell: they know all of it.
    actors: BTreeSet<PeerId>,
    /// Since when each of these was known to act.
    acting: BTreeMap<PeerId, Time>,
    /// Tasks whose results a steward has.
    kept: BTreeMap<PeerId, (Contact, IntervalSet)>,
}

impl Returning {
    pub(super) fn new(now: Time) -> Self {
        Self {
            until: now + WAIT,
            asked: None,
            others: BTreeMap::new(),
            answered: BTreeSet::new(),
            told: BTreeMap::new(),
            actors: BTreeSet::new(),
            acting: BTreeMap::new(),
            kept: BTreeMap::new(),
        }
    }

    /// Asks for what is known beyond this term, again where it is due. Returns whether all have answered, or are waited for no longer.
    pub(super) fn step(&mut self, appointment: &Appointment, term: Term, io: &mut Io) -> bool {
        let stewards = appointment.keepers.iter().skip(1).chain(self.others.values());
        let silent: Vec<&Contact> = stewards.filter(|steward| !self.answered.contains(&steward.peer)).collect();
        if silent.is_empty() || io.now >= self.until {
            return true;
        }
        if self.asked.is_none_or(|asked| io.now.since(asked) >= ASK_EVERY) {
            self.asked = Some(io.now);
            for steward in silent {
                io.send(steward.clone(), Message::WhatIsKept { bags: vec![(appointment.bag, term)] });
            }
        }
        false
    }

    /// A machine keeps the bag that may not be a steward by the appointment in force.
    pub(super) fn meets(&mut self, steward: &Contact) {
        self.others.entry(steward.peer).or_insert_with(|| steward.clone());
    }

    pub(super) fn has_met(&self, steward: PeerId) -> bool {
        self.others.contains_key(&steward)
    }

    /// A steward has heard of no higher term.
    pub(super) fn knows_nothing(&mut self, from: PeerId) {
        self.answered.insert(from);
    }

    /// A steward tells what it knows. Returns the number of the last delta that was taken in.
    pub(super) fn told(&mut self, from: PeerId, delta: &Delta, now: Time) -> u64 {
        self.acting.entry(from).or_insert(now);
        let (term, told) = self.told.entry(from).or_default();
        if *term != delta.term {
            (*term, *told) = (delta.term, Told::default());
            self.actors.remove(&from);
        }
        if delta.acting.as_ref().and_then(|acting| acting.keeper()).is_some_and(|keeper| keeper.peer == from) {
            self.actors.insert(from);
        }
        told.take(delta);
        if told.is_whole {
            self.answered.insert(from);
        }
        told.number
    }

    /// The steward that acts in the highest term above this one, and since when that is known.
    pub(super) fn acts(&self, mine: Term) -> Option<(PeerId, Time)> {
        let above = self.told.iter().filter(|(_, (term, _))| *term > mine);
        let (steward, _) = above.max_by_key(|(steward, (term, _))| (*term, **steward))?;
        Some((*steward, *self.acting.get(steward)?))
    }

    /// A steward has the results of these tasks.
    pub(super) fn kept(&mut self, from: &Contact, tasks: &IntervalSet) {
        self.kept.insert(from.peer, (from.clone(), tasks.clone()));
    }

    /// Unites what stewards know beyond this term with the ledger. Returns the highest appointed term heard of.
    pub(super) fn unite(&mut self, ledger: &mut Ledger, mine: Term, io: &mut Io, config: &Config) -> u64 {
        let known = std::mem::take(&mut self.told);
        let highest = known.values().map(|(term, _)| term.appointed).max().unwrap_or(0);
        // Whichever of them is believed: no attempt that another numbered is numbered again.
        let attempts = known.values().filter_map(|(_, told)| told.attempt(ledger.header().id));
        ledger.number_above(attempts.max().unwrap_or(0), io);
        let newest = known.iter().filter(|(_, (term, told))| told.is_whole && *term > mine);
        // One that did not act itself in the last term may have missed what was done in it.
        let standing = |(peer, (term, _)): &(&PeerId, &(Term, Told))| (*term, self.actors.contains(*peer), **peer);
        if let Some((peer, (_, told))) = newest.max_by_key(standing) {
            if mine == Term::default()
                && let Some(supply) = told.supply(ledger.header().id)
            {
                ledger.adopt_supply(supply, &told.drained);
            }
            let records: Vec<_> = told.records.values().cloned().collect();
            ledger.unite(&records, io, config);
            // Whoever says that they have ended has their results, or knows who has: they are waited for.
            let ended = told.done.union(&told.failed);
            if mine == Term::default() {
                // This machine adopts the bag, and has no result of its own.
                let shown = self.kept.values().fold(IntervalSet::new(), |all, (_, tasks)| all.union(tasks));
                ledger.lack_results(ended.difference(&shown));
            }
            let sender = Contact { peer: *peer, incarnation: 0, address: "".into(), nonce: None };
            if ledger.keeps_results() || !self.kept.contains_key(peer) {
                ledger.place_kept(&sender, &ended, io, config);
            }
        }
        for (contact, tasks) in std::mem::take(&mut self.kept).into_values() {
            ledger.place_kept(&contact, &tasks, io, config);
        }
        highest
    }
}
