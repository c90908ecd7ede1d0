//! Where this machine gets what tasks need, and brings what came of them: blobs of others, checked and pinned.
//!
//! Left out: what a task needs (`task`), and whether its bag may be here (`signed`, `authorise`).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use blake3::Hash;
use idlewood_blobs::{BlobError, Blobs, To};
use idlewood_machine::downloads;
use idlewood_net::fetch::{FetchError, Fetcher, Origin};
use idlewood_overlay::Contact;
use idlewood_scheduler::{BagId, BlobId, Checkpoint, Peer, TaskId};
use idlewood_trust::label::Label;
use idlewood_trust::manifest::OUTPUT_BYTES_MAX;
use idlewood_trust::{Gate, Refused, Unauthorised};
use idlewood_worker::{JobError, LayOutError, StartError};

use super::checkpoints;
use super::homes::Homes;
use super::pin::Pin;
use super::signed_start;
use crate::settings::{Bags, Objection};

/// Why a task cannot be prepared here and now.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    /// Another time, or another machine, may do better.
    #[error("{0:#}")]
    Later(#[from] anyhow::Error),
    /// No machine will.
    #[error("{0}")]
    Never(String),
}

impl PrepareError {
    /// Whether it is this machine's disk that has no room.
    pub(super) fn is_for_want_of_room(&self) -> bool {
        let Self::Later(error) = self else { return false };
        error.chain().any(|cause| match (cause.downcast_ref(), cause.downcast_ref()) {
            (Some(FetchError::Local(error)), _) => error.is_for_want_of_room(),
            (_, Some(error)) => BlobError::is_for_want_of_room(error),
            (_, None) => false,
        })
    }
}

impl PrepareError {
    /// Whether to ask again later is of no use: whoever was asked does not have the blob, or gives another, or nobody takes it.
    pub(super) fn is_for_good(&self) -> bool {
        match self {
            Self::Never(_) => true,
            Self::Later(error) => error
                .chain()
                .any(|cause| matches!(cause.downcast_ref(), Some(FetchError::NoSource { is_gone: true, .. }))),
        }
    }
}

impl From<LayOutError> for PrepareError {
    fn from(error: LayOutError) -> Self {
        match error {
            LayOutError::Io { .. } => Self::Later(error.into()),
            LayOutError::Name { .. } | LayOutError::Twice { .. } => Self::Never(error.to_string()),
        }
    }
}

impl From<StartError> for PrepareError {
    fn from(error: StartError) -> Self {
        match error {
            // Of this machine's directories.
            StartError::Job(JobError::Path { .. }) => Self::Later(error.into()),
            StartError::Job(_) | StartError::TooLarge => Self::Never(error.to_string()),
            StartError::NoSlot { .. }
            | StartError::Busy { .. }
            | StartError::Write(_)
            | StartError::EventsNotRead
            | StartError::ShutDown => Self::Later(error.into()),
        }
    }
}

/// Where this machine gets what tasks need.
#[derive(Clone, Debug)]
pub(super) struct Supplies {
    pub(super) blobs: Arc<Blobs>,
    pub(super) fetcher: Fetcher,
    /// For bags of which nothing is here yet.
    pub(super) manifest_fetcher: Fetcher,
    /// Whose bags run here.
    pub(super) gate: Arc<Gate>,
    /// Held while a manifest is read, or a checkpoint signed.
    pub(super) reading: Arc<tokio::sync::Mutex<()>>,
    /// What the owner says to that; the driver keeps it as it is set.
    pub(super) bags: Arc<Mutex<Bags>>,
    pub(super) homes: Arc<Homes>,
    /// Whether this system can confine native programs as far as the owner asks for.
    pub(super) confines_natives: bool,
}

/// Where a bag's blobs come from.
pub(super) fn origin(peer: &Peer, bag: BagId, submitter: &Contact) -> Origin {
    let (key, enclosed) = (peer.bag_key(bag), peer.bag_manifest(bag).cloned().into_iter().collect());
    Origin { bag, key, sources: downloads::sources(peer, bag, submitter), enclosed }
}

impl Supplies {
    /// Fetches what tasks of a bag need, pinned before it is here. Others that hold tasks of the bag may have it from here.
    pub(super) async fn get(
        &self,
        blob: BlobId,
        bytes_max: u64,
        origin: &Origin,
    ) -> Result<(PathBuf, Pin), PrepareError> {
        self.get_by(&self.fetcher, blob, bytes_max, origin, To::Holders(origin.key)).await
    }

