//! Small private files, written atomically.

use std::fs::{DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Makes `directory`, for its user only.
pub(super) fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Writes a file that must not exist, durably, with mode 0600.
pub(super) fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    temporary(path, content)?.persist_noclobber(path)?;
    sync_parent(path)
}

/// Writes or replaces a file, durably, with mode 0600.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    temporary(path, content)?.persist(path)?;
    sync_parent(path)
}

/// Removes a file, durably; a missing one is no error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_parent(path),
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

fn temporary(path: &Path, content: &[u8]) -> io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("new-").tempfile_in(parent(path))?; // mode 0600
    file.write_all(content)?;
    file.as_file().sync_all()?;
    Ok(file)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}
