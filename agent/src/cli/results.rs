//! `idlewood bag get`: the output of tasks of bags, as files.
//!
//! ```text
//! DIR/results.json          one record per task that was saved, also by an earlier `get`
//! DIR/7/stdout, stderr      what task 7 wrote
//! DIR/7/exit_code           empty where it did not end by itself
//! DIR/7/outputs/...         the files it left
//! DIR/7/receipt             with --receipts: what its machine signed (`docs/formats.md`)
//! ```
//!
//! Outputs come from other people's machines: paths in them are checked before anything is written, and a path that
//! would leave its directory is refused by name. Files are replaced atomically, so a second `get` while the bag runs
//! leaves no half-written file. `results.json` is written at the end, also when the command ends early: by Ctrl-C or
//! SIGTERM, which do not wait for the task that is being fetched, an agent that goes away, or a full disk. A task that
//! is not listed in it may lack files, or have some of an earlier output.
//!
//! Left out: fetching in parallel (loopback is fast enough) and links, which outputs cannot contain.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::{self, IsTerminal as _, Write as _};
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use idlewood_api::client::{Client, ClientError};
use idlewood_api::{Bag, BagState, TaskResult};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_trust::manifest::{TaskOutput, is_file_name};
use idlewood_units::Numbers;
use serde::Serialize;

use super::context::{BadUsage, Context};
use super::interrupt::Interrupt;
use super::rounds;
use super::which::{Found, WhichBags, check, first_of};
use crate::output::{self, Format};

/// Problems that are printed; JSON has all.
const PROBLEMS_MAX: usize = 20;
/// Length of each that is printed.
const PROBLEM_CHARACTERS_MAX: usize = 500;
/// Length of a file's name that is printed.
const NAME_CHARACTERS_MAX: usize = 100;
/// A longer command shows its progress.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes written between two checks for a signal: some milliseconds.
const PART_BYTES: usize = 4 << 20;

/// Tasks so close together are requested together: the tasks between them cost less than another request.
const CLOSE: u64 = 1000;

/// Arguments of `bag get`.
#[derive(Debug, clap::Args)]
pub(super) struct GetArgs {
    #[command(flatten)]
    pub(super) bags: WhichBags,
    /// Where to [default: results-ID]; of several bags, each into a directory results-ID in there
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Only these tasks: 5, 0-9, 1,3,7-9
    #[arg(long, value_name = "RANGE")]
    index: Option<Numbers>,
    /// Of an application in rounds: the results of this round, counted from 1 [default: the last that is complete]
    #[arg(long, value_name = "N", conflicts_with = "index")]
    round: Option<u64>,
    /// Into a directory that has results of another bag, too: tasks of the same index are replaced
    #[arg(long)]
    mix: bool,
    /// Also what the machines signed that ran them; `bag receipts` checks it
    #[arg(long)]
    receipts: bool,
    /// Of an endless bag: save each result as it comes, until the bag is over, and let the grid forget it
    #[arg(long, conflicts_with_all = ["index", "mix", "receipts"])]
    pub(super) follow: bool,
}

/// The file that lists the saved tasks.
const LIST: &str = "results.json";

/// A task's record in `results.json`.
#[derive(Debug, Serialize)]
struct Record {
    #[serde(flatten)]
    result: TaskResult,
    exit_code: Option<i32>,
    error: Option<String>,
    cpu_s: f64,
    wall_s: f64,
    stdout_bytes: u64,
    stderr_bytes: u64,
    /// Paths below `outputs/`.
    files: Vec<String>,
    /// Paths in the task's directory that were not kept.
    left_out: Vec<String>,
}

/// JSON output of `bag get`.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct Fetched {
    bag: String,
    out: PathBuf,
    tasks: u64,
    missing: u64,
    problems: Vec<String>,
}

/// What came of one bag.
struct Got {
    bag: Bag,
    out: PathBuf,
    tasks: u64,
    missing: u64,
    problems: Vec<String>,
    lost: IntervalSet,
    /// Further sentences.
    told: Vec<String>,
}

