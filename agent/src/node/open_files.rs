//! How many files the agent may have open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that an agent asks for: four times the connections that it may have (`idlewood_machine::connections::ESTABLISHED_MAX`). Our choice.
const OPEN_FILES: u64 = 8192;

/// Asks for as many open files as an agent may need; many systems allow a process a thousand until it asks for more. Where that is refused the agent has fewer
/// connections.
pub(super) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if let Some(current) = wanted(limit.current, limit.maximum)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum })
    {
        tracing::warn!(%error, "the agent keeps its limit of open files, and has fewer connections for it");
    }
}

/// The limit to ask for, of those that the system has now and allows at most (none: no limit); `None` where it is high enough.
fn wanted(current: Option<u64>, maximum: Option<u64>) -> Option<u64> {
    let wanted = maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    current.filter(|current| *current < wanted).map(|_| wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_allows_is_asked_for() {
        assert_eq!(wanted(Some(1024), Some(524_288)), Some(OPEN_FILES));
        assert_eq!(wanted(Some(1024), None), Some(OPEN_FILES));
        assert_eq!(wanted(Some(1024), Some(4096)), Some(4096));
        assert_eq!(wanted(Some(4096), Some(4096)), None);
        assert_eq!(wanted(Some(20_000), Some(20_000)), None);
        assert_eq!(wanted(None, None), None);
    }
}
