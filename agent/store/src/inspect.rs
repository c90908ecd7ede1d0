//! Inspection of a store without changing it.

use std::fs;
use std::path::PathBuf;

use super::disk::{MARK_FILE, failed};
use super::error::StoreError;
use super::frame::live_bytes;
use super::journal::JOURNAL_DIR;
use super::layout::STORE_DIR;
use super::lock::StateLock;
use super::rebuild::{RETIRED_DIR, damaged_files};
use super::recovery::{KEPT_DIR, copy_dir, recover};

/// The content of a store, sound or not.
#[derive(Debug, Default)]
pub struct Inspection {
    /// All sound records, by key.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys of records that are sound in neither the database nor the journal.
    pub damaged: Vec<Vec<u8>>,
    /// Acknowledged commits missing from both: 0 unless the disk lost data.
    pub commits_lost: u64,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// Bytes of its records alone.
    pub live_bytes: u64,
    /// The damage in its files.
    pub flaws: Vec<String>,
    /// Earlier files that were damaged and set aside.
    pub set_aside: Vec<PathBuf>,
}

/// Reads the store in the locked directory: a copy of it, since sled rewrites what it opens. Blocks.
///
/// # Errors
/// When the directory cannot be read or copied.
pub fn inspect(lock: &StateLock) -> Result<Inspection, StoreError> {
    let dir = lock.dir();
    let set_aside = damaged_files(dir)?;
    let copied = tempfile::Builder::new().prefix("store.inspected-").tempdir_in(dir).map_err(failed("copy to", dir))?;
    // An opening or a rebuild was interrupted: the next agent continues with the old store.
    let store = [KEPT_DIR, STORE_DIR, RETIRED_DIR].map(|name| dir.join(name)).into_iter().find(|store| store.exists());
    let mut is_empty = true;
    for (from, name) in [(store, STORE_DIR), (Some(dir.join(JOURNAL_DIR)), JOURNAL_DIR)] {
        if let Some(from) = from.filter(|from| from.exists()) {
            copy_dir(&from, &copied.path().join(name)).map_err(failed("copy", &from))?;
            is_empty = false;
        }
    }
    if is_empty {
        return Ok(Inspection { set_aside, ..Inspection::default() });
    }
    let mark = dir.join(MARK_FILE);
    if mark.exists() {
        fs::copy(&mark, copied.path().join(MARK_FILE)).map_err(failed("copy", &mark))?;
    }
    let recovered = recover(copied.path())?;
    recovered.database.close();
    let findings = recovered.findings;
    Ok(Inspection {
        live_bytes: live_bytes(&recovered.records),
        records: recovered.records,
        damaged: findings.damaged,
        commits_lost: findings.commits_lost,
        size_bytes: recovered.size_bytes + recovered.journal.end(),
        flaws: findings.flaws,
        set_aside,
    })
}
