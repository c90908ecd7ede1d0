//! The owner's settings: `config.toml`.
//!
//! ```toml
//! [owner]
//! idle = "5m"                  # time without input before tasks may run, 1s to 1d
//! vacate = "10m"               # owner back for this long: tasks go back that have not begun or have a checkpoint
//! on_battery = false           # whether tasks may run on battery
//! foreign_cpu_percent = 25     # tasks stand still while others use more of all processors; 100: never
//! programs = []                # names of programs that pause everything while they run
//! hours = []                   # hours at which tasks may run, e.g. ["22:00-07:00"]; none: all
//! days = []                    # days on which they may, e.g. ["mon-fri"]; none: all
//!
//! [limits]
//! slots = 1                    # tasks at the same time, 1 to 1024; at the next start
//! # memory = "2G"              # all tasks together; none: three quarters of what the machine has
//! task_time = "7d"             # longest that a task may run, whatever its bag says; frozen time left out, 1s to 3650d
//! disk = "10G"                 # for programs, inputs and results; as much again for the files of each task
//! keep = 64                    # bags of others whose files and state this machine keeps, so that they outlive their own, 0 to
//!                              # 4096; with fewer, others are asked to take the place of this machine
//! checkpoint = "64M"           # largest checkpoint that goes with a task to another machine, up to 256M
//! output = "256M"              # largest output of a task here, printed text included, 4K to 256M; larger ones fail here, and
//!                              # may be had of machines that take more
//! idle.cpu_percent = 100       # how much of a processor each task may use, 1 to 100
//! # upload = "1M"              # bytes per second that others may get of blobs, at least 64K; none: any
//! # download = "1M"            # the same for what is fetched
//! in_use.cpu_percent = 0       # how much of a processor each task may use while the owner is there; 0: they stand still
//! # in_use.memory = "512M"     # memory then, frozen tasks included; who takes more ends, and begins again later
//! # in_use.upload = "256K"     # bytes per second then; none of these three: as while the owner is away
//! # in_use.download = "256K"   # the same for what is fetched
//! strict_sandbox = false       # no agent runs where the system lacks part of the sandbox; at the next start
//!
//! [bags]
//! allow_submitters = []        # ids of machines whose bags may run here; none: of all submitters of the grid
//! deny_submitters = []         # ids of machines whose bags may not
//! allow_programs = []          # BLAKE3 of programs that may run here, in hex; none: all
//! deny_programs = []           # of those that may not
//! native = false               # whether native programs may run (submit --native); only where they can be confined
//! endless_share = 25           # percent of this machine for endless bags while tasks of others wait, 0 to 90; at the next start
//! work_per_submitter = "90d"   # most work of one submitter here, by the time it takes this machine; at the next start
//!
//! [submit]
//! stewards = 2                 # other machines that keep a bag submitted here, so that it goes on while this one is away, 0 to 4
//! # tickets = "/home/ada/sync" # directory for a ticket of each bag that others keep, to adopt it with if this machine is lost
//!
//! [network]
//! listen = []                  # where other agents reach this one, e.g. ["0.0.0.0:4001"], once the machine is in a grid; none,
//!                              # and without a grid: loopback only; at the next start
//! bootstrap = []               # agents to join through, too, e.g. ["lab-pc:4001"]; at the next start
//! # name = "lab-pc"            # what members of the grid see this machine as; none: its host's name; at the next start
//! ```
//!
//! Everything has a default, the one shown. The file is checked every two seconds: changes take effect without a
//! restart, except for the settings that say so. A file with a mistake is refused as a whole, naming the line and the
//! allowed values; at the start that ends the agent, later the last valid settings stay in force.
//!
//! Flags override the environment, which overrides the file. The caps on bandwidth leave out messages, which are small
//! and must not wait.

mod bags;
pub mod described;
mod network;
mod peer;
mod submit;
mod values;

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use idlewood_machine::policy::OwnerSettings;
use idlewood_machine::policy::hours::{Days, Hours};
use idlewood_trust::manifest::OUTPUT_BYTES_MAX;
use idlewood_units::{ByteSize, Span};
use serde::{Deserialize, Serialize};

pub use bags::{Bags, Machine, Objection, Program};
pub use described::Description;
pub use network::{Address, Network};
pub use submit::Submit;
pub use values::Within;

/// Name of the file.
const FILE: &str = "config.toml";

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// When tasks may run.
    pub owner: Owner,
    /// What they may use.
    pub limits: Limits,
    /// Whose they may be.
    pub bags: Bags,
    /// Defaults of submissions.
    pub submit: Submit,
    /// Addresses for and of other agents.
    pub network: Network,
}

