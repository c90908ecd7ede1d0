//! What sled's thread is told to do, and what readers want of it.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;

use super::frame::decode;
use super::journal::Changes;

/// Records in the order of their keys.
pub type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// What sled is told to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Brings it to so many commits, durably.
    Checkpoint(Changes, u64),
    /// Writes all records to a new generation of the journal there.
    Snapshot(PathBuf),
    /// Copies all sound records to a new database there.
    Copy(PathBuf),
    /// How large it is.
    Measure,
    /// Answered to whoever wants to read.
    Read(Wanted),
}

/// What is to be read.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) first: Vec<u8>,
    pub(super) last: Vec<u8>,
    pub(super) most: usize,
    pub(super) reply: SyncSender<Result<Records, String>>,
}

impl Wanted {
    /// Reads it, and says so to whoever asked.
    pub(super) fn read(self, db: &sled::Db) {
        let sound = |(key, record): (sled::IVec, sled::IVec)| {
            let value = decode(&key, &record)?.to_vec();
            Some((key.to_vec(), value))
        };
        let records = db.range(self.first..=self.last).map(|record| record.map(sound)).filter_map(Result::transpose);
        let records = records.take(self.most).collect::<Result<Records, sled::Error>>();
        // Whoever asked may have given up.
        drop(self.reply.send(records.map_err(|error| error.to_string())));
    }
}
