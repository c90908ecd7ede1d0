//! Runs tasks: WebAssembly programs (WASI preview 1), each slot in a worker process of its own.
//!
//! # Why processes
//! A machine must go back to its owner at once. Checks compiled into the program (epochs, fuel) cost up to twice the
//! time in tight loops; a signal costs nothing. So the engine lives in a child process per slot: the owner's return is
//! SIGSTOP (memory stays, nothing runs), vacating is SIGKILL, and whatever a task brings down is a worker, not the
//! agent. One worker runs many tasks of a bag, one after the other, so that small tasks do not pay for a process each, and
//! may be given several ahead ([`Pool::append`]), which can be taken back as long as they have not begun
//! ([`Pool::take_back`]). A worker runs one program and reaches one bag's directories ([`Reach`]): whoever breaks out of
//! WebAssembly is among what their submitter may see and change anyway. A bag's first task on a slot costs a new process.
//!
//! # The parts
//! - [`Pool`] (agent side): one thread and at most one worker process per slot, time limits, freezing.
//! - [`child`] (worker side): what `idlewood worker` does; compiles, or runs.
//! - [`lay_out`] (before): puts a task's inputs where it can read them. [`left`] (after): reads what it left. [`removal`]: removes it.
//! - [`check_program`]: says in one sentence what is wrong with a program, without running or compiling it.
//! - [`speed`]: the reference kernel, by which the size of a task is measured.
//! - `protocol`: the frames between the two; `compile_cache`: compiled programs on disk; `output`: capped stdout; `low`: priorities;
//!   `confine`: the second wall; `disk`: what a task's files may take, `held_open`: also when it has removed them; `limits`: what it
//!   may take of memory; `group`: control groups, which hold that for native programs.
//!
//! # What a task sees
//! Its arguments, exactly the environment it was given, and three directories (WASI knows no working directory, only
//! opened ones; C and Rust programs resolve relative paths against `.`):
//!
//! | path | is | may |
//! |---|---|---|
//! | `.` | [`Job::work_dir`], empty at first | be written; what it holds at the end are the outputs |
//! | `inputs/` | the directory [`Job::inputs`], if any | be read |
//! | `checkpoint/` | the directory [`Job::checkpoint`], if any | be written; outlives the attempt |
//!
//! A program that imports nothing with which it could reach them gets none of these directories, and stdout and stderr
//! become files with the first byte written to them: a small task costs less than a file.
//!
//! `inputs/` and `checkpoint/` lie outside the working directory on the host, so that no path through `.` reaches an
//! input for writing. Hence listing `.` does not show them, and wasi-libc finds `inputs/a` and `/inputs/a` but not
//! `./inputs/a`, which it looks for in the working directory. Writing past [`Job::output_bytes`] on stdout or stderr fails with
//! an I/O error (EFBIG) and is reported in [`WorkerEvent::Ended`]. So does writing a file past [`Job::disk_bytes`]; a task
//! whose files take more than that together is ended. Asking for more memory than [`Job::memory_bytes`]
//! ends the task: C programs seldom check `malloc`, and address 0 is ordinary memory in WebAssembly.
//!
//! Programs may leave symbolic links that point anywhere in their working directory. Neither the task nor [`left`] follows
//! them.
//!
//! # Native programs
//! Where the owner lets them run ([`Job::native`]) a worker is for one task: it starts the program, watches it, and goes
//! with all that it has started (`native`). Such a program finds `inputs` and `checkpoint` as links in its working directory,
//! and what the system has installed, read-only. Where it has namespaces there is nothing else: the owner's paths do not exist.
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
mod held_open;
mod inputs;
mod limits;
mod low;
mod native;
mod output;
mod pool;
mod program;
mod protocol;
mod said;

pub mod child;
pub mod left;
pub mod removal;
pub mod speed;

pub use confine::{Gap, gaps};
pub use group::gap as group_gap;
pub use inputs::{Input, LayOutError, lay_out};
pub use native::gap as native_gap;
pub use pool::{Pool, PoolConfig, PoolError, StartError, WorkerEvent};
pub use program::{ProgramError, check_program};
pub use said::Streams;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What workers make in [`Job::directory`]: the working directory.
pub const WORK: &str = "work";
/// The file with standard output there.
pub const STDOUT: &str = "stdout";
/// The file with standard error there.
pub const STDERR: &str = "stderr";

/// One task, ready to run on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The program in a file: a WebAssembly module, or where [`Job::native`] says so what this system executes.
    pub program: PathBuf,
    /// BLAKE3 of that file; a file with another content is not run.
    pub program_hash: [u8; 32],
    /// The arguments, the program's name first.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// What the program reads on its standard input.
    pub stdin: Stdin,
    /// A directory on the host that the task sees as `inputs/`, made by [`lay_out`].
    pub inputs: Option<PathBuf>,
    /// The attempt's directory on the host: empty, or not there yet. The worker puts [`Job::work_dir`],
    /// [`Job::stdout_path`] and [`Job::stderr_path`] into it. The caller reads it with [`left`], and removes it if it is there.
    pub directory: PathBuf,
    /// A directory on the host that the task sees as `checkpoint/`. The worker makes it for a program that can get at it,
    /// keeps it locked while that runs, and removes it again where the program left nothing in it. A task whose checkpoint
    /// another worker has does not start.
    pub checkpoint: Option<PathBuf>,
    /// Most that the program's linear memory and tables may take together, or most memory of all processes of a native one,
    /// bytes. (The worker itself takes some 10 MiB besides, and at most 64 MiB for what a task makes it do.)
    pub memory_bytes: u64,
    /// Most bytes taken from each of stdout and stderr.
    pub output_bytes: u64,
    /// Most bytes that the files in [`Job::work_dir`] and [`Job::checkpoint`] may take together, those that the task has
    /// removed and holds open among them; each file and directory counts for 4 KiB besides its content.
    pub disk_bytes: u64,
    /// Longest run, not counting frozen time and the compilation; `None`: unlimited.
    pub time_limit: Option<Duration>,
    /// The program is one of this system, not WebAssembly.
    pub native: bool,
    /// The same clock and the same random numbers wherever it runs, drawn from this; `None`: the host's. Native programs
    /// have the host's.
    pub fixed: Option<u64>,
    /// Where all of the above lies; a worker runs jobs of one such value only.
    #[serde(skip)]
    pub reach: Arc<Reach>,
}

/// What the message says of a task that the machine, and not its limit, refused memory.
pub const NO_MEMORY: &str = "the machine has no more memory to give";

/// What workers of one bag can reach of this machine's files, besides their program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Directories and files with what they read: inputs. Nobody whom they could mislead may write there.
    pub readable: Vec<PathBuf>,
    /// Directories for what they write, created where they are missing. Their parents must be out of workers' reach, and
    /// they are never to be removed and made anew: who has them open does not see the new ones.
    pub writable: Vec<PathBuf>,
}

/// What a task reads on its standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// Nothing: the end at once.
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
    /// The program was ended for what it did: a fault, or more memory than the limit.
    Trapped {
        /// What it did, in a sentence.
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
    /// The worker process died under the task: killed from outside, out of memory, or a defect. Another try may go well.
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
    /// A host path that cannot be told to a worker.
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

    /// The file with what the task wrote to stdout.
    pub fn stdout_path(&self) -> PathBuf {
        self.directory.join(STDOUT)
    }

    /// The file with what the task wrote to stderr.
    pub fn stderr_path(&self) -> PathBuf {
        self.directory.join(STDERR)
    }

    /// Refuses names and strings that no task can be given.
    ///
    /// # Errors
    /// [`JobError`], naming the first offender.
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
