//! The submitter's part: it appoints stewards, tells them what changes, and replaces those that are gone.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::choice::choose;
use super::feed::{Changes, Delta, Feed, Tap, successor};
use super::keeping::{Ledgers, Stewards};
use super::returning::Returning;
use super::{APPOINTED_FOR, Acting, Appointment, DISMISSED, LIFE, REPLACE_AFTER, Term};
use crate::bag::BagId;
use crate::config::Config;
use crate::io::{Io, Then};
use crate::ledger::Ledger;
use crate::message::Message;
use crate::peer::{Effect, Notice};
use crate::record::{Change, Record, RecordKey};

/// How long the answer to an offer is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A machine that refused, or did not answer, is not asked again for so long.
const REFUSED_FOR: Duration = Duration::from_secs(600);
/// How long stewards are told that a bag is over; those that are away for longer ask when they are back.
const TELL_OVER_FOR: Duration = Duration::from_secs(600);

/// The stewards of one bag that was submitted here.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// The last term that was signed, or is being signed.
    pub(super) term: u64,
    /// Being signed, or written.
    coming: Option<Appointment>,
    /// In force.
    pub(super) appointment: Option<Appointment>,
    offered: BTreeMap<PeerId, (Contact, Time)>,
    accepted: BTreeMap<PeerId, Contact>,
    /// When each of these refused, or was found wanting, and in which incarnation: a machine that has started again is asked again.
    refused: BTreeMap<PeerId, (Time, u64)>,
    /// A steward has said that it leaves, or cannot keep the bag any longer: the appointment still names it.
    has_parted: bool,
    pub(super) feeds: BTreeMap<PeerId, Feed>,
    /// This machine was away, or another keeper acts.
    pub(super) returning: Option<Returning>,
    /// When each steward last said, unasked, that it acts in a higher term.
    claimed: BTreeMap<PeerId, Time>,
    /// This machine was made from a ticket, and rises above all terms that stewards know.
    adopts: bool,
    /// This machine has begun another life of the bag, of which no steward knows yet: nothing is issued, since a machine that adopted the
    /// bag after this one would number its attempts alike.
    is_unknown: bool,
    /// Another machine goes on as this one, by a higher term under this one's key: this one does nothing.
    pub(super) is_elsewhere: bool,
    /// Since when this machine acts, by its last appointment that followed its return; `None`: it does not.
    acting_since: Option<Time>,
    over_since: Option<Time>,
}

impl Stewards {
    /// A bag was submitted here: it asks for stewards once it is due to, and not as late as other things are due.
    pub(crate) fn submitted(&mut self, ledger: &Ledger, config: &Config) {
        self.due = self.due.min(ledger.released() + ledger.appoint_after(config));
    }
}

/// When bags that were submitted here are to ask for stewards that are too young still.
pub(super) fn next_to_appoint(ledgers: &Ledgers, now: Time, config: &Config) -> impl Iterator<Item = Time> {
    let may = |ledger: &Ledger| !ledger.is_kept() && !ledger.is_closed() && ledger.stewards(config) > 0;
    let due = move |ledger: &Ledger| ledger.released() + ledger.appoint_after(config);
    let moments = ledgers.values().filter(move |ledger| may(ledger)).map(move |ledger| due(ledger));
    moments.filter(move |at| *at > now)
}

impl Own {
    /// After a restart: the stewards know more, perhaps. The bag may be closed, of which they are told.
    pub(super) fn restore(appointment: Appointment, adopts: bool, is_open: bool, now: Time) -> Self {
        let stewards = appointment.keepers.iter().skip(1).cloned();
        let feeds = if is_open {
            BTreeMap::new()
        } else {
            stewards.map(|to| (to.peer, Feed::new(to, Changes::default(), true, now))).collect()
        };
        Self {
            term: appointment.term,
            appointment: Some(appointment),
            returning: is_open.then(|| Returning::new(now)),
            feeds,
            adopts,
            ..Self::default()
        }
    }

    /// Who acts, and since when, as far as this machine knows: it asks where it was away.
    pub(super) fn acts(&self, me: PeerId) -> (PeerId, Option<Time>) {
        let other = self.returning.as_ref().and_then(|returning| returning.acts(self.acts_in()));
        other.map_or((me, self.acting_since), |(steward, since)| (steward, Some(since)))
    }

    /// The term in which this machine acts.
    pub(super) fn acts_in(&self) -> Term {
        Term { appointed: self.appointment.as_ref().map_or(0, |appointment| appointment.term), acting: 0 }
    }

    /// This machine was asleep, or cut off, and others may have acted: nothing is issued before they have been asked.
    pub(super) fn begin_returning(&mut self, ledger: &mut Ledger, now: Time) {
        if self.returning.is_none() && self.appointment.is_some() && !ledger.is_closed() {
            self.returning = Some(Returning::new(now));
            self.acting_since = None;
            ledger.hold(true);
        }
    }

