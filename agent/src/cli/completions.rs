//! `idlewood completions` and `idlewood man`: what shells and `man` are told of the command line, made from the same
//! description as `--help`.
//!
//! Left out: completion of what only an agent knows, such as the ids of bags; hiding from shells what `--help` hides.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap_complete::Shell;

/// Arguments of `completions`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell that completes
    #[arg(value_enum, value_name = "SHELL", hide_possible_values = true)]
    #[arg(help = "bash, zsh, fish, powershell or elvish")]
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Write the pages into this directory, one for each verb, instead of printing the page of the whole program
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completions of a program for a shell.
///
/// # Errors
/// When standard output does not take them.
pub(super) fn completions(mut program: clap::Command, args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the manual page of a program, or writes those of all its verbs.
///
/// # Errors
/// When they cannot be written.
pub(super) fn man(program: clap::Command, args: &ManArgs) -> anyhow::Result<ExitCode> {
    let program = program.disable_help_subcommand(true);
    match &args.dir {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(program).render(&mut page)?;
            io::stdout().lock().write_all(&page)?;
        }
        Some(dir) => write_pages(program, dir)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_pages(program: clap::Command, dir: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot write manual pages into {}: choose another directory", dir.display());
    fs::create_dir_all(dir).with_context(failed)?;
    clap_mangen::generate_to(program, dir).with_context(failed)
}
