//! README.md and the pages of `docs/guide`: each block of commands is run as it stands there.
//!
//! The blocks of a page that are marked `submitter` or `admin` are one session on machines of a grid of three. Those of
//! `tests/two-machines` and `simnet/tests/guide.rs` are run there.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use idlewood_tests::guide::{self, Block, Help, PRELUDE, Setting};

use crate::harness::{AGENT, Grid, alone};

/// The pages with sessions on a grid; each has a test below.
const SESSIONS: [&str; 6] = [
    "docs/guide/grid.md",
    "docs/guide/own.md",
    "docs/guide/results.md",
    "docs/guide/rounds.md",
    "docs/guide/script.md",
    "docs/guide/submit.md",
];
/// How long a page may take, in seconds.
const PATIENCE_S: &str = "400";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The blocks of a page that are run in one of these settings.
fn blocks(page: &str, settings: &[Setting]) -> Vec<Block> {
    let blocks = guide::blocks(page, &guide::text(&root(), page)).unwrap_or_else(|wrong| panic!("{wrong}"));
    blocks.into_iter().filter(|block| settings.contains(&block.setting)).collect()
}

/// A shell for blocks, in a directory that looks like a clone, with the program under test as `idlewood`, isolated from
/// the machine that the tests run on.
fn shell(directory: &Path, script: &str) -> Command {
    let directory = directory.join("shell");
    let bin = directory.join("bin");
    fs::create_dir_all(&bin).expect("our directory");
    symlink(AGENT, bin.join("idlewood")).expect("our directory");
    symlink(root().join("agent").canonicalize().expect("it is there"), directory.join("agent")).expect("our directory");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("it is set"));
    let mut command = Command::new("timeout");
    command.args(["--kill-after=20", PATIENCE_S, "bash", "-c", &format!("{PRELUDE}\n{script}")]);
    command.current_dir(&directory).env("PATH", path);
    for variable in ["HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
        command.env(variable, &directory);
    }
    for variable in ["DBUS_SYSTEM_BUS_ADDRESS", "DBUS_SESSION_BUS_ADDRESS"] {
        command.env(variable, "unix:path=/nowhere");
    }
    for variable in ["DISPLAY", "WAYLAND_DISPLAY", "IDLEWOOD_STATE_DIR", "IDLEWOOD_CONFIG"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs the script, which must succeed; returns both of its outputs.
fn run(mut shell: Command) -> (String, String) {
    let output = shell.output().expect("there are timeout and bash");
    let [printed, told] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{}: what it printed:\n{printed}\n{told}", output.status);
    (printed, told)
}

/// The blocks as one script that prints where each begins.
fn script(blocks: &[Block]) -> String {
    blocks.iter().fold(String::new(), |mut script, Block { page, line, script: block, .. }| {
        writeln!(script, "echo '== {page}:{line}' >&2\n{block}").expect("a text takes all");
        script
    })
}

/// Runs the blocks of a page as a session on the machines of a grid; returns their output.
fn session(page: &str) -> String {
    let grid = Grid::start(3);
    let blocks = blocks(page, &[Setting::Submitter, Setting::Admin]);
    let mut parts = String::new();
    for block in &blocks {
        let dir = grid.agents[if block.setting == Setting::Admin { 0 } else { 2 }].dir.display();
        writeln!(parts, "export IDLEWOOD_STATE_DIR={dir} IDLEWOOD_CONFIG={dir}/config.toml").expect("a text takes all");
        parts += &script(std::slice::from_ref(block));
    }
    run(shell(grid.root.path(), &parts)).0
}

fn assert_printed(printed: &str, words: &[&str]) {
    for words in words {
        assert!(printed.contains(words), "{words:?} is not in what it printed:\n{printed}");
    }
}

#[test]
fn every_block_is_run_somewhere_and_every_verb_and_flag_exists() {
    let help = Help::of(Path::new(AGENT));
    let mut wrong = Vec::new();
    let (mut checked, mut run, mut machines) = (0, 0, Vec::new());
    for page in guide::pages(&root()) {
        let text = guide::text(&root(), &page);
        match help.check_page("idlewood", &page, &text) {
            Ok(calls) => checked += calls,
            Err(sentences) => wrong.extend(sentences),
        }
        for block in guide::blocks(&page, &text).unwrap_or_default() {
            run += 1;
            match block.setting {
                Setting::Submitter | Setting::Admin if !SESSIONS.contains(&page.as_str()) => {
                    wrong.push(format!("{page}:{}: no test has a session of this page", block.line));
                }
                Setting::FirstMachine | Setting::SecondMachine => machines.push((page.clone(), block.setting)),
                Setting::None(_) => run -= 1,
                _ => {}
            }
        }
    }
    // Its commands are no session, but they exist.
    let page = "docs/known-from-elsewhere.md";
    match help.check_page("idlewood", page, &guide::text(&root(), page)) {
        Ok(calls) => assert!(calls > 40, "{page} compares commands: {calls}"),
        Err(sentences) => wrong.extend(sentences),
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 50 && run > 15, "the pages show commands: {checked} calls, {run} blocks");
    // On this page the script has one block for each machine.
    let page = || "docs/guide/grid.md".to_owned();
    assert_eq!(machines, [(page(), Setting::FirstMachine), (page(), Setting::SecondMachine)]);
}

#[test]
fn the_quick_start_works_as_it_is_pasted() {
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (printed, told) = run(shell(directory.path(), &script(&blocks("README.md", &[Setting::Alone]))));
    assert_printed(&printed, &["made the grid", "joined the grid", "bag ", "succeeded", "argument ada"]);
    assert!(told.contains("listens on loopback only"), "the invitation comes with a warning:\n{told}");
    // One grid, and not three of one machine.
    assert!(!printed.contains("grid        1 machine,"), "{printed}");
}

#[test]
fn the_guide_s_commands_without_a_grid_work() {
    let _alone = alone();
    let pages = guide::pages(&root()).into_iter().filter(|page| page.starts_with("docs/"));
    let blocks: Vec<Block> = pages.flat_map(|page| blocks(&page, &[Setting::Alone])).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let directory = tempfile::tempdir().expect("a temporary directory");
        run(shell(directory.path(), &script(&[block])));
    }
}

