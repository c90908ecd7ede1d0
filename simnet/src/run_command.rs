//! `simnet run`: one scenario, from a file or from flags, and its report.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use idlewood_scheduler::PerSubmitter;
use idlewood_simnet::experiment::compare;
use idlewood_simnet::overlay::Wire;
use idlewood_simnet::scenario::{DEFAULTS, papers_links, papers_scheme, parse_duration};
use idlewood_simnet::{Cost, Execution, Meter, Report, Scenario, Simulation, baseline};

use crate::experiment_command::{INTERRUPTED, interruption};
use crate::output::{Output, ProgressLine};

/// While centralised schedulers are computed, their end and Ctrl-C are checked for so often.
const COMPARED_EVERY: Duration = Duration::from_millis(20);
/// Smaller grids have too few events at a time for several threads.
const THREADED_NODES_MIN: u32 = 2_000;

#[derive(Args)]
pub(crate) struct RunArguments {
    /// A scenario; flags override its settings.
    #[arg(long, value_name = "FILE.toml")]
    scenario: Option<PathBuf>,
    /// Print a scenario with all defaults, what they mean and where they come from.
    #[arg(long)]
    print_scenario: bool,
    /// Machines [default: 100].
    #[arg(long)]
    nodes: Option<u32>,
    /// Bags that are submitted [default: 20].
    #[arg(long)]
    bags: Option<u32>,
    /// Mean session of a machine before it crashes, such as 4h or 30m; none: machines stay up [default: none].
    #[arg(long, value_parser = optional_duration)]
    churn: Option<OptionalDuration>,
    /// Mean time that a machine which failed stays down; 0s: it restarts at once [default: 10m].
    #[arg(long, value_parser = parse_duration)]
    downtime: Option<Duration>,
    /// A failure loses what the machine held for others, as in the paper.
    #[arg(long)]
    queue_lost: bool,
    /// Seed of all randomness [default: 1].
    #[arg(long)]
    seed: Option<u64>,
    /// Messages that are lost, in percent [default: 0].
    #[arg(long, value_name = "PERCENT")]
    loss: Option<f64>,
    /// Latency of a message, one way [default: 50].
    #[arg(long)]
    latency_ms: Option<u64>,
    /// Tasks of a usual bag, per machine [default: 10].
    #[arg(long)]
    tasks_per_node: Option<u64>,
    /// Tasks that a machine runs at the same time [default: 1].
    #[arg(long)]
    slots: Option<u32>,
    /// Share of what all machines can do that the bags demand; decides how fast they come.
    #[arg(long)]
    load: Option<f64>,
    /// The number of tasks of a bag is log-uniform between 1 and that of a usual bag.
    #[arg(long)]
    heavy_tailed: bool,
    /// Running tasks are not frozen for bags that come ahead of them.
    #[arg(long)]
    no_preemption: bool,
    /// Deadlines follow from the paper's application size w = n·a instead of the effective one.
    #[arg(long)]
    paper_size: bool,
    /// The paper's scheme: --no-preemption, --paper-size, its availability summaries and 10 kB/s of them for each child, each bag by itself,
    /// and no redistribution, levelling, idle slots or patience; and its links, which carry messages without frames.
    #[arg(long)]
    paper: bool,
    /// Simulated time after which the simulation ends; the exit code is 1 where tasks are not done then [default: 30d].
    #[arg(long, value_parser = parse_duration)]
    horizon: Option<Duration>,
    /// Threads that share the machines; changes no result. By default one in grids of less than 2000 machines, in others
    /// one per core.
    #[arg(long)]
    threads: Option<usize>,
    /// How messages travel; changes no result. By default as bytes in grids of up to 100 machines.
    #[arg(long, value_enum)]
    wire: Option<Travel>,
    /// Also print the results of centralised schedulers with perfect information, and of the offline bound, on the same
    /// machines, bags and failures. Not if owners decline bags, tries of tasks fail, tasks run several times, or submitters do not declare the work of
    /// tasks: those schedulers do not model that. Those whose names end in submitters take a user's bags for one application, as ours do by default; the
    /// others take each for another user's, as ours do with per_submitter = "off" in the section policy.
    #[arg(long)]
    compare: bool,
    /// Write what happens to each task and each machine, a row of CSV for each event; an earlier history of that name
    /// is replaced.
    #[arg(long, value_name = "FILE.csv")]
    history: Option<PathBuf>,
    /// How the result is printed; json: one object on the last line.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Travel {
    /// Each message is encoded and decoded.
    Bytes,
    /// As values, with their exact sizes.
    Sizes,
}

/// A duration or `none`; of its own type so that clap does not take it for an optional argument.
#[derive(Clone, Copy)]
struct OptionalDuration(Option<Duration>);

fn optional_duration(text: &str) -> Result<OptionalDuration, String> {
    if text == "none" { Ok(OptionalDuration(None)) } else { parse_duration(text).map(|of| OptionalDuration(Some(of))) }
}

