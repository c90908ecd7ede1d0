//! A look at a store without changing anything of it.

use std::fs;
use std::path::{Path, PathBuf};

use super::database::{Contents, Database, Trouble};
use super::disk::{MARK_FILE, Mark, failed};
use super::rebuild::{ASIDE_PREFIX, RETIRED_DIR};
use super::{STORE_DIR, StateLock, StoreError};

/// What is in a store, sound or not.
#[derive(Debug, Default)]
pub struct Inspection {
    /// All sound records, by key.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys of records whose version or checksum is wrong.
    pub damaged: Vec<Vec<u8>>,
    /// Acknowledged commits that are not in it: 0 unless the disk lost data.
    pub commits_lost: u64,
    /// What it takes on disk.
    pub size_bytes: u64,
    /// What the records take without anything around them.
    pub live_bytes: u64,
    /// Why it does not open; then there are no records.
    pub unreadable: Option<String>,
    /// Earlier stores that were damaged and set aside.
    pub set_aside: Vec<PathBuf>,
}

/// Reads the store in the locked directory: a copy of it, since sled rewrites what it opens. Blocks.
///
/// # Errors
/// When the directory cannot be read or copied.
pub fn inspect(lock: &StateLock) -> Result<Inspection, StoreError> {
    let dir = lock.dir();
    let mut inspection = Inspection { set_aside: set_aside(dir)?, ..Inspection::default() };
    // A rebuild that was interrupted between its two names: the next agent goes on with the old one.
    let store = [STORE_DIR, RETIRED_DIR].map(|name| dir.join(name)).into_iter().find(|store| store.exists());
    let Some(store) = store else { return Ok(inspection) };
    let copied = tempfile::Builder::new().prefix("store.inspected-").tempdir_in(dir).map_err(failed("copy to", dir))?;
    let copy_of_store = copied.path().join(STORE_DIR);
    copy(&store, &copy_of_store)?;
    match Database::open(&copy_of_store) {
        Ok((database, contents)) => {
            database.close();
            inspection.live_bytes = contents.live_bytes();
            let Contents { records, damaged, count, size_bytes } = contents;
            inspection.size_bytes = size_bytes;
            (inspection.records, inspection.damaged) = (records, damaged);
            if dir.join(MARK_FILE).exists() {
                inspection.commits_lost = Mark::open(dir)?.read().saturating_sub(count);
            }
        }
        Err(Trouble::Damaged(reason)) => inspection.unreadable = Some(reason),
        Err(Trouble::System(source)) => return Err(failed("open a copy of", &store)(source)),
    }
    Ok(inspection)
}

fn set_aside(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let path = entry.map_err(failed("list", dir))?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(ASIDE_PREFIX)) {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::create_dir(to).map_err(failed("create", to))?;
    for entry in fs::read_dir(from).map_err(failed("list", from))? {
        let entry = entry.map_err(failed("list", from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target).map_err(failed("copy", &path))?;
        }
    }
    Ok(())
}
