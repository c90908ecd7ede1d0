//! Bags of this machine in the API's words.

use idlewood_overlay::Time;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::rounds::Progress;
use idlewood_scheduler::{Awaited, BagId, BagView, Closing, KeeperView, Peer, ResultsKept};
use idlewood_trust::identity;
use idlewood_units::clock::{Clock, iso, wall_now};

use super::endless_view;
use super::pins::Pins;
use super::shared::Shared;
use crate::handle::Refusal;
use crate::output;

/// A moment, past or to come, as wall-clock time.
pub(super) fn wall(clock: &Clock, time: Time) -> String {
    let now = clock.now();
    iso(wall_now() - now.since(time) + time.since(now))
}

/// A bag of this machine by a unique prefix of its id, by its name, or `last`.
///
/// # Errors
/// No bag, or more than one: these are listed.
pub(super) fn find(peer: &Peer, pins: &Pins, id: &str) -> Result<BagView, Refusal> {
    let mut bags: Vec<BagView> = peer.bags().collect();
    if id == "last" {
        let last = bags.into_iter().max_by_key(|bag| bag.submitted);
        return last.ok_or_else(|| Refusal::NotFound("no bag was submitted from this machine yet".to_owned()));
    }
    let prefix = id.to_ascii_lowercase();
    let is_hex = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_hexdigit());
    bags.retain(|bag| is_hex && hex::encode(bag.bag.id.0).starts_with(&prefix) || pins.name(bag) == id);
    bags.sort_by_key(|bag| bag.submitted);
    match (bags.len(), bags.pop()) {
        (1, Some(bag)) => Ok(bag),
        (_, None) => Err(Refusal::NotFound(format!(
            "no bag {id:?} was submitted from this machine; `idlewood bag list` shows those that were"
        ))),
        (count, Some(last)) => {
            bags.push(last);
            let named = bags.iter().rev().take(CANDIDATES_NAMED).map(|bag| {
                let hex = hex::encode(bag.bag.id.0);
                format!("{} ({})", output::short_id(&hex), pins.name(bag))
            });
            let named = named.collect::<Vec<_>>().join(", ");
            let more = count.saturating_sub(CANDIDATES_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            Err(Refusal::Ambiguous(format!("{id:?} can be {named}{more}: give more digits of the id you mean")))
        }
    }
}

/// Bags that an ambiguous name is said to mean.
const CANDIDATES_NAMED: usize = 8;

