//! Resource use of an agent's processes: processor time, memory, bytes written. From `/proc`, without waiting for a
//! process to end.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

/// Clock ticks a second in `/proc`: 100 on every Linux that Rust runs on.
const TICKS_PER_S: u64 = 100;

/// Use of one agent and its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// User and system time of the agent process, in steps of 10 ms.
    pub(super) agent_cpu: Duration,
    /// The same of its workers, ended ones included.
    pub(super) workers_cpu: Duration,
    /// Resident memory of all of them.
    pub(super) rss_bytes: u64,
    /// Bytes written to disk; of workers that still run.
    pub(super) bytes_written: u64,
}

impl Usage {
    /// Use since an earlier sample; memory as it is now.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            agent_cpu: self.agent_cpu.saturating_sub(before.agent_cpu),
            workers_cpu: self.workers_cpu.saturating_sub(before.workers_cpu),
            rss_bytes: self.rss_bytes,
            bytes_written: self.bytes_written.saturating_sub(before.bytes_written),
        }
    }
}

/// Use of an agent and its workers since their start.
///
/// # Errors
/// When there is no such process, or `/proc` is not that of Linux.
pub(super) fn usage(agent: u32) -> anyhow::Result<Usage> {
    let root = Path::new("/proc").join(agent.to_string());
    let (own, ended) = times(&root).with_context(|| format!("cannot look at process {agent}"))?;
    let mut usage = Usage { agent_cpu: own, workers_cpu: ended, ..Usage::default() };
    (usage.rss_bytes, usage.bytes_written) = (rss_bytes(&root)?, bytes_written(&root)?);
    // By thread: a worker is the child of the thread that started it.
    for thread in fs::read_dir(root.join("task"))? {
        // A thread or worker that has just ended is not counted now; its time counts next as that of the agent's ended
        // children.
        let Ok(children) = fs::read_to_string(thread?.path().join("children")) else { continue };
        for child in children.split_whitespace() {
            let worker = Path::new("/proc").join(child);
            let (Ok((cpu, below)), Ok(rss)) = (times(&worker), rss_bytes(&worker)) else { continue };
            usage.workers_cpu += cpu + below;
            usage.rss_bytes += rss;
            usage.bytes_written += bytes_written(&worker).unwrap_or(0);
        }
    }
    Ok(usage)
}

/// User and system time of this process.
pub(super) fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// User and system time of a process, and of its reaped children.
fn times(process: &Path) -> io::Result<(Duration, Duration)> {
    let stat = fs::read_to_string(process.join("stat"))?;
    parse_times(&stat).ok_or_else(|| io::Error::other("its stat is not understood"))
}

fn parse_times(stat: &str) -> Option<(Duration, Duration)> {
    // The name in parentheses may contain anything; of what follows, fields 12 to 15 (14 to 17 of all) are the times.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11).map(|field| field.parse::<u64>().ok());
    let mut pair = || {
        let ticks = ticks.next()?? + ticks.next()??;
        Some(Duration::from_millis(ticks * 1000 / TICKS_PER_S))
    };
    Some((pair()?, pair()?))
}

fn rss_bytes(process: &Path) -> io::Result<u64> {
    let kib = number(&fs::read_to_string(process.join("status"))?, "VmRSS:")?;
    Ok(kib << 10)
}

fn bytes_written(process: &Path) -> io::Result<u64> {
    number(&fs::read_to_string(process.join("io"))?, "write_bytes:")
}

/// The first number after a name at the beginning of a line of text.
fn number(text: &str, name: &str) -> io::Result<u64> {
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    found.ok_or_else(|| io::Error::other(format!("no {name} there")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 1 2 3 4 150 50 7 3 39 19 1 0 99 1 1";
        assert_eq!(parse_times(stat), Some((Duration::from_secs(2), Duration::from_millis(100))));
        assert_eq!(parse_times("7 (a) S 1"), None);
    }

    #[test]
    fn this_process_is_counted() {
        let before = usage(std::process::id()).expect("it runs");
        let file = tempfile::tempfile().expect("a temporary file");
        let begin = own_cpu();
        while own_cpu() - begin < Duration::from_millis(60) {
            std::hint::black_box(blake3::hash(&[1; 4096]));
        }
        drop(file);
        let used = usage(std::process::id()).expect("it still runs").since(&before);
        assert!(used.agent_cpu >= Duration::from_millis(40), "{used:?}");
        assert!(used.rss_bytes > 1 << 20, "{used:?}");
    }
}
