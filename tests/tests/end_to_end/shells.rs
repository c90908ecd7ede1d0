//! What shells and `man` are told of the command line: it is what `--help` says.

use std::fs;
use std::path::Path;
use std::process::Command;

use idlewood_testing::missing;
use idlewood_tests::guide::Help;

use crate::harness::{AGENT, command};

fn completions(shell: &str) -> String {
    let output = command(&["completions", shell]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Whether a shell is installed; otherwise the test has said so.
fn is_there(shell: &str) -> bool {
    let is_there = Command::new(shell).args(["-c", "true"]).status().is_ok();
    if !is_there {
        missing(&format!("there is no {shell}"));
    }
    is_there
}

/// What bash offers for the last of these words.
fn offered(script: &Path, words: &[&str]) -> Vec<String> {
    let complete = r#"source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _idlewood idlewood "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
    let output = Command::new("bash").args(["-c", complete]).arg(script).args(words).output().expect("bash starts");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_and_flags() {
    if !is_there("bash") {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let script = directory.path().join("idlewood");
    fs::write(&script, completions("bash")).expect("our directory");
    assert_eq!(offered(&script, &["idlewood", "sub"]), ["submit"]);
    assert_eq!(offered(&script, &["idlewood", "bag", "can"]), ["cancel"]);
    assert_eq!(offered(&script, &["idlewood", "submit", "--each"]), ["--each-line"]);
    assert_eq!(offered(&script, &["idlewood", "--output", "js"]), ["json"]);
    let all = offered(&script, &["idlewood", ""]);
    assert!(["status", "bag", "--help"].iter().all(|word| all.contains(&(*word).to_owned())), "{all:?}");
}

#[test]
fn each_shell_understands_its_completions() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = completions(shell);
        assert!(script.contains("revoke") && script.contains("colsep"), "{shell}: verbs and flags are missing");
        if is_there(shell) {
            let path = directory.path().join(shell);
            fs::write(&path, script).expect("our directory");
            let output = Command::new(shell).arg(check).arg(&path).output().expect("it is there");
            assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn manual_pages_have_every_verb_and_flag_of_the_help() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pages = directory.path().join("man1");
    let output = command(&["man", "--dir", pages.to_str().expect("a path of ours")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let help = Help::of(Path::new(AGENT));
    let mut written: Vec<String> = fs::read_dir(&pages)
        .expect("it was made")
        .flatten()
        .map(|file| file.file_name().display().to_string())
        .collect();
    for (chain, flags) in help.flags() {
        let name = [&["idlewood".to_owned()], chain].concat().join("-") + ".1";
        let page = fs::read_to_string(pages.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Lines of roff have their hyphens escaped.
        let page = page.replace("\\-", "-");
        for flag in flags {
            assert!(page.contains(flag.as_str()), "{name} lacks {flag}");
        }
        written.retain(|other| *other != name);
    }
    assert!(written.is_empty(), "these pages are of verbs that the help does not name: {written:?}");
    let whole = command(&["man"]);
    assert!(String::from_utf8_lossy(&whole.stdout).contains(".TH idlewood 1"), "the page of the program");
    let nowhere = command(&["man", "--dir", "/proc/nowhere"]);
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(nowhere.status.code() == Some(1) && said.contains("choose another directory"), "{said}");
}