/// When tasks may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Owner {
    /// Time without input before tasks may run.
    #[serde(deserialize_with = "values::up_to_a_day")]
    pub idle: Span,
    /// How long the owner is back before unstarted tasks, and begun ones that have a checkpoint, go back to their submitters.
    #[serde(deserialize_with = "values::up_to_a_day")]
    pub vacate: Span,
    /// Whether tasks may run on battery.
    #[serde(deserialize_with = "values::yes_or_no")]
    pub on_battery: bool,
    /// Share of all processors that others may use while tasks run; 100: all of it.
    #[serde(deserialize_with = "values::percent")]
    pub foreign_cpu_percent: Within<1, 100>,
    /// Names of programs that pause everything while they run.
    #[serde(deserialize_with = "values::list")]
    pub programs: Vec<String>,
    /// Hours at which tasks may run; none: all.
    #[serde(deserialize_with = "values::list")]
    pub hours: Vec<Hours>,
    /// Days on which tasks may run; none: all.
    #[serde(deserialize_with = "values::list")]
    pub days: Vec<Days>,
}

/// What tasks may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Tasks at the same time.
    #[serde(deserialize_with = "values::whole")]
    pub slots: Within<1, 1024>,
    /// Most memory for all tasks together, frozen ones included; none:
    /// [`MEMORY_SHARE`](idlewood_sensing::memory::MEMORY_SHARE) of the machine's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Longest that a task may run, without frozen time, whatever its bag allows; for tasks that begin from then on.
    #[serde(deserialize_with = "values::task_time")]
    pub task_time: Span,
    /// Most disk space for programs, inputs and results, and for the files of each task that runs.
    pub disk: ByteSize,
    /// Most bags of others that this machine keeps, so that they outlive their submitters' machines; their files count against
    /// [`Self::disk`]. Bags that are too many go to others.
    #[serde(deserialize_with = "values::whole")]
    pub keep: Within<0, 4096>,
    /// Largest checkpoint that goes with a task to another machine; a task with a larger one stays here.
    #[serde(deserialize_with = "values::checkpoint")]
    pub checkpoint: ByteSize,
    /// Largest output of a task that runs here; one with a larger one is tried elsewhere.
    #[serde(deserialize_with = "values::output")]
    pub output: ByteSize,
    /// Most bytes per second that others get of blobs; none: unlimited.
    #[serde(deserialize_with = "values::rate", skip_serializing_if = "Option::is_none")]
    pub upload: Option<ByteSize>,
    /// Most bytes per second fetched of blobs; none: unlimited.
    #[serde(deserialize_with = "values::rate", skip_serializing_if = "Option::is_none")]
    pub download: Option<ByteSize>,
    /// While the owner is away.
    pub idle: IdleLimits,
    /// While the owner is there.
    pub in_use: InUseLimits,
    /// Whether the agent refuses to start if the system lacks part of the sandbox around tasks.
    #[serde(deserialize_with = "values::yes_or_no")]
    pub strict_sandbox: bool,
}

/// What tasks may use while the owner is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdleLimits {
    /// How much of a processor each task may use.
    #[serde(deserialize_with = "values::percent")]
    pub cpu_percent: Within<1, 100>,
}

/// What tasks may use while the owner is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InUseLimits {
    /// How much of a processor each task may use; 0: they stand still.
    #[serde(deserialize_with = "values::percent")]
    pub cpu_percent: Within<0, 100>,
    /// Replaces [`Limits::memory`]; none: no other limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Replaces [`Limits::upload`]; none: no other limit.
    #[serde(deserialize_with = "values::rate", skip_serializing_if = "Option::is_none")]
    pub upload: Option<ByteSize>,
    /// Replaces [`Limits::download`]; none: no other limit.
    #[serde(deserialize_with = "values::rate", skip_serializing_if = "Option::is_none")]
    pub download: Option<ByteSize>,
}

impl Limits {
    /// Most memory for all tasks together, depending on the owner's presence.
    pub fn memory_now(&self, in_use: bool) -> Option<ByteSize> {
        if in_use { self.in_use.memory.or(self.memory) } else { self.memory }
    }

    /// Most bytes per second up and down, depending on the owner's presence.
    pub fn rates_now(&self, in_use: bool) -> (Option<ByteSize>, Option<ByteSize>) {
        let InUseLimits { upload, download, .. } = self.in_use;
        if in_use { (upload.or(self.upload), download.or(self.download)) } else { (self.upload, self.download) }
    }
}

impl From<&Settings> for OwnerSettings {
    fn from(settings: &Settings) -> Self {
        let (owner, limits) = (&settings.owner, &settings.limits);
        Self {
            idle: owner.idle.0,
            vacate: owner.vacate.0,
            on_battery: owner.on_battery,
            foreign_cpu_percent: owner.foreign_cpu_percent.get(),
            hours: owner.hours.clone(),
            days: owner.days.clone(),
            idle_cpu_percent: limits.idle.cpu_percent.get(),
            in_use_cpu_percent: limits.in_use.cpu_percent.get(),
            kept_bags_max: limits.keep.get(),
        }
    }
}

