//! `idlewood config`: the owner's settings. They need no agent; one that runs follows the file.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

use super::context::{BadUsage, Context};
use crate::output::{self, Format};
use crate::settings::described::{self, Description};
use crate::settings::{self, Settings, SettingsError};

/// Settings longer than this do not push the comments of all others to the right.
const VALUE_CHARACTERS: usize = 60;

/// Arguments of `config`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum ConfigCommand {
    /// Show all settings, and where the value of each comes from; what is printed can be used as a file
    Show,
    /// Say what settings mean, which values they take, and what holds without them
    Describe {
        /// A setting, or a table of them, for example owner.idle or limits [default: all]
        key: Option<String>,
    },
    /// Print the value of one setting
    Get {
        /// For example owner.idle; `config describe` lists all
        key: String,
    },
    /// Change one setting in the file; a running agent follows within two seconds, or says that it does so at its next start
    Set {
        /// For example owner.idle; `config describe` lists all
        key: String,
        /// For example 10min, 50%, 2GB, yes or 22:00-07:00,12-13
        value: String,
    },
    /// Take one setting out of the file, so that its default counts
    Unset {
        /// For example owner.idle
        key: String,
    },
    /// Where the file is, whether or not it exists
    Path,
}

pub(super) fn run(context: &Context, command: ConfigCommand) -> anyhow::Result<ExitCode> {
    let path = &context.config;
    let text = context.format == Format::Text;
    let mut out = io::BufWriter::new(io::stdout().lock());
    match command {
        ConfigCommand::Show => {
            let shown = Shown::read(path, |variable| env::var(variable).ok())?;
            if text { shown.write(&mut out)? } else { write_json(&mut out, &shown.json())? }
        }
        ConfigCommand::Describe { key } => {
            let described = match &key {
                Some(key) => described::named(key).map_err(BadUsage)?,
                None => described::ALL.iter().collect(),
            };
            if text {
                describe(&described, &mut out)?;
            } else {
                let described: Vec<_> = described.into_iter().map(description).collect();
                write_json(&mut out, &described)?;
            }
        }
        ConfigCommand::Get { key } => {
            let setting = described::one(&key).map_err(BadUsage)?;
            let shown = Shown::read(path, |variable| env::var(variable).ok())?;
            let (value, from) = shown.of(setting);
            if text {
                writeln!(out, "{}", value.as_ref().map_or_else(|| unset(setting), bare))?;
            } else {
                write_json(&mut out, &One { key, value: json!(value), from })?;
            }
        }
        ConfigCommand::Set { key, value } => {
            let settings = settings::set(path, &key, &value).map_err(usage)?;
            let sentence = format!("{key} is set; an agent follows {}", when(&key)?);
            if text { writeln!(out, "{sentence}")? } else { write_json(&mut out, &settings)? }
        }
        ConfigCommand::Unset { key } => {
            let settings = settings::unset(path, &key).map_err(usage)?;
            let holds = default(described::one(&key).map_err(BadUsage)?);
            let sentence = format!("{key} has its default again ({holds}); an agent follows {}", when(&key)?);
            if text { writeln!(out, "{sentence}")? } else { write_json(&mut out, &settings)? }
        }
        ConfigCommand::Path => {
            let exists = path.exists();
            if text {
                writeln!(out, "{}", path.display())?;
            } else {
                write_json(&mut out, &Place { path, exists })?;
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    output::write_json(out, value)?;
    writeln!(out)
}

/// What the user wrote wrongly is bad usage.
fn usage(error: SettingsError) -> anyhow::Error {
    match error {
        SettingsError::Setting { .. } | SettingsError::Unknown(_) => BadUsage(error.to_string()).into(),
        error => error.into(),
    }
}

/// When an agent that runs follows a change.
fn when(key: &str) -> Result<&'static str, BadUsage> {
    let setting = described::one(key).map_err(BadUsage)?;
    Ok(if setting.at_start { "at its next start (`idlewood restart`)" } else { "within two seconds" })
}

/// What holds without the setting.
fn default(setting: &Description) -> String {
    let defaults = described::values(&Settings::default());
    defaults.get(setting.key).map_or_else(|| unset(setting), ToString::to_string)
}

fn unset(setting: &Description) -> String {
    format!("not set: {}", setting.unset.unwrap_or("nothing"))
}

/// A value without the quotes and brackets of the file.
fn bare(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => output::printable(text),
        toml::Value::Array(values) => values.iter().map(bare).collect::<Vec<_>>().join(","),
        value => value.to_string(),
    }
}

/// All settings, and where each value comes from.
struct Shown {
    settings: Settings,
    values: BTreeMap<String, toml::Value>,
    /// Settings that the file has, or a variable of the environment, which comes first.
    from: BTreeMap<&'static str, &'static str>,
}

impl Shown {
    fn read(path: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let settings = settings::load(path)?;
        let mut values = described::values(&settings);
        let mut from = BTreeMap::new();
        let is_in_file = settings::is_in_file(path)?;
        for setting in described::ALL {
            let overriding = setting.variable.and_then(|name| variable(name).map(|text| (name, text)));
            if let Some((name, text)) = overriding.filter(|(_, text)| !text.is_empty()) {
                let parts = text.split(',').map(|part| toml::Value::from(part.trim()));
                values.insert(setting.key.to_owned(), toml::Value::Array(parts.collect()));
                from.insert(setting.key, name);
            } else if is_in_file(setting) {
                from.insert(setting.key, "file");
            }
        }
        Ok(Self { settings, values, from })
    }

    /// A setting's value, and where it comes from: `default`, `file`, or the name of a variable.
    fn of(&self, setting: &Description) -> (Option<toml::Value>, &'static str) {
        let from = self.from.get(setting.key).copied().unwrap_or("default");
        (self.values.get(setting.key).cloned(), from)
    }

    /// The settings as tables, and beside them where the value of each comes from.
    fn json(&self) -> serde_json::Value {
        let from: BTreeMap<_, _> = described::ALL.iter().map(|setting| (setting.key, self.of(setting).1)).collect();
        let mut json = json!(self.settings);
        json["from"] = json!(from);
        json
    }

    /// As a file, with comments.
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let line = |setting: &Description| match self.of(setting) {
            (None, _) => (format!("# {} = {:?}", setting.key, setting.example), unset(setting)),
            (Some(value), "default") => (format!("{} = {value}", setting.key), "default".to_owned()),
            (Some(value), "file") => {
                (format!("{} = {value}", setting.key), format!("the file; default: {}", default(setting)))
            }
            (Some(value), variable) => (format!("{} = {value}", setting.key), format!("{variable} of the environment")),
        };
        let lines: Vec<(String, String)> = described::ALL.iter().map(line).collect();
        let widths = lines.iter().map(|(setting, _)| setting.chars().count());
        let width = widths.filter(|width| *width <= VALUE_CHARACTERS).max().unwrap_or_default();
        for (setting, comment) in lines {
            let setting = output::printable(&setting);
            writeln!(out, "{setting:width$}  # {}", output::printable(&comment))?;
        }
        Ok(())
    }
}

