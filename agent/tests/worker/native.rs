//! Native programs: shell scripts, since every system has a shell.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

impl Setup {
    /// A job for a script, whose arguments are these.
    pub(super) fn script(&mut self, text: &str, args: &[&str]) -> Job {
        let name = format!("script-{}", self.tasks);
        let program = self.file(&name, format!("#!/bin/bash\n{text}\n").as_bytes());
        Job { native: true, ..self.job_for_file(&program, args) }
    }

    pub(super) fn run_script(&mut self, text: &str, args: &[&str]) -> (u8, String, String) {
        let job = self.script(text, args);
        let ended = self.run(&job);
        exited(&job, &ended)
    }

    fn outcome_of_script(&mut self, text: &str) -> Outcome {
        let job = self.script(text, &[]);
        self.run(&job).outcome
    }
}

/// Processes of a worker's session that are not dead.
fn session_of(worker: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_of_it = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let session = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(3)?.parse::<u32>().ok());
        session == Some(worker) && !is_dead(*pid)
    };
    pids.filter(is_of_it).collect()
}

/// Dead, or killed and waiting for a processor to die on: signal 9 is pending.
fn is_killed(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.is_some_and(|bits| u64::from_str_radix(bits.trim(), 16).is_ok_and(|bits| bits & 1 << 8 != 0))
    };
    is_dead(pid) || pending("SigPnd:") || pending("ShdPnd:")
}

fn trapped(outcome: &Outcome, text: &str) {
    assert!(matches!(outcome, Outcome::Trapped { message } if message.contains(text)), "{text}: {outcome:?}");
}

/// The limit noticed it; or the system, which limits all users but root, and root in control groups, refused it more
/// before that, and it gave up.
fn bombed(outcome: &Outcome) {
    let is_limited = !rustix::process::geteuid().is_root() || idlewood_worker::group_gap().is_none();
    match outcome {
        Outcome::Exited { code } if is_limited => assert_ne!(*code, 0),
        seen => trapped(seen, "processes and threads"),
    }
}

#[test]
fn a_native_task_sees_only_its_input_and_leaves_its_output() {
    let mut setup = Setup::new(1);
    let blob = setup.file("blob", b"precious");
    let tool = setup.file("tool", b"#!/bin/sh\necho $1 is executed\n");
    let inputs = setup.dir.path().join("in/laid-out");
    lay_out(
        &inputs,
        &[
            Input { name: "data".to_owned(), path: blob.clone(), executable: false },
            Input { name: "tools/run.sh".to_owned(), path: tool, executable: true },
        ],
    )
    .unwrap();
    let checkpoint = setup.dir.path().join("out/checkpoint");
    let text = "echo \"$1 $KEY $(cat inputs/data) $(cat)\" | tr a-z A-Z; echo why >&2; mkdir deep; echo 42 >deep/result; inputs/tools/run.sh it; \
                cp /bin/true copied; chmod 755 copied; ./copied; echo mine >checkpoint/state; \
                echo forged >inputs/data; sleep 100 & kill $!; wait $!; exit 7";
    let job = setup.script(text, &["two words"]);
    let job = Job {
        env: vec![("KEY".to_owned(), "value".to_owned())],
        stdin: Stdin::Bytes(b"given".to_vec()),
        inputs: Some(inputs),
        checkpoint: Some(checkpoint.clone()),
        ..job
    };
    let ended = setup.run(&job);
    let (code, stdout, stderr) = exited(&job, &ended);
    assert_eq!((code, stdout.as_str()), (7, "TWO WORDS VALUE PRECIOUS GIVEN\nit is executed\n"), "{stderr}");
    assert!(stderr.starts_with("why\n") && stderr.contains("inputs/data"), "{stderr}");
    assert_eq!(fs::read_to_string(job.work_dir().join("deep/result")).unwrap(), "42\n");
    assert_eq!(fs::read_to_string(checkpoint.join("state")).unwrap(), "mine\n");
    assert_eq!(fs::read(&blob).unwrap(), b"precious");
    assert!(!job.work_dir().join("inputs").is_symlink(), "what led there is no output");
    assert!(!ended.output_truncated && ended.cpu > Duration::ZERO && ended.wall >= ended.cpu / 2, "{ended:?}");
    let (_, stdout, _) = setup.run_script("env; pwd", &[]);
    assert!(
        stdout.lines().all(|line| ["PWD=", "SHLVL=", "_=", "/"].iter().any(|known| line.starts_with(known))),
        "{stdout}"
    );
}