/// Values of `--compare` that are null where there is no way to go.
const SHARES: [&str; 4] =
    ["share_of_the_way", "share_of_the_possible_way", "effective_share_of_the_way", "dedicated_share_of_the_way"];

/// What `simnet run` prints as JSON: the report, and the cost of the simulation on this machine.
#[derive(serde::Serialize)]
struct Printed<'a> {
    /// Whether the simulation has come to its end; false if it was interrupted.
    complete: bool,
    #[serde(flatten)]
    report: &'a Report,
    /// Ratios to centralised schedulers, as in the rows of experiments; null: the rival that knows nothing is within a hundredth of the best.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    compared: BTreeMap<String, Option<f64>>,
    cost: Cost,
}

impl RunArguments {
    fn scenario(&self) -> Result<Scenario, String> {
        let mut scenario = self.scenario.as_deref().map_or_else(|| Ok(Scenario::default()), Scenario::read)?;
        fn set<T: Copy>(field: &mut T, flag: Option<T>) {
            *field = flag.unwrap_or(*field);
        }
        let in_file = scenario.check_read();
        set(&mut scenario.churn, self.churn.map(|churn| churn.0));
        // Only errors that are there with and without the flag: a flag may give a setting of the file an effect, or
        // take it away.
        if let (Some(path), Err(_), Err(sentence)) = (&self.scenario, in_file, scenario.check_read()) {
            return Err(format!("{}: {sentence}", path.display()));
        }
        for (flag, is_given) in [
            ("churn", self.churn.is_some()),
            ("downtime", self.downtime.is_some()),
            ("queue-lost", self.queue_lost),
            ("latency-ms", self.latency_ms.is_some()),
            ("slots", self.slots.is_some()),
            ("tasks-per-node", self.tasks_per_node.is_some()),
            ("heavy-tailed", self.heavy_tailed),
        ] {
            if let Some(instead) = scenario.unread(&flag.replace('-', "_")).filter(|_| is_given) {
                return Err(format!(
                    "--{flag} would change nothing in this scenario: leave that out, or set {instead}"
                ));
            }
        }
        set(&mut scenario.nodes, self.nodes);
        set(&mut scenario.bags, self.bags);
        set(&mut scenario.downtime, self.downtime);
        set(&mut scenario.seed, self.seed);
        set(&mut scenario.loss_percent, self.loss);
        set(&mut scenario.latency_ms, self.latency_ms);
        set(&mut scenario.tasks_per_node, self.tasks_per_node);
        set(&mut scenario.slots, self.slots);
        set(&mut scenario.load, self.load.map(Some));
        set(&mut scenario.horizon, self.horizon);
        scenario.queue_lost |= self.queue_lost;
        scenario.heavy_tailed |= self.heavy_tailed;
        scenario.peer.preemptive &= !self.no_preemption;
        scenario.peer.effective_size &= !self.paper_size;
        if self.paper {
            papers_scheme(&mut scenario.peer);
            papers_links(&mut scenario);
        }
        Ok(scenario)
    }

    fn execution(&self, nodes: u32) -> Execution {
        let usual = Execution::usual(nodes);
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or_else(|| if nodes < THREADED_NODES_MIN { 1 } else { cores() });
        let wire = match self.wire {
            Some(Travel::Bytes) => Wire::Bytes,
            Some(Travel::Sizes) => Wire::Sizes,
            None => usual.wire,
        };
        Execution { threads, wire }
    }
}

pub(crate) fn run(arguments: &RunArguments) -> ExitCode {
    if arguments.print_scenario {
        return match std::io::stdout().lock().write_all(DEFAULTS.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failure(&format!("the scenario cannot be printed: {error}")),
        };
    }
    let meter = Meter::start();
    let prepared = arguments.scenario().and_then(|scenario| {
        if arguments.compare {
            baseline::check(&scenario)?;
        }
        let execution = arguments.execution(scenario.nodes);
        let mut simulation = Simulation::with(scenario, execution)?;
        if let Some(path) = &arguments.history {
            simulation.write_history(path)?;
        }
        Ok(simulation)
    });
    let simulation = match prepared {
        Ok(simulation) => simulation,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            return ExitCode::from(2);
        }
    };
    let interrupted = match interruption() {
        Ok(interrupted) => interrupted,
        Err(sentence) => return failure(&sentence),
    };
    match simulate(simulation, meter, &interrupted, arguments) {
        Ok((report, true)) => {
            eprintln!("interrupted: this is how far it came{}", open_tasks(&report));
            ExitCode::from(INTERRUPTED)
        }
        Ok((report, _)) if report.lost_tasks > 0 => failure(&format!("{} tasks were lost", report.lost_tasks)),
        Ok((report, _)) if report.unaccepted_tasks > 0 => {
            failure(&format!("{} tasks are of bags that no machine has accepted", report.unaccepted_tasks))
        }
        Ok((report, _)) if report.open_tasks > 0 => {
            failure(&format!("the horizon ended it{}: a longer --horizon has them done", open_tasks(&report)))
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => failure(&format!("{error:#}")),
    }
}

