//! The pool, the agent's side: slots, their threads and worker processes.
//!
//! # Design
//! - A slot has a run of jobs, one after the other. Jobs are handed to the worker at once while there is room, so that
//!   it does not wait for the agent between two small jobs: one packet each, through a socket of which the agent keeps
//!   the worker's end, too. A packet is read by either. So [`Pool::take_back`] gets back exactly the jobs that have not
//!   begun, whether the worker is busy, frozen or dead, and a worker that dies or is stopped loses only one job.
//! - Each slot has a thread. It starts the worker when a job comes, blocks on the pipe of reports until the worker
//!   reports or dies, and reaps it. The thread outlives the worker, because the kernel sends a worker its death signal
//!   when the *thread* that started it ends. While more jobs are with the worker, the thread lets reports accumulate
//!   for a moment: waking up for each would cost more than a small job.
//! - One timer thread kills workers whose task exceeds its time limit, and sleeps until the next limit. Another looks
//!   at the disk use of running tasks, and ends those over their limit.
//! - All shared state is under one lock, held for moments: never across a pipe or a wait, though across starting a
//!   process (about a millisecond), so that a freeze cannot miss a worker that is just being started.
//! - The state has a worker's process id exactly until it is reaped, and signals are sent under the lock: they never
//!   reach another process that got the same id.
//! - A worker serves one program and one bag's directories (`slot::Serves`). It is replaced before jobs of another;
//!   before the first job of a program that is not compiled yet, a compiling worker has the slot.
//! - A worker's stderr is read between jobs, and its beginning is logged: it reaches no terminal.
//! - Every started job has a place reserved in the channel of events, so that the end of a task neither waits for a
//!   reader nor is lost.
//!
//! A worker leads a session, hence a process group, of its own (the terminal's Ctrl-C does not reach it).

pub(crate) mod event;
mod shared;
mod slot;
mod threads;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use rustix::process::Signal;
use tokio::sync::mpsc;

use self::event::{WorkerEvent, never_ran};
use self::shared::{Shared, State};
use self::slot::{Serves, Slot, Waiting};
use crate::compile_cache::CompileCache;
use crate::disk::Allowance;
use crate::group;
use crate::job::Job;
use crate::outcome::Outcome;
use crate::processes;
use crate::protocol;
use crate::shared_output::Streams;
use crate::start_error::StartError;

/// Configuration of a pool.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The command that runs [`super::child::main`]: the program, then its arguments.
    pub command: Vec<OsString>,
    /// Number of slots. A slot has a thread from the beginning and a worker process from its first job.
    pub slots: usize,
    /// Directory for compiled programs; created if need be. Belongs to the pool alone: no worker writes there.
    pub cache_dir: PathBuf,
    /// Whether workers refuse to run on a machine that lacks a part of their confinement ([`super::gaps`]).
    pub strict: bool,
    /// Receives the ends of tasks. Needs room for one event per job that is started and not ended.
    pub events: mpsc::Sender<WorkerEvent>,
}

