//! The journal: each commit is appended to it and synced once; sled gets it later.
//!
//! A file of the journal is a *generation*. It begins with a snapshot of all records and continues with one block
//! ([`super::block`]) for each group of commits. Each entry in a block has a checksum of its own. When the part after
//! the snapshot has grown enough, the next generation is written beside it, synced, read back, and replaces it.
//!
//! So all records are in the newest generation, and also in sled together with the end of that generation. If one of
//! these is damaged, the agent continues with the other ([`super::recovery`]).

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::block::{self, Found, Kind};
use super::commit::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use super::disk::sync_dir;
use super::frame::{CHECKSUM_BYTES, checksum, decode, encode};

/// Name of the journal's directory in the state directory.
pub(super) const JOURNAL_DIR: &str = "journal";
/// Suffix of a generation's name while it is being written.
const NEW_SUFFIX: &str = ".new";

/// Payload of the blocks of a snapshot.
const PART_BYTES: usize = 256 * 1024;

/// Stands for the length in the entry of a removal.
const REMOVED: u32 = u32::MAX;
/// Stands for the value in the checksum of a removal: longer than any value.
const REMOVED_VALUE: [u8; 9] = *b"(removed)";

/// Changes by key: the new record, as in [`super::frame`], or `None` for a removal.
pub(super) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Appends the entry of one key to a payload.
pub(super) fn push_entry(payload: &mut Vec<u8>, key: &[u8], record: Option<&[u8]>) {
    // Commits that exceed these lengths are refused before.
    payload.extend((key.len() as u16).to_le_bytes());
    payload.extend(record.map_or(REMOVED, |record| record.len() as u32).to_le_bytes());
    payload.extend(key);
    match record {
        Some(record) => payload.extend(record),
        None => payload.extend(checksum(key, &REMOVED_VALUE)),
    }
}

/// A key, its record unless it was removed, and the length of both in a payload.
type Entry<'a> = (&'a [u8], Option<&'a [u8]>, usize);

/// The entry that the bytes begin with, if its checksum is right.
fn first_entry(bytes: &[u8]) -> Option<Entry<'_>> {
    let (key_bytes, rest) = bytes.split_first_chunk::<2>()?;
    let (record_bytes, rest) = rest.split_first_chunk::<4>()?;
    let (key_bytes, record_bytes) = (usize::from(u16::from_le_bytes(*key_bytes)), u32::from_le_bytes(*record_bytes));
    if !(1..=KEY_BYTES_MAX).contains(&key_bytes) || rest.len() < key_bytes {
        return None;
    }
    let (key, rest) = rest.split_at(key_bytes);
    if record_bytes == REMOVED {
        let sum = rest.first_chunk::<CHECKSUM_BYTES>()?;
        return (*sum == checksum(key, &REMOVED_VALUE)).then_some((key, None, 6 + key_bytes + CHECKSUM_BYTES));
    }
    let record_bytes = record_bytes as usize;
    if record_bytes > VALUE_BYTES_MAX + 64 {
        return None;
    }
    let record = rest.get(..record_bytes)?;
    decode(key, record).map(|_| (key, Some(record), 6 + key_bytes + record_bytes))
}

/// All entries of a payload with the right checksum, wherever damage lies between them.
fn salvage(payload: &[u8], mut each: impl FnMut(&[u8], Option<&[u8]>)) {
    let mut at = 0;
    while at < payload.len() {
        match first_entry(&payload[at..]) {
            Some((key, record, length)) => {
                each(key, record);
                at += length;
            }
            None => at += 1,
        }
    }
}

/// Number of records, and the sum of their checksums: equal if two collections are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) records: u64,
    digest: u64,
}

impl Totals {
    fn sum(record: &[u8]) -> u64 {
        record.get(1..=CHECKSUM_BYTES).and_then(|sum| sum.try_into().ok()).map_or(0, u64::from_be_bytes)
    }

    pub(super) fn add(&mut self, record: &[u8]) {
        self.records += 1;
        self.digest = self.digest.wrapping_add(Self::sum(record));
    }

    pub(super) fn remove(&mut self, record: &[u8]) {
        self.records = self.records.saturating_sub(1);
        self.digest = self.digest.wrapping_sub(Self::sum(record));
    }

