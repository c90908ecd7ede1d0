//! Tests of declined tasks.

use super::*;

#[test]
fn declined_tasks_pause_and_go_to_a_willing_machine() {
    let (mut io, config) = (io(), Config::default());
    let mut ledger = ledger(&io, 0);
    ledger.issue(Vec::new, &io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..20)), &mut io, &config);
    ledger.holding(said(2, 1, IntervalSet::from(20..25)), &mut io, &config);
    // Placed tasks cannot be declined by other machines.
    ledger.declined(contact(3).peer, &IntervalSet::from(0..40), DeclineReason::Role, &mut io);
    assert_accounted(&ledger);
    assert_eq!(ledger.view().placed, 25);
    assert_eq!(
        ledger.view().declined[&DeclineReason::Role],
        Declines { tasks: 15, machines: 1, last: contact(3).peer }
    );
    assert_eq!((ledger.view().pausing, ledger.view().pausing_until), (15, ledger.deadline()));
    assert!(ledger.issue(Vec::new, &io, &config).is_empty(), "not at once");
    let next = |ledger: &mut Ledger, io: &mut Io| {
        let waited = ledger.deadline().expect("it is issued again").since(io.now);
        io.now = ledger.deadline().expect("as above");
        ledger.expire(io);
        (waited, ledger.issue(Vec::new, io, &config))
    };
    let (first, requests) = next(&mut ledger, &mut io);
    assert!(matches!(&requests[..], [(None, request)] if request.ranges == IntervalSet::from(25..40)), "{requests:?}");
    // Other tasks are placed meanwhile: the next pause is short again.
    ledger.holding(said(2, 2, IntervalSet::from(20..26)), &mut io, &config);
    ledger.declined(contact(3).peer, &IntervalSet::from(26..40), DeclineReason::Quota, &mut io);
    let (second, requests) = next(&mut ledger, &mut io);
    assert_eq!(first, second);
    let [(Some(to), request)] = &requests[..] else { panic!("{requests:?}") };
    let (view, last) = (ledger.view(), contact(3).peer);
    assert_eq!(
        view.declined[&DeclineReason::Role],
        Declines { tasks: 15, machines: 0, last },
        "it says something else now"
    );
    assert_eq!(view.declined[&DeclineReason::Quota], Declines { tasks: 14, machines: 1, last });
    assert_eq!((view.pausing, view.unheard, view.unheard_since), (0, 14, Some(io.now)));
    assert_eq!((to.peer, &request.ranges), (contact(2).peer, &IntervalSet::from(26..40)));
    assert_accounted(&ledger);
    // Only the machine that it was sent to can decline it.
    ledger.declined(contact(3).peer, &IntervalSet::from(26..40), DeclineReason::Quota, &mut io);
    assert!(ledger.issues.iter().any(|issue| issue.ranges == IntervalSet::from(26..40)));
    ledger.holding(said(2, 3, IntervalSet::from(20..40)), &mut io, &config);
    assert_accounted(&ledger);
    assert_eq!((ledger.view().placed, ledger.view().reissued), (TASKS, 0));
    assert_eq!((ledger.view().unheard, ledger.view().unheard_since), (0, None));
}

#[test]
fn the_submitter_runs_tasks_that_all_decline() {
    let (mut io, config) = (io(), Config::default());
    let mut ledger = ledger(&io, 0);
    ledger.issue(Vec::new, &io, &config);
    let mut pauses = Vec::new();
    for round in 0..12 {
        ledger.declined(contact(3).peer, &IntervalSet::from(0..TASKS), DeclineReason::Role, &mut io);
        let until = ledger.waiting.first_end().expect("it is issued again");
        pauses.push(until.since(io.now).as_secs());
        io.now = until;
        ledger.expire(&mut io);
        let requests = ledger.issue(Vec::new, &io, &config);
        let to: Vec<Option<PeerId>> = requests.iter().map(|(to, _)| to.as_ref().map(|to| to.peer)).collect();
        assert_eq!(to, [(round > 0).then_some(io.me.peer)]);
        // The machine that it was sent to is not asked again, as if the request had been lost.
        ledger.issues.send_to_anybody();
    }
    assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 32, 60]);
    assert_eq!(pauses.last(), Some(&60));
}
