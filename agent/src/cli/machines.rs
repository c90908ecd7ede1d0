//! `idlewood machines`: all machines of the grid, asked through its tree, page by page.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use idlewood_api::client::Client;
use idlewood_api::{MachineState, MachineView, Machines, MachinesWanted};

use super::context::{BadUsage, Context};
use crate::output::{self, Colour, Column, Format, Table};

/// What a machine may be, for `--help`.
pub(super) const STATES: &str = "\
A machine is
  idle       it takes tasks, and has none
  working    tasks run on it
  suspended  it begins no tasks: its owner is there, or has said so (REASON)
  silent     it did not answer in time

LOAD is how many tasks run and wait on a machine for each of its slots, SPEED that of one slot in Mop/s \
(millions of operations of a small reference program a second). MY TASKS are those of bags \
submitted from this machine, MY FAILED how often such tasks have failed there since the agent started.

Examples:
  idlewood machines
  idlewood machines --state idle,working --name 'lab-*'
  idlewood machines --limit 100     a hundred, and where the next begin";

/// Pause before a page is asked for again that was refused.
const BUSY_WAIT: Duration = Duration::from_secs(1);
/// The grid counts as too busy to be listed after so long without a page.
const BUSY_MAX: Duration = Duration::from_secs(60);

/// Arguments of `machines`.
#[derive(Debug, clap::Args)]
pub(super) struct MachinesArgs {
    /// Only machines that are one of these: idle, working, suspended, silent
    #[arg(long, value_name = "STATES", value_delimiter = ',')]
    state: Vec<MachineState>,
    /// Only machines whose name, or id, matches this pattern: 'lab-*'
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// So many machines at most; 0: all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
    /// Go on where an earlier list ended, which says where
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
}