    pub(super) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.records.to_be_bytes());
        bytes[8..].copy_from_slice(&self.digest.to_be_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (records, digest) = bytes.split_first_chunk::<8>()?;
        let digest = u64::from_be_bytes(digest.try_into().ok()?);
        Some(Self { records: u64::from_be_bytes(*records), digest })
    }
}

/// Writes the snapshot with which a generation begins.
#[derive(Debug)]
pub(super) struct SnapshotWriter {
    file: File,
    count: u64,
    payload: Vec<u8>,
    totals: Totals,
}

impl SnapshotWriter {
    /// `count`: the commits that the snapshot includes.
    pub(super) fn create(path: &Path, count: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Self { file, count, payload: Vec::new(), totals: Totals::default() })
    }

    pub(super) fn push(&mut self, key: &[u8], record: &[u8]) -> io::Result<()> {
        push_entry(&mut self.payload, key, Some(record));
        self.totals.add(record);
        if self.payload.len() >= PART_BYTES { self.write(Kind::Part) } else { Ok(()) }
    }

    fn write(&mut self, kind: Kind) -> io::Result<()> {
        let payload = std::mem::take(&mut self.payload);
        let block = block::encode(kind, self.count, self.count, &payload)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a block of the journal is too long"))?;
        self.file.write_all(&block)
    }

    /// Completes the snapshot, syncs it, and reads it back.
    pub(super) fn finish(mut self, path: &Path) -> io::Result<Totals> {
        if !self.payload.is_empty() {
            self.write(Kind::Part)?;
        }
        self.payload = self.totals.to_bytes().to_vec();
        self.write(Kind::Whole)?;
        self.file.sync_all()?;
        let mut found = Totals::default();
        let replay = replay(path, 0, |_, key_and_record| {
            if let (_, Some(record)) = key_and_record {
                found.add(record);
            }
        })?;
        if replay.is_sound() && replay.snapshot.is_some() && found == self.totals {
            Ok(found)
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the journal's snapshot was not written as it should be"))
        }
    }
}

/// The state of a generation, without its entries.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Commits in the snapshot, if it is complete.
    pub(super) snapshot: Option<u64>,
    /// Commits up to the last sound block.
    pub(super) count: u64,
    /// Commits that sled is certain to hold.
    pub(super) indexed: u64,
    /// Where the last sound block ends.
    pub(super) end: u64,
    /// Where the snapshot ends.
    pub(super) snapshot_end: u64,
    /// There are bytes after the last sound block.
    pub(super) is_torn: bool,
    /// Damaged blocks that the parity healed.
    pub(super) healed: u64,
    /// A part of the snapshot could neither be read nor healed.
    pub(super) is_snapshot_damaged: bool,
    /// Lost commits: those after the first number, up to the second.
    pub(super) gaps: Vec<(u64, u64)>,
}

impl Replay {
    /// Whether all is as it was written, except perhaps an end that was never acknowledged.
    pub(super) fn is_sound(&self) -> bool {
        self.is_readable() && self.healed == 0
    }

    /// Whether every acknowledged block could be read.
    pub(super) fn is_readable(&self) -> bool {
        self.snapshot.is_some() && !self.is_snapshot_damaged && self.gaps.is_empty()
    }

    /// Number of lost commits after `count`.
    pub(super) fn lost_after(&self, count: u64) -> u64 {
        self.gaps.iter().map(|(from, to)| to.saturating_sub((*from).max(count))).sum()
    }

    fn is_in_snapshot(&self) -> bool {
        self.snapshot.is_none()
    }
}