/// JSON output of `config describe`, for each setting.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct Described {
    key: &'static str,
    meaning: &'static str,
    takes: &'static str,
    /// Null where nothing holds without it, or what `without` says.
    default: serde_json::Value,
    without: Option<&'static str>,
    example: &'static str,
    /// Whether it counts at the agent's next start only.
    at_start: bool,
    /// A variable of the environment that comes before the file.
    variable: Option<&'static str>,
}

/// JSON output of `config get`.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct One {
    key: String,
    /// Null where it has none.
    value: serde_json::Value,
    /// `default`, `file`, or the name of a variable.
    from: &'static str,
}

/// JSON output of `config path`.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct Place<'a> {
    path: &'a Path,
    exists: bool,
}

/// JSON output of `config show`, `set` and `unset`: the settings as tables of the file; of `show` also `from`, where each value comes
/// from.
#[derive(schemars::JsonSchema)]
#[expect(dead_code, reason = "it describes what other types print")]
pub(super) struct Tables(BTreeMap<String, BTreeMap<String, serde_json::Value>>);

fn description(setting: &Description) -> Described {
    Described {
        key: setting.key,
        meaning: setting.meaning,
        takes: setting.takes,
        default: json!(described::values(&Settings::default()).get(setting.key)),
        without: setting.unset,
        example: setting.example,
        at_start: setting.at_start,
        variable: setting.variable,
    }
}

fn describe(described: &[&Description], out: &mut impl Write) -> io::Result<()> {
    for (number, setting) in described.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", setting.key)?;
        let follows = if setting.at_start { "at the agent's next start" } else { "within two seconds" };
        let mut pairs = vec![
            ("  meaning", setting.meaning.to_owned()),
            ("  takes", setting.takes.to_owned()),
            ("  default", default(setting)),
            ("  example", format!("idlewood config set {} {}", setting.key, setting.example)),
            ("  counts", follows.to_owned()),
        ];
        if let Some(variable) = setting.variable {
            pairs.push(("  overridden", format!("by {variable} of the environment, and a flag of `idlewood run`")));
        }
        output::pairs(out, &pairs)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_says_where_it_comes_from_and_is_a_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("config.toml");
        settings::set(&path, "owner.hours", "22:00-07:00, 12-13").expect("it is allowed");
        settings::set(&path, "limits.in_use.cpu_percent", "20%").expect("it is allowed");
        let variable = |name: &str| (name == "IDLEWOOD_LISTEN").then(|| "0.0.0.0:4001".to_owned());
        let shown = Shown::read(&path, variable).expect("it is good");
        let mut text = Vec::new();
        shown.write(&mut text).expect("memory takes it");
        let text = String::from_utf8(text).expect("it is text");
        for wanted in [
            "owner.hours = [\"22:00-07:00\", \"12:00-13:00\"]  # the file; default: []\n",
            "limits.in_use.cpu_percent = 20                   # the file; default: 0\n",
            "owner.idle = \"5m\"                                # default\n",
            "# limits.memory = \"2GB\"                          # not set: three quarters of the machine's memory\n",
            "network.listen = [\"0.0.0.0:4001\"]                # IDLEWOOD_LISTEN of the environment\n",
        ] {
            // Comments stand below each other, however long the longest setting is.
            let squeezed = |text: &str| text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
            assert!(squeezed(&text).contains(&squeezed(wanted)), "{wanted}{text}");
        }
        assert_eq!(text.lines().filter(|line| line.find("  # ").is_none()).count(), 0, "{text}");
        std::fs::write(&path, &text).expect("ours");
        let again = settings::load(&path).expect("it can be read as a file");
        assert_eq!(again.owner, shown.settings.owner);
        let json = shown.json();
        assert_eq!((&json["from"]["owner.hours"], &json["from"]["owner.idle"]), (&json!("file"), &json!("default")));
        assert_eq!(json["owner"]["idle"], "5m");
        let hours = shown.of(described::one("owner.hours").expect("it is there")).0.expect("it has a value");
        assert_eq!(bare(&hours), "22:00-07:00,12:00-13:00");
    }
}