pub(super) fn get(context: &Context, args: &GetArgs) -> anyhow::Result<ExitCode> {
    let client = Arc::new(context.client()?);
    let Found { ids, is_one } = args.bags.find(&client, |_| true)?;
    let interrupt = Interrupt::hear()?;
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for id in &ids {
        // What is wrong with one bag keeps nothing from the others.
        let ended = get_one(&client, id, args, is_one, &interrupt).and_then(|got| {
            if context.format == Format::Text {
                got.tell()?;
            }
            let ended = end(&got.bag, &got.problems, &got.lost);
            all.push(got.into_json());
            ended
        });
        let ended = if is_one { ended } else { ended.with_context(|| format!("bag {}", output::short_id(id))) };
        if interrupt.check().is_err() {
            // It says how far it came.
            ended?;
        } else {
            errors.extend(ended.err());
        }
    }
    if context.format == Format::Json && !(is_one && all.is_empty()) {
        output::one_or_all(all, is_one)?;
    }
    first_of(errors).map(|()| ExitCode::SUCCESS)
}

/// Saves what one bag has produced.
fn get_one(client: &Arc<Client>, id: &str, args: &GetArgs, is_one: bool, interrupt: &Interrupt) -> anyhow::Result<Got> {
    let of_round = match args.index {
        None => rounds::results(&client.bag(id)?.bag, args.round)?,
        Some(_) => None,
    };
    let tasks = of_round.as_ref().map(rounds::Results::tasks).or_else(|| args.index.clone());
    let (asked, name) = (client.clone(), id.to_owned());
    let Chosen { bag, results, missing } = interrupt.unless(move || choose(&asked, &name, tasks.as_ref()))??;
    let of_bag = format!("results-{}", output::short_id(&bag.id));
    let out = match &args.out {
        Some(out) if is_one => out.clone(),
        Some(out) => out.join(of_bag),
        None => PathBuf::from(of_bag),
    };
    if out.is_file() {
        return Err(BadUsage(format!("{} is a file: name a directory with --out", out.display())).into());
    }
    make_directory(&out)?;
    let chosen = output::count(results.len() as u64, "task");
    let before = saved_before(&out)?;
    if !args.mix
        && let Some(other) = before.iter().find_map(|record| other_bag(record, &bag.id))
    {
        let (out, other, id) = (out.display(), output::short_id(other), output::short_id(&bag.id));
        let otherwise = "name another directory with --out, or mix them with --mix";
        bail!("{out} has results of bag {other}, and these are of bag {id}: {otherwise}");
    }
    let unsaved = unsaved(client, &bag.id, &before)?;
    let mut saved = Saved { bag: bag.id.clone(), unsaved, before, ..Saved::default() };
    let mut ended = saved.fetch(client, &bag.id, &out, results, interrupt);
    if ended.is_ok() && args.receipts {
        ended = saved.fetch_receipts(client, &bag.id, &out, interrupt);
    }
    let listed = saved.list(&out);
    let tasks = saved.records.len() as u64;
    ended.with_context(|| format!("got as far as {tasks} of {chosen}, in {}", out.display()))?;
    listed?;
    let mut told: Vec<String> = of_round.map(|of_round| of_round.arrange(&out)).transpose()?.into_iter().collect();
    let Saved { records, problems, lost, .. } = saved;
    told.extend(records.iter().filter(|record| !record.left_out.is_empty()).map(not_kept));
    Ok(Got { bag, out, tasks, missing, problems, lost, told })
}

impl Got {
    fn tell(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "the outputs of {} are in {}", output::count(self.tasks, "task"), self.out.display())?;
        if self.missing > 0 {
            writeln!(stdout, "{}", still_missing(&self.bag, self.missing))?;
        }
        self.told.iter().try_for_each(|told| writeln!(stdout, "{told}"))?;
        stdout.flush()
    }

    fn into_json(self) -> Fetched {
        let Self { bag, out, tasks, missing, problems, .. } = self;
        Fetched { bag: bag.id, out, tasks, missing, problems }
    }
}

/// The state of a `get`.
#[derive(Debug, Default)]
struct Saved {
    bag: String,
    records: Vec<Record>,
    /// Records of an earlier `get`.
    before: Vec<serde_json::Value>,
    problems: Vec<String>,
    /// Tasks whose outputs are lost.
    lost: IntervalSet,
    /// Hashes of outputs, by index, of other finished tasks that an earlier `get` listed.
    unsaved: BTreeMap<u64, String>,
}

