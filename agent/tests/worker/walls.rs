//! What a worker cannot reach, and what one that was taken over cannot do.

use super::*;

/// Whatever a task gains by a defect of the runtime, its process is behind the second wall.
#[test]
fn a_worker_that_runs_a_task_is_confined() {
    let mut setup = Setup::new(1);
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
    let status = fs::read_to_string(format!("/proc/{}/status", setup.only_pid())).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!([field("NoNewPrivs:"), field("Seccomp:"), field("Seccomp_filters:")], [Some("1"), Some("2"), Some("2")]);
}

/// Files of another bag are as closed to a worker as the owner's letters, even if a job names them.
#[test]
fn files_elsewhere_are_closed_to_a_worker() {
    let mut setup = Setup::new(1);
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("letter"), "dear").unwrap();
    for change in [
        (|job, path| job.checkpoint = Some(path)) as fn(&mut Job, PathBuf),
        |job, path| job.directory = path,
        |job, path| job.stdin = Stdin::File(path.join("letter")),
    ] {
        let mut job = setup.job("probe", &["exit", "0"]);
        change(&mut job, elsewhere.path().to_owned());
        let outcome = setup.run(&job).outcome;
        // By Landlock, or by seccomp, which comes first.
        let is_refusal = |message: &str| message.contains("denied") || message.contains("not permitted");
        assert!(matches!(&outcome, Outcome::CouldNotStart { message } if is_refusal(message)), "{outcome:?}");
    }
    let mut job = setup.job("probe", &["cat", "inputs/letter"]);
    job.inputs = Some(elsewhere.path().to_owned());
    let ended = setup.run(&job);
    assert_eq!(exited(&job, &ended).1, "");
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0), "the slot goes on");
}

/// A task that broke out could prevent a directory from being made, so that the next worker would not be confined.
#[test]
fn under_the_strict_sandbox_a_worker_that_cannot_be_confined_does_not_run() {
    let mut setup = Setup::new(1);
    fs::write(setup.dir.path().join("file"), "").unwrap();
    let mut job = setup.job("probe", &["exit", "0"]);
    let mut reach = (*setup.reach).clone();
    reach.writable.push(setup.dir.path().join("file/under"));
    job.reach = Arc::new(reach);
    let outcome = setup.run(&job).outcome;
    assert!(!matches!(outcome, Outcome::Exited { .. }), "{outcome:?}");
    assert!(!has_begun(&job));
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0), "what can be confined runs");
}

/// A program sees only its directories: neither the host's files nor processes.
#[test]
fn a_program_reads_nothing_of_the_host() {
    let mut setup = Setup::new(1);
    for path in ["/proc/self/environ", "/proc/1/status", "/etc/passwd", "../stdout", "../../in", "./../../cache"] {
        for verb in ["cat", "list"] {
            let (code, stdout, stderr) = setup.probe(&[verb, path]);
            assert_eq!(code, 1, "{verb} {path}: {stdout}");
            assert!(stdout.lines().chain(stderr.lines()).count() == 1, "{verb} {path}: {stdout}{stderr}");
        }
    }
    // A link may be made and leads nowhere: `meddle` tries, in `inputs_can_be_read_and_nothing_more`.
}

/// There is no function that opens a socket, and a program that imports one is refused.
#[test]
fn a_program_that_wants_the_network_is_refused() {
    let mut setup = Setup::new(1);
    for wanted in ["sock_open", "sock_connect", "sock_bind"] {
        let name = [&[u8::try_from(wanted.len()).unwrap()][..], wanted.as_bytes()].concat();
        let import = [&b"\x01\x16wasi_snapshot_preview1"[..], &name, b"\x00\x00"].concat();
        let mut module = b"\0asm\x01\0\0\0\x01\x04\x01\x60\x00\x00\x02".to_vec();
        module.push(u8::try_from(import.len()).unwrap());
        module.extend(import);
        module.extend(
            b"\x03\x02\x01\x00\x05\x03\x01\x00\x01\x07\x13\x02\x06_start\x00\x01\x06memory\x02\x00\x0a\x04\x01\x02\x00\x0b",
        );
        let program = setup.file("network.wasm", &module);
        let job = setup.job_for_file(&program, &[]);
        let outcome = setup.run(&job).outcome;
        assert!(matches!(&outcome, Outcome::Invalid { message } if message.contains(wanted)), "{wanted}: {outcome:?}");
    }
}

