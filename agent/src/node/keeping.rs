//! Keepers, from the loop's side (docs/adr/0041): who keeps a bag of this machine is signed, what others say of theirs is checked,
//! and the files of bags that this machine keeps for others are brought here.
//!
//! A steward keeps all that executors need: envelope, manifest, program and inputs. They are read from whoever has them with the
//! bag's key, as executors do, checked like those of a bag whose tasks are to run here, and pinned (`pins`). Files of a bag of this very
//! machine that its disk does not have, since it was adopted from a ticket, come from its stewards likewise.
//!
//! Where the owner has set a place for them, a ticket of each bag is written there whenever its keepers change, with which another
//! machine can go on as this one: it names the stewards, who have all else.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use idlewood_net::fetch::Origin;
use idlewood_overlay::Contact;
use idlewood_scheduler::{Appointment, BagHeader, BagId, BagKey, Event, Peer, Record, RecordKey};
use idlewood_trust::Membership;
use idlewood_trust::identity::IDENTITY_FILE;
use idlewood_trust::ticket::Ticket;
use serde_bytes::ByteBuf;
use tokio::task::AbortHandle;

use super::done::Done;
use super::kept_files::{Files, patiently};
use super::pins::Pins;
use super::shared::Shared;

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
        self.get(bag, Origin { bag: id, key: Some(key), sources, enclosed: Vec::new() }, false, shared);
    }

    fn get(&mut self, bag: BagHeader, origin: Origin, is_own: bool, shared: &mut Shared) {
        let (id, supplies) = (bag.id, shared.supplies.clone());
        let get = async move {
            let files = patiently(&supplies, &bag, &origin).await;
            let files = files.inspect_err(|error| {
                let error = format!("{error:#}");
                if is_own {
                    tracing::warn!(
                        bag = %id, error, "the files of a bag that was adopted are not here, and cannot be had: `idlewood bag show` says what to do"
                    );
                } else {
                    tracing::warn!(bag = %id, error, "the files of a bag cannot be kept here: its submitter is to ask another machine");
                }
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
                self.get(view.bag, Origin { bag, key: peer.bag_key(bag), sources, enclosed: Vec::new() }, true, shared);
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
