//! How long it takes from the owner's return until no task uses a processor any more: measured each time.
//!
//! The return is dated back to when its source was asked before and nobody was there, so that what is measured is never
//! too short; the end is when the processor time of all workers stood still for good, as `/proc` says.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::processor::threads;

/// How many times are kept for percentiles.
const KEPT: usize = 1_000;
/// Upper bounds of the histogram, in milliseconds.
const BOUNDS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000];
/// Tasks that have not stopped by now will not stop.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Stopping takes some processor time itself.
const NEGLIGIBLE_NS: u64 = 200_000;

/// All reclaims since the start of the agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Reclaims {
    count: u64,
    /// By bound; those above the last one are only in `count`.
    buckets: [u64; BOUNDS_MS.len()],
    latest: VecDeque<Duration>,
}

impl Reclaims {
    pub(super) fn record(&mut self, took: Duration) {
        self.count += 1;
        for (bucket, bound_ms) in self.buckets.iter_mut().zip(BOUNDS_MS) {
            *bucket += u64::from(took <= Duration::from_millis(bound_ms));
        }
        if self.latest.len() == KEPT {
            self.latest.pop_front();
        }
        self.latest.push_back(took);
    }

    pub(super) fn view(&self) -> idlewood_api::Reclaims {
        let mut sorted: Vec<Duration> = self.latest.iter().copied().collect();
        sorted.sort_unstable();
        // The smallest time that this share of all does not exceed.
        let percentile = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.max(1) - 1).map(Duration::as_secs_f64)
        };
        let buckets = self.buckets.iter().zip(BOUNDS_MS);
        idlewood_api::Reclaims {
            count: self.count,
            p50_s: percentile(0.5),
            p99_s: percentile(0.99),
            max_s: percentile(1.0),
            buckets: buckets.map(|(&count, ms)| idlewood_api::Bucket { at_most_s: ms as f64 / 1e3, count }).collect(),
        }
    }
}

/// Waits until no thread of these processes can run, and says how long after `from` one last did. Blocks.
///
/// On a busy machine a process that is told to stop may wait for its turn to do so for long; it runs none of its own
/// code meanwhile, and counts from when its processor time stood still.
pub(super) fn wait_until_stopped(proc: &Path, pids: &[u32], from: Instant) -> Duration {
    let used_ns = || pids.iter().map(|&pid| used_ns(proc, pid)).sum::<Option<u64>>();
    let begin = Instant::now();
    let (mut before_ns, mut ran_at) = (used_ns(), begin);
    while begin.elapsed() < GIVE_UP {
        let is_stopped = pids.iter().all(|&pid| is_stopped(proc, pid));
        let now_ns = used_ns();
        let ran = match (before_ns, now_ns) {
            (Some(before_ns), Some(now_ns)) => now_ns > before_ns + NEGLIGIBLE_NS,
            _ => !is_stopped,
        };
        if ran {
            (before_ns, ran_at) = (now_ns, Instant::now());
        }
        if is_stopped {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    ran_at.saturating_duration_since(from)
}

/// Time that the threads of a process have spent on a processor; `None` where the kernel does not say, or it is gone.
fn used_ns(proc: &Path, pid: u32) -> Option<u64> {
    threads(proc, pid)?.map(|thread| thread.map(|(_, spent)| spent.ran_ns)).sum()
}

/// Whether no thread of a process can run: each is stopped (T, t) or dead (Z, X). So is a process that is gone.
fn is_stopped(proc: &Path, pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(proc.join(pid.to_string()).join("task")) else { return true };
    threads.flatten().all(|thread| {
        // A thread that is gone; of our own children nothing else keeps it from being read.
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { return true };
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_buckets_count_what_was_recorded() {
        let mut reclaims = Reclaims::default();
        assert_eq!((reclaims.view().count, reclaims.view().p99_s), (0, None));
        for ms in (1..=99).rev() {
            reclaims.record(Duration::from_millis(ms));
        }
        reclaims.record(Duration::from_secs(9));
        let view = reclaims.view();
        assert_eq!((view.count, view.p50_s, view.p99_s, view.max_s), (100, Some(0.05), Some(0.099), Some(9.0)));
        let counts: Vec<u64> = view.buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [1, 2, 5, 10, 20, 50, 99, 99, 99, 99, 99, 99]);
        for _ in 0..KEPT {
            reclaims.record(Duration::from_millis(3));
        }
        let view = reclaims.view();
        assert_eq!((view.count, view.max_s), (1_100, Some(0.003)), "the latest thousand");
    }

    #[test]
    fn a_process_is_stopped_when_all_its_threads_are() {
        let proc = tempfile::tempdir().expect("a directory");
        let thread = |pid: u32, thread: u32, state: &str| {
            let directory = proc.path().join(format!("{pid}/task/{thread}"));
            fs::create_dir_all(&directory).expect("a directory");
            fs::write(directory.join("stat"), format!("{thread} (a) R (b) {state} 1 1 1 0\n")).expect("a file");
        };
        assert!(is_stopped(proc.path(), 5), "it is gone");
        thread(5, 5, "T");
        assert!(is_stopped(proc.path(), 5));
        thread(5, 6, "R");
        assert!(!is_stopped(proc.path(), 5));
        thread(5, 6, "t");
        thread(5, 7, "Z");
        assert!(is_stopped(proc.path(), 5));
        thread(5, 5, "D");
        assert!(!is_stopped(proc.path(), 5), "it waits for a disk and goes on then");
        assert!(!is_stopped(Path::new("/proc"), std::process::id()), "this test runs");
        let took = wait_until_stopped(proc.path(), &[6, 7], Instant::now() - Duration::from_secs(2));
        assert!(took >= Duration::from_secs(2), "counted from the owner's return");
        assert_eq!(used_ns(proc.path(), 5), None, "nobody says");
        for (thread, used_ns) in [(5, 1_000), (6, 20), (7, 3)] {
            fs::write(proc.path().join(format!("5/task/{thread}/schedstat")), format!("{used_ns} 7 1\n"))
                .expect("a file");
        }
        assert_eq!(used_ns(proc.path(), 5), Some(1_023));
    }

    #[test]
    fn a_process_that_is_told_to_stop_counts_from_when_it_used_no_more_processor_time() {
        let mut spinning =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        let (proc, pid) = (Path::new("/proc"), spinning.id());
        while used_ns(proc, pid).is_none_or(|used_ns| used_ns < NEGLIGIBLE_NS) {
            std::thread::yield_now();
        }
        let signal = |signal| {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process");
            rustix::process::kill_process(pid, signal).expect("our child");
        };
        let begin = Instant::now();
        signal(rustix::process::Signal::STOP);
        let took = wait_until_stopped(proc, &[pid], begin);
        assert!(took <= begin.elapsed() && is_stopped(proc, pid), "{took:?}");
        let used = used_ns(proc, pid);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(used_ns(proc, pid), used);
        spinning.kill().and_then(|()| spinning.wait()).expect("our child");
    }
}
