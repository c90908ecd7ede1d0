//! Pins of everything that this machine's records need, besides the peer's own state: blobs that must not be evicted,
//! the bytes of small outputs in records, and descriptions of bags.
//!
//! Results of bags stay in the store (`results`): there may be millions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blake3::Hash;
use idlewood_blobs::{BlobError, Blobs, To};
use idlewood_overlay::PeerId;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{Appointment, BagHeader, BagId, BagView, BlobId, Change, Record, RecordKey, Seed, TaskResult};
use idlewood_trust::envelope::Opened;
use idlewood_trust::manifest::{Manifest, Source};

use super::kept_files;
use super::pin::Pin;
use crate::handle::Refusal;

/// Most bytes of small outputs without acknowledgement. They are in memory, too; further ones are kept as blobs.
const OUTBOX_BYTES_MAX: u64 = 32 << 20;

/// Room for an output in a record, released when dropped.
#[derive(Debug)]
struct Counted {
    blobs: Arc<Blobs>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.blobs.count_in_records(self.bytes, 0);
    }
}

/// The place of a result's output.
#[derive(Debug)]
enum Output {
    Blob { _pin: Pin },
    Record(Counted),
}

impl Output {
    fn of(blobs: &Arc<Blobs>, bag: &BagHeader, result: &TaskResult) -> Self {
        match &result.content {
            None => {
                let to = To::Submitter(bag.submitter.peer);
                Self::Blob { _pin: Pin::lent(blobs, Hash::from_bytes(result.output.0), bag.id, to) }
            }
            Some(content) => {
                let bytes = content.bytes().len() as u64;
                blobs.count_in_records(0, bytes);
                Self::Record(Counted { blobs: blobs.clone(), bytes })
            }
        }
    }

    /// Its bytes in the record.
    fn record_bytes(&self) -> u64 {
        match self {
            Self::Blob { .. } => 0,
            Self::Record(counted) => counted.bytes,
        }
    }
}

/// Lengths of small outputs by task, two bytes each.
#[derive(Debug, Default)]
struct Lengths(BTreeMap<u64, Box<[u16; LENGTHS_TOGETHER as usize]>>);

/// Our choice: keeps the cost small for a few scattered tasks, and the overhead small for many.
const LENGTHS_TOGETHER: u64 = 256;

impl Lengths {
    /// Sets the length of one; returns the former one.
    fn set(&mut self, index: u64, bytes: u16) -> u16 {
        let (group, place) = (index / LENGTHS_TOGETHER, (index % LENGTHS_TOGETHER) as usize);
        if bytes == 0 && !self.0.contains_key(&group) {
            return 0;
        }
        let lengths = self.0.entry(group).or_insert_with(|| Box::new([0; LENGTHS_TOGETHER as usize]));
        std::mem::replace(&mut lengths[place], bytes)
    }

    fn sum(&self) -> u64 {
        self.0.values().flat_map(|lengths| lengths.iter()).map(|&bytes| u64::from(bytes)).sum()
    }
}

/// The places of a bag's outputs.
#[derive(Debug)]
struct Over {
    blobs: Arc<Blobs>,
    bag: BagId,
    /// Of a bag that is kept for another, or whose stewards keep the results, too: its submitter and keepers, who fetch them. In rounds: whoever
    /// holds tasks, which begin with them.
    to: Option<To>,
    /// Outputs that are blobs.
    pins: BTreeMap<u64, Pin>,
    /// Outputs in the records.
    lengths: Lengths,
}

impl Over {
    fn put(&mut self, result: &TaskResult) {
        let bytes = u16::try_from(result.content_bytes()).unwrap_or(u16::MAX);
        let before = self.lengths.set(result.index, bytes);
        self.blobs.count_in_records(before.into(), bytes.into());
        match result.content {
            None => {
                let hash = Hash::from_bytes(result.output.0);
                let pin = match self.to {
                    Some(to) => Pin::lent(&self.blobs, hash, self.bag, to),
                    None => Pin::new(&self.blobs, hash),
                };
                self.pins.insert(result.index, pin);
            }
            Some(_) if self.pins.is_empty() => {}
            Some(_) => drop(self.pins.remove(&result.index)),
        }
    }

