//! Fetching blobs from other machines.
//!
//! Asks sources for bounded pieces of the blob, and keeps it only if the hash is right. Which source is asked, and when, is decided by
//! [`idlewood_machine::downloads`]. A caller whose blob is being downloaded already waits for that download.
//!
//! When a download breaks off or its source is busy, its beginning is kept, and a later attempt continues it, also from
//! another source. If such a blob then has the wrong hash, the culprit is unknown: it is fetched again from one source
//! alone.
//!
//! Left out: asking several sources in parallel. There is only a hash of the whole.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idlewood_blobs::{BlobError, Blobs, Hash, Incoming};
pub(crate) use idlewood_machine::downloads::Patience;
use idlewood_machine::downloads::{Answer, DownloadId, Downloads as Decisions, Piece, Sources, Step};
use idlewood_overlay::{Contact, PeerId, Time};
use idlewood_scheduler::{BagId, BagKey, Enclosed};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::chunk::{self, ChunkReply};
use crate::handle::NetHandle;

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
        /// Every source has said that it does not have it, or has given something else: to ask later is of no use.
        is_gone: bool,
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
    began: Instant,
    decisions: Mutex<Decisions>,
    /// Shared with other fetchers.
    sources: Arc<Mutex<Sources>>,
    downloads: Mutex<HashMap<Hash, Arc<Download>>>,
    /// Of downloads that wait for a place: told when they have one.
    waiting: Mutex<HashMap<DownloadId, Arc<Notify>>>,
    /// Told of pieces that come, while it has room.
    pieces: mpsc::Sender<Piece>,
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
    /// Try the next source; `is_gone`: this one does not have the blob, or gives another.
    Source { reason: String, is_gone: bool },
    /// The source is busy.
    Busy,
    /// No other source would help.
    Final(FetchError),
}

/// One download among the decisions, which ends when this is dropped.
struct Turn<'a> {
    inner: &'a Inner,
    id: DownloadId,
    called: Arc<Notify>,
}

