//! What an opening finds damaged.

use std::path::PathBuf;

use tracing::{error, warn};

/// The damage, and its consequences.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Descriptions of the damage.
    pub(super) flaws: Vec<String>,
    /// Keys of records without a sound copy.
    pub(super) damaged: Vec<Vec<u8>>,
    /// Acknowledged commits without a copy.
    pub(super) commits_lost: u64,
    /// Where the damaged files are now.
    pub(super) set_aside: Option<PathBuf>,
}

impl Findings {
    /// Logs what was wrong with the store, and the outcome.
    pub(super) fn log(&self) {
        let Self { flaws, damaged, commits_lost, set_aside } = self;
        let why = flaws.join("; ");
        let moved_to = set_aside.as_ref().map(|aside| aside.display().to_string()).unwrap_or_default();
        if !damaged.is_empty() || *commits_lost > 0 {
            error!(
                moved_to,
                why,
                commits_lost,
                records_damaged = damaged.len(),
                "the store has lost what was on disk; what is damaged was set aside, and the agent goes on with the rest: check \
                 the disk"
            );
        } else if set_aside.is_some() {
            error!(
                moved_to,
                why,
                "a part of the store is damaged and was set aside; nothing is lost, since all was there twice: check the disk"
            );
        } else if !flaws.is_empty() {
            warn!(why, "a part of the store was missing; nothing is lost, since all was there twice");
        }
    }
}
