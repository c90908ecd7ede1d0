//! `idlewood service`: the agent started by systemd, as root a service of the machine, otherwise one of the user's session.
//!
//! The machine's service is the same as that of the Debian package, which has the unit elsewhere: then there is nothing to write or to
//! remove, only to enable and to disable. Left out: other supervisors than systemd.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail};
use idlewood_api::client::Client;
use serde::Serialize;
use tempfile::NamedTempFile;

use super::context::{BadUsage, Context};
use crate::installed;
use crate::output::{self, Format};

/// Where units of the machine are that its administrator has made, and those of packages.
const ADMINISTRATORS_UNIT: &str = "/etc/systemd/system/idlewood.service";
const PACKAGED_UNITS: [&str; 2] = ["/usr/lib/systemd/system/idlewood.service", "/lib/systemd/system/idlewood.service"];
const SYSUSERS: &str = "/etc/sysusers.d/idlewood.conf";
/// The name that systemd knows it by.
const NAME: &str = "idlewood.service";

/// The verbs under `service`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum ServiceCommand {
    /// Install and start the service: as root for the whole machine, under a user of its own; otherwise for your desktop
    /// session, where displays are watched
    Install {
        /// Start it only when the machine, or your session, starts next
        #[arg(long)]
        no_start: bool,
    },
    /// Stop the service and remove it; settings and state stay
    Uninstall,
    /// Whether the service is installed and runs, and where it keeps what
    Status,
}

/// Whose service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Scope {
    Machine,
    Session,
}

/// What `service` prints.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct ServiceJson {
    scope: Scope,
    installed: bool,
    /// The file that describes it to systemd; null if it is not installed.
    unit: Option<PathBuf>,
    /// Whether a package has put it there.
    packaged: bool,
    /// Whether it starts by itself, in systemd's words: `enabled`, `disabled`, ...; null if that is not known.
    enabled: Option<String>,
    /// Whether it runs, in systemd's words: `active`, `inactive`, `failed`, ...; null if that is not known.
    active: Option<String>,
    /// Whether an agent answers in the state directory.
    answers: bool,
    state_dir: PathBuf,
    config: PathBuf,
}

pub(super) fn run(context: &Context, command: &ServiceCommand) -> anyhow::Result<ExitCode> {
    let scope = if rustix::process::geteuid().is_root() { Scope::Machine } else { Scope::Session };
    match command {
        ServiceCommand::Install { no_start } => {
            install(scope, !no_start, context)?;
            print(context, &look(scope, context)?, |service| match (scope, service.active.as_deref()) {
                (Scope::Machine, Some("active")) => {
                    "next: sudo idlewood grid join, or sudo idlewood grid create on the first machine".to_owned()
                }
                (Scope::Session, Some("active")) => {
                    "next: idlewood grid join, or idlewood grid create on the first machine".to_owned()
                }
                (Scope::Machine, _) => {
                    "it starts with the machine; at once with: sudo systemctl start idlewood".to_owned()
                }
                (Scope::Session, _) => {
                    "it starts with your session; at once with: systemctl --user start idlewood".to_owned()
                }
            })
        }
        ServiceCommand::Uninstall => {
            let was = look(scope, context)?;
            uninstall(scope, &was)?;
            print(context, &look(scope, context)?, |service| {
                let stay =
                    format!("settings ({}) and state ({}) stay", service.config.display(), service.state_dir.display());
                match (was.packaged, was.installed) {
                    (true, _) => format!(
                        "it is stopped and does not start any more; {stay}; sudo apt purge idlewood removes all"
                    ),
                    (false, true) => format!("it is stopped and removed; {stay}: remove them if they are of no use"),
                    (false, false) => format!("it was not installed; {stay}"),
                }
            })
        }
        ServiceCommand::Status => {
            // Anybody may ask for that of the machine.
            let is_own = scope == Scope::Machine || session_unit(context).exists();
            print(context, &look(if is_own { scope } else { Scope::Machine }, context)?, |service| {
                if service.installed { String::new() } else { "next: idlewood service install".to_owned() }
            })
        }
    }
}