fn open_tasks(report: &Report) -> String {
    if report.open_tasks > 0 { format!(", {} tasks are not done yet", report.open_tasks) } else { String::new() }
}

fn failure(sentence: &str) -> ExitCode {
    eprintln!("error: {sentence}");
    ExitCode::FAILURE
}

/// Results of centralised schedulers on the same scenario; none if interrupted. Takes minutes on large grids, and an
/// interrupt ends the process.
fn compared(simulation: Simulation, interrupted: &AtomicBool) -> Option<BTreeMap<String, f64>> {
    let mut line = ProgressLine::new();
    let others = std::thread::spawn(move || compare(&simulation));
    let begun = Instant::now();
    while !others.is_finished() {
        if interrupted.load(Ordering::Relaxed) {
            line.finish();
            return None;
        }
        line.say(format_args!("simulated; the others have been computed for {} s ", begun.elapsed().as_secs()));
        std::thread::sleep(COMPARED_EVERY);
    }
    line.finish();
    let values = others.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Some(values.into_iter().filter(|(_, value)| value.is_finite()).collect())
}

/// Runs the simulation and prints its report; returns it, and whether it was interrupted.
fn simulate(
    mut simulation: Simulation,
    meter: Meter,
    interrupted: &AtomicBool,
    arguments: &RunArguments,
) -> anyhow::Result<(Report, bool)> {
    let mut line = ProgressLine::new();
    let report = simulation.run_while(|progress| {
        line.show(progress);
        !interrupted.load(Ordering::Relaxed)
    });
    let mut is_interrupted = interrupted.load(Ordering::Relaxed);
    let history = simulation.end_history();
    let is_whole = !is_interrupted && history.is_ok();
    let wall_s = line.finish();
    let cost = meter.stop(report.events, report.scenario.nodes, report.sim_s);
    // Values that depend on the machine stay out of the report.
    eprintln!(
        "{} events in {wall_s:.2} s, {:.2} s of CPU, {:.0} events per CPU-second, {:.0} machine-hours per CPU-hour",
        report.events, cost.cpu_s, cost.events_per_cpu_s, cost.machine_hours_per_cpu_hour,
    );
    if let (Some(bytes), Some(each)) = (cost.peak_rss_bytes, cost.peak_rss_bytes_per_machine) {
        eprintln!("{:.1} MB of memory at most, {:.1} kB per machine", bytes as f64 / 1e6, each / 1e3);
    }
    let late = report.bags.iter().filter(|bag| bag.arrival_s > report.sim_s).count();
    if late > 0 && is_whole {
        eprintln!("{late} bags would have come later: a longer --horizon, or a higher --load, has them in");
    }
    let (all, asked) = (report.bags.len(), report.scenario.bags);
    if all < asked as usize {
        eprintln!("the log has {all} bags, fewer than the {asked} of the scenario");
    }
    let submitters: BTreeSet<Option<u32>> = report.bags.iter().map(|bag| bag.submitter).collect();
    let is_per_submitter = report.scenario.peer.per_submitter != PerSubmitter::Off;
    if arguments.compare && is_per_submitter && submitters.len() < report.bags.len() {
        eprintln!(
            "ours take a user's bags for one application, as the rivals do whose names end in submitters; the others take each \
             for another user's: so do ours with per_submitter = \"off\" in [policy]"
        );
    }
    let mut others = BTreeMap::new();
    if arguments.compare && is_whole {
        match compared(simulation, interrupted) {
            Some(values) => others = values,
            None => is_interrupted = true,
        }
    }
    let mut stdout = std::io::stdout().lock();
    match arguments.output {
        Output::Text => {
            let ratios = others
                .iter()
                .filter(|(name, _)| ["ratio_", "mean_ratio_", "share_of"].iter().any(|is| name.starts_with(is)));
            let ratios: String = ratios.map(|(name, value)| format!("{name:<27} {value:.4}\n")).collect();
            write!(stdout, "{report}{ratios}")
        }
        Output::Json => {
            let mut compared: BTreeMap<String, Option<f64>> =
                others.into_iter().map(|(name, value)| (name, Some(value))).collect();
            if !compared.is_empty() {
                for name in SHARES {
                    compared.entry(name.to_owned()).or_insert(None);
                }
            }
            let printed = Printed { complete: !is_interrupted && is_whole, report: &report, compared, cost };
            let json = serde_json::to_string(&printed).context("the report cannot be written as JSON")?;
            writeln!(stdout, "{json}")
        }
    }
    .context("the report cannot be printed")?;
    history.map_err(anyhow::Error::msg)?;
    Ok((report, is_interrupted))
}
