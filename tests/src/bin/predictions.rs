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
    let usage = "usage: predictions [--runs N] [--agents N] [--tiles N] [--iterations N] [--solver DIRECTORY] [--program IDLEWOOD]";
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut options = Options { program, agents: 2, runs: 3, tiles: 64, iterations: 1500, solver: None };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return Err(usage.to_owned()) };
        match name.as_str() {
            "--runs" => options.runs = value.parse().map_err(|_| usage)?,
            "--agents" => options.agents = value.parse().map_err(|_| usage)?,
            "--tiles" => options.tiles = value.parse().map_err(|_| usage)?,
            "--iterations" => options.iterations = value.parse().map_err(|_| usage)?,
            "--solver" => options.solver = Some(PathBuf::from(value)),
            "--program" => options.program = PathBuf::from(value),
            _ => return Err(usage.to_owned()),
        }
    }
    let root = tempfile::Builder::new().prefix("idlewood-predictions-").tempdir().map_err(|error| error.to_string())?;
    predictions::run(&options, root.path())
}
