//! Contents of the files that a scenario names.

use std::sync::Arc;

use crate::availability::Availability;
use crate::distribution::Distribution;
use crate::latency::matrix::Matrix;
use crate::observed_bag::ObservedBag;
use crate::processor_load::ProcessorLoad;
use crate::survey::{Bandwidths, Cores};

/// The contents of the file named for this input.
///
/// # Panics
/// Where [`Scenario::load`](super::Scenario::load) was not called.
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
