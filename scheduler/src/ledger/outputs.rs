//! Outputs of results that are being fetched, and failed fetches.

use std::collections::BTreeMap;

use idlewood_overlay::Contact;

use crate::bag::TaskResult;

/// After so many failed fetches of its output a task is run again elsewhere. Our choice.
pub(super) const UNFETCHED_MAX: u32 = 5;

/// Outputs of tasks that have not ended.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// Results whose output is being fetched, and the machine it comes from.
    fetching: BTreeMap<u64, (TaskResult, Contact)>,
    /// Failed fetches by task.
    unfetched: BTreeMap<u64, u32>,
}

impl Outputs {
    pub(super) fn is_fetching(&self, index: u64) -> bool {
        self.fetching.contains_key(&index)
    }

    pub(super) fn fetch(&mut self, result: TaskResult, from: Contact) {
        self.fetching.insert(result.index, (result, from));
    }

    /// The fetch of an output has ended, well or not: removes and returns its result.
    pub(super) fn fetched(&mut self, index: u64) -> Option<(TaskResult, Contact)> {
        self.fetching.remove(&index)
    }

    /// A fetch failed; returns whether it was one too many. Else the executor sends its result again.
    pub(super) fn gives_up(&mut self, index: u64) -> bool {
        let unfetched = self.unfetched.entry(index).or_insert(0);
        *unfetched += 1;
        let gives_up = *unfetched >= UNFETCHED_MAX;
        if gives_up {
            self.unfetched.remove(&index);
        }
        gives_up
    }

    /// A task has ended.
    pub(super) fn forget(&mut self, index: u64) {
        self.unfetched.remove(&index);
    }

    /// The bag is closed: no output is waited for.
    pub(super) fn stop(&mut self) {
        self.fetching.clear();
    }

    /// Tasks with failed fetches.
    #[cfg(debug_assertions)]
    pub(super) fn unfetched(&self) -> impl Iterator<Item = u64> + '_ {
        self.unfetched.keys().copied()
    }
}
