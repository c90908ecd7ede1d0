//! Bags on a grid without faults.

use std::fs;

use crate::harness::{Grid, assert_complete, probe_program};

#[test]
fn a_bag_completes_and_its_results_are_at_the_printed_place() {
    let grid = Grid::start(3);
    let submitter = &grid.agents[2];
    let shared = grid.root.path().join("greeting.txt");
    fs::write(&shared, "to all of you").unwrap();
    let program = probe_program();
    let bag = submitter.ask(&[
        "submit",
        "--program",
        program.to_str().unwrap(),
        "--input",
        shared.to_str().unwrap(),
        "--env",
        "COLOUR=green",
        "--name",
        "first",
        "--",
        "hello",
        "{}",
        "{index}",
        ":::",
        "ada",
        "grace",
        "barbara",
    ]);
    let id = bag["id"].as_str().unwrap();
    assert_complete(submitter, id, 3);

    let out = grid.root.path().join("results");
    submitter.ask(&["bag", "get", "last", "--out", out.to_str().unwrap()]);
    for (index, name) in ["ada", "grace", "barbara"].into_iter().enumerate() {
        let task = out.join(index.to_string());
        let stdout = fs::read_to_string(task.join("stdout")).unwrap();
        for line in [
            format!("argument {name}"),
            format!("argument {index}"),
            format!("environment IDLEWOOD_ENTRY={name}"),
            format!("environment IDLEWOOD_TASK_INDEX={index}"),
            "environment IDLEWOOD_TASK_COUNT=3".to_owned(),
            format!("environment IDLEWOOD_BAG_ID={id}"),
            "environment COLOUR=green".to_owned(),
        ] {
            assert!(stdout.lines().any(|found| found == line), "{line} is not in {stdout}");
        }
        assert!(!stdout.contains("PATH="), "the host's environment leaks: {stdout}");
        assert_eq!(fs::read_to_string(task.join("stderr")).unwrap(), "and to stderr\n");
        assert_eq!(fs::read_to_string(task.join("exit_code")).unwrap().trim(), "0");
    }
    let listed = submitter.ask(&["bag", "list"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
}

#[test]
fn outputs_inputs_and_failures_are_kept_apart() {
    let grid = Grid::start(2);
    let agent = &grid.agents[0];
    let program = probe_program();
    let program = program.to_str().unwrap();

    let bag =
        agent.ask(&["submit", "--program", program, "--array", "0-4", "--", "write", "out-{index}.txt", "v{index}"]);
    assert_complete(agent, bag["id"].as_str().unwrap(), 5);
    let out = grid.root.path().join("written");
    agent.ask(&["bag", "get", "last", "--out", out.to_str().unwrap()]);
    for index in 0..5 {
        let file = out.join(index.to_string()).join("outputs").join(format!("out-{index}.txt"));
        assert_eq!(fs::read_to_string(file).unwrap(), format!("v{index}"));
    }

    // Exit codes 0, 1, 2: the bag defines which are success.
    let bag =
        agent.ask(&["submit", "--program", program, "--array", "0-2", "--max-retries", "1", "--", "exit", "{index}"]);
    let id = bag["id"].as_str().unwrap();
    assert_eq!(agent.cli(&["bag", "wait", id]).code, 3);
    let shown = agent.ask(&["bag", "show", id]);
    assert_eq!((shown["done"].as_u64(), shown["failed"].as_u64()), (Some(1), Some(2)), "{shown}");
    let bag = agent.ask(&[
        "submit",
        "--program",
        program,
        "--array",
        "0-2",
        "--success-codes",
        "0,1,2",
        "--",
        "exit",
        "{index}",
    ]);
    assert_eq!(agent.cli(&["bag", "wait", bag["id"].as_str().unwrap()]).code, 0);
}

#[test]
fn a_cancelled_bag_stops_and_says_so() {
    let grid = Grid::start(2);
    let agent = &grid.agents[1];
    let bag = agent.submit_sleeps(20, 60_000);
    crate::harness::wait_for("tasks to start", || agent.ask(&["bag", "show", &bag])["placed"].as_u64() == Some(20));
    agent.ask(&["bag", "cancel", &bag]);
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 4);
    crate::harness::wait_for("everything to be dropped", || grid.agents.iter().all(|agent| agent.holds() == 0));
}

#[test]
fn a_machine_alone_is_a_grid() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let bag = agent.submit_sleeps(3, 10);
    assert_complete(agent, &bag, 3);
}

#[test]
fn a_quorum_larger_than_the_grid_is_reported() {
    let grid = Grid::start(2);
    let program = probe_program();
    let program = program.to_str().unwrap();
    let submit = |quorum: &str| {
        let options = ["submit", "--program", program, "--work", "50", "--replicas", "3", "--quorum", quorum];
        let bag = grid.agents[0].ask(&[&options[..], &["--", "hello"]].concat());
        bag["id"].as_str().unwrap().to_owned()
    };
    let (within, beyond) = (submit("2"), submit("3"));
    assert_complete(&grid.agents[0], &within, 1);
    let show = |bag: &str| grid.agents[0].ask(&["bag", "show", bag]);
    let why = show(&beyond)["undecidable"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("3 machines have to say the same and the grid has 2 machines"), "{}", show(&beyond));
    assert!(show(&within)["undecidable"].is_null());
    grid.agents[0].ask(&["bag", "cancel", &beyond]);
    assert!(show(&beyond)["undecidable"].is_null(), "it is over");
}
