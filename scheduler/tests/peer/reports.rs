//! Reports of availability: which are urgent, and which wait.

use idlewood_scheduler::queue::{Entry, Load};
use idlewood_scheduler::summary::{Summary, SummaryForm, wait_s};

use super::*;

/// A request for one task of so many seconds, the only one of its bag.
fn small(number: u8, task_s: u32) -> Message {
    forged(u64::from(number), |request| {
        request.bag.id = BagId([number; 32]);
        request.ranges = IntervalSet::from(0..1);
        request.bag.task_mops = 1000.0 * f64::from(task_s);
    })
}

/// The longest wait of the grid, as its root reports it.
fn longest_wait_s(grid: &[Host; 2]) -> u64 {
    let root = grid.iter().find(|host| host.peer.overlay_view().is_root()).expect("one of the two");
    root.peer.platform().longest_wait_s
}

/// Lets both exchange messages for so many tenths of a second.
fn run(grid: &mut [Host; 2], tenths: u32) {
    let [host, other] = grid;
    for _ in 0..tenths {
        for one in [&mut *host, &mut *other] {
            one.pass(Duration::from_millis(100));
        }
        deliver(host, other, &mut |_| ());
    }
}

#[test]
fn growing_availability_is_reported_later_than_shrinking() {
    // One of them has the router, to which the other reports. Where little is left to do, little time is lost.
    for (laden, task_s, waits) in [(0, 100, true), (1, 100, true), (0, 20, false), (1, 20, false)] {
        let mut grid = pair();
        for number in 1..=2 {
            grid[laden].receive(9, small(number, task_s));
        }
        // The first task takes as long as declared, and the second begins.
        run(&mut grid, 10 * task_s);
        let (before, first) = (longest_wait_s(&grid), grid[laden].started[0]);
        grid[laden].finish(first, true);
        run(&mut grid, 7);
        assert_eq!(longest_wait_s(&grid) == before, waits, "somebody may have more to tell");
        run(&mut grid, 8);
        let after = longest_wait_s(&grid);
        assert!(after < before, "{before} {after}");
        // A third bag is reported at once, together with the change that would have waited.
        grid[laden].receive(9, small(3, task_s));
        run(&mut grid, 5);
        assert!(longest_wait_s(&grid) > after, "{after}");
    }
}

#[test]
fn a_leaf_reports_the_papers_matrix_for_the_next_five_minutes_and_at_each_end() {
    let config = Config {
        summaries: SummaryForm::Paper,
        effective_size: false,
        preemptive: false,
        idle_slots: false,
        ..Config::default()
    };
    let mut host = Host::restore(2, config, Vec::new());
    host.give(Event::Submitted(submission(2, 450_000.0)));
    // At 1,000 Mop/s. The wall clock shows a multiple of five minutes after 100 s, so that r is then, 400 s, 700 s, …
    for (at_s, release_s, running_mops, left) in [
        (1, 100.0, 450_000.0, 1.0),
        (99, 100.0, 450_000.0, 1.0),
        (101, 400.0, 350_000.0, 1.0),
        (399, 400.0, 350_000.0, 1.0),
        (401, 700.0, 50_000.0, 1.0),
        // A task ended, as was expected.
        (451, 700.0, 450_000.0, 0.0),
        (701, 1000.0, 200_000.0, 0.0),
    ] {
        host.pass(seconds(f64::from(at_s)) - host.now.since(Time::ZERO));
        if at_s == 401 {
            host.pass(seconds(49.0));
            host.finish(host.started[0], true);
            continue;
        }
        // What it was made of: the moment follows from what was left of the running task.
        let entry = Entry { release_s: 0.0, application_size_mops: 900_000.0, task_mops: 450_000.0, left };
        let begun_s = if left > 0.0 { 0.0 } else { 450.0 };
        let load = Load {
            now_s: begun_s + (450_000.0 - running_mops) / 1000.0,
            speed_mops: 1000.0,
            slots: 1,
            preemptive: false,
            running_mops: vec![running_mops],
            entries: vec![entry],
        };
        let mut expected = Summary::of_leaf_at(&load, release_s);
        expected.longest_wait_s = wait_s(450.0 * left);
        let published = host.peer.overlay_view().published(Node::Leaf);
        // That time passed, too, is no urgent news.
        expected.can_wait = Summary::of_flat(published).expect("a summary").can_wait;
        assert!(*published == *expected.flatten(), "after {at_s} s: {} bytes", published.len());
    }
}
