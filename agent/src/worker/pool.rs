//! The agent's side: slots, their threads and worker processes.
//!
//! # How it holds together
//! - A slot has a run of jobs, one after the other. What the worker has room for is handed over at once, so that it
//!   does not wait for the agent between two small jobs: one packet each, through a socket of which the agent keeps the
//!   worker's end too. A packet is read by one of the two. So [`Pool::take_back`] gets back exactly the jobs that have
//!   not begun, whether the worker is busy, frozen or dead, and whoever dies or is stopped takes one job with it.
//! - Each slot has a thread. It starts the worker when a job comes, blocks on the pipe of reports until the worker
//!   reports or dies, and reaps it. The thread outlives the worker, because the kernel sends a worker its death
//!   signal when the *thread* that started it ends. While more jobs are with the worker, the thread lets reports
//!   accumulate for a moment: waking up for each would cost more than a small job.
//! - One timer thread kills workers whose task is over its limit. It sleeps until the next limit.
//! - All they share is under one lock, held for moments: never across a pipe or a wait, though across starting a
//!   process (about a millisecond), so that a freeze cannot miss a worker that is being born.
//! - A worker's process id is in that state exactly as long as it is not reaped, and signals are sent under the lock:
//!   they never reach another process that got the same id.
//! - Every started job has a place reserved in the channel of events, so that the end of a task never waits for a
//!   reader, nor is lost.
//!
//! A worker leads a session, hence a process group, of its own (the terminal's Ctrl-C goes past it).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::sync::mpsc;

use super::protocol::{self, End, FromWorker, Hello};
use super::{Job, JobError, Outcome};

/// Longest that loading and compiling a program may take. Our choice: a hundred times what a megabyte takes.
const PREPARE_LIMIT: Duration = Duration::from_secs(120);

/// How long reports may accumulate while the worker has more to do.
const ACCUMULATE: Duration = Duration::from_millis(1);

/// How a pool is set up.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The command that runs [`super::child::main`]: the program, then its arguments.
    pub command: Vec<OsString>,
    /// Number of slots. A slot has a thread from the beginning and a worker process from its first job.
    pub slots: usize,
    /// Directory for compiled programs; created if need be. Belongs to the pool alone.
    pub cache_dir: PathBuf,
    /// Where ends of tasks are told. Needs room for one event per job that is started and not ended.
    pub events: mpsc::Sender<WorkerEvent>,
}

/// What a pool tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// A task ended: exactly one per job that was successfully started and not taken back, in the order of the slot's
    /// run. When that of the last arrives the slot is free again.
    Ended {
        /// The slot.
        slot: usize,
        /// How.
        outcome: Outcome,
        /// How long it ran, not counting frozen time and the preparation of its program.
        wall: Duration,
        /// Processor time it took. Of a task that was killed, in steps of 10 ms, and including preparation.
        cpu: Duration,
        /// Processor time of loading or compiling the program; zero when the worker still had it.
        compile: Duration,
        /// It wrote more to stdout or stderr than [`Job::output_bytes`]: the rest is lost.
        output_truncated: bool,
        /// [`Job::directory`] is as it was: the task had nothing of it, and wrote nothing.
        untouched: bool,
    },
}

/// Why a pool could not be created. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No program to run.
    #[error("the worker command is empty: give the program to run")]
    NoCommand,
    /// The directory for compiled programs cannot be told to a worker.
    #[error("the directory for compiled programs {dir:?} is not valid UTF-8: choose another")]
    CacheDir {
        /// The directory.
        dir: PathBuf,
    },
    /// The system gives no more threads.
    #[error("cannot start a thread for worker slots: {0}")]
    Thread(#[source] io::Error),
}

