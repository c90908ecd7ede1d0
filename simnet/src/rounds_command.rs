//! `simnet reproduce rounds`: arguments and output.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use idlewood_simnet::rounds::{Part, Plan};
use serde_json::Value;

use crate::experiment_command::{fail, print};
use crate::output::{Output, ProgressLine};

/// Parts of the experiment.
#[derive(Clone, Copy, ValueEnum)]
enum OnlyPart {
    /// The paper's seven sets of machines: a calculation.
    Paper,
    /// The same application on machines that come and go, with tasks that nobody can predict exactly.
    Model,
    /// An application in rounds on whole peers, with owners who come and machines that are switched off. Takes minutes.
    Peers,
}

#[derive(Args)]
pub(crate) struct RoundsArguments {
    /// Only these parts. All by default.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<OnlyPart>,
    /// The first seed of the model and of the peers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds of these, from the first one on.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Iterations of each process on the paper's sets, at least; the paper has 200.
    #[arg(long, default_value_t = 200)]
    iterations: u64,
    /// How long it takes to merge the results of a synchronous stage, in seconds; several costs separated by commas. The paper
    /// does not say: with 0 to 5.6 s its figures come out.
    #[arg(long, value_delimiter = ',', default_value = "3", value_name = "SECONDS")]
    merge_s: Vec<f64>,
    /// Directory for the summary, rounds.json; created if it is not there.
    #[arg(long, default_value = "reproduce-rounds", value_name = "DIR")]
    out: PathBuf,
    /// How the result is printed; json: one object on the last line.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// `simnet reproduce rounds`.
pub(crate) fn reproduce(arguments: RoundsArguments) -> ExitCode {
    let RoundsArguments { only, seed, seeds, iterations, merge_s, out, output } = arguments;
    let part = |part| match part {
        OnlyPart::Paper => Part::Paper,
        OnlyPart::Model => Part::Model,
        OnlyPart::Peers => Part::Peers,
    };
    let plan = Plan { only: only.into_iter().map(part).collect(), seed, seeds, iterations, merges_s: merge_s, out };
    let mut line = ProgressLine::new();
    let progress = |done, all| line.say(format_args!("{done} of {all} runs "));
    let result = plan.validate().and_then(|()| plan.run(progress));
    line.finish();
    let summary = match result {
        Ok(summary) => summary,
        Err(sentence) => return fail(&sentence, 2),
    };
    let text = match output {
        Output::Json => summary.to_string(),
        Output::Text => text(&summary),
    };
    let rows = || summary["rows"].as_array().into_iter().flatten();
    let of = |name: &str| rows().filter_map(|row| row[name].as_u64()).sum::<u64>();
    let lost: u64 = ["lost_tasks", "open_tasks", "unaccepted_tasks"].map(of).iter().sum();
    let printed = print(&text);
    if lost > 0 { fail(&format!("{lost} tasks were lost, not accepted, or are not done"), 1) } else { printed }
}

/// A line for each row: labels as they are, and single numbers with three digits behind the point.
fn text(summary: &Value) -> String {
    let line = |row: &Value| -> String {
        let fields = row.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let shown = fields.map(|(name, value)| match value {
            Value::Number(number) if number.is_f64() => format!("{name} {:.3}", number.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => format!("{name} {text}"),
            other => format!("{name} {other}"),
        });
        shown.collect::<Vec<_>>().join(", ")
    };
    let plain = |name: &str| summary[name].as_str().unwrap_or_default().to_owned();
    let head = format!("{}\ncommit {}", plain("command"), plain("commit"));
    [head].into_iter().chain(summary["rows"].as_array().into_iter().flatten().map(line)).collect::<Vec<_>>().join("\n")
}
