//! Keepers that leave in good order: a submitter or a steward that ends, or whose machine is about to sleep, and stewards whose disks
//! are full, or whose owners want them to keep fewer bags.
//!
//! A keeper that acts and leaves tells the others so, with the last of what they do not know, and names the one that is to act next: that
//! one acts at once, and the others wait for it. So does a steward that acts and whose disk is full, as long as another can take its place. A steward that
//! does not act says that it cannot keep the bag any longer, and the submitter appoints another one as soon as one accepts; while the
//! submitter is away nobody can, since it alone signs. What a machine that leaves is told is not answered, so that it takes nothing that
//! those who go on do not know of. Nobody is waited for: a farewell that is lost costs what a crash does.

use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use super::copy::Copy;
use super::feed::{Changes, Delta, FAREWELL_EVERY, Feed, ready, successor};
use super::keeping::{Ledgers, Stewards};
use super::{ALIVE_EVERY, REPLACE_AFTER, Term};
use crate::bag::BagId;
use crate::io::Io;
use crate::ledger::Ledger;
use crate::message::Message;
use crate::peer::Notice;

/// How long a machine that leaves says so: longer than the tree lets it linger.
const FAREWELL_FOR: Duration = Duration::from_secs(4);
/// How often keepers are told that a bag cannot be kept here any longer, until the submitter has appointed others.
const GIVE_UP_EVERY: Duration = Duration::from_secs(60);

impl Stewards {
    /// This machine leaves the grid: the other keepers are told.
    pub(crate) fn leave(&mut self, ledgers: &Ledgers, io: &mut Io) {
        if self.away.is_some() {
            return;
        }
        (self.away, self.due) = (Some(io.now), io.now);
        for copy in self.copies.values().filter(|copy| !ledgers.contains_key(&copy.bag())) {
            copy.say_that_it_parts(io);
        }
        self.say_goodbye(ledgers, io);
    }

    /// It is a member again: others may have acted.
    pub(crate) fn come_back(&mut self, ledgers: &mut Ledgers, now: Time) {
        if self.away.take().is_some() {
            self.was_asleep(ledgers, now);
        }
    }

    /// Whether this machine leaves, or has left.
    pub(crate) fn has_left(&self) -> bool {
        self.away.is_some()
    }

    /// Whether this machine leaves, or has left, and takes no results of a bag that was submitted here, since its stewards are to have them.
    pub(crate) fn hands_over(&self, bag: BagId) -> bool {
        self.away.is_some() && self.of_own(bag).next().is_some()
    }

    /// Says for a while that this machine leaves, if it does, or has left.
    pub(super) fn is_away(&mut self, ledgers: &Ledgers, io: &mut Io) -> bool {
        let Some(since) = self.away else { return false };
        if io.now.since(since) < FAREWELL_FOR {
            self.say_goodbye(ledgers, io);
        } else {
            self.due = io.now + REPLACE_AFTER;
        }
        true
    }

    fn say_goodbye(&mut self, ledgers: &Ledgers, io: &mut Io) {
        self.due = io.now + FAREWELL_EVERY;
        self.tell(ledgers, io);
    }

    /// A keeper has acknowledged what it was told by this machine, which leaves.
    pub(super) fn farewell_heard(&mut self, from: PeerId, bag: BagId, number: u64, term: Term, now: Time) {
        if let Some(own) = self.own.get_mut(&bag) {
            own.farewell_heard(from, number, term, now);
        } else if let Some(copy) = self.copies.get_mut(&bag) {
            let mine = copy.term();
            if let Some(feed) = copy.feeds.get_mut(&from) {
                feed.acknowledged(number, term == mine, now);
            }
        }
        // There may be more to tell than one message takes.
        self.due = self.due.min(now);
    }

    /// The owner lets this machine keep so many bags from now on.
    pub(crate) fn keep_at_most(&mut self, kept_bags_max: u32, now: Time) {
        (self.kept_bags_max, self.due) = (kept_bags_max, now);
    }

    /// Whether the disk takes nothing more.
    pub(crate) fn note_disk(&mut self, is_full: bool, now: Time) {
        (self.disk_is_full, self.due) = (is_full, now);
    }

    /// How many bags can be kept here.
    pub(super) fn room(&self) -> usize {
        if self.disk_is_full { 0 } else { self.kept_bags_max as usize }
    }

    /// Says of bags beyond those that there is room for that they cannot be kept any longer: first of those that are only kept. They
    /// are forgotten when their submitters have appointed others, or after a while.
    pub(super) fn give_up_what_is_too_much(&mut self, ledgers: &Ledgers, io: &mut Io) {
        self.keep_after_all(io.now);
        let mut stay: Vec<(bool, BagId)> = self
            .copies
            .values()
            .filter(|copy| copy.given_up.is_none())
            .map(|copy| (ledgers.contains_key(&copy.bag()) || copy.results.untaken() > 0, copy.bag()))
            .collect();
        stay.sort_unstable();
        let too_many = stay.len().saturating_sub(self.room());
        for (_, bag) in stay.into_iter().take(too_many) {
            if let Some(copy) = self.copies.get_mut(&bag) {
                copy.given_up = Some((io.now, io.now));
                copy.fall_behind(ledgers);
                copy.say_that_it_parts(io);
                io.notify(Notice::BagGivenUp { bag, disk_is_full: self.disk_is_full });
            }
        }
        for copy in self.copies.values_mut() {
            if let Some((said, first)) = copy.given_up
                && io.now.since(said) >= GIVE_UP_EVERY
            {
                copy.given_up = Some((io.now, first));
                copy.fall_behind(ledgers);
                copy.say_that_it_parts(io);
            }
        }
    }