/// Why a job was not started. Nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no such slot.
    #[error("there is no slot {slot}: the pool has {slots}")]
    NoSlot {
        /// The slot asked for.
        slot: usize,
        /// How many there are.
        slots: usize,
    },
    /// The slot has a job.
    #[error("slot {slot} is busy: wait for the end of its task")]
    Busy {
        /// The slot.
        slot: usize,
    },
    /// The job itself.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The job does not fit into a frame.
    #[error("the job's description is larger than {} KiB: pass its standard input as a file", protocol::JOB_BYTES_MAX >> 10)]
    TooLarge,
    /// A large description could not be written for the worker to read.
    #[error("the job's description cannot be written to its directory: {0}")]
    Write(#[source] io::Error),
    /// There is no place for the event of its end.
    #[error("the channel of worker events is full or closed: read the events before starting more")]
    EventsNotRead,
    /// The pool was shut down.
    #[error("the pool is shut down")]
    ShutDown,
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

#[derive(Debug)]
struct Shared {
    command: Vec<OsString>,
    hello: Vec<u8>,
    events: mpsc::Sender<WorkerEvent>,
    state: Mutex<State>,
    /// One for each slot's thread: a job came, the slot thawed, or the pool closes.
    wake: Vec<Condvar>,
    /// For the timer: a limit began, moved or ended, or the pool closes.
    timer: Condvar,
}

#[derive(Debug)]
struct State {
    frozen: bool,
    closing: bool,
    slots: Vec<Slot>,
    /// Of the next job.
    next_number: u64,
    /// When the timer looks next by itself.
    timer_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The worker, from its start until it is reaped.
    worker: Option<Pid>,
    /// The way to it and back, as long.
    line: Option<Line>,
    /// The worker has read the greeting: what else is in the line are jobs.
    greeted: bool,
    /// Frozen on its own, besides the whole pool.
    frozen: bool,
    /// Since when it has been frozen for either reason.
    frozen_since: Option<Instant>,
    /// Jobs that were handed over, in order. Of these only the first may have begun.
    handed: VecDeque<Waiting>,
    /// Jobs behind them.
    waiting: VecDeque<Waiting>,
    /// Of the first that was handed over.
    running: Option<Running>,
    /// Its thread is taking the worker's reports: who adds a job hands it over. Else the thread does, which looks first
    /// whether the worker lives.
    listening: bool,
}

/// Where a worker's jobs are until it takes them.
#[derive(Debug)]
struct Line {
    ours: OwnedFd,
    /// The worker's end: what can still be read from it the worker has not begun.
    theirs: OwnedFd,
}

#[derive(Debug)]
struct Waiting {
    /// Its name in the pool.
    number: u64,
    packet: Vec<u8>,
    limit: Option<Duration>,
    permit: mpsc::OwnedPermit<WorkerEvent>,
}

/// The job that is with the worker and comes next or has begun.
#[derive(Debug)]
struct Running {
    /// When the present phase (preparation or run) began, moved on by what was spent frozen.
    since: Instant,
    limit: Option<Duration>,
    /// The worker starts, loads or compiles: the limit is [`PREPARE_LIMIT`], not the task's.
    preparing: bool,
    /// It was frozen meanwhile: the worker's own clock does not tell how long it ran.
    was_frozen: bool,
    /// Decided by the agent: the worker is being killed for it.
    verdict: Option<Outcome>,
}

impl Line {
    fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self { ours, theirs })
    }

    /// Whether there was room for the packet.
    fn send(&self, packet: &[u8]) -> bool {
        loop {
            match rustix::net::send(&self.ours, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return false,
                Err(error) => {
                    tracing::debug!(%error, "a worker does not take a job");
                    return false;
                }
            }
        }
    }

    /// Takes everything out of the line that the worker has not taken: the numbers of these jobs. The worker may take one
    /// of them meanwhile, and not the first.
    fn drain(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        loop {
            // The rest of a packet that is not read is dropped with it.
            let mut number = [0; protocol::NUMBER_BYTES];
            match rustix::net::recv(&self.theirs, &mut number, RecvFlags::DONTWAIT) {
                Ok((protocol::NUMBER_BYTES, _)) => numbers.push(u64::from_le_bytes(number)),
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return numbers,
            }
        }
    }
}

impl Slot {
    fn signal(&self, signal: Signal) {
        let Some(pid) = self.worker else { return };
        // Until the worker has made its own group there is no such group; then it is a lone process.
        let result =
            rustix::process::kill_process_group(pid, signal).or_else(|_| rustix::process::kill_process(pid, signal));
        if let Err(error) = result {
            tracing::warn!(pid = pid.as_raw_nonzero(), ?signal, %error, "cannot signal a worker");
        }
    }

