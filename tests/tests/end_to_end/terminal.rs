//! What people see on a terminal of 80 and of 200 columns: no line is broken in the middle of a word, and nothing is left of progress.
//!
//! Commands run in a pseudo terminal (`script`), and what they write is put on a screen of as many columns, where a line that is too long
//! would go on in the next.

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use idlewood_testing::missing;

use crate::harness::{AGENT, Agent, Grid, probe_program, wait_for};

const NAMES: [&str; 2] =
    ["first-computer-of-the-laboratory-in-the-east", "second-computer-of-the-laboratory-in-the-east"];

/// A command on a terminal of so many columns.
fn on_terminal(agent: &Agent, columns: usize, words: &[&str]) -> Child {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let directory = agent.dir.display();
    let line = format!("stty cols {columns} rows 60; exec {AGENT} --state-dir '{directory}' {}", quoted.join(" "));
    let mut command = Command::new("script");
    command.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]).env("TERM", "xterm");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it was found")
}

/// The lines of a screen with so many columns, after all that was written to it; and the most columns that any of them ever had, where a
/// line that was too long counts as one.
fn screen(written: &str) -> (Vec<String>, usize) {
    let (mut lines, mut at, mut widest) = (vec![Vec::new()], 0, 0);
    let mut characters = written.chars().peekable();
    while let Some(character) = characters.next() {
        let line = lines.last_mut().expect("there is always one");
        match character {
            '\r' => at = 0,
            '\n' => lines.push(Vec::new()),
            '\x1b' => {
                assert_eq!(characters.next(), Some('['), "{written:?}");
                let parameters: String = std::iter::from_fn(|| {
                    characters.next_if(|character| character.is_ascii_digit() || *character == ';')
                })
                .collect();
                match characters.next() {
                    Some('K') if parameters.is_empty() => line.truncate(at),
                    Some('m') => {}
                    other => panic!("what does {other:?} do? {written:?}"),
                }
            }
            _ => {
                line.resize(line.len().max(at + 1), ' ');
                line[at] = character;
                at += 1;
                widest = widest.max(at);
            }
        }
    }
    let lines = lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned());
    (lines.filter(|line| !line.is_empty()).collect(), widest)
}

/// All that the command writes until it has ended.
fn written(command: Child) -> String {
    let Output { stdout, .. } = command.wait_with_output().expect("it is a child");
    String::from_utf8_lossy(&stdout).into_owned()
}

/// What is on the screen once the command has ended; asserts that no line was too long.
fn seen(command: Child, columns: usize, words: &[&str]) -> Vec<String> {
    on_screen(&written(command), columns, words)
}

fn on_screen(written: &str, columns: usize, words: &[&str]) -> Vec<String> {
    let (lines, widest) = screen(written);
    assert!(widest <= columns, "{words:?} takes {widest} columns of {columns}:\n{}", lines.join("\n"));
    lines
}

#[test]
fn what_is_printed_fits_the_terminal_and_progress_leaves_nothing() {
    if Command::new("script").arg("--version").output().is_err() {
        return missing("there is no script, as util-linux has it");
    }
    let mut grid = Grid::prepare_unstarted(2);
    for (number, name) in NAMES.into_iter().enumerate() {
        grid.agents[number].configure(&format!("[network]\nname = \"{name}\"\n"));
        grid.run(number);
    }
    grid.wait_until_formed(2);
    let agent = &grid.agents[0];
    let program = probe_program();
    let program = program.to_str().expect("a path of ours");
    let name = "a-sweep-over-all-parameters-of-the-model-and-all-seeds";
    let submit = ["submit", "--program", program, "--name", name, "--work", "50"];

    // ---- progress: one line while it runs, and none of it afterwards
    for columns in [80, 200] {
        let words = [&submit[..], &["--array", "0-5", "--wait", "--", "sleep", "700"]].concat();
        let written = written(on_terminal(agent, columns, &words));
        assert!(written.contains(" of 6 done"), "it shows how far the bag is: {written:?}");
        let lines = on_screen(&written, columns, &words);
        let last = lines.last().expect("it prints something");
        assert!(last.contains("succeeded: 6 tasks in"), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains("of 6 done") && !line.contains("[#")), "{lines:?}");
    }
    let bag = agent.ask(&[&submit[..], &["--array", "0-7", "--", "sleep", "700"]].concat());
    let bag = bag["id"].as_str().expect("an id").to_owned();
    let words = ["bag", "watch", &bag];
    let lines = seen(on_terminal(agent, 80, &words), 80, &words);
    assert_eq!(lines.len(), 1, "what came of it, and nothing else: {lines:?}");
    assert!(lines[0].contains("succeeded: 8 tasks in"), "{lines:?}");

    // ---- Ctrl-C leaves the bag alone, says so, and leaves no piece of a line
    agent.set_owner(true);
    let bag = agent.ask(&[&submit[..], &["--array", "0-3", "--hold", "--", "sleep", "100"]].concat());
    let bag = bag["id"].as_str().expect("an id").to_owned();
    let words = ["bag", "watch", &bag];
    let watching = on_terminal(agent, 80, &words);
    let is_watching = |pid: u32| {
        let of = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        crate::harness::children(pid).into_iter().find(|child| of(*child).contains("\0watch\0"))
    };
    let mut found = None;
    wait_for("the watch to begin", || {
        found = is_watching(watching.id());
        found.is_some()
    });
    // Time for it to have asked and drawn: that it draws at all is asserted above.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let pid = found.expect("it was found").to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill exists").success());
    let lines = seen(watching, 80, &words);
    let told = lines.join(" ");
    assert!(told.contains("goes on; follow it with: idlewood bag watch"), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("of 4 done")), "{lines:?}");

    // ---- what is listed and explained, while the owner is there and a bag is held
    let commands: [&[&str]; 11] = [
        &["status"],
        &["explain"],
        &["machines"],
        &["peers"],
        &["bag", "list"],
        &["bag", "show", &bag],
        &["bag", "explain", &bag],
        &["bag", "tasks", &bag],
        &["grid", "show"],
        &["doctor"],
        &["config", "describe", "owner.idle"],
    ];
    for words in commands {
        let [narrow, wide] = [80, 200].map(|columns| seen(on_terminal(agent, columns, words), columns, words));
        assert!(!narrow.is_empty() && narrow.len() >= wide.len(), "{words:?}: {narrow:?} {wide:?}");
    }
    let listed = |columns| seen(on_terminal(agent, columns, &["machines"]), columns, &["machines"]);
    let (narrow, wide) = (listed(80).join("\n"), listed(200).join("\n"));
    assert!(NAMES.iter().all(|name| wide.contains(name)) && wide.contains("VERSION"), "{wide}");
    assert!(narrow.contains("first-co") && narrow.contains('…'), "{narrow}");
    assert!(!narrow.contains("VERSION") && narrow.contains("without "), "what is left out is said: {narrow}");

    // ---- and as it is where it is no terminal
    agent.set_owner(false);
    let words = [&submit[..], &["--array", "0-5", "--wait", "--", "sleep", "300"]].concat();
    let piped = Command::new(AGENT).arg("--state-dir").arg(&agent.dir).args(&words).output().expect("it starts");
    let [out, error] = [&piped.stdout, &piped.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(out.contains("succeeded: 6 tasks in") && !out.contains('\x1b'), "{out:?}");
    assert!(!error.contains('\x1b') && !error.contains(" of 6 done"), "{error:?}");
    let plain = agent.text(&["machines"]);
    assert!(plain.contains("VERSION") && !plain.contains("without ") && !plain.contains('…'), "{plain}");
}
