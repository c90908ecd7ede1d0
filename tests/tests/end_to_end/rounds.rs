//! Applications in rounds on real agents: the optimiser of `agent/tasks/evolve`, and programs that do not do what a merge does.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Agent, Grid, probe_program, wait_for};

const PROCESSES: &str =
    "regular 1\nscale-free 2\nsmall-world 3\nrandom 4\nregular 5\nscale-free 6\nsmall-world 7\nrandom 8\n";
const ROUNDS: u64 = 6;

fn program(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../agent/tasks/{name}/{name}.wasm"));
    path.to_str().expect("a path of ours").to_owned()
}

/// Submits the optimiser with eight processes; returns the bag's id.
fn optimise(agent: &Agent, directory: &Path, options: &[&str]) -> String {
    let list = directory.join("processes.txt");
    fs::write(&list, PROCESSES).expect("our directory");
    let (evolve, pareto, list) =
        (program("evolve"), program("pareto"), list.to_str().expect("a path of ours").to_owned());
    let fixed =
        ["submit", "--program", &evolve, "--each-line", &list, "--colsep", " ", "--merge", &pareto, "--work", "500"];
    let args = ["--", "--function", "2", "--topology", "{1}", "--seed", "{2}", "--iterations", "{iterations}"];
    let bag = agent.ask(&[&fixed[..], options, &args].concat());
    bag["id"].as_str().expect("an id").to_owned()
}

fn rounds(agent: &Agent, bag: &str) -> Value {
    agent.ask(&["bag", "show", bag])["rounds"].clone()
}

/// Saves the results of a bag; the directory that has them.
fn get(agent: &Agent, bag: &str, directory: PathBuf) -> PathBuf {
    agent.ask(&["bag", "get", bag, "--out", directory.to_str().expect("a path of ours")]);
    directory
}

fn front(directory: &Path) -> Vec<u8> {
    fs::read(directory.join("merged/front")).expect("the merge left it")
}

#[test]
fn a_synchronous_application_finds_the_same_front_whatever_happens_to_machines() {
    let options = ["--rounds", "6", "--iterations", "60"];
    let alone = {
        let grid = Grid::start(1);
        let bag = optimise(&grid.agents[0], grid.root.path(), &options);
        assert_eq!(grid.agents[0].cli(&["bag", "wait", &bag]).code, 0, "{}", grid.agents[0].log());
        let saved = get(&grid.agents[0], &bag, grid.root.path().join("alone"));
        let picture = fs::read_to_string(saved.join("merged/front.svg")).expect("the merge left it");
        assert!(picture.contains("DTLZ2 after round 6"), "{picture}");
        let left = fs::read_dir(saved.join("processes")).expect("it is there").count();
        assert_eq!((left, saved.join("processes/7/population").exists()), (8, true));
        let early = get_round(&grid.agents[0], &bag, 2, grid.root.path().join("early"));
        assert!(fs::read_to_string(early.join("merged/front.svg")).expect("kept").contains("DTLZ2 after round 2"));
        front(&saved)
    };
    let mut grid = Grid::start(4);
    let bag = optimise(&grid.agents[0], grid.root.path(), &options);
    // Each machine compiles both programs first.
    let has_done = |done: &Value| done["done"].as_array().is_some_and(|done| done.iter().any(|done| *done != 0));
    wait_for("a process", || has_done(&rounds(&grid.agents[0], &bag)));
    wait_for("all processes", || {
        let done = rounds(&grid.agents[0], &bag)["done"].clone();
        done.as_array().is_some_and(|done| done.iter().all(|done| *done != 0))
    });
    wait_for("the first round", || rounds(&grid.agents[0], &bag)["complete"].as_u64() >= Some(1));
    grid.agents[1].kill();
    grid.agents[2].set_owner(true);
    let before = rounds(&grid.agents[0], &bag)["complete"].as_u64().expect("a number");
    // Its submitter, too.
    grid.agents[0].kill();
    grid.run(0);
    assert!(rounds(&grid.agents[0], &bag)["complete"].as_u64() >= Some(before), "it goes on from there");
    assert_eq!(grid.agents[0].cli(&["bag", "wait", &bag]).code, 0, "{}", grid.agents[0].log());
    let shown = grid.agents[0].ask(&["bag", "show", &bag]);
    assert_eq!((shown["state"].as_str(), shown["done"].as_u64()), (Some("succeeded"), Some(ROUNDS * 9)), "{shown}");
    assert_eq!(shown["rounds"]["done"], Value::from(vec![ROUNDS; 8]), "{shown}");
    let saved = get(&grid.agents[0], &bag, grid.root.path().join("together"));
    assert!(front(&saved) == alone, "the fronts differ");
}

