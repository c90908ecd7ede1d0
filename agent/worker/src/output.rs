//! Standard output and error of a task: first to memory shared with the agent (`shared_output`), then to a file, up to
//! a limit.
//!
//! The file is created by the first byte that does not fit the memory: most small tasks print little, and a file costs
//! more than they do. Writes are not buffered (C and Rust buffer on their side), so that output is complete even if the
//! worker is killed a moment later.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

// The type in the streams' signatures.
use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

use super::shared_output::{SharedOutput, Stream};

/// Largest single write announced to the runtime.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// A file that takes a limited number of bytes. Clones share file and count.
#[derive(Clone)]
pub(super) struct CappedFile {
    inner: Arc<Inner>,
}

struct Inner {
    /// Where its first bytes go; none: all go to the file.
    memory: Option<(Arc<SharedOutput>, Stream)>,
    path: PathBuf,
    file: OnceLock<File>,
    remaining: AtomicU64,
    exceeded: AtomicBool,
}

impl CappedFile {
    /// A stream whose file will be at `path`; its directory is made with it.
    pub(super) fn new(path: PathBuf, bytes_max: u64) -> Self {
        Self::with(None, path, bytes_max)
    }

    /// A stream whose first bytes go to memory.
    pub(super) fn in_memory(shared: &Arc<SharedOutput>, stream: Stream, path: PathBuf, bytes_max: u64) -> Self {
        Self::with(Some((shared.clone(), stream)), path, bytes_max)
    }

    fn with(memory: Option<(Arc<SharedOutput>, Stream)>, path: PathBuf, bytes_max: u64) -> Self {
        let (remaining, exceeded) = (AtomicU64::new(bytes_max), AtomicBool::new(false));
        let inner = Inner { memory, path, file: OnceLock::new(), remaining, exceeded };
        CappedFile { inner: Arc::new(inner) }
    }

    /// Whether the file exists.
    pub(super) fn exists(&self) -> bool {
        self.inner.file.get().is_some()
    }

    /// Writes to memory while there is room, then to the file.
    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        let Inner { memory, path, file, .. } = &*self.inner;
        if let Some(mut file) = file.get() {
            return file.write_all(bytes);
        }
        if let Some((shared, stream)) = memory
            && shared.add(*stream, bytes)?
        {
            return Ok(());
        }
        // One thread runs the task: nothing else opens it meanwhile.
        let mut new = create(path)?;
        if let Some((shared, stream)) = memory {
            new.write_all(&shared.take(*stream))?;
            shared.forget_taken()?;
        }
        file.get_or_init(|| new).write_all(bytes)
    }

    /// Whether more was written than the limit.
    pub(super) fn exceeded(&self) -> bool {
        self.inner.exceeded.load(Ordering::Relaxed)
    }

    /// Writes what fits; fails with EFBIG if not all of it did.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        // One thread runs the task, so load and store need not be one step.
        let remaining = self.inner.remaining.load(Ordering::Relaxed);
        let fits = bytes.len().min(usize::try_from(remaining).unwrap_or(usize::MAX));
        if !bytes.is_empty() {
            self.put(&bytes[..fits])?;
        }
        self.inner.remaining.store(remaining.saturating_sub(fits as u64), Ordering::Relaxed);
        if fits < bytes.len() {
            self.inner.exceeded.store(true, Ordering::Relaxed);
            return Err(rustix::io::Errno::FBIG.into());
        }
        Ok(())
    }
}

fn create(path: &Path) -> io::Result<File> {
    match (File::create(path), path.parent()) {
        (Err(error), Some(directory)) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(directory)?;
            File::create(path)
        }
        (result, _) => result,
    }
}

impl IsTerminal for CappedFile {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for CappedFile {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for CappedFile {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for CappedFile {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        CappedFile::write(self, &bytes).map_err(|error| StreamError::LastOperationFailed(error.into()))
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES_MAX)
    }
}

impl AsyncWrite for CappedFile {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(CappedFile::write(&self, bytes).map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared_output::{SharedOutputReader, Streams};
    use super::*;

    #[test]
    fn output_beyond_the_limit_is_cut_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("task/stdout");
        let shared = Arc::new(SharedOutput::new(SharedOutputReader::new().unwrap().handle().unwrap()));
        let capped = CappedFile::in_memory(&shared, Stream::Stdout, path.clone(), 10);
        let twin = capped.clone();
        capped.write(b"").unwrap();
        capped.write(b"01234").unwrap();
        assert!(!capped.exceeded());
        twin.write(b"56789").unwrap();
        assert!(!capped.exceeded());
        capped.write(b"").unwrap();
        assert!(!capped.exceeded());
        assert_eq!(capped.write(b"x").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(twin.exceeded());
        assert!(!capped.exists() && !path.exists(), "so little is in memory");
        assert_eq!(shared.end().stdout, b"0123456789");
    }

    #[test]
    fn output_beyond_the_memory_goes_to_a_file_completely() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("task/stderr");
        let shared = Arc::new(SharedOutput::new(SharedOutputReader::new().unwrap().handle().unwrap()));
        let capped = CappedFile::in_memory(&shared, Stream::Stderr, path.clone(), 1 << 20);
        let line = [b'x'; 1000];
        (0..4).for_each(|_| capped.write(&line).unwrap());
        assert!(!capped.exists());
        (0..3).for_each(|_| capped.write(&line).unwrap());
        assert!(capped.exists());
        assert_eq!((std::fs::read(path).unwrap().len(), shared.end()), (7000, Streams::default()));
    }
}
