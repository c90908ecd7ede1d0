//! Whether a bag may queue here: its manifest is fetched, and judged by the grid's rules and the owner's wishes, before
//! anything of it does ([`idlewood_scheduler::Effect::Authorise`]).

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use idlewood_overlay::Contact;
use idlewood_scheduler::{BagHeader, BagId, BlobId, DeclineReason, Event};

use super::driver::{Done, Driver};
use super::task::{PrepareError, SIGNED_BYTES_MAX, Supplies};
use crate::fetch::Fetcher;
use crate::grid::{Refused, Unauthorised};
use crate::manifest::Manifest;
use crate::settings::Objection;

/// How long a manifest is waited for: its submitter counts a request that nobody speaks of after 15 s as lost.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

impl From<Unauthorised> for DeclineReason {
    fn from(error: Unauthorised) -> Self {
        match error {
            Unauthorised::Signature => Self::Forged,
            Unauthorised::Role => Self::Role,
            Unauthorised::Refused(_) => Self::Stranger,
        }
    }
}

impl From<Objection> for DeclineReason {
    fn from(objection: Objection) -> Self {
        match objection {
            Objection::Submitter => Self::Submitter,
            Objection::Program => Self::Program,
            Objection::Native => Self::Native,
        }
    }
}

/// Why there is no manifest of a bag that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoManifest {
    /// It cannot be had, or read, here and now.
    #[error(transparent)]
    Unavailable(PrepareError),
    /// It is not one, or not that of the bag.
    #[error("{0}")]
    Forged(String),
    /// Who signed it may not submit.
    #[error(transparent)]
    Unauthorised(#[from] Unauthorised),
}

impl From<NoManifest> for DeclineReason {
    fn from(error: NoManifest) -> Self {
        match error {
            NoManifest::Unavailable(_) => Self::Unavailable,
            NoManifest::Forged(_) => Self::Forged,
            NoManifest::Unauthorised(error) => error.into(),
        }
    }
}

impl From<NoManifest> for PrepareError {
    fn from(error: NoManifest) -> Self {
        match error {
            NoManifest::Unavailable(error) => error,
            // It may have been renewed, and tell so when it is connected.
            NoManifest::Unauthorised(error @ Unauthorised::Refused(Refused::Expired)) => {
                anyhow::Error::from(error).into()
            }
            error @ (NoManifest::Forged(_) | NoManifest::Unauthorised(_)) => Self::Never(error.to_string()),
        }
    }
}

impl Supplies {
    /// The manifest of a bag, from here or from `sources`: signed by a submitter of the grid, and saying what the header says.
    ///
    /// # Errors
    /// Why nothing of the bag may run here.
    pub(super) async fn manifest(
        &self,
        fetcher: &Fetcher,
        bag: &BagHeader,
        sources: &[Contact],
    ) -> Result<Manifest, NoManifest> {
        let unavailable = |error: anyhow::Error| NoManifest::Unavailable(error.into());
        let got = self.get_by(fetcher, BlobId(bag.id.0), SIGNED_BYTES_MAX, sources).await;
        let (path, _pin) = got.map_err(NoManifest::Unavailable)?;
        let (gate, submitter) = (self.gate.clone(), bag.submitter.peer);
        let read = tokio::task::spawn_blocking(move || {
            let bytes = fs::read(path).context("cannot read the manifest").map_err(unavailable)?;
            let read = Manifest::decode_signed(&bytes).map_err(|error| NoManifest::Forged(error.to_string()))?;
            let (manifest, signed) = read;
            gate.authorise(&signed, submitter)?;
            Ok::<_, NoManifest>(manifest)
        });
        let manifest = read.await.context("cannot read the manifest").map_err(unavailable)??;
        if fits(bag, &manifest) {
            Ok(manifest)
        } else {
            Err(NoManifest::Forged("the bag's manifest does not fit its request".to_owned()))
        }
    }

    /// The manifest of a bag of which nothing is here: it is not waited for long.
    ///
    /// # Errors
    /// Why nothing of the bag may queue here.
    pub(super) async fn authorise(&self, bag: &BagHeader, sources: &[Contact]) -> Result<Arc<Manifest>, DeclineReason> {
        // With slots of their own: whoever invents bags and gives their manifests slowly keeps nobody from their files.
        let get = self.manifest(&self.manifest_fetcher, bag, sources);
        match tokio::time::timeout(LOOK_TIMEOUT, get).await {
            Ok(Ok(manifest)) => Ok(Arc::new(manifest)),
            Ok(Err(error)) => {
                tracing::info!(bag = %bag.id, %error, "a bag cannot be looked at");
                Err(error.into())
            }
            Err(_) => {
                tracing::info!(bag = %bag.id, "the manifest of a bag comes too slowly");
                Err(DeclineReason::Unavailable)
            }
        }
    }

    /// What the owner, and who was revoked since, have against a bag of the grid.
    fn wishes(&self, manifest: &Manifest) -> Result<(), DeclineReason> {
        if self.gate.is_revoked(manifest.submitter) {
            return Err(DeclineReason::Stranger);
        }
        self.owners_objection(manifest).map_or(Ok(()), |objection| Err(objection.into()))
    }
}

/// Whether a manifest is that of this header.
fn fits(bag: &BagHeader, manifest: &Manifest) -> bool {
    (manifest.tasks, manifest.submitter) == (bag.tasks, bag.submitter.peer)
}

impl Driver {
    /// A request for a bag of which nothing is here: may it queue?
    pub(super) fn authorise(&mut self, bag: BagHeader) {
        let id = bag.id;
        if let Some(manifest) = self.manifests.get(id) {
            let verdict = if fits(&bag, &manifest) { self.judge(&manifest) } else { Err(DeclineReason::Forged) };
            return self.follow_ups.push_back(self.verdict(id, verdict));
        }
        let (supplies, sources) = (self.supplies.clone(), self.sources(&bag.submitter));
        let look = async move { Done::Authorised { bag: id, manifest: supplies.authorise(&bag, &sources).await } };
        self.jobs.spawn(look, Done::Authorised { bag: id, manifest: Err(DeclineReason::Unavailable) });
    }

    /// A bag has been looked at.
    pub(super) fn authorised(&mut self, bag: BagId, manifest: Result<Arc<Manifest>, DeclineReason>) {
        let verdict = manifest.and_then(|manifest| {
            self.judge(&manifest)?;
            self.manifests.remember(bag, manifest);
            Ok(())
        });
        let event = self.verdict(bag, verdict);
        self.feed(event);
    }

    fn judge(&self, manifest: &Manifest) -> Result<(), DeclineReason> {
        let limit = self.owner.settings.get().limits.memory;
        if limit.is_some_and(|limit| manifest.memory_bytes > limit.0) {
            return Err(DeclineReason::Size);
        }
        self.supplies.wishes(manifest)
    }

    fn verdict(&self, bag: BagId, verdict: Result<(), DeclineReason>) -> Event {
        if let Err(reason) = verdict {
            tracing::info!(%bag, %reason, "tasks of a bag do not queue here");
        }
        Event::Authorised { bag, verdict }
    }
}
