//! `idlewood grid`: making a grid, inviting to it, joining and leaving it.
//!
//! `create` and `join` write the machine's membership: an agent that runs belongs to no grid then, and starts anew afterwards. While
//! an agent of a grid runs it alone writes it: `leave`, `invite` and `revoke` are commands to it. `show` reads the
//! files.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use idlewood_api::client::Client;
use idlewood_api::{InvitationView, InviteRequest, RevokeRequest};
use idlewood_store::{StateLock, StoreError};
use idlewood_trust::{
    Invitation, MEMBERSHIP_DIRECTORY, Membership, MembershipError, Role, former_keys, identity, now_s,
};
use idlewood_units::Span;
use idlewood_units::clock::iso_s;
use serde::Serialize;

use super::context::{BadUsage, Context};
use crate::output::{self, Column, Format, Table};

/// Longest passphrase file.
const PASSPHRASE_BYTES_MAX: u64 = 4096;
/// Most bytes read for an invitation, which is shorter.
const INVITATION_BYTES_MAX: u64 = 4096;

#[derive(Debug, clap::Subcommand)]
pub(super) enum GridCommand {
    /// Make a grid, with this machine as its first admin; an agent that runs starts anew as its machine
    Create {
        /// What people call the grid
        #[arg(long, default_value = "grid")]
        name: String,
        /// Seal the grid's key with the passphrase in FILE
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
    },
    /// Print a line that lets others join the grid of this machine; the agent must run
    Invite {
        /// Role of the machines that join: member (run tasks), submitter (and submit bags), admin (and invite)
        #[arg(long, value_enum, default_value = "member")]
        role: Role,
        /// How long the invitation is good: 12h, 7d
        #[arg(long, value_name = "DURATION", default_value = "7d")]
        expires: Span,
        /// How many machines may join with it
        #[arg(long, value_name = "N", default_value_t = 1)]
        uses: u32,
        /// How long certificates are valid; they are renewed in their second half by any admin, those of
        /// admins by the holder of the grid's key [default: 30d, of admins 365d]
        #[arg(long, value_name = "DURATION")]
        lifetime: Option<Span>,
        /// The passphrase of the grid's key, if it is sealed and admins are invited
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
    },
    /// Join a grid by an invitation; an agent that runs starts anew as a machine of it
    Join {
        /// A file with the line that `idlewood grid invite` printed, or `-` for standard input; without it the line is asked
        /// for. The line itself is taken, too, but other users of this machine can then read it in its list of processes
        #[arg(value_name = "FILE")]
        from: Option<String>,
    },
    /// Throw a machine out of the grid for good; the agent must run
    Revoke {
        /// The machine's id, its name in `idlewood machines`, or the end of its id if it is connected to this one
        peer: String,
        /// The passphrase of the grid's key, if it is sealed and the machine is an admin or may be one
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
    },
    /// The grid of this machine: its name and id, this machine's certificate, admins, invitations, revocations
    Show,
    /// Leave the grid: this machine's certificate is removed; an agent that runs starts anew alone
    Leave,
}

pub(super) fn run(context: &Context, command: GridCommand) -> anyhow::Result<ExitCode> {
    match command {
        GridCommand::Create { name, passphrase_file } => create(context, &name, passphrase_file),
        GridCommand::Invite { role, expires, uses, lifetime, passphrase_file } => {
            let days = if role == Role::Admin { 365 } else { 30 };
            let lifetime_s = lifetime.map_or(f64::from(days) * 86_400.0, |lifetime| lifetime.0.as_secs_f64());
            let passphrase = passphrase_file.map(passphrase).transpose()?;
            let valid_s = expires.0.as_secs_f64();
            invite(context, &InviteRequest { role, valid_s, uses, lifetime_s, passphrase })
        }
        GridCommand::Join { from } => join(context, from.as_deref()),
        GridCommand::Revoke { peer, passphrase_file } => {
            let passphrase = passphrase_file.map(passphrase).transpose()?;
            let client = context.client()?;
            let named = client.names()?.into_iter().find(|(_, name)| *name == peer);
            let peer = named.map_or(peer, |(peer, _)| peer);
            let revoked = client.revoke(&RevokeRequest { peer, passphrase })?;
            print(context, &revoked, |out| {
                writeln!(out, "revoked {}; the machines of the grid tell each other", output::printable(&revoked.peer))
            })
        }
        GridCommand::Show => show(context),
        GridCommand::Leave => leave(context),
    }
}

