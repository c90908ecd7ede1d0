//! `idlewood bag`: the bags submitted from this machine.

use std::io::{self, Write as _};
use std::process::ExitCode;

use idlewood_api::client::{Client, ClientError};
use idlewood_api::{Bag, BagDetail, RerunRequest, Swallowed, TaskResult};
use idlewood_scheduler::Replication;
use idlewood_trust::manifest::TaskOutput;
use idlewood_units::Numbers;

use super::context::Context;
use super::follow::{self, View};
use super::which::{BagName, Found, TheseBags, WhichBag, WhichBags};
use super::{endless, explain, kept, list, logs, progress, receipts, results, rounds, tasks, ticket};
use crate::output::{self, Colour, Column, Format, Table};

/// Failed tasks whose reasons are shown.
const REASONS_MAX: usize = 5;
/// Length of each that is shown.
const REASON_CHARACTERS_MAX: usize = 300;

/// The verbs under `bag`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum BagCommand {
    /// List the bags submitted here
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Show bags: numbers, machines, why tasks failed
    Show {
        #[command(flatten)]
        bags: WhichBags,
    },
    /// List the tasks of a bag: where each is, how long it took, its exit code
    #[command(after_help = tasks::STATES)]
    Tasks(tasks::TasksArgs),
    /// Why tasks of a bag run or do not, how many machines that concerns, and what would end it
    #[command(after_help = explain::CODES)]
    Explain {
        #[command(flatten)]
        bag: WhichBag,
    },
    /// Watch a bag until every task is over (Ctrl-C leaves it alone)
    Watch {
        #[command(flatten)]
        bags: WhichBags,
    },
    /// Wait until every task is over; exit with 3 if some failed, with 4 if a bag was cancelled
    Wait {
        #[command(flatten)]
        bags: WhichBags,
        /// Show how far the bag is
        #[arg(long)]
        progress: bool,
    },
    /// Hold bags: no task of them begins any more; those that run go on to their end
    Hold {
        #[command(flatten)]
        bags: TheseBags,
    },
    /// Let bags go on that are held, or that wait for others (submit --after)
    Release {
        #[command(flatten)]
        bags: TheseBags,
    },
    /// Have a bag come before or behind your others: the higher the priority, the sooner; bags of others are none the later for it
    Priority {
        /// Its id, a unique beginning of it, its name, or `last`
        #[arg(value_name = "BAG")]
        id: BagName,
        /// From -1000 to 1000; 0 is that of bags of which nothing is said
        #[arg(value_name = "N", allow_negative_numbers = true)]
        priority: i32,
    },
    /// Give a bag another name
    Rename {
        /// Its id, a unique beginning of it, its present name, or `last`
        #[arg(value_name = "BAG")]
        id: BagName,
        /// The new name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Let endless bags come to an end: no task begins that no machine has, and they are over when those are
    Close {
        #[command(flatten)]
        bags: TheseBags,
    },
    /// Give bags up: their tasks end, what is done stays
    Cancel {
        #[command(flatten)]
        bags: TheseBags,
    },
    /// Run tasks again that are over, with all their retries; opens a bag that was over
    #[command(group = clap::ArgGroup::new("tasks").required(true).args(["failed", "index"]))]
    Rerun {
        /// Its id, a unique beginning of it, its name, or `last`
        #[arg(value_name = "BAG")]
        id: BagName,
        /// Those that failed: what succeeded is not run again
        #[arg(long)]
        failed: bool,
        /// These, also where they succeeded: 5, 0-9, 1,3,7-9
        #[arg(long, value_name = "RANGE")]
        index: Option<Numbers>,
    },
    /// Write all of a bag to a file, with which another machine can take it over when this one is lost for good
    Ticket(ticket::TicketArgs),
    /// Take a bag over from a ticket, because its submitter's machine is lost for good
    Adopt(ticket::AdoptArgs),
    /// Remove bags that are over, and their results; `all`: all that are over
    Rm {
        #[command(flatten)]
        bags: TheseBags,
    },
    /// Print what tasks wrote, or with --follow what they write
    #[command(after_help = logs::EXAMPLES)]
    Logs(logs::LogsArgs),
    /// Save what tasks produced, also while the bag runs
    Get(results::GetArgs),
    /// Check receipts that `get --receipts` saved; exit with 1 at the first that its machine did not sign
    Receipts(receipts::ReceiptsArgs),
}