    /// Does what is due. Returns whether nothing is left to do for this bag, which is closed.
    pub(super) fn step(
        &mut self,
        ledger: &mut Ledger,
        known: &dyn Fn() -> Vec<Contact>,
        io: &mut Io,
        config: &Config,
    ) -> bool {
        let bag = ledger.header().id;
        if self.is_elsewhere {
            if ledger.is_closed() {
                io.persist(vec![Change::Delete(RecordKey::Stewards(bag))], Vec::new());
            }
            return ledger.is_closed();
        }
        if ledger.is_closed() {
            (self.returning, self.coming) = (None, None);
            io.taps.remove(&bag);
            if self.over_since.is_none() {
                // After a restart the last appointment says whom to tell.
                for to in self.stewards() {
                    self.feeds.entry(to.peer).or_insert_with(|| Feed::new(to, Changes::default(), true, io.now));
                }
            }
            let since = *self.over_since.get_or_insert(io.now);
            let is_left = !self.feeds.is_empty() && io.now.since(since) < TELL_OVER_FOR;
            if !is_left {
                io.acts_by(bag, None);
                io.persist(vec![Change::Delete(RecordKey::Stewards(bag))], Vec::new());
            }
            return !is_left;
        }
        if self.over_since.take().is_some() {
            // It was reopened: what stewards know is not what is so.
            self.appoint(bag, self.stewards(), io);
        }
        let known_to = self.knows_up_to();
        if let Some(returning) = &mut self.returning {
            let Some(appointment) = &self.appointment else { return false };
            if self.coming.is_none() && returning.step(appointment, known_to, io) {
                let seen = returning.unite(ledger, known_to, io, config);
                self.term = self.term.max(seen);
                if self.adopts {
                    // Above what the machine whose bag this was can reach without hearing of it.
                    let life = (self.term / LIFE).saturating_add(1);
                    self.term = life.saturating_mul(LIFE);
                    ledger.begin_life(life, io);
                }
                let stewards = self.stewards().into_iter().filter(|to| !self.refused.contains_key(&to.peer)).collect();
                self.appoint(bag, stewards, io);
            }
            return false;
        }
        self.find(ledger, known, io, config);
        if self.is_unknown {
            self.resume(ledger, io, config);
        }
        false
    }

    /// The stewards by the appointment in force.
    fn stewards(&self) -> Vec<Contact> {
        self.appointment.iter().flat_map(|appointment| appointment.keepers.iter().skip(1)).cloned().collect()
    }

    /// Looks for stewards while there are too few, and appoints those that accept.
    fn find(&mut self, ledger: &Ledger, known: &dyn Fn() -> Vec<Contact>, io: &mut Io, config: &Config) {
        let bag = ledger.header().id;
        let now = io.now;
        let is_young = now.since(ledger.released()) < ledger.appoint_after(config);
        if self.coming.is_some() || !ledger.may_have_stewards() || is_young {
            return;
        }
        for (peer, feed) in self.feeds.extract_if(.., |_, feed| now.since(feed.heard) >= REPLACE_AFTER) {
            self.refused.insert(peer, (now, feed.to.incarnation));
        }
        for (peer, (to, _)) in self.offered.extract_if(.., |_, (_, at)| now.since(*at) >= ANSWER_WITHIN) {
            self.refused.insert(peer, (now, to.incarnation));
        }
        self.refused.retain(|_, (at, _)| now.since(*at) < REFUSED_FOR);
        let have = self.feeds.len() + self.accepted.len() + self.offered.len();
        let lacks = (ledger.stewards(config) as usize).saturating_sub(have);
        if lacks > 0 {
            let feeds = self.feeds.values().map(|feed| &feed.to);
            let taken = feeds.chain(self.accepted.values()).chain(self.offered.values().map(|(to, _)| to));
            let taken: Vec<Contact> = [&*io.me as &Contact].into_iter().chain(taken).cloned().collect();
            let refused = &self.refused;
            let is_refused =
                |to: &Contact| refused.get(&to.peer).is_some_and(|(_, incarnation)| to.incarnation <= *incarnation);
            for to in choose(known(), &taken, is_refused, lacks) {
                io.send(to.clone(), Message::KeepOffer { bag: ledger.header().clone() });
                self.offered.insert(to.peer, (to, now));
            }
        }
        if (!self.accepted.is_empty() || self.has_parted) && self.offered.is_empty() {
            self.has_parted = false;
            let kept = self.feeds.values().map(|feed| feed.to.clone());
            let stewards = kept.chain(std::mem::take(&mut self.accepted).into_values()).collect();
            self.appoint(bag, stewards, io);
        }
    }

