//! Which release used a state directory last: an older one refuses it before it reads, let alone repairs, what it may not understand.
//!
//! The file says the release, for people, and the version of what is kept, which is that of the store's records. A directory of a
//! release without this file says it in each record.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use idlewood_scheduler::RECORD_VERSION;
use serde::{Deserialize, Serialize};

/// Its name in the state directory.
const FILE: &str = "release.json";
/// This release.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// What the file says; later releases may say more.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    release: String,
    format: u32,
}

/// Refuses a directory that a newer release has used, and otherwise notes that this one does. The caller has the directory's lock.
///
/// # Errors
/// Says which release to install. Nothing is changed then.
pub(super) fn claim(state_dir: &Path) -> anyhow::Result<()> {
    let path = state_dir.join(FILE);
    let ours = Last { release: RELEASE.to_owned(), format: RECORD_VERSION.into() };
    let last = read(&path).with_context(|| format!("cannot read {}: see to its permissions", path.display()))?;
    if let Some(last) = &last
        && last.format > ours.format
    {
        bail!(
            "idlewood {} was at work in {} and keeps there what this one ({RELEASE}) cannot read: install {} or a later one again, or \
             start anew with another --state-dir; nothing was changed",
            last.release.escape_default(),
            state_dir.display(),
            last.release.escape_default()
        );
    }
    if last.as_ref() != Some(&ours) {
        // A full disk is no reason not to run: what is kept says its version, too.
        if let Err(error) = write(&path, &ours) {
            tracing::warn!(%error, "it could not be noted which release of idlewood uses this state directory");
        }
    }
    Ok(())
}

/// None without a file, or with one that is damaged: the records say their version, too.
fn read(path: &Path) -> io::Result<Option<Last>> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, last: &Last) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    serde_json::to_writer(&mut file, last)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_a_newer_release_is_refused_and_left_as_it_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        claim(directory.path()).expect("it is new");
        let ours = fs::read_to_string(&path).expect("it was noted");
        claim(directory.path()).expect("it is our own");
        let format = u32::from(RECORD_VERSION);
        for (older, text) in [
            (true, r#"{"release":"0.0.9","format":1}"#.to_owned()),
            (true, "damaged".to_owned()),
            // Another release with the same formats.
            (true, format!(r#"{{"release":"9.0.0","format":{format}}}"#)),
            (false, format!(r#"{{"release":"9.1.0","format":{},"more":true}}"#, format + 1)),
        ] {
            fs::write(&path, &text).expect("ours");
            let claimed = claim(directory.path());
            assert_eq!(claimed.is_ok(), older, "{text}: {claimed:?}");
            assert_eq!(fs::read_to_string(&path).expect("it is there"), if older { &ours } else { &text }.as_str());
            if let Err(error) = claimed {
                let error = error.to_string();
                assert!(
                    error.contains("install 9.1.0 or a later one") && error.contains("nothing was changed"),
                    "{error}"
                );
            }
        }
    }
}
