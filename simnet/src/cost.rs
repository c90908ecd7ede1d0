//! The cost of a simulation for the machine that runs it. Kept apart from reports, which are the same wherever they are
//! made.

use serde::Serialize;

/// Processor and memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// CPU time of all threads, in seconds.
    pub cpu_s: f64,
    /// The most memory the process ever had, where the system tells (Linux).
    pub peak_rss_bytes: Option<u64>,
    /// Events given to peers per second of CPU time.
    pub events_per_cpu_s: f64,
    /// Simulated time of all machines per CPU time.
    pub machine_hours_per_cpu_hour: f64,
    /// Peak memory per machine.
    pub peak_rss_bytes_per_machine: Option<f64>,
}

/// Measures from its creation on.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    cpu_s: f64,
}

impl Meter {
    /// Starts measuring.
    pub fn start() -> Self {
        Self { cpu_s: cpu_s() }
    }

    /// The cost of a simulation with so many events, machines and simulated seconds.
    pub fn stop(self, events: u64, machines: u32, sim_s: f64) -> Cost {
        let cpu_s = cpu_s() - self.cpu_s;
        let per_cpu_s = |of: f64| of / cpu_s.max(1e-9);
        let peak_rss_bytes = peak_rss_bytes();
        Cost {
            cpu_s,
            peak_rss_bytes,
            events_per_cpu_s: per_cpu_s(events as f64),
            machine_hours_per_cpu_hour: per_cpu_s(sim_s * f64::from(machines)),
            peak_rss_bytes_per_machine: peak_rss_bytes.map(|bytes| bytes as f64 / f64::from(machines)),
        }
    }
}

fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The most memory that this process ever had, where the system tells (Linux).
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}
