//! A task as a worker is given it.

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
    /// A directory on the host that the task sees as `inputs/`, made by [`lay_out`](crate::lay_out).
    pub inputs: Option<PathBuf>,
    /// The attempt's directory on the host: empty, or not there yet. The worker puts [`Job::work_dir`],
    /// [`Job::stdout_path`] and [`Job::stderr_path`] into it. The caller reads it with [`untrusted`](crate::untrusted), and removes it if
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
    /// These bytes; larger ones belong in a file (see [`StartError::TooLarge`](crate::StartError::TooLarge)).
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The content of this host file.
    File(PathBuf),
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
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plain_job() -> Job {
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