/// A bag of this machine. Its first task here began to run at `first_start`.
pub(super) fn bag(
    view: &BagView,
    first_start: Option<Time>,
    pins: &Pins,
    peer: &Peer,
    shared: &Shared,
) -> idlewood_api::Bag {
    let clock = &shared.clock;
    let now = clock.now();
    let end = view.closed.map_or(now, |(_, at)| at);
    let elapsed_s = end.since(view.released).as_secs_f64();
    let measured = view.bag.task_mops > 0.0;
    let machines = peer.overlay_view().root().map_or(1, |root| root.count);
    let state = match view.closed {
        // One that was removed is in no view.
        Some((Closing::Cancelled | Closing::Removed, _)) => idlewood_api::BagState::Cancelled,
        Some((Closing::Completed, _)) if view.failed > 0 => idlewood_api::BagState::Failed,
        Some((Closing::Completed, _)) => idlewood_api::BagState::Succeeded,
        None if view.conditions.withheld || view.awaited.values().any(|why| *why != Awaited::Open) => {
            idlewood_api::BagState::Held
        }
        None if !view.awaited.is_empty() => idlewood_api::BagState::Waiting,
        None if !measured => idlewood_api::BagState::Measuring,
        None => idlewood_api::BagState::Running,
    };
    let prediction = peer.predicted_end(view.bag.id);
    idlewood_api::Bag {
        id: hex::encode(view.bag.id.0),
        name: pins.name(view),
        state,
        tasks: endless_view::tasks(view),
        done: view.done,
        failed: view.failed,
        placed: view.placed,
        machines: view.executors,
        unplaced: view.unplaced,
        reissued: view.reissued,
        duplicates: view.duplicates,
        unasked: view.unasked,
        replication: view.replication,
        disputed: view.disputed,
        undecidable: undecidable(view, machines),
        declined: view
            .declined
            .iter()
            .map(|(reason, declines)| idlewood_api::Declined {
                reason: reason.to_string(),
                tasks: declines.tasks,
                machine: identity::to_libp2p(declines.last).to_string(),
            })
            .collect(),
        astray: view.astray,
        swallowed: view
            .swallowed
            .iter()
            .map(|(&router, swallowed)| idlewood_api::Swallowed {
                machine: identity::to_libp2p(router).to_string(),
                tasks: swallowed.tasks,
                is_left_out: swallowed.is_left_out,
            })
            .collect(),
        work_mops: measured.then_some(view.bag.task_mops),
        measured_mops: (view.measured_mops > 0.0).then_some(view.measured_mops),
        task_s_least: view.spread_mops.map(|(least, _)| least / peer.platform().speed_mops),
        task_s_most: view.spread_mops.map(|(_, most)| most / peer.platform().speed_mops),
        overstated: view.overstated,
        given_up_with: (state == idlewood_api::BagState::Cancelled && view.bag.submitter.peer != peer.me().peer)
            .then(|| identity::to_libp2p(view.bag.submitter.peer).to_string()),
        submitted: wall(clock, view.submitted),
        finished: view.closed.map(|(_, at)| wall(clock, at)),
        elapsed_s,
        first_start_s: first_start.map(|at| at.since(view.released).as_secs_f64()),
        stretch: (measured && view.endless.is_none()).then(|| elapsed_s / view.bag.application_size_mops),
        times_alone: times_alone(view, elapsed_s, peer.platform().speed_mops, machines),
        predicted_end: prediction.map(|prediction| wall(clock, prediction.end)),
        predicted_end_within_s: prediction.map(|prediction| prediction.within.as_secs_f64()),
        prediction_error_percent: peer.prediction_error(view.bag.id).map(|error| 100.0 * error),
        // Only a view of the whole machine knows these two.
        runs: false,
        bounds: Vec::new(),
        computed_s: view.work_done_mops / shared.kernel_mops,
        machines_used: view.machines_used,
        stewards: peer.stewards_wanted(view.bag.id),
        keepers: keepers(peer.keepers(view.bag.id)),
        results_kept: peer.results_kept(view.bag.id).filter(|_| view.closed.is_none()).map(results_kept),
        results_lost: Some(first_spans(&peer.results_lost(view.bag.id))).filter(|tasks| !tasks.is_empty()),
        acting_since: peer.acting_since(view.bag.id).map(|since| wall(clock, since)),
        safe_to_switch_off: peer.goes_on_without_me(view.bag.id),
        adopted_elsewhere: peer.is_elsewhere(view.bag.id),
        files_missing: view.closed.is_none() && pins.description(view.bag.id).is_none() && !pins.is_unread(view.bag.id),
        held: view.conditions.withheld,
        after: view.awaited.iter().map(|(&bag, &why)| awaited(bag, why, peer, pins)).collect(),
        max_running: view.conditions.running_max,
        retry_on: view.conditions.retry_on.as_ref().map(|codes| codes.iter().copied().collect()),
        priority: view.conditions.priority,
        endless: endless_view::shown(view, pins.source(view.bag.id)),
        rounds: peer.rounds(view.bag.id).map(|progress| rounds(progress, view, peer)),
    }
}

/// How far an application in rounds is.
fn rounds(progress: &Progress, view: &BagView, peer: &Peer) -> idlewood_api::RoundsView {
    let (plan, conditions) = (progress.plan(), &view.conditions);
    idlewood_api::RoundsView {
        processes: plan.processes,
        rounds: plan.rounds,
        merges: plan.merges,
        mode: if plan.is_asynchronous { "async" } else { "sync" }.to_owned(),
        complete: progress.rounds_complete(),
        done: progress.rounds_done().to_vec(),
        waited_for: progress.waited_for(),
        gone: conditions.rounds_gone,
        slots_booked: peer.booked_slots(view.bag.id),
        converged: conditions.converged,
    }
}

/// A bag for which another waits.
fn awaited(bag: BagId, why: Awaited, peer: &Peer, pins: &Pins) -> idlewood_api::AwaitedBag {
    let name = peer.bag(bag).map(|view| pins.name(&view)).unwrap_or_default();
    let state = match why {
        Awaited::Open => "open",
        Awaited::Failed => "failed",
        Awaited::Cancelled => "cancelled",
        Awaited::Unknown => "unknown",
    };
    idlewood_api::AwaitedBag { id: hex::encode(bag.0), name, state: state.to_owned() }
}

