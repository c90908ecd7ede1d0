//! What people meet who come to idlewood for the first time: why nothing runs, and in which words.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{AGENT, Agent, Grid, assert_complete, is_alive, probe_program, wait_for};

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
fn a_bag_says_on_which_machines_nothing_of_it_runs_and_where_in_the_tree_they_are() {
    let mut grid = Grid::prepare_unstarted(4);
    for (number, agent) in grid.agents.iter().enumerate() {
        agent.configure(&format!("[network]\nname = \"desk-{number}\""));
    }
    (0..4).for_each(|number| grid.run(number));
    grid.wait_until_formed(4);
    (1..4).for_each(|number| grid.agents[number].set_owner(true));
    let agent = &grid.agents[0];
    let program = probe_program();
    let held = agent.ask(&["submit", "--hold", "--program", program.to_str().expect("ours"), "--", "hello"]);
    let bag = agent.submit_sleeps(4, 60_000);
    let asked = |bag: &str| agent.ask(&["bag", "explain", bag])["whereabouts"].clone();
    let in_use = |whereabouts: &Value| {
        let of_reason = |excluded: &&Value| excluded["code"] == "in_use";
        whereabouts["excluded"].as_array().and_then(|all| all.iter().find(of_reason)).cloned().unwrap_or_default()
    };
    wait_for("all owners to be noticed", || in_use(&asked(&bag))["machines"] == 3);
    let whereabouts = asked(&bag);
    assert_eq!((&whereabouts["asked"], &whereabouts["grid_machines"]), (&Value::from(4), &Value::from(4)));
    let places = in_use(&whereabouts)["places"].as_array().cloned().expect("places in the tree");
    assert_eq!(places.iter().filter_map(|place| place["machines"].as_u64()).sum::<u64>(), 3, "{places:?}");
    let is_named = |place: &Value| place["name"].as_str().is_some_and(|name| name.starts_with("desk-"));
    assert!(places.iter().all(|place| is_named(place) && place["level"].as_u64() > Some(0)), "{places:?}");
    let text = agent.text(&["bag", "explain", &bag]);
    assert!(text.contains("\nwhere 3 machines, in use by its owner: ") && text.contains("desk-"), "{text}");
    let held = held["id"].as_str().expect("an id");
    assert_eq!(asked(held), Value::Null, "while it is held it does not matter what machines do");
    assert!(!agent.text(&["bag", "explain", held]).contains("where "));
}

#[test]
fn hints_name_the_state_directory_that_is_meant() {
    let grid = Grid::prepare_alone(1);
    let (agent, dir) = (&grid.agents[0], grid.agents[0].dir.display());
    let made = agent.text(&["grid", "create"]);
    assert!(made.contains(&format!("next: idlewood --state-dir {dir} run --listen ")), "{made}");
    let usual =
        Command::new(AGENT).env("IDLEWOOD_STATE_DIR", grid.root.path().join("b")).args(["grid", "create"]).output();
    let made = String::from_utf8(usual.expect("the binary starts").stdout).expect("it is text");
    assert!(made.contains("next: idlewood run --listen "), "{made}");
}

/// A time beside a bag that stands still would be a lie.
#[test]
fn no_end_is_predicted_while_nothing_can_run() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let bag = agent.submit_sleeps(400, 300);
    let shown = || agent.ask(&["bag", "show", &bag]);
    wait_for("an end to be predicted", || shown()["predicted_end"].is_string());
    agent.set_owner(true);
    wait_for("the bag to stand still", || shown()["bounds"][0]["code"] == "owner_present");
    let stands = shown();
    assert_eq!([&stands["predicted_end"], &stands["predicted_end_within_s"]], [&Value::Null; 2], "{stands}");
    assert!(stands["done"].as_u64() > Some(0), "or nothing could have been predicted: {stands}");
    agent.set_owner(false);
    wait_for("an end to be predicted again", || shown()["predicted_end"].is_string());
    agent.ask(&["bag", "cancel", &bag]);
}