impl Default for Owner {
    fn default() -> Self {
        let shipped = OwnerSettings::default();
        Self {
            idle: Span(shipped.idle),
            vacate: Span(shipped.vacate),
            on_battery: shipped.on_battery,
            foreign_cpu_percent: Within(shipped.foreign_cpu_percent),
            programs: Vec::new(),
            hours: shipped.hours,
            days: shipped.days,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            slots: Within(1),
            memory: None,
            task_time: Span(Duration::from_secs(7 * 86_400)),
            upload: None,
            download: None,
            disk: ByteSize(10 << 30),
            keep: Within(64),
            checkpoint: ByteSize(64 << 20),
            output: ByteSize(OUTPUT_BYTES_MAX),
            idle: IdleLimits::default(),
            in_use: InUseLimits::default(),
            strict_sandbox: false,
        }
    }
}

impl Default for IdleLimits {
    fn default() -> Self {
        Self { cpu_percent: Within(OwnerSettings::default().idle_cpu_percent) }
    }
}

impl Default for InUseLimits {
    fn default() -> Self {
        let cpu_percent = Within(OwnerSettings::default().in_use_cpu_percent);
        Self { cpu_percent, memory: None, upload: None, download: None }
    }
}

/// Why settings are refused. Those in force stay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// It cannot be read or written.
    #[error("cannot {action} {}: {reason}; check its permissions, or name another file with --config", path.display())]
    File {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// It has a mistake.
    #[error("{} line {line}: {reason}", path.display())]
    Mistake {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The mistake, and the allowed values.
        reason: String,
    },
    /// The value is not allowed.
    #[error("{} cannot be set to {value}: {reason}; for example: idlewood config set {} {}", setting.key, setting.key, setting.example)]
    Setting {
        /// The setting.
        setting: &'static Description,
        /// The value.
        value: String,
        /// The mistake, and the allowed values.
        reason: String,
    },
    /// There is no such setting.
    #[error("{0}")]
    Unknown(String),
    /// A table that it belongs to is something else in the file.
    #[error("{}: {key} cannot be written, since {table} is no table there; put it right with an editor", path.display())]
    NoTable {
        /// The file.
        path: PathBuf,
        /// The setting.
        key: &'static str,
        /// The part of its name that is something else.
        table: String,
    },
}

/// The default path: below `$XDG_CONFIG_HOME` or `~/.config`; `None` without a home directory.
pub fn default_path() -> Option<PathBuf> {
    let base = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = base("XDG_CONFIG_HOME").or_else(|| base("HOME").map(|home| home.join(".config")))?;
    Some(base.join("idlewood").join(FILE))
}

/// Reads settings; the defaults if there is no file.
///
/// # Errors
/// [`SettingsError`].
pub fn load(path: &Path) -> Result<Settings, SettingsError> {
    parse(path, &read(path)?)
}

fn read(path: &Path) -> Result<String, SettingsError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|error| failed("read", path, &error)),
    }
}

fn failed(action: &'static str, path: &Path, error: &io::Error) -> SettingsError {
    SettingsError::File { action, path: path.to_owned(), reason: error.to_string() }
}

fn parse(path: &Path, text: &str) -> Result<Settings, SettingsError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = text.as_bytes().iter().take(start).filter(|byte| **byte == b'\n').count() + 1;
        SettingsError::Mistake { path: path.to_owned(), line, reason: error.message().replace('\n', ", ") }
    })
}

/// Sets one setting in the file, as `owner.idle` and `10m`, and leaves the rest unchanged. Returns the new settings.
///
/// # Errors
/// When there is no such setting, the value is not allowed or the file cannot be written; it is unchanged then.
pub fn set(path: &Path, key: &str, value: &str) -> Result<Settings, SettingsError> {
    let setting = described::one(key).map_err(SettingsError::Unknown)?;
    let given = value;
    // A value that is not TOML is a string: `10m` need not be quoted on the command line. Nor is one a time of the day.
    let value: toml_edit::Value =
        given.parse().ok().filter(|value: &toml_edit::Value| !value.is_datetime()).unwrap_or_else(|| given.into());
    let changed = change(path, setting, |table, last| {
        table.insert(last, toml_edit::value(value));
    });
    changed.map_err(|error| match error {
        SettingsError::Mistake { reason, .. } => SettingsError::Setting { setting, value: given.to_owned(), reason },
        other => other,
    })
}

