//! Orders to sled's thread, and requests of readers.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;

use super::frame::decode;
use super::journal::Changes;

/// Records in the order of their keys.
pub type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// An order to sled's thread.
#[derive(Debug)]
pub(super) enum Order {
    /// Apply the changes and record this count of commits, durably.
    Checkpoint(Changes, u64),
    /// Write all records to a new generation of the journal at this path.
    Snapshot(PathBuf),
    /// Copy all sound records to a new database at this path.
    Copy(PathBuf),
    /// Measure its files.
    Measure,
    /// Read for a reader.
    Read(Wanted),
}

/// A request to read records.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) first: Vec<u8>,
    pub(super) last: Vec<u8>,
    pub(super) most: usize,
    pub(super) reply: SyncSender<Result<Records, String>>,
}

impl Wanted {
    /// Reads the records and sends them to the reader.
    pub(super) fn read(self, db: &sled::Db) {
        let sound = |(key, record): (sled::IVec, sled::IVec)| {
            let value = decode(&key, &record)?.to_vec();
            Some((key.to_vec(), value))
        };
        let records = db.range(self.first..=self.last).map(|record| record.map(sound)).filter_map(Result::transpose);
        let records = records.take(self.most).collect::<Result<Records, sled::Error>>();
        // The reader may have given up.
        drop(self.reply.send(records.map_err(|error| error.to_string())));
    }
}
