//! The command line: one binary, `idlewood`, whose verbs start an agent or command one.
//!
//! | exit code | means |
//! |---|---|
//! | 0 | success |
//! | 1 | the operation failed |
//! | 2 | bad usage: nothing was tried |
//! | 3, 4 | `bag wait`, and commands that wait like it: some task failed; the bag was cancelled |
//! | 130 | the user interrupted it |
//! | 141 | the reader of the output went away (as if by SIGPIPE) |
//! | 143 | SIGTERM ended it |
//!
//! Failures are one sentence on standard error: `error: ...`, or `{"error": ...}` with `--output json`.

mod bag;
mod bench;
mod clean;
mod completions;
mod config;
mod context;
mod demo;
mod doctor;
mod endless;
mod examples;
mod explain;
mod finding;
mod follow;
mod forecast;
mod grid;
mod interrupt;
mod kept;
mod list;
mod log_follow;
mod log_lines;
mod logs;
mod machine;
mod machines;
mod progress;
mod reach;
mod receipts;
mod results;
mod rounds;
mod run;
mod schema;
mod service;
mod show;
mod store;
mod submit;
mod tasks;
mod ticket;
mod watching;
mod whereabouts;
mod which;

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use idlewood_units::Span;

use crate::installed;
use crate::output::{self, Format};
use crate::submit::{List, Lists, SubmitError};

use context::{BadUsage, Context, FAILURE};
use interrupt::Interrupted;

pub use bench::BenchArgs;
pub use demo::DemoArgs;
pub use run::RunArgs;

/// Exit code of bad usage; also clap's.
const BAD_USAGE: u8 = 2;
/// Exit code when the reader of the output has gone.
const BROKEN_PIPE: u8 = 141;

/// Puts idle desktops to work, without a server.
#[derive(Debug, Parser)]
#[command(name = "idlewood", version, about, max_term_width = 100, after_help = examples::AT_ALL)]
struct Cli {
    /// Where the agent keeps its state [default: $XDG_STATE_HOME/idlewood or ~/.local/state/idlewood; for root
    /// /var/lib/idlewood if it is there]
    #[arg(long, global = true, value_name = "DIR", env = "IDLEWOOD_STATE_DIR", hide_env_values = true)]
    #[arg(help_heading = "Global options")]
    state_dir: Option<PathBuf>,
    /// The owner's settings [default: $XDG_CONFIG_HOME/idlewood/config.toml or ~/.config/idlewood/config.toml; for root
    /// /etc/idlewood/config.toml if /var/lib/idlewood is there]
    #[arg(long, global = true, value_name = "FILE", env = "IDLEWOOD_CONFIG", hide_env_values = true)]
    #[arg(help_heading = "Global options")]
    config: Option<PathBuf>,
    /// How to print
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = true)]
    #[arg(help_heading = "Global options", help = "How to print: text for people, json for programs (one JSON value)")]
    output: Format,
    /// Print the scheduler's figures, too: stretch, work in Mop, places in the tree
    #[arg(long, short, global = true, help_heading = "Global options")]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent of this machine in the foreground, until Ctrl-C
    #[command(after_help = examples::RUN)]
    Run(RunArgs),
    /// Submit a bag of tasks: the same program with many arguments, lines or files
    Submit(Box<submit::SubmitArgs>),
    /// See to the bags submitted here
    #[command(subcommand)]
    Bag(bag::BagCommand),
    /// What this machine does and why, and how large the grid is
    #[command(after_long_help = REASONS)]
    Status,
    /// Why tasks run on this machine or do not, and what would change that
    Explain,
    /// This machine's place in the grid: its parents and children in the tree, its neighbours on the line
    Peers,
    /// The machines of the grid: what each does and why, how fast and busy it is, and what it has of your tasks
    #[command(after_help = machines::STATES)]
    Machines(machines::MachinesArgs),
    /// Stop working for the grid until `resume`, or for a while
    #[command(after_help = examples::PAUSE)]
    Pause {
        /// Resume by itself after this time: 30m, 1h, 2d
        #[arg(long = "for", value_name = "DURATION")]
        span: Option<Span>,
    },
    /// Work for the grid again
    Resume,
    /// Take no new tasks, complete those that run, then end the agent; `resume` calls it off
    Finish,
    /// Start the agent anew, for settings that count at its start; tasks go on from their checkpoints
    Restart,
    /// Have the agent run by itself: as root as a service of the machine, otherwise of your desktop session
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Make, join and see to the grid that this machine belongs to
    #[command(subcommand, after_help = examples::GRID)]
    Grid(grid::GridCommand),
    /// See and change the owner's settings
    #[command(subcommand, after_help = examples::CONFIG)]
    Config(config::ConfigCommand),
    /// Look at what the agent keeps on disk, while it does not run
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Remove what the agent keeps on disk that nothing needs: files of ended bags, compiled programs, leftovers
    Clean(clean::CleanArgs),
    /// What works on this machine and what to do about the rest: sensing of the owner, sandbox, disk, and whether
    /// others reach it
    Doctor,
    /// Show a grid at work on this machine: crashes, an owner who returns, and a picture
    Demo(DemoArgs),
    /// Measure what small tasks cost, on a private agent that is removed afterwards
    Bench(bench::BenchArgs),
    /// Print what a shell needs to complete commands, for example into ~/.local/share/bash-completion/completions/idlewood
    Completions(completions::CompletionsArgs),
    /// Print what commands print with --output json, as JSON Schema; or the control API
    Schema(schema::SchemaArgs),
    /// Print or write the manual pages; packages do
    #[command(hide = true)]
    Man(completions::ManArgs),
    /// Run tasks for an agent; started by the agent
    #[command(hide = true)]
    Worker,
}

