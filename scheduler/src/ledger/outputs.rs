//! Outputs of results that are being fetched, and failed fetches.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use crate::bag::TaskResult;

/// After so many failed fetches of its output a task is run again elsewhere. Our choice.
pub(super) const UNFETCHED_MAX: u32 = 5;
/// A machine that cannot be reached for outputs, or has too much to do, is waited for as long as this before what it ended is run again
/// elsewhere, and longer while other outputs of it come: work that is done is not thrown away for want of a few seconds. Our choice: what
/// is run again has mostly taken minutes.
pub(super) const PUT_OFF_MAX: Duration = Duration::from_secs(600);

/// Fetches of one output that failed, or were put off.
#[derive(Clone, Copy, Debug)]
struct Unfetched {
    /// The machine that has it.
    from: PeerId,
    failed: u32,
    /// Since when it is put off, or since when another output of that machine has come.
    put_off_since: Option<Time>,
}

/// Outputs of tasks that have not ended.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// Results whose output is being fetched, and the machine it comes from.
    fetching: BTreeMap<u64, (TaskResult, Contact)>,
    /// By task.
    unfetched: BTreeMap<u64, Unfetched>,
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

    /// The output of a task has come from this machine, which so can be reached.
    pub(super) fn came(&mut self, from: PeerId, now: Time) {
        let of_machine = self.unfetched.values_mut().filter(|unfetched| unfetched.from == from);
        of_machine.filter_map(|unfetched| unfetched.put_off_since.as_mut()).for_each(|since| *since = now);
    }

    fn unfetched_of(&mut self, index: u64, from: PeerId) -> &mut Unfetched {
        let new = Unfetched { from, failed: 0, put_off_since: None };
        let unfetched = self.unfetched.entry(index).or_insert(new);
        if unfetched.from != from {
            *unfetched = new;
        }
        unfetched
    }

    /// A fetch failed; returns whether it was one too many. Else the executor sends its result again.
    pub(super) fn gives_up(&mut self, index: u64, from: PeerId) -> bool {
        let unfetched = self.unfetched_of(index, from);
        unfetched.failed += 1;
        let gives_up = unfetched.failed >= UNFETCHED_MAX;
        if gives_up {
            self.unfetched.remove(&index);
        }
        gives_up
    }

    /// A fetch was put off; returns whether that has gone on for too long. Else the executor sends its result again.
    pub(super) fn gives_up_waiting(&mut self, index: u64, from: PeerId, now: Time) -> bool {
        let since = *self.unfetched_of(index, from).put_off_since.get_or_insert(now);
        let gives_up = now.since(since) >= PUT_OFF_MAX;
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
