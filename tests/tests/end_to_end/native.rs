//! Native programs on real agents: they run where owners allow it, and nowhere else.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Agent, Grid, assert_complete, command, wait_for};

/// A grid whose second machine allows native programs, and whose others do not.
fn grid(count: usize) -> Grid {
    let mut grid = Grid::prepare_alone(count);
    grid.agents[0].ask(&["grid", "create"]);
    grid.spawn(0, &[]);
    grid.agents[0].wait_until_it_answers();
    grid.agents[1].configure("[bags]\nnative = true\n");
    for number in 1..count {
        let invitation = grid.agents[0].ask(&["grid", "invite", "--role", "submitter"]);
        grid.agents[number].ask(&["grid", "join", invitation["token"].as_str().expect("a token")]);
        grid.spawn(number, &[]);
        grid.agents[number].wait_until_it_answers();
    }
    grid.wait_until_formed(count);
    grid
}

fn script(root: &Path, name: &str, text: &str) -> String {
    let path = root.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("our directory");
    path.to_str().expect("a path of ours").to_owned()
}

fn submit(agent: &Agent, program: &str, options: &[&str]) -> String {
    let bag = agent.ask(&[&["submit", "--native", "--program", program], options].concat());
    bag["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_native_bag_runs_where_owners_allow_it_and_other_machines_say_why_not() {
    let grid = grid(3);
    let (submitter, opted_in, other) = (&grid.agents[0], &grid.agents[1], &grid.agents[2]);
    let root = grid.root.path();
    let id = |agent: &Agent| agent.ask(&["status"])["peer"].as_str().expect("an id").to_owned();
    let text = "echo \"task $1\"; cat inputs/data; echo $1 >result; sleep 0.3; exit $(($1 == 7))";
    let program = script(root, "work.sh", text);
    let data = script(root, "data", "");
    // On the submitter's own machine submitting is permission enough: there the first task measures how long one takes.
    let options = ["--array", "0-23", "--input", &data, "--max-retries", "0", "--success-codes", "0,1", "--", "{}"];
    let bag = submit(submitter, &program, &options);
    assert_complete(submitter, &bag, 24);
    let shown = submitter.ask(&["bag", "show", &bag]);
    let declined = shown["declined"].as_array().expect("a list");
    assert!(declined.len() == 1 && declined[0]["machine"].as_str() == Some(id(other).as_str()), "{shown}");
    assert!(declined[0]["reason"].as_str().is_some_and(|reason| reason.contains("bags.native")), "{shown}");
    let out = root.join("out");
    submitter.ask(&["bag", "get", &bag, "--receipts", "--out", out.to_str().expect("a path of ours")]);
    let results: Value =
        serde_json::from_slice(&fs::read(out.join("results.json")).expect("it was written")).expect("JSON");
    let mut machines = BTreeSet::new();
    for (index, result) in results.as_array().expect("a list").iter().enumerate() {
        machines.insert(result["machine"].as_str().expect("an id").to_owned());
        assert_eq!(result["exit_code"].as_u64(), Some(u64::from(index == 7)), "{result}");
        let directory = out.join(index.to_string());
        let file = |name: &str| fs::read_to_string(directory.join(name)).expect("it was written");
        let expected = (format!("task {index}\n#!/bin/sh\n\n"), format!("{index}\n"));
        assert_eq!((file("stdout"), file("outputs/result")), expected);
        let receipt = directory.join("receipt");
        submitter.ask(&["bag", "receipts", receipt.to_str().expect("a path of ours")]);
    }
    assert_eq!(machines, [submitter, opted_in].map(id).into());
}

/// A typing error in a script's first line ends its tasks, instead of having machines try them for ever.
#[test]
fn a_script_whose_interpreter_nobody_has_fails_and_says_so() {
    let grid = grid(2);
    let agent = &grid.agents[0];
    let path = grid.root.path().join("odd.lua");
    fs::write(&path, "#!/no/such/lua\nprint(1)\n").expect("our directory");
    let bag = submit(agent, path.to_str().expect("ours"), &["--max-retries", "1", "--array", "0-3", "--work", "50"]);
    assert_eq!(agent.cli(&["bag", "wait", &bag]).code, 3, "all fail");
    let why = "does not have /no/such/lua, which the program's first line names";
    let shown = agent.text(&["bag", "show", &bag]);
    assert!(shown.contains(why), "{shown}");
    let failures = agent.ask(&["bag", "show", &bag])["failures"].as_array().cloned().expect("as the text has them");
    assert!(
        failures.len() == 4 && failures.iter().all(|one| one["why"].as_str().is_some_and(|text| text.contains(why)))
    );
}

/// The native counterpart of the WebAssembly test in [`crate::redteam`].
#[test]
fn hostile_native_programs_gain_nothing_and_honest_bags_complete() {
    let grid = grid(2);
    let (submitter, opted_in) = (&grid.agents[0], &grid.agents[1]);
    let root = grid.root.path();
    let secret = opted_in.dir.join("identity.key");
    assert!(secret.exists(), "there is something to steal");
    let options = ["--work", "50", "--max-retries", "0", "--time-limit", "10m"];
    let submit = |name: &str, text: &str| submit(submitter, &script(root, name, text), &options);
    // Until it is ended, or refused one more process: on a busy machine the others may die out before anybody has looked.
    let bomb = submit("bomb", "bomb() { bomb & bomb & }; while :; do bomb; done");
    let curious = [
        submit("key", &format!("cat {}", secret.display())),
        submit("environment", &format!("cat /proc/{}/environ /proc/self/environ /proc/1/environ", opted_in.pid())),
        submit("passwords", "cat /etc/passwd; ln -s /etc/passwd leads-out; exit 1"),
    ];
    let honest = opted_in.submit_sleeps(4, 50);
    for bag in curious.iter().chain([&bomb]) {
        assert_eq!(submitter.cli(&["bag", "wait", bag]).code, 3);
    }
    let shown = command(&["--state-dir", submitter.dir.to_str().expect("a path of ours"), "bag", "show", &bomb]);
    let told = String::from_utf8_lossy(&shown.stdout);
    // Or the system refused it before the limit was noticed.
    assert!(told.contains("processes and threads") || told.contains("exit"), "{told}");
    for bag in &curious {
        let out = root.join(bag);
        submitter.ask(&["bag", "get", bag, "--out", out.to_str().expect("a path of ours")]);
        assert_eq!(fs::read_to_string(out.join("0/stdout")).unwrap_or_default(), "");
        assert!(!out.join("0/leads-out").exists(), "no link came here");
    }
    assert_complete(opted_in, &honest, 4);
    grid.wait_until_formed(2);
    for agent in &grid.agents {
        wait_for("all to be members", || agent.ask(&["status"])["membership"] == "member");
    }
}
