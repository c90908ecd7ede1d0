//! The command that a user wants to be run on this machine when a bag ends (`submit --notify`).
//!
//! It is in a file of its own, durable before the bag is, and never leaves this machine: stewards and whoever adopts a ticket run no
//! command of another machine. A file that is renamed has been begun: so a command runs once, also where the agent was restarted, or
//! ended, between the end of the bag and the command. The command goes on when the agent ends, unless systemd, whose service the agent is, ends it with
//! the agent.
//!
//! Left out: running it again when a bag that was opened by `rerun` ends once more.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use idlewood_api::Notify;
use idlewood_scheduler::{BagId, BagView, Closing, Peer};

use super::pins::Pins;

/// Where the commands of bags are kept: a file each.
#[derive(Clone, Debug)]
pub(super) struct NotifyFiles {
    directory: PathBuf,
    state_dir: PathBuf,
}

impl NotifyFiles {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { directory: state_dir.join("notify"), state_dir: state_dir.to_owned() }
    }

    fn file(&self, bag: BagId) -> PathBuf {
        self.directory.join(hex::encode(bag.0))
    }

    fn begun(&self, bag: BagId) -> PathBuf {
        self.directory.join(format!("{}.begun", hex::encode(bag.0)))
    }

    /// Keeps the command of a bag, durably. Blocks.
    pub(super) fn keep(&self, bag: BagId, command: &Notify) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(self.file(bag))?;
        file.write_all(&serde_json::to_vec(command)?)?;
        file.sync_all()?;
        File::open(&self.directory)?.sync_all()
    }

    /// The bag is gone, or there is none.
    pub(super) fn forget(&self, bag: BagId) {
        for path in [self.file(bag), self.begun(bag)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, path = %path.display(), "a command of --notify stays");
                }
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// After a start: bags that ended, and whose command was not begun yet; commands of bags that there never were go.
    pub(super) fn restore(&self, peer: &Peer, pins: &Pins) {
        let Ok(files) = fs::read_dir(&self.directory) else { return };
        for file in files.flatten() {
            let name = file.file_name();
            let mut bag = BagId([0; 32]);
            let id = name.to_str().map(|name| name.trim_end_matches(".begun"));
            if id.is_none_or(|id| hex::decode_to_slice(id, &mut bag.0).is_err()) {
                continue;
            }
            match peer.bag(bag) {
                None => self.forget(bag),
                Some(view) if view.closed.is_some() => self.run(&view, pins),
                Some(_) => {}
            }
        }
    }

    /// The end of a bag is durable.
    pub(super) fn bag_closed(&self, bag: BagId, peer: &Peer, pins: &Pins) {
        if let Some(view) = peer.bag(bag) {
            self.run(&view, pins);
        }
    }

    /// Runs the command of a bag that is over, if it has one that was not begun yet.
    fn run(&self, view: &BagView, pins: &Pins) {
        let bag = view.bag.id;
        let begun = self.begun(bag);
        let renamed = fs::rename(self.file(bag), &begun).and_then(|()| File::open(&self.directory)?.sync_all());
        match renamed {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return tracing::error!(%bag, %error, "the command of --notify cannot be run"),
        }
        let read = || -> io::Result<Notify> { Ok(serde_json::from_slice(&fs::read(&begun)?)?) };
        let name = pins.name(view);
        let started = read().and_then(|notify| self.command(&notify, view, &name).spawn());
        let mut child = match started {
            Ok(child) => child,
            Err(error) => {
                return tracing::error!(%bag, %error, "the command of --notify cannot be run: is the directory still there from which the \
                     bag was submitted, and may the agent's user enter it?");
            }
        };
        tracing::info!(%bag, process = child.id(), "the command of --notify runs");
        // It may take long, and nobody waits for it: this thread sees how it ends, and ends with the agent.
        let wait = move || {
            match child.wait() {
                Ok(status) if status.success() => tracing::info!(%bag, "the command of --notify has ended"),
                Ok(status) => tracing::warn!(%bag, %status, "the command of --notify has failed"),
                Err(error) => tracing::warn!(%bag, %error, "how the command of --notify ended is unknown"),
            }
            if let Err(error) = fs::remove_file(&begun) {
                tracing::debug!(%error, "a command of --notify stays");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("notify".to_owned()).spawn(wait) {
            tracing::warn!(%bag, %error, "how the command of --notify ends is not told");
        }
    }

    /// The command, which hears of the bag by its environment. What it prints is in the agent's log.
    fn command(&self, notify: &Notify, view: &BagView, name: &str) -> Command {
        let state = match view.closed {
            Some((Closing::Cancelled | Closing::Removed, _)) => "cancelled",
            _ if view.failed > 0 => "failed",
            _ => "succeeded",
        };
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(&notify.command);
        // Where that is gone, or the service does not see it, the command does not run at all: elsewhere it might do harm.
        command.current_dir(&notify.directory);
        command.env("IDLEWOOD_BAG_ID", hex::encode(view.bag.id.0));
        command.env("IDLEWOOD_BAG_NAME", name.replace('\0', " "));
        command.env("IDLEWOOD_BAG_STATE", state);
        command.env("IDLEWOOD_BAG_TASKS", view.bag.tasks.to_string());
        command.env("IDLEWOOD_BAG_DONE", view.done.to_string());
        command.env("IDLEWOOD_BAG_FAILED", view.failed.to_string());
        command.env("IDLEWOOD_STATE_DIR", &self.state_dir);
        // In a group of its own: Ctrl-C ends the agent alone.
        command.stdin(Stdio::null()).process_group(0);
        command
    }
}
