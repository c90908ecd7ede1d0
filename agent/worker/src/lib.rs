//! Runs tasks: WebAssembly programs (WASI preview 1), each slot in a worker process of its own.
//!
//! # Why processes
//! A machine must go back to its owner at once. Checks compiled into the program (epochs, fuel) cost up to twice the
//! time in tight loops; a signal costs nothing. So the engine lives in a child process per slot: the owner's return is
//! SIGSTOP (memory stays, nothing runs), vacating is SIGKILL, and a task that crashes takes down a worker, not the
//! agent. One worker runs many tasks of a bag, one after the other, so that small tasks do not each pay for a process,
//! and may be given several ahead ([`Pool::append`]), which can be taken back until they begin ([`Pool::take_back`]). A
//! worker runs one program and reaches one bag's directories ([`Reach`]): a task that breaks out of WebAssembly reaches
//! only what its submitter may see and change anyway. A bag's first task on a slot costs a new process.
//!
//! # The parts
//! - [`Pool`] (agent side): one thread and at most one worker process per slot, time limits, freezing.
//! - [`child`] (worker side): what `idlewood worker` does; compiles, or runs.
//! - [`lay_out`] (before): puts a task's inputs where it can read them. [`untrusted`] (after): reads its output.
//!   [`removal`]: removes its files.
//! - [`check_program`]: says in one sentence what is wrong with a program, without running or compiling it.
//! - [`speed`]: the reference kernel, by which the size of a task is measured.
//! - `protocol`: the packets and frames between the two; `compile_cache`: compiled programs on disk; `output`: capped
//!   streams, `shared_output`: their beginning in memory; `low`: priorities; `confine`: the second wall; `disk`: the
//!   limit on a task's files, `open_files`: including removed ones; `limits`: that on its memory; `group`: control
//!   groups, which enforce the limits of native programs.
//!
//! # What a task sees
//! Its arguments, exactly the environment that it was given, and three directories (WASI knows no working directory,
//! only opened ones; C and Rust programs resolve relative paths against `.`):
//!
//! | path | is | may |
//! |---|---|---|
//! | `.` | [`Job::work_dir`], empty at first | be written; what it holds at the end are the outputs |
//! | `inputs/` | the directory [`Job::inputs`], if any | be read |
//! | `checkpoint/` | the directory [`Job::checkpoint`], if any | be written; outlives the attempt |
//!
//! A program that imports no function that needs a directory gets none of these, and stdout and stderr become files
//! only when they exceed some memory: a small task costs less than a file.
//!
//! `inputs/` and `checkpoint/` lie outside the working directory on the host, so that no path through `.` reaches an
//! input for writing. Hence listing `.` does not show them, and wasi-libc finds `inputs/a` and `/inputs/a` but not
//! `./inputs/a`, which it looks for in the working directory. Writing past [`Job::output_bytes`] on stdout or stderr fails with
//! an I/O error (EFBIG) and is reported in [`WorkerEvent::Ended`]. So does writing a file past [`Job::disk_bytes`]; a task
//! whose files take more than that together is ended. Asking for more memory than [`Job::memory_bytes`]
//! ends the task: C programs seldom check `malloc`, and address 0 is ordinary memory in WebAssembly.
//!
//! Programs may leave symbolic links that point anywhere in their working directory. Neither the task nor [`untrusted`]
//! follows them.
//!
//! # Native programs
//! If the owner allows them ([`Job::native`]), a worker serves one task: it starts the program, watches it, and ends
//! with all that it has started (`native`). Such a program finds `inputs` and `checkpoint` as links in its working
//! directory, and the installed system, read-only. With namespaces nothing else exists for it, no path of the owner's.
//!
//! # Left out
//! - Clocks and random numbers are the host's, unless a job wants them fixed (`fixed`); the monotonic clock goes on while a task is frozen.
//! - No NaN canonicalisation (2.5 times the time): programs that look at NaN bits may differ between machines.
//!   Relaxed SIMD, which also may, is off.

