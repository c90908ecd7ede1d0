//! Contents of the files that a scenario names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Equipment, Latencies, Owners, Scenario, Sessions, Workload};
use crate::availability::Availability;
use crate::distribution::Distribution;
use crate::latency::Matrix;
use crate::log;
use crate::processor_load::ProcessorLoad;
use crate::survey::{Bandwidths, Cores};
use crate::workflow;
use crate::workload::ObservedBag;

/// The contents of the file named for this input.
///
/// # Panics
/// Where [`Scenario::load`] was not called.
pub(crate) fn loaded<T>(input: &Option<Arc<T>>) -> &Arc<T> {
    input.as_ref().expect("the files that a scenario names are loaded before anything is drawn from them")
}

/// Contents of the files that a scenario names; read once, shared by all its copies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Contents of `sessions_file`.
    pub sessions: Option<Arc<Availability>>,
    /// Contents of `latency_file`.
    pub latencies: Option<Arc<Matrix>>,
    /// Bags of `log_file`, or of `workflow_files`.
    pub bags: Option<Arc<Vec<ObservedBag>>>,
    /// Contents of `tasks_file`.
    pub tasks: Option<Arc<Distribution>>,
    /// Contents of `lengths_file`.
    pub lengths: Option<Arc<Distribution>>,
    /// Contents of `intervals_file`.
    pub intervals: Option<Arc<Distribution>>,
    /// Contents of `owner_file`.
    pub owners: Option<Arc<ProcessorLoad>>,
    /// Contents of `cores_file`.
    pub cores: Option<Arc<Cores>>,
    /// Contents of `bandwidths_file`.
    pub bandwidths: Option<Arc<Bandwidths>>,
}

impl Scenario {
    /// Reads the files that it names, unless it did before.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what is expected there.
    pub fn load(&mut self) -> Result<(), String> {
        fn fill<T>(
            input: &mut Option<Arc<T>>,
            is_used: bool,
            file: Option<&PathBuf>,
            read: fn(&Path) -> Result<T, String>,
        ) -> Result<(), String> {
            if let (true, Some(path), None) = (is_used, file, &input) {
                *input = Some(Arc::new(read(path)?));
            }
            Ok(())
        }
        let inputs = &mut self.inputs;
        fill(&mut inputs.sessions, self.sessions == Sessions::Trace, self.sessions_file.as_ref(), Availability::read)?;
        fill(&mut inputs.owners, self.owners == Owners::Load, self.owner_file.as_ref(), ProcessorLoad::read)?;
        fill(&mut inputs.latencies, self.latencies == Latencies::Matrix, self.latency_file.as_ref(), Matrix::read)?;
        let is_surveyed = self.bandwidths == Equipment::Survey;
        fill(&mut inputs.bandwidths, is_surveyed, self.bandwidths_file.as_ref(), Bandwidths::read)?;
        fill(&mut inputs.cores, self.cores == Equipment::Survey, self.cores_file.as_ref(), Cores::read)?;
        fill(&mut inputs.bags, self.workload == Workload::Log, self.log_file.as_ref(), log::read)?;
        if self.workload == Workload::Workflows && inputs.bags.is_none() {
            let bags = self.workflow_files.iter().map(|path| workflow::read(path)).collect::<Result<_, _>>()?;
            inputs.bags = Some(Arc::new(bags));
        }
        let is_distributed = self.workload == Workload::Distributions;
        fill(&mut inputs.tasks, is_distributed, self.tasks_file.as_ref(), Distribution::read)?;
        fill(&mut inputs.lengths, is_distributed, self.lengths_file.as_ref(), Distribution::read)?;
        fill(&mut inputs.intervals, is_distributed, self.intervals_file.as_ref(), Distribution::read)?;
        Ok(())
    }
}
