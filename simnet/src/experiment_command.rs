//! `simnet reproduce` for the papers' experiments, and `simnet report`: arguments, progress, output.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use idlewood_simnet::experiment::{Experiment, LABELS, Plan, PlanProgress};
use idlewood_simnet::log::Log;
use idlewood_simnet::page;
use idlewood_simnet::processor_load::ProcessorLoad;
use serde_json::Value;

use crate::output::Output;

/// Exit code of a process ended by SIGINT, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;

#[derive(Args)]
pub(crate) struct ExperimentArguments {
    /// Machines of each grid; several sizes separated by commas, or the option repeated.
    #[arg(long, value_delimiter = ',', value_name = "N")]
    nodes: Vec<u32>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds, from the first one on.
    #[arg(long)]
    seeds: Option<u64>,
    /// Bags of each run, fewer for a quick look. As many as the experiment has by default.
    #[arg(long)]
    bags: Option<u32>,
    /// Directory for table, summary and figures; created if it is not there. What the same build has found there before
    /// for the same settings is not run again. [default: reproduce-NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only cases with these values, separated by commas, such as durable,bag_interval_s=10; values of one kind are
    /// alternatives. An unknown one lists them all.
    #[arg(long, value_delimiter = ',', value_name = "VALUES")]
    only: Vec<String>,
    /// Seeds simulated at the same time; changes no result. One per core by default.
    #[arg(long)]
    threads: Option<usize>,
    /// How the result is printed; json: one object on the last line.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Args)]
pub(crate) struct ReportArguments {
    /// Directory with summaries, itself or in directories in it; report.html is written there.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// `simnet report`.
pub(crate) fn report(arguments: &ReportArguments) -> ExitCode {
    match page::write(&arguments.directory) {
        Ok(page::Written { path, left_out }) => {
            let mut code = print(&path.display().to_string());
            for sentence in &left_out {
                code = fail(&format!("left out of the page: {sentence}"), 1);
            }
            code
        }
        Err(sentence) => fail(&sentence, 2),
    }
}

/// Reports an unknown experiment, and lists the known ones.
pub(crate) fn unknown(arguments: &[String]) -> ExitCode {
    let names: Vec<&str> = ["overlay", "dlo", "rounds", "shares", "steady"]
        .into_iter()
        .chain(Experiment::ALL.map(Experiment::name))
        .collect();
    let name = arguments.first().map_or("", String::as_str);
    fail(&format!("there is no experiment {name}; write one of {}", names.join(", ")), 2)
}

/// `simnet reproduce NAME`.
pub(crate) fn reproduce(
    experiment: Experiment,
    arguments: ExperimentArguments,
    log: Option<&Path>,
    owners: Option<PathBuf>,
) -> ExitCode {
    let log = match log.map(Log::read).transpose() {
        Ok(log) => log,
        Err(sentence) => return fail(&sentence, 2),
    };
    let owners = owners.map(|path| ProcessorLoad::read(&path).map(|load| (path, Arc::new(load)))).transpose();
    let owners = match owners {
        Ok(owners) => owners,
        Err(sentence) => return fail(&sentence, 2),
    };
    let ExperimentArguments { nodes, seed, seeds, bags, out, only, threads, output } = arguments;
    let plan = Plan {
        experiment,
        nodes: if nodes.is_empty() { experiment.default_nodes().to_vec() } else { nodes },
        seed,
        seeds: seeds.unwrap_or_else(|| experiment.default_seeds()),
        bags,
        log,
        owners,
        only,
        out: out.unwrap_or_else(|| PathBuf::from(format!("reproduce-{}", experiment.name()))),
        threads,
    };
    if let Err(sentence) = plan.validate() {
        return fail(&sentence, 2);
    }
    let interrupted = match interruption() {
        Ok(interrupted) => interrupted,
        Err(sentence) => return fail(&sentence, 2),
    };
    let mut line = SeedsLine::new();
    let show = |progress: &PlanProgress| {
        line.show(progress);
        if interrupted.load(Ordering::Relaxed) {
            line.clear();
            let (done, all) = (progress.jobs_done, progress.jobs);
            end_at_once(&format!("{done} of {all} runs are kept; the same command goes on from there"));
        }
    };
    match plan.run(show) {
        Ok(summary) => {
            line.clear();
            let printed = match output {
                Output::Json => print(&summary.to_string()),
                Output::Text => print(&text(&plan, &summary)),
            };
            let rows = summary["rows"].as_array().into_iter().flatten();
            let is_compared = |row: &Value| row["user_stretch_by_honest"].is_number();
            if plan.experiment == Experiment::Submitters && !rows.clone().any(is_compared) {
                eprintln!("nothing is compared with the honest user: --only has left out the cases honest and off");
            }
            // Watched runs have no lost tasks, and open ones by intention.
            let ended = || rows.clone().filter(|row| row["lost_tasks"].is_number());
            let sum = |name: &str| ended().filter_map(|row| row[name].as_f64()).sum::<f64>();
            let [lost, open, unaccepted] = ["lost_tasks", "open_tasks", "unaccepted_tasks"].map(sum);
            if lost + open + unaccepted > 0.0 {
                let sentence = format!(
                    "{lost} tasks were lost, {open} not done when the time of their runs was up, and {unaccepted} are of bags that \
                     no machine accepted"
                );
                return fail(&sentence, 1);
            }
            printed
        }
        Err(sentence) => fail(&sentence, 2),
    }
}

/// Becomes true with the first Ctrl-C; the second ends the process at once.
pub(crate) fn interruption() -> Result<Arc<AtomicBool>, String> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let signal = signal_hook::consts::SIGINT;
    // In this order: the first signal finds the flag down, and raises it.
    signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&interrupted))
        .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
        .map_err(|error| format!("Ctrl-C cannot be waited for: {error}"))?;
    Ok(interrupted)
}

