//! Getting a blob from whoever has it.
//!
//! Asks one source after the other for the blob in bounded pieces and keeps it only if the hash fits. Whoever wants a
//! blob that is already on its way waits for that download. A few run at a time, of each source and each bag fewer (`places`), so
//! that a machine that gets many tasks at once does not fill its link with one submitter's inputs, and nobody who answers
//! slowly holds others up. A source that brings less than a least rate is left alone for a while (`sources`).
//!
//! What has come is kept where a download breaks off or its source is busy, and gone on with at the next try, also from
//! another source. Where such a blob turns out to be another than its name says, nobody knows whose piece it was: it is begun
//! again from one source alone.
//!
//! Left out: asking several sources at once. The hash is known for the whole only.

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
use crate::{ChunkReply, NetHandle};

/// Between two tries where all sources are busy: the first pause. It doubles each time nothing comes.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How long a download waits where others have booked the owner's cap for seconds.
const CAP_PAUSE: Duration = Duration::from_secs(1);

/// Why a blob could not be got. What has come of it may be gone on with.
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
    places: Arc<Places>,
    sources: Arc<Sources>,
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
    /// It has too much to do; whether it gave a piece before that.
    Busy { came: bool },
    /// No source would help.
    Final(FetchError),
}

/// What downloads are at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Downloads {
    /// How many are under way.
    pub under_way: usize,
    /// How many wait for a place.
    pub waiting: usize,
    /// Sources that are left alone, since they answer too slowly, and for how long still.
    pub left_alone: Vec<(PeerId, Duration)>,
    /// How often a source was found too slow.
    pub found_slow: u64,
}

impl Fetcher {
    /// A fetcher into `blobs` by way of `net`.
    pub fn new(blobs: Arc<Blobs>, net: NetHandle) -> Self {
        Self::patient(blobs, net, Patience::default())
    }

    /// The same, as patient as told.
    pub(crate) fn patient(blobs: Arc<Blobs>, net: NetHandle, patience: Patience) -> Self {
        Self::with(blobs, net, Arc::new(Sources::new(patience)))
    }

    /// One more with places of its own, which leaves the same sources alone.
    pub fn another(&self) -> Self {
        Self::with(self.0.blobs.clone(), self.0.net.clone(), self.0.sources.clone())
    }

    fn with(blobs: Arc<Blobs>, net: NetHandle, sources: Arc<Sources>) -> Self {
        Self(Arc::new(Inner { blobs, net, places: Arc::default(), sources, downloads: Mutex::default() }))
    }

    /// What downloads are at.
    pub fn downloads(&self) -> Downloads {
        let (under_way, waiting) = self.0.places.count();
        let (left_alone, found_slow) = self.0.sources.all_alone(Instant::now());
        Downloads { under_way, waiting, left_alone, found_slow }
    }

    /// Gets the blob `hash` of at most `size_max` bytes, from here or from the first machine of its origin that gives it, and
    /// returns where it is. Pin it first if it must stay.
    ///
    /// Dropping the future ends the download, unless somebody else waits for it too: then theirs goes on.
    ///
    /// # Errors
    /// When no source gives it, it is too large, or this machine cannot keep it.
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

/// Where blobs of a bag come from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Which bag.
    pub bag: BagId,
    /// Its key, where this machine has it: others show its blobs to who has.
    pub key: Option<BagKey>,
    /// Who may have them, in the order in which they are asked.
    pub sources: Vec<Contact>,
}

/// What is fetched.
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
        wanted: Wanted,
        sources: &[Contact],
    ) -> Result<PathBuf, FetchError> {
        let mut failed = download.turn.lock().await;
        if let Some(path) = self.here(wanted.hash, wanted.size_max).await? {
            return Ok(path);
        }
        // Whoever waited while the download failed shares its failure, instead of trying one after the other.
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

    /// Asks one source after the other, and those that are busy again, without a place meanwhile.
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
                        // Evicted between two steps: others needed the room more.
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

    /// Goes on with a blob from one source for as long as that gives pieces of it.
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

    /// The next piece; `None` where the source has too much to do.
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
        let reply = self.net.chunk(source, crate::Wanted { hash, offset, bag: of, key }).await;
        let bytes = if let Ok(ChunkReply::Chunk { bytes, .. }) = &reply { bytes.len() } else { 0 };
        if let Some(alone) = self.sources.answered(Instant::now(), peer, asked.elapsed(), bytes) {
            warn!(source = ?peer, alone_s = alone.as_secs(), "a source answers too slowly, or not at all, and is left alone");
        }
        match reply {
            // The network has checked that a piece is of full length, or the end.
            Ok(ChunkReply::Chunk { total, bytes }) => {
                // Before the next piece is asked for: so the cap holds over time.
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
        // The source's doing.
        Ok(Err(error @ (BlobError::Mismatch { .. } | BlobError::TooLarge { .. }))) => {
            Err(SourceError::Source(error.to_string()))
        }
        Ok(Err(error)) => Err(SourceError::Final(FetchError::Local(Arc::new(error)))),
        Err(_) => Err(SourceError::Final(FetchError::ShuttingDown)),
    }
}
