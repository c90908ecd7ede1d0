//! What the records of this machine speak of, beside the peer's own state: results and descriptions for whoever asks,
//! and the blobs that must not be evicted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blake3::Hash;
use idlewood_overlay::{PeerId, WallTime};
use idlewood_scheduler::{BagId, Change, Record, RecordKey, TaskResult};

use super::Refusal;
use super::driver::{Done, Driver};
use super::pin::Pin;
use crate::blobs::{BlobError, Blobs};
use crate::manifest::Manifest;

/// A task that is over.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub(super) executor: PeerId,
    pub(super) at: WallTime,
    pub(super) result: TaskResult,
}

/// What people want to know of a bag, from its manifest.
#[derive(Clone, Debug, Default)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) program: String,
    pub(super) args: Vec<String>,
}

/// A bag of this machine.
#[derive(Debug)]
struct Bag {
    /// `None`: the disk lost its manifest, or does not give it just now.
    description: Option<Description>,
    /// The manifest stays as long as there is a record of the bag.
    _manifest: Pin,
    /// The program and the inputs, until the bag is closed.
    needs: Vec<Pin>,
}

/// Follows the records.
#[derive(Debug)]
pub(super) struct Kept {
    blobs: Arc<Blobs>,
    outbox: BTreeMap<(BagId, u64), Pin>,
    /// What tasks of this machine's bags go on from.
    checkpoints: BTreeMap<(BagId, u64), Pin>,
    done: BTreeMap<BagId, BTreeMap<u64, Finished>>,
    bags: BTreeMap<BagId, Bag>,
    /// Bags whose manifest is here and could not be read yet, and whether that is being tried again.
    unread: BTreeMap<BagId, bool>,
}

impl Kept {
    /// What the records of the last run speak of. Reads the manifests of this machine's bags, which blocks.
    pub(super) fn restore(blobs: &Arc<Blobs>, records: &[Record]) -> Self {
        let (outbox, checkpoints) = (BTreeMap::new(), BTreeMap::new());
        let (done, bags, unread) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut kept = Self { blobs: blobs.clone(), outbox, checkpoints, done, bags, unread };
        for record in records {
            if let Record::Bag { bag, .. } = record {
                let manifest = read_manifest(blobs, bag.id).unwrap_or_else(|error| {
                    tracing::error!(bag = %bag.id, %error, "the manifest of a bag submitted here is tried again each minute");
                    kept.unread.insert(bag.id, false);
                    None
                });
                kept.learn(bag.id, manifest.as_ref());
            }
            kept.put(record);
        }
        kept
    }

    /// A bag of this machine whose record is about to be written: its manifest, program and inputs stay.
    pub(super) fn learn(&mut self, bag: BagId, manifest: Option<&Manifest>) {
        let pin = |hash: [u8; 32]| Pin::new(&self.blobs, Hash::from_bytes(hash));
        match manifest {
            Some(_) => drop(self.unread.remove(&bag)),
            None if self.is_unread(bag) => {}
            None => {
                tracing::warn!(%bag, "the manifest of a bag submitted here is missing; its tasks run only where it is cached");
            }
        }
        let needs: BTreeSet<[u8; 32]> =
            manifest.into_iter().flat_map(Manifest::blobs).map(|input| input.blob.0).collect();
        let description = manifest.map(|manifest| Description {
            name: manifest.name.clone(),
            program: manifest.program.name.clone(),
            args: manifest.args.clone(),
        });
        let bag_kept = Bag { description, _manifest: pin(bag.0), needs: needs.into_iter().map(pin).collect() };
        self.bags.insert(bag, bag_kept);
    }

