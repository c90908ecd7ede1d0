//! Writing a blob: hashed while it is written to a temporary file, and renamed when it is complete.

use std::fs::{DirBuilder, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::sync::Arc;

use blake3::Hash;
use tempfile::NamedTempFile;

use super::error::{BlobError, failed};
use super::space::{Space, TMP_DIR};

/// A blob that is being written. Dropping it unfinished leaves nothing behind.
#[derive(Debug)]
pub struct BlobWriter {
    pub(super) space: Arc<Space>,
    /// `None` once finished.
    pub(super) file: Option<NamedTempFile>,
    pub(super) hasher: blake3::Hasher,
    pub(super) written: u64,
    pub(super) expected: Option<Hash>,
    pub(super) size_max: u64,
}

impl BlobWriter {
    /// Begins a blob, of at most `size_max` bytes; one that is received must have the hash that is `expected`.
    ///
    /// # Errors
    /// When the disk refuses.
    pub(super) fn begin(space: &Arc<Space>, expected: Option<Hash>, size_max: u64) -> Result<Self, BlobError> {
        let tmp = space.dir.join(TMP_DIR);
        let file = NamedTempFile::new_in(&tmp).map_err(failed("create a file in", &tmp))?;
        let (space, hasher) = (Arc::clone(space), blake3::Hasher::new());
        Ok(Self { space, file: Some(file), hasher, written: 0, expected, size_max })
    }

    /// Appends `bytes`, making room for them first.
    ///
    /// # Errors
    /// When the limit or the quota is exceeded, or the disk refuses; the writer cannot be used afterwards.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        let count = bytes.len() as u64;
        if let Some(hash) = self.expected
            && self.size_max - self.written < count
        {
            return Err(BlobError::TooLarge { hash, size_max: self.size_max });
        }
        {
            let mut index = self.space.index();
            if let Err(error) = self.space.make_room(&mut index, count) {
                // A download may be larger than anything made here, so its failure says nothing about room for those.
                if let (BlobError::Full { kept_bytes, quota_bytes, .. }, None) = (&error, self.expected) {
                    index.refused = Some((kept_bytes - self.written, *quota_bytes));
                }
                return Err(error);
            }
            index.reserved_bytes += count;
        }
        self.written += count;
        self.hasher.update(bytes);
        if let Some(file) = &mut self.file {
            file.write_all(bytes).map_err(failed("write", file.path()))?;
        }
        Ok(())
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Checks the hash and gives the blob its name.
    ///
    /// # Errors
    /// When the content has another hash than expected, or the disk refuses; nothing is stored then.
    pub fn finish(mut self) -> Result<Hash, BlobError> {
        let got = self.hasher.finalize();
        if let Some(expected) = self.expected
            && expected != got
        {
            return Err(BlobError::Mismatch { expected, got });
        }
        if let Some(file) = self.file.take() {
            let path = self.space.file_of(got);
            file.as_file().set_permissions(Permissions::from_mode(0o400)).map_err(failed("protect", file.path()))?;
            if let Some(shard) = path.parent()
                && !shard.is_dir()
            {
                DirBuilder::new().recursive(true).mode(0o700).create(shard).map_err(failed("create", shard))?;
            }
            let mut index = self.space.index();
            file.persist(&path).map_err(|error| failed("rename a file to", &path)(error.error))?;
            index.insert(got, self.written, true);
        }
        Ok(got)
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        // Dropping the temporary file removes it.
        self.space.index().reserved_bytes -= self.written;
    }
}