/// Why a pool could not be created. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No program to run.
    #[error("the worker command is empty: give the program to run")]
    NoCommand,
    /// The directory for compiled programs cannot be used.
    #[error("cannot use the directory for compiled programs {dir:?}: {source}")]
    CacheDir {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system gives no more threads.
    #[error("cannot start a thread for worker slots: {0}")]
    Thread(#[source] io::Error),
}

/// The worker slots of a machine.
///
/// All methods return at once (starting aside, which may take the time of starting one process) and may be called from
/// async code; [`Pool::shutdown`] takes milliseconds per worker.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Sets up the slots. No worker is started before the first job.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn new(config: PoolConfig) -> Result<Self, PoolError> {
        if config.command.is_empty() {
            return Err(PoolError::NoCommand);
        }
        let cache = CompileCache::open(&config.cache_dir)
            .map_err(|source| PoolError::CacheDir { dir: config.cache_dir.clone(), source })?;
        // Before there are workers.
        if let Err(gap) = group::groups() {
            tracing::debug!("{}", gap.what);
        }
        let mut slots = Vec::new();
        slots.resize_with(config.slots, Slot::default);
        let (next_number, timer_at, disk_is_watched) = (0, None, false);
        let state = State { frozen: false, closing: false, slots, next_number, timer_at, disk_is_watched };
        let shared = Arc::new(Shared {
            command: config.command,
            strict: config.strict,
            cache,
            events: config.events,
            state: Mutex::new(state),
            wake: (0..config.slots).map(|_| Condvar::new()).collect(),
            timer: Condvar::new(),
            disk: Condvar::new(),
        });
        // From here on dropping the pool ends the threads.
        let mut pool = Pool { shared: Arc::clone(&shared), threads: Vec::new() };
        let for_timer = Arc::clone(&shared);
        pool.spawn("worker-timer".to_owned(), move || for_timer.run_timer())?;
        let for_disk = Arc::clone(&shared);
        pool.spawn("worker-disk".to_owned(), move || for_disk.watch_disk())?;
        for slot in 0..config.slots {
            let for_slot = Arc::clone(&shared);
            pool.spawn(format!("worker-slot-{slot}"), move || for_slot.run_slot(slot))?;
        }
        Ok(pool)
    }

    fn spawn(&mut self, name: String, body: impl FnOnce() + Send + 'static) -> Result<(), PoolError> {
        self.threads.push(std::thread::Builder::new().name(name).spawn(body).map_err(PoolError::Thread)?);
        Ok(())
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.shared.wake.len()
    }

    /// Process ids of the present workers and of all that native programs have started, to tell their processor time
    /// from the owner's.
    pub fn worker_pids(&self) -> Vec<u32> {
        let pid = |slot: &Slot| {
            let pid = u32::try_from(slot.worker?.as_raw_nonzero().get()).ok()?;
            Some((pid, slot.serves.as_ref().is_some_and(|serves| serves.native)))
        };
        let workers: Vec<(u32, bool)> = self.shared.lock().slots.iter().filter_map(pid).collect();
        workers.into_iter().flat_map(|(pid, native)| if native { processes::tree_of(pid) } else { vec![pid] }).collect()
    }

    /// Gives `job` to `slot`. It begins at once, or when the slot thaws; its end comes as [`WorkerEvent::Ended`]. Returns the job's number,
    /// larger than any before.
    ///
    /// # Errors
    /// [`StartError`]; nothing changed then.
    pub fn start(&self, slot: usize, job: &Job) -> Result<u64, StartError> {
        self.put(slot, job, false)
    }

    /// As [`Pool::start`], but the slot may have jobs: the new one begins when those have ended.
    ///
    /// # Errors
    /// [`StartError`], but never [`StartError::Busy`].
    pub fn append(&self, slot: usize, job: &Job) -> Result<u64, StartError> {
        self.put(slot, job, true)
    }

    /// What the running job of this number has written to its standard output and error so far, of each stream that is in no file yet;
    /// nothing if another job runs.
    pub fn streams(&self, slot: usize, number: u64) -> Streams {
        let shared_output = self.shared.lock().slots.get(slot).and_then(|place| place.shared_output.clone());
        shared_output.map(|shared_output| shared_output.of(number)).unwrap_or_default()
    }

    fn put(&self, slot: usize, job: &Job, behind: bool) -> Result<u64, StartError> {
        job.validate()?;
        let mut packet = protocol::encode_job(job)?;
        let mut state = self.shared.lock();
        if state.closing {
            return Err(StartError::ShutDown);
        }
        let slots = state.slots.len();
        let place = state.slots.get_mut(slot).ok_or(StartError::NoSlot { slot, slots })?;
        if !behind && !place.is_idle() {
            return Err(StartError::Busy { slot });
        }
        let permit = self.shared.events.clone().try_reserve_owned().map_err(|_| StartError::EventsNotRead)?;
        let number = state.next_number;
        state.next_number += 1;
        packet.number(number);
        let serves = Serves { hash: job.program_hash, reach: Arc::clone(&job.reach), native: job.native };
        let (program, limit) = (job.program.clone(), job.time_limit);
        let place = &mut state.slots[slot];
        let allowance = Allowance::of(job);
        let memory_bytes = job.memory_bytes;
        place.waiting.push_back(Waiting { number, packet, program, serves, limit, memory_bytes, allowance, permit });
        if place.listening {
            place.hand_over();
        } else {
            self.shared.wake[slot].notify_one();
        }
        self.shared.nudge_timer(&state);
        self.shared.wake_disk_watch(&mut state);
        Ok(number)
    }

    /// Takes back all jobs of `slot` that have not begun, also while it is frozen; returns their numbers, in order.
    /// They will not begin, and have no events.
    pub fn take_back(&self, slot: usize) -> Vec<u64> {
        let mut state = self.shared.lock();
        let Some(place) = state.slots.get_mut(slot) else { return Vec::new() };
        place.recall();
        std::mem::take(&mut place.waiting).into_iter().map(|job| job.number).collect()
    }

    /// Kills the running or next task of `slot`, frozen or not; an event reports its end ([`Outcome::Stopped`], unless
    /// another outcome was decided just before). False if there was no task.
    pub fn stop(&self, slot: usize) -> bool {
        let mut state = self.shared.lock();
        let Some(place) = state.slots.get_mut(slot) else { return false };
        if place.condemn(Outcome::Stopped) {
            return true;
        }
        let Some(waiting) = place.waiting.pop_front() else { return false };
        waiting.permit.send(never_ran(slot, Outcome::Stopped));
        true
    }

    /// Freezes all workers at once: running tasks stop and keep their memory; jobs started meanwhile do not begin.
    /// Idempotent.
    pub fn freeze(&self) {
        self.shared.set_frozen(|state| state.frozen = true);
    }

    /// Undoes [`Pool::freeze`]. Slots that were frozen singly stay frozen.
    pub fn thaw(&self) {
        self.shared.set_frozen(|state| state.frozen = false);
    }

    /// Freezes one slot, independently of [`Pool::freeze`]. False if there is no such slot.
    pub fn freeze_slot(&self, slot: usize) -> bool {
        self.shared.set_slot_frozen(slot, true)
    }

    /// Undoes [`Pool::freeze_slot`]. False if there is no such slot.
    pub fn thaw_slot(&self, slot: usize) -> bool {
        self.shared.set_slot_frozen(slot, false)
    }

    /// Kills all workers, frozen ones too, and waits until they and the threads are gone: milliseconds. Running tasks
    /// end as [`Outcome::Stopped`]. Dropping the pool does the same.
    pub fn shutdown(mut self) {
        self.close();
    }

    fn close(&mut self) {
        {
            let mut state = self.shared.lock();
            state.closing = true;
            for (number, slot) in state.slots.iter_mut().enumerate() {
                slot.recall();
                for waiting in std::mem::take(&mut slot.waiting) {
                    waiting.permit.send(never_ran(number, Outcome::Stopped));
                }
                if !slot.condemn(Outcome::Stopped) {
                    // Its thread may be waiting for a report of it.
                    slot.signal(Signal::KILL);
                }
            }
        }
        self.shared.timer.notify_all();
        self.shared.disk.notify_all();
        self.shared.wake.iter().for_each(Condvar::notify_all);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}
