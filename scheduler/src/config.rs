//! The settings of a peer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::queue::{SPEED_MOPS_MAX, SPEED_MOPS_MIN};
use crate::router::ClimbingRule;
use crate::steward::STEWARDS_MAX;
use crate::summary::SummaryForm;

/// Most slots of one peer: each needs a worker. Fewer than the arithmetic takes ([`crate::queue::SLOTS_MAX`]).
const SLOTS_MAX: u32 = 1024;

/// The size from which the deadline of a bag is computed on a machine that has other bags of its submitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PerSubmitter {
    /// Its own size.
    Off,
    /// Its own size and those of the smaller bags.
    #[default]
    Line,
}

/// Settings of one peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Settings of the overlay.
    pub overlay: idlewood_overlay::Config,
    /// Tasks that run at the same time, 1 to 1024. Default 1: the owner decides on more.
    pub slots: u32,
    /// Speed of one slot in Mop/s of the reference kernel, above 0. Default 1000; the agent measures it.
    pub speed_mops: f64,
    /// When a router keeps a request. Default: the paper's rule, by which nearly all is decided at the root.
    pub climbing: ClimbingRule,
    /// B of that rule, at least 1: a router keeps a request whose stretch is at most this multiple of the smallest possible, so
    /// that fewer reach the root. Default 1: the prototype's best figure.
    pub stretch_bound: f64,
    /// Deadlines by the effective size a·max(n, N) instead of the paper's w = a·n. Default true: `docs/design/scheduler.md`.
    pub effective_size: bool,
    /// Whether a bag that comes ahead in the order freezes the running task of the last one. Default true:
    /// `docs/design/scheduler.md`; false is the paper's case.
    pub preemptive: bool,
    /// Most preempted tasks per slot, 0 to 16; each keeps its worker and its memory. 0 is the same as `preemptive = false`.
    /// Default 3: our choice (`docs/adr/0076`).
    pub frozen_max: u32,
    /// Whether a submitter's bags on a machine are one application there, so that many small bags have no larger share than
    /// one. Default line: in simulation that takes the gain from users who split a bag, and costs honest users of many bags
    /// next to nothing (docs/adr/0017).
    pub per_submitter: PerSubmitter,
    /// Whether a machine that runs dry asks for work that waits elsewhere. Default true: in simulation it pays
    /// (docs/adr/0011).
    pub redistribution: bool,
    /// Whether a machine that has work asks too, while its maximum stretch is clearly below the grid's largest; without
    /// `redistribution` it does not. Default true: where queues are lost it is worth a tenth of the maximum stretch
    /// (docs/adr/0011).
    pub levelling: bool,
    /// Whether a request with no more tasks than there are idle slots goes to the slots that end them soonest. Default
    /// true: ours (docs/adr/0021).
    pub idle_slots: bool,
    /// What summaries are made of, the same on all machines. Default horizons. The paper's matrix is for simulations, beside which
    /// ours is measured: it has no place for [`Self::idle_slots`] and [`ClimbingRule::WholeGrid`] (docs/adr/0039). Agents have the default;
    /// they take the reports of a machine with another for those of one that takes no work.
    pub summaries: SummaryForm,
    /// Whether there is a grid to join: a machine that is still alone then waits for it before it issues its tasks, at most
    /// `placement_timeout`, instead of taking all of them itself. Default false.
    pub expects_grid: bool,
    /// The shortest lease, 1 s to 1 h: a submitter issues an executor's tasks again after so long without a message.
    /// Default 60 s; half of it lies between renewals. Leases grow with the age of the bag and the number of executors
    /// (docs/adr/0010).
    pub lease: Duration,
    /// How long a submitter waits for a machine to account for issued tasks before it issues them again, 1 s to 10 min. Default
    /// 15 s: several times the way up and down a tree of a million.
    pub placement_timeout: Duration,
    /// How long the owner must be back before unstarted tasks are handed back. Default 10 min: what HTCondor and
    /// BOINC users know.
    pub vacate_after: Duration,
    /// Least time between two summaries of the leaf, and between two of the router; longer where reports of that length would
    /// take more of the parent's link than [`idlewood_overlay::Config::report_rate_bytes_per_s`]. Default 20 ms: our choice
    /// (docs/adr/0020).
    pub summary_interval: Duration,
    /// How long a router delays a report at most whose availability only grew (a queue that is worked off, a bag that ended
    /// on a machine with other bags). 0 to 60 s, default 1 s: our choice (docs/adr/0022).
    pub summary_patience: Duration,
    /// Least time between two summaries of a leaf that only works its queue off; an eighth of the time that the queue
    /// takes, up to 5 min, where that is more. Default 10 s: our choice; cells stay lower bounds as time passes, so these
    /// summaries only offer what became free meanwhile (docs/adr/0010).
    pub summary_refresh: Duration,
    /// Most work of one submitter that waits and runs here, by the time that this machine takes for it with all slots, 1 h to
    /// 10 years; the machine's own bags do not count. Default 90 days: our choice, more than honest bags have, and less than
    /// mistakes and floods have.
    pub submitter_work_max: Duration,
    /// Most bags of one submitter here, 1 to 4096. Default 1024: a quarter of the most bags on a machine.
    pub submitter_bags_max: u32,
    /// Stewards of a bag that is submitted here and does not say how many it has ([`crate::Submission::stewards`]), 0 to 4.
    /// Default 0, none: a driver that signs appointments sets it (docs/adr/0041).
    pub stewards: u32,
    /// A bag has stewards once it has lasted for so long; shorter ones have none. Up to 1 h, default 30 s: our choice. A bag whose tasks take
    /// this machine 10 s or more does not wait for longer than 2 s: its user may switch the machine off as soon as it is submitted.
    pub appoint_after: Duration,
    /// A steward acts after so long without a word of the keepers before it, for each rank, 12 s to 1 h: keepers say every 10 s that they
    /// are there. Default 30 s: three lost messages.
    pub steward_silence: Duration,
    /// Most bags that this machine keeps for others, 0 to 4096. Default 0, none: a driver that keeps their files sets it.
    pub kept_bags_max: u32,
    /// Most bytes of results, outputs included, that this machine keeps for others beside their submitters. Default 1 GiB: our choice.
    pub kept_result_bytes_max: u64,
    /// σ: the part of a machine that endless bags have while tasks of finite ones wait there, 0 to 0.9; finite bags are promised the rest.
    /// The same on all machines of a grid. Default 0.25: our choice.
    pub endless_share: f64,
    /// What can leave this machine for tasks of endless bags that it submits, and what can come for those that it runs, in kB/s;
    /// 0: not limited. Default 0: what owners allow is the driver's to say.
    pub uplink_kb_s: u32,
    /// See [`Self::uplink_kb_s`].
    pub downlink_kb_s: u32,
    /// Most bytes of outputs of an endless bag that are not drained: nothing more of the bag is issued until some are. Default 1 GiB.
    pub undrained_bytes_max: u64,
    /// How long an unanswered message waits before it is first sent again; doubles up to a third of the lease. Longer, up to
    /// 10 min, where the submitter's link takes longer for one message of each machine that may hold tasks. Default 2 s.
    pub repeat_after: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            overlay: idlewood_overlay::Config::default(),
            slots: 1,
            speed_mops: 1000.0,
            climbing: ClimbingRule::default(),
            stretch_bound: 1.0,
            effective_size: true,
            preemptive: true,
            frozen_max: 3,
            per_submitter: PerSubmitter::default(),
            redistribution: true,
            levelling: true,
            idle_slots: true,
            summaries: SummaryForm::default(),
            expects_grid: false,
            lease: Duration::from_secs(60),
            placement_timeout: Duration::from_secs(15),
            vacate_after: Duration::from_secs(600),
            summary_interval: Duration::from_millis(20),
            summary_patience: Duration::from_secs(1),
            summary_refresh: Duration::from_secs(10),
            submitter_work_max: Duration::from_secs(90 * 24 * 3600),
            submitter_bags_max: 1024,
            stewards: 0,
            appoint_after: Duration::from_secs(30),
            steward_silence: Duration::from_secs(30),
            kept_bags_max: 0,
            kept_result_bytes_max: 1 << 30,
            endless_share: 0.25,
            uplink_kb_s: 0,
            downlink_kb_s: 0,
            undrained_bytes_max: 1 << 30,
            repeat_after: Duration::from_secs(2),
        }
    }
}