pub(super) fn run(context: &Context, command: BagCommand) -> anyhow::Result<ExitCode> {
    match command {
        BagCommand::List(args) => list::list(context, &args),
        BagCommand::Show { bags } => show(context, &bags),
        BagCommand::Tasks(args) => tasks::tasks(context, &args),
        BagCommand::Explain { bag } => explain::bag(context, &bag.id.0),
        BagCommand::Watch { bags } => follow(context, &bags, View::on_stdout()),
        BagCommand::Wait { bags, progress } => {
            follow(context, &bags, if progress { View::on_stderr() } else { View::Silent })
        }
        BagCommand::Hold { bags } => each(context, &bags, is_open, Client::hold, told_held),
        BagCommand::Release { bags } => each(context, &bags, is_open, Client::release, told_released),
        BagCommand::Priority { id, priority } => prioritise(context, &id.0, priority),
        BagCommand::Rename { id, name } => rename(context, &id.0, &name),
        BagCommand::Close { bags } => each(context, &bags, is_endless, Client::close, told_closed),
        BagCommand::Cancel { bags } => each(context, &bags, is_open, Client::cancel, told_cancelled),
        BagCommand::Rerun { id, failed: _, index } => rerun(context, &id.0, index.as_ref()),
        BagCommand::Ticket(args) => ticket::ticket(context, &args),
        BagCommand::Adopt(args) => ticket::adopt(context, &args),
        BagCommand::Receipts(args) => receipts::receipts(context, &args),
        BagCommand::Rm { bags } => each(context, &bags, |bag| bag.state.is_closed(), Client::remove, told_removed),
        BagCommand::Logs(args) => logs::logs(context, &args),
        BagCommand::Get(args) if args.follow => {
            endless::drain(context, context.client()?, &args.bag.id.0, args.out.as_deref())
        }
        BagCommand::Get(args) => results::get(context, &args),
    }
}

fn is_endless(bag: &Bag) -> bool {
    bag.endless.as_ref().is_some_and(|endless| !endless.closed)
}

fn told_closed(bag: &Bag) -> String {
    let to_go = output::count(bag.tasks.saturating_sub(bag.done + bag.failed), "task");
    format!("bag {} is closed: {to_go} to go", output::short_id(&bag.id))
}

fn is_open(bag: &Bag) -> bool {
    !bag.state.is_closed()
}

fn follow(context: &Context, bags: &WhichBags, view: View) -> anyhow::Result<ExitCode> {
    let found = bags.find(&context.client()?, is_open)?;
    follow::to_the_end(context, &found, view)
}

