//! Fetching blobs from other machines.
//!
//! Asks one source after the other for bounded pieces of the blob, and keeps it only if the hash is right. A caller
//! whose blob is being downloaded already waits for that download. A few downloads run at a time, fewer for each source
//! and each bag (`places`), so that a machine that gets many tasks does not fill its connection with one submitter's
//! inputs, and a slow source delays no other. A source slower than a minimum rate is left alone for a while
//! (`sources`).
//!
//! When a download breaks off or its source is busy, its beginning is kept, and a later attempt continues it, also from
//! another source. If such a blob then has the wrong hash, the culprit is unknown: it is fetched again from one source
//! alone.
//!
//! Left out: asking several sources in parallel. There is only a hash of the whole.

mod places;
mod sources;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idlewood_blobs::{BlobError, Blobs, Hash, Incoming};
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BagId, BagKey};
use tokio::time::Instant;
use tracing::{debug, warn};

use self::places::{Place, Places};
pub(crate) use self::sources::Patience;
use self::sources::Sources;
use crate::chunk::{self, ChunkReply};
use crate::handle::NetHandle;

/// First pause while all sources are busy. It doubles each time no piece comes.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How long a download waits when earlier ones have used up the owner's cap for seconds.
const CAP_PAUSE: Duration = Duration::from_secs(1);

/// Why a blob could not be fetched. Its beginning may be continued later.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// No source gave it; with each source's reason.
    #[error("blob {hash} could not be fetched from any of {} sources: {}", reasons.len(), reasons.join("; "))]
    NoSource {
        /// The blob.
        hash: Hash,
        /// Each source's failure.
        reasons: Vec<String>,
    },
    /// The blob is stored here and larger than the caller allows.
    #[error("blob {hash} has {len} bytes, more than the {size_max} that were allowed for it")]
    TooLarge {
        /// The blob.
        hash: Hash,
        /// Its length.
        len: u64,
        /// The limit.
        size_max: u64,
    },
    /// This machine cannot store it: no room, or the disk refuses.
    #[error(transparent)]
    Local(Arc<BlobError>),
    /// A blocking thread was lost; only while the process ends.
    #[error("the agent is shutting down")]
    ShuttingDown,
}

/// Fetches blobs. Clones share their downloads.
#[derive(Clone, Debug)]
pub struct Fetcher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    blobs: Arc<Blobs>,
    net: NetHandle,
    places: Arc<Places>,
    sources: Arc<Sources>,
    downloads: Mutex<HashMap<Hash, Arc<Download>>>,
}

/// Callers for one blob take turns; the first downloads, the others find it done or failed.
#[derive(Debug, Default)]
struct Download {
    turn: tokio::sync::Mutex<Option<(Instant, FetchError)>>,
}

/// A caller's share in a download, returned also when the caller is dropped.
#[derive(Debug)]
struct Share<'a> {
    inner: &'a Inner,
    hash: Hash,
    download: Arc<Download>,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut downloads = self.inner.downloads();
        // Held by the map and this share: no other caller waits. New shares are made under the same lock.
        if Arc::strong_count(&self.download) == 2 {
            downloads.remove(&self.hash);
        }
    }
}

/// The failure of one source.
enum SourceError {
    /// Try the next source.
    Source(String),
    /// The source is busy; `came`: it gave a piece before that.
    Busy { came: bool },
    /// No other source would help.
    Final(FetchError),
}

/// The state of all downloads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Downloads {
    /// How many are under way.
    pub under_way: usize,
    /// How many wait for a place.
    pub waiting: usize,
    /// Sources left alone for slowness, and for how much longer.
    pub left_alone: Vec<(PeerId, Duration)>,
    /// How often a source was found too slow.
    pub found_slow: u64,
}

impl Fetcher {
    /// A fetcher into `blobs` by way of `net`.
    pub fn new(blobs: Arc<Blobs>, net: NetHandle) -> Self {
        Self::patient(blobs, net, Patience::default())
    }

    /// A fetcher with this patience.
    pub(crate) fn patient(blobs: Arc<Blobs>, net: NetHandle, patience: Patience) -> Self {
        Self::with(blobs, net, Arc::new(Sources::new(patience)))
    }

