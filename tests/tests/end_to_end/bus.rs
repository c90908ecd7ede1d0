//! A private message bus with services of the tests' choice.

use std::io::{BufRead as _, BufReader, ErrorKind};
use std::process::{Child, Command, Stdio};

/// A private bus.
pub(crate) struct Bus {
    process: Child,
    pub(crate) address: String,
}

impl Bus {
    /// None if there is no `dbus-daemon`.
    pub(crate) fn start() -> Option<Self> {
        let mut command = Command::new("dbus-daemon");
        command.args(["--session", "--nofork", "--nopidfile", "--print-address"]);
        let mut process = match command.stdout(Stdio::piped()).spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            spawned => spawned.expect("it starts"),
        };
        let mut address = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut address).expect("it says where it is");
        Some(Self { process, address: address.trim().to_owned() })
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.process.kill().expect("it is a child");
        self.process.wait().expect("it is a child");
    }
}
