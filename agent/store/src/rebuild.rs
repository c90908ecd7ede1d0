//! Replacing a store: a damaged one is set aside, and one that is mostly garbage is rebuilt, since sled does not give
//! space back.
//!
//! A rebuild copies the live records to a directory beside the store, syncs it, and only then exchanges the two by
//! renaming. After an interruption at any point [`finish`] finds a complete one: the old store is used until the new
//! one has its name.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::database::{Contents, Database};
use super::disk::{failed, sync_all, sync_dir};
use super::error::StoreError;
use super::findings::Findings;
use super::journal::JOURNAL_DIR;
use super::layout::STORE_DIR;

/// Directory of the new store during a rebuild, and of the old one until it is deleted.
pub(super) const REBUILT_DIR: &str = "store.rebuilt";
pub(super) const RETIRED_DIR: &str = "store.retired";

/// Name of a damaged store, followed by a number.
pub(super) const ASIDE_PREFIX: &str = "store.damaged-";

/// In it: the reason.
pub(super) const NOTE_FILE: &str = "why.txt";
/// Number of damaged stores kept. Our choice.
const ASIDE_MAX: usize = 4;

/// A store is rebuilt if it is larger than [`super::thresholds::Thresholds::rebuild_bytes_min`] and than this many times its live
/// records.
const GARBAGE_RATIO: u64 = 5;

/// Whether a store of that size is to be rebuilt.
pub(super) fn is_due(size_bytes: u64, live_bytes: u64, rebuild_bytes_min: u64) -> bool {
    size_bytes > rebuild_bytes_min && size_bytes / GARBAGE_RATIO > live_bytes
}

/// Copies all live records to a new store beside the old one, durably; returns their bytes.
pub(super) fn prepare(dir: &Path, database: &mut Database) -> Result<u64, String> {
    let rebuilt = dir.join(REBUILT_DIR);
    if rebuilt.exists() {
        // Left over from a failed rebuild.
        fs::remove_dir_all(&rebuilt).map_err(|error| error.to_string())?;
    }
    let live_bytes = database.copy(&rebuilt)?;
    sync_all(&rebuilt, &mut HashSet::new()).map_err(|error| error.to_string())?;
    Ok(live_bytes)
}

/// Replaces the old store, which is closed or gone, by the new one, and opens it.
pub(super) fn exchange(dir: &Path) -> Result<(Database, Contents), StoreError> {
    let (path, rebuilt, retired) = (dir.join(STORE_DIR), dir.join(REBUILT_DIR), dir.join(RETIRED_DIR));
    if path.exists() {
        fs::rename(&path, &retired).map_err(failed("rename", &path))?;
    }
    fs::rename(&rebuilt, &path).and_then(|()| sync_dir(dir)).map_err(failed("rename", &rebuilt))?;
    if retired.exists() {
        fs::remove_dir_all(&retired).map_err(failed("remove", &retired))?;
    }
    Database::open(&path).map_err(|trouble| StoreError::Unusable { dir: dir.to_owned(), reason: trouble.to_string() })
}

/// Cleans up after an interrupted rebuild: the old store is used until the new one has its name.
pub(super) fn finish(dir: &Path) -> Result<(), StoreError> {
    let (path, rebuilt, retired) = (dir.join(STORE_DIR), dir.join(REBUILT_DIR), dir.join(RETIRED_DIR));
    if retired.exists() && !path.exists() {
        fs::rename(&retired, &path).and_then(|()| sync_dir(dir)).map_err(failed("restore", &path))?;
    }
    for leftover in [rebuilt, retired] {
        if leftover.exists() {
            fs::remove_dir_all(&leftover).map_err(failed("remove", &leftover))?;
        }
    }
    Ok(())
}

/// Moves damaged files out of the way: sled's directory, a file of the journal, or both, with a note of the reason.
/// Returns where to.
pub(super) fn set_aside(
    dir: &Path,
    store: Option<&Path>,
    journal: Option<&Path>,
    findings: &Findings,
) -> Result<PathBuf, StoreError> {
    let mut earlier = list_aside(dir)?;
    let number = earlier.last().map_or(1, |(number, _)| number + 1);
    let aside = dir.join(format!("{ASIDE_PREFIX}{number}"));
    fs::create_dir(&aside).map_err(failed("create", &aside))?;
    for from in [store, journal].into_iter().flatten() {
        let name = if Some(from) == store { OsStr::new(STORE_DIR) } else { OsStr::new(JOURNAL_DIR) };
        fs::rename(from, aside.join(name)).map_err(failed("set aside", from))?;
    }
    let lost = findings.commits_lost + findings.damaged.len() as u64;
    let result =
        if lost == 0 { "nothing that was acknowledged is lost" } else { "see the agent's log for what is lost" };
    let note = format!("{}\n{result}\n", findings.flaws.join("\n"));
    fs::write(aside.join(NOTE_FILE), note).and_then(|()| sync_dir(dir)).map_err(failed("write to", &aside))?;
    // A disk that damages something every day must not fill up with damaged stores.
    while earlier.len() >= ASIDE_MAX {
        let (_, oldest) = earlier.remove(0);
        let removed = if oldest.is_dir() { fs::remove_dir_all(&oldest) } else { fs::remove_file(&oldest) };
        removed.map_err(failed("remove", &oldest))?;
    }
    Ok(aside)
}

/// Damaged stores that were set aside, by number.
pub(super) fn list_aside(dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let path = entry.map_err(failed("list", dir))?.path();
        let name = path.file_name().and_then(OsStr::to_str);
        if let Some(number) = name.and_then(|name| name.strip_prefix(ASIDE_PREFIX)) {
            found.push((number.parse().unwrap_or(0), path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Damaged files of the store in a state directory, kept under another name.
///
/// # Errors
/// When the directory cannot be listed.
pub fn damaged_files(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    Ok(list_aside(dir)?.into_iter().map(|(_, path)| path).collect())
}
