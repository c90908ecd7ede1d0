//! What a submitter signed of a bag, its envelope and its manifest: fetched, judged, and decoded.
//!
//! Left out: whether the bag may queue here (`authorise`).

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use idlewood_blobs::{Hash, To};
use idlewood_machine::downloads::LOOK_TIMEOUT;
use idlewood_net::fetch::{Fetcher, Origin};
use idlewood_overlay::PeerId;
use idlewood_scheduler::{BagHeader, BagId, BlobId, DeclineReason, Enclosed};
use idlewood_trust::envelope::Opened;
use idlewood_trust::label::Label;
use idlewood_trust::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestError};
use idlewood_trust::{Gate, Refused, Unauthorised};

use super::supplies::{PrepareError, Supplies};

/// Largest signed manifest.
const SIGNED_BYTES_MAX: u64 = MANIFEST_BYTES_MAX + (1 << 10);

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

/// What a submitter of the grid signed of a bag, from here or from the bag's origin: it says what the header says.
///
/// # Errors
/// Why nothing of the bag may run here.
async fn opened(
    supplies: &Supplies,
    fetcher: &Fetcher,
    bag: &BagHeader,
    origin: &Origin,
) -> Result<Opened, NoManifest> {
    let (gate, submitter) = (supplies.gate.clone(), bag.submitter.peer);
    let is_it = |enclosed: &&Enclosed| blake3::hash(enclosed.bytes()) == Hash::from_bytes(bag.id.0);
    if let Some(enclosed) = origin.enclosed.iter().find(is_it) {
        // What came with a request, from anybody, takes no room on the disk before it is judged.
        let opened = open(enclosed.bytes(), &gate, submitter)?;
        if !fits(bag, &opened.label()) {
            return Err(NoManifest::Unfit);
        }
    }
    let got = supplies.get_by(fetcher, BlobId(bag.id.0), SIGNED_BYTES_MAX, origin, To::Everybody).await;
    let (path, _pin) = got.map_err(NoManifest::Unavailable)?;
    let opened = read_alone(supplies, path, move |bytes| open(bytes, &gate, submitter)).await?;
    if fits(bag, &opened.label()) { Ok(opened) } else { Err(NoManifest::Unfit) }
}

/// Decodes a file. One at a time on this machine: each takes several times its size meanwhile.
async fn read_alone<T: Send + 'static>(
    supplies: &Supplies,
    path: PathBuf,
    decode: impl FnOnce(&[u8]) -> Result<T, NoManifest> + Send + 'static,
) -> Result<T, NoManifest> {
    let unavailable = |error: anyhow::Error| NoManifest::Unavailable(error.into());
    let turn = supplies.reading.clone().lock_owned().await;
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
pub(super) async fn manifest(supplies: &Supplies, bag: &BagHeader, origin: &Origin) -> Result<Manifest, NoManifest> {
    manifest_of(supplies, opened(supplies, &supplies.fetcher, bag, origin).await?, origin).await
}

async fn manifest_of(supplies: &Supplies, opened: Opened, origin: &Origin) -> Result<Manifest, NoManifest> {
    let envelope = match opened {
        Opened::Envelope(envelope) => envelope,
        Opened::Manifest(manifest) => return Ok(*manifest),
    };
    let holders = To::Holders(origin.key);
    let got = supplies.get_by(&supplies.fetcher, envelope.manifest, envelope.manifest_bytes, origin, holders).await;
    let (path, _pin) = got.map_err(NoManifest::Unavailable)?;
    read_alone(supplies, path, move |bytes| Ok(envelope.manifest(bytes)?)).await
}

/// The manifest of a bag that was authorised before, whoever signed it.
///
/// # Errors
/// Why it cannot be had.
pub(super) async fn manifest_alone(supplies: &Supplies, bag: BagId, origin: &Origin) -> Result<Manifest, NoManifest> {
    let got = supplies.get_by(&supplies.fetcher, BlobId(bag.0), SIGNED_BYTES_MAX, origin, To::Everybody).await;
    let (path, _pin) = got.map_err(NoManifest::Unavailable)?;
    let opened = read_alone(supplies, path, |bytes| Ok(Opened::read(&Opened::unsealed(bytes)?)?)).await?;
    manifest_of(supplies, opened, origin).await
}

/// The label of a bag of which nothing is here: it is not waited for long.
///
/// # Errors
/// Why nothing of the bag may queue here.
pub(super) async fn label(supplies: &Supplies, bag: &BagHeader, origin: &Origin) -> Result<Label, DeclineReason> {
    // With slots of their own: whoever invents bags and gives what was signed of them slowly keeps nobody from their files.
    let get = opened(supplies, &supplies.manifest_fetcher, bag, origin);
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

/// Whether this is the label of the bag with this header.
pub(super) fn fits(bag: &BagHeader, label: &Label) -> bool {
    (label.tasks, label.submitter) == (bag.tasks, bag.submitter.peer)
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