    /// There is room again for bags that were given up, and that their submitters still name this machine for.
    fn keep_after_all(&mut self, now: Time) {
        let kept = self.copies.values().filter(|copy| copy.given_up.is_none()).count();
        let room = self.room().saturating_sub(kept);
        let given_up = self.copies.values_mut().filter(|copy| copy.given_up.is_some());
        given_up.take(room).for_each(|copy| {
            copy.given_up = None;
            if copy.is_behind {
                copy.hear(None, now);
                copy.asks_anew = Some(now);
            }
        });
    }
}

impl Copy {
    /// Whoever acts tells a machine nothing more that cannot keep the bag. One that acts itself knows all.
    fn fall_behind(&mut self, ledgers: &Ledgers) {
        if !ledgers.contains_key(&self.bag()) {
            (self.is_behind, self.told.number) = (true, 0);
        }
    }

    /// Asks the other stewards to tell this machine anew what it lacks, where that is due: the one that acts answers. The submitter, where it is there,
    /// has appointed others, or asks itself.
    pub(super) fn ask_anew(&mut self, is_connected: bool, io: &mut Io) {
        if !is_connected || self.given_up.is_some() || self.asks_anew.is_none_or(|at| at > io.now) {
            return;
        }
        self.asks_anew = self.is_behind.then(|| io.now + ALIVE_EVERY);
        let (bag, me) = (self.bag(), io.me.peer);
        for steward in self.acting.appointment.keepers.iter().skip(1).filter(|steward| steward.peer != me) {
            io.send(steward.clone(), Message::DeltasAck { bags: vec![(bag, 0, Term::default())] });
        }
    }

    /// Whether this machine has, as far as it knows, all that it was to be told, and room for more.
    pub(super) fn misses_nothing(&self) -> bool {
        self.given_up.is_none() && !self.is_behind
    }

    /// This machine was told something: it is behind no longer once that is all.
    pub(super) fn catch_up(&mut self) {
        if self.given_up.is_none() && self.told.number > 0 && self.told.is_whole {
            (self.is_behind, self.asks_anew) = (false, None);
        }
    }

    /// A steward that said that it cannot keep the bag, and so was told nothing more, asks to be told anew. Returns whether that one does.
    pub(super) fn tells_again(&mut self, steward: PeerId, ledger: &Ledger, io: &Io) -> bool {
        let stewards = self.acting.appointment.keepers.iter().skip(1);
        let Some(to) = stewards.filter(|to| !self.feeds.contains_key(&to.peer)).find(|to| to.peer == steward) else {
            return false;
        };
        let base = Changes::base(ledger.records(io), ledger.ended());
        self.feeds.insert(steward, Feed::new(to.clone(), base, true, io.now));
        true
    }

    /// Says to the keeper that acts, and to the submitter, who appoints, that this machine cannot keep the bag any longer.
    fn say_that_it_parts(&self, io: &mut Io) {
        let bag = self.bag();
        let acting = self.acting.keeper();
        let submitter = self.submitter().filter(|submitter| acting.is_none_or(|acting| acting.peer != submitter.peer));
        let me = io.me.peer;
        for keeper in acting.into_iter().chain(submitter).filter(|keeper| keeper.peer != me) {
            io.send(keeper.clone(), Message::KeepAnswer { bag, accepts: false });
        }
    }

    /// Whether the owner's room for it has been wanted for so long that nobody will take its place.
    pub(super) fn is_given_up_for_good(&self, now: Time) -> bool {
        self.given_up.is_some_and(|(_, first)| now.since(first) >= REPLACE_AFTER)
    }

    /// A keeper with the highest standing speaks: it is there, or it leaves, after those before it, and says who is to act next. A machine of before
    /// names nobody: then each takes itself for the next.
    pub(super) fn note_leaving(&mut self, from: PeerId, delta: &Delta, me: PeerId) {
        let keepers = &self.acting.appointment.keepers;
        self.awaited = None;
        let Some(rank) = self.acting.appointment.rank_of(from).filter(|_| delta.leaves) else {
            self.gone.remove(&from);
            return;
        };
        let next = delta.next.and_then(|next| keepers.get(usize::from(next))).map(|keeper| keeper.peer);
        let mine = self.acting.appointment.rank_of(me).filter(|_| next == Some(me));
        let gone = usize::from(mine.unwrap_or(0).max(rank + 1));
        self.gone.extend(keepers.iter().take(gone).map(|keeper| keeper.peer).filter(|keeper| *keeper != me));
        if let Some(next) = next.filter(|next| *next != me) {
            self.gone.remove(&next);
            self.awaited = Some(next);
        }
    }

    /// The rank of the steward that is to act next.
    pub(super) fn successor(&self, io: &Io) -> Option<u8> {
        successor(&self.acting.appointment, &self.feeds, io)
    }

    /// Whether this machine, which acts, leaves the bag to the next one since it can take no results any more.
    pub(super) fn hands_over(&self, disk_is_full: bool, io: &Io) -> bool {
        disk_is_full && self.given_up.is_some() && ready(&self.acting.appointment, &self.feeds, io).is_some()
    }
}
