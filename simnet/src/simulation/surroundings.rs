//! What the machines of a simulation share.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::PeerId;
use idlewood_scheduler::{BagId, TaskId};

use crate::fetching::Blob;
use crate::network::Network;
use crate::overlay::Wire;
use crate::scenario::Scenario;
use crate::workload::{self, Bag};

/// What machines share and only read.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) scenario: Scenario,
    pub(super) network: Network,
    pub(super) wire: Wire,
    /// The identities of all machines.
    pub(super) peer_ids: Vec<PeerId>,
    /// With their numbers in order of arrival.
    pub(super) bags: BTreeMap<BagId, (usize, Bag)>,
}

impl Surroundings {
    /// Nothing goes from one machine to another in less time.
    pub(super) fn lookahead(&self) -> Duration {
        self.network.latency_min()
    }

    /// Whether machines need connections for what they send each other.
    pub(super) fn has_connections(&self) -> bool {
        self.scenario.connect_round_trips > 0
    }

    /// Whether a bag has no end.
    pub(super) fn is_endless(&self, bag: BagId) -> bool {
        self.bags.get(&bag).is_some_and(|(_, bag)| bag.endless.is_some())
    }

    /// True work of a task, in Mop.
    ///
    /// # Panics
    /// When there is no such bag: peers invented one.
    pub(super) fn work_mops(&self, task: TaskId) -> f64 {
        let (number, bag) = self.bags.get(&task.bag).expect("a bag of this run");
        workload::work_mops(&self.scenario, *number, bag, task.index)
    }

    /// Number of the program that a bag runs: bags have those of the scenario by turns.
    ///
    /// # Panics
    /// As above.
    pub(super) fn program(&self, bag: BagId) -> u8 {
        let (_, bag) = self.bags.get(&bag).expect("a bag of this run");
        (bag.whole % self.scenario.programs as usize) as u8
    }

    /// The program of a bag, to be fetched.
    pub(super) fn program_of(&self, bag: BagId) -> Blob {
        Blob::Program { bag, program: self.program(bag) }
    }

    /// Files that a machine needs of a bag before its first task there.
    pub(super) fn needs(&self, bag: BagId) -> impl Iterator<Item = Blob> + use<'_> {
        let all = [Blob::Envelope(bag), Blob::Manifest(bag), self.program_of(bag), Blob::Input(bag)];
        all.into_iter().filter(|blob| self.blob_bytes(*blob) > 0)
    }

    /// Size of something that is fetched.
    ///
    /// # Panics
    /// As above.
    pub(super) fn blob_bytes(&self, blob: Blob) -> u64 {
        match blob {
            Blob::Envelope(_) => self.scenario.envelope_bytes,
            Blob::Manifest(_) => self.scenario.manifest_bytes,
            Blob::Program { .. } => self.scenario.program_bytes,
            Blob::Input(_) => self.scenario.input_bytes,
            Blob::Output(task) => self.output_bytes(task),
        }
    }

    /// Output size of a task.
    ///
    /// # Panics
    /// As above.
    pub(super) fn output_bytes(&self, task: TaskId) -> u64 {
        let (_, bag) = self.bags.get(&task.bag).expect("a bag of this run");
        workload::output_bytes(&self.scenario, bag, task.index)
    }
}
