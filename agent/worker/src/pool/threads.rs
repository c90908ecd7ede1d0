//! The pool's threads: one for each slot, which starts, hears and reaps its worker, and the timers.

use std::io::{self, BufReader, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use super::event::{WorkerEvent, never_ran};
use super::shared::{Shared, State};
use super::slot::{JobSocket, PREPARE_LIMIT, Running, Serves, Slot};
use crate::disk::Allowance;
use crate::end::End;
use crate::group::{Group, groups};
use crate::open_files::Holder;
use crate::outcome::Outcome;
use crate::processor_time::cpu_of;
use crate::protocol::{self, FromWorker, Hello, Role};
use crate::shared_output::SharedOutputReader;

/// Longest run that a report may claim: a worker that ran foreign code may report anything, and others rely on it.
const RUN_MAX: Duration = Duration::from_secs(90 * 86_400);

/// Interval between looks at the disk use of running tasks, however long a look takes: that has limits of its own
/// (`disk`).
const DISK_INTERVAL: Duration = Duration::from_secs(1);

/// How long reports may accumulate while the worker has more to do.
const ACCUMULATE: Duration = Duration::from_millis(1);

/// Most bytes kept of one worker's stderr. Our choice: a panic with its place.
const STDERR_BYTES_MAX: usize = 4096;

/// A slot thread's handles to its worker.
struct Link {
    child: Child,
    reports: BufReader<ChildStdout>,
    stderr: ChildStderr,
    /// The beginning of its stderr.
    stderr_head: String,
    /// Processor time it had used at the end of its last job.
    cpu: Duration,
    /// Processor time of preparing its program, until it is charged to a job.
    compile: Duration,
    /// The control group of a native task's processes, removed after them.
    group: Option<Group>,
    /// The memory in which its tasks' output begins.
    shared_output: Option<Arc<SharedOutputReader>>,
}

/// Why a worker cannot be used any more.
enum Lost {
    /// It has ended, or was condemned.
    Ended,
    /// It broke the protocol.
    Nonsense(String),
    /// Its program cannot be used: how its jobs end.
    Unusable(End),
}

/// The next step of a slot's thread.
enum Next {
    /// Receive the reports of a worker that has jobs.
    Listen,
    /// Have a program compiled for the waiting jobs.
    Compile(Serves, PathBuf),
}

impl Shared {
    /// The state. After a thread panicked it is consistent: no change is left half done across a panic.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_frozen(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let now = Instant::now();
        let State { frozen, slots, .. } = &mut *state;
        for (slot, wake) in slots.iter_mut().zip(&self.wake) {
            if slot.settle(*frozen, now) {
                wake.notify_all();
            }
        }
        self.wake_disk_watch(&mut state);
        drop(state);
        self.timer.notify_all();
    }

    pub(super) fn set_slot_frozen(&self, slot: usize, frozen: bool) -> bool {
        let mut found = false;
        self.set_frozen(|state| {
            if let Some(slot) = state.slots.get_mut(slot) {
                slot.frozen = frozen;
                found = true;
            }
        });
        found
    }

    /// Wakes the timer if it would wake too late. Waking too early does no harm.
    pub(super) fn nudge_timer(&self, state: &State) {
        let next = state.slots.iter().filter_map(Slot::deadline).min();
        if next.is_some_and(|next| state.timer_at.is_none_or(|at| next < at)) {
            self.timer.notify_all();
        }
    }

    pub(super) fn run_timer(&self) {
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
                        let message = format!("loading or compiling the program took more than {seconds} s");
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

    /// Wakes the disk watcher: something may run from now on.
    pub(super) fn wake_disk_watch(&self, state: &mut State) {
        if !std::mem::replace(&mut state.disk_is_watched, true) {
            self.disk.notify_all();
        }
    }

    /// Looks every second at the disk use of running tasks, and ends those over their limit. Sleeps while nothing runs.
    pub(super) fn watch_disk(&self) {
        let mut state = self.lock();
        while !state.closing {
            if !state.slots.iter().any(Slot::may_run) {
                state.disk_is_watched = false;
                state = self.disk.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state = self.disk.wait_timeout(state, DISK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
            let running: Vec<_> =
                state.slots.iter().enumerate().filter_map(|(slot, place)| Some((slot, place.first()?))).collect();
            drop(state);
            // One by one, so that no task's end waits for the look at all others.
            for (slot, (job, allowance, holder)) in running {
                let Some(end) = exceeded(&allowance, holder) else { continue };
                let place = &mut self.lock().slots[slot];
                if place.first().is_some_and(|(number, ..)| number == job) {
                    place.condemn(outcome_of(end));
                }
            }
            state = self.lock();
        }
    }

    pub(super) fn run_slot(&self, slot: usize) {
        let mut link: Option<Link> = None;
        // Processor time of compiling, until a worker of that program is charged with it.
        let mut compile = Duration::ZERO;
        while let Some(next) = self.wait_for_job(slot, &mut link, &mut compile) {
            match (next, link.take()) {
                (Next::Listen, Some(mut held)) => match self.listen(slot, &mut held) {
                    Some(lost) => self.bury(slot, held, lost),
                    None => link = Some(held),
                },
                (Next::Listen, None) => {}
                (Next::Compile(serves, program), _) => compile = self.compile(slot, &serves, program),
            }
        }
        if let Some(link) = link {
            self.reap(slot, link);
        }
    }

    /// Waits for a job, and starts its worker or has its program compiled. `None`: the pool closes.
    fn wait_for_job(&self, slot: usize, link: &mut Option<Link>, compile: &mut Duration) -> Option<Next> {
        let mut found: Option<([u8; 32], PathBuf)> = None;
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            let place = &mut state.slots[slot];
            let Some(front) = place.waiting.front().filter(|_| place.frozen_since.is_none()) else {
                state = self.wake[slot].wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (serves, program) = (front.serves.clone(), front.program.clone());
            if let Some(held) = link {
                // It may have been killed while it was idle.
                if place.serves.as_ref() == Some(&serves) && matches!(held.child.try_wait(), Ok(None)) {
                    place.hand_over();
                    place.listening = true;
                    self.nudge_timer(&state);
                    return Some(Next::Listen);
                }
                place.recall();
                drop(state);
                if let Some(old) = link.take() {
                    self.reap(slot, old);
                }
                state = self.lock();
                continue;
            }
            if serves.native {
                let group = group_for(front.memory_bytes);
                let role = Role::Native { group: group.as_ref().map(|group| group.member.clone()) };
                match self.spawn(place, role, serves, Vec::new(), Vec::new()) {
                    Ok(mut new) => {
                        new.group = group;
                        *link = Some(new);
                        place.listening = true;
                        self.nudge_timer(&state);
                        return Some(Next::Listen);
                    }
                    Err(error) => could_not_start(slot, place, &error),
                }
                continue;
            }
            let Some((_, artefact)) = found.as_ref().filter(|(program, _)| *program == serves.hash) else {
                drop(state);
                found = self.cache.find(&serves.hash).map(|artefact| (serves.hash, artefact));
                if found.is_none() {
                    return Some(Next::Compile(serves, program));
                }
                state = self.lock();
                continue;
            };
            let readable = serves.reach.readable.iter().cloned().chain([artefact.clone()]).collect();
            let writable = serves.reach.writable.clone();
            match self.spawn(place, Role::Run { artefact: artefact.clone() }, serves, readable, writable) {
                Ok(mut new) => {
                    new.compile = std::mem::take(compile);
                    *link = Some(new);
                    place.listening = true;
                    self.nudge_timer(&state);
                    return Some(Next::Listen);
                }
                Err(error) => could_not_start(slot, place, &error),
            }
        }
    }

    /// Starts a worker for the slot, under the lock.
    fn spawn(
        &self,
        place: &mut Slot,
        role: Role,
        serves: Serves,
        readable: Vec<PathBuf>,
        writable: Vec<PathBuf>,
    ) -> io::Result<Link> {
        let hello = Hello { agent_pid: std::process::id(), role, readable, writable, strict: self.strict };
        let shared_output = matches!(hello.role, Role::Run { .. }).then(SharedOutputReader::new).transpose()?;
        let beside = shared_output.as_ref().map(SharedOutputReader::handle).transpose()?;
        let shared_output = shared_output.map(Arc::new);
        let hello =
            protocol::encode_hello(&hello, beside).ok_or_else(|| io::Error::other("a path is not valid UTF-8"))?;
        let socket = JobSocket::new()?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).env_clear();
        command.stdin(socket.theirs.try_clone()?).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_this_thread(&mut command);
        let mut child = command.spawn()?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::Error::other("the worker has no pipes"));
        };
        if let Err(error) = hello.send(&socket.ours) {
            tracing::warn!(%error, "a worker cannot be greeted");
        }
        place.starts(pid_of(&child), socket, serves);
        place.shared_output.clone_from(&shared_output);
        let (cpu, compile) = (Duration::ZERO, Duration::ZERO);
        let (stderr_head, group) = (String::new(), None);
        let link =
            Link { child, reports: BufReader::new(stdout), stderr, stderr_head, cpu, compile, group, shared_output };
        // Its writes may wait for us, never our reads for it.
        rustix::fs::fcntl_setfl(&link.stderr, OFlags::NONBLOCK)?;
        Ok(link)
    }

    /// Has a program compiled by a worker of its own, which takes the slot meanwhile; returns the processor time. On
    /// failure the first waiting job fails.
    fn compile(&self, slot: usize, serves: &Serves, program: PathBuf) -> Duration {
        let draft = self.cache.draft();
        let mut state = self.lock();
        let is_closing = state.closing;
        let place = &mut state.slots[slot];
        let waits = place.waiting.front().is_some_and(|front| front.serves == *serves);
        if !waits || place.frozen_since.is_some() || is_closing {
            return Duration::ZERO;
        }
        let begun = draft.and_then(|draft| {
            let artefact = draft.path().to_owned();
            let role = Role::Compile { program: program.clone(), hash: serves.hash, artefact: artefact.clone() };
            Ok((self.spawn(place, role, serves.clone(), vec![program], vec![artefact])?, draft))
        });
        let (mut link, draft) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                could_not_start(slot, place, &error);
                return Duration::ZERO;
            }
        };
        self.nudge_timer(&state);
        drop(state);
        let lost = match protocol::read(&mut link.reports, protocol::FROM_WORKER_BYTES_MAX) {
            Ok(Some(FromWorker::Ready { cpu })) => match self.cache.keep(&serves.hash, draft) {
                Ok(_) => {
                    let mut state = self.lock();
                    if state.slots[slot].running.take().is_some_and(|running| running.verdict.is_none()) {
                        drop(state);
                        self.reap(slot, link);
                        return cpu.min(RUN_MAX);
                    }
                    Lost::Ended
                }
                Err(error) => {
                    Lost::Unusable(End::CouldNotStart { message: format!("cannot keep the compiled program: {error}") })
                }
            },
            Ok(Some(FromWorker::Unusable(end))) => Lost::Unusable(end),
            other => lost_by(other),
        };
        self.bury(slot, link, lost);
        Duration::ZERO
    }

    /// Receives the worker's reports until its run is over (`None`), or until it is dead, condemned or breaks the
    /// protocol.
    fn listen(&self, slot: usize, link: &mut Link) -> Option<Lost> {
        let mut is_ready = self.lock().slots[slot].ready;
        loop {
            match protocol::read(&mut link.reports, protocol::FROM_WORKER_BYTES_MAX) {
                Ok(Some(FromWorker::Ready { cpu })) if !is_ready => {
                    is_ready = true;
                    link.cpu = cpu.min(RUN_MAX);
                    link.compile = link.compile.saturating_add(link.cpu);
                    let mut state = self.lock();
                    let place = &mut state.slots[slot];
                    place.ready = true;
                    if place.running.as_ref().is_none_or(|running| running.verdict.is_none()) {
                        place.running = None;
                        place.hand_over();
                    }
                    self.nudge_timer(&state);
                }
                Ok(Some(FromWorker::Unusable(end))) if !is_ready => return Some(Lost::Unusable(end)),
                Ok(Some(FromWorker::Done(number, report))) if is_ready => {
                    link.cpu = report.worker_cpu;
                    match self.done(slot, link, number, report) {
                        Ok(0) => return None,
                        Ok(1) => {}
                        Ok(_) if !link.reports.buffer().is_empty() => {}
                        Ok(_) => std::thread::sleep(ACCUMULATE),
                        Err(lost) => return Some(lost),
                    }
                }
                other => return Some(lost_by(other)),
            }
        }
    }

    /// Handles the end of the first job; returns how many jobs the worker still has. Error: the worker must go.
    fn done(&self, slot: usize, link: &mut Link, number: u64, report: protocol::Report) -> Result<usize, Lost> {
        let mut state = self.lock();
        let place = &mut state.slots[slot];
        let Some(running) = place.running.take_if(|running| running.verdict.is_none()) else {
            // The outcome was decided before this late report; or there is nothing to report.
            let is_condemned = place.running.is_some();
            return Err(if is_condemned { Lost::Ended } else { out_of_turn() });
        };
        if place.handed.front().is_none_or(|first| first.number != number) {
            place.running = Some(running);
            return Err(out_of_turn());
        }
        let now = place.frozen_since.unwrap_or_else(Instant::now);
        // Frozen time is known by the agent's clock, the rest by the worker's.
        let wall =
            if running.was_frozen { now.saturating_duration_since(running.since) } else { report.wall.min(RUN_MAX) };
        let Some(job) = place.handed.pop_front() else { return Err(out_of_turn()) };
        let native = place.serves.as_ref().is_some_and(|serves| serves.native);
        if native {
            // Before its files are read.
            place.signal(Signal::KILL);
        } else {
            place.begin();
            place.hand_over();
        }
        let left = place.handed.len();
        place.listening = left > 0;
        self.nudge_timer(&state);
        drop(state);
        if left == 0 {
            hear(slot, link);
        }
        let outcome = outcome_of(report.end);
        // The worker itself may be at fault.
        let retire = native || left == 0 && matches!(outcome, Outcome::CouldNotStart { .. });
        let protocol::Report { cpu, output_truncated, untouched, streams, .. } = report;
        let streams = streams.within_bounds();
        let (cpu, compile) = (cpu.min(RUN_MAX), std::mem::take(&mut link.compile));
        job.permit.send(WorkerEvent::Ended { slot, outcome, wall, cpu, compile, output_truncated, untouched, streams });
        if retire { Err(Lost::Ended) } else { Ok(left) }
    }

    /// Handles the loss of a worker: one job is lost with it, the others wait for the next worker.
    fn bury(&self, slot: usize, mut link: Link, lost: Lost) {
        let before = link.cpu;
        let shared_output = link.shared_output.take();
        let (wall, verdict, native_cpu) = {
            let place = &mut self.lock().slots[slot];
            place.listening = false;
            let now = place.frozen_since.unwrap_or_else(Instant::now);
            match place.running.take() {
                Some(Running { since, verdict, native_cpu, .. }) => {
                    (now.saturating_duration_since(since), verdict, native_cpu)
                }
                None => (Duration::ZERO, None, Duration::ZERO),
            }
        };
        let (was_ready, served) = {
            let place = &self.lock().slots[slot];
            (place.ready, place.serves.clone())
        };
        let (status, cpu) = self.reap(slot, link);
        let job = {
            let place = &mut self.lock().slots[slot];
            // A job for which a worker could not even get ready fails.
            let first = place.waiting.pop_front_if(|front| !was_ready && Some(&front.serves) == served.as_ref());
            // No job is handed over to a worker that is gone.
            let job = place.handed.pop_front().or(first);
            for behind in place.handed.drain(..).rev() {
                place.waiting.push_front(behind);
            }
            job
        };
        let Some(job) = job else { return };
        let outcome = verdict.unwrap_or_else(|| match lost {
            Lost::Ended => Outcome::WorkerDied { reason: status },
            Lost::Nonsense(reason) => Outcome::WorkerDied { reason },
            Lost::Unusable(end) => outcome_of(end),
        });
        let (cpu, compile, output_truncated) = (cpu.saturating_sub(before).max(native_cpu), Duration::ZERO, false);
        let untouched = false;
        let streams = shared_output.map(|shared_output| shared_output.of(job.number)).unwrap_or_default();
        job.permit.send(WorkerEvent::Ended { slot, outcome, wall, cpu, compile, output_truncated, untouched, streams });
    }

    /// Ends and reaps a worker; returns how it ended, in words, and the processor time of its life.
    fn reap(&self, slot: usize, mut link: Link) -> (String, Duration) {
        // It is dead, condemned, or not to be trusted any more.
        self.lock().slots[slot].signal(Signal::KILL);
        let mut cpu = link.cpu;
        if let Some(pid) = pid_of(&link.child) {
            // Wait without reaping: the id stays ours, and its times can still be read.
            match rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(_) => cpu = cpu_of(pid).unwrap_or(cpu),
                Err(error) => tracing::warn!(slot, %error, "cannot wait for a worker"),
            }
        }
        hear(slot, &mut link);
        let mut state = self.lock();
        let status = link.child.wait();
        state.slots[slot].forget_worker();
        drop(state);
        let words = match status {
            Ok(status) => match (status.signal(), status.code()) {
                (Some(9), _) => "the worker process was killed (signal 9), perhaps because memory ran out".to_owned(),
                (Some(signal), _) => format!("the worker process crashed (signal {signal})"),
                (None, Some(code)) => format!("the worker process gave up (exit code {code}): {}", link.stderr_head),
                (None, None) => "the worker process ended".to_owned(),
            },
            Err(error) => format!("the worker process is lost: {error}"),
        };
        (words, cpu)
    }
}

