//! The thread that writes: all batches that wait go to disk as one, and only then are acknowledged.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::{debug, error, info, warn};

use super::database::Database;
use super::disk::{Mark, sync_all};
use super::frame::{HEADER_BYTES, encode};
use super::{
    COUNT_KEY, Change, CommitError, CommitResult, KEY_BYTES_MAX, STORE_DIR, Thresholds, VALUE_BYTES_MAX, rebuild,
};

/// How long a group that comes right behind another waits for company: each costs a flush, and more processor time than
/// the writes in it. Our choice: less than a disk takes.
const GATHER: Duration = Duration::from_millis(2);
/// The same for a group of which all is patient. Our choice: on a busy machine tasks end some milliseconds apart, and
/// nobody waits for the end of one of many.
const GATHER_PATIENTLY: Duration = Duration::from_millis(10);
/// A group of so many has company enough: more would save little, and whoever queues commits waits for it.
const COMPANY: usize = 96;

/// Commits and bytes that go to disk together.
const GROUP_MAX: usize = 1024;
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;

/// So many looks at the size of the store while it grows to the size at which it may be rebuilt.
const LOOKS: u64 = 8;

#[derive(Debug)]
pub(super) struct Job {
    pub(super) ticket: u64,
    pub(super) changes: Arc<[Change]>,
    /// It may wait for others.
    pub(super) is_patient: bool,
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

pub(super) struct Writer {
    /// The state directory.
    pub(super) dir: PathBuf,
    pub(super) thresholds: Thresholds,
    /// Or why there is none any more.
    pub(super) database: Result<Database, String>,
    /// Commits since the store was made.
    pub(super) count: u64,
    pub(super) mark: Mark,
    /// What lived in the store when all of it was read last.
    pub(super) live_bytes: u64,
    /// Bytes written since the size of the store was looked at.
    pub(super) unlooked_bytes: u64,
    /// Blob files of sled that were synced before.
    pub(super) synced_blobs: HashSet<PathBuf>,
    pub(super) jobs: mpsc::Receiver<Job>,
    pub(super) results: mpsc::Sender<CommitResult>,
}

impl Writer {
    pub(super) fn run(mut self) {
        let mut last: Option<Instant> = None;
        while let Some(first) = self.jobs.blocking_recv() {
            let (group, bytes) = self.gather(first, last);
            let fit: Vec<bool> = group.iter().map(Job::fits).collect();
            let result = if fit.contains(&true) { self.write(&group, &fit, bytes) } else { Ok(()) };
            if let Err(error) = &result {
                // Whoever hears of it tells it, once and not with each attempt.
                debug!(%error, "a commit failed");
            }
            for (job, fit) in group.iter().zip(fit) {
                let result = if fit { result.clone() } else { Err(CommitError::Unfit) };
                if self.results.blocking_send(CommitResult { ticket: job.ticket, result }).is_err() {
                    // The agent is ending and does not wait for results; what is queued is written all the same.
                    continue;
                }
            }
            self.rebuild_if_due();
            last = Some(Instant::now());
        }
        if let Ok(database) = self.database {
            database.close();
        }
    }

    /// Everything that goes to disk with this job, and how many bytes that are.
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
            // Whoever is not patient has to wait at most once.
            if last.is_none_or(|last| last.elapsed() >= wait) {
                return (group, bytes);
            }
            std::thread::sleep(GATHER);
        }
    }

    fn write(&mut self, group: &[Job], fit: &[bool], bytes: usize) -> Result<(), CommitError> {
        let database = match &self.database {
            Ok(database) => database,
            Err(reason) => return Err(CommitError::Broken(reason.clone())),
        };
        let needed_bytes = match self.thresholds.free_bytes_min {
            0 => 0,
            free_bytes_min => free_bytes_min + 4 * bytes as u64,
        };
        match self.free_bytes() {
            Some(free_bytes) if free_bytes < needed_bytes => {
                return Err(CommitError::DiskFull { free_bytes, needed_bytes });
            }
            // Where it is not known, the write will tell.
            Some(_) | None => {}
        }
        let count = self.count + group.len() as u64;
        let mut batch = sled::Batch::default();
        for (job, _) in group.iter().zip(fit).filter(|(_, fit)| **fit) {
            for change in job.changes.iter() {
                match &change.value {
                    Some(value) => batch.insert(change.key.as_slice(), encode(&change.key, value)),
                    None => batch.remove(change.key.as_slice()),
                }
            }
        }
        batch.insert(COUNT_KEY, encode(COUNT_KEY, &count.to_be_bytes()));
        let written = database.apply(batch);
        // A failed sync may have lost what it was to write, and the next one would not say so: it is final too.
        let synced = written.and_then(|()| {
            sync_all(&self.dir.join(STORE_DIR), &mut self.synced_blobs)
                .map_err(|error| format!("its files cannot be synced: {error}"))
        });
        match synced {
            Ok(()) => {
                self.count = count;
                self.mark.write(count);
                self.unlooked_bytes += bytes as u64;
                Ok(())
            }
            Err(reason) => {
                self.database = Err(reason.clone());
                Err(CommitError::Broken(reason))
            }
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        match rustix::fs::statvfs(&self.dir) {
            Ok(disk) => Some(disk.f_bavail * disk.f_frsize),
            Err(errno) => {
                warn!(%errno, "the free space of the disk is not known");
                None
            }
        }
    }

    /// Gives disk space back where most of the store is garbage. Commits wait meanwhile: 100,000 records take a second.
    fn rebuild_if_due(&mut self) {
        let Thresholds { free_bytes_min, rebuild_bytes_min } = self.thresholds;
        let Ok(database) = &self.database else { return };
        if self.unlooked_bytes < rebuild_bytes_min / LOOKS {
            return;
        }
        self.unlooked_bytes = 0;
        let size_bytes = match database.size_bytes() {
            Ok(size_bytes) => size_bytes,
            Err(reason) => return warn!(%reason, "the size of the store is not known"),
        };
        // What lives may have grown meanwhile; then the copy is in vain once, and the next one waits for more.
        let room_bytes = free_bytes_min + 4 * self.live_bytes;
        if !rebuild::is_due(size_bytes, self.live_bytes, rebuild_bytes_min)
            || self.free_bytes().is_some_and(|free_bytes| free_bytes < room_bytes)
        {
            return;
        }
        match rebuild::prepare(&self.dir, database) {
            Ok(live_bytes) => self.live_bytes = live_bytes,
            Err(reason) => return warn!(%reason, "the store could not be rebuilt; it stays as large as it is"),
        }
        let closed = "it is being rebuilt".to_owned();
        if let Ok(database) = std::mem::replace(&mut self.database, Err(closed)) {
            database.close();
        }
        self.synced_blobs.clear();
        match rebuild::exchange(&self.dir) {
            Ok((database, contents)) => {
                info!(size_bytes, now_bytes = contents.size_bytes, "the store was rebuilt to give disk space back");
                self.database = Ok(database);
            }
            Err(error) => {
                error!(%error, "the store was rebuilt and cannot be opened; the agent has to be started again");
                self.database = Err(error.to_string());
            }
        }
    }
}
