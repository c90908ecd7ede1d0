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

#[test]
fn bags_are_found_by_name_several_at_once_or_all() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let hello = |name: &str| submit(agent, &["--name", name, "--work", "50"], &["hello"]);
    let (first, second) = (hello("night run"), hello("day/run"));
    assert_eq!(agent.ask(&["bag", "show", "night run"])["id"], first.as_str());
    assert_eq!(agent.ask(&["bag", "wait", "day/run"])["id"], second.as_str());
    let both = agent.ask(&["bag", "wait", "night run", &second[..10]]);
    assert_eq!([&both[0]["id"], &both[1]["id"]], [first.as_str(), second.as_str()], "a list, in the order asked for");

    let twin = hello("night run");
    let ambiguous = agent.cli(&["bag", "show", "night run"]);
    let named = [&first, &twin].map(|id| ambiguous.stderr.contains(&id[..12]));
    assert!(ambiguous.code == 1 && named == [true; 2], "{}", ambiguous.stderr);
    let renamed = agent.ask(&["bag", "rename", &twin, "late run"]);
    assert_eq!((&renamed["name"], &renamed["id"]), (&"late run".into(), &twin.as_str().into()));
    assert_eq!(agent.ask(&["bag", "show", "night run"])["id"], first.as_str(), "it is one again");
    assert_eq!(agent.ask(&["bag", "show", "late run"])["id"], twin.as_str());
    let unknown = agent.cli(&["bag", "cancel", "late run", "no such bag"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("no bag \\\"no such bag\\\""), "{}", unknown.stderr);

    agent.ask(&["bag", "wait", &twin]);
    let open = agent.submit_sleeps(2, 60_000);
    let list = |args: &[&str]| {
        let list = agent.ask(&[&["bag", "list"], args].concat());
        list.as_array()
            .expect("a list")
            .iter()
            .map(|bag| bag["id"].as_str().expect("an id").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(list(&["--state", "open"]), [open.as_str()]);
    assert_eq!(list(&["--state", "succeeded", "--limit", "2"]), [twin.clone(), second.clone()], "the latest first");
    assert_eq!(list(&["--since", "1h"]).len(), 4);
    // Page by page, all of them once.
    let whole = list(&[]);
    let rest = list(&["--limit", "2", "--before", &whole[1]]);
    assert_eq!((list(&["--limit", "2"]), rest), (whole[..2].to_vec(), whole[2..].to_vec()));
    let text = agent.text(&["bag", "list", "--limit", "2"]);
    assert!(text.ends_with(&format!("and more: --before {}\n", &whole[1][..12])), "{text}");
    assert!(!agent.text(&["bag", "list", "--limit", "4"]).contains("and more"));
    assert_eq!(list(&["--since", "2100-01-01"]).len(), 0);
    let cancelled = agent.ask(&["bag", "cancel", "all"]);
    assert_eq!((cancelled.as_array().map(Vec::len), &cancelled[0]["id"]), (Some(1), &open.as_str().into()));
    assert_eq!(agent.cli(&["bag", "wait", "late run", &open]).code, 4, "one of them was cancelled");
    assert_eq!(agent.ask(&["bag", "rm", "all"]).as_array().map(Vec::len), Some(4));
    assert_eq!(list(&[]).len(), 0);
}

#[test]
fn what_is_asked_of_a_bag_can_be_asked_of_several() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let of = |name: &str, codes: &str| {
        let options = ["--name", name, "--work", "50", "--array", codes, "--max-retries", "0"];
        submit(agent, &options, &["exit", "{}"])
    };
    let (fine, failing) = (of("fine", "0"), of("7000000", "0-2"));
    assert_eq!(agent.cli(&["bag", "wait", &fine, &failing]).code, 3);
    let ids = |answer: &Value| -> Vec<String> {
        let id = |of: &Value| of["bag"].as_str().or(of["id"].as_str()).expect("an id").to_owned();
        answer.as_array().expect("a list").iter().map(id).collect()
    };
    let both = [fine.clone(), failing.clone()];
    let tasks = agent.ask(&["bag", "tasks", "fine", &failing[..10]]);
    assert_eq!(ids(&tasks), both);
    assert_eq!([&tasks[0]["matching"], &tasks[1]["matching"]], [1, 3]);
    assert_eq!(agent.ask(&["bag", "tasks", "fine"])["bag"], fine.as_str(), "one that is named is no list");
    assert_eq!(ids(&agent.ask(&["bag", "explain", "fine", "last"])), both);
    assert_eq!(agent.ask(&["bag", "explain", "all"]).as_array().map(Vec::len), Some(0), "none is open");

    // The last word is tasks where it looks like them. A shorter number could begin the other bag's id.
    let logs = agent.ask(&["bag", "logs", "fine", "last", "0"]);
    assert_eq!(ids(&logs), both);
    assert_eq!(logs[1]["tasks"].as_array().map(Vec::len), Some(1), "{logs}");
    let logs = agent.ask(&["bag", "logs", "fine", "7000000", "--index", "0"]);
    assert_eq!(ids(&logs), both);
    assert_eq!(agent.ask(&["bag", "logs", "fine", "0"]).as_array().map(Vec::len), Some(1), "of one, as ever");
    let text = agent.text(&["bag", "logs", "fine", "last", "--stderr"]);
    assert!(text.contains(&format!("==> bag {} (fine)", &fine[..12])), "{text}");
    let follow = agent.cli(&["bag", "logs", "fine", "last", "--follow"]);
    assert!(follow.code == 2 && follow.stderr.contains("one bag"), "{}", follow.stderr);

    let out = grid.root.path().join("both");
    let words = ["bag", "get", "fine", "last", "--out", out.to_str().expect("a path of ours")];
    assert_eq!(ids(&agent.ask(&words)), both);
    for (bag, tasks) in [(&fine, 1), (&failing, 3)] {
        let of_bag = out.join(format!("results-{}", &bag[..12]));
        let list: Value = serde_json::from_slice(&std::fs::read(of_bag.join("results.json")).expect("it is there"))
            .expect("it is JSON");
        assert_eq!(list.as_array().map(Vec::len), Some(tasks));
    }
    // What is wrong with one keeps nothing from the others.
    let spoilt = out.join(format!("results-{}", &fine[..12])).join("results.json");
    std::fs::write(&spoilt, "no list").expect("our directory");
    std::fs::remove_dir_all(out.join(format!("results-{}", &failing[..12]))).expect("our directory");
    let partly = agent.cli(&words);
    assert!(partly.code == 1 && partly.stderr.contains(&fine[..12]), "{}", partly.stderr);
    assert!(out.join(format!("results-{}", &failing[..12])).join("results.json").exists());

    let again = agent.ask(&["bag", "rerun", "all", "--failed"]);
    assert_eq!(ids(&again), std::slice::from_ref(&failing), "the other has nothing to run again");
    assert_eq!(agent.cli(&["bag", "wait", &failing]).code, 3);
    let beyond = agent.cli(&["bag", "rerun", "fine", "last", "--index", "2"]);
    assert!(beyond.code == 2 && beyond.stderr.contains("no task 2"), "{}", beyond.stderr);

    // Nor do orders stop at the first that is over.
    let open = ["one", "two"].map(|name| submit(agent, &["--name", name, "--hold"], &["hello"]));
    let refused = agent.cli(&["bag", "priority", "fine", "one", "two", "-5"]);
    assert!(refused.code == 1 && refused.stderr.contains("over already"), "{}", refused.stderr);
    assert_eq!(ids(&refused.json), open);
    assert!(open.iter().all(|bag| agent.ask(&["bag", "show", bag])["priority"] == -5));
    let refused = agent.cli(&["bag", "cancel", "fine", "one", "two"]);
    assert!(refused.code == 1 && open.iter().all(|bag| agent.ask(&["bag", "show", bag])["state"] == "cancelled"));
}

#[test]
fn a_bag_is_held_and_released_also_across_a_restart() {
    let mut grid = Grid::start(1);
    let agent = &grid.agents[0];
    let bag = submit(agent, &["--hold", "--array", "0-2", "--name", "careful"], &["hello", "{}"]);
    let shown = agent.ask(&["bag", "show", "careful"]);
    assert_eq!((&shown["state"], &shown["held"]), (&"held".into(), &true.into()), "{shown}");
    assert_eq!(shown["bounds"][0]["code"], "held", "{shown}");
    grid.agents[0].terminate();
    grid.run(0);
    let agent = &grid.agents[0];
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(states(&agent.ask(&["bag", "tasks", &bag])), [(0, "waiting"), (1, "waiting"), (2, "waiting")]);
    assert!(agent.text(&["bag", "release", "careful"]).contains("goes on: 3 tasks to go"));
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0);
    let over = agent.cli(&["bag", "hold", &bag]);
    assert!(over.code == 1 && over.stderr.contains("is over already"), "{}", over.stderr);

    // While it runs: what has begun goes on, and nothing else begins.
    let slots = agent.ask(&["status"])["slots"].as_u64().expect("a number");
    let bag = agent.submit_sleeps(slots as usize + 6, 3_000);
    wait_for("tasks to run", || agent.ask(&["status"])["running"].as_array().map(Vec::len) == Some(slots as usize));
    agent.ask(&["bag", "hold", &bag]);
    wait_for("those to end", || agent.ask(&["bag", "show", &bag])["done"].as_u64() == Some(slots));
    let shown = agent.ask(&["bag", "show", &bag]);
    assert_eq!((shown["placed"].as_u64(), shown["unplaced"].as_u64()), (Some(0), Some(6)), "{shown}");
    agent.ask(&["bag", "release", &bag]);
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0);
}

