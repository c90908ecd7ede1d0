//! Hostile programs on real agents, beside an honest bag. Hostile machines are met in `agent/src/net/`, `overlay/tests/` and
//! `scheduler/tests/`; `docs/red-team.md` has the list.

use std::fs;

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
