//! Small tasks are given to workers ahead of their turn: after any interruption each counts once.

use crate::harness::{Agent, Grid, assert_complete, wait_for};

const TASKS: usize = 3000;

fn submit(agent: &Agent) -> String {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/tasks/noop/noop.wasm");
    let range = format!("0-{}", TASKS - 1);
    let bag = agent.ask(&["submit", "--program", program, "--array", &range]);
    bag["id"].as_str().expect("an id").to_owned()
}

fn done(agent: &Agent, bag: &str) -> u64 {
    agent.ask(&["bag", "show", bag])["done"].as_u64().unwrap_or(0)
}

#[test]
fn an_owner_who_returns_and_an_agent_killed_in_the_middle_lose_nothing() {
    let mut grid = Grid::start(1);
    let bag = submit(&grid.agents[0]);
    for step in 1..=3 {
        let agent = &grid.agents[0];
        wait_for("some tasks to be done", || done(agent, &bag) >= step * 300);
        agent.set_owner(true);
        wait_for("the owner to be noticed", || agent.ask(&["status"])["activity"] == "suspended");
        agent.set_owner(false);
        wait_for("the owner to be gone", || agent.ask(&["status"])["activity"] != "suspended");
    }
    let before = done(&grid.agents[0], &bag);
    grid.agents[0].kill();
    grid.run(0);
    assert!(done(&grid.agents[0], &bag) >= before, "what was acknowledged is there");
    // Results that were on their way may arrive twice; they count once.
    assert_complete(&grid.agents[0], &bag, TASKS);
}

#[test]
fn a_bag_that_comes_in_the_middle_of_a_run_does_not_disturb_it() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let first = submit(agent);
    wait_for("some tasks to be done", || done(agent, &first) >= 200);
    let second = agent.submit_sleeps(3, 20);
    assert_complete(agent, &second, 3);
    assert_complete(agent, &first, TASKS);
    assert_eq!(agent.ask(&["bag", "show", &first])["duplicates"].as_u64(), Some(0));
}

#[test]
fn an_agent_that_finishes_in_the_middle_of_a_run_ends_and_loses_nothing() {
    let mut grid = Grid::start(1);
    let agent = &mut grid.agents[0];
    let bag = submit(agent);
    wait_for("some tasks to be done", || done(agent, &bag) >= 300);
    agent.ask(&["finish"]);
    agent.wait_until_it_ends();
    grid.run(0);
    assert_complete(&grid.agents[0], &bag, TASKS);
    assert_eq!(grid.agents[0].ask(&["bag", "show", &bag])["duplicates"].as_u64(), Some(0));
}
