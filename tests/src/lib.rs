//! Tests that need several packages or real processes. The binary `agent` is the real agent, built from its library, so
//! that the tests have a process to start; `torture` torments such agents for any length of time; `predictions` measures
//! how wrong predicted run times are on them. `shares` gives processes a part of a processor. `guide` finds the commands in the documents.

use std::process::ExitCode;

pub mod guide;
pub mod predictions;
pub mod shares;
pub mod torture;

/// The main function of a program that starts itself as the agents it needs: without a leading option of its own its arguments are those of
/// `idlewood`; with one, `program` gets them. A sentence that it returns goes to standard error, and the exit code is 1.
pub fn with_agents(program: fn(&[String]) -> Result<(), String>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_agents = arguments.first().is_some_and(|first| {
        !first.starts_with("--") || ["--state-dir", "--output", "--config"].contains(&first.as_str())
    });
    if is_agents {
        return idlewood::cli::main();
    }
    match program(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}
