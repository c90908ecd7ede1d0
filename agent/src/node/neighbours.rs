//! The neighbours of the last run, kept in a file: an agent that restarts finds the grid again without being told.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use idlewood_overlay::Contact;
use libp2p::Multiaddr;

/// How often the file is brought up to date.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// Addresses of peers, in a JSON list.
#[derive(Debug)]
pub(super) struct Neighbours {
    path: PathBuf,
    saved: Vec<String>,
}

impl Neighbours {
    /// Those of the last run; none where the file is missing or damaged, since it is a convenience.
    pub(super) fn load(directory: &Path) -> Self {
        let path = directory.join("neighbours.json");
        let saved = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { path, saved }
    }

    /// Where the neighbours of the last run could be dialled.
    pub(super) fn addresses(&self) -> Vec<Multiaddr> {
        self.saved.iter().filter_map(|address| address.parse().ok()).collect()
    }

    /// Writes the present ones, if they changed and there are any.
    pub(super) fn save<'a>(&mut self, contacts: impl Iterator<Item = &'a Contact>) {
        let addresses: Vec<String> =
            contacts.filter(|contact| !contact.address.is_empty()).map(|contact| contact.address.to_string()).collect();
        if addresses.is_empty() || addresses == self.saved {
            return;
        }
        match self.write(&addresses) {
            Ok(()) => self.saved = addresses,
            Err(error) => tracing::debug!(%error, "cannot keep the neighbours' addresses"),
        }
    }

    fn write(&self, addresses: &[String]) -> std::io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(&serde_json::to_vec(addresses)?)?;
        file.persist(&self.path)?;
        Ok(())
    }
}