    /// The same by one of the fetchers, and for whom one likes.
    pub(super) async fn get_by(
        &self,
        fetcher: &Fetcher,
        blob: BlobId,
        bytes_max: u64,
        origin: &Origin,
        to: To,
    ) -> Result<(PathBuf, Pin), PrepareError> {
        let pin = Pin::lent(&self.blobs, Hash::from_bytes(blob.0), origin.bag, to);
        Ok((self.fetch(fetcher, blob, bytes_max, origin).await?, pin))
    }

    async fn fetch(
        &self,
        fetcher: &Fetcher,
        blob: BlobId,
        bytes_max: u64,
        origin: &Origin,
    ) -> Result<PathBuf, PrepareError> {
        let fetched = fetcher.fetch(Hash::from_bytes(blob.0), bytes_max, origin).await;
        Ok(fetched.context("a blob is not to be had")?)
    }

    /// Fetches what a machine made of a task of this one's bags, pinned before it is here.
    async fn get_made(
        &self,
        bag: BagId,
        blob: BlobId,
        bytes_max: u64,
        from: Contact,
    ) -> Result<(PathBuf, Pin), PrepareError> {
        let pin = Pin::new(&self.blobs, Hash::from_bytes(blob.0));
        let origin = Origin { bag, key: None, sources: vec![from], enclosed: Vec::new() };
        Ok((self.fetch(&self.fetcher, blob, bytes_max, &origin).await?, pin))
    }

    /// Why tasks of a bag that was authorised once do not begin any more, or not here.
    pub(super) fn objection(&self, label: &Label) -> Option<PrepareError> {
        match self.gate.standing(label.submitter) {
            Ok(()) => {}
            Err(error @ Unauthorised::Refused(Refused::Expired)) => return Some(anyhow::Error::from(error).into()),
            Err(error) => return Some(PrepareError::Never(error.to_string())),
        }
        let objection = self.owners_objection(label)?;
        // Other owners may let it run: after a few tries its tasks go back.
        Some(anyhow::Error::from(objection).into())
    }

    /// What the owner has against a bag; nothing against this machine's own, unless it is native and the system cannot
    /// confine that.
    pub(super) fn owners_objection(&self, label: &Label) -> Option<Objection> {
        if label.native && !self.confines_natives {
            return Some(Objection::Native);
        }
        let bags = self.bags.lock().unwrap_or_else(PoisonError::into_inner);
        let program = Hash::from_bytes(label.program.0);
        bags.objection(label.submitter, program, label.native).filter(|_| label.submitter != self.gate.me())
    }

    /// Brings the output of a task here, durably.
    pub(super) async fn keep_output(
        &self,
        bag: BagId,
        output: BlobId,
        bytes: u64,
        from: Contact,
    ) -> Result<Pin, PrepareError> {
        if bytes > OUTPUT_BYTES_MAX {
            let limit = OUTPUT_BYTES_MAX;
            return Err(PrepareError::Never(format!("an output of {bytes} bytes is over the limit of {limit}")));
        }
        let (_, pin) = self.get_made(bag, output, bytes, from).await?;
        let blobs = self.blobs.clone();
        let durable = tokio::task::spawn_blocking(move || blobs.make_durable(Hash::from_bytes(output.0)));
        durable.await.context("the write failed")?.context("cannot keep a result")?;
        Ok(pin)
    }

    /// Brings the checkpoint of a task of this machine's here, and keeps it durably with a signature: that is what
    /// requests name. With what it began with, where that is of outputs of others.
    pub(super) async fn keep_checkpoint(
        &self,
        task: TaskId,
        packed: Checkpoint,
        before: Option<Checkpoint>,
        from: Contact,
    ) -> Result<(Checkpoint, Pin), PrepareError> {
        if packed.bytes > OUTPUT_BYTES_MAX {
            return Err(PrepareError::Never(format!("a checkpoint of {} bytes is over the limit", packed.bytes)));
        }
        let (path, _pin) = self.get_made(task.bag, packed.blob, packed.bytes, from).await?;
        let (gate, blobs) = (self.gate.clone(), self.blobs.clone());
        // One at a time on this machine: it may be large.
        let turn = self.reading.clone().lock_owned().await;
        let sign = move || {
            let _turn = turn;
            match before {
                Some(before) => signed_start::with_checkpoint(before, &path, task, &gate, &blobs),
                None => checkpoints::sign(&path, task, &gate, &blobs),
            }
        };
        let kept = tokio::task::spawn_blocking(sign).await.context("the write failed")?;
        Ok(kept.context("cannot keep a checkpoint")?)
    }
}
