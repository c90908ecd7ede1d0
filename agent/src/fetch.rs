//! Getting a blob from whoever has it.
//!
//! Asks one source after the other for the blob in bounded pieces and keeps it only if the hash fits. Whoever wants a
//! blob that is already on its way waits for that download. A few run at a time, so that a machine that gets many
//! tasks at once neither fills its quota with halves nor its link with one submitter's inputs.
//!
//! Left out: asking several sources at once, and going on where another source stopped: a source that lies would
//! spoil the honest half, and the hash is known for the whole only.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idlewood_overlay::Contact;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::blobs::{BlobError, BlobWriter, Blobs, Hash};
use crate::net::{ChunkReply, NetHandle};

/// Downloads at a time.
const DOWNLOADS_MAX: usize = 4;

/// How often a busy source is asked again for the same piece, and the first pause; it doubles each time.
const BUSY_RETRIES: u32 = 6;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How long a download waits where others have booked the owner's cap for seconds.
const CAP_PAUSE: Duration = Duration::from_secs(1);

/// Why a blob could not be got. Nothing of it was kept.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody gave it; the reasons, source by source.
    #[error("blob {hash} could not be fetched from any of {} sources: {}", reasons.len(), reasons.join("; "))]
    NoSource {
        /// Which blob.
        hash: Hash,
        /// What each source did.
        reasons: Vec<String>,
    },
    /// The blob is here and larger than the caller allows.
    #[error("blob {hash} has {len} bytes, more than the {size_max} that were allowed for it")]
    TooLarge {
        /// Which blob.
        hash: Hash,
        /// Its length.
        len: u64,
        /// The cap.
        size_max: u64,
    },
    /// This machine cannot keep it: no room, or the disk refuses.
    #[error(transparent)]
    Local(Arc<BlobError>),
    /// A blocking thread was lost; only while the process ends.
    #[error("the agent is shutting down")]
    ShuttingDown,
}

/// Fetches blobs. Cloning gives another handle to the same downloads.
#[derive(Clone, Debug)]
pub struct Fetcher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    blobs: Arc<Blobs>,
    net: NetHandle,
    slots: Semaphore,
    downloads: Mutex<HashMap<Hash, Arc<Download>>>,
}

/// Callers for one blob take turns; the first downloads, the others find it done or failed.
#[derive(Debug, Default)]
struct Download {
    turn: tokio::sync::Mutex<Option<(Instant, FetchError)>>,
}

/// A caller's share in a download, given back also when the caller is dropped on the way.
#[derive(Debug)]
struct Share<'a> {
    inner: &'a Inner,
    hash: Hash,
    download: Arc<Download>,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut downloads = self.inner.downloads();
        // The map's and this one: nobody else waits. Others are made under the same lock.
        if Arc::strong_count(&self.download) == 2 {
            downloads.remove(&self.hash);
        }
    }
}

/// What went wrong with one source.
enum SourceError {
    /// Try the next one.
    Source(String),
    /// No source would help.
    Final(FetchError),
}

impl Fetcher {
    /// A fetcher into `blobs` by way of `net`.
    pub fn new(blobs: Arc<Blobs>, net: NetHandle) -> Self {
        let slots = Semaphore::new(DOWNLOADS_MAX);
        Self(Arc::new(Inner { blobs, net, slots, downloads: Mutex::default() }))
    }

    /// Gets the blob `hash` of at most `size_max` bytes, from here or from the first of `sources` that gives it, and
    /// returns where it is. Pin it first if it must stay.
    ///
    /// Dropping the future ends the download, unless somebody else waits for it too: then theirs begins anew.
    ///
    /// # Errors
    /// When no source gives it, it is too large, or this machine cannot keep it.
    pub async fn fetch(&self, hash: Hash, size_max: u64, sources: Vec<Contact>) -> Result<PathBuf, FetchError> {
        let asked = Instant::now();
        if let Some(path) = self.0.here(hash, size_max).await? {
            return Ok(path);
        }
        let share = self.0.share(hash);
        self.0.take_turn(&share.download, asked, hash, size_max, &sources).await
    }
}