/// How many times as long a bag took as it would have alone on a grid of so many machines, which work so fast together. A bag of
/// fewer tasks than machines takes the time of one task all the same (`design/scheduler`: the effective size).
fn times_alone(view: &BagView, elapsed_s: f64, grid_mops: f64, machines: u64) -> Option<f64> {
    let alone_s = view.bag.task_mops * view.bag.tasks.max(machines) as f64 / grid_mops;
    // Alone it would not have been slower.
    (view.endless.is_none() && view.closed.is_some() && alone_s.is_finite() && alone_s > 0.0)
        .then(|| (elapsed_s / alone_s).max(1.0))
}

fn results_kept(kept: ResultsKept) -> idlewood_api::ResultsKept {
    let ResultsKept { ended, elsewhere, lacks_room } = kept;
    idlewood_api::ResultsKept { ended, elsewhere, safe: elsewhere >= ended, lacks_room }
}

/// Tasks as people write them, the first hundred spans.
fn first_spans(tasks: &IntervalSet) -> String {
    let more = if tasks.intervals() > SPANS_MAX { ",..." } else { "" };
    output::spans(&tasks.ranges().take(SPANS_MAX).collect()) + more
}

/// Spans of tasks that are named.
const SPANS_MAX: usize = 100;

fn keepers(views: Vec<KeeperView>) -> Vec<idlewood_api::Keeper> {
    let keeper = |view: KeeperView| idlewood_api::Keeper {
        machine: identity::to_libp2p(view.peer).to_string(),
        rank: view.rank,
        acting: view.acting,
        up_to_date: view.is_up_to_date,
        heard: view.is_heard,
    };
    views.into_iter().map(keeper).collect()
}

/// Why nothing, or not all, of an open bag can be decided before more machines join a grid of so many.
fn undecidable(view: &BagView, machines: u64) -> Option<String> {
    let quorum = u64::from(view.replication.quorum);
    if view.closed.is_some() {
        None
    } else if quorum > machines {
        let grid = output::count(machines, "machine");
        Some(format!(
            "{quorum} machines have to say the same and the grid has {grid}: nothing is decided until more join"
        ))
    } else {
        let tasks = output::count(view.undecided, "task");
        (view.undecided > 0).then(|| {
            format!(
                "{tasks} did not end alike on {quorum} machines, and no other can be asked: they are tried again where they \
                 failed, if that can help, or wait for more to join"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use idlewood_overlay::{Contact, PeerId};
    use idlewood_scheduler::{BagHeader, Conditions, Replication};

    use super::*;

    #[test]
    fn a_bag_that_waits_for_more_machines_says_for_what() {
        let submitter = Contact { peer: PeerId([1; 32]), incarnation: 1, address: "".into(), nonce: None };
        let (task_mops, application_size_mops) = (1.0, 9.0);
        let id = BagId([2; 32]);
        let bag = BagHeader { id, submitter, tasks: 9, task_mops, application_size_mops, declared: true };
        let open = BagView {
            bag,
            released: Time::ZERO,
            submitted: Time::ZERO,
            done: 0,
            failed: 0,
            placed: 9,
            executors: 2,
            unplaced: 0,
            pausing: 0,
            pausing_until: None,
            unheard: 0,
            unheard_since: None,
            reissued: 0,
            duplicates: 0,
            machines_used: 0,
            work_done_mops: 0.0,
            measured_mops: 0.0,
            spread_mops: None,
            overstated: 0,
            replication: Replication { replicas: 3, quorum: 2, recheck: 0 },
            disputed: 0,
            undecided: 0,
            declined: BTreeMap::new(),
            unasked: 0,
            astray: 0,
            swallowed: BTreeMap::new(),
            closed: None,
            conditions: Conditions::default(),
            awaited: BTreeMap::new(),
            endless: None,
        };
        let stuck = BagView { undecided: 4, ..open.clone() };
        let over = BagView { closed: Some((Closing::Cancelled, Time::ZERO)), ..stuck.clone() };
        assert_eq!([(&open, 2), (&over, 1)].map(|(view, machines)| undecidable(view, machines)), [None, None]);
        let [few, stuck] = [(&open, 1), (&stuck, 2)].map(|(view, machines)| undecidable(view, machines).expect("why"));
        assert!(few.starts_with("2 machines have to say the same and the grid has 1 machine:"), "{few}");
        assert!(stuck.starts_with("4 tasks did not end alike on 2 machines"), "{stuck}");
    }
}
