//! The tasks of a bag of this machine, one by one: where each is, and how it ended.
//!
//! Where tasks are that have not ended is in the ledger, as intervals; how the others ended is read from the store, for the page asked
//! for alone. Whether a task on another machine runs or waits there only that machine knows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use blake3::Hash;
use idlewood_api::{Task, TaskState};
use idlewood_blobs::Blobs;
use idlewood_overlay::PeerId;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagView, Peer, TaskId, TaskResult};
use idlewood_store::Reader;
use idlewood_trust::identity;
use idlewood_trust::manifest::{TAIL_BYTES, TaskOutput};
use idlewood_units::clock::iso;

use super::done::Done;
use super::endless_view;
use super::pins;
use super::results::{self, Finished};
use super::shared::Shared;
use crate::handle::{Page, Refusal, Reply, TaskQuery, answer};

/// Most tasks of one answer.
const MOST: u64 = 10_000;

/// Where the tasks of a bag are.
#[derive(Debug, Default)]
pub(super) struct Whereabouts {
    done: IntervalSet,
    failed: IntervalSet,
    pausing: IntervalSet,
    placed: Vec<(PeerId, IntervalSet)>,
    /// Those that are in none of the others.
    rest: IntervalSet,
    /// Whether the rest never ends.
    is_over: bool,
}

impl Whereabouts {
    pub(super) fn of(peer: &Peer, view: &BagView) -> Self {
        let bag = view.bag.id;
        let (done, failed) = peer.over(bag);
        let ended = done.union(&failed);
        let placed: Vec<(PeerId, IntervalSet)> =
            peer.placements(bag).into_iter().map(|(executor, ranges)| (executor.peer, ranges)).collect();
        let pausing = peer.pausing(bag).difference(&ended);
        // Drained tasks are not known one by one any more.
        let first = view.endless.as_ref().map_or(0, |endless| endless.drained_below);
        let mut rest = IntervalSet::from(first..endless_view::tasks(view)).difference(&ended).difference(&pausing);
        placed.iter().for_each(|(_, ranges)| rest.subtract(ranges));
        Self { done, failed, pausing, placed, rest, is_over: view.closed.is_some() }
    }

    /// The tasks in this state.
    pub(super) fn in_state(&self, state: TaskState) -> IntervalSet {
        match state {
            TaskState::Waiting if !self.is_over => self.rest.clone(),
            TaskState::Cancelled if self.is_over => self.rest.clone(),
            TaskState::Waiting | TaskState::Cancelled => IntervalSet::new(),
            TaskState::Retrying => self.pausing.clone(),
            TaskState::Placed => {
                let placed = self.placed.iter().fold(IntervalSet::new(), |all, (_, ranges)| all.union(ranges));
                placed.difference(&self.done).difference(&self.failed).difference(&self.pausing)
            }
            TaskState::Succeeded => self.done.clone(),
            TaskState::Failed => self.failed.clone(),
        }
    }

    /// The machine that has this task; of several the first.
    pub(super) fn machine(&self, index: u64) -> Option<PeerId> {
        self.placed.iter().find(|(_, ranges)| ranges.contains(index)).map(|(machine, _)| *machine)
    }
}

/// The tasks asked for, by index; how many more there are; and where the next page begins.
fn page(whereabouts: &Whereabouts, query: &TaskQuery) -> (BTreeMap<u64, TaskState>, u64, Option<u64>) {
    let sets: Vec<(TaskState, IntervalSet)> =
        query.states.iter().map(|&state| (state, whereabouts.in_state(state))).collect();
    let all = sets.iter().fold(IntervalSet::new(), |all, (_, tasks)| all.union(tasks));
    let mut following = all.intersection(&IntervalSet::from(query.from..u64::MAX));
    let chosen = following.take_first(query.most.min(MOST));
    let state_of = |index| sets.iter().find(|(_, tasks)| tasks.contains(index)).map(|(state, _)| (index, *state));
    (chosen.indices().filter_map(state_of).collect(), all.len(), following.first())
}

/// Answers beside the loop: results are in the store, and entries in the manifest.
pub(super) fn answer_with(
    view: &BagView,
    query: TaskQuery,
    reply: Reply<idlewood_api::Tasks>,
    reader: Reader,
    peer: &Peer,
    shared: &mut Shared,
) {
    let bag = view.bag.id;
    let whereabouts = Whereabouts::of(peer, view);
    let (known, blobs) = (shared.manifests.get(bag), shared.supplies.blobs.clone());
    let lines = shared.lines.clone();
    let look = move || {
        let manifest = match pins::manifest(known, &blobs, bag) {
            Ok(manifest) => manifest,
            Err(refusal) => {
                answer(reply, Err(refusal));
                return Done::Discarded;
            }
        };
        let (states, matching, next) = page(&whereabouts, &query);
        let entry = |index| {
            let line = lines.get(TaskId { bag, index });
            match &manifest {
                Some(manifest) => manifest.text_of(index, line),
                None => line.unwrap_or_default(),
            }
        };
        let told = endings(&reader, view_of(&states), bag).map(|endings| {
            let task = |(&index, &state): (&u64, &TaskState)| match endings.get(&index) {
                Some(finished) => Some(ended(finished, entry(index), &blobs)),
                // Its result is not durable yet.
                None if matches!(state, TaskState::Succeeded | TaskState::Failed) => None,
                None => Some(open(index, state, whereabouts.machine(index), entry(index))),
            };
            let tasks = states.iter().filter_map(task).collect();
            idlewood_api::Tasks { bag: hex::encode(bag.0), tasks, matching, next }
        });
        answer(reply, told);
        Done::ManifestRead { bag, manifest }
    };
    shared.answers.spawn_blocking(look, Done::ManifestRead { bag, manifest: None });
}