mod compile_cache;
mod confine;
mod disk;
mod fixed;
mod group;
mod inputs;
mod limits;
mod low;
mod native;
mod open_files;
mod output;
mod pool;
mod program;
mod protocol;
mod shared_output;

pub mod child;
pub mod removal;
pub mod speed;
pub mod untrusted;

pub use confine::{Gap, gaps};
pub use group::gap as group_gap;
pub use inputs::{Input, LayOutError, lay_out};
pub use native::gap as native_gap;
pub use pool::{Pool, PoolConfig, PoolError, StartError, WorkerEvent};
pub use program::{ProgramError, check_program};
pub use shared_output::Streams;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The working directory, made by the worker in [`Job::directory`].
pub const WORK: &str = "work";
/// The file with standard output there.
pub const STDOUT: &str = "stdout";
/// The file with standard error there.
pub const STDERR: &str = "stderr";

/// One task, ready to run on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The program's file: a WebAssembly module, or with [`Job::native`] an executable of this system.
    pub program: PathBuf,
    /// BLAKE3 of that file; a file with another content is not run.
    pub program_hash: [u8; 32],
    /// The arguments, the program's name first.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Content of its standard input.
    pub stdin: Stdin,
    /// A directory on the host that the task sees as `inputs/`, made by [`lay_out`].
    pub inputs: Option<PathBuf>,
    /// The attempt's directory on the host: empty, or not there yet. The worker puts [`Job::work_dir`],
    /// [`Job::stdout_path`] and [`Job::stderr_path`] into it. The caller reads it with [`untrusted`], and removes it if
    /// it is there.
    pub directory: PathBuf,
    /// A directory on the host that the task sees as `checkpoint/`. The worker makes it if the program can use it,
    /// keeps it locked meanwhile, and removes it again if the program left it empty. A task whose checkpoint another
    /// worker has locked does not start.
    pub checkpoint: Option<PathBuf>,
    /// Limit on the program's linear memory and tables together, or on the memory of all processes of a native one, in
    /// bytes. (The worker itself takes some 10 MiB besides, and at most 64 MiB for work that a task causes.)
    pub memory_bytes: u64,
    /// Most bytes taken from each of stdout and stderr.
    pub output_bytes: u64,
    /// Limit on the bytes of files in [`Job::work_dir`] and [`Job::checkpoint`] together, including files that the task
    /// has removed and holds open; each file and directory counts 4 KiB besides its content.
    pub disk_bytes: u64,
    /// Longest run, not counting frozen time and the compilation; `None`: unlimited.
    pub time_limit: Option<Duration>,
    /// The program is an executable of this system, not WebAssembly.
    pub native: bool,
    /// Seed of a clock and random numbers that are the same wherever the task runs; `None`: the host's. Native programs
    /// always have the host's.
    pub fixed: Option<u64>,
    /// The directories of all of the above; a worker runs jobs with one such value only.
    #[serde(skip)]
    pub reach: Arc<Reach>,
}

/// Message of a task that was refused memory by the machine, not by its limit.
pub const NO_MEMORY: &str = "the machine has no more memory to give";

/// Files that workers of one bag can reach, besides their program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Directories and files that they read: inputs. Only trusted processes may write there.
    pub readable: Vec<PathBuf>,
    /// Directories that they write, created if missing. Their parents must be out of workers' reach, and they must
    /// never be removed and made anew: a worker that has them open would not see the new ones.
    pub writable: Vec<PathBuf>,
}

