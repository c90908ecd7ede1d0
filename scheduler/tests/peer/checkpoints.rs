//! Checkpoints: which tasks go back with one, stay with one, and go on from one.

use super::*;

pub(super) const KEPT: Checkpoint = Checkpoint { blob: BlobId([8; 32]), bytes: 80 };

/// The tasks that the host handed back with a checkpoint, with their attempts.
pub(super) fn handed_back(host: &Host) -> Vec<(u64, u32)> {
    let results = host.sent.iter().filter_map(|(_, message)| match message {
        Message::Results { results, .. } => Some(results),
        _ => None,
    });
    let back = results.flatten().filter(|result| {
        result.unfinished && !result.success && (result.output, result.output_bytes) == (KEPT.blob, KEPT.bytes)
    });
    back.map(|result| (result.index, result.attempt)).collect()
}

#[test]
fn begun_tasks_go_back_with_their_checkpoint_or_stay() {
    let suspended = || {
        let mut host = Host::new(2);
        host.receive(1, request(1, 3, 0..3));
        host.give(Event::OwnerReturned { stands_still: true });
        host.pass(Config::default().vacate_after + seconds(1.0));
        assert_eq!(host.asked, [(BAG, IntervalSet::from(0..1))], "what has not begun is back already");
        assert_eq!(host.holdings().last().unwrap().1, 1);
        host.sent.clear();
        host
    };
    let mut host = suspended();
    host.keep(0, None);
    assert_eq!(
        (host.stopped.len(), host.peer.held()[0].running),
        (0, 1),
        "it stays with a checkpoint that is too large"
    );
    host.keep(0, Some(KEPT));
    assert_eq!(host.stopped, [TaskId { bag: BAG, index: 0 }]);
    assert_eq!(handed_back(&host), [(0, 3)]);
    let first =
        host.sent.iter().find(|(_, message)| matches!(message, Message::Holding { .. } | Message::Results { .. }));
    assert!(matches!(first, Some((_, Message::Holding { .. }))), "only of what is placed here it is believed");
    host.give(Event::TaskEnded { task: host.started[0], outcome: TaskOutcome::Stopped });
    assert_eq!(host.peer.held()[0].unacknowledged, 1, "it is said again until it is taken");
    // A restarted host sends the result, too.
    let outbox = host.persisted.iter().filter(|record| matches!(record, Record::Outbox { .. })).cloned();
    let mut again = Host::restore(2, Config::default(), outbox.collect());
    again.pass(seconds(20.0));
    assert_eq!(handed_back(&again).first(), Some(&(0, 3)));
    host.receive(1, Message::ResultsAck { bag: BAG, attempt: 3, indices: IntervalSet::from(0..1) });
    assert!(host.peer.held().is_empty());

    let mut host = suspended();
    host.give(Event::OwnerLeft);
    host.keep(0, Some(KEPT));
    assert_eq!((host.stopped.len(), handed_back(&host).len()), (0, 0), "it goes on where it is");
}

/// The task has written to its checkpoint since: another machine would go on from half of one without a sign of it.
#[test]
fn checkpoints_packed_before_tasks_went_on_are_ignored() {
    let still = |stands_still| Event::OwnerReturned { stands_still };
    // The owner leaves, or is away while the disk is full: begun tasks go on.
    for goes_on in [Event::OwnerLeft, still(false)] {
        let mut host = Host::new(2);
        host.receive(1, request(1, 3, 0..3));
        host.receive(1, lease(0, IntervalSet::new()));
        host.give(still(true));
        host.pass(Config::default().vacate_after + seconds(1.0));
        let before = host.stop;
        host.give(goes_on);
        host.keep(0, Some(KEPT));
        host.give(still(true));
        host.keep(0, Some(KEPT));
        assert_eq!((host.stopped.len(), handed_back(&host).len()), (0, 0), "it is older than what the task has");
        host.asked.clear();
        host.pass(Config::default().vacate_after + seconds(1.0));
        assert!(host.asked.contains(&(BAG, IntervalSet::from(0..1))) && host.stop > before);
        host.keep(0, Some(KEPT));
        assert_eq!(handed_back(&host), [(0, 3)]);
    }
}

/// The waiting task's checkpoint has not changed, since only running tasks went on.
#[test]
fn freezing_later_makes_no_packed_checkpoint_old() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 3, 0..3));
    host.receive(1, lease(0, IntervalSet::new()));
    host.give(Event::CheckpointsFound { bag: BAG, tasks: IntervalSet::from(1..2) });
    host.give(Event::OwnerReturned { stands_still: false });
    host.pass(Config::default().vacate_after + seconds(1.0));
    assert_eq!(host.asked, [(BAG, IntervalSet::from(1..2))]);
    host.give(Event::OwnerReturned { stands_still: true });
    host.keep(1, Some(KEPT));
    assert_eq!(handed_back(&host), [(1, 3)]);
}

