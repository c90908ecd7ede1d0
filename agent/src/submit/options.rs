//! Options of a submission: flags and keys of the spec file are the same fields, so that they cannot drift apart.
//!
//! A spec file is TOML whose keys are the flags' names:
//!
//! ```toml
//! program = "render.wasm"        # paths are relative to the spec file
//! args = ["--frame", "{}"]       # what follows `--` on the command line
//! array = "0-99"                 # or each-line, csv, from-json, glob, or entries = ["a", "b"]
//! input = ["data", "part-{}"]    # files and folders
//! output-files = ["out/*.csv"]
//! memory = "256M"
//! env = { MODE = "fast" }
//! ```
//!
//! `entries` may be lists whose combinations are tasks: `[["a", "b"], [1, 2], { file = "c.txt" }]`. Entries, arguments and variables may be
//! numbers and truth values.
//!
//! A flag overrides the key of the same name. Environment variables are merged one by one. A source of tasks given by
//! flag (`--array`, `--each-line`, `--csv`, `--from-json`, `--glob`, `:::`) replaces the source in the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use idlewood_units::{Array, ByteSize, Span, Variable};
use serde::{Deserialize, Deserializer};

use super::error::SubmitError;
use super::lists::{self, List, Lists};
use super::mode::Mode;

/// The fields of a submission, as given.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// The program: a WebAssembly module (WASI preview 1)
    #[arg(long, value_name = "FILE.wasm")]
    pub program: Option<PathBuf>,
    /// The program is native (an executable or a script), for machines whose owners let such programs run (bags.native)
    #[arg(long)]
    pub native: bool,
    /// One task per number: 5, 0-99, 0-99:10, 1,3,7-9; with --endless also 0-
    #[arg(long, value_name = "RANGE", group = "source", help_heading = "Tasks")]
    pub array: Option<Array>,
    /// One task per line of FILE that is not empty (- reads standard input)
    #[arg(long, value_name = "FILE", group = "source", help_heading = "Tasks")]
    pub each_line: Option<PathBuf>,
    /// Cut the lines of --each-line into columns at this text ('\t' is a tab), for {1}, {2}
    #[arg(long, value_name = "TEXT", requires = "each_line", help_heading = "Tasks")]
    pub colsep: Option<String>,
    /// One task per line of a table (CSV) below its first line, whose names are for {name}
    #[arg(long, value_name = "FILE", group = "source", help_heading = "Tasks")]
    pub csv: Option<PathBuf>,
    /// One task per value of a JSON list, or per value of several; keys of objects are for {name}
    #[arg(long, value_name = "FILE", group = "source", help_heading = "Tasks")]
    pub from_json: Option<PathBuf>,
    /// One task per file that matches, which becomes its input (also: each-file); quote the pattern
    #[arg(long, alias = "each-file", value_name = "PATTERN", group = "source", help_heading = "Tasks")]
    #[serde(alias = "each-file")]
    pub glob: Option<String>,
    /// A bag without a last task: of --array 0-, of lines as they come with --each-line -, or of files as they appear with --watch; it
    /// shares the grid with other such bags
    #[arg(long, help_heading = "Tasks")]
    pub endless: bool,
    /// With --endless: one task per file that appears in DIR, which becomes its input. A file is taken when whoever writes it has closed
    /// it, or when it is renamed into DIR; where the system does not tell (files that were there before, disks of other machines): when
    /// it has not changed for 5 s. Names that begin with a dot are left alone
    #[arg(long, value_name = "DIR", group = "source", requires = "endless", help_heading = "Tasks")]
    pub watch: Option<PathBuf>,
    /// Weight of an endless bag: the grid is shared in proportion to weights [default: 1]
    #[arg(long, value_name = "WEIGHT", requires = "endless", help_heading = "Tasks")]
    pub share: Option<f64>,
    /// Lists after `:::` and `::::`.
    #[arg(skip)]
    pub entries: Option<Lists>,
    /// A file or folder that every task can read as inputs/NAME, or what matches a quoted pattern; with places ('part-{}.dat') each task
    /// has its own; repeatable. At most 10,000 files of up to 4G
    #[arg(long, value_name = "FILE", help_heading = "What a task gets")]
    pub input: Vec<PathBuf>,
    /// What a task reads on standard input: a file, or {} for its own file with --glob or --watch
    #[arg(long, value_name = "FILE", help_heading = "What a task gets")]
    pub stdin: Option<String>,
    /// An environment variable; repeatable
    #[arg(long, value_name = "KEY=VALUE", help_heading = "What a task gets")]
    #[serde(deserialize_with = "variables")]
    pub env: Vec<Variable>,
    /// Keep only files of a task that match, as its output: 'out/*.csv', '**/result-{}.dat'; each pattern has to match something, or the
    /// task fails; repeatable [default: all files]
    #[arg(long, value_name = "PATTERN", help_heading = "What a task leaves")]
    #[serde(deserialize_with = "lists::texts")]
    pub output_files: Vec<String>,
    /// Largest output of a task, printed text included, 4K to 256M; a task whose output is larger fails [default: 256M]
    #[arg(long, value_name = "SIZE", help_heading = "What a task leaves")]
    pub output_limit: Option<ByteSize>,
    /// Memory a task may use [default: 512M]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub memory: Option<ByteSize>,
    /// Disk space a task's files may take, its checkpoint included [default: 1G]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub disk: Option<ByteSize>,
    /// Time a task may run, suspensions left out [default: 1d]
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    pub time_limit: Option<Span>,
    /// Failed tries that are repeated before a task counts as failed [default: 2]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_retries: Option<u32>,
    /// The same clock and random numbers for a task wherever it runs; implied by --replicas
    #[arg(long, help_heading = "Trust")]
    pub deterministic: bool,
    /// Machines that run each task, up to 8, to compare what they say [default: 1]
    #[arg(long, value_name = "K", help_heading = "Trust")]
    pub replicas: Option<u32>,
    /// Results alike that decide [default: more than half of --replicas, at least 2]
    #[arg(long, value_name = "Q", help_heading = "Trust")]
    pub quorum: Option<u32>,
    /// Believe a machine that always agreed with others alone, but for one task in N
    #[arg(long, value_name = "N", help_heading = "Trust")]
    pub recheck: Option<u32>,
    /// Exit codes that mean success [default: 0]
    #[arg(long, value_name = "CODES", value_delimiter = ',', value_parser = whole_number, help_heading = "Limits")]
    pub success_codes: Option<Vec<i32>>,
    /// Work of one task in Mop; measured by running the first task here if not given
    #[arg(long, value_name = "MOP")]
    pub work: Option<f64>,
    /// Other machines that keep the bag, 0 to 4, so that it goes on while this one is away [default: submit.stewards of the settings, 2]
    #[arg(long, value_name = "N")]
    pub stewards: Option<u32>,
    /// They keep the results of its tasks, too: after the loss of this machine's disk whoever adopts the bag has them. With --rounds: of all
    /// rounds, and not of the last complete one and what came since alone
    #[arg(long)]
    pub keep_results: bool,
    /// The bag is an application in rounds: each task is a process that goes through so many of them (docs/guide/rounds.md)
    #[arg(long, value_name = "N", help_heading = "Rounds")]
    pub rounds: Option<u64>,
    /// Iterations of a process in each round, as {iterations} and IDLEWOOD_ITERATIONS [default: 1]
    #[arg(long, value_name = "N", help_heading = "Rounds")]
    pub iterations: Option<u64>,
    /// In mode sync: processes on fast machines do more iterations instead of waiting, up to twice as many
    #[arg(long, help_heading = "Rounds")]
    pub fill: bool,
    /// In mode sync: a round begins only when each process has a slot, and then everywhere within seconds
    #[arg(long, help_heading = "Rounds")]
    pub at_once: bool,
    /// Whether processes wait for each other after each round (sync), or nobody waits (async) [default: sync]
    #[arg(long, value_name = "MODE", value_enum, help_heading = "Rounds")]
    pub mode: Option<Mode>,
    /// The program that merges what processes found; without one each is given the results of all
    #[arg(long, value_name = "FILE.wasm", help_heading = "Rounds")]
    pub merge: Option<PathBuf>,
    /// End early once the merge leaves this file
    #[arg(long, value_name = "FILE", help_heading = "Rounds")]
    pub until: Option<String>,
    /// With --until: not before so many rounds
    #[arg(long, value_name = "N", help_heading = "Rounds")]
    pub at_least_rounds: Option<u64>,
    /// Hold the bag: nothing of it runs before `idlewood bag release`
    #[arg(long, help_heading = "When tasks run")]
    pub hold: bool,
    /// Begin once these bags of this machine have succeeded: ids, beginnings of ids, or names
    #[arg(long, value_name = "BAG,...", value_delimiter = ',', help_heading = "When tasks run")]
    #[serde(deserialize_with = "lists::texts")]
    pub after: Vec<String>,
    /// At most so many tasks are with machines at once, all machines together
    #[arg(long, value_name = "N", help_heading = "When tasks run")]
    pub max_running: Option<u64>,
    /// From -1000 to 1000: bags of yours with a higher priority come first; those of others are none the later for it [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = priority, help_heading = "When tasks run")]
    pub priority: Option<i32>,
    /// Try only tasks again that end with one of these exit codes [default: all that fail]
    #[arg(long, value_name = "CODES", value_delimiter = ',', value_parser = exit_code, help_heading = "Limits")]
    pub retry_on: Option<Vec<u8>>,
    /// Run this command here, once, when the bag is over: IDLEWOOD_BAG_ID, _NAME and _STATE say which bag, and how
    // No key of spec files: it runs outside of every sandbox, and a spec file may be somebody else's.
    #[arg(long, value_name = "COMMAND", help_heading = "When tasks run")]
    #[serde(skip)]
    pub notify: Option<String>,
    /// A name for the bag [default: the program's]
    #[arg(long)]
    #[serde(deserialize_with = "lists::one_text")]
    pub name: Option<String>,
    /// The program's arguments, after `--`; {} stands for the task's entry, {index} for its index, {1} and {name} for a field of
    /// the entry
    #[arg(last = true, value_name = "ARGS")]
    #[serde(deserialize_with = "lists::texts")]
    pub args: Vec<String>,
}

