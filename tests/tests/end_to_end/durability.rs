//! State on disk: damaged, inspected, and what users do with ended bags.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Agent, Grid, assert_complete, probe_program, wait_for};

/// Flips bits in the middle of a file.
fn damage(path: &std::path::Path) {
    let mut bytes = fs::read(path).expect("a file of the store");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(path, bytes).expect("our directory");
}

fn peer(agent: &Agent) -> String {
    agent.ask(&["status"])["peer"].as_str().expect("a name").to_owned()
}

#[test]
fn a_damaged_store_is_reported_and_set_aside_and_nothing_is_lost() {
    let mut grid = Grid::start(2);
    let bag = grid.agents[0].submit_sleeps(4, 10);
    assert_complete(&grid.agents[0], &bag, 4);
    let name = peer(&grid.agents[0]);
    let refused = grid.agents[0].cli(&["store", "check"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("in use by another agent"), "{}", refused.stderr);

    grid.agents[0].kill();
    let sound = grid.agents[0].ask(&["store", "check"]);
    assert_eq!(
        (sound["sound"].as_bool(), sound["records"]["done"]["count"].as_u64()),
        (Some(true), Some(4)),
        "{sound}"
    );
    let exported = grid.agents[0].ask(&["store", "export"]);
    let ids = exported["records"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|record| record["record"]["Bag"]["bag"]["i"].as_str().map(str::to_owned));
    assert_eq!(ids.collect::<Vec<_>>(), [bag.as_str()]);

    damage(&grid.agents[0].dir.join("store/conf"));
    let damaged = grid.agents[0].cli(&["store", "check"]);
    assert_eq!((damaged.code, damaged.json["sound"].as_bool()), (1, Some(false)), "{damaged:?}");
    assert!(damaged.json["advice"].as_str().is_some_and(|advice| advice.contains("start the agent")), "{damaged:?}");

    let before = grid.agents[0].log().len();
    grid.run(0);
    let agent = &grid.agents[0];
    assert_eq!(peer(agent), name);
    let log = agent.log()[before..].to_owned();
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    let is_clear = errors.len() == 1 && errors[0].contains("set aside") && errors[0].contains("nothing is lost");
    assert!(is_clear, "one clear message: {errors:?}");
    assert_complete(agent, &bag, 4);
    grid.wait_until_formed(2);
    let bag = grid.agents[0].submit_sleeps(4, 10);
    assert_complete(&grid.agents[0], &bag, 4);
    grid.agents[0].terminate();
    let sound = grid.agents[0].ask(&["store", "check"]);
    assert_eq!(sound["set_aside"].as_array().map(Vec::len), Some(1), "{sound}");
}

#[test]
fn bags_of_a_lost_identity_are_given_up_with_a_sentence_and_their_results_stay() {
    let mut grid = Grid::start(1);
    let over = grid.agents[0].submit_sleeps(4, 10);
    assert_complete(&grid.agents[0], &over, 4);
    let name = peer(&grid.agents[0]);
    let open = grid.agents[0].submit_sleeps(4, 100_000);
    grid.agents[0].kill();
    // One file is damaged: nothing changes but the log.
    damage(&grid.agents[0].dir.join("identity.key"));
    grid.run(0);
    assert_eq!(peer(&grid.agents[0]), name);
    assert_eq!(grid.agents[0].ask(&["bag", "show", &open])["state"], "running");
    grid.agents[0].kill();
    for file in ["identity.key", "identity.key.copy"] {
        fs::remove_file(grid.agents[0].dir.join(file)).expect("it is there");
    }
    // Its certificate is for the old key.
    fs::remove_dir_all(grid.agents[0].dir.join("grid")).ok();
    grid.run(0);
    let agent = &grid.agents[0];
    assert_ne!(peer(agent), name);
    let shown = agent.ask(&["bag", "show", &open]);
    assert_eq!((&shown["state"], &shown["given_up_with"]), (&"cancelled".into(), &name.into()));
    assert_eq!(agent.ask(&["bag", "show", &over])["given_up_with"], serde_json::Value::Null);
    let log = agent.log();
    assert!(log.lines().any(|line| line.contains("given up") && line.contains(&open)), "{log}");
    let out = grid.root.path().join("out");
    agent.ask(&["bag", "get", &over, "--out", out.to_str().expect("ours")]);
    assert_eq!(agent.holds(), 0);
}

#[test]
fn a_task_goes_on_from_its_checkpoint_after_its_agent_was_killed() {
    let mut grid = Grid::start(1);
    let program = probe_program();
    let bag = grid.agents[0].ask(&[
        "submit",
        "--program",
        program.to_str().expect("a path of ours"),
        "--work",
        "50",
        "--",
        "steps",
        "30",
        "100",
    ]);
    let id = bag["id"].as_str().expect("an id").to_owned();
    let steps = grid.agents[0].dir.join("checkpoints").join(&id).join("0/steps");
    let done = || fs::metadata(&steps).map_or(0, |file| file.len());
    wait_for("some steps", || done() >= 5);
    grid.agents[0].kill();
    let before = done();
    assert!(before < 30, "it was over too soon");
    grid.run(0);
    let agent = &grid.agents[0];
    // Freezing loses nothing of it either.
    wait_for("more steps", || done() >= before + 5);
    agent.ask(&["pause"]);
    assert!(done() < 30, "it was over too soon");
    agent.ask(&["resume"]);
    assert_complete(agent, &id, 1);
    let log = agent.ask(&["bag", "logs", &id]);
    assert!(log.to_string().contains(&format!("begun at {before}")), "{log}");
    assert!(!steps.exists(), "what is over needs none");
}

#[test]
fn a_task_goes_on_elsewhere_from_its_checkpoint_when_the_owner_stays() {
    let grid = Grid::start(3);
    grid.agents[1].configure("[owner]\nvacate = \"1s\"\n");
    for agent in [0, 2] {
        grid.agents[agent].ask(&["pause"]);
    }
    // Tasks that arrive before the root knows of the pause may go to a paused machine, and wait there.
    wait_for("the grid to count on one machine", || {
        let status = grid.agents[0].ask(&["status"]);
        let [all, one] = ["grid_speed_mops", "speed_mops"].map(|key| status[key].as_f64().expect("a number"));
        all > 0.0 && all < 1.5 * one
    });
    let program = probe_program();
    let program = program.to_str().expect("a path of ours");
    let submit = ["submit", "--program", program, "--work", "50", "--max-retries", "0", "--", "steps", "100", "100"];
    let id = grid.agents[0].ask(&submit)["id"].as_str().expect("an id").to_owned();
    let checkpoint = grid.agents[1].dir.join("checkpoints").join(&id).join("0");
    let done = || fs::metadata(checkpoint.join("steps")).map_or(0, |file| file.len());
    wait_for("some steps", || done() >= 5);
    grid.agents[2].ask(&["resume"]);
    grid.agents[1].set_owner(true);
    wait_for("the task to go back", || !checkpoint.exists());
    assert_complete(&grid.agents[0], &id, 1);
    let logs = grid.agents[0].ask(&["bag", "logs", &id]).to_string();
    let begun = logs.split("begun at ").nth(1).and_then(|rest| rest.split('\\').next()?.parse::<u64>().ok());
    assert!(begun.is_some_and(|begun| (5..100).contains(&begun)), "{logs}");
    let out = grid.root.path().join("out");
    grid.agents[0].ask(&["bag", "get", &id, "--out", out.to_str().expect("ours")]);
    let results = fs::read_to_string(out.join("results.json")).expect("they were fetched");
    assert!(results.contains(&peer(&grid.agents[2])), "the other machine did the rest: {results}");
    wait_for("nobody to hold anything", || grid.agents.iter().all(|agent| agent.holds() == 0));
    for agent in [0, 2] {
        wait_for("all checkpoints to go", || {
            fs::read_dir(grid.agents[agent].dir.join("checkpoints").join(&id)).map_or(0, Iterator::count) == 0
        });
    }
}

#[test]
fn a_worker_that_dies_is_no_failure_the_first_time_and_failed_tasks_run_again_on_demand() {
    let mut grid = Grid::start(1);
    let program = probe_program();
    let bag = grid.agents[0].ask(&[
        "submit",
        "--program",
        program.to_str().expect("a path of ours"),
        "--array",
        "0-1",
        "--work",
        "50",
        "--max-retries",
        "0",
        "--",
        "sleep",
        "2000",
    ]);
    let id = bag["id"].as_str().expect("an id").to_owned();
    let runs = |agent: &Agent, attempt: u64| {
        let running = agent.ask(&["status"])["running"].clone();
        let is_it = |task: &serde_json::Value| task["index"] == attempt && task["bag"].as_str() == Some(&id);
        let ran = running.as_array().is_some_and(|tasks| tasks.iter().any(is_it));
        ran.then(|| agent.workers()).filter(|workers| !workers.is_empty())
    };
    let kill_worker_of = |agent: &Agent, index: u64| {
        let mut workers = Vec::new();
        wait_for("the task to run", || {
            workers = runs(agent, index).unwrap_or_default();
            !workers.is_empty()
        });
        let killed = Command::new("kill").arg("-KILL").args(workers.iter().map(u32::to_string)).status();
        assert!(killed.expect("kill exists").success());
    };
    kill_worker_of(&grid.agents[0], 0);
    wait_for("the failure to be counted", || grid.agents[0].ask(&["bag", "show", &id])["unplaced"].as_u64() == Some(1));
    // The count outlives the agent once it is on disk: before anything that is written and answered later.
    grid.agents[0].ask(&["pause"]);
    let other = grid.agents[0].submit_sleeps(1, 0);
    grid.agents[0].ask(&["bag", "cancel", &other]);
    grid.agents[0].kill();
    grid.run(0);
    grid.agents[0].ask(&["resume"]);
    grid.agents[0].ask(&["bag", "rm", &other]);
    kill_worker_of(&grid.agents[0], 0);
    assert_eq!(grid.agents[0].cli(&["bag", "wait", &id]).code, 3);
    let agent = &grid.agents[0];
    let shown = agent.ask(&["bag", "show", &id]);
    assert_eq!((shown["failed"].as_u64(), shown["done"].as_u64()), (Some(1), Some(1)), "{shown}");
    let out = grid.root.path().join("failed");
    agent.cli(&["bag", "get", &id, "--out", out.to_str().expect("a path of ours")]);

    assert_eq!(agent.cli(&["bag", "rerun", &id]).code, 2, "what to run again must be said");
    let again = agent.ask(&["bag", "rerun", &id, "--failed"]);
    assert_eq!((again["state"].as_str(), again["failed"].as_u64()), (Some("running"), Some(0)), "{again}");
    assert_eq!(agent.cli(&["bag", "rm", &id]).code, 1, "it is not over");
    assert_complete(agent, &id, 2);
    assert_eq!(agent.cli(&["bag", "rerun", &id, "--failed"]).code, 1, "none failed");

    agent.ask(&["bag", "rm", &id]);
    assert_eq!(agent.cli(&["bag", "show", &id]).code, 1);
    grid.agents[0].terminate();
    let left = grid.agents[0].ask(&["store", "check"]);
    assert_eq!(
        left["records"].as_object().map(|records| records.keys().cloned().collect::<Vec<_>>()),
        Some(vec!["incarnation".to_owned()]),
        "{left}"
    );
}

#[test]
fn a_task_that_kills_workers_on_three_machines_has_failed_with_its_output() {
    let grid = Grid::start(4);
    let program = probe_program();
    let program = program.to_str().expect("a path of ours");
    // Many tries, so that only the number of machines ends it.
    // And so much work that it is not taken to run for too long, and copied to a second machine.
    let submit =
        ["submit", "--program", program, "--work", "10000000", "--max-retries", "50", "--", "steps", "3000", "100"];
    let id = grid.agents[0].ask(&submit)["id"].as_str().expect("an id").to_owned();
    let mut machines = BTreeSet::new();
    wait_for("the task to fail", || {
        for (number, agent) in grid.agents.iter().enumerate() {
            let steps = agent.dir.join("checkpoints").join(&id).join("0/steps");
            let runs = agent.ask(&["status"])["running"].as_array().is_some_and(|tasks| !tasks.is_empty());
            let workers = agent.workers();
            if runs && steps.exists() && !workers.is_empty() {
                let killed = Command::new("kill").arg("-KILL").args(workers.iter().map(u32::to_string)).status();
                // A worker that has just ended by itself is no error.
                killed.expect("kill exists");
                machines.insert(number);
                // The next try is on another machine.
                agent.ask(&["pause"]);
            }
        }
        !grid.agents[0].ask(&["bag", "show", &id])["finished"].is_null()
    });
    assert_eq!(machines.len(), 3, "it had run on {machines:?}");
    let shown = grid.agents[0].ask(&["bag", "show", &id]);
    assert_eq!((shown["state"].as_str(), shown["failed"].as_u64()), (Some("failed"), Some(1)), "{shown}");
    let said = grid.agents[0].ask(&["bag", "logs", &id, "--stderr"]).to_string();
    assert!(said.contains("from 0 on") || said.contains("from 1 on"), "{said}");
    let out = grid.root.path().join("out");
    grid.agents[0].ask(&["bag", "get", &id, "--out", out.to_str().expect("ours")]);
    let results = fs::read_to_string(out.join("results.json")).expect("they were fetched");
    assert!(results.contains("the worker process was killed (signal 9)"), "{results}");
}

#[test]
fn a_task_whose_leftovers_are_no_outputs_is_reported() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let program = probe_program();
    let input = grid.root.path().join("given");
    fs::write(&input, "text").expect("our directory");
    let (program, input) = (program.to_str().expect("ours"), input.to_str().expect("ours"));
    // It creates a link.
    let submit = ["submit", "--program", program, "--work", "50", "--input", input, "--", "meddle", "given"];
    let id = agent.ask(&submit)["id"].as_str().expect("an id").to_owned();
    assert_complete(agent, &id, 1);
    let out = grid.root.path().join("out");
    agent.ask(&["bag", "get", &id, "--out", out.to_str().expect("ours")]);
    let results = fs::read_to_string(out.join("results.json")).expect("they were fetched");
    let results: serde_json::Value = serde_json::from_str(&results).expect("JSON");
    assert_eq!(results[0]["left_out"], serde_json::json!(["out"]), "{results}");
}

