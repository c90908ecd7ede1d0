//! The service under a systemd that was booted: process 1 of two machines, each with a root, processes, control groups and a name of its own.
//!
//! A machine is a set of namespaces, with an overlay above the root of the machine that the test runs on, as in `package.rs`. systemd boots
//! in it as in a container (`boot.sh`), installs nothing of its own, and starts what the package brings.
//!
//! Left out: networks of their own, since the machines reach each other on loopback; controllers of control groups where the machine has
//! them in hierarchies of the first version.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use idlewood_testing::missing;
use serde_json::Value;

use super::package::{PATH, can_package, free_port, package};
use crate::harness::{PATIENCE, alone, wait_for};

const SERVICE: &str = "idlewood.service";

/// A machine that has booted.
struct Machine {
    /// Holds its namespaces; all of it ends with this process.
    holder: Child,
    /// Its process 1, as this machine numbers it.
    init: String,
    log: PathBuf,
}

impl Machine {
    /// None where the system does not let systemd boot; the test has said what was in the way.
    fn boot(directory: &Path) -> Option<Self> {
        for name in ["written", "work", "root"] {
            fs::create_dir_all(directory.join(name)).expect("our directory");
        }
        let log = directory.join("boot.log");
        let file = fs::File::create(&log).expect("our directory");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/boot.sh");
        let mut command = Command::new("sh");
        command.arg(script).arg(directory).stdin(Stdio::null());
        command.stdout(file.try_clone().expect("a file")).stderr(file);
        let mut holder = command.spawn().expect("there is sh");
        let children = format!("/proc/{0}/task/{0}/children", holder.id());
        let begin = Instant::now();
        let why = loop {
            if holder.try_wait().expect("a child").is_some() {
                break "its namespaces cannot be made";
            }
            let init = fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
            let is_systemd =
                fs::read_to_string(format!("/proc/{init}/comm")).is_ok_and(|name| name.trim() == "systemd");
            if is_systemd && has_booted(&init) {
                return Some(Self { holder, init, log });
            }
            if begin.elapsed() > PATIENCE {
                break "systemd does not come up";
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        let told = fs::read_to_string(&log).unwrap_or_default();
        let last: Vec<&str> = told.lines().rev().take(3).collect();
        end(&mut holder);
        // In continuous integration too: where it runs decides whether it can be had. Past what keeps the output of tests that succeed.
        let told = writeln!(std::io::stderr(), "not tested: no systemd boots here: {why}: {last:?}");
        assert!(told.is_ok(), "nobody would know that it was not tested");
        None
    }

    fn output(&self, words: &[&str]) -> Output {
        within(&self.init, words)
    }

    /// Runs a command that has to succeed; what it printed.
    fn ask(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {told}\n{}", self.journal());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `idlewood`, as root and without naming a directory.
    fn idlewood(&self, words: &[&str]) -> Value {
        let printed = self.ask(&[&["idlewood", "--output", "json"], words].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{words:?}: {error}: {printed}"))
    }

    fn journal(&self) -> String {
        let service = self.output(&["systemctl", "status", "--no-pager", "--lines=30", SERVICE]);
        let boot = fs::read_to_string(&self.log).unwrap_or_default();
        format!(
            "{}\n{}",
            String::from_utf8_lossy(&service.stdout),
            boot.lines().rev().take(20).collect::<Vec<_>>().join("\n")
        )
    }

    fn install(&self, package: &Path) {
        // In a directory that is not one of the namespace's own.
        let seen = format!("/proc/{}/root/root/idlewood.deb", self.init);
        fs::copy(package, seen).expect("ours");
        self.ask(&["dpkg", "--install", "/root/idlewood.deb"]);
    }

    /// The service has the processor as others have: with its own priority the test would take as long as this machine has others to serve.
    fn hurry(&self) {
        self.ask(&["mkdir", "-p", "/etc/systemd/system/idlewood.service.d"]);
        let place = format!("/proc/{}/root/etc/systemd/system/idlewood.service.d/hurry.conf", self.init);
        fs::write(place, "[Service]\nNice=0\nIOSchedulingClass=best-effort\n").expect("ours");
        self.ask(&["systemctl", "daemon-reload"]);
    }

    /// What systemd says of the service.
    fn service(&self) -> BTreeMap<String, String> {
        let shown = self.ask(&["systemctl", "show", "--all", SERVICE]);
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        shown.lines().filter_map(pair).collect()
    }

    fn is(&self, state: &str) -> bool {
        self.service().get("ActiveState").is_some_and(|active| active == state)
    }

    /// Whether it runs as a process other than this one.
    fn runs_instead_of(&self, before: &str) -> bool {
        let service = self.service();
        service["ActiveState"] == "active" && service["MainPID"] != before
    }

    /// Whether its agent answers and counts so many machines.
    fn counts(&self, machines: u64) -> bool {
        let output = self.output(&["idlewood", "--output", "json", "status"]);
        let status = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        status["grid_machines"] == machines
    }

    fn main_pid(&self) -> String {
        self.service()["MainPID"].clone()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        end(&mut self.holder);
    }
}

/// Whether the targets of the boot are reached, some unit's failure left aside.
fn has_booted(init: &str) -> bool {
    let state = within(init, &["systemctl", "is-system-running"]);
    ["running", "degraded"].contains(&String::from_utf8_lossy(&state.stdout).trim())
}

/// Runs a command in the namespaces of this process.
fn within(init: &str, words: &[&str]) -> Output {
    let mut command = Command::new("nsenter");
    command.args(["--mount", "--pid", "--cgroup", "--uts", "--ipc", "--root", "--wd", "--target", init]);
    command.args(words).env_clear().env("PATH", PATH).env("HOME", "/root").env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(Stdio::null()).output().expect("util-linux is there")
}

/// Ends a machine, and with its first process all others. Its control groups are removed once they are empty, the innermost first.
fn end(holder: &mut Child) {
    let ended = holder.kill().and_then(|()| holder.wait());
    let begin = Instant::now();
    for groups in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        let mine = Path::new(groups).join(format!("idlewood-test-{}", holder.id()));
        while mine.exists() && begin.elapsed() < PATIENCE {
            let find = ["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"];
            let removed = Command::new("find").arg(&mine).args(find).stderr(Stdio::null()).status();
            if removed.is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    if let Err(error) = ended {
        println!("a machine may not have ended: {error}");
    }
}

/// Fields of a process's status in the machine.
fn status(machine: &Machine, pid: &str) -> BTreeMap<String, String> {
    let text = machine.ask(&["cat", &format!("/proc/{pid}/status")]);
    let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    text.lines().filter_map(pair).collect()
}

#[test]
fn the_service_starts_with_the_machine_and_keeps_within_its_unit() {
    if !can_package() {
        return;
    }
    if !Path::new("/lib/systemd/systemd").exists() {
        return missing("there is no systemd");
    }
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (old, new) = (package("1.0", &directory.path().join("old")), package("1.1", &directory.path().join("new")));
    let Some(a) = Machine::boot(&directory.path().join("a")) else { return };
    let b = Machine::boot(&directory.path().join("b")).expect("the first one has booted here");

    // ---- installed: it runs, and will after a boot
    b.hurry();
    for machine in [&a, &b] {
        machine.install(&old);
        wait_for("the service to run", || machine.is("active"));
        assert_eq!(machine.ask(&["systemctl", "is-enabled", SERVICE]).trim(), "enabled");
    }

    // ---- what systemd applies
    let service = a.service();
    for (name, value) in [
        ("Nice", "19"),
        ("IOSchedulingClass", "3"),
        ("TimeoutStopUSec", "1min"),
        ("User", "idlewood"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("CapabilityBoundingSet", ""),
    ] {
        assert_eq!(service.get(name).map(String::as_str), Some(value), "{name}");
    }
    let pid = a.main_pid();
    let process = status(&a, &pid);
    assert_eq!(process["NoNewPrivs"], "1");
    assert_eq!(process["Seccomp"], "2", "system calls are filtered");
    assert_eq!([&process["CapEff"], &process["CapBnd"]], ["0000000000000000"; 2]);
    let user = a.ask(&["id", "--user", "idlewood"]).trim().to_owned();
    assert!(process["Uid"].split_whitespace().all(|uid| uid == user), "{}", process["Uid"]);
    let stat = a.ask(&["cat", &format!("/proc/{pid}/stat")]);
    let nice = stat.rsplit_once(')').expect("a name").1.split_whitespace().nth(16).expect("a field").to_owned();
    assert_eq!(nice, "19");
    assert_eq!(a.ask(&["ionice", "-p", &pid]).trim(), "idle");
    // As the service sees the machine.
    let seen = |script: &str| a.output(&["nsenter", "--mount", "--root", "--target", &pid, "sh", "-c", script]);
    for refused in ["touch /etc/x", "touch /usr/x", "find /home /root -mindepth 1 | grep .", "touch /run/x"] {
        assert!(!seen(refused).status.success(), "{refused}");
    }
    assert!(seen("touch /var/lib/idlewood/x && rm /var/lib/idlewood/x").status.success());

    // ---- a grid of two
    a.hurry();
    a.ask(&["systemctl", "restart", SERVICE]);
    for machine in [&a, &b] {
        wait_for("the agent to answer", || machine.idlewood(&["service", "status"])["answers"] == true);
    }
    a.idlewood(&["grid", "create", "--name", "lab"]);
    for machine in [&a, &b] {
        let listen = format!("127.0.0.1:{}", free_port());
        for (key, value) in
            [("network.listen", listen.as_str()), ("owner.idle", "1s"), ("owner.foreign_cpu_percent", "100")]
        {
            machine.idlewood(&["config", "set", key, value]);
        }
        machine.ask(&["systemctl", "restart", SERVICE]);
    }
    let invitation = a.idlewood(&["grid", "invite", "--role", "submitter"]);
    let invitation = invitation["token"].as_str().expect("a token");
    fs::write(format!("/proc/{}/root/root/invitation", b.init), invitation).expect("ours");
    assert_eq!(b.idlewood(&["grid", "join", "/root/invitation"])["name"], "lab");
    wait_for("the grid of two", || a.counts(2) && b.counts(2));
    let submit = |words: &[&str]| {
        let program = ["submit", "--program", "/usr/share/idlewood/probe.wasm", "--work", "50"];
        b.idlewood(&[&program, words].concat())["id"].as_str().expect("an id").to_owned()
    };
    let hello = submit(&["--", "hello", "{}", ":::", "ada", "grace", "barbara"]);
    assert_eq!(b.idlewood(&["bag", "wait", &hello])["state"], "succeeded");

    // ---- a crash: systemd starts it again, and it goes on
    let before = a.main_pid();
    a.ask(&["kill", "-KILL", &before]);
    wait_for("systemd to start it again", || a.runs_instead_of(&before));
    wait_for("the grid of two again", || a.counts(2) && b.counts(2));

    // ---- upgraded under way
    let slow = submit(&["--array", "0-5", "--", "sleep", "2000"]);
    let before = b.main_pid();
    b.install(&new);
    wait_for("the new release to run", || b.runs_instead_of(&before));
    assert!(b.ask(&["dpkg-query", "--show", "idlewood"]).ends_with("\t1.1\n"));
    assert_eq!(b.idlewood(&["bag", "wait", &slow])["state"], "succeeded");
    assert_eq!(b.idlewood(&["bag", "show", &hello])["done"], 3, "what is over is there, too");

    // ---- purged
    for machine in [&a, &b] {
        machine.ask(&["rm", "-r", "/etc/systemd/system/idlewood.service.d"]);
        machine.ask(&["dpkg", "--purge", "idlewood"]);
        assert!(!machine.is("active"));
        let unit = machine.output(&["systemctl", "cat", SERVICE]);
        assert!(!unit.status.success(), "{}", String::from_utf8_lossy(&unit.stdout));
        assert!(!machine.output(&["id", "idlewood"]).status.success(), "its user is gone");
        assert!(!machine.output(&["test", "-e", "/var/lib/idlewood"]).status.success());
    }
}
