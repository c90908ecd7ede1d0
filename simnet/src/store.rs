//! What a machine has on its disk: records by key, outputs by task, and writes that are not durable yet.
//!
//! A write becomes durable as a whole, in the order the writes were asked for, and is acknowledged in the same
//! moment; a power cut before that undoes it. Records are kept as their encoded bytes, so that a restart reads what a
//! real store would give back.
//!
//! Which changes go together, and when, is decided by `idlewood_machine`. A write that comes while the disk is flushing begins with the
//! next flush, as the agent's store does it (`agent/store/src/writer.rs`). Left out: that the store lets patient writes wait for others,
//! and disks that are full or fail.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::WriteId;
use idlewood_overlay::{PeerId, Time};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{Appointment, BagId, Change, Record, RecordKey, TaskId, TaskResult};

/// Bytes of a record, without the zeros that a small output is of: the disks of all machines are in memory.
#[derive(Debug)]
struct Packed {
    bytes: Box<[u8]>,
    /// Where so many zeros were.
    zeros: (usize, usize),
}

/// Shorter rows of zeros are kept.
const ZEROS_MIN: usize = 64;

impl Packed {
    fn of(bytes: &[u8]) -> Self {
        let mut longest = (0, 0);
        let mut at = 0;
        while let Some(from) = bytes[at..].iter().position(|byte| *byte == 0).map(|next| at + next) {
            let length = bytes[from..].iter().take_while(|byte| **byte == 0).count();
            if length > longest.1 {
                longest = (from, length);
            }
            at = from + length;
        }
        let (from, length) = if longest.1 < ZEROS_MIN { (0, 0) } else { longest };
        Self { bytes: [&bytes[..from], &bytes[from + length..]].concat().into(), zeros: (from, length) }
    }

    fn unpack(&self) -> Vec<u8> {
        let (from, length) = self.zeros;
        [&self.bytes[..from], &vec![0; length], &self.bytes[from..]].concat()
    }
}

/// The disk of one machine.
#[derive(Debug, Default)]
pub(crate) struct Store {
    records: BTreeMap<Vec<u8>, Packed>,
    /// Writes under way, oldest first.
    pending: VecDeque<(WriteId, Vec<Arc<Change>>)>,
    /// When the last flush ends.
    flushed: Time,
    /// Outputs of tasks that ran here.
    produced: BTreeMap<BagId, IntervalSet>,
    /// Outputs that were fetched to here.
    fetched: BTreeMap<BagId, IntervalSet>,
}

impl Store {
    /// Begins a write. Returns when it becomes durable, if a flush takes `flush`.
    pub(crate) fn begin(&mut self, write: WriteId, changes: Vec<Arc<Change>>, now: Time, flush: Duration) -> Time {
        self.pending.push_back((write, changes));
        // A last flush that ends later than one begun now has not begun itself: this write joins it.
        if self.flushed <= now + flush {
            self.flushed = self.flushed.max(now) + flush;
        }
        self.flushed
    }

    /// The oldest write under way becomes durable: its number and what changed. A record is lost where `loses` says so of
    /// its key.
    pub(crate) fn commit(&mut self, loses: impl Fn(&[u8]) -> bool) -> Option<(WriteId, Vec<Arc<Change>>)> {
        let (write, changes) = self.pending.pop_front()?;
        for change in &changes {
            match &**change {
                Change::Put(record) if loses(&record.key().to_bytes()) => {}
                Change::Put(record) => {
                    self.records.insert(record.key().to_bytes(), Packed::of(&record.encode()));
                }
                Change::Delete(key) => {
                    self.records.remove(&key.to_bytes());
                    // An output is kept only as long as the result that names it.
                    if let RecordKey::Outbox(bag, index) = *key
                        && let Some(produced) = self.produced.get_mut(&bag)
                    {
                        produced.remove_index(index);
                    }
                }
            }
        }
        Some((write, changes))
    }

    /// The power is cut: writes that are not durable are lost.
    pub(crate) fn lose_pending(&mut self) {
        self.pending.clear();
        self.flushed = Time::ZERO;
    }

    /// Loses the tasks held for others and their outputs; the bags submitted from here stay.
    pub(crate) fn lose_queue(&mut self) {
        let bag = BagId([0; 32]);
        let kinds = [RecordKey::Held(bag), RecordKey::Outbox(bag, 0)].map(|key| key.to_bytes()[0]);
        self.records.retain(|key, _| !kinds.contains(&key[0]));
        self.produced.clear();
    }

    /// The disk is taken: another one with these records alone is in its place.
    pub(crate) fn replace(&mut self, records: impl IntoIterator<Item = Record>) {
        *self = Self::default();
        self.records =
            records.into_iter().map(|record| (record.key().to_bytes(), Packed::of(&record.encode()))).collect();
    }

