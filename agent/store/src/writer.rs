//! The writer thread: appends all waiting batches to the journal as one group, then acknowledges them.
//!
//! Written changes stay in memory, the last value of each key, until there are enough; then sled gets them as one
//! batch, in the background, and the journal notes that. When the journal has grown by as much as its snapshot, sled
//! writes the snapshot of the next generation, also in the background. If sled fails, commits go to the journal alone,
//! and the next opening repairs the rest.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::{debug, error, info, warn};

use super::commit::{Change, CommitError, CommitResult, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use super::database::{COUNT_KEY, Database};
use super::disk::{self, Mark};
use super::frame::{HEADER_BYTES, encode};
use super::journal::{AppendError, Changes, Journal, push_entry};
use super::reading::Reader;
use super::rebuild;
use super::recovery::Recovered;
use super::reserve::Reserve;
use super::thresholds::Thresholds;

/// How long a group that directly follows another waits for more commits: each group costs a flush, and more processor
/// time than its writes. Our choice: less than a disk takes.
const GATHER: Duration = Duration::from_millis(2);
/// The same for a group of patient commits only. Our choice: on a busy machine tasks end some milliseconds apart, and
/// no caller waits for one of them.
const GATHER_PATIENTLY: Duration = Duration::from_millis(10);
/// A group of so many waits no longer: more would save little, and the callers wait for it.
const COMPANY: usize = 96;

/// Commits and bytes that go to disk together.
const GROUP_MAX: usize = 1024;
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes that sled may lack while it is busy. Our choice: eight checkpoints; they take some times that in memory.
const PENDING_BYTES_MAX: u64 = 16 << 20;

/// How often the store's size is checked while it grows to the size at which it may be rebuilt.
const LOOKS: u64 = 8;

#[derive(Debug)]
pub(super) struct Job {
    pub(super) ticket: u64,
    pub(super) changes: Arc<[Change]>,
    /// It may wait for more commits.
    pub(super) is_patient: bool,
    /// It takes on new work, so it may not use the reserve.
    pub(super) takes_on: bool,
}

impl Job {
    fn bytes(&self) -> usize {
        let size = |change: &Change| change.key.len() + change.value.as_ref().map_or(0, Vec::len) + HEADER_BYTES;
        self.changes.iter().map(size).sum()
    }

    fn fits(&self) -> bool {
        self.changes.iter().all(|change| {
            (1..=KEY_BYTES_MAX).contains(&change.key.len())
                && change.key[0] != COUNT_KEY[0]
                && change.value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX)
        })
    }
}

/// An order that sled carries out in the background.
#[derive(Clone, Copy, Debug)]
enum UnderWay {
    /// It applies commits up to `count`, which end at `end` in the journal.
    Checkpoint { count: u64, end: u64, bytes: u64 },
    /// It writes the snapshot of the next generation; blocks after `end` must be appended to that.
    Snapshot { end: u64 },
}

pub(super) struct Writer {
    /// The state directory.
    pub(super) dir: PathBuf,
    pub(super) thresholds: Thresholds,
    /// Or why nothing can be written any more.
    pub(super) journal: Result<Journal, String>,
    reserve: Reserve,
    /// None after it failed.
    pub(super) database: Option<Database>,
    under_way: Option<UnderWay>,
    /// Holds the changes that sled lacks.
    reader: Reader,
    /// Bytes of these changes.
    pending_bytes: u64,
    /// Size of the journal at which the next generation is tried again.
    grown_bytes_min: u64,
    /// Commits since the store was made.
    count: u64,
    mark: Mark,
    /// Bytes of the live records in sled at its last checkpoint.
    live_bytes: u64,
    /// Bytes that sled got since its size was checked.
    unlooked_bytes: u64,
    jobs: mpsc::Receiver<Job>,
    results: mpsc::Sender<CommitResult>,
}

/// Bytes of a key and its record in a batch.
fn size(key: &[u8], record: Option<&Vec<u8>>) -> u64 {
    (key.len() + record.map_or(0, Vec::len)) as u64
}

