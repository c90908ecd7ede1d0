//! What a simulated machine fetches and gives others: files of bags and outputs of tasks, in pieces.
//!
//! Whom it asks, how many at a time, and whom it answers when is decided by the parts that the agent has for that
//! ([`idlewood_machine::downloads`], [`idlewood_machine::serving`]). How pieces travel is in `simulation/fetching.rs`.

use std::collections::{BTreeMap, BTreeSet};

use idlewood_machine::downloads::{DownloadId, Downloads, Sources};
use idlewood_machine::serving::Serving;
use idlewood_machine::{FetchId, JobId};
use idlewood_overlay::{Contact, PeerId, Time};
use idlewood_scheduler::{BagId, TaskId};

use crate::event_queue::HostIndex;

/// Something that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Blob {
    /// What the submitter of a bag has signed of it.
    Envelope(BagId),
    Manifest(BagId),
    /// The program of a bag. Bags that run the same one share it.
    Program {
        bag: BagId,
        program: u8,
    },
    Input(BagId),
    Output(TaskId),
}

impl Blob {
    /// Its bag.
    pub(crate) fn bag(self) -> BagId {
        match self {
            Self::Envelope(bag) | Self::Manifest(bag) | Self::Program { bag, .. } | Self::Input(bag) => bag,
            Self::Output(task) => task.bag,
        }
    }

    /// Its name on a disk: the same for all bags that share it.
    fn key(self) -> Self {
        match self {
            Self::Program { program, .. } => Self::Program { bag: BagId([0; 32]), program },
            other => other,
        }
    }
}

/// A download of a machine: those for bags that it does not know yet have places of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number {
    pub(crate) is_look: bool,
    pub(crate) id: DownloadId,
}

/// Who waits for a download.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Purpose {
    Output(FetchId),
    /// A bag is to be judged.
    Look,
    /// A job is being prepared.
    Job(Needy),
    /// The bag's files are to be kept for its submitter, and come from this keeper.
    Keep {
        bag: BagId,
        from: Contact,
    },
}

/// A job that needs what its bag has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Needy {
    pub(crate) job: JobId,
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    pub(crate) submitter: Contact,
}

/// The request for a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) from: HostIndex,
    /// Life of the machine that asks.
    pub(crate) life: u32,
    pub(crate) download: Number,
    /// Number of the request in that life.
    pub(crate) request: u64,
    pub(crate) blob: Blob,
    pub(crate) offset: u64,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// So many bytes.
    Piece(u64),
    Busy,
    Missing,
}

/// A download that is under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) blob: Blob,
    pub(crate) bytes: u64,
    pub(crate) purposes: Vec<Purpose>,
    /// The request that is under way: its number, whom it asks, and since when.
    pub(crate) asked: Option<(u64, Contact, Time)>,
    /// Every source so far has said that it does not have it.
    pub(crate) is_gone: bool,
}

/// All of one machine.
#[derive(Debug, Default)]
pub(crate) struct Fetching {
    pub(crate) sources: Sources,
    files: Downloads,
    looks: Downloads,
    pub(crate) transfers: BTreeMap<Number, Transfer>,
    /// Requests made in this life.
    pub(crate) requests: u64,
    pub(crate) serving: Serving<Ask>,
    /// Bags that are to be judged, whose envelopes are being fetched.
    pub(crate) looked_at: BTreeSet<BagId>,
    /// Files of others' bags that are on the disk; they stay.
    here: BTreeSet<Blob>,
    /// Beginnings of files that are on the disk, too.
    partial: BTreeMap<Blob, u64>,
}

impl Fetching {
    /// Requests for pieces that this machine has been asked for and has not answered yet: of which download, and their numbers.
    pub(crate) fn asked_of(&self, source: PeerId) -> Vec<(Number, u64)> {
        let asked = self.transfers.iter().filter_map(|(number, transfer)| Some((*number, transfer.asked.as_ref()?)));
        asked.filter(|(_, (_, of, _))| of.peer == source).map(|(number, (request, ..))| (number, *request)).collect()
    }

    pub(crate) fn downloads(&mut self, is_look: bool) -> (&mut Downloads, &Sources) {
        (if is_look { &mut self.looks } else { &mut self.files }, &self.sources)
    }

    /// The machine goes down: what is on its disk stays.
    pub(crate) fn go_down(&mut self) {
        let (here, partial) = (std::mem::take(&mut self.here), std::mem::take(&mut self.partial));
        *self = Self { here, partial, ..Self::default() };
    }

    pub(crate) fn has(&self, blob: Blob) -> bool {
        self.here.contains(&blob.key())
    }

    /// A file of a bag is here, and of use to this bag: it came with a message, or for another bag.
    pub(crate) fn put(&mut self, blob: Blob) {
        self.here.extend([blob, blob.key()]);
    }

    /// Whether others may have it: a program is given only for bags that this machine has it for, as in the agent.
    pub(crate) fn serves(&self, blob: Blob) -> bool {
        self.here.contains(&blob)
    }

