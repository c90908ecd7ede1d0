//! What people meet who come to idlewood for the first time: why nothing runs, and in which words.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::harness::{AGENT, Agent, Grid, wait_for};

impl Agent {
    /// What a command prints for people.
    pub(crate) fn text(&self, args: &[&str]) -> String {
        let output =
            Command::new(AGENT).arg("--state-dir").arg(&self.dir).args(args).output().expect("the binary starts");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[test]
fn a_bag_and_a_machine_say_why_nothing_runs() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    agent.set_owner(true);
    let bag = agent.submit_sleeps(4, 200);
    let explained = || agent.ask(&["bag", "explain", &bag]);
    wait_for("the bag to wait for the owner", || explained()["bounds"][0]["code"] == "owner_present");
    let first = &explained()["bounds"][0];
    assert_eq!(first["sentence"], "this machine: owner is present; 4 tasks wait for it");
    assert_eq!((first["machines"].as_u64(), first["tasks"].as_u64()), (Some(1), Some(4)));
    assert_eq!(first["ends"], "the owner leaves");
    assert_eq!(explained()["runs"], false);
    let text = agent.text(&["bag", "explain", &bag]);
    assert!(text.contains("\nnow   this machine: owner is present; 4 tasks wait for it\n"), "{text}");
    assert!(text.contains("ends when: the owner leaves"), "{text}");
    let shown = agent.text(&["bag", "show", &bag]);
    assert!(shown.contains("this machine: owner is present"), "{shown}");
    assert!(!shown.contains("Mop") && !shown.contains("stretch"), "{shown}");
    assert!(agent.text(&["-v", "bag", "show", &bag]).contains(" s/Mop (the time"), "with -v");
    let machine = agent.ask(&["explain"]);
    assert_eq!(machine["bounds"][0]["code"], "owner_present", "{machine}");
    assert!(agent.text(&["explain"]).contains("owner is present: tasks stand still"));

    let mut wait = Command::new(AGENT);
    wait.arg("--state-dir").arg(&agent.dir).args(["bag", "wait", &bag]).stderr(Stdio::piped()).stdout(Stdio::piped());
    let waiting = wait.spawn().expect("the binary starts");
    sleep(Duration::from_secs(4));
    agent.set_owner(false);
    let ended = waiting.wait_with_output().expect("it is a child");
    let (out, error) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(error.contains("waiting: this machine: owner is present"), "{error}");
    assert!(out.contains("succeeded: 4 tasks in ") && out.contains(" on 1 machine, "), "{out}");
    assert!(!out.contains('\x1b') && !error.contains('\x1b') && out.lines().count() == 1, "{out}{error}");
    assert_eq!(explained()["bounds"].as_array().map(Vec::len), Some(0), "it is over");
    assert_eq!(agent.cli(&["bag", "explain", "abc"]).code, 1, "no such bag");
    assert_eq!(agent.cli(&["bag", "explain", "no-name"]).code, 1, "nor a bag of that name");
}

#[test]
fn whoever_stops_waiting_reads_that_the_bag_goes_on() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let bag = agent.submit_sleeps(1, 60_000);
    let mut wait = Command::new(AGENT);
    wait.arg("--state-dir").arg(&agent.dir).args(["bag", "wait", &bag]).stderr(Stdio::piped());
    let waiting = wait.spawn().expect("the binary starts");
    sleep(Duration::from_secs(1));
    let sent = Command::new("kill").args(["-INT", &waiting.id().to_string()]).status();
    assert!(sent.expect("kill exists").success());
    let ended = waiting.wait_with_output().expect("it is a child");
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{error}");
    let id = &bag[..12];
    assert_eq!(error, format!("bag {id} goes on; follow it with: idlewood bag watch {id}\n"));
    agent.ask(&["bag", "cancel", &bag]);
}
