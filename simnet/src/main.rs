//! `simnet`: runs simulations from the command line, and checks the scheduler's arithmetic.
//!
//! Exit codes: 0 all went well; 1 a task was lost, an invariant broken, or a summary left out of a report; 2 bad usage or input; 130 interrupted, after
//! the results so far.

#![forbid(unsafe_code)]

mod dlo_command;
mod experiment_command;
mod output;
mod rounds_command;
mod run_command;
mod shares_command;
mod steady_command;

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use experiment_command::{ExperimentArguments, ReportArguments};
use idlewood_simnet::availability::Availability;
use idlewood_simnet::experiment::Experiment as PaperExperiment;
use idlewood_simnet::overlay::experiment::{Experiment, Replay};
use idlewood_simnet::reproduce::{ProgressEvent, Reproduction, Summary};
use idlewood_simnet::{eval, swarm};
use output::{Output, ProgressLine};

/// The system's allocator took a tenth of a simulation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Deterministic simulation of idlewood grids.
#[derive(Parser)]
#[command(name = "simnet", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one scenario: machines that come and go, and bags that arrive at them.
    Run(run_command::RunArguments),
    /// Repeat the experiments whose figures the documents state.
    #[command(subcommand)]
    Reproduce(Reproduce),
    /// Make one HTML page, report.html, of the figures and tables that experiments have left in a directory.
    Report(ReportArguments),
    /// Compute the maximum stretch of a queue and what a leaf has available: one JSON document from standard input,
    /// one on standard output.
    ///
    /// Input: {"speed": Mop/s per slot, "slots": k, "now": s, "preemptive": bool, "running": [Mop left, one per busy
    /// slot; empty with preemption], "queue": [{"r": s, "w": Mop, "a": Mop, "left": tasks}], "queries": [{"S": s/Mop,
    /// "r": s, "w": Mop, "a": Mop}]}. Output: {"max_stretch": s/Mop, "max_stretch_exact": s/Mop, "answers": [{"h":
    /// Mop, "n": tasks}]}. With several slots h and n are lower bounds.
    Eval,
    /// Run many small random worlds with all kinds of faults, and look for a broken invariant.
    Swarm(SwarmArguments),
}

