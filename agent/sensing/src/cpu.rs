//! Processor use of the owner's programs: `/proc/stat` without the use of this agent and its workers.
//!
//! Time at low priority (nice) counts as idle: a program at low priority may wait, and the tasks of any agent on this
//! machine run at the lowest priority. So two agents on one machine do not take each other for the owner.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::sensed::Unavailable;

/// The share is an average over this time. Our choice: loading a page is not work.
const WINDOW: Duration = Duration::from_secs(10);

/// Clock ticks since the start of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    /// All processors together, idle time included.
    total: u64,
    /// At normal priority, in the kernel and in interrupts.
    busy: u64,
    /// Part of that used by this agent and its workers.
    own: u64,
}

/// Follows how busy the owner's programs keep the machine.
#[derive(Debug, Default)]
pub struct Meter {
    samples: VecDeque<(Duration, Times)>,
}

impl Meter {
    /// Takes a sample and returns the share of all processors' time, from 0 to 1, that others used lately; `None` until
    /// there are two samples. `now` is any monotonic clock.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn sample(
        &mut self,
        proc: &Path,
        agent: u32,
        workers: &[u32],
        now: Duration,
    ) -> Result<Option<f64>, Unavailable> {
        let times = read(proc, agent, workers)?;
        // Keeps one sample at least as old as the window, to measure from.
        while self.samples.get(1).is_some_and(|(at, _)| *at + WINDOW <= now) {
            self.samples.pop_front();
        }
        self.samples.push_back((now, times));
        Ok(self.samples.front().and_then(|(_, first)| share(*first, times)))
    }
}

/// The share of others between two samples.
fn share(before: Times, after: Times) -> Option<f64> {
    let total = after.total.saturating_sub(before.total);
    let busy = after.busy.saturating_sub(before.busy);
    // The use of a worker that ended in between counts as the owner's, once.
    let own = after.own.saturating_sub(before.own);
    (total > 0).then(|| busy.saturating_sub(own) as f64 / total as f64)
}

fn read(proc: &Path, agent: u32, workers: &[u32]) -> Result<Times, Unavailable> {
    let path = proc.join("stat");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Unavailable::new(format!("cannot read {}: {error}", path.display()), "mount /proc"))?;
    let (total, busy) = parse_stat(&text)
        .ok_or_else(|| Unavailable::new(format!("{} has no line for all processors", path.display()), "mount /proc"))?;
    let stat = |pid: u32| std::fs::read_to_string(proc.join(pid.to_string()).join("stat"));
    let of = |pid: u32| parse_pid_stat(&stat(pid)?).ok_or_else(|| io::Error::other("it has no times"));
    let own = |error: io::Error| Unavailable::new(format!("cannot read this agent's times: {error}"), "mount /proc");
    let (user, system) = of(agent).map_err(own)?;
    // Their time in user mode is at low priority, and does not count anyway. One that has just ended has used nothing
    // more.
    let workers = workers.iter().map(|&worker| stat(worker).ok().and_then(|text| parse_system(&text)).unwrap_or(0));
    let own = user + system + workers.sum::<u64>();
    Ok(Times { total, busy, own })
}

/// Total and busy ticks from the first line of `/proc/stat`:
/// `cpu user nice system idle iowait irq softirq steal guest guest_nice`. Guests are part of user and nice.
fn parse_stat(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let at = |index: usize| fields.get(index).copied().unwrap_or(0);
    let busy = at(0) + at(2) + at(5) + at(6);
    (fields.len() >= 4).then(|| (busy + at(1) + at(3) + at(4) + at(7), busy))
}

/// System ticks from `/proc/PID/stat`, with those of children that have ended: native programs may start many short ones.
fn parse_system(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').skip(11).take(4).collect();
    Some(fields.get(1)?.parse::<u64>().ok()? + fields.get(3)?.parse::<u64>().ok()?)
}

/// User and system ticks from `/proc/PID/stat`, whose second field is a name in parentheses that may hold anything.
fn parse_pid_stat(text: &str) -> Option<(u64, u64)> {
    let (_, fields) = text.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse);
    Some((times.next()?.ok()?, times.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a desktop with four processors, cut after the second line.
    const STAT: &str = "\
cpu  1132441 42011 310377 21520733 58216 0 19124 0 0 0
cpu0 282014 9912 77713 5379921 14788 0 11120 0 0 0
intr 115998071 8 0 0
ctxt 201736548
";
    /// A process with a nasty name.
    const PID_STAT: &str = "4711 (a) R (b) S 1 4711 4711 0 -1 4194304 8312 91822 3 11 123 45 6 7 20 0 24 0 8401 \
                            1227644928 4214 18446744073709551615 1 1 0 0 0 0 0 4096 17642 0 0 0 17 1 0 0 0 0 0\n";

    #[test]
    fn real_files_are_understood() {
        let busy = 1_132_441 + 310_377 + 19_124;
        assert_eq!(parse_stat(STAT), Some((busy + 42_011 + 21_520_733 + 58_216, busy)));
        assert_eq!(parse_stat("cpu0 1 2 3 4\n"), None);
        assert_eq!(parse_stat("cpu  1 2 3\n"), None, "cut off");
        assert_eq!(parse_pid_stat(PID_STAT), Some((123, 45)));
        assert_eq!(parse_system(PID_STAT), Some(45 + 7), "what its children used in the kernel, too");
        assert_eq!(parse_pid_stat("4711 (a"), None);
        assert_eq!(parse_pid_stat(""), None);
        let here = std::fs::read_to_string("/proc/stat").expect("this system has it");
        assert!(parse_stat(&here).is_some_and(|(total, busy)| 0 < busy && busy <= total));
    }

    #[test]
    fn the_own_tree_and_low_priorities_do_not_count() {
        let proc = tempfile::tempdir().expect("a directory");
        let mut meter = Meter::default();
        // Machine: user and nice ticks; agent: user ticks; worker: user and system ticks.
        let mut sample =
            |at_s: u64, [user, nice, idle]: [u64; 3], agent: u64, [worker_user, worker_system]: [u64; 2]| {
                let line = format!("cpu  {user} {nice} {worker_system} {idle} 0 0 0 0 0 0\n");
                std::fs::write(proc.path().join("stat"), line).expect("a file");
                for (pid, user, system) in [(7, agent, 0), (8, worker_user, worker_system)] {
                    let directory = proc.path().join(pid.to_string());
                    std::fs::create_dir_all(&directory).expect("a directory");
                    let stat = format!("{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 1 0 0 0 0\n");
                    std::fs::write(directory.join("stat"), stat).expect("a file");
                }
                meter.sample(proc.path(), 7, &[8, 9], Duration::from_secs(at_s)).expect("it can be read")
            };
        assert_eq!(sample(0, [1000, 500, 8000], 10, [0, 0]), None, "one sample says nothing");
        assert_eq!(sample(2, [1000, 600, 8100], 10, [100, 0]), Some(0.0), "the worker is at low priority");
        // 100 ticks more: 60 of the agent in user mode, 20 of the worker in the kernel, 20 idle.
        assert_eq!(sample(4, [1060, 600, 8120], 70, [100, 20]), Some(0.0));
        // 700 ticks since the beginning, 280 of them others'.
        assert_eq!(sample(6, [1340, 600, 8240], 70, [100, 20]), Some(0.4));
        // The window has moved past the first two samples: 1000 ticks, of which 380 were others'.
        assert_eq!(sample(14, [1440, 600, 8_740], 70, [100, 20]), Some(0.38));
        assert!(meter.sample(Path::new("/nowhere"), 7, &[], Duration::from_secs(15)).is_err());
    }
}
