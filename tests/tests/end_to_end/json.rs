//! What `--output json` prints is what `idlewood schema` says, for every command.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use idlewood_tests::guide::Help;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::harness::{AGENT, Agent, Grid, command, probe_program, wait_for};

/// Verbs that print no JSON: they run an agent, or print text for other programs.
const WITHOUT: [&str; 3] = ["run", "completions", "schema"];
/// They take minutes, systemd, or somebody who goes on writing; their types are described, and other tests call them.
const ELSEWHERE: [&str; 6] = ["demo", "bench", "service install", "service uninstall", "bag adopt", "bag feed"];

/// The schema, and the commands whose output was compared with it.
struct Schema {
    whole: Value,
    seen: RefCell<BTreeSet<String>>,
}

/// Has a type refuse fields that it does not describe: what is not described is not documented.
fn refuse_undescribed(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.contains_key("properties") && !object.contains_key("additionalProperties") {
                object.insert("additionalProperties".to_owned(), json!(false));
            }
            object.values_mut().for_each(refuse_undescribed);
        }
        Value::Array(values) => values.iter_mut().for_each(refuse_undescribed),
        _ => {}
    }
}

impl Schema {
    fn get() -> Self {
        let printed = command(&["schema"]);
        let mut whole: Value = serde_json::from_slice(&printed.stdout).expect("it is JSON");
        refuse_undescribed(&mut whole["$defs"]);
        Self { whole, seen: RefCell::default() }
    }

    fn validator(&self, part: &Value) -> Validator {
        let mut schema = part.clone();
        let object = schema.as_object_mut().expect("a schema is an object");
        object.insert("$defs".to_owned(), self.whole["$defs"].clone());
        object.insert("$schema".to_owned(), self.whole["$schema"].clone());
        jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{part} is no schema: {error}"))
    }

    fn check(&self, name: &str, printed: &Value) {
        let part = &self.whole["commands"][name];
        assert!(part.is_object(), "the schema says nothing of {name}");
        let errors: Vec<String> = self
            .validator(part)
            .iter_errors(printed)
            .map(|error| format!("{}: {error}", error.instance_path))
            .collect();
        assert!(errors.is_empty(), "{name} prints\n{printed}\nand\n{}", errors.join("\n"));
        self.seen.borrow_mut().insert(name.to_owned());
    }

    /// Runs a command of an agent, and compares what it prints. `words` begin with the command's name.
    fn ask(&self, agent: &Agent, name: &str, words: &[&str]) -> Value {
        let verbs: Vec<&str> = name.split(' ').filter(|word| !word.starts_with("--")).collect();
        let printed = agent.ask(&[&verbs, words].concat());
        self.check(name, &printed);
        printed
    }
}

