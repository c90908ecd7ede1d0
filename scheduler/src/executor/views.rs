//! What a peer's view shows of its executor.

use std::time::Duration;

use idlewood_overlay::PeerId;

use crate::bag::{BagId, TaskId};

/// A task that has begun, as the peer's view shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningTask {
    /// The number of its worker, from 0.
    pub place: u32,
    /// The task.
    pub task: TaskId,
    /// 0 for the first try.
    pub attempt: u32,
    /// Time it has run, frozen time left out.
    pub active: Duration,
    /// Whether it is frozen now, by preemption or by the owner.
    pub frozen: bool,
    /// Whether it is frozen for a bag that comes ahead, whatever the owner does.
    pub preempted: bool,
}

/// A bag's tasks on this machine, as the peer's view shows them.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldView {
    /// The bag.
    pub bag: BagId,
    /// The machine that submitted it.
    pub submitter: PeerId,
    /// Tasks not started.
    pub waiting: u64,
    /// Tasks started, frozen ones included.
    pub running: u64,
    /// Running tasks that are frozen for bags that come ahead.
    pub frozen: u64,
    /// Tasks finished whose result the submitter has not acknowledged.
    pub unacknowledged: u64,
    /// The measured work of its tasks as a multiple of the declared one, where that is far more; else 1.
    pub times_declared: f64,
}
