//! The state of a pool.

use std::ffi::OsString;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use tokio::sync::mpsc;

use super::event::WorkerEvent;
use super::slot::Slot;
use crate::compile_cache::CompileCache;

/// What the pool and its threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) command: Vec<OsString>,
    pub(super) strict: bool,
    pub(super) cache: CompileCache,
    pub(super) events: mpsc::Sender<WorkerEvent>,
    pub(super) state: Mutex<State>,
    /// One for each slot's thread: a job came, the slot thawed, or the pool closes.
    pub(super) wake: Vec<Condvar>,
    /// For the timer: a limit began, moved or ended, or the pool closes.
    pub(super) timer: Condvar,
    /// For the disk watcher: something may run again, or the pool closes.
    pub(super) disk: Condvar,
}

/// What changes, under one lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) frozen: bool,
    pub(super) closing: bool,
    pub(super) slots: Vec<Slot>,
    /// Number of the next job.
    pub(super) next_number: u64,
    /// When the timer wakes next by itself.
    pub(super) timer_at: Option<Instant>,
    /// The disk watcher is running, or was woken.
    pub(super) disk_is_watched: bool,
}