    /// Another fetcher with places of its own, sharing what is known of sources.
    pub fn another(&self) -> Self {
        Self::with(self.0.blobs.clone(), self.0.net.clone(), self.0.sources.clone())
    }

    fn with(blobs: Arc<Blobs>, net: NetHandle, sources: Arc<Sources>) -> Self {
        Self(Arc::new(Inner { blobs, net, places: Arc::default(), sources, downloads: Mutex::default() }))
    }

    /// The state of all downloads.
    pub fn downloads(&self) -> Downloads {
        let (under_way, waiting) = self.0.places.count();
        let (left_alone, found_slow) = self.0.sources.all_alone(Instant::now());
        Downloads { under_way, waiting, left_alone, found_slow }
    }

    /// The rate of the fastest piece of a download since the last call, in kB/s: this machine's link takes at least that.
    /// `None` without any.
    pub fn take_fastest(&self) -> Option<u32> {
        self.0.sources.take_fastest()
    }

    /// Fetches the blob `hash` of at most `size_max` bytes, from this machine's store or from the first source of its
    /// origin that gives it; returns its path. Pin it first if it must stay.
    ///
    /// Dropping the future ends the download unless another caller waits for it.
    ///
    /// # Errors
    /// When no source gives it, it is too large, or this machine cannot store it.
    pub async fn fetch(&self, hash: Hash, size_max: u64, origin: &Origin) -> Result<PathBuf, FetchError> {
        let asked = Instant::now();
        if let Some(path) = self.0.here(hash, size_max).await? {
            return Ok(path);
        }
        let share = self.0.share(hash);
        let wanted = Wanted { hash, size_max, of: origin.bag, key: origin.key };
        self.0.take_turn(&share.download, asked, wanted, &origin.sources).await
    }
}

/// The bag of a blob, and where to ask for it.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The bag.
    pub bag: BagId,
    /// Its key, if this machine has it: sources show its blobs only to holders of the key.
    pub key: Option<BagKey>,
    /// Machines that may have the blob, in the order in which they are asked.
    pub sources: Vec<Contact>,
}

