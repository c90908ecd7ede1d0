//! Hostile programs on real agents, beside an honest bag. Tests with hostile machines are in `agent/net/src/`,
//! `agent/net/tests/hostile.rs`, `overlay/tests/` and `scheduler/tests/`; `docs/red-team.md` has the list.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use idlewood_blobs::{Blobs, Hash};
use idlewood_net::{ChunkReply, NetConfig, NetEvent, NetHandle, Wanted};
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, BagKey, BlobId, DeclineReason, Finished, Message, Speaker, TaskResult};
use idlewood_trust::envelope::Opened;
use idlewood_trust::{Gate, Membership, identity};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::harness::{AGENT, Agent, Grid, PATIENCE, alone, assert_complete, command, probe_program};

/// Whatever a program tries, its tasks fail or gain nothing, the reason is reported, and the agents continue with
/// honest work.
#[test]
fn hostile_programs_gain_nothing_and_honest_bags_complete() {
    let grid = Grid::start(2);
    let (submitter, honest) = (&grid.agents[0], &grid.agents[1]);
    let program = probe_program();
    let program = program.to_str().unwrap();
    let secret = submitter.dir.join("identity.key");
    assert!(secret.exists(), "there is something to steal");
    let submit = |options: &[&str], verb: &[&str]| {
        let common = ["submit", "--program", program, "--work", "50", "--max-retries", "0"];
        let bag = submitter.ask(&[&common, options, &["--"], verb].concat());
        bag["id"].as_str().unwrap().to_owned()
    };
    for agent in &grid.agents {
        agent.configure("[limits]\ntask_time = \"4s\"\n");
        wait_until("the settings count", || agent.log().contains("the settings have changed"));
    }
    let first = honest.submit_sleeps(4, 50);
    let harmful = [
        ("an infinite loop", submit(&["--time-limit", "2s"], &["spin", "100000000"]), "time limit"),
        ("a memory bomb", submit(&["--memory", "32M"], &["allocate", "4000"]), "memory"),
        ("a task without end", submit(&["--time-limit", "30d"], &["spin", "100000000"]), "limits.task_time"),
        ("an endless recursion", submit(&[], &["recurse"]), "call stack"),
        ("a wild pointer", submit(&[], &["wild"]), "memory outside"),
    ];
    let curious = [
        submit(&[], &["cat", "/proc/self/environ"]),
        submit(&[], &["cat", "/etc/passwd"]),
        submit(&[], &["cat", secret.to_str().unwrap()]),
        submit(&[], &["cat", "../../../../identity.key"]),
        submit(&[], &["list", "/proc"]),
        submit(&[], &["list", ".."]),
    ];
    let second = honest.submit_sleeps(4, 50);
    let out = grid.root.path().join("loot");
    let get = |bag: &str| {
        let into = out.join(bag);
        submitter.ask(&["bag", "get", bag, "--out", into.to_str().unwrap()]);
        fs::read_to_string(into.join("0/stdout")).unwrap_or_default()
    };
    let told = |bag: &str| {
        let shown = command(&["--state-dir", submitter.dir.to_str().unwrap(), "bag", "show", bag]);
        String::from_utf8_lossy(&shown.stdout).into_owned()
    };
    for (name, bag, words) in &harmful {
        assert_eq!(submitter.cli(&["bag", "wait", bag]).code, 3, "{name}");
        let shown = submitter.ask(&["bag", "show", bag]);
        assert_eq!(shown["failed"].as_u64(), Some(1), "{name}: {shown}");
        let told = told(bag);
        assert!(told.contains(words), "{name}: {told}");
    }
    for bag in &curious {
        assert_eq!(submitter.cli(&["bag", "wait", bag]).code, 3);
        let stdout = get(bag);
        assert!(!stdout.contains("identity") && stdout.lines().count() <= 1, "{stdout}");
    }
    for bag in [&first, &second] {
        assert_complete(honest, bag, 4);
    }
    for agent in &grid.agents {
        assert_eq!(agent.ask(&["status"])["membership"], "member");
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Joins one more machine to the grid; returns its state directory, of this name.
pub(crate) fn join(grid: &Grid, inviter: &Agent, name: &str) -> PathBuf {
    let token = inviter.ask(&["grid", "invite"])["token"].as_str().expect("a token").to_owned();
    let dir = grid.root.path().join(name);
    fs::create_dir(&dir).unwrap();
    let joined = command(&["--state-dir", dir.to_str().unwrap(), "grid", "join", &token]);
    assert!(joined.status.success(), "{joined:?}");
    dir
}

/// The network of that machine, without an agent above it, and its certificate.
pub(crate) fn enter(dir: &Path) -> (NetHandle, mpsc::Receiver<NetEvent>, Arc<Gate>) {
    let keypair = identity::load_or_create(dir).unwrap();
    let membership = Membership::load(dir, &keypair).unwrap().expect("it has joined");
    let gate = Arc::new(Gate::open(&keypair, Some(membership)).unwrap());
    let blobs = Arc::new(Blobs::open(&dir.join("blobs"), 1 << 20).unwrap());
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    let (net, events) = idlewood_net::start(NetConfig { keypair, gate: gate.clone(), listen }, blobs).unwrap();
    (net, events, gate)
}

pub(crate) fn contact_of(agent: &Agent) -> Contact {
    let status = agent.ask(&["status"]);
    let peer: PeerId = identity::from_libp2p(&status["peer"].as_str().unwrap().parse().unwrap()).unwrap();
    Contact { peer, incarnation: 0, address: status["listen"][0].as_str().unwrap().into(), nonce: None }
}

fn from_hex(text: &str) -> [u8; 32] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal"))
}

/// A member that learns of a bag, as routers do, knows its id and any hashes. It can read what all members may know of
/// the bag, from its submitter and from a machine that runs it, and nothing else; the machine that runs it has read all
/// of it.
#[test]
fn a_member_that_learns_of_a_bag_cannot_read_it() {
    let grid = Grid::start(2);
    let (submitter, host) = (&grid.agents[0], &grid.agents[1]);
    submitter.ask(&["pause"]);
    let input = grid.root.path().join("input");
    fs::write(&input, vec![b'i'; 10_000]).unwrap();
    let program = probe_program();
    let bag = submitter.ask(&[
        "submit",
        "--program",
        program.to_str().unwrap(),
        "--array",
        "0-1",
        "--work",
        "50",
        "--env",
        "PASSWORD=correct horse",
        "--input",
        input.to_str().unwrap(),
        "--",
        "sleep",
        "600000",
    ]);
    let bag = bag["id"].as_str().expect("an id");
    wait_until("it runs", || !host.ask(&["status"])["running"].as_array().expect("a list").is_empty());
    let id = BagId(from_hex(bag));
    let of = |agent: &Agent, hash: [u8; 32]| {
        let name = Hash::from(hash).to_string();
        fs::read(agent.dir.join("blobs").join(&name[..2]).join(&name[2..])).expect("it is on its disk")
    };
    let signed = of(submitter, id.0);
    let Opened::Envelope(envelope) = Opened::read(&Opened::unsealed(&signed).unwrap()).unwrap() else {
        panic!("it has no envelope")
    };
    let manifest = of(host, envelope.manifest.0);
    let contains = |bytes: &[u8], words: &[u8]| bytes.windows(words.len()).any(|window| window == words);
    assert!(contains(&manifest, b"correct horse") && !contains(&signed, b"correct horse"));
    let needs = envelope.manifest(&manifest).unwrap();
    let hidden = [envelope.manifest.0].into_iter().chain(needs.blobs().map(|need| need.blob.0));
    let hidden: Vec<[u8; 32]> = hidden.collect();
    assert_eq!(hidden.len(), 3, "the manifest, the input, the program");

    let dir = join(&grid, submitter, "curious");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (net, _events, _) = enter(&dir);
        for agent in [submitter, host] {
            let (to, key) = (contact_of(agent), Some(BagKey::from(id.0)));
            let ask =
                async |hash: [u8; 32], key| net.chunk(&to, Wanted { hash: hash.into(), offset: 0, bag: id, key }).await;
            for &hash in &hidden {
                for key in [None, key] {
                    assert_eq!(ask(hash, key).await, Ok(ChunkReply::Missing), "of {}", agent.dir.display());
                }
                of(agent, hash);
            }
        }
        let whole = ChunkReply::Chunk { total: signed.len() as u64, bytes: signed };
        let wanted = Wanted { hash: id.0.into(), offset: 0, bag: id, key: None };
        assert_eq!(net.chunk(&contact_of(submitter), wanted).await, Ok(whole), "by this it would be judged");
    });
}

