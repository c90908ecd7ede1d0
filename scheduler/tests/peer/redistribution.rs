//! Redistribution: which machines ask for work, and which tasks they get.

use super::*;

#[test]
fn a_dry_machine_gets_half_of_the_waiting_tasks() {
    for redistribution in [true, false] {
        let [mut host, mut other] = pair_with(Config { redistribution, ..Config::default() });
        let mut asks = 0;
        talk_and(&mut host, &mut other, 120, |message| asks += u32::from(matches!(message, Message::Ask { .. })));
        assert_eq!(asks, 0, "nothing waits anywhere");
        let submission = submission(40, 100_000.0);
        host.give(Event::Submitted(submission));
        talk(&mut host, &mut other, 5);
        let waiting = |host: &Host| host.peer.held().iter().map(|held| held.waiting).sum::<u64>();
        let placed = [waiting(&host), waiting(&other)];
        assert!(placed.iter().all(|&waiting| waiting > 10), "{placed:?}");
        // The other machine ends all its tasks long before they were expected to end.
        for _ in 0..40 {
            other.finish_running();
        }
        assert_eq!(waiting(&other), 0);
        let mut asks = 0;
        for _ in 0..60 {
            talk_and(&mut host, &mut other, 1, |message| asks += u32::from(matches!(message, Message::Ask { .. })));
        }
        let shared = [waiting(&host), waiting(&other)];
        if redistribution {
            assert!(shared[0].abs_diff(shared[1]) <= 2 && shared[1] > 3, "{shared:?}");
        } else {
            assert_eq!((shared[1], asks), (0, 0));
        }
        let view = host.peer.bag(BAG).unwrap();
        assert_eq!((view.reissued, view.duplicates, view.done + view.placed), (0, 0, 40));
    }
}

#[test]
fn only_a_clearly_smaller_stretch_gets_work() {
    for (levelling, done, moves) in [(true, 10, true), (true, 1, false), (false, 10, false)] {
        let [mut host, mut other] = pair_with(Config { levelling, ..Config::default() });
        let submission = submission(40, 100_000.0);
        host.give(Event::Submitted(submission));
        talk(&mut host, &mut other, 5);
        let waiting = |host: &Host| host.peer.held().iter().map(|held| held.waiting).sum::<u64>();
        // The other machine is faster than expected.
        for _ in 0..done {
            other.finish_running();
        }
        let before = [waiting(&host), waiting(&other)];
        let mut asks = 0;
        talk_and(&mut host, &mut other, 30, |message| asks += u32::from(matches!(message, Message::Ask { .. })));
        let after = [waiting(&host), waiting(&other)];
        assert_eq!((asks > 0, after != before), (moves, moves), "{before:?} {after:?}");
        assert!(!moves || after[0].abs_diff(after[1]) <= 3, "{before:?} {after:?}");
        let view = host.peer.bag(BAG).unwrap();
        assert_eq!((view.reissued, view.duplicates, view.done + view.placed), (0, 0, 40));
    }
}

#[test]
fn a_machine_that_runs_dry_asks_at_once() {
    // The router is on the machine with the tasks, so that every `Ask` is a message.
    let [mut asker, mut holder] = pair();
    let submission = submission(40, 100_000.0);
    holder.give(Event::Submitted(submission));
    talk(&mut asker, &mut holder, 5);
    (0..10).for_each(|_| asker.finish_running());
    // It has work, and the other's is more urgent; its `Ask` is lost.
    let is_ask = |message: &Message| matches!(message, Message::Ask { .. });
    while !asker.sent.iter().any(|(_, message)| is_ask(message)) {
        assert!(asker.now < Time::from_micros(60_000_000), "it never asks");
        deliver(&mut asker, &mut holder, &mut |_| ());
        [&mut asker, &mut holder].into_iter().for_each(|one| one.pass(Duration::from_millis(100)));
    }
    asker.sent.clear();
    while !asker.peer.running().is_empty() {
        asker.finish_running();
    }
    assert!(asker.sent.iter().any(|(_, message)| is_ask(message)), "its next question was not due yet");
}
