//! `idlewood bag ticket` and `bag adopt`: a bag survives the loss of its submitter's machine.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use idlewood_trust::Membership;
use idlewood_trust::envelope::Opened;
use idlewood_trust::identity::IDENTITY_FILE;
use idlewood_trust::ticket::{TICKET_BYTES_MAX, Ticket, TicketError};
use serde::Serialize;
use serde_bytes::ByteBuf;

use super::context::Context;
use super::which::BagName;
use crate::adopting;
use crate::output::{self, Format};

/// Arguments of `bag ticket`.
#[derive(Debug, clap::Args)]
pub(super) struct TicketArgs {
    /// Its id, a unique prefix of it, or `last`
    #[arg(value_name = "ID", default_value = "last")]
    id: BagName,
    /// Where to [default: ticket-ID]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// With the results so far; without them these tasks are run again
    #[arg(long)]
    results: bool,
}

/// Arguments of `bag adopt`.
#[derive(Debug, clap::Args)]
pub(super) struct AdoptArgs {
    /// A file made by `idlewood bag ticket`
    #[arg(value_name = "TICKET")]
    ticket: PathBuf,
    /// The new state directory; an agent started on it goes on as the lost machine
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
}

pub(super) fn ticket(context: &Context, args: &TicketArgs) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let content = client.ticket(&args.id.0, args.results)?;
    let identity = context.state_dir.join(IDENTITY_FILE);
    let identity = fs::read_to_string(&identity).with_context(|| format!("cannot read {}", identity.display()))?;
    let signed = client.download(&content.bag)?;
    let opened = Opened::unsealed(&signed).and_then(|signed| Opened::read(&signed));
    let mut blobs = vec![ByteBuf::from(signed)];
    let needs = match opened.context("what was signed of the bag is damaged on this disk")? {
        Opened::Manifest(manifest) => *manifest,
        Opened::Envelope(envelope) => {
            let manifest = client.download(&hex::encode(envelope.manifest.0))?;
            let needs = envelope.manifest(&manifest).context("the bag's manifest on this disk is damaged")?;
            blobs.push(ByteBuf::from(manifest));
            needs
        }
    };
    let membership = Membership::read_files(&context.state_dir)?;
    let bytes = needs.blobs().map(|input| input.bytes).sum::<u64>() + content.results_bytes;
    if bytes > TICKET_BYTES_MAX {
        return Err(TicketError::TooLarge { bytes }.into());
    }
    let mut hashes: Vec<String> = needs.blobs().map(|input| hex::encode(input.blob.0)).collect();
    hashes.extend(content.results.iter().cloned());
    hashes.sort_unstable();
    hashes.dedup();
    for hash in &hashes {
        blobs.push(ByteBuf::from(client.download(hash)?));
    }
    let records = content.records.iter().map(|record| hex::decode(record).map(ByteBuf::from)).collect::<Result<_, _>>();
    let records = records.context("the agent answers with something else; is it of another version?")?;
    let short = output::short_id(&content.bag);
    let path = args.to.clone().unwrap_or_else(|| PathBuf::from(format!("ticket-{short}")));
    let bytes = Ticket { identity, membership, records, blobs }.write(&path)?;
    if context.format == Format::Json {
        output::json(&Written { bag: content.bag, file: path, bytes, results: content.done })?;
    } else {
        let (size, path) = (output::bytes(bytes), path.display());
        writeln!(io::stdout(), "ticket of bag {short} in {path}, {size}: keep it safe, it holds this machine's key")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// JSON output of `bag ticket`.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct Written {
    bag: String,
    file: PathBuf,
    bytes: u64,
    /// Results in it.
    results: u64,
}

/// JSON output of `bag adopt`.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct Adopted {
    /// Peer id of the machine that the directory goes on as.
    peer: String,
    state_dir: PathBuf,
    /// Peer ids of the machines that keep the bag: one of them has to be up for it to go on.
    keepers: Vec<String>,
    /// Whether the ticket has the bag's program and inputs; else they come from a keeper.
    has_files: bool,
    /// Whether keepers have the results of tasks that had ended, too (`submit --keep-results`); else these tasks are computed again, but for results
    /// that came while the lost machine was away.
    has_results: bool,
}

pub(super) fn adopt(context: &Context, args: &AdoptArgs) -> anyhow::Result<ExitCode> {
    let adopted = adopting::adopt(&Ticket::read(&args.ticket)?, &args.into, &args.ticket)?;
    let dir = args.into.display();
    if context.format == Format::Json {
        output::json(&Adopted {
            peer: adopted.peer.to_string(),
            state_dir: args.into.clone(),
            keepers: adopted.keepers.iter().map(ToString::to_string).collect(),
            has_files: adopted.has_files,
            has_results: adopted.has_results,
        })?;
    } else {
        let name = adopted.peer.to_string();
        writeln!(
            io::stdout(),
            "{dir} goes on as machine {}: never while that one runs; start it with `idlewood run --state-dir {dir}` and a \
             --bootstrap",
            output::short_peer(&name)
        )?;
        if !adopted.has_files {
            let keepers = adopted.keepers.iter().map(|keeper| output::short_peer(&keeper.to_string()).to_owned());
            writeln!(
                io::stdout(),
                "program and inputs come from the machines that keep the bag: {} has to be up. `idlewood bag show` says whether it answers",
                keepers.collect::<Vec<_>>().join(" or ")
            )?;
            let results = if adopted.is_in_rounds {
                "so do the results of its last complete round, from which it goes on. What is computed again all the same `idlewood bag show` lists"
            } else if adopted.has_results {
                "so do the results of tasks that had ended: the bag was submitted with --keep-results. What is computed again all the same `idlewood bag show` lists"
            } else {
                "tasks that had ended on the lost machine are computed again, since the bag was submitted without --keep-results: `idlewood bag show` lists them"
            };
            writeln!(io::stdout(), "{results}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