    /// The disk is taken.
    pub(crate) fn lose_disk(&mut self) {
        self.here.clear();
        self.partial.clear();
    }

    /// A piece has come; returns whether it was the last.
    pub(crate) fn came(&mut self, number: Number, bytes: u64) -> bool {
        let Some(transfer) = self.transfers.get(&number) else { return false };
        let got = self.partial.entry(transfer.blob.key()).or_default();
        *got += bytes;
        let is_whole = *got >= transfer.bytes;
        if is_whole {
            self.partial.remove(&transfer.blob.key());
            if !matches!(transfer.blob, Blob::Output(_)) {
                self.here.extend([transfer.blob, transfer.blob.key()]);
            }
        }
        is_whole
    }

    /// How much of a blob is here.
    pub(crate) fn got(&self, blob: Blob) -> u64 {
        self.partial.get(&blob.key()).copied().unwrap_or(0)
    }

    /// A blob is wanted: joins the download that is under way, or begins one. Returns one that was begun.
    pub(crate) fn want(
        &mut self,
        now: Time,
        is_look: bool,
        blob: Blob,
        bytes: u64,
        sources: Vec<Contact>,
        purpose: Purpose,
    ) -> Option<Number> {
        let same = |(number, transfer): &(&Number, &mut Transfer)| {
            number.is_look == is_look && transfer.blob.key() == blob.key()
        };
        if let Some((_, transfer)) = self.transfers.iter_mut().find(same) {
            transfer.purposes.push(purpose);
            return None;
        }
        let id = self.downloads(is_look).0.begin(now, blob.bag(), sources);
        let number = Number { is_look, id };
        let transfer = Transfer { blob, bytes, purposes: vec![purpose], asked: None, is_gone: true };
        self.transfers.insert(number, transfer);
        Some(number)
    }

    /// Ends a download; returns who waited for it.
    pub(crate) fn end(&mut self, number: Number) -> Option<Transfer> {
        self.downloads(number.is_look).0.end(number.id);
        self.transfers.remove(&number)
    }

    /// Nobody waits any more for what this is about; a download for which nobody does ends.
    pub(crate) fn forget(&mut self, is_it: impl Fn(&Purpose) -> bool) {
        for transfer in self.transfers.values_mut() {
            transfer.purposes.retain(|purpose| !is_it(purpose));
        }
        let idle = self.transfers.iter().filter(|(_, transfer)| transfer.purposes.is_empty());
        let idle: Vec<Number> = idle.map(|(number, _)| *number).collect();
        for number in idle {
            self.end(number);
        }
    }

    /// A bag is not looked at any longer.
    pub(crate) fn forget_look(&mut self, bag: BagId) {
        let of_bag = self.transfers.iter_mut().filter(|(_, transfer)| transfer.blob == Blob::Envelope(bag));
        of_bag.for_each(|(_, transfer)| transfer.purposes.retain(|purpose| *purpose != Purpose::Look));
        self.forget(|_| false);
    }

    /// Downloads that have waited for a place and have one now.
    pub(crate) fn take_called(&mut self) -> Vec<Number> {
        let called = |is_look: bool, ids: Vec<DownloadId>| ids.into_iter().map(move |id| Number { is_look, id });
        let (looks, files) = (self.looks.take_called(), self.files.take_called());
        called(true, looks).chain(called(false, files)).collect()
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::Contact;

    use super::*;

    fn program(bag: u8) -> Blob {
        Blob::Program { bag: BagId([bag; 32]), program: 3 }
    }

    #[test]
    fn a_program_is_here_for_all_bags_that_run_it_and_is_served_for_those_that_this_machine_knows() {
        let mut fetching = Fetching::default();
        fetching.put(program(1));
        assert!(fetching.has(program(1)) && fetching.has(program(2)));
        assert!(fetching.serves(program(1)) && !fetching.serves(program(2)));
        fetching.put(program(2));
        assert!(fetching.serves(program(2)));
        fetching.lose_disk();
        assert!(!fetching.has(program(1)) && !fetching.serves(program(2)));
    }

    /// Each hears of its own bag once the program is here.
    #[test]
    fn keepers_of_two_bags_share_the_download_of_their_program() {
        let mut fetching = Fetching::default();
        let from = Contact { peer: PeerId([9; 32]), incarnation: 1, address: "".into(), nonce: None };
        let keep = |bag| Purpose::Keep { bag: BagId([bag; 32]), from: from.clone() };
        let mut want = |bag| fetching.want(Time::ZERO, false, program(bag), 100, vec![from.clone()], keep(bag));
        let first = want(1).expect("it begins");
        assert!(want(2).is_none(), "it joins");
        assert!(fetching.came(first, 100));
        let transfer = fetching.end(first).expect("it was under way");
        assert_eq!(transfer.purposes, [keep(1), keep(2)]);
    }
}
