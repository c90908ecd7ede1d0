//! A store in the place of another: what is damaged is set aside, and what is mostly garbage is rebuilt, since sled
//! does not give space back.
//!
//! A rebuild copies what lives to a directory beside the store, syncs it, and only then exchanges the two by renaming.
//! Wherever it is interrupted, [`finish`] finds one that is whole: the old one counts until the new one has its name.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::database::{Contents, Database};
use super::disk::{failed, sync_all, sync_dir};
use super::{STORE_DIR, StoreError};

/// Where a store is rebuilt, and where the old one waits to be deleted.
pub(super) const REBUILT_DIR: &str = "store.rebuilt";
pub(super) const RETIRED_DIR: &str = "store.retired";

/// What a damaged store is called from then on, with a number behind it.
pub(super) const ASIDE_PREFIX: &str = "store.damaged-";

/// A store larger than [`super::Thresholds::rebuild_bytes_min`] and than this many times what lives in it is rebuilt.
const GARBAGE_RATIO: u64 = 5;

/// Whether a store of that size is to be rebuilt.
pub(super) fn is_due(size_bytes: u64, live_bytes: u64, rebuild_bytes_min: u64) -> bool {
    size_bytes > rebuild_bytes_min && size_bytes / GARBAGE_RATIO > live_bytes
}

/// Copies all that lives to a new store beside the old one, durably. How many bytes that is.
pub(super) fn prepare(dir: &Path, database: &Database) -> Result<u64, String> {
    let rebuilt = dir.join(REBUILT_DIR);
    if rebuilt.exists() {
        // Of a rebuild that failed.
        fs::remove_dir_all(&rebuilt).map_err(|error| error.to_string())?;
    }
    let live_bytes = database.copy(&rebuilt)?;
    sync_all(&rebuilt, &mut HashSet::new()).map_err(|error| error.to_string())?;
    Ok(live_bytes)
}

/// Puts the new store in the place of the old one, which is closed, and opens it.
pub(super) fn exchange(dir: &Path) -> Result<(Database, Contents), StoreError> {
    let (path, rebuilt, retired) = (dir.join(STORE_DIR), dir.join(REBUILT_DIR), dir.join(RETIRED_DIR));
    fs::rename(&path, &retired).map_err(failed("rename", &path))?;
    fs::rename(&rebuilt, &path).and_then(|()| sync_dir(dir)).map_err(failed("rename", &rebuilt))?;
    fs::remove_dir_all(&retired).map_err(failed("remove", &retired))?;
    Database::open(&path).map_err(|trouble| StoreError::Unusable { dir: dir.to_owned(), reason: trouble.to_string() })
}

/// Cleans up after a rebuild that was interrupted: the old store counts until the new one has its name.
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

/// Moves a damaged store out of the way; where to.
pub(super) fn set_aside(dir: &Path) -> Result<PathBuf, StoreError> {
    let path = dir.join(STORE_DIR);
    let names = (1_u32..).map(|number| dir.join(format!("{ASIDE_PREFIX}{number}")));
    let aside = names.into_iter().find(|aside| !aside.exists()).unwrap_or_else(|| dir.join("store.damaged"));
    fs::rename(&path, &aside).and_then(|()| sync_dir(dir)).map_err(failed("set aside", &path))?;
    Ok(aside)
}
