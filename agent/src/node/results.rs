//! Results of this machine's bags, read from the store for whoever asks: there may be millions, and nobody keeps them in
//! memory.

use idlewood_overlay::{PeerId, WallTime};
use idlewood_scheduler::{BagId, Record, RecordKey, TaskResult};
use idlewood_store::Reader;

use crate::handle::{Page, Refusal};

/// Records that are read together.
const READ_TOGETHER: usize = 1024;

/// A task that is over.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub(super) executor: PeerId,
    pub(super) at: WallTime,
    pub(super) result: TaskResult,
}

/// The results of a bag that are durable, of the tasks from `from` on and at most `most`, by index: some at a time. Blocks.
///
/// # Errors
/// When the store cannot be read.
pub(super) fn read(
    reader: &Reader,
    bag: BagId,
    Page { from, most }: Page,
    mut each: impl FnMut(Finished),
) -> Result<(), Refusal> {
    let last = RecordKey::Done(bag, u64::MAX).to_bytes();
    let (mut next, mut left) = (Some(from), usize::try_from(most).unwrap_or(usize::MAX));
    while let Some(from) = next.filter(|_| left > 0) {
        let wanted = left.min(READ_TOGETHER);
        let records = reader.range(RecordKey::Done(bag, from).to_bytes(), last.clone(), wanted);
        let records = records.map_err(|error| Refusal::Unavailable(error.to_string()))?;
        next = None;
        for (key, value) in &records {
            let index = key.last_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            next = index.and_then(|index| index.checked_add(1)).filter(|_| records.len() == wanted);
            // One that cannot be read was left out at the start, too.
            if let Ok(Record::Done { executor, finished, result, .. }) = Record::decode(value) {
                each(Finished { executor, at: finished, result });
            }
        }
        left -= records.len();
    }
    Ok(())
}

/// All of them together. Blocks.
///
/// # Errors
/// As [`read`].
pub(super) fn collect(reader: &Reader, bag: BagId, page: Page) -> Result<Vec<Finished>, Refusal> {
    let mut all = Vec::new();
    read(reader, bag, page, |finished| all.push(finished))?;
    Ok(all)
}
