//! The files of bags that this machine keeps for others: envelope, manifest, program and inputs, which executors fetch here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use blake3::Hash;
use idlewood_blobs::{Blobs, To};
use idlewood_net::fetch::Origin;
use idlewood_scheduler::{BagHeader, BagId, BagKey};
use idlewood_trust::manifest::Manifest;

use super::pin::Pin;
use super::signed;
use super::supplies::{PrepareError, Supplies};
use crate::settings::Objection;

/// How often the files of a bag are asked for, where nobody can give them at the moment.
const TRIES: u32 = 3;
/// And how long between two tries.
const PAUSE: Duration = Duration::from_secs(5);

/// The files of a bag, durable and pinned.
#[derive(Debug)]
pub(super) struct Files {
    /// What the bag's tasks run.
    pub(super) manifest: Arc<Manifest>,
    /// All of its files.
    pub(super) pins: Vec<Pin>,
}

/// The files of a bag; asked for several times where they are not to be had at once.
pub(super) async fn patiently(supplies: &Supplies, bag: &BagHeader, origin: &Origin) -> Result<Files, PrepareError> {
    let mut tried = 1;
    loop {
        match files(supplies, bag, origin).await {
            Err(error) if tried < TRIES && !error.is_for_good() && !error.is_for_want_of_room() => {
                tried += 1;
                tokio::time::sleep(PAUSE).await;
            }
            ended => return ended,
        }
    }
}

/// Brings envelope, manifest, program and inputs of a bag here, durably. What its submitter signed of it is judged as if its tasks
/// were to run here, but for native programs, of which nothing runs where they are only kept.
async fn files(supplies: &Supplies, bag: &BagHeader, origin: &Origin) -> Result<Files, PrepareError> {
    let holders = To::Holders(origin.key);
    let mut pins = vec![Pin::lent(&supplies.blobs, Hash::from_bytes(bag.id.0), bag.id, To::Everybody)];
    let manifest = signed::manifest(supplies, bag, origin).await?;
    match supplies.owners_objection(&manifest.label()) {
        None | Some(Objection::Native) => {}
        Some(objection) => return Err(PrepareError::Never(objection.to_string())),
    }
    let needs: BTreeMap<[u8; 32], u64> = manifest.blobs().map(|input| (input.blob.0, input.bytes)).collect();
    make_sure_of_room(&supplies.blobs, &needs)?;
    let name = manifest.blob.map(|blob| blob.0);
    pins.extend(name.map(|name| Pin::lent(&supplies.blobs, Hash::from_bytes(name), bag.id, holders)));
    for (&blob, &bytes) in &needs {
        let (_, pin) = supplies.get(idlewood_scheduler::BlobId(blob), bytes, origin).await?;
        pins.push(pin);
    }
    let (blobs, names) = (supplies.blobs.clone(), pins.iter().map(Pin::hash).collect::<Vec<Hash>>());
    let durable = tokio::task::spawn_blocking(move || names.into_iter().try_for_each(|name| blobs.make_durable(name)));
    durable.await.context("the write failed")?.context("cannot keep a bag's files")?;
    Ok(Files { manifest: Arc::new(manifest), pins })
}

/// Files of others' bags take no more than half of the room that is left.
fn make_sure_of_room(blobs: &Blobs, needs: &BTreeMap<[u8; 32], u64>) -> Result<(), PrepareError> {
    let missing = needs.iter().filter(|(blob, _)| blobs.len(Hash::from_bytes(**blob)).is_none());
    let (bytes, room) = (missing.map(|(_, bytes)| bytes).sum::<u64>(), blobs.room_bytes());
    if bytes > room / 2 {
        return Err(PrepareError::Never(format!("its files take {bytes} bytes, and half of {room} are left for such")));
    }
    Ok(())
}

/// The files of a bag that is kept here for another, pinned, if this disk has all of them. Blocks.
pub(super) fn on_disk(blobs: &Arc<Blobs>, bag: BagId, key: BagKey, manifest: &Manifest) -> Option<Vec<Pin>> {
    let holders = To::Holders(Some(key));
    let shared = manifest.blob.into_iter().map(|blob| blob.0).chain(manifest.blobs().map(|input| input.blob.0));
    let shared: BTreeSet<[u8; 32]> = shared.collect();
    let shared = shared.into_iter().map(|blob| Pin::lent(blobs, Hash::from_bytes(blob), bag, holders));
    let own = Pin::lent(blobs, Hash::from_bytes(bag.0), bag, To::Everybody);
    let pins: Vec<Pin> = std::iter::once(own).chain(shared).collect();
    pins.iter().all(|pin| blobs.len(pin.hash()).is_some()).then_some(pins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_take_half_of_what_is_left() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("an empty directory"));
        let needs = |bytes: &[u64]| -> BTreeMap<[u8; 32], u64> {
            bytes.iter().enumerate().map(|(number, &bytes)| ([number as u8 + 1; 32], bytes)).collect()
        };
        assert!(make_sure_of_room(&blobs, &needs(&[200, 300])).is_ok());
        assert!(make_sure_of_room(&blobs, &needs(&[200, 301])).is_err());
        let _pin = Pin::new(&blobs, blobs.put_bytes(&[5; 600]).expect("there is room"));
        assert!(make_sure_of_room(&blobs, &needs(&[200])).is_ok());
        assert!(make_sure_of_room(&blobs, &needs(&[200, 1])).is_err());
    }
}
