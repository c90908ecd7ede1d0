//! For one held bag: the bags ahead of it in its submitter's line (`submitters`), each counted once.
//!
//! A bag may leave a machine and come again many times while another one stays: by redistribution, or since the machine's owner
//! comes and goes. It counts once all the same, with the size that it had when it was counted first.

use std::collections::BTreeMap;

use crate::bag::BagId;

/// Most bags that are remembered by name. Our choice: a kilobyte or two for each held bag at most. Of more bags the smallest is
/// forgotten: it keeps its weight, and would count again if it came again.
const NAMED_MAX: usize = 32;

/// The bags before a held bag.
#[derive(Debug, Default)]
pub(super) struct BagsBefore {
    /// The sizes of those remembered by name, in Mop.
    named: BTreeMap<BagId, f64>,
    /// The sum over all, in Mop.
    sum_mops: f64,
}

impl BagsBefore {
    /// Counts a bag of so many Mop, unless it is remembered as counted.
    pub(super) fn count(&mut self, bag: BagId, size_mops: f64) {
        if self.named.contains_key(&bag) {
            return;
        }
        self.named.insert(bag, size_mops);
        self.sum_mops += size_mops;
        if self.named.len() > NAMED_MAX {
            let smallest = self.named.iter().min_by(|one, other| one.1.total_cmp(other.1)).map(|(&bag, _)| bag);
            smallest.map(|bag| self.named.remove(&bag));
        }
    }

    /// Takes a bag out, if it is remembered as counted.
    pub(super) fn forget(&mut self, bag: BagId) {
        if let Some(size_mops) = self.named.remove(&bag) {
            self.sum_mops -= size_mops;
        }
    }

    /// A bag counts with so many Mop from now on, whatever it counted with while it was remembered.
    pub(super) fn set(&mut self, bag: BagId, size_mops: f64) {
        self.forget(bag);
        if size_mops > 0.0 {
            self.count(bag, size_mops);
        }
    }

    /// The sizes of all bags before, in Mop.
    pub(super) fn sum_mops(&self) -> f64 {
        self.sum_mops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_bags_the_smallest_is_forgotten_and_keeps_its_weight() {
        let mut before = BagsBefore::default();
        let bag = |number: usize| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            BagId(id)
        };
        for number in 0..=NAMED_MAX {
            before.count(bag(number), 1.0 + number as f64);
        }
        let sum_mops = before.sum_mops();
        before.count(bag(NAMED_MAX), 7.0);
        assert_eq!((before.named.len(), before.sum_mops()), (NAMED_MAX, sum_mops));
        before.count(bag(0), 1.0);
        assert_eq!((before.named.len(), before.sum_mops()), (NAMED_MAX, sum_mops + 1.0));
    }
}