/// No task of another bag meets the files of a worker, or a worker that was taken over.
#[test]
fn a_worker_is_for_one_bag_and_one_program() {
    let mut setup = Setup::new(1);
    let mine = setup.job("probe", &["write", "result.txt", "42"]);
    assert_eq!(setup.run(&mine).outcome, exit(0));
    let pid = setup.only_pid();
    let others = Reach { readable: Vec::new(), writable: vec![setup.dir.path().join("other")] };
    let mut other = setup.job("probe", &["exit", "3"]);
    (other.directory, other.reach) = (setup.dir.path().join("other/task"), Arc::new(others));
    assert_eq!(setup.run(&other).outcome, exit(3));
    let second = setup.only_pid();
    assert_ne!(second, pid);
    assert!(state_of(pid).is_none(), "reaped");
    // It reaches nothing of the first.
    let mut curious = setup.job("probe", &["exit", "0"]);
    curious.reach = other.reach.clone();
    let outcome = setup.run(&curious).outcome;
    assert!(matches!(&outcome, Outcome::CouldNotStart { message } if message.contains("denied")), "{outcome:?}");
    let mut noop = setup.job("noop", &[]);
    (noop.directory, noop.reach) = (setup.dir.path().join("other/noop"), other.reach.clone());
    assert_eq!(setup.run(&noop).outcome, exit(0));
    assert_ne!(setup.only_pid(), second);
    // In one run, too: each in its turn, and all of them end.
    let mut number = 0;
    for reach in [&other.reach, &setup.reach.clone(), &other.reach] {
        for _ in 0..3 {
            let mut job = setup.job("probe", &["exit", &number.to_string()]);
            (job.directory, job.reach) = (reach.writable[0].join(format!("run-{number}")), Arc::clone(reach));
            setup.pool.append(0, &job).unwrap();
            number += 1;
        }
    }
    setup.expect(&(0..9).map(exit).collect::<Vec<_>>());
}

/// Other workers would run machine code that a worker could write.
#[test]
fn a_worker_cannot_reach_compiled_programs_but_its_own() {
    let mut setup = Setup::new(1);
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
    let cache = setup.dir.path().join("cache");
    let files = |cache: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        fs::read_dir(cache)
            .unwrap()
            .map(|file| file.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    };
    let before = files(&cache);
    assert_eq!(before.len(), 1);
    for change in [(|job, cache| job.directory = cache) as fn(&mut Job, PathBuf), |job, cache| {
        job.checkpoint = Some(cache.join("checkpoint"))
    }] {
        let mut job = setup.job("probe", &["exit", "0"]);
        change(&mut job, cache.clone());
        let outcome = setup.run(&job).outcome;
        assert!(matches!(&outcome, Outcome::CouldNotStart { message } if message.contains("denied")), "{outcome:?}");
    }
    let mut job = setup.job("probe", &["list", "inputs"]);
    job.inputs = Some(cache.clone());
    let ended = setup.run(&job);
    assert_eq!(exited(&job, &ended).1, "inputs: Permission denied\n");
    assert_eq!(files(&cache), before);
}

/// A worker that was taken over, played by a shell script that can answer anything.
fn pool_of_liars(dir: &Path, script: &str) -> (Pool, mpsc::Receiver<WorkerEvent>) {
    let (sender, events) = mpsc::channel(8);
    let command = ["/bin/sh", "-c", script].map(OsString::from).to_vec();
    (Pool::new(config(dir, command, 1, sender)).unwrap(), events)
}

/// A shell command that writes a frame.
fn say(content: &[u8]) -> String {
    let mut frame = u32::try_from(content.len()).unwrap().to_le_bytes().to_vec();
    frame.extend(content);
    let octal: String = frame.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("printf '{octal}'; ")
}

/// A worker that breaks the order of the protocol is ended: it can neither restart the clock of its task, nor end jobs
/// that it was not given, nor block the slot.
#[test]
fn a_worker_that_breaks_the_protocol_is_ended_and_its_task_fails() {
    // `Ready { cpu: 0 s }`, and `Done(number, Report { end: Exited { code: 0 }, .. })`.
    let ready = say(b"\xa1\x65Ready\xa1\x63cpu\xa2\x64secs\x00\x65nanos\x00");
    let done = |number: u8| {
        let zero = b"\xa2\x64secs\x00\x65nanos\x00";
        let parts: [&[u8]; 13] = [
            b"\xa1\x64Done\x82",
            &[number],
            b"\xa7\x63end\xa1\x66Exited\xa1\x64code\x00\x64wall",
            zero,
            b"\x63cpu",
            zero,
            b"\x6aworker_cpu",
            zero,
            b"\x70output_truncated",
            b"\xf4",
            b"\x69untouched",
            b"\xf5",
            b"\x67streams\xa2\x66stdout\x40\x66stderr\x40",
        ];
        say(&parts.concat())
    };
    let wait = "exec sleep 1000";
    let dir = tempfile::tempdir().unwrap();
    // The artefact exists, so that the liars are to run it.
    let mut setup = Setup::in_dir(1, dir);
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
    for (script, words) in [
        (format!("{ready}{ready}{wait}"), "out of turn"),
        (format!("{ready}{}{wait}", done(7)), "out of turn"),
        (format!("{}{wait}", done(0)), "out of turn"),
        (format!("{ready}{}{}{wait}", done(0), done(0)), "out of turn"),
        (format!("{ready}{}{wait}", say(b"\x65Begun")), "does not decode"),
        (format!("{ready}printf 'aaaaaaaa'; {wait}"), "frame"),
        (ready.clone(), "exit code 0"),
    ] {
        let (pool, mut events) = pool_of_liars(setup.dir.path(), &script);
        let (first, second) = (setup.job("probe", &["exit", "0"]), setup.job("probe", &["exit", "0"]));
        pool.append(0, &first).unwrap();
        pool.append(0, &second).unwrap();
        let mut outcomes = Vec::new();
        wait_until(|| {
            while let Ok(WorkerEvent::Ended { outcome, .. }) = events.try_recv() {
                outcomes.push(outcome);
            }
            outcomes.iter().any(|outcome| matches!(outcome, Outcome::WorkerDied { reason } if reason.contains(words)))
        });
        // And the slot continues with the next job.
        wait_until(|| {
            while let Ok(WorkerEvent::Ended { outcome, .. }) = events.try_recv() {
                outcomes.push(outcome);
            }
            outcomes.len() == 2
        });
        pool.shutdown();
    }
}