/// Every reason that `status` may tell, and what it means for tasks.
const REASONS: &str = "\
Reasons for which tasks do not run as they could; the first that holds is told:
  paused_by_user   `idlewood pause`: tasks stand still
  outside_hours    owner.hours, owner.days: tasks stand still
  on_battery       owner.on_battery: tasks stand still
  program_runs     one of owner.programs runs: tasks stand still
  owner_present    the file of --owner-probe exists: limits.in_use.cpu_percent
  owner_active     input within owner.idle: limits.in_use.cpu_percent
  foreign_cpu      others use over owner.foreign_cpu_percent: tasks stand still
  disk_full        limits.disk or the disk is used up: none begins, others go on
  finishing        `idlewood finish`: none begins, those that run go on

Tasks that stand still keep their memory and go on where they stopped; unstarted ones, and those that \
have a checkpoint, go back to their submitters after owner.vacate.";

/// Runs the program that the command line asks for.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().collect();
    let (arguments, entries) = split_entries(arguments);
    let entries = match entries {
        Ok(entries) => entries,
        Err(error) => return report(wanted_format(&arguments), &error.into()),
    };
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return refuse(wanted_format(&arguments), &error),
    };
    let format = cli.output;
    dispatch(cli, entries).unwrap_or_else(|error| report(format, &error))
}

fn dispatch(cli: Cli, entries: Option<Lists>) -> anyhow::Result<ExitCode> {
    if entries.is_some() && !matches!(cli.command, Command::Submit(_)) {
        return Err(BadUsage("`:::` belongs to `submit`: what follows it are the entries of tasks".to_owned()).into());
    }
    // These have no state directory: a worker has no environment, and packages are built anywhere.
    match &cli.command {
        Command::Worker => idlewood_worker::child::main(),
        Command::Completions(args) => return completions::completions(Cli::command(), args),
        Command::Man(args) => return completions::man(Cli::command(), args),
        Command::Schema(args) => return schema::run(args),
        _ => {}
    }
    let context = Context {
        state_dir: state_dir(cli.state_dir)?,
        config: config_path(cli.config)?,
        format: cli.output,
        is_verbose: cli.verbose,
    };
    output::fit_to_terminal();
    match cli.command {
        Command::Run(args) => run::run(&context, args),
        Command::Submit(args) => submit::run(&context, *args, entries),
        Command::Bag(command) => bag::run(&context, command),
        Command::Status => machine::status(&context),
        Command::Explain => explain::machine(&context),
        Command::Peers => machine::peers(&context),
        Command::Machines(args) => machines::machines(&context, &args),
        Command::Pause { span } => machine::pause(&context, span.map(|span| span.0)),
        Command::Resume => machine::resume(&context),
        Command::Finish => machine::finish(&context),
        Command::Restart => machine::restart(&context),
        Command::Service(command) => service::run(&context, &command),
        Command::Grid(command) => grid::run(&context, command),
        Command::Config(command) => config::run(&context, command),
        Command::Store(command) => store::run(&context, &command),
        Command::Clean(args) => clean::run(&context, &args),
        Command::Doctor => doctor::run(&context),
        Command::Demo(args) => demo::run(&context, args),
        Command::Bench(args) => bench::run(&context, &args),
        Command::Completions(_) | Command::Man(_) | Command::Schema(_) | Command::Worker => unreachable!("done above"),
    }
}

/// Splits the lists after `:::` and `::::` off the arguments; clap would stumble over entries that look like options.
fn split_entries(mut arguments: Vec<OsString>) -> (Vec<OsString>, Result<Option<Lists>, BadUsage>) {
    let Some(position) = arguments.iter().position(|argument| argument == ":::" || argument == "::::") else {
        return (arguments, Ok(None));
    };
    let rest = arguments.split_off(position);
    (arguments, lists(rest).map(Some))
}