    /// Follows a change.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(record) => self.put(record),
            Change::Delete(RecordKey::Outbox(bag, index)) => {
                self.outbox.remove(&(*bag, *index));
            }
            Change::Delete(RecordKey::Checkpoint(bag, index)) => {
                self.checkpoints.remove(&(*bag, *index));
            }
            Change::Delete(RecordKey::Done(bag, index)) => {
                if let Some(done) = self.done.get_mut(bag)
                    && let Some(finished) = done.remove(index)
                {
                    self.blobs.unpin(Hash::from_bytes(finished.result.output.0));
                }
            }
            Change::Delete(RecordKey::Bag(bag)) => {
                self.done.remove(bag);
                self.bags.remove(bag);
                self.unread.remove(bag);
            }
            Change::Delete(_) => {}
        }
    }

    /// The tasks of a bag that are over, by index.
    pub(super) fn results(&self, bag: BagId) -> impl Iterator<Item = &Finished> {
        self.done.get(&bag).into_iter().flat_map(BTreeMap::values)
    }

    /// What a bag of this machine is; `None` where the disk lost its manifest, or does not give it just now.
    pub(super) fn description(&self, bag: BagId) -> Option<&Description> {
        self.bags.get(&bag)?.description.as_ref()
    }

    /// Whether a bag of this machine has a manifest here that could not be read yet.
    pub(super) fn is_unread(&self, bag: BagId) -> bool {
        self.unread.contains_key(&bag)
    }

    /// A bag is over: it needs nothing but its manifest.
    fn close(&mut self, bag: BagId) {
        if let Some(bag) = self.bags.get_mut(&bag) {
            bag.needs.clear();
        }
    }

    fn put(&mut self, record: &Record) {
        match record {
            Record::Outbox { bag, result, .. } => {
                let pin = Pin::new(&self.blobs, Hash::from_bytes(result.output.0));
                self.outbox.insert((bag.id, result.index), pin);
            }
            Record::Done { bag, executor, finished, result } => {
                let finished = Finished { executor: *executor, at: *finished, result: result.clone() };
                let hash = Hash::from_bytes(result.output.0);
                if self.done.entry(*bag).or_default().insert(result.index, finished).is_none() {
                    self.blobs.pin(hash);
                }
            }
            Record::Checkpoint { bag, index, checkpoint } => {
                let pin = Pin::new(&self.blobs, Hash::from_bytes(checkpoint.blob.0));
                self.checkpoints.insert((*bag, *index), pin);
            }
            Record::Bag { bag, closed: Some(_), .. } => self.close(bag.id),
            Record::Bag { .. }
            | Record::Incarnation(_)
            | Record::Held { .. }
            | Record::Placed { .. }
            | Record::Former { .. }
            | Record::Reputation { .. }
            | Record::Failures { .. } => {}
        }
    }
}

/// The manifest of a bag, if it is on this disk. Blocks.
///
/// # Errors
/// When it is there and cannot be read.
pub(super) fn read_manifest(blobs: &Blobs, bag: BagId) -> Result<Option<Manifest>, BlobError> {
    let read = blobs.read_chunk(Hash::from_bytes(bag.0), 0, usize::MAX)?;
    Ok(read.and_then(|read| Manifest::decode_signed(&read.bytes).ok()).map(|(manifest, _)| manifest))
}

/// The manifest of a bag that is at hand or on this disk; `None` where the disk lost it. Blocks.
///
/// # Errors
/// As [`read_manifest`].
pub(super) fn manifest(
    known: Option<Arc<Manifest>>,
    blobs: &Blobs,
    bag: BagId,
) -> Result<Option<Arc<Manifest>>, Refusal> {
    if known.is_some() {
        return Ok(known);
    }
    let read = read_manifest(blobs, bag).map_err(|error| Refusal::Unavailable(error.to_string()))?;
    Ok(read.map(Arc::new))
}

impl Driver {
    /// Reads manifests again that could not be read, beside the loop.
    pub(super) fn read_unread(&mut self) {
        for (&bag, is_read) in self.kept.unread.iter_mut().filter(|(_, is_read)| !**is_read) {
            *is_read = true;
            let blobs = self.supplies.blobs.clone();
            let read = move || Done::ReadAgain { bag, manifest: manifest(None, &blobs, bag) };
            let stopped = || Refusal::Unavailable("the agent stops".to_owned());
            self.answers.spawn_blocking(read, Done::ReadAgain { bag, manifest: Err(stopped()) });
        }
    }

    /// A manifest that could not be read was tried again.
    pub(super) fn read_again(&mut self, bag: BagId, manifest: Result<Option<Arc<Manifest>>, Refusal>) {
        match manifest {
            Ok(Some(manifest)) => self.manifest_read(bag, manifest),
            Ok(None) => {
                tracing::warn!(%bag, "the manifest of a bag submitted here is lost");
                self.kept.unread.remove(&bag);
            }
            Err(error) => {
                tracing::warn!(%bag, %error, "the manifest of a bag submitted here cannot be read");
                self.kept.unread.entry(bag).and_modify(|is_read| *is_read = false);
            }
        }
    }