/// A grid as `create`, `join` and `show` print it.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct GridJson {
    name: String,
    id: String,
    machine: String,
    role: Role,
    certificate_issued: String,
    certificate_expires: String,
    /// Whether its certificate is valid now.
    valid: bool,
    /// The machine that signed it; null if the grid's key did.
    issuer: Option<String>,
    /// `here`, `sealed` or null.
    grid_key: Option<&'static str>,
    admins: Vec<AdminJson>,
    invitations: Vec<InvitationJson>,
    revoked: Vec<RevokedJson>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct AdminJson {
    machine: String,
    address: String,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct InvitationJson {
    role: Role,
    expires: String,
    uses: u32,
    used: u32,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct RevokedJson {
    machine: String,
    when: String,
}

impl GridJson {
    fn of(membership: &Membership) -> anyhow::Result<Self> {
        let machine = |peer| identity::to_libp2p(peer).to_string();
        let chain = membership.chain();
        let own = &chain.own.terms;
        let is_revoked = |peer, role| membership.revocations().revokes(peer, role);
        Ok(Self {
            name: membership.name().to_owned(),
            id: hex::encode(membership.grid().0),
            machine: machine(own.peer),
            role: own.role,
            certificate_issued: iso_s(own.issued_s),
            certificate_expires: iso_s(chain.expires_s()),
            valid: chain.verify(membership.grid(), own.peer, now_s(), is_revoked).is_ok(),
            issuer: chain.admin.as_ref().map(|admin| machine(admin.terms.peer)),
            grid_key: membership.key_is_sealed()?.map(|is_sealed| if is_sealed { "sealed" } else { "here" }),
            admins: membership
                .admins()
                .map(|(peer, address)| AdminJson { machine: machine(peer), address: address.to_owned() })
                .collect(),
            invitations: membership
                .invitations()
                .filter(|(_, expires_s, ..)| *expires_s > now_s())
                .map(|(role, expires_s, uses, used)| InvitationJson { role, expires: iso_s(expires_s), uses, used })
                .collect(),
            revoked: membership
                .revocations()
                .iter()
                .map(|it| RevokedJson { machine: machine(it.peer), when: iso_s(it.when_s) })
                .collect(),
        })
    }
}

/// Who may write the membership of a machine.
enum Writing {
    /// Whoever has the lock, where no agent runs.
    Locked { _lock: StateLock },
    /// This command, for an agent that runs and does not: it starts anew afterwards.
    Beside(Client),
}

impl Writing {
    fn begin(context: &Context) -> anyhow::Result<Self> {
        context.act_as_owner()?;
        match StateLock::acquire(&context.state_dir) {
            Ok(lock) => Ok(Self::Locked { _lock: lock }),
            Err(StoreError::Locked { .. }) => Ok(Self::Beside(context.client()?)),
            Err(error) => Err(error.into()),
        }
    }

    /// The membership is written. Returns what is to be done next.
    fn end(self, context: &Context, next: &str) -> anyhow::Result<String> {
        let Self::Beside(agent) = self else { return Ok(next.to_owned()) };
        let told = "it is done, but the agent that runs has not heard of it: stop it, and start it again";
        agent.restart().context(told)?;
        context.restarted(&agent).context(told)?;
        Ok("the agent has started anew as a machine of it".to_owned())
    }
}

fn create(context: &Context, name: &str, passphrase_file: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let passphrase = passphrase_file.map(passphrase).transpose()?;
    let writing = Writing::begin(context)?;
    let machine = identity::load_or_create(&context.state_dir)?;
    let passphrase = passphrase.as_deref().map(str::as_bytes);
    let membership = Membership::create(&context.state_dir, &machine, name, passphrase, now_s())?;
    let grid = GridJson::of(&membership)?;
    let program = context.program();
    let next = format!("next: {program} run --listen 0.0.0.0:4001, and in another terminal {program} grid invite");
    let next = writing.end(context, &next)?;
    print(context, &grid, |out| {
        writeln!(out, "made the grid {}, with this machine as its admin", output::printable(&grid.name))?;
        writeln!(out, "{next}")
    })
}

fn invite(context: &Context, request: &InviteRequest) -> anyhow::Result<ExitCode> {
    let invitation: InvitationView = context.client()?.invite(request)?;
    let printed = print(context, &invitation, |out| {
        // The invitation alone, so that it can be piped.
        writeln!(out, "{}", invitation.token)
    })?;
    let read: Invitation = invitation.token.parse().context("the agent's answer is damaged")?;
    if read.addresses.iter().all(|address| is_loopback(address)) {
        output::warning(
            "this agent listens on loopback only, so that machines elsewhere cannot join by this invitation: start it with \
             --listen 0.0.0.0:4001, or write network.listen in its settings, and invite again",
        )?;
    }
    Ok(printed)
}

/// Whether only this machine can reach an address of an invitation.
fn is_loopback(address: &str) -> bool {
    address
        .parse()
        .is_ok_and(|address| idlewood_trust::address::parse(&address).is_ok_and(|(at, _)| at.ip().is_loopback()))
}

/// An invitation: from a file, from standard input, by prompt, or given directly.
fn invitation(from: Option<&str>) -> anyhow::Result<Invitation> {
    let read = |source: &mut dyn io::Read| {
        let mut line = String::new();
        source.take(INVITATION_BYTES_MAX).read_to_string(&mut line).context("cannot read the invitation")?;
        anyhow::Ok(line)
    };
    let line = match from {
        None if io::stdin().is_terminal() => {
            write!(io::stderr(), "the line that `idlewood grid invite` printed: ")?;
            let mut line = String::new();
            io::stdin().lock().take(INVITATION_BYTES_MAX).read_line(&mut line).context("cannot read the invitation")?;
            line
        }
        None | Some("-") => read(&mut io::stdin().lock())?,
        Some(token) if Invitation::looks_like_one(token) => {
            output::warning(
                "other users of this machine could read the invitation in its list of processes: `idlewood grid join` asks for \
                 it, or reads a file or standard input",
            )?;
            token.to_owned()
        }
        Some(file) => {
            let mut opened = fs::File::open(file).with_context(|| {
                format!("{file:?} is no invitation, which begins with idlewood1., and no file that can be read")
            })?;
            read(&mut opened)?
        }
    };
    Ok(line.parse().map_err(|error| BadUsage(format!("{error}")))?)
}

fn join(context: &Context, from: Option<&str>) -> anyhow::Result<ExitCode> {
    let invitation = invitation(from)?;
    let writing = Writing::begin(context)?;
    let machine = identity::load_or_create(&context.state_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let membership = runtime.block_on(idlewood_net::join(&context.state_dir, &machine, &invitation))?;
    let grid = GridJson::of(&membership)?;
    let next = writing.end(context, &format!("next: {} run --listen 0.0.0.0:4001", context.program()))?;
    print(context, &grid, |out| {
        let name = output::printable(&grid.name);
        writeln!(out, "joined the grid {name} as {}, until {}", grid.role, output::when(&grid.certificate_expires))?;
        writeln!(out, "{next}")
    })
}

fn load(context: &Context) -> anyhow::Result<Membership> {
    // A machine without a key has no certificate either; looking must not make one.
    if !context.state_dir.join(identity::IDENTITY_FILE).exists() {
        return Err(MembershipError::None.into());
    }
    let machine = identity::load_or_create(&context.state_dir)?;
    Ok(Membership::load(&context.state_dir, &machine)?.ok_or(MembershipError::None)?)
}

fn show(context: &Context) -> anyhow::Result<ExitCode> {
    let grid = GridJson::of(&load(context)?)?;
    print(context, &grid, |out| print_grid(&grid, out))
}

fn print_grid(grid: &GridJson, mut out: &mut dyn Write) -> io::Result<()> {
    let until = output::when(&grid.certificate_expires);
    let certificate = if grid.valid { format!("valid until {until}") } else { format!("not valid: {until}") };
    let issuer = grid.issuer.as_ref().map_or("the grid's key", |issuer| output::short_peer(issuer));
    let mut pairs = vec![
        ("grid", output::printable(&grid.name)),
        ("id", grid.id.clone()),
        ("machine", grid.machine.clone()),
        ("role", grid.role.to_string()),
        ("certificate", format!("{certificate}, signed by {issuer}")),
    ];
    if let Some(key) = grid.grid_key {
        let how = if key == "sealed" { "here, sealed with a passphrase" } else { "here: keep a copy in a safe place" };
        pairs.push(("grid's key", how.to_owned()));
    }
    output::pairs(&mut out, &pairs)?;
    if !grid.admins.is_empty() {
        writeln!(out)?;
        let mut table = Table::new(&[Column::left("other admins"), Column::left("address")]);
        for admin in &grid.admins {
            table.row([output::short_peer(&admin.machine).to_owned(), output::printable(&admin.address)]);
        }
        table.write(&mut out)?;
    }
    if !grid.invitations.is_empty() {
        writeln!(out)?;
        let columns = [Column::left("invitation"), Column::left("until"), Column::right("used"), Column::right("of")];
        let mut table = Table::new(&columns);
        for it in &grid.invitations {
            table.row([it.role.to_string(), output::when(&it.expires), it.used.to_string(), it.uses.to_string()]);
        }
        table.write(&mut out)?;
    }
    if !grid.revoked.is_empty() {
        writeln!(out)?;
        let mut table = Table::new(&[Column::left("revoked"), Column::left("when")]);
        for it in &grid.revoked {
            table.row([it.machine.clone(), output::when(&it.when)]);
        }
        table.write(&mut out)?;
    }
    Ok(())
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct LeftJson {
    left: bool,
    /// Where the grid's key is kept, if it was here.
    grid_key: Option<PathBuf>,
}

fn leave(context: &Context) -> anyhow::Result<ExitCode> {
    let kept = match Writing::begin(context)? {
        Writing::Locked { _lock } => Membership::leave(&context.state_dir)?,
        Writing::Beside(agent) => leave_beside(context, &agent)?,
    };
    let left = LeftJson { left: true, grid_key: kept };
    print(context, &left, |out| {
        writeln!(out, "left the grid; the agent of this machine is alone")?;
        match &left.grid_key {
            Some(path) => writeln!(out, "the grid's key is kept in {}", output::printable(&path.display().to_string())),
            None => Ok(()),
        }
    })
}

/// An agent that runs leaves its grid itself, and starts anew alone. Returns where the grid's key is kept, if it was here.
fn leave_beside(context: &Context, agent: &Client) -> anyhow::Result<Option<PathBuf>> {
    let directory = context.state_dir.join(MEMBERSHIP_DIRECTORY);
    let former = || former_keys(&directory).with_context(|| format!("cannot read {}", directory.display()));
    let before = former()?;
    agent.leave_grid()?;
    let grid = context.restarted(agent)?.status()?.grid;
    anyhow::ensure!(grid.is_none(), "the agent has started anew, but still belongs to the grid: see its log");
    Ok(former()?.into_iter().find(|key| !before.contains(key)))
}

/// The first line of a file.
fn passphrase(path: PathBuf) -> anyhow::Result<String> {
    let read = || {
        let mut text = String::new();
        fs::File::open(&path)?.take(PASSPHRASE_BYTES_MAX).read_to_string(&mut text)?;
        io::Result::Ok(text)
    };
    let text = read().with_context(|| format!("cannot read the passphrase file {}", path.display()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => bail!("the passphrase file {} is empty", path.display()),
    }
}

fn print<T: Serialize>(
    context: &Context,
    value: &T,
    text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<ExitCode> {
    match context.format {
        Format::Json => output::json(value)?,
        Format::Text => {
            let mut out = io::BufWriter::new(io::stdout().lock());
            text(&mut out)?;
            out.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
