//! `idlewood bag tasks`: the tasks of bags, one a line.

use std::io::{self, Write};
use std::process::ExitCode;

use idlewood_api::client::{Client, ClientError};
use idlewood_api::{Bag, Task, TaskState, Tasks};
use idlewood_units::Numbers;

use super::context::Context;
use super::results;
use super::which::{WhichBags, check, first_of};
use crate::output::{self, Colour, Column, Format, Table};

/// What a task may be, for `--help`.
pub(super) const STATES: &str = "\
A task is
  waiting    no machine has it
  retrying   it has failed, or was declined, and is tried again after a pause
  placed     a machine has it: it runs there, or waits for a slot
  succeeded, failed
  cancelled  it had not ended when its bag was cancelled

Examples:
  idlewood bag tasks                    the first 1000 tasks of the last bag
  idlewood bag tasks sweep --failed     those of the bag `sweep` that failed
  idlewood bag tasks sweep --index 0-9,17
  idlewood bag tasks sweep --state placed,waiting --from 5000 --limit 100";

/// Tasks asked for at a time.
const TOGETHER: u64 = 5000;

/// Arguments of `bag tasks`.
#[derive(Debug, clap::Args)]
pub(super) struct TasksArgs {
    #[command(flatten)]
    bags: WhichBags,
    /// Only tasks that are one of these: waiting, retrying, placed, succeeded, failed, cancelled
    #[arg(long, value_name = "STATES", value_delimiter = ',')]
    state: Vec<TaskState>,
    /// Only tasks that failed: --state failed
    #[arg(long, conflicts_with = "state")]
    failed: bool,
    /// Only these tasks: 5, 0-9, 1,3,7-9
    #[arg(long, value_name = "RANGE", conflicts_with_all = ["from", "limit"])]
    index: Option<Numbers>,
    /// From the task with this index on
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    from: u64,
    /// So many tasks of each bag at most; 0: all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: u64,
}

pub(super) fn tasks(context: &Context, args: &TasksArgs) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let found = args.bags.find(&client, |_| true)?;
    let (all, errors) = found.each(|id| {
        let bag = client.bag(id)?.bag;
        let tasks = match &args.index {
            Some(chosen) => {
                check(&bag, chosen)?;
                of_index(&client, &bag.id, chosen, &args.states())?
            }
            None => of_bag(&client, &bag.id, args)?,
        };
        Ok((bag, tasks))
    })?;
    if context.format == Format::Json {
        output::one_or_all(all.into_iter().map(|(_, tasks)| tasks).collect(), found.is_one)?;
    } else {
        write_all(&all, found.is_one)?;
    }
    first_of(errors).map(|()| ExitCode::SUCCESS)
}

fn write_all(all: &[(Bag, Tasks)], is_one: bool) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (position, (bag, tasks)) in all.iter().enumerate() {
        if !is_one {
            let space = if position > 0 { "\n" } else { "" };
            writeln!(out, "{space}bag {} ({})", output::short_id(&bag.id), output::printable(&bag.name))?;
        }
        write(tasks, &mut out)?;
    }
    out.flush()
}

impl TasksArgs {
    fn states(&self) -> Vec<TaskState> {
        if self.failed { vec![TaskState::Failed] } else { self.state.clone() }
    }
}

/// These tasks of one bag, as far as they are in one of the states.
fn of_index(client: &Client, id: &str, chosen: &Numbers, states: &[TaskState]) -> Result<Tasks, ClientError> {
    let mut tasks = Vec::new();
    for range in results::close_together(chosen.iter()) {
        let mut from = Some(*range.start());
        while let Some(first) = from.filter(|first| first <= range.end()) {
            let page = client.tasks(id, first, TOGETHER.min(range.end() - first + 1), states)?;
            tasks.extend(
                page.tasks.into_iter().filter(|task| chosen.contains(task.index) && range.contains(&task.index)),
            );
            from = page.next;
        }
    }
    Ok(Tasks { bag: id.to_owned(), matching: tasks.len() as u64, tasks, next: None })
}

/// The tasks of one bag.
fn of_bag(client: &Client, id: &str, args: &TasksArgs) -> Result<Tasks, ClientError> {
    let states = args.states();
    let mut left = if args.limit == 0 { u64::MAX } else { args.limit };
    let mut all = client.tasks(id, args.from, left.min(TOGETHER), &states)?;
    left = left.saturating_sub(TOGETHER);
    while let Some(from) = all.next.filter(|_| left > 0) {
        let more = client.tasks(id, from, left.min(TOGETHER), &states)?;
        left = left.saturating_sub(TOGETHER);
        all.tasks.extend(more.tasks);
        (all.next, all.matching) = (more.next, more.matching);
    }
    Ok(all)
}

fn write(all: &Tasks, out: &mut impl Write) -> io::Result<()> {
    if all.tasks.is_empty() {
        return writeln!(out, "no task of bag {} is there", output::short_id(&all.bag));
    }
    let mut table = Table::new(&[
        Column::right("task"),
        Column::left("entry"),
        Column::left("state"),
        Column::left("machine"),
        Column::right("took").spared(1),
        Column::right("exit code"),
        Column::left("finished").spared(2),
    ]);
    for task in &all.tasks {
        table.row(row(task));
        if let Some(colour) = colour(task.state) {
            table.colour(2, colour);
        }
    }
    table.write(out)?;
    if let Some(next) = all.next {
        writeln!(out, "and more, of {} in all: --from {next}", output::count(all.matching, "task"))?;
    }
    Ok(())
}

fn row(task: &Task) -> [String; 7] {
    [
        task.index.to_string(),
        task.entry.clone(),
        task.state.name().to_owned(),
        task.machine.as_deref().map(output::short_peer).unwrap_or_default().to_owned(),
        task.took_s.map(output::duration).unwrap_or_default(),
        task.exit_code.map(|code| code.to_string()).unwrap_or_default(),
        task.finished.as_deref().map(output::when).unwrap_or_default(),
    ]
}

fn colour(state: TaskState) -> Option<Colour> {
    match state {
        TaskState::Succeeded => Some(Colour::Green),
        TaskState::Failed | TaskState::Cancelled => Some(Colour::Red),
        TaskState::Retrying => Some(Colour::Yellow),
        TaskState::Waiting | TaskState::Placed => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_a_line_and_a_page_says_where_the_next_begins() {
        let task = |index, state| Task {
            index,
            entry: format!("entry {index}"),
            state,
            machine: None,
            attempt: None,
            exit_code: None,
            took_s: None,
            finished: None,
        };
        let ended = Task {
            machine: Some("12D3KooWAqiQEXXBNvkP8sc5".to_owned()),
            exit_code: Some(7),
            took_s: Some(75.0),
            ..task(4, TaskState::Failed)
        };
        let tasks = vec![ended, task(9, TaskState::Waiting)];
        let mut all = Tasks { bag: "ab".repeat(32), tasks, matching: 5, next: Some(10) };
        let text = |all: &Tasks| {
            let mut out = Vec::new();
            write(all, &mut out).expect("memory takes it");
            String::from_utf8(out).expect("it is text")
        };
        let lines = text(&all);
        let lines: Vec<&str> = lines.lines().collect();
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["4", "entry", "4", "failed", "EXXBNvkP8sc5", "1m", "15s", "7"]);
        assert!(lines[2].contains("entry 9") && lines[2].contains("waiting"), "{lines:?}");
        assert_eq!(lines[3], "and more, of 5 tasks in all: --from 10");
        all.tasks.clear();
        assert_eq!(text(&all), "no task of bag abababababab is there\n");
    }
}