/// Ties a process to the thread that starts it, which kills it when the thread ends. From its birth on, since a worker
/// that is frozen before it could do so itself would stop for ever once the agent is killed.
#[allow(unsafe_code)]
fn die_with_this_thread(command: &mut Command) {
    let tie = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec it only makes a system call, and allocates nothing. If the agent dies before that,
    // the socket to it ends, and so does the worker.
    unsafe {
        command.pre_exec(tie);
    }
}

/// Fails the first waiting job: no worker can be started for it.
fn could_not_start(slot: usize, place: &mut Slot, error: &io::Error) {
    let message = format!("cannot start the worker process: {error}");
    if let Some(waiting) = place.waiting.pop_front() {
        waiting.permit.send(never_ran(slot, Outcome::CouldNotStart { message }));
    }
}

/// A control group for a native task, if the system offers any.
fn group_for(memory_bytes: u64) -> Option<Group> {
    let group = groups().ok()?.group(memory_bytes);
    group.inspect_err(|error| tracing::warn!(%error, "a task goes without a control group: it is looked at")).ok()
}

fn out_of_turn() -> Lost {
    Lost::Nonsense("the worker spoke out of turn".to_owned())
}

/// What a message other than the expected one means.
fn lost_by(read: io::Result<Option<FromWorker>>) -> Lost {
    match read {
        Ok(Some(_)) => out_of_turn(),
        Ok(None) => Lost::Ended,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Lost::Ended,
        Err(error) => Lost::Nonsense(format!("the worker sent {error}")),
    }
}

