//! `simnet reproduce` as a command, for the tests of the experiments.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A directory for one test.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let program = env!("CARGO_CRATE_NAME");
        let path = std::env::temp_dir().join(format!("idlewood-{program}-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a new directory");
        Self(path)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("it is there");
    }
}

/// `simnet reproduce` with these arguments, and its files into a directory.
pub(crate) fn command(arguments: &str, out: &Directory) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_simnet"));
    command.arg("reproduce").args(arguments.split_whitespace()).arg("--out").arg(&out.0);
    command
}

/// Runs it to its end.
pub(crate) fn reproduce(arguments: &str, out: &Directory) -> Output {
    command(arguments, out).output().expect("simnet starts")
}

/// Begins a command that takes minutes, and waits until `is_begun`.
#[track_caller]
pub(crate) fn begin(arguments: &str, out: &Directory, is_begun: impl Fn() -> bool) -> Child {
    let mut child = command(arguments, out).stderr(Stdio::piped()).spawn().expect("simnet starts");
    let begun = Instant::now();
    while !is_begun() {
        if begun.elapsed() > Duration::from_secs(20) {
            child.kill().and_then(|()| child.wait()).expect("it runs");
            panic!("nothing has changed in the directory");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

/// Interrupts the command; returns the last line of its output on standard error.
#[track_caller]
pub(crate) fn interrupt(child: Child) -> String {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).expect("text");
    stderr.lines().last().unwrap_or_else(|| panic!("it says nothing")).to_owned()
}

/// The summary that it printed.
#[track_caller]
pub(crate) fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout.clone()).expect("text");
    serde_json::from_str(stdout.lines().next_back().expect("a line")).expect("one JSON object")
}
