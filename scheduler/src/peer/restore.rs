//! Rebuilds a peer from its records.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use idlewood_overlay::{Contact, GridId, Overlay, Time, WallTime};

use super::{Asking, Effect, Peer, Removals, reports};
use crate::bag::{BagId, BagKey};
use crate::conditions::Conditions;
use crate::config::Config;
use crate::endless::fold::Fold;
use crate::executor::Executor;
use crate::io::Io;
use crate::ledger::{Failures, Ledger};
use crate::listing::{About, Listings};
use crate::record::{Change, Closing, Record, RecordKey};
use crate::router::Router;
use crate::steward::Appointment;
use crate::steward::keeping::Stewards;

/// Why a peer cannot be rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The settings make no sense.
    #[error("{0}")]
    Config(String),
}

/// A peer's secrets, which make it unpredictable to others.
#[derive(Clone, Copy)]
pub struct Seed {
    /// Seeds the random generators; another one at each start, unless a run is to be reproduced.
    pub chance: u64,
    /// The keys of its bags are derived from this; always the same, so that they outlive a restart.
    pub bags: [u8; 32],
}

impl Seed {
    /// The key of a bag that is submitted on the machine with this seed.
    pub fn key(&self, bag: BagId) -> BagKey {
        BagKey::of(&self.bags, bag)
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a seed")
    }
}

impl From<u64> for Seed {
    /// For tests and simulations, where there is nothing to keep secret.
    fn from(chance: u64) -> Self {
        Self { chance, bags: *blake3::hash(&chance.to_le_bytes()).as_bytes() }
    }
}

/// Takes the records of bags that are kept for others out of these.
fn take_kept(records: &mut Vec<Record>) -> Vec<Record> {
    let of =
        |record: &Record| if let Record::Kept { acting, .. } = record { Some(acting.appointment.bag) } else { None };
    let bags: BTreeSet<BagId> = records.iter().filter_map(of).collect();
    if bags.is_empty() {
        return Vec::new();
    }
    let is_kept = |record: &Record| match record.key() {
        RecordKey::Kept(bag)
        | RecordKey::Bag(bag)
        | RecordKey::Placed(bag, _)
        | RecordKey::Former(bag, _)
        | RecordKey::Failures(bag, _)
        | RecordKey::Checkpoint(bag, _)
        | RecordKey::Done(bag, _) => bags.contains(&bag),
        _ => false,
    };
    let (kept, others) = std::mem::take(records).into_iter().partition(is_kept);
    *records = others;
    kept
}

