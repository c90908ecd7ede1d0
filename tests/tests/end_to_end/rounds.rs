//! Applications in rounds on real agents: the optimiser of `agent/tasks/evolve`, and programs that do not do what a merge does.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Agent, Grid, PATIENCE, probe_program, wait_for};

const PROCESSES: &str =
    "regular 1\nscale-free 2\nsmall-world 3\nrandom 4\nregular 5\nscale-free 6\nsmall-world 7\nrandom 8\n";
const ROUNDS: u64 = 6;

fn program(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../agent/tasks/{name}/{name}.wasm"));
    path.to_str().expect("a path of ours").to_owned()
}

/// Submits the optimiser with eight processes; returns the bag's id.
pub(crate) fn optimise(agent: &Agent, directory: &Path, options: &[&str]) -> String {
    let list = directory.join("processes.txt");
    fs::write(&list, PROCESSES).expect("our directory");
    let (evolve, pareto, list) =
        (program("evolve"), program("pareto"), list.to_str().expect("a path of ours").to_owned());
    let fixed =
        ["submit", "--program", &evolve, "--each-line", &list, "--colsep", " ", "--merge", &pareto, "--work", "500"];
    let args = ["--", "--function", "2", "--topology", "{1}", "--seed", "{2}", "--iterations", "{iterations}"];
    let bag = agent.ask(&[&fixed[..], options, &args].concat());
    bag["id"].as_str().expect("an id").to_owned()
}

pub(crate) fn rounds(agent: &Agent, bag: &str) -> Value {
    agent.ask(&["bag", "show", bag])["rounds"].clone()
}

/// Saves the results of a bag; the directory that has them.
pub(crate) fn get(agent: &Agent, bag: &str, directory: PathBuf) -> PathBuf {
    agent.ask(&["bag", "get", bag, "--out", directory.to_str().expect("a path of ours")]);
    directory
}

pub(crate) fn front(directory: &Path) -> Vec<u8> {
    fs::read(directory.join("merged/front")).expect("the merge left it")
}

#[test]
fn a_synchronous_application_finds_the_same_front_whatever_happens_to_machines() {
    let options = ["--rounds", "6", "--iterations", "60"];
    let alone = {
        let grid = Grid::start(1);
        let bag = optimise(&grid.agents[0], grid.root.path(), &options);
        assert_eq!(grid.agents[0].cli(&["bag", "wait", &bag]).code, 0, "{}", grid.agents[0].log());
        let saved = get(&grid.agents[0], &bag, grid.root.path().join("alone"));
        let picture = fs::read_to_string(saved.join("merged/front.svg")).expect("the merge left it");
        assert!(picture.contains("DTLZ2 after round 6"), "{picture}");
        let left = fs::read_dir(saved.join("processes")).expect("it is there").count();
        assert_eq!((left, saved.join("processes/7/population").exists()), (8, true));
        let early = get_round(&grid.agents[0], &bag, 2, grid.root.path().join("early"));
        assert!(fs::read_to_string(early.join("merged/front.svg")).expect("kept").contains("DTLZ2 after round 2"));
        front(&saved)
    };
    let mut grid = Grid::start(4);
    let bag = optimise(&grid.agents[0], grid.root.path(), &options);
    // Each machine compiles both programs first.
    let has_done = |done: &Value| done["done"].as_array().is_some_and(|done| done.iter().any(|done| *done != 0));
    wait_for("a process", || has_done(&rounds(&grid.agents[0], &bag)));
    wait_for("all processes", || {
        let done = rounds(&grid.agents[0], &bag)["done"].clone();
        done.as_array().is_some_and(|done| done.iter().all(|done| *done != 0))
    });
    wait_for("the first round", || rounds(&grid.agents[0], &bag)["complete"].as_u64() >= Some(1));
    grid.agents[1].kill();
    grid.agents[2].set_owner(true);
    let before = rounds(&grid.agents[0], &bag)["complete"].as_u64().expect("a number");
    // Its submitter, too.
    grid.agents[0].kill();
    grid.run(0);
    assert!(rounds(&grid.agents[0], &bag)["complete"].as_u64() >= Some(before), "it goes on from there");
    assert_eq!(grid.agents[0].cli(&["bag", "wait", &bag]).code, 0, "{}", grid.agents[0].log());
    let shown = grid.agents[0].ask(&["bag", "show", &bag]);
    assert_eq!((shown["state"].as_str(), shown["done"].as_u64()), (Some("succeeded"), Some(ROUNDS * 9)), "{shown}");
    assert_eq!(shown["rounds"]["done"], Value::from(vec![ROUNDS; 8]), "{shown}");
    let saved = get(&grid.agents[0], &bag, grid.root.path().join("together"));
    assert!(front(&saved) == alone, "the fronts differ");
}

