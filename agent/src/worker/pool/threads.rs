//! What the threads do: one for each slot, which starts, hears and reaps its worker, and the timer.

use std::io::{self, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use super::super::Outcome;
use super::super::disk::Allowance;
use super::super::protocol::{self, End, FromWorker};
use super::slot::{Line, PREPARE_LIMIT, Running, Slot};
use super::{Shared, State, WorkerEvent, never_ran};

/// No run is said to have been longer: a worker that ran foreign code may say anything, and others reckon with it.
const RUN_MAX: Duration = Duration::from_secs(90 * 86_400);

/// Between two looks at what running tasks take of the disk, and how many times longer than a look took: it may cost a
/// twentieth of a processor.
const DISK_INTERVAL: Duration = Duration::from_secs(1);
const DISK_INTERVAL_SHARE: u32 = 20;

/// How long reports may accumulate while the worker has more to do.
const ACCUMULATE: Duration = Duration::from_millis(1);

/// The slot thread's hold on its worker.
struct Link {
    child: Child,
    reports: BufReader<ChildStdout>,
    /// Processor time it had used at the end of its last job.
    cpu: Duration,
}

impl Shared {
    /// The state. A thread that panicked left it consistent: nothing is changed in two steps across a panic.
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

    /// Wakes the timer where it would come too late. It comes too early without harm.
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

    /// Something may run from now on.
    pub(super) fn wake_disk_watch(&self, state: &mut State) {
        if !std::mem::replace(&mut state.disk_is_watched, true) {
            self.disk.notify_all();
        }
    }

    /// Looks now and then at what the files of running tasks take, and ends those that take too much. Sleeps while
    /// nothing runs.
    pub(super) fn watch_disk(&self) {
        let mut pause = DISK_INTERVAL;
        let mut state = self.lock();
        while !state.closing {
            if !state.slots.iter().any(Slot::may_run) {
                state.disk_is_watched = false;
                state = self.disk.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state = self.disk.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
            let running: Vec<_> =
                state.slots.iter().enumerate().filter_map(|(slot, place)| Some((slot, place.first()?))).collect();
            drop(state);
            let begin = Instant::now();
            let over: Vec<_> = running
                .into_iter()
                .filter_map(|(slot, (job, allowance))| Some((slot, job, exceeded(&allowance)?)))
                .collect();
            pause = DISK_INTERVAL.max(begin.elapsed() * DISK_INTERVAL_SHARE);
            state = self.lock();
            for (slot, job, limit_bytes) in over {
                let place = &mut state.slots[slot];
                if place.first().is_some_and(|(number, _)| number == job) {
                    place.condemn(Outcome::OverDisk { limit_bytes });
                }
            }
        }
    }

    pub(super) fn run_slot(&self, slot: usize) {
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
        let wall =
            if running.was_frozen { now.saturating_duration_since(running.since) } else { report.wall.min(RUN_MAX) };
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
            End::OverDisk { limit_bytes } => Outcome::OverDisk { limit_bytes },
            End::CouldNotStart { message } => Outcome::CouldNotStart { message },
        };
        let protocol::Report { cpu, compile, output_truncated, untouched, .. } = report;
        let (cpu, compile) = (cpu.min(RUN_MAX), compile.min(RUN_MAX));
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

/// The limit that a running task has gone over.
fn exceeded(allowance: &Allowance) -> Option<u64> {
    allowance.exceeded().unwrap_or_else(|error| {
        tracing::warn!(%error, "what a task takes of the disk is not known");
        None
    })
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
