//! Commands that end early: the files that they leave. A scripted agent stops in the middle.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use idlewood_api::client::ENDPOINT_FILE;
use idlewood_api::{Bag, BagDetail, Endpoint, TaskResult};
use idlewood_store::StateLock;
use idlewood_trust::manifest::TaskOutput;
use serde_json::Value;

const TASKS: u64 = 30;
/// The task whose output is not given, or not yet.
const STOP: u64 = 3;

fn output_of(index: u64) -> Vec<u8> {
    let stdout = format!("task {index}\n").into_bytes();
    TaskOutput { exit_code: Some(0), stdout, ..TaskOutput::default() }.encode()
}

fn results() -> Vec<TaskResult> {
    let result = |index| TaskResult {
        index,
        entry: String::new(),
        attempt: 0,
        success: true,
        machine: "m".to_owned(),
        finished: "2026-01-02T03:04:05Z".to_owned(),
        work_mops: 1.0,
        output: blake3::hash(&output_of(index)).to_string(),
        output_bytes: output_of(index).len() as u64,
    };
    (0..TASKS).map(result).collect()
}

/// The results that are requested.
fn page(query: &str) -> Vec<TaskResult> {
    let numbers = query.split('&').map(|part| part.split_once('=').expect("a pair"));
    let number = |name| numbers.clone().find(|(of, _)| *of == name).expect("it is said").1.parse().expect("a number");
    let (from, most): (u64, u64) = (number("from"), number("most"));
    results().into_iter().filter(|result| result.index >= from).take(most as usize).collect()
}

fn bag() -> BagDetail {
    let bag: Bag = serde_json::from_str(include_str!("fixtures/bag.json")).expect("it is a bag");
    assert_eq!(bag.tasks, TASKS);
    BagDetail { bag, program: "p".to_owned(), args: Vec::new(), placements: Vec::new(), declining: Vec::new() }
}

/// An answer to a request for an output.
enum Given {
    Whole,
    /// Announces it, and sends half; the agent is gone when this ends.
    Half(Receiver<()>),
    /// The agent is gone.
    Nothing,
}

/// Answers one request, and one for a task's output as `give` decides. False if the agent is gone.
fn answer(mut stream: TcpStream, mut give: impl FnMut(u64) -> Given) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        head.extend(byte);
    }
    let head = String::from_utf8(head).expect("text");
    let path = head.split(' ').nth(1).expect("a path");
    let mut given = Given::Whole;
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let parts: Vec<&str> = path.split('/').collect();
    let body = match parts[..] {
        [.., "results"] => serde_json::to_vec(&page(query)).expect("it is data"),
        [.., "results", index, "output"] => {
            let index = index.parse().expect("a number");
            given = give(index);
            output_of(index)
        }
        _ => serde_json::to_vec(&bag()).expect("it is data"),
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let sent = match &given {
        Given::Whole => &body[..],
        Given::Half(_) => &body[..body.len() / 2],
        Given::Nothing => return false,
    };
    // The client may be gone.
    let is_sent = stream.write_all(&[head.as_bytes(), sent].concat()).is_ok();
    if let Given::Half(until) = given {
        return until.recv().is_ok();
    }
    is_sent
}

/// Listens as the agent of a state directory, and answers until an output is not given.
fn agent(dir: &Path, mut give: impl FnMut(u64) -> Given + Send + 'static) -> JoinHandle<()> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it listens").to_string();
    // Commands look whether an agent has locked the directory.
    let lock = StateLock::acquire(dir).expect("nobody else has it");
    let endpoint = Endpoint { address, token: "00".repeat(32), pid: std::process::id() };
    fs::write(dir.join(ENDPOINT_FILE), serde_json::to_vec(&endpoint).expect("it is data")).expect("our directory");
    thread::spawn(move || {
        let _lock = lock;
        for stream in listener.incoming() {
            if !answer(stream.expect("a connection"), &mut give) {
                return;
            }
        }
    })
}

/// An agent that goes away when it is asked for the output of `STOP`.
fn agent_that_goes(dir: &Path) -> JoinHandle<()> {
    agent(dir, |index| if index == STOP { Given::Nothing } else { Given::Whole })
}

