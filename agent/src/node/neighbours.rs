//! The neighbours of the last run, kept in a file: an agent that restarts finds the grid again without being told.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use idlewood_machine::connections::NEIGHBOURS_MAX;
use idlewood_overlay::Contact;
use idlewood_trust::identity;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// Addresses of peers with their names (`/ip4/…/tcp/…/p2p/<peer>`), in a JSON list.
#[derive(Debug)]
pub(super) struct Neighbours {
    path: PathBuf,
    saved: Vec<String>,
}

impl Neighbours {
    /// Those of the last run; none where the file is missing or damaged, since it is a convenience.
    pub(super) fn load(directory: &Path) -> Self {
        let path = directory.join("neighbours.json");
        let read = fs::read(&path).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::from));
        let saved = read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, path = %path.display(), "the neighbours of the last run are not known");
            }
            Vec::new()
        });
        Self { path, saved }
    }

    /// Who they were and where they could be dialled.
    pub(super) fn contacts(&self) -> Vec<Contact> {
        let addresses = self.saved.iter().filter_map(|address| address.parse::<Multiaddr>().ok());
        addresses.filter_map(|address| idlewood_net::named_contact(&address)).take(NEIGHBOURS_MAX).collect()
    }

    /// Writes the present ones, if they changed and there are any.
    pub(super) fn save<'a>(&mut self, contacts: impl Iterator<Item = &'a Contact>) {
        let addresses: Vec<String> = contacts.filter_map(named).collect();
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

fn named(contact: &Contact) -> Option<String> {
    let address: Multiaddr = contact.address.parse().ok().filter(|_| !contact.address.is_empty())?;
    Some(address.with(Protocol::P2p(identity::to_libp2p(contact.peer))).to_string())
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::*;

    fn contact(port: u16) -> Contact {
        let peer = identity::peer_id(&Keypair::generate_ed25519()).expect("an Ed25519 key");
        Contact { peer, incarnation: 0, address: format!("/ip4/127.0.0.1/tcp/{port}").into(), nonce: None }
    }

    #[test]
    fn the_neighbours_of_the_last_run_are_known_by_name_and_address() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut neighbours = Neighbours::load(directory.path());
        assert_eq!(neighbours.contacts(), []);
        let contacts = [contact(1), contact(2), Contact { address: "".into(), ..contact(3) }];
        neighbours.save(contacts.iter());
        assert_eq!(Neighbours::load(directory.path()).contacts(), contacts[..2]);
        neighbours.save([].iter());
        assert_eq!(Neighbours::load(directory.path()).contacts(), contacts[..2], "a peer that is alone keeps the last");
        let many: Vec<Contact> = (1..=20).map(contact).collect();
        neighbours.save(many.iter());
        assert_eq!(Neighbours::load(directory.path()).contacts(), many[..NEIGHBOURS_MAX]);
    }

    #[test]
    fn a_damaged_file_is_no_harm() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for content in ["", "[", "{}", "[1]", "[\"/ip4/127.0.0.1/tcp/1\"]", "[\"nonsense\"]"] {
            fs::write(directory.path().join("neighbours.json"), content).expect("our directory");
            assert_eq!(Neighbours::load(directory.path()).contacts(), [], "{content}");
        }
    }
}
