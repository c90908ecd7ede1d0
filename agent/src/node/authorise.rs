//! Whether a bag may queue here: what its submitter signed of it is fetched, and judged by the grid's rules and the owner's
//! wishes, before anything of it does ([`idlewood_scheduler::Effect::Authorise`]). Its manifest comes later, when this machine
//! holds tasks of it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use idlewood_blobs::To;
use idlewood_net::fetch::{Fetcher, Origin};
use idlewood_overlay::PeerId;
use idlewood_scheduler::{Approval, BagHeader, BagId, BlobId, DeclineReason, Event};
use idlewood_trust::envelope::Opened;
use idlewood_trust::label::Label;
use idlewood_trust::manifest::{Manifest, ManifestError};
use idlewood_trust::{Gate, Refused, Unauthorised};
use idlewood_units::clock::wall_now;

use super::driver::{Done, Driver};
use super::task::{PrepareError, SIGNED_BYTES_MAX, Supplies};
use crate::settings::Objection;

/// How long what was signed is waited for: its submitter counts a request that nobody speaks of after 15 s as lost.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Opens what was signed of a bag. Its submitter is judged before a byte of what they wrote is decoded: nobody else makes this
/// machine take memory and time for that.
fn open(bytes: &[u8], gate: &Gate, submitter: PeerId) -> Result<Opened, NoManifest> {
    let signed = Opened::unsealed(bytes)?;
    gate.authorise(&signed, submitter)?;
    Ok(Opened::read(&signed)?)
}

impl Supplies {
    /// What a submitter of the grid signed of a bag, from here or from the bag's origin: it says what the header says.
    ///
    /// # Errors
    /// Why nothing of the bag may run here.
    async fn opened(&self, fetcher: &Fetcher, bag: &BagHeader, origin: &Origin) -> Result<Opened, NoManifest> {
        let got = self.get_by(fetcher, BlobId(bag.id.0), SIGNED_BYTES_MAX, origin, To::Everybody).await;
        let (path, _pin) = got.map_err(NoManifest::Unavailable)?;
        let (gate, submitter) = (self.gate.clone(), bag.submitter.peer);
        let opened = self.read_alone(path, move |bytes| open(bytes, &gate, submitter)).await?;
        if fits(bag, &opened.label()) { Ok(opened) } else { Err(NoManifest::Unfit) }
    }

    /// Decodes a file. One at a time on this machine: each takes several times its size meanwhile.
    async fn read_alone<T: Send + 'static>(
        &self,
        path: PathBuf,
        decode: impl FnOnce(&[u8]) -> Result<T, NoManifest> + Send + 'static,
    ) -> Result<T, NoManifest> {
        let unavailable = |error: anyhow::Error| NoManifest::Unavailable(error.into());
        let turn = self.reading.clone().lock_owned().await;
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let bytes = fs::read(path).context("cannot read the manifest").map_err(unavailable)?;
            decode(&bytes)
        });
        read.await.context("cannot read the manifest").map_err(unavailable)?
    }

    /// The manifest of a bag, from here or from the bag's origin, as a submitter of the grid signed it.
    ///
    /// # Errors
    /// Why nothing of the bag may run here.
    pub(super) async fn manifest(&self, bag: &BagHeader, origin: &Origin) -> Result<Manifest, NoManifest> {
        self.manifest_of(self.opened(&self.fetcher, bag, origin).await?, origin).await
    }

    async fn manifest_of(&self, opened: Opened, origin: &Origin) -> Result<Manifest, NoManifest> {
        let envelope = match opened {
            Opened::Envelope(envelope) => envelope,
            Opened::Manifest(manifest) => return Ok(*manifest),
        };
        let holders = To::Holders(origin.key);
        let got = self.get_by(&self.fetcher, envelope.manifest, envelope.manifest_bytes, origin, holders).await;
        let (path, _pin) = got.map_err(NoManifest::Unavailable)?;
        self.read_alone(path, move |bytes| Ok(envelope.manifest(bytes)?)).await
    }

    /// The manifest of a bag that was authorised before, whoever signed it.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub(super) async fn manifest_alone(&self, bag: BagId, origin: &Origin) -> Result<Manifest, NoManifest> {
        let got = self.get_by(&self.fetcher, BlobId(bag.0), SIGNED_BYTES_MAX, origin, To::Everybody).await;
        let (path, _pin) = got.map_err(NoManifest::Unavailable)?;
        let opened = self.read_alone(path, |bytes| Ok(Opened::read(&Opened::unsealed(bytes)?)?)).await?;
        self.manifest_of(opened, origin).await
    }

    /// The label of a bag of which nothing is here: it is not waited for long.
    ///
    /// # Errors
    /// Why nothing of the bag may queue here.
    pub(super) async fn authorise(&self, bag: &BagHeader, origin: &Origin) -> Result<Label, DeclineReason> {
        // With slots of their own: whoever invents bags and gives what was signed of them slowly keeps nobody from their files.
        let get = self.opened(&self.manifest_fetcher, bag, origin);
        match tokio::time::timeout(LOOK_TIMEOUT, get).await {
            Ok(Ok(opened)) => Ok(opened.label()),
            Ok(Err(error)) => {
                tracing::info!(bag = %bag.id, %error, "a bag cannot be looked at");
                Err(error.into())
            }
            Err(_) => {
                tracing::info!(bag = %bag.id, "what was signed of a bag comes too slowly");
                Err(DeclineReason::Unavailable)
            }
        }
    }

    /// Judges an authorised bag again: its submitter may have been revoked or expired since, or the owner may object.
    fn wishes(&self, label: &Label) -> Result<(), DeclineReason> {
        self.gate.standing(label.submitter)?;
        self.owners_objection(label).map_or(Ok(()), |objection| Err(objection.into()))
    }

    /// Why a bag that is here must go: its submitter was thrown out, or the owner has changed their mind. A
    /// certificate that has just expired may have been renewed elsewhere: running tasks go on.
    fn unwanted(&self, label: &Label) -> Option<DeclineReason> {
        match self.gate.standing(label.submitter) {
            Ok(()) | Err(Unauthorised::Refused(Refused::Expired)) => self.owners_objection(label).map(Into::into),
            Err(error) => Some(error.into()),
        }
    }
}

