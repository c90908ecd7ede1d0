//! The `idlewood` binary: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    idlewood::cli::main()
}
