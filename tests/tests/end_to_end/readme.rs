//! What README.md shows is done as it stands there.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{AGENT, alone, command};

/// The text of README.md.
fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    std::fs::read_to_string(path).expect("it is in the repository")
}

/// The commands under a heading.
fn block(heading: &str) -> String {
    let text = readme();
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).expect("it has that section");
    let section = section.split("\n## ").next().expect("a text has a beginning");
    let (_, block) = section.split_once("```sh\n").expect("it shows commands");
    block.split_once("```").expect("the block ends").0.to_owned()
}

/// Pasted into a shell at once: commands wait for agents that start, and there is one grid of three machines.
#[test]
fn three_agents_by_hand() {
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bin = directory.path().join("bin");
    std::fs::create_dir(&bin).expect("our directory");
    std::os::unix::fs::symlink(AGENT, bin.join("idlewood")).expect("our directory");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("it is set"));
    // A shell stops at nothing that is pasted into it; this one does, and says at what.
    let script = format!("set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{}", block("Three agents by hand"));
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env("PATH", path)
        .env("TMPDIR", directory.path())
        .env("XDG_CONFIG_HOME", directory.path())
        .env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere")
        .env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .stdin(Stdio::null())
        .output()
        .expect("there is a shell");
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{told}");
    for words in ["made the grid", "joined the grid", "bag ", "succeeded", "argument ada", "resumed"] {
        assert!(said.contains(words), "{words:?} is not in what it printed:\n{said}\n{told}");
    }
    assert!(told.contains("listens on loopback only"), "the invitation comes with a warning:\n{told}");
    // Its own place among three: one grid, and not three of one machine.
    assert!(!said.contains("alone: a grid of one machine"), "{said}");
}

/// Every `idlewood help VERB` that it names.
#[test]
fn help_that_is_named_is_there() {
    let text = readme();
    let named: Vec<&str> = text.split('`').filter(|piece| piece.starts_with("idlewood help ")).collect();
    assert!(!named.is_empty(), "README.md says where to read on");
    for words in named {
        let output = command(&words.split(' ').skip(1).collect::<Vec<_>>());
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("Usage:"), "{words}");
    }
}
