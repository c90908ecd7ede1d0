//! Measures how wrong predicted run times are on real agents:
//! `cargo run --release -p idlewood-tests --bin predictions -- --runs 3 --solver DIRECTORY`.
//!
//! It serves as the agent, too: without a leading option of its own its arguments are those of `idlewood`.

use std::path::PathBuf;
use std::process::ExitCode;

use idlewood_tests::predictions::{self, Options};

fn main() -> ExitCode {
    idlewood_tests::with_agents(measure)
}

fn measure(arguments: &[String]) -> Result<(), String> {
    let usage = "usage: predictions [--runs N] [--agents N] [--tiles N] [--iterations N] [--solver DIRECTORY] [--program IDLEWOOD]\n       \
                 [--quotas PERCENT,PERCENT,... [--hide] [--disturb]]";
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut options = Options {
        program,
        agents: 2,
        runs: 3,
        tiles: 64,
        iterations: 1500,
        solver: None,
        quotas: Vec::new(),
        is_hidden: false,
        is_disturbed: false,
    };
    let mut words = arguments.iter();
    while let Some(name) = words.next() {
        match name.as_str() {
            "--hide" => options.is_hidden = true,
            "--disturb" => options.is_disturbed = true,
            _ => {
                let value = words.next().ok_or(usage)?;
                match name.as_str() {
                    "--runs" => options.runs = value.parse().map_err(|_| usage)?,
                    "--agents" => options.agents = value.parse().map_err(|_| usage)?,
                    "--tiles" => options.tiles = value.parse().map_err(|_| usage)?,
                    "--iterations" => options.iterations = value.parse().map_err(|_| usage)?,
                    "--solver" => options.solver = Some(PathBuf::from(value)),
                    "--program" => options.program = PathBuf::from(value),
                    "--quotas" => {
                        let quotas: Result<_, _> = value.split(',').map(str::parse).collect();
                        options.quotas = quotas.map_err(|_| usage)?;
                    }
                    _ => return Err(usage.to_owned()),
                }
            }
        }
    }
    if !options.quotas.is_empty() {
        options.agents = options.quotas.len();
    } else if options.is_hidden || options.is_disturbed {
        return Err(usage.to_owned());
    }
    if options.agents == 0
        || options.quotas.iter().any(|percent| !(1..=100).contains(percent))
        || options.quotas.first().is_some_and(|percent| *percent != 100)
        || (options.is_disturbed && options.agents < 4)
    {
        return Err("at least one agent, quotas of 1 to 100 % of which the first is 100, and four agents where two of them are disturbed".to_owned());
    }
    let root = tempfile::Builder::new().prefix("idlewood-predictions-").tempdir().map_err(|error| error.to_string())?;
    predictions::run(&options, root.path())
}