/// The content of a task's standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// Empty.
    Empty,
    /// These bytes; larger ones belong in a file (see [`StartError::TooLarge`]).
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The content of this host file.
    File(PathBuf),
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The program ended by itself.
    Exited {
        /// Its exit code, 0 to 255 (of a larger one the low eight bits, as POSIX has it).
        code: u8,
    },
    /// The program was ended for a fault, or for exceeding its memory limit.
    Trapped {
        /// The reason, in a sentence.
        message: String,
    },
    /// The program cannot run on any machine.
    Invalid {
        /// Why, in a sentence.
        message: String,
    },
    /// The program ran longer than its limit.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The program's files took more of the disk than its limit.
    OverDisk {
        /// The limit, bytes.
        limit_bytes: u64,
    },
    /// This machine could not prepare the task (a blob missing, the disk full); another one may.
    CouldNotStart {
        /// Why, in a sentence.
        message: String,
    },
    /// The worker process died during the task: killed from outside, out of memory, or a defect. Another attempt may
    /// succeed.
    WorkerDied {
        /// How, in a sentence.
        reason: String,
    },
    /// [`Pool::stop`] or [`Pool::shutdown`] ended it.
    Stopped,
}

/// Why a job cannot be started anywhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A host path that the protocol cannot express.
    #[error("the path {path:?} is not valid UTF-8: keep idlewood's files under another directory")]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// A string that C programs cannot take.
    #[error(
        "{what} {value:?} is not allowed: it contains a NUL character, or is a variable name with \"=\" or without letters"
    )]
    Text {
        /// An argument or an environment variable.
        what: &'static str,
        /// Its value.
        value: String,
    },
}

impl Job {
    /// The task's working directory on the host.
    pub fn work_dir(&self) -> PathBuf {
        self.directory.join(WORK)
    }

    /// The file with the task's standard output.
    pub fn stdout_path(&self) -> PathBuf {
        self.directory.join(STDOUT)
    }

    /// The file with the task's standard error.
    pub fn stderr_path(&self) -> PathBuf {
        self.directory.join(STDERR)
    }

    /// Refuses names and strings that no task can receive.
    ///
    /// # Errors
    /// [`JobError`], naming the first flaw.
    pub fn validate(&self) -> Result<(), JobError> {
        let mut paths = vec![&self.program, &self.directory];
        paths.extend(&self.checkpoint);
        paths.extend(&self.inputs);
        paths.extend(self.reach.readable.iter().chain(&self.reach.writable));
        if let Stdin::File(path) = &self.stdin {
            paths.push(path);
        }
        if let Some(path) = paths.into_iter().find(|path| path.to_str().is_none()) {
            return Err(JobError::Path { path: path.clone() });
        }
        if let Some(argument) = self.args.iter().find(|argument| argument.contains('\0')) {
            return Err(JobError::Text { what: "argument", value: argument.clone() });
        }
        let bad_variable =
            |(key, value): &&(String, String)| key.is_empty() || key.contains(['\0', '=']) || value.contains('\0');
        if let Some((key, _)) = self.env.iter().find(bad_variable) {
            return Err(JobError::Text { what: "environment variable", value: key.clone() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn plain_job() -> Job {
        Job {
            program: PathBuf::from("/program"),
            program_hash: [0; 32],
            args: vec!["program".to_owned()],
            env: Vec::new(),
            stdin: Stdin::Empty,
            inputs: None,
            directory: PathBuf::from("/task"),
            checkpoint: None,
            memory_bytes: 1 << 20,
            fixed: None,
            output_bytes: 1 << 20,
            disk_bytes: 1 << 20,
            time_limit: None,
            native: false,
            reach: Arc::default(),
        }
    }

    #[test]
    fn strings_are_what_c_programs_can_take() {
        let mut job = plain_job();
        job.args.push("a\0b".to_owned());
        assert!(matches!(job.validate(), Err(JobError::Text { what: "argument", .. })));
        for (key, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
            let mut job = plain_job();
            job.env.push((key.to_owned(), value.to_owned()));
            assert!(matches!(job.validate(), Err(JobError::Text { what: "environment variable", .. })), "{key:?}");
        }
    }
}
