//! Bags without an end, from the command line: shares by weight, a pipe, saving results as they come, and a submitter that is killed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::harness::{AGENT, Agent, Grid, probe_program, wait_for};

/// Submits an endless bag of tasks that each compute for so many millions of steps, some milliseconds; returns its id.
fn submit_endless(agent: &Agent, name: &str, share: &str, millions: &str) -> String {
    let program = probe_program();
    let bag = agent.ask(&[
        "submit",
        "--program",
        program.to_str().expect("a path of ours"),
        "--endless",
        "--array",
        "0-",
        "--share",
        share,
        "--name",
        name,
        "--work",
        "500",
        "--",
        "spin",
        millions,
    ]);
    bag["id"].as_str().expect("an id").to_owned()
}

fn done(agent: &Agent, bag: &str) -> u64 {
    agent.ask(&["bag", "show", bag])["done"].as_u64().expect("a number")
}

/// Starts a command against an agent that goes on by itself.
pub(crate) fn start(agent: &Agent, args: &[&str], stdin: Stdio) -> Child {
    let dir = agent.dir.to_str().expect("a path of ours");
    let mut command = Command::new(AGENT);
    command.args(["--state-dir", dir, "--output", "json"]).args(args).stdin(stdin);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

pub(crate) fn ended(mut child: Child) -> (i32, Value, String) {
    wait_for("the command to end", || child.try_wait().expect("it is a child").is_some());
    let output = child.wait_with_output().expect("it is a child");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = stdout.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null);
    (output.status.code().unwrap_or(-1), json, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The indices in `results.jsonl`, each of which must be there once.
pub(crate) fn listed(out: &std::path::Path) -> BTreeSet<u64> {
    let text = fs::read_to_string(out.join("results.jsonl")).expect("it was written");
    let mut listed = BTreeSet::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).expect("JSON");
        let index = record["index"].as_u64().expect("a number");
        assert!(listed.insert(index), "task {index} is listed twice");
        assert!(out.join(index.to_string()).join("exit_code").exists(), "task {index} is saved");
    }
    listed
}

#[test]
fn three_endless_bags_share_the_grid_and_one_submitter_is_killed() {
    let mut grid = Grid::start(4);
    grid.wait_until_formed(4);
    let weights = ["1", "2", "4"];
    let bags: Vec<String> =
        (0..3).map(|number| submit_endless(&grid.agents[number], weights[number], weights[number], "20")).collect();
    let is_known = |number: usize| {
        let endless = &grid.agents[number].ask(&["bag", "show", &bags[number]])["endless"];
        endless["granted_rate"].as_f64().is_some_and(|rate| rate > 0.0) && endless["limit"] == "processors"
    };
    for number in 0..3 {
        wait_for("a bag to have its share", || is_known(number));
    }
    // By work done, which does not depend on how fast the machines are just now.
    let count = || -> Vec<u64> { (0..3).map(|number| done(&grid.agents[number], &bags[number])).collect() };
    // At first bags have what was asked for before all were known.
    wait_for("the first tasks to be done", || count().iter().sum::<u64>() >= 200);
    let before = count();
    // In steps: on a busy machine workers, which have the lowest priority, get little.
    for step in 1..=14 {
        let enough = before.iter().sum::<u64>() + 100 * step;
        wait_for("more tasks to be done", || count().iter().sum::<u64>() >= enough);
    }
    let had: Vec<f64> = count().iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
    let all: f64 = had.iter().sum();
    for (had, weight) in had.iter().zip([1.0, 2.0, 4.0]) {
        let share = had / all * 7.0;
        assert!((share - weight).abs() <= 0.25 * weight, "a weight of {weight} had {share}: {had} of {all}");
    }
    let share = grid.agents[2].ask(&["bag", "show", &bags[2]])["endless"]["share_percent"].as_f64().expect("a share");
    assert!((share - 400.0 / 7.0).abs() < 6.0, "{share} %");

    // The submitter with the largest share is killed, and comes back: nothing is lost, and it goes on.
    let done_before = done(&grid.agents[2], &bags[2]);
    grid.agents[2].kill();
    let others = || done(&grid.agents[0], &bags[0]) + done(&grid.agents[1], &bags[1]);
    let before = others();
    wait_for("the others to go on", || others() >= before + 20);
    grid.run(2);
    assert!(done(&grid.agents[2], &bags[2]) >= done_before, "what was done is on the disk");
    wait_for("the bag to go on", || done(&grid.agents[2], &bags[2]) >= done_before + 20);
    for (number, bag) in bags.iter().enumerate() {
        let closed = grid.agents[number].ask(&["bag", "close", bag]);
        assert_eq!(closed["endless"]["closed"], true);
        let bag = grid.agents[number].ask(&["bag", "wait", bag]);
        assert_eq!((&bag["state"], &bag["done"]), (&Value::from("succeeded"), &bag["tasks"]));
    }
}

