//! Keepers, from the loop's side (docs/adr/0041): who keeps a bag of this machine is signed, what others say of theirs is checked,
//! and the files of bags that this machine keeps for others are brought here.
//!
//! A steward keeps all that executors need: envelope, manifest, program and inputs. They are read from whoever has them with the
//! bag's key, as executors do, checked like those of a bag whose tasks are to run here, and pinned (`pins`). Files of a bag of this very
//! machine that its disk does not have, since it was adopted from a ticket, come from its stewards likewise.
//!
//! Where the owner has set a place for them, a ticket of each bag is written there whenever its keepers change, with which another
//! machine can go on as this one: it names the stewards, who have all else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use blake3::Hash;
use idlewood_blobs::{Blobs, To};
use idlewood_net::fetch::Origin;
use idlewood_overlay::Contact;
use idlewood_scheduler::{Appointment, BagHeader, BagId, BagKey, Event, Message, Peer, Record, RecordKey};
use idlewood_trust::identity::IDENTITY_FILE;
use idlewood_trust::manifest::Manifest;
use idlewood_trust::ticket::Ticket;
use idlewood_trust::{Membership, is_signed_by_its_submitter};
use serde_bytes::ByteBuf;
use tokio::task::AbortHandle;

use super::done::Done;
use super::pin::Pin;
use super::pins::{self, Pins};
use super::shared::Shared;
use super::signed;
use super::supplies::{PrepareError, Supplies};
use crate::settings::Objection;

/// Appointments that were found signed and are remembered: a steward says by which it acts before each of its leases.
const APPOINTMENTS_MAX: usize = 1024;
/// How often the files of a bag are asked for, where nobody can give them at the moment.
const TRIES: u32 = 3;
/// And how long between two tries.
const PAUSE: Duration = Duration::from_secs(5);

/// The files of a bag, durable and pinned.
#[derive(Debug)]
pub(super) struct Files {
    manifest: Arc<Manifest>,
    pins: Vec<Pin>,
}

/// Appointments whose signatures have been checked.
#[derive(Debug, Default)]
pub(super) struct Appointments {
    signed: BTreeSet<[u8; 32]>,
    /// The same, the oldest first.
    order: VecDeque<[u8; 32]>,
}

impl Appointments {
    /// Whether each appointment in a message is signed by the machine that it names as its bag's submitter.
    pub(super) fn are_signed(&mut self, message: &Message) -> bool {
        message.appointments().all(|appointment| self.is_signed(appointment))
    }

    fn is_signed(&mut self, appointment: &Appointment) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&appointment.statement()).update(&appointment.signature);
        let name = *hasher.finalize().as_bytes();
        if self.signed.contains(&name) {
            return true;
        }
        if !is_signed_by_its_submitter(appointment) {
            return false;
        }
        if self.order.len() >= APPOINTMENTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.signed.remove(&oldest);
        }
        self.signed.insert(name);
        self.order.push_back(name);
        true
    }
}

/// The fetches of files of bags that are kept, or were adopted.
#[derive(Debug)]
pub(super) struct Keeping {
    /// Where this agent keeps everything.
    state_dir: PathBuf,
    fetches: BTreeMap<BagId, AbortHandle>,
}

impl Keeping {
    pub(super) fn new(state_dir: PathBuf) -> Self {
        Self { state_dir, fetches: BTreeMap::new() }
    }

    /// Signs who keeps a bag of this machine, and writes the bag's ticket anew.
    pub(super) fn sign(&self, unsigned: Appointment, peer: &Peer, shared: &mut Shared) {
        let signature = shared.gate().sign_appointment(&unsigned).to_vec();
        let appointment = Appointment { signature, ..unsigned };
        let (bag, stewards) = (appointment.bag, appointment.keepers.len().saturating_sub(1));
        tracing::info!(%bag, term = appointment.term, stewards, "the keepers of a bag are appointed");
        if let Some(directory) = shared.settings.get().submit.tickets.clone() {
            let mut records = peer.records_of(bag);
            records.retain(|record| record.key() != RecordKey::Stewards(bag));
            records.push(Record::Stewards { appointment: appointment.clone(), adopts: false });
            let (state_dir, path) = (self.state_dir.clone(), ticket_path(&directory, bag));
            let write = move || {
                match write_ticket(&path, &state_dir, &records) {
                    Ok(()) => tracing::info!(%bag, path = %path.display(), "the ticket of a bag is written"),
                    Err(error) => tracing::warn!(%bag, error = format!("{error:#}"), "a ticket cannot be written"),
                }
                Done::Discarded
            };
            shared.jobs.spawn_blocking(write, Done::Discarded);
        }
        shared.events.follow_up(Event::AppointmentSigned(appointment));
    }

