//! The memory limits of a WebAssembly task.
//!
//! Two walls. The first is wasmtime's limiter: linear memory and tables together may take the task's limit; a task that
//! exceeds it ends with a message. Other allocations that a module causes in the runtime bypass the limiter: globals
//! and function references (48 MiB for the million of each that the validator permits), listings of directories, names
//! passed to calls. So the second wall is the system's: the process gets no more private memory (RLIMIT_DATA) than it
//! had with its program loaded, plus the task's limit, plus [`MARGIN_BYTES`]. A task that makes the runtime exceed that
//! ends with its worker.
//!
//! Left out: allocations of a worker that was taken over. It can raise the second limit again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::process::{Resource, Rlimit};
use wasmtime::ResourceLimiter;

use crate::processes::kib_of;

/// Message of a task that was refused memory by the machine, not by its limit.
pub const NO_MEMORY: &str = "the machine has no more memory to give";

/// Bytes of a table entry: a pointer, in a vector that keeps room for as many again.
const TABLE_ENTRY_BYTES: u64 = 16;
/// Memory that the runtime may need for a task besides its memory and tables. Our choice: the 48 MiB above, and the
/// random numbers of one call.
const MARGIN_BYTES: u64 = (48 << 20) + RANDOM_BYTES_MAX;
/// Most random bytes that one call of a task gets. The runtime holds them all at once.
pub(super) const RANDOM_BYTES_MAX: u64 = 16 << 20;
/// Most files that a worker may have open. Our choice: what programs get on most systems.
const OPEN_FILES_MAX: u64 = 1024;

/// The first wall: what a task uses, and may use.
#[derive(Debug)]
pub(super) struct Limits {
    limit_bytes: u64,
    taken_bytes: u64,
}

/// Why a task's memory, or one of its tables, did not grow.
#[derive(Debug, thiserror::Error)]
#[error("needs more memory than its limit of {} MiB: submit the bag with a larger --memory", .limit_bytes >> 20)]
pub(super) struct MemoryLimit {
    limit_bytes: u64,
}

impl Limits {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, taken_bytes: 0 }
    }

    fn take(&mut self, bytes: u64) -> wasmtime::Result<bool> {
        // Memory that is granted and then refused by the machine stays counted: its task ends.
        self.taken_bytes = self.taken_bytes.saturating_add(bytes);
        if self.taken_bytes > self.limit_bytes {
            return Err(wasmtime::Error::new(MemoryLimit { limit_bytes: self.limit_bytes }));
        }
        Ok(true)
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.take(desired.saturating_sub(current) as u64)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        // The machine, not the limit, refused: end the task rather than let it write through a null pointer.
        Err(error.context(NO_MEMORY))
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.take((desired.saturating_sub(current) as u64).saturating_mul(TABLE_ENTRY_BYTES))
    }

    fn table_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(error.context(NO_MEMORY))
    }

    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }
}

/// The second wall: the limits of the process.
#[derive(Debug)]
pub(super) struct ProcessLimits {
    /// Opened before the worker is confined, which closes `/proc`.
    status: File,
    /// Private memory of the process with its program and without a task, bytes.
    idle_bytes: u64,
    /// The limit set at present.
    task_bytes: Option<u64>,
}

impl ProcessLimits {
    /// Limits the number of open files, and prepares the memory limit.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn new() -> io::Result<Self> {
        lower(Resource::Nofile, OPEN_FILES_MAX)?;
        Ok(Self { status: File::open("/proc/self/status")?, idle_bytes: 0, task_bytes: None })
    }

    /// Takes the present memory as that of a process without a task.
    ///
    /// # Errors
    /// When the system does not tell how much that is.
    pub(super) fn program_is_loaded(&mut self) -> io::Result<()> {
        let mut text = [0; 4096];
        let length = self.status.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..length]);
        self.idle_bytes = kib_of(&text, "VmData:")
            .map(|kib| kib << 10)
            .ok_or_else(|| io::Error::other("/proc/self/status does not say what private memory there is"))?;
        Ok(())
    }

    /// Sets the limit for a task: the idle process's memory, the task's, and the margin.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn admit(&mut self, task_bytes: u64) -> io::Result<()> {
        if self.task_bytes != Some(task_bytes) {
            lower(Resource::Data, self.idle_bytes.saturating_add(task_bytes).saturating_add(MARGIN_BYTES))?;
            self.task_bytes = Some(task_bytes);
        }
        Ok(())
    }
}

/// Sets a limit, though not above the highest that this process may set.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let maximum = rustix::process::getrlimit(resource).maximum;
    let current = Some(maximum.map_or(most, |maximum| maximum.min(most)));
    Ok(rustix::process::setrlimit(resource, Rlimit { current, maximum })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_tables_have_one_sum() {
        let mut limits = Limits::new(100 * 65536);
        let refused = |grown: wasmtime::Result<bool>| {
            let error = grown.expect_err("over the limit");
            assert_eq!(error.downcast_ref::<MemoryLimit>().map(|limit| limit.limit_bytes), Some(100 * 65536));
        };
        assert!(limits.memory_growing(0, 65536, None).expect("within"));
        // 2^18 entries are 4 MiB, the two of them 8 MiB of 6.25.
        assert!(limits.table_growing(0, 1 << 18, None).expect("within"));
        assert!(!limits.table_growing(0, 1 << 18, Some(1)).expect("the module's own limit is no fault"));
        assert!(limits.memory_growing(65536, 30 * 65536, Some(1 << 30)).expect("within"));
        refused(limits.table_growing(0, 1 << 18, None));
        let mut limits = Limits::new(100 * 65536);
        assert!(limits.memory_growing(0, 100 * 65536, None).expect("all of it"));
        refused(limits.table_growing(0, 1, None));
    }
}
