//! Standard output and error of a task: a file, and no more than so many bytes of it.
//!
//! The file comes into being with the first byte: most small tasks write nothing, and a file costs more than they do.
//! Writes go straight to the file (C and Rust buffer on their side), so what a task wrote is there even when its
//! worker is killed the moment after.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

// The type in the streams' signatures is that of the `bytes` crate, which this package has through its web server.
use axum::body::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

/// Largest single write that is announced to the runtime.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// A file that takes a limited number of bytes. Clones share file and count.
#[derive(Clone)]
pub(super) struct CappedFile {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    file: OnceLock<File>,
    left: AtomicU64,
    exceeded: AtomicBool,
}

impl CappedFile {
    /// The file at `path`, whose directory comes into being with it.
    pub(super) fn new(path: PathBuf, bytes_max: u64) -> Self {
        let inner =
            Inner { path, file: OnceLock::new(), left: AtomicU64::new(bytes_max), exceeded: AtomicBool::new(false) };
        CappedFile { inner: Arc::new(inner) }
    }

    /// Whether there is a file.
    pub(super) fn exists(&self) -> bool {
        self.inner.file.get().is_some()
    }

    fn file(&self) -> io::Result<&File> {
        if let Some(file) = self.inner.file.get() {
            return Ok(file);
        }
        // One thread runs the task: nobody else opens it meanwhile.
        let file = create(&self.inner.path)?;
        Ok(self.inner.file.get_or_init(|| file))
    }

    /// Whether more was written than is kept.
    pub(super) fn exceeded(&self) -> bool {
        self.inner.exceeded.load(Ordering::Relaxed)
    }

    /// Writes what fits; fails with EFBIG when not all of it did.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        // One thread runs the task, so load and store need not be one step.
        let left = self.inner.left.load(Ordering::Relaxed);
        let fits = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if !bytes.is_empty() {
            self.file()?.write_all(&bytes[..fits])?;
        }
        self.inner.left.store(left.saturating_sub(fits as u64), Ordering::Relaxed);
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
    use super::*;

    #[test]
    fn keeps_the_first_bytes_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("task/stdout");
        let capped = CappedFile::new(path.clone(), 10);
        let twin = capped.clone();
        capped.write(b"").unwrap();
        assert!(!capped.exists() && !path.exists(), "nothing was written");
        capped.write(b"01234").unwrap();
        assert!(!capped.exceeded());
        twin.write(b"56789").unwrap();
        assert!(!capped.exceeded());
        capped.write(b"").unwrap();
        assert!(!capped.exceeded());
        assert_eq!(capped.write(b"x").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(twin.exceeded());
        assert_eq!(std::fs::read(path).unwrap(), b"0123456789");
    }
}
