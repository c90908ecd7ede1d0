//! Reading records while the agent runs: results of bags, which are too many for the memory. sled gets durable changes
//! some time after the journal; until then they are read from memory.

use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::frame::decode;
use super::journal::Changes;
use super::order::{Order, Records, Wanted};

/// How long a read may wait for earlier orders: a checkpoint, or a rebuild of the store.
const READ_TIMEOUT: Duration = Duration::from_secs(600);

/// Why nothing can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be read ({0}); see the agent's log, and start the agent again")]
pub struct ReadError(String);

/// Reads durable records. Clones read the same store.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// Channel to the open database.
    orders: Arc<Mutex<Option<SyncSender<Order>>>>,
    /// Durable changes that the database has not been given yet.
    pending: Arc<Mutex<Changes>>,
}

impl Reader {
    /// Up to `most` sound records with keys in `first..=last`, in order of keys. Blocks.
    ///
    /// # Errors
    /// When the store is closed, or has failed.
    pub fn range(&self, first: Vec<u8>, last: Vec<u8>, most: usize) -> Result<Records, ReadError> {
        let closed = || ReadError("it is closed".to_owned());
        let (reply, answer) = sync_channel(1);
        // Before the database is read: changes that leave `pending` meanwhile are found there.
        let range = first.clone()..=last.clone();
        let pending: Vec<_> = self.pending().range(range).map(|(key, record)| (key.clone(), record.clone())).collect();
        let wanted = Wanted { first, last, most: most.saturating_add(pending.len()), reply };
        // Locked until the order is queued: else the database could be closed meanwhile.
        let sent = match &*self.orders.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(orders) => orders.send(Order::Read(wanted)),
            None => return Err(closed()),
        };
        sent.map_err(|_| closed())?;
        let late = |_| ReadError("it does not answer".to_owned());
        let records = answer.recv_timeout(READ_TIMEOUT).map_err(late)?.map_err(ReadError)?;
        if pending.is_empty() {
            return Ok(records);
        }
        let mut records: BTreeMap<Vec<u8>, Vec<u8>> = records.into_iter().collect();
        for (key, record) in pending {
            match record.as_deref().and_then(|record| decode(&key, record)).map(<[u8]>::to_vec) {
                Some(value) => drop(records.insert(key, value)),
                None => drop(records.remove(&key)),
            }
        }
        Ok(records.into_iter().take(most).collect())
    }

    /// The changes that sled lacks; holding the lock blocks commits.
    pub(super) fn pending(&self) -> MutexGuard<'_, Changes> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from that database from now on, or from none.
    pub(super) fn follow(&self, orders: Option<SyncSender<Order>>) {
        *self.orders.lock().unwrap_or_else(PoisonError::into_inner) = orders;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Change, StateLock, Store};

    #[tokio::test]
    async fn durable_records_are_read_while_the_store_is_open() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lock = StateLock::acquire(dir.path()).expect("nobody else has it");
        let mut opened = Store::open(&lock).expect("an empty store opens");
        let record = |number: u8| Change { key: vec![b'd', number], value: Some(vec![number; 3]) };
        let changes: Vec<Change> = (0..10).map(record).collect();
        opened.store.try_commit(changes, 0).expect("there is room");
        let told = opened.results.recv().await.expect("the writer lives");
        assert_eq!(told.result, Ok(()));
        let reader = opened.store.reader();
        let read = move |first: u8, last: u8, most: usize| {
            let reader = reader.clone();
            tokio::task::spawn_blocking(move || reader.range(vec![b'd', first], vec![b'd', last], most))
        };
        let found = read(3, 5, 99).await.expect("it reads").expect("it is open");
        let expected: Vec<_> = (3..=5).map(|number| (vec![b'd', number], vec![number; 3])).collect();
        assert_eq!(found, expected);
        let found = read(8, 255, 1).await.expect("it reads").expect("it is open");
        assert_eq!(found, [(vec![b'd', 8], vec![8; 3])]);
        assert_eq!(read(99, 255, 1).await.expect("it reads"), Ok(Vec::new()));

        // Changes that sled lacks count, whether they add, change or remove.
        let changes = vec![
            Change { key: vec![b'd', 4], value: None },
            Change { key: vec![b'd', 5], value: Some(vec![55]) },
            Change { key: vec![b'd', 20], value: Some(vec![20]) },
        ];
        opened.store.try_commit(changes, 1).expect("there is room");
        assert_eq!(opened.results.recv().await.expect("the writer lives").result, Ok(()));
        let found = read(3, 255, 3).await.expect("it reads").expect("it is open");
        let expected = [(vec![b'd', 3], vec![3; 3]), (vec![b'd', 5], vec![55]), (vec![b'd', 6], vec![6; 3])];
        assert_eq!(found, expected);
        let found = read(9, 255, 99).await.expect("it reads").expect("it is open");
        assert_eq!(found, [(vec![b'd', 9], vec![9; 3]), (vec![b'd', 20], vec![20])]);

        drop(opened.results);
        tokio::task::spawn_blocking(move || opened.store.close()).await.expect("it closes");
        read(0, 255, 99).await.expect("it tells").expect_err("it is closed");
    }
}