/// The unit of the user's session: beside the settings, where all of the user's settings are.
fn session_unit(context: &Context) -> PathBuf {
    let of_idlewood = crate::settings::default_path().unwrap_or_else(|| context.config.clone());
    let settings = of_idlewood.parent().and_then(Path::parent).unwrap_or(Path::new("")).to_owned();
    settings.join("systemd/user").join(NAME)
}

/// A call of systemctl for the machine or the session.
fn systemctl(scope: Scope, words: &[&str]) -> Command {
    let mut command = Command::new("systemctl");
    if scope == Scope::Session {
        command.arg("--user");
    }
    command.args(words).stdin(Stdio::null());
    command
}

/// Has systemd do something.
fn order(scope: Scope, words: &[&str]) -> anyhow::Result<()> {
    call(&mut systemctl(scope, words))
}

fn call(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "there is no {name} on this machine, which has no systemd then: have `idlewood run` started by what it has instead"
            )
        }
        output => output.with_context(|| format!("cannot start {name}"))?,
    };
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let told = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        bail!("{name} {} failed: {told}", words.join(" "));
    }
    Ok(())
}

/// A word of systemd's about the service. It has one also where the exit code is not 0.
fn word(scope: Scope, verb: &str) -> Option<String> {
    let output = systemctl(scope, &[verb, NAME]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned();
    Some(text).filter(|text| !text.is_empty())
}

fn packaged_unit() -> Option<PathBuf> {
    PACKAGED_UNITS.iter().map(PathBuf::from).find(|unit| unit.exists())
}

fn look(scope: Scope, context: &Context) -> anyhow::Result<ServiceJson> {
    let own = match scope {
        Scope::Machine => PathBuf::from(ADMINISTRATORS_UNIT),
        Scope::Session => session_unit(context),
    };
    let packaged = packaged_unit().filter(|_| scope == Scope::Machine && !own.exists());
    let (is_packaged, unit) = (packaged.is_some(), packaged.or_else(|| own.exists().then_some(own)));
    let (state_dir, config) = match scope {
        Scope::Machine => (installed::STATE_DIR.into(), installed::CONFIG.into()),
        Scope::Session => (context.state_dir.clone(), context.config.clone()),
    };
    Ok(ServiceJson {
        scope,
        installed: unit.is_some(),
        unit,
        packaged: is_packaged,
        enabled: word(scope, "is-enabled"),
        active: word(scope, "is-active"),
        answers: Client::open(&state_dir).and_then(|client| client.status()).is_ok(),
        state_dir,
        config,
    })
}

fn install(scope: Scope, start: bool, context: &Context) -> anyhow::Result<()> {
    match scope {
        Scope::Machine => install_for_machine()?,
        Scope::Session => install_for_session(context)?,
    }
    reload(scope)?;
    let words: &[&str] = if start && runs(scope) { &["enable", "--now", NAME] } else { &["enable", NAME] };
    order(scope, words)
}

/// Whether the systemd that is to be told runs. The machine's does not where its files are prepared elsewhere, as for an image: then
/// the service starts with the machine.
fn runs(scope: Scope) -> bool {
    scope == Scope::Session || Path::new("/run/systemd/system").exists()
}

/// Has systemd read the units again.
fn reload(scope: Scope) -> anyhow::Result<()> {
    if runs(scope) { order(scope, &["daemon-reload"]) } else { Ok(()) }
}

fn program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the program's own file")
}

fn install_for_machine() -> anyhow::Result<()> {
    if packaged_unit().is_some() && !Path::new(ADMINISTRATORS_UNIT).exists() {
        return Ok(());
    }
    let unit = installed::unit_for(installed::UNIT, &program()?, "").map_err(BadUsage)?;
    refuse_another_unit(Path::new(ADMINISTRATORS_UNIT))?;
    write(Path::new(SYSUSERS), installed::USER)?;
    call(Command::new("systemd-sysusers").arg(SYSUSERS))?;
    // There before the first start, so that root can join a grid or change settings before it.
    if !Path::new(installed::STATE_DIR).exists() {
        let words = ["-d", "-m", "0700", "-o", "idlewood", "-g", "idlewood", installed::STATE_DIR];
        call(Command::new("install").args(words))?;
    }
    if !Path::new(installed::CONFIG).exists() {
        write(Path::new(installed::CONFIG), installed::FIRST_CONFIG)?;
    }
    write(Path::new(ADMINISTRATORS_UNIT), &unit)
}

