//! All bags of which this machine is one of several keepers, and what keepers say to each other.

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, PeerId, Time};

use super::copy::Copy;
use super::feed::{Changes, Delta, send};
use super::past::Past;
use super::submitting::{Own, next_to_appoint};
use super::{Acting, Appointment, DELTA_EVERY, DISMISSED, LIFE, REPLACE_AFTER, Term};
use crate::bag::{BagHeader, BagId, BagKey};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::ledger::Ledger;
use crate::message::Message;
use crate::peer::Effect;
use crate::record::{Change, Record};

/// The ledgers of this machine: of bags submitted here, and of those for which it acts.
pub(crate) type Ledgers = BTreeMap<BagId, Box<Ledger>>;

/// The part of keepers in one peer.
#[derive(Debug)]
pub(crate) struct Stewards {
    /// Bags that were submitted here, and have or had stewards.
    pub(super) own: BTreeMap<BagId, Own>,
    /// Bags that are kept here for others.
    pub(super) copies: BTreeMap<BagId, Copy>,
    /// Bags that this machine has agreed to keep: for whom, and when.
    pub(super) agreed: BTreeMap<BagId, (PeerId, Time)>,
    /// Bags that were kept here, and are over or kept by others.
    pub(super) past: Past,
    /// Most bags that are kept here for others.
    pub(super) kept_bags_max: u32,
    /// Most bytes of results that are kept here for others.
    pub(super) result_bytes_max: u64,
    /// Nothing can be written, so that no bag can be kept.
    pub(super) disk_is_full: bool,
    /// Since when this machine leaves, or has left, the grid.
    pub(super) away: Option<Time>,
    /// When there is something to do next.
    pub(super) due: Time,
}

impl Stewards {
    pub(crate) fn new(config: &Config, now: Time) -> Self {
        let (own, copies, agreed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (kept_bags_max, result_bytes_max) = (config.kept_bags_max, config.kept_result_bytes_max);
        let (past, disk_is_full, away) = (Past::default(), false, None);
        Self { own, copies, agreed, past, kept_bags_max, result_bytes_max, disk_is_full, away, due: now }
    }

    /// When [`Self::step`] has something to do next.
    pub(crate) fn deadline(&self, ledgers: &Ledgers, config: &Config) -> Option<Time> {
        let may_appoint = || ledgers.values().any(|ledger| !ledger.is_closed() && ledger.stewards(config) > 0);
        (!self.own.is_empty() || !self.copies.is_empty() || may_appoint()).then_some(self.due)
    }

    /// Who keeps a bag that was submitted here.
    pub(crate) fn appointment(&self, bag: BagId) -> Option<&Appointment> {
        self.own.get(&bag)?.appointment.as_ref()
    }

    /// The stewards of a bag that was submitted here.
    pub(crate) fn of_own(&self, bag: BagId) -> impl Iterator<Item = &Contact> {
        self.appointment(bag).into_iter().flat_map(|appointment| appointment.keepers.iter().skip(1))
    }

    /// Whether another machine goes on as this one with a bag that was submitted here.
    pub(crate) fn is_elsewhere(&self, bag: BagId) -> bool {
        self.own.get(&bag).is_some_and(|own| own.is_elsewhere)
    }

    /// Whether this machine keeps this bag for another, acting or not.
    pub(crate) fn keeps(&self, bag: BagId) -> bool {
        self.copies.contains_key(&bag)
    }

    /// The key of a bag that is kept here.
    pub(crate) fn key(&self, bag: BagId) -> Option<BagKey> {
        self.copies.get(&bag).map(|copy| copy.key)
    }

    /// The bags that are kept here for others.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Copy> {
        self.copies.values()
    }

    /// After a restart: whoever keeps a bag that was submitted here is asked before anything of it is issued.
    pub(crate) fn restore_own(&mut self, appointment: Appointment, adopts: bool, ledger: &mut Ledger, now: Time) {
        let is_open = !ledger.is_closed();
        ledger.hold(is_open);
        ledger.set_adopted(adopts || appointment.term >= LIFE);
        self.own.insert(appointment.bag, Own::restore(appointment, adopts, is_open, now));
    }

