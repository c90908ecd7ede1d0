//! `idlewood bag show`: all that is known of bags.

use std::io::{self, Write as _};
use std::process::ExitCode;

use idlewood_api::client::Client;
use idlewood_api::{Bag, BagDetail, Swallowed};
use idlewood_scheduler::Replication;
use idlewood_trust::manifest::TaskOutput;
use serde::Serialize;

use super::context::Context;
use super::which::{Found, WhichBags};
use super::{kept, progress, rounds};
use crate::output::{self, Colour, Column, Format, Table};

/// Failed tasks whose reasons are shown.
const REASONS_MAX: usize = 5;
/// Length of each that is shown.
const REASON_CHARACTERS_MAX: usize = 300;

/// JSON output of `bag show`.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct Shown {
    #[serde(flatten)]
    detail: BagDetail,
    /// The first five tasks that failed, and why; `bag tasks --failed` lists all.
    failures: Vec<Failure>,
}

/// A failed task.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Failure {
    /// Index in the bag.
    index: u64,
    /// Its line or file.
    entry: String,
    /// Peer id of the machine that ran it.
    machine: String,
    /// Why it failed, with the last line that it wrote to standard error.
    why: String,
}

pub(super) fn show(context: &Context, bags: &WhichBags) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let Found { ids, is_one } = bags.find(&client, |_| true)?;
    let details = ids.iter().map(|id| client.bag(id)).collect::<Result<Vec<_>, _>>()?;
    match context.format {
        Format::Json => {
            let shown = |detail: BagDetail| Ok(Shown { failures: failures(&client, &detail.bag)?, detail });
            output::one_or_all(details.into_iter().map(shown).collect::<anyhow::Result<_>>()?, is_one)?;
        }
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
    let failures = failures(client, &detail.bag)?;
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
    if let Some(first) = failures.first() {
        writeln!(out)?;
        let mut table = Table::new(&[
            Column::right("failed task"),
            Column::left("entry"),
            Column::left("machine"),
            Column::left("why"),
        ]);
        for Failure { index, entry, machine, why } in &failures {
            table.row([index.to_string(), entry.clone(), output::short_peer(machine).to_owned(), why.clone()]);
        }
        table.write(&mut out)?;
        let rest = detail.bag.failed.saturating_sub(failures.len() as u64);
        if rest > 0 {
            writeln!(out, "and {rest} more")?;
        }
        let id = output::short_id(&detail.bag.id);
        writeln!(out, "what they wrote: idlewood bag logs {id} --stderr --index {}", first.index)?;
    }
    out.flush()?;
    Ok(())
}

fn description(detail: &BagDetail, is_verbose: bool) -> Vec<(&'static str, String)> {
    let bag = &detail.bag;
    let args: Vec<String> = detail.args.iter().map(|arg| output::as_typed(arg)).collect();
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
        let last = output::short_peer(&declined.machine);
        pairs.push(("declined", format!("{tasks}, last by {last}: {}", declined.reason)));
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

/// The first failed tasks, and why they failed.
fn failures(client: &Client, bag: &Bag) -> anyhow::Result<Vec<Failure>> {
    if bag.failed == 0 {
        return Ok(Vec::new());
    }
    let mut failures = Vec::new();
    for result in client.results(&bag.id)?.into_iter().filter(|result| !result.success).take(REASONS_MAX) {
        let why = match client.output(&bag.id, &result).map(|bytes| TaskOutput::decode(&bytes)) {
            Ok(Ok(output)) => why(&output),
            Ok(Err(error)) => format!("its output is damaged: {error}"),
            Err(error) => error.to_string(),
        };
        failures.push(Failure { index: result.index, entry: result.entry, machine: result.machine, why });
    }
    Ok(failures)
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

/// The router that lost tasks, and the consequence.
fn swallowed(router: &Swallowed) -> String {
    let Swallowed { machine, tasks, is_left_out } = router;
    let so = if *is_left_out { ": left out by this machine" } else { "" };
    format!("{} by the router of {}{so}", output::count(*tasks, "task"), output::short_peer(machine))
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
}