fn lists(words: Vec<OsString>) -> Result<Lists, BadUsage> {
    let mut lists = Vec::new();
    let mut files_from = None;
    let ends = |files_from: Option<usize>, lists: &Vec<List>| match files_from {
        Some(before) if lists.len() == before => Err(BadUsage("a file has to follow `::::`".to_owned())),
        _ => Ok(()),
    };
    for word in words {
        let word = word.into_string().map_err(|word| BadUsage(format!("the entry {} is not UTF-8", word.display())))?;
        match word.as_str() {
            ":::" => {
                ends(files_from.take(), &lists)?;
                lists.push(List::Values(Vec::new()));
            }
            "::::" => {
                ends(files_from, &lists)?;
                files_from = Some(lists.len());
            }
            ":::+" | "::::+" => {
                let why = "is not understood: put values that belong together into a table, for --csv";
                return Err(BadUsage(format!("`{word}` {why}")));
            }
            _ if files_from.is_some() => lists.push(List::File(word.into())),
            _ => match lists.last_mut() {
                Some(List::Values(values)) => values.push(word),
                _ => unreachable!("a list of values was begun"),
            },
        }
    }
    ends(files_from, &lists)?;
    Ok(Lists(lists))
}

/// The state directory: flag, environment (both from clap), that of the machine's service for root, or the platform's place.
fn state_dir(given: Option<PathBuf>) -> Result<PathBuf, BadUsage> {
    if let Some(directory) = given {
        return if directory.as_os_str().is_empty() {
            Err(BadUsage("the state directory cannot be empty: name one with --state-dir".to_owned()))
        } else {
            Ok(directory)
        };
    }
    installed::default_state_dir()
        .ok_or_else(|| BadUsage("no home directory: name a state directory with --state-dir".to_owned()))
}

/// The file of settings: flag, environment (both from clap), that of the machine's service for root, or the platform's place.
fn config_path(given: Option<PathBuf>) -> Result<PathBuf, BadUsage> {
    let none = || BadUsage("no home directory: name the file of settings with --config".to_owned());
    let is_chosen = env::var_os("XDG_CONFIG_HOME").is_some();
    let of_service = || installed::of_this_machine().filter(|_| !is_chosen).map(|(_, config)| config);
    given.or_else(of_service).or_else(crate::settings::default_path).ok_or_else(none)
}

/// The format that the arguments ask for, when clap could not parse them.
fn wanted_format(arguments: &[OsString]) -> Format {
    let texts: Vec<_> =
        arguments.iter().map(|argument| argument.to_string_lossy()).take_while(|text| text != "--").collect();
    let separate = texts.windows(2).any(|pair| pair[0] == "--output" && pair[1] == "json");
    if separate || texts.iter().any(|text| text == "--output=json") { Format::Json } else { Format::Text }
}

/// Prints clap's message: help, version, or an error in the arguments.
fn refuse(format: Format, error: &clap::Error) -> ExitCode {
    let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let printed = if format == Format::Json && !asked_for {
        output::error(format, &usage_sentence(error))
    } else {
        error.print()
    };
    match printed {
        Ok(()) if asked_for => ExitCode::SUCCESS,
        Err(error) if asked_for && error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(BROKEN_PIPE),
        Ok(()) | Err(_) => ExitCode::from(BAD_USAGE),
    }
}

/// The first paragraph of clap's message, without its `error:`.
fn usage_sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines: Vec<_> = text.lines().map(str::trim).skip_while(|line| line.is_empty()).collect();
    let paragraph = lines.split(|line| line.is_empty()).next().unwrap_or_default().join(" ");
    paragraph.trim_start_matches("error: ").to_owned()
}

/// Reports an error, and returns the exit code.
fn report(format: Format, error: &anyhow::Error) -> ExitCode {
    let is_broken_pipe = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    if error.chain().any(|cause| cause.downcast_ref().is_some_and(is_broken_pipe)) {
        return ExitCode::from(BROKEN_PIPE);
    }
    let code = if error.is::<BadUsage>() || error.is::<SubmitError>() {
        BAD_USAGE
    } else if let Some(why) = error.downcast_ref::<Interrupted>() {
        why.code()
    } else {
        FAILURE
    };
    match output::error(format, &sentence(error)) {
        // Without standard error the exit code must do.
        Ok(()) | Err(_) => ExitCode::from(code),
    }
}

/// An error and its causes in one line; causes that the text contains already are not repeated.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests;