#[test]
fn a_program_that_cannot_be_executed_is_reported() {
    let mut setup = Setup::new(1);
    for (content, text) in
        [(&b"\x7fELF nonsense"[..], "cannot execute"), (b"#!/no/such/lua -v\n", "does not have /no/such/lua, which")]
    {
        let program = setup.file("odd", content);
        let job = Job { native: true, ..setup.job_for_file(&program, &[]) };
        let outcome = setup.run(&job).outcome;
        assert!(matches!(&outcome, Outcome::Trapped { message } if message.contains(text)), "{outcome:?}");
    }
    let mut job = setup.script("exit 0", &[]);
    job.program_hash[0] ^= 1;
    let outcome = setup.run(&job).outcome;
    assert!(matches!(&outcome, Outcome::CouldNotStart { message } if message.contains("damaged")), "{outcome:?}");
    trapped(&setup.outcome_of_script("kill -SEGV $$"), "signal 11");
    assert_eq!(setup.outcome_of_script("exit 3"), exit(3), "the slot goes on");
    // One after the other, each on a worker of its own.
    for number in 0..3 {
        let job = setup.script(&format!("exit {number}"), &[]);
        setup.pool.append(0, &job).unwrap();
    }
    setup.expect(&(0..3).map(exit).collect::<Vec<_>>());
}

/// Many at once, or ever more of them: the task fails, and no process remains.
#[test]
fn a_fork_bomb_ends_as_a_failed_task() {
    let mut setup = Setup::new(1);
    for bomb in ["while :; do (kill -STOP $BASHPID) & done", "bomb() { bomb & bomb & }; while :; do bomb; done"] {
        let job = Job { memory_bytes: mib(1024), ..setup.script(bomb, &[]) };
        setup.pool.start(0, &job).unwrap();
        let worker = setup.only_pid();
        bombed(&setup.next().1.outcome);
        // Hundreds at the lowest priority may take long to die, and do nothing else any more.
        let all = session_of(worker);
        let mut alive = all.clone();
        wait_until(|| {
            alive.retain(|pid| !is_killed(*pid));
            alive.is_empty()
        });
        assert!(session_of(worker).iter().all(|pid| all.contains(pid)), "others came");
    }
    assert_eq!(setup.outcome_of_script("exit 0"), exit(0));
}

/// All descendants of a program stop with it, and end with it.
#[test]
fn all_descendants_stop_and_end_together() {
    let mut setup = Setup::new(1);
    let text = "spin() { while :; do :; done; }; (spin & spin &) ; (trap '' HUP TERM CONT TSTP; spin) & : >ready; \
                while :; do kill -CONT -1; kill -CONT 0; done 2>/dev/null";
    let job = setup.script(text, &[]);
    setup.pool.start(0, &job).unwrap();
    let worker = setup.only_pid();
    wait_until(|| job.work_dir().join("ready").exists());
    // The worker, the first process, the shell, and three that only spin.
    let mut tree = session_of(worker);
    assert_eq!(tree.len(), 6);
    let mut known = setup.pool.worker_pids();
    known.sort_unstable();
    tree.sort_unstable();
    assert_eq!(known, tree, "whose processor time is not the owner's");
    setup.pool.freeze();
    wait_until(|| tree.iter().all(|pid| state_of(*pid) == Some('T')));
    let ticks = |tree: &[u32]| tree.iter().map(|pid| ticks_of(*pid)).sum::<u64>();
    let before = ticks(&tree);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((ticks(&tree), session_of(worker).len()), (before, tree.len()));
    setup.pool.thaw();
    wait_until(|| ticks(&tree) > before);
    assert!(setup.pool.stop(0));
    assert_eq!(setup.next().1.outcome, Outcome::Stopped);
    wait_until(|| session_of(worker).is_empty());
    // Processes left behind by a program that ends do not remain either.
    let job = setup.script("(sleep 1000 &) ; sleep 1000 & exit 4", &[]);
    setup.pool.start(0, &job).unwrap();
    let worker = setup.only_pid();
    assert_eq!(setup.next().1.outcome, exit(4));
    wait_until(|| session_of(worker).is_empty());
}

