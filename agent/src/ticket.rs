//! Tickets: everything with which another machine can go on as the submitter of a bag whose own machine is lost.
//!
//! Executors answer to the submitter alone, and know it by its key. So a ticket holds that key, besides the bag's records
//! and blobs: whoever has it *is* the submitter, which is why the file is its owner's only. It is made while the machine
//! is well, and is good for as long as its key is: what was submitted later needs a ticket of its own.
//!
//! Adopting makes a state directory. The agent that is started on it is the lost machine again, in a newer life at another
//! address: executors that were known when the ticket was made are told, others hear of it with the requests for what is
//! issued again, and all go on with what they hold. Tasks whose results only the lost machine had are run again, unless the
//! ticket has their results.
//!
//! Left out: taking a bag over into an agent that has a key of its own (it would need a proof in every request that this
//! key may speak for the bag), and encryption of the file.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use idlewood_blobs::{BlobError, Blobs};
use idlewood_scheduler::Record;
use idlewood_store::{Change, StateLock, Store, StoreError};
use libp2p::PeerId;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::grid::{Membership, MembershipError, MembershipFiles};
use crate::identity::{self, IDENTITY_FILE, IdentityError};

/// What a ticket begins with.
const MAGIC: &[u8] = b"idlewood ticket v1\n";
/// Bytes of BLAKE3 behind that, over the rest.
const CHECKSUM_BYTES: usize = 32;
/// Largest ticket, in bytes. Our choice: it is made and read in memory.
pub const TICKET_BYTES_MAX: u64 = 1 << 30;

/// Why a ticket cannot be read, written or adopted.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// The file system refuses.
    #[error("cannot {action} {}: {source}; choose another file or directory", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not a ticket, or was damaged on its way.
    #[error("{} is no ticket ({reason}); copy it again, or make another with `idlewood bag ticket`", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is something already.
    #[error("{} exists already: name a new directory with --into", path.display())]
    Exists {
        /// Which directory.
        path: PathBuf,
    },
    /// The bag's inputs do not fit.
    #[error("the bag has {bytes} bytes of inputs, more than the {TICKET_BYTES_MAX} that a ticket takes")]
    TooLarge {
        /// How much it would be.
        bytes: u64,
    },
    /// The new state directory cannot be filled; remove it before another try.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// Likewise.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Likewise.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Likewise.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// Likewise.
    #[error("the new store does not take the records: {0}")]
    Commit(String),
}

/// What is in a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// The submitter's key, as its file has it.
    pub identity: String,
    /// What it has of its grid: certificate, revocations. Nothing of a machine without one.
    pub membership: MembershipFiles,
    /// Encoded records: the bag, who holds its tasks, what is over, and what has failed or is run again.
    pub records: Vec<ByteBuf>,
    /// Manifest, program, inputs, and results that are over.
    pub blobs: Vec<ByteBuf>,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TicketError {
    let path = path.to_owned();
    move |source| TicketError::Io { action, path, source }
}

impl Ticket {
    /// Writes it to a new file, which only its owner can read. How many bytes.
    ///
    /// # Errors
    /// When the file is there already or cannot be written.
    pub fn write(&self, path: &Path) -> Result<u64, TicketError> {
        let mut body = Vec::new();
        ciborium::into_writer(self, &mut body).map_err(|error| failed("write", path)(io::Error::other(error)))?;
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed("create", path))?;
        for part in [MAGIC, blake3::hash(&body).as_bytes(), &body] {
            file.write_all(part).map_err(failed("write", path))?;
        }
        file.sync_all().map_err(failed("write", path))?;
        Ok((MAGIC.len() + CHECKSUM_BYTES + body.len()) as u64)
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it is no ticket, or not whole.
    pub fn read(path: &Path) -> Result<Self, TicketError> {
        let damaged = |reason: &str| TicketError::Damaged { path: path.to_owned(), reason: reason.to_owned() };
        let length = fs::metadata(path).map_err(failed("read", path))?.len();
        if length > TICKET_BYTES_MAX + (16 << 20) {
            return Err(damaged("it is too large"));
        }
        let bytes = fs::read(path).map_err(failed("read", path))?;
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it does not begin like one"))?;
        let (sum, body) = rest.split_first_chunk::<CHECKSUM_BYTES>().ok_or_else(|| damaged("it is cut off"))?;
        if blake3::hash(body) != blake3::Hash::from_bytes(*sum) {
            return Err(damaged("it is cut off or changed"));
        }
        ciborium::from_reader(body).map_err(|error| damaged(&error.to_string()))
    }

