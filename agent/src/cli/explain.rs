//! `idlewood bag explain` and `idlewood explain`: what decides now whether tasks of a bag, or tasks on this machine, run.

use std::io::{self, Write};
use std::process::ExitCode;

use idlewood_api::{Bag, BagDetail, BagState, Bound, Status};
use serde::Serialize;

use super::context::Context;
use super::whereabouts::{self, Whereabouts};
use super::which::{WhichBags, first_of};
use crate::output::{self, Format, count};

/// All codes of bounds, for programs and for those who read help.
pub(super) const CODES: &str = "\
The first line is what decides now; further ones hold, too. Codes of the lines in JSON:
  runs              tasks are on machines that work
  no_room           tasks have ended, and this machine's disk has no room for
                    their results
  measures, measures_others
                    a first task runs here, of this bag or others before it, to
                    show how long one takes
  paused_by_user, outside_hours, on_battery, program_runs, owner_present,
  owner_active, foreign_cpu, disk_full, finishing
                    the owner of this machine (`idlewood help status`)
  memory            a task may take more memory than this machine gives
  joining           this machine has no place in its grid yet
  few_machines, undecided
                    --quorum: the grid has too few machines, or they differ
  nobody_works      no other machine takes work at the moment
  declined_memory, declined_quota, declined_native, declined_program,
  declined_submitter, declined_role, declined_stranger, declined_unavailable,
  declined_forged, declined_copy
                    machines decline the bag
  held              `idlewood bag hold`, or a bag of --after that is not over
  full              --max-running: as many tasks run as may
  pauses            tasks failed, and are tried again in a moment
  nobody_answers    tasks were sent, and no machine says that it has them
  behind            other bags come first on this machine
  on_the_way        tasks are on the way to machines

Of one bag the machines of the grid are then asked what they do: the first 1000, or with -v all. Each 128 take some milliseconds in a local network, and 3 to 4 seconds where machines are far from each other (1000: half a minute), or longer where the grid is asked too often.";

/// JSON output of `bag explain`.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct BagExplained {
    id: String,
    name: String,
    state: BagState,
    /// Whether any of its tasks may be running now.
    runs: bool,
    /// What decides how many of them run, the most important first.
    bounds: Vec<Bound>,
    /// On which machines nothing of it runs, why, and where in the tree they are; null where that was not asked (of several bags, of one
    /// of which nothing is handed out yet, and of one that is over), or got no answer.
    whereabouts: Option<Whereabouts>,
}

/// JSON output of `explain`.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct MachineExplained<'a> {
    /// `working`, `idle`, or `suspended`.
    activity: &'a str,
    /// Whether any task runs.
    runs: bool,
    /// What decides whether tasks run here, the most important first.
    bounds: &'a [Bound],
}

/// Explains bags of this machine; of all those that are not over.
pub(super) fn bags(context: &Context, bags: &WhichBags) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let found = bags.find(&client, |bag| !bag.state.is_closed())?;
    let (all, errors) = found.each(|id| Ok(client.bag(id)?))?;
    // The bounds are worth telling without it.
    let whereabouts = |detail: &BagDetail| -> io::Result<Option<Whereabouts>> {
        if !found.is_one || detail.bag.bounds.is_empty() || is_withheld(&detail.bag.bounds) {
            return Ok(None);
        }
        match whereabouts::of(&client, detail, context.is_verbose) {
            Ok(whereabouts) => Ok(Some(whereabouts)),
            Err(error) => {
                output::notice(&format!("on which machines nothing of the bag runs is not known: {error:#}"))?;
                Ok(None)
            }
        }
    };
    if context.format == Format::Json {
        let explained = |detail: BagDetail| {
            let whereabouts = whereabouts(&detail)?;
            let Bag { id, name, state, runs, bounds, .. } = detail.bag;
            Ok(BagExplained { id, name, state, runs, bounds, whereabouts })
        };
        let explained = all.into_iter().map(explained).collect::<anyhow::Result<Vec<_>>>()?;
        output::one_or_all(explained, found.is_one)?;
    } else if found.ids.is_empty() {
        writeln!(io::stdout(), "no bag of this machine is open")?;
    } else {
        // Machines may take half a minute to answer.
        write_all(all.iter().map(|detail| &detail.bag))?;
        for detail in &all {
            if let Some(whereabouts) = whereabouts(detail)? {
                whereabouts::write(&whereabouts, &mut io::stdout().lock())?;
            }
        }
    }
    first_of(errors).map(|()| ExitCode::SUCCESS)
}