fn get_round(agent: &Agent, bag: &str, round: u64, directory: PathBuf) -> PathBuf {
    let out = directory.to_str().expect("a path of ours");
    agent.ask(&["bag", "get", bag, "--round", &round.to_string(), "--out", out]);
    directory
}

#[test]
fn an_asynchronous_application_ends_with_a_merge_of_all() {
    let grid = Grid::start(2);
    let agent = &grid.agents[0];
    let bag = optimise(agent, grid.root.path(), &["--rounds", "3", "--iterations", "60", "--mode", "async"]);
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0, "{}", agent.log());
    let shown = agent.ask(&["bag", "show", &bag]);
    assert_eq!(shown["done"].as_u64(), Some(2 * 16 + 9), "a merge after each process, and one of all: {shown}");
    let saved = get(agent, &bag, grid.root.path().join("saved"));
    let picture = fs::read_to_string(saved.join("merged/front.svg")).expect("the merge left it");
    assert!(picture.contains("after round 3"), "{picture}");
    let log = agent.text(&["bag", "logs", &bag, "--index", "40"]);
    let epsilon: f64 = log.trim().rsplit(' ').next().and_then(|text| text.parse().ok()).expect("it is printed last");
    assert!(epsilon < 0.05, "{log}");
}

#[test]
fn an_application_that_converges_ends_early() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let until = ["--until", "converged", "--at-least-rounds", "2", "--env", "UNTIL_EPSILON=10"];
    let bag = optimise(agent, grid.root.path(), &[&["--rounds", "5", "--iterations", "5"][..], &until].concat());
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0, "{}", agent.log());
    let shown = agent.ask(&["bag", "show", &bag]);
    let (state, done) = (shown["state"].as_str(), shown["done"].as_u64());
    assert_eq!(
        (state, done, &shown["rounds"]["converged"]),
        (Some("succeeded"), Some(18), &Value::Bool(true)),
        "{shown}"
    );
    assert!(agent.text(&["bag", "show", &bag]).contains("2 of 5 complete, 8 processes, sync: it has converged"));
}

#[test]
fn a_merge_that_merges_nothing_ends_the_application_and_says_why() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let probe = probe_program();
    let probe = probe.to_str().expect("a path of ours");
    let noop = program("noop");
    let words = ["submit", "--program", probe, "--array", "0-1", "--rounds", "2", "--merge", &noop, "--work", "50"];
    let bag = agent.ask(&[&words[..], &["--max-retries", "0", "--", "hello"]].concat());
    let bag = bag["id"].as_str().expect("an id");
    assert_eq!(agent.cli(&["bag", "wait", bag]).code, 3);
    let shown = agent.ask(&["bag", "show", bag]);
    assert_eq!((shown["done"].as_u64(), shown["failed"].as_u64()), (Some(2), Some(1)), "{shown}");
    let shown = agent.text(&["bag", "show", bag]);
    assert!(shown.contains("the merge left nothing in merged/"), "{shown}");
    // Without a merge all results go to all.
    let words = ["submit", "--program", probe, "--array", "0-1", "--rounds", "3", "--work", "50", "--", "hello"];
    let bag = agent.ask(&words)["id"].as_str().expect("an id").to_owned();
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0);
    assert_eq!(rounds(agent, &bag)["complete"].as_u64(), Some(3));
}