/// A task's standard input is a file of the host: tries to change its rights through the open file.
const CHANGE_OF_STDIN: &str = r#"perl -e 'chmod 0666, *STDIN or die "$!\n"'"#;
/// `clone` of a child whose end sends SIGCONT.
#[cfg(target_arch = "x86_64")]
const CHILD_THAT_WAKES: &str = r#"perl -e 'syscall(56, 18, 0, 0, 0, 0) != -1 or die "$!\n"'"#;

#[test]
fn a_native_program_reaches_nothing_of_the_host() {
    let mut setup = Setup::new(1);
    let secret = setup.dir.path().join("secret");
    fs::write(&secret, "the owner's").unwrap();
    let ours = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = ours.local_addr().unwrap().port();
    let (secret, agent) = (secret.to_str().unwrap(), std::process::id());
    for attempt in [
        format!("cat {secret}"),
        format!("echo mine >>{secret}"),
        format!("chmod 666 {secret}"),
        format!("touch {secret}"),
        format!("mv {secret} ."),
        format!("ln {secret} here"),
        format!("ln -s {secret} here; cat here"),
        format!("ls {}", setup.dir.path().display()),
        format!("cat /proc/{agent}/environ"),
        "cat /proc/self/environ".to_owned(),
        "ls /proc".to_owned(),
        "cat /etc/passwd".to_owned(),
        "ls /root /home /tmp /run /dev".to_owned(),
        "echo mine >/tmp/mine".to_owned(),
        "echo mine >/usr/mine".to_owned(),
        "echo mine >../stdout".to_owned(),
        "echo mine >../program".to_owned(),
        "rm -r ../work".to_owned(),
        "mkfifo pipe".to_owned(),
        format!("kill -0 {agent}"),
        "kill -CONT $$".to_owned(),
        "setsid true".to_owned(),
        "unshare -U true".to_owned(),
        "mount --bind . .".to_owned(),
        CHANGE_OF_STDIN.to_owned(),
        #[cfg(target_arch = "x86_64")]
        CHILD_THAT_WAKES.to_owned(),
        format!("echo hello >/dev/tcp/127.0.0.1/{port}"),
        format!("echo hello >/dev/udp/127.0.0.1/{port}"),
    ] {
        let (code, stdout, stderr) = setup.run_script(&attempt, &[]);
        assert!(code != 0 && stdout.is_empty() && !stderr.is_empty(), "{attempt}: {code} {stdout}{stderr}");
    }
    assert_eq!(fs::read_to_string(secret).unwrap(), "the owner's");
    ours.set_nonblocking(true).unwrap();
    assert!(ours.accept().is_err(), "nobody came");
}

/// Ways to ask for the file at a path, or for the mounts of the system, each in a command that fails, or prints
/// nothing, if it gets no answer.
fn questions_about(path: &str) -> Vec<String> {
    let questions = [
        "stat PATH",
        "readlink PATH/link",
        "ls -ld PATH",
        "[ -e PATH ] && echo there",
        "cd PATH && echo there",
        "stat -f PATH",
        "touch -c -d @1 PATH/secret && [ -e PATH/secret ] && echo touched",
        #[cfg(target_arch = "x86_64")]
        r#"perl -e 'print syscall(191, "PATH/secret", "user.note", my $text = " " x 64, 64) < 0 ? "" : $text'"#,
        #[cfg(target_arch = "x86_64")]
        r#"perl -e 'print syscall(194, "PATH/secret", my $text = " " x 64, 64) < 0 ? "" : $text'"#,
    ];
    questions.iter().map(|question| question.replace("PATH", path)).collect()
}

