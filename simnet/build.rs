//! Tells the program which commit it was built from, so that results can name it.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn main() {
    for source in ["build.rs", "Cargo.toml", "src", "../overlay/src", "../scheduler/src", "../Cargo.lock"] {
        println!("cargo::rerun-if-changed={source}");
    }
    // Every commit and every change of branch ends up there.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| std::path::Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    let changed = git(&["status", "--porcelain", "--", "src", "../overlay/src", "../scheduler/src", "../Cargo.lock"]);
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).map(|commit| match changed.as_deref() {
        Some("") => commit,
        _ => format!("{commit} with changes"),
    });
    println!("cargo::rustc-env=IDLEWOOD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}
