//! The commands that README.md and `docs/guide` show: blocks of shell, each with a mark that says where a test runs it.
//!
//! ```text
//! <!-- test: SETTING -->
//! ```
//!
//! stands in the line above a block. `tests/end_to_end/guide.rs` and `simnet/tests/guide.rs` run the blocks; the latter
//! includes this file, since neither package depends on the other.
//!
//! Left out: a parser of shell. [`calls`] finds commands in blocks as simple as these.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a block is run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// In a shell of its own, where no agent runs.
    Alone,
    /// On a machine of a grid of three that may submit, after the blocks before it on the same page.
    Submitter,
    /// The same on the machine that has created the grid.
    Admin,
    /// In `tests/two-machines`, on the machine that creates the grid.
    FirstMachine,
    /// In `tests/two-machines`, on the machine that joins; the invitation is on standard input.
    SecondMachine,
    /// In a directory for the page, by the simulator's own tests, after the blocks before it.
    Simnet,
    /// Nowhere, for this reason.
    None(String),
}

/// A block of shell.
#[derive(Clone, Debug)]
pub struct Block {
    /// The page, from the root of the repository.
    pub page: String,
    /// The line of its first command, from 1.
    pub line: usize,
    /// Where it is run.
    pub setting: Setting,
    /// Its commands.
    pub script: String,
}

/// One call of a program of ours: its name, and the words after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// `idlewood` or `simnet`.
    pub program: String,
    /// Verbs, flags and values.
    pub words: Vec<String>,
}

/// What `--help` prints for a program: the flags of each chain of verbs, and which verbs may follow it.
#[derive(Clone, Debug, Default)]
pub struct Help {
    flags: BTreeMap<Vec<String>, BTreeSet<String>>,
    verbs: BTreeMap<Vec<String>, BTreeSet<String>>,
}

/// The pages whose commands are run, from the root of the repository.
///
/// # Panics
/// Without a repository.
pub fn pages(root: &Path) -> Vec<String> {
    let guide = std::fs::read_dir(root.join("docs/guide")).expect("the guide is in the repository");
    let names = guide.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
    let mut pages: Vec<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/guide/{name}")).collect();
    pages.push("README.md".to_owned());
    pages.sort();
    pages
}

/// The text of a page.
///
/// # Panics
/// If there is no such page.
pub fn text(root: &Path, page: &str) -> String {
    let path: PathBuf = root.join(page);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of a page.
///
/// # Errors
/// Names the first block whose mark is missing or unknown, or that is in another language and has commands of ours.
pub fn blocks(page: &str, text: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut above = "";
    while let Some((number, line)) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let inside: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim_start() != "```").collect();
            if ["sh", "bash", "shell", "console"].contains(&language) {
                let line = number + 2;
                let setting = setting(above).map_err(|wrong| format!("{page}:{line}: {wrong}"))?;
                blocks.push(Block { page: page.to_owned(), line, setting, script: inside.join("\n") + "\n" });
            } else if !calls(&inside.join("\n")).is_empty() {
                return Err(format!(
                    "{page}:{}: commands in a block of {language:?}, which no test runs: write sh",
                    number + 2
                ));
            }
        }
        above = line;
    }
    Ok(blocks)
}

fn setting(mark: &str) -> Result<Setting, String> {
    let inner = mark.strip_prefix("<!-- test: ").and_then(|rest| rest.strip_suffix(" -->"));
    let inner = inner.ok_or("the block has no mark <!-- test: ... --> in the line above it")?;
    match inner {
        "alone" => Ok(Setting::Alone),
        "submitter" => Ok(Setting::Submitter),
        "admin" => Ok(Setting::Admin),
        "first machine" => Ok(Setting::FirstMachine),
        "second machine" => Ok(Setting::SecondMachine),
        "simnet" => Ok(Setting::Simnet),
        _ => match inner.strip_prefix("none, ") {
            Some(reason) if !reason.trim().is_empty() => Ok(Setting::None(reason.to_owned())),
            _ => Err(format!("{inner:?} is no setting, and no reason why no test runs the block")),
        },
    }
}

/// The calls of our programs in a script, `cargo run` of them included.
pub fn calls(script: &str) -> Vec<Call> {
    let mut found = Vec::new();
    for line in script.replace("\\\n", " ").lines() {
        let mut command: Vec<String> = Vec::new();
        for word in line.split_whitespace().take_while(|word| !word.starts_with('#')) {
            let begins = word.starts_with("$(") || word.starts_with("<(");
            let separates = ["|", "||", "&&", "&", ";", "do", "then", "if", "while", "!", "{"].contains(&word);
            if begins || separates {
                found.extend(call(std::mem::take(&mut command)));
            }
            let plain = word.trim_start_matches("$(").trim_start_matches("<(").trim_end_matches(')');
            if !separates {
                command.push(plain.trim_end_matches(';').to_owned());
            }
            if word.ends_with(';') || word.ends_with(')') {
                found.extend(call(std::mem::take(&mut command)));
            }
        }
        found.extend(call(command));
    }
    found
}