impl Inner {
    fn downloads(&self) -> std::sync::MutexGuard<'_, HashMap<Hash, Arc<Download>>> {
        self.downloads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn share(&self, hash: Hash) -> Share<'_> {
        let download = self.downloads().entry(hash).or_default().clone();
        Share { inner: self, hash, download }
    }

    async fn here(&self, hash: Hash, size_max: u64) -> Result<Option<PathBuf>, FetchError> {
        let Some(len) = self.blobs.len(hash) else { return Ok(None) };
        if len > size_max {
            return Err(FetchError::TooLarge { hash, len, size_max });
        }
        let blobs = self.blobs.clone();
        let found =
            tokio::task::spawn_blocking(move || blobs.path(hash)).await.map_err(|_| FetchError::ShuttingDown)?;
        // What cannot be read is got anew, in its place.
        Ok(found.unwrap_or_else(|error| {
            warn!(%error, "a blob that is here is fetched again");
            None
        }))
    }

    async fn take_turn(
        &self,
        download: &Download,
        asked: Instant,
        hash: Hash,
        size_max: u64,
        sources: &[Contact],
    ) -> Result<PathBuf, FetchError> {
        let mut failed = download.turn.lock().await;
        if let Some(path) = self.here(hash, size_max).await? {
            return Ok(path);
        }
        // Whoever waited while the download failed shares its failure, instead of trying one after the other.
        if let Some((when, error)) = &*failed
            && *when >= asked
        {
            return Err(error.clone());
        }
        let result = match self.slots.acquire().await {
            Ok(_slot) => self.download(hash, size_max, sources).await,
            Err(_) => Err(FetchError::ShuttingDown),
        };
        if let Err(error) = &result {
            *failed = Some((Instant::now(), error.clone()));
        }
        result
    }

    async fn download(&self, hash: Hash, size_max: u64, sources: &[Contact]) -> Result<PathBuf, FetchError> {
        let mut reasons = Vec::new();
        for source in sources {
            match self.download_from(source, hash, size_max).await {
                Ok(()) => {
                    if let Some(path) = self.here(hash, size_max).await? {
                        return Ok(path);
                    }
                    // Evicted between two steps: others needed the room more.
                    reasons.push(format!("{:?} gave it, but it was evicted at once", source.peer));
                }
                Err(SourceError::Source(reason)) => {
                    debug!(%hash, source = ?source.peer, %reason, "a source failed");
                    reasons.push(reason);
                }
                Err(SourceError::Final(error)) => return Err(error),
            }
        }
        Err(FetchError::NoSource { hash, reasons })
    }

    async fn download_from(&self, source: &Contact, hash: Hash, size_max: u64) -> Result<(), SourceError> {
        let blobs = self.blobs.clone();
        let mut writer = blocking(move || blobs.receive(hash, size_max)).await?;
        loop {
            let (total, bytes) = self.piece(source, hash, writer.written()).await?;
            if total > size_max {
                let reason = format!("{:?} has {total} bytes for it, {size_max} are allowed", source.peer);
                return Err(SourceError::Source(reason));
            }
            writer = blocking(move || -> Result<BlobWriter, BlobError> {
                writer.write(&bytes)?;
                Ok(writer)
            })
            .await?;
            if writer.written() >= total {
                let finished = blocking(move || writer.finish()).await;
                if let Err(SourceError::Source(_)) = &finished {
                    // Its content is another than its name says.
                    self.net.count_protocol_error();
                }
                return finished.map(drop);
            }
        }
    }

    async fn piece(&self, source: &Contact, hash: Hash, offset: u64) -> Result<(u64, Vec<u8>), SourceError> {
        let mut pause = BUSY_PAUSE;
        for _ in 0..BUSY_RETRIES {
            match self.net.chunk(source, hash, offset).await {
                // The network has checked that a piece is empty only at the end.
                Ok(ChunkReply::Chunk { total, bytes }) => {
                    // Before the next piece is asked for: so the cap holds over time.
                    let download = &self.net.rates().download;
                    loop {
                        match download.book(bytes.len()) {
                            Some(wait) => break tokio::time::sleep(wait).await,
                            None => tokio::time::sleep(CAP_PAUSE).await,
                        }
                    }
                    return Ok((total, bytes));
                }
                Ok(ChunkReply::Missing) => {
                    return Err(SourceError::Source(format!("{:?} does not have it", source.peer)));
                }
                Ok(ChunkReply::Busy) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => return Err(SourceError::Source(error.to_string())),
            }
        }
        Err(SourceError::Source(format!("{:?} is busy", source.peer)))
    }
}

/// Runs what touches the disk on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, SourceError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        // The source's doing.
        Ok(Err(error @ (BlobError::Mismatch { .. } | BlobError::TooLarge { .. }))) => {
            Err(SourceError::Source(error.to_string()))
        }
        Ok(Err(error)) => Err(SourceError::Final(FetchError::Local(Arc::new(error)))),
        Err(_) => Err(SourceError::Final(FetchError::ShuttingDown)),
    }
}
