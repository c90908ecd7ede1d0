//! The history of a simulation agrees with its report, on any number of threads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use idlewood_simnet::{Scenario, Simulation};

/// Bag and task of a row.
type Of = (Option<usize>, Option<u64>);
/// A row: moment, event, machine, and bag and task.
type Line = (f64, String, u32, Of);

fn read(text: &str) -> Vec<Line> {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("at_s,what,machine,bag,task"));
    let line = |line: &str| {
        let [at, what, machine, bag, task] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let number = |text: &str| text.parse::<u64>().ok();
        let of = (number(bag).map(|bag| bag as usize), number(task));
        (at.parse().unwrap(), what.to_owned(), machine.parse().unwrap(), of)
    };
    lines.map(line).collect()
}

/// Machines that crash and leave, owners, tries that fail and crash, bags that overtake others.
const SCENARIO: &str = r#"
nodes = 12
bags = 6
heavy_tailed = true
load = 0.9
churn = "40m"
downtime = "2m"
leave_percent = 30
owner_session = "5m"
owner_away = "30m"
owner_idle = "0s"
fails_percent = 10
crashes_percent = 5
queue_lost = true
slots = 2
seed = 9
"#;

#[test]
fn the_history_agrees_with_the_report() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("history");
    std::fs::create_dir_all(&directory).unwrap();
    let scenario = directory.join("scenario.toml");
    std::fs::write(&scenario, SCENARIO).unwrap();
    let run = |threads: &str| {
        let history = directory.join(threads);
        let output = Command::new(env!("CARGO_BIN_EXE_simnet"))
            .args(["run", "--output", "json", "--threads", threads])
            .arg("--scenario")
            .arg(&scenario)
            .arg("--history")
            .arg(&history)
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let report: serde_json::Value = serde_json::from_str(printed.lines().next_back().unwrap()).unwrap();
        (std::fs::read_to_string(history).unwrap(), report)
    };
    let (text, report) = run("1");
    assert_eq!(run("2").0, text);
    let lines = read(&text);
    assert!(lines.is_sorted_by(|one, other| one.0 <= other.0));

    let count = |what: &str| lines.iter().filter(|line| line.1 == what).count() as u64;
    let counted = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"));
    for (what, name) in [
        ("started", "started_executions"),
        ("succeeded", "finished_executions"),
        ("failed", "failed_executions"),
        ("crashed", "crashed_executions"),
        ("frozen", "preemptions"),
        ("owner_returned", "reclaims"),
        ("accepted", "bags_accepted"),
        ("closed", "bags_closed"),
    ] {
        assert!(count(what) > 0, "nothing of this happened: {what}");
        assert_eq!(count(what), counted(name), "{what}");
    }
    assert_eq!(count("down"), counted("crashes") + counted("leaves"));
    let delivered: BTreeSet<_> = lines.iter().filter(|line| line.1 == "delivered").map(|line| line.3).collect();
    assert_eq!(delivered.len() as u64, counted("completed_tasks"));

    let mut done: BTreeMap<usize, f64> = BTreeMap::new();
    for (at, _, machine, (bag, _)) in lines.iter().filter(|line| line.1 == "delivered" || line.1 == "given_up") {
        let bag = bag.unwrap();
        assert_eq!(report["bags"][bag]["submitter"], *machine);
        done.insert(bag, *at);
    }
    for (bag, at) in done {
        assert_eq!(report["bags"][bag]["completed_s"], at, "bag {bag}");
    }

    // A machine runs no more tasks than its slots, and none while it is down; none begins or continues while its owner
    // is there.
    let mut up: BTreeMap<u32, BTreeSet<Of>> = BTreeMap::new();
    let mut owned = BTreeSet::new();
    for line @ (_, what, machine, of) in &lines {
        match what.as_str() {
            "up" => assert_eq!(up.insert(*machine, BTreeSet::new()), None, "{line:?}"),
            "down" => {
                owned.remove(machine);
                assert!(up.remove(machine).is_some(), "{line:?}");
            }
            "owner_returned" => assert!(owned.insert(*machine), "{line:?}"),
            "owner_left" => assert!(owned.remove(machine), "{line:?}"),
            _ => {}
        }
        let Some(here) = up.get_mut(machine) else {
            assert_eq!(what, "down", "{line:?}");
            continue;
        };
        let is_right = match what.as_str() {
            "started" | "thawed" => here.insert(*of) && !owned.contains(machine),
            "frozen" | "succeeded" | "failed" | "crashed" => here.remove(of),
            // Also a frozen one.
            "stopped" => {
                here.remove(of);
                true
            }
            _ => true,
        };
        assert!(is_right && here.len() <= 2, "{line:?}: {here:?}");
    }
}

#[test]
fn a_history_that_cannot_be_written_is_an_error() {
    let run = |path: &str| {
        let arguments = ["run", "--nodes", "3", "--bags", "1", "--history", path];
        let output = Command::new(env!("CARGO_BIN_EXE_simnet")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run("/no/such/directory/history.csv");
    assert_eq!(code, Some(2));
    assert!(said.contains("/no/such/directory/history.csv cannot be written: No such file"), "{said}");
    let other = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_history.toml");
    std::fs::write(&other, "nodes = 3").unwrap();
    let (code, said) = run(other.to_str().unwrap());
    assert_eq!(code, Some(2));
    assert!(said.contains("no_history.toml is there, and no history: choose another name"), "{said}");
    assert_eq!(std::fs::read_to_string(other).unwrap(), "nodes = 3");
    #[cfg(target_os = "linux")]
    {
        let (code, said) = run("/dev/full");
        assert_eq!(code, Some(1));
        assert!(said.contains("/dev/full cannot be written: No space left"), "{said}");
    }
}

/// A history does not change the simulation; an earlier file is replaced.
#[test]
fn writing_a_history_changes_nothing() {
    let scenario = || Scenario { nodes: 5, bags: 2, churn: Some(Duration::from_secs(900)), ..Scenario::default() };
    let simulation = || Simulation::new(scenario()).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unchanged.csv");
    let mut texts = Vec::new();
    for _ in 0..2 {
        let mut written = simulation();
        written.write_history(&path).unwrap();
        let report = written.run(|_| ());
        written.end_history().unwrap();
        assert_eq!(report, simulation().run(|_| ()));
        texts.push(std::fs::read_to_string(&path).unwrap());
    }
    assert!(texts[0].lines().count() > 50 && texts[0] == texts[1]);
}

/// On a full disk the simulation must not go on for hours.
#[cfg(target_os = "linux")]
#[test]
fn a_simulation_ends_when_its_history_cannot_be_written_any_more() {
    let scenario = Scenario { nodes: 30, bags: 20, ..Scenario::default() };
    let mut simulation = Simulation::new(scenario).unwrap();
    simulation.write_history(Path::new("/dev/full")).unwrap();
    let report = simulation.run(|_| ());
    assert!(report.open_tasks > 0 && report.bags_closed < 20, "{report:?}");
    assert!(simulation.end_history().unwrap_err().starts_with("/dev/full cannot be written: No space left"));
}