/// A hostile member of the grid, with a valid certificate: connections that send nothing or nonsense, whole frames of
/// nonsense, claims about tasks that it was never given, floods of requests, all at once.
#[test]
fn a_hostile_machine_of_the_grid_keeps_no_bag_from_completing() {
    let grid = Grid::start(3);
    let (victim, submitter) = (&grid.agents[0], &grid.agents[1]);
    let dir = join(&grid, victim, "hostile");
    let (to, honest) = (contact_of(victim), contact_of(submitter));
    let bag = submitter.submit_sleeps(60, 100);
    let id = BagId(from_hex(&bag));

    let port = to.address.rsplit('/').find_map(|part| part.parse::<u16>().ok()).expect("a port");
    let mut connections: Vec<TcpStream> =
        (0..200).filter_map(|_| TcpStream::connect(("127.0.0.1", port)).ok()).collect();
    for connection in connections.iter_mut().step_by(2) {
        // It may have been turned away by now.
        drop(connection.write_all(&[0xa5; 3000]));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (net, mut events, _) = enter(&dir);
        let heard = tokio::spawn(async move {
            // It ignores what it receives.
            while let Some(event) = events.recv().await {
                if let NetEvent::Unreachable(_) = event {}
            }
        });
        let ranges = IntervalSet::from(0..1);
        // It has no task of that bag, uses the submitter's address, and signs nothing.
        let executor = Speaker::from(&honest);
        let decline = Message::Decline { bag: id, ranges: ranges.clone(), reason: DeclineReason::Role };
        let finished = Finished {
            success: true,
            crashed: false,
            output: BlobId([7; 32]),
            output_bytes: 1,
            content: None,
            work_mops: 50.0,
            exit_code: Some(0),
            fingerprint: None,
            times: 1.0,
        };
        let results = vec![TaskResult::of(1, 0, finished)];
        let results = Message::Results { bag: id, executor, results, signature: None };
        let valid = Message::ResultsAck { bag: BagId([7; 32]), attempt: 0, indices: ranges };
        let (decline, results, valid) = (decline.encode(), results.encode(), valid.encode());
        // Its own connection is delayed, too, while so many of its address fail.
        let begin = Instant::now();
        while !is_counted(victim, submitter) {
            let statuses = [victim, submitter].map(|agent| agent.ask(&["status"]));
            assert!(begin.elapsed() < PATIENCE, "{statuses:?}");
            for number in 0..2000_u32 {
                match number % 100 {
                    0 => net.send(&to, vec![0xff; 50]),
                    1 => net.send(&honest, decline.clone()),
                    2 => net.send(&honest, results.clone()),
                    _ => net.send(&to, valid.clone()),
                };
            }
            for number in 0..50 {
                // Whether the answer is that the other is busy or has no such blob.
                let wanted = Wanted { hash: [number; 32].into(), offset: 0, bag: id, key: None };
                let ask = net.chunk(&to, wanted);
                drop(tokio::time::timeout(Duration::from_millis(2), ask).await);
            }
        }
        heard.abort();
    });
    assert_complete(submitter, &bag, 60);
    let after = victim.submit_sleeps(6, 50);
    assert_complete(victim, &after, 6);
    for agent in &grid.agents {
        let status = agent.ask(&["status"]);
        assert_eq!(
            (status["membership"].as_str(), status["grid_machines"].as_u64()),
            (Some("member"), Some(3)),
            "{status}"
        );
    }
}

