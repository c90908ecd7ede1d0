//! A network namespace: one thread lives in it, and runs there what others ask.
//!
//! The namespace has no name. It ends with its thread and with what this started, so that nothing is left of it however this process
//! ends.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::thread::UnshareFlags;

/// How TCP shares a link that is full: the default of desktops. This computer may be set otherwise.
const CONGESTION_CONTROL: &str = "cubic";

/// Puts this thread into a namespace of its own, and sets that as machines have it; returns the number of the thread. Where no namespace can be made, the
/// settings of this computer stay as they are.
fn enter() -> Result<i32, String> {
    #[allow(deprecated, reason = "the successor is unsafe for the sake of another flag")]
    let result = rustix::thread::unshare(UnshareFlags::NEWNET);
    result.map_err(|error| format!("no network namespace can be made: {error}"))?;
    std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", CONGESTION_CONTROL).map_err(|error| {
        format!("TCP cannot be set to {CONGESTION_CONTROL}, as desktops have it: {error} (modprobe tcp_cubic)")
    })?;
    // IPv6 would only add messages of the kernel's own.
    for of in ["all", "default"] {
        // A kernel without IPv6 has no such file.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"), "1");
    }
    Ok(rustix::thread::gettid().as_raw_nonzero().get())
}

/// `RetransSegs` of the counters of TCP: a line of names, and one of numbers.
fn retransmitted(counters: &str) -> Option<u64> {
    let mut lines = counters.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let place = names.split(' ').position(|name| name == "RetransSegs")?;
    numbers.split(' ').nth(place)?.parse().ok()
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace of its own.
pub(crate) struct Namespace {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    thread_id: i32,
}

impl Namespace {
    /// Makes one, with its loopback interface up.
    ///
    /// # Errors
    /// A sentence: the system refuses.
    pub(crate) fn new() -> Result<Self, String> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (made, is_made) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let is_ended = made.send(enter()).is_err();
            if !is_ended {
                todo.into_iter().for_each(|job| job());
            }
        });
        let thread_id = is_made.recv().map_err(|_| "a thread ended early".to_owned())??;
        let namespace = Self { jobs: Some(jobs), thread: Some(thread), thread_id };
        namespace.ip("link set lo up\n")?;
        Ok(namespace)
    }

    /// Runs something in it. The thread lives as long as the namespace, so that what it starts may depend on that.
    pub(crate) fn run<T: Send + 'static>(&self, what: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job = Box::new(move || {
            // Whoever waits is there.
            let _ = done.send(what());
        });
        self.jobs.as_ref().expect("it lives").send(job).expect("the thread lives");
        result.recv().expect("the job did not panic")
    }

    /// Segments that TCP has resent so far; none where the kernel does not count them.
    pub(crate) fn retransmitted_segments(&self) -> Option<u64> {
        self.run(|| retransmitted(&std::fs::read_to_string("/proc/thread-self/net/snmp").ok()?))
    }

    /// The number by which `ip` finds it.
    pub(crate) fn id(&self) -> i32 {
        self.thread_id
    }

    /// Commands for `ip`, one a line.
    ///
    /// # Errors
    /// What `ip` says.
    pub(crate) fn ip(&self, lines: &str) -> Result<(), String> {
        self.batch("ip", lines)
    }

    /// Commands for `tc`, one a line.
    ///
    /// # Errors
    /// What `tc` says.
    pub(crate) fn tc(&self, lines: &str) -> Result<(), String> {
        self.batch("tc", lines)
    }

    fn batch(&self, program: &'static str, lines: &str) -> Result<(), String> {
        let lines = lines.to_owned();
        self.run(move || {
            let mut command = Command::new(program);
            command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            let failed =
                |error: std::io::Error| format!("{program} cannot be run: {error} (Debian: apt install iproute2)");
            let mut child = command.spawn().map_err(failed)?;
            child.stdin.take().expect("it is piped").write_all(lines.as_bytes()).map_err(failed)?;
            let output = child.wait_with_output().map_err(failed)?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(()) } else { Err(format!("{program} refuses: {said}{lines}")) }
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the thread of a namespace panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resent_segments_are_found_by_their_name() {
        let counters = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoMin OutSegs RetransSegs InErrs\nTcp: 200 99 7 0\n";
        assert_eq!(retransmitted(counters), Some(7));
        assert_eq!(retransmitted("Tcp: OutSegs\nTcp: 1\n"), None);
    }
}
