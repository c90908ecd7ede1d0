//! The real agent, for tests that need a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    idlewood::cli::main()
}