#[test]
fn a_bag_waits_for_others_and_says_why() {
    let mut grid = Grid::start(1);
    let agent = &grid.agents[0];
    let unknown = agent.cli(&["submit", "--program", "x", "--after", ""]);
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
    let program = probe_program();
    let program = program.to_str().expect("a path of ours");
    let unknown = agent.cli(&["submit", "--program", program, "--after", "nobody", "--", "hello"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("no bag \\\"nobody\\\""), "{}", unknown.stderr);

    let first = submit(agent, &["--name", "first", "--work", "50"], &["sleep", "6000"]);
    let bad = submit(agent, &["--name", "bad", "--work", "50", "--max-retries", "0"], &["exit", "3"]);
    let after = submit(agent, &["--after", "first"], &["hello"]);
    let stuck = submit(agent, &["--after", "first,bad", "--work", "50"], &["hello"]);
    let shown = agent.ask(&["bag", "show", &after]);
    assert_eq!((&shown["state"], &shown["after"][0]["id"]), (&"waiting".into(), &first.as_str().into()), "{shown}");
    grid.agents[0].kill();
    grid.run(0);
    let agent = &grid.agents[0];
    agent.cli(&["bag", "wait", "first", "bad", &after]);
    let [first, after] = [&first, &after].map(|bag| agent.ask(&["bag", "show", bag]));
    assert_eq!([&first["state"], &after["state"]], ["succeeded", "succeeded"]);
    let began = agent.ask(&["bag", "tasks", after["id"].as_str().expect("an id")])["tasks"][0]["finished"].clone();
    assert!(first["finished"].as_str() < began.as_str(), "{first} {began}");

    wait_for("the other bag to be stuck", || agent.ask(&["bag", "show", &stuck])["state"] == "held");
    let why = agent.ask(&["bag", "explain", &stuck])["bounds"][0].clone();
    let sentence = format!("it waits for bag {} (bad), which failed", &bad[..12]);
    assert_eq!((&why["code"], &why["sentence"]), (&"held".into(), &sentence.as_str().into()), "{why}");
    assert!(agent.text(&["bag", "show", &stuck]).contains(&sentence));
    agent.ask(&["bag", "release", &stuck]);
    assert_eq!(agent.cli(&["bag", "wait", &stuck]).code, 0);
}

#[test]
fn no_more_tasks_run_at_once_than_are_wanted() {
    let grid = Grid::start(2);
    let agent = &grid.agents[0];
    let bag = submit(agent, &["--max-running", "2", "--array", "0-7", "--work", "50"], &["sleep", "700"]);
    let mut most = 0;
    wait_for("the bag to end", || {
        // What one machine says at one moment: a machine holds a task on until its result is acknowledged.
        let shown = agent.ask(&["bag", "show", &bag]);
        most = most.max(shown["placed"].as_u64().unwrap_or(0));
        shown["state"] == "succeeded"
    });
    assert!((1..=2).contains(&most), "{most} at once");
}

#[test]
fn failures_that_would_only_be_repeated_are_not() {
    let grid = Grid::start(3);
    let agent = &grid.agents[0];
    let attempt = |bag: &str| agent.ask(&["bag", "tasks", bag])["tasks"][0]["attempt"].as_u64().expect("it ended");
    let retried = submit(agent, &["--work", "50", "--retry-on", "1", "--max-retries", "1"], &["exit", "1"]);
    assert_eq!(agent.cli(&["bag", "wait", &retried]).code, 3);
    assert!(attempt(&retried) > 0, "exit code 1 is tried again");
    assert_eq!(agent.ask(&["bag", "show", &retried])["retry_on"][0].as_u64(), Some(1));
    // A run that was lost on its way is repeated all the same, so that not all numbers are 0.
    let other = submit(agent, &["--work", "50", "--retry-on", "1", "--max-retries", "50"], &["exit", "2"]);
    assert_eq!(agent.cli(&["bag", "wait", &other]).code, 3);
    assert!(attempt(&other) < 10, "exit code 2 is not: attempt {}", attempt(&other));

    // Alike on two machines: of 50 retries few are made. Each machine in turn is the only one that works.
    grid.agents[1..].iter().for_each(|other| drop(other.ask(&["pause"])));
    let bag = submit(agent, &["--work", "50", "--max-retries", "50"], &["exit", "3"]);
    wait_for("it to fail on the first machine", || {
        agent.ask(&["bag", "tasks", &bag])["tasks"][0]["state"] == "retrying"
    });
    agent.ask(&["pause"]);
    grid.agents[1].ask(&["resume"]);
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 3);
    assert!(attempt(&bag) < 10, "attempt {}", attempt(&bag));
}