/// Whether no machine is to have anything of the bag yet, so that it does not matter what they do.
fn is_withheld(bounds: &[Bound]) -> bool {
    bounds.iter().all(|bound| ["held", "measures", "measures_others"].contains(&bound.code.as_str()))
}

fn write_all<'a>(bags: impl Iterator<Item = &'a Bag>) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (position, bag) in bags.enumerate() {
        if position > 0 {
            writeln!(out)?;
        }
        let (id, name) = (output::short_id(&bag.id), output::printable(&bag.name));
        let (tasks, state) = (count(bag.tasks, "task"), output::state(bag.state));
        let done = format!("bag {id} ({name}): {} of {tasks} done, {state}", bag.done);
        output::paragraph(&mut out, "", &done)?;
        if bag.state.is_closed() {
            writeln!(out, "it is over; `idlewood bag show {id}` says what came of it")?;
        }
        write(&bag.bounds, &mut out)?;
    }
    out.flush()
}

/// Explains this machine to its owner.
pub(super) fn machine(context: &Context) -> anyhow::Result<ExitCode> {
    let status = context.client()?.status()?;
    let bounds = of_machine(&status);
    if context.format == Format::Json {
        let runs = bounds.iter().any(|bound| bound.code == "runs");
        output::json(&MachineExplained { activity: &status.activity, runs, bounds: &bounds })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    writeln!(out, "this machine is {}, since {}", output::printable(&status.activity), output::when(&status.since))?;
    write(&bounds, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn write(bounds: &[Bound], out: &mut impl Write) -> io::Result<()> {
    for (number, bound) in bounds.iter().enumerate() {
        output::paragraph(out, if number == 0 { "now   " } else { "also  " }, &output::printable(&bound.sentence))?;
        let concerns =
            [bound.machines.map(|number| count(number, "machine")), bound.tasks.map(|number| count(number, "task"))];
        let concerns: Vec<String> = concerns.into_iter().flatten().collect();
        if !concerns.is_empty() {
            writeln!(out, "      concerns: {}", concerns.join(", "))?;
        }
        if let Some(at) = &bound.ends_at {
            writeln!(out, "      until: {}", output::when(at))?;
        }
        if let Some(ends) = &bound.ends {
            output::paragraph(out, "      ends when: ", &output::when(ends))?;
        }
    }
    Ok(())
}

/// What decides on this machine whether tasks run, the most important first.
fn of_machine(status: &Status) -> Vec<Bound> {
    let bound = |code: &str, sentence: String, tasks, ends: Option<&str>| Bound {
        code: code.to_owned(),
        sentence,
        machines: None,
        tasks,
        ends: ends.map(str::to_owned),
        ends_at: None,
    };
    let waiting: u64 = status.held.iter().map(|held| held.waiting).sum();
    let (frozen, running): (Vec<_>, Vec<_>) = status.running.iter().partition(|task| task.frozen);
    let (frozen, running) = (frozen.len() as u64, running.len() as u64);
    let mut bounds = Vec::new();
    if let (Some(reason), Some(code)) = (&status.reason, &status.reason_code) {
        let then = match (status.cpu_percent, code.as_str()) {
            (0, _) => "tasks stand still".to_owned(),
            (_, "disk_full" | "finishing") => "running tasks go on, and none begins".to_owned(),
            (percent, _) => format!("each task may use {percent} % of a processor"),
        };
        let all = running + frozen + waiting;
        bounds.push(bound(code, format!("{reason}: {then}"), Some(all), status.until.as_deref()));
    } else if running > 0 {
        let are = if running == 1 { "runs" } else { "run" };
        bounds.push(bound("runs", format!("{} {are} here", count(running, "task")), Some(running), None));
    }
    if frozen > 0 && status.reason.is_none() {
        let stand = if frozen == 1 { "stands" } else { "stand" };
        let sentence = format!("{} of other bags {stand} still here, since others come first", count(frozen, "task"));
        bounds.push(bound("frozen", sentence, Some(frozen), Some("those that come first end")));
    }
    if let Some(why) = &status.refused {
        let ends = "an administrator lets this machine in again (`idlewood grid join` with a new invitation)";
        bounds.push(bound("refused", format!("others do not let this machine in, since {why}"), None, Some(ends)));
    } else if status.membership == "joining" {
        let ends = "it reaches another machine of its grid; `idlewood doctor` says what is in the way";
        bounds.push(bound("joining", "this machine has no place in its grid yet".to_owned(), None, Some(ends)));
    }
    if status.grid.is_none() {
        let ends = "`idlewood grid join` or `idlewood grid create`";
        bounds.push(bound("no_grid", "it belongs to no grid: only its own bags run here".to_owned(), None, Some(ends)));
    }
    if let Some(until) = &status.resting_until {
        let sentence =
            "it offers nothing to others, since all tasks fail here that succeed elsewhere; see the log".to_owned();
        bounds.push(Bound { ends_at: Some(until.clone()), ..bound("resting", sentence, None, None) });
    }
    for held in status.held.iter().filter(|held| held.waiting > 0) {
        let wait = if held.waiting == 1 { "waits" } else { "wait" };
        let (id, whose) = (output::short_id(&held.bag), output::short_peer(&held.submitter));
        let whose = if held.submitter == status.peer { "this machine" } else { &format!("machine {whose}") };
        let sentence = format!("{} of bag {id} of {whose} {wait} for a slot", count(held.waiting, "task"));
        let ends = format!("tasks end; limits.slots is {}", status.slots);
        bounds.push(bound("behind", sentence, Some(held.waiting), Some(&ends)));
    }
    if bounds.is_empty() || (running + frozen + waiting == 0 && status.reason.is_none()) {
        bounds.insert(
            0,
            bound("no_work", "nothing holds it up, and nobody has sent it work".to_owned(), None, Some("work arrives")),
        );
    }
    if status.requests_declined > 0 {
        let sentence = format!(
            "it declined {} since it started: its settings, or a quota; see the log",
            count(status.requests_declined, "request")
        );
        bounds.push(bound("declined", sentence, None, None));
    }
    if let Some(error) = &status.settings_error {
        let sentence = format!("the settings count as they were, since {error}");
        bounds.push(bound("settings", sentence, None, Some("the file is put right")));
    }
    bounds.iter_mut().for_each(|bound| bound.machines = Some(1));
    bounds
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::status;
    use super::*;
    use idlewood_api::Held;

    fn told(status: &Status) -> Vec<(String, String)> {
        of_machine(status).into_iter().map(|bound| (bound.code, bound.sentence)).collect()
    }

    #[test]
    fn an_owner_reads_what_decides_here() {
        let held = Held {
            bag: "ab".repeat(32),
            submitter: "12D3KooWAqiQEXXBNvkP8sc5".to_owned(),
            waiting: 3,
            running: 0,
            unacknowledged: 0,
            times_declared: 1.0,
        };
        let quiet = Status { refused: None, settings_error: None, membership: "member".to_owned(), ..status() };
        let codes = |status: &Status| told(status).into_iter().map(|(code, _)| code).collect::<Vec<_>>();
        assert_eq!(codes(&quiet), ["no_work", "no_grid"]);
        let paused = Status {
            reason: Some("paused by the user".to_owned()),
            reason_code: Some("paused_by_user".to_owned()),
            cpu_percent: 0,
            held: vec![held],
            ..quiet
        };
        let bounds = told(&paused);
        assert_eq!(bounds[0], ("paused_by_user".to_owned(), "paused by the user: tasks stand still".to_owned()));
        assert_eq!(bounds[2].1, "3 tasks of bag abababababab of machine EXXBNvkP8sc5 wait for a slot");
        let limited = Status { cpu_percent: 30, ..paused };
        assert_eq!(told(&limited)[0].1, "paused by the user: each task may use 30 % of a processor");
    }

    #[test]
    fn an_explanation_is_printed_with_what_ends_it() {
        let bounds = of_machine(&status());
        let mut out = Vec::new();
        write(&bounds, &mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("it is text");
        assert!(
            text.starts_with("now   nothing holds it up, and nobody has sent it work\n      concerns: 1 machine\n"),
            "{text}"
        );
        assert!(
            text.contains("also  others do not let this machine in, since its certificate was revoked\n"),
            "{text}"
        );
        assert!(text.contains("      ends when: the file is put right\n"), "{text}");
    }
}
