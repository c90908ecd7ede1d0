//! What every command is given, and the ways in which commands fail alike.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use idlewood_api::client::{Client, ClientError};

use crate::installed;
use crate::output::{self, Format};

/// Names the state directory.
pub(super) const STATE_DIR_VARIABLE: &str = "IDLEWOOD_STATE_DIR";

/// How long an agent may take to end before it starts anew: more than it promises.
const RESTART_WAIT: Duration = Duration::from_secs(30);
const RESTART_LOOK: Duration = Duration::from_millis(50);

/// Exit code of failed operations.
pub(super) const FAILURE: u8 = 1;

/// The context of every command.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) state_dir: PathBuf,
    pub(super) config: PathBuf,
    pub(super) format: Format,
    /// Whether to print the scheduler's figures, too.
    pub(super) is_verbose: bool,
}

impl Context {
    /// The client of the state directory's agent; waits for one that is starting, and says so to people, who see the names of machines
    /// from then on.
    pub(super) fn client(&self) -> Result<Client, ClientError> {
        let client = self.client_alone()?;
        if self.format == Format::Text && !self.is_verbose {
            // An agent of another release may know none: ids will do.
            match client.names() {
                Ok(names) => output::set_names(names),
                Err(error) => tracing::debug!(%error, "machines are told by their ids"),
            }
        }
        Ok(client)
    }

    fn client_alone(&self) -> Result<Client, ClientError> {
        Client::wait_for(&self.state_dir, |sentence| {
            if self.format == Format::Text
                && let Err(error) = output::notice(sentence)
            {
                tracing::debug!(%error, "nobody can be told");
            }
        })
    }

    /// How the program is called again for the same agent.
    pub(super) fn program(&self) -> String {
        let usual = std::env::var_os(STATE_DIR_VARIABLE).map(PathBuf::from).or_else(installed::default_state_dir);
        if usual.as_ref() == Some(&self.state_dir) {
            return "idlewood".to_owned();
        }
        format!("idlewood --state-dir {}", output::as_typed(&self.state_dir.to_string_lossy()))
    }

    /// The client of the agent once it has started anew.
    pub(super) fn restarted(&self, before: &Client) -> anyhow::Result<Client> {
        let begin = Instant::now();
        loop {
            match self.client() {
                Ok(client) if !client.is_same_start(before) => return Ok(client),
                // It has not ended yet; or it has, and has not begun again.
                Ok(_) | Err(ClientError::NoAgent { .. }) if begin.elapsed() < RESTART_WAIT => {}
                Ok(_) => anyhow::bail!("the agent does not end to start anew: see its log, and stop and start it"),
                Err(error) => return Err(error.into()),
            }
            std::thread::sleep(RESTART_LOOK);
        }
    }

    /// As root, in the state directory of another user, as when administering a service: continues as that user, since the
    /// agent must be able to read the files that the command writes. Only while the program has one thread.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn act_as_owner(&self) -> anyhow::Result<()> {
        use rustix::process::{Gid, Uid, geteuid};
        let Ok(metadata) = std::fs::metadata(&self.state_dir) else { return Ok(()) };
        if !geteuid().is_root() || metadata.uid() == 0 {
            return Ok(());
        }
        let (user, group) = (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid()));
        let act = || {
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_res_gid(group, group, group)?;
            rustix::thread::set_thread_res_uid(user, user, user)
        };
        let whose =
            || format!("cannot go on as the user that {} belongs to; run this as that user", self.state_dir.display());
        act().with_context(whose)
    }
}

/// An error in the user's input.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct BadUsage(pub(super) String);
