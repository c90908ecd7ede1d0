//! `idlewood bag logs`: what tasks wrote, and with `--follow` what they write.
//!
//! Output of tasks that are over is here, with their results; what running tasks have written is asked of the machines that run them.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use idlewood_api::client::Client;
use idlewood_api::{Bag, LiveRequest, LiveSeen, TaskResult, TaskState};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_units::Numbers;
use serde::Serialize;

use super::context::{BadUsage, Context};
use super::interrupt::Interrupt;
use super::log_follow::{self, bytes_of, ranges, seen_after};
use super::log_lines::harmless;
use super::results::{self, Chosen, Problem};
use super::which::{self, BagName, Found, first_of};
use crate::output::{self, Format};

/// For `--help`.
pub(super) const EXAMPLES: &str = "\
Programs that write to a file or a pipe often keep what they write until there is much of it: then \
nothing is to be followed. Most can be told otherwise (python3 -u, setvbuf, flush).

Examples:
  idlewood bag logs last 7                   what task 7 has written so far
  idlewood bag logs --follow                 all tasks, until the bag is over
  idlewood bag logs sweep 0-9 --follow       ten tasks of the bag `sweep`
  idlewood bag logs sweep night 0-9          ten tasks of each of two bags
  idlewood bag logs sweep 2026 --index 0-9   of two bags, one named 2026";

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
    let mut printer = Printer {
        client: &client,
        stderr: args.stderr,
        chosen: chosen.as_ref(),
        interrupt: &interrupt,
        around: Around { json, is_one, begun: 0 },
    };
    if is_one {
        printer.print(&ids[0])?;
        return if json { writeln!(io::stdout()).map_err(Into::into) } else { Ok(()) }.map(|()| code);
    }
    if json {
        write!(io::stdout(), "[")?;
    }
    let mut errors = Vec::new();
    for id in &ids {
        // What is wrong with one bag keeps nothing from the others.
        let ended = printer.print(id).with_context(|| format!("bag {}", output::short_id(id)));
        let nobody_reads = ended.as_ref().is_err_and(|error| error.is::<io::Error>());
        errors.extend(ended.err());
        if let Err(why) = interrupt.check() {
            if errors.is_empty() {
                errors.push(why.into());
            }
            break;
        }
        if nobody_reads {
            break;
        }
    }
    if json {
        writeln!(io::stdout(), "]")?;
    }
    first_of(errors).map(|()| code)
}

/// A task that has written something.
enum Wrote {
    Over(TaskResult),
    /// It runs, and has written this.
    SoFar(Vec<u8>),
}

/// What is printed around the tasks of each bag.
struct Around {
    json: bool,
    /// Whether the user named one bag.
    is_one: bool,
    /// Bags of which something is printed.
    begun: u64,
}

impl Around {
    /// What comes before the tasks of the next bag.
    fn begin(&mut self, bag: &Bag) -> String {
        let is_first = self.begun == 0;
        self.begun += 1;
        match (self.json, self.is_one) {
            (true, true) => "[".to_owned(),
            (true, false) => {
                let separator = if is_first { "" } else { "," };
                format!("{separator}{{\"bag\":\"{}\",\"tasks\":[", bag.id)
            }
            (false, true) => String::new(),
            (false, false) => {
                let space = if is_first { "" } else { "\n" };
                let (id, name) = (output::short_id(&bag.id), output::printable(&bag.name));
                format!("{space}==> bag {id} ({name})\n")
            }
        }
    }

    /// What comes behind them.
    fn end(&self) -> &'static str {
        match (self.json, self.is_one) {
            (true, true) => "]",
            (true, false) => "]}",
            (false, _) => "",
        }
    }
}

/// Prints what tasks of bags wrote; as JSON without an end of the line.
struct Printer<'a> {
    client: &'a Arc<Client>,
    stderr: bool,
    chosen: Option<&'a Numbers>,
    interrupt: &'a Interrupt,
    around: Around,
}

impl Printer<'_> {
    /// Prints what tasks of one bag wrote. As JSON it is whole also where it ends early, and nothing where it cannot begin.
    fn print(&mut self, id: &str) -> anyhow::Result<()> {
        let Self { client, stderr, chosen, interrupt, around: Around { json, .. } } = *self;
        let Chosen { bag, results, missing } = results::choose(client, id, chosen)?;
        let mut all: BTreeMap<u64, Wrote> =
            results.into_iter().map(|result| (result.index, Wrote::Over(result))).collect();
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
        out.write_all(self.around.begin(&bag).as_bytes())?;
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
        let closed = out.write_all(self.around.end().as_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_bags_print_is_one_json_value() {
        let bag: Bag = serde_json::from_str(include_str!("../../tests/fixtures/bag.json")).expect("it is a bag");
        let all = |bags: usize| {
            let mut around = Around { json: true, is_one: false, begun: 0 };
            let printed: String = (0..bags).map(|_| around.begin(&bag) + "7" + around.end()).collect();
            serde_json::from_str::<serde_json::Value>(&format!("[{printed}]")).expect("it is JSON")
        };
        assert_eq!(all(0), serde_json::json!([]), "none could begin");
        let of_one = serde_json::json!({ "bag": bag.id, "tasks": [7] });
        assert_eq!(all(2), serde_json::json!([of_one, of_one]));
        let mut around = Around { json: false, is_one: false, begun: 0 };
        let id = output::short_id(&bag.id);
        assert_eq!(around.begin(&bag), format!("==> bag {id} ({})\n", bag.name));
        assert!(around.begin(&bag).starts_with("\n==> ") && around.end().is_empty());
    }
}