/// The call in a command, if it is of our programs.
fn call(mut words: Vec<String>) -> Option<Call> {
    let is_before = |word: &String| word == "sudo" || (word.contains('=') && !word.starts_with('-'));
    let start = words.iter().position(|word| !is_before(word))?;
    words.drain(..start);
    let cargo =
        words.iter().position(|word| word == "--").filter(|_| words.starts_with(&["cargo".into(), "run".into()]));
    let program = match cargo {
        Some(end) => {
            let is_simnet = words[..end].contains(&"idlewood-simnet".to_owned());
            words.drain(..end);
            if is_simnet { "simnet" } else { "idlewood" }.to_owned()
        }
        None => words[0].clone(),
    };
    let is_ours = ["idlewood", "simnet"].contains(&program.as_str());
    is_ours.then(|| Call { program, words: words.split_off(1) })
}

/// The inline code of a page: commands, flags, files.
pub fn inline_code(text: &str) -> Vec<String> {
    let mut is_prose = true;
    let prose: Vec<&str> = text
        .lines()
        .filter(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_prose ^= is_fence;
            is_prose && !is_fence
        })
        .collect();
    let prose = prose.join("\n");
    let pieces = prose.split('`').skip(1).step_by(2);
    pieces.map(|piece| piece.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

impl Help {
    /// Asks a program for all of its help.
    ///
    /// # Panics
    /// If the program does not start, or has no help for a verb that it names.
    pub fn of(program: &Path) -> Self {
        let mut help = Self::default();
        let mut open: Vec<Vec<String>> = vec![Vec::new()];
        while let Some(chain) = open.pop() {
            let output = Command::new(program).args(&chain).arg("--help").output().expect("the program starts");
            assert!(output.status.success(), "{chain:?} has no help");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let commands = text.lines().skip_while(|line| *line != "Commands:").skip(1);
            let verbs: BTreeSet<String> = commands
                .take_while(|line| !line.is_empty())
                // Lines that are indented further continue the one before.
                .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
                .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
                .filter(|verb| verb != "help")
                .collect();
            open.extend(verbs.iter().map(|verb| [chain.clone(), vec![verb.clone()]].concat()));
            let options = text.lines().filter(|line| line.trim_start().starts_with('-'));
            let flags = options.flat_map(|line| line.split_whitespace().take(2).filter(|word| word.starts_with("--")));
            let aliases = text.lines().filter_map(|line| line.trim().strip_prefix("[alias"));
            let aliases = aliases.flat_map(|line| line.split([' ', ',', ']']).filter(|word| word.starts_with("--")));
            help.flags.insert(chain.clone(), flags.chain(aliases).map(str::to_owned).collect());
            help.verbs.insert(chain, verbs);
        }
        help
    }

    /// The flags of each chain of verbs, the program itself first.
    pub fn flags(&self) -> impl Iterator<Item = (&[String], &BTreeSet<String>)> {
        self.flags.iter().map(|(chain, flags)| (chain.as_slice(), flags))
    }

    /// Whether any verb has this flag.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.values().any(|flags| flags.contains(flag))
    }

    /// Checks the verbs and flags of a call.
    ///
    /// # Errors
    /// A sentence about the first verb or flag that does not exist.
    pub fn check(&self, words: &[String]) -> Result<(), String> {
        let mut chain: Vec<String> = Vec::new();
        let mut flags = Vec::new();
        let mut words = words.iter().take_while(|word| !["--", ":::"].contains(&word.as_str()));
        while let Some(word) = words.next() {
            if word.starts_with("--") {
                let (flag, value) =
                    word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
                flags.push(flag);
                // Before the last verb only global flags are allowed, which have a value each.
                if value.is_none() && !self.verbs[&chain].is_empty() && flag != "--help" && flag != "--version" {
                    words.next();
                }
            } else if word != "help" && !self.verbs[&chain].is_empty() {
                if !self.verbs[&chain].contains(word) {
                    return Err(format!("there is no verb {word:?} after {chain:?}"));
                }
                chain.push(word.clone());
            }
        }
        match flags.into_iter().find(|flag| !self.flags[&chain].contains(*flag)) {
            Some(flag) => Err(format!("{chain:?} has no flag {flag}")),
            None => Ok(()),
        }
    }

    /// Checks all calls of a program on a page, in blocks and in inline code, and single flags in inline code on
    /// pages about it.
    ///
    /// # Errors
    /// A sentence about each verb or flag that does not exist.
    pub fn check_page(&self, program: &str, page: &str, text: &str) -> Result<usize, Vec<String>> {
        let mut named: Vec<(String, Vec<String>)> = Vec::new();
        for block in blocks(page, text).map_err(|wrong| vec![wrong])? {
            named.extend(calls_of(program, &block.script));
        }
        let is_simulators = page == "docs/guide/simulate.md";
        let mut flags = Vec::new();
        for piece in inline_code(text) {
            let words: Vec<String> = piece.split(' ').map(str::to_owned).collect();
            let is_verb = words.len() > 1 && ["bag", "grid", "config", "store", "submit"].contains(&words[0].as_str());
            if piece.starts_with("--") && piece.len() > 2 && is_simulators == (program == "simnet") {
                flags.push(words[0].split('=').next().unwrap_or_default().to_owned());
            } else if is_verb && program == "idlewood" {
                named.push((piece, words));
            } else {
                named.extend(calls_of(program, &piece));
            }
        }
        let calls =
            named.iter().filter_map(|(what, words)| Some(format!("{page}: `{what}`: {}", self.check(words).err()?)));
        let missing = flags.iter().filter(|flag| !self.has_flag(flag));
        let wrong: Vec<String> =
            calls.chain(missing.map(|flag| format!("{page}: no verb has the flag {flag}"))).collect();
        if wrong.is_empty() { Ok(named.len() + flags.len()) } else { Err(wrong) }
    }
}

