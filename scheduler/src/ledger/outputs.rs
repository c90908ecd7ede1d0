//! Outputs of results: those on their way here, and those that did not arrive.

use std::collections::BTreeMap;

use idlewood_overlay::Contact;

use crate::bag::TaskResult;

/// Times that the output of a task may fail to arrive before the task is run again elsewhere. Our choice.
pub(super) const UNFETCHED_MAX: u32 = 5;

/// Outputs of tasks that are not over.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// Results whose output is on its way here, and from whom.
    fetching: BTreeMap<u64, (TaskResult, Contact)>,
    /// How often the output of a task did not arrive.
    unfetched: BTreeMap<u64, u32>,
}

impl Outputs {
    pub(super) fn is_fetching(&self, index: u64) -> bool {
        self.fetching.contains_key(&index)
    }

    pub(super) fn fetch(&mut self, result: TaskResult, from: Contact) {
        self.fetching.insert(result.index, (result, from));
    }

    /// The output of a task is here, or could not be had.
    pub(super) fn fetched(&mut self, index: u64) -> Option<(TaskResult, Contact)> {
        self.fetching.remove(&index)
    }

    /// It could not be had: whether that was so too often. Else its executor offers it again.
    pub(super) fn gives_up(&mut self, index: u64) -> bool {
        let unfetched = self.unfetched.entry(index).or_insert(0);
        *unfetched += 1;
        let gives_up = *unfetched >= UNFETCHED_MAX;
        if gives_up {
            self.unfetched.remove(&index);
        }
        gives_up
    }

    /// A task is over.
    pub(super) fn forget(&mut self, index: u64) {
        self.unfetched.remove(&index);
    }

    /// The bag is over: what is on its way is not wanted.
    pub(super) fn stop(&mut self) {
        self.fetching.clear();
    }

    /// Tasks of which something is remembered here that should be forgotten once they are over.
    #[cfg(debug_assertions)]
    pub(super) fn unfetched(&self) -> impl Iterator<Item = u64> + '_ {
        self.unfetched.keys().copied()
    }
}