impl Saved {
    /// Saves these outputs. Unavailable ones become problems.
    ///
    /// # Errors
    /// When the agent does not answer, a file cannot be written, or the user interrupts: earlier tasks are saved.
    fn fetch(
        &mut self,
        client: &Arc<Client>,
        bag: &str,
        out: &Path,
        results: Vec<TaskResult>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let mut progress = Progress::new(results.len());
        let ended = results.into_iter().try_for_each(|result| {
            progress.step()?;
            let index = result.index;
            match fetch_output(client, bag, &result, interrupt)? {
                Ok(task) => match save(out, result, &task, &mut self.problems, interrupt) {
                    Ok(record) => {
                        self.records.push(record);
                        self.unsaved.remove(&index);
                    }
                    Err(error) if is_of_its_path(&error) => {
                        self.problems.push(format!("task {index} cannot be saved: {error:#}"));
                    }
                    Err(error) => return Err(error),
                },
                Err(Problem { is_lost, sentence }) => {
                    if is_lost {
                        self.lost.insert_index(index);
                    }
                    self.problems.push(sentence);
                }
            }
            Ok(())
        });
        progress.clear()?;
        ended
    }

    /// Saves the receipts of saved tasks.
    fn fetch_receipts(
        &mut self,
        client: &Arc<Client>,
        bag: &str,
        out: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let (asked, bag) = (client.clone(), bag.to_owned());
        let receipts = interrupt.unless(move || asked.receipts(&bag))??;
        for Record { result, .. } in &self.records {
            let index = result.index;
            let Ok(place) = receipts.binary_search_by_key(&index, |receipt| receipt.index) else {
                self.problems.push(format!("there is no receipt of task {index}: it ended under an older idlewood"));
                continue;
            };
            let bytes = hex::decode(&receipts[place].receipt).context("the agent's answer is damaged")?;
            write(&out.join(index.to_string()).join("receipt"), &bytes, interrupt)?;
        }
        Ok(())
    }

    /// Writes `results.json`: the saved tasks, and of the others the earlier records whose outputs are still the same.
    fn list(&self, out: &Path) -> anyhow::Result<()> {
        let saved: BTreeSet<u64> = self.records.iter().map(|record| record.result.index).collect();
        let is_replaced =
            |record: &serde_json::Value| record["index"].as_u64().is_none_or(|index| saved.contains(&index));
        let stays = |record: &&serde_json::Value| {
            if other_bag(record, &self.bag).is_some() {
                return !is_replaced(record);
            }
            let output = record["index"].as_u64().and_then(|index| self.unsaved.get(&index)).map(String::as_str);
            output.is_some() && record["output"].as_str() == output
        };
        let mut all: Vec<_> = self.before.iter().filter(stays).cloned().collect();
        for record in &self.records {
            let mut value = serde_json::to_value(record)?;
            value["bag"] = serde_json::Value::from(self.bag.as_str());
            all.push(value);
        }
        all.sort_by_key(|record| record["index"].as_u64());
        let list = output::escaped_json(&serde_json::to_string_pretty(&all)?);
        write(&out.join(LIST), list.as_bytes(), &Interrupt::default())
    }
}

/// The bag that an earlier record is of, if that is another one.
fn other_bag<'a>(record: &'a serde_json::Value, bag: &str) -> Option<&'a str> {
    record["bag"].as_str().filter(|other| *other != bag)
}

/// The records of an earlier `get`.
///
/// # Errors
/// When they cannot be read, or another file has that name: it would be overwritten.
fn saved_before(out: &Path) -> anyhow::Result<Vec<serde_json::Value>> {
    let file = out.join(LIST);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    serde_json::from_slice(&bytes).with_context(|| {
        format!("{} is no list of results: move it away, or name another directory with --out", file.display())
    })
}

