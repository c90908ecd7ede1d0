//! A bag with a quorum: others keep votes coming while its machine is off, and whoever is its submitter decides, also after the loss of its disk.

use super::*;

/// Tasks of the bag, each of which runs twice.
const VOTED: usize = 60;

#[test]
fn a_bag_with_replicas_outlives_its_machine_and_its_disk() {
    let (mut grid, tickets) = grid_with_tickets(5);
    let bag = submit(&grid, VOTED, &["--replicas", "2"]);
    let shown = wait_until_kept(&grid, &bag);
    let said = grid.agents[0].text(&["bag", "show", &bag]);
    assert!(said.contains("what they come to is decided when it is back"), "{said}");
    let keepers = stewards(&grid, &shown);
    let done = |grid: &Grid| number(&grid.agents[0].ask(&["bag", "show", &bag])["done"]);
    wait_for("some tasks to be decided", || done(&grid) >= 4);
    let before = done(&grid);
    grid.agents[0].kill();
    wait_for("a steward to act", || acts(&grid.agents[keepers[0]]));
    let run = tasks_run(&grid);
    wait_for("tasks to go on", || tasks_run(&grid) >= run + 12);
    grid.run(0);
    wait_for("votes that were cast meanwhile to decide", || done(&grid) >= before + 4);
    assert!(done(&grid) < VOTED as u64, "it was over too soon to show anything");

    // For good.
    let ticket = ticket(&tickets).expect("it was written when others began to keep the bag");
    grid.agents[0].kill();
    fs::remove_dir_all(&grid.agents[0].dir).expect("our directory");
    adopt(&ticket, &grid.agents[0]);
    grid.run(0);
    assert_every_byte(&grid.agents[0], &bag, VOTED, &out(&grid, "out"));
    let shown = grid.agents[0].ask(&["bag", "show", &bag]);
    assert_eq!((&shown["replication"]["quorum"], number(&shown["disputed"])), (&Value::from(2), 0), "{shown}");
}