/// Takes one setting out of the file, so that its default counts, and leaves the rest unchanged. Returns the new settings.
///
/// # Errors
/// When there is no such setting, or the file cannot be written; it is unchanged then.
pub fn unset(path: &Path, key: &str) -> Result<Settings, SettingsError> {
    let setting = described::one(key).map_err(SettingsError::Unknown)?;
    change(path, setting, |table, last| {
        table.remove(last);
    })
}

/// Whether the file has each setting.
///
/// # Errors
/// [`SettingsError`].
pub fn is_in_file(path: &Path) -> Result<impl Fn(&Description) -> bool, SettingsError> {
    let text = read(path)?;
    parse(path, &text)?;
    // It was read as settings just now.
    let table: toml::Table = text.parse().unwrap_or_default();
    Ok(move |setting: &Description| {
        let mut names = setting.key.split('.');
        let first = names.next().and_then(|name| table.get(name));
        names.try_fold(first, |value, name| value.map(|value| value.get(name))).flatten().is_some()
    })
}

/// Changes the table of the file that this setting belongs to, unless that makes a file with a mistake.
fn change(
    path: &Path,
    setting: &'static Description,
    act: impl FnOnce(&mut dyn toml_edit::TableLike, &str),
) -> Result<Settings, SettingsError> {
    let text = read(path)?;
    parse(path, &text)?;
    let mut document: toml_edit::DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        SettingsError::Mistake { path: path.to_owned(), line: 1, reason: error.message().replace('\n', ", ") }
    })?;
    let (tables, last) = setting.key.rsplit_once('.').unwrap_or(("", setting.key));
    let mut table = document.as_table_mut() as &mut dyn toml_edit::TableLike;
    for name in tables.split('.').filter(|name| !name.is_empty()) {
        let item = table.entry(name).or_insert_with(toml_edit::table);
        table = item.as_table_like_mut().ok_or_else(|| SettingsError::NoTable {
            path: path.to_owned(),
            key: setting.key,
            table: name.to_owned(),
        })?;
    }
    act(table, last);
    let text = document.to_string();
    let settings = parse(path, &text)?;
    write(path, &text).map_err(|error| failed("write", path, &error))?;
    Ok(settings)
}

/// Replaces the file atomically, keeping its permissions and owner. A new file belongs to the directory's owner, and
/// all may read it, as must an agent that is a service under a user of its own.
fn write(path: &Path, text: &str) -> io::Result<()> {
    // A link, to a directory of dotfiles say, stays one.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let parent = path.parent().ok_or_else(|| io::Error::other("it has no directory"))?;
    if !parent.exists() {
        fs::create_dir_all(parent)?;
        fs::set_permissions(parent, fs::Permissions::from_mode(0o755))?;
    }
    let mut file = tempfile::NamedTempFile::new_in(parent)?;
    let (like, permissions) = match fs::metadata(&path) {
        Ok(metadata) => (metadata.clone(), metadata.permissions()),
        Err(_) => (fs::metadata(parent)?, fs::Permissions::from_mode(0o644)),
    };
    file.as_file().set_permissions(permissions)?;
    // Only root can, and only root's file would have the wrong owner.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::fchown(file.as_file(), Some(like.uid()), Some(like.gid()))?;
    }
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(&path)?;
    Ok(())
}

/// The settings in force, and their file.
#[derive(Debug)]
pub(crate) struct Current {
    path: PathBuf,
    seen: Option<(SystemTime, u64)>,
    settings: Settings,
    error: Option<SettingsError>,
}

impl Current {
    /// The settings at the start.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub(crate) fn load(path: PathBuf) -> Result<Self, SettingsError> {
        let seen = fingerprint(&path);
        Ok(Self { settings: load(&path)?, path, seen, error: None })
    }

    pub(crate) fn get(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Why the present file is not used.
    pub(crate) fn error(&self) -> Option<&SettingsError> {
        self.error.as_ref()
    }

    /// Reads the file again if it has changed. True if the settings have changed.
    pub(crate) fn refresh(&mut self) -> bool {
        let seen = fingerprint(&self.path);
        if seen == self.seen {
            return false;
        }
        self.seen = seen;
        match load(&self.path) {
            Ok(settings) => {
                self.error = None;
                std::mem::replace(&mut self.settings, settings) != self.settings
            }
            Err(error) => {
                tracing::warn!(%error, "the settings stay as they were");
                self.error = Some(error);
                false
            }
        }
    }
}

/// Distinguishes versions of a file; `None` without a file.
fn fingerprint(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

impl fmt::Display for Settings {
    /// As a file with all settings.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = toml::to_string(self).map_err(|_| fmt::Error)?;
        formatter.write_str(&text)
    }
}

#[cfg(test)]
mod tests;
