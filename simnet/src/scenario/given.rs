//! Machines and bags that a scenario gives one by one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::duration::{from_text, seconds};

/// A bag of `workload = "given"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenBag {
    /// When it is submitted, counted from the first moment that a bag can arrive.
    #[serde(rename(serialize = "at_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub at: Duration,
    /// The machine where it is submitted.
    pub submitter: u32,
    /// How many tasks it has, at least 1.
    pub tasks: u64,
    /// Work of each, in Mop, as declared and in truth.
    pub task_mops: f64,
    /// Size of the output of each; none: the scenario's.
    #[serde(default)]
    pub output_bytes: Option<u64>,
}

/// What one machine is like, in place of what the scenario says of all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenMachine {
    /// Which machine, from 0.
    pub number: u32,
    /// Its speed, in Mop/s per slot; none: as others.
    #[serde(default)]
    pub speed_mops: Option<f64>,
    /// Its uplink, in bytes a second; none: as others.
    #[serde(default)]
    pub up_bytes_s: Option<u64>,
    /// Its downlink.
    #[serde(default)]
    pub down_bytes_s: Option<u64>,
}
