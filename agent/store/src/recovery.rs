//! Opening: the agent continues with sled and the end of the journal, with the journal alone if sled is damaged, or
//! with the sound records of both.
//!
//! sled repairs a damaged file in place, by truncating its log. So its directory is copied before it is opened; if sled
//! is not sound the copy is set aside, and sled is filled anew from the journal. sled is sound if it opens, each
//! record's checksum is right, number and sum of the records are those of its last checkpoint, and it is not behind the
//! last checkpoint that the journal knows of.
//!
//! A damaged journal is set aside, too, once a new generation is durable. Nothing is set aside or removed before its
//! replacement is on disk, so that an opening may be interrupted anywhere.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::block::Kind;
use super::database::{Contents, Database, Trouble, wait_for_lock};
use super::disk::{Mark, failed, sync_all, sync_dir};
use super::error::StoreError;
use super::findings::Findings;
use super::frame::{decode, encode};
use super::journal::{self, Changes, Journal, Replay};
use super::layout::STORE_DIR;
use super::rebuild::{self, REBUILT_DIR};
use super::thresholds::THRESHOLDS;

/// A copy of sled's directory from before it was opened.
pub(super) const KEPT_DIR: &str = "store.opening";
/// That copy while it is being made or removed.
const COPY_DIR: &str = "store.copied";

/// Bytes of records written at once when sled is filled anew.
const FILL_BYTES: usize = 4 << 20;

/// All records, by key.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// A store that can be written.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) database: Database,
    pub(super) journal: Journal,
    pub(super) mark: Mark,
    pub(super) records: Records,
    /// Changes that sled lacks.
    pub(super) pending: Changes,
    /// Commits so far.
    pub(super) count: u64,
    /// Bytes of sled's files.
    pub(super) size_bytes: u64,
    pub(super) findings: Findings,
}

/// The combined state of sled and the journal.
#[derive(Debug, Default)]
struct State {
    records: Records,
    pending: Changes,
    count: u64,
    /// Commits that sled has.
    index_count: u64,
    /// The damage in sled, and in the journal.
    index_flaw: Option<String>,
    journal_flaw: Option<String>,
    damaged: Vec<Vec<u8>>,
    commits_lost: u64,
    /// The journal's newest generation.
    replay: Replay,
}

/// Opens the state directory's store, and repairs it if possible.
pub(super) fn recover(dir: &Path) -> Result<Recovered, StoreError> {
    rebuild::finish(dir)?;
    let path = dir.join(STORE_DIR);
    let kept = keep_copy(dir).map_err(failed("copy", &path))?;
    let mark = Mark::open(dir)?;
    let (opened, contents) = match Database::open(&path) {
        Ok((database, contents)) => (Ok(database), Some(contents)),
        Err(Trouble::System(source)) => return Err(failed("open", &path)(source)),
        Err(Trouble::Damaged(reason)) => (Err(reason), None),
    };
    let generations = journal::generations(dir).map_err(failed("list", &dir.join(journal::JOURNAL_DIR)))?;
    let size_bytes = contents.as_ref().map_or(0, |contents| contents.size_bytes);
    let mut state = read(contents, opened.as_ref().err(), &generations, mark.read())?;
    let database = match opened {
        Ok(database) if state.index_flaw.is_some() => {
            database.close();
            None
        }
        opened => opened.ok(),
    };

    let generation = generations.last().map_or(0, |(generation, _)| *generation);
    let was_replaced = database.is_none();
    let (database, journal) = write_anew(dir, &mut state, database, generation)?;
    let mut findings = Findings {
        flaws: state.index_flaw.iter().map(|flaw| format!("the database: {flaw}")).collect(),
        damaged: state.damaged,
        commits_lost: state.commits_lost,
        set_aside: None,
    };
    findings.flaws.extend(state.journal_flaw.iter().map(|flaw| format!("the journal: {flaw}")));
    let damaged_journal = generations.last().filter(|_| state.journal_flaw.is_some()).map(|(_, path)| path.as_path());
    let damaged_store = match &kept {
        _ if !was_replaced => None,
        // There was no directory, or no room for a copy.
        Kept::Nothing => None,
        Kept::NoRoom => Some(path.clone()),
        Kept::Copy(copy) => Some(copy.clone()),
    };
    if damaged_journal.is_some() || damaged_store.is_some() {
        findings.set_aside = Some(rebuild::set_aside(dir, damaged_store.as_deref(), damaged_journal, &findings)?);
    }
    let database = match database {
        Some(database) => database,
        None => rebuild::exchange(dir)?.0,
    };
    if kept.is_copy() && !was_replaced {
        remove_copy(dir).map_err(failed("remove the copy of", &path))?;
    }
    journal.remove_older().map_err(failed("remove what is old of", &dir.join(journal::JOURNAL_DIR)))?;
    sync_all(&path, &mut HashSet::new()).and_then(|()| sync_dir(dir)).map_err(failed("sync", &path))?;
    let State { records, pending, count, .. } = state;
    Ok(Recovered { database, journal, mark, records, pending, count, size_bytes, findings })
}