#[test]
fn a_grid_is_made_and_joined_while_agents_run() {
    let mut grid = Grid::prepare_alone(2);
    for number in [0, 1] {
        grid.spawn(number, &[]);
        grid.agents[number].wait_until_it_answers();
    }
    let (first, second) = (&grid.agents[0], &grid.agents[1]);
    // What was submitted before goes on.
    let bag = second.submit_sleeps(2, 1500);
    let text = first.text(&["grid", "create", "--name", "lab"]);
    assert!(text.contains("made the grid lab") && text.contains("the agent has started anew"), "{text}");
    let invitation = grid.root.path().join("invitation");
    let invited = first.cli(&["grid", "invite", "--role", "submitter"]);
    assert!(invited.stderr.contains("listens on loopback only"), "who is elsewhere cannot use it: {}", invited.stderr);
    let token = invited.json["token"].as_str().expect("a token").to_owned();
    std::fs::write(&invitation, token).expect("our directory");
    second.ask(&["grid", "join", invitation.to_str().expect("a path of ours")]);
    assert!(grid.agents.iter().all(|agent| is_alive(agent.pid())), "they are the same processes");
    grid.wait_until_formed(2);
    assert_eq!(second.ask(&["bag", "wait", &bag])["state"], "succeeded");
    // A second grid is refused, and nothing starts anew.
    let refused = second.cli(&["grid", "join", invitation.to_str().expect("a path of ours")]);
    assert!(refused.code == 1 && refused.stderr.contains("lab"), "{}", refused.stderr);
}

#[test]
fn an_agent_starts_anew_with_the_settings_of_its_start() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let bag = agent.submit_sleeps(3, 500);
    agent.configure("[limits]\nslots = 3\n");
    assert_eq!(agent.ask(&["status"])["slots"].as_u64(), Some(1), "this setting counts at the start");
    agent.ask(&["restart"]);
    assert_eq!(agent.ask(&["status"])["slots"].as_u64(), Some(3));
    assert_complete(agent, &bag, 3);
    assert!(agent.text(&["restart"]).starts_with("started anew: "));
}

#[test]
fn what_the_agent_keeps_for_nothing_is_cleaned_on_demand() {
    let mut grid = Grid::start(1);
    let agent = &grid.agents[0];
    let bag = agent.submit_sleeps(2, 10);
    assert_complete(agent, &bag, 2);
    let cached = |cleaned: &Value| {
        let found = cleaned["found"].as_array().expect("a list").iter().find(|found| found["what"] == "cached_files");
        found.expect("the agent knows")["files"].as_u64().expect("a number")
    };
    agent.ask(&["clean"]);
    assert_eq!(agent.ask(&["bag", "get", &bag, "--out", &agent.dir.join("out").display().to_string()])["missing"], 0);
    agent.ask(&["bag", "rm", &bag]);
    // Its files are needed by nothing now; the agent lets go of them once the removal is on disk.
    wait_for("its files to be of no use", || cached(&agent.ask(&["clean", "--dry-run"])) > 0);
    let would = agent.ask(&["clean", "--dry-run"]);
    let cleaned = agent.ask(&["clean"]);
    assert_eq!((&cleaned["found"], &would["found"]), (&would["found"], &cleaned["found"]), "it does as it says");
    assert!(cleaned["freed_bytes"].as_u64() > Some(0), "{cleaned}");
    assert_eq!(cached(&agent.ask(&["clean"])), 0);
    // Without an agent: what was compiled, and what tasks left.
    grid.agents[0].kill();
    let agent = &grid.agents[0];
    std::fs::create_dir_all(agent.dir.join("scratch/99/task")).expect("our directory");
    std::fs::write(agent.dir.join("scratch/99/task/file"), "left").expect("our directory");
    let text = agent.text(&["clean"]);
    assert!(text.contains("only a running agent knows") && text.contains(" freed\n"), "{text}");
    let left = |directory: &str| std::fs::read_dir(agent.dir.join(directory)).expect("it is there").count();
    assert_eq!((left("scratch"), left("modules")), (0, 0));
    grid.run(0);
    let again = grid.agents[0].submit_sleeps(2, 10);
    assert_complete(&grid.agents[0], &again, 2);
}

#[test]
fn doctor_asks_other_machines_whether_they_reach_this_one() {
    let grid = Grid::start(2);
    let agent = &grid.agents[0];
    let found = |what: &str| {
        let findings = agent.ask(&["doctor"]);
        let found = findings.as_array().expect("a list").iter().find(|found| found["source"] == what).cloned();
        found.unwrap_or_else(|| panic!("nothing of {what}: {findings}"))
    };
    wait_for("the other machine to dial back", || {
        found("network")["detail"].as_str().is_some_and(|it| it.contains(" tried"))
    });
    assert_eq!(found("clock")["works"], true, "they have one clock");
    // Both on this machine: the address is what the other one sees, the port what this one listens at.
    let port = agent.address().rsplit('/').next().expect("a port").to_owned();
    wait_for("the other machine to dial back again", || {
        let told = found("network");
        told["works"] == true && told["detail"] == format!("reached at 127.0.0.1:{port} by 1 machine of 1 that tried")
    });
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