/// Fails if there were problems, and names them, and a way to recover lost outputs.
pub(super) fn end(bag: &Bag, problems: &[String], lost: &IntervalSet) -> anyhow::Result<ExitCode> {
    if problems.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let named: Vec<String> =
        problems.iter().take(PROBLEMS_MAX).map(|problem| output::shortened(problem, PROBLEM_CHARACTERS_MAX)).collect();
    let mut sentence = format!("{}: {}", output::count(problems.len() as u64, "problem"), named.join("\n  "));
    if problems.len() > PROBLEMS_MAX {
        sentence += &format!("\n  and {} more; --output json names all", problems.len() - PROBLEMS_MAX);
    }
    if !lost.is_empty() && bag.state != BagState::Cancelled {
        let (id, tasks) = (output::short_id(&bag.id), output::spans(lost));
        sentence += &format!("\n  what is lost is run again by `idlewood bag rerun {id} --index {tasks}`");
    }
    bail!(sentence)
}

/// What became of one result that was to be saved.
pub(super) enum Saving {
    /// It is saved; its record for a list.
    Saved(serde_json::Value),
    /// It could not be, for a reason of its own.
    PutOff(String),
}

/// Saves one result.
///
/// # Errors
/// When the agent does not answer, a file cannot be written, or a signal came.
pub(super) fn save_one(
    client: &Arc<Client>,
    bag: &str,
    out: &Path,
    result: TaskResult,
    interrupt: &Interrupt,
) -> anyhow::Result<Saving> {
    let task = match fetch_output(client, bag, &result, interrupt)? {
        Ok(task) => task,
        Err(Problem { sentence, .. }) => return Ok(Saving::PutOff(sentence)),
    };
    let mut problems = Vec::new();
    match save(out, result, &task, &mut problems, interrupt) {
        Ok(record) => {
            problems.iter().try_for_each(|problem| output::notice(problem))?;
            Ok(Saving::Saved(serde_json::to_value(record)?))
        }
        Err(error) if is_of_its_path(&error) => Ok(Saving::PutOff(format!("{error:#}"))),
        Err(error) => Err(error),
    }
}

/// Why an output is unavailable.
pub(super) struct Problem {
    pub(super) sentence: String,
    /// Whether it is lost for good: missing, or with another content.
    pub(super) is_lost: bool,
}

/// As [`output_of`], however long that takes, unless a signal comes.
///
/// # Errors
/// When one came, or the agent does not answer.
pub(super) fn fetch_output(
    client: &Arc<Client>,
    bag: &str,
    result: &TaskResult,
    interrupt: &Interrupt,
) -> anyhow::Result<Result<TaskOutput, Problem>> {
    interrupt.check()?;
    let (client, bag, result) = (client.clone(), bag.to_owned(), result.clone());
    interrupt.unless(move || output_of(&client, &bag, &result))?
}

