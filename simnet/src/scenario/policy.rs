//! The peers' settings that experiments change: the table `[policy]`.

use std::time::Duration;

use idlewood_scheduler::summary::SummaryForm;
use idlewood_scheduler::{ClimbingRule, Config, PerSubmitter};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Scenario;
use super::duration::{from_text, seconds};
use super::shipped::shipped;

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Policy {
    preemptive: bool,
    frozen_max: u32,
    per_submitter: PerSubmitter,
    effective_size: bool,
    climbing: ClimbingRule,
    stretch_bound: f64,
    redistribution: bool,
    levelling: bool,
    idle_slots: bool,
    summaries: SummaryForm,
    report_rate_bytes_per_s: u64,
    stewards: u32,
    kept_bags_max: u32,
    #[serde(rename(serialize = "patience_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    patience: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self::of(&shipped())
    }
}

impl Policy {
    fn of(peer: &idlewood_scheduler::Config) -> Self {
        Self {
            preemptive: peer.preemptive,
            frozen_max: peer.frozen_max,
            per_submitter: peer.per_submitter,
            effective_size: peer.effective_size,
            climbing: peer.climbing,
            stretch_bound: peer.stretch_bound,
            redistribution: peer.redistribution,
            levelling: peer.levelling,
            idle_slots: peer.idle_slots,
            summaries: peer.summaries,
            report_rate_bytes_per_s: peer.overlay.report_rate_bytes_per_s,
            stewards: peer.stewards,
            kept_bags_max: peer.kept_bags_max,
            patience: peer.summary_patience,
        }
    }
}

/// Makes the peers' settings those of the paper's scheme: its size, its summaries with their lookup and booking, its limit for each child,
/// and none of our additions: no preemption, no handing on of work, each bag by itself, no place for the few tasks of a bag but that of its
/// deadline, no delayed reports, and nobody who keeps a bag beside its submitter.
///
/// `simnet run --paper`, `scenarios/paper.toml` and the variant `paper` of `desktops` have these settings. docs/adr/0039 lists what
/// is still different from the paper, and why.
pub fn papers_scheme(peer: &mut Config) {
    peer.effective_size = false;
    peer.preemptive = false;
    peer.redistribution = false;
    peer.levelling = false;
    peer.idle_slots = false;
    (peer.stewards, peer.kept_bags_max) = (0, 0);
    peer.per_submitter = PerSubmitter::Off;
    peer.summary_patience = Duration::ZERO;
    peer.summaries = SummaryForm::Paper;
    // Each of two children has two fifths of this: the 10 kB/s that the paper's has.
    peer.overlay.report_rate_bytes_per_s = 25_000;
}

/// The links carry messages and nothing else, as the paper counts: no frames, streams or answers.
///
/// `simnet run --paper` and `scenarios/paper.toml` have these settings.
pub fn papers_links(scenario: &mut Scenario) {
    scenario.overhead_bytes = 0;
    scenario.answer_bytes = 0;
    scenario.connect_round_trips = 0;
    scenario.connect_bytes = 0;
    scenario.message_us = 0;
}

pub(super) fn serialize<S: Serializer>(peer: &idlewood_scheduler::Config, serializer: S) -> Result<S::Ok, S::Error> {
    Policy::of(peer).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<idlewood_scheduler::Config, D::Error> {
    let policy = Policy::deserialize(deserializer)?;
    let mut peer = idlewood_scheduler::Config {
        preemptive: policy.preemptive,
        frozen_max: policy.frozen_max,
        per_submitter: policy.per_submitter,
        effective_size: policy.effective_size,
        climbing: policy.climbing,
        stretch_bound: policy.stretch_bound,
        redistribution: policy.redistribution,
        levelling: policy.levelling,
        idle_slots: policy.idle_slots,
        summaries: policy.summaries,
        stewards: policy.stewards,
        kept_bags_max: policy.kept_bags_max,
        summary_patience: policy.patience,
        ..shipped()
    };
    peer.overlay.report_rate_bytes_per_s = policy.report_rate_bytes_per_s;
    Ok(peer)
}
