//! What a submitter says of the tasks that an executor holds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Speaker;
use crate::bag::{BagId, BagKey, Sizes};
use crate::enclosed::Enclosed;
use crate::ranges::IntervalSet;

/// Submitter to executor: the answer to a `Holding`, also unasked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Which bag.
    #[serde(rename = "b")]
    pub bag: BagId,
    /// The `Holding` it answers; 0 where it answers none.
    #[serde(rename = "v")]
    pub version: u64,
    /// Where the submitter is now. Executors believe this, not requests, which anybody may have written.
    #[serde(rename = "s")]
    pub submitter: Option<Speaker>,
    /// How long the lease of all other tasks lasts.
    #[serde(rename = "d")]
    pub term: Duration,
    /// The executor is to forget these: they are done or placed elsewhere, or the bag is closed.
    #[serde(rename = "x")]
    pub drop: IntervalSet,
    /// The bag's tasks fail on this executor and succeed elsewhere: it is to offer nothing for so long. It does so only if
    /// all its tasks failed lately.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub rest: Duration,
    /// The bag's key, with which the executor reads the bag's blobs.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub key: Option<BagKey>,
    /// The bag's manifest, where tasks are placed with the executor for the first time.
    #[serde(rename = "m", default, skip_serializing_if = "Enclosed::is_empty")]
    pub manifest: Enclosed,
    /// The bag's sizes, where tasks are placed with the executor. Executors believe these, not requests.
    #[serde(rename = "z", default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<Sizes>,
    /// The bag is withheld: the executor is to give back what has not begun.
    #[serde(rename = "w", default, skip_serializing_if = "std::ops::Not::not")]
    pub withheld: bool,
}

impl Lease {
    /// One that says nothing of this bag.
    pub fn of(bag: BagId) -> Self {
        Self {
            bag,
            version: 0,
            submitter: None,
            term: Duration::ZERO,
            drop: IntervalSet::new(),
            rest: Duration::ZERO,
            key: None,
            manifest: Enclosed::default(),
            sizes: None,
            withheld: false,
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.manifest.is_valid()
            && self.sizes.as_ref().is_none_or(Sizes::is_valid)
            && self.submitter.as_ref().is_none_or(Speaker::is_valid)
    }
}