impl Turn<'_> {
    fn next(&self) -> Step {
        let sources = lock(&self.inner.sources);
        let step = lock(&self.inner.decisions).next(self.inner.now(), self.id, &sources);
        drop(sources);
        self.inner.call();
        step
    }

    fn answered(&self, answer: Answer) {
        lock(&self.inner.decisions).answered(self.inner.now(), self.id, answer);
        self.inner.call();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.inner.decisions).end(self.id);
        lock(&self.inner.waiting).remove(&self.id);
        self.inner.call();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// A fetcher into `blobs` by way of `net`, which tells `pieces` of each piece that comes while that has room.
    pub fn new(blobs: Arc<Blobs>, net: NetHandle, pieces: mpsc::Sender<Piece>) -> Self {
        Self::patient(blobs, net, pieces, Patience::default())
    }

    /// A fetcher with this patience.
    pub(crate) fn patient(blobs: Arc<Blobs>, net: NetHandle, pieces: mpsc::Sender<Piece>, patience: Patience) -> Self {
        let sources = Arc::new(Mutex::new(Sources::new(patience)));
        Self::with(blobs, net, pieces, sources, Instant::now())
    }

    /// Another fetcher with places of its own, sharing what is known of sources.
    pub fn another(&self) -> Self {
        let Inner { blobs, net, pieces, sources, began, .. } = &*self.0;
        Self::with(blobs.clone(), net.clone(), pieces.clone(), sources.clone(), *began)
    }

    fn with(
        blobs: Arc<Blobs>,
        net: NetHandle,
        pieces: mpsc::Sender<Piece>,
        sources: Arc<Mutex<Sources>>,
        began: Instant,
    ) -> Self {
        let (decisions, downloads, waiting) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { blobs, net, began, decisions, sources, downloads, waiting, pieces }))
    }

    /// The state of all downloads.
    pub fn downloads(&self) -> Downloads {
        let (under_way, waiting) = lock(&self.0.decisions).count();
        let (left_alone, found_slow) = lock(&self.0.sources).all_alone(self.0.now());
        Downloads { under_way, waiting, left_alone, found_slow }
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
        if let Some(enclosed) = origin.enclosed.iter().find(|enclosed| blake3::hash(enclosed.bytes()) == hash) {
            let (blobs, enclosed) = (self.0.blobs.clone(), enclosed.clone());
            let put = tokio::task::spawn_blocking(move || blobs.put_bytes(enclosed.bytes()));
            put.await.map_err(|_| FetchError::ShuttingDown)?.map_err(|error| FetchError::Local(Arc::new(error)))?;
            if let Some(path) = self.0.here(hash, size_max).await? {
                return Ok(path);
            }
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
    /// Files of the bag that came with messages, which may be the blob or any other.
    pub enclosed: Vec<Enclosed>,
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
    fn downloads(&self) -> MutexGuard<'_, HashMap<Hash, Arc<Download>>> {
        lock(&self.downloads)
    }

    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    /// Tells the downloads that have got a place.
    fn call(&self) {
        let called = lock(&self.decisions).take_called();
        for id in called {
            if let Some(called) = lock(&self.waiting).get(&id) {
                called.notify_one();
            }
        }
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

    fn begin(&self, of: BagId, sources: &[Contact]) -> Turn<'_> {
        let id = lock(&self.decisions).begin(self.now(), of, sources.to_vec());
        let called = Arc::new(Notify::new());
        lock(&self.waiting).insert(id, called.clone());
        Turn { inner: self, id, called }
    }

    /// Asks sources as it is decided, until one has given the blob.
    async fn download(&self, wanted: Wanted, sources: &[Contact]) -> Result<PathBuf, FetchError> {
        let hash = wanted.hash;
        let turn = self.begin(wanted.of, sources);
        let (mut reasons, mut is_gone) = (Vec::new(), true);
        loop {
            match turn.next() {
                Step::Wait => turn.called.notified().await,
                Step::Pause(until) => tokio::time::sleep(until.since(self.now())).await,
                Step::Skip { source, alone } => {
                    is_gone = false;
                    let left = alone.as_secs();
                    reasons.push(format!("{source:?} answers too slowly, and is left alone for {left} s"));
                }
                Step::GiveUp { busy } => {
                    is_gone &= busy.is_empty();
                    reasons.extend(busy.into_iter().map(|peer| format!("{peer:?} is busy")));
                    return Err(FetchError::NoSource { hash, reasons, is_gone });
                }
                Step::Ask(source) => match self.download_from(&source, wanted, &turn).await {
                    Ok(()) => {
                        if let Some(path) = self.here(hash, wanted.size_max).await? {
                            return Ok(path);
                        }
                        // Evicted at once: other blobs needed the room more.
                        is_gone = false;
                        reasons.push(format!("{:?} gave it, but it was evicted at once", source.peer));
                        turn.answered(Answer::Nothing);
                    }
                    Err(SourceError::Busy) => turn.answered(Answer::Busy),
                    Err(SourceError::Source { reason, is_gone: has_not }) => {
                        debug!(%hash, source = ?source.peer, %reason, "a source failed");
                        is_gone &= has_not;
                        reasons.push(reason);
                        turn.answered(Answer::Nothing);
                    }
                    Err(SourceError::Final(error)) => return Err(error),
                },
            }
        }
    }

    /// Continues a blob from one source for as long as that gives pieces.
    async fn download_from(&self, source: &Contact, wanted: Wanted, turn: &Turn<'_>) -> Result<(), SourceError> {
        let Wanted { hash, size_max, .. } = wanted;
        let peer = source.peer;
        let mut incoming = self.resume(wanted).await?;
        loop {
            let (total, bytes) = self.piece(source, wanted, incoming.written()).await?;
            if total > size_max {
                let reason = format!("{peer:?} has {total} bytes for it, {size_max} are allowed");
                return Err(SourceError::Source { reason, is_gone: true });
            }
            if !bytes.is_empty() {
                turn.answered(Answer::Piece);
            }
            incoming = blocking(move || -> Result<Incoming, BlobError> {
                incoming.write(peer, &bytes)?;
                Ok(incoming)
            })
            .await?;
            if incoming.written() < total {
                if matches!(turn.next(), Step::Ask(_)) {
                    continue;
                }
                let reason = format!("{peer:?} answers too slowly, and is left alone");
                return Err(SourceError::Source { reason, is_gone: false });
            }
            let (is_mixed, from) = (incoming.is_mixed(peer), incoming.from().to_vec());
            match blocking(move || incoming.finish()).await {
                Err(SourceError::Source { reason, .. }) if is_mixed => {
                    warn!(%hash, ?from, %reason, "pieces of several sources do not fit together: begun again from the last one");
                    incoming = self.resume(wanted).await?;
                }
                Err(SourceError::Source { reason, is_gone }) => {
                    warn!(%hash, source = ?peer, %reason, "a source gives another blob than was asked for");
                    self.net.count_protocol_error();
                    return Err(SourceError::Source { reason, is_gone });
                }
                finished => return finished.map(drop),
            }
        }
    }

    async fn resume(&self, Wanted { hash, size_max, of, .. }: Wanted) -> Result<Incoming, SourceError> {
        let blobs = self.blobs.clone();
        blocking(move || blobs.resume(hash, size_max, of)).await
    }

    /// The next piece.
    async fn piece(
        &self,
        source: &Contact,
        Wanted { hash, of, key, .. }: Wanted,
        offset: u64,
    ) -> Result<(u64, Vec<u8>), SourceError> {
        let peer = source.peer;
        let asked = Instant::now();
        let reply = self.net.chunk(source, chunk::Wanted { hash, offset, bag: of, key }).await;
        let took = asked.elapsed();
        let bytes = if let Ok(ChunkReply::Chunk { bytes, .. }) = &reply { bytes.len() } else { 0 };
        if bytes > 0 {
            // Whoever has no room has been told of many others.
            let _ = self.pieces.try_send(Piece { bytes, took });
        }
        let brought = (reply != Ok(ChunkReply::Busy)).then_some(bytes);
        if let Some(alone) = lock(&self.sources).answered(self.now(), peer, took, brought) {
            warn!(source = ?peer, alone_s = alone.as_secs(), "a source answers too slowly, or not at all, and is left alone");
        }
        match reply {
            // The network has checked that a piece is not too short, or the end.
            Ok(ChunkReply::Chunk { total, bytes }) => {
                // Before the next request, so that the cap holds over time.
                let download = &self.net.rates().download;
                loop {
                    match download.book(bytes.len()) {
                        Some(wait) => break tokio::time::sleep(wait).await,
                        None => tokio::time::sleep(CAP_PAUSE).await,
                    }
                }
                Ok((total, bytes))
            }
            Ok(ChunkReply::Busy) => Err(SourceError::Busy),
            Ok(ChunkReply::Missing) => {
                let reason = format!("{peer:?} does not have it, or not for this machine");
                Err(SourceError::Source { reason, is_gone: true })
            }
            Err(error) => Err(SourceError::Source { reason: error.to_string(), is_gone: false }),
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
            Err(SourceError::Source { reason: error.to_string(), is_gone: true })
        }
        Ok(Err(error)) => Err(SourceError::Final(FetchError::Local(Arc::new(error)))),
        Err(_) => Err(SourceError::Final(FetchError::ShuttingDown)),
    }
}
