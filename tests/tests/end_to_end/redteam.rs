//! Hostile programs on real agents, beside an honest bag. Hostile machines are met in `agent/src/net/`, `overlay/tests/` and
//! `scheduler/tests/`; `docs/red-team.md` has the list.

use std::fs;
use std::path::Path;

use crate::harness::{Grid, assert_complete, command, probe_program};

/// Whatever a program tries, its tasks fail or gain nothing, what happened is told, and the agents go on with honest work.
#[test]
fn hostile_programs_gain_nothing_and_honest_bags_complete() {
    let grid = Grid::start(2);
    let (submitter, honest) = (&grid.agents[0], &grid.agents[1]);
    let program = probe_program();
    let program = program.to_str().unwrap();
    let secret = submitter.dir.join("identity.key");
    assert!(secret.exists(), "there is something to steal");
    let submit = |options: &[&str], verb: &[&str]| {
        let common = ["submit", "--program", program, "--work", "50", "--max-retries", "0"];
        let bag = submitter.ask(&[&common, options, &["--"], verb].concat());
        bag["id"].as_str().unwrap().to_owned()
    };
    let first = honest.submit_sleeps(4, 50);
    let harmful = [
        ("an infinite loop", submit(&["--time-limit", "2s"], &["spin", "100000000"]), "time limit"),
        ("a memory bomb", submit(&["--memory", "32M"], &["allocate", "4000"]), "memory"),
        ("an endless recursion", submit(&[], &["recurse"]), "call stack"),
        ("a wild pointer", submit(&[], &["wild"]), "memory outside"),
    ];
    let curious = [
        submit(&[], &["cat", "/proc/self/environ"]),
        submit(&[], &["cat", "/etc/passwd"]),
        submit(&[], &["cat", secret.to_str().unwrap()]),
        submit(&[], &["cat", "../../../../identity.key"]),
        submit(&[], &["list", "/proc"]),
        submit(&[], &["list", ".."]),
    ];
    let second = honest.submit_sleeps(4, 50);
    let out = grid.root.path().join("loot");
    let get = |bag: &str| {
        let into = out.join(bag);
        submitter.ask(&["bag", "get", bag, "--out", into.to_str().unwrap()]);
        fs::read_to_string(into.join("0/stdout")).unwrap_or_default()
    };
    let told = |bag: &str| {
        let shown = command(&["--state-dir", submitter.dir.to_str().unwrap(), "bag", "show", bag]);
        String::from_utf8_lossy(&shown.stdout).into_owned()
    };
    for (name, bag, words) in &harmful {
        assert_eq!(submitter.cli(&["bag", "wait", bag]).code, 3, "{name}");
        let shown = submitter.ask(&["bag", "show", bag]);
        assert_eq!(shown["failed"].as_u64(), Some(1), "{name}: {shown}");
        let told = told(bag);
        assert!(told.contains(words), "{name}: {told}");
    }
    for bag in &curious {
        assert_eq!(submitter.cli(&["bag", "wait", bag]).code, 3);
        let stdout = get(bag);
        assert!(!stdout.contains("identity") && stdout.lines().count() <= 1, "{stdout}");
    }
    for bag in [&first, &second] {
        assert_complete(honest, bag, 4);
    }
    for agent in &grid.agents {
        assert_eq!(agent.ask(&["status"])["membership"], "member");
    }
}

/// The owner of one machine has put another program's machine code in the place of the one that is asked for. Nothing that it
/// signs is wrong but what it says came out.
#[test]
fn a_lying_machine_is_outvoted_and_loses_its_reputation() {
    const TASKS: usize = 16;
    let mut grid = Grid::start(4);
    let programs = [probe_program(), probe_program().with_file_name("../noop/noop.wasm")];
    let modules = grid.agents[3].dir.join("modules");
    let compiled = programs.each_ref().map(|program| {
        let known = names(&modules);
        // It runs the first task itself, to see how long one takes.
        let bag = grid.agents[3].ask(&["submit", "--program", program.to_str().unwrap(), "--", "hello"]);
        assert_complete(&grid.agents[3], bag["id"].as_str().unwrap(), 1);
        let new: Vec<String> = names(&modules).into_iter().filter(|name| !known.contains(name)).collect();
        assert_eq!(new.len(), 1, "{new:?}");
        modules.join(&new[0])
    });
    grid.agents[3].terminate();
    fs::copy(&compiled[1], &compiled[0]).unwrap();
    grid.run(3);
    grid.wait_until_formed(4);
    let submitter = &grid.agents[0];
    let liar = grid.agents[3].ask(&["status"])["peer"].as_str().unwrap().to_owned();
    let said = |options: &[&str]| {
        let program = programs[0].to_str().unwrap();
        let array = format!("0-{}", TASKS - 1);
        let common = ["submit", "--program", program, "--array", &array, "--work", "50"];
        let bag = submitter.ask(&[&common, options, &["--", "hello", "{index}"]].concat());
        let bag = bag["id"].as_str().unwrap().to_owned();
        assert_complete(submitter, &bag, TASKS);
        let out = grid.root.path().join(&bag);
        submitter.ask(&["bag", "get", &bag, "--out", out.to_str().unwrap()]);
        let truth = |index: &usize| {
            let stdout = fs::read_to_string(out.join(index.to_string()).join("stdout")).unwrap();
            stdout.contains(&format!("argument {index}\n"))
        };
        (submitter.ask(&["bag", "show", &bag]), (0..TASKS).filter(truth).count())
    };
    let (_, truths) = said(&[]);
    assert!(truths < TASKS, "it lies, and is believed");
    let (shown, truths) = said(&["--replicas", "2"]);
    assert_eq!(truths, TASKS, "{shown}");
    let disputed = shown["disputed"].as_u64().unwrap();
    assert!(disputed > 0, "{shown}");
    let distrusted = submitter.ask(&["status"])["distrusted"].clone();
    let expected = if disputed >= 3 { vec![liar] } else { Vec::new() };
    assert_eq!(distrusted, serde_json::json!(expected), "after {disputed} lies");
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
