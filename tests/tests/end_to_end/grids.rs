//! Grids by the command line: creating and joining them, keeping them apart, and removing machines.

use serde_json::Value;

use crate::harness::{AGENT, Agent, Grid, assert_complete, probe_program, wait_for};

/// Starts an agent with the addresses of these others.
fn run(grid: &mut Grid, number: usize, others: &[String]) {
    grid.spawn(number, others);
    grid.agents[number].wait_until_it_answers();
}

fn invite(agent: &Agent, args: &[&str]) -> String {
    let invitation = agent.ask(&[&["grid", "invite"], args].concat());
    invitation["token"].as_str().expect("a token").to_owned()
}

/// Runs a command that must fail with these words.
fn refused(agent: &Agent, args: &[&str], words: &[&str]) {
    let answer = agent.cli(args);
    let line = answer.stderr.lines().last().unwrap_or_default();
    let json: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{args:?}: {}", answer.stderr));
    let sentence = json["error"].as_str().expect("a sentence");
    assert_ne!(answer.code, 0, "{args:?}");
    for word in words {
        assert!(sentence.contains(word), "{args:?}: {word:?} is not in {sentence:?}");
    }
}

fn machines(agent: &Agent) -> u64 {
    agent.ask(&["status"])["grid_machines"].as_u64().expect("a number")
}

fn id(agent: &Agent) -> String {
    agent.ask(&["status"])["peer"].as_str().expect("an id").to_owned()
}

fn admissions(agent: &Agent, which: &str) -> u64 {
    agent.ask(&["status"])["admissions"][which].as_u64().expect("a number")
}

#[test]
fn a_grid_is_created_joined_and_a_machine_removed() {
    let mut grid = Grid::prepare_alone(3);
    let made = grid.agents[0].ask(&["grid", "create", "--name", "the lab"]);
    assert_eq!((made["name"].as_str(), made["role"].as_str()), (Some("the lab"), Some("admin")));
    run(&mut grid, 0, &[]);
    let status = grid.agents[0].ask(&["status"]);
    assert_eq!(status["grid"]["id"], made["id"]);

    // One invitation for one machine; it joins by the invitation alone, without any other address.
    let token = invite(&grid.agents[0], &["--role", "submitter"]);
    let joined = grid.agents[1].ask(&["grid", "join", &token]);
    assert_eq!((&joined["id"], joined["role"].as_str()), (&made["id"], Some("submitter")));
    refused(&grid.agents[2], &["grid", "join", &token], &["used up"]);
    run(&mut grid, 1, &[]);
    let token = invite(&grid.agents[0], &["--role", "member", "--expires", "1h", "--uses", "2"]);
    grid.agents[2].ask(&["grid", "join", &token]);
    run(&mut grid, 2, &[]);
    grid.wait_until_formed(3);
    let bag = grid.agents[1].submit_sleeps(6, 10);
    assert_complete(&grid.agents[1], &bag, 6);
    let shown = grid.agents[0].ask(&["grid", "show"]);
    let invitation = &shown["invitations"][1];
    assert_eq!((invitation["uses"].as_u64(), invitation["used"].as_u64()), (Some(2), Some(1)), "{shown}");
    assert_eq!(grid.agents[2].ask(&["grid", "show"])["issuer"].as_str(), Some(id(&grid.agents[0]).as_str()));

    // A member runs tasks and submits none.
    let probe = probe_program();
    let submit = ["submit", "--program", probe.to_str().expect("a path of ours"), "--work", "1", "--", "hello"];
    refused(&grid.agents[2], &submit, &["only submitters"]);

    // Once removed it stays out, also after all have restarted.
    let out = id(&grid.agents[1]);
    refused(&grid.agents[2], &["grid", "revoke", &out], &["only an admin"]);
    assert_eq!(grid.agents[0].ask(&["grid", "revoke", &out[out.len() - 12..]])["peer"].as_str(), Some(out.as_str()));
    for number in [0, 2] {
        wait_for("the others to be two", || machines(&grid.agents[number]) == 2);
        let shown = grid.agents[number].ask(&["grid", "show"]);
        assert_eq!(shown["revoked"][0]["machine"].as_str(), Some(out.as_str()), "{shown}");
    }
    for number in 0..3 {
        grid.agents[number].terminate();
    }
    // All ports are new.
    run(&mut grid, 0, &[]);
    let first = [grid.agents[0].address()];
    for number in [1, 2] {
        run(&mut grid, number, &first);
    }
    for number in [0, 2] {
        wait_for("the others to be two again", || machines(&grid.agents[number]) == 2);
    }
    wait_for("the revoked one to be told", || admissions(&grid.agents[1], "refused_by_others") > 0);
    assert_eq!(machines(&grid.agents[1]), 1);
    let status = grid.agents[1].ask(&["status"]);
    assert_eq!(status["refused"].as_str(), Some("its certificate was revoked"), "{status}");
    let bag = grid.agents[0].submit_sleeps(4, 10);
    assert_complete(&grid.agents[0], &bag, 4);
    refused(&grid.agents[0], &["grid", "revoke", &out], &["already"]);

    // It leaves; a new invitation does not help its old key.
    grid.agents[1].terminate();
    assert_eq!(grid.agents[1].ask(&["grid", "leave"])["left"].as_bool(), Some(true));
    let token = invite(&grid.agents[0], &[]);
    refused(&grid.agents[1], &["grid", "join", &token], &["revoked"]);
    run(&mut grid, 1, &[]);
    assert_eq!(grid.agents[1].ask(&["status"])["grid"], Value::Null);
}

