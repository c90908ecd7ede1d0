//! `simnet reproduce rounds`: arguments and output.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use idlewood_simnet::rounds::Plan;
use serde_json::Value;

use crate::output::Output;

#[derive(Args)]
pub(crate) struct RoundsArguments {
    /// Iterations of each process, at least; the paper has 200.
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
    let RoundsArguments { iterations, merge_s, out, output } = arguments;
    let plan = Plan { iterations, merges_s: merge_s, out };
    let summary = match plan.validate().and_then(|()| plan.run()) {
        Ok(summary) => summary,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            return ExitCode::from(2);
        }
    };
    let text = match output {
        Output::Json => summary.to_string(),
        Output::Text => text(&summary),
    };
    match writeln!(std::io::stdout().lock(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: the result cannot be printed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A line for each row: labels as they are, and numbers with one digit behind the point.
fn text(summary: &Value) -> String {
    let line = |row: &Value| -> String {
        let fields = row.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let shown = fields.map(|(name, value)| match value {
            Value::Number(number) if number.is_f64() => format!("{name} {:.1}", number.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => format!("{name} {text}"),
            other => format!("{name} {other}"),
        });
        shown.collect::<Vec<_>>().join(", ")
    };
    let plain = |name: &str| summary[name].as_str().unwrap_or_default().to_owned();
    let head = format!("{}\ncommit {}", plain("command"), plain("commit"));
    [head].into_iter().chain(summary["rows"].as_array().into_iter().flatten().map(line)).collect::<Vec<_>>().join("\n")
}