fn get_round(agent: &Agent, bag: &str, round: u64, directory: PathBuf) -> PathBuf {
    let out = directory.to_str().expect("a path of ours");
    agent.ask(&["bag", "get", bag, "--round", &round.to_string(), "--out", out]);
    directory
}

#[test]
fn an_asynchronous_application_ends_with_a_merge_of_all() {
    let grid = Grid::start(2);
    let agent = &grid.agents[0];
    let bag = optimise(agent, grid.root.path(), &["--rounds", "3", "--iterations", "60", "--mode", "async"]);
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0, "{}", agent.log());
    let shown = agent.ask(&["bag", "show", &bag]);
    assert_eq!(shown["done"].as_u64(), Some(2 * 16 + 9), "a merge after each process, and one of all: {shown}");
    let saved = get(agent, &bag, grid.root.path().join("saved"));
    let picture = fs::read_to_string(saved.join("merged/front.svg")).expect("the merge left it");
    assert!(picture.contains("after round 3"), "{picture}");
    let log = agent.text(&["bag", "logs", &bag, "--index", "40"]);
    let epsilon: f64 = log.trim().rsplit(' ').next().and_then(|text| text.parse().ok()).expect("it is printed last");
    assert!(epsilon < 0.05, "{log}");
}

#[test]
fn an_application_that_converges_ends_early() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let until = ["--until", "converged", "--at-least-rounds", "2", "--env", "UNTIL_EPSILON=10"];
    let bag = optimise(agent, grid.root.path(), &[&["--rounds", "5", "--iterations", "5"][..], &until].concat());
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0, "{}", agent.log());
    let shown = agent.ask(&["bag", "show", &bag]);
    let (state, done) = (shown["state"].as_str(), shown["done"].as_u64());
    assert_eq!(
        (state, done, &shown["rounds"]["converged"]),
        (Some("succeeded"), Some(18), &Value::Bool(true)),
        "{shown}"
    );
    assert!(agent.text(&["bag", "show", &bag]).contains("2 of 5 complete, 8 processes, sync: it has converged"));
}

#[test]
fn a_merge_that_merges_nothing_ends_the_application_and_says_why() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let probe = probe_program();
    let probe = probe.to_str().expect("a path of ours");
    let noop = program("noop");
    let words = ["submit", "--program", probe, "--array", "0-1", "--rounds", "2", "--merge", &noop, "--work", "50"];
    let bag = agent.ask(&[&words[..], &["--max-retries", "0", "--", "hello"]].concat());
    let bag = bag["id"].as_str().expect("an id");
    assert_eq!(agent.cli(&["bag", "wait", bag]).code, 3);
    let shown = agent.ask(&["bag", "show", bag]);
    assert_eq!((shown["done"].as_u64(), shown["failed"].as_u64()), (Some(2), Some(1)), "{shown}");
    let shown = agent.text(&["bag", "show", bag]);
    assert!(shown.contains("the merge left nothing in merged/"), "{shown}");
    // Without a merge all results go to all.
    let words = ["submit", "--program", probe, "--array", "0-1", "--rounds", "3", "--work", "50", "--", "hello"];
    let bag = agent.ask(&words)["id"].as_str().expect("an id").to_owned();
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0);
    assert_eq!(rounds(agent, &bag)["complete"].as_u64(), Some(3));
}

#[test]
fn options_of_rounds_that_make_no_sense_say_what_to_do() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let probe = probe_program();
    let probe = probe.to_str().expect("a path of ours");
    for (options, remedy) in [
        (&["--rounds", "0"][..], "1 or more"),
        (&["--rounds", "2", "--iterations", "0"], "1 or more"),
        (&["--iterations", "5"], "--rounds"),
        (&["--rounds", "2", "--array", "0-999"], "--merge"),
        (&["--rounds", "2", "--until", "x"], "--merge"),
        (&["--rounds", "2", "--replicas", "3"], "--replicas"),
        (&["--rounds", "2", "--merge", "/nowhere.wasm"], "/nowhere.wasm"),
    ] {
        let words = [&["submit", "--program", probe], options, &["--", "hello"]].concat();
        let answer = agent.cli(&words);
        assert!(answer.code == 2 && answer.stderr.contains(remedy), "{options:?}: {} {}", answer.code, answer.stderr);
    }
    let many = ["submit", "--program", probe, "--array", "0-9999", "--rounds", "2", "--merge", probe, "--dry-run"];
    let plan = agent.ask(&[&many[..], &["--", "hello"]].concat());
    assert_eq!(plan["tasks"].as_u64(), Some(20_002), "{plan}");
    let silent = ["submit", "--program", probe, "--rounds", "2", "--iterations", "5", "--dry-run", "--", "hello"];
    assert!(agent.cli(&silent).stderr.contains("IDLEWOOD_ITERATIONS"));
}