    /// Stops or continues the worker as `pool_frozen` and its own state demand. Says whether something changed.
    fn settle(&mut self, pool_frozen: bool, now: Instant) -> bool {
        match (pool_frozen || self.frozen, self.frozen_since) {
            (true, None) => {
                self.signal(Signal::STOP);
                self.frozen_since = Some(now);
                if let Some(running) = &mut self.running {
                    running.was_frozen = true;
                }
                true
            }
            (false, Some(since)) => {
                self.frozen_since = None;
                if let Some(running) = &mut self.running {
                    running.since += now.saturating_duration_since(since.max(running.since));
                }
                self.signal(Signal::CONT);
                true
            }
            _ => false,
        }
    }

    /// Ends the running task for `verdict`, unless that is decided already.
    fn condemn(&mut self, verdict: Outcome) -> bool {
        let Some(running) = &mut self.running else { return false };
        if running.verdict.is_none() {
            running.verdict = Some(verdict);
            self.signal(Signal::KILL);
        }
        true
    }

    /// When the running task is over its limit; `None` while nothing can run out.
    fn deadline(&self) -> Option<Instant> {
        match &self.running {
            Some(Running { since, limit: Some(limit), verdict: None, .. }) if self.frozen_since.is_none() => {
                since.checked_add(*limit)
            }
            _ => None,
        }
    }

    fn is_idle(&self) -> bool {
        self.handed.is_empty() && self.waiting.is_empty()
    }

    /// Hands over to the worker what it has room for. One that is about to be killed gets nothing.
    fn hand_over(&mut self) {
        if self.running.as_ref().is_some_and(|running| running.verdict.is_some()) {
            return;
        }
        while let (Some(line), true, Some(next)) = (&self.line, self.greeted, self.waiting.front()) {
            if !line.send(&next.packet) {
                return;
            }
            self.handed.extend(self.waiting.pop_front());
            if self.running.is_none() {
                self.begin(false);
            }
        }
    }

    /// The first job that was handed over is the one that runs, if there is one.
    fn begin(&mut self, preparing: bool) {
        let was_frozen = self.frozen_since.is_some();
        self.running = self.handed.front().map(|first| {
            let limit = if preparing { Some(PREPARE_LIMIT) } else { first.limit };
            Running { since: Instant::now(), limit, preparing, was_frozen, verdict: None }
        });
    }

    /// Gets back what was handed over and has not begun.
    fn recall(&mut self) {
        // Before that only the greeting is in the line, which must stay there.
        let Some(line) = self.line.as_ref().filter(|_| self.greeted) else { return };
        let unread = line.drain();
        let (back, begun): (VecDeque<_>, VecDeque<_>) =
            self.handed.drain(..).partition(|job| unread.contains(&job.number));
        self.handed = begun;
        for job in back.into_iter().rev() {
            self.waiting.push_front(job);
        }
        if self.handed.is_empty() {
            self.running = None;
        }
    }
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
        let hello = Hello { agent_pid: std::process::id(), cache_dir: config.cache_dir.clone() };
        let hello = protocol::encode_hello(&hello).ok_or(PoolError::CacheDir { dir: config.cache_dir })?;
        let mut slots = Vec::new();
        slots.resize_with(config.slots, Slot::default);
        let shared = Arc::new(Shared {
            command: config.command,
            hello,
            events: config.events,
            state: Mutex::new(State { frozen: false, closing: false, slots, next_number: 0, timer_at: None }),
            wake: (0..config.slots).map(|_| Condvar::new()).collect(),
            timer: Condvar::new(),
        });
        // From here on dropping the pool ends the threads that were started.
        let mut pool = Pool { shared: Arc::clone(&shared), threads: Vec::new() };
        let for_timer = Arc::clone(&shared);
        pool.spawn("worker-timer".to_owned(), move || for_timer.run_timer())?;
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

    /// Process ids of the present workers, for telling their processor time from the owner's.
    pub fn worker_pids(&self) -> Vec<u32> {
        let pid = |slot: &Slot| slot.worker.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
        self.shared.lock().slots.iter().filter_map(pid).collect()
    }

    /// Gives `job` to `slot`. It begins at once, or when the slot thaws; its end comes as [`WorkerEvent::Ended`].
    ///
    /// # Errors
    /// [`StartError`]; nothing changed then.
    pub fn start(&self, slot: usize, job: &Job) -> Result<(), StartError> {
        self.put(slot, job, false).map(drop)
    }