/// Ends an interrupted experiment: files are complete between two progress reports, and nobody wants to wait for
/// running jobs.
pub(crate) fn end_at_once(kept: &str) -> ! {
    eprintln!("interrupted: {kept}");
    std::process::exit(INTERRUPTED.into())
}

/// Prints a result.
pub(crate) fn print(text: &str) -> ExitCode {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("the result cannot be printed: {error}"), 1),
    }
}

/// Says what went wrong; returns the exit code.
pub(crate) fn fail(sentence: &str, code: u8) -> ExitCode {
    eprintln!("error: {sentence}");
    ExitCode::from(code)
}

/// The main results; the rest is in the files.
fn text(plan: &Plan, summary: &Value) -> String {
    let mut text = format!("{}\ncommit {}; files in {}\n", plan.command(), Plan::commit(), plan.out.display());
    const SHOWN: [&str; 35] = [
        "ratio_mincent",
        "ended_ratio_mincent",
        "ended_ratio_mincent_plus",
        "ended_mean_ratio_mincent_plus",
        "held_up_max",
        "prediction_error_percent",
        "null_prediction_error_percent",
        "predictions_held_percent",
        "known_after_ended_s_max",
        "known_after_return_s_max",
        "wasted_work_share",
        "unfinished_bags",
        "unended_bags",
        "ratio_mincent_plus",
        "ratio_mincent_submitters",
        "ratio_mincent_plus_submitters",
        "ratio_fcfs",
        "ratio_best_rival",
        "ratio_speed_split",
        "ratio_smallest_first",
        "ratio_judged",
        "ratio_clairvoyant",
        "ratio_offline",
        "share_of_the_way",
        "share_of_the_possible_way",
        "user_stretch_by_honest",
        "user_small_stretch_by_honest",
        "others_stretch_by_honest",
        "others_max_stretch_by_honest",
        "root_share",
        "lost_tasks",
        "open_tasks",
        "update_time_p50_s",
        "update_time_max_s",
        "link_peak_percent",
    ];
    for row in summary["rows"].as_array().into_iter().flatten() {
        let labels = LABELS.into_iter().filter(|name| !row[*name].is_null());
        let labels: Vec<String> =
            labels.map(|name| format!("{name} {}", row[name].to_string().replace('"', ""))).collect();
        let shown = SHOWN.into_iter().filter_map(|name| Some(format!("{name} {:.3}", row[name].as_f64()?)));
        text += &format!("{} ({} seeds): {}\n", labels.join(", "), row["seeds"], shown.collect::<Vec<_>>().join(", "));
    }
    text.pop();
    text
}

/// Running jobs, on standard error: one line on a terminal, else a line every ten seconds and for each slow job.
struct SeedsLine {
    started: Instant,
    shown: Instant,
    is_terminal: bool,
    is_dirty: bool,
    told_found: bool,
}

impl SeedsLine {
    fn new() -> Self {
        let now = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        Self { started: now, shown: now, is_terminal, is_dirty: false, told_found: false }
    }

    fn show(&mut self, progress: &PlanProgress) {
        if progress.found > 0 && !self.told_found {
            self.told_found = true;
            eprintln!("{} of {} runs were found in the directory", progress.found, progress.jobs);
        }
        if let Some((name, took)) = progress.done.as_ref().filter(|(_, took)| *took >= Duration::from_secs(1)) {
            self.clear();
            eprintln!("{}/{} done: {name}, {:.1} s", progress.jobs_done, progress.jobs, took.as_secs_f64());
        }
        let pause = if self.is_terminal { Duration::from_millis(200) } else { Duration::from_secs(10) };
        if self.started.elapsed() < Duration::from_secs(1)
            || self.shown.elapsed() < pause
            || progress.running.is_empty()
        {
            return;
        }
        self.shown = Instant::now();
        let running = progress.running.iter().map(|(name, progress)| {
            let rate = progress.events as f64 / progress.took.as_secs_f64().max(1e-9);
            let (share, now_s) = (progress.share * 100.0, progress.now.as_secs_f64());
            format!("{name}: {share:.0} %, {now_s:.0} s simulated, {rate:.0} events/s")
        });
        let left = progress.left.map_or(String::new(), |left| format!(", {} left", span(left)));
        let text =
            format!("{}/{}{left}; {}", progress.jobs_done, progress.jobs, running.collect::<Vec<_>>().join("; "));
        if self.is_terminal {
            eprint!("\r\x1b[K{}", text.chars().take(150).collect::<String>());
            self.is_dirty = true;
        } else {
            eprintln!("{text}");
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_dirty) {
            eprint!("\r\x1b[K");
        }
    }
}

/// A time for people.
fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}