    /// Restores the copy of a bag from its records.
    pub(crate) fn restore_copy<'a>(&mut self, records: impl Iterator<Item = &'a Record> + Clone, now: Time) {
        for record in records.clone() {
            if let Record::Kept { acting, key, done, failed, drained, has_files, theirs } = record {
                let mut copy = Copy::new(acting.clone(), *key, now);
                (copy.told.done, copy.told.failed, copy.has_files) = (done.clone(), failed.clone(), *has_files);
                copy.told.drained = drained.clone();
                copy.told.is_whole = true;
                copy.results.restore_theirs(theirs.clone());
                copy.asks_anew = Some(now);
                self.copies.insert(copy.bag(), copy);
            }
        }
        for record in records {
            let Some(copy) = record.key().bag().and_then(|bag| self.copies.get_mut(&bag)) else { continue };
            match record {
                Record::Done { executor, result, .. } => {
                    copy.results.restore(*executor, result.clone());
                }
                Record::Bag { .. } | Record::Placed { .. } | Record::Former { .. } | Record::Failures { .. } => {
                    copy.told.records.insert(record.key(), record.clone());
                }
                _ => {}
            }
        }
        self.copies.values_mut().for_each(|copy| copy.results.restored());
    }

    /// This machine was asleep: it may be others that were silent, or it.
    pub(crate) fn was_asleep(&mut self, ledgers: &mut Ledgers, now: Time) {
        for (bag, own) in &mut self.own {
            if let Some(ledger) = ledgers.get_mut(bag) {
                own.begin_returning(ledger, now);
            }
        }
        self.copies.values_mut().for_each(|copy| copy.hear(None, now));
        self.due = now;
    }

    /// Appoints, tells, acts and hands over what is due. `known`: the machines that this one knows, a bag's executors included.
    pub(crate) fn step(
        &mut self,
        ledgers: &mut Ledgers,
        known: &dyn Fn() -> Vec<Contact>,
        is_connected: bool,
        io: &mut Io,
        config: &Config,
    ) {
        if io.now < self.due || self.is_away(ledgers, io) {
            return;
        }
        self.due = next_to_appoint(ledgers, io.now, config).fold(io.now + DELTA_EVERY, Time::min);
        self.agreed.retain(|_, (_, at)| io.now.since(*at) < REPLACE_AFTER);
        self.begin_own(ledgers, io.now, config);
        self.own.retain(|bag, own| ledgers.get_mut(bag).is_some_and(|ledger| !own.step(ledger, known, io, config)));
        if self.own.values().any(|own| own.returning.is_some()) {
            self.due = io.now + DELTA_EVERY / 5;
        }
        self.give_up_what_is_too_much(ledgers, io);
        let over = |copy: &mut Copy| is_over(copy, ledgers.contains_key(&copy.bag()), io);
        let ended: Vec<BagId> = self.copies.values_mut().filter_map(over).collect();
        for bag in ended {
            if let Some(copy) = self.copies.get(&bag).filter(|copy| copy.is_dismissed) {
                self.past.insert(bag, copy.term().appointed);
            }
            self.forget(bag, ledgers, io);
        }
        for (bag, copy) in &mut self.copies {
            let is_acting = ledgers.contains_key(bag);
            if !is_acting && is_connected && copy.is_to_act(io, config) && !copy.has_heard_since_probe() {
                ledgers.extend(copy.begin(io, config).map(|ledger| (*bag, ledger)));
            }
            copy.ask_anew(is_connected, io);
            copy.hand_results(is_acting, io);
        }
        self.tell(ledgers, io);
        self.give_results(ledgers, io);
    }

    /// Bags that have lasted for long enough have stewards from now on.
    fn begin_own(&mut self, ledgers: &Ledgers, now: Time, config: &Config) {
        for (&bag, ledger) in ledgers {
            let is_old = now.since(ledger.released()) >= ledger.appoint_after(config);
            if is_old && ledger.stewards(config) > 0 && !ledger.is_kept() && ledger.may_have_stewards() {
                self.own.entry(bag).or_default();
            }
        }
    }

    /// Sends each keeper what it is to be told; a farewell, where this machine leaves.
    pub(super) fn tell(&mut self, ledgers: &Ledgers, io: &mut Io) {
        let leaves = self.has_left();
        let mut deltas = Vec::new();
        for (bag, own) in &mut self.own {
            if let Some(ledger) = ledgers.get(bag) {
                deltas.append(&mut own.deltas(leaves, ledger, io));
            }
        }
        // A steward that does not act has said that it parts.
        for copy in self.copies.values_mut().filter(|copy| !leaves || ledgers.contains_key(&copy.bag())) {
            let leaves = leaves || copy.hands_over(self.disk_is_full, io);
            deltas.append(&mut copy.deltas(leaves, io));
        }
        send(deltas, io);
    }

    /// A submitter asks whether this machine would keep a bag.
    pub(crate) fn offered(&mut self, from: Contact, bag: &BagHeader, io: &mut Io) {
        if bag.submitter.peer != from.peer || bag.submitter.peer == io.me.peer {
            return;
        }
        let is_kept = self.copies.get(&bag.id).is_some_and(|copy| copy.given_up.is_none());
        let accepts = is_kept || self.has_room();
        if accepts {
            self.agreed.insert(bag.id, (from.peer, io.now));
        }
        io.send(from, Message::KeepAnswer { bag: bag.id, accepts });
    }

    /// Whether this machine takes another bag to keep.
    fn has_room(&self) -> bool {
        let new = self.agreed.keys().filter(|bag| !self.copies.contains_key(bag)).count();
        self.copies.len() + new < self.room()
    }

    /// A machine answers whether it would.
    pub(crate) fn answered(&mut self, from: PeerId, bag: BagId, accepts: bool, now: Time) {
        if let Some(own) = self.own.get_mut(&bag) {
            own.answered(from, accepts, now);
            self.due = now;
        } else if let Some(copy) = self.copies.get_mut(&bag).filter(|_| !accepts) {
            // The submitter alone appoints another one.
            copy.feeds.remove(&from);
        }
    }

    /// The driver has signed an appointment.
    pub(crate) fn signed(&mut self, appointment: Appointment, io: &mut Io) {
        if let Some(own) = self.own.get_mut(&appointment.bag) {
            own.signed(appointment, io);
        }
    }

    /// An appointment is durable.
    pub(crate) fn appointed(&mut self, bag: BagId, ledgers: &mut Ledgers, io: &mut Io, config: &Config) {
        if let (Some(own), Some(ledger)) = (self.own.get_mut(&bag), ledgers.get_mut(&bag)) {
            own.appointed(ledger, io, config);
            self.due = io.now;
        }
    }

    /// A keeper tells what has changed.
    pub(crate) fn deltas(&mut self, from: Contact, deltas: Vec<Delta>, ledgers: &mut Ledgers, io: &mut Io) {
        let (mut acks, mut changes) = (Vec::new(), Vec::new());
        for delta in deltas {
            let bag = delta.bag;
            if let Some(own) = self.own.get_mut(&bag) {
                if let Some(ledger) = ledgers.get_mut(&bag) {
                    // One that adopts the bag dismisses nobody before it knows what they know.
                    acks.push((bag, own.told_by_steward(&from, &delta, ledger, io), own.knows_up_to()));
                    self.due = io.now.min(self.due);
                }
            } else if ledgers.get(&bag).is_some_and(|ledger| !ledger.is_kept() && ledger.is_closed()) {
                // It was closed while its steward was away.
                let over = Delta { is_over: true, ..Delta::alive(bag, delta.term) };
                io.send(from.clone(), Message::Deltas { deltas: vec![over] });
            } else if let Some(ack) = self.delta(&from, &delta, ledgers, &mut changes, io) {
                acks.push(ack);
                if delta.leaves {
                    self.due = io.now;
                }
            }
        }
        if acks.is_empty() {
            return;
        }
        let ack = Message::DeltasAck { bags: acks };
        if changes.is_empty() {
            io.send(from, ack);
        } else {
            // At most one change of each record in a write: the last.
            let mut by_key = BTreeMap::new();
            changes.into_iter().for_each(|change: Change| drop(by_key.insert(change.key(), change)));
            io.persist_kept(by_key.into_values().collect(), vec![Then::Send(from, ack)]);
        }
    }

    /// A keeper tells what has changed of a bag that is not this machine's. Returns what to answer.
    fn delta(
        &mut self,
        from: &Contact,
        delta: &Delta,
        ledgers: &mut Ledgers,
        changes: &mut Vec<Change>,
        io: &mut Io,
    ) -> Option<(BagId, u64, Term)> {
        let (bag, me) = (delta.bag, io.me.peer);
        if !self.copies.contains_key(&bag) {
            if let Some(answer) = self.is_past_for(from.peer, delta) {
                return Some(answer);
            }
            let Some(acting) = delta.acting.as_ref().filter(|_| !delta.is_over && delta.number == 1) else {
                return Some((bag, 0, Term::default()));
            };
            let submitter = acting.appointment.submitter()?.peer;
            let is_steward = acting.appointment.rank_of(me).is_some_and(|rank| rank > 0);
            let key = delta.key.filter(|_| is_steward && speaks(acting, from.peer, bag, io))?;
            // A machine that has lost its disk, or was started again, has forgotten that it agreed.
            let is_agreed = self.agreed.get(&bag).is_some_and(|(with, _)| *with == submitter);
            if !is_agreed && !self.has_room() {
                io.send(from.clone(), Message::KeepAnswer { bag, accepts: false });
                return None;
            }
            self.past.remove(bag);
            self.copies.insert(bag, Copy::new((**acting).clone(), key, io.now));
        }
        let copy = self.copies.get_mut(&bag)?;
        if delta.is_over && copy.is_submitter(from.peer) && delta.term.appointed >= copy.term().appointed {
            // Whoever acts: nobody but the submitter closes a bag, and not the machine that another has replaced.
            let term = delta.term.max(copy.term());
            self.past.insert(bag, term.appointed);
            self.forget(bag, ledgers, io);
            return Some((bag, 0, term));
        }
        let known = copy.acting.standing();
        let news =
            delta.acting.as_ref().filter(|acting| acting.standing() > known || acting.standing().term == delta.term);
        let news = news.filter(|acting| {
            speaks(acting, from.peer, bag, io)
                && acting.appointment.submitter().map(|one| one.peer) == copy.submitter().map(|one| one.peer)
        });
        let standing = match news {
            Some(acting) => Some(acting.standing()),
            None if delta.term.appointed == copy.acting.appointment.term => copy.standing_of(from.peer, delta.term),
            None => None,
        };
        let Some(standing) = standing.filter(|standing| *standing >= known) else {
            if copy.is_past && !copy.is_submitter(from.peer) {
                // Another steward that asks hears what this one has heard: that the bag is over, or kept by others.
                return Some((bag, DISMISSED, Term { appointed: copy.term().appointed, acting: 0 }));
            }
            // A keeper after this one asks whether it is there: it need not wait for one that has no room for results, or is behind.
            return Some((bag, 0, if copy.misses_nothing() { copy.term() } else { Term::default() }));
        };
        if standing > known {
            if let Some(ledger) = ledgers.remove(&bag) {
                copy.stand_down(ledger, io);
            }
            copy.told.number = 0;
            let acting = match news {
                Some(acting) => (**acting).clone(),
                None => Acting {
                    appointment: copy.acting.appointment.clone(),
                    acting: delta.term.acting,
                    rank: standing.rank.0,
                },
            };
            copy.hear(Some(acting), io.now);
            copy.feeds.clear();
            copy.gone.clear();
            copy.awaited = None;
            if copy.acting.appointment.rank_of(me).is_none() {
                copy.is_dismissed = true;
            }
        } else if ledgers.contains_key(&bag) {
            // An echo of this machine's own standing.
            return None;
        }
        copy.hear(None, io.now);
        copy.is_past = false;
        copy.note_leaving(from.peer, delta, me);
        if copy.is_submitter(from.peer) && !delta.leaves {
            copy.submitter_heard = Some(io.now);
        }
        if copy.is_behind && copy.told.number == 0 && delta.number > 1 {
            // Only what is told from the beginning has all that was missed.
            return Some((bag, 0, Term::default()));
        }
        let (before, reruns) = (copy.told.number, copy.told.keeps_results(bag));
        changes.append(&mut copy.told.take(delta));
        copy.catch_up();
        if copy.told.keeps_results(bag) != reruns {
            copy.drop_kept_results(changes);
        }
        if !delta.drained.is_empty() {
            changes.append(&mut copy.drop_drained());
        }
        if copy.told.number != before || standing > known {
            copy.key = delta.key.unwrap_or(copy.key);
            changes.push(Change::Put(copy.record()));
        }
        if !copy.has_files {
            copy.want_files(io);
            return Some((bag, 0, copy.term()));
        }
        Some((bag, copy.told.number, copy.term()))
    }

    /// A submitter is back: it is told all that is known here beyond its term.
    pub(crate) fn asked(&mut self, from: Contact, bags: Vec<(BagId, Term)>, ledgers: &Ledgers, io: &mut Io) {
        let mut acks = Vec::new();
        for (bag, term) in bags {
            let Some(copy) = self.copies.get_mut(&bag).filter(|copy| copy.is_submitter(from.peer)) else {
                acks.push((bag, 0, Term::default()));
                continue;
            };
            copy.submitter_heard = Some(io.now);
            copy.is_past = false;
            copy.gone.remove(&from.peer);
            copy.handing_due = io.now;
            if term.appointed < copy.term().appointed {
                copy.submitter_lost_results(io);
            }
            if copy.term() <= term {
                copy.hear(None, io.now);
                acks.push((bag, copy.told.number, copy.term()));
                continue;
            }
            let base = match ledgers.get(&bag) {
                Some(ledger) => Changes::base(ledger.records(io), ledger.ended()),
                None => copy.told.base(),
            };
            copy.open_feed(&from, base, io.now);
        }
        if !acks.is_empty() {
            io.send(from, Message::DeltasAck { bags: acks });
        }
        self.due = io.now;
    }

    /// The driver has the files of a bag, or cannot have them.
    pub(crate) fn files_kept(&mut self, bag: BagId, kept: bool, ledgers: &mut Ledgers, io: &mut Io) {
        let Some(copy) = self.copies.get_mut(&bag) else { return };
        let Some(submitter) = copy.submitter().cloned() else { return };
        if kept {
            copy.has_files = true;
            let ack = Message::DeltasAck { bags: vec![(bag, copy.told.number, copy.term())] };
            let keeper = copy.acting.keeper().cloned().unwrap_or(submitter);
            io.persist_kept(vec![Change::Put(copy.record())], vec![Then::Send(keeper, ack)]);
        } else if copy.results.untaken() == 0 && !ledgers.contains_key(&bag) {
            io.send(submitter, Message::KeepAnswer { bag, accepts: false });
            self.forget(bag, ledgers, io);
        }
    }

    /// A bag is not kept here any longer.
    pub(super) fn forget(&mut self, bag: BagId, ledgers: &mut Ledgers, io: &mut Io) {
        let Some(mut copy) = self.copies.remove(&bag) else { return };
        if let Some(ledger) = ledgers.remove(&bag) {
            copy.stand_down(ledger, io);
        }
        self.agreed.remove(&bag);
        io.persist_kept(copy.removal(), Vec::new());
        io.effects.push(Effect::ForgetFiles { bag });
    }
}

/// Whether a keeper speaks by this right, of this bag and in force. That the submitter signed it the driver has checked.
fn speaks(acting: &Acting, from: PeerId, bag: BagId, io: &Io) -> bool {
    let is_sender = acting.keeper().is_some_and(|keeper| keeper.peer == from);
    is_sender && acting.appointment.bag == bag && io.wall(io.now) < acting.appointment.until
}

/// The bag of a copy for which nothing is left to do here: the submitter has appointed others, or its time is over, and has the results.
fn is_over(copy: &mut Copy, is_acting: bool, io: &Io) -> Option<BagId> {
    let is_past = io.wall(io.now) >= copy.acting.appointment.until;
    let is_done_with = copy.is_dismissed || !is_acting && copy.is_given_up_for_good(io.now);
    (is_past || is_done_with && copy.results.untaken() == 0).then(|| copy.bag())
}