impl Peer {
    /// Rebuilds a peer from its records; a new peer has none.
    ///
    /// Peers with the same `config` can share it. `me.incarnation` comes from the driver (wall-clock milliseconds); it is
    /// raised above the recorded one, and made durable by the first effects. `wall_now` turns recorded wall-clock times
    /// into ages.
    ///
    /// # Errors
    /// [`RestoreError`] when `config` makes no sense.
    pub fn restore(
        config: impl Into<Arc<Config>>,
        grid: GridId,
        mut me: Contact,
        seed: impl Into<Seed>,
        now: Time,
        wall_now: WallTime,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, RestoreError> {
        let (config, Seed { chance, bags }) = (config.into(), seed.into());
        config.validate().map_err(RestoreError::Config)?;
        let mut records: Vec<Record> = records.into_iter().collect();
        for record in &records {
            if let Record::Incarnation(last) = record {
                me.incarnation = me.incarnation.max(last.saturating_add(1));
            }
        }
        let mut io = Io::new(now, wall_now, me.clone());
        (io.secret, io.bag_secret) = (chance, bags);
        (io.speed_mops, io.start_mops) = (config.speed_mops, config.speed_mops);
        for record in &records {
            if let Record::Reputation { executor, reputation } = record {
                io.reputations.restore(*executor, *reputation);
            }
        }
        let overlay = Overlay::new(config.overlay.clone(), grid, me, chance, now, reports(config.summaries));
        io.me = overlay.me_shared().clone();
        let stewards = Stewards::new(&config, now);
        let mut peer = Self {
            executor: Executor::new(&config),
            config,
            grid,
            overlay,
            overlay_effects: Vec::new(),
            certified: BTreeMap::new(),
            router: Router::default(),
            cut_off: Vec::new(),
            ledgers: BTreeMap::new(),
            stewards,
            fold: Fold::new(),
            root_heard: None,
            removals: Removals::new(),
            io,
            summary_earliest: now,
            summary_latest: now,
            router_due: None,
            router_earliest: now,
            alone_until: None,
            asking: Asking::new(now),
            about: About::default(),
            listings: Listings::default(),
            disk_is_full: false,
            is_entering: false,
            executor_due: None,
            executor_touched: true,
            deadline: Some(now),
            #[cfg(debug_assertions)]
            unchecked: 0,
        };
        peer.alone_until = peer.config.expects_grid.then(|| now + peer.config.placement_timeout);
        let kept = take_kept(&mut records);
        peer.stewards.restore_copy(kept.iter(), now);
        let given_up = peer.restore_bags(&records);
        peer.restore_removals(&records);
        peer.restore_tasks(records, &given_up);
        peer.io.persist(vec![Change::Put(Record::Incarnation(peer.io.me.incarnation))], Vec::new());
        Ok(peer)
    }

    /// Restores ledgers: bags first, then ended tasks, then placements. Each step takes its tasks out of the state of the step
    /// before.
    ///
    /// A bag that was submitted under another identity is cancelled: its manifest is signed with a key that is gone, so that no
    /// machine takes this one for its submitter. Its results stay. Returns the bags cancelled so.
    fn restore_bags(&mut self, records: &[Record]) -> BTreeSet<BagId> {
        let mut given_up = BTreeSet::new();
        for record in records {
            if let Record::Bag {
                bag,
                released,
                retries_max,
                attempt,
                closed,
                replication,
                stewards,
                keep_results,
                reruns,
                conditions,
                supply,
            } = record
                && !matches!(closed, Some((Closing::Removed, _)))
            {
                let released = self.io.moment(*released);
                if closed.is_none() && bag.submitter.peer != self.io.me.peer {
                    given_up.insert(bag.id);
                }
                let mut bag = bag.clone();
                if bag.submitter.peer == self.io.me.peer {
                    bag.submitter = Contact::clone(&self.io.me);
                }
                let mut ledger = Ledger::new(bag, released, *retries_max, *replication, &self.io);
                ledger.restore_attempt(*attempt);
                ledger.set_stewards(*stewards);
                ledger.set_keep_results(*keep_results, *reruns);
                ledger.set_conditions(Conditions::clone(conditions), &self.io);
                supply.iter().for_each(|supply| ledger.set_supply(supply));
                if let Some((closing, at)) = closed {
                    ledger.restore_closed(*closing, self.io.moment(*at));
                }
                ledger.open();
                if !given_up.contains(&ledger.header().id) && ledger.begin_to_measure() {
                    self.io.effects.push(Effect::MeasureTask { bag: ledger.header().id });
                }
                self.ledgers.insert(ledger.header().id, Box::new(ledger));
            }
        }
        for record in records {
            if let Record::Done { bag, executor, finished, result } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                ledger.restore_done(*executor, result, self.io.moment(*finished), &self.io);
            }
        }
        for record in records {
            // The bag's end may be recorded while some result is not.
            if let Record::Bag { bag, closed: Some((Closing::Completed, _)), .. } = record
                && let Some(ledger) = self.ledgers.get_mut(&bag.id)
            {
                ledger.reopen_unless_over();
                if !ledger.is_closed() && bag.submitter.peer != self.io.me.peer {
                    given_up.insert(bag.id);
                }
            }
        }
        self.ledgers.values_mut().for_each(|ledger| ledger.restore_predictions(&self.io));
        for record in records {
            if let Record::Failures { bag, index, count, crashed_on, next_attempt, void_before, endings } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                let (count, next_attempt, void_before) = (*count, *next_attempt, *void_before);
                let (crashed_on, endings) = (crashed_on.clone(), endings.clone());
                ledger.restore_failures(*index, Failures { count, crashed_on, next_attempt, void_before, endings });
            }
        }
        for record in records {
            if let Record::Checkpoint { bag, index, checkpoint } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                ledger.restore_checkpoint(*index, *checkpoint);
            }
        }
        for record in records {
            if let Record::Placed { bag, executor, ranges } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                ledger.restore_placed(executor.clone(), ranges, &mut self.io, &self.config);
            }
            if let Record::Former { bag, executor, ranges } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                ledger.restore_former(*executor, ranges.clone());
            }
        }
        let appointments: BTreeMap<BagId, (&Appointment, bool)> = records
            .iter()
            .filter_map(|record| match record {
                Record::Stewards { appointment, adopts } => Some((appointment.bag, (appointment, *adopts))),
                _ => None,
            })
            .collect();
        for (bag, ledger) in &mut self.ledgers {
            ledger.go_on_with_rounds(&mut self.io);
            ledger.close_if_over(&mut self.io);
            if given_up.contains(bag) {
                ledger.close(Closing::Cancelled, &mut self.io);
            }
            ledger.issue_anew(&mut self.io);
            match appointments.get(bag) {
                // Its stewards are asked before anybody is told anything.
                Some(&(appointment, adopts)) => {
                    self.stewards.restore_own(appointment.clone(), adopts, ledger, self.io.now);
                }
                None => ledger.greet(&mut self.io, &self.config),
            }
        }
        given_up
    }

    /// Restores the executor's tasks and results, without those of bags that [`Self::restore_bags`] cancelled.
    fn restore_tasks(&mut self, records: Vec<Record>, given_up: &BTreeSet<BagId>) {
        let mut obeyed = Vec::new();
        for record in records {
            match record {
                Record::Held { ref bag, .. } | Record::Outbox { ref bag, .. } if given_up.contains(&bag.id) => {
                    self.io.persist(vec![Change::Delete(record.key())], Vec::new());
                }
                Record::Held { bag, released, attempt, attempts, ranges, checkpoints, priority, at_once } => {
                    let released = self.io.moment(released);
                    let attempts = attempts.unwrap_or_else(|| BTreeMap::from([(attempt, ranges.clone())]));
                    let attempts = (attempt, &attempts);
                    let id = bag.id;
                    self.executor.restore_held(bag, released, attempts, &ranges, checkpoints, &self.config);
                    self.executor.restore_priority(id, priority);
                    self.executor.restore_booking(id, &at_once, self.io.now);
                }
                Record::Outbox { bag, released, result } => {
                    let released = self.io.moment(released);
                    self.executor.restore_result(bag, released, result, &self.config);
                }
                Record::Incarnation(_)
                | Record::Bag { .. }
                | Record::Placed { .. }
                | Record::Former { .. }
                | Record::Reputation { .. }
                | Record::Failures { .. }
                | Record::Checkpoint { .. }
                | Record::Stewards { .. }
                | Record::Kept { .. }
                | Record::Done { .. } => {}
                Record::Obeyed { acting } => obeyed.push(acting),
            }
        }
        obeyed.iter().for_each(|acting| self.executor.restore_obeyed(acting, &self.io, &self.config));
    }
}
