//! The Debian package from its installation to its purge: on two machines, each a root of its own, with the service's own user and
//! environment.
//!
//! A machine is a mount namespace: an overlay above the root of the machine that the test runs on, which takes all that is written.
//! Nothing of that machine is changed, its packages and users included. The program in the package is the one under test.
//!
//! Left out: systemd itself, which `booted.rs` has. The test reads the unit and starts the agent as the unit says, without its priority, which
//! would make the test take as long as the machine has others to serve, and without the filters of system calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use idlewood_testing::missing;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{AGENT, alone, wait_for};

/// What the unit promises: systemd kills an agent that takes longer to end.
const STOP_LIMIT: Duration = Duration::from_secs(60);
const UNIT: &str = "usr/lib/systemd/system/idlewood.service";
const ADMINISTRATORS_UNIT: &str = "etc/systemd/system/idlewood.service";
const CONFIG: &str = "etc/idlewood/config.toml";
const STATE: &str = "var/lib/idlewood";
/// What a shell of root's has.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A machine with files, packages and users of its own.
struct Machine {
    /// What was written since the machine was made.
    written: PathBuf,
    root: PathBuf,
    /// Keeps the namespace.
    holder: Child,
    agent: Option<Child>,
}

/// The service as its unit describes it: settings by name. Of several with one name the last counts, as in systemd for those that are no
/// lists.
struct Unit(BTreeMap<String, String>);

fn packager() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/packaging/package")
}

/// Makes a package and a tarball of this version.
pub(crate) fn package(version: &str, out: &Path) -> PathBuf {
    let made = Command::new(packager())
        .args(["--fast", "--binary", AGENT, "--version", version, "--out"])
        .arg(out)
        .output()
        .expect("it is in the repository");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let files = fs::read_dir(out).expect("it was made").flatten().map(|file| file.path());
    let name = format!("idlewood_{version}_");
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name));
    files.into_iter().find(is_it).expect("there is a package")
}

/// Whether this machine has what packages are made and installed with; otherwise the test has said what lacks.
pub(crate) fn can_package() -> bool {
    for program in ["dpkg-deb", "systemd-sysusers", "deb-systemd-helper", "setpriv", "nsenter"] {
        let is_there = Command::new("sh").args(["-c", "command -v \"$0\" >/dev/null", program]).status();
        if !is_there.expect("there is sh").success() {
            missing(&format!("there is no {program}, as Debian has it"));
            return false;
        }
    }
    if !rustix::process::geteuid().is_root() {
        missing("packages are installed by root");
        return false;
    }
    true
}

impl Unit {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("the package has it");
        let lines = text.lines().filter(|line| !line.starts_with(['#', '[']));
        Self(lines.filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect())
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("the unit has no {name}"))
    }
}