#[test]
fn results_are_saved_as_they_come_and_forgotten() {
    let mut grid = Grid::start(2);
    grid.wait_until_formed(2);
    let bag = submit_endless(&grid.agents[0], "drained", "1", "20");
    let out = grid.root.path().join("results");
    let args = ["bag", "get", &bag, "--follow", "--out", out.to_str().expect("a path of ours")];
    let mut drain = start(&grid.agents[0], &args, Stdio::null());
    let drained =
        |grid: &Grid| grid.agents[0].ask(&["bag", "show", &bag])["endless"]["drained"].as_u64().expect("a number");
    wait_for("results to be drained", || drained(&grid) >= 20);
    // It stalls: what comes meanwhile stays.
    drain.kill().expect("it runs");
    drain.wait().expect("it is a child");
    let undrained =
        |grid: &Grid| grid.agents[0].ask(&["bag", "show", &bag])["endless"]["undrained"].as_u64().expect("a number");
    wait_for("results to stay", || undrained(&grid) >= 20);
    let drain = start(&grid.agents[0], &args, Stdio::null());
    let before = drained(&grid);
    wait_for("it to go on", || drained(&grid) >= before + 20);
    // The agent crashes under it.
    grid.agents[0].kill();
    grid.run(0);
    let before = drained(&grid);
    wait_for("it to go on", || drained(&grid) >= before + 20);
    grid.agents[0].ask(&["bag", "close", "drained"]);
    grid.agents[0].ask(&["bag", "wait", "drained"]);
    let (code, over, stderr) = ended(drain);
    assert_eq!((code, &over["state"]), (0, &Value::from("succeeded")), "{stderr}");
    let tasks = over["tasks"].as_u64().expect("a number");
    assert_eq!(listed(&out), (0..tasks).collect(), "each task once");
    assert_eq!((drained(&grid), undrained(&grid)), (tasks, 0));
    assert_eq!(
        grid.agents[0].ask(&["bag", "get", &bag, "--out", out.join("rest").to_str().expect("ours")])["tasks"],
        0
    );
}

#[test]
fn lines_of_a_pipe_become_tasks_and_its_end_closes_the_bag() {
    let mut grid = Grid::start(2);
    grid.wait_until_formed(2);
    let program = probe_program();
    let program = program.to_str().expect("a path of ours");
    let args = [
        "submit",
        "--program",
        program,
        "--endless",
        "--each-line",
        "-",
        "--work",
        "50",
        "--name",
        "pipe",
        "--",
        "hello",
        "{}",
    ];
    let mut submit = start(&grid.agents[0], &args, Stdio::piped());
    let mut pipe = submit.stdin.take().expect("it is piped");
    writeln!(pipe, "line 0\n\nline 1").expect("it reads");
    let show = |grid: &Grid| grid.agents[0].cli(&["bag", "show", "pipe"]).json;
    wait_for("two tasks to be done", || show(&grid)["done"] == 2);
    // It is silent for a while, and the agent crashes meanwhile.
    wait_for("the bag to be idle", || show(&grid)["endless"]["limit"] == "tasks");
    grid.agents[0].kill();
    grid.run(0);
    for line in 2..300 {
        writeln!(pipe, "line {line}").expect("it reads");
    }
    drop(pipe);
    let (code, bag, stderr) = ended(submit);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!((&bag["tasks"], &bag["endless"]["closed"]), (&Value::from(300), &Value::from(true)));
    let bag = grid.agents[0].ask(&["bag", "wait", "pipe"]);
    assert_eq!((&bag["state"], &bag["done"]), (&Value::from("succeeded"), &Value::from(300)));
    let logs = grid.agents[0].ask(&["bag", "logs", "pipe"]);
    let logs = logs.as_array().expect("a list");
    assert_eq!(logs.len(), 300);
    for log in logs {
        let line = format!("line {}", log["index"]);
        assert_eq!(log["entry"], line.as_str());
        assert!(log["text"].as_str().is_some_and(|text| text.contains(&line)), "{log}");
    }
}

