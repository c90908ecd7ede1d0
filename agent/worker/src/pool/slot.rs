//! One slot: its worker, the socket to it, and the jobs of its run.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};
use tokio::sync::mpsc;

use super::event::WorkerEvent;
use crate::disk::Allowance;
use crate::job::Reach;
use crate::open_files::Holder;
use crate::outcome::Outcome;
use crate::processor_time::cpu_of_tree;
use crate::protocol;
use crate::shared_output::SharedOutputReader;

/// Longest time for a worker to get ready, and to compile a program. Our choice: a hundred times what a megabyte takes.
pub(super) const PREPARE_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The worker, from its start until it is reaped.
    pub(super) worker: Option<Pid>,
    /// The socket with the worker's jobs, as long.
    pub(super) socket: Option<JobSocket>,
    /// What the worker serves, as long.
    pub(super) serves: Option<Serves>,
    /// The memory in which its tasks' output begins, as long; none for native programs, whose output is in files.
    pub(super) shared_output: Option<Arc<SharedOutputReader>>,
    /// It has reported ready, and so has read the greeting: the socket holds only jobs.
    pub(super) ready: bool,
    /// Frozen on its own, independently of the pool.
    pub(super) frozen: bool,
    /// Since when it has been frozen for either reason.
    pub(super) frozen_since: Option<Instant>,
    /// Jobs handed over to the worker, in order. Only the first may have begun.
    pub(super) handed: VecDeque<Waiting>,
    /// Jobs waiting behind them.
    pub(super) waiting: VecDeque<Waiting>,
    /// State of the first job that was handed over.
    pub(super) running: Option<Running>,
    /// Its thread is receiving the worker's reports: a new job is handed over by its caller. Otherwise the thread does
    /// that, after checking that the worker lives.
    pub(super) listening: bool,
}

/// The socket that holds a worker's jobs until it takes them.
#[derive(Debug)]
pub(super) struct JobSocket {
    pub(super) ours: OwnedFd,
    /// The worker's end: the worker has not begun any job that can still be read from it.
    pub(super) theirs: OwnedFd,
}

/// The program and directories that a worker serves: it never meets another bag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Serves {
    /// Hash of the program.
    pub(super) hash: [u8; 32],
    pub(super) reach: Arc<Reach>,
    /// It runs one native job, and none after it: all processes of that end with the worker.
    pub(super) native: bool,
}

#[derive(Debug)]
pub(super) struct Waiting {
    /// Its number in the pool.
    pub(super) number: u64,
    pub(super) packet: protocol::JobPacket,
    /// The program to compile for it.
    pub(super) program: PathBuf,
    pub(super) serves: Serves,
    pub(super) limit: Option<Duration>,
    /// Memory limit of its processes together.
    pub(super) memory_bytes: u64,
    pub(super) allowance: Allowance,
    pub(super) permit: mpsc::OwnedPermit<WorkerEvent>,
}

/// The state of the job that the worker runs, or begins next.
#[derive(Debug)]
pub(super) struct Running {
    /// When the present phase (preparation or run) began, postponed by frozen time.
    pub(super) since: Instant,
    pub(super) limit: Option<Duration>,
    /// The worker gets ready, or compiles: the limit is [`PREPARE_LIMIT`], not the task's.
    pub(super) preparing: bool,
    /// It was frozen meanwhile: the worker's own clock does not tell how long it ran.
    pub(super) was_frozen: bool,
    /// The agent's decision: the worker is being killed for it.
    pub(super) verdict: Option<Outcome>,
    /// Processor time that a native program had taken then.
    pub(super) native_cpu: Duration,
}

impl Running {
    /// A phase that begins now, of a worker that is not frozen.
    fn begun(limit: Option<Duration>, preparing: bool) -> Self {
        Self { since: Instant::now(), limit, preparing, was_frozen: false, verdict: None, native_cpu: Duration::ZERO }
    }
}