impl Writer {
    pub(super) fn new(
        dir: PathBuf,
        thresholds: Thresholds,
        recovered: Recovered,
        live_bytes: u64,
        reader: Reader,
        jobs: mpsc::Receiver<Job>,
        results: mpsc::Sender<CommitResult>,
    ) -> Self {
        let Recovered { mut database, journal, mark, pending, count, .. } = recovered;
        let pending_bytes = pending.iter().map(|(key, record)| size(key, record.as_ref())).sum();
        *reader.pending() = pending;
        database.read_by(&reader);
        let mut writer = Self {
            reserve: Reserve::of(&dir, thresholds.reserve_bytes),
            dir,
            thresholds,
            journal: Ok(journal),
            database: Some(database),
            under_way: None,
            reader,
            pending_bytes,
            grown_bytes_min: thresholds.generation_bytes_min,
            count,
            mark,
            live_bytes,
            unlooked_bytes: 0,
            jobs,
            results,
        };
        writer.fill_reserve();
        writer
    }

    pub(super) fn run(mut self) {
        let mut last: Option<Instant> = None;
        while let Some(first) = self.jobs.blocking_recv() {
            let (group, bytes) = self.gather(first, last);
            let refused = self.refused(&group, bytes);
            let written: Vec<bool> = refused.iter().map(Option::is_none).collect();
            let result = if written.contains(&true) { self.write(&group, &written, bytes) } else { Ok(()) };
            if let Err(error) = &result {
                // The receiver of the result logs it, once and not with each attempt.
                debug!(%error, "a commit failed");
            }
            for (job, refused) in group.iter().zip(refused) {
                let result = refused.map_or_else(|| result.clone(), Err);
                if self.results.blocking_send(CommitResult { ticket: job.ticket, result }).is_err() {
                    // The agent is ending and does not wait for results; queued commits are still written.
                    continue;
                }
            }
            self.tend();
            last = Some(Instant::now());
        }
        self.end();
    }

    /// Collects the group of jobs to write with `first`; returns it with its bytes.
    fn gather(&mut self, first: Job, last: Option<Instant>) -> (Vec<Job>, usize) {
        let mut bytes = first.bytes();
        let mut group = vec![first];
        loop {
            while group.len() < GROUP_MAX && bytes < GROUP_BYTES_MAX {
                let Ok(job) = self.jobs.try_recv() else { break };
                bytes += job.bytes();
                group.push(job);
            }
            let is_patient = group.len() < COMPANY && group.iter().all(|job| job.is_patient);
            let wait = if is_patient { GATHER_PATIENTLY } else { GATHER };
            // An impatient job waits at most once.
            if last.is_none_or(|last| last.elapsed() >= wait) {
                return (group, bytes);
            }
            std::thread::sleep(GATHER);
        }
    }

    /// Why each of these jobs is refused, if it is.
    fn refused(&self, group: &[Job], bytes: usize) -> Vec<Option<CommitError>> {
        // Removals free space, and the reserve is for jobs that take on no work.
        let takes_on = |job: &Job| job.takes_on && job.changes.iter().any(|change| change.value.is_some());
        let is_full = if group.iter().any(takes_on) { self.check_room(4 * bytes as u64).err() } else { None };
        let refused = |job: &Job| match &is_full {
            _ if !job.fits() => Some(CommitError::Unfit),
            Some(is_full) if takes_on(job) => Some(is_full.clone()),
            _ => None,
        };
        group.iter().map(refused).collect()
    }

    fn write(&mut self, group: &[Job], written: &[bool], bytes: usize) -> Result<(), CommitError> {
        let changes =
            || group.iter().zip(written).filter(|(_, written)| **written).flat_map(|(job, _)| job.changes.iter());
        // New work may not use the reserve.
        let may_use_reserve = group.iter().zip(written).all(|(job, written)| !written || !job.takes_on);
        if may_use_reserve {
            self.find_room(4 * bytes as u64);
        }
        let mut last = Changes::new();
        for change in changes() {
            // Within a group only the last value of a key counts.
            last.insert(change.key.clone(), change.value.as_ref().map(|value| encode(&change.key, value)));
        }
        let mut payload = Vec::with_capacity(bytes + 16 * last.len());
        for (key, record) in &last {
            push_entry(&mut payload, key, record.as_deref());
        }
        let count = self.count + group.len() as u64;
        let journal = self.journal.as_mut().map_err(|reason| CommitError::Broken(reason.clone()))?;
        let mut appended = journal.append(self.count, count, &payload);
        if matches!(appended, Err(AppendError::Full)) && may_use_reserve && self.reserve.give(4 * payload.len() as u64)
        {
            appended = journal.append(self.count, count, &payload);
        }
        match appended {
            Ok(()) => {}
            Err(AppendError::Full) => {
                let needed_bytes = payload.len() as u64;
                return Err(CommitError::DiskFull { free_bytes: self.free_bytes().unwrap_or(0), needed_bytes });
            }
            Err(AppendError::Broken(reason)) => {
                self.journal = Err(reason.clone());
                return Err(CommitError::Broken(reason));
            }
        }
        self.count = count;
        self.mark.write(count);
        if self.database.is_some() {
            let mut pending = self.reader.pending();
            for (key, record) in last {
                self.pending_bytes += size(&key, record.as_ref());
                let key_bytes = key.len() as u64;
                if let Some(old) = pending.insert(key, record) {
                    self.pending_bytes -= key_bytes + old.map_or(0, |old| old.len() as u64);
                }
            }
        }
        Ok(())
    }