impl Options {
    /// Reads a spec file.
    ///
    /// # Errors
    /// When it cannot be read or has an unknown key or wrong value; with the line.
    pub fn read(path: &Path) -> Result<Self, SubmitError> {
        let text = std::fs::read_to_string(path).map_err(|source| SubmitError::File {
            what: "spec file",
            path: path.to_owned(),
            source,
        })?;
        let mut options =
            Self::parse(&text).map_err(|(line, reason)| SubmitError::Spec { path: path.to_owned(), line, reason })?;
        options.rebase(path.parent().unwrap_or(Path::new("")));
        Ok(options)
    }

    /// Reads the text of a spec file; on failure, returns the line and the mistake.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = 1 + text.bytes().take(start).filter(|&byte| byte == b'\n').count();
            (line, error.message().lines().collect::<Vec<_>>().join(", "))
        })
    }

    /// Makes relative paths relative to `directory`.
    fn rebase(&mut self, directory: &Path) {
        if directory.as_os_str().is_empty() {
            return;
        }
        let files = self.entries.iter_mut().flat_map(|lists| &mut lists.0).filter_map(|list| match list {
            List::File(path) => Some(path),
            List::Values(_) => None,
        });
        let sources = self.each_line.iter_mut().chain(&mut self.csv).chain(&mut self.from_json).chain(&mut self.watch);
        let sources = sources.chain(files);
        let paths = self.program.iter_mut().chain(&mut self.merge).chain(sources).chain(&mut self.input);
        for path in paths.filter(|path| path.as_os_str() != "-") {
            *path = directory.join(&*path);
        }
        if let Some(pattern) = self.glob.as_mut().filter(|pattern| !Path::new(pattern).is_absolute()) {
            *pattern = format!("{}/{pattern}", glob::Pattern::escape(&directory.to_string_lossy()));
        }
        if let Some(stdin) = self.stdin.as_mut().filter(|stdin| *stdin != "{}") {
            // It may also be the name of an input, which joining does not change.
            *stdin = directory.join(&*stdin).to_string_lossy().into_owned();
        }
    }

    /// These options where given, else those of the spec file.
    pub fn over(self, spec: Self) -> Self {
        let own_source = self.sources() > 0;
        let source = if own_source { Self::default() } else { spec.clone() };
        let mut env: BTreeMap<String, Variable> = BTreeMap::new();
        for variable in spec.env.into_iter().chain(self.env) {
            env.insert(variable.key.clone(), variable);
        }
        let pick = |own: Vec<PathBuf>, other| if own.is_empty() { other } else { own };
        Self {
            program: self.program.or(spec.program),
            native: self.native || spec.native,
            array: self.array.or(source.array),
            each_line: self.each_line.or(source.each_line),
            colsep: self.colsep.or(source.colsep),
            csv: self.csv.or(source.csv),
            from_json: self.from_json.or(source.from_json),
            glob: self.glob.or(source.glob),
            endless: self.endless || spec.endless,
            watch: self.watch.or(source.watch),
            share: self.share.or(spec.share),
            entries: self.entries.or(source.entries),
            input: pick(self.input, spec.input),
            stdin: self.stdin.or(spec.stdin),
            output_files: if self.output_files.is_empty() { spec.output_files } else { self.output_files },
            output_limit: self.output_limit.or(spec.output_limit),
            env: env.into_values().collect(),
            memory: self.memory.or(spec.memory),
            disk: self.disk.or(spec.disk),
            time_limit: self.time_limit.or(spec.time_limit),
            max_retries: self.max_retries.or(spec.max_retries),
            deterministic: self.deterministic || spec.deterministic,
            replicas: self.replicas.or(spec.replicas),
            quorum: self.quorum.or(spec.quorum),
            recheck: self.recheck.or(spec.recheck),
            success_codes: self.success_codes.or(spec.success_codes),
            work: self.work.or(spec.work),
            stewards: self.stewards.or(spec.stewards),
            keep_results: self.keep_results || spec.keep_results,
            rounds: self.rounds.or(spec.rounds),
            iterations: self.iterations.or(spec.iterations),
            fill: self.fill || spec.fill,
            at_once: self.at_once || spec.at_once,
            mode: self.mode.or(spec.mode),
            merge: self.merge.or(spec.merge),
            until: self.until.or(spec.until),
            at_least_rounds: self.at_least_rounds.or(spec.at_least_rounds),
            hold: self.hold || spec.hold,
            after: if self.after.is_empty() { spec.after } else { self.after },
            max_running: self.max_running.or(spec.max_running),
            priority: self.priority.or(spec.priority),
            retry_on: self.retry_on.or(spec.retry_on),
            notify: self.notify,
            name: self.name.or(spec.name),
            args: if self.args.is_empty() { spec.args } else { self.args },
        }
    }

    /// How many sources of tasks are named; more than one contradict each other.
    pub fn sources(&self) -> usize {
        let files = [self.each_line.is_some(), self.csv.is_some(), self.from_json.is_some(), self.watch.is_some()];
        let named = files.into_iter().chain([self.array.is_some(), self.glob.is_some(), self.entries.is_some()]);
        named.filter(|&named| named).count()
    }
}