impl Machine {
    /// None where this user may not mount; the test has said so.
    fn make(directory: &Path) -> Option<Self> {
        let [written, work, root] = ["written", "work", "root"].map(|name| directory.join(name));
        for directory in [&written, &work, &root] {
            fs::create_dir_all(directory).expect("our directory");
        }
        // Only below the new root, and gone with the namespace.
        let mount = r#"set -e
            mount -t overlay idlewood -o "lowerdir=/,upperdir=$0/written,workdir=$0/work" "$0/root"
            mount -t proc proc "$0/root/proc"
            mount --bind /dev "$0/root/dev"
            mount -t tmpfs tmpfs "$0/root/tmp"
            mount -t tmpfs tmpfs "$0/root/run"
            echo ready
            exec sleep infinity"#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", mount]).arg(directory);
        let mut holder = command.stdout(Stdio::piped()).spawn().expect("util-linux is there");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        if line.trim() != "ready" {
            holder.wait().expect("it is a child");
            missing("no overlay can be mounted here");
            return None;
        }
        Some(Self { written, root, holder, agent: None })
    }

    /// A command as root on this machine.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id())).arg("chroot").arg(&self.root).args(words);
        command.env_clear().env("PATH", PATH).env("HOME", "/root").env("DEBIAN_FRONTEND", "noninteractive");
        command.stdin(Stdio::null());
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("nsenter is there")
    }

    /// Runs a command that has to succeed; what it printed.
    fn ask(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {told}\n{}", self.log());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `idlewood`, as root and without naming a directory.
    fn idlewood(&self, words: &[&str]) -> Value {
        self.idlewood_at("idlewood", words)
    }

    fn idlewood_at(&self, program: &str, words: &[&str]) -> Value {
        let printed = self.ask(&[&[program, "--output", "json"], words].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{words:?}: {error}: {printed}"))
    }

    fn install(&self, package: &Path) -> Output {
        fs::copy(package, self.seen("root/idlewood.deb")).expect("ours");
        self.output(&["dpkg", "--install", "/root/idlewood.deb"])
    }

    /// A file of the machine as this process sees it, which is outside of the namespace.
    fn seen(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.holder.id()))
            .join(self.root.strip_prefix("/").expect("absolute"))
            .join(path)
    }

    /// The unit that counts: the administrator's comes before the package's.
    fn unit(&self) -> Unit {
        let administrators = self.seen(ADMINISTRATORS_UNIT);
        Unit::read(&if administrators.exists() { administrators } else { self.seen(UNIT) })
    }

    /// Starts the agent with the user and the environment of the unit.
    fn start(&mut self) {
        let unit = self.unit();
        let user = unit.get("User");
        let run = unit.get("ExecStart").split(' ');
        let groups = format!("--regid={}", unit.get("Group"));
        let (umask, user_id) = (format!("umask {} && exec \"$@\"", unit.get("UMask")), format!("--reuid={user}"));
        let mut words = vec!["sh", "-c", &umask, "sh", "setpriv", &user_id, &groups, "--init-groups"];
        words.extend(["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]);
        words.extend(run);
        let mut command = self.command(&words);
        command.env_clear().env("PATH", PATH).env("HOME", format!("/{STATE}")).env("USER", user).env("LOGNAME", user);
        for setting in unit.get("Environment").replace("%S", "/var/lib").split(' ') {
            let (name, value) = setting.split_once('=').expect("a variable");
            command.env(name, value);
        }
        let log = fs::File::options().create(true).append(true).open(self.log_file()).expect("our directory");
        self.agent = Some(command.stdout(log.try_clone().expect("a file")).stderr(log).spawn().expect("it starts"));
        self.idlewood(&["status"]);
    }

    fn log_file(&self) -> PathBuf {
        self.written.with_file_name("agent.log")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Stops the agent as systemd does.
    fn stop(&mut self) {
        let mut agent = self.agent.take().expect("it runs");
        let pid = agent.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().expect("there is kill").success());
        let begin = Instant::now();
        while agent.try_wait().expect("a child").is_none() {
            assert!(begin.elapsed() < STOP_LIMIT, "systemd would kill it: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Files below a directory of the machine, each with the numbers of its user.
    fn files(&self, directory: &str) -> Vec<(PathBuf, u32)> {
        let mut found = Vec::new();
        let mut open = vec![self.seen(directory)];
        while let Some(path) = open.pop() {
            let metadata = fs::symlink_metadata(&path).expect("it is there");
            if metadata.is_dir() {
                open.extend(fs::read_dir(&path).expect("ours to read").flatten().map(|entry| entry.path()));
            }
            found.push((path, metadata.uid()));
        }
        found
    }

    fn user(&self) -> u32 {
        self.ask(&["id", "--user", "idlewood"]).trim().parse().expect("a number")
    }

    /// All that the agent keeps is its user's, whoever wrote it.
    fn assert_state_is_the_users(&self) {
        let user = self.user();
        let files = self.files(STATE);
        assert!(files.len() > 3, "{files:?}");
        let others: Vec<_> = files.iter().filter(|(_, owner)| *owner != user).collect();
        assert!(others.is_empty(), "the service cannot use {others:?}");
        let mode = |path: &str| fs::metadata(self.seen(path)).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(STATE), mode(CONFIG)), (0o700, 0o644));
    }

    /// What is left of the package, from the root.
    fn remains(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut open = vec![self.written.clone()];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(&directory).expect("ours").flatten() {
                let path = entry.path();
                let metadata = fs::symlink_metadata(&path).expect("it is there");
                // Removed files are devices in an overlay's upper directory.
                if metadata.is_dir() {
                    open.push(path);
                } else if metadata.is_file() || metadata.is_symlink() {
                    let path = path.strip_prefix(&self.written).expect("it is below").display().to_string();
                    if path.contains("idlewood") && !path.starts_with("root/") {
                        found.insert(path);
                    }
                }
            }
        }
        found
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut agent = self.agent.take();
        for process in agent.iter_mut().chain(std::iter::once(&mut self.holder)) {
            process.kill().expect("a child that nobody has waited for");
            process.wait().expect("a child");
        }
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is loopback");
    listener.local_addr().expect("it is bound").port()
}

fn machines(directory: &TempDir) -> Option<[Machine; 2]> {
    let make = |name: &str| Machine::make(&directory.path().join(name));
    Some([make("a")?, make("b")?])
}

#[test]
fn the_package_is_installed_used_upgraded_and_purged_without_a_trace() {
    if !can_package() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let Some([mut a, mut b]) = machines(&directory) else { return };
    let (old, new) = (package("1.0", &directory.path().join("old")), package("1.1", &directory.path().join("new")));

    // ---- installed
    for machine in [&a, &b] {
        let installed = machine.install(&old);
        let told = String::from_utf8_lossy(&installed.stderr).into_owned();
        assert!(installed.status.success(), "{told}");
        let wants = machine.seen("etc/systemd/system/multi-user.target.wants/idlewood.service");
        assert!(fs::symlink_metadata(wants).is_ok(), "the service starts with the machine");
        assert_eq!(fs::metadata(machine.seen(STATE)).expect("it is there").uid(), machine.user());
        let shadow = machine.ask(&["getent", "shadow", "idlewood"]);
        assert!(shadow.starts_with("idlewood:!"), "nobody can log in as it: {shadow}");
    }
    assert_unit_is_sound(&a);

    // ---- a grid of two, all of it done by root
    a.idlewood(&["grid", "create", "--name", "lab"]);
    for machine in [&a, &b] {
        let listen = format!("127.0.0.1:{}", free_port());
        for (key, value) in
            [("network.listen", listen.as_str()), ("owner.idle", "1s"), ("owner.foreign_cpu_percent", "100")]
        {
            machine.idlewood(&["config", "set", key, value]);
        }
    }
    a.start();
    let invitation =
        a.idlewood(&["grid", "invite", "--role", "submitter"])["token"].as_str().expect("a token").to_owned();
    fs::write(b.seen("root/invitation"), invitation).expect("ours");
    // The service runs already, as it does once the package is installed.
    b.start();
    assert_eq!(b.idlewood(&["grid", "join", "/root/invitation"])["name"], "lab");
    let is_grid = |machine: &Machine| machine.idlewood(&["status"])["grid_machines"] == 2;
    wait_for("the grid of two", || is_grid(&a) && is_grid(&b));
    // Settings take effect while the agent runs.
    let reason = |machine: &Machine| machine.idlewood(&["status"])["reason_code"].clone();
    // Each machine has a process of this name, which keeps its namespace.
    a.idlewood(&["config", "set", "owner.programs", "sleep"]);
    wait_for("the agent to follow its settings", || reason(&a) == "program_runs");
    a.idlewood(&["config", "unset", "owner.programs"]);
    wait_for("the agent to follow its settings again", || reason(&a) != "program_runs");

    let program = "/usr/share/idlewood/probe.wasm";
    let submit = |machine: &Machine, words: &[&str]| {
        let bag = machine.idlewood(&[&["submit", "--program", program, "--work", "50"], words].concat());
        bag["id"].as_str().expect("an id").to_owned()
    };
    let hello = submit(&b, &["--", "hello", "{}", ":::", "ada", "grace", "barbara"]);
    assert_eq!(b.idlewood(&["bag", "wait", &hello])["state"], "succeeded");
    a.assert_state_is_the_users();
    b.assert_state_is_the_users();

    // ---- upgraded under way
    let peer = b.idlewood(&["status"])["peer"].clone();
    let slow = submit(&b, &["--array", "0-5", "--", "sleep", "2000"]);
    b.stop();
    let upgraded = b.install(&new);
    assert!(upgraded.status.success(), "{}", String::from_utf8_lossy(&upgraded.stderr));
    assert!(b.ask(&["dpkg-query", "--show", "idlewood"]).ends_with("\t1.1\n"));
    b.start();
    assert_eq!(b.idlewood(&["status"])["peer"], peer, "the same machine");
    assert_eq!(b.idlewood(&["bag", "wait", &slow])["state"], "succeeded");
    assert_eq!(b.idlewood(&["bag", "show", &hello])["done"], 3, "what is over is there, too");
    wait_for("the grid of two again", || is_grid(&a) && is_grid(&b));
    b.assert_state_is_the_users();

    // ---- downgraded: the same formats, hence nothing is in the way
    b.stop();
    let downgraded = b.install(&old);
    assert!(downgraded.status.success(), "{}", String::from_utf8_lossy(&downgraded.stderr));
    b.start();
    assert_eq!(b.idlewood(&["bag", "show", &slow])["done"], 6);

    // ---- removed: what the next installation needs stays
    a.stop();
    b.stop();
    b.ask(&["dpkg", "--remove", "idlewood"]);
    assert!(!b.seen("usr/bin/idlewood").exists() && !b.seen(UNIT).exists());
    assert!(b.seen(CONFIG).exists() && b.seen("var/lib/idlewood/grid/membership").exists());
    assert!(b.install(&new).status.success());
    b.start();
    assert_eq!(b.idlewood(&["status"])["peer"], peer, "still the same machine");
    b.stop();

    // ---- purged
    for machine in [&a, &b] {
        machine.ask(&["dpkg", "--purge", "idlewood"]);
        assert!(!machine.seen(STATE).exists() && !machine.seen("etc/idlewood").exists());
        assert!(!machine.output(&["id", "idlewood"]).status.success(), "its user is gone");
    }
    assert_eq!(b.remains(), BTreeSet::new());
    let kept: Vec<String> = a.remains().into_iter().collect();
    assert!(
        kept.len() == 1 && kept[0].starts_with("var/backups/idlewood/") && kept[0].ends_with("grid.key"),
        "{kept:?}"
    );
}

/// The unit is one that systemd takes, and as closed as it can be.
fn assert_unit_is_sound(machine: &Machine) {
    let unit = machine.unit();
    for (name, value) in [("Nice", "19"), ("IOSchedulingClass", "idle"), ("TimeoutStopSec", "60"), ("User", "idlewood")]
    {
        assert_eq!(unit.get(name), value, "{name}");
    }
    let path = format!("/{UNIT}");
    if machine.output(&["systemd-analyze", "--version"]).status.success() {
        let verified = machine.output(&["systemd-analyze", "verify", "--man=no", &path]);
        let told = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(verified.status.success() && !told.contains("idlewood.service:"), "{told}");
        // Of 100; 40 and more is "medium".
        machine.ask(&["systemd-analyze", "security", "--offline=true", "--threshold=40", "--no-pager", &path]);
    } else {
        missing("there is no systemd-analyze");
    }
}

/// Answers as systemd would, and writes down what it was asked for.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >>/tmp/calls
case "$*" in *is-enabled*) echo enabled ;; *is-active*) echo active ;; esac
"#;