fn install_for_session(context: &Context) -> anyhow::Result<()> {
    let mut words = String::new();
    for (flag, path, usual) in [
        ("--state-dir", &context.state_dir, installed::default_state_dir()),
        ("--config", &context.config, crate::settings::default_path()),
    ] {
        if usual.as_ref() != Some(path) {
            let path = std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?;
            words.push_str(&format!(" {flag} {}", installed::plain(&path).map_err(BadUsage)?));
        }
    }
    let unit = installed::unit_for(installed::SESSION_UNIT, &program()?, &words).map_err(BadUsage)?;
    write(&session_unit(context), &in_desktop(&unit))
}

/// Where the desktop tells systemd when it is there, the agent begins and ends with it: not before, since it would not know of the display.
fn in_desktop(unit: &str) -> String {
    let target = "graphical-session.target";
    if order(Scope::Session, &["is-active", "--quiet", target]).is_err() {
        return unit.to_owned();
    }
    let begins = format!("[Unit]\nPartOf={target}\nAfter={target}\n");
    unit.replace("[Unit]\n", &begins).replace("WantedBy=default.target", &format!("WantedBy={target}"))
}

/// Writes a file that all may read, and its directories, which all may enter, whatever the umask.
///
/// # Errors
/// Where a link is: a masked unit is one to `/dev/null`.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if path.is_symlink() {
        bail!("{} is a link: if the service was masked, call sudo systemctl unmask {NAME} first", path.display());
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    let write = || -> io::Result<()> {
        create_open(parent)?;
        let mut file = NamedTempFile::new_in(parent)?;
        file.write_all(text.as_bytes())?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a directory that all may enter, and those above it.
fn create_open(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        create_open(parent)?;
    }
    fs::create_dir(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

/// Refuses to write over a unit of the administrator's own.
fn refuse_another_unit(path: &Path) -> anyhow::Result<()> {
    match fs::read_to_string(path) {
        Ok(text) if !path.is_symlink() && !text.starts_with("# idlewood") => {
            bail!("{} was not written by idlewood: move it away, or start the service with it as it is", path.display())
        }
        _ => Ok(()),
    }
}

fn uninstall(scope: Scope, was: &ServiceJson) -> anyhow::Result<()> {
    if !was.installed {
        return Ok(());
    }
    order(scope, if runs(scope) { &["disable", "--now", NAME] } else { &["disable", NAME] })?;
    if was.packaged {
        return Ok(());
    }
    let own = was.unit.iter().map(PathBuf::as_path);
    let sysusers = (scope == Scope::Machine).then_some(Path::new(SYSUSERS));
    for path in own.chain(sysusers).filter(|path| path.exists()) {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    reload(scope)
}

fn print(
    context: &Context,
    service: &ServiceJson,
    sentence: impl FnOnce(&ServiceJson) -> String,
) -> anyhow::Result<ExitCode> {
    if context.format == Format::Json {
        output::json(service)?;
        return Ok(ExitCode::SUCCESS);
    }
    let unknown = || "not known (there is no systemd to ask)".to_owned();
    let unit = match &service.unit {
        Some(unit) if service.packaged => format!("{}, of a package", unit.display()),
        Some(unit) => unit.display().to_string(),
        None => "not installed".to_owned(),
    };
    let whose = if service.scope == Scope::Machine { "of this machine" } else { "of your desktop session" };
    let pairs = [
        ("service", whose.to_owned()),
        ("unit", output::printable(&unit)),
        ("starts by itself", service.enabled.clone().unwrap_or_else(unknown)),
        ("runs", service.active.clone().unwrap_or_else(unknown)),
        ("answers", if service.answers { "yes" } else { "no" }.to_owned()),
        ("state", output::printable(&service.state_dir.display().to_string())),
        ("settings", output::printable(&service.config.display().to_string())),
    ];
    let mut out = io::BufWriter::new(io::stdout().lock());
    output::pairs(&mut out, &pairs)?;
    let sentence = sentence(service);
    if !sentence.is_empty() {
        writeln!(out, "\n{sentence}")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
