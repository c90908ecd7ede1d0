//! Bags without an end that go on without the machine that they were submitted from.

use std::process::Stdio;

use super::*;
use crate::endless::{ended, listed, start as begin};

/// An endless bag of tasks of a second, each of which writes its number, and which two others keep.
fn endless(grid: &Grid) -> (String, Value) {
    let program = probe_program();
    let program = program.to_str().expect("a path of ours");
    let fixed = ["submit", "--program", program, "--endless", "--array", "0-", "--work", "1000"];
    let bag = grid.agents[0].ask(&[&fixed[..], &["--", "fill", "{}-", "1", "5{}", "1000"]].concat());
    let bag = bag["id"].as_str().expect("an id").to_owned();
    let shown = wait_until_kept(grid, &bag);
    (bag, shown)
}

fn of_endless(grid: &Grid, bag: &str, key: &str) -> u64 {
    number(&grid.agents[0].ask(&["bag", "show", bag])["endless"][key])
}

/// Saves the first results of the bag; returns where they are.
fn save_some(grid: &Grid, bag: &str) -> PathBuf {
    let out = out(grid, "out");
    let follow = ["bag", "get", bag, "--follow", "--out", out.to_str().expect("a path of ours")];
    let mut drain = begin(&grid.agents[0], &follow, Stdio::null());
    wait_for("results to be saved", || of_endless(grid, bag, "drained") >= 10);
    drain.kill().expect("it runs");
    drain.wait().expect("it is a child");
    out
}

/// Closes the bag, waits until it is over, and checks that each task that was given is saved once, with every byte.
fn assert_saved(grid: &Grid, bag: &str, out: &Path) {
    let agent = &grid.agents[0];
    agent.ask(&["bag", "close", bag]);
    let follow = ["bag", "get", bag, "--follow", "--out", out.to_str().expect("a path of ours")];
    let (code, over, stderr) = ended(begin(agent, &follow, Stdio::null()));
    assert_eq!((code, &over["state"]), (0, &Value::from("succeeded")), "{stderr}");
    let tasks = number(&agent.ask(&["bag", "show", bag])["tasks"]);
    let saved = listed(out);
    assert_eq!(saved, (0..tasks).collect(), "each task once");
    for index in &saved {
        let bytes: u64 = format!("5{index}").parse().expect("a number");
        let file = out.join(index.to_string()).join(format!("outputs/{index}-0"));
        assert_eq!(fs::metadata(&file).map(|file| file.len()).ok(), Some(bytes), "{}", file.display());
    }
}

#[test]
fn a_steward_gives_tasks_of_an_endless_bag_while_its_machine_is_killed() {
    let mut grid = grid(4);
    let (bag, shown) = endless(&grid);
    let out = save_some(&grid, &bag);
    let keepers = stewards(&grid, &shown);
    grid.agents[0].kill();
    wait_for("the first steward to act", || acts(&grid.agents[keepers[0]]));
    let run = tasks_run(&grid);
    wait_for("tasks to be given by the steward", || tasks_run(&grid) >= run + 30);
    grid.run(0);
    wait_for("its machine to act again", || !acts(&grid.agents[keepers[0]]));
    wait_for("what ended meanwhile to come", || number(&grid.agents[0].ask(&["bag", "show", &bag])["done"]) >= run);
    assert_saved(&grid, &bag, &out);
}

#[test]
fn whoever_adopts_an_endless_bag_knows_what_was_saved() {
    let (mut grid, tickets) = grid_with_tickets(4);
    let (bag, _) = endless(&grid);
    let out = save_some(&grid, &bag);
    // Stewards are told within 5 s.
    let drained = of_endless(&grid, &bag, "drained");
    std::thread::sleep(Duration::from_secs(12));
    let ticket = ticket(&tickets).expect("it was written when others began to keep the bag");
    grid.agents[0].kill();
    fs::remove_dir_all(&grid.agents[0].dir).expect("our directory");
    adopt(&ticket, &grid.agents[0]);
    grid.run(0);
    wait_for("the bag's files to come", || grid.agents[0].ask(&["bag", "show", &bag])["files_missing"] == false);
    wait_for("it to know what was saved", || of_endless(&grid, &bag, "drained") >= drained);
    assert_saved(&grid, &bag, &out);
}
