//! Endless bags: bags that have no last task, and share the grid by throughput (docs/adr/0049).
//!
//! An endless bag is one of [`BAG_TASKS_MAX`] tasks: so many never run. Nothing else of it differs on the wire or on the disk of an
//! executor, and its tasks are under the leases of any bag. What differs is how tasks find machines:
//!
//! 1. Its submitter *announces* the bag to the root, by a message that climbs, and again every [`ANNOUNCE_EVERY`]. The root asks the submitter
//!    whether that is so, and believes what it says itself (docs/adr/0051). At most [`ENDLESS_MAX`] bags share the grid at once; further ones wait in order, and their submitters are told how many are ahead.
//! 2. The root makes a *table* of those that share, and passes it down the tree. Each leaf answers what work it would do for each bag
//!    alone, each router adds up, the root computes the best rates, and each router divides them among its children ([`fold`], by
//!    [`crate::shares`]).
//! 3. A leaf asks submitters for tasks, as many as it may have in hand by its rates (`executor/endless`), and the submitter answers with
//!    requests straight to that leaf (`ledger/endless`).
//!
//! Left out: replicas of endless bags, and stewards of those whose tasks are lines or files (docs/adr/0067). Where a machine declines a bag, the root
//! does not learn of it: the other bags there share that bag's time in proportion to their rates.

pub(crate) mod fold;
mod root;

use std::time::Duration;

use idlewood_overlay::{Contact, PeerId};
use serde::{Deserialize, Serialize};

use crate::bag::{BAG_TASKS_MAX, BAG_WORK_MOPS_MAX, BagId};
use crate::queue::WORK_MOPS_MIN;

/// Most endless bags that share the grid at once: each costs every machine some numbers in a report, and the root a row of a
/// problem that takes milliseconds with so many.
pub const ENDLESS_MAX: usize = 32;
/// Most tasks of one bag that a machine has in hand. Our choice.
pub(crate) const IN_HAND_MAX: u64 = 4096;
/// The least weight.
pub const WEIGHT_MIN: f64 = 1e-3;
/// The largest weight.
pub const WEIGHT_MAX: f64 = 1e3;
/// How often a submitter announces a bag again. Our choice: a third of the time that the root believes it.
pub(crate) const ANNOUNCE_EVERY: Duration = Duration::from_secs(10);
/// An announcement climbs the tree where the last one that did is so old: every third, which is before the root forgets the bag. The others go straight
/// to the machine that the submitter takes for the root. Our choice.
pub(crate) const CLIMB_EVERY: Duration = Duration::from_secs(25);
/// A submitter that has not heard from the machine that it takes for the root for so long lets all announcements climb. Our choice: three that were not
/// answered.
pub(crate) const ROOT_FOR: Duration = Duration::from_secs(30);
/// The root forgets a bag that was not announced for so long: three lost messages.
const ANNOUNCED_FOR: Duration = Duration::from_secs(35);

/// An endless bag, as it is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Endless {
    /// ω: its share of the grid is in proportion to it, where processors alone are limited.
    pub weight: f64,
    /// Bytes that a task reads or writes on the busier direction, besides what machines fetch once.
    pub task_bytes: f64,
    /// How many tasks there are at first: [`BAG_TASKS_MAX`] if all are known, as those of an open range are.
    pub tasks: u64,
}

impl Endless {
    /// Whether these numbers can be computed with.
    pub fn is_valid(&self) -> bool {
        let is_size = |bytes: f64| (0.0..=BAG_WORK_MOPS_MAX).contains(&bytes);
        (WEIGHT_MIN..=WEIGHT_MAX).contains(&self.weight) && is_size(self.task_bytes) && self.tasks <= BAG_TASKS_MAX
    }
}

/// What an endless bag wants of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It has tasks to issue.
    #[serde(rename = "a")]
    Active,
    /// It has none now: others have its share.
    #[serde(rename = "i")]
    Idle,
    /// It is over.
    #[serde(rename = "g")]
    Gone,
}