/// Whether refused messages are counted.
fn is_counted(victim: &Agent, submitter: &Agent) -> bool {
    let [status, lied_to] = [victim, submitter].map(|agent| agent.ask(&["status"]));
    let count = |value: &Value| value.as_u64().expect("a number");
    let admissions = &status["admissions"];
    let refused = count(&admissions["unfinished"]) + count(&admissions["wrong_grid"]) + count(&admissions["held_off"]);
    let seen = [refused, count(&status["protocol_errors"]), count(&lied_to["results_unsigned"])];
    !seen.contains(&0)
}

/// An owner's change of mind takes effect at once, and not when tasks have ended.
#[test]
fn running_tasks_stop_when_the_owner_declines_them() {
    let grid = Grid::start(2);
    let (submitter, host) = (&grid.agents[0], &grid.agents[1]);
    submitter.ask(&["pause"]);
    let bag = submitter.submit_sleeps(4, 600_000);
    wait_until("it runs", || !host.ask(&["status"])["running"].as_array().expect("a list").is_empty());
    let unwanted = submitter.ask(&["status"])["peer"].clone();
    host.configure(&format!("[bags]\ndeny_submitters = [{unwanted}]\n"));
    wait_until("it stops", || host.holds() == 0);
    assert!(host.log().contains("a bag may not be here any more"));
    submitter.ask(&["bag", "cancel", &bag]);
    let other = host.submit_sleeps(2, 50);
    assert_complete(host, &other, 2);
}

