//! What users order of their bags while these wait and run, and what they can see of each task.

use serde_json::Value;

use crate::harness::{Agent, Grid, probe_program, wait_for};

/// Submits the probe with these options and arguments; returns the bag's id.
fn submit(agent: &Agent, options: &[&str], args: &[&str]) -> String {
    let program = probe_program();
    let words = [&["submit", "--program", program.to_str().expect("a path of ours")], options, &["--"], args].concat();
    agent.ask(&words)["id"].as_str().expect("an id").to_owned()
}

fn states(listed: &Value) -> Vec<(u64, &str)> {
    let tasks = listed["tasks"].as_array().expect("a list").iter();
    tasks.map(|task| (task["index"].as_u64().expect("an index"), task["state"].as_str().expect("a state"))).collect()
}

#[test]
fn tasks_are_listed_one_by_one() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let bag = submit(agent, &["--array", "0-3", "--max-retries", "0", "--work", "50"], &["exit", "{}"]);
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 3);
    let all = agent.ask(&["bag", "tasks", &bag]);
    assert_eq!(states(&all), [(0, "succeeded"), (1, "failed"), (2, "failed"), (3, "failed")], "{all}");
    let me = agent.ask(&["status"])["peer"].clone();
    for (index, task) in all["tasks"].as_array().expect("a list").iter().enumerate() {
        assert_eq!((&task["exit_code"], &task["machine"]), (&index.into(), &me), "{task}");
        assert!(task["took_s"].as_f64().is_some_and(|took| (0.0..60.0).contains(&took)), "{task}");
        assert_eq!(task["entry"], index.to_string(), "{task}");
    }
    let page = agent.ask(&["bag", "tasks", &bag, "--failed", "--limit", "2"]);
    assert_eq!((states(&page), page["matching"].as_u64()), (vec![(1, "failed"), (2, "failed")], Some(3)));
    let next = page["next"].as_u64().expect("there is more").to_string();
    let rest = agent.ask(&["bag", "tasks", &bag, "--failed", "--from", &next]);
    assert_eq!((states(&rest), &rest["next"]), (vec![(3, "failed")], &Value::Null));
    let text = agent.text(&["bag", "tasks", &bag, "--state", "succeeded"]);
    assert!(text.lines().count() == 2 && text.contains("succeeded"), "{text}");

    let running = agent.submit_sleeps(3, 60_000);
    wait_for("all to be placed", || {
        states(&agent.ask(&["bag", "tasks", &running])).iter().all(|(_, state)| *state == "placed")
    });
    agent.ask(&["bag", "cancel", &running]);
    let cancelled = agent.ask(&["bag", "tasks", &running, "--state", "cancelled"]);
    assert_eq!(states(&cancelled).len(), 3, "{cancelled}");
    let wrong = agent.cli(&["bag", "tasks", &running, "--state", "lost"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("a task is waiting, retrying, placed"), "{}", wrong.stderr);
}
