//! A steward acts: a ledger of the bag is restored from its copy, as a submitter's is after a restart, and it stands down when it hears
//! of a keeper with a higher standing.

use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::copy::Copy;
use super::feed::{Changes, Delta, Feed, Tap};
use super::{Acting, Term};
use crate::conditions::Conditions;
use crate::config::Config;
use crate::io::Io;
use crate::ledger::{Failures, Ledger, Supply};
use crate::message::Message;
use crate::peer::Effect;
use crate::record::{Change, Record, RecordKey};

/// More attempts than a keeper numbers before the next one is told of them: whoever acts after it numbers its own above these, times its rank, so that no
/// machine is given the same attempt of a task by two of them (`simnet swarm --bags --stewards --case 874`). Our choice.
const ATTEMPTS_UNTOLD: u32 = 1024;
/// The same for a steward that was told nothing since it started, had no room, acted last itself, or is told of fewer attempts than it knows of: others
/// may have acted since, one after the other.
const ATTEMPTS_MISSED: u32 = 1 << 16;

/// How often the submitter of a bag is asked that is over by the word of another steward.
const ASK_PAST_EVERY: Duration = Duration::from_secs(60);

impl Copy {
    /// Whether the keepers before this one have been silent for long enough. They are asked once more before.
    pub(super) fn is_to_act(&mut self, io: &mut Io, config: &Config) -> bool {
        let Some(rank) = self.acting.appointment.rank_of(io.me.peer).filter(|_| self.can_act()) else { return false };
        if rank == 0 || io.now < self.acts_from(rank, config) || io.wall(io.now) >= self.acting.appointment.until {
            return false;
        }
        // One that was given up for want of room, or that has heard that the bag is over, asks, to learn that of the submitter, and does not act.
        let may_act = self.given_up.is_none() && !self.is_past;
        if self.waits_for(rank) == 0 && !self.is_past {
            self.probed = None;
            return may_act;
        }
        let asks_again = |probed| self.is_past && io.now.since(probed) >= ASK_PAST_EVERY;
        if self.probed.is_none_or(|probed| probed <= self.heard || asks_again(probed)) {
            self.probed = Some(io.now);
            let (before, after) = self.acting.appointment.keepers.split_at(usize::from(rank));
            for keeper in before {
                io.send(keeper.clone(), Message::Deltas { deltas: vec![self.ping()] });
            }
            // Keepers after this one are not to wait for it, as they would by a ping, and may know that the bag is over.
            for keeper in after.iter().skip(1) {
                io.send(keeper.clone(), Message::DeltasAck { bags: vec![(self.bag(), 0, Term::default())] });
            }
            return false;
        }
        may_act && self.probed.is_some_and(|probed| io.now.since(probed) >= config.steward_silence / 6)
    }

    /// The ledger that this copy describes.
    fn ledger(&self, io: &mut Io, config: &Config) -> Option<Ledger> {
        let Record::Bag {
            bag,
            released,
            retries_max,
            attempt,
            replication,
            stewards,
            keep_results,
            reruns,
            conditions,
            supply,
            ..
        } = self.told.records.get(&RecordKey::Bag(self.bag()))?
        else {
            return None;
        };
        if !self.is_submitter(bag.submitter.peer) {
            return None;
        }
        let mut ledger = Ledger::new(bag.clone(), io.moment(*released), *retries_max, *replication, io);
        ledger.keep_with(self.key);
        let has_missed = self.told.number == 0 || self.told.sender_is_behind;
        let unknown = if has_missed { ATTEMPTS_MISSED } else { ATTEMPTS_UNTOLD };
        let rank = self.acting.appointment.rank_of(io.me.peer)?;
        ledger.restore_attempt(attempt.saturating_add(unknown * u32::from(rank)));
        ledger.set_stewards(*stewards);
        ledger.set_keep_results(*keep_results, *reruns);
        ledger.set_conditions(Conditions::clone(conditions), io);
        if let Some(supply) = supply {
            ledger.set_supply(&Supply { drained: self.told.drained.clone(), ..Supply::clone(supply) });
            self.results.iter().for_each(|(_, (_, result))| ledger.note_undrained(result, None));
        }
        ledger.open();
        let [done, failed] = [true, false].map(|success| self.results.that_end(success));
        ledger.restore_ended(&self.told.done.union(&done), &self.told.failed.union(&failed));
        for record in self.told.records.values() {
            match record {
                Record::Failures { index, count, crashed_on, next_attempt, void_before, endings, .. } => {
                    let (count, next_attempt, void_before) = (*count, *next_attempt, *void_before);
                    let (crashed_on, endings) = (crashed_on.clone(), endings.clone());
                    ledger.restore_failures(*index, Failures { count, crashed_on, next_attempt, void_before, endings });
                }
                Record::Placed { executor, ranges, .. } => {
                    ledger.restore_placed(executor.clone(), ranges, io, config);
                }
                Record::Former { executor, ranges, .. } => ledger.restore_former(*executor, ranges.clone()),
                _ => {}
            }
        }
        Some(ledger)
    }