/// The calls of one program in a script: each as written, and its words.
fn calls_of(program: &str, script: &str) -> impl Iterator<Item = (String, Vec<String>)> {
    let calls = calls(script).into_iter().filter(move |call| call.program == program);
    calls.map(|call| (format!("{} {}", call.program, call.words.join(" ")), call.words))
}

/// Prelude of every block: it ends at the first failure, leaves nothing running, and uses the build that the test has
/// made.
pub const PRELUDE: &str = r#"
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
cargo() { # What is built is the program under test.
    case "$*" in
    "build --release" | "build --release -p idlewood-simnet") ;;
    "run --release -p idlewood-simnet -- "*) shift 5 && simnet "$@" ;;
    *) echo "the test cannot run cargo $*" >&2 && return 1 ;;
    esac
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn blocks_have_marks_or_are_refused() {
        let page = "# A\n\n<!-- test: alone -->\n```sh\nls\n```\n```text\nno shell\n```\n";
        let found = blocks("README.md", page).unwrap();
        assert_eq!((found.len(), found[0].line, found[0].script.as_str()), (1, 5, "ls\n"));
        for mark in
            ["", "<!-- test: somewhere -->", "<!-- test: none -->", "<!-- test: none,  -->", "<!-- test: alone -->\n"]
        {
            assert!(blocks("README.md", &format!("{mark}\n```sh\nls\n```\n")).is_err(), "{mark:?}");
        }
        assert!(blocks("README.md", "```\nidlewood status\n```\n").is_err());
        assert_eq!(setting("<!-- test: none, it needs root -->"), Ok(Setting::None("it needs root".to_owned())));
    }

    #[test]
    fn calls_are_found_anywhere_in_a_script() {
        let script = "a=1 && sudo idlewood x --y  # idlewood no\nz | idlewood b --c; simnet d\n$(idlewood e) \\\n f\ncargo run \
                      --release -- demo\ncargo run --release -p idlewood-simnet -- run --n 1\necho idlewood\n";
        let found: Vec<String> =
            calls(script).iter().map(|call| format!("{} {}", call.program, call.words.join(" "))).collect();
        assert_eq!(
            found,
            ["idlewood x --y", "idlewood b --c", "simnet d", "idlewood e", "idlewood demo", "simnet run --n 1"]
        );
    }

    #[test]
    fn verbs_and_flags_have_to_exist() {
        let mut help = Help::default();
        let set = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<BTreeSet<_>>();
        for (chain, verbs, flags) in [
            (vec![], set(&["bag", "run"]), set(&["--output"])),
            (vec!["bag"], set(&["show"]), set(&["--output"])),
            (vec!["bag", "show"], set(&[]), set(&["--output", "--all"])),
            (vec!["run"], set(&[]), set(&["--output"])),
        ] {
            let chain: Vec<String> = chain.into_iter().map(str::to_owned).collect();
            help.verbs.insert(chain.clone(), verbs);
            help.flags.insert(chain, flags);
        }
        for good in ["run", "--output json bag show last --all", "help bag show", "run x -- --any ::: --thing"] {
            assert_eq!(help.check(&words(good)), Ok(()), "{good}");
        }
        for bad in ["runn", "bag sho", "help bag shw", "run --all", "--output json bag show --al", "bag --none show"] {
            assert!(help.check(&words(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn inline_code_is_found() {
        let text = "A `b c` and `d\ne`.\n```sh\n`f`\n```\n`g`\n";
        assert_eq!(inline_code(text), ["b c", "d e", "g"]);
    }
}