fn script(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("our directory");
    path.to_str().expect("a path of ours").to_owned()
}

/// Scripts, on the machine that submits them. The process takes no notice of its iterations.
#[test]
fn a_merge_that_fails_or_leaves_too_much_ends_the_application_and_says_why() {
    let grid = Grid::start(1);
    let (agent, root) = (&grid.agents[0], grid.root.path());
    let process = script(root, "process.sh", "echo $IDLEWOOD_ROUND >state");
    let submit = |merge: &str, options: &[&str]| {
        let fixed = ["submit", "--native", "--program", &process, "--merge", merge, "--rounds", "2", "--work", "50"];
        let rest = ["--iterations", "5", "--output-limit", "100K", "--max-retries", "0"];
        let bag = agent.ask(&[&fixed[..], &rest, options].concat());
        let bag = bag["id"].as_str().expect("an id").to_owned();
        let code = agent.cli(&["bag", "wait", &bag]).code;
        (code, agent.ask(&["bag", "show", &bag]), agent.text(&["bag", "show", &bag]))
    };
    let much = "mkdir merged; head -c 200000 /dev/zero >merged/all";
    for (name, text, why) in [("fails.sh", "exit 7", "exit code 7"), ("much.sh", much, "over the limit of 102400")] {
        let (code, shown, said) = submit(&script(root, name, text), &["--array", "0-1"]);
        assert_eq!((code, shown["done"].as_u64(), shown["failed"].as_u64()), (3, Some(2), Some(1)), "{name}: {shown}");
        assert!(said.contains(why), "{name}: {said}");
    }
    // One process alone.
    let merge = script(root, "merge.sh", "mkdir merged; cat inputs/results/0/state >merged/all");
    let (code, shown, _) = submit(&merge, &[]);
    assert_eq!((code, shown["done"].as_u64()), (0, Some(4)), "{shown}");
    assert_eq!(shown["rounds"]["done"], Value::from(vec![2]), "{shown}");
}

/// Process 0 takes a fifth of the time of process 1, on another slot of the same machine.
#[test]
fn a_process_that_would_wait_iterates_on_until_the_other_ends() {
    let mut grid = Grid::prepare_unstarted(1);
    grid.agents[0].configure("[limits]\nslots = 2\n");
    grid.run(0);
    let (agent, root) = (&grid.agents[0], grid.root.path());
    let text = "step=$((IDLEWOOD_ITERATIONS * $1)); while [ $step -gt 0 ]; do step=$((step - 1)); done; \
                echo $IDLEWOOD_ITERATIONS >iterations; echo done >>$IDLEWOOD_PROGRESS";
    let process = script(root, "process.sh", text);
    let merge = script(root, "merge.sh", "mkdir merged; cat inputs/results/*/iterations >merged/all");
    let list = root.join("steps.txt");
    fs::write(&list, "5000\n25000\n").expect("our directory");
    let list = list.to_str().expect("a path of ours");
    let words = ["submit", "--native", "--program", &process, "--merge", &merge, "--each-line", list, "--rounds", "5"];
    let rest = ["--iterations", "10", "--fill", "--work", "1000", "--", "{}"];
    let bag = agent.ask(&[&words[..], &rest].concat())["id"].as_str().expect("an id").to_owned();
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0, "{}", agent.log());
    let of = |round: u64| {
        let out = get_round(agent, &bag, round, root.join(format!("round-{round}")));
        let did = |process: u64| fs::read_to_string(out.join(format!("processes/{process}/iterations"))).expect("left");
        assert_eq!(
            fs::read_dir(out.join("processes/0")).expect("left").count(),
            1,
            "what it says of its progress is no output"
        );
        [0, 1].map(|process| did(process).trim().parse::<u64>().expect("a number"))
    };
    assert_eq!(of(1), [10, 10], "nothing is known yet");
    let later: Vec<[u64; 2]> = (2..=5).map(of).collect();
    assert!(later.iter().all(|[fast, slow]| (10..=20).contains(fast) && *slow == 10), "{later:?}");
    assert!(later.iter().any(|[fast, _]| *fast > 10), "{later:?}");
}