/// Calls that tell all mounts, `listmount` and `statmount`: a kernel without them answers ENOSYS, which is 38.
#[cfg(target_arch = "x86_64")]
const MOUNTS: [&str; 2] = [
    r#"perl -e 'syscall(458, pack("LLQQ", 24, 0, ~0, 0), my $ids = " " x 800, 100, 0); print $! == 38 ? "" : "known\n"'"#,
    r#"perl -e 'syscall(457, pack("LLQQ", 24, 0, ~0, 8), my $text = " " x 800, 800, 0); print $! == 38 ? "" : "known\n"'"#,
];

/// A directory of the owner's, with a file, its attribute and a link, none of which Landlock hides.
fn owners_directory(setup: &Setup) -> PathBuf {
    let directory = setup.dir.path().join("owners");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("secret"), "the owner's").unwrap();
    std::os::unix::fs::symlink("/where/the/owner/works", directory.join("link")).unwrap();
    // Not every file system keeps attributes.
    let flags = rustix::fs::XattrFlags::empty();
    let _ = rustix::fs::setxattr(directory.join("secret"), "user.note", b"the owner's", flags);
    directory
}

/// In a root of its own a program finds nothing of the owner's, not even that it exists.
#[test]
fn the_owner_s_paths_do_not_exist_for_native_programs() {
    let mut setup = Setup::new(1);
    let owners = owners_directory(&setup);
    let before = fs::metadata(owners.join("secret")).unwrap().modified().unwrap();
    let mut questions = questions_about(&owners.display().to_string());
    questions.extend(["/home", "/root", "/var", "/etc/passwd", "/proc/1", "/sys"].map(|path| format!("stat {path}")));
    #[cfg(target_arch = "x86_64")]
    questions.extend(MOUNTS.map(str::to_owned));
    for question in questions {
        let (_, stdout, stderr) = setup.run_script(&question, &[]);
        assert!(stdout.is_empty(), "{question}: {stdout}{stderr}");
    }
    assert_eq!(fs::metadata(owners.join("secret")).unwrap().modified().unwrap(), before);
    // Nor does it learn where it is.
    let job = Job { inputs: Some(setup.dir.path().join("in")), ..setup.script("pwd; readlink inputs; echo $0", &[]) };
    let ended = setup.run(&job);
    assert_eq!(exited(&job, &ended).1, "/task/work\n/task/inputs\n/task/program\n");
    // The installed system is there, and the task's own files.
    let own = "set -e; touch -d @7 mine; stat -c %Y mine; ln -s mine link; readlink link; stat -f . >/dev/null; \
               test -x /bin/sh -a -d /usr -a -c /dev/null; df . | wc -l";
    assert_eq!(setup.run_script(own, &[]).1, "7\nmine\n2\n");
}

#[test]
fn the_limits_hold_for_native_programs() {
    let mut setup = Setup::new(1);
    let spin = Job { time_limit: Some(Duration::from_secs(1)), ..setup.script("while :; do :; done", &[]) };
    let ended = setup.run(&spin);
    assert_eq!(ended.outcome, Outcome::TimedOut { limit: Duration::from_secs(1) });
    assert!(ended.cpu > Duration::from_millis(100), "what it computed is not told: {ended:?}");
    // One process alone gets no more memory; several together are noticed.
    let (code, _, stderr) = setup.run_script("dd if=/dev/zero of=/dev/null bs=200M count=1", &[]);
    assert!(code != 0 && stderr.contains("memory"), "{code} {stderr}");
    let hoard = "for i in 1 2 3 4; do dd if=/dev/zero bs=30M | sleep 1000 & done; wait";
    trapped(&setup.outcome_of_script(hoard), "memory");
    let flood = setup.script("exec yes", &[]);
    let ended = setup.run(&flood);
    trapped(&ended.outcome, "signal 13");
    assert!(ended.output_truncated);
    assert_eq!(fs::metadata(flood.stdout_path()).unwrap().len(), flood.output_bytes);
    let over = Outcome::OverDisk { limit_bytes: mib(1) };
    assert_eq!(setup.outcome_of_script("head -c 4000000 /dev/zero >large; exit 0"), over);
    assert_eq!(setup.outcome_of_script("for i in 1 2 3; do head -c 500000 /dev/zero >$i; done; sleep 1000"), over);
}

