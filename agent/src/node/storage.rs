//! The disk, from the loop's side: records are encoded and go to the store as the machine orders it; what they need is pinned, and
//! manifests that could not be read are read again.

use std::sync::Arc;

use idlewood_machine::{Event, RECORD_BYTES_MAX, WriteEnd, WriteId};
use idlewood_scheduler::{BagId, Change, Record};
use idlewood_store::{CommitError, CommitResult, VALUE_BYTES_MAX};
use idlewood_trust::manifest::Manifest;

use super::done::Done;
use super::driver::Driver;
use super::pins::manifest;
use crate::handle::Refusal;

const _: () = assert!(RECORD_BYTES_MAX <= VALUE_BYTES_MAX, "the machine takes for fitting what does not fit");

fn encoded(change: &Change) -> idlewood_store::Change {
    match change {
        Change::Put(record) => {
            idlewood_store::Change { key: record.key().to_bytes(), value: Some(Record::encode(record)) }
        }
        Change::Delete(key) => idlewood_store::Change { key: key.to_bytes(), value: None },
    }
}

impl Driver {
    /// Hands a write on to the store, which tells of its end ([`Driver::committed`]).
    pub(super) fn write(&mut self, write: WriteId, changes: &[Arc<Change>], is_patient: bool, from_reserve: bool) {
        let changes: Arc<[idlewood_store::Change]> = changes.iter().map(|change| encoded(change)).collect();
        let queued = match (from_reserve, is_patient) {
            (true, is_patient) => self.store.try_commit_from_reserve(changes, write.0, is_patient),
            (false, true) => self.store.try_commit_patiently(changes, write.0),
            (false, false) => self.store.try_commit(changes, write.0),
        };
        if let Err(error) = queued {
            // Its writer has ended: the machine never has more with the store than this takes.
            self.fatal.get_or_insert(CommitError::Broken(error.to_string()));
        }
    }

    /// A write is on disk, or failed.
    pub(super) fn committed(&mut self, result: CommitResult) {
        let write = WriteId(result.ticket);
        let end = match result.result {
            Ok(()) => {
                self.write_fails = false;
                WriteEnd::Durable
            }
            Err(error) => self.failed(error),
        };
        self.feed(Event::Written { write, end });
    }

    fn failed(&mut self, error: CommitError) -> WriteEnd {
        // That writes fail is told when it begins, and not again each second for each that waits.
        if error == CommitError::Unfit || !std::mem::replace(&mut self.write_fails, true) {
            tracing::error!(%error, "the store could not write");
        }
        match error {
            CommitError::Unfit => WriteEnd::Unfit,
            CommitError::DiskFull { .. } => WriteEnd::NoRoom,
            CommitError::Broken(_) => {
                self.fatal = Some(error);
                WriteEnd::Failed
            }
        }
    }

    /// Tries again to read unreadable manifests, in blocking threads.
    pub(super) fn read_unread(&mut self) {
        for bag in self.pins.begin_reading() {
            let blobs = self.shared.supplies.blobs.clone();
            let read = move || Done::ManifestRetried { bag, manifest: manifest(None, &blobs, bag) };
            let stopped = || Refusal::Unavailable("the agent stops".to_owned());
            self.shared.answers.spawn_blocking(read, Done::ManifestRetried { bag, manifest: Err(stopped()) });
        }
    }

    /// Handles the result of another attempt to read a manifest.
    pub(super) fn manifest_retried(&mut self, bag: BagId, manifest: Result<Option<Arc<Manifest>>, Refusal>) {
        match manifest {
            Ok(Some(manifest)) => self.manifest_read(bag, manifest),
            Ok(None) => {
                tracing::warn!(%bag, "the manifest of a bag submitted here is lost");
                self.pins.note_lost(bag);
            }
            Err(error) => {
                tracing::warn!(%bag, %error, "the manifest of a bag submitted here cannot be read");
                self.pins.note_unread(bag);
            }
        }
    }

    /// Takes note of a manifest that was read, of a bag of this machine or of another.
    pub(super) fn manifest_read(&mut self, bag: BagId, manifest: Arc<Manifest>) {
        if self.pins.is_unread(bag) {
            self.pins.learn(bag, Some(&manifest));
            if self.peer().bag(bag).is_some_and(|view| view.closed.is_some()) {
                self.pins.close(bag);
            }
        }
        self.shared.manifests.remember(bag, manifest);
    }
}
