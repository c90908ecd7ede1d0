//! The project's dependencies: licences and sources of all crates of the lock file that this platform needs, checked
//! against `deny.toml`.
//!
//! `cargo deny` would do it, but takes longer to build than all of our tests to run. Left out: advisories, which need a
//! database outside of the package registries; `deny.toml` says how to check them.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The registry that everything comes from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Whether licences that are `allowed` satisfy an SPDX expression. `/` is an old way to write OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: VecDeque<String> = VecDeque::new();
    for word in spaced.split_whitespace() {
        // An exception belongs to the licence before it.
        match words.back_mut() {
            Some(last) if word == "WITH" || last.ends_with(" WITH") => *last = format!("{last} {word}"),
            _ => words.push_back(word.to_owned()),
        }
    }
    let fulfilled = any_of(&mut words, allowed);
    assert!(words.is_empty(), "{expression} is no licence expression");
    fulfilled
}

fn any_of(words: &mut VecDeque<String>, allowed: &BTreeSet<&str>) -> bool {
    let mut fulfilled = all_of(words, allowed);
    while words.pop_front_if(|word| word == "OR").is_some() {
        fulfilled |= all_of(words, allowed);
    }
    fulfilled
}

fn all_of(words: &mut VecDeque<String>, allowed: &BTreeSet<&str>) -> bool {
    let mut fulfilled = one(words, allowed);
    while words.pop_front_if(|word| word == "AND").is_some() {
        fulfilled &= one(words, allowed);
    }
    fulfilled
}

fn one(words: &mut VecDeque<String>, allowed: &BTreeSet<&str>) -> bool {
    let word = words.pop_front().expect("a licence");
    if word != "(" {
        return allowed.contains(word.as_str());
    }
    let fulfilled = any_of(words, allowed);
    assert_eq!(words.pop_front().as_deref(), Some(")"), "a parenthesis stays open");
    fulfilled
}

#[test]
fn expressions_are_read_as_they_are_meant() {
    let allowed = BTreeSet::from(["MIT", "Apache-2.0 WITH LLVM-exception", "ISC"]);
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "GPL-3.0/MIT",
        "MIT AND ISC",
        "(GPL-3.0 OR MIT) AND ISC",
        "GPL-3.0 OR Apache-2.0 WITH LLVM-exception",
        "GPL-3.0 AND Zlib OR MIT",
    ] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "Apache-2.0", "ISC AND (GPL-3.0 OR Zlib)"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

#[test]
fn dependencies_have_licences_that_we_may_use_and_come_from_the_registry() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rules: toml::Table = std::fs::read_to_string(root.join("deny.toml")).unwrap().parse().unwrap();
    let strings = |list: &toml::Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let allow = strings(&rules["licenses"]["allow"]);
    let exceptions: Vec<(String, Vec<String>)> = rules["licenses"]["exceptions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|exception| (exception["crate"].as_str().unwrap().to_owned(), strings(&exception["allow"])))
        .collect();

    let host = Command::new("rustc").arg("-vV").output().unwrap();
    let host = String::from_utf8(host.stdout).unwrap();
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    // Everything built here is available offline.
    let arguments = ["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", host];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(&root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100);
    let (mut refused, mut unused) = (Vec::new(), exceptions.clone());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        if let Some(source) = package["source"].as_str() {
            assert_eq!(source, REGISTRY, "{name}");
        }
        let mut allowed: BTreeSet<&str> = allow.iter().map(String::as_str).collect();
        let licence = package["license"].as_str().unwrap_or("none");
        if is_allowed(licence, &allowed) {
            continue;
        }
        if let Some((_, more)) = exceptions.iter().find(|(exception, _)| exception == name) {
            allowed.extend(more.iter().map(String::as_str));
            unused.retain(|(exception, _)| exception != name);
        }
        if !is_allowed(licence, &allowed) {
            refused.push(format!("{name}: {licence}"));
        }
    }
    assert_eq!(refused, Vec::<String>::new(), "not in deny.toml");
    assert_eq!(unused, [], "exceptions that nothing needs any more");
}