fn outcome_of(end: End) -> Outcome {
    match end {
        End::Exited { code } => Outcome::Exited { code },
        End::Trapped { message } => Outcome::Trapped { message },
        End::Invalid { message } => Outcome::Invalid { message },
        End::OverDisk { limit_bytes } => Outcome::OverDisk { limit_bytes },
        End::CouldNotStart { message } => Outcome::CouldNotStart { message },
    }
}

/// Logs a worker's stderr, up to a limit, escaped so that nothing in it reaches a terminal as it is.
fn hear(slot: usize, link: &mut Link) {
    let mut text = vec![0; STDERR_BYTES_MAX];
    // An empty pipe is an error, too: reads do not wait.
    let Ok(bytes @ 1..) = link.stderr.read(&mut text) else { return };
    text.truncate(bytes.min(STDERR_BYTES_MAX.saturating_sub(link.stderr_head.len())));
    for line in String::from_utf8_lossy(&text).lines() {
        let line = line.escape_debug().to_string();
        tracing::warn!(slot, "a worker says: {line}");
        link.stderr_head.push_str(&line);
    }
}

/// How a running task ends for its disk use, if it exceeds its limit.
fn exceeded(allowance: &Allowance, holder: Option<Holder>) -> Option<End> {
    allowance.exceeded(holder).unwrap_or_else(|error| {
        tracing::warn!(%error, "what a task takes of the disk is not known before the next look");
        None
    })
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}