#[test]
fn every_command_prints_what_the_schema_says() {
    let schema = Schema::get();
    assert_eq!(schema.whole["version"], 1);
    let mut grid = Grid::prepare_alone(2);
    let directory = grid.root.path().to_owned();
    let file = |name: &str| directory.join(name).display().to_string();
    let config = ["--config", &file("config.toml")];
    let program = probe_program().display().to_string();

    // Without an agent.
    let first = &grid.agents[0];
    schema.ask(first, "grid create", &["--name", "json"]);
    schema.ask(first, "grid show", &[]);
    schema.ask(first, "service status", &[]);
    for (name, words) in [
        ("config show", &[][..]),
        ("config set", &["owner.hours", "22:00-07:00"]),
        ("config get", &["owner.hours"]),
        ("config unset", &["owner.hours"]),
        ("config describe", &[]),
        ("config path", &[]),
    ] {
        schema.ask(first, name, &[words, &config].concat());
    }
    grid.run(0);
    let first = &grid.agents[0];

    // A grid.
    let invitation = schema.ask(first, "grid invite", &["--role", "submitter"])["token"].as_str().map(str::to_owned);
    std::fs::write(file("invitation"), invitation.expect("a token")).expect("our directory");
    schema.ask(&grid.agents[1], "grid join", &[&file("invitation")]);
    grid.run(1);
    grid.wait_until_formed(2);
    let [first, second] = [0, 1].map(|number| &grid.agents[number]);
    schema.ask(first, "peers", &[]);
    schema.ask(first, "machines", &[]);
    schema.ask(first, "doctor", &[]);

    // Bags: one that succeeds, one of which a task fails, one that is cancelled.
    let tasks = ["--program", &program, "--work", "50", "--name", "json"];
    let hello = ["--", "hello", "{}", ":::", "ada", "grace"];
    schema.ask(second, "submit --dry-run", &[&["--dry-run"], &tasks[..], &hello].concat());
    let bag = schema.ask(second, "submit", &[&tasks[..], &hello].concat())["id"].as_str().expect("an id").to_owned();
    for name in ["bag explain", "status", "explain"] {
        schema.ask(second, name, if name == "bag explain" { std::slice::from_ref(&"last") } else { &[] });
    }
    for name in ["bag wait", "bag watch", "bag show", "bag logs", "bag ticket"] {
        let words = [bag.as_str(), "--to", &file("ticket")];
        // Nobody needs a ticket of a bag that is over.
        if name != "bag ticket" {
            schema.ask(second, name, &words[..1]);
        }
    }
    let out = file("out");
    schema.ask(second, "bag get", &[&bag, "--out", &out, "--receipts"]);
    schema.ask(second, "bag receipts", &[&format!("{out}/0/receipt"), &format!("{out}/1/receipt")]);
    let failing = ["--max-retries", "0", "--", "exit", "{}", ":::", "0", "3"];
    let failed = second.cli(&[&["submit", "--wait"], &tasks[..], &failing].concat());
    assert_eq!(failed.code, 3, "{}", failed.stderr);
    schema.check("submit", &failed.json);
    schema.ask(second, "bag rerun", &["last", "--failed"]);
    schema.check("bag wait", &second.cli(&["bag", "wait", "last"]).json);
    let slow = second.submit_sleeps(4, 60_000);
    schema.ask(second, "bag list", &[]);
    schema.ask(second, "bag ticket", &[&slow, "--to", &file("ticket")]);
    // Machines, placements and bounds of a bag that runs.
    schema.ask(second, "bag show", &[&slow]);
    schema.ask(second, "bag tasks", &[&slow]);
    for name in ["bag tasks", "bag explain", "bag logs"] {
        let printed = schema.ask(second, name, &["all"]);
        assert_eq!(printed.as_array().map(Vec::len), Some(if name == "bag explain" { 1 } else { 3 }), "{printed}");
    }
    schema.ask(second, "bag get", &[&bag, "last", "--out", &file("both")]);
    schema.ask(second, "bag rerun", &["all", "--failed"]);
    schema.ask(second, "bag hold", &[&slow]);
    schema.ask(second, "bag show", &[&slow, &bag]);
    schema.ask(second, "bag release", &[&slow]);
    schema.ask(second, "bag rename", &[&slow, "slow one"]);
    schema.ask(second, "bag priority", &["slow one", "-7"]);
    schema.ask(second, "status", &[]);
    schema.ask(second, "bag cancel", &["slow one"]);
    // One without an end.
    let endless = ["--endless", "--array", "0-", "--", "sleep", "5"];
    let endless = schema.ask(second, "submit", &[&tasks[..], &endless].concat());
    let endless = endless["id"].as_str().expect("an id");
    wait_for("a share", || schema.ask(second, "bag show", &[endless])["endless"]["granted_rate"].is_number());
    schema.ask(second, "status", &[]);
    schema.ask(second, "bag close", &[endless]);
    schema.ask(second, "bag get --follow", &[endless, "--follow", "--out", &file("endless")]);
    schema.ask(second, "bag rm", &["all"]);

    // The owner, and the end.
    schema.ask(first, "pause", &["--for", "1h"]);
    schema.ask(first, "explain", &[]);
    schema.ask(first, "resume", &[]);
    schema.ask(first, "clean", &["--dry-run"]);
    schema.ask(first, "restart", &[]);
    let other = second.ask(&["status"])["peer"].as_str().expect("an id").to_owned();
    schema.ask(first, "grid revoke", &[&other]);
    schema.ask(second, "finish", &[]);
    grid.agents[1].wait_until_it_ends();
    let second = &grid.agents[1];
    schema.ask(second, "store check", &[]);
    schema.ask(second, "store export", &[]);
    schema.ask(second, "clean", &[]);
    schema.ask(second, "grid leave", &[]);

    // Failures.
    let errors = schema.validator(&schema.whole["error"]);
    let refused = second.cli(&["bag", "list"]);
    let told: Value = serde_json::from_str(refused.stderr.trim()).expect("one JSON value");
    assert!(refused.code == 1 && errors.is_valid(&told), "{told}");

    assert_all_were_seen(&schema);
}

/// Every verb of the help is in the schema, and every command of the schema was compared.
fn assert_all_were_seen(schema: &Schema) {
    let described: BTreeSet<&str> =
        schema.whole["commands"].as_object().expect("by name").keys().map(String::as_str).collect();
    let help = Help::of(Path::new(AGENT));
    let verbs: BTreeSet<String> = help.flags().map(|(chain, _)| chain.join(" ")).collect();
    let is_group = |verb: &str| verbs.iter().any(|other| other.starts_with(&format!("{verb} ")));
    let lacking: Vec<&String> = verbs
        .iter()
        .filter(|verb| !verb.is_empty() && !is_group(verb) && !WITHOUT.contains(&verb.as_str()))
        .filter(|verb| !described.contains(verb.as_str()))
        .collect();
    assert!(lacking.is_empty(), "the schema says nothing of {lacking:?}");
    let seen = schema.seen.borrow();
    let unseen: Vec<_> = described.iter().filter(|name| !seen.contains(**name) && !ELSEWHERE.contains(name)).collect();
    assert!(unseen.is_empty(), "nothing was compared of {unseen:?}");
}

/// The check can fail: a field that nobody has described, and one of another type.
#[test]
fn what_the_schema_does_not_describe_is_noticed() {
    let schema = Schema::get();
    let errors = schema.validator(&schema.whole["commands"]["grid revoke"]);
    assert!(errors.is_valid(&json!({ "peer": "12D3KooW" })));
    for wrong in [json!({}), json!({ "peer": 3 }), json!({ "peer": "12D3KooW", "more": 1 }), json!([])] {
        assert!(!errors.is_valid(&wrong), "{wrong}");
    }
}
