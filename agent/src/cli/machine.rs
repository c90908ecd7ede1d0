//! `idlewood status`, `peers`, `pause`, `resume`, `finish` and `restart`: this machine and its place in the grid.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use idlewood_api::{Disk, PeerView, Peers, Status};

use super::context::Context;
use super::progress;
use crate::output::{self, Column, Format, Table};

pub(super) fn status(context: &Context) -> anyhow::Result<ExitCode> {
    let status = context.client()?.status()?;
    print(context, &status, |status, out| print_status(status, context.is_verbose, out))
}

pub(super) fn peers(context: &Context) -> anyhow::Result<ExitCode> {
    let peers = context.client()?.peers()?;
    print(
        context,
        &peers,
        |peers, out| if context.is_verbose { print_tree(peers, out) } else { print_peers(peers, out) },
    )
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

pub(super) fn restart(context: &Context) -> anyhow::Result<ExitCode> {
    let before = context.client()?;
    before.restart()?;
    // The client of before knows where the agent was.
    let status = context.restarted(&before)?.status()?;
    print(context, &status, |status, out| writeln!(out, "started anew: {}", activity(status)))
}

pub(super) fn finish(context: &Context) -> anyhow::Result<ExitCode> {
    let status = context.client()?.finish()?;
    print(context, &status, |status, out| match status.running.len() {
        0 => writeln!(out, "the agent ends as soon as its results are taken"),
        tasks => writeln!(out, "the agent takes no new tasks and ends after {}", output::count(tasks as u64, "task")),
    })
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

fn membership(status: &Status) -> String {
    let refused = status.refused.as_ref().map(|why| format!(": others do not let it in, since {why}"));
    output::printable(&format!("{}{}", status.membership, refused.unwrap_or_default()))
}

fn print_status(status: &Status, is_verbose: bool, mut out: &mut dyn Write) -> io::Result<()> {
    let mut doing = format!("{}, since {}", activity(status), output::when(&status.since));
    if let Some(until) = &status.until {
        doing = format!("{doing}, until {}", output::when(until));
    }
    let mut pairs = vec![
        ("machine", output::short_peer(&status.peer).to_owned()),
        ("agent", format!("idlewood {}, up {}", output::printable(&status.version), output::duration(status.uptime_s))),
        ("activity", doing),
        ("membership", membership(status)),
        ("belongs to", belongs_to(status)),
        ("listens on", output::printable(&status.listen.join(", "))),
        ("slots", output::count(u64::from(status.slots), "task") + " at the same time"),
        ("grid", grid(status)),
        (
            "traffic",
            format!("{} sent, {} received", output::bytes(status.bytes_sent), output::bytes(status.bytes_received)),
        ),
    ];
    pairs.push(("disk", disk(&status.disk)));
    if is_verbose {
        let (speed, together) = (output::number(status.speed_mops), output::number(status.grid_speed_mops));
        pairs.push(("speed", format!("{speed} Mop/s each slot, {together} all slots of the grid ({})", progress::MOP)));
        let stretch = output::number(status.grid_maximum_stretch);
        pairs.push(("stretch", format!("{stretch} s/Mop at most ({})", progress::STRETCH)));
        let levels = output::count(u64::from(status.grid_height), "level");
        pairs.push(("tree", format!("{levels} high (work is shared out along a tree of all machines)")));
    }
    if status.finishing {
        pairs.push(("finishing", "no new tasks; the agent ends when those that run have".to_owned()));
    }
    if (1..100).contains(&status.cpu_percent) {
        pairs.push(("limit", format!("{} % of a processor for each task", status.cpu_percent)));
    }
    if let (count @ 1.., Some(p99_s)) = (status.reclaims.count, status.reclaims.p99_s) {
        let times = output::count(count, "time");
        pairs.push(("reclaimed", format!("{times} by the owner, within {p99_s:.3} s (99th percentile)")));
    }
    if status.kept > 0 {
        let acts = match status.acts_for {
            0 => "all of whose machines answer".to_owned(),
            acts => format!("acting for {acts} whose machine does not answer"),
        };
        pairs.push(("keeps", format!("{} of other machines, {acts}", output::count(status.kept, "bag"))));
    }
    if status.lives_twice {
        let twin = "another machine seems to run under this one's identity; end one of the two";
        pairs.push(("identity", twin.to_owned()));
    }
    if let Some(until) = &status.resting_until {
        let until = output::when(until);
        pairs.push(("resting", format!("until {until}: all tasks fail here that succeed elsewhere; see the log")));
    }
    for router in &status.routers_left_out {
        let router = output::short_peer(router);
        pairs.push(("left out", format!("the router of {router}: it did not take or pass on what it was sent")));
    }
    if let Some(error) = &status.settings_error {
        pairs.push(("settings", format!("as they were, since {}", output::printable(error))));
    }
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
    if !status.endless.is_empty() {
        writeln!(out)?;
        let mut table = Table::new(&[Column::left("endless bag"), Column::right("of this machine")]);
        for endless in &status.endless {
            table.row([output::short_id(&endless.bag).to_owned(), format!("{:.0} %", endless.percent)]);
        }
        table.write(&mut out)?;
    }
    Ok(())
}

/// `24 machines, work for 20 of this speed`.
fn grid(status: &Status) -> String {
    let machines = output::count(status.grid_machines, "machine");
    let slots = status.grid_speed_mops / status.speed_mops;
    if slots.is_finite() && slots >= 0.05 {
        format!("{machines}, which take work for {} slots as fast as this machine's", output::times(slots))
    } else {
        format!("{machines}, none of which takes work now")
    }
}

fn belongs_to(status: &Status) -> String {
    let Some(grid) = &status.grid else {
        return "no grid: `idlewood grid create` makes one, `idlewood grid join` joins one".to_owned();
    };
    let until = output::when(&grid.certificate_expires);
    output::printable(&format!("{}, as {}, certified until {until}", grid.name, grid.role))
}

/// `1.0 MiB needed and 2.0 MiB that may go, of 4.0 MiB; 9.0 MiB free on the disk`.
fn disk(disk: &Disk) -> String {
    let spare_bytes = disk.used_bytes.saturating_sub(disk.kept_bytes);
    let [kept, spare, limit] = [disk.kept_bytes, spare_bytes, disk.limit_bytes].map(output::bytes);
    let text = format!("{kept} needed and {spare} that may go, of {limit}");
    match disk.free_bytes {
        Some(free) => format!("{text}; {} free on the disk", output::bytes(free)),
        None => text,
    }
}

fn print_peers(peers: &Peers, mut out: &mut dyn Write) -> io::Result<()> {
    if peers.neighbours.is_empty() {
        return writeln!(out, "alone: no other machine is known");
    }
    let mut table = Table::new(&[Column::left("machine"), Column::left("address")]);
    for peer in std::iter::once(&peers.me).chain(&peers.neighbours) {
        let me = if peer.peer == peers.me.peer { " (this machine)" } else { "" };
        table.row([format!("{}{me}", output::short_peer(&peer.peer)), peer.address.clone()]);
    }
    table.write(&mut out)
}

fn print_tree(peers: &Peers, mut out: &mut dyn Write) -> io::Result<()> {
    let place = match (peers.is_root, peers.depth) {
        (true, _) if peers.neighbours.is_empty() => "alone: a grid of one machine".to_owned(),
        (true, _) => "this machine's router is the root of the tree".to_owned(),
        (false, Some(depth)) => format!("{} below the root of the tree", output::count(u64::from(depth), "level")),
        (false, None) => "the place in the tree is not known yet".to_owned(),
    };
    writeln!(out, "{place}")?;

    let is_me = |peer: &PeerView| peer.peer == peers.me.peer;
    let name = |peer: &PeerView| {
        let short = output::short_peer(&peer.peer);
        if is_me(peer) { format!("{short} (this machine)") } else { short.to_owned() }
    };
    let columns = [
        Column::left("in the tree"),
        Column::left("machine"),
        Column::left("address"),
        Column::right("machines below").spared(1),
        Column::right("height").spared(2),
    ];
    let mut tree = Table::new(&columns);
    let mut is_tree = false;
    let above = [
        ("root", &peers.root),
        ("parent of the router", &peers.router_parent),
        ("parent of the leaf", &peers.leaf_parent),
    ];
    for (link, peer) in above.into_iter().filter_map(|(link, peer)| Some((link, peer.as_ref()?))) {
        tree.row([link.to_owned(), name(peer), peer.address.clone(), String::new(), String::new()]);
        is_tree = true;
    }
    for child in &peers.children {
        let numbers = [child.machines.to_string(), child.height.to_string()];
        let link = format!("child ({})", output::printable(&child.node));
        tree.row([link, name(&child.peer), child.peer.address.clone()].into_iter().chain(numbers));
        is_tree = true;
    }
    if is_tree {
        writeln!(out)?;
        tree.write(&mut out)?;
    }

    // Lowest first, this machine between its two sides.
    let mut line: Vec<(&str, &PeerView)> = Vec::new();
    for neighbour in &peers.neighbours {
        if Some(neighbour) == peers.successor.as_ref() {
            line.push(("", &peers.me));
        }
        line.push(match neighbour {
            neighbour if Some(neighbour) == peers.predecessor.as_ref() => ("predecessor", neighbour),
            neighbour if Some(neighbour) == peers.successor.as_ref() => ("successor", neighbour),
            neighbour => ("", neighbour),
        });
    }
    if peers.successor.is_none() {
        line.push(("", &peers.me));
    }
    writeln!(out)?;
    let mut table = Table::new(&[Column::left("on the line"), Column::left("machine"), Column::left("address")]);
    for (link, peer) in line {
        table.row([link.to_owned(), name(peer), peer.address.clone()]);
    }
    table.write(&mut out)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use idlewood_api::{ChildView, Reclaims};
    use idlewood_trust::Admissions;

    fn machine(name: &str) -> PeerView {
        PeerView { peer: format!("12D3KooW-{name:->12}"), address: format!("/ip4/127.0.0.1/tcp/{}", name.len()) }
    }

    fn text(peers: &Peers) -> String {
        let mut out = Vec::new();
        print_tree(peers, &mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("it is text");
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    fn alone() -> Peers {
        Peers {
            me: machine("me"),
            position: "00".repeat(32),
            is_root: true,
            root: None,
            depth: Some(0),
            router_parent: None,
            leaf_parent: None,
            children: Vec::new(),
            predecessor: None,
            successor: None,
            neighbours: Vec::new(),
        }
    }

    #[test]
    fn the_place_in_the_tree_and_on_the_line_is_printed() {
        let child = |name, node: &str, machines, height| ChildView {
            peer: machine(name),
            node: node.to_owned(),
            machines,
            height,
        };
        let peers = Peers {
            is_root: false,
            root: Some(machine("top")),
            depth: Some(2),
            router_parent: Some(machine("above")),
            leaf_parent: Some(machine("me")),
            children: vec![child("me", "leaf", 1, 0), child("next", "router", 5, 3)],
            predecessor: Some(machine("before")),
            successor: Some(machine("next")),
            neighbours: vec![machine("first"), machine("before"), machine("next"), machine("farther")],
            ..alone()
        };
        let expected = "\
2 levels below the root of the tree

IN THE TREE           MACHINE                      ADDRESS               MACHINES BELOW  HEIGHT
root                  ---------top                 /ip4/127.0.0.1/tcp/3
parent of the router  -------above                 /ip4/127.0.0.1/tcp/5
parent of the leaf    ----------me (this machine)  /ip4/127.0.0.1/tcp/2
child (leaf)          ----------me (this machine)  /ip4/127.0.0.1/tcp/2               1       0
child (router)        --------next                 /ip4/127.0.0.1/tcp/4               5       3

ON THE LINE  MACHINE                      ADDRESS
             -------first                 /ip4/127.0.0.1/tcp/5
predecessor  ------before                 /ip4/127.0.0.1/tcp/6
             ----------me (this machine)  /ip4/127.0.0.1/tcp/2
successor    --------next                 /ip4/127.0.0.1/tcp/4
             -----farther                 /ip4/127.0.0.1/tcp/7";
        assert_eq!(text(&peers), expected);
        let last = Peers { successor: None, neighbours: vec![machine("before")], ..peers.clone() };
        assert!(text(&last).ends_with("(this machine)  /ip4/127.0.0.1/tcp/2"), "{}", text(&last));
        let root = Peers { is_root: true, ..peers.clone() };
        assert!(text(&root).starts_with("this machine's router is the root of the tree\n"));
        let unknown = Peers { depth: None, ..peers };
        assert!(text(&unknown).starts_with("the place in the tree is not known yet\n"));
    }

    #[test]
    fn machines_that_are_known_are_listed() {
        let mut out = Vec::new();
        print_peers(&Peers { neighbours: vec![machine("before")], ..alone() }, &mut out).expect("memory takes it");
        let expected = "\
MACHINE                      ADDRESS
----------me (this machine)  /ip4/127.0.0.1/tcp/2
------before                 /ip4/127.0.0.1/tcp/6
";
        assert_eq!(String::from_utf8(out).expect("it is text"), expected);
        let mut out = Vec::new();
        print_peers(&alone(), &mut out).expect("memory takes it");
        assert_eq!(out, b"alone: no other machine is known\n");
    }

    #[test]
    fn a_machine_alone_says_so() {
        let expected = "\
alone: a grid of one machine

ON THE LINE  MACHINE                      ADDRESS
             ----------me (this machine)  /ip4/127.0.0.1/tcp/2";
        assert_eq!(text(&alone()), expected);
    }

    pub(in super::super) fn status() -> Status {
        Status {
            peer: machine("me").peer,
            version: "1.2.3".to_owned(),
            membership: "alone".to_owned(),
            refused: Some("its certificate was revoked".to_owned()),
            listen: vec!["/ip4/127.0.0.1/tcp/2".to_owned()],
            activity: "idle".to_owned(),
            reason: None,
            reason_code: None,
            since: "2026-01-02T03:04:05Z".to_owned(),
            until: None,
            finishing: false,
            cpu_percent: 30,
            settings_error: Some("config.toml line 3: no".to_owned()),
            reclaims: Reclaims {
                count: 2,
                p50_s: Some(0.04),
                p99_s: Some(0.05),
                max_s: Some(0.05),
                buckets: Vec::new(),
            },
            disk: Disk { used_bytes: 3 << 20, kept_bytes: 1 << 20, limit_bytes: 4 << 20, free_bytes: Some(9 << 20) },
            resting_until: None,
            slots: 2,
            speed_mops: 1000.0,
            grid_machines: 24,
            grid_height: 7,
            grid_speed_mops: 48_000.0,
            grid_maximum_stretch: 0.5,
            running: Vec::new(),
            held: Vec::new(),
            endless: Vec::new(),
            grid: None,
            admissions: Admissions::default(),
            bytes_sent: 1024,
            bytes_received: 0,
            blob_bytes_sent: 0,
            messages_sent: std::collections::BTreeMap::default(),
            tasks_run: 0,
            requests_refused: 0,
            requests_declined: 0,
            distrusted: Vec::new(),
            routers_left_out: vec!["12D3".to_owned()],
            results_unsigned: 0,
            kept: 0,
            acts_for: 0,
            lives_twice: false,
            appointments_forged: 0,
            checkpoints_unsigned: 0,
            tasks_unspoken: 0,
            downloads: idlewood_api::Downloads::default(),
            protocol_errors: 0,
            disbelieved: idlewood_api::Disbelieved::default(),
            uptime_s: 61.0,
        }
    }

    #[test]
    fn the_grid_and_the_owners_figures_are_printed() {
        let text = |is_verbose| {
            let mut out = Vec::new();
            print_status(&status(), is_verbose, &mut out).expect("memory takes it");
            String::from_utf8(out).expect("it is text")
        };
        let (verbose, text) = (text(true), text(false));
        let grid = text.lines().find(|line| line.starts_with("grid")).expect("a line about the grid");
        for wanted in [
            "30 % of a processor for each task",
            "1.0 MiB needed and 2.0 MiB that may go, of 4.0 MiB; 9.0 MiB free on the disk",
            "2 times by the owner, within 0.050 s (99th percentile)",
            "as they were, since config.toml line 3: no",
            "the router of 12D3: it did not take or pass on",
        ] {
            assert!(text.contains(wanted), "{text}");
        }
        assert!(grid.ends_with("24 machines, which take work for 48 slots as fast as this machine's"), "{grid}");
        assert!(!text.contains("Mop") && !text.contains("stretch"), "{text}");
        for wanted in [
            "1000 Mop/s each slot, 48000 all slots of the grid (a Mop is",
            "stretch     0.500 s/Mop at most (",
            "7 levels high (",
        ] {
            assert!(verbose.contains(wanted), "{verbose}");
        }
        let asleep = Status { grid_speed_mops: 0.0, ..status() };
        assert_eq!(super::grid(&asleep), "24 machines, none of which takes work now");
    }
}