/// Makes the files match the state: the journal to be written, and sled if it is sound; else a complete new database is
/// written beside it.
fn write_anew(
    dir: &Path,
    state: &mut State,
    database: Option<Database>,
    generation: u64,
) -> Result<(Option<Database>, Journal), StoreError> {
    let unusable = |reason: String| StoreError::Unusable { dir: dir.to_owned(), reason };
    let begins_anew = generation == 0 || state.journal_flaw.is_some();
    let database = match database {
        Some(mut database) => {
            // A snapshot implies that sled has all of its commits.
            if begins_anew && (state.index_count != state.count || !state.pending.is_empty()) {
                database.checkpoint(std::mem::take(&mut state.pending), state.count).map_err(unusable)?;
            }
            Some(database)
        }
        None => {
            fill(&dir.join(REBUILT_DIR), state).map_err(unusable)?;
            None
        }
    };
    let journal = if begins_anew {
        Journal::begin(dir, generation + 1, state.count, &state.records)
    } else {
        Journal::resume(dir, generation, state.replay.end, state.replay.snapshot_end)
    };
    Ok((database, journal.map_err(failed("write", &dir.join(journal::JOURNAL_DIR)))?))
}

/// Fills a new database with all records.
fn fill(path: &Path, state: &State) -> Result<(), String> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(|error| error.to_string())?;
    }
    let (mut database, _) = Database::open(path).map_err(|trouble| trouble.to_string())?;
    let (mut changes, mut bytes) = (Changes::new(), 0);
    for (key, value) in &state.records {
        bytes += key.len() + value.len();
        changes.insert(key.clone(), Some(encode(key, value)));
        if bytes > FILL_BYTES {
            database.checkpoint(std::mem::take(&mut changes), 0)?;
            bytes = 0;
        }
    }
    database.checkpoint(changes, state.count)?;
    database.close();
    Ok(())
}

/// Reads sled and the journal.
fn read(
    contents: Option<Contents>,
    failure: Option<&String>,
    generations: &[(u64, PathBuf)],
    acknowledged: u64,
) -> Result<State, StoreError> {
    let index_flaw = match (&contents, failure) {
        (_, Some(reason)) => Some(reason.clone()),
        (Some(contents), None) if !contents.is_whole => Some("records are missing, old or damaged".to_owned()),
        _ => None,
    };
    let mut state = State { index_flaw, ..State::default() };
    let contents = contents.unwrap_or_default();
    state.index_count = contents.count;
    let Some((_, newest)) = generations.last() else {
        // A store from before the journal, a new one, or one whose journal was removed.
        state.count = contents.count.max(acknowledged);
        state.commits_lost = acknowledged.saturating_sub(contents.count);
        state.damaged = contents.damaged;
        state.records = contents.records;
        return Ok(state);
    };
    if state.index_flaw.is_none() {
        let (replay, tail) = read_generation(newest, acknowledged, Some(contents.count))?;
        if replay.indexed <= contents.count {
            return Ok(with_end_of_journal(state, contents, replay, tail, acknowledged));
        }
        let lacks = replay.indexed - contents.count;
        state.index_flaw = Some(format!("it lacks the last {lacks} commits of its last checkpoint"));
    }
    let (replay, mut all) = read_generation(newest, acknowledged, None)?;
    if !replay.is_readable() {
        // Neither is complete: the sound records of sled first, then those of the journal, the oldest generation first.
        let mut older = Changes::new();
        let sound = contents.records.into_iter().map(|(key, value)| (encode(&key, &value), key));
        older.extend(sound.map(|(record, key)| (key, Some(record))));
        for (_, path) in &generations[..generations.len() - 1] {
            older.append(&mut read_generation(path, 0, None)?.1);
        }
        older.append(&mut all);
        all = older;
        let snapshot_lost = if replay.is_snapshot_damaged {
            replay.snapshot.unwrap_or(acknowledged).saturating_sub(contents.count).max(1)
        } else {
            0
        };
        state.commits_lost = snapshot_lost + replay.lost_after(contents.count);
        state.damaged = contents.damaged.into_iter().filter(|key| !all.contains_key(key)).collect();
    }
    state.journal_flaw = journal_flaw(&replay, acknowledged);
    state.count = replay.count.max(contents.count).max(acknowledged);
    state.records = all
        .into_iter()
        .filter_map(|(key, record)| {
            let value = decode(&key, record?.as_slice())?.to_vec();
            Some((key, value))
        })
        .collect();
    state.replay = replay;
    Ok(state)
}