/// A program that prints the time and random numbers prints the same on two machines; otherwise no two would agree.
#[test]
fn a_deterministic_task_prints_the_same_on_every_machine() {
    let grid = Grid::start(2);
    let submitter = &grid.agents[0];
    let program = probe_program().with_file_name("../chance/chance.wasm");
    let program = program.to_str().unwrap();
    let outputs = |options: &[&str]| {
        let common = ["submit", "--program", program, "--array", "0-3", "--work", "50"];
        let bag = submitter.ask(&[&common, options].concat())["id"].as_str().unwrap().to_owned();
        assert_complete(submitter, &bag, 4);
        let shown = submitter.ask(&["bag", "show", &bag]);
        let out = grid.root.path().join(&bag);
        submitter.ask(&["bag", "get", &bag, "--out", out.to_str().unwrap()]);
        let said: Vec<String> =
            (0..4).map(|index| fs::read_to_string(out.join(index.to_string()).join("stdout")).unwrap()).collect();
        (said, shown["disputed"].as_u64())
    };
    let (first, disputed) = outputs(&["--replicas", "2", "--quorum", "2"]);
    assert_eq!(disputed, Some(0), "both machines said it");
    let (again, _) = outputs(&["--deterministic"]);
    assert_eq!(first, again, "in another bag, wherever it ran");
    assert_ne!(first, outputs(&[]).0, "it is not all that it ever says");
}

/// Compiled code on the last agent: of a program with output, and of one without. If its owner replaces the first by
/// the second, everything that it signs is right but for the output.
fn machine_code(grid: &Grid) -> [PathBuf; 2] {
    let liar = &grid.agents[3];
    let modules = liar.dir.join("modules");
    [probe_program(), probe_program().with_file_name("../noop/noop.wasm")].map(|program| {
        let known = names(&modules);
        // It runs the first task itself, to measure how long one takes.
        let bag = liar.ask(&["submit", "--program", program.to_str().unwrap(), "--", "hello"]);
        assert_complete(liar, bag["id"].as_str().unwrap(), 1);
        let new: Vec<String> = names(&modules).into_iter().filter(|name| !known.contains(name)).collect();
        assert_eq!(new.len(), 1, "{new:?}");
        modules.join(&new[0])
    })
}

/// From now on the last agent lies.
fn teach_to_lie(grid: &mut Grid, compiled: &[PathBuf; 2]) {
    grid.agents[3].terminate();
    fs::copy(&compiled[1], &compiled[0]).unwrap();
    grid.run(3);
    grid.wait_until_formed(4);
}