    fn remove(&mut self, index: u64) {
        self.pins.remove(&index);
        let before = self.lengths.set(index, 0);
        self.blobs.count_in_records(before.into(), 0);
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        self.blobs.count_in_records(self.lengths.sum(), 0);
    }
}

/// A bag's data for people, from its manifest.
#[derive(Clone, Debug, Default)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) memory_bytes: u64,
}

/// A bag of this machine.
#[derive(Debug)]
struct Bag {
    /// `None`: the disk lost its manifest, or cannot read it at the moment.
    description: Option<Description>,
    /// Its signed blob and its manifest, as long as there is a record of the bag.
    _manifest: Vec<Pin>,
    /// The program and the inputs, until the bag is closed.
    needs: Vec<Pin>,
    /// Of an endless one: what its tasks are.
    source: Option<Source>,
    /// Files that came with tasks (`lines`), by task, until the results are drained.
    files: BTreeMap<u64, Pin>,
}

/// A bag of which this machine has run tasks. The agent signs its results with data from its manifest, so the manifest
/// stays here as long as there are results: on a full disk the agent could not fetch it again.
#[derive(Debug, Default)]
struct Executed {
    /// Whether this machine holds tasks of it.
    is_held: bool,
    /// Number of unacknowledged results.
    results: usize,
    /// Its signed blob and its manifest, from its first result on.
    manifest: Vec<Pin>,
    /// Whether the signed blob could be read, so that its manifest is pinned.
    is_read: bool,
}

/// A bag that is kept for another machine.
#[derive(Debug)]
struct Kept {
    submitter: PeerId,
    /// What executors need, once it is here.
    files: Vec<Pin>,
}

/// The pins, kept in step with the records.
#[derive(Debug)]
pub(super) struct Pins {
    blobs: Arc<Blobs>,
    /// Source of the keys of this machine's bags.
    seed: Seed,
    outbox: BTreeMap<(BagId, u64), Output>,
    /// Bags with tasks, or results, in the records.
    executed: BTreeMap<BagId, Executed>,
    /// Bytes of small outputs in the outbox.
    outbox_bytes: u64,
    /// Checkpoints of tasks of this machine's bags.
    checkpoints: BTreeMap<(BagId, u64), Pin>,
    over: BTreeMap<BagId, Over>,
    bags: BTreeMap<BagId, Bag>,
    kept: BTreeMap<BagId, Kept>,
    /// Bags of this machine in rounds.
    in_rounds: BTreeSet<BagId>,
    /// Bags of this machine whose stewards keep the results, too, and this machine.
    shared: BTreeMap<BagId, PeerId>,
    /// Bags of others whose files this disk has lost.
    lost: Vec<BagId>,
    /// Bags whose manifest is here and could not be read yet, and whether another attempt is under way.
    unread: BTreeMap<BagId, bool>,
}

