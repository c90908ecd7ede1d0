//! Of the peers' settings, those that experiments change: the table `[policy]`.

use std::time::Duration;

use idlewood_scheduler::{ClimbingRule, PerSubmitter};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::duration::{from_text, seconds};

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Policy {
    preemptive: bool,
    frozen_max: u32,
    lexicographic: bool,
    per_submitter: PerSubmitter,
    grid_step: u32,
    effective_size: bool,
    climbing: ClimbingRule,
    stretch_bound: f64,
    redistribution: bool,
    levelling: bool,
    idle_slots: bool,
    report_rate_bytes_per_s: u64,
    #[serde(rename(serialize = "patience_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    patience: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self::of(&idlewood_scheduler::Config::default())
    }
}

impl Policy {
    fn of(peer: &idlewood_scheduler::Config) -> Self {
        Self {
            preemptive: peer.preemptive,
            frozen_max: peer.frozen_max,
            lexicographic: peer.lexicographic,
            per_submitter: peer.per_submitter,
            grid_step: peer.grid_step,
            effective_size: peer.effective_size,
            climbing: peer.climbing,
            stretch_bound: peer.stretch_bound,
            redistribution: peer.redistribution,
            levelling: peer.levelling,
            idle_slots: peer.idle_slots,
            report_rate_bytes_per_s: peer.overlay.report_rate_bytes_per_s,
            patience: peer.summary_patience,
        }
    }
}

pub(super) fn serialize<S: Serializer>(peer: &idlewood_scheduler::Config, serializer: S) -> Result<S::Ok, S::Error> {
    Policy::of(peer).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<idlewood_scheduler::Config, D::Error> {
    let policy = Policy::deserialize(deserializer)?;
    let mut peer = idlewood_scheduler::Config {
        preemptive: policy.preemptive,
        frozen_max: policy.frozen_max,
        lexicographic: policy.lexicographic,
        per_submitter: policy.per_submitter,
        grid_step: policy.grid_step,
        effective_size: policy.effective_size,
        climbing: policy.climbing,
        stretch_bound: policy.stretch_bound,
        redistribution: policy.redistribution,
        levelling: policy.levelling,
        idle_slots: policy.idle_slots,
        summary_patience: policy.patience,
        ..idlewood_scheduler::Config::default()
    };
    peer.overlay.report_rate_bytes_per_s = policy.report_rate_bytes_per_s;
    Ok(peer)
}