impl JobSocket {
    pub(super) fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self { ours, theirs })
    }

    /// Removes all jobs from the socket that the worker has not taken; returns their numbers. The worker may take one
    /// meanwhile, but not the first of these.
    pub(super) fn drain(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        loop {
            // Reading drops the rest of the packet.
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
    pub(super) fn signal(&self, signal: Signal) {
        let Some(pid) = self.worker else { return };
        // Until the worker has made its own group there is no such group; then it is a lone process.
        let result =
            rustix::process::kill_process_group(pid, signal).or_else(|_| rustix::process::kill_process(pid, signal));
        if let Err(error) = result {
            tracing::warn!(pid = pid.as_raw_nonzero(), ?signal, %error, "cannot signal a worker");
        }
    }

    /// Stops or continues the worker as `pool_frozen` and its own state demand. True if something changed.
    pub(super) fn settle(&mut self, pool_frozen: bool, now: Instant) -> bool {
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
    pub(super) fn condemn(&mut self, verdict: Outcome) -> bool {
        let Some(running) = &mut self.running else { return false };
        if running.verdict.is_none() {
            running.verdict = Some(verdict);
            // What a native program took goes with it: then the system tells of the worker's own time alone.
            if let Some(worker) = self.worker.filter(|_| self.serves.as_ref().is_some_and(|serves| serves.native)) {
                running.native_cpu = cpu_of_tree(worker);
            }
            self.signal(Signal::KILL);
        }
        true
    }

    /// When the running task exceeds its time limit; `None` while no limit is running.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.running {
            Some(Running { since, limit: Some(limit), verdict: None, .. }) if self.frozen_since.is_none() => {
                since.checked_add(*limit)
            }
            _ => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.handed.is_empty() && self.waiting.is_empty()
    }

    /// Whether a job runs, or will begin by itself.
    pub(super) fn may_run(&self) -> bool {
        !self.is_idle() && self.frozen_since.is_none()
    }

    /// The job that may be running: its number, its allowance of disk, and the holder of its files.
    pub(super) fn first(&self) -> Option<(u64, Allowance, Option<Holder>)> {
        let first = self.handed.front().filter(|_| self.frozen_since.is_none())?;
        let pid = self.worker.and_then(|worker| u32::try_from(worker.as_raw_nonzero().get()).ok());
        let holder = pid.map(|pid| Holder { pid, native: first.serves.native });
        Some((first.number, first.allowance.clone(), holder))
    }

    /// Hands over the jobs that the worker serves and has room for. None to a worker that is about to be killed; ends a
    /// worker that has nothing to do while other jobs wait.
    pub(super) fn hand_over(&mut self) {
        if self.running.as_ref().is_some_and(|running| running.verdict.is_some()) {
            return;
        }
        while let (Some(socket), true, Some(next)) = (&self.socket, self.ready, self.waiting.front()) {
            if self.serves.as_ref() != Some(&next.serves) {
                if self.handed.is_empty() {
                    self.signal(Signal::KILL);
                }
                return;
            }
            if next.serves.native && !self.handed.is_empty() {
                return;
            }
            match next.packet.send(&socket.ours) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                Err(error) => {
                    tracing::debug!(%error, "a worker does not take a job");
                    return;
                }
            }
            self.handed.extend(self.waiting.pop_front());
            if self.running.is_none() {
                self.begin();
            }
        }
    }

    /// Makes the first job that was handed over, if any, the running one.
    pub(super) fn begin(&mut self) {
        let was_frozen = self.frozen_since.is_some();
        self.running = self.handed.front().map(|first| {
            let limit = first.limit;
            Running { was_frozen, ..Running::begun(limit, false) }
        });
    }

    /// Notes that a worker was started, which has yet to get ready.
    pub(super) fn starts(&mut self, worker: Option<Pid>, socket: JobSocket, serves: Serves) {
        (self.worker, self.socket, self.serves, self.ready) = (worker, Some(socket), Some(serves), false);
        let limit = Some(PREPARE_LIMIT);
        self.running = Some(Running::begun(limit, true));
    }

    /// Notes that there is no worker.
    pub(super) fn forget_worker(&mut self) {
        (self.worker, self.socket, self.serves, self.ready) = (None, None, None, false);
        self.shared_output = None;
    }

    /// Gets back what was handed over and has not begun.
    pub(super) fn recall(&mut self) {
        // Before that only the greeting is in the socket, and must stay there.
        let Some(socket) = self.socket.as_ref().filter(|_| self.ready) else { return };
        let unread = socket.drain();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// However long its task may take, a program must be compiled, or loaded, in this time.
    #[test]
    fn a_worker_gets_ready_within_two_minutes() {
        let mut slot = Slot::default();
        let serves = Serves { hash: [1; 32], reach: Arc::default(), native: false };
        let begin = Instant::now();
        slot.starts(None, JobSocket::new().expect("a pair of sockets"), serves);
        let deadline = slot.deadline().expect("it is not waited for without end");
        assert!(deadline >= begin + PREPARE_LIMIT && deadline <= Instant::now() + PREPARE_LIMIT);
        assert_eq!(PREPARE_LIMIT, Duration::from_secs(120));
        assert!(slot.running.as_ref().is_some_and(|running| running.preparing));
    }
}