/// The output of a task, or why it is unavailable, which need not affect other tasks.
///
/// # Errors
/// The agent does not answer.
pub(super) fn output_of(
    client: &Client,
    bag: &str,
    result: &TaskResult,
) -> anyhow::Result<Result<TaskOutput, Problem>> {
    let TaskResult { index, output, .. } = result;
    let problem = |is_lost, sentence| Ok(Err(Problem { is_lost, sentence }));
    let bytes = match client.output(bag, result) {
        Ok(bytes) => bytes,
        Err(ClientError::Refused { status, sentence }) => {
            return problem(status == 404, format!("the output of task {index} cannot be fetched: {sentence}"));
        }
        // The answer breaks off if the disk cannot read the rest of a file.
        Err(error @ ClientError::Broken { .. }) if client.status().is_ok() => {
            return problem(false, format!("the output of task {index} cannot be read: {error}"));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot get the output of task {index}")),
    };
    // The agent hashes a file only once in its life.
    if blake3::hash(&bytes).to_hex().as_str() != output {
        return problem(true, format!("the output of task {index} is damaged: its file has changed since it came"));
    }
    let damaged =
        |error| Problem { is_lost: false, sentence: format!("the output of task {index} is damaged: {error}") };
    Ok(TaskOutput::decode(&bytes).map_err(damaged))
}

/// Names paths in the task's directory that are not among its outputs.
fn not_kept(record: &Record) -> String {
    let paths: Vec<String> = record.left_out.iter().map(|path| path.escape_debug().to_string()).collect();
    let index = record.result.index;
    let paths = output::shortened(&paths.join(", "), PROBLEM_CHARACTERS_MAX);
    format!("of task {index} not kept, as a link, with another name or too deep: {paths}")
}

pub(super) fn still_missing(bag: &Bag, missing: u64) -> String {
    if bag.state.is_closed() {
        format!("{} never ended: the bag is {}", output::count(missing, "task"), output::state(bag.state))
    } else {
        let verb = if missing == 1 { "is" } else { "are" };
        format!("{} {verb} not over yet: come back later", output::count(missing, "task"))
    }
}

/// The results that the user asked for.
pub(super) struct Chosen {
    pub(super) bag: Bag,
    /// The finished ones of the chosen tasks, by index.
    pub(super) results: Vec<TaskResult>,
    /// How many of the chosen tasks are unfinished.
    pub(super) missing: u64,
}

pub(super) fn choose(client: &Client, id: &str, chosen: Option<&Numbers>) -> anyhow::Result<Chosen> {
    let bag = client.bag(id)?.bag;
    let wanted = match chosen {
        None => bag.tasks,
        Some(chosen) => {
            check(&bag, chosen)?;
            chosen.count() as u64
        }
    };
    let mut results = Vec::new();
    match chosen {
        None => results = client.results(&bag.id)?,
        Some(chosen) => {
            for tasks in close_together(chosen.iter()) {
                client.each_result(&bag.id, tasks, |result| {
                    if chosen.contains(result.index) {
                        results.push(result);
                    }
                })?;
            }
        }
    }
    results.sort_unstable_by_key(|result| result.index);
    let missing = wanted.saturating_sub(results.len() as u64);
    Ok(Chosen { bag, results, missing })
}

/// Ranges that cover these numbers and few others: numbers close together are requested together.
pub(super) fn close_together(numbers: impl Iterator<Item = u64>) -> Vec<RangeInclusive<u64>> {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if number - *last.end() <= CLOSE => *last = *last.start()..=number,
            _ => ranges.push(number..=number),
        }
    }
    ranges
}

/// Hashes of outputs, by index, of finished tasks that an earlier `get` listed.
fn unsaved(client: &Client, bag: &str, before: &[serde_json::Value]) -> Result<BTreeMap<u64, String>, ClientError> {
    let mut outputs = BTreeMap::new();
    for tasks in close_together(before.iter().filter_map(|record| record["index"].as_u64())) {
        client.each_result(bag, tasks, |result| drop(outputs.insert(result.index, result.output)))?;
    }
    Ok(outputs)
}

/// Writes a task's directory. Refused paths become problems.
///
/// # Errors
/// When a file cannot be written, or a signal came: every file that exists is complete.
fn save(
    out: &Path,
    result: TaskResult,
    task: &TaskOutput,
    problems: &mut Vec<String>,
    interrupt: &Interrupt,
) -> anyhow::Result<Record> {
    let directory = out.join(result.index.to_string());
    make_directory(&directory)?;
    write(&directory.join("stdout"), &task.stdout, interrupt)?;
    write(&directory.join("stderr"), &task.stderr, interrupt)?;
    let outputs = directory.join("outputs");
    if !task.files.is_empty() {
        make_directory(&outputs)?;
    }
    let mut files = Vec::with_capacity(task.files.len());
    for (name, content) in &task.files {
        let Some(relative) = inside(name) else {
            problems
                .push(format!("task {} left a file with the forbidden path {name:?}; it was not saved", result.index));
            continue;
        };
        let path = outputs.join(relative);
        let saved = path.parent().map_or(Ok(()), make_directory).and_then(|()| write(&path, content, interrupt));
        match saved {
            Ok(()) => files.push(name.clone()),
            Err(error) if is_of_its_path(&error) => {
                let name = output::shortened(name, NAME_CHARACTERS_MAX);
                let why = error.root_cause();
                problems.push(format!("task {} left a file that cannot be saved, {name:?}: {why}", result.index));
            }
            Err(error) => return Err(error),
        }
    }
    for name in &task.folders {
        let made = inside(name).map(|relative| make_directory(&outputs.join(relative)));
        match made {
            Some(Ok(())) => {}
            Some(Err(error)) if !is_of_its_path(&error) => return Err(error),
            _ => {
                let name = output::shortened(name, NAME_CHARACTERS_MAX);
                problems.push(format!("task {} left an empty folder that cannot be saved, {name:?}", result.index));
            }
        }
    }
    // Only after the other files exist.
    let code = task.exit_code.map_or_else(String::new, |code| format!("{code}\n"));
    write(&directory.join("exit_code"), code.as_bytes(), interrupt)?;
    Ok(Record {
        exit_code: task.exit_code,
        error: task.error.clone(),
        cpu_s: task.cpu_s,
        wall_s: task.wall_s,
        stdout_bytes: task.stdout.len() as u64,
        stderr_bytes: task.stderr.len() as u64,
        files,
        left_out: task.left_out.clone(),
        result,
    })
}