/// Half an hour or more of iterations, of which the first task can do a minute's; returns the work of a process in multiples of that minute.
fn predicted_minutes(says_progress: bool) -> f64 {
    let grid = Grid::start(1);
    let (agent, root) = (&grid.agents[0], grid.root.path());
    let says = if says_progress { "echo $step >>$IDLEWOOD_PROGRESS" } else { ":" };
    let text = format!(
        "step=0; while [ $step -lt $IDLEWOOD_ITERATIONS ]; do turn=0; while [ $turn -lt 20000 ]; do turn=$((turn + 1)); done; \
         step=$((step + 1)); {says}; done"
    );
    let process = script(root, "process.sh", &text);
    let words = ["submit", "--native", "--program", &process, "--array", "0-1", "--rounds", "2"];
    let bag = agent.ask(&[&words[..], &["--iterations", "1000000"]].concat())["id"].as_str().expect("an id").to_owned();
    let work_mops = || agent.ask(&["bag", "show", &bag])["work_mops"].as_f64();
    let begin = Instant::now();
    while work_mops().is_none() {
        assert!(begin.elapsed() < PATIENCE + Duration::from_secs(180), "{}", agent.log());
        std::thread::sleep(Duration::from_millis(500));
    }
    let minute_mops = 60.0 * agent.ask(&["status"])["speed_mops"].as_f64().expect("a number");
    work_mops().expect("it is there") / minute_mops
}

#[test]
fn a_long_process_that_says_how_far_it_is_is_predicted_from_its_first_minute() {
    let minutes = predicted_minutes(true);
    assert!(minutes > 10.0, "{minutes}");
}

#[test]
fn a_long_process_that_says_nothing_is_predicted_from_short_runs() {
    let minutes = predicted_minutes(false);
    assert!(minutes > 10.0, "{minutes}");
}

/// Three processes, of which the machine of one has its owner back: nobody begins until the owner has left.
#[test]
fn no_process_begins_before_all_can_begin_at_once() {
    let grid = Grid::start(3);
    let agent = &grid.agents[0];
    grid.agents[2].set_owner(true);
    wait_for("the owner to be seen", || grid.agents[2].ask(&["status"])["activity"] == "suspended");
    let probe = probe_program();
    let probe = probe.to_str().expect("a path of ours");
    let words = ["submit", "--program", probe, "--array", "0-2", "--rounds", "2", "--at-once", "--work", "50"];
    let bag = agent.ask(&[&words[..], &["--", "sleep", "300"]].concat())["id"].as_str().expect("an id").to_owned();
    wait_for("the slots of two machines", || rounds(agent, &bag)["slots_booked"] == 2);
    let said = agent.text(&["bag", "show", &bag]);
    assert!(said.contains("round 1 begins when 3 slots can be had: 2 are booked"), "{said}");
    assert_eq!(agent.ask(&["bag", "show", &bag])["done"].as_u64(), Some(0), "none began alone");
    let run: u64 = grid.agents.iter().filter_map(|agent| agent.ask(&["status"])["tasks_run"].as_u64()).sum();
    assert_eq!(run, 0);
    grid.agents[2].set_owner(false);
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 0, "{}", agent.log());
    let shown = agent.ask(&["bag", "show", &bag]);
    assert_eq!((shown["done"].as_u64(), &shown["rounds"]["slots_booked"]), (Some(6), &Value::Null), "{shown}");
    let machines = agent.ask(&["bag", "show", &bag])["machines_used"].as_u64();
    assert_eq!(machines, Some(3), "each began on a slot of its own");
}

