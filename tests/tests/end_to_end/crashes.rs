//! Machines vanish in the middle of a bag, and nothing is lost.

use std::time::Duration;

use crate::harness::{Grid, assert_complete, is_alive, wait_for};

const TASKS: usize = 60;

/// Submits from `submitter` and waits until the bag is well on its way.
fn in_mid_bag(grid: &Grid, submitter: usize) -> String {
    let agent = &grid.agents[submitter];
    let bag = agent.submit_sleeps(TASKS, 400);
    wait_for("some tasks to be done, some not", || {
        let shown = agent.ask(&["bag", "show", &bag]);
        let done = shown["done"].as_u64().unwrap_or(0);
        assert!(done < TASKS as u64, "the bag was over too soon");
        done >= 4 && shown["placed"].as_u64().unwrap_or(0) > 0
    });
    bag
}

#[test]
fn an_executor_that_is_killed_loses_nothing() {
    let mut grid = Grid::start(4);
    let root = grid.root_agent();
    let (submitter, executor) = (root, (root + 1) % 4);
    let bag = in_mid_bag(&grid, submitter);
    assert!(grid.agents[executor].holds() > 0, "it should have some of the work");
    grid.agents[executor].kill();
    assert_complete(&grid.agents[submitter], &bag, TASKS);
    let reissued = grid.agents[submitter].ask(&["bag", "show", &bag])["reissued"].as_u64();
    assert!(reissued > Some(0), "what it held had to be issued again");
    grid.wait_until_formed(3);
}

#[test]
fn the_root_router_can_be_killed() {
    let mut grid = Grid::start(4);
    let root = grid.root_agent();
    let submitter = (root + 1) % 4;
    let bag = in_mid_bag(&grid, submitter);
    grid.agents[root].kill();
    assert_complete(&grid.agents[submitter], &bag, TASKS);
    grid.wait_until_formed(3);
    // And the tree that heals takes a new bag.
    let bag = grid.agents[submitter].submit_sleeps(6, 10);
    assert_complete(&grid.agents[submitter], &bag, 6);
}

#[test]
fn the_submitter_can_be_killed_and_goes_on_after_its_restart() {
    let mut grid = Grid::start(3);
    let bag = in_mid_bag(&grid, 1);
    grid.agents[1].kill();
    std::thread::sleep(Duration::from_secs(2));
    grid.run(1);
    assert_complete(&grid.agents[1], &bag, TASKS);
    let out = grid.root.path().join("after");
    grid.agents[1].ask(&["bag", "get", &bag, "--out", out.to_str().unwrap()]);
    for index in 0..TASKS {
        assert!(out.join(index.to_string()).join("exit_code").exists(), "task {index} is missing");
    }
}

#[test]
fn a_queue_survives_a_restart() {
    let mut grid = Grid::start(2);
    // Nothing finishes meanwhile: the owner of the executor is there, and the other machine is paused.
    for agent in &grid.agents {
        agent.ask(&["pause"]);
    }
    let bag = grid.agents[0].submit_sleeps(10, 10);
    wait_for("all tasks to be placed", || grid.agents[0].ask(&["bag", "show", &bag])["placed"].as_u64() == Some(10));
    let held = grid.agents[1].holds();
    assert!(held > 0, "paused machines alike should share the bag");
    grid.agents[1].kill();
    grid.run(1);
    // It still reports the tasks that it held, and continues when resumed: a pause outlives the agent.
    grid.agents[1].ask(&["resume"]);
    wait_for("the rest to be done by the restarted agent", || {
        grid.agents[0].ask(&["bag", "show", &bag])["done"].as_u64() >= Some(held)
    });
    let shown = grid.agents[0].ask(&["bag", "show", &bag]);
    // The machine that works again may take what waits on the paused one, too.
    assert!(shown["reissued"].as_u64() <= Some(10 - held), "nothing of what it held had to be issued again: {shown}");
    grid.agents[0].ask(&["resume"]);
    assert_complete(&grid.agents[0], &bag, 10);
}

#[test]
fn a_killed_agent_leaves_no_worker_behind_frozen_or_not() {
    for frozen in [false, true] {
        let mut grid = Grid::start(1);
        let agent = &mut grid.agents[0];
        agent.submit_sleeps(2, 60_000);
        wait_for("a worker to start", || !agent.workers().is_empty());
        if frozen {
            agent.ask(&["pause"]);
        }
        let workers = agent.workers();
        agent.kill();
        wait_for("the workers to be gone", || !workers.iter().any(|&worker| is_alive(worker)));
    }
}

#[test]
fn sigterm_ends_an_agent_in_good_order() {
    let mut grid = Grid::start(3);
    let workers = {
        let agent = &grid.agents[1];
        let bag = agent.submit_sleeps(6, 60_000);
        wait_for("tasks to be placed", || agent.ask(&["bag", "show", &bag])["placed"].as_u64() == Some(6));
        wait_for("workers to start", || !agent.workers().is_empty());
        agent.workers()
    };
    let name = grid.agents[1].ask(&["peers"])["me"]["peer"].clone();
    let taken = grid.agents[1].terminate();
    // Five seconds are promised, on a machine that is not overloaded.
    assert!(taken < 3 * Duration::from_secs(5), "it took {taken:?}");
    assert!(!workers.iter().any(|&worker| is_alive(worker)));
    // It announces that it leaves and stays for a second after that: the others know before it is gone. Otherwise they
    // would take it for crashed and go on asking it for longer.
    for agent in grid.running() {
        let peers = agent.ask(&["peers"]);
        let neighbours = peers["neighbours"].as_array().expect("a list");
        assert!(neighbours.iter().all(|neighbour| neighbour["peer"] != name), "{peers}");
    }
    grid.wait_until_formed(2);
}