/// Reads a generation from its beginning; `each` gets every entry, and its block.
///
/// A block cut short or damaged at the very end was not acknowledged, unless it belongs to the first `acknowledged`
/// commits.
pub(super) fn replay(
    path: &Path,
    acknowledged: u64,
    mut each: impl FnMut(&block::Header, (&[u8], Option<&[u8]>)),
) -> io::Result<Replay> {
    let file = File::open(path)?;
    let mut replay = Replay::default();
    let mut totals = Totals::default();
    // Start of damage that no sound block has followed yet.
    let mut damaged_at: Option<u64> = None;
    let mut at = 0;
    loop {
        match block::read(&file, at)? {
            Found::End => break,
            Found::Sound { header, payload, next, was_healed } => {
                replay.healed += u64::from(was_healed);
                replay.follow(&header, damaged_at.take().is_some());
                replay.take(&header, &payload, &mut totals, &mut each);
                replay.end = next;
                if header.kind == Kind::Whole {
                    replay.snapshot_end = next;
                }
                at = next;
            }
            Found::Damaged { header, payload, next } => {
                damaged_at.get_or_insert(at);
                salvage(&payload, |key, record| each(&header, (key, record)));
                at = next;
            }
            Found::Cut { header, payload } => {
                if header.after <= acknowledged && !payload.is_empty() {
                    replay.healed += 1;
                    replay.follow(&header, damaged_at.take().is_some());
                    replay.take(&header, &payload, &mut totals, &mut each);
                } else {
                    damaged_at.get_or_insert(at);
                }
                break;
            }
            Found::Nothing => {
                damaged_at.get_or_insert(at);
                match block::find_next(&file, at)? {
                    Some(next) => at = next,
                    None => break,
                }
            }
        }
    }
    replay.is_torn = damaged_at.is_some();
    if replay.is_in_snapshot() && replay.is_torn {
        replay.is_snapshot_damaged = true;
    }
    if replay.count < acknowledged {
        replay.gaps.push((replay.count, acknowledged));
    }
    Ok(replay)
}

impl Replay {
    /// Accounts for a sound block, perhaps after damage.
    fn follow(&mut self, header: &block::Header, is_behind_damage: bool) {
        match header.kind {
            Kind::Part => self.is_snapshot_damaged |= is_behind_damage,
            Kind::Whole => {
                self.is_snapshot_damaged |= is_behind_damage;
                self.snapshot = Some(header.after);
                self.count = header.after;
                self.indexed = header.after;
            }
            Kind::Group | Kind::Indexed => {
                if self.is_in_snapshot() {
                    // The end of the snapshot is damaged: its extent is unknown.
                    self.is_snapshot_damaged = true;
                    self.snapshot = Some(header.before);
                } else if header.before > self.count {
                    self.gaps.push((self.count, header.before));
                }
                self.count = self.count.max(header.after);
                if header.kind == Kind::Indexed {
                    self.indexed = self.indexed.max(header.after);
                }
            }
        }
    }

    fn take(
        &mut self,
        header: &block::Header,
        payload: &[u8],
        totals: &mut Totals,
        each: &mut impl FnMut(&block::Header, (&[u8], Option<&[u8]>)),
    ) {
        match header.kind {
            Kind::Whole => self.is_snapshot_damaged |= Totals::from_bytes(payload) != Some(*totals),
            Kind::Indexed => {}
            Kind::Part | Kind::Group => salvage(payload, |key, record| {
                if let (Kind::Part, Some(record)) = (header.kind, record) {
                    totals.add(record);
                }
                each(header, (key, record));
            }),
        }
    }
}

/// Why an append failed.
#[derive(Debug)]
pub(super) enum AppendError {
    /// No space; the beginning of the block was removed.
    Full,
    /// The state of the file is unknown.
    Broken(String),
}

/// The newest generation, open for appending.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    generation: u64,
    file: File,
    /// Where the next block will be written.
    end: u64,
    snapshot_end: u64,
}

impl Journal {
    /// Continues a generation of which `end` bytes are sound.
    pub(super) fn resume(dir: &Path, generation: u64, end: u64, snapshot_end: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(generation_path(dir, generation))?;
        if file.metadata()?.len() > end {
            file.set_len(end)?;
            file.sync_all()?;
        }
        Ok(Self { dir: dir.to_owned(), generation, file, end, snapshot_end })
    }