/// Whether a file is a task is told after it has been closed, renamed, or left alone, whichever comes first.
#[test]
fn files_of_a_directory_become_tasks_once_and_the_watching_goes_on_after_its_end() {
    let mut grid = Grid::start(2);
    grid.wait_until_formed(2);
    let watched = grid.root.path().join("incoming");
    fs::create_dir(&watched).expect("our directory");
    let put = |name: &str, text: &str| fs::write(watched.join(name), text).expect("our directory");
    put("before", "there before");
    let program = probe_program();
    let directory = watched.to_str().expect("a path of ours");
    let submit = ["submit", "--program", program.to_str().expect("a path of ours"), "--endless", "--watch", directory];
    let args = [&submit[..], &["--work", "50", "--name", "watched", "--stdin", "{}", "--", "cat"]].concat();
    let mut watching = start(&grid.agents[0], &args, Stdio::null());
    wait_for("the bag to be there", || grid.agents[0].cli(&["bag", "show", "watched"]).code == 0);
    let show = |grid: &Grid| grid.agents[0].cli(&["bag", "show", "watched"]).json;
    assert_eq!(show(&grid)["endless"]["source"], "files");
    // Half a file is none, however long it stays one.
    let mut half = fs::File::create(watched.join("half")).expect("our directory");
    half.write_all(b"first half, ").expect("there is room");
    put(".renamed", "renamed");
    fs::rename(watched.join(".renamed"), watched.join("renamed")).expect("our directory");
    put("closed", "closed");
    fs::create_dir(watched.join("folder")).expect("our directory");
    wait_for("three tasks to be done", || show(&grid)["done"] == 3);
    // Who removes a file that was taken takes nothing from its task.
    fs::remove_file(watched.join("closed")).expect("our directory");
    half.write_all(b"second half").expect("there is room");
    drop(half);
    wait_for("the file to be whole", || show(&grid)["tasks"] == 4);

    // The command is interrupted, and then the agent crashes.
    interrupt(&watching);
    let (code, _, stderr) = ended(watching);
    assert_eq!(code, 130, "{stderr}");
    assert!(stderr.contains("bag feed") && stderr.contains("4 tasks"), "{stderr}");
    put("meanwhile", "meanwhile");
    // As before, and as another.
    put("renamed", "renamed");
    put("before", "replaced");
    grid.agents[0].kill();
    grid.run(0);
    watching = start(&grid.agents[0], &["bag", "feed", "watched"], Stdio::null());
    wait_for("what came meanwhile to be done", || show(&grid)["done"] == 6);
    // No second command takes the same files.
    let second = grid.agents[0].cli(&["bag", "feed", "watched"]);
    assert!(second.code == 1 && second.stderr.contains("already"), "{second:?}");
    // The command is killed, and the agent too, while much comes.
    for number in 0..80 {
        put(&format!("many-{number}"), &format!("of many {number}"));
        if number == 40 {
            watching.kill().expect("it runs");
            watching.wait().expect("it is a child");
            grid.agents[0].kill();
            grid.run(0);
            watching = start(&grid.agents[0], &["bag", "feed", "watched"], Stdio::null());
        }
    }
    wait_for("all to be tasks", || show(&grid)["tasks"].as_u64() >= Some(86));
    grid.agents[0].ask(&["bag", "close", "watched"]);
    let (code, bag, stderr) = ended(watching);
    assert_eq!((code, &bag["tasks"]), (0, &Value::from(86)), "{stderr}");
    let bag = grid.agents[0].ask(&["bag", "wait", "watched"]);
    assert_eq!((&bag["state"], &bag["done"]), (&Value::from("succeeded"), &Value::from(86)));
    let logs = grid.agents[0].ask(&["bag", "logs", "watched"]);
    let read = |log: &Value| (log["entry"].as_str().map(str::to_owned), log["text"].as_str().map(str::to_owned));
    let mut read: Vec<_> = logs.as_array().expect("a list").iter().map(read).collect();
    let mut put: Vec<(String, String)> = [
        ("before", "there before"),
        ("before", "replaced"),
        ("closed", "closed"),
        ("half", "first half, second half"),
        ("meanwhile", "meanwhile"),
        ("renamed", "renamed"),
    ]
    .map(|(name, text)| (name.to_owned(), text.to_owned()))
    .to_vec();
    put.extend((0..80).map(|number| (format!("many-{number}"), format!("of many {number}"))));
    put.sort();
    read.sort();
    assert_eq!(read, put.into_iter().map(|(name, text)| (Some(name), Some(text))).collect::<Vec<_>>());
    let refused = grid.agents[0].cli(&["bag", "feed", "watched"]);
    assert!(refused.code == 1 && refused.stderr.contains("closed"), "{refused:?}");
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("there is kill");
    assert!(sent.success());
}

#[test]
fn what_is_no_endless_bag_is_refused_with_a_remedy() {
    let grid = Grid::start(1);
    let program = probe_program();
    let program = program.to_str().expect("a path of ours");
    for (args, remedy) in [
        (&["--array", "0-"][..], "add --endless"),
        (&["--endless", "--array", "0-9"], "--array 0-"),
        (&["--endless"], "--array 0-"),
        (&["--endless", "--array", "0-", "--share", "0"], "0.001"),
        (&["--endless", "--array", "0-", "--replicas", "2"], "--replicas"),
        (&["--endless", "--watch", "/tmp", "--stewards", "1"], "--stewards"),
        (&["--endless", "--watch", "/tmp", "--keep-results"], "--keep-results"),
        (&["--endless", "--watch", "/nonexistent/nowhere"], "directory to watch"),
        (&["--endless", "--watch", "/tmp", "--array", "0-"], "cannot be used with"),
        (&["--watch", "/tmp"], "--endless"),
    ] {
        let answer = grid.agents[0].cli(&[&["submit", "--program", program], args, &["--", "noop"]].concat());
        assert_eq!(answer.code, 2, "{args:?}: {}", answer.stderr);
        assert!(answer.stderr.contains(remedy), "{args:?}: {}", answer.stderr);
    }
    let finite = grid.agents[0].submit_sleeps(1, 10);
    for args in [&["bag", "close", &finite][..], &["bag", "get", &finite, "--follow"]] {
        let answer = grid.agents[0].cli(args);
        assert_eq!(answer.code, 1, "{args:?}: {}", answer.stderr);
        assert!(answer.stderr.contains("has an end"), "{args:?}: {}", answer.stderr);
    }
}
