//! Outputs that are part of their results: they survive kills, and no result is reported before it does.

use std::fs;

use crate::harness::{Grid, assert_complete, probe_program, wait_for};

/// A kill at any moment: tasks reported as done stay done, and their outputs, which are in records, are there.
#[test]
fn tasks_reported_as_done_stay_done_after_kills() {
    let mut grid = Grid::start(1);
    let program = probe_program();
    let entries: Vec<String> = (0..400).map(|number| format!("entry {number}")).collect();
    let submit = ["submit", "--program", program.to_str().expect("ours"), "--work", "5", "--", "hello", "{}", ":::"];
    let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
    let id = grid.agents[0].ask(&[&submit[..], &entries].concat())["id"].as_str().expect("an id").to_owned();
    let done = |grid: &Grid| grid.agents[0].ask(&["bag", "show", &id])["done"].as_u64().expect("a count");
    for least in [1, 100, 200] {
        wait_for("some tasks to be done", || done(&grid) >= least);
        let told = done(&grid);
        grid.agents[0].kill();
        grid.run(0);
        let after = done(&grid);
        assert!(after >= told, "{after} of {told}");
    }
    assert_complete(&grid.agents[0], &id, 400);
    let out = grid.root.path().join("out");
    let got = grid.agents[0].ask(&["bag", "get", &id, "--index", "7,390-399", "--out", out.to_str().expect("ours")]);
    assert_eq!((got["tasks"].as_u64(), got["missing"].as_u64()), (Some(11), Some(0)), "{got}");
    let stdout = fs::read_to_string(out.join("395/stdout")).expect("it was fetched");
    assert!(stdout.contains("argument entry 395"), "{stdout}");
    assert!(!out.join("8").exists(), "nobody asked for it");
}