/// Orders something of each of these bags, and says what came of it.
fn each(
    context: &Context,
    bags: &TheseBags,
    of_all: fn(&Bag) -> bool,
    order: fn(&Client, &str) -> Result<Bag, ClientError>,
    told: fn(&Bag) -> String,
) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let Found { ids, is_one } = bags.find(&client, of_all)?;
    let mut done = Vec::with_capacity(ids.len());
    for id in &ids {
        let bag = order(&client, id)?;
        if context.format == Format::Text {
            writeln!(io::stdout(), "{}", told(&bag))?;
        }
        done.push(bag);
    }
    match (context.format, is_one) {
        (Format::Json, true) => output::json(&done[0])?,
        (Format::Json, false) => output::json(&done)?,
        (Format::Text, _) if done.is_empty() => writeln!(io::stdout(), "there is no such bag")?,
        (Format::Text, _) => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn show(context: &Context, bags: &WhichBags) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let Found { ids, is_one } = bags.find(&client, |_| true)?;
    let details = ids.iter().map(|id| client.bag(id)).collect::<Result<Vec<_>, _>>()?;
    match context.format {
        Format::Json if is_one => output::json(&details[0])?,
        Format::Json => output::json(&details)?,
        Format::Text => {
            for (position, detail) in details.iter().enumerate() {
                if position > 0 {
                    writeln!(io::stdout())?;
                }
                show_one(context, &client, detail)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_one(context: &Context, client: &Client, detail: &BagDetail) -> anyhow::Result<()> {
    let reasons = if detail.bag.failed > 0 { reasons(client, &detail.bag.id)? } else { Vec::new() };
    let mut out = io::BufWriter::new(io::stdout().lock());
    output::pairs(&mut out, &description(detail, context.is_verbose))?;
    if !detail.placements.is_empty() {
        writeln!(out)?;
        let mut table = Table::new(&[Column::left("machine"), Column::right("tasks"), Column::left("")]);
        for placement in &detail.placements {
            let slow = |left: u64| format!("answers too slowly: nothing is fetched from it for {left} s");
            let slow = placement.left_alone_s.map(slow).unwrap_or_default();
            table.row([output::short_peer(&placement.peer).to_owned(), placement.tasks.to_string(), slow]);
        }
        table.write(&mut out)?;
    }
    if !reasons.is_empty() {
        writeln!(out)?;
        let mut table = Table::new(&[
            Column::right("failed task"),
            Column::left("entry"),
            Column::left("machine"),
            Column::left("why"),
        ]);
        for (result, why) in &reasons {
            let machine = output::short_peer(&result.machine).to_owned();
            table.row([result.index.to_string(), result.entry.clone(), machine, why.clone()]);
        }
        table.write(&mut out)?;
        let rest = detail.bag.failed.saturating_sub(reasons.len() as u64);
        if rest > 0 {
            writeln!(out, "and {rest} more")?;
        }
        let id = output::short_id(&detail.bag.id);
        writeln!(out, "what they wrote: idlewood bag logs {id} --stderr --index {}", reasons[0].0.index)?;
    }
    out.flush()?;
    Ok(())
}

fn description(detail: &BagDetail, is_verbose: bool) -> Vec<(&'static str, String)> {
    let bag = &detail.bag;
    let args: Vec<String> = detail.args.iter().map(|arg| shown(arg)).collect();
    let over = bag.done + bag.failed;
    let mut pairs = vec![
        ("bag", bag.id.clone()),
        ("name", output::printable(&bag.name)),
        ("program", output::printable(&format!("{} {}", detail.program, args.join(" "))).trim_end().to_owned()),
        ("state", Colour::of(bag.state).paint(output::state(bag.state))),
        (
            "tasks",
            format!(
                "{}: {} done, {} failed, {} to go",
                bag.tasks,
                bag.done,
                bag.failed,
                bag.tasks.saturating_sub(over)
            ),
        ),
        ("placed", format!("{} on {}, {} unplaced", bag.placed, output::count(bag.machines, "machine"), bag.unplaced)),
    ];
    pairs.extend(progress::endless(bag));
    if let Some(first) = bag.bounds.first() {
        pairs.push(("now", progress::bound(first)));
    }
    if let Some(identity) = &bag.given_up_with {
        let why = "which this machine does not have any more: get what is here, and submit it again";
        pairs.push(("given up", format!("it was submitted under the identity {identity}, {why}")));
    }
    pairs.extend(rounds::description(bag));
    pairs.extend(kept::description(bag));
    if let Some(most) = bag.max_running {
        pairs.push(("at once", format!("{most} at most")));
    }
    if bag.priority != 0 {
        pairs.push(("priority", format!("{} among your bags", bag.priority)));
    }
    if let Some(codes) = &bag.retry_on {
        let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
        pairs.push(("tried again", format!("on exit code {}", codes.join(", "))));
    }
    if bag.reissued + bag.duplicates > 0 {
        pairs.push(("repeated", format!("{} issued again, {} results came twice", bag.reissued, bag.duplicates)));
    }
    if bag.replication.quorum > 1 {
        let Replication { replicas, quorum, .. } = bag.replication;
        let disputed = output::count(bag.disputed, "task");
        pairs.push(("replicas", format!("{replicas}, of which {quorum} decide; {disputed} disputed")));
    }
    if let Some(why) = &bag.undecidable {
        pairs.push(("undecidable", why.clone()));
    }
    for declined in &bag.declined {
        let tasks = output::count(declined.tasks, "task");
        pairs.push(("declined", format!("{tasks}, last by {}: {}", declined.machine, declined.reason)));
    }
    if bag.astray > 0 {
        let way = "sent straight to machines, since nobody had accounted for them";
        pairs.push(("astray", format!("{} {way}", output::count(bag.astray, "task"))));
    }
    pairs.extend(bag.swallowed.iter().map(|router| ("swallowed", swallowed(router))));
    if bag.unasked > 0 {
        let from = "from machines that never had the task";
        pairs.push(("not taken", format!("{} {from}", output::count(bag.unasked, "result"))));
    }
    if bag.overstated > 0 {
        let claim = "claimed more work than their machine can have done: their work is not believed";
        pairs.push(("overstated", format!("{} {claim}", output::count(bag.overstated, "result"))));
    }
    if is_verbose {
        pairs.extend(figures(bag));
    }
    pairs.push(("submitted", output::when(&bag.submitted)));
    if let Some(finished) = &bag.finished {
        pairs.push(("finished", output::when(finished)));
    }
    pairs.push(("took", output::duration(bag.elapsed_s)));
    if bag.computed_s > 0.0 {
        let machines = output::count(bag.machines_used, "machine");
        pairs.push(("computing", format!("{} on {machines}, in time of this one", output::span(bag.computed_s))));
    }
    pairs.extend(progress::prediction(bag).map(|prediction| ("prediction", prediction)));
    pairs.extend(progress::fairness(bag).map(|fairness| ("fairness", fairness)));
    pairs
}

/// What the scheduler counts with.
fn figures(bag: &Bag) -> Vec<(&'static str, String)> {
    let work = bag
        .work_mops
        .map_or_else(|| "not measured yet".to_owned(), |work| format!("{} Mop per task", output::number(work)));
    let took = bag.measured_mops.zip(bag.work_mops).filter(|(took, said)| *took > 3.0 * said);
    let work = match took {
        Some((took, _)) => {
            format!("{work}, but they take {} Mop: machines give them later deadlines", output::number(took))
        }
        None => work,
    };
    let mut pairs = vec![("work", format!("{work} ({})", progress::MOP))];
    if let Some(stretch) = bag.stretch {
        pairs.push(("stretch", format!("{} s/Mop ({})", output::number(stretch), progress::STRETCH)));
    }
    pairs
}

/// An argument as one would type it.
fn shown(arg: &str) -> String {
    let plain = !arg.is_empty()
        && arg.chars().all(|character| character.is_alphanumeric() || "-_./{}=,:+%@".contains(character));
    if plain { arg.to_owned() } else { format!("'{}'", arg.replace('\'', r"'\''")) }
}

/// The first failed tasks, and why they failed.
fn reasons(client: &Client, id: &str) -> anyhow::Result<Vec<(TaskResult, String)>> {
    let mut reasons = Vec::new();
    for result in client.results(id)?.into_iter().filter(|result| !result.success).take(REASONS_MAX) {
        let why = match client.output(id, &result).map(|bytes| TaskOutput::decode(&bytes)) {
            Ok(Ok(output)) => why(&output),
            Ok(Err(error)) => format!("its output is damaged: {error}"),
            Err(error) => error.to_string(),
        };
        reasons.push((result, why));
    }
    Ok(reasons)
}

fn why(task: &TaskOutput) -> String {
    let end = match (&task.error, task.exit_code) {
        (Some(error), _) => output::shortened(error, REASON_CHARACTERS_MAX),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "it did not end by itself".to_owned(),
    };
    // Programs state the reason in the last line.
    let text = String::from_utf8_lossy(&task.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let last: String = last.chars().take(100).collect();
    if last.is_empty() { end } else { format!("{end}: {last}") }
}

fn told_cancelled(bag: &Bag) -> String {
    let id = output::short_id(&bag.id);
    format!("bag {id} cancelled: {} of {} were done", bag.done, output::count(bag.tasks, "task"))
}

fn told_held(bag: &Bag) -> String {
    let id = output::short_id(&bag.id);
    format!("bag {id} is held: what runs goes on to its end, and nothing begins before `idlewood bag release {id}`")
}

fn told_released(bag: &Bag) -> String {
    let to_go = output::count(bag.tasks.saturating_sub(bag.done + bag.failed), "task");
    format!("bag {} goes on: {to_go} to go", output::short_id(&bag.id))
}

fn told_removed(bag: &Bag) -> String {
    format!("bag {} and its results are removed", output::short_id(&bag.id))
}

fn prioritise(context: &Context, id: &str, priority: i32) -> anyhow::Result<ExitCode> {
    let bag = context.client()?.prioritise(id, priority)?;
    if context.format == Format::Json {
        output::json(&bag)?;
    } else {
        let id = output::short_id(&bag.id);
        writeln!(io::stdout(), "bag {id} has priority {} among the bags of this machine", bag.priority)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn rename(context: &Context, id: &str, name: &str) -> anyhow::Result<ExitCode> {
    let bag = context.client()?.rename(id, name)?;
    if context.format == Format::Json {
        output::json(&bag)?;
    } else {
        writeln!(io::stdout(), "bag {} is called {}", output::short_id(&bag.id), output::printable(&bag.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn rerun(context: &Context, id: &str, index: Option<&Numbers>) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    if let Some(index) = index {
        results::check(&client.bag(id)?.bag, index)?;
    }
    let request = RerunRequest { tasks: index.map(|index| index.iter().collect()) };
    let bag = client.rerun(id, &request)?;
    if context.format == Format::Json {
        output::json(&bag)?;
    } else {
        let to_go = output::count(bag.tasks.saturating_sub(bag.done + bag.failed), "task");
        writeln!(io::stdout(), "bag {} goes on: {to_go} to go", output::short_id(&bag.id))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The router that lost tasks, and the consequence.
fn swallowed(router: &Swallowed) -> String {
    let Swallowed { machine, tasks, is_left_out } = router;
    let so = if *is_left_out { ": left out by this machine" } else { "" };
    format!("{} by the router of {machine}{so}", output::count(*tasks, "task"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_that_lost_tasks_is_named() {
        let router = |is_left_out| Swallowed { machine: "12D3".to_owned(), tasks: 12, is_left_out };
        assert_eq!(swallowed(&router(false)), "12 tasks by the router of 12D3");
        assert_eq!(swallowed(&router(true)), "12 tasks by the router of 12D3: left out by this machine");
    }

    #[test]
    fn reasons_name_the_end_and_the_last_line() {
        let mut task =
            TaskOutput { exit_code: Some(3), stderr: b"a\nout of cheese\n\n".to_vec(), ..TaskOutput::default() };
        assert_eq!(why(&task), "exit code 3: out of cheese");
        task = TaskOutput { error: Some("it ran longer than 5 s".to_owned()), ..TaskOutput::default() };
        assert_eq!(why(&task), "it ran longer than 5 s");
    }

    #[test]
    fn arguments_are_shown_as_typed() {
        assert_eq!(["a", "", "a b", "it's", "{}"].map(shown).join(" "), r"a '' 'a b' 'it'\''s' {}");
    }
}
