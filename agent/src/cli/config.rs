//! `idlewood config show|set|path`: the owner's settings. They need no agent; one that runs follows the file.

use std::io::{self, Write as _};
use std::process::ExitCode;

use serde_json::json;

use super::context::{BadUsage, Context};
use crate::output::{self, Format};
use crate::settings::{self, Settings, SettingsError};

/// Arguments of `config`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum ConfigCommand {
    /// Show all settings, defaults included
    Show,
    /// Change one setting in the file; a running agent follows within two seconds, or says that it does so at its next start
    Set {
        /// For example owner.idle; `config show` lists all
        key: String,
        /// For example 10m, true or '["22:00-07:00"]'
        value: String,
    },
    /// Where the file is, whether or not it exists
    Path,
}

/// Settings that an agent reads only when it starts.
const AT_START: [&str; 6] = [
    "limits.slots",
    "limits.keep",
    "limits.strict_sandbox",
    "bags.work_per_submitter",
    "network.listen",
    "network.bootstrap",
];

pub(super) fn run(context: &Context, command: ConfigCommand) -> anyhow::Result<ExitCode> {
    let path = &context.config;
    match command {
        ConfigCommand::Show => print(context.format, &settings::load(path)?, None)?,
        ConfigCommand::Set { key, value } => {
            let settings = settings::set(path, &key, &value).map_err(|error| match error {
                SettingsError::Setting { .. } => BadUsage(error.to_string()).into(),
                error => anyhow::Error::from(error),
            })?;
            let at_start = AT_START.contains(&key.as_str());
            let when = if at_start { "at its next start" } else { "within two seconds" };
            print(context.format, &settings, Some(&format!("{key} is set; an agent follows {when}")))?;
        }
        ConfigCommand::Path => match context.format {
            Format::Json => output::json(&json!({ "path": path, "exists": path.exists() }))?,
            Format::Text => writeln!(io::stdout(), "{}", path.display())?,
        },
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints all settings as JSON, or the sentence, if there is one, as text.
fn print(format: Format, settings: &Settings, sentence: Option<&str>) -> io::Result<()> {
    match (format, sentence) {
        (Format::Json, _) => output::json(settings),
        (Format::Text, Some(sentence)) => writeln!(io::stdout(), "{sentence}"),
        (Format::Text, None) => write!(io::stdout(), "{settings}"),
    }
}