fn start(dir: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idlewood"));
    command.arg("--state-dir").arg(dir).args(["--output", "json"]).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

fn run(dir: &Path, args: &[&str]) -> Output {
    start(dir, args).wait_with_output().expect("it is a child")
}

fn error_of(output: &Output) -> String {
    let error: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    error["error"].as_str().expect("a sentence").to_owned()
}

/// The tasks that `results.json` lists, after checking that exactly they have a directory.
fn listed(out: &Path) -> Vec<u64> {
    let text = fs::read(out.join("results.json")).expect("it was written");
    let records: Vec<Value> = serde_json::from_slice(&text).expect("JSON");
    let indices: Vec<u64> = records.iter().map(|record| record["index"].as_u64().expect("an index")).collect();
    for index in 0..TASKS {
        assert_eq!(out.join(index.to_string()).join("exit_code").exists(), indices.contains(&index), "task {index}");
    }
    indices
}

/// The output of a command that gets this signal in the middle of an output whose rest never comes.
fn signalled(dir: &Path, args: &[&str], signal: &str) -> Output {
    let (asked, is_asked) = channel();
    let (go_on, until) = channel();
    let mut until = Some(until);
    let agent = agent(dir, move |index| {
        if index != STOP {
            return Given::Whole;
        }
        asked.send(()).expect("the test waits");
        Given::Half(until.take().expect("it asks once"))
    });
    let mut command = start(dir, args);
    is_asked.recv().expect("it asks");
    let sent = Command::new("kill").args([signal, &command.id().to_string()]).status();
    assert!(sent.expect("kill exists").success());
    let patience = Instant::now() + Duration::from_secs(30);
    while command.try_wait().expect("it is a child").is_none() {
        if Instant::now() > patience {
            command.kill().expect("it is a child");
            panic!("it waits for the rest of the output");
        }
        thread::sleep(Duration::from_millis(10));
    }
    drop(go_on);
    agent.join().expect("it ended");
    command.wait_with_output().expect("it is a child")
}

#[test]
fn a_get_lists_what_it_has_saved_when_its_agent_goes_away() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("out");
    let get = ["bag", "get", "--out", out.to_str().expect("ours")];
    let agent = agent_that_goes(dir.path());
    for index in ["20", "7-8"] {
        let first = run(dir.path(), &[&get[..], &["--index", index]].concat());
        assert!(first.status.success(), "{first:?}");
    }
    assert_eq!(listed(&out), [7, 8, 20], "also what an earlier one has saved");
    let ended = run(dir.path(), &get);
    agent.join().expect("it ended");
    assert_eq!((ended.status.code(), ended.stdout.len()), (Some(1), 0), "{ended:?}");
    assert!(error_of(&ended).contains("got as far as 3 of 30 tasks"), "{ended:?}");
    assert_eq!(listed(&out), [0, 1, 2, 7, 8, 20]);
}

#[test]
fn a_get_stops_at_once_and_lists_what_it_has_saved_when_a_signal_comes() {
    for (signal, code, sentence) in [("-INT", 130, "interrupted"), ("-TERM", 143, "terminated")] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let out = dir.path().join("out");
        let ended = signalled(dir.path(), &["bag", "get", "--out", out.to_str().expect("ours")], signal);
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(code), 0), "{ended:?}");
        let error = error_of(&ended);
        assert!(error.contains("got as far as 3 of 30 tasks") && error.ends_with(sentence), "{error}");
        assert_eq!(listed(&out), (0..STOP).collect::<Vec<_>>());
        let mut names: Vec<_> =
            fs::read_dir(&out).expect("ours").map(|entry| entry.expect("ours").file_name()).collect();
        names.sort();
        assert_eq!(names, ["0", "1", "2", "results.json"], "nothing of the task that was being fetched");
    }
}

#[test]
fn a_get_overwrites_no_list_that_it_cannot_read() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("out");
    fs::create_dir(&out).expect("our directory");
    fs::write(out.join("results.json"), "somebody's own").expect("our directory");
    agent(dir.path(), |_| Given::Whole);
    let ended = run(dir.path(), &["bag", "get", "--out", out.to_str().expect("ours")]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(error_of(&ended).contains("results.json is no list of results: move it away"), "{ended:?}");
    assert_eq!(fs::read(out.join("results.json")).expect("it is there"), b"somebody's own");
    assert!(!out.join("0").exists(), "before anything is fetched");
}

#[test]
fn a_get_mixes_no_two_bags_unless_it_is_told() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("out");
    fs::create_dir(&out).expect("our directory");
    let other = r#"[{"bag": "ffff", "index": 3, "output": "o"}, {"bag": "ffff", "index": 77, "output": "o"}]"#;
    fs::write(out.join("results.json"), other).expect("our directory");
    agent(dir.path(), |_| Given::Whole);
    let get = ["bag", "get", "--out", out.to_str().expect("ours")];
    let refused = run(dir.path(), &get);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let error = error_of(&refused);
    assert!(error.contains("has results of bag ffff, and these are of bag 0123456789ab: name another"), "{error}");
    assert_eq!(fs::read_to_string(out.join("results.json")).expect("it is there"), other, "nothing has changed");
    assert!(!out.join("0").exists(), "before anything is fetched");
    let mixed = run(dir.path(), &[&get[..], &["--mix"]].concat());
    assert!(mixed.status.success(), "{mixed:?}");
    let text = fs::read(out.join("results.json")).expect("it was written");
    let records: Vec<Value> = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(records.len() as u64, TASKS + 1, "task 77 of the other bag stays, and task 3 was replaced");
    assert_eq!((&records[3]["bag"], &records[30]["bag"]), (&Value::from(bag().bag.id), &Value::from("ffff")));
    let again = run(dir.path(), &[&get[..], &["--index", "1"]].concat());
    assert_eq!(again.status.code(), Some(1), "it is mixed still: {again:?}");
}

#[test]
fn logs_as_json_are_whole_when_their_agent_goes_away() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let agent = agent_that_goes(dir.path());
    let ended = run(dir.path(), &["bag", "logs"]);
    agent.join().expect("it ended");
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(error_of(&ended).contains("cannot get the output of task 3"), "{ended:?}");
    let logs: Vec<Value> = serde_json::from_slice(&ended.stdout).expect("JSON");
    let texts: Vec<&str> = logs.iter().filter_map(|log| log["text"].as_str()).collect();
    assert_eq!(texts, ["task 0\n", "task 1\n", "task 2\n"]);
}

#[test]
fn logs_as_json_are_whole_when_a_signal_comes() {
    for (signal, code, sentence) in [("-INT", 130, "interrupted"), ("-TERM", 143, "terminated")] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let ended = signalled(dir.path(), &["bag", "logs"], signal);
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        assert_eq!(error_of(&ended), sentence);
        let logs: Vec<Value> = serde_json::from_slice(&ended.stdout).expect("JSON");
        assert_eq!(logs.len() as u64, STOP, "{logs:?}");
    }
}
