//! Results of this machine's bags, read from the store for machines that are to keep them, too (docs/adr/0053).

use idlewood_overlay::PeerId;
use idlewood_scheduler::BagId;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_store::Reader;

use super::done::Done;
use super::results;
use super::shared::Shared;
use crate::handle::Page;

/// Reads the results of these tasks of a bag of this machine for another that is to keep them, too. What cannot be read is left out: it is asked for
/// again.
pub(super) fn read(bag: BagId, tasks: IntervalSet, to: PeerId, reader: Reader, shared: &mut Shared) {
    let read = move || {
        let mut found = Vec::new();
        for range in tasks.ranges() {
            let page = Page { from: range.start, most: range.end - range.start };
            let read = results::read(&reader, bag, page, |finished| {
                if tasks.contains(finished.result.index) {
                    found.push((finished.executor, finished.result));
                }
            });
            if let Err(refusal) = read {
                tracing::warn!(%bag, ?refusal, "results cannot be read for a machine that is to keep them");
            }
        }
        Done::ResultsRead { bag, to, results: found }
    };
    shared.jobs.spawn_blocking(read, Done::ResultsRead { bag, to, results: Vec::new() });
}