impl Pins {
    /// Pins what these records need. Reads the manifests of this machine's bags, which blocks.
    pub(super) fn restore(blobs: &Arc<Blobs>, seed: Seed, records: &[Record]) -> Self {
        let (outbox, checkpoints, executed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (over, bags, unread, kept) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (blobs_here, outbox_bytes, lost) = (blobs.clone(), 0, Vec::new());
        let mut pins = Self {
            blobs: blobs_here,
            seed,
            outbox,
            executed,
            outbox_bytes,
            checkpoints,
            over,
            bags,
            kept,
            in_rounds: BTreeSet::new(),
            shared: BTreeMap::new(),
            lost,
            unread,
        };
        records.iter().for_each(|record| pins.note_readers(record));
        // What is kept for others is told from what was submitted here before anything else.
        for record in records {
            let Record::Kept { acting, key, has_files, .. } = record else { continue };
            let bag = acting.appointment.bag;
            pins.put(record);
            let manifest = read_manifest(blobs, bag).ok().flatten().filter(|_| *has_files);
            match manifest.and_then(|manifest| kept_files::on_disk(blobs, bag, *key, &manifest)) {
                Some(files) => drop(pins.keep(bag, files)),
                None if *has_files => pins.lost.push(bag),
                None => {}
            }
        }
        for record in records {
            if let Record::Bag { bag, .. } = record
                && !pins.kept.contains_key(&bag.id)
            {
                let manifest = read_manifest(blobs, bag.id).unwrap_or_else(|error| {
                    tracing::error!(bag = %bag.id, %error, "the manifest of a bag submitted here is tried again each minute");
                    pins.unread.insert(bag.id, false);
                    None
                });
                pins.learn(bag.id, manifest.as_ref());
            }
            pins.put(record);
        }
        pins
    }

    /// Pins manifest, program and inputs of a bag of this machine whose record is about to be written.
    pub(super) fn learn(&mut self, bag: BagId, manifest: Option<&Manifest>) {
        let holders = To::Holders(Some(self.seed.key(bag)));
        let pin = |hash: [u8; 32], to| Pin::lent(&self.blobs, Hash::from_bytes(hash), bag, to);
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
            memory_bytes: manifest.memory_bytes,
        });
        let name = match manifest {
            Some(manifest) => manifest.blob,
            // It must stay while it cannot be read.
            None => read_envelope(&self.blobs, bag).ok().flatten().and_then(|opened| opened.manifest_blob()),
        };
        let hidden = name.map(|blob| pin(blob.0, holders));
        let before = self.bags.remove(&bag);
        let bag_kept = Bag {
            description,
            _manifest: std::iter::once(pin(bag.0, To::Everybody)).chain(hidden).collect(),
            needs: needs.into_iter().map(|need| pin(need, holders)).collect(),
            source: manifest.and_then(|manifest| manifest.source),
            files: before.map(|before| before.files).unwrap_or_default(),
        };
        self.bags.insert(bag, bag_kept);
    }

    /// What the tasks of an endless bag of this machine are, as far as its manifest could be read.
    pub(super) fn source(&self, bag: BagId) -> Option<Source> {
        self.bags.get(&bag)?.source
    }

    /// Whether the tasks of a bag of this machine are files that come with them.
    pub(super) fn takes_files(&self, bag: BagId) -> bool {
        self.source(bag) == Some(Source::Files)
    }

    /// A file of a task of a bag of this machine, which stays and is lent to machines that have tasks of the bag.
    pub(super) fn of_task(&self, bag: BagId, file: BlobId) -> Pin {
        Pin::lent(&self.blobs, Hash::from_bytes(file.0), bag, To::Holders(Some(self.seed.key(bag))))
    }

    /// These files stay until the results of their tasks, from this one on, are drained.
    pub(super) fn keep_files(&mut self, bag: BagId, from: u64, files: Vec<Pin>) {
        if let Some(bag) = self.bags.get_mut(&bag) {
            bag.files.extend((from..).zip(files));
        }
    }

    /// All tasks of a bag below this one are drained: their files are not needed any more.
    pub(super) fn drained(&mut self, bag: BagId, below: u64) {
        if let Some(bag) = self.bags.get_mut(&bag) {
            bag.files = bag.files.split_off(&below);
        }
    }

    /// The files of a bag that is kept for another are here: they stay, and whoever has the bag's key may have them. `None`: it is not
    /// kept any more.
    pub(super) fn keep(&mut self, bag: BagId, files: Vec<Pin>) -> Option<()> {
        self.kept.get_mut(&bag)?.files = files;
        Some(())
    }

    /// The bags of others whose files this disk has lost; asked once.
    pub(super) fn take_lost(&mut self) -> Vec<BagId> {
        std::mem::take(&mut self.lost)
    }

    /// The files of a bag that was kept for another are not needed any more.
    pub(super) fn forget_files(&mut self, bag: BagId) {
        if let Some(kept) = self.kept.get_mut(&bag) {
            kept.files.clear();
        }
    }

    /// Follows a change of a record.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(record) => self.put(record),
            Change::Delete(RecordKey::Outbox(bag, index)) => {
                if let Some(gone) = self.outbox.remove(&(*bag, *index)) {
                    self.outbox_bytes -= gone.record_bytes();
                    self.note_executed(*bag, |executed| executed.results -= 1);
                }
            }
            Change::Delete(RecordKey::Held(bag)) => self.note_executed(*bag, |executed| executed.is_held = false),
            Change::Delete(RecordKey::Checkpoint(bag, index)) => {
                self.checkpoints.remove(&(*bag, *index));
            }
            Change::Delete(RecordKey::Done(bag, index)) => {
                if let Some(over) = self.over.get_mut(bag) {
                    over.remove(*index);
                }
            }
            Change::Delete(RecordKey::Bag(bag)) => {
                self.over.remove(bag);
                self.in_rounds.remove(bag);
                self.shared.remove(bag);
                self.bags.remove(bag);
                self.unread.remove(bag);
            }
            Change::Delete(RecordKey::Kept(bag)) => {
                self.kept.remove(bag);
                self.blobs.set_keepers(*bag, Vec::new());
            }
            Change::Delete(RecordKey::Stewards(bag)) => self.blobs.set_keepers(*bag, Vec::new()),
            Change::Delete(RecordKey::Obeyed(bag)) => self.blobs.set_keeper(*bag, None),
            Change::Delete(_) => {}
        }
    }

    /// Blobs that are outputs of these tasks of a bag.
    pub(super) fn output_blobs(&self, bag: BagId, tasks: &IntervalSet) -> Vec<Hash> {
        let Some(over) = self.over.get(&bag) else { return Vec::new() };
        tasks.ranges().flat_map(|range| over.pins.range(range)).map(|(_, pin)| pin.hash()).collect()
    }

    /// Whether one more small output may wait for its acknowledgement in a record.
    pub(super) fn takes_small_outputs(&self) -> bool {
        self.outbox_bytes < OUTBOX_BYTES_MAX
    }

    /// The description of a bag of this machine; `None` if the disk lost its manifest, or cannot read it at the moment.
    pub(super) fn description(&self, bag: BagId) -> Option<&Description> {
        self.bags.get(&bag)?.description.as_ref()
    }

    /// What the user calls a bag: the name that it was given last.
    pub(super) fn name(&self, view: &BagView) -> String {
        let first = || self.description(view.bag.id).map(|bag| bag.name.clone()).unwrap_or_default();
        view.conditions.name.clone().unwrap_or_else(first)
    }

    /// Whether the manifest of a bag of this machine is here but could not be read yet.
    pub(super) fn is_unread(&self, bag: BagId) -> bool {
        self.unread.contains_key(&bag)
    }

    /// The bags whose manifest is to be read again, and is not yet.
    pub(super) fn begin_reading(&mut self) -> Vec<BagId> {
        let waiting: Vec<BagId> = self.unread.iter().filter(|(_, is_read)| !**is_read).map(|(&bag, _)| bag).collect();
        self.unread.values_mut().for_each(|is_read| *is_read = true);
        waiting
    }

    /// The manifest of a bag could not be read this time either.
    pub(super) fn note_unread(&mut self, bag: BagId) {
        self.unread.entry(bag).and_modify(|is_read| *is_read = false);
    }

    /// The manifest of a bag is not on this disk any more.
    pub(super) fn note_lost(&mut self, bag: BagId) {
        self.unread.remove(&bag);
    }

    /// Changes the state of a bag that has, or had, tasks or results here. Reads its envelope with its first result,
    /// and again with the next ones if it could not be read.
    fn note_executed(&mut self, bag: BagId, change: impl FnOnce(&mut Executed)) {
        let executed = self.executed.entry(bag).or_default();
        change(executed);
        if !executed.is_held && executed.results == 0 {
            self.executed.remove(&bag);
        } else if executed.results > 0 && !executed.is_read {
            let opened = read_envelope(&self.blobs, bag).ok().flatten();
            executed.is_read = opened.is_some();
            let manifest = opened.and_then(|opened| opened.manifest_blob());
            let names = std::iter::once(bag.0).chain(manifest.map(|blob| blob.0));
            executed.manifest = names.map(|name| Pin::new(&self.blobs, Hash::from_bytes(name))).collect();
        }
    }

    /// A bag is closed: it needs only its manifest.
    pub(super) fn close(&mut self, bag: BagId) {
        if let Some(bag) = self.bags.get_mut(&bag) {
            bag.needs.clear();
        }
    }

    /// Notes whether others read the outputs of a bag: one in rounds, whose tasks begin with them, or one whose stewards keep them, too.
    fn note_readers(&mut self, record: &Record) {
        let Record::Bag { bag, conditions, keep_results, .. } = record else { return };
        if conditions.rounds.is_some() {
            self.in_rounds.insert(bag.id);
        }
        if *keep_results {
            self.shared.insert(bag.id, bag.submitter.peer);
        }
    }

    /// The keepers of a bag may have what is lent to its submitter.
    fn lend_to_keepers(&self, appointment: &Appointment) {
        let keepers = appointment.keepers.iter().map(|keeper| keeper.peer).collect();
        self.blobs.set_keepers(appointment.bag, keepers);
    }

    fn put(&mut self, record: &Record) {
        self.note_readers(record);
        match record {
            Record::Outbox { bag, result, .. } => {
                let output = Output::of(&self.blobs, bag, result);
                self.outbox_bytes += output.record_bytes();
                match self.outbox.insert((bag.id, result.index), output) {
                    Some(before) => self.outbox_bytes -= before.record_bytes(),
                    None => self.note_executed(bag.id, |executed| executed.results += 1),
                }
            }
            Record::Held { bag, .. } => self.note_executed(bag.id, |executed| executed.is_held = true),
            Record::Done { bag, result, .. } => {
                let kept_for = self.kept.get(bag).map(|kept| To::Submitter(kept.submitter));
                let in_rounds = self.in_rounds.contains(bag).then(|| To::Holders(Some(self.seed.key(*bag))));
                let shared = self.shared.get(bag).map(|submitter| To::Submitter(*submitter));
                let to = kept_for.or(in_rounds).or(shared);
                let (pins, lengths) = (BTreeMap::new(), Lengths::default());
                let new = || Over { blobs: self.blobs.clone(), bag: *bag, to, pins, lengths };
                self.over.entry(*bag).or_insert_with(new).put(result);
            }
            Record::Checkpoint { bag, index, checkpoint } => {
                let holders = To::Holders(Some(self.seed.key(*bag)));
                let pin = Pin::lent(&self.blobs, Hash::from_bytes(checkpoint.blob.0), *bag, holders);
                self.checkpoints.insert((*bag, *index), pin);
            }
            Record::Kept { acting, .. } => {
                self.lend_to_keepers(&acting.appointment);
                if let Some(submitter) = acting.appointment.submitter() {
                    let new = || Kept { submitter: submitter.peer, files: Vec::new() };
                    self.kept.entry(acting.appointment.bag).or_insert_with(new);
                }
            }
            Record::Obeyed { acting } => {
                self.blobs.set_keeper(acting.appointment.bag, acting.keeper().map(|keeper| keeper.peer));
            }
            Record::Stewards { appointment, .. } => self.lend_to_keepers(appointment),
            Record::Bag { bag, closed: Some(_), .. } => self.close(bag.id),
            Record::Bag { .. }
            | Record::Incarnation(_)
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
    let envelope = match read_envelope(blobs, bag)? {
        Some(Opened::Envelope(envelope)) => envelope,
        Some(Opened::Manifest(manifest)) => return Ok(Some(*manifest)),
        None => return Ok(None),
    };
    let read = blobs.read_chunk(Hash::from_bytes(envelope.manifest.0), 0, usize::MAX)?;
    Ok(read.and_then(|read| envelope.manifest(&read.bytes).ok()))
}

/// The signed blob of a bag, likewise.
fn read_envelope(blobs: &Blobs, bag: BagId) -> Result<Option<Opened>, BlobError> {
    let read = blobs.read_chunk(Hash::from_bytes(bag.0), 0, usize::MAX)?;
    Ok(read.and_then(|read| Opened::unsealed(&read.bytes).and_then(|signed| Opened::read(&signed)).ok()))
}

/// The manifest of a bag from memory or from this disk; `None` if the disk lost it. Blocks.
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

#[cfg(test)]
mod tests {
    use idlewood_overlay::{Contact, PeerId, WallTime};
    use idlewood_scheduler::{BagHeader, Checkpoint, Closing, Finished, Replication, SmallOutput};

    use super::super::task::tests::manifest;
    use super::*;
    use idlewood_trust::envelope::{self, Envelope};
    use idlewood_trust::manifest::Input;

    /// Blobs of 100 bytes, ten of which fit.
    fn store(blobs: &Blobs, content: u8) -> BlobId {
        BlobId(*blobs.put_bytes(&[content; 100]).expect("there is room").as_bytes())
    }

    fn result(index: u64, output: BlobId) -> TaskResult {
        let (success, crashed, output_bytes, work_mops, exit_code) = (true, false, 100, 1.0, None);
        TaskResult::of(
            index,
            0,
            Finished {
                success,
                crashed,
                output,
                output_bytes,
                content: None,
                work_mops,
                exit_code,
                fingerprint: None,
                times: 1.0,
            },
        )
    }

    fn is_here(blobs: &Blobs, blob: BlobId) -> bool {
        blobs.len(Hash::from_bytes(blob.0)).is_some()
    }

    /// Evicts everything that is not pinned.
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
            stewards: None,
            keep_results: false,
            reruns: 0,
            conditions: Box::default(),
            supply: None,
        }
    }

    #[test]
    fn an_open_bag_keeps_what_it_needs_and_a_closed_one_its_manifest() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 2000).expect("an empty directory"));
        let (program, input) = (store(&blobs, 1), store(&blobs, 2));
        let named = |name: &str, blob| Input { name: name.to_owned(), blob, bytes: 100 };
        let manifest = Manifest { program: named("p", program), inputs: vec![named("i", input)], ..manifest() };
        let gate = idlewood_trust::Gate::open(&libp2p::identity::Keypair::generate_ed25519(), None).expect("alone");
        let bytes = manifest.encode();
        let envelope = Envelope::of(&manifest, &bytes);
        let signed = gate.sign_bag(envelope.encode()).expect("whoever is alone may submit").encode();
        let bag = envelope::id(&signed);
        for bytes in [bytes, signed] {
            blobs.put_bytes(&bytes).expect("there is room");
        }
        let manifest = Manifest { blob: Some(envelope.manifest), ..manifest };
        let here = |blobs: &Blobs| {
            let [signed, named, others @ ..] =
                [BlobId(bag.0), envelope.manifest, program, input].map(|blob| is_here(blobs, blob));
            assert_eq!(signed, named, "what was signed and the manifest go together");
            [signed, others[0], others[1]]
        };

        let mut pins = Pins::restore(&blobs, Seed::from(1), &[]);
        pins.learn(bag, Some(&manifest));
        pins.apply(&Change::Put(record(bag, None)));
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, true, true]);
        drop(pins);
        let mut pins = Pins::restore(&blobs, Seed::from(1), &[record(bag, None)]);
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, true, true], "after a restart too");
        pins.apply(&Change::Put(record(bag, Some((Closing::Completed, WallTime(1))))));
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, false, false]);
        drop(pins);
        let pins = Pins::restore(&blobs, Seed::from(1), &[record(bag, Some((Closing::Cancelled, WallTime(1))))]);
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, false, false]);
        assert_eq!(pins.description(bag).map(|description| description.program.as_str()), Some("p"));
        drop(pins);
        crowd(&blobs);
        assert_eq!(here(&blobs), [false, false, false], "nothing else pins it");
    }

    /// A link to itself stands for any read error: root may read every file.
    #[test]
    fn a_manifest_that_cannot_be_read_at_the_moment_is_not_lost() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let open = || Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("our directory"));
        let put = |content: &[u8]| open().put_bytes(content).expect("there is room");
        let (id, useless) = (put(b"cannot be read"), put(b"no manifest"));
        let [bag, useless, lost] = [*id.as_bytes(), *useless.as_bytes(), [7; 32]].map(BagId);
        let path = open().path(id).expect("it can be read").expect("it is here");
        std::fs::remove_file(&path).expect("our directory");
        std::os::unix::fs::symlink(&path, &path).expect("our directory");
        let mut pins = Pins::restore(&open(), Seed::from(1), &[bag, useless, lost].map(|bag| record(bag, None)));
        assert_eq!([bag, useless, lost].map(|bag| pins.is_unread(bag)), [true, false, false]);
        pins.learn(bag, Some(&manifest()));
        assert!(!pins.is_unread(bag) && pins.description(bag).is_some());
    }

    #[test]
    fn a_result_goes_with_its_record_and_a_bag_that_is_run_again_needs_its_program() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("an empty directory"));
        let (program, first, second) = (store(&blobs, 1), store(&blobs, 2), store(&blobs, 3));
        let named = Input { name: "p".to_owned(), blob: program, bytes: 100 };
        let manifest = Manifest { program: named, ..manifest() };
        let bag = BagId([7; 32]);
        let mut pins = Pins::restore(&blobs, Seed::from(1), &[]);
        pins.learn(bag, Some(&manifest));
        for (index, output) in [(0, first), (1, second)] {
            let result = result(index, output);
            pins.apply(&Change::Put(Record::Done { bag, executor: PeerId([1; 32]), finished: WallTime(0), result }));
        }
        pins.apply(&Change::Put(record(bag, Some((Closing::Completed, WallTime(1))))));
        let here = |blobs: &Blobs| [program, first, second].map(|blob| is_here(blobs, blob));
        // The first of its tasks is run again.
        pins.learn(bag, Some(&manifest));
        pins.apply(&Change::Put(record(bag, None)));
        pins.apply(&Change::Delete(RecordKey::Done(bag, 0)));
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, false, true]);
        let all = IntervalSet::from(0..2);
        assert_eq!(pins.output_blobs(bag, &all), [Hash::from_bytes(second.0)]);
        pins.apply(&Change::Delete(RecordKey::Done(bag, 1)));
        pins.apply(&Change::Delete(RecordKey::Bag(bag)));
        crowd(&blobs);
        assert_eq!((here(&blobs), pins.output_blobs(bag, &all)), ([false; 3], Vec::new()));
        assert!(pins.description(bag).is_none());
    }

    #[test]
    fn a_checkpoint_is_kept_as_long_as_its_record() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("an empty directory"));
        let (bag, index) = (BagId([7; 32]), 3);
        let record = |blob| Record::Checkpoint { bag, index, checkpoint: Checkpoint { blob, bytes: 100 } };
        let first = store(&blobs, 1);
        let mut pins = Pins::restore(&blobs, Seed::from(1), &[record(first)]);
        crowd(&blobs);
        assert!(is_here(&blobs, first));
        let second = store(&blobs, 2);
        pins.apply(&Change::Put(record(second)));
        crowd(&blobs);
        assert_eq!((is_here(&blobs, first), is_here(&blobs, second)), (false, true), "a newer one takes its place");
        pins.apply(&Change::Delete(RecordKey::Checkpoint(bag, index)));
        crowd(&blobs);
        assert!(!is_here(&blobs, second));
    }

    #[test]
    fn a_result_is_kept_until_it_is_acknowledged() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("an empty directory"));
        let mut pins = Pins::restore(&blobs, Seed::from(1), &[]);
        let bag = BagId([7; 32]);
        let Record::Bag { bag: header, .. } = record(bag, None) else { unreachable!("it is a bag") };
        let outbox = |output| {
            let result = result(3, output);
            Change::Put(Record::Outbox { bag: header.clone(), released: WallTime(0), result })
        };
        let (first, second) = (store(&blobs, 1), store(&blobs, 2));
        pins.apply(&outbox(first));
        pins.apply(&outbox(first));
        crowd(&blobs);
        assert!(is_here(&blobs, first));
        let second = if is_here(&blobs, second) { second } else { store(&blobs, 2) };
        pins.apply(&outbox(second));
        crowd(&blobs);
        assert_eq!((is_here(&blobs, first), is_here(&blobs, second)), (false, true), "another run, another output");
        pins.apply(&Change::Delete(RecordKey::Outbox(bag, 3)));
        crowd(&blobs);
        assert!(!is_here(&blobs, second));
    }

    /// On a full disk it could not be fetched again, and the results would never leave.
    #[test]
    fn the_manifest_that_results_are_signed_with_stays_until_they_are_acknowledged() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 3000).expect("an empty directory"));
        let gate = idlewood_trust::Gate::open(&libp2p::identity::Keypair::generate_ed25519(), None).expect("alone");
        let bytes = manifest().encode();
        let signed = gate.sign_bag(Envelope::of(&manifest(), &bytes).encode());
        let signed = signed.expect("whoever is alone may submit").encode();
        let [id, manifest] = [signed, bytes].map(|bytes| blobs.put_bytes(&bytes).expect("there is room"));
        let bag = BagId(*id.as_bytes());
        let Record::Bag { bag: header, .. } = record(bag, None) else { unreachable!("it is a bag") };
        let crowd = |blobs: &Blobs| {
            for content in 0..60 {
                store(blobs, content);
            }
        };
        let here = |blobs: &Blobs| [id, manifest].map(|hash| blobs.len(hash).is_some());

        let result = TaskResult { content: SmallOutput::new(b"7"), output_bytes: 1, ..result(3, BlobId([9; 32])) };
        let outbox = Record::Outbox { bag: header, released: WallTime(0), result };
        // As after a restart.
        let mut pins = Pins::restore(&blobs, Seed::from(1), &[outbox]);
        crowd(&blobs);
        assert_eq!(here(&blobs), [true, true]);
        pins.apply(&Change::Delete(RecordKey::Outbox(bag, 3)));
        crowd(&blobs);
        assert_eq!(here(&blobs), [false, false], "nothing else needs them");
        assert!(pins.executed.is_empty());
    }

    #[test]
    fn small_outputs_count_as_long_as_a_record_has_them() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("an empty directory"));
        let (bag, executor) = (BagId([7; 32]), PeerId([1; 32]));
        let small = |index: u64, bytes: usize| {
            let content = SmallOutput::new(&vec![1; bytes]);
            TaskResult { content, output_bytes: bytes as u64, ..result(index, BlobId([9; 32])) }
        };
        let done = |result| Record::Done { bag, executor, finished: WallTime(0), result };
        let mut pins = Pins::restore(&blobs, Seed::from(1), &[done(small(300, 100)), done(small(1, 50))]);
        assert_eq!((blobs.record_bytes(), blobs.kept_bytes().0, blobs.used_bytes()), (150, 150, 150));
        pins.apply(&Change::Put(done(small(300, 10))));
        assert_eq!(blobs.record_bytes(), 60, "another try of a task has another output");
        let output = store(&blobs, 3);
        pins.apply(&Change::Put(done(result(1, output))));
        assert_eq!((blobs.record_bytes(), blobs.kept_bytes().0), (10, 110));
        assert_eq!(pins.output_blobs(bag, &IntervalSet::from(0..400)), [Hash::from_bytes(output.0)]);
        pins.apply(&Change::Put(done(small(1, 7))));
        assert_eq!(blobs.kept_bytes().0, 17, "nobody needs the blob");
        pins.apply(&Change::Delete(RecordKey::Done(bag, 300)));
        assert_eq!(blobs.record_bytes(), 7);

        let Record::Bag { bag: header, .. } = record(bag, None) else { unreachable!("it is a bag") };
        let outbox = |result| Change::Put(Record::Outbox { bag: header.clone(), released: WallTime(0), result });
        pins.apply(&outbox(small(2, 40)));
        pins.apply(&outbox(small(2, 30)));
        assert_eq!((blobs.record_bytes(), pins.outbox_bytes), (37, 30));
        // Unacknowledged outputs are in memory, too.
        let many = OUTBOX_BYTES_MAX / 4096;
        (0..many).for_each(|index| pins.apply(&outbox(small(10 + index, 4096))));
        assert!(!pins.takes_small_outputs());
        (0..many).for_each(|index| pins.apply(&Change::Delete(RecordKey::Outbox(bag, 10 + index))));
        assert!(pins.takes_small_outputs());
        pins.apply(&Change::Delete(RecordKey::Outbox(bag, 2)));
        pins.apply(&Change::Delete(RecordKey::Bag(bag)));
        assert_eq!((blobs.record_bytes(), blobs.kept_bytes().0), (0, 0));
    }
}