    /// A bag of this machine is over: nobody needs its ticket.
    pub(super) fn over(bag: BagId, shared: &mut Shared) {
        let Some(directory) = shared.settings.get().submit.tickets.clone() else { return };
        let remove = move || {
            fs::remove_file(ticket_path(&directory, bag)).ok();
            Done::Discarded
        };
        shared.jobs.spawn_blocking(remove, Done::Discarded);
    }

    /// Brings the files of a bag of another here, durably.
    pub(super) fn fetch(&mut self, bag: BagHeader, key: BagKey, from: Contact, shared: &mut Shared) {
        let id = bag.id;
        let sources = [from, bag.submitter.clone()];
        let sources = sources.into_iter().filter(|source| !source.address.is_empty()).collect();
        self.get(bag, Origin { bag: id, key: Some(key), sources }, shared);
    }

    fn get(&mut self, bag: BagHeader, origin: Origin, shared: &mut Shared) {
        let (id, supplies) = (bag.id, shared.supplies.clone());
        let get = async move {
            let files = patiently(&supplies, &bag, &origin).await;
            let files = files.inspect_err(|error| {
                tracing::info!(bag = %id, error = format!("{error:#}"), "the files of a bag cannot be kept here");
            });
            Done::FilesHere { bag: id, files: files.ok().map(Box::new) }
        };
        let job = shared.jobs.spawn(get, Done::FilesHere { bag: id, files: None });
        if let Some(before) = self.fetches.insert(id, job) {
            before.abort();
        }
    }

    /// The files of a bag are here, or cannot be had.
    pub(super) fn files_here(
        &mut self,
        bag: BagId,
        files: Option<Box<Files>>,
        pins: &mut Pins,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        if self.fetches.remove(&bag).is_none() {
            return;
        }
        let is_kept = peer.keeps(bag);
        let kept = files.map(|files| {
            let Files { manifest, pins: blobs } = *files;
            if is_kept {
                pins.keep(bag, blobs);
            } else {
                // Its own again, by the key that it has for its bags.
                pins.learn(bag, Some(&manifest));
                drop(blobs);
                tracing::info!(%bag, "the files of a bag that was adopted are here");
            }
            shared.manifests.remember(bag, manifest);
        });
        if is_kept {
            tracing::info!(%bag, kept = kept.is_some(), "a bag of another machine is kept here");
            shared.events.tell(Event::FilesKept { bag, kept: kept.is_some() });
        }
    }

    /// The files of a bag that was kept for another are not needed any more.
    pub(super) fn forget(&mut self, bag: BagId, pins: &mut Pins) {
        if let Some(job) = self.fetches.remove(&bag) {
            job.abort();
        }
        pins.forget_files(bag);
        tracing::info!(%bag, "a bag of another machine is not kept here any more");
    }

    /// After a start: files of bags that are kept here are pinned again, and those that this disk has lost are no longer said to be
    /// kept. Blocks as reading their manifests does.
    pub(super) fn restore(lost: Vec<BagId>, shared: &mut Shared) {
        for bag in lost {
            tracing::warn!(%bag, "the files of a bag that is kept here for another machine are lost");
            shared.events.tell(Event::FilesKept { bag, kept: false });
        }
    }

    /// Asks stewards for the files of open bags of this machine that its disk does not have.
    pub(super) fn look_for_own(&mut self, pins: &Pins, peer: &Peer, shared: &mut Shared) {
        for view in peer.bags().filter(|view| view.closed.is_none()) {
            let bag = view.bag.id;
            if pins.description(bag).is_some() || pins.is_unread(bag) || self.fetches.contains_key(&bag) {
                continue;
            }
            let sources: Vec<Contact> = peer.stewards(bag).cloned().collect();
            if !sources.is_empty() {
                self.get(view.bag, Origin { bag, key: peer.bag_key(bag), sources }, shared);
            }
        }
    }
}

fn ticket_path(directory: &Path, bag: BagId) -> PathBuf {
    directory.join(format!("idlewood-{}.ticket", &hex::encode(bag.0)[..16]))
}

