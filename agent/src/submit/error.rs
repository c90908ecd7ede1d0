//! Why a submission cannot be sent.

use std::io;
use std::path::PathBuf;

use idlewood_worker::ProgramError;

/// Why a submission cannot be sent. Nothing was uploaded.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The spec file has a mistake.
    #[error("{}, line {line}: {reason}", path.display())]
    Spec {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// The mistake.
        reason: String,
    },
    /// A file that is needed cannot be read.
    #[error("cannot read the {what} {}: {source}", path.display())]
    File {
        /// The file's role.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No program was named.
    #[error("no program: name one with --program FILE.wasm or in a spec file")]
    NoProgram,
    /// No machine can run the program.
    #[error("{} cannot be run: {source}", path.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: ProgramError,
    },
    /// The bag would have no task.
    #[error("no task: {0}")]
    NoTask(String),
    /// Two files would be one under `inputs/`.
    #[error("two inputs would be named {name} ({} and {}): rename one, or give the folders that they lie in", first.display(), second.display())]
    SameName {
        /// The name.
        name: String,
        /// A file.
        first: PathBuf,
        /// Another file.
        second: PathBuf,
    },
    /// Any other mistake in a value.
    #[error("{0}")]
    Value(String),
}
