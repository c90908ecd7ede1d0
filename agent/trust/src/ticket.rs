//! Tickets: with one, another machine can replace the lost machine of a bag's submitter.
//!
//! Executors answer to the submitter alone, and know it by its key. So a ticket holds that key, besides the bag's
//! records and blobs: its holder *is* the submitter, so only its owner may read the file. It is made while the machine
//! is well, and covers the bags of that moment: later ones need tickets of their own.
//!
//! Adopting makes a state directory. The agent started on it is the lost machine in a newer incarnation at another
//! address: it tells the executors known to the ticket, others learn of it from requests for tasks that are issued
//! again, and all continue with the tasks that they hold. Tasks whose results only the lost machine had run again,
//! unless the ticket has their results.
//!
//! Left out: adopting a bag into an agent with a key of its own (every request would need a proof that this key may act
//! for the bag), and encryption of the file.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::MembershipFiles;

/// First bytes of a ticket.
const MAGIC: &[u8] = b"idlewood ticket v1\n";
/// Bytes of BLAKE3 behind that, over the rest.
const CHECKSUM_BYTES: usize = 32;
/// Largest ticket, in bytes. Our choice: it is made and read in memory.
pub const TICKET_BYTES_MAX: u64 = 1 << 30;

/// Why a ticket cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// The file system refuses.
    #[error("cannot {action} {}: {source}; choose another file or directory", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is not a ticket, or was damaged on its way.
    #[error("{} is no ticket ({reason}); copy it again, or make another with `idlewood bag ticket`", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The flaw.
        reason: String,
    },
    /// The bag's inputs do not fit.
    #[error("the bag has {bytes} bytes of inputs, more than the {TICKET_BYTES_MAX} that a ticket takes")]
    TooLarge {
        /// The size it would have.
        bytes: u64,
    },
}

/// The content of a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// The submitter's key, as its file has it.
    pub identity: String,
    /// The files of its membership, revocations included. Empty for a machine without a grid.
    pub membership: MembershipFiles,
    /// Encoded records: the bag, holders of its tasks, tasks done, failed or run again.
    pub records: Vec<ByteBuf>,
    /// Manifest, program, inputs, and results of finished tasks.
    pub blobs: Vec<ByteBuf>,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TicketError {
    let path = path.to_owned();
    move |source| TicketError::Io { action, path, source }
}

impl Ticket {
    /// Writes it to a new file that only its owner can read; returns its bytes.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
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

    /// Reads a ticket.
    ///
    /// # Errors
    /// When it is no ticket, or incomplete.
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
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::Record;

    use super::*;
    use crate::identity::{self, IDENTITY_FILE};

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
    fn mutations_of_a_ticket() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut body = Vec::new();
        ciborium::into_writer(&ticket(dir.path()), &mut body).expect("it is written every day");
        let path = dir.path().join("ticket");
        idlewood_testing::mutations("ticket", vec![body], |body| {
            // An attacker computes the checksum, too.
            fs::write(&path, [MAGIC, blake3::hash(body).as_bytes(), body].concat()).expect("our directory");
            Ticket::read(&path).is_ok()
        });
    }
}
