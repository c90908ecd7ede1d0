//! `idlewood bag`: the bags submitted from this machine.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::bail;
use idlewood_api::client::Client;
use idlewood_api::{Bag, BagState, RerunRequest, TaskSource};
use idlewood_units::Numbers;

use super::context::{BadUsage, Context};
use super::follow::{self, View};
use super::which::{BagName, Found, TheseBags, WhichBags, check, first_of};
use super::{endless, examples, explain, list, logs, receipts, results, show, tasks, ticket, watching};
use crate::output::{self, Format};
use crate::submit::options::priority;

/// The verbs under `bag`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum BagCommand {
    /// List the bags submitted here
    #[command(visible_alias = "ls", after_help = examples::LIST)]
    List(list::ListArgs),
    /// Show bags: numbers, machines, why tasks failed
    Show {
        #[command(flatten)]
        bags: WhichBags,
    },
    /// List the tasks of bags: where each is, how long it took, its exit code
    #[command(after_help = tasks::STATES)]
    Tasks(tasks::TasksArgs),
    /// Why tasks of bags run or do not, how many machines that concerns, and what would end it
    #[command(after_help = explain::CODES)]
    Explain {
        #[command(flatten)]
        bags: WhichBags,
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
    /// Have bags come before or behind your others: the higher the priority, the sooner; bags of others are none the later for it
    Priority {
        #[command(flatten)]
        bags: TheseBags,
        /// From -1000 to 1000; 0 is that of bags of which nothing is said
        #[arg(value_name = "N", allow_negative_numbers = true, value_parser = priority)]
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
    /// Go on giving an endless bag tasks, where `submit` was ended: files of the directory that it watches (--watch), or lines of standard
    /// input (--each-line -); until the bag is closed, or the lines end
    Feed {
        /// Its id, a unique beginning of it, its name, or `last`
        #[arg(value_name = "BAG")]
        id: BagName,
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
    /// Run tasks again that are over, with all their retries; opens bags that were over
    #[command(group = clap::ArgGroup::new("tasks").required(true).args(["failed", "index"]))]
    #[command(after_help = examples::RERUN)]
    Rerun {
        #[command(flatten)]
        bags: TheseBags,
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
    #[command(after_help = examples::GET)]
    Get(results::GetArgs),
    /// Check receipts that `get --receipts` saved; exit with 1 at the first that its machine did not sign
    Receipts(receipts::ReceiptsArgs),
}

pub(super) fn run(context: &Context, command: BagCommand) -> anyhow::Result<ExitCode> {
    match command {
        BagCommand::List(args) => list::list(context, &args),
        BagCommand::Show { bags } => show::show(context, &bags),
        BagCommand::Tasks(args) => tasks::tasks(context, &args),
        BagCommand::Explain { bags } => explain::bags(context, &bags),
        BagCommand::Watch { bags } => follow(context, &bags, View::on_stdout()),
        BagCommand::Wait { bags, progress } => {
            follow(context, &bags, if progress { View::on_stderr() } else { View::Silent })
        }
        BagCommand::Hold { bags } => each(context, &bags, is_open, Client::hold, told_held),
        BagCommand::Release { bags } => each(context, &bags, is_open, Client::release, told_released),
        BagCommand::Priority { bags, priority } => {
            each(context, &bags, is_open, |client, id| client.prioritise(id, priority), told_prioritised)
        }
        BagCommand::Rename { id, name } => rename(context, &id.0, &name),
        BagCommand::Feed { id } => feed(context, &id.0),
        BagCommand::Close { bags } => each(context, &bags, is_endless, Client::close, told_closed),
        BagCommand::Cancel { bags } => each(context, &bags, is_open, Client::cancel, told_cancelled),
        BagCommand::Rerun { bags, failed: _, index } => rerun(context, &bags, index.as_ref()),
        BagCommand::Ticket(args) => ticket::ticket(context, &args),
        BagCommand::Adopt(args) => ticket::adopt(context, &args),
        BagCommand::Receipts(args) => receipts::receipts(context, &args),
        BagCommand::Rm { bags } => each(context, &bags, |bag| bag.state.is_closed(), Client::remove, told_removed),
        BagCommand::Logs(args) => logs::logs(context, &args),
        BagCommand::Get(args) if args.follow => {
            let client = context.client()?;
            let Found { ids, .. } = args.bags.find(&client, is_endless)?;
            let [id] = &ids[..] else {
                return Err(BadUsage(format!("--follow takes one bag, and these are {}", ids.len())).into());
            };
            endless::drain(context, client, id, args.out.as_deref())
        }
        BagCommand::Get(args) => results::get(context, &args),
    }
}

fn feed(context: &Context, id: &str) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let bag = client.bag(id)?.bag;
    let short = output::short_id(&bag.id);
    let Some(view) = &bag.endless else {
        bail!("bag {short} has an end: this is for bags that were submitted with --endless");
    };
    let bag = match view.source {
        Some(TaskSource::Range) => bail!("the tasks of bag {short} are numbers: it has all of them"),
        _ if view.closed => bail!("bag {short} is closed: it takes no more tasks"),
        None => bail!("what bag {short} is made of cannot be read at the moment: see the agent's log"),
        Some(TaskSource::Lines) => endless::feed(context, client, &bag.id, bag.tasks, io::BufReader::new(io::stdin()))?,
        Some(TaskSource::Files) => watching::go_on(context, client, &bag)?,
    };
    if context.format == Format::Json {
        output::json(&bag)?;
    } else {
        writeln!(io::stdout(), "{}", told_closed(&bag))?;
    }
    Ok(ExitCode::SUCCESS)
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

/// Orders something of each of these bags, and says what came of it; what is wrong with one keeps nothing from the others.
fn each<E>(
    context: &Context,
    bags: &TheseBags,
    of_all: impl Fn(&Bag) -> bool,
    order: impl Fn(&Client, &str) -> Result<Bag, E>,
    told: fn(&Bag) -> String,
) -> anyhow::Result<ExitCode>
where
    anyhow::Error: From<E>,
{
    let client = context.client()?;
    let found = bags.find(&client, of_all)?;
    let (done, errors) = found.each(|id| {
        let bag = order(&client, id)?;
        if context.format == Format::Text {
            writeln!(io::stdout(), "{}", told(&bag))?;
        }
        Ok(bag)
    })?;
    if context.format == Format::Json || errors.is_empty() {
        self::told(context, done, found.is_one)?;
    }
    first_of(errors).map(|()| ExitCode::SUCCESS)
}

/// Says what came of an order as JSON, or that there was nothing to order.
fn told(context: &Context, done: Vec<Bag>, is_one: bool) -> anyhow::Result<ExitCode> {
    match context.format {
        Format::Json => output::one_or_all(done, is_one)?,
        Format::Text if done.is_empty() => writeln!(io::stdout(), "there is no such bag")?,
        Format::Text => {}
    }
    Ok(ExitCode::SUCCESS)
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

fn told_prioritised(bag: &Bag) -> String {
    format!("bag {} has priority {} among the bags of this machine", output::short_id(&bag.id), bag.priority)
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

fn rerun(context: &Context, bags: &TheseBags, index: Option<&Numbers>) -> anyhow::Result<ExitCode> {
    // Of all those that have something to run again.
    let may_run = |bag: &Bag| bag.state != BagState::Cancelled && (bag.failed > 0 || index.is_some());
    let order = |client: &Client, id: &str| -> anyhow::Result<Bag> {
        if let Some(index) = index {
            check(&client.bag(id)?.bag, index)?;
        }
        Ok(client.rerun(id, &RerunRequest { tasks: index.map(|index| index.iter().collect()) })?)
    };
    each(context, bags, may_run, order, told_released)
}
