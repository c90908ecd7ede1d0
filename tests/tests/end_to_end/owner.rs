//! The machine is its owner's.

use crate::harness::{Grid, assert_complete, process_state, wait_for};

#[test]
fn the_owners_return_freezes_tasks_and_their_leaving_thaws_them() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let bag = agent.submit_sleeps(4, 1500);
    wait_for("a task to run", || agent.ask(&["status"])["activity"] == "working" && !agent.workers().is_empty());
    agent.set_owner(true);
    wait_for("the task to be frozen", || agent.workers().iter().all(|&worker| process_state(worker) == Some('T')));
    let status = agent.ask(&["status"]);
    assert_eq!(status["activity"], "suspended");
    assert_eq!(status["reason"], "owner is present");
    assert_eq!(status["running"][0]["frozen"], true);
    agent.set_owner(false);
    assert_complete(agent, &bag, 4);
}

#[test]
fn a_pause_holds_until_resumed_or_for_a_while() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    agent.ask(&["pause"]);
    let bag = agent.submit_sleeps(2, 10);
    let status = agent.ask(&["status"]);
    assert_eq!(status["reason"], "paused by the user");
    assert_eq!(agent.ask(&["bag", "show", &bag])["done"].as_u64(), Some(0));
    agent.ask(&["resume"]);
    assert_complete(agent, &bag, 2);
    agent.ask(&["pause", "--for", "1s"]);
    let bag = agent.submit_sleeps(2, 10);
    assert_complete(agent, &bag, 2);
}
