//! Why a look at a task's files ends early.

use std::io;

use rustix::io::Errno;

use crate::end::End;

/// Why a look ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The task is to end in this way.
    Verdict(End),
    /// Unknown: this machine prevents measuring.
    Hindered(io::Error),
}

impl Stop {
    /// The task ends for exceeding a limit.
    pub(super) fn broke(message: impl Into<String>) -> Self {
        Self::Verdict(End::Trapped { message: message.into() })
    }

    /// The system refuses to show a directory or file.
    pub(super) fn by(errno: Errno) -> Self {
        match errno {
            Errno::ACCESS | Errno::PERM | Errno::NOTDIR | Errno::LOOP => Self::broke(
                "has a directory that cannot be read, so that nobody knows what it takes of the disk: leave the rights to it",
            ),
            errno => Self::Hindered(errno.into()),
        }
    }
}