    /// A manifest was read: of a bag that others submitted, or one of this machine.
    pub(super) fn manifest_read(&mut self, bag: BagId, manifest: Arc<Manifest>) {
        if self.kept.is_unread(bag) {
            self.kept.learn(bag, Some(&manifest));
            if self.peer.bag(bag).is_some_and(|view| view.closed.is_some()) {
                self.kept.close(bag);
            }
        }
        self.manifests.remember(bag, manifest);
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::Contact;
    use idlewood_scheduler::{BagHeader, BlobId, Checkpoint, Closing, Finished, Replication};

    use super::super::task::tests::manifest;
    use super::*;
    use crate::manifest::Input;

    /// Blobs of 100 bytes, ten of which fit.
    fn store(blobs: &Blobs, content: u8) -> BlobId {
        BlobId(*blobs.put_bytes(&[content; 100]).expect("there is room").as_bytes())
    }

    fn result(index: u64, output: BlobId) -> TaskResult {
        let (success, crashed, output_bytes, work_mops, exit_code) = (true, false, 100, 1.0, None);
        TaskResult::of(index, 0, Finished { success, crashed, output, output_bytes, work_mops, exit_code })
    }

    fn is_here(blobs: &Blobs, blob: BlobId) -> bool {
        blobs.len(Hash::from_bytes(blob.0)).is_some()
    }

    /// Pushes out whatever is not pinned.
    fn crowd(blobs: &Blobs) {
        for content in 100..120 {
            store(blobs, content);
        }
    }

    fn record(id: BagId, closed: Option<(Closing, WallTime)>) -> Record {
        let submitter = Contact { peer: PeerId([1; 32]), incarnation: 1, address: "".into(), nonce: None };
        let bag = BagHeader { id, submitter, tasks: 1, task_mops: 1.0, application_size_mops: 1.0, declared: true };
        Record::Bag {
            bag,
            released: WallTime(0),
            retries_max: 0,
            attempt: 0,
            closed,
            replication: Replication::default(),
        }
    }

    #[test]
    fn an_open_bag_keeps_what_it_needs_and_a_closed_one_its_manifest() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 2000).expect("an empty directory"));
        let (program, input) = (store(&blobs, 1), store(&blobs, 2));
        let named = |name: &str, blob| Input { name: name.to_owned(), blob, bytes: 100 };
        let manifest = Manifest { program: named("p", program), inputs: vec![named("i", input)], ..manifest() };
        let gate = crate::grid::Gate::open(&libp2p::identity::Keypair::generate_ed25519(), None).expect("alone");
        let bytes = gate.sign_manifest(manifest.encode()).expect("whoever is alone may submit").encode();
        let bag = Manifest::id(&bytes);
        blobs.put_bytes(&bytes).expect("there is room");
        let here = |blobs: &Blobs| [BlobId(bag.0), program, input].map(|blob| is_here(blobs, blob));

        let mut kept = Kept::restore(&blobs, &[]);
        kept.learn(bag, Some(&manifest));
        kept.apply(&Change::Put(record(bag, None)));
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, true, true]);
        drop(kept);
        let mut kept = Kept::restore(&blobs, &[record(bag, None)]);
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, true, true], "after a restart too");
        kept.apply(&Change::Put(record(bag, Some((Closing::Completed, WallTime(1))))));
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, false, false]);
        drop(kept);
        let kept = Kept::restore(&blobs, &[record(bag, Some((Closing::Cancelled, WallTime(1))))]);
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, false, false]);
        assert_eq!(kept.description(bag).map(|description| description.program.as_str()), Some("p"));
        drop(kept);
        crowd(&blobs);
        assert_eq!(here(&blobs), [false, false, false], "nothing else pins it");
    }

    /// A link to itself stands for whatever keeps a file from being read: root reads what nobody else may.
    #[test]
    fn a_manifest_that_cannot_be_read_just_now_is_not_taken_for_lost() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let open = || Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("our directory"));
        let put = |content: &[u8]| open().put_bytes(content).expect("there is room");
        let (id, useless) = (put(b"cannot be read"), put(b"no manifest"));
        let [bag, useless, lost] = [*id.as_bytes(), *useless.as_bytes(), [7; 32]].map(BagId);
        let path = open().path(id).expect("it can be read").expect("it is here");
        std::fs::remove_file(&path).expect("our directory");
        std::os::unix::fs::symlink(&path, &path).expect("our directory");
        let mut kept = Kept::restore(&open(), &[bag, useless, lost].map(|bag| record(bag, None)));
        assert_eq!([bag, useless, lost].map(|bag| kept.is_unread(bag)), [true, false, false]);
        kept.learn(bag, Some(&manifest()));
        assert!(!kept.is_unread(bag) && kept.description(bag).is_some());
    }

    #[test]
    fn a_result_goes_with_its_record_and_a_bag_that_is_run_again_needs_its_program() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("an empty directory"));
        let (program, first, second) = (store(&blobs, 1), store(&blobs, 2), store(&blobs, 3));
        let named = Input { name: "p".to_owned(), blob: program, bytes: 100 };
        let manifest = Manifest { program: named, ..manifest() };
        let bag = BagId([7; 32]);
        let mut kept = Kept::restore(&blobs, &[]);
        kept.learn(bag, Some(&manifest));
        for (index, output) in [(0, first), (1, second)] {
            let result = result(index, output);
            kept.apply(&Change::Put(Record::Done { bag, executor: PeerId([1; 32]), finished: WallTime(0), result }));
        }
        kept.apply(&Change::Put(record(bag, Some((Closing::Completed, WallTime(1))))));
        let here = |blobs: &Blobs| [program, first, second].map(|blob| is_here(blobs, blob));
        // The first of its tasks is tried again.
        kept.learn(bag, Some(&manifest));
        kept.apply(&Change::Put(record(bag, None)));
        kept.apply(&Change::Delete(RecordKey::Done(bag, 0)));
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, false, true]);
        assert_eq!(kept.results(bag).count(), 1);
        kept.apply(&Change::Delete(RecordKey::Done(bag, 1)));
        kept.apply(&Change::Delete(RecordKey::Bag(bag)));
        crowd(&blobs);
        assert_eq!((here(&blobs), kept.results(bag).count()), ([false; 3], 0));
        assert!(kept.description(bag).is_none());
    }

    #[test]
    fn a_checkpoint_is_kept_as_long_as_its_record() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("an empty directory"));
        let (bag, index) = (BagId([7; 32]), 3);
        let record = |blob| Record::Checkpoint { bag, index, checkpoint: Checkpoint { blob, bytes: 100 } };
        let first = store(&blobs, 1);
        let mut kept = Kept::restore(&blobs, &[record(first)]);
        crowd(&blobs);
        assert!(is_here(&blobs, first));
        let second = store(&blobs, 2);
        kept.apply(&Change::Put(record(second)));
        crowd(&blobs);
        assert_eq!((is_here(&blobs, first), is_here(&blobs, second)), (false, true), "a newer one takes its place");
        kept.apply(&Change::Delete(RecordKey::Checkpoint(bag, index)));
        crowd(&blobs);
        assert!(!is_here(&blobs, second));
    }

    #[test]
    fn a_result_is_kept_until_it_is_acknowledged() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("an empty directory"));
        let mut kept = Kept::restore(&blobs, &[]);
        let bag = BagId([7; 32]);
        let Record::Bag { bag: header, .. } = record(bag, None) else { unreachable!("it is a bag") };
        let outbox = |output| {
            let result = result(3, output);
            Change::Put(Record::Outbox { bag: header.clone(), released: WallTime(0), result })
        };
        let (first, second) = (store(&blobs, 1), store(&blobs, 2));
        kept.apply(&outbox(first));
        kept.apply(&outbox(first));
        crowd(&blobs);
        assert!(is_here(&blobs, first));
        let second = if is_here(&blobs, second) { second } else { store(&blobs, 2) };
        kept.apply(&outbox(second));
        crowd(&blobs);
        assert_eq!((is_here(&blobs, first), is_here(&blobs, second)), (false, true), "another run, another output");
        kept.apply(&Change::Delete(RecordKey::Outbox(bag, 3)));
        crowd(&blobs);
        assert!(!is_here(&blobs, second));
    }
}