/// Whether a file cannot be written because of its name, or of another file with that name: other files still can. A
/// machine chooses names as it likes: `a` and `a/b`, or one longer than this system's limit.
fn is_of_its_path(error: &anyhow::Error) -> bool {
    use io::ErrorKind::{
        AlreadyExists, DirectoryNotEmpty, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, TooManyLinks,
    };
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|error| {
        matches!(
            error.kind(),
            AlreadyExists
                | DirectoryNotEmpty
                | InvalidFilename
                | InvalidInput
                | IsADirectory
                | NotADirectory
                | TooManyLinks
        )
    })
}

/// `name` as a path inside the directory: plain names between slashes.
fn inside(name: &str) -> Option<PathBuf> {
    name.split('/').map(|part| is_file_name(part).then_some(part)).collect()
}

fn make_directory(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

/// Replaces a file atomically.
///
/// # Errors
/// When it cannot be written, or a signal came.
fn write(path: &Path, content: &[u8], interrupt: &Interrupt) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let directory = path.parent().unwrap_or(Path::new("."));
    // With the permissions that the user's umask allows, like any file.
    let created = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(directory);
    let mut file = created.with_context(failed)?;
    for part in content.chunks(PART_BYTES) {
        interrupt.check()?;
        file.write_all(part).with_context(failed)?;
    }
    file.persist(path).with_context(failed)?;
    Ok(())
}

/// Progress of a long fetch, on a terminal.
struct Progress {
    total: usize,
    done: usize,
    begin: Instant,
    last: Option<Instant>,
    shows: bool,
}

impl Progress {
    fn new(total: usize) -> Self {
        Self { total, done: 0, begin: Instant::now(), last: None, shows: io::stderr().is_terminal() }
    }

    fn step(&mut self) -> io::Result<()> {
        self.done += 1;
        let due = self.last.is_none_or(|last| last.elapsed() > PATIENCE / 10);
        if self.shows && due && self.begin.elapsed() > PATIENCE {
            self.last = Some(Instant::now());
            write!(io::stderr(), "\r\x1b[Ktask {} of {}", self.done, self.total)?;
        }
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        if self.last.is_some() { write!(io::stderr(), "\r\x1b[K") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::interrupt::Interrupted;

    fn result(index: u64) -> TaskResult {
        TaskResult {
            index,
            entry: "e".to_owned(),
            attempt: 0,
            success: true,
            machine: "m".to_owned(),
            finished: "2026-01-02T03:04:05Z".to_owned(),
            work_mops: 1.0,
            output: "00".to_owned(),
            output_bytes: 1,
        }
    }

    fn task(files: &[(&str, &str)]) -> TaskOutput {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec().into())).collect();
        TaskOutput {
            exit_code: Some(0),
            stdout: b"out".to_vec(),
            stderr: b"\xff".to_vec(),
            files,
            ..TaskOutput::default()
        }
    }

    fn saved(out: &Path, result: TaskResult, task: &TaskOutput, problems: &mut Vec<String>) -> Record {
        save(out, result, task, problems, &Interrupt::default()).unwrap()
    }