/// A nameless file, even one that is only mapped, occupies the disk as before.
#[test]
fn removed_files_held_open_count_for_native_programs() {
    let mut setup = Setup::new(1);
    let over = Outcome::OverDisk { limit_bytes: mib(1) };
    let held = "for i in 3 4 5; do eval \"exec $i<>held\"; rm held; head -c 500000 /dev/zero >&$i; done; sleep 1000";
    assert_eq!(setup.outcome_of_script(held), over);
    // By a child alone; and as an executable that runs.
    let inherited = "exec 3<>held; rm held; head -c 1000000 /dev/zero >&3; sleep 1000 & exec 3<&-; \
                     head -c 60000 /dev/zero >more; sleep 1000";
    assert_eq!(setup.outcome_of_script(inherited), over);
    let run = "for i in 1 2; do cp $(command -v sh) run; head -c 2500000 /dev/zero >>run; ./run -c \": >$i; sleep 1000; :\" & \
               until [ -e $i ]; do :; done; rm run; done; sleep 1000";
    let job = Job { disk_bytes: mib(4), ..setup.script(run, &[]) };
    assert_eq!(setup.run(&job).outcome, Outcome::OverDisk { limit_bytes: mib(4) });
    // All of it within the limit.
    assert_eq!(setup.outcome_of_script("exec 3<>held; rm held; head -c 900000 /dev/zero >&3; sleep 2.5"), exit(0));
}

/// Only root learns the size of a file that is only mapped. The `:` after the shell's `sleep` keeps the shell, and its
/// mapping: without it the shell becomes the `sleep`, which may start after `mine` is gone.
#[test]
fn removed_and_mapped_files_are_measured_or_count_as_over() {
    let mut setup = Setup::new(1);
    let map = "cp $(ldd /bin/bash | grep -o '/[^ ]*/libc.so[^ ]*') mine; \
               LD_PRELOAD=$PWD/mine bash -c ': >ready; sleep 1000; :' & until [ -e ready ]; do :; done; rm mine; \
               head -c 2000000 /dev/zero >more; sleep 1000";
    // Each of the two is within it.
    let job = Job { disk_bytes: mib(3), ..setup.script(map, &[]) };
    let outcome = setup.run(&job).outcome;
    if has_map_files() {
        assert_eq!(outcome, Outcome::OverDisk { limit_bytes: mib(3) });
    } else {
        trapped(&outcome, "removed and closed");
    }
}

/// Whether this process may see other processes' mappings.
fn has_map_files() -> bool {
    let own = fs::read_dir("/proc/self/map_files").unwrap().flatten().next().unwrap();
    fs::metadata(own.path()).is_ok()
}

/// Rights that a task removes, from the agent as from itself.
#[test]
fn directories_without_rights_count_and_are_removed() {
    let mut setup = Setup::new(1);
    let text = "mkdir -p closed/deep; head -c 500000 /dev/zero >closed/file; chmod 0 closed/deep closed; sleep 1000";
    let job = setup.script(text, &[]);
    setup.pool.start(0, &job).unwrap();
    if rustix::process::geteuid().is_root() {
        // It is still read, and is within the limit.
        wait_until(|| fs::metadata(job.work_dir().join("closed")).is_ok_and(|it| it.permissions().mode() & 0o777 == 0));
        setup.pool.stop(0);
        assert_eq!(setup.next().1.outcome, Outcome::Stopped);
    } else {
        trapped(&setup.next().1.outcome, "cannot be read");
    }
    removal::remove(&job.directory).unwrap();
    assert!(!job.directory.exists());
}

/// Space beyond the end of a file, which its size does not show.
#[test]
fn no_space_is_allocated_beyond_the_end_of_a_file() {
    let mut setup = Setup::new(1);
    let (code, _, stderr) = setup.run_script(": >file; fallocate --keep-size --length 1000000 file", &[]);
    assert!(code != 0 && stderr.contains("not permitted"), "{code} {stderr}");
    let (code, _, stderr) = setup.run_script("fallocate --length 10000 file", &[]);
    assert_eq!(code, 0, "{stderr}");
}

