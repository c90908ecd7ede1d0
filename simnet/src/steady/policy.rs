//! How a scheduler thread chooses (§4): what it asks its parent for, and who gets which task next.

use super::platform::Rates;

/// The scheduler threads of all machines that serve the same kinds of tasks. PBC has some for each kind, which share processors and ports; all others have
/// one set.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// Kinds of tasks.
    pub(super) kinds: Vec<usize>,
    pub(super) policy: Policy,
    pub(super) room: Room,
}

/// Who gets which task next.
#[derive(Clone, Debug)]
pub(super) enum Policy {
    /// Requests and tasks in the order in which they came; the root takes kinds by these weights.
    FirstCome { weights: Vec<f64> },
    /// The machine itself, and then the child with the largest bandwidth, of those that have asked; one kind of task.
    BandwidthCentric,
    /// That which is furthest behind these rates, by machine and kind: what it does itself, and what it receives for all below it.
    Rates {
        own: Rates,
        received: Rates,
        /// Whether none may be ahead of its rate.
        is_paced: bool,
    },
}

/// What a machine has room for beside the task that it computes and the one that it sends.
#[derive(Clone, Debug)]
pub(super) enum Room {
    /// So many tasks of any kind.
    Untyped(u64),
    /// So many of each kind, by machine.
    Typed(Vec<Vec<u64>>),
}