    /// Whether a ledger of this bag can be made of what is on the disk: as its submitter's, or as a steward's who has the bag's files. A
    /// ticket alone, before stewards have told the rest, is not enough: it has no results.
    pub(crate) fn can_keep(&self, bag: BagId) -> bool {
        let read = |key: RecordKey| self.records.get(&key.to_bytes()).map(|packed| Record::decode(&packed.unpack()));
        let is_whole = match read(RecordKey::Kept(bag)) {
            Some(Ok(Record::Kept { has_files, .. })) => has_files,
            Some(_) => false,
            None => !matches!(read(RecordKey::Stewards(bag)), Some(Ok(Record::Stewards { adopts: true, .. }))),
        };
        is_whole && matches!(read(RecordKey::Bag(bag)), Some(Ok(_)))
    }

    /// The newest appointment of a bag's keepers that is on the disk.
    pub(crate) fn appointment(&self, bag: BagId) -> Option<Appointment> {
        let read = |key: RecordKey| {
            let record = Record::decode(&self.records.get(&key.to_bytes())?.unpack()).ok()?;
            match record {
                Record::Kept { acting, .. } => Some(acting.appointment),
                Record::Stewards { appointment, .. } => Some(appointment),
                _ => None,
            }
        };
        [RecordKey::Kept(bag), RecordKey::Stewards(bag)].into_iter().filter_map(read).max_by_key(|one| one.term)
    }

    /// The durable result of a task, and who ran it.
    pub(crate) fn result(&self, task: TaskId) -> Option<(PeerId, TaskResult)> {
        let packed = self.records.get(&RecordKey::Done(task.bag, task.index).to_bytes())?;
        match Record::decode(&packed.unpack()) {
            Ok(Record::Done { executor, result, .. }) => Some((executor, result)),
            _ => None,
        }
    }

    /// Everything that is durable.
    ///
    /// # Panics
    /// When a record does not survive its own encoding.
    pub(crate) fn records(&self) -> Vec<Record> {
        let decode = |packed: &Packed| Record::decode(&packed.unpack()).expect("a record that this program wrote");
        self.records.values().map(decode).collect()
    }

    /// The output of a task that ran here is on the disk.
    pub(crate) fn produce(&mut self, task: TaskId) {
        self.produced.entry(task.bag).or_default().insert_index(task.index);
    }

    /// Whether the output of a task that ran here is still here.
    pub(crate) fn has_produced(&self, task: TaskId) -> bool {
        self.produced.get(&task.bag).is_some_and(|tasks| tasks.contains(task.index))
    }

    /// An output was fetched and is on the disk.
    pub(crate) fn fetch(&mut self, task: TaskId) {
        self.fetched.entry(task.bag).or_default().insert_index(task.index);
    }

    /// Whether the output of a task was fetched to here.
    pub(crate) fn has_fetched(&self, task: TaskId) -> bool {
        self.fetched.get(&task.bag).is_some_and(|tasks| tasks.contains(task.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(incarnation: u64) -> Vec<Arc<Change>> {
        vec![Arc::new(Change::Put(Record::Incarnation(incarnation)))]
    }

    #[test]
    fn zeros_take_no_room_and_come_back() {
        for zeros in [0, 1, 63, 64, 1000] {
            let bytes = [vec![7, 0, 8], vec![0; zeros], vec![9, 0, 0]].concat();
            let packed = Packed::of(&bytes);
            assert_eq!(packed.unpack(), bytes);
            assert_eq!(packed.bytes.len(), if zeros < ZEROS_MIN { bytes.len() } else { 6 });
        }
        assert!(Packed::of(&[]).unpack().is_empty());
    }

    #[test]
    fn acknowledged_writes_survive_a_power_cut_and_others_do_not() {
        let mut store = Store::default();
        let (now, flush) = (Time::ZERO, Duration::from_millis(5));
        store.begin(WriteId(0), put(5), now, flush);
        store.begin(WriteId(1), put(6), now, flush);
        assert_eq!(store.records(), []);
        assert_eq!(store.commit(|_| false).map(|(write, _)| write), Some(WriteId(0)));
        store.lose_pending();
        assert_eq!(store.commit(|_| false), None);
        assert_eq!(store.records(), [Record::Incarnation(5)]);
        store.begin(WriteId(0), vec![Arc::new(Change::Delete(RecordKey::Incarnation))], now, flush);
        assert_eq!(store.commit(|_| false).map(|(write, _)| write), Some(WriteId(0)));
        assert_eq!(store.records(), []);
    }

    #[test]
    fn writes_that_wait_for_a_flush_go_together_with_the_next() {
        let mut store = Store::default();
        let ends = [0, 0, 1, 4, 5, 9, 10, 30].map(|ms| {
            let changes = put(5);
            store.begin(WriteId(0), changes, Time::from_micros(1000 * ms), Duration::from_millis(5)).as_micros() / 1000
        });
        assert_eq!(ends, [5, 10, 10, 10, 15, 15, 20, 35]);
        store.lose_pending();
        assert_eq!(store.begin(WriteId(0), Vec::new(), Time::ZERO, Duration::from_millis(5)), Time::from_micros(5000));
    }
}
