//! The place of each machine in the tree: as the oracle has it, also after machines vanish, are stopped, or move.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Agent, Grid, PATIENCE, wait_for};
use crate::tree::{Member, Place, expected};

/// Time within which the survivors' tree must be right again.
const REPAIR_LIMIT: Duration = Duration::from_secs(20);
/// A router forgets a child that was silent for so long (`child_lease_ms` of the overlay).
const CHILD_LEASE: Duration = Duration::from_secs(15);

/// Lines of an agent's log that are shown when the tree is wrong.
const LOG_LINES: usize = 60;

/// Waits until every running agent sees its place as the oracle has it, or until `is_late`; returns the time it took.
pub(crate) fn wait_for_the_tree(grid: &Grid, mut is_late: impl FnMut(Duration) -> bool) -> Duration {
    let begin = Instant::now();
    let members: Vec<Member> = grid.running().into_iter().map(Member::of).collect();
    let places = expected(&members);
    let wanted = |member: &Member| &places.iter().find(|(other, _)| other == member).expect("all are there").1;
    let agents: Vec<(&Agent, &Place)> = grid.running().into_iter().zip(members.iter().map(wanted)).collect();
    loop {
        // The first that differs is enough to continue waiting.
        let differs = agents.iter().find_map(|(agent, wanted)| {
            let seen = Place::seen_by(agent);
            (seen != **wanted).then(|| {
                let log = agent.log();
                let last = log.lines().rev().take(LOG_LINES).collect::<Vec<_>>().into_iter().rev();
                let last = last.collect::<Vec<_>>().join("\n");
                format!("{} sees {seen:#?} instead of {wanted:#?}; its log ends\n{last}", agent.dir.display())
            })
        });
        let Some(differs) = differs else { return begin.elapsed() };
        if is_late(begin.elapsed()) {
            panic!("after {:?}: {differs}\n{}", begin.elapsed(), everybodys_words(&agents));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What each agent knows of its own place and of the grid.
fn everybodys_words(agents: &[(&Agent, &Place)]) -> String {
    let words = agents.iter().map(|(agent, _)| {
        let (status, peers) = (agent.ask(&["status"]), agent.ask(&["peers"]));
        let known = peers["neighbours"].as_array().map_or(0, Vec::len);
        let [peer, membership, machines] = ["peer", "membership", "grid_machines"].map(|key| &status[key]);
        let directory = agent.dir.display();
        format!("{directory}: {peer}, {membership}, {machines} machines, {known} neighbours, at {}", peers["position"])
    });
    words.collect::<Vec<_>>().join("\n")
}

pub(crate) fn patiently(elapsed: Duration) -> bool {
    elapsed > PATIENCE
}

/// How long the threads of a process were ready to run and waited for a processor. Zero if the kernel does not say.
fn waited_for_processor(pid: u32) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let waited = threads.flatten().filter_map(|thread| {
        let line = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}

#[test]
fn a_third_of_24_machines_is_killed_and_the_tree_is_right_again() {
    let mut grid = Grid::start_at_once(24);
    let formed = wait_for_the_tree(&grid, patiently);
    let victims: Vec<usize> = (0..24).step_by(3).collect();
    let pids: Vec<u32> = grid.running().into_iter().map(Agent::pid).collect();
    let before: Vec<Duration> = pids.iter().map(|&pid| waited_for_processor(pid)).collect();
    let killed = Instant::now();
    grid.kill_at_once(&victims);
    // The bound is on what the agents do, not on the machine they share: the longest time that the operating system
    // made one of them wait is added. On a machine that is not overloaded that is a fraction of a second.
    let held_up = || {
        let waits = pids.iter().zip(&before).map(|(&pid, &before)| waited_for_processor(pid).saturating_sub(before));
        waits.max().unwrap_or_default()
    };
    wait_for_the_tree(&grid, |_| killed.elapsed() > REPAIR_LIMIT + held_up());
    println!("formed in {formed:?}, right again in {:?}, held up for {:?}", killed.elapsed(), held_up());
}

#[test]
fn an_agent_that_was_stopped_for_longer_than_its_lease_rejoins() {
    let grid = Grid::start(4);
    wait_for_the_tree(&grid, patiently);
    let stopped = &grid.agents[2];
    stopped.signal("STOP");
    let begin = Instant::now();
    let others = [0, 1, 3].map(|number| &grid.agents[number]);
    for agent in others {
        wait_for("the others to miss it", || agent.ask(&["status"])["grid_machines"].as_u64() == Some(3));
    }
    std::thread::sleep((CHILD_LEASE + Duration::from_secs(1)).saturating_sub(begin.elapsed()));
    stopped.signal("CONT");
    wait_for_the_tree(&grid, patiently);
    assert!(stopped.log().contains("did not run for a while"), "{}", stopped.log());
}

/// Number of neighbours whose addresses an agent has saved for its next start.
fn kept_neighbours(agent: &Agent) -> usize {
    let kept = std::fs::read(agent.dir.join("neighbours.json")).unwrap_or_default();
    serde_json::from_slice::<Vec<String>>(&kept).map_or(0, |addresses| addresses.len())
}

#[test]
fn an_agent_that_restarts_on_another_port_finds_the_grid_and_is_found() {
    let mut grid = Grid::start(3);
    wait_for("the neighbours to be kept", || kept_neighbours(&grid.agents[0]) == 2);
    let gone = grid.agents[1].address();
    grid.kill_at_once(&[0, 1]);
    // It has the address of an agent that is gone for good: it rejoins through a neighbour of its last run.
    grid.spawn(0, &[gone]);
    wait_for("the agent to answer", || grid.agents[0].cli(&["status"]).code == 0);
    wait_for_the_tree(&grid, patiently);
    let (moved, other) = (&grid.agents[0], &grid.agents[2]);
    let address = Value::from(moved.address());
    let seen = other.ask(&["peers"]);
    let neighbours = seen["neighbours"].as_array().expect("a list");
    assert_eq!(neighbours.len(), 1, "{seen}");
    assert_eq!(neighbours[0]["address"], address, "the old address is replaced: {seen}");
    let links = ["root", "router_parent", "leaf_parent", "predecessor", "successor"].map(|link| &seen[link]);
    let children = seen["children"].as_array().expect("a list").iter();
    for peer in links.into_iter().chain(children).filter(|peer| peer["peer"] == neighbours[0]["peer"]) {
        assert_eq!(peer["address"], address, "everywhere: {seen}");
    }
}