/// Those of these tasks that have ended.
fn view_of(states: &BTreeMap<u64, TaskState>) -> IntervalSet {
    let ended = states.iter().filter(|(_, state)| matches!(state, TaskState::Succeeded | TaskState::Failed));
    ended.map(|(&index, _)| index..index + 1).collect()
}

/// How these tasks ended, as far as that is durable.
fn endings(
    reader: &Reader,
    tasks: IntervalSet,
    bag: idlewood_scheduler::BagId,
) -> Result<BTreeMap<u64, Finished>, Refusal> {
    let mut endings = BTreeMap::new();
    for range in tasks.ranges() {
        let page = Page { from: range.start, most: range.end - range.start };
        results::read(reader, bag, page, |finished| {
            if range.contains(&finished.result.index) {
                endings.insert(finished.result.index, finished);
            }
        })?;
    }
    Ok(endings)
}

fn open(index: u64, state: TaskState, machine: Option<PeerId>, entry: String) -> Task {
    let machine = machine.map(|machine| identity::to_libp2p(machine).to_string());
    Task { index, entry, state, machine, attempt: None, exit_code: None, took_s: None, finished: None }
}

fn ended(Finished { executor, at, result }: &Finished, entry: String, blobs: &Blobs) -> Task {
    Task {
        index: result.index,
        entry,
        state: if result.success { TaskState::Succeeded } else { TaskState::Failed },
        machine: Some(identity::to_libp2p(*executor).to_string()),
        attempt: Some(result.attempt),
        exit_code: result.exit_code,
        took_s: took_s(result, blobs),
        finished: Some(iso(*at)),
    }
}

/// How long the task ran, by its output; `None` where that is not to be had.
fn took_s(result: &TaskResult, blobs: &Blobs) -> Option<f64> {
    if let Some(content) = &result.content {
        return TaskOutput::wall_s_at_the_end(content.bytes());
    }
    let path = blobs.path(Hash::from_bytes(result.output.0)).ok()??;
    let tail = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-(TAIL_BYTES as i64)))?;
        let mut tail = Vec::with_capacity(TAIL_BYTES);
        file.take(TAIL_BYTES as u64).read_to_end(&mut tail)?;
        std::io::Result::Ok(tail)
    };
    TaskOutput::wall_s_at_the_end(&tail().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[std::ops::Range<u64>]) -> IntervalSet {
        ranges.iter().cloned().collect()
    }

    fn query(states: &[TaskState], from: u64, most: u64) -> TaskQuery {
        TaskQuery { from, most, states: states.to_vec() }
    }

    #[test]
    fn each_task_is_in_one_state_and_pages_leave_none_out() {
        let mut whereabouts = Whereabouts {
            done: set(&[0..10, 20..30]),
            failed: IntervalSet::from(10..12),
            pausing: IntervalSet::from(12..13),
            placed: vec![(PeerId([1; 32]), IntervalSet::from(30..40)), (PeerId([2; 32]), IntervalSet::from(35..50))],
            rest: set(&[13..20, 50..60]),
            is_over: false,
        };
        let all = page(&whereabouts, &query(&TaskState::ALL, 0, 1000));
        assert_eq!((all.0.len(), all.1, all.2), (60, 60, None));
        let mut seen = BTreeMap::new();
        let mut from = Some(0);
        while let Some(begin) = from {
            let (tasks, matching, next) = page(&whereabouts, &query(&TaskState::ALL, begin, 7));
            assert_eq!(matching, 60);
            assert!(tasks.keys().all(|index| !seen.contains_key(index)));
            seen.extend(tasks);
            from = next;
        }
        assert_eq!(seen, all.0);
        assert_eq!([11, 12, 13, 37].map(|index| seen[&index].name()), ["failed", "retrying", "waiting", "placed"]);
        assert_eq!(
            [30, 45, 55].map(|index| whereabouts.machine(index).map(|peer| peer.0[0])),
            [Some(1), Some(2), None]
        );
        let failed = page(&whereabouts, &query(&[TaskState::Failed], 11, 5));
        assert_eq!((failed.0.into_keys().collect::<Vec<_>>(), failed.1), (vec![11], 2));

        whereabouts.is_over = true;
        assert_eq!(page(&whereabouts, &query(&[TaskState::Waiting], 0, 5)).1, 0);
        assert_eq!(page(&whereabouts, &query(&[TaskState::Cancelled], 0, 5)).1, 17);
    }
}