    /// Begins a generation with these records, replacing all older ones, which stay until [`Journal::remove_older`] is
    /// called.
    pub(super) fn begin(dir: &Path, generation: u64, count: u64, records: &[(Vec<u8>, Vec<u8>)]) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir.join(JOURNAL_DIR))?;
        let new = new_path(dir, generation);
        let mut snapshot = SnapshotWriter::create(&new, count)?;
        for (key, value) in records {
            snapshot.push(key, &encode(key, value))?;
        }
        snapshot.finish(&new)?;
        Self::adopt(dir, generation)
    }

    /// Makes the generation written beside the others the newest.
    fn adopt(dir: &Path, generation: u64) -> io::Result<Self> {
        let path = generation_path(dir, generation);
        fs::rename(new_path(dir, generation), &path)?;
        sync_dir(&dir.join(JOURNAL_DIR))?;
        sync_dir(dir)?;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let end = file.metadata()?.len();
        Ok(Self { dir: dir.to_owned(), generation, file, end, snapshot_end: end })
    }

    /// Appends commits and syncs them.
    pub(super) fn append(&mut self, before: u64, after: u64, payload: &[u8]) -> Result<(), AppendError> {
        let end = self.write(Kind::Group, before, after, payload)?;
        // A failed sync may have lost its data, and the next sync would not report that: it is final.
        self.file.sync_data().map_err(|error| AppendError::Broken(format!("the journal cannot be synced: {error}")))?;
        self.end = end;
        Ok(())
    }

    /// Notes that sled holds so many commits. Synced with the next append.
    pub(super) fn note_indexed(&mut self, count: u64) -> Result<(), AppendError> {
        self.end = self.write(Kind::Indexed, count, count, &[])?;
        Ok(())
    }

    fn write(&self, kind: Kind, before: u64, after: u64, payload: &[u8]) -> Result<u64, AppendError> {
        let too_long = || AppendError::Broken("a group is too long for the journal".to_owned());
        let block = block::encode(kind, before, after, payload).ok_or_else(too_long)?;
        if let Err(error) = self.file.write_all_at(&block, self.end) {
            self.file.set_len(self.end).map_err(|error| AppendError::Broken(error.to_string()))?;
            return Err(match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => AppendError::Full,
                _ => AppendError::Broken(error.to_string()),
            });
        }
        Ok(self.end + block.len() as u64)
    }

    /// Path of the next generation while it is being written.
    pub(super) fn next_path(&self) -> PathBuf {
        new_path(&self.dir, self.generation + 1)
    }

    /// The place from which a snapshot begun now must be completed with appended blocks.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes after the snapshot, and bytes of the snapshot.
    pub(super) fn sizes(&self) -> (u64, u64) {
        (self.end - self.snapshot_end, self.snapshot_end)
    }

    /// Appends the blocks after `from` to the next generation, whose snapshot is written, without switching to it.
    /// Returns the end of its snapshot.
    pub(super) fn complete_next(&self, from: u64) -> io::Result<u64> {
        let new = OpenOptions::new().read(true).write(true).open(self.next_path())?;
        let snapshot_end = new.metadata()?.len();
        let (mut at, mut to) = (from, snapshot_end);
        let mut buffer = vec![0; PART_BYTES];
        while at < self.end {
            let length = buffer.len().min(usize::try_from(self.end - at).unwrap_or(usize::MAX));
            self.file.read_exact_at(&mut buffer[..length], at)?;
            new.write_all_at(&buffer[..length], to)?;
            (at, to) = (at + length as u64, to + length as u64);
        }
        new.sync_all()?;
        Ok(snapshot_end)
    }

    /// Switches to the next generation, which is complete. After an error it is unknown which one is the newest.
    pub(super) fn advance(&mut self, snapshot_end: u64) -> io::Result<()> {
        *self = Self { snapshot_end, ..Self::adopt(&self.dir, self.generation + 1)? };
        Ok(())
    }

    /// Removes the generations before this one.
    pub(super) fn remove_older(&self) -> io::Result<()> {
        for (generation, path) in generations(&self.dir)? {
            if generation < self.generation {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

fn generation_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(JOURNAL_DIR).join(format!("{generation:08}"))
}

fn new_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(JOURNAL_DIR).join(format!("{generation:08}{NEW_SUFFIX}"))
}

/// The generations, oldest first. Removes incomplete ones, which have another suffix.
pub(super) fn generations(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(dir.join(JOURNAL_DIR)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.ends_with(NEW_SUFFIX) {
            fs::remove_file(entry.path())?;
        } else if let Ok(generation) = name.parse() {
            found.push((generation, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}
