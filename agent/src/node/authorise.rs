//! Whether a bag may queue here: its manifest is fetched, and judged by the grid's rules and the owner's wishes, before
//! anything of it does ([`idlewood_scheduler::Effect::Authorise`]).

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BagHeader, BagId, BlobId, DeclineReason, Event};

use super::driver::{Done, Driver};
use super::task::{PrepareError, SIGNED_BYTES_MAX, Supplies};
use crate::clock::wall_now;
use crate::fetch::Fetcher;
use crate::grid::{Gate, Refused, Unauthorised};
use crate::manifest::{Manifest, ManifestError};
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
    /// It is none.
    #[error(transparent)]
    Malformed(#[from] ManifestError),
    /// It is not that of the bag.
    #[error("the bag's manifest does not fit its request")]
    Unfit,
    /// Who signed it may not submit.
    #[error(transparent)]
    Unauthorised(#[from] Unauthorised),
}

impl From<NoManifest> for DeclineReason {
    fn from(error: NoManifest) -> Self {
        match error {
            NoManifest::Unavailable(_) => Self::Unavailable,
            NoManifest::Malformed(_) | NoManifest::Unfit => Self::Forged,
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
            error => Self::Never(error.to_string()),
        }
    }
}

/// Opens a manifest. Its submitter is judged before a byte of what they wrote is decoded: nobody else makes this machine
/// take memory and time for that.
fn open(bytes: &[u8], gate: &Gate, submitter: PeerId) -> Result<Manifest, NoManifest> {
    let signed = Manifest::open_signed(bytes)?;
    gate.authorise(&signed, submitter)?;
    Ok(Manifest::decode(&signed.manifest)?)
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
        let got = self.get_by(fetcher, BlobId(bag.id.0), SIGNED_BYTES_MAX, sources, bag.id).await;
        let (path, _pin) = got.map_err(NoManifest::Unavailable)?;
        let (gate, submitter) = (self.gate.clone(), bag.submitter.peer);
        // One at a time on this machine: each takes several times its size meanwhile.
        let turn = self.reading.clone().lock_owned().await;
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let bytes = fs::read(path).context("cannot read the manifest").map_err(unavailable)?;
            open(&bytes, &gate, submitter)
        });
        let manifest = read.await.context("cannot read the manifest").map_err(unavailable)??;
        if fits(bag, &manifest) { Ok(manifest) } else { Err(NoManifest::Unfit) }
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

    /// What the grid, by who was revoked or has expired since, and the owner have against a bag that was authorised.
    fn wishes(&self, manifest: &Manifest) -> Result<(), DeclineReason> {
        self.gate.standing(manifest.submitter)?;
        self.owners_objection(manifest).map_or(Ok(()), |objection| Err(objection.into()))
    }

    /// Why a bag that is here must go: its submitter was thrown out, or the owner has changed their mind. One whose certificate
    /// has just expired may have been renewed elsewhere: what runs goes on.
    fn unwanted(&self, manifest: &Manifest) -> Option<DeclineReason> {
        match self.gate.standing(manifest.submitter) {
            Ok(()) | Err(Unauthorised::Refused(Refused::Expired)) => self.owners_objection(manifest).map(Into::into),
            Err(error) => Some(error.into()),
        }
    }
}

/// Whether a manifest is that of this header.
fn fits(bag: &BagHeader, manifest: &Manifest) -> bool {
    (manifest.tasks, manifest.submitter) == (bag.tasks, bag.submitter.peer)
}

impl Driver {
    /// Stops what runs here of bags that may not be here any more, and gives them back.
    pub(super) fn withdraw_unwanted(&mut self) {
        let running = self.runs.manifests();
        let held = self.peer.held();
        let held = held.iter().filter(|held| held.waiting + held.running > 0).map(|held| held.bag);
        for bag in held {
            let manifest = running.get(&bag).or_else(|| self.manifests.peek(bag));
            if let Some(reason) = manifest.and_then(|manifest| self.supplies.unwanted(manifest)) {
                tracing::warn!(%bag, %reason, "a bag may not be here any more: its tasks stop and go back");
                self.feed(Event::Authorised { bag, verdict: Err(reason) });
            }
        }
    }

    /// A request for a bag of which nothing is here: may it queue?
    pub(super) fn authorise(&mut self, bag: BagHeader) {
        let id = bag.id;
        if let Some(manifest) = self.manifests.get(id) {
            let verdict = if fits(&bag, &manifest) { self.judge(&manifest) } else { Err(DeclineReason::Forged) };
            let verdict = verdict.map(|()| manifest.age(wall_now()));
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
            let age = manifest.age(wall_now());
            self.manifests.remember(bag, manifest);
            Ok(age)
        });
        let event = self.verdict(bag, verdict);
        self.feed(event);
    }

    fn judge(&self, manifest: &Manifest) -> Result<(), DeclineReason> {
        if manifest.memory_bytes > self.owner.memory_cap_while(false).0 {
            return Err(DeclineReason::Size);
        }
        self.supplies.wishes(manifest)
    }

    fn verdict(&self, bag: BagId, verdict: Result<Duration, DeclineReason>) -> Event {
        if let Err(reason) = verdict {
            tracing::info!(%bag, %reason, "tasks of a bag do not queue here");
        }
        Event::Authorised { bag, verdict }
    }
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::super::task::tests::manifest;
    use super::*;

    #[test]
    fn nothing_is_decoded_of_whoever_may_not_submit() {
        let gate = Gate::open(&Keypair::generate_ed25519(), None).expect("no key to read");
        let (me, other) = (gate.me(), PeerId([9; 32]));
        let sign = |manifest: Vec<u8>| gate.sign_manifest(manifest).expect("alone, it may").encode();
        let nonsense = sign(b"no manifest".to_vec());
        assert!(matches!(open(&nonsense, &gate, other), Err(NoManifest::Unauthorised(Unauthorised::Signature))));
        assert!(matches!(open(&nonsense, &gate, me), Err(NoManifest::Malformed(_))));
        assert!(matches!(open(b"not signed", &gate, me), Err(NoManifest::Malformed(_))));
        open(&sign(manifest().encode()), &gate, me).expect("its own");
    }
}
