//! A user's mistakes give one clear sentence and the right exit code.

use std::fs;

use crate::harness::{Grid, command, probe_program};

/// One sentence, no panic, no stack trace.
fn assert_sentence(stderr: &str, words: &[&str]) {
    assert!(!stderr.contains("panicked") && !stderr.contains("RUST_BACKTRACE"), "{stderr}");
    let message: serde_json::Value =
        serde_json::from_str(stderr.trim()).unwrap_or_else(|_| panic!("no JSON: {stderr}"));
    let sentence = message["error"].as_str().unwrap_or_else(|| panic!("no error: {stderr}"));
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in {sentence:?}");
    }
}

#[test]
fn wrong_submissions_are_refused_with_a_reason() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let text = grid.root.path().join("notes.txt");
    fs::write(&text, "not a module").unwrap();
    let empty = grid.root.path().join("empty");
    fs::write(&empty, "").unwrap();
    let (probe, text, empty) = (probe_program(), text.to_str().unwrap(), empty.to_str().unwrap());
    let probe = probe.to_str().unwrap();
    for (args, code, words) in [
        (vec!["submit", "--program", "/no/such/file.wasm"], 2, vec!["/no/such/file.wasm"]),
        (vec!["submit", "--program", text], 2, vec!["WebAssembly"]),
        (vec!["submit", "--program", probe, "--each-line", empty], 2, vec!["task"]),
        (vec!["submit", "--program", probe, "--memory", "99G"], 2, vec!["from 64K to 4G", "99G"]),
        (vec!["submit", "--program", probe, "--output-limit", "1T"], 2, vec!["4K to 256M", "1T"]),
        (vec!["submit", "--program", probe, "--retry-on", "x"], 2, vec!["\"x\" is no exit code", "75,111"]),
        (vec!["submit", "--program", probe, "--success-codes", "ok"], 2, vec!["\"ok\" is no exit code", "0,10"]),
        (vec!["submit", "--program", probe, "--priority", "high"], 2, vec!["from -1000 to 1000"]),
        (vec!["submit", "--program", probe, "--from-json", text], 2, vec![text, "it is no JSON"]),
        (vec!["bag", "priority", "last", "high"], 2, vec!["from -1000 to 1000"]),
        (vec!["bag", "show", "0123456789ab"], 1, vec!["0123456789ab"]),
        (vec!["bag", "show", "last"], 1, vec!["no bag"]),
    ] {
        let answer = agent.cli(&args);
        assert_eq!(answer.code, code, "{args:?}: {}", answer.stderr);
        assert_sentence(&answer.stderr, &words);
    }
    let bag = agent.submit_sleeps(2, 100);
    let into_a_file = agent.cli(&["bag", "get", &bag, "--out", text]);
    assert_eq!(into_a_file.code, 2, "{}", into_a_file.stderr);
    assert_sentence(&into_a_file.stderr, &["is a file: name a directory"]);
    let beyond = agent.cli(&["bag", "tasks", &bag, "--index", "0-2"]);
    assert_eq!(beyond.code, 2, "{}", beyond.stderr);
    assert_sentence(&beyond.stderr, &["has no task 2: its last is 1"]);
    let one = agent.ask(&["bag", "tasks", &bag, "--index", "1"]);
    let indices: Vec<_> = one["tasks"].as_array().expect("a list").iter().map(|task| &task["index"]).collect();
    assert_eq!(indices, [1]);
}

#[test]
fn directories_among_the_matches_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        fs::create_dir_all(dir.path().join("in").join(name)).unwrap();
    }
    fs::write(dir.path().join("in/file"), "").unwrap();
    let (probe, pattern) = (probe_program(), dir.path().join("in/*"));
    let args = ["submit", "--dry-run", "--program", probe.to_str().unwrap(), "--glob", pattern.to_str().unwrap()];
    let output = command(&[&["--output", "json"], &args[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("the directory ") && said.ends_with("/in/one and 1 more\n"), "{said}");
    let request: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(request["tasks"], 1);
}

#[test]
fn wrong_starts_are_refused_with_a_reason() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let dir = agent.dir.to_str().unwrap();
    let refused = |args: &[&str], code: i32, words: &[&str]| {
        let output = command(&[&["--output", "json"], args].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert_sentence(stderr.lines().last().unwrap_or_default(), words);
    };
    refused(&["run", "--state-dir", dir], 1, &[dir]);
    let status = agent.ask(&["status"]);
    let busy = status["listen"][0].as_str().unwrap();
    let other = grid.root.path().join("other");
    let other = other.to_str().unwrap();
    refused(&["run", "--state-dir", other, "--speed-mops", "1000", "--listen", busy], 1, &["in use"]);
    refused(&["run", "--state-dir", other, "--speed-mops", "1000", "--listen", "/ip4/0.0.0.0/tcp/0"], 1, &["loopback"]);
    let file = grid.root.path().join("a-file");
    fs::write(&file, "").unwrap();
    refused(&["run", "--state-dir", file.to_str().unwrap()], 1, &["a-file"]);
    refused(&["status", "--state-dir", other], 1, &["no agent"]);
    refused(&["run", "--state-dir", other, "--slots", "0"], 2, &["slots"]);
}