    /// As [`Pool::start`], also where the slot has jobs: it begins when those have ended. Returns the job's number, larger
    /// than that of any before.
    ///
    /// # Errors
    /// [`StartError`], but never [`StartError::Busy`].
    pub fn append(&self, slot: usize, job: &Job) -> Result<u64, StartError> {
        self.put(slot, job, true)
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
        packet[..protocol::NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        let place = &mut state.slots[slot];
        place.waiting.push_back(Waiting { number, packet, limit: job.time_limit, permit });
        if place.listening {
            place.hand_over();
        } else {
            self.shared.wake[slot].notify_one();
        }
        self.shared.nudge_timer(&state);
        Ok(number)
    }

    /// Takes back all jobs of `slot` that have not begun, also while it is frozen: their numbers, in order. They will not
    /// begin, and no events of them will come.
    pub fn take_back(&self, slot: usize) -> Vec<u64> {
        let mut state = self.shared.lock();
        let Some(place) = state.slots.get_mut(slot) else { return Vec::new() };
        place.recall();
        std::mem::take(&mut place.waiting).into_iter().map(|job| job.number).collect()
    }

    /// Kills the task of `slot` that runs, or comes next, frozen or not; its end comes as an event
    /// ([`Outcome::Stopped`], unless something else was decided the moment before). Says whether there was a task.
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

    /// Freezes all workers at once: whatever runs stops where it is and keeps its memory; what is started meanwhile
    /// does not begin. Repeating it changes nothing.
    pub fn freeze(&self) {
        self.shared.set_frozen(|state| state.frozen = true);
    }

    /// Undoes [`Pool::freeze`]. Slots that were frozen singly stay frozen.
    pub fn thaw(&self) {
        self.shared.set_frozen(|state| state.frozen = false);
    }

    /// Freezes one slot, independently of [`Pool::freeze`]. Says whether there is such a slot.
    pub fn freeze_slot(&self, slot: usize) -> bool {
        self.shared.set_slot_frozen(slot, true)
    }

    /// Undoes [`Pool::freeze_slot`]. Says whether there is such a slot.
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

fn never_ran(slot: usize, outcome: Outcome) -> WorkerEvent {
    let (wall, cpu, compile) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    WorkerEvent::Ended { slot, outcome, wall, cpu, compile, output_truncated: false, untouched: false }
}

/// The slot thread's hold on its worker.
struct Link {
    child: Child,
    reports: BufReader<ChildStdout>,
    /// Processor time it had used at the end of its last job.
    cpu: Duration,
}

impl Shared {
    /// The state. A thread that panicked left it consistent: nothing is changed in two steps across a panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_frozen(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let now = Instant::now();
        let State { frozen, slots, .. } = &mut *state;
        for (slot, wake) in slots.iter_mut().zip(&self.wake) {
            if slot.settle(*frozen, now) {
                wake.notify_all();
            }
        }
        drop(state);
        self.timer.notify_all();
    }

    fn set_slot_frozen(&self, slot: usize, frozen: bool) -> bool {
        let mut found = false;
        self.set_frozen(|state| {
            if let Some(slot) = state.slots.get_mut(slot) {
                slot.frozen = frozen;
                found = true;
            }
        });
        found
    }

    /// Wakes the timer where it would come too late. It comes too early without harm.
    fn nudge_timer(&self, state: &State) {
        let next = state.slots.iter().filter_map(Slot::deadline).min();
        if next.is_some_and(|next| state.timer_at.is_none_or(|at| next < at)) {
            self.timer.notify_all();
        }
    }

    fn run_timer(&self) {
        let mut state = self.lock();
        while !state.closing {
            let now = Instant::now();
            for slot in &mut state.slots {
                if slot.deadline().is_none_or(|deadline| deadline > now) {
                    continue;
                }
                match slot.running {
                    Some(Running { preparing: false, limit: Some(limit), .. }) => {
                        slot.condemn(Outcome::TimedOut { limit });
                    }
                    _ => {
                        let seconds = PREPARE_LIMIT.as_secs();
                        let message = format!("loading and compiling the program took more than {seconds} s");
                        slot.condemn(Outcome::CouldNotStart { message });
                    }
                }
            }
            state.timer_at = state.slots.iter().filter_map(Slot::deadline).min();
            state = match state.timer_at {
                None => self.timer.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let sleep = next.saturating_duration_since(now);
                    self.timer.wait_timeout(state, sleep).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn run_slot(&self, slot: usize) {
        let mut link: Option<Link> = None;
        while self.wait_for_job(slot, &mut link) {
            if let Some(mut held) = link.take() {
                match self.listen(slot, &mut held) {
                    Some(lost) => self.bury(slot, held, lost),
                    None => link = Some(held),
                }
            }
        }
        if let Some(link) = link {
            self.reap(slot, link);
        }
    }

    /// Waits for a job and makes sure that there is a worker which has it. Whether the pool goes on.
    fn wait_for_job(&self, slot: usize, link: &mut Option<Link>) -> bool {
        let mut state = self.lock();
        loop {
            if state.closing {
                return false;
            }
            let place = &mut state.slots[slot];
            if place.frozen_since.is_none() && !place.is_idle() {
                match self.ensure_worker(place, link) {
                    Ok(()) => {
                        place.listening = true;
                        self.nudge_timer(&state);
                        return true;
                    }
                    Err(error) => {
                        let message = format!("cannot start the worker process: {error}");
                        if let Some(waiting) = place.waiting.pop_front() {
                            waiting.permit.send(never_ran(slot, Outcome::CouldNotStart { message }));
                        }
                        continue;
                    }
                }
            }
            state = self.wake[slot].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Under the lock, with the slot not frozen and a job in it: a worker that lives, or a new one.
    fn ensure_worker(&self, place: &mut Slot, link: &mut Option<Link>) -> io::Result<()> {
        if let Some(held) = link {
            // It may have been killed while it had nothing to do.
            if matches!(held.child.try_wait(), Ok(None)) {
                place.hand_over();
                return Ok(());
            }
            place.recall();
            (place.worker, place.line) = (None, None);
            *link = None;
        }
        let line = Line::new()?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).env_clear().stdin(line.theirs.try_clone()?).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the worker has no pipes"))?;
        place.worker = pid_of(&child);
        if !line.send(&self.hello) {
            tracing::warn!("a worker cannot be greeted");
        }
        (place.line, place.greeted) = (Some(line), false);
        // A new worker has to start and load the program; it says when it has, and when the run itself begins.
        let limit = Some(PREPARE_LIMIT);
        place.running =
            Some(Running { since: Instant::now(), limit, preparing: true, was_frozen: false, verdict: None });
        *link = Some(Link { child, reports: BufReader::new(stdout), cpu: Duration::ZERO });
        Ok(())
    }

    /// Takes the worker's reports until its run is over (`None`), or until it is dead, condemned or talks nonsense: the
    /// reason, unless its exit status is the reason.
    fn listen(&self, slot: usize, link: &mut Link) -> Option<Option<String>> {
        loop {
            match protocol::read(&mut link.reports, protocol::FROM_WORKER_BYTES_MAX) {
                Ok(Some(FromWorker::Done(report))) => {
                    link.cpu = report.worker_cpu;
                    match self.done(slot, report) {
                        None => return Some(None),
                        Some(0) => return None,
                        Some(1) => {}
                        Some(_) if !link.reports.buffer().is_empty() => {}
                        Some(_) => std::thread::sleep(ACCUMULATE),
                    }
                }
                Ok(Some(FromWorker::Ready)) => {
                    let mut state = self.lock();
                    let place = &mut state.slots[slot];
                    place.greeted = true;
                    if place.running.as_ref().is_none_or(|running| running.verdict.is_none()) {
                        place.hand_over();
                        place.begin(true);
                    }
                    self.nudge_timer(&state);
                }
                Ok(Some(FromWorker::Preparing)) => self.enter_phase(slot, true),
                Ok(Some(FromWorker::Begun)) => self.enter_phase(slot, false),
                Ok(None) => return Some(None),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Some(None),
                Err(error) => return Some(Some(format!("the worker sent {error}"))),
            }
        }
    }

    /// The first job of the run is over; how many jobs are left in it. `None`: that was decided otherwise before, and what
    /// the worker says comes too late.
    fn done(&self, slot: usize, report: protocol::Report) -> Option<usize> {
        let mut state = self.lock();
        let place = &mut state.slots[slot];
        let running = place.running.take()?;
        if running.verdict.is_some() {
            place.running = Some(running);
            return None;
        }
        let now = place.frozen_since.unwrap_or_else(Instant::now);
        // Of the agent's clock the time is known that it was frozen, of the worker's the rest.
        let wall = if running.was_frozen { now.saturating_duration_since(running.since) } else { report.wall };
        let job = place.handed.pop_front()?;
        place.begin(false);
        place.hand_over();
        let left = place.handed.len() + place.waiting.len();
        place.listening = left > 0;
        self.nudge_timer(&state);
        drop(state);
        let outcome = match report.end {
            End::Exited { code } => Outcome::Exited { code },
            End::Trapped { message } => Outcome::Trapped { message },
            End::Invalid { message } => Outcome::Invalid { message },
            End::CouldNotStart { message } => Outcome::CouldNotStart { message },
        };
        let protocol::Report { cpu, compile, output_truncated, untouched, .. } = report;
        job.permit.send(WorkerEvent::Ended { slot, outcome, wall, cpu, compile, output_truncated, untouched });
        Some(left)
    }

    fn enter_phase(&self, slot: usize, preparing: bool) {
        let mut state = self.lock();
        let place = &mut state.slots[slot];
        let verdict = place.running.as_mut().and_then(|running| running.verdict.take());
        place.begin(preparing);
        if let Some(running) = &mut place.running {
            running.verdict = verdict;
        }
        self.nudge_timer(&state);
    }

    /// The worker is no more, or about to be: one job goes with it, the others wait for the next worker.
    fn bury(&self, slot: usize, link: Link, lost: Option<String>) {
        let before = link.cpu;
        let (wall, verdict) = {
            let place = &mut self.lock().slots[slot];
            place.listening = false;
            let now = place.frozen_since.unwrap_or_else(Instant::now);
            match place.running.take() {
                Some(Running { since, verdict, .. }) => (now.saturating_duration_since(since), verdict),
                None => (Duration::ZERO, None),
            }
        };
        let (status, cpu) = self.reap(slot, link);
        let job = {
            let place = &mut self.lock().slots[slot];
            // One that did not even get to its first job is no good for it.
            let first = if place.greeted { None } else { place.waiting.pop_front() };
            // Nothing is handed over to a worker that is gone.
            let job = place.handed.pop_front().or(first);
            for behind in place.handed.drain(..).rev() {
                place.waiting.push_front(behind);
            }
            job
        };
        let Some(job) = job else { return };
        let outcome = verdict.unwrap_or_else(|| Outcome::WorkerDied { reason: lost.unwrap_or(status) });
        let (cpu, compile, output_truncated) = (cpu.saturating_sub(before), Duration::ZERO, false);
        let untouched = false;
        job.permit.send(WorkerEvent::Ended { slot, outcome, wall, cpu, compile, output_truncated, untouched });
    }

    /// Makes an end of a worker: how it ended, in words, and the processor time it used in its life.
    fn reap(&self, slot: usize, mut link: Link) -> (String, Duration) {
        // It is dead, or told to die, or not to be trusted any more.
        self.lock().slots[slot].signal(Signal::KILL);
        let mut cpu = link.cpu;
        if let Some(pid) = pid_of(&link.child) {
            // Wait without reaping: the id stays ours, and its times can still be read.
            match rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(_) => cpu = cpu_of(pid).unwrap_or(cpu),
                Err(error) => tracing::warn!(slot, %error, "cannot wait for a worker"),
            }
        }
        let mut state = self.lock();
        let status = link.child.wait();
        (state.slots[slot].worker, state.slots[slot].line) = (None, None);
        drop(state);
        let words = match status {
            Ok(status) => match (status.signal(), status.code()) {
                (Some(9), _) => "the worker process was killed (signal 9), perhaps because memory ran out".to_owned(),
                (Some(signal), _) => format!("the worker process crashed (signal {signal})"),
                (None, Some(code)) => format!("the worker process gave up (exit code {code}); the log says why"),
                (None, None) => "the worker process ended".to_owned(),
            },
            Err(error) => format!("the worker process is lost: {error}"),
        };
        (words, cpu)
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// User and system time of a process that need not run any more, from `/proc/PID/stat`.
fn cpu_of(pid: Pid) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything; of what follows, fields 12 and 13 (14 and 15 of all) are the times.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().ok());
    let ticks = times.next()?? + times.next()??;
    // In USER_HZ, which is 100 on every Linux that Rust runs on.
    Some(Duration::from_millis(ticks.saturating_mul(10)))
}
