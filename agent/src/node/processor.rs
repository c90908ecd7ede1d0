//! How long threads of tasks compute, and how long they are ready to and wait for a processor, as the kernel says.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Time of threads since they began, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// On a processor.
    pub(super) ran_ns: u64,
    /// Ready to run, without a processor: others had it, or a quota was used up.
    pub(super) waited_ns: u64,
}

/// Of all threads of a process; `None` where the kernel does not say, or it is gone.
pub(super) fn spent(proc: &Path, pid: u32) -> Option<Spent> {
    let threads = fs::read_dir(proc.join(pid.to_string()).join("task")).ok()?;
    threads.into_iter().try_fold(Spent::default(), |all, thread| {
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        let mut numbers = text.split_whitespace().map(str::parse::<u64>);
        let (ran_ns, waited_ns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Spent { ran_ns: all.ran_ns + ran_ns, waited_ns: all.waited_ns + waited_ns })
    })
}

/// What processes had spent when they were looked at last.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<u32, Spent>);

impl Looks {
    /// How long all threads of these processes have computed since the last look, and have waited for a processor. What they did before
    /// they were seen first does not count.
    pub(super) fn since_last(&mut self, proc: &Path, pids: &[u32]) -> (Duration, Duration) {
        let now: BTreeMap<u32, Spent> = pids.iter().filter_map(|&pid| Some((pid, spent(proc, pid)?))).collect();
        let before = std::mem::replace(&mut self.0, now);
        let both = self.0.iter().filter_map(|(pid, now)| Some((before.get(pid)?, now)));
        // A thread that has ended counts no more.
        let more = both.map(|(before, now)| Spent {
            ran_ns: now.ran_ns.saturating_sub(before.ran_ns),
            waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
        });
        let (ran_ns, waited_ns) =
            more.fold((0, 0), |(ran_ns, waited_ns), it| (ran_ns + it.ran_ns, waited_ns + it.waited_ns));
        (Duration::from_nanos(ran_ns), Duration::from_nanos(waited_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(proc: &Path, pid: u32, thread: u32, text: &str) {
        let directory = proc.join(format!("{pid}/task/{thread}"));
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join("schedstat"), text).expect("a file");
    }

    #[test]
    fn what_processes_do_between_two_looks_counts() {
        let proc = tempfile::tempdir().expect("a directory");
        let (proc, second) = (proc.path(), 1_000_000_000_u64);
        let mut looks = Looks::default();
        says(proc, 5, 5, "7000000000 9000000000 1\n");
        assert_eq!(looks.since_last(proc, &[5, 6]), Default::default(), "seen for the first time");
        says(proc, 5, 5, &format!("{} {} 2\n", 8 * second, 12 * second));
        says(proc, 5, 6, &format!("{second} 0 1\n"));
        assert_eq!(looks.since_last(proc, &[5]), (Duration::from_secs(2), Duration::from_secs(3)));
        says(proc, 5, 5, "1 1 1\n");
        assert_eq!(looks.since_last(proc, &[5]), Default::default(), "a thread has ended");
        says(proc, 5, 5, "nothing\n");
        assert_eq!((looks.since_last(proc, &[5]), spent(proc, 5)), Default::default());
    }
}