    #[test]
    fn paths_stay_inside() {
        for name in ["a", "a/b", "a/.b/c..d", "ä", "..."] {
            assert_eq!(inside(name), Some(PathBuf::from(name)));
        }
        for name in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../a",
            "a/../../b",
            "a//b",
            "a/",
            "./a",
            "a\\b",
            "a\0b",
            "a/\n",
            "a\u{202e}b",
        ] {
            assert_eq!(inside(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_task_becomes_a_directory() {
        let out = tempfile::tempdir().unwrap();
        let mut problems = Vec::new();
        let first = saved(out.path(), result(7), &task(&[("a", "1"), ("d/b", "2"), ("../x", "3")]), &mut problems);
        assert_eq!((first.files, problems.len()), (vec!["a".to_owned(), "d/b".to_owned()], 1));
        let read = |name: &str| fs::read(out.path().join("7").join(name)).unwrap();
        assert_eq!(
            (read("stdout"), read("stderr"), read("exit_code")),
            (b"out".to_vec(), b"\xff".to_vec(), b"0\n".to_vec())
        );
        assert_eq!((read("outputs/a"), read("outputs/d/b")), (b"1".to_vec(), b"2".to_vec()));
        assert!(!out.path().join("7/x").exists());

        // Again, over existing files.
        saved(out.path(), result(7), &task(&[("a", "4")]), &mut problems);
        assert_eq!(read("outputs/a"), b"4");
        let names: Vec<_> =
            fs::read_dir(out.path().join("7")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 4, "nothing temporary is left: {names:?}");
    }

    /// The other files of the task, and other tasks, are saved.
    #[test]
    fn a_path_that_cannot_be_made_is_a_problem_of_its_task() {
        let out = tempfile::tempdir().unwrap();
        let mut problems = Vec::new();
        let long = vec!["n".repeat(255); 40].join("/");
        let first =
            saved(out.path(), result(7), &task(&[("a", "1"), ("a/b", "2"), (&long, "3"), ("z", "4")]), &mut problems);
        assert_eq!(first.files, ["a", "z"]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems[0].contains("task 7 left a file that cannot be saved") && problems[0].contains("a/b"),
            "{problems:?}"
        );

        // In the way of the whole task.
        fs::write(out.path().join("8"), "a file of the user's").unwrap();
        let error = save(out.path(), result(8), &task(&[]), &mut problems, &Interrupt::default()).unwrap_err();
        assert!(is_of_its_path(&error), "{error:?}");
        // In the way of everything.
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::PermissionDenied] {
            assert!(!is_of_its_path(&anyhow::Error::new(io::Error::from(kind)).context("cannot write")));
        }
    }

    /// A file of any size.
    #[test]
    fn a_file_that_is_interrupted_stays_as_it_was() {
        let out = tempfile::tempdir().unwrap();
        let (there, new) = (out.path().join("there"), out.path().join("new"));
        write(&there, b"before", &Interrupt::default()).unwrap();
        for path in [&there, &new] {
            let error = write(path, &vec![1; 2 * PART_BYTES], &Interrupt::pressed()).unwrap_err();
            assert!(error.is::<Interrupted>(), "{error:?}");
        }
        assert_eq!(fs::read(&there).unwrap(), b"before");
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "nothing temporary is left, and no half file");
        let task = task(&[("a", "1")]);
        save(out.path(), result(7), &task, &mut Vec::new(), &Interrupt::pressed()).unwrap_err();
        assert_eq!(fs::read_dir(out.path().join("7")).unwrap().count(), 0);
    }

    #[test]
    fn a_record_is_flat() {
        let out = tempfile::tempdir().unwrap();
        let record = saved(out.path(), result(3), &task(&[]), &mut Vec::new());
        let json = serde_json::to_value(record).unwrap();
        assert_eq!((json["index"].as_u64(), json["exit_code"].as_i64()), (Some(3), Some(0)));
        assert!(!out.path().join("3/outputs").exists());
    }

    #[test]
    fn files_that_are_not_kept_are_reported() {
        let out = tempfile::tempdir().unwrap();
        let left = TaskOutput { left_out: vec!["a\x1b/link".to_owned(), "7 more".to_owned()], ..task(&[("kept", "")]) };
        let record = saved(out.path(), result(3), &left, &mut Vec::new());
        assert!(
            not_kept(&record)
                .contains("task 3 not kept, as a link, with another name or too deep: a\\u{1b}/link, 7 more")
        );
        assert_eq!(serde_json::to_value(record).unwrap()["left_out"][1], "7 more");
    }
}