    /// Has an appointment of these stewards signed.
    fn appoint(&mut self, bag: BagId, stewards: Vec<Contact>, io: &mut Io) {
        // Above all terms that this machine has signed in this life of the bag, also where its disk forgot them.
        let clock = u64::try_from(io.wall(io.now).0 / 1_000_000).unwrap_or(0);
        let clock = (self.term / LIFE * LIFE).saturating_add(clock.min(LIFE - 1));
        self.term = self.term.saturating_add(1).max(clock);
        let mut keepers = vec![Contact { nonce: None, ..Contact::clone(&io.me) }];
        keepers.extend(stewards.into_iter().map(|steward| Contact { nonce: None, ..steward }));
        let until = io.wall(io.now + APPOINTED_FOR);
        let appointment = Appointment { bag, term: self.term, keepers, until, signature: Vec::new() };
        self.coming = Some(appointment.clone());
        io.effects.push(Effect::SignAppointment { appointment });
    }

    /// The driver has signed an appointment: it is in force once it is durable.
    pub(super) fn signed(&mut self, appointment: Appointment, io: &mut Io) {
        let is_coming = self.coming.as_ref().is_some_and(|coming| coming.statement() == appointment.statement());
        if is_coming && appointment.is_valid() {
            let bag = appointment.bag;
            self.coming = Some(appointment.clone());
            io.persist(vec![Change::Put(Record::Stewards { appointment, adopts: false })], vec![Then::Appointed(bag)]);
        }
    }

    /// An appointment is durable: from now on it is in force. Where this machine was away, it acts again.
    pub(super) fn appointed(&mut self, ledger: &mut Ledger, io: &mut Io, config: &Config) {
        let Some(appointment) = self.coming.take_if(|coming| !coming.signature.is_empty()) else { return };
        let bag = appointment.bag;
        if ledger.is_closed() {
            self.appointment = Some(appointment);
            return;
        }
        let base = Changes::base(ledger.records(io), ledger.ended());
        io.taps.insert(bag, Tap::default());
        let mut before = std::mem::take(&mut self.feeds);
        for to in appointment.keepers.iter().skip(1) {
            let feed = match before.remove(&to.peer) {
                Some(mut feed) => {
                    feed.restart(base.clone());
                    feed
                }
                None => Feed::new(to.clone(), base.clone(), true, io.now),
            };
            self.feeds.insert(to.peer, feed);
        }
        io.acts_by(bag, Some(Acting { appointment: appointment.clone(), acting: 0, rank: 0 }));
        self.appointment = Some(appointment);
        self.is_unknown |= std::mem::take(&mut self.adopts);
        if self.returning.is_some() {
            self.acting_since = None;
        }
        self.acting_since.get_or_insert(io.now);
        if self.returning.take().is_some() {
            self.resume(ledger, io, config);
        }
    }

    /// Issues tasks again, unless the new life of a bag has to become known first: to a steward, if one is left.
    fn resume(&mut self, ledger: &mut Ledger, io: &mut Io, config: &Config) {
        self.is_unknown &= !self.feeds.is_empty() && !self.feeds.values().any(Feed::knows_term);
        if !self.is_unknown {
            ledger.hold(false);
            ledger.greet(io, config);
            ledger.settle_end(io);
        }
    }

    /// A machine answers an offer, or does not keep the bag any longer.
    pub(super) fn answered(&mut self, from: PeerId, accepts: bool, now: Time) {
        let offered = self.offered.remove(&from).map(|(contact, _)| contact);
        if accepts {
            self.accepted.extend(offered.map(|contact| (from, contact)));
            return;
        }
        let accepted = self.accepted.remove(&from);
        let steward = self.feeds.remove(&from).map(|feed| feed.to);
        self.has_parted |= steward.is_some();
        // One that says so again is no other machine for that.
        let incarnation = offered.or(accepted).or(steward).map(|contact| contact.incarnation);
        let known = self.refused.get(&from).map(|(_, incarnation)| *incarnation);
        self.refused.insert(from, (now, incarnation.or(known).unwrap_or(u64::MAX)));
    }