/// An exit code that a program can have.
fn exit_code(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| format!("{text:?} is no exit code: write for example 75 or 75,111, each from 0 to 255"))
}

/// Parses an exit code; its range is checked with the submission.
fn whole_number(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| format!("{text:?} is no exit code: write for example 0 or 0,10"))
}

/// A bag's place among those of its user.
pub(crate) fn priority(text: &str) -> Result<i32, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no priority: write a number from -1000 to 1000; the higher, the sooner"))
}

fn variables<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Variable>, D::Error> {
    let table = BTreeMap::<String, toml::Value>::deserialize(deserializer)?;
    let table: BTreeMap<String, String> = lists::all_texts(table).map_err(serde::de::Error::custom)?;
    table.iter().map(|(key, value)| Variable::new(key, value).map_err(serde::de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Options {
        Options::parse(text).unwrap()
    }

    #[test]
    fn a_spec_file_says_all_that_flags_say() {
        let options = spec(
            r#"
            program = "p.wasm"
            args = ["render", "{}"]
            array = "0-3"
            input = ["a.dat", "b.dat"]
            stdin = "a.dat"
            env = { A = "1" }
            memory = "256M"
            disk = "2G"
            time-limit = "1h"
            work = 12
            max-retries = 0
            success-codes = [0, 10]
            hold = true
            after = ["first", "ab12"]
            max-running = 3
            priority = -2
            retry-on = [75]
            output-files = ["out/*.csv", "{}.dat"]
            output-limit = "10M"
            name = "mine"
            "#,
        );
        assert_eq!(options.array.unwrap().numbers().unwrap().count(), 4);
        assert_eq!(options.memory, Some(ByteSize(256 << 20)));
        assert_eq!(options.disk, Some(ByteSize(2 << 30)));
        assert_eq!(options.time_limit.unwrap().seconds(), 3_600);
        assert_eq!(options.env, [Variable::new("A", "1").unwrap()]);
        assert_eq!(options.success_codes, Some(vec![0, 10]));
        assert_eq!(options.work, Some(12.0));
        assert_eq!(
            (options.hold, options.after, options.max_running),
            (true, vec!["first".to_owned(), "ab12".to_owned()], Some(3))
        );
        assert_eq!((options.output_files.len(), options.output_limit), (2, Some(ByteSize(10 << 20))));
        assert_eq!((options.retry_on, options.priority), (Some(vec![75]), Some(-2)));
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let (line, reason) = Options::parse("program = \"p\"\n\nmax-retry = 3\n").unwrap_err();
        assert_eq!(line, 3);
        assert!(reason.contains("max-retry") && reason.contains("max-retries"), "{reason}");

        let (line, reason) = Options::parse("name = \"a\"\nmemory = \"lots\"\n").unwrap_err();
        assert_eq!((line, reason.contains("256M")), (2, true), "{reason}");

        let (line, reason) = Options::parse("[env]\nIDLEWOOD_BAG_ID = \"x\"\n").unwrap_err();
        assert!(reason.contains("reserved"), "line {line}: {reason}");

        assert!(Options::parse("name = 'a'\nname = 'b'\n").is_err());
        assert_eq!(Options::parse("ok = \n").unwrap_err().0, 1);
    }

    #[test]
    fn flags_win() {
        let spec = spec("program='s.wasm'\nname='spec'\narray='0-9'\nenv={A='1',B='2'}\nargs=['s']\ninput=['s.dat']");
        let flags = Options {
            name: Some("flag".to_owned()),
            env: vec![Variable::new("B", "3").unwrap()],
            glob: Some("*.dat".to_owned()),
            ..Options::default()
        };
        let both = flags.over(spec.clone());
        assert_eq!(both.name.as_deref(), Some("flag"));
        assert_eq!(both.program, spec.program);
        assert_eq!(both.env, [Variable::new("A", "1").unwrap(), Variable::new("B", "3").unwrap()]);
        assert_eq!((both.array, both.glob.as_deref()), (None, Some("*.dat")));
        assert_eq!(both.args, ["s"]);
        assert_eq!(both.input, spec.input);

        let flags = Options { args: vec!["f".to_owned()], input: vec!["f.dat".into()], ..Options::default() };
        let both = flags.over(spec);
        assert_eq!((both.args, both.input), (vec!["f".to_owned()], vec![PathBuf::from("f.dat")]));
        assert_eq!(both.array.unwrap().numbers().unwrap().count(), 10);
    }

    #[test]
    fn paths_are_relative_to_the_spec_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bag.toml");
        std::fs::write(&path, "program='p.wasm'\nglob='in/*.dat'\ninput=['/etc/hosts', 'x']\nstdin='{}'").unwrap();
        let options = Options::read(&path).unwrap();
        assert_eq!(options.program, Some(directory.path().join("p.wasm")));
        assert_eq!(options.input, [PathBuf::from("/etc/hosts"), directory.path().join("x")]);
        assert_eq!(options.glob, Some(format!("{}/in/*.dat", directory.path().display())));
        assert_eq!(options.stdin.as_deref(), Some("{}"));
    }
}