/// Runs a bag of the first agent; returns its state, and how many results are true.
fn said(grid: &Grid, tasks: usize, options: &[&str]) -> (Value, usize) {
    let (submitter, program) = (&grid.agents[0], probe_program());
    let array = format!("0-{}", tasks - 1);
    let common = ["submit", "--program", program.to_str().unwrap(), "--array", &array, "--work", "50"];
    let bag = submitter.ask(&[&common, options, &["--", "hello", "{index}"]].concat());
    let bag = bag["id"].as_str().unwrap().to_owned();
    assert_complete(submitter, &bag, tasks);
    let out = grid.root.path().join(&bag);
    submitter.ask(&["bag", "get", &bag, "--out", out.to_str().unwrap()]);
    let truth = |index: &usize| {
        let stdout = fs::read_to_string(out.join(index.to_string()).join("stdout")).unwrap();
        stdout.contains(&format!("argument {index}\n"))
    };
    (submitter.ask(&["bag", "show", &bag]), (0..tasks).filter(truth).count())
}

/// Asserts that the last agent is distrusted after so many detected lies.
fn assert_judged(grid: &Grid, disputed: u64) {
    let liar = grid.agents[3].ask(&["status"])["peer"].as_str().unwrap().to_owned();
    let distrusted = grid.agents[0].ask(&["status"])["distrusted"].clone();
    let expected = if disputed >= 3 { vec![liar] } else { Vec::new() };
    assert_eq!(distrusted, serde_json::json!(expected), "after {disputed} lies");
}

#[test]
fn a_lying_machine_is_outvoted_and_loses_its_reputation() {
    const TASKS: usize = 16;
    let mut grid = Grid::start(4);
    let compiled = machine_code(&grid);
    teach_to_lie(&mut grid, &compiled);
    let (_, truths) = said(&grid, TASKS, &[]);
    assert!(truths < TASKS, "it lies, and is believed");
    let (shown, truths) = said(&grid, TASKS, &["--replicas", "2"]);
    assert_eq!(truths, TASKS, "{shown}");
    let disputed = shown["disputed"].as_u64().unwrap();
    assert!(disputed > 0, "{shown}");
    assert_judged(&grid, disputed);
}

/// It was honest for so long that it is believed alone, and lies from then on: a recheck now and then detects that.
#[test]
fn a_machine_that_begins_to_lie_is_detected_by_a_recheck() {
    const TASKS: usize = 40;
    let mut grid = Grid::start(4);
    let compiled = machine_code(&grid);
    // By then each has agreed with others more than twenty times.
    let (shown, truths) = said(&grid, 4 * TASKS, &["--replicas", "2"]);
    assert_eq!((truths, shown["disputed"].as_u64()), (4 * TASKS, Some(0)), "{shown}");
    teach_to_lie(&mut grid, &compiled);
    let (shown, truths) = said(&grid, TASKS, &["--replicas", "2", "--recheck", "1000000"]);
    assert_eq!(shown["disputed"].as_u64(), Some(0), "{shown}");
    assert!(truths < TASKS, "it is not checked, and believed");
    let (shown, truths) = said(&grid, TASKS, &["--replicas", "2", "--recheck", "2"]);
    let disputed = shown["disputed"].as_u64().unwrap();
    assert!(disputed > 0, "{truths} of {TASKS} are true: {shown}");
    assert_judged(&grid, disputed);
    let (shown, again) = said(&grid, TASKS, &["--replicas", "2", "--recheck", "2"]);
    assert_eq!(again, TASKS, "it is not believed alone any more: {shown}");
}