#[test]
fn tasks_with_a_local_checkpoint_are_not_given_away_without_it() {
    let held = || {
        let (released, checkpoints) = (START, BTreeMap::new());
        let ranges = IntervalSet::from(0..4);
        let (bag, at_once) = (bag(1), IntervalSet::new());
        let held =
            Record::Held { bag, released, attempt: 0, attempts: None, ranges, checkpoints, priority: 0, at_once };
        let mut host = Host::restore(2, Config::default(), vec![held]);
        host.receive(1, lease(0, IntervalSet::new()));
        host.give(Event::OwnerReturned { stands_still: true });
        host.give(Event::CheckpointsFound { bag: BAG, tasks: IntervalSet::from(2..4) });
        host
    };
    // An asking machine is offered all other tasks, since the owner is back.
    let mut host = held();
    let asker = Asker { contact: contact(3), speed_mops: 1000.0, slots: 1, stretch: 0.0 };
    host.receive(3, Message::Ask { asker, node: Node::Leaf, climbing: false, climbed: 0, ticket: 0 });
    let offered = host.sent.iter().find_map(|(_, message)| match message {
        Message::Offer { ranges, .. } => Some(ranges.clone()),
        _ => None,
    });
    assert_eq!(offered, Some(IntervalSet::from(1..2)));

    let mut host = held();
    host.pass(Config::default().vacate_after + seconds(1.0));
    assert_eq!(host.asked, [(BAG, IntervalSet::from(0..1).union(&IntervalSet::from(2..4)))]);
    assert_eq!(host.holdings().last().unwrap().1, 3);
    // One task has no checkpoint after all, and goes back without.
    host.keep(3, Some(KEPT));
    assert_eq!(handed_back(&host), [(3, 0)]);
    assert_eq!(host.holdings().last().unwrap().1, 2, "the one that had begun, and the one to be taken");
}

#[test]
fn a_task_keeps_its_checkpoint_over_a_restart() {
    let mut host = Host::new(2);
    let Message::Request { request, node, climbing } = request(1, 0, 0..3) else { unreachable!() };
    let request = Request { checkpoints: Box::new([(0, KEPT), (2, KEPT)]), ..request };
    host.receive(1, Message::Request { request, node, climbing });
    let (version, _) = host.holdings()[0];
    host.receive(1, lease(version, IntervalSet::new()));
    assert_eq!(host.going_on, BTreeMap::from([(0, KEPT)]));
    let held = host.persisted.iter().rfind(|record| matches!(record, Record::Held { .. })).cloned();
    host.finish(host.started[0], true);
    host.finish(host.started[1], true);
    assert_eq!(host.going_on, BTreeMap::from([(0, KEPT), (2, KEPT)]));
    let host = Host::restore(2, Config::default(), held.into_iter().collect());
    assert_eq!(host.going_on, BTreeMap::from([(0, KEPT)]));
}

#[test]
fn a_submitter_restores_checkpoints_after_a_restart() {
    let bag = BagHeader { tasks: 3, ..bag(2) };
    let record = submitted(bag, 0, 1);
    let checkpoint = Record::Checkpoint { bag: BAG, index: 0, checkpoint: KEPT };
    let mut host = Host::restore(2, Config::default(), vec![checkpoint, record]);
    host.pass(seconds(20.0));
    assert_eq!(host.going_on, BTreeMap::from([(0, KEPT)]));
}

#[test]
fn parts_of_a_request_name_their_checkpoints() {
    let [mut host, mut router] = pair();
    assert!(router.peer.overlay_view().hosts_router());
    let Message::Request { request, .. } = request(1, 0, 0..20) else { unreachable!() };
    let request = Request { checkpoints: (0..20).map(|index| (index, KEPT)).collect(), ..request };
    router.receive(1, Message::Request { request, node: Node::Router, climbing: false });
    let mut parts = Vec::new();
    talk_and(&mut host, &mut router, 2, |message| {
        if let Message::Request { request, .. } = message {
            parts.push(request.clone());
        }
    });
    assert!(!parts.is_empty());
    for part in parts {
        assert!(part.is_valid() && part.ranges.len() < 20, "{part:?}");
        assert_eq!(part.checkpoints.len() as u64, part.ranges.len());
    }
}
