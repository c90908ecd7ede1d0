//! Outputs of a machine's bags on their way to it: a bounded number at a time, the others wait.

use std::collections::{BTreeMap, VecDeque};

use idlewood_overlay::PeerId;
use idlewood_scheduler::TaskId;

/// An output that the peer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) task: TaskId,
    pub(crate) bytes: u64,
    pub(crate) from: PeerId,
}

/// What is wanted and what is on its way.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    waiting: VecDeque<Wanted>,
    /// By number.
    under_way: BTreeMap<u64, TaskId>,
    serial: u64,
}

impl Outputs {
    /// Another one is wanted.
    pub(crate) fn push(&mut self, wanted: Wanted) {
        self.waiting.push_back(wanted);
    }

    /// The next to be fetched, if another may be, and its number; it is under way until [`Outputs::end`].
    pub(crate) fn next(&mut self, under_way_max: u32) -> Option<(u64, Wanted)> {
        if self.under_way.len() >= under_way_max as usize {
            return None;
        }
        let wanted = self.waiting.pop_front()?;
        self.serial += 1;
        self.under_way.insert(self.serial, wanted.task);
        Some((self.serial, wanted))
    }

    /// One ends, well or not; false when it has ended before.
    pub(crate) fn end(&mut self, serial: u64) -> bool {
        self.under_way.remove(&serial).is_some()
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::BagId;

    use super::*;

    #[test]
    fn a_bounded_number_is_under_way_and_each_ends_once() {
        let mut outputs = Outputs::default();
        let wanted = |index| Wanted { task: TaskId { bag: BagId([1; 32]), index }, bytes: 5, from: PeerId([2; 32]) };
        (0..4).for_each(|index| outputs.push(wanted(index)));
        let (first, _) = outputs.next(2).unwrap();
        let (second, _) = outputs.next(2).unwrap();
        assert_eq!(outputs.next(2), None);
        assert!(outputs.end(first) && !outputs.end(first));
        assert_eq!(outputs.next(2).map(|(_, next)| next), Some(wanted(2)));
        assert!(outputs.end(second));
    }
}