/// Writes the ticket of a bag in the place of an earlier one.
fn write_ticket(path: &Path, state_dir: &Path, records: &[Record]) -> anyhow::Result<()> {
    let identity = state_dir.join(IDENTITY_FILE);
    let identity = fs::read_to_string(&identity).with_context(|| format!("cannot read {}", identity.display()))?;
    let membership = Membership::read_files(state_dir)?;
    let records = records.iter().map(|record| ByteBuf::from(record.encode())).collect();
    let new = path.with_extension("new");
    fs::remove_file(&new).ok();
    Ticket { identity, membership, records, blobs: Vec::new() }.write(&new)?;
    fs::rename(&new, path).with_context(|| format!("cannot write {}", path.display()))
}

/// The files of a bag; asked for several times where they are not to be had at once.
async fn patiently(supplies: &Supplies, bag: &BagHeader, origin: &Origin) -> Result<Files, PrepareError> {
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
pub(super) fn files_on_disk(blobs: &Arc<Blobs>, bag: BagId, key: BagKey) -> Option<Vec<Pin>> {
    let holders = To::Holders(Some(key));
    let manifest = pins::read_manifest(blobs, bag).ok()??;
    let shared = manifest.blob.into_iter().map(|blob| blob.0).chain(manifest.blobs().map(|input| input.blob.0));
    let shared: BTreeSet<[u8; 32]> = shared.collect();
    let shared = shared.into_iter().map(|blob| Pin::lent(blobs, Hash::from_bytes(blob), bag, holders));
    let own = Pin::lent(blobs, Hash::from_bytes(bag.0), bag, To::Everybody);
    let pins: Vec<Pin> = std::iter::once(own).chain(shared).collect();
    pins.iter().all(|pin| blobs.len(pin.hash()).is_some()).then_some(pins)
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::WallTime;
    use idlewood_scheduler::Acting;
    use idlewood_trust::Gate;
    use libp2p::identity::Keypair;

    use super::*;

    fn gate() -> Gate {
        Gate::open(&Keypair::generate_ed25519(), None).expect("alone")
    }

    fn contact(gate: &Gate) -> Contact {
        Contact { peer: gate.me(), incarnation: 1, address: "/ip4/10.0.0.1/tcp/1".into(), nonce: None }
    }

    fn acts(appointment: &Appointment) -> Message {
        Message::Acts { acting: Box::new(Acting { appointment: appointment.clone(), acting: 1, rank: 1 }) }
    }

    #[test]
    fn messages_with_forged_appointments_are_not_heard() {
        let [submitter, steward] = [gate(), gate()];
        let keepers = vec![contact(&submitter), contact(&steward)];
        let (bag, until) = (BagId([7; 32]), WallTime(i64::MAX));
        let unsigned = Appointment { bag, term: 5, keepers, until, signature: vec![0; 64] };
        let signed_by = |gate: &Gate, appointment: &Appointment| {
            let signature = gate.sign_appointment(appointment).to_vec();
            Appointment { signature, ..appointment.clone() }
        };
        let good = signed_by(&submitter, &unsigned);
        let mut known = Appointments::default();
        for _ in 0..2 {
            assert!(known.are_signed(&acts(&good)));
            assert!(!known.are_signed(&acts(&unsigned)));
            assert!(!known.are_signed(&acts(&signed_by(&steward, &unsigned))), "a steward does not appoint itself");
            assert!(!known.are_signed(&acts(&Appointment { term: 6, ..good.clone() })), "for another term");
            let other = Appointment { bag: BagId([8; 32]), ..good.clone() };
            assert!(!known.are_signed(&acts(&other)), "for another bag");
        }
        assert!(known.are_signed(&Message::KeepAnswer { bag, accepts: true }), "it has none");
    }

    #[test]
    fn a_bounded_number_of_appointments_is_remembered() {
        let submitter = gate();
        let keepers = vec![contact(&submitter)];
        let mut known = Appointments::default();
        for term in 1..APPOINTMENTS_MAX as u64 + 10 {
            let bag = BagId([7; 32]);
            let unsigned =
                Appointment { bag, term, keepers: keepers.clone(), until: WallTime(1), signature: Vec::new() };
            let signature = submitter.sign_appointment(&unsigned).to_vec();
            assert!(known.are_signed(&acts(&Appointment { signature, ..unsigned })));
        }
        assert_eq!((known.order.len(), known.signed.len()), (APPOINTMENTS_MAX, APPOINTMENTS_MAX));
    }

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
