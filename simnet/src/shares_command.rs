//! `simnet reproduce shares`: arguments, progress, output.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::Args;
use idlewood_simnet::shares::{Failures, Shares};
use serde_json::Value;

use crate::dlo_command::conclude;
use crate::experiment_command::{end_at_once, fail, interruption};
use crate::output::{Output, ProgressLine};

#[derive(Args)]
pub(crate) struct SharesArguments {
    /// Machines of each grid; several sizes separated by commas. Submitters that cheat are simulated on the smallest.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000], value_name = "N")]
    nodes: Vec<u32>,
    /// How many bags without an end there are, 2 to 8; several numbers separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 8], value_name = "N")]
    bags: Vec<usize>,
    /// When machines fail, separated by commas; all by default.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHEN")]
    failures: Vec<Failures>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds, from the first one on.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// For how many minutes throughput is measured. Tasks are long in proportion: 30 s to 5 min where it is an hour.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Directory for shares.csv, shares.json and shares-runs.csv; created if it is not there. What the same build has found there before
    /// for the same settings is not run again.
    #[arg(long, default_value = "reproduce-shares", value_name = "DIR")]
    out: PathBuf,
    /// Simulations at the same time; changes no result. One per core by default.
    #[arg(long)]
    threads: Option<usize>,
    /// How the result is printed; json: one object on the last line.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(crate) fn reproduce(arguments: SharesArguments) -> ExitCode {
    let SharesArguments { nodes, bags, failures, seed, seeds, minutes, out, threads, output } = arguments;
    let failures = if failures.is_empty() { Failures::ALL.to_vec() } else { failures };
    let shares = Shares { nodes, bags, failures, seed, seeds, minutes, out, threads };
    let summary = shares.validate().and_then(|()| run(&shares));
    let is_above_0 = |name: &str| {
        let mut rows = summary.iter().flat_map(|summary| summary["rows"].as_array().into_iter().flatten());
        rows.any(|row| row[name].as_f64().is_some_and(|most| most > 0.0))
    };
    let is_incomplete = is_above_0("lost_tasks") || is_above_0("finite_open");
    let ended = conclude(summary.map(|summary| (text(&shares, &summary), summary)), output);
    if is_incomplete {
        return fail("tasks were lost, or finite bags are not done: see lost_tasks and finite_open of the rows", 1);
    }
    ended
}

fn run(shares: &Shares) -> Result<Value, String> {
    let interrupted = interruption()?;
    let mut line = ProgressLine::new();
    let mut is_first = true;
    let summary = shares.run(|done, all, running| {
        if std::mem::take(&mut is_first) && done > 0 {
            eprintln!("{done} of {all} simulations were found in the directory");
        }
        if interrupted.load(Ordering::Relaxed) {
            end_at_once(&format!("{done} of {all} simulations were done; the same command goes on from there"));
        }
        line.say(format_args!("{done}/{all} simulations; {running} "));
    });
    line.finish();
    summary
}

/// A line for each row.
fn text(shares: &Shares, summary: &Value) -> String {
    const COLUMNS: [(&str, &str, usize); 14] = [
        ("nodes", "nodes", 6),
        ("failures", "failures", 8),
        ("bags", "bags", 4),
        ("cheat", "cheat", 10),
        ("throughput_ratio_min", "least", 7),
        ("utility_gap_max", "gap", 8),
        ("settle_s_max", "settles", 7),
        ("settle_half_s_max", "half", 7),
        ("tree_half_s_max", "tree", 7),
        ("bytes_ratio", "bytes", 7),
        ("wave_bytes_ratio", "wave", 7),
        ("finite_ratio", "finite", 7),
        ("cheat_share_ratio", "cheat's", 7),
        ("others_share_ratio_min", "others'", 7),
    ];
    let mut text = format!("{}\ncommit {}; all in {}\n", shares.command(), summary["commit"], shares.out.display());
    let mut line = |cells: Vec<String>| {
        let cells = cells.into_iter().zip(COLUMNS).map(|(cell, (.., width))| format!("{cell:width$}"));
        text += &(cells.collect::<Vec<_>>().join(" ").trim_end().to_owned() + "\n");
    };
    line(COLUMNS.map(|(_, heading, _)| heading.to_owned()).to_vec());
    for row in summary["rows"].as_array().into_iter().flatten() {
        let cell = |(column, ..): (&str, &str, usize)| match &row[column] {
            Value::Null => "-".to_owned(),
            Value::String(word) => word.clone(),
            Value::Number(number) if number.is_f64() => format!("{:.4}", number.as_f64().unwrap_or(f64::NAN)),
            other => other.to_string(),
        };
        line(COLUMNS.map(cell).to_vec());
    }
    text.pop();
    text
}
