//! The disk, from the loop's side: records are encoded and go to the store as the machine orders it, and what they need is pinned.

use std::sync::Arc;

use idlewood_machine::{Event, RECORD_BYTES_MAX, WriteEnd, WriteId};
use idlewood_scheduler::{BagId, BlobId, Change, Peer, Record};
use idlewood_store::{CommitError, CommitResult, Reader, Store, VALUE_BYTES_MAX};
use idlewood_trust::manifest::Manifest;

use super::done::Done;
use super::endless;
use super::pins::{self, Pins};
use super::shared::Shared;
use crate::handle::Refusal;

const _: () = assert!(RECORD_BYTES_MAX <= VALUE_BYTES_MAX, "the machine takes for fitting what does not fit");

/// The store, and what its records need.
pub(super) struct Storage {
    store: Store,
    pins: Pins,
    /// The last write to end has failed.
    write_fails: bool,
    /// The store is beyond use: the agent ends, and whoever supervises it starts it again.
    fatal: Option<CommitError>,
}

fn encoded(change: &Change) -> idlewood_store::Change {
    match change {
        Change::Put(record) => {
            idlewood_store::Change { key: record.key().to_bytes(), value: Some(Record::encode(record)) }
        }
        Change::Delete(key) => idlewood_store::Change { key: key.to_bytes(), value: None },
    }
}

/// Reads the manifest of a bag that could not be read, unless this is it, and which files came with tasks of the bag, in a blocking thread.
fn read_again(bag: BagId, manifest: Option<Arc<Manifest>>, shared: &mut Shared) {
    let (blobs, lines) = (shared.supplies.blobs.clone(), shared.lines.clone());
    let read = move || {
        let manifest = pins::manifest(manifest, &blobs, bag);
        let has_files = matches!(&manifest, Ok(Some(manifest)) if manifest.has_files());
        let files = if has_files { endless::files(bag, &lines) } else { Vec::new() };
        Done::ManifestRetried { bag, manifest, files }
    };
    let stopped = Err(Refusal::Unavailable("the agent stops".to_owned()));
    shared.answers.spawn_blocking(read, Done::ManifestRetried { bag, manifest: stopped, files: Vec::new() });
}

impl Storage {
    pub(super) fn new(store: Store, pins: Pins) -> Self {
        Self { store, pins, write_fails: false, fatal: None }
    }

    /// What records need.
    pub(super) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// The same, to pin what records need that are about to be written.
    pub(super) fn pins_mut(&mut self) -> &mut Pins {
        &mut self.pins
    }

    /// Reads what is durable, also beside the loop.
    pub(super) fn reader(&self) -> Reader {
        self.store.reader()
    }

    /// Whether the store is beyond use.
    pub(super) fn is_broken(&self) -> bool {
        self.fatal.is_some()
    }

    /// The machine's records become these.
    pub(super) fn changed(&mut self, changes: &[Arc<Change>]) {
        changes.iter().for_each(|change| self.pins.apply(change));
    }

    /// Hands a write on to the store, which tells of its end ([`Storage::committed`]).
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
    pub(super) fn committed(&mut self, result: CommitResult, shared: &mut Shared) {
        let write = WriteId(result.ticket);
        let end = match result.result {
            Ok(()) => {
                self.write_fails = false;
                WriteEnd::Durable
            }
            Err(error) => self.failed(error),
        };
        shared.events.tell(Event::Written { write, end });
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
    pub(super) fn read_unread(&mut self, shared: &mut Shared) {
        for bag in self.pins.begin_reading() {
            read_again(bag, None, shared);
        }
    }

    /// Handles the result of another attempt to read a manifest, with the files that came with tasks of its bag.
    pub(super) fn manifest_retried(
        &mut self,
        bag: BagId,
        manifest: Result<Option<Arc<Manifest>>, Refusal>,
        files: Vec<(u64, Vec<BlobId>)>,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        match manifest {
            Ok(Some(manifest)) => {
                if self.pins.is_unread(bag) {
                    self.learn(bag, &manifest, files, peer);
                }
                shared.manifests.remember(bag, manifest);
            }
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
    pub(super) fn manifest_read(&mut self, bag: BagId, manifest: Arc<Manifest>, shared: &mut Shared) {
        if self.pins.is_unread(bag) {
            read_again(bag, Some(manifest.clone()), shared);
        }
        shared.manifests.remember(bag, manifest);
    }

    /// A bag of this machine can be read again.
    fn learn(&mut self, bag: BagId, manifest: &Manifest, files: Vec<(u64, Vec<BlobId>)>, peer: &Peer) {
        self.pins.learn(bag, Some(manifest));
        endless::restore_files(bag, &mut self.pins, files);
        let Some(view) = peer.bag(bag) else { return };
        // Tasks may have been drained while their files were looked for.
        self.pins.drained(bag, view.endless.as_ref().map_or(0, |endless| endless.drained_below));
        if view.closed.is_some() {
            self.pins.close(bag);
        }
    }

    /// Why the store is beyond use; asked once.
    pub(super) fn take_fatal(&mut self) -> Option<CommitError> {
        self.fatal.take()
    }

    /// Makes durable what the store was given. Blocks.
    pub(super) fn close(self) {
        self.store.close();
    }
}
