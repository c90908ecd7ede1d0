//! Adopting the bag of a ticket: a new state directory, in which an agent goes on as the submitter.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use idlewood_blobs::{BlobError, Blobs};
use idlewood_scheduler::Record;
use idlewood_store::{Change, StateLock, Store, StoreError};
use idlewood_trust::identity::{self, IDENTITY_FILE, IdentityError};
use idlewood_trust::ticket::{Ticket, TicketError};
use idlewood_trust::{Membership, MembershipError};
use libp2p::PeerId;

/// Why a ticket cannot be adopted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdoptError {
    /// The ticket is damaged, or the file system fails.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// The directory exists already.
    #[error("{} exists already: name a new directory with --into", path.display())]
    Exists {
        /// Its path.
        path: PathBuf,
    },
    /// Nobody has what its tasks run.
    #[error(
        "{} names no machine that keeps the bag, and has none of the bag's files: nobody could go on with it. Adopt a newer ticket of the bag, or \
         submit the bag again",
        path.display()
    )]
    Empty {
        /// The ticket's path.
        path: PathBuf,
    },
    /// The new state directory cannot be filled; it must be removed before another try.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// As for `Blob`.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// As for `Blob`.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// As for `Blob`.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// As for `Blob`.
    #[error("the new store does not take the records: {0}")]
    Commit(String),
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TicketError {
    let path = path.to_owned();
    move |source| TicketError::Io { action, path, source }
}

/// Who goes on, and who has to be up for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adopted {
    /// The submitter's id.
    pub(crate) peer: PeerId,
    /// The machines that keep the bag, by rank.
    pub(crate) keepers: Vec<PeerId>,
    /// Whether the ticket has the bag's files, so that none of them is needed.
    pub(crate) has_files: bool,
    /// Whether these machines keep the results of tasks that have ended, too; of an application in rounds those that are needed to go on.
    pub(crate) has_results: bool,
    /// Whether the bag is an application in rounds.
    pub(crate) is_in_rounds: bool,
}

/// Makes a state directory from the ticket in `file`, in which an agent continues as the submitter. Blocks.
///
/// # Errors
/// When the ticket is of no use, or when `dir` exists, or cannot be written: then it has to be removed before another try.
pub(crate) fn adopt(ticket: &Ticket, dir: &Path, file: &Path) -> Result<Adopted, AdoptError> {
    let damaged = |reason: String| TicketError::Damaged { path: file.to_owned(), reason };
    let mut changes = Vec::with_capacity(ticket.records.len());
    let (mut keepers, has_files) = (Vec::new(), !ticket.blobs.is_empty());
    let (mut has_results, mut is_in_rounds) = (false, false);
    for bytes in &ticket.records {
        let mut record = Record::decode(bytes).map_err(|error| damaged(error.to_string()))?;
        if let Record::Stewards { adopts, appointment } = &mut record {
            *adopts = true;
            keepers.extend(appointment.keepers.iter().skip(1).map(|keeper| identity::to_libp2p(keeper.peer)));
        }
        if let Record::Bag { keep_results, conditions, .. } = &record {
            is_in_rounds |= conditions.rounds.is_some();
            has_results |= *keep_results || is_in_rounds;
        }
        changes.push(Change { key: record.key().to_bytes(), value: Some(record.encode()) });
    }
    if keepers.is_empty() && !has_files {
        return Err(AdoptError::Empty { path: file.to_owned() });
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(AdoptError::Exists { path: dir.to_owned() });
        }
        made => made.map_err(failed("create", dir))?,
    }
    let lock = StateLock::acquire(dir)?;
    let blobs = Blobs::open(&dir.join("blobs"), u64::MAX)?;
    for blob in &ticket.blobs {
        blobs.put_durable(blob)?;
    }
    let mut opened = Store::open(&lock)?;
    opened.store.try_commit(changes, 0).map_err(|error| AdoptError::Commit(error.to_string()))?;
    match opened.results.blocking_recv().map(|committed| committed.result) {
        Some(Ok(())) => opened.store.close(),
        Some(Err(error)) => return Err(AdoptError::Commit(error.to_string())),
        None => return Err(AdoptError::Commit("its writer has ended".to_owned())),
    }
    if !ticket.membership.is_empty() {
        Membership::write_files(dir, &ticket.membership)?;
    }
    // Last: a directory without identity cannot be used.
    let path = dir.join(IDENTITY_FILE);
    let mut key =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed("create", &path))?;
    key.write_all(ticket.identity.as_bytes()).and_then(|()| key.sync_all()).map_err(failed("write", &path))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", dir))?;
    let peer = identity::load_or_create(dir)?.public().to_peer_id();
    Ok(Adopted { peer, keepers, has_files, has_results, is_in_rounds })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_bytes::ByteBuf;

    use super::*;

    fn ticket(dir: &Path) -> Ticket {
        identity::load_or_create(dir).expect("a new key");
        Ticket {
            identity: fs::read_to_string(dir.join(IDENTITY_FILE)).expect("it was written"),
            membership: Vec::new(),
            records: vec![ByteBuf::from(Record::Incarnation(7).encode())],
            blobs: vec![ByteBuf::from(b"manifest".to_vec())],
        }
    }

    #[test]
    fn an_adopted_directory_has_the_identity_the_records_and_the_blobs() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (path, into, ticket) = (dir.path().join("ticket"), dir.path().join("new"), ticket(dir.path()));
        let name = identity::load_or_create(dir.path()).expect("its key").public().to_peer_id();
        let adopted = adopt(&ticket, &into, &path).expect("a new directory");
        let (keepers, is_in_rounds) = (Vec::new(), false);
        assert_eq!(adopted, Adopted { peer: name, keepers, has_files: true, has_results: false, is_in_rounds });
        let empty = Ticket { blobs: Vec::new(), ..ticket.clone() };
        let refused = adopt(&empty, &dir.path().join("empty"), &path).expect_err("nobody has anything").to_string();
        assert!(refused.contains("a newer ticket") && refused.contains("submit the bag again"), "{refused}");
        assert!(!dir.path().join("empty").exists(), "nothing was made");
        let lock = StateLock::acquire(&into).expect("nobody has it");
        let opened = Store::open(&lock).expect("it is sound");
        let expected = Record::Incarnation(7);
        assert_eq!(opened.records, [(expected.key().to_bytes(), expected.encode())]);
        let blobs = Blobs::open(&into.join("blobs"), 1000).expect("our directory");
        assert!(matches!(blobs.path(blake3::hash(b"manifest")), Ok(Some(_))));
        assert!(matches!(adopt(&ticket, &into, &path), Err(AdoptError::Exists { .. })));
        let newer = Ticket { records: vec![ByteBuf::from(vec![99, 0])], ..ticket };
        let elsewhere = dir.path().join("elsewhere");
        assert!(matches!(adopt(&newer, &elsewhere, &path), Err(AdoptError::Ticket(TicketError::Damaged { .. }))));
        assert!(!elsewhere.exists(), "nothing was made");
    }
}