/// A text repeated until it is large enough for a blob.
fn large(text: &str) -> String {
    text.repeat(2000)
}

/// Damaged while its agent, which has verified it already, runs; and then removed.
#[test]
fn a_lost_output_does_not_prevent_access_to_the_others() {
    let mut grid = Grid::start(1);
    let program = probe_program();
    let hello = ["submit", "--program", program.to_str().expect("ours"), "--work", "50", "--", "hello", "{}", ":::"];
    let names = ["ada", "grace", "barbara"].map(large);
    let id = grid.agents[0].ask(&[&hello[..], &names.each_ref().map(String::as_str)].concat())["id"].clone();
    let id = id.as_str().expect("an id");
    assert_complete(&grid.agents[0], id, 3);
    let out = grid.root.path().join("out");
    let get = ["bag", "get", id, "--out", out.to_str().expect("ours")];
    assert_eq!(grid.agents[0].ask(&get)["tasks"].as_u64(), Some(3));
    let results = || -> serde_json::Value {
        let text = fs::read_to_string(out.join("results.json")).expect("it was fetched");
        serde_json::from_str(&text).expect("JSON")
    };
    let output = results()[1]["output"].as_str().expect("a hash").to_owned();
    let blob = grid.agents[0].dir.join("blobs").join(&output[..2]).join(&output[2..]);

    damage(&blob);
    let answer = grid.agents[0].cli(&get);
    assert_eq!((answer.code, answer.json["tasks"].as_u64()), (1, Some(2)), "{answer:?}");
    assert!(answer.stderr.contains("the output of task 1 is damaged"), "{answer:?}");
    // Outputs fetched before are still there.
    let indices = || {
        let results = results();
        results.as_array().expect("a list").iter().map(|task| task["index"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(indices(), [Some(0), Some(1), Some(2)]);
    fs::remove_file(out.join("results.json")).expect("it was there");
    grid.agents[0].cli(&get);
    assert_eq!(indices(), [Some(0), Some(2)]);

    grid.agents[0].terminate();
    fs::remove_file(&blob).expect("it was there");
    grid.run(0);
    let answer = grid.agents[0].cli(&["bag", "logs", id]);
    assert_eq!((answer.code, answer.json.as_array().map(Vec::len)), (1, Some(2)), "{answer:?}");
    assert!(answer.stderr.contains("the output of task 1 cannot be fetched"), "{answer:?}");
}

/// The manifest has its name and its program.
#[test]
fn a_bag_is_restored_once_its_manifest_can_be_read_again() {
    let mut grid = Grid::start(1);
    grid.agents[0].ask(&["pause"]);
    let id = grid.agents[0].submit_sleeps(2, 10);
    grid.agents[0].terminate();
    let manifest = grid.agents[0].dir.join("blobs").join(&id[..2]).join(&id[2..]);
    let aside = grid.root.path().join("aside");
    fs::rename(&manifest, &aside).expect("our directory");
    // Root can read any file, but not a link to itself.
    std::os::unix::fs::symlink(&manifest, &manifest).expect("our directory");
    grid.run(0);
    let refused = grid.agents[0].cli(&["bag", "show", &id]);
    assert!(refused.code == 1 && refused.stderr.contains("cannot be read just now"), "{refused:?}");
    fs::rename(&aside, &manifest).expect("our directory");
    wait_for("the bag to be known", || grid.agents[0].cli(&["bag", "show", &id]).code == 0);
    grid.agents[0].ask(&["resume"]);
    assert_complete(&grid.agents[0], &id, 2);
}

/// On the machine that has run the tasks itself, and on one whose results come from another; files are damaged there
/// without the agent's knowledge.
#[test]
fn lost_outputs_are_made_again_on_request() {
    let grid = Grid::start(2);
    let program = probe_program();
    let submit =
        ["submit", "--program", program.to_str().expect("ours"), "--work", "50", "--", "write", "f", "{}", ":::"];
    for runs in [0, 1] {
        let (agent, other) = (&grid.agents[0], &grid.agents[1 - runs]);
        other.ask(&["pause"]);
        let names = ["ada", "grace", "barbara", "edith"].map(large);
        let id = agent.ask(&[&submit[..], &names.each_ref().map(String::as_str)].concat())["id"].clone();
        let id = id.as_str().expect("an id");
        assert_complete(agent, id, 4);
        let out = grid.root.path().join(format!("out-{runs}"));
        let get = ["bag", "get", id, "--out", out.to_str().expect("ours")];
        agent.ask(&get);
        let results = fs::read_to_string(out.join("results.json")).expect("it was fetched");
        let results: serde_json::Value = serde_json::from_str(&results).expect("JSON");
        let blob = |index: usize| {
            let output = results[index]["output"].as_str().expect("a hash");
            agent.dir.join("blobs").join(&output[..2]).join(&output[2..])
        };
        damage(&blob(1));
        fs::remove_file(blob(2)).expect("it was there");
        fs::remove_dir_all(&out).expect("ours");
        let answer = agent.cli(&get);
        let advice = format!("idlewood bag rerun {} --index 1-2", &id[..12]);
        assert!(answer.code == 1 && answer.stderr.contains(&advice), "{answer:?}");

        assert_eq!(agent.cli(&["bag", "rerun", id, "--index", "1-4"]).code, 2, "it has no task 4");
        assert_eq!(agent.cli(&["bag", "rerun", id, "--index", "1", "--failed"]).code, 2);
        assert_eq!(agent.cli(&["bag", "rerun", id, "--failed"]).code, 1, "none has failed");
        let again = agent.ask(&["bag", "rerun", id, "--index", "1-2"]);
        assert_eq!((again["state"].as_str(), again["done"].as_u64()), (Some("running"), Some(2)), "{again}");
        assert_complete(agent, id, 4);
        agent.ask(&get);
        let files = [1, 2].map(|index: u64| fs::read_to_string(out.join(index.to_string()).join("outputs/f")));
        assert_eq!(files.map(|text| text.expect("it is there")), ["grace", "barbara"].map(large));
        other.ask(&["resume"]);
    }
}

/// A file system for one agent, mounted until this is dropped.
pub(crate) struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

/// `None` if this user may not mount one.
pub(crate) fn small_disk(dir: &Path) -> Option<SmallDisk> {
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=96m,mode=700", "tmpfs"]).arg(dir).output();
    let is_mounted = mount.is_ok_and(|mount| mount.status.success());
    if !is_mounted {
        idlewood_testing::missing("this user may not mount a file system");
    }
    is_mounted.then(|| SmallDisk(dir.to_owned()))
}

#[test]
fn on_a_full_disk_submissions_are_refused_and_acknowledged_bags_complete() {
    let mut grid = Grid::prepare_one("");
    let Some(_disk) = small_disk(&grid.agents[0].dir) else {
        return;
    };
    grid.run(0);
    let bag = grid.agents[0].submit_sleeps(20, 300);
    wait_for("a task to be done", || grid.agents[0].ask(&["bag", "show", &bag])["done"].as_u64() >= Some(1));
    let filler = grid.agents[0].dir.join("filler");
    let full = fs::write(&filler, vec![0; 200 << 20]).expect_err("it does not fit");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let agent = &grid.agents[0];
    wait_for("the agent to say so", || agent.ask(&["status"])["reason_code"] == "disk_full");
    // There is room for its program and its manifest, and none for the store.
    let length = fs::metadata(&filler).expect("our file").len();
    let shorten = fs::OpenOptions::new().write(true).open(&filler).and_then(|file| file.set_len(length - (6 << 20)));
    shorten.expect("less of it");
    let program = probe_program();
    for _ in 0..5 {
        let refused = agent.cli(&["submit", "--program", program.to_str().expect("ours"), "--", "exit", "0"]);
        assert_eq!(refused.code, 1);
        assert!(refused.stderr.contains("free some space"), "{}", refused.stderr);
    }
    assert_eq!(agent.log().matches("could not write").count(), 1, "{}", agent.log());
    let listed = || agent.ask(&["bag", "list"]).as_array().map(Vec::len);
    wait_for("what was refused to be forgotten", || listed() == Some(1));
    // It may even be killed meanwhile.
    grid.agents[0].kill();
    fs::remove_file(&filler).expect("our directory");
    grid.run(0);
    let agent = &grid.agents[0];
    assert_complete(agent, &bag, 20);
    assert_eq!(agent.ask(&["bag", "list"]).as_array().map(Vec::len), Some(1), "what was refused is not there");
    grid.agents[0].terminate();
}

/// More results of another machine arrive than may wait for the disk: then the agent takes nothing more from the grid.
#[test]
fn an_agent_answers_while_nothing_more_can_wait_for_its_disk() {
    let mut grid = Grid::prepare_unstarted(2);
    let Some(_disk) = small_disk(&grid.agents[0].dir) else {
        return;
    };
    (0..2).for_each(|number| grid.run(number));
    grid.wait_until_formed(2);
    // Only the other agent runs tasks.
    grid.agents[0].ask(&["pause"]);
    let over = grid.agents[0].submit_sleeps(1, 0);
    assert_complete(&grid.agents[0], &over, 1);
    let bag = grid.agents[0].submit_sleeps(2000, 20);
    wait_for("a task to be done", || grid.agents[0].ask(&["bag", "show", &bag])["done"].as_u64() >= Some(1));
    let filler = grid.agents[0].dir.join("filler");
    fs::write(&filler, vec![0; 200 << 20]).expect_err("it does not fit");
    // Room for outputs, and none for the store.
    let length = fs::metadata(&filler).expect("our file").len();
    let shorten = fs::OpenOptions::new().write(true).open(&filler).and_then(|file| file.set_len(length - (6 << 20)));
    shorten.expect("less of it");
    let agent = &grid.agents[0];
    let done = || agent.ask(&["bag", "show", &bag])["done"].as_u64();
    let mut before = None;
    wait_for("nothing more to be taken", || {
        std::thread::sleep(std::time::Duration::from_secs(2));
        let now = done();
        std::mem::replace(&mut before, now) == now
    });
    // Results that are not on disk do not count.
    assert!((1..2000).contains(&before.expect("it is told")), "{before:?} are done");
    agent.ask(&["status"]);
    assert_eq!(agent.ask(&["bag", "logs", &over]).as_array().map(Vec::len), Some(1));
    agent.ask(&["bag", "rm", &over]);
    agent.ask(&["bag", "cancel", &bag]);
    let listed = agent.ask(&["bag", "list"]);
    assert_eq!(
        (listed.as_array().map(Vec::len), listed[0]["state"].as_str()),
        (Some(1), Some("cancelled")),
        "{listed}"
    );
    // It is killed as soon as this is reported, its disk is full to the last byte, and it starts on it.
    grid.agents[0].kill();
    let more = grid.agents[0].dir.join("more");
    fs::write(&more, vec![0; 200 << 20]).expect_err("it does not fit");
    grid.run(0);
    let agent = &grid.agents[0];
    let listed = agent.ask(&["bag", "list"]);
    assert_eq!(
        (listed.as_array().map(Vec::len), listed[0]["state"].as_str()),
        (Some(1), Some("cancelled")),
        "what was ordered was written: {listed}"
    );
    assert_eq!(agent.ask(&["status"])["reason_code"], "paused_by_user");
    wait_for("nobody to hold anything", || grid.agents.iter().all(|agent| agent.holds() == 0));
    agent.ask(&["bag", "rm", &bag]);
    assert_eq!(agent.ask(&["bag", "list"]).as_array().map(Vec::len), Some(0));
    [&filler, &more].into_iter().for_each(|filler| fs::remove_file(filler).expect("our directory"));
    let program = probe_program();
    let submit = ["submit", "--program", program.to_str().expect("ours"), "--", "exit", "0"];
    wait_for("bags to be taken again", || agent.cli(&submit).code == 0);
    grid.agents[0].terminate();
    grid.run(0);
    assert_eq!(grid.agents[0].ask(&["bag", "list"]).as_array().map(Vec::len), Some(1), "what was removed is gone");
}

/// A machine whose disk is filled by others gives away tasks that have not begun, and results of ended tasks arrive.
#[test]
fn tasks_go_elsewhere_from_a_machine_whose_disk_is_full() {
    let mut grid = Grid::prepare_unstarted(2);
    let Some(_disk) = small_disk(&grid.agents[1].dir) else {
        return;
    };
    (0..2).for_each(|number| grid.run(number));
    grid.wait_until_formed(2);
    let bag = grid.agents[0].submit_sleeps(60, 300);
    wait_for("tasks on both machines", || grid.agents.iter().all(|agent| agent.holds() > 4));
    let filler = grid.agents[1].dir.join("filler");
    fs::write(&filler, vec![0; 200 << 20]).expect_err("it does not fit");
    wait_for("the agent to say so", || grid.agents[1].ask(&["status"])["reason_code"] == "disk_full");
    // Killed while its disk is full, it starts on it and delivers its results.
    grid.agents[1].kill();
    grid.run(1);
    assert_complete(&grid.agents[0], &bag, 60);
    wait_for("nobody to hold anything", || grid.agents.iter().all(|agent| agent.holds() == 0));
    let shown = grid.agents[0].ask(&["bag", "show", &bag]);
    assert_eq!(shown["duplicates"], 0, "{shown}");
    fs::remove_file(&filler).expect("our directory");
    wait_for("it to take work again", || grid.agents[1].ask(&["status"])["reason_code"].is_null());
}

#[test]
fn a_bag_outlives_the_machine_that_submitted_it() {
    let mut grid = Grid::start(3);
    let bag = grid.agents[0].submit_sleeps(40, 400);
    let shown = |agent: &Agent| agent.ask(&["bag", "show", &bag]);
    wait_for("some tasks to be done", || shown(&grid.agents[0])["done"].as_u64() >= Some(3));
    let (ticket, into) = (grid.root.path().join("ticket"), grid.root.path().join("adopted"));
    let (ticket, into) = (ticket.to_str().expect("ours"), into.to_str().expect("ours"));
    let made = grid.agents[0].ask(&["bag", "ticket", &bag, "--results", "--to", ticket]);
    let had = made["results"].as_u64().expect("a number");
    assert!(had >= 1, "{made}");
    let name = peer(&grid.agents[0]);
    grid.agents[0].kill();
    fs::remove_dir_all(&grid.agents[0].dir).expect("our directory");

    let adopted = grid.agents[1].ask(&["bag", "adopt", ticket, "--into", into]);
    assert_eq!(adopted["peer"].as_str(), Some(name.as_str()));
    assert_eq!(grid.agents[1].cli(&["bag", "adopt", ticket, "--into", into]).code, 1, "it is there already");
    grid.agents[0].dir = into.into();
    grid.run(0);
    let agent = &grid.agents[0];
    assert!(shown(agent)["done"].as_u64() >= Some(had), "what the ticket had is not done again");
    assert_complete(agent, &bag, 40);
    let out = grid.root.path().join("after");
    agent.ask(&["bag", "get", &bag, "--out", out.to_str().expect("ours")]);
    assert!((0..40).all(|index| out.join(index.to_string()).join("exit_code").exists()));
    wait_for("nobody to hold anything", || grid.agents.iter().all(|agent| agent.holds() == 0));
    assert_eq!(agent.cli(&["bag", "ticket", &bag, "--to", ticket]).code, 1, "it is over");
}

/// Submits tasks whose outputs take about 300 kB each, and all differ; returns the bag's id.
fn submit_large(agent: &Agent, tasks: usize) -> String {
    let program = probe_program();
    let array = format!("0-{}", tasks - 1);
    let bag = agent.ask(&[
        "submit",
        "--program",
        program.to_str().expect("a path of ours"),
        "--array",
        &array,
        "--work",
        "50",
        "--",
        "flood",
        "30{index}000",
    ]);
    bag["id"].as_str().expect("an id").to_owned()
}

#[test]
fn without_room_for_results_no_task_begins_and_the_agent_says_so() {
    let mut grid = Grid::prepare_one("[limits]\ndisk = \"2M\"\n");
    grid.run(0);
    let agent = &grid.agents[0];
    let id = submit_large(agent, 9);
    // The reason is there as soon as the tasks that run may fill the disk; those that ran leave their outputs. No task begins with
    // less than 1 MiB free, so that more than that is kept at the end, and how much more depends on how many ran at once.
    wait_for("the disk to be full", || {
        let status = agent.ask(&["status"]);
        status["reason_code"] == "disk_full" && status["disk"]["kept_bytes"].as_u64() > Some(1 << 20)
    });
    let found = agent.ask(&["doctor"]);
    let disk =
        found.as_array().expect("a list").iter().find(|finding| finding["source"] == "disk").expect("it is told");
    assert_eq!(disk["works"], false);
    assert!(disk["advice"].as_str().is_some_and(|advice| advice.contains("limits.disk")), "{disk}");
    let large = grid.root.path().join("large");
    fs::write(&large, vec![7; 1 << 20]).expect("our directory");
    let program = probe_program();
    let refused = agent.cli(&[
        "submit",
        "--program",
        program.to_str().expect("a path of ours"),
        "--input",
        large.to_str().expect("ours"),
        "--",
        "exit",
        "0",
    ]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("raise the disk quota"), "{}", refused.stderr);
    let shown = agent.ask(&["bag", "show", &id]);
    assert!(shown["done"].as_u64().is_some_and(|done| (1..9).contains(&done)), "{shown}");
    agent.configure("[limits]\ndisk = \"20M\"\n");
    assert_complete(agent, &id, 9);
}

#[test]
fn results_stay_with_their_executor_while_the_submitter_has_no_room() {
    // More than are fetched at a time.
    const TASKS: usize = 24;
    let grid = Grid::start(2);
    grid.agents[0].configure("[limits]\ndisk = \"1M\"\n");
    wait_for("the settings to count", || {
        grid.agents[0].ask(&["status"])["disk"]["limit_bytes"].as_u64() == Some(1 << 20)
    });
    let program = probe_program();
    let program = program.to_str().expect("a path of ours");
    // Only the other agent runs tasks.
    grid.agents[0].ask(&["pause"]);
    let id = submit_large(&grid.agents[0], TASKS);
    let untaken = |agent: &Agent| {
        let held = agent.ask(&["status"])["held"].clone();
        let held = held.as_array().expect("a list").iter().filter(|held| held["bag"].as_str() == Some(&id));
        held.map(|held| held["unacknowledged"].as_u64().unwrap_or(0)).sum::<u64>()
    };
    let done = |grid: &Grid| grid.agents[0].ask(&["bag", "show", &id])["done"].as_u64().unwrap_or(0);
    wait_for("all to be run of which some cannot be kept here", || {
        let untaken = untaken(&grid.agents[1]);
        untaken > 0 && untaken + done(&grid) == TASKS as u64
    });
    // Longer than five failed tries to fetch, after which an output would count as lost.
    std::thread::sleep(std::time::Duration::from_secs(10));
    assert!(done(&grid) < TASKS as u64 - 16);
    // Results for which there is room overtake them.
    let small = grid.agents[0].ask(&["submit", "--program", program, "--work", "50", "--", "flood", "1000"]);
    assert_complete(&grid.agents[0], small["id"].as_str().expect("an id"), 1);
    assert!(done(&grid) < TASKS as u64 - 16);
    grid.agents[0].configure("[limits]\ndisk = \"100M\"\n");
    assert_complete(&grid.agents[0], &id, TASKS);
    let shown = grid.agents[0].ask(&["bag", "show", &id]);
    // A result may be sent twice if its acknowledgement takes long; no task is run twice.
    assert!(
        shown["reissued"].as_u64().is_some_and(|reissued| reissued < TASKS as u64),
        "nothing that was done: {shown}"
    );
}