#[test]
fn the_guide_to_submitting_works() {
    let printed = session("docs/guide/submit.md");
    assert_printed(&printed, &["argument ada", "10 tasks of probe.wasm", "succeeded", "argument hello"]);
    assert!(!printed.contains("failed:"), "{printed}");
}

#[test]
fn the_guide_to_results_works() {
    let printed = session("docs/guide/results.md");
    assert_printed(
        &printed,
        &["6 of 6 tasks done, succeeded", "exit code 3", "signed by", "keep it safe", "cancelled", "goes on as"],
    );
}

#[test]
fn the_guide_to_scripts_works() {
    let printed = session("docs/guide/script.md");
    assert_printed(
        &printed,
        &["\"grid_machines\":3", "\"reason_code\":\"paused_by_user\"", "that was refused", "\"state\":\"succeeded\""],
    );
}

#[test]
fn the_guide_to_rounds_works() {
    let printed = session("docs/guide/rounds.md");
    assert_printed(&printed, &["6 of 6 complete, 8 processes, sync", "succeeded", "front.svg"]);
}

#[test]
fn the_guide_to_owners_works() {
    let printed = session("docs/guide/own.md");
    assert_printed(
        &printed,
        &["paused until", "resumed", "idle = \"10m\"", "22:00-07:00", "input: terminals", "sound"],
    );
}

#[test]
fn the_guide_to_grids_works() {
    let printed = session("docs/guide/grid.md");
    assert_printed(&printed, &["idlewood1.", "(this machine)", "REVOKED"]);
}
