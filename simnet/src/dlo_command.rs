//! `simnet reproduce dlo`: arguments, progress, output.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::Args;
use idlewood_simnet::dlo::{Dlo, Platform, Size};
use serde_json::Value;

use crate::experiment_command::{end_at_once, fail, interruption, print};
use crate::output::{Output, ProgressLine};

#[derive(Args)]
pub(crate) struct DloArguments {
    /// Sizes of platforms, separated by commas: machines and children at most. By default the paper's and 5000/15.
    #[arg(long, value_delimiter = ',', value_name = "N/DEGREE")]
    sizes: Vec<Size>,
    /// The first seed. Each seed is a platform of each size.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds, from the first one on; the paper had 30 platforms of each size.
    #[arg(long, default_value_t = 30)]
    seeds: u64,
    /// Weights of the three applications, separated by commas: multiplication and addition of matrices, and sorting.
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 1.0, 1.0], value_name = "WEIGHTS")]
    weights: Vec<f64>,
    /// A platform of your own instead of drawn ones, with its applications, in JSON: {"machines": [{"parent": null, "gflop_s": 8},
    /// {"parent": 0, "gflop_s": 2, "down_mb_s": 50, "up_mb_s": 50}], "applications": [{"machine": 0, "gflop": 10, "mb": 5, "weight":
    /// 1}]}. Edges without a capacity carry everything. The seed is that of the first rates alone.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sizes", "seeds", "weights"])]
    platform: Option<PathBuf>,
    /// Directory for dlo.json; created if it is not there.
    #[arg(long, default_value = "reproduce-dlo", value_name = "DIR")]
    out: PathBuf,
    /// Platforms at the same time; changes no result. One per core by default.
    #[arg(long)]
    threads: Option<usize>,
    /// How the result is printed; json: one object on the last line.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(crate) fn reproduce(arguments: DloArguments) -> ExitCode {
    let DloArguments { sizes, seed, seeds, weights, platform, out, threads, output } = arguments;
    let read = |path: PathBuf| Platform::read(&path).map(|platform| (path, platform));
    let prepared = platform.map(read).transpose().and_then(|platform| {
        let sizes = if sizes.is_empty() { Size::ALL.to_vec() } else { sizes };
        let dlo = Dlo { sizes, seed, seeds, weights, platform, out, threads };
        dlo.validate()?;
        Ok(dlo)
    });
    let run = |dlo: Dlo| {
        let summary = with_progress(|progress| dlo.run(progress))?;
        Ok((text(&dlo, &summary), summary))
    };
    conclude(prepared.and_then(run), output)
}

/// Runs something on platforms, with a line of progress on standard error; ends the process where it is interrupted.
///
/// # Errors
/// The sentence that `run` returns.
pub(crate) fn with_progress(
    run: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Result<Value, String>,
) -> Result<Value, String> {
    let interrupted = interruption()?;
    let mut line = ProgressLine::new();
    let summary = run(&mut |done, all| {
        if interrupted.load(Ordering::Relaxed) {
            end_at_once(&format!("{done} of {all} platforms were done; the same command begins anew"));
        }
        line.say(format_args!("{done}/{all} platforms "));
    });
    line.finish();
    summary
}

/// Prints a table or the summary, or why there is none.
pub(crate) fn conclude(result: Result<(String, Value), String>, output: Output) -> ExitCode {
    match (result, output) {
        (Ok((_, summary)), Output::Json) => print(&summary.to_string()),
        (Ok((text, _)), Output::Text) => print(&text),
        (Err(sentence), _) => fail(&sentence, 2),
    }
}

/// A table like the paper's, with its figures beside ours.
fn text(dlo: &Dlo, summary: &Value) -> String {
    let mut text = format!("{}\ncommit {}; all in {}\n", dlo.command(), summary["commit"], dlo.out.display());
    let heading = [
        "size",
        "case",
        "applications",
        "algorithm",
        "85 %",
        "paper",
        "95 %",
        "99 %",
        "waves",
        "messages",
        "load",
        "gap",
    ];
    let line = |cells: [String; 12]| {
        let widths = [8, 8, 18, 9, 7, 6, 5, 5, 9, 10, 12, 10];
        let cells = cells.into_iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned() + "\n"
    };
    text += &line(heading.map(str::to_owned));
    for row in summary["rows"].as_array().into_iter().flatten() {
        let word = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let count = |name: &str| row[name].as_u64().map_or("-".to_owned(), |count| count.to_string());
        let rounded = |name: &str| row[name].as_f64().map_or("-".to_owned(), |value| format!("{value:.0}"));
        let exact = |name: &str| row[name].as_f64().map_or("-".to_owned(), |value| format!("{value:.3e}"));
        text += &line([
            word("size"),
            word("case"),
            word("applications"),
            word("algorithm"),
            format!("{}/{}", count("within_85"), count("platforms")),
            count("published_within_85"),
            count("within_95"),
            count("within_99"),
            rounded("waves_mean"),
            rounded("messages_mean"),
            exact("load_max"),
            exact("gap_max"),
        ]);
    }
    text.pop();
    text
}
