//! `idlewood status`, `peers`, `pause` and `resume`: this machine and its place in the grid.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use super::Context;
use crate::api::{PeerView, Peers, Status};
use crate::output::{self, Column, Format, Table};

pub(super) fn status(context: &Context) -> anyhow::Result<ExitCode> {
    let status = context.client()?.status()?;
    print(context, &status, print_status)
}

pub(super) fn peers(context: &Context) -> anyhow::Result<ExitCode> {
    let peers = context.client()?.peers()?;
    print(context, &peers, print_peers)
}

pub(super) fn pause(context: &Context, span: Option<Duration>) -> anyhow::Result<ExitCode> {
    let status = context.client()?.pause(span)?;
    print(context, &status, |status, out| {
        let until = status.until.as_ref().map_or_else(|| "`idlewood resume`".to_owned(), |until| output::when(until));
        writeln!(out, "paused until {until}")
    })
}

pub(super) fn resume(context: &Context) -> anyhow::Result<ExitCode> {
    let status = context.client()?.resume()?;
    print(context, &status, |status, out| writeln!(out, "resumed: {}", activity(status)))
}

fn print<T: serde::Serialize>(
    context: &Context,
    value: &T,
    text: impl FnOnce(&T, &mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<ExitCode> {
    match context.format {
        Format::Json => output::json(value)?,
        Format::Text => {
            let mut out = io::BufWriter::new(io::stdout().lock());
            text(value, &mut out)?;
            out.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `suspended: owner is present`.
fn activity(status: &Status) -> String {
    match &status.reason {
        Some(reason) => output::printable(&format!("{}: {reason}", status.activity)),
        None => output::printable(&status.activity),
    }
}

fn print_status(status: &Status, mut out: &mut dyn Write) -> io::Result<()> {
    let mut doing = format!("{}, since {}", activity(status), output::when(&status.since));
    if let Some(until) = &status.until {
        doing = format!("{doing}, until {}", output::when(until));
    }
    let pairs = [
        ("machine", output::short_peer(&status.peer).to_owned()),
        ("agent", format!("idlewood {}, up {}", output::printable(&status.version), output::duration(status.uptime_s))),
        ("activity", doing),
        ("membership", output::printable(&status.membership)),
        ("listens on", output::printable(&status.listen.join(", "))),
        ("slots", format!("{} of {} Mop/s", status.slots, output::number(status.speed_mops))),
        (
            "grid",
            format!(
                "{}, {} high, {} Mop/s together, largest stretch {} s/Mop",
                output::count(status.grid_machines, "machine"),
                output::count(u64::from(status.grid_height), "level"),
                output::number(status.grid_speed_mops),
                output::number(status.grid_maximum_stretch),
            ),
        ),
        (
            "traffic",
            format!("{} sent, {} received", output::bytes(status.bytes_sent), output::bytes(status.bytes_received)),
        ),
    ];
    output::pairs(&mut out, &pairs)?;
    if !status.running.is_empty() {
        writeln!(out)?;
        let columns = [
            Column::right("worker"),
            Column::left("bag"),
            Column::right("task"),
            Column::right("ran"),
            Column::left(""),
        ];
        let mut table = Table::new(&columns);
        for task in &status.running {
            table.row([
                task.place.to_string(),
                output::short_id(&task.bag).to_owned(),
                task.index.to_string(),
                output::duration(task.active_s),
                if task.frozen { "frozen" } else { "" }.to_owned(),
            ]);
        }
        table.write(&mut out)?;
    }
    if !status.held.is_empty() {
        writeln!(out)?;
        let columns =
            [Column::left("bag"), Column::right("waiting"), Column::right("running"), Column::right("unacknowledged")];
        let mut table = Table::new(&columns);
        for held in &status.held {
            let numbers = [held.waiting, held.running, held.unacknowledged].map(|number| number.to_string());
            table.row([output::short_id(&held.bag).to_owned()].into_iter().chain(numbers));
        }
        table.write(&mut out)?;
    }
    Ok(())
}

fn print_peers(peers: &Peers, mut out: &mut dyn Write) -> io::Result<()> {
    let columns = [
        Column::left("link"),
        Column::left("machine"),
        Column::left("address"),
        Column::right("machines below"),
        Column::right("height"),
    ];
    let mut table = Table::new(&columns);
    let mut row = |link: &str, peer: &PeerView, below: String, height: String| {
        table.row([link.to_owned(), output::short_peer(&peer.peer).to_owned(), peer.address.clone(), below, height]);
    };
    let mut link = |link: &str, peer: &Option<PeerView>| {
        if let Some(peer) = peer {
            row(link, peer, String::new(), String::new());
        }
    };
    link("me", &Some(peers.me.clone()));
    link("root", &peers.root);
    link("parent of router", &peers.router_parent);
    link("parent of leaf", &peers.leaf_parent);
    link("predecessor", &peers.predecessor);
    link("successor", &peers.successor);
    for neighbour in &peers.neighbours {
        if Some(neighbour) != peers.predecessor.as_ref() && Some(neighbour) != peers.successor.as_ref() {
            link("neighbour", &Some(neighbour.clone()));
        }
    }
    for child in &peers.children {
        row(&format!("child ({})", child.node), &child.peer, child.machines.to_string(), child.height.to_string());
    }
    let depth = match (peers.is_root, peers.depth) {
        (true, _) => "this machine's router is the root of the tree".to_owned(),
        (false, Some(depth)) => format!("{} below the root of the tree", output::count(u64::from(depth), "level")),
        (false, None) => "the place in the tree is not known yet".to_owned(),
    };
    writeln!(out, "{depth}\n")?;
    table.write(&mut out)
}