/// An endless bag as its submitter announces it, and as the root's table has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndlessBag {
    /// Which bag.
    #[serde(rename = "b")]
    pub bag: BagId,
    /// Whom leaves ask for tasks.
    #[serde(rename = "s", with = "crate::message::short")]
    pub submitter: Contact,
    /// ω.
    #[serde(rename = "w")]
    pub weight: f64,
    /// a: work of one task in Mop, as far as finished tasks show.
    #[serde(rename = "a")]
    pub task_mops: f64,
    /// b: bytes of one task, likewise.
    #[serde(rename = "y")]
    pub task_bytes: f64,
    /// U: bytes/s that can leave the submitter; 0 where that is not limited.
    #[serde(rename = "u", default, skip_serializing_if = "is_none")]
    pub uplink_bytes_s: f64,
    /// Whether it has tasks now.
    #[serde(rename = "g")]
    pub standing: Standing,
    /// Seconds since its submitter first announced it: the order of those that wait.
    #[serde(rename = "t")]
    pub waited_s: u64,
}

fn is_none(bytes_s: &f64) -> bool {
    *bytes_s == 0.0
}

impl EndlessBag {
    /// Whether these numbers can be computed with.
    pub fn is_valid(&self) -> bool {
        let is_size = |value: f64| (0.0..=BAG_WORK_MOPS_MAX).contains(&value);
        self.submitter.is_valid()
            && (WEIGHT_MIN..=WEIGHT_MAX).contains(&self.weight)
            && (WORK_MOPS_MIN..=BAG_WORK_MOPS_MAX).contains(&self.task_mops)
            && is_size(self.task_bytes)
            && is_size(self.uplink_bytes_s)
    }

    /// A bag of which its submitter knows nothing any more.
    pub(crate) fn over(bag: BagId, submitter: Contact) -> Self {
        let (weight, task_mops, task_bytes, uplink_bytes_s, waited_s) = (1.0, 1.0, 0.0, 0.0, 0);
        let standing = Standing::Gone;
        Self { bag, submitter, weight, task_mops, task_bytes, uplink_bytes_s, standing, waited_s }
    }

    /// c: bytes for a Mop.
    fn ratio(&self) -> f64 {
        self.task_bytes / self.task_mops
    }
}

/// Names a table: a number that rises with each, within one root, and who was root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp(pub u64, pub Option<PeerId>);

/// What keeps an endless bag from having more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// The grid's processors.
    #[serde(rename = "p")]
    Processors,
    /// What can leave its submitter.
    #[serde(rename = "u")]
    Uplink,
    /// The links of the machines that could compute for it.
    #[serde(rename = "d")]
    Downlinks,
    /// No machine would take it, or none has said so yet.
    #[serde(rename = "m")]
    Machines,
    /// So many bags share the grid already that it waits.
    #[serde(rename = "w")]
    Waits,
    /// It has no tasks to issue.
    #[serde(rename = "t")]
    Tasks,
    /// Its results are not drained: no room for more.
    #[serde(rename = "q")]
    Undrained,
}

/// The root's answer to an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// How many bags get their turn before this one does; 0 for one that shares.
    #[serde(rename = "n", default, skip_serializing_if = "crate::bag::is_zero")]
    pub ahead: u32,
    /// Its rate in Mop/s.
    #[serde(rename = "w")]
    pub work_mops: f64,
    /// Its rate if it were alone, in Mop/s.
    #[serde(rename = "a")]
    pub alone_mops: f64,
    /// What all machines do for endless bags, in Mop/s.
    #[serde(rename = "g")]
    pub grid_mops: f64,
    /// What keeps it from more.
    #[serde(rename = "l")]
    pub limit: Limit,
}

impl Grant {
    pub(crate) fn is_valid(&self) -> bool {
        [self.work_mops, self.alone_mops, self.grid_mops].iter().all(|rate| rate.is_finite() && *rate >= 0.0)
    }
}

/// An endless bag as its submitter sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct EndlessView {
    /// ω.
    pub weight: f64,
    /// How many tasks there are so far; `None`: without an end.
    pub tasks: Option<u64>,
    /// Whether no more will come.
    pub is_ended: bool,
    /// Results that are not drained.
    pub undrained: u64,
    /// Bytes of their outputs.
    pub undrained_bytes: u64,
    /// Tasks drained so far.
    pub drained: u64,
    /// All tasks below this one are drained.
    pub drained_below: u64,
    /// Tasks that no machine has now, nor is being sent; of an open range without those that none ever had.
    pub waiting: u64,
    /// Tasks/s in the last minute.
    pub rate: f64,
    /// Tasks/s since it was submitted.
    pub mean_rate: f64,
    /// The root's last answer; `None` before the first.
    pub grant: Option<Grant>,
    /// What keeps it from having more; `None` before anybody knows.
    pub limit: Option<Limit>,
}