/// Whatever the user's umask: keys, token, outputs of tasks, and the ticket with a key in it.
#[test]
fn no_file_of_an_agent_can_be_read_by_other_users() {
    let _turn = alone();
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    let open = |args: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask 000 && exec \"$0\" \"$@\"", AGENT, "--state-dir", state.to_str().unwrap()]).args(args);
        shell.stdin(Stdio::null());
        shell
    };
    let ask = |args: &[&str]| {
        let output = open(&[&["--output", "json"], args].concat()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    };
    ask(&["grid", "create", "--name", "lab"]);
    let run = [
        "run",
        "--speed-mops",
        "1000",
        "--die-with-parent",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
        "--owner-probe",
        "/nowhere",
    ];
    let mut agent = open(&run).env("XDG_RUNTIME_DIR", root.path()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the agent answers", || open(&["status"]).output().unwrap().status.success());
    ask(&["grid", "invite"]);
    let program = probe_program();
    let submit = ["submit", "--program", program.to_str().unwrap(), "--array", "0-3", "--work", "50", "--"];
    let done = ask(&[&submit[..], &["hello"]].concat())["id"].as_str().unwrap().to_owned();
    ask(&["bag", "wait", &done]);
    let bag = ask(&[&submit[..], &["sleep", "600000"]].concat())["id"].as_str().unwrap().to_owned();
    wait_until("it runs", || ask(&["status"])["running"].as_array().is_some_and(|running| !running.is_empty()));
    let ticket = root.path().join("ticket");
    ask(&["bag", "ticket", &bag, "--to", ticket.to_str().unwrap()]);

    let (mut seen, mut open_to_others) = (0, Vec::new());
    let mut left = vec![state.clone(), ticket];
    while let Some(path) = left.pop() {
        // Files disappear while tasks run.
        let Ok(metadata) = path.symlink_metadata() else { continue };
        seen += 1;
        if !metadata.is_symlink() && metadata.permissions().mode() & 0o077 != 0 {
            open_to_others.push(format!("{} {:o}", path.display(), metadata.permissions().mode()));
        }
        left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(seen > 20, "{seen} are not all");
    assert!(open_to_others.is_empty(), "{open_to_others:#?}");
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Makes nested directories, however long their path gets.
fn nest(root: &Path, levels: usize) {
    let chain = |number: usize| format!("{number}{}", "/d".repeat(499));
    for number in 0..levels / 500 {
        fs::create_dir_all(root.join(chain(number))).unwrap();
        if number > 0 {
            fs::rename(root.join((number - 1).to_string()), root.join(chain(number)).join("below")).unwrap();
        }
    }
}

/// Depth and permissions of a task's leftovers prevent neither their removal nor the next start.
#[test]
fn deep_directories_end_their_task_and_nothing_else() {
    let mut grid = Grid::start(2);
    let program = probe_program().with_file_name("../hoard/hoard.wasm");
    let program = program.to_str().unwrap();
    let submitter = &grid.agents[0];
    for levels in ["1500", "30000"] {
        let common = ["submit", "--program", program, "--array", "0-3", "--work", "50", "--max-retries", "0", "--"];
        let bag = submitter.ask(&[&common[..], &["nest", levels, "0"]].concat());
        let bag = bag["id"].as_str().unwrap();
        assert_eq!(submitter.cli(&["bag", "wait", bag]).code, 3);
        assert_eq!(submitter.ask(&["bag", "show", bag])["failed"].as_u64(), Some(4));
        let shown = command(&["--state-dir", submitter.dir.to_str().unwrap(), "bag", "show", bag]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("too deep"), "{shown}");
    }
    for agent in &grid.agents {
        wait_until("what the tasks left is gone", || {
            let attempts = homes(agent).iter().map(|home| names(&home.join("out")).len()).sum::<usize>();
            attempts == 0
        });
        assert!(!agent.log().contains("cannot remove"), "{}", agent.log());
    }
    // As tasks of a killed agent leave them.
    grid.agents[1].kill();
    let left = grid.agents[1].dir.join("scratch/0/left/out/0/work");
    fs::create_dir_all(&left).unwrap();
    nest(&left, 20_000);
    fs::set_permissions(&left, fs::Permissions::from_mode(0o000)).unwrap();
    grid.run(1);
    let agent = &grid.agents[1];
    wait_until("what was left is gone", || agent.log().contains("removed what tasks of an earlier agent left"));
    assert_eq!(names(&agent.dir.join("scratch")).len(), 1, "{}", agent.log());
    let honest = agent.submit_sleeps(4, 50);
    assert_complete(agent, &honest, 4);
}

/// The directories of bags that have tasks on an agent.
fn homes(agent: &Agent) -> Vec<PathBuf> {
    let scratch = agent.dir.join("scratch");
    names(&scratch)
        .iter()
        .flat_map(|life| {
            let life = scratch.join(life);
            names(&life).into_iter().map(move |home| life.join(home))
        })
        .collect()
}
