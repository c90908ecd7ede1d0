//! The machines of a grid as its users see them, a user's own order of bags, and a machine that leaves while its agent runs.

use serde_json::Value;

use crate::harness::{Agent, Grid, command, wait_for};

fn machines(agent: &Agent, args: &[&str]) -> Vec<Value> {
    let all = agent.ask(&[&["machines"], args].concat());
    assert_eq!((&all["next"], &all["busy"]), (&Value::Null, &Value::Bool(false)), "{all}");
    all["machines"].as_array().expect("a list").clone()
}

/// The state and the code of the reason of the machine of this name.
fn state(agent: &Agent, name: &str) -> (String, Option<String>) {
    let all = machines(agent, &["--name", name]);
    let [machine] = &all[..] else { panic!("{name}: {all:?}") };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    (text(&machine["state"]).expect("a state"), text(&machine["reason_code"]))
}

#[test]
fn all_machines_are_listed_by_name_with_what_they_do_and_what_they_have_of_mine() {
    let mut grid = Grid::prepare_unstarted(4);
    for (number, agent) in grid.agents.iter().enumerate() {
        agent.configure(&format!("[network]\nname = \"desk-{number}\""));
    }
    (0..4).for_each(|number| grid.run(number));
    grid.wait_until_formed(4);
    let ids: Vec<Value> = grid.agents.iter().map(|agent| agent.ask(&["status"])["peer"].clone()).collect();
    for (number, agent) in grid.agents.iter().enumerate() {
        let mut all = machines(agent, &[]);
        all.sort_by_key(|machine| machine["name"].to_string());
        let names: Vec<&str> = all.iter().filter_map(|machine| machine["name"].as_str()).collect();
        assert_eq!(names, ["desk-0", "desk-1", "desk-2", "desk-3"]);
        assert!(all.iter().zip(&ids).all(|(machine, id)| machine["peer"] == *id), "{all:?}");
        let own: Vec<bool> = all.iter().map(|machine| machine["this_machine"] == true).collect();
        assert!(own.iter().enumerate().all(|(other, is_own)| *is_own == (other == number)), "{own:?}");
        assert!(all.iter().all(|machine| machine["version"] == env!("CARGO_PKG_VERSION") && machine["slots"] == 1));
    }

    // A part of them, and the rest.
    let part = grid.agents[0].ask(&["machines", "--limit", "3"]);
    let next = part["next"].as_str().expect("there is one more");
    let rest = machines(&grid.agents[0], &["--after", next]);
    let both: Vec<&Value> =
        part["machines"].as_array().expect("a list").iter().chain(&rest).map(|machine| &machine["peer"]).collect();
    assert!(both.len() == 4 && ids.iter().all(|id| both.contains(&id)), "{both:?}");

    // What they do, and why.
    grid.agents[1].ask(&["pause"]);
    let paused = ("suspended".to_owned(), Some("paused_by_user".to_owned()));
    wait_for("the pause to be seen", || state(&grid.agents[3], "desk-1") == paused);
    grid.agents[2].set_owner(true);
    let in_use = ("suspended".to_owned(), Some("in_use".to_owned()));
    wait_for("the owner to be noticed", || state(&grid.agents[3], "desk-2") == in_use);
    assert_eq!(machines(&grid.agents[0], &["--state", "suspended"]).len(), 2);
    assert_eq!(machines(&grid.agents[0], &["--state", "idle", "--name", "desk-[01]"]).len(), 1);
    let wrong = grid.agents[0].cli(&["machines", "--state", "asleep"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("idle, working, suspended or silent"), "{}", wrong.stderr);
    let wrong = grid.agents[0].cli(&["machines", "--name", "desk-["]);
    assert!(wrong.code == 2 && wrong.stderr.contains("lab-*"), "{}", wrong.stderr);

    // Tasks of mine.
    let bag = grid.agents[0].submit_sleeps(8, 60_000);
    wait_for("tasks to be on two machines", || {
        let all = machines(&grid.agents[0], &[]);
        let with = |machine: &&Value| machine["tasks"].as_u64() > Some(0) && machine["state"] == "working";
        all.iter().filter(with).count() == 2
    });
    assert!(machines(&grid.agents[3], &[]).iter().all(|machine| machine["tasks"] == 0), "they are none of its own");
    grid.agents[0].ask(&["bag", "cancel", &bag]);

    // One that is killed is named, or counted, within the time limit, and soon not missed.
    grid.agents[1].kill();
    let all = grid.agents[0].ask(&["machines"]);
    let silent =
        all["machines"].as_array().expect("a list").iter().filter(|machine| machine["state"] == "silent").count();
    let listed = all["machines"].as_array().expect("a list").len() as u64;
    assert!(
        all["machines"].as_array().is_some_and(|all| all.iter().any(|machine| machine["this_machine"] == true)),
        "{all}"
    );
    assert!(silent <= 1 && listed + all["unreached"].as_u64().expect("a number") >= 3, "{all}");
    wait_for("the tree to be whole again", || {
        let all = grid.agents[0].ask(&["machines"]);
        all["machines"].as_array().is_some_and(|all| all.len() == 3) && all["unreached"] == 0
    });
}

/// On a machine with one slot: what is submitted later, with a higher priority, begins first.
#[test]
fn a_user_orders_bags_by_priority() {
    let grid = Grid::start(1);
    let agent = &grid.agents[0];
    let submit = |name: &str, priority: &str| {
        let probe = crate::harness::probe_program();
        let probe = probe.to_str().expect("a path of ours");
        let tasks = ["--array", "0-14", "--work", "100"];
        let head = ["submit", "--program", probe, "--name", name, "--priority", priority];
        agent.ask(&[&head, &tasks[..], &["--", "sleep", "300"]].concat())
    };
    assert_eq!(submit("first", "0")["priority"], 0);
    assert_eq!(submit("second", "-3")["priority"], -3);
    assert_eq!(agent.ask(&["bag", "priority", "second", "5"])["priority"], 5);
    let ended = |name: &str| {
        let tasks = agent.ask(&["bag", "tasks", name]);
        let of = |task: &Value| task["finished"].as_str().map(str::to_owned);
        tasks["tasks"].as_array().expect("a list").iter().filter_map(of).max()
    };
    for name in ["second", "first"] {
        agent.ask(&["bag", "wait", name]);
    }
    assert!(
        ended("second").is_some() && ended("second") < ended("first"),
        "{:?} and {:?}",
        ended("second"),
        ended("first")
    );
    let refused = agent.cli(&["bag", "priority", "first", "1"]);
    assert!(refused.code == 1 && refused.stderr.contains("over already"), "{}", refused.stderr);
    let refused = agent.cli(&["submit", "--program", "x.wasm", "--priority", "5000"]);
    assert!(refused.code == 2 && refused.stderr.contains("from -1000 to 1000"), "{}", refused.stderr);
}

#[test]
fn a_machine_leaves_its_grid_while_its_agent_runs() {
    let grid = Grid::start(2);
    let [first, second] = [&grid.agents[0], &grid.agents[1]];
    let pid = second.pid();
    let left = second.ask(&["grid", "leave"]);
    assert_eq!((&left["left"], &left["grid_key"]), (&Value::Bool(true), &Value::Null));
    let status = second.ask(&["status"]);
    assert_eq!((&status["grid"], second.pid()), (&Value::Null, pid), "the same process, without a grid");
    wait_for("the other to be alone", || first.ask(&["status"])["grid_machines"] == 1);
    let again = second.cli(&["grid", "leave"]);
    assert!(again.code == 1 && again.stderr.contains("no grid"), "{}", again.stderr);
    // The machine that made the grid keeps its key.
    let left = first.ask(&["grid", "leave"]);
    let key = left["grid_key"].as_str().expect("it made the grid");
    assert!(std::fs::metadata(key).is_ok(), "{key}");
    assert_eq!(first.ask(&["status"])["grid"], Value::Null);
}

#[test]
fn the_control_api_is_printed_as_openapi() {
    let printed = command(&["schema", "--openapi"]);
    let document: Value = serde_json::from_slice(&printed.stdout).expect("it is JSON");
    assert_eq!(
        (&document["openapi"], &document["info"]["version"]),
        (&Value::from("3.1.0"), &Value::from(env!("CARGO_PKG_VERSION")))
    );
    // An answer is what the document says.
    let grid = Grid::start(1);
    for (path, answer) in
        [("/v1/status", grid.agents[0].ask(&["status"])), ("/v1/machines", grid.agents[0].ask(&["machines"]))]
    {
        let mut schema =
            document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"].clone();
        assert!(schema.is_object(), "{path}");
        schema["components"] = document["components"].clone();
        let validator = jsonschema::validator_for(&schema).expect("it is a schema");
        let errors: Vec<String> = validator.iter_errors(&answer).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{path}: {errors:?}");
    }
}