#[test]
fn hundreds_of_processes_go_two_rounds() {
    goes_two_rounds(500);
}

/// As many as the guide promises.
#[test]
#[ignore = "20,000 tasks take ten minutes in a debug build"]
fn ten_thousand_processes_go_two_rounds() {
    goes_two_rounds(10_000);
}

/// Through merges that read the results of all.
fn goes_two_rounds(processes: u64) {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let range = format!("1-{processes}");
    let (evolve, pareto) = (program("evolve"), program("pareto"));
    let words = ["submit", "--program", &evolve, "--merge", &pareto, "--array", &range, "--rounds", "2", "--work", "1"];
    let args = ["--iterations", "1", "--", "--function", "2", "--topology", "regular", "--population", "16"];
    let rest = ["--seed", "{}", "--iterations", "{iterations}"];
    let bag = agent.ask(&[&words[..], &args, &rest].concat())["id"].as_str().expect("an id").to_owned();
    // Thousands take longer than the commands of other tests may.
    let (begin, patience) = (Instant::now(), PATIENCE + Duration::from_millis(200 * processes));
    while agent.ask(&["bag", "show", &bag])["state"] == "running" {
        assert!(begin.elapsed() < patience, "waited in vain for the rounds to end: {}", agent.log());
        std::thread::sleep(Duration::from_secs(1));
    }
    let shown = agent.ask(&["bag", "show", &bag]);
    assert_eq!((shown["done"].as_u64(), shown["failed"].as_u64()), (Some(2 * (processes + 1)), Some(0)));
    assert_eq!(shown["rounds"]["complete"].as_u64(), Some(2));
}

#[test]
fn options_of_rounds_that_make_no_sense_say_what_to_do() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let probe = probe_program();
    let probe = probe.to_str().expect("a path of ours");
    for (options, remedy) in [
        (&["--rounds", "0"][..], "1 or more"),
        (&["--rounds", "2", "--iterations", "0"], "1 or more"),
        (&["--iterations", "5"], "--rounds"),
        (&["--rounds", "2", "--array", "0-999"], "--merge"),
        (&["--rounds", "2", "--until", "x"], "--merge"),
        (&["--rounds", "2", "--replicas", "3"], "--replicas"),
        (&["--rounds", "2", "--merge", "/nowhere.wasm"], "/nowhere.wasm"),
        (&["--rounds", "2", "--fill"], "--iterations"),
        (&["--rounds", "2", "--fill", "--iterations", "9", "--mode", "async"], "leave out --fill"),
        (&["--fill"], "--rounds"),
        (&["--at-once"], "--rounds"),
        (&["--rounds", "2", "--at-once"], "--work"),
        (&["--rounds", "2", "--at-once", "--work", "9", "--mode", "async"], "leave out --at-once"),
        (
            &["--rounds", "2", "--at-once", "--work", "9", "--array", "0-4999", "--merge", probe],
            "4096 processes at most",
        ),
        (&["--rounds", "1000000", "--array", "0-9999", "--merge", probe], "10000 processes in 1000000 rounds"),
    ] {
        let words = [&["submit", "--program", probe], options, &["--", "hello"]].concat();
        let answer = agent.cli(&words);
        assert!(answer.code == 2 && answer.stderr.contains(remedy), "{options:?}: {} {}", answer.code, answer.stderr);
    }
    let many = ["submit", "--program", probe, "--array", "0-9999", "--rounds", "2", "--merge", probe, "--dry-run"];
    let plan = agent.ask(&[&many[..], &["--", "hello"]].concat());
    assert_eq!(plan["tasks"].as_u64(), Some(20_002), "{plan}");
    let silent = ["submit", "--program", probe, "--rounds", "2", "--iterations", "5", "--dry-run", "--", "hello"];
    assert!(agent.cli(&silent).stderr.contains("IDLEWOOD_ITERATIONS"));
}
