//! A download under way: its beginning is kept where it breaks off.

use std::sync::Arc;

use blake3::Hash;
use idlewood_overlay::PeerId;
use idlewood_scheduler::BagId;
use tokio::time::Instant;

use super::error::BlobError;
use super::partial::Partial;
use super::space::Space;
use super::writer::BlobWriter;

/// A blob that is being downloaded. Dropping it unfinished keeps its beginning.
#[derive(Debug)]
pub struct Incoming {
    /// `None` once finished or dropped.
    writer: Option<BlobWriter>,
    hash: Hash,
    /// The machines that sent parts, in order.
    from: Vec<PeerId>,
    /// The bag that needs it.
    of: BagId,
}

impl Incoming {
    /// Continues an interrupted download of a blob for a bag, or begins one; of at most `size_max` bytes.
    ///
    /// # Errors
    /// When the disk refuses.
    pub(super) fn resume(space: &Arc<Space>, hash: Hash, size_max: u64, of: BagId) -> Result<Self, BlobError> {
        {
            let mut index = space.index();
            if let Some(partial) = index.partials.take(hash).filter(|partial| partial.written <= size_max) {
                let Partial { file, hasher, written, from, .. } = partial;
                index.reserved_bytes += written;
                let (file, expected, space) = (Some(file), Some(hash), Arc::clone(space));
                let writer = BlobWriter { space, file, hasher, written, expected, size_max };
                return Ok(Self { writer: Some(writer), hash, from, of });
            }
        }
        let writer = BlobWriter::begin(space, Some(hash), size_max)?;
        Ok(Self { writer: Some(writer), hash, from: Vec::new(), of })
    }

    /// Bytes received so far.
    pub fn written(&self) -> u64 {
        self.writer.as_ref().map_or(0, BlobWriter::written)
    }

    /// Whether a machine other than `source` sent a part of it.
    pub fn is_mixed(&self, source: PeerId) -> bool {
        self.from.iter().any(|peer| *peer != source)
    }

    /// The machines that sent parts.
    pub fn from(&self) -> &[PeerId] {
        &self.from
    }

    /// Appends bytes received from `source`.
    ///
    /// # Errors
    /// As [`BlobWriter::write`]; the beginning is then dropped.
    pub fn write(&mut self, source: PeerId, bytes: &[u8]) -> Result<(), BlobError> {
        if !bytes.is_empty() && !self.from.contains(&source) {
            self.from.push(source);
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let written = writer.write(bytes);
        if written.is_err() {
            self.writer = None;
        }
        written
    }

    /// As [`BlobWriter::finish`].
    ///
    /// # Errors
    /// As there; the beginning is then dropped.
    pub fn finish(mut self) -> Result<Hash, BlobError> {
        let hash = self.hash;
        self.writer.take().map_or(Err(BlobError::Missing { hash }), BlobWriter::finish)
    }

    /// Drops it without keeping the beginning.
    pub fn discard(mut self) {
        self.writer = None;
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let Some(mut writer) = self.writer.take().filter(|writer| writer.written > 0) else { return };
        let Some(file) = writer.file.take() else { return };
        let (hasher, written, space) = (writer.hasher.clone(), writer.written, Arc::clone(&writer.space));
        // Ends the reservation of its bytes.
        drop(writer);
        let (from, of) = (std::mem::take(&mut self.from), self.of);
        let partial = Partial { file, hasher, written, from, of, since: Instant::now() };
        space.index().set_aside(self.hash, partial);
    }
}
