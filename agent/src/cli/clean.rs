//! `idlewood clean`: what the agent keeps on disk that nothing needs, seen and removed.
//!
//! What bags and tasks need is never touched, nor is what a task will go on from. Only a running agent knows which files of bags are
//! needed: without one these stay.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use idlewood_api::CleanRequest;
use idlewood_api::client::Client;
use idlewood_store::{StateLock, StoreError};
use serde::Serialize;

use super::context::Context;
use crate::leftovers::{self, Tally};
use crate::output::{self, Column, Format, Table};

/// Arguments of `clean`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CleanArgs {
    /// Say what could be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove damaged files of the store, too, which were set aside for somebody to look at
    #[arg(long)]
    damaged: bool,
}

/// What `clean` prints.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct CleanJson {
    /// Whether nothing was removed, since that was not asked for.
    dry_run: bool,
    /// Whether an agent runs, which alone knows what files of bags are needed.
    agent_runs: bool,
    found: Vec<Found>,
    /// Bytes that were freed, or would be.
    freed_bytes: u64,
}

/// Files of one kind.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct Found {
    /// `cached_files`, `interrupted_downloads`, `compiled_programs`, `leftovers_of_tasks` or `damaged_store`.
    what: &'static str,
    files: u64,
    bytes: u64,
    /// Whether they are removed, or would be.
    removes: bool,
}

impl Found {
    fn of(what: &'static str, tally: Tally, removes: bool) -> Self {
        Self { what, files: tally.files, bytes: tally.bytes, removes }
    }

    /// The same for people.
    fn words(&self) -> &'static str {
        match self.what {
            "cached_files" => "programs and inputs that no bag needs",
            "interrupted_downloads" => "beginnings of downloads",
            "compiled_programs" => "compiled programs, which are compiled again when needed",
            "leftovers_of_tasks" => "what tasks left whose agent was killed",
            _ => "damaged files of the store, set aside (--damaged removes them)",
        }
    }
}

pub(super) fn run(context: &Context, args: &CleanArgs) -> anyhow::Result<ExitCode> {
    let state_dir = &context.state_dir;
    anyhow::ensure!(
        state_dir.exists(),
        "there is no state directory {}: name another with --state-dir",
        state_dir.display()
    );
    context.act_as_owner()?;
    let failed = || format!("cannot clean {}: see to its permissions", state_dir.display());
    let dry_run = args.dry_run;
    let mut found = Vec::new();
    // While this is held no agent starts.
    let lock = match StateLock::acquire(state_dir) {
        Ok(lock) => Some(lock),
        Err(StoreError::Locked { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    if lock.is_none() {
        let client: Client = context.client()?;
        let cleaned = client.clean(&CleanRequest { dry_run })?;
        let tally = |files, bytes| Tally { files, bytes };
        found.push(Found::of("cached_files", tally(cleaned.files, cleaned.bytes), true));
        found.push(Found::of("interrupted_downloads", tally(cleaned.partial_files, cleaned.partial_bytes), true));
    }
    let compiled = leftovers::compiled(state_dir, lock.is_none(), dry_run).with_context(failed)?;
    found.push(Found::of("compiled_programs", compiled, true));
    if lock.is_some() {
        found.push(Found::of("leftovers_of_tasks", leftovers::scratch(state_dir, dry_run).with_context(failed)?, true));
    }
    let kept = idlewood_store::damaged_files(state_dir)?;
    let damaged = leftovers::damaged(&kept, dry_run || !args.damaged).with_context(failed)?;
    found.push(Found::of("damaged_store", damaged, args.damaged));
    let freed_bytes = found.iter().filter(|found| found.removes).map(|found| found.bytes).sum();
    let cleaned = CleanJson { dry_run, agent_runs: lock.is_none(), found, freed_bytes };
    match context.format {
        Format::Json => output::json(&cleaned)?,
        Format::Text => print(&cleaned)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(cleaned: &CleanJson) -> io::Result<()> {
    let mut table = Table::new(&[Column::right("size"), Column::right("files"), Column::left("what")]);
    for found in &cleaned.found {
        table.row([output::bytes(found.bytes), found.files.to_string(), found.words().to_owned()]);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    table.write(&mut out)?;
    let freed = output::bytes(cleaned.freed_bytes);
    if cleaned.dry_run {
        writeln!(out, "\n{freed} would be freed")?;
    } else {
        writeln!(out, "\n{freed} freed")?;
    }
    if !cleaned.agent_runs {
        writeln!(out, "programs and inputs stay: only a running agent knows which of them bags need")?;
    }
    out.flush()
}