/// Not a test by itself: what [`without_namespaces_the_rest_holds`] runs without namespaces.
#[test]
#[ignore = "run by another test"]
fn natives_where_there_are_no_namespaces() {
    assert!(idlewood_worker::native_gap().is_some(), "there are none");
    let mut strict = Setup::new(1);
    let outcome = strict.outcome_of_script("exit 0");
    assert!(matches!(&outcome, Outcome::WorkerDied { reason } if reason.contains("asked for all")), "{outcome:?}");

    let mut setup = Setup::new(1);
    let (sender, events) = mpsc::channel(EVENTS_AHEAD);
    let command = vec![OsString::from(env!("CARGO_BIN_EXE_idlewood")), OsString::from("worker")];
    let lenient = PoolConfig { strict: false, ..config(setup.dir.path(), command, 1, sender) };
    (setup.pool, setup.events) = (Pool::new(lenient).unwrap(), events);
    assert_eq!(setup.run_script("echo hello | tr a-z A-Z; exit 7", &[]), (7, "HELLO\n".to_owned(), String::new()));
    let secret = setup.dir.path().join("secret");
    fs::write(&secret, "the owner's").unwrap();
    let (secret, agent) = (secret.to_str().unwrap(), std::process::id());
    for attempt in [
        format!("cat {secret}"),
        format!("chmod 666 {secret}"),
        format!("kill -0 {agent}"),
        "sleep 100 & kill $!".to_owned(),
        "cat /proc/self/environ".to_owned(),
        "setsid true".to_owned(),
        "unshare -U true".to_owned(),
        CHANGE_OF_STDIN.to_owned(),
        #[cfg(target_arch = "x86_64")]
        CHILD_THAT_WAKES.to_owned(),
        "echo hello >/dev/tcp/127.0.0.1/9".to_owned(),
    ] {
        let (code, stdout, stderr) = setup.run_script(&attempt, &[]);
        assert!(code != 0 && stdout.is_empty() && !stderr.is_empty(), "{attempt}: {code} {stdout}{stderr}");
    }
    // Existence, size and times of a file can be seen.
    let owners = owners_directory(&setup);
    let before = fs::metadata(owners.join("secret")).unwrap().modified().unwrap();
    let closed = ["readlink", "stat -f", "touch", "perl"];
    let questions = questions_about(&owners.display().to_string());
    let mut questions: Vec<String> =
        questions.into_iter().filter(|question| closed.iter().any(|way| question.starts_with(way))).collect();
    questions.push("head -c 1 /dev/zero".to_owned());
    #[cfg(target_arch = "x86_64")]
    questions.extend(MOUNTS.map(str::to_owned));
    for question in questions {
        let (_, stdout, stderr) = setup.run_script(&question, &[]);
        assert!(stdout.is_empty(), "{question}: {stdout}{stderr}");
    }
    assert_eq!(fs::metadata(owners.join("secret")).unwrap().modified().unwrap(), before);
    assert_eq!(setup.run_script("touch mine; cd ../work; pwd -P >/dev/null; echo $?", &[]).1, "0\n");
    for (text, outcome) in
        [("(sleep 1000 &) ; sleep 1000 & exit 4", Some(4)), ("while :; do (sleep 1000) & done", None)]
    {
        let job = Job { memory_bytes: mib(1024), ..setup.script(text, &[]) };
        setup.pool.start(0, &job).unwrap();
        let worker = setup.only_pid();
        match (setup.next().1.outcome, outcome) {
            (Outcome::Exited { code }, Some(expected)) => assert_eq!(code, expected),
            (ended, _) => bombed(&ended),
        }
        let mut alive = session_of(worker);
        wait_until(|| {
            alive.retain(|pid| !is_killed(*pid));
            alive.is_empty()
        });
    }
}

/// A system that gives users no namespaces is one with a limit of none.
#[test]
fn without_namespaces_the_rest_holds() {
    let none = "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-Ur", "sh", "-c", none, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "native::natives_where_there_are_no_namespaces", "--ignored"]);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return idlewood_testing::missing(&format!("there is no unshare: {error}")),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