    /// What stewards are to be told now; a farewell, where this machine leaves.
    pub(super) fn deltas(&mut self, leaves: bool, ledger: &Ledger, io: &mut Io) -> Vec<(Contact, Delta)> {
        let Some(appointment) = self.appointment.clone() else { return Vec::new() };
        let (bag, key) = (appointment.bag, ledger.key(io));
        let acting = Acting { appointment, acting: 0, rank: 0 };
        let (is_over, successor) = (ledger.is_closed(), successor(&acting.appointment, &self.feeds, io));
        if self.is_elsewhere || self.returning.is_some() && !is_over {
            return Vec::new();
        }
        let news = io.taps.get_mut(&bag).map(|tap| std::mem::take(&mut tap.changes)).unwrap_or_default();
        let mut deltas = Vec::new();
        for feed in self.feeds.values_mut() {
            feed.add(&news);
            let delta = if is_over {
                feed.over(&acting, io.now)
            } else if leaves {
                feed.farewell(&acting, key, successor, io.now)
            } else {
                feed.next(&acting, key, io.now)
            };
            deltas.extend(delta.map(|delta| (feed.to.clone(), delta)));
        }
        deltas
    }

    /// While this machine leaves: a steward has what it was told, or acts.
    pub(super) fn farewell_heard(&mut self, from: PeerId, number: u64, term: Term, now: Time) {
        let mine = self.acts_in();
        if term > mine {
            self.feeds.remove(&from);
        } else if let Some(feed) = self.feeds.get_mut(&from) {
            feed.acknowledged(number, term == mine, now);
        }
    }

    /// A steward tells something: it acts, or answers. Returns the number of the last delta that was taken in, or
    /// [`DISMISSED`].
    pub(super) fn told_by_steward(&mut self, from: &Contact, delta: &Delta, ledger: &mut Ledger, io: &mut Io) -> u64 {
        let (mine, theirs) = (self.acts_in(), delta.term);
        // Only this machine's key can have signed the appointment, and only a keeper by it speaks with it.
        let is_signed = |acting: &Acting| {
            let Acting { appointment, .. } = acting;
            acting.term() == theirs
                && appointment.submitter().is_some_and(|submitter| submitter.peer == io.me.peer)
                && appointment.rank_of(from.peer).is_some()
        };
        let is_signed = delta.acting.as_deref().is_some_and(is_signed);
        if self.adopts {
            let is_steward = self.is_steward(from.peer);
            let Some(returning) = &mut self.returning else { return 0 };
            if is_signed {
                returning.meets(from);
            }
            let is_known = is_steward || returning.has_met(from.peer);
            return if is_known { returning.told(from.peer, delta, io.now) } else { 0 };
        }
        if !self.is_steward(from.peer) && theirs.appointed < mine.appointed {
            // One that was dismissed while it was away would be needed if this machine were lost before another has all.
            let has_other = self.returning.is_none() && self.feeds.values().any(Feed::is_up_to_date);
            return if has_other { DISMISSED } else { 0 };
        }
        if theirs <= mine || !self.is_steward(from.peer) {
            return 0;
        }
        if theirs.appointed > mine.appointed {
            if is_signed {
                self.begin_returning(ledger, io.now);
                if self.returning.is_some() && !self.is_elsewhere {
                    self.is_elsewhere = true;
                    io.effects.push(Effect::Notify(Notice::BagElsewhere(delta.bag)));
                }
            }
            return 0;
        }
        self.claims(from.peer, io.now);
        self.begin_returning(ledger, io.now);
        self.returning.as_mut().map_or(0, |returning| returning.told(from.peer, delta, io.now))
    }

    /// The term up to which this machine knows what has become of the bag: one that has nothing but a ticket knows nothing.
    pub(super) fn knows_up_to(&self) -> Term {
        if self.adopts { Term::default() } else { self.acts_in() }
    }

    /// A steward says, unasked, that it acts in a higher term. One that does so again soon is not appointed again: it would hold the
    /// bag up each time.
    fn claims(&mut self, from: PeerId, now: Time) {
        if self.returning.is_none()
            && self.claimed.insert(from, now).is_some_and(|before| now.since(before) < REPLACE_AFTER)
        {
            // A new life does not make it honest.
            self.refused.insert(from, (now, u64::MAX));
        }
    }

    fn is_steward(&self, peer: PeerId) -> bool {
        self.appointment.as_ref().is_some_and(|appointment| appointment.rank_of(peer).is_some())
    }

    /// A steward has acknowledged what it was told, and says which term it has heard of.
    pub(super) fn acknowledged(&mut self, from: PeerId, number: u64, term: Term, ledger: &mut Ledger, io: &Io) {
        if ledger.is_closed() {
            self.feeds.remove(&from);
            return;
        }
        let mine = self.acts_in();
        if let Some(returning) = &mut self.returning {
            if term <= mine {
                returning.knows_nothing(from);
            }
            return;
        }
        if term > mine && self.is_steward(from) {
            self.claims(from, io.now);
            return self.begin_returning(ledger, io.now);
        }
        if let Some(feed) = self.feeds.get_mut(&from)
            && feed.acknowledged(number, term == mine, io.now)
        {
            feed.restart(Changes::base(ledger.records(io), ledger.ended()));
        }
    }
}