#[test]
fn two_grids_never_merge_even_with_each_other_s_addresses() {
    let mut grid = Grid::prepare_alone(4);
    for number in [0, 2] {
        grid.agents[number].ask(&["grid", "create"]);
        run(&mut grid, number, &[]);
        let token = invite(&grid.agents[number], &["--role", "submitter"]);
        grid.agents[number + 1].ask(&["grid", "join", &token]);
    }
    let addresses = [0, 2].map(|number| grid.agents[number].address());
    // Each guest gets addresses of both grids, and one founder is restarted with the address of the other.
    for number in [1, 3] {
        run(&mut grid, number, &addresses);
    }
    grid.agents[2].terminate();
    let others = [addresses[0].clone(), grid.agents[3].address()];
    run(&mut grid, 2, &others);
    for number in [1, 2, 3] {
        wait_for("somebody to be turned away", || grid.agents[number].log().contains("belongs to another grid"));
    }
    wait_for("the strangers to be counted", || admissions(&grid.agents[0], "wrong_grid") >= 3);
    grid.wait_until_formed(2);
    for pair in [[0, 1], [2, 3]] {
        let mut ids = pair.map(|number| id(&grid.agents[number]));
        ids.sort_unstable();
        for number in pair {
            let peers = grid.agents[number].ask(&["peers"]);
            let neighbours = peers["neighbours"].as_array().expect("a list").iter();
            let mut known: Vec<_> = neighbours.map(|peer| peer["peer"].as_str().expect("an id").to_owned()).collect();
            known.push(id(&grid.agents[number]));
            known.sort_unstable();
            assert_eq!(known, ids);
        }
    }
}

