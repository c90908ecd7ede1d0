//! `simnet reproduce steady`: arguments, progress, output.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use idlewood_simnet::dlo::Size;
use idlewood_simnet::steady::{Algorithm, Platform, Scale, Steady};
use serde_json::Value;

use crate::dlo_command::{conclude, with_progress};
use crate::output::Output;

#[derive(Args)]
pub(crate) struct SteadyArguments {
    /// Sizes of platforms, separated by commas: machines and children at most. By default the paper's 15.
    #[arg(long, value_delimiter = ',', value_name = "N/DEGREE")]
    sizes: Vec<Size>,
    /// What tasks of different applications have in common; all by default.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCALES")]
    scales: Vec<Scale>,
    /// Only these algorithms beside the optimum; all by default. Ratios to the demand-driven one need it.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ALGORITHMS")]
    only: Vec<Algorithm>,
    /// The first seed. Each seed is a platform of each size and scale.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Platforms of each size and scale, one for each seed from the first one on; the paper had 10.
    #[arg(long, default_value_t = 10)]
    instances: u64,
    /// Weights of the applications, separated by commas; as many applications as weights.
    #[arg(long, value_delimiter = ',', default_values_t = [1.0; 4], value_name = "WEIGHTS")]
    weights: Vec<f64>,
    /// Tasks of the application with the smallest weight, others in proportion to theirs; the paper has 200.
    #[arg(long, default_value_t = 200)]
    tasks: u64,
    /// Tasks of any kind that a machine has room for in the paper's algorithms.
    #[arg(long, default_value_t = 10)]
    buffer: u64,
    /// A platform of your own instead of drawn ones, with its applications, in JSON: {"machines": [{"parent": null, "mflop_s": 100},
    /// {"parent": 0, "mflop_s": 50, "mb_s": 2}], "applications": [{"mflop": 1000, "mb": 5, "weight": 1}]}. All tasks come from the
    /// first machine.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sizes", "scales", "instances", "weights"])]
    platform: Option<PathBuf>,
    /// Directory for steady.json; created if it is not there.
    #[arg(long, default_value = "reproduce-steady", value_name = "DIR")]
    out: PathBuf,
    /// Platforms at the same time; changes no result. One per core by default.
    #[arg(long)]
    threads: Option<usize>,
    /// How the result is printed; json: one object on the last line.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(crate) fn reproduce(arguments: SteadyArguments) -> ExitCode {
    let output = arguments.output;
    let run = |steady: Steady| {
        let summary = with_progress(|progress| steady.run(progress))?;
        Ok((text(&steady, &summary), summary))
    };
    conclude(prepared(arguments).and_then(run), output)
}

fn prepared(arguments: SteadyArguments) -> Result<Steady, String> {
    let SteadyArguments {
        sizes, scales, only, seed, instances, weights, tasks, buffer, platform, out, threads, ..
    } = arguments;
    let read = |path: PathBuf| Platform::read(&path).map(|platform| (path, platform));
    let platform = platform.map(read).transpose()?;
    let scales = if scales.is_empty() { Scale::ALL.to_vec() } else { scales };
    let only = if only.is_empty() { Algorithm::ALL.to_vec() } else { only };
    let steady = Steady { sizes, scales, only, seed, instances, weights, tasks, buffer, platform, out, threads };
    steady.validate()?;
    Ok(steady)
}

/// The rows and, below them, those over several sizes and scales.
fn text(steady: &Steady, summary: &Value) -> String {
    let mut text = format!("{}\ncommit {}; all in {}\n", steady.command(), summary["commit"], steady.out.display());
    let heading = [
        "platforms",
        "scale",
        "algorithm",
        "instances",
        "LP/it",
        "worst",
        "LP/tasks",
        "worst",
        "paper's",
        "worst",
        "published",
        "starved",
        "waves",
    ];
    let line = |cells: [String; 13]| {
        let widths = [9, 11, 13, 9, 8, 8, 8, 8, 8, 8, 9, 7, 5];
        let cells = cells.into_iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned() + "\n"
    };
    text += &line(heading.map(str::to_owned));
    let both = ["rows", "totals"].into_iter().flat_map(|part| summary[part].as_array().into_iter().flatten());
    for row in both {
        let word = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let count = |name: &str| row[name].as_u64().map_or("-".to_owned(), |count| count.to_string());
        let ratio = |name: &str| row[name].as_f64().map_or("-".to_owned(), |value| format!("{value:.4}"));
        let of = if row["of"].is_string() { word("of") } else { format!("{}/{}", row["nodes"], row["degree"]) };
        let name = if row["of"] == "large" { "geomean_of_large" } else { "geomean" };
        let published = if row["of"].is_string() { row["published"][name].as_f64() } else { None };
        text += &line([
            of,
            word("scale"),
            word("algorithm"),
            count("instances"),
            ratio("lp_ratio_geomean"),
            ratio("lp_ratio_max"),
            ratio("tasks_ratio_geomean"),
            ratio("tasks_ratio_max"),
            ratio("demand_driven_ratio_geomean"),
            ratio("demand_driven_ratio_max"),
            published.map_or("-".to_owned(), |value| value.to_string()),
            count("starved"),
            count("waves_max"),
        ]);
    }
    text.pop();
    text
}