    /// # Errors
    /// When the disk has less free space than that and the space that must stay free.
    fn check_room(&self, bytes: u64) -> Result<(), CommitError> {
        let needed_bytes = match self.thresholds.free_bytes_min {
            0 => 0,
            free_bytes_min => free_bytes_min + bytes,
        };
        match self.free_bytes() {
            Some(free_bytes) if free_bytes < needed_bytes => Err(CommitError::DiskFull { free_bytes, needed_bytes }),
            // If the free space is unknown, the write will show.
            Some(_) | None => Ok(()),
        }
    }

    /// Frees this much of the reserve if the disk has less.
    fn find_room(&mut self, bytes: u64) {
        if self.free_bytes().is_some_and(|free_bytes| free_bytes < bytes) {
            self.reserve.give(bytes);
        }
    }

    fn fill_reserve(&mut self) {
        if self.reserve.bytes() < self.thresholds.reserve_bytes
            && let Some(free_bytes) = self.free_bytes()
        {
            self.reserve.fill(free_bytes, self.thresholds.free_bytes_min);
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        disk::free_bytes(&self.dir)
    }

    /// Handles sled's finished order and starts the next, without waiting.
    fn tend(&mut self) {
        if let (Some(under_way), Some(database)) = (self.under_way, &mut self.database) {
            // The changes that sled lacks are in memory. If it cannot keep up, commits wait for it.
            let is_behind = self.pending_bytes > PENDING_BYTES_MAX;
            let Some(result) = (if is_behind { Some(database.wait()) } else { database.poll() }) else { return };
            self.under_way = None;
            self.ended(under_way, result);
        }
        if self.under_way.is_none() {
            self.fill_reserve();
            self.rebuild_if_due();
            if self.pending_bytes > self.thresholds.checkpoint_bytes || self.has_grown() {
                self.begin_checkpoint();
            }
        }
    }

    /// Whether the journal is due for its next generation.
    fn has_grown(&self) -> bool {
        self.journal.as_ref().is_ok_and(|journal| {
            let (grown_bytes, snapshot_bytes) = journal.sizes();
            grown_bytes > self.grown_bytes_min.max(snapshot_bytes)
        })
    }

    /// Gives sled the changes that it lacks, if the disk has room for them: it does not recover from a failed write.
    fn begin_checkpoint(&mut self) {
        let (count, bytes) = (self.count, self.pending_bytes);
        if let Err(CommitError::DiskFull { free_bytes, needed_bytes }) = self.check_room(4 * bytes)
            && (free_bytes + self.reserve.bytes() < needed_bytes || !self.reserve.give(needed_bytes - free_bytes))
        {
            return;
        }
        let (Some(database), Ok(journal)) = (&mut self.database, &self.journal) else { return };
        let end = journal.end();
        self.pending_bytes = 0;
        let begun = {
            // Locked until sled has its order: a reader finds each change in one of the two.
            let mut pending = self.reader.pending();
            database.begin_checkpoint(std::mem::take(&mut *pending), count)
        };
        self.begun(UnderWay::Checkpoint { count, end, bytes }, begun);
    }

    fn begun(&mut self, under_way: UnderWay, begun: Result<(), String>) {
        match begun {
            Ok(()) => self.under_way = Some(under_way),
            Err(reason) => self.give_database_up(&reason),
        }
    }

    fn ended(&mut self, under_way: UnderWay, result: Result<u64, String>) {
        match (under_way, result) {
            (UnderWay::Checkpoint { count, end, bytes }, Ok(live_bytes)) => {
                // Much of its files may be garbage now.
                let freed_bytes = self.live_bytes.saturating_sub(live_bytes);
                self.unlooked_bytes += bytes + freed_bytes;
                self.live_bytes = live_bytes;
                if let Ok(journal) = &mut self.journal
                    && let Err(AppendError::Broken(reason)) = journal.note_indexed(count)
                {
                    self.journal = Err(reason);
                }
                if self.has_grown() {
                    self.begin_snapshot(end);
                }
            }
            (UnderWay::Checkpoint { .. }, Err(reason)) => self.give_database_up(&reason),
            (UnderWay::Snapshot { end }, Ok(_)) => self.take_next_generation(end),
            (UnderWay::Snapshot { .. }, Err(reason)) => self.put_generation_off(&reason),
        }
    }

    fn begin_snapshot(&mut self, end: u64) {
        let (grown_bytes, snapshot_bytes) = self.journal.as_ref().map_or((0, 0), Journal::sizes);
        if self.check_room(grown_bytes + 2 * snapshot_bytes).is_err() {
            return self.put_generation_off("the disk has no room for it");
        }
        let (Some(database), Ok(journal)) = (&mut self.database, &self.journal) else { return };
        let begun = database.begin_snapshot(&journal.next_path());
        self.begun(UnderWay::Snapshot { end }, begun);
    }

    fn take_next_generation(&mut self, end: u64) {
        let Ok(journal) = &mut self.journal else { return };
        let snapshot_end = match journal.complete_next(end) {
            Ok(snapshot_end) => snapshot_end,
            Err(error) => return self.put_generation_off(&error.to_string()),
        };
        if let Err(error) = journal.advance(snapshot_end) {
            self.journal = Err(format!("the journal's next generation: {error}"));
            return;
        }
        if let Err(error) = journal.remove_older() {
            warn!(%error, "the journal's last generation cannot be removed");
        }
        self.grown_bytes_min = self.thresholds.generation_bytes_min;
    }

    /// Keeps the present generation until it has grown by as much again.
    fn put_generation_off(&mut self, reason: &str) {
        warn!(reason, "the journal's next generation is put off");
        if let Ok(journal) = &self.journal {
            self.grown_bytes_min = journal.sizes().0 + self.thresholds.generation_bytes_min;
        }
    }

    fn give_database_up(&mut self, reason: &str) {
        error!(
            reason,
            "the database of the store has stopped working; nothing is lost, and commits go on in the journal: check the \
             disk, and start the agent again"
        );
        self.database = None;
        self.under_way = None;
        self.reader.follow(None);
        self.reader.pending().clear();
        self.pending_bytes = 0;
    }

    /// Gives sled all changes that it lacks, so that it is complete without the journal.
    fn end(mut self) {
        self.wait_for_database();
        if self.pending_bytes > 0 {
            self.begin_checkpoint();
            self.wait_for_database();
        }
        if let Some(database) = self.database {
            database.close();
        }
    }

    fn wait_for_database(&mut self) {
        while let Some(under_way) = self.under_way.take() {
            let Some(database) = &mut self.database else { return };
            let result = database.wait();
            self.ended(under_way, result);
        }
    }

    /// Frees disk space if most of sled's files is garbage. Commits wait meanwhile: 100,000 records take a second.
    fn rebuild_if_due(&mut self) {
        let Thresholds { free_bytes_min, rebuild_bytes_min, .. } = self.thresholds;
        if self.unlooked_bytes < rebuild_bytes_min / LOOKS {
            return;
        }
        self.unlooked_bytes = 0;
        let free_bytes = self.free_bytes();
        let Some(database) = &mut self.database else { return };
        let size_bytes = match database.size_bytes() {
            Ok(size_bytes) => size_bytes,
            Err(reason) => return warn!(%reason, "the size of the store is not known"),
        };
        let room_bytes = free_bytes_min + 4 * self.live_bytes;
        if !rebuild::is_due(size_bytes, self.live_bytes, rebuild_bytes_min)
            || free_bytes.is_some_and(|free_bytes| free_bytes < room_bytes)
        {
            return;
        }
        match rebuild::prepare(&self.dir, database) {
            Ok(live_bytes) => self.live_bytes = live_bytes,
            Err(reason) => return warn!(%reason, "the store could not be rebuilt; it stays as large as it is"),
        }
        if let Some(database) = self.database.take() {
            database.close();
        }
        match rebuild::exchange(&self.dir) {
            Ok((mut database, contents)) => {
                database.read_by(&self.reader);
                info!(size_bytes, now_bytes = contents.size_bytes, "the store was rebuilt to give disk space back");
                self.database = Some(database);
            }
            Err(error) => self.give_database_up(&error.to_string()),
        }
    }
}
