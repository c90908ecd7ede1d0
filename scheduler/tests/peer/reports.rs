//! Reports of availability: which are urgent, and which wait.

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
fn wait_s(grid: &[Host; 2]) -> u64 {
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
        let (before, first) = (wait_s(&grid), grid[laden].started[0]);
        grid[laden].finish(first, true);
        run(&mut grid, 7);
        assert_eq!(wait_s(&grid) == before, waits, "somebody may have more to tell");
        run(&mut grid, 8);
        let after = wait_s(&grid);
        assert!(after < before, "{before} {after}");
        // A third bag is reported at once, together with the change that would have waited.
        grid[laden].receive(9, small(3, task_s));
        run(&mut grid, 5);
        assert!(wait_s(&grid) > after, "{after}");
    }
}