#[test]
fn mistakes_with_grids_are_reported() {
    let mut grid = Grid::prepare_alone(2);
    let [one, other] = [0, 1].map(|number| grid.agents[number].dir.clone());
    let agent = &grid.agents[0];
    refused(agent, &["grid", "show"], &["no grid", "create"]);
    refused(agent, &["grid", "leave"], &["no grid"]);
    refused(agent, &["grid", "invite"], &["no agent is running"]);
    refused(agent, &["grid", "join", "nonsense"], &["no invitation", "no file"]);
    refused(agent, &["grid", "join", "idlewood1.AAAA"], &["damaged"]);
    refused(agent, &["grid", "create", "--passphrase-file", "/no/such/file"], &["/no/such/file"]);
    refused(agent, &["run", "--bootstrap", "/ip4/127.0.0.1/tcp/1"], &["no grid"]);
    refused(agent, &["run", "--speed-mops", "1", "--listen", "/ip4/0.0.0.0/tcp/0"], &["without a grid"]);
    run(&mut grid, 0, &[]);
    let agent = &grid.agents[0];
    refused(agent, &["grid", "leave"], &["no grid"]);
    refused(agent, &["grid", "invite"], &["no grid"]);
    grid.agents[0].terminate();

    let phrase = grid.root.path().join("phrase");
    std::fs::write(&phrase, "open sesame\n").expect("our directory");
    let phrase = phrase.to_str().expect("a path of ours");
    grid.agents[0].ask(&["grid", "create", "--passphrase-file", phrase]);
    refused(&grid.agents[0], &["grid", "create"], &["already"]);
    run(&mut grid, 0, &[]);
    let agent = &grid.agents[0];
    assert_eq!(agent.ask(&["grid", "show"])["grid_key"].as_str(), Some("sealed"));
    refused(agent, &["grid", "invite", "--role", "admin"], &["passphrase"]);
    refused(agent, &["grid", "invite", "--uses", "0"], &["1 to 10000"]);
    refused(agent, &["grid", "revoke", "somebody"], &["12D3KooW"]);
    let token = invite(agent, &["--role", "admin", "--passphrase-file", phrase]);
    let expired = invite(agent, &["--expires", "1s"]);
    assert_eq!(grid.agents[1].ask(&["grid", "join", &token])["role"].as_str(), Some("admin"));
    grid.agents[1].ask(&["grid", "leave"]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    refused(&grid.agents[1], &["grid", "join", &expired], &["expired"]);
    for dir in [one, other] {
        for file in std::fs::read_dir(dir.join("grid")).expect("a directory").flatten() {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = file.metadata().expect("a file").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", file.path().display());
        }
    }
}

#[test]
fn certificates_are_renewed_while_bags_run() {
    let mut grid = Grid::prepare_alone(2);
    grid.agents[0].ask(&["grid", "create"]);
    run(&mut grid, 0, &[]);
    let token = invite(&grid.agents[0], &["--role", "submitter", "--lifetime", "6s"]);
    let first = grid.agents[1].ask(&["grid", "join", &token])["certificate_expires"].clone();
    run(&mut grid, 1, &[]);
    grid.wait_until_formed(2);
    let bag = grid.agents[1].submit_sleeps(4, 4_000);
    let expires = |agent: &Agent| agent.ask(&["grid", "show"])["certificate_expires"].clone();
    let mut seen = vec![first];
    wait_for("three renewals", || {
        let now = expires(&grid.agents[1]);
        if !seen.contains(&now) {
            seen.push(now);
        }
        seen.len() > 3
    });
    assert_complete(&grid.agents[1], &bag, 4);
    assert_eq!(admissions(&grid.agents[0], "expired"), 0);
}

#[test]
fn an_owner_declines_single_submitters_and_programs() {
    let mut grid = Grid::prepare_alone(2);
    grid.agents[0].ask(&["grid", "create"]);
    run(&mut grid, 0, &[]);
    let token = invite(&grid.agents[0], &["--role", "submitter"]);
    grid.agents[1].ask(&["grid", "join", &token]);
    let submitter = id(&grid.agents[0]);
    grid.agents[1].configure(&format!("[bags]\ndeny_submitters = [\"{submitter}\"]\n"));
    run(&mut grid, 1, &[]);
    grid.wait_until_formed(2);
    // Tasks given to it are handed back.
    let bag = grid.agents[0].submit_sleeps(8, 50);
    assert_complete(&grid.agents[0], &bag, 8);
    assert!(grid.agents[1].log().contains("the owner does not let bags of its submitter run here"));
    let shown = grid.agents[0].ask(&["bag", "show", &bag]);
    let declined = shown["declined"].as_array().expect("a list");
    assert_eq!(declined.len(), 1, "{shown}");
    assert_eq!(declined[0]["reason"], "the owner does not let bags of its submitter run here");
    assert_eq!(declined[0]["machine"].as_str(), Some(id(&grid.agents[1]).as_str()));
    let status = grid.agents[1].ask(&["status"]);
    assert!(status["requests_declined"].as_u64() > Some(0) && status["resting_until"].is_null(), "{status}");
    assert!(status["held"].as_array().is_some_and(Vec::is_empty), "nothing of it queued: {status}");
    // The other way round nothing is declined.
    let bag = grid.agents[1].submit_sleeps(8, 50);
    assert_complete(&grid.agents[1], &bag, 8);
}

#[test]
fn results_are_signed_by_the_machines_that_ran_them() {
    let grid = Grid::start(2);
    let submitter = &grid.agents[0];
    let bag = submitter.submit_sleeps(40, 200);
    assert_complete(submitter, &bag, 40);
    let out = grid.root.path().join("signed");
    submitter.ask(&["bag", "get", &bag, "--receipts", "--out", out.to_str().expect("a path of ours")]);
    let file = |index: u64| out.join(index.to_string()).join("receipt").to_str().expect("a path of ours").to_owned();
    let files: Vec<String> = (0..40).map(file).collect();
    let arguments: Vec<&str> = ["bag", "receipts"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let said = grid.agents[1].ask(&arguments);
    let results = std::fs::read(out.join("results.json")).expect("it was written");
    let results: Value = serde_json::from_slice(&results).expect("JSON");
    let mut machines = std::collections::BTreeSet::new();
    for (receipt, result) in said.as_array().expect("a list").iter().zip(results.as_array().expect("a list")) {
        for word in ["index", "attempt", "output", "machine", "exit_code"] {
            assert_eq!(receipt[word], result[word], "{word}: {receipt} {result}");
        }
        assert_eq!((receipt["bag"].as_str(), receipt["ending"].as_str()), (Some(bag.as_str()), Some("succeeded")));
        machines.insert(receipt["machine"].as_str().expect("an id").to_owned());
    }
    assert_eq!(machines, [0, 1].map(|number| id(&grid.agents[number])).into(), "both ran some");
    let mut bytes = std::fs::read(&files[3]).expect("it was written");
    bytes[100] ^= 1;
    std::fs::write(&files[3], bytes).expect("our directory");
    refused(submitter, &["bag", "receipts", &files[3]], &["not a receipt, or was changed"]);
}

/// As an administrator does with `sudo` for a service: afterwards the service's user can read and write all of them.
#[test]
fn files_that_root_creates_for_a_service_belong_to_the_service() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    if std::fs::metadata("/proc/self").expect("this process").uid() != 0 {
        idlewood_testing::missing("only root works in other users' directories");
        return;
    }
    const USER: u32 = 54_321;
    let root = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let (state, settings) = (root.path().join("state"), root.path().join("etc/idlewood/config.toml"));
    std::fs::create_dir(&state).expect("ours");
    chown(&state, Some(USER), Some(USER)).expect("root may");
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "umask 077; exec \"$0\" \"$@\"", AGENT]).args(args);
        command.arg("--state-dir").arg(&state).arg("--config").arg(&settings);
        let output = command.output().expect("the binary starts");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["grid", "create"]);
    run(&["config", "set", "network.listen", r#"["/ip4/127.0.0.1/tcp/0"]"#]);
    run(&["config", "set", "owner.idle", "10m"]);
    let mut directories = vec![state];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("it is there") {
            let entry = entry.expect("it is there");
            let metadata = entry.metadata().expect("it is there");
            assert_eq!(metadata.uid(), USER, "{}", entry.path().display());
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    // The settings are root's, and the service can read them.
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&settings), mode(settings.parent().expect("a directory"))), (0o644, 0o755));
}

#[test]
fn the_guide_works_between_two_machines() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/two-machines");
    let output = std::process::Command::new(script).env("IDLEWOOD", AGENT).output().expect("the script starts");
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => {}
        // It prints why.
        Some(77) => idlewood_testing::missing(&said),
        _ => panic!("{said}\n{}", String::from_utf8_lossy(&output.stderr)),
    }
}
