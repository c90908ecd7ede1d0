//! `idlewood bag logs`: what tasks wrote, and with `--follow` what they write.
//!
//! Output of tasks that are over is here, with their results; what running tasks have written is asked of the machines that run them.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use idlewood_api::client::Client;
use idlewood_api::{LiveRequest, LiveSeen, TaskResult, TaskState};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_units::Numbers;
use serde::Serialize;

use super::context::{BadUsage, Context};
use super::interrupt::Interrupt;
use super::log_follow::{self, bytes_of, ranges, seen_after};
use super::log_lines::harmless;
use super::results::{self, Chosen, Problem};
use super::which::{self, BagName, Found};
use crate::output::{self, Format};

/// For `--help`.
pub(super) const EXAMPLES: &str = "\
Programs that write to a file or a pipe often keep what they write until there is much of it: then
nothing is to be followed. Most can be told otherwise (python3 -u, setvbuf, flush).

Examples:
  idlewood bag logs last 7                   what task 7 of the last bag has written so far
  idlewood bag logs --follow                 all tasks of the last bag, until it is over
  idlewood bag logs sweep 0-9 --follow       ten tasks of the bag `sweep`
  idlewood bag logs sweep night 0-9          ten tasks of each of two bags
  idlewood bag logs sweep 2026 --index 0-9   of the bags `sweep` and `2026`, which looks like tasks";

/// Questions for what running tasks have written by now.
const ROUNDS_MAX: usize = 1000;

/// Arguments of `bag logs`.
#[derive(Debug, clap::Args)]
pub(super) struct LogsArgs {
    /// Bags: ids, unique beginnings of them, names, `last`, or `all`; and behind them the only tasks: 5, 0-9, 1,3,7-9
    #[arg(value_name = "BAG|TASKS", default_value = "last")]
    words: Vec<BagName>,
    /// Only these tasks: 5, 0-9, 1,3,7-9
    #[arg(long, value_name = "RANGE")]
    index: Option<Numbers>,
    /// What they wrote on standard error instead of standard output
    #[arg(long)]
    stderr: bool,
    /// Print what tasks write while they run, standard error included, until they are over (Ctrl-C leaves the bag alone)
    #[arg(long, short)]
    follow: bool,
}

/// What a task wrote, as JSON.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct Log {
    index: u64,
    entry: String,
    success: bool,
    text: String,
    /// Where the task is; if it is not over, `text` is what it has written so far.
    state: TaskState,
}

/// What tasks of one of several bags wrote, as JSON.
#[derive(schemars::JsonSchema)]
#[expect(dead_code, reason = "it describes what is printed")]
pub(super) struct LogsOfBag {
    /// Its id.
    bag: String,
    tasks: Vec<Log>,
}

/// JSON output: what tasks of one bag wrote, or of several.
#[derive(schemars::JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes what is printed")]
pub(super) enum Logs {
    One(Vec<Log>),
    Several(Vec<LogsOfBag>),
}

impl LogsArgs {
    /// The bags, and the tasks where some are named: the last word, where it reads like tasks and is not the only one.
    fn chosen(&self) -> (&[BagName], Option<Numbers>) {
        if let Some(index) = &self.index {
            return (&self.words, Some(index.clone()));
        }
        match &self.words[..] {
            [bags @ .., BagName(last)] if !bags.is_empty() => match last.parse() {
                Ok(tasks) => (bags, Some(tasks)),
                Err(_) => (&self.words, None),
            },
            words => (words, None),
        }
    }
}

pub(super) fn logs(context: &Context, args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let (names, chosen) = args.chosen();
    let json = context.format == Format::Json;
    let client = Arc::new(context.client()?);
    let Found { ids, is_one } = which::find(names, &client, |_| true)?;
    if args.follow && ids.len() != 1 {
        return Err(BadUsage(format!("--follow takes one bag, and these are {}", ids.len())).into());
    }
    let mut code = ExitCode::SUCCESS;
    if args.follow {
        code = log_follow::follow(context, &ids[0], chosen.as_ref(), args.stderr)?;
        if !json {
            return Ok(code);
        }
    }
    // Text may end anywhere.
    let interrupt = if json { Interrupt::hear()? } else { Interrupt::default() };
    if is_one {
        print(&client, &ids[0], json, args.stderr, chosen.as_ref(), &interrupt)?;
        return if json { writeln!(io::stdout()).map_err(Into::into) } else { Ok(()) }.map(|()| code);
    }
    let mut ends = Vec::new();
    if json {
        write!(io::stdout(), "[")?;
    }
    for (position, id) in ids.iter().enumerate() {
        let bag = client.bag(id)?.bag;
        let space = if position > 0 { "\n" } else { "" };
        match (json, position) {
            (true, 0) => write!(io::stdout(), "{{\"bag\":\"{}\",\"tasks\":", bag.id)?,
            (true, _) => write!(io::stdout(), ",{{\"bag\":\"{}\",\"tasks\":", bag.id)?,
            (false, _) => {
                let (id, name) = (output::short_id(&bag.id), output::printable(&bag.name));
                writeln!(io::stdout(), "{space}==> bag {id} ({name})")?;
            }
        }
        // What is wrong with one bag keeps nothing from the others.
        ends.push(print(&client, &bag.id, json, args.stderr, chosen.as_ref(), &interrupt));
        if json {
            write!(io::stdout(), "}}")?;
        }
        if interrupt.check().is_err() {
            break;
        }
    }
    if json {
        writeln!(io::stdout(), "]")?;
    }
    let mut failed = ends.into_iter().filter_map(Result::err);
    let Some(first) = failed.next() else { return Ok(code) };
    failed.try_for_each(|error| output::notice(&format!("{error:#}")))?;
    Err(first)
}

