//! How long threads of tasks compute, and how long they are ready to and wait for a processor, as the kernel says.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use idlewood_worker::speed;

/// How much processor time the agent uses when it starts. Our choice: a tenth of a processor is told from a whole one, and nobody is disturbed for long.
const TRIAL: Duration = Duration::from_secs(1);

/// Time of a thread since it began, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// On a processor.
    pub(super) ran_ns: u64,
    /// Ready to run, without a processor: others had it, or a quota was used up.
    waited_ns: u64,
}

/// Of each thread of a process, by the thread's id; `None` in the place of one that has just ended, or of which the kernel does not say it. `None` altogether
/// where the process is gone.
pub(super) fn threads(proc: &Path, pid: u32) -> Option<impl Iterator<Item = Option<(u32, Spent)>>> {
    let threads = fs::read_dir(proc.join(pid.to_string()).join("task")).ok()?;
    Some(threads.map(|thread| {
        let thread = thread.ok()?;
        Some((thread.file_name().to_str()?.parse().ok()?, spent(&thread.path())?))
    }))
}

/// Of the thread with this directory.
fn spent(thread: &Path) -> Option<Spent> {
    let text = fs::read_to_string(thread.join("schedstat")).ok()?;
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    Some(Spent { ran_ns: numbers.next()?.ok()?, waited_ns: numbers.next()?.ok()? })
}

/// Runs the reference kernel for [`TRIAL`], and returns how long that took on a processor, and waiting for one.
fn try_out() -> Option<(u64, u64)> {
    let thread = Path::new("/proc/thread-self");
    let before = spent(thread)?;
    speed::measure_for(TRIAL);
    let after = spent(thread)?;
    Some((after.ran_ns - before.ran_ns, after.waited_ns - before.waited_ns))
}

/// What threads had spent when they were looked at last.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// By their process and id.
    threads: BTreeMap<(u32, u32), Spent>,
    /// The agent's own computing when it started, while its end was not seen.
    trial: Option<JoinHandle<Option<(u64, u64)>>>,
}

impl Looks {
    /// Computes for [`TRIAL`] beside everything else, at the usual priority, so that something is known before the first task.
    pub(super) fn start() -> Self {
        let trial = std::thread::Builder::new().name("speed".to_owned()).spawn(try_out);
        let trial = trial.inspect_err(|error| tracing::warn!(%error, "tasks alone will show how fast this machine is"));
        Self { trial: trial.ok(), ..Self::default() }
    }

    /// How long the trial took on a processor, and waiting for one, once it is over; nothing at any other time.
    fn of_trial(&mut self) -> (u64, u64) {
        let Some(trial) = self.trial.take_if(|trial| trial.is_finished()) else { return (0, 0) };
        let Ok(Some(took_ns)) = trial.join() else {
            tracing::warn!(
                "the kernel does not say how long threads wait: tasks alone will show how fast this machine is"
            );
            return (0, 0);
        };
        took_ns
    }

    /// How long so many slots have computed since the last look, and have waited for a processor, by the threads of these processes. What a thread
    /// did before it was seen first does not count.
    ///
    /// A task may have more threads than a slot is a processor, and they wait for each other. So of all threads those count that were ready for longest, one for
    /// each slot, and they have waited only for as long as all threads together did not compute.
    pub(super) fn since_last(&mut self, proc: &Path, pids: &[u32], slots: u32) -> (Duration, Duration) {
        let of = |&pid: &u32| {
            let threads = threads(proc, pid).into_iter().flatten().flatten();
            threads.map(move |(thread, spent)| ((pid, thread), spent))
        };
        let now: BTreeMap<(u32, u32), Spent> = pids.iter().flat_map(of).collect();
        let before = std::mem::replace(&mut self.threads, now);
        let mut ran_ns = 0;
        let mut ready_ns: Vec<u64> = Vec::new();
        for (thread, now) in &self.threads {
            let Some(before) = before.get(thread) else { continue };
            let ran = now.ran_ns.saturating_sub(before.ran_ns);
            ran_ns += ran;
            ready_ns.push(ran + now.waited_ns.saturating_sub(before.waited_ns));
        }
        ready_ns.sort_unstable_by_key(|&ready| Reverse(ready));
        let ready_ns: u64 = ready_ns.into_iter().take(slots as usize).sum();
        let ran_ns = ran_ns.min(ready_ns);
        let (tried_ns, stalled_ns) = self.of_trial();
        (Duration::from_nanos(ran_ns + tried_ns), Duration::from_nanos(ready_ns - ran_ns + stalled_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory in the place of `/proc`.
    struct Proc(tempfile::TempDir);

    impl Proc {
        /// A thread has run and waited for so many seconds.
        fn says(&self, pid: u32, thread: u32, ran_s: u64, waited_s: u64) {
            self.writes(pid, thread, &format!("{ran_s}000000000 {waited_s}000000000 1\n"));
        }

        fn writes(&self, pid: u32, thread: u32, text: &str) {
            let directory = self.0.path().join(format!("{pid}/task/{thread}"));
            fs::create_dir_all(&directory).expect("a directory");
            fs::write(directory.join("schedstat"), text).expect("a file");
        }
    }

    /// Seconds that two slots have run and waited since the last look.
    fn look(looks: &mut Looks, proc: &Proc, pids: &[u32]) -> (u64, u64) {
        let (ran, waited) = looks.since_last(proc.0.path(), pids, 2);
        (ran.as_secs(), waited.as_secs())
    }

    #[test]
    fn what_threads_do_between_two_looks_counts() {
        let (proc, mut looks) = (Proc(tempfile::tempdir().expect("a directory")), Looks::default());
        proc.says(5, 5, 7, 9);
        assert_eq!(look(&mut looks, &proc, &[5, 6]), (0, 0), "seen for the first time");
        proc.says(5, 5, 8, 12);
        proc.says(5, 6, 1, 0);
        assert_eq!(look(&mut looks, &proc, &[5]), (1, 3));
        proc.writes(5, 6, "nothing\n");
        proc.says(5, 5, 9, 12);
        assert_eq!(look(&mut looks, &proc, &[5]), (1, 0), "one that cannot be read does not hide the others");
        proc.says(5, 5, 1, 1);
        assert_eq!(look(&mut looks, &proc, &[5]), (0, 0), "another thread of the same id");
    }

    #[test]
    fn computing_when_the_agent_starts_counts_once() {
        let (proc, mut looks) = (tempfile::tempdir().expect("a directory"), Looks::start());
        let mut ran = Duration::ZERO;
        while looks.trial.is_some() {
            std::thread::sleep(Duration::from_millis(20));
            ran += looks.since_last(proc.path(), &[], 1).0;
        }
        assert!((TRIAL..2 * TRIAL).contains(&ran), "{ran:?}");
        assert_eq!(looks.since_last(proc.path(), &[], 1), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn threads_of_one_task_that_wait_for_each_other_make_no_slot_slower() {
        let (proc, mut looks) = (Proc(tempfile::tempdir().expect("a directory")), Looks::default());
        let eight = |ran_s, waited_s| (10..18).for_each(|thread| proc.says(9, thread, ran_s, waited_s));
        eight(0, 0);
        look(&mut looks, &proc, &[9]);
        eight(1, 3);
        assert_eq!(look(&mut looks, &proc, &[9]), (8, 0), "two processors compute all the time");
        eight(1, 19);
        assert_eq!(look(&mut looks, &proc, &[9]), (0, 32), "none does");
    }
}