pub(super) fn machines(context: &Context, args: &MachinesArgs) -> anyhow::Result<ExitCode> {
    if let Some(Err(error)) = args.name.as_deref().map(glob::Pattern::new) {
        return Err(BadUsage(format!("--name: {error}; write for example 'lab-*'")).into());
    }
    let client = context.client()?;
    let mut wanted = MachinesWanted { after: args.after.clone(), state: args.state.clone(), name: args.name.clone() };
    let mut all = page(&client, &wanted)?;
    while let Some(after) = all.next.clone().filter(|_| args.limit == 0 || all.machines.len() < args.limit) {
        wanted.after = Some(after);
        let more = page(&client, &wanted)?;
        all.machines.extend(more.machines);
        (all.next, all.grid_machines) = (more.next, more.grid_machines);
        all.unreached += more.unreached;
        all.busy |= more.busy;
    }
    if args.limit > 0 && all.machines.len() > args.limit {
        all.next = Some(all.machines[args.limit].place.clone());
        all.machines.truncate(args.limit);
    }
    if context.format == Format::Json {
        output::json(&all)?;
    } else {
        let mut out = io::BufWriter::new(io::stdout().lock());
        let is_filtered = !args.state.is_empty() || args.name.is_some();
        write(&mut all, is_filtered, context.is_verbose, &mut out)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One page; waits where the grid is asked too often.
pub(super) fn page(client: &Client, wanted: &MachinesWanted) -> anyhow::Result<Machines> {
    let begin = Instant::now();
    loop {
        let page = client.machines(wanted)?;
        if !page.busy || begin.elapsed() >= BUSY_MAX {
            return Ok(page);
        }
        thread::sleep(BUSY_WAIT);
    }
}

fn write(all: &mut Machines, is_filtered: bool, is_verbose: bool, out: &mut impl Write) -> io::Result<()> {
    // The order of the line says nothing to people.
    all.machines.sort_by_key(|machine| (machine.name.clone(), machine.peer.clone()));
    if all.machines.is_empty() && is_filtered {
        writeln!(out, "no such machine; `idlewood machines` shows all")?;
    } else if !all.machines.is_empty() {
        table(&all.machines, is_verbose).write(out)?;
    }
    let shown = all.machines.len() as u64;
    if all.unreached > 0 {
        let about = output::count(all.unreached, "other machine");
        writeln!(out, "about {about} did not answer, and may be there all the same: ask again in a moment")?;
    }
    if all.busy {
        writeln!(out, "not all were asked, since the grid is asked too often: try again in a minute")?;
    }
    match &all.next {
        Some(next) => writeln!(out, "and more, of about {} in all: --after {next}", all.grid_machines),
        None if shown > 1 => writeln!(out, "{}", output::count(shown, "machine")),
        None => Ok(()),
    }
}

fn table(machines: &[MachineView], is_verbose: bool) -> Table {
    let mut columns = vec![
        Column::left("machine"),
        Column::left("state"),
        Column::left("reason"),
        Column::right("slots"),
        Column::right("load"),
        Column::right("speed").spared(4),
        Column::left("version").spared(5),
        Column::left("last seen").spared(3),
        Column::right("my tasks").spared(1),
        Column::right("my failed").spared(2),
    ];
    if is_verbose {
        columns.push(Column::left("id"));
    }
    let mut table = Table::new(&columns);
    for machine in machines {
        table.row(row(machine).into_iter().chain(is_verbose.then(|| machine.peer.clone())));
        if let Some(colour) = colour(machine.state) {
            table.colour(1, colour);
        }
    }
    table
}

fn row(machine: &MachineView) -> [String; 10] {
    let known = |value: Option<String>| value.unwrap_or_else(|| "?".to_owned());
    let name = output::machine(machine.name.as_deref(), &machine.peer);
    [
        if machine.this_machine { format!("{name} (this machine)") } else { name },
        machine.state.name().to_owned(),
        machine.reason.clone().unwrap_or_default(),
        known(machine.slots.map(|slots| slots.to_string())),
        known(machine.load.map(output::times)),
        known(machine.speed_mops.map(output::number)),
        known(machine.version.clone()),
        if machine.state == MachineState::Silent { output::when(&machine.last_seen) } else { "now".to_owned() },
        machine.tasks.to_string(),
        machine.failed.to_string(),
    ]
}

fn colour(state: MachineState) -> Option<Colour> {
    match state {
        MachineState::Working => Some(Colour::Green),
        MachineState::Silent => Some(Colour::Red),
        MachineState::Suspended => Some(Colour::Yellow),
        MachineState::Idle => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: Option<&str>, state: MachineState) -> MachineView {
        let is_silent = state == MachineState::Silent;
        MachineView {
            peer: "12D3KooWAqiQEXXBNvkP8sc5".to_owned(),
            name: name.map(str::to_owned),
            state,
            reason: None,
            reason_code: None,
            slots: (!is_silent).then_some(4),
            running: (!is_silent).then_some(2),
            waiting: (!is_silent).then_some(4),
            load: (!is_silent).then_some(1.5),
            speed_mops: (!is_silent).then_some(1000.0),
            version: (!is_silent).then(|| "1.2".to_owned()),
            last_seen: "2026-11-27T10:00:00Z".to_owned(),
            tasks: 3,
            failed: 1,
            this_machine: false,
            place: "0a".to_owned(),
        }
    }

    #[test]
    fn machines_are_lines_by_name_and_what_is_missing_is_said() {
        let machines = vec![
            machine(Some("lab-2"), MachineState::Working),
            machine(None, MachineState::Silent),
            machine(Some("lab-1"), MachineState::Idle),
        ];
        let mut all =
            Machines { machines, unreached: 7, busy: false, next: Some("00ff".to_owned()), grid_machines: 300 };
        let text = |all: &mut Machines| {
            let mut out = Vec::new();
            write(all, true, false, &mut out).expect("memory takes it");
            String::from_utf8(out).expect("it is text")
        };
        let lines = text(&mut all);
        let lines: Vec<&str> = lines.lines().collect();
        assert!(
            lines[1].starts_with("EXXBNvkP8sc5") && lines[1].contains("silent") && lines[1].contains('?'),
            "{lines:?}"
        );
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(words, ["lab-1", "idle", "4", "1.5", "1000", "1.2", "now", "3", "1"]);
        assert!(lines[3].starts_with("lab-2"));
        assert_eq!(
            lines[4],
            "about 7 other machines did not answer, and may be there all the same: ask again in a moment"
        );
        assert_eq!(lines[5], "and more, of about 300 in all: --after 00ff");
        (all.machines, all.next, all.unreached) = (Vec::new(), None, 0);
        assert_eq!(text(&mut all), "no such machine; `idlewood machines` shows all\n");
    }
}