#[test]
fn a_command_hears_of_the_end_of_a_bag_once() {
    let mut grid = Grid::start(1);
    let agent = &grid.agents[0];
    let told = grid.root.path().join("told");
    let command = format!(
        "echo \"$IDLEWOOD_BAG_NAME $IDLEWOOD_BAG_STATE $IDLEWOOD_BAG_DONE $IDLEWOOD_BAG_ID\" >> {}",
        told.display()
    );
    let read = || std::fs::read_to_string(&told).unwrap_or_default();
    let notify = ["--notify", command.as_str(), "--work", "50", "--max-retries", "0"];
    let good = submit(agent, &[&notify[..], &["--name", "good"]].concat(), &["hello"]);
    wait_for("the command", || read() == format!("good succeeded 1 {good}\n"));
    let bad = submit(agent, &[&notify[..], &["--name", "bad"]].concat(), &["exit", "3"]);
    wait_for("the command", || read().ends_with(&format!("bad failed 0 {bad}\n")));

    // The agent ends before the bag does, which ends while it starts again.
    let given_up = submit(agent, &[&notify[..], &["--name", "third", "--hold"]].concat(), &["hello"]);
    grid.agents[0].kill();
    grid.run(0);
    let agent = &grid.agents[0];
    agent.ask(&["bag", "cancel", &given_up]);
    wait_for("the command", || read().ends_with(&format!("third cancelled 0 {given_up}\n")));
    agent.ask(&["bag", "rerun", "--failed", &bad]);
    agent.cli(&["bag", "wait", &bad]);
    grid.agents[0].terminate();
    grid.run(0);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(read().lines().count(), 3, "once each: {}", read());
}