    /// Makes a state directory, in which an agent goes on as the submitter. Its name. Blocks.
    ///
    /// # Errors
    /// When `dir` exists, or cannot be written: then it has to be removed before another try.
    pub fn adopt(&self, dir: &Path, ticket: &Path) -> Result<PeerId, TicketError> {
        let damaged = |reason: String| TicketError::Damaged { path: ticket.to_owned(), reason };
        let mut changes = Vec::with_capacity(self.records.len());
        for bytes in &self.records {
            let record = Record::decode(bytes).map_err(|error| damaged(error.to_string()))?;
            changes.push(Change { key: record.key().to_bytes(), value: Some(bytes.to_vec()) });
        }
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(TicketError::Exists { path: dir.to_owned() });
            }
            made => made.map_err(failed("create", dir))?,
        }
        let lock = StateLock::acquire(dir)?;
        let blobs = Blobs::open(&dir.join("blobs"), u64::MAX)?;
        for blob in &self.blobs {
            blobs.put_durable(blob)?;
        }
        let mut opened = Store::open(&lock)?;
        opened.store.try_commit(changes, 0).map_err(|error| TicketError::Commit(error.to_string()))?;
        match opened.results.blocking_recv().map(|committed| committed.result) {
            Some(Ok(())) => opened.store.close(),
            Some(Err(error)) => return Err(TicketError::Commit(error.to_string())),
            None => return Err(TicketError::Commit("its writer has ended".to_owned())),
        }
        if !self.membership.is_empty() {
            Membership::write_files(dir, &self.membership)?;
        }
        // Last: without it the directory is nobody's.
        let path = dir.join(IDENTITY_FILE);
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed("create", &path))?;
        file.write_all(self.identity.as_bytes()).and_then(|()| file.sync_all()).map_err(failed("write", &path))?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", dir))?;
        Ok(identity::load_or_create(dir)?.public().to_peer_id())
    }
}

#[cfg(test)]
mod tests {
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
    fn a_ticket_is_its_owners_only_and_whole_or_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (path, ticket) = (dir.path().join("ticket"), ticket(dir.path()));
        let length = ticket.write(&path).expect("a new file");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(Ticket::read(&path).expect("it is whole"), ticket);
        assert!(matches!(ticket.write(&path), Err(TicketError::Io { .. })), "nothing is overwritten");
        let bytes = fs::read(&path).expect("it is there");
        assert_eq!(bytes.len() as u64, length);
        for position in (0..bytes.len()).step_by(7) {
            let mut bad = bytes.clone();
            bad[position] ^= 1;
            fs::write(&path, &bad).expect("our directory");
            assert!(matches!(Ticket::read(&path), Err(TicketError::Damaged { .. })), "changed at {position}");
            fs::write(&path, &bytes[..position]).expect("our directory");
            assert!(matches!(Ticket::read(&path), Err(TicketError::Damaged { .. })), "cut at {position}");
        }
    }

    #[test]
    fn who_adopts_has_the_name_the_records_and_the_blobs() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (path, into, ticket) = (dir.path().join("ticket"), dir.path().join("new"), ticket(dir.path()));
        let name = identity::load_or_create(dir.path()).expect("its key").public().to_peer_id();
        assert_eq!(ticket.adopt(&into, &path).expect("a new directory"), name);
        let lock = StateLock::acquire(&into).expect("nobody has it");
        let opened = Store::open(&lock).expect("it is sound");
        let expected = Record::Incarnation(7);
        assert_eq!(opened.records, [(expected.key().to_bytes(), expected.encode())]);
        let blobs = Blobs::open(&into.join("blobs"), 1000).expect("our directory");
        assert!(matches!(blobs.path(blake3::hash(b"manifest")), Ok(Some(_))));
        assert!(matches!(ticket.adopt(&into, &path), Err(TicketError::Exists { .. })));
        let newer = Ticket { records: vec![ByteBuf::from(vec![99, 0])], ..ticket };
        let elsewhere = dir.path().join("elsewhere");
        assert!(matches!(newer.adopt(&elsewhere, &path), Err(TicketError::Damaged { .. })));
        assert!(!elsewhere.exists(), "nothing was made");
    }

    #[test]
    fn mutations_of_a_ticket() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut body = Vec::new();
        ciborium::into_writer(&ticket(dir.path()), &mut body).expect("it is written every day");
        let path = dir.path().join("ticket");
        idlewood_testing::mutations("ticket", vec![body], |body| {
            // Who makes one makes the checksum, too.
            fs::write(&path, [MAGIC, blake3::hash(body).as_bytes(), body].concat()).expect("our directory");
            Ticket::read(&path).is_ok()
        });
    }
}
