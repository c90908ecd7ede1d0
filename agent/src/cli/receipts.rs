//! `idlewood bag receipts`: verifies receipts written by `bag get --receipts`, on any machine and without an agent.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use idlewood_trust::{Ending, RECEIPT_BYTES_MAX, Receipt, identity};
use serde::Serialize;

use super::context::Context;
use crate::output::{self, Format};

/// Arguments of `bag receipts`.
#[derive(Debug, clap::Args)]
pub(super) struct ReceiptsArgs {
    /// Files that `bag get --receipts` wrote: results-ID/*/receipt
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// The content of a receipt, all of it signed by the machine.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct View {
    file: PathBuf,
    machine: String,
    grid: String,
    bag: String,
    index: u64,
    attempt: u32,
    program: String,
    input: String,
    output: String,
    #[schemars(with = "String")]
    ending: Ending,
    exit_code: Option<u8>,
    work_mops: f64,
}

impl View {
    fn of(file: PathBuf, receipt: &Receipt) -> Self {
        let statement = &receipt.statement;
        Self {
            file,
            machine: identity::to_libp2p(receipt.executor).to_string(),
            grid: hex::encode(statement.grid.0),
            bag: hex::encode(statement.bag),
            index: statement.index,
            attempt: statement.attempt,
            program: hex::encode(statement.program),
            input: hex::encode(statement.input),
            output: hex::encode(statement.output),
            ending: statement.ending,
            exit_code: statement.exit_code,
            work_mops: statement.work_kop as f64 / 1e3,
        }
    }
}

pub(super) fn receipts(context: &Context, args: &ReceiptsArgs) -> anyhow::Result<ExitCode> {
    let mut views = Vec::with_capacity(args.files.len());
    for file in &args.files {
        let length = fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?.len();
        let bytes = if length > RECEIPT_BYTES_MAX as u64 {
            Vec::new()
        } else {
            fs::read(file).with_context(|| format!("cannot read {}", file.display()))?
        };
        let Ok(receipt) = Receipt::verify(&bytes) else {
            bail!("{} is not a receipt, or was changed after its machine signed it", file.display());
        };
        views.push(View::of(file.clone(), &receipt));
    }
    if context.format == Format::Json {
        output::json(&views)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut stdout = io::stdout().lock();
    for view in &views {
        let ended = view.exit_code.map_or_else(|| "no exit code".to_owned(), |code| format!("exit code {code}"));
        writeln!(
            stdout,
            "{}: signed by {}: task {} of bag {}, {ended}, output {}",
            view.file.display(),
            view.machine,
            view.index,
            output::short_id(&view.bag),
            view.output
        )?;
    }
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}