    /// Begins to act, in a new term. Returns the ledger.
    pub(super) fn begin(&mut self, io: &mut Io, config: &Config) -> Option<Box<Ledger>> {
        let rank = self.acting.appointment.rank_of(io.me.peer)?;
        let mut ledger = self.ledger(io, config)?;
        self.acting.acting = self.acting.acting.checked_add(1)?;
        self.acting.rank = rank;
        self.acting_since = io.now;
        (self.is_behind, self.asks_anew) = (false, None);
        // The ledger fetches what it is sent itself.
        self.coming.clear();
        io.persist(vec![Change::Put(self.record())], Vec::new());
        let bag = self.bag();
        io.acts_by(bag, Some(self.acting.clone()));
        io.taps.insert(bag, Tap { results: Some(std::collections::BTreeMap::new()), ..Tap::default() });
        let base = Changes::base(ledger.records(io), ledger.ended());
        let others = self.acting.appointment.keepers.iter().filter(|keeper| keeper.peer != io.me.peer);
        let feed = |keeper: &Contact| {
            // The submitter is told when it is back, and asks.
            let is_open = !self.is_submitter(keeper.peer);
            (keeper.peer, Feed::new(keeper.clone(), base.clone(), is_open, io.now))
        };
        self.feeds = others.map(feed).collect();
        ledger.issue_anew(io);
        ledger.greet(io, config);
        Some(Box::new(ledger))
    }

    /// What the acting ledger has written since the last time: results are kept for the submitter, and the rest is returned.
    pub(super) fn take_tap(&mut self, io: &mut Io) -> Changes {
        let bag = self.bag();
        let Some(tap) = io.taps.get_mut(&bag) else { return Changes::default() };
        if let Some(results) = &mut tap.results {
            self.results.take(results);
        }
        std::mem::take(&mut tap.changes)
    }

    /// Another keeper acts, with a higher standing: the ledger becomes a copy again.
    pub(super) fn stand_down(&mut self, mut ledger: Box<Ledger>, io: &mut Io) {
        let bag = self.bag();
        self.take_tap(io);
        io.taps.remove(&bag);
        io.acts_by(bag, None);
        self.feeds.clear();
        ledger.leave(io);
        self.told.records = ledger.records_in_store(io).into_iter().map(|record| (record.key(), record)).collect();
        ((self.told.done, self.told.failed), self.told.drained) = (ledger.ended(), ledger.drained());
        (self.told.number, self.told.is_whole) = (0, true);
        io.persist(vec![Change::Put(self.record())], Vec::new());
    }

    /// Says that this machine is there, and which term it has heard of.
    fn ping(&self) -> Delta {
        Delta::alive(self.bag(), self.term())
    }

    /// Whether a keeper before this one has answered the last question.
    pub(super) fn has_heard_since_probe(&self) -> bool {
        self.probed.is_some_and(|probed| self.heard >= probed)
    }

    /// Whether that machine is a keeper before this one.
    pub(super) fn is_before(&self, peer: PeerId, me: PeerId) -> bool {
        let rank = |peer| self.acting.appointment.rank_of(peer);
        rank(peer).is_some_and(|before| rank(me).is_some_and(|mine| before < mine))
    }

    /// What other keepers are to be told now; a farewell, where this machine leaves.
    pub(super) fn deltas(&mut self, leaves: bool, io: &mut Io) -> Vec<(Contact, Delta)> {
        let news = self.take_tap(io);
        let (acting, key, now, successor) = (self.acting.clone(), self.key, io.now, self.successor(io));
        let mut deltas = Vec::new();
        for feed in self.feeds.values_mut() {
            if feed.is_open {
                feed.add(&news);
            }
            let delta = if leaves { feed.farewell(&acting, key, successor, now) } else { feed.next(&acting, key, now) };
            deltas.extend(delta.map(|delta| (feed.to.clone(), delta)));
        }
        deltas
    }

    /// The submitter is back and asks: it is told all. It asks again while it is told.
    pub(super) fn open_feed(&mut self, to: &Contact, base: Changes, now: Time) {
        match self.feeds.get_mut(&to.peer).filter(|feed| feed.is_open) {
            Some(feed) => feed.introduce(to),
            None => drop(self.feeds.insert(to.peer, Feed::new(to.clone(), base, true, now))),
        }
    }

    /// Has the driver get the files that executors need.
    pub(super) fn want_files(&mut self, io: &mut Io) {
        let Some(header) = self.told.bag(self.bag()).filter(|_| !self.files_asked) else { return };
        let from = self.acting.keeper().cloned().unwrap_or_else(|| header.submitter.clone());
        io.effects.push(Effect::KeepFiles { bag: header.clone(), key: self.key, from });
        self.files_asked = true;
    }

    /// A keeper with this standing is there: this machine does not act for a while.
    pub(super) fn hear(&mut self, acting: Option<Acting>, now: Time) {
        self.heard = now;
        if let Some(acting) = acting {
            self.acting_since = now;
            self.acting = acting;
            (self.is_dismissed, self.hands_all) = (false, false);
        }
    }
}