/// Whether this is the label of the bag with this header.
fn fits(bag: &BagHeader, label: &Label) -> bool {
    (label.tasks, label.submitter) == (bag.tasks, bag.submitter.peer)
}

impl Driver {
    /// Stops the tasks of bags that may not be here any more, and gives them back.
    pub(super) fn withdraw_unwanted(&mut self) {
        let running = self.work.manifests();
        let held = self.peer().held();
        let held = held.iter().filter(|held| held.waiting + held.running > 0).map(|held| held.bag);
        for bag in held {
            let label = running.get(&bag).map(|manifest| manifest.label()).or_else(|| self.manifests.label(bag));
            if let Some(reason) = label.and_then(|label| self.supplies.unwanted(&label)) {
                tracing::warn!(%bag, %reason, "a bag may not be here any more: its tasks stop and go back");
                self.feed(Event::Authorised { bag, verdict: Err(reason) });
            }
        }
    }

    /// A request for a bag of which nothing is here: may it queue?
    pub(super) fn authorise(&mut self, bag: BagHeader) {
        let id = bag.id;
        if let Some(label) = self.manifests.label(id) {
            let verdict = if fits(&bag, &label) { self.judge(id, &label) } else { Err(DeclineReason::Forged) };
            return self.follow_ups.push_back(self.verdict(id, verdict).into());
        }
        let (supplies, origin) = (self.supplies.clone(), self.origin(id, &bag.submitter));
        let look = async move { Done::Authorised { bag: id, label: supplies.authorise(&bag, &origin).await } };
        self.jobs.spawn(look, Done::Authorised { bag: id, label: Err(DeclineReason::Unavailable) });
    }

    /// A bag has been looked at.
    pub(super) fn authorised(&mut self, bag: BagId, label: Result<Label, DeclineReason>) {
        let verdict = label.and_then(|label| {
            let approval = self.judge(bag, &label)?;
            self.manifests.remember_label(bag, label);
            Ok(approval)
        });
        let event = self.verdict(bag, verdict);
        self.feed(event);
    }

    fn judge(&mut self, bag: BagId, label: &Label) -> Result<Approval, DeclineReason> {
        if label.memory_bytes > self.owner.memory_cap_while(false).0 {
            return Err(DeclineReason::Size);
        }
        self.supplies.wishes(label)?;
        Ok(Approval { signed_ago: label.age(wall_now()), at_hand: self.manifests.get(bag).is_some() })
    }

    fn verdict(&self, bag: BagId, verdict: Result<Approval, DeclineReason>) -> Event {
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
    use idlewood_trust::envelope::Envelope;

    #[test]
    fn nothing_is_decoded_of_whoever_may_not_submit() {
        let gate = Gate::open(&Keypair::generate_ed25519(), None).expect("no key to read");
        let (me, other) = (gate.me(), PeerId([9; 32]));
        let sign = |envelope: Vec<u8>| gate.sign_bag(envelope).expect("alone, it may").encode();
        let nonsense = sign(b"no manifest".to_vec());
        assert!(matches!(open(&nonsense, &gate, other), Err(NoManifest::Unauthorised(Unauthorised::Signature))));
        assert!(matches!(open(&nonsense, &gate, me), Err(NoManifest::Malformed(_))));
        assert!(matches!(open(b"not signed", &gate, me), Err(NoManifest::Malformed(_))));
        let envelope = Envelope::of(&manifest(), &manifest().encode());
        assert_eq!(open(&sign(envelope.encode()), &gate, me).expect("its own").label(), manifest().label());
    }
}
