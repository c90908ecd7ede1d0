//! The machine's memory, and the default share of tasks.

use std::fs;
use std::path::Path;

use idlewood_units::ByteSize;

/// Default share of the machine's memory for tasks. Our choice: the rest suffices for an idle desktop.
pub const MEMORY_SHARE: f64 = 0.75;

/// [`MEMORY_SHARE`] of the memory; unlimited if that is unknown.
pub fn share(proc: &Path) -> ByteSize {
    let total = fs::read_to_string(proc.join("meminfo")).ok().as_deref().and_then(total_bytes);
    match total {
        Some(bytes) => ByteSize((bytes as f64 * MEMORY_SHARE) as u64),
        None => {
            tracing::warn!("it is not known how much memory this machine has: set limits.memory");
            ByteSize(u64::MAX)
        }
    }
}

fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_get_three_quarters_of_the_memory() {
        let proc = tempfile::tempdir().expect("a directory");
        assert_eq!(share(proc.path()), ByteSize(u64::MAX));
        fs::write(proc.path().join("meminfo"), "MemTotal:        8192000 kB\nMemFree: 1 kB\n").expect("ours");
        assert_eq!(share(proc.path()), ByteSize(6144000 << 10));
        assert!(share(Path::new("/proc")) < ByteSize(u64::MAX), "of this machine");
    }
}