/// A task that has written something.
enum Wrote {
    Over(TaskResult),
    /// It runs, and has written this.
    SoFar(Vec<u8>),
}

/// Prints what tasks of one bag wrote; as JSON without an end of the line.
fn print(
    client: &Arc<Client>,
    id: &str,
    json: bool,
    stderr: bool,
    chosen: Option<&Numbers>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let Chosen { bag, results, missing } = results::choose(client, id, chosen)?;
    let mut all: BTreeMap<u64, Wrote> = results.into_iter().map(|result| (result.index, Wrote::Over(result))).collect();
    let mut silent = Vec::new();
    if missing > 0 && !bag.state.is_closed() {
        let (asked, id, ranges) = (client.clone(), bag.id.clone(), ranges(chosen));
        let written = interrupt.unless(move || written_so_far(&asked, &id, ranges, stderr))?;
        let (written, unheard) = written?;
        silent = unheard;
        for (index, text) in written {
            if chosen.is_none_or(|chosen| chosen.contains(index)) {
                all.entry(index).or_insert(Wrote::SoFar(text));
            }
        }
    }
    let so_far = all.values().filter(|wrote| matches!(wrote, Wrote::SoFar(_))).count() as u64;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let terminal = io::stdout().is_terminal();
    if json {
        out.write_all(b"[")?;
    }
    let (mut problems, mut lost, mut separator) = (Vec::new(), IntervalSet::new(), &b""[..]);
    let ended = all.into_iter().try_for_each(|(index, wrote)| -> anyhow::Result<()> {
        let (text, entry, state) = match wrote {
            Wrote::SoFar(text) => {
                let found = if json { client.tasks(&bag.id, index, 1, &TaskState::ALL)?.tasks } else { Vec::new() };
                let task = found.into_iter().find(|task| task.index == index);
                let entry = task.map(|task| task.entry).unwrap_or_default();
                (text, entry, TaskState::Placed)
            }
            Wrote::Over(result) => match results::fetch_output(client, &bag.id, &result, interrupt)? {
                Ok(task) => {
                    let state = if result.success { TaskState::Succeeded } else { TaskState::Failed };
                    (if stderr { task.stderr } else { task.stdout }, result.entry, state)
                }
                Err(Problem { is_lost, sentence }) => {
                    if is_lost {
                        lost.insert_index(index);
                    }
                    problems.push(sentence);
                    return Ok(());
                }
            },
        };
        if json {
            out.write_all(std::mem::replace(&mut separator, b","))?;
            let (text, success) = (String::from_utf8_lossy(&text).into_owned(), state == TaskState::Succeeded);
            output::write_json(&mut out, &Log { index, entry, success, text, state })?;
        } else if terminal {
            out.write_all(harmless(&text).as_bytes())?;
        } else {
            out.write_all(&text)?;
        }
        Ok(())
    });
    // Output that ended early is JSON, too.
    let closed = if json { out.write_all(b"]") } else { Ok(()) };
    ended?;
    closed.and_then(|()| out.flush())?;
    drop(out);
    if missing > 0 && !json {
        for (machine, why) in silent {
            output::notice(&format!("machine {} cannot be asked: {why}", output::short_peer(&machine)))?;
        }
        if so_far > 0 {
            let id = output::short_id(&bag.id);
            let tasks = output::count(so_far, "task");
            output::notice(&format!(
                "of {tasks} that run, what is written so far; follow it: idlewood bag logs {id} --follow"
            ))?;
        }
        if missing > so_far {
            output::notice(&results::still_missing(&bag, missing - so_far))?;
        }
    }
    results::end(&bag, &problems, &lost).map(drop)
}

/// What running tasks have written by now, and the machines that do not say.
#[expect(clippy::type_complexity, reason = "two lists")]
fn written_so_far(
    client: &Client,
    id: &str,
    tasks: Vec<(u64, u64)>,
    stderr: bool,
) -> anyhow::Result<(BTreeMap<u64, Vec<u8>>, Vec<(String, String)>)> {
    let mut seen: BTreeMap<u64, LiveSeen> = BTreeMap::new();
    let mut written: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for _ in 0..ROUNDS_MAX {
        let request = LiveRequest { tasks: tasks.clone(), seen: seen.values().cloned().collect() };
        let live = client.live(id, &request)?;
        let mut is_new = false;
        for task in &live.tasks {
            let (stdout, stderr_bytes) = bytes_of(task)?;
            is_new |= !stdout.is_empty() || !stderr_bytes.is_empty();
            let text = written.entry(task.index).or_default();
            if seen.get(&task.index).is_none_or(|seen| seen.run != task.run || seen.machine != task.machine) {
                text.clear();
            }
            text.extend_from_slice(if stderr { &stderr_bytes } else { &stdout });
            seen.insert(task.index, seen_after(task, &stdout, &stderr_bytes));
        }
        if !is_new {
            let silent = live.silent.into_iter().map(|silent| (silent.machine, silent.why)).collect();
            return Ok((written, silent));
        }
    }
    Ok((written, Vec::new()))
}