/// sled is sound: adds the journal's later commits.
fn with_end_of_journal(
    mut state: State,
    contents: Contents,
    replay: Replay,
    tail: Changes,
    acknowledged: u64,
) -> State {
    state.commits_lost = replay.lost_after(contents.count);
    state.journal_flaw = if replay.count < contents.count {
        Some("it ends before what the database has".to_owned())
    } else {
        journal_flaw(&replay, acknowledged)
    };
    state.count = replay.count.max(contents.count).max(acknowledged);
    state.records = merge(contents.records, &tail);
    state.pending = tail;
    state.replay = replay;
    state
}

fn journal_flaw(replay: &Replay, acknowledged: u64) -> Option<String> {
    if replay.is_snapshot_damaged || replay.snapshot.is_none() {
        Some("part of its snapshot cannot be read".to_owned())
    } else if !replay.gaps.is_empty() {
        Some(format!("{} commits cannot be read", replay.lost_after(0)))
    } else if replay.healed > 0 {
        Some(format!("{} blocks were damaged, and were healed", replay.healed))
    } else {
        (replay.count < acknowledged).then(|| "its end is missing".to_owned())
    }
}

/// The content of a generation: all of it, or only commits after `from`. One that the system cannot read counts as
/// damaged throughout.
fn read_generation(path: &Path, acknowledged: u64, from: Option<u64>) -> Result<(Replay, Changes), StoreError> {
    let mut changes = Changes::new();
    let replay = journal::replay(path, acknowledged, |header, (key, record)| {
        if from.is_none_or(|from| header.kind == Kind::Group && header.after > from) {
            changes.insert(key.to_vec(), record.map(<[u8]>::to_vec));
        }
    });
    match replay {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(failed("read", path)(error)),
        Err(_) => Ok((Replay { is_snapshot_damaged: true, ..Replay::default() }, changes)),
        Ok(replay) => Ok((replay, changes)),
    }
}

/// The records with these changes applied.
fn merge(records: Records, changes: &Changes) -> Records {
    if changes.is_empty() {
        return records;
    }
    let value = |(key, record): (&Vec<u8>, &Option<Vec<u8>>)| {
        record.as_deref().and_then(|record| decode(key, record)).map(|value| (key.clone(), value.to_vec()))
    };
    let mut merged = Vec::with_capacity(records.len());
    let mut changes = changes.iter().peekable();
    for (key, old) in records {
        while let Some(change) = changes.next_if(|(changed, _)| **changed < key) {
            merged.extend(value(change));
        }
        match changes.next_if(|(changed, _)| **changed == key) {
            Some(change) => merged.extend(value(change)),
            None => merged.push((key, old)),
        }
    }
    merged.extend(changes.filter_map(value));
    merged
}

/// The copy of sled's directory from before it was opened.
#[derive(Debug)]
enum Kept {
    /// There was no directory.
    Nothing,
    /// A copy would fill the disk: if sled is damaged, its repaired files are set aside instead.
    NoRoom,
    Copy(PathBuf),
}

impl Kept {
    fn is_copy(&self) -> bool {
        matches!(self, Self::Copy(_))
    }
}

/// Copies sled's directory before sled writes to it. If an interrupted opening left such a copy, restores it first.
fn keep_copy(dir: &Path) -> io::Result<Kept> {
    let [path, copy, kept] = [STORE_DIR, COPY_DIR, KEPT_DIR].map(|name| dir.join(name));
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    if kept.exists() {
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::rename(&kept, &path)?;
    }
    if !path.exists() {
        return Ok(Kept::Nothing);
    }
    wait_for_lock(&path)?;
    let disk = rustix::fs::statvfs(dir)?;
    if disk.f_bavail * disk.f_frsize < copy_bytes(&path)? + THRESHOLDS.free_bytes_min {
        return Ok(Kept::NoRoom);
    }
    copy_dir(&path, &copy)?;
    fs::rename(&copy, &kept)?;
    Ok(Kept::Copy(kept))
}

/// Renamed first, so that a half-removed copy is not taken for a complete one.
fn remove_copy(dir: &Path) -> io::Result<()> {
    let [copy, kept] = [COPY_DIR, KEPT_DIR].map(|name| dir.join(name));
    fs::rename(kept, &copy)?;
    fs::remove_dir_all(copy)
}

fn copy_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { copy_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

/// Copies a directory of the store recursively.
pub(super) fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() { copy_dir(&path, &target)? } else { fs::copy(&path, &target).map(drop)? }
    }
    Ok(())
}
