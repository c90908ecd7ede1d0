//! Applications whose rounds begin at once, on simulated machines.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Two applications that need most of 16 slots each, from two machines at the same moment, beside bags that do not wait for anybody.
const SCENARIO: &str = r#"
nodes = 8
slots = 2
speed_mops_min = 500
speed_mops_max = 2000
workload = "given"
seed = 3

[[given_bags]]
at = "1s"
submitter = 0
tasks = 33
task_mops = 20000.0
rounds = { processes = 10, rounds = 3, asynchronous = false, at_once = true, class_mops = [20000.0, 5000.0], merge_mops = 1000.0 }

[[given_bags]]
at = "1s"
submitter = 1
tasks = 39
task_mops = 10000.0
rounds = { processes = 12, rounds = 3, asynchronous = false, at_once = true, class_mops = [10000.0], merge_mops = 1000.0 }

[[given_bags]]
at = "20s"
submitter = 2
tasks = 60
task_mops = 8000.0
"#;

#[test]
fn processes_of_a_round_begin_within_ten_seconds_of_each_other() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("at_once");
    std::fs::create_dir_all(&directory).expect("our directory");
    let (scenario, history) = (directory.join("scenario.toml"), directory.join("history"));
    std::fs::write(&scenario, SCENARIO).expect("our directory");
    let output = Command::new(env!("CARGO_BIN_EXE_simnet"))
        .args(["run", "--output", "json", "--scenario"])
        .arg(&scenario)
        .arg("--history")
        .arg(&history)
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = std::fs::read_to_string(&history).expect("it was written");
    let mut first: BTreeMap<(u64, u64), Vec<f64>> = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines().skip(1) {
        let [at, what, _, bag, task] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (Ok(bag), Ok(task)) = (bag.parse::<u64>(), task.parse::<u64>()) else { continue };
        let Some(processes) = [10, 12].get(bag as usize).copied() else { continue };
        let (round, place) = (task / (processes + 1), task % (processes + 1));
        if what == "started" && place < processes && seen.insert((bag, task)) {
            first.entry((bag, round)).or_default().push(at.parse().expect("seconds"));
        }
    }
    assert_eq!(first.len(), 6, "three rounds of two applications: {report}");
    for ((bag, round), starts) in first {
        let all = if bag == 0 { 10 } else { 12 };
        let (begin, end) = starts.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), at| (a.min(*at), b.max(*at)));
        assert_eq!(starts.len(), all, "bag {bag}, round {round}");
        assert!(end - begin <= 10.0, "bag {bag}, round {round}: from {begin} to {end}");
    }
    let ended = text.lines().filter(|line| line.contains(",closed,")).count();
    assert_eq!(ended, 3, "nothing is lost");
}
