//! The short form of the comparison of real agents with simnet (`tests/conformance`) runs, and its counts agree. How long things take is
//! for its whole form on a computer that does nothing else: docs/lab/conformance.md.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use idlewood_testing::missing;
use serde_json::Value;

fn conformance(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_conformance")).args(arguments).stdin(Stdio::null()).output();
    let output = output.expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// The rows by scenario and figure.
fn rows(printed: &str) -> BTreeMap<(String, String), Value> {
    let row = |line| serde_json::from_str::<Value>(line).expect("a line of JSON");
    let name = |row: &Value, key: &str| row[key].as_str().expect("a name").to_owned();
    printed.lines().map(row).map(|row| ((name(&row, "scenario"), name(&row, "figure")), row)).collect()
}

#[test]
fn real_and_simulated_machines_do_the_same_work() {
    let is_root = rustix::process::geteuid().is_root();
    let has = |program| Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !is_root || !has("ip") || !has("tc") {
        return missing("network namespaces, for which this needs root, ip and tc");
    }
    let (succeeded, printed, said) = conformance(&["--short", "--seeds", "3", "--output", "json"]);
    assert!(succeeded, "{said}");
    let rows = rows(&printed);
    let of = |scenario: &str, figure: &str, which: &str| {
        rows[&(scenario.to_owned(), figure.to_owned())][which].as_f64().expect("a number")
    };
    for scenario in ["pair", "restart"] {
        for which in ["real", "simulated"] {
            assert!(of(scenario, "makespan, s", which) > 1.0 && of(scenario, "messages", which) > 10.0, "{printed}");
        }
        assert_eq!(
            of(scenario, "repairs: tasks issued again", "real"),
            of(scenario, "repairs: tasks issued again", "simulated")
        );
    }
    assert_eq!(of("pair", "tasks run twice", "real"), 0.0, "{printed}");
    // Each file goes to each machine once, however slow this computer is.
    let apart = of("pair", "bytes of blobs", "difference_percent");
    assert!(apart.abs() <= 10.0, "{apart} %: {printed}");
}

#[test]
fn a_scenario_that_is_wrong_is_refused_with_a_sentence() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), "name = \"x\"\nabout = \"\"\nmachines = 1\n[[bag]]\ntasks = 1\ntask_s = 1.0\n")
        .expect("our file");
    let path = file.path().to_str().expect("a path of ours");
    let (succeeded, _, said) = conformance(&["--simulate", "--scenario", path]);
    assert!(!succeeded && said.contains("machines must be between 2 and 200"), "{said}");
    let (succeeded, _, said) = conformance(&["--only", "nothing"]);
    assert!(!succeeded && said.contains("--list shows the scenarios"), "{said}");
}