/// The blob to fetch.
#[derive(Clone, Copy)]
struct Wanted {
    hash: Hash,
    size_max: u64,
    of: BagId,
    key: Option<BagKey>,
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
        // A stored blob that cannot be read is fetched anew and replaced.
        Ok(found.unwrap_or_else(|error| {
            warn!(%error, "a blob that is here is fetched again");
            None
        }))
    }

    async fn take_turn(
        &self,
        download: &Download,
        asked: Instant,
        wanted: Wanted,
        sources: &[Contact],
    ) -> Result<PathBuf, FetchError> {
        let mut failed = download.turn.lock().await;
        if let Some(path) = self.here(wanted.hash, wanted.size_max).await? {
            return Ok(path);
        }
        // A caller that waited while the download failed shares the failure.
        if let Some((when, error)) = &*failed
            && *when >= asked
        {
            return Err(error.clone());
        }
        let result = self.download(wanted, sources).await;
        if let Err(error) = &result {
            *failed = Some((Instant::now(), error.clone()));
        }
        result
    }

    /// Asks one source after the other, and busy ones again; holds no place during pauses.
    async fn download(&self, wanted: Wanted, sources: &[Contact]) -> Result<PathBuf, FetchError> {
        let hash = wanted.hash;
        let mut reasons = Vec::new();
        let mut left: Vec<&Contact> = sources.iter().collect();
        let (mut pause, mut came_at) = (BUSY_PAUSE, Instant::now());
        loop {
            let mut busy = Vec::new();
            for source in left {
                match self.download_from(source, wanted).await {
                    Ok(()) => {
                        if let Some(path) = self.here(hash, wanted.size_max).await? {
                            return Ok(path);
                        }
                        // Evicted at once: other blobs needed the room more.
                        reasons.push(format!("{:?} gave it, but it was evicted at once", source.peer));
                    }
                    Err(SourceError::Busy { came }) => {
                        if came {
                            (pause, came_at) = (BUSY_PAUSE, Instant::now());
                        }
                        busy.push(source);
                    }
                    Err(SourceError::Source(reason)) => {
                        debug!(%hash, source = ?source.peer, %reason, "a source failed");
                        reasons.push(reason);
                    }
                    Err(SourceError::Final(error)) => return Err(error),
                }
            }
            left = busy;
            if left.is_empty() || came_at.elapsed() >= self.sources.patience.busy_max {
                reasons.extend(left.iter().map(|source| format!("{:?} is busy", source.peer)));
                return Err(FetchError::NoSource { hash, reasons });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(self.sources.patience.busy_pause_max);
        }
    }

    /// Continues a blob from one source for as long as that gives pieces.
    async fn download_from(&self, source: &Contact, wanted: Wanted) -> Result<(), SourceError> {
        let Wanted { hash, size_max, of, .. } = wanted;
        let peer = source.peer;
        let place = self.places.take(peer, of).await;
        let mut incoming = self.resume(wanted).await?;
        let mut came = false;
        loop {
            let Some((total, bytes)) = self.piece(source, wanted, incoming.written(), &place).await? else {
                return Err(SourceError::Busy { came });
            };
            if total > size_max {
                let reason = format!("{peer:?} has {total} bytes for it, {size_max} are allowed");
                return Err(SourceError::Source(reason));
            }
            came |= !bytes.is_empty();
            incoming = blocking(move || -> Result<Incoming, BlobError> {
                incoming.write(peer, &bytes)?;
                Ok(incoming)
            })
            .await?;
            if incoming.written() < total {
                continue;
            }
            let (is_mixed, from) = (incoming.is_mixed(peer), incoming.from().to_vec());
            match blocking(move || incoming.finish()).await {
                Err(SourceError::Source(reason)) if is_mixed => {
                    warn!(%hash, ?from, %reason, "pieces of several sources do not fit together: begun again from the last one");
                    incoming = self.resume(wanted).await?;
                }
                Err(SourceError::Source(reason)) => {
                    warn!(%hash, source = ?peer, %reason, "a source gives another blob than was asked for");
                    self.net.count_protocol_error();
                    return Err(SourceError::Source(reason));
                }
                finished => return finished.map(drop),
            }
        }
    }

    async fn resume(&self, Wanted { hash, size_max, of, .. }: Wanted) -> Result<Incoming, SourceError> {
        let blobs = self.blobs.clone();
        blocking(move || blobs.resume(hash, size_max, of)).await
    }

    /// The next piece; `None` if the source is busy.
    async fn piece(
        &self,
        source: &Contact,
        Wanted { hash, of, key, .. }: Wanted,
        offset: u64,
        _place: &Place,
    ) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        let peer = source.peer;
        let asked = Instant::now();
        if let Some(left) = self.sources.alone(asked, peer) {
            let left = left.as_secs();
            return Err(SourceError::Source(format!("{peer:?} answers too slowly, and is left alone for {left} s")));
        }
        let reply = self.net.chunk(source, chunk::Wanted { hash, offset, bag: of, key }).await;
        let bytes = if let Ok(ChunkReply::Chunk { bytes, .. }) = &reply { bytes.len() } else { 0 };
        if let Some(alone) = self.sources.answered(Instant::now(), peer, asked.elapsed(), bytes) {
            warn!(source = ?peer, alone_s = alone.as_secs(), "a source answers too slowly, or not at all, and is left alone");
        }
        match reply {
            // The network has checked that a piece is of full length, or the end.
            Ok(ChunkReply::Chunk { total, bytes }) => {
                // Before the next request, so that the cap holds over time.
                let download = &self.net.rates().download;
                loop {
                    match download.book(bytes.len()) {
                        Some(wait) => break tokio::time::sleep(wait).await,
                        None => tokio::time::sleep(CAP_PAUSE).await,
                    }
                }
                Ok(Some((total, bytes)))
            }
            Ok(ChunkReply::Busy) => Ok(None),
            Ok(ChunkReply::Missing) => {
                Err(SourceError::Source(format!("{peer:?} does not have it, or not for this machine")))
            }
            Err(error) => Err(SourceError::Source(error.to_string())),
        }
    }
}

/// Runs what touches the disk on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, SourceError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        // The source's fault.
        Ok(Err(error @ (BlobError::Mismatch { .. } | BlobError::TooLarge { .. }))) => {
            Err(SourceError::Source(error.to_string()))
        }
        Ok(Err(error)) => Err(SourceError::Final(FetchError::Local(Arc::new(error)))),
        Err(_) => Err(SourceError::Final(FetchError::ShuttingDown)),
    }
}