/// A worker's stderr reaches no terminal: it can neither write to one, nor fill the agent's memory, nor make the agent
/// wait.
#[test]
fn a_workers_stderr_is_bounded_and_blocks_nothing() {
    let mut setup = Setup::new(1);
    let job = setup.job("probe", &["exit", "0"]);
    let (pool, mut events) =
        pool_of_liars(setup.dir.path(), "exec 1>&-; while :; do echo \"$0\x1b[2J0123456789\" >&2; done");
    pool.start(0, &job).unwrap();
    // The agent does not wait for a silent stderr.
    let mut outcome = None;
    wait_until(|| {
        outcome = events.try_recv().ok();
        outcome.is_some()
    });
    pool.shutdown();
    let reason_of = |script: &str| {
        let (pool, mut events) = pool_of_liars(setup.dir.path(), script);
        pool.start(0, &job).unwrap();
        let mut outcome = None;
        wait_until(|| {
            outcome = events.try_recv().ok();
            outcome.is_some()
        });
        pool.shutdown();
        match outcome {
            Some(WorkerEvent::Ended { outcome: Outcome::WorkerDied { reason }, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let reason = reason_of("printf 'why\\033[2J' >&2; exit 3");
    assert!(reason.ends_with("(exit code 3): why\\u{1b}[2J"), "{reason}");
    // The beginning of long output is kept.
    let kept = reason_of("head -c 60000 /dev/zero | tr '\\0' x >&2; exit 3").matches('x').count();
    assert!((4000..=4100).contains(&kept), "{kept}");
}

/// A program whose compilation takes long, and memory.
fn large_module(functions: u32) -> Vec<u8> {
    fn leb(mut number: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }
    let section = |number: u8, content: &[u8]| [&[number][..], &leb(content.len() as u32), content].concat();
    // Each sums the values of the one before: (local.get 0)(i32.const n)(i32.mul)(local.set 0), often.
    let mut body = vec![1, 1, 0x7f];
    (0..200).for_each(|number| body.extend([0x20, 0, 0x41, number & 0x3f, 0x6c, 0x41, 7, 0x6a, 0x21, 0]));
    body.push(0x0b);
    let code = [leb(body.len() as u32), body].concat();
    [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, b"\x01\x60\x00\x00"),
        section(3, &[leb(functions), vec![0; functions as usize]].concat()),
        section(5, b"\x01\x00\x01"),
        section(7, b"\x02\x06_start\x00\x00\x06memory\x02\x00"),
        section(10, &[leb(functions), code.repeat(functions as usize)].concat()),
    ]
    .concat()
}

/// A compiling worker has as much memory and disk as that takes, and no more.
#[test]
fn a_worker_that_compiles_is_limited() {
    let mut setup = Setup::new(1);
    let program = setup.file("large.wasm", &large_module(2000));
    let job = setup.job_for_file(&program, &[]);
    setup.pool.start(0, &job).unwrap();
    let mut limits = String::new();
    wait_until(|| {
        let Some(pid) = setup.pool.worker_pids().first().copied() else { return false };
        limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        let most = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
            let mut numbers = line.split_whitespace().map(str::parse::<u64>);
            Some([numbers.next()?.ok()?, numbers.next()?.ok()?])
        };
        most("Max address space") == Some([8 << 30; 2]) && most("Max file size") == Some([512 << 20; 2])
    });
    assert!(setup.pool.stop(0), "it is at it");
    assert_eq!(setup.next().1.outcome, Outcome::Stopped);
}

#[test]
fn a_command_that_is_no_worker_is_reported() {
    for (command, words) in [("/bin/true", "exit code 0"), ("/bin/cat", "frame"), ("/nonexistent", "cannot start")] {
        let dir = tempfile::tempdir().unwrap();
        let (sender, events) = mpsc::channel(1);
        let command = vec![OsString::from(command)];
        let pool = Pool::new(config(dir.path(), command, 1, sender)).unwrap();
        let reach = reach(dir.path());
        let mut setup = Setup { dir, pool, events, tasks: 0, last: 0, reach };
        let outcome = setup.outcome_of(&["exit", "0"]);
        let (Outcome::WorkerDied { reason: said } | Outcome::CouldNotStart { message: said }) = &outcome else {
            panic!("{outcome:?}")
        };
        assert!(said.contains(words), "{said}");
        wait_until(|| setup.pool.worker_pids().is_empty());
    }
}