impl Config {
    /// Workers that a driver must be able to keep at the same time: one per slot, and one per preempted task.
    /// [`crate::Effect::StartTask`] numbers them from 0.
    pub fn places(&self) -> u32 {
        self.slots.saturating_add(self.frozen_places())
    }

    /// Most preempted tasks.
    pub(crate) fn frozen_places(&self) -> u32 {
        if self.preemptive { self.slots.saturating_mul(self.frozen_max) } else { 0 }
    }

    /// Checks that all settings are in range.
    ///
    /// # Errors
    /// A sentence that names the field and what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        self.overlay.validate()?;
        let check = |valid: bool, sentence: &str| if valid { Ok(()) } else { Err(sentence.to_owned()) };
        let within = |value: Duration, least: u64, most: u64| {
            value >= Duration::from_secs(least) && value <= Duration::from_secs(most)
        };
        check((1..=SLOTS_MAX).contains(&self.slots), &format!("slots must be between 1 and {SLOTS_MAX}"))?;
        check(
            (SPEED_MOPS_MIN..=SPEED_MOPS_MAX).contains(&self.speed_mops),
            &format!("speed_mops must be between {SPEED_MOPS_MIN} and {SPEED_MOPS_MAX} Mop/s"),
        )?;
        check(self.frozen_max <= 16, "frozen_max must be between 0 and 16")?;
        check(self.stretch_bound.is_finite() && self.stretch_bound >= 1.0, "stretch_bound must be at least 1")?;
        if self.summaries == SummaryForm::Paper {
            check(!self.idle_slots, "idle_slots must be false where summaries are the paper's, which have none")?;
            check(
                self.climbing == ClimbingRule::Minimum,
                "climbing must be minimum, the paper's rule, where summaries are the paper's",
            )?;
        }
        check(within(self.lease, 1, 3600), "lease must be between 1 s and 1 h")?;
        check(within(self.placement_timeout, 1, 600), "placement_timeout must be between 1 s and 10 min")?;
        check(!self.summary_interval.is_zero(), "summary_interval must be above 0")?;
        check(within(self.summary_patience, 0, 60), "summary_patience must be at most 60 s")?;
        check(!self.summary_refresh.is_zero(), "summary_refresh must be above 0")?;
        check(
            within(self.submitter_work_max, 3600, 10 * 365 * 24 * 3600),
            "submitter_work_max must be between 1 h and 10 years",
        )?;
        check((1..=4096).contains(&self.submitter_bags_max), "submitter_bags_max must be between 1 and 4096")?;
        check(self.stewards <= STEWARDS_MAX, "stewards must be between 0 and 4")?;
        check(within(self.appoint_after, 0, 3600), "appoint_after must be at most 1 h")?;
        check(within(self.steward_silence, 12, 3600), "steward_silence must be between 12 s and 1 h")?;
        check(self.kept_bags_max <= 4096, "kept_bags_max must be between 0 and 4096")?;
        check((0.0..=0.9).contains(&self.endless_share), "endless_share must be between 0 and 0.9")?;
        check(self.undrained_bytes_max > 0, "undrained_bytes_max must be above 0")?;
        check(!self.repeat_after.is_zero(), "repeat_after must be above 0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_refused_by_name() {
        assert_eq!(Config::default().validate(), Ok(()));
        let refused = |change: fn(&mut Config), name: &str| {
            let mut config = Config::default();
            change(&mut config);
            let sentence = config.validate().unwrap_err();
            assert!(sentence.starts_with(name), "{sentence}");
        };
        refused(|config| config.slots = 0, "slots");
        refused(|config| config.slots = 1025, "slots");
        refused(|config| config.submitter_bags_max = 0, "submitter_bags_max");
        refused(|config| config.submitter_work_max = Duration::ZERO, "submitter_work_max");
        refused(|config| config.frozen_max = 17, "frozen_max");
        refused(|config| config.stewards = 5, "stewards");
        refused(|config| config.steward_silence = Duration::from_secs(10), "steward_silence");
        refused(|config| config.endless_share = 0.91, "endless_share");
        refused(|config| config.endless_share = f64::NAN, "endless_share");
        refused(|config| config.undrained_bytes_max = 0, "undrained_bytes_max");
        refused(|config| config.kept_bags_max = 4097, "kept_bags_max");
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let config = Config { speed_mops: speed, ..Config::default() };
            assert!(config.validate().unwrap_err().starts_with("speed_mops"), "{speed}");
        }
        refused(|config| config.stretch_bound = f64::NAN, "stretch_bound");
        refused(|config| config.summaries = SummaryForm::Paper, "idle_slots");
        let paper = Config { summaries: SummaryForm::Paper, idle_slots: false, ..Config::default() };
        assert_eq!(paper.validate(), Ok(()));
        let whole_grid = Config { climbing: ClimbingRule::WholeGrid, ..paper };
        assert!(whole_grid.validate().unwrap_err().starts_with("climbing"));
    }

    #[test]
    fn each_running_or_preempted_task_has_a_worker() {
        let config = Config { slots: 4, ..Config::default() };
        assert_eq!(config.places(), 16);
        assert_eq!(Config { frozen_max: 0, ..config.clone() }.places(), 4);
        assert_eq!(Config { preemptive: false, ..config }.places(), 4);
    }
}
