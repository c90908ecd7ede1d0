//! What commands leave that end early. The agent that they ask is made up here, so that it can stop in the middle.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use idlewood::api::{Bag, BagDetail, BagState, Endpoint, TaskResult};
use idlewood::client::ENDPOINT_FILE;
use idlewood::manifest::TaskOutput;
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

fn bag() -> BagDetail {
    let bag = Bag {
        id: "ab".repeat(32),
        name: "b".to_owned(),
        state: BagState::Succeeded,
        tasks: TASKS,
        done: TASKS,
        failed: 0,
        placed: 0,
        machines: 0,
        unplaced: 0,
        reissued: 0,
        duplicates: 0,
        unasked: 0,
        replication: idlewood_scheduler::Replication::default(),
        disputed: 0,
        undecidable: None,
        declined: Vec::new(),
        work_mops: Some(5.0),
        measured_mops: None,
        submitted: "2026-01-02T03:04:05Z".to_owned(),
        finished: None,
        elapsed_s: 10.0,
        first_start_s: None,
        stretch: None,
    };
    BagDetail { bag, program: "p".to_owned(), args: Vec::new(), placements: Vec::new() }
}

/// Answers one request, if `may` says so of the task whose output it asks for. Whether it did.
fn answer(mut stream: TcpStream, mut may: impl FnMut(u64) -> bool) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        head.extend(byte);
    }
    let head = String::from_utf8(head).expect("text");
    let path = head.split(' ').nth(1).expect("a path");
    let body = match path.rsplit('/').next().expect("a name") {
        "results" => serde_json::to_vec(&results()).expect("it is data"),
        hash if path.contains("/blobs/") => {
            let asked = results().into_iter().find(|result| result.output == hash).expect("one of these");
            if !may(asked.index) {
                return false;
            }
            output_of(asked.index)
        }
        _ => serde_json::to_vec(&bag()).expect("it is data"),
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    // Whoever asked may be gone.
    stream.write_all(&[head.as_bytes(), &body].concat()).is_ok()
}

/// Listens as the agent of a state directory, and answers until an output may not be given.
fn agent(dir: &Path, mut may: impl FnMut(u64) -> bool + Send + 'static) -> JoinHandle<()> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it listens").to_string();
    let endpoint = Endpoint { address, token: "00".repeat(32), pid: 1 };
    fs::write(dir.join(ENDPOINT_FILE), serde_json::to_vec(&endpoint).expect("it is data")).expect("our directory");
    thread::spawn(move || {
        for stream in listener.incoming() {
            if !answer(stream.expect("a connection"), &mut may) {
                return;
            }
        }
    })
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

/// The tasks that `results.json` lists; all of them have their directory, and nobody else.
fn listed(out: &Path) -> Vec<u64> {
    let text = fs::read(out.join("results.json")).expect("it was written");
    let records: Vec<Value> = serde_json::from_slice(&text).expect("JSON");
    let indices: Vec<u64> = records.iter().map(|record| record["index"].as_u64().expect("an index")).collect();
    for index in 0..TASKS {
        assert_eq!(out.join(index.to_string()).join("exit_code").exists(), indices.contains(&index), "task {index}");
    }
    indices
}

/// A command that waits for an output, and what lets it have that. Those after it come slowly.
fn stopped(dir: &Path, args: &[&str]) -> (Child, Sender<()>) {
    let (asked, is_asked) = channel();
    let (go, may_go) = channel();
    // Not joined: it listens for as long as the process lives.
    agent(dir, move |index| {
        if index == STOP {
            asked.send(()).expect("the test waits");
            return may_go.recv().is_ok();
        }
        // The signal has to reach the command meanwhile.
        thread::sleep(Duration::from_millis(if index > STOP { 100 } else { 0 }));
        true
    });
    let command = start(dir, args);
    is_asked.recv().expect("it asks");
    (command, go)
}

/// Ctrl-C in the middle.
fn interrupt(command: &Child, go: Sender<()>) {
    let sent = Command::new("kill").args(["-INT", &command.id().to_string()]).status();
    assert!(sent.expect("kill exists").success());
    go.send(()).expect("it waits");
}

#[test]
fn a_get_lists_what_it_has_saved_when_its_agent_goes_away() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("out");
    let get = ["bag", "get", "--out", out.to_str().expect("ours")];
    let agent = agent(dir.path(), |index| index != STOP);
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
fn a_get_lists_what_it_has_saved_when_it_is_interrupted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("out");
    let (get, go) = stopped(dir.path(), &["bag", "get", "--out", out.to_str().expect("ours")]);
    interrupt(&get, go);
    let ended = get.wait_with_output().expect("it is a child");
    assert_eq!((ended.status.code(), ended.stdout.len()), (Some(130), 0), "{ended:?}");
    assert!(error_of(&ended).ends_with("interrupted"), "{ended:?}");
    let listed = listed(&out);
    let begun = listed.len() as u64;
    assert!(begun > STOP && begun < TASKS && listed == (0..begun).collect::<Vec<_>>(), "{listed:?}");
}

#[test]
fn a_get_overwrites_no_list_that_it_cannot_read() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("out");
    fs::create_dir(&out).expect("our directory");
    fs::write(out.join("results.json"), "somebody's own").expect("our directory");
    agent(dir.path(), |_| true);
    let ended = run(dir.path(), &["bag", "get", "--out", out.to_str().expect("ours")]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(error_of(&ended).contains("results.json is no list of results: move it away"), "{ended:?}");
    assert_eq!(fs::read(out.join("results.json")).expect("it is there"), b"somebody's own");
    assert!(!out.join("0").exists(), "before anything is fetched");
}

#[test]
fn logs_as_json_are_whole_when_their_agent_goes_away() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let agent = agent(dir.path(), |index| index != STOP);
    let ended = run(dir.path(), &["bag", "logs"]);
    agent.join().expect("it ended");
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(error_of(&ended).contains("cannot get the output of task 3"), "{ended:?}");
    let logs: Vec<Value> = serde_json::from_slice(&ended.stdout).expect("JSON");
    let texts: Vec<&str> = logs.iter().filter_map(|log| log["text"].as_str()).collect();
    assert_eq!(texts, ["task 0\n", "task 1\n", "task 2\n"]);
}

#[test]
fn logs_as_json_are_whole_when_they_are_interrupted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (logs, go) = stopped(dir.path(), &["bag", "logs"]);
    interrupt(&logs, go);
    let ended = logs.wait_with_output().expect("it is a child");
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_eq!(error_of(&ended), "interrupted");
    let logs: Vec<Value> = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert!((STOP as usize + 1..TASKS as usize).contains(&logs.len()), "{logs:?}");
}