#[test]
fn a_service_without_a_package_is_installed_and_removed() {
    if !can_package() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let Some(mut machine) = Machine::make(directory.path()) else { return };
    // Where the machine's service would not find it.
    fs::copy(AGENT, machine.seen("root/idlewood")).expect("ours");
    let refused = machine.output(&["/root/idlewood", "service", "install"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && told.contains("sudo install -m 755 /root/idlewood"), "{told}");
    assert_eq!(machine.idlewood_at("/root/idlewood", &["service", "status"])["installed"], false);

    fs::rename(machine.seen("root/idlewood"), machine.seen("usr/local/bin/idlewood")).expect("ours");
    let service = machine.idlewood(&["service", "install"]);
    assert_eq!(
        (&service["scope"], &service["installed"], &service["packaged"]),
        (&"machine".into(), &true.into(), &false.into())
    );
    assert_eq!(machine.unit().get("ExecStart"), "/usr/local/bin/idlewood run");
    let wants = machine.seen("etc/systemd/system/multi-user.target.wants/idlewood.service");
    assert!(fs::symlink_metadata(&wants).is_ok(), "the service starts with the machine");
    // Settings before the first start, and a grid while it runs.
    machine.idlewood(&["config", "set", "network.listen", &format!("127.0.0.1:{}", free_port())]);
    machine.start();
    assert_eq!(machine.idlewood(&["grid", "create", "--name", "lab"])["name"], "lab");
    assert_eq!(machine.idlewood(&["status"])["grid"]["name"], "lab");
    assert_eq!(machine.idlewood(&["service", "status"])["answers"], true);
    machine.assert_state_is_the_users();
    machine.stop();
    let service = machine.idlewood(&["service", "uninstall"]);
    assert_eq!(service["installed"], false);
    assert!(fs::symlink_metadata(&wants).is_err() && !machine.seen("etc/sysusers.d/idlewood.conf").exists());
    assert!(machine.seen(CONFIG).exists() && machine.seen("var/lib/idlewood/grid/membership").exists(), "they stay");

    // Of a user's session, with a systemctl that is none: the user's systemd does not run here.
    fs::write(machine.seen("usr/local/bin/systemctl"), SYSTEMCTL).expect("ours");
    fs::set_permissions(machine.seen("usr/local/bin/systemctl"), fs::Permissions::from_mode(0o755)).expect("ours");
    machine.ask(&["install", "-d", "-o", "nobody", "/tmp/home"]);
    machine.ask(&["chmod", "1777", "/tmp"]);
    let as_user = |words: &[&str]| {
        let user = ["setpriv", "--reuid=nobody", "--clear-groups", "env", "HOME=/tmp/home", "idlewood"];
        machine.ask(&[&user, words].concat())
    };
    let text = as_user(&["service", "install"]);
    assert!(text.contains("of your desktop session") && text.contains("next: idlewood grid join"), "{text}");
    let unit = fs::read_to_string(machine.seen("tmp/home/.config/systemd/user/idlewood.service")).expect("it was made");
    assert!(
        unit.contains("\nExecStart=/usr/local/bin/idlewood run\n")
            && unit.contains("\nWantedBy=graphical-session.target\n")
    );
    as_user(&["service", "uninstall"]);
    assert!(!machine.seen("tmp/home/.config/systemd/user/idlewood.service").exists());
    let calls = fs::read_to_string(machine.seen("tmp/calls")).expect("it was called");
    for call in ["daemon-reload", "enable --now idlewood.service", "disable --now idlewood.service"] {
        assert!(calls.lines().any(|line| line == format!("--user {call}")), "{call}: {calls}");
    }
}

#[test]
fn the_same_sources_make_the_same_packages_and_the_tarball_runs_anywhere() {
    if !can_package() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let sums = ["one", "two"].map(|name| {
        let out = directory.path().join(name);
        package("1.0~rc1", &out);
        let checked = Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&out).output();
        assert!(checked.expect("there is sha256sum").status.success());
        fs::read_to_string(out.join("SHA256SUMS")).expect("it was made")
    });
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0].lines().count(), 2, "{}", sums[0]);
    let tarball = sums[0].split_whitespace().find(|word| word.ends_with(".tar.gz")).expect("there is one");
    let archive = directory.path().join("one").join(tarball);
    let unpacked = Command::new("tar").arg("xzf").arg(archive).current_dir(directory.path()).status();
    assert!(unpacked.expect("there is tar").success());
    let root = directory.path().join(tarball.trim_end_matches(".tar.gz"));
    let version = Command::new(root.join("bin/idlewood")).arg("--version").output().expect("it runs");
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("idlewood "), "{version:?}");
    for file in
        ["share/man/man1/idlewood-bag-show.1.gz", "share/idlewood/config.toml", "share/doc/idlewood/LICENSE-MIT"]
    {
        assert!(root.join(file).is_file(), "{file}");
    }
    assert!(!root.join("lib").exists() && !root.join("etc").exists());
}

#[test]
fn wrong_words_are_told_to_whoever_packages() {
    for (words, says) in [
        (&["--colour"][..], "--colour is not understood"),
        (&["--out"], "a value has to follow --out"),
        (&["--binary", "/nowhere/idlewood"], "there is no program /nowhere/idlewood"),
        (&["--binary", AGENT, "--version", "one"], "one is no version"),
    ] {
        if !can_package() {
            return;
        }
        let out = Command::new(packager()).args(words).output().expect("it is in the repository");
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && told.contains(says), "{words:?}: {told}");
    }
}
