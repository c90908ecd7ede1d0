//! `idlewood bag list`: the bags submitted from this machine, the latest first.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use idlewood_api::{Bag, BagState, BagsWanted};
use idlewood_units::Span;
use jiff::Zoned;
use jiff::civil::DateTime;

use super::context::Context;
use super::which::BagName;
use crate::output::{self, Colour, Column, Format, Table};

/// Arguments of `bag list`.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Only bags that are one of these: held, waiting, measuring, running, succeeded, failed, cancelled; open: the first four
    #[arg(long, value_name = "STATES", value_delimiter = ',')]
    state: Vec<States>,
    /// Only bags submitted since then: 2h, 3d, 2026-11-27, "2026-11-27 14:00"
    #[arg(long, value_name = "TIME")]
    since: Option<Since>,
    /// So many bags at most, the latest ones
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Go on behind this bag, the last one of an earlier list
    #[arg(long, value_name = "BAG")]
    before: Option<BagName>,
}

/// A state, or those of all bags that are not over.
#[derive(Clone, Debug, PartialEq, Eq)]
struct States(Vec<BagState>);

impl FromStr for States {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "open" {
            return Ok(Self(BagState::ALL.into_iter().filter(|state| !state.is_closed()).collect()));
        }
        text.parse().map(|state| Self(vec![state]))
    }
}

/// How long ago something began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Since(Duration);

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        since(text, &Zoned::now())
    }
}

fn since(text: &str, now: &Zoned) -> Result<Since, String> {
    if let Ok(Span(ago)) = text.parse() {
        return Ok(Since(ago));
    }
    let wrong = || format!("{text:?} is no time: write for example 2h, 3d, 2026-11-27 or \"2026-11-27 14:00\"");
    let time: DateTime = text.parse().map_err(|_| wrong())?;
    let time = time.to_zoned(now.time_zone().clone()).map_err(|_| wrong())?;
    let ago = now.timestamp().as_millisecond() - time.timestamp().as_millisecond();
    Ok(Since(Duration::from_millis(u64::try_from(ago).unwrap_or(0))))
}

pub(super) fn list(context: &Context, args: &ListArgs) -> anyhow::Result<ExitCode> {
    let state = args.state.iter().flat_map(|states| states.0.clone()).collect();
    let since_s = args.since.map(|Since(ago)| ago.as_secs_f64());
    let before = args.before.as_ref().map(|name| name.0.clone());
    // One more shows whether there is one.
    let limit = args.limit.map(|limit| limit.saturating_add(1));
    let mut bags = context.client()?.bags_wanted(&BagsWanted { state, since_s, before, limit })?;
    let most = args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let are_more = bags.len() > most;
    bags.truncate(most);
    if context.format == Format::Json {
        output::json(&bags)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let is_filtered = !args.state.is_empty() || args.since.is_some() || args.limit.is_some() || args.before.is_some();
    if bags.is_empty() && is_filtered {
        writeln!(out, "no such bag; `idlewood bag list` shows all")?;
    } else if bags.is_empty() {
        writeln!(out, "no bag was submitted here yet; see `idlewood submit --help`")?;
    } else {
        table(&bags).write(&mut out)?;
    }
    if let Some(last) = bags.last().filter(|_| are_more) {
        writeln!(out, "and more: --before {}", output::short_id(&last.id))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn table(bags: &[Bag]) -> Table {
    let mut columns = vec![
        Column::left("id"),
        Column::left("name"),
        Column::left("state"),
        Column::right("tasks"),
        Column::right("done"),
        Column::right("failed"),
        Column::right("placed").spared(4),
        Column::right("machines").spared(3),
        Column::right("took").spared(2),
        Column::left("submitted"),
    ];
    // Most users never say anything of it.
    let has_priorities = bags.iter().any(|bag| bag.priority != 0);
    if has_priorities {
        columns.push(Column::right("priority"));
    }
    let mut table = Table::new(&columns);
    for bag in bags {
        let cells = [
            output::short_id(&bag.id).to_owned(),
            bag.name.clone(),
            output::state(bag.state).to_owned(),
            bag.tasks.to_string(),
            bag.done.to_string(),
            bag.failed.to_string(),
            bag.placed.to_string(),
            bag.machines.to_string(),
            output::duration(bag.elapsed_s),
            output::when_to_the_minute(&bag.submitted),
        ];
        table.row(cells.into_iter().chain(has_priorities.then(|| bag.priority.to_string())));
        table.colour(2, Colour::of(bag.state));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_span_or_a_date() {
        let now: Zoned = "2026-11-27T14:30:00+01:00[Europe/Paris]".parse().expect("a time");
        let ago = |text: &str| since(text, &now).map(|Since(ago)| ago.as_secs());
        assert_eq!(ago("2h"), Ok(7_200));
        assert_eq!(ago("2026-11-27 14:00"), Ok(1_800));
        assert_eq!(ago("2026-11-27"), Ok(14 * 3_600 + 1_800));
        assert_eq!(ago("2027-01-01"), Ok(0), "nothing is newer");
        assert!(ago("yesterday").expect_err("a word").contains("2026-11-27"));
    }

    #[test]
    fn open_is_whatever_is_not_over() {
        let open: States = "open".parse().expect("a state");
        assert_eq!(open.0, [BagState::Held, BagState::Waiting, BagState::Measuring, BagState::Running]);
        assert_eq!("failed".parse(), Ok(States(vec![BagState::Failed])));
        assert!("done".parse::<States>().expect_err("no state").contains("succeeded"));
    }
}
