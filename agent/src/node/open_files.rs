//! How many files the agent may have open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that an agent asks for: twice what its connections take at most (`idlewood_machine::connections::ESTABLISHED_MAX`), and as many again. Our choice.
const OPEN_FILES: u64 = 8192;

/// Asks for as many open files as an agent may need; many systems allow a process a thousand until it asks for more. Where that is refused the agent has fewer
/// connections.
pub(super) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if current.is_some_and(|current| current < wanted)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
    {
        tracing::warn!(%error, "the agent keeps its limit of open files, and has fewer connections for it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_allows_is_asked_for() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(500), maximum }).expect("it may be lowered");
        raise();
        let allowed = getrlimit(Resource::Nofile).current;
        assert_eq!(allowed, Some(maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES)));
        raise();
        assert_eq!(getrlimit(Resource::Nofile).current, allowed);
    }
}