#[derive(Args)]
struct SwarmArguments {
    /// Cases: their seeds follow one another.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    cases: u64,
    /// Seed of the first case.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Whole machines that work bags off, instead of overlays alone. A case takes a hundred times as long.
    #[arg(long)]
    bags: bool,
    /// With --bags: other machines keep the bags, and disks are taken.
    #[arg(long, requires = "bags")]
    stewards: bool,
    /// Run this case alone, and say what it is.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["cases", "seed"])]
    case: Option<u64>,
    /// How the result is printed; json: one object on the last line.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Subcommand)]
enum Reproduce {
    /// The overlay: shape of the tree, traffic, joins, repair after crashes, leaves, mass failures and partitions, and
    /// paths to the root under churn.
    ///
    /// Every experiment has a grid of its own: a copy of the seed's, which was grown by real joins. Tables (CSV) and
    /// summary.json in the directory are up to date after each. A run that was interrupted goes on where it stopped.
    Overlay(OverlayArguments),
    /// Maximum and mean stretch relative to MinCent, FCFS and the offline bound, without and with failures.
    ///
    /// Every experiment but overlay: every case and seed is a simulation of its own; the table (CSV) in the
    /// directory has it at once, summary (JSON) and figures (SVG) follow within seconds, and at the end. A run that was
    /// interrupted goes on where it stopped. docs/lab/method.md says what the experiments and columns mean.
    Fairness(ExperimentArguments),
    /// How long a leaf's change takes to reach the root.
    Updates(ExperimentArguments),
    /// Update time and use of the links by update limit.
    Table1(ExperimentArguments),
    /// Where requests are decided, and at what cost, by climbing rule and bound.
    Bound(ExperimentArguments),
    /// The largest grids, on a load that is short enough to finish; a million machines are watched for an hour.
    Scale(ExperimentArguments),
    /// Heavy-tailed bags, as production grids see them, and what each addition to the paper is worth there.
    Desktops(DesktopsArguments),
    /// What a user gets by splitting bags or understating their work, and what an honest one with many bags pays for rules
    /// against that.
    Submitters(ExperimentArguments),
    /// Loads that tell schedulers apart, for days: bags smaller and larger than the grid, machines that come and go, a log.
    Loads(LoadsArguments),
    /// Applications that go in rounds: predicted times of the paper's processes on its seven sets of machines.
    ///
    /// And a model of the same application on machines that come and go, which is not one of whole peers. rounds.json in the
    /// directory has the rows of both; docs/lab/rounds.md says what they mean.
    Rounds(rounds_command::RoundsArguments),
    /// Fair shares of applications without an end on trees with limited links: distributed Lagrangian optimisation, naive and
    /// adaptive, and FOLD, beside the optimum (docs/lab/dlo.md).
    Dlo(dlo_command::DloArguments),
    /// Max-min fair throughput of applications without an end on trees whose machines send to one child at a time: the optimum, the
    /// paper's demand-driven heuristics and CG-WAVE (docs/lab/steady.md).
    Steady(steady_command::SteadyArguments),
    /// Fair shares of bags without an end on grids of whole peers: throughput beside the best rates, how fast shares follow changes, what
    /// they add to the traffic and to the stretch of finite bags, and what submitters gain by false sizes (docs/lab/shares.md).
    Shares(shares_command::SharesArguments),
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

#[derive(Args)]
struct DesktopsArguments {
    #[command(flatten)]
    common: ExperimentArguments,
    /// Loads of processors every five minutes of a day: the case with owners who are there while the load is high (--only load).
    #[arg(long, value_name = "FILE")]
    owners: Option<PathBuf>,
}

#[derive(Args)]
struct LoadsArguments {
    #[command(flatten)]
    common: ExperimentArguments,
    /// A log in the Standard Workload Format, whose bags are submitted in further cases, those of a user from one machine;
    /// from a place on that each seed draws.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

#[derive(Args)]
struct OverlayArguments {
    /// Machines of each grid.
    #[arg(long, default_value_t = 300)]
    nodes: u32,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds, from the first one on.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Directory for tables and summary; created if it is not there. What the same build has found there before for the
    /// same settings is not run again.
    #[arg(long, default_value = "reproduce-overlay", value_name = "DIR")]
    out: PathBuf,
    /// Experiments to run, separated by commas: steady, join, crash, leave, mass, partition, partition-hour, churn-4h,
    /// churn-10min, trace. All by default, partition-hour only up to 1000 machines, trace only with a file.
    #[arg(long, value_delimiter = ',', value_parser = experiment, value_name = "NAMES")]
    only: Vec<Experiment>,
    /// Cases of these experiments, separated by commas: of mass 10, 50, 80; of partition halves, strangers; of churn-4h
    /// and churn-10min crashes, announced. All by default.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    cases: Vec<String>,
    /// When real machines were up, to be replayed: event_trace.tab of the Failure Trace Archive, or spot instances as
    /// JSON; plain or compressed by gzip. Up to 2000 machines 61 minutes of it are replayed, of larger grids less, down to four
    /// minutes, and trace-speedup times as much: it has to follow some machine for so long. A machine that it follows for less
    /// is down afterwards.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How many times faster than in the trace machines come and go: servers hardly ever do.
    #[arg(long, default_value_t = 1, value_name = "FACTOR")]
    trace_speedup: u32,
    /// Grids simulated at the same time; changes no result. One per core by default, fewer where memory is short.
    #[arg(long)]
    threads: Option<usize>,
    /// How the result is printed; json: one object on the last line.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

fn experiment(name: &str) -> Result<Experiment, String> {
    let all = Experiment::ALL.map(Experiment::name);
    let known = Experiment::ALL.into_iter().find(|experiment| experiment.name() == name);
    known.ok_or_else(|| format!("write one of {}", all.join(", ")))
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(arguments) => run_command::run(&arguments),
        Command::Reproduce(experiment) => reproduce(experiment),
        Command::Report(arguments) => experiment_command::report(&arguments),
        Command::Eval => evaluate(),
        Command::Swarm(arguments) => swarm(&arguments),
    }
}

/// `simnet reproduce`.
fn reproduce(experiment: Reproduce) -> ExitCode {
    let (experiment, arguments) = match experiment {
        Reproduce::Overlay(arguments) => return reproduce_overlay(arguments),
        Reproduce::Rounds(arguments) => return rounds_command::reproduce(arguments),
        Reproduce::Dlo(arguments) => return dlo_command::reproduce(arguments),
        Reproduce::Steady(arguments) => return steady_command::reproduce(arguments),
        Reproduce::Shares(arguments) => return shares_command::reproduce(arguments),
        Reproduce::Unknown(arguments) => return experiment_command::unknown(&arguments),
        Reproduce::Fairness(arguments) => (PaperExperiment::Fairness, arguments),
        Reproduce::Updates(arguments) => (PaperExperiment::Updates, arguments),
        Reproduce::Table1(arguments) => (PaperExperiment::Table1, arguments),
        Reproduce::Bound(arguments) => (PaperExperiment::Bound, arguments),
        Reproduce::Scale(arguments) => (PaperExperiment::Scale, arguments),
        Reproduce::Desktops(DesktopsArguments { common, owners }) => {
            return experiment_command::reproduce(PaperExperiment::Desktops, common, None, owners);
        }
        Reproduce::Loads(LoadsArguments { common, log }) => {
            return experiment_command::reproduce(PaperExperiment::Loads, common, log.as_deref(), None);
        }
        Reproduce::Submitters(arguments) => (PaperExperiment::Submitters, arguments),
    };
    experiment_command::reproduce(experiment, arguments, None, None)
}

/// `simnet swarm`.
fn swarm(arguments: &SwarmArguments) -> ExitCode {
    let kind = match (arguments.bags, arguments.stewards) {
        (true, true) => swarm::Kind::KeptBags,
        (true, false) => swarm::Kind::Bags,
        (false, _) => swarm::Kind::Overlays,
    };
    let seeds: Vec<u64> = match arguments.case {
        Some(seed) => vec![seed],
        None => (0..arguments.cases).map(|number| arguments.seed.wrapping_add(number)).collect(),
    };
    if let Some(seed) = arguments.case {
        match kind {
            swarm::Kind::Overlays => eprint!("{}", swarm::Case::draw(seed)),
            swarm::Kind::Bags => eprint!("{}", swarm::bags::Case::draw(seed)),
            swarm::Kind::KeptBags => eprint!("{}", swarm::bags::Case::draw_kept(seed)),
        }
    }
    let mut line = ProgressLine::new();
    let mut printed = 0;
    let summary = swarm::run(kind, &seeds, |summary| {
        // At once: a long run may be interrupted.
        for failure in &summary.failures[printed..] {
            line.finish();
            eprintln!("error: {}\n    {}", failure.what, failure.command());
        }
        printed = summary.failures.len();
        let (done, cases, failed) = (summary.cases, seeds.len(), summary.failures.len());
        line.say(format_args!("{done}/{cases} cases, {failed} failed, {} events ", summary.events));
    });
    let wall_s = line.finish();
    eprintln!("{} events in {wall_s:.2} s", summary.events);
    let settled_s = |share| summary.settled_within(share).map(|time: Duration| time.as_secs_f64());
    let text = match arguments.output {
        Output::Text => format!(
            "{} cases, {} faults, {} failed; settled after {:.1?} s (median), {:.1?} s (p99), {:.1?} s (last)",
            summary.cases,
            summary.faults,
            summary.failures.len(),
            settled_s(0.5).unwrap_or(0.0),
            settled_s(0.99).unwrap_or(0.0),
            settled_s(1.0).unwrap_or(0.0),
        ),
        Output::Json => {
            let failure = |failure: &swarm::Failure| {
                serde_json::json!({
                    "seed": failure.seed, "invariant": failure.invariant, "at_s": failure.at_s,
                    "what": failure.what, "command": failure.command(),
                })
            };
            serde_json::json!({
                "cases": summary.cases, "seed": seeds.first(), "failed": summary.failures.len(), "faults": summary.faults,
                "events": summary.events, "settled_p50_s": settled_s(0.5), "settled_p99_s": settled_s(0.99),
                "settled_max_s": settled_s(1.0), "failures": summary.failures.iter().map(failure).collect::<Vec<_>>(),
            })
            .to_string()
        }
    };
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}") {
        eprintln!("error: the result cannot be printed: {error}");
        return ExitCode::FAILURE;
    }
    if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `simnet reproduce overlay`.
fn reproduce_overlay(arguments: OverlayArguments) -> ExitCode {
    let OverlayArguments { nodes, seed, seeds, out, only, cases, trace, trace_speedup, threads, output } = arguments;
    let read = |path: PathBuf| {
        Availability::read(&path).map(|availability| Replay { path, availability, speedup: trace_speedup })
    };
    let prepared = trace.map(read).transpose().and_then(|trace| {
        let reproduction = Reproduction { nodes, seed, seeds, only, cases, trace, out, threads };
        reproduction.validate()?;
        Ok((reproduction, experiment_command::interruption()?))
    });
    let (reproduction, interrupted) = match prepared {
        Ok(prepared) => prepared,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            return ExitCode::from(2);
        }
    };
    let mut line = JobsLine::new();
    let show = |progress: ProgressEvent<'_>| {
        line.show(&progress);
        if let ProgressEvent::Running(_, done, all) = progress
            && interrupted.load(Ordering::Relaxed)
        {
            line.clear();
            experiment_command::end_at_once(&format!(
                "{done} of {all} jobs are kept; the same command goes on from there"
            ));
        }
    };
    let summary = match reproduction.run(show) {
        Ok(summary) => summary,
        Err(sentence) => {
            line.clear();
            eprintln!("error: {sentence}");
            return ExitCode::from(2);
        }
    };
    line.clear();
    let mut stdout = std::io::stdout().lock();
    let printed = match output {
        Output::Text => print_summary(&mut stdout, &summary, &reproduction.out),
        Output::Json => {
            let json = serde_json::to_string(&summary).expect("finite numbers are JSON");
            writeln!(stdout, "{json}")
        }
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: the summary cannot be printed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_summary(out: &mut impl Write, summary: &Summary, directory: &std::path::Path) -> std::io::Result<()> {
    let Summary { nodes, seed, seeds, .. } = summary;
    writeln!(out, "{nodes} machines, seeds {seed} to {}; tables in {}", seed + (seeds - 1), directory.display())?;
    let mut line = |name: &str, parts: &[(&str, Option<f64>, &str)]| -> std::io::Result<()> {
        let known = parts.iter().filter_map(|(what, value, unit)| Some((what, (*value)?, unit)));
        let parts: Vec<String> = known.map(|(what, value, unit)| format!("{what}{value:.2}{unit}")).collect();
        if parts.is_empty() { Ok(()) } else { writeln!(out, "{name:<30} {}", parts.join(", ")) }
    };
    let percent = |share: Option<f64>| share.map(|share| share * 100.0);
    let of = summary;
    line("height, mean depth", &[("", of.height, ""), ("", of.mean_depth, "")])?;
    line("traffic per peer", &[("", of.bytes_per_peer_s, " B/s"), ("", of.messages_per_peer_s, " messages/s")])?;
    line("join", &[("p50 ", of.join_p50_s, " s"), ("p99 ", of.join_p99_s, " s")])?;
    line("messages of a join", &[("p50 ", of.join_messages_p50, ""), ("p99 ", of.join_messages_p99, "")])?;
    line("repair after a crash", &[("p50 ", of.crash_repair_p50_s, " s"), ("p99 ", of.crash_repair_p99_s, " s")])?;
    line("repair after a leave", &[("p50 ", of.leave_repair_p50_s, " s"), ("p99 ", of.leave_repair_p99_s, " s")])?;
    let mass = [
        ("10 %: ", of.mass_failure_10_s, " s"),
        ("50 %: ", of.mass_failure_50_s, " s"),
        ("80 %: ", of.mass_failure_80_s, " s"),
    ];
    line("crashes at once, worst", &mass)?;
    let hour = ("of an hour ", of.partition_hour_heal_s, " s");
    line("partition heals, worst", &[("", of.partition_heal_s, " s"), hour])?;
    line("two grids become one, worst", &[("", of.strangers_merge_s, " s")])?;
    let paths = [
        ("crashes ", percent(of.path_available_4h_crashes), " %"),
        ("80 % announced ", percent(of.path_available_4h), " %"),
    ];
    line("paths, sessions of 4 h", &paths)?;
    let paths = [
        ("crashes ", percent(of.path_available_10min), " %"),
        ("80 % announced ", percent(of.path_available_10min_announced), " %"),
    ];
    line("paths, sessions of 10 min", &paths)?;
    line("paths, trace", &[("", percent(of.path_available_trace), " %"), ("changes ", of.trace_changes, "")])?;
    let speed = ("", Some(of.peer_hours_per_cpu_hour), " peer-hours per CPU-hour");
    line("speed", &[("", Some(of.events_per_cpu_s), " events/CPU-s"), speed])?;
    line("memory", &[("", of.peak_rss_bytes.map(|bytes| bytes as f64 / 1e6), " MB at most")])?;
    writeln!(out, "{:<30} {}", "never repaired", of.unhealed)?;
    writeln!(out, "{:<30} {}", "trace hash", of.trace_hash)
}

/// Running jobs, on standard error: one line on a terminal, else a line every ten seconds and for each slow job.
struct JobsLine {
    shown: Instant,
    started: Instant,
    is_terminal: bool,
    is_dirty: bool,
}

impl JobsLine {
    fn new() -> Self {
        let now = Instant::now();
        Self { shown: now, started: now, is_terminal: std::io::stderr().is_terminal(), is_dirty: false }
    }

    /// Pause between two reports.
    fn pause(&self) -> Duration {
        if self.is_terminal { Duration::from_millis(200) } else { Duration::from_secs(10) }
    }

    fn show(&mut self, progress: &ProgressEvent<'_>) {
        if let ProgressEvent::Found(found, all) = progress {
            eprintln!("{found} of {all} jobs were found in the directory");
        }
        if self.started.elapsed() < Duration::from_secs(1) {
            return;
        }
        match progress {
            ProgressEvent::Done(name, took) if !self.is_terminal && *took >= Duration::from_secs(1) => {
                eprintln!("{name}: {:.1} s", took.as_secs_f64());
            }
            ProgressEvent::Running(running, done, all) if self.shown.elapsed() > self.pause() => {
                self.shown = Instant::now();
                let jobs = running.iter().map(|(name, progress)| {
                    format!("{name}: {:.0} s simulated, {} events", progress.now.as_secs_f64(), progress.events)
                });
                let text = format!("{done}/{all} {}", jobs.collect::<Vec<_>>().join("; "));
                if self.is_terminal {
                    eprint!("\r\x1b[K{}", text.chars().take(150).collect::<String>());
                    self.is_dirty = true;
                } else {
                    eprintln!("{text}");
                }
            }
            ProgressEvent::Found(..) | ProgressEvent::Done(..) | ProgressEvent::Running(..) => {}
        }
    }

    fn clear(&self) {
        if self.is_dirty {
            eprint!("\r\x1b[K");
        }
    }
}

/// `simnet eval`.
fn evaluate() -> ExitCode {
    let mut document = Vec::new();
    if let Err(error) = std::io::stdin().lock().read_to_end(&mut document) {
        eprintln!("error: the document cannot be read: {error}");
        return ExitCode::FAILURE;
    }
    let evaluation = match std::str::from_utf8(&document) {
        Ok(document) => eval::evaluate(document).map_err(|error| error.to_string()),
        Err(error) => Err(format!("the document is not UTF-8: {error}")),
    };
    let evaluation = match evaluation {
        Ok(evaluation) => evaluation,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            return ExitCode::from(2);
        }
    };
    let json = serde_json::to_string(&evaluation).expect("finite numbers are JSON");
    match writeln!(std::io::stdout().lock(), "{json}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: the answer cannot be printed: {error}");
            ExitCode::FAILURE
        }
    }
}
