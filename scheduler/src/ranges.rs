//! Sets of task indices, as sorted intervals.
//!
//! The tasks of a bag are numbered from 0. Requests, queues and ledgers hold sets of such numbers. A new bag is one
//! interval; tasks that are issued again after failures leave holes. All operations are linear in the number of intervals
//! or better, never in the number of tasks.
//!
//! The number of intervals is not bounded here: senders split a set first, receivers cap the bytes before decoding.

use std::cmp::{max, min};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A set of task indices: half-open intervals, sorted, disjoint, with a gap between neighbours.
///
/// Equal sets have equal representations. The index `u64::MAX` cannot be held, since intervals are half-open.
/// It travels as a list of (start, length); a list in no normal form is refused.
#[derive(Clone, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct IntervalSet {
    /// (start, end), normal form.
    intervals: Vec<(u64, u64)>,
}

/// Why a list of (start, length) is not an [`IntervalSet`]; nothing was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IntervalError {
    /// An interval of length 0.
    #[error("interval {0} is empty")]
    Empty(usize),
    /// An interval whose end does not fit 64 bits.
    #[error("interval {0} ends beyond 64 bits")]
    Overflow(usize),
    /// An interval that begins before, within or directly at the end of the one before it.
    #[error("interval {0} does not lie behind the one before it with a gap between them")]
    Order(usize),
}

impl TryFrom<Vec<(u64, u64)>> for IntervalSet {
    type Error = IntervalError;

    fn try_from(list: Vec<(u64, u64)>) -> Result<Self, IntervalError> {
        let mut intervals = list;
        let mut previous_end = None;
        for (index, interval) in intervals.iter_mut().enumerate() {
            let (start, length) = *interval;
            if length == 0 {
                return Err(IntervalError::Empty(index));
            }
            let end = start.checked_add(length).ok_or(IntervalError::Overflow(index))?;
            if previous_end.is_some_and(|previous| start <= previous) {
                return Err(IntervalError::Order(index));
            }
            *interval = (start, end);
            previous_end = Some(end);
        }
        Ok(Self { intervals })
    }
}

impl From<IntervalSet> for Vec<(u64, u64)> {
    fn from(set: IntervalSet) -> Self {
        let mut list = set.intervals;
        for (start, end) in &mut list {
            *end -= *start;
        }
        list
    }
}

impl From<Range<u64>> for IntervalSet {
    fn from(range: Range<u64>) -> Self {
        let mut set = Self::new();
        set.insert(range);
        set
    }
}

impl FromIterator<Range<u64>> for IntervalSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

impl IntervalSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { intervals: Vec::new() }
    }

    /// Adds the indices of `range`; an empty or backward range adds nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        // All intervals that overlap or touch the range melt into one.
        let first = self.intervals.partition_point(|&(_, end)| end < range.start);
        let behind = self.intervals.partition_point(|&(start, _)| start <= range.end);
        let (mut start, mut end) = (range.start, range.end);
        if first < behind {
            start = min(start, self.intervals[first].0);
            end = max(end, self.intervals[behind - 1].1);
        }
        self.intervals.splice(first..behind, [(start, end)]);
    }

    /// Takes the indices of `range` out; those that are not in the set do not matter.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let first = self.intervals.partition_point(|&(_, end)| end <= range.start);
        let behind = self.intervals.partition_point(|&(start, _)| start < range.end);
        if first >= behind {
            return;
        }
        let left = (self.intervals[first].0, range.start);
        let right = (range.end, self.intervals[behind - 1].1);
        let rests = [left, right].into_iter().filter(|(start, end)| start < end);
        self.intervals.splice(first..behind, rests);
    }

    /// Adds one index. Returns whether it was missing before; `u64::MAX` is refused with `false`.
    pub fn insert_index(&mut self, index: u64) -> bool {
        let Some(end) = index.checked_add(1) else { return false };
        let missing = !self.contains(index);
        if missing {
            self.insert(index..end);
        }
        missing
    }

    /// Takes one index out. Returns whether it was in the set.
    pub fn remove_index(&mut self, index: u64) -> bool {
        let present = self.contains(index);
        if present {
            self.remove(index..index + 1);
        }
        present
    }

    /// Whether `index` is in the set.
    pub fn contains(&self, index: u64) -> bool {
        let at = self.intervals.partition_point(|&(_, end)| end <= index);
        self.intervals.get(at).is_some_and(|&(start, _)| start <= index)
    }

    /// Number of indices.
    pub fn len(&self) -> u64 {
        self.intervals.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether there is no index.
    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// Number of intervals: what size and cost depend on.
    pub fn intervals(&self) -> usize {
        self.intervals.len()
    }

    /// The intervals in ascending order, with a gap between neighbours.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.intervals.iter().map(|&(start, end)| start..end)
    }

    /// The indices in ascending order.
    pub fn indices(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges().flatten()
    }

    /// The smallest index.
    pub fn first(&self) -> Option<u64> {
        self.intervals.first().map(|&(start, _)| start)
    }

    /// The indices in either set.
    pub fn union(&self, other: &Self) -> Self {
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.intervals.len() + other.intervals.len());
        let (mut mine, mut theirs) = (self.intervals.iter().peekable(), other.intervals.iter().peekable());
        loop {
            let next = match (mine.peek(), theirs.peek()) {
                (Some(a), Some(b)) if a.0 <= b.0 => mine.next(),
                (_, Some(_)) => theirs.next(),
                (_, None) => mine.next(),
            };
            let Some(&(start, end)) = next else { break };
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = max(last.1, end),
                _ => merged.push((start, end)),
            }
        }
        Self { intervals: merged }
    }

    /// The indices in this set and not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = Vec::with_capacity(self.intervals.len());
        let mut holes = other.intervals.as_slice();
        for &(mut start, end) in &self.intervals {
            // A hole may reach over several intervals: it is dropped only once it lies before the current one.
            while let Some(&(hole_start, hole_end)) = holes.first() {
                if hole_end <= start {
                    holes = &holes[1..];
                } else if hole_start >= end {
                    break;
                } else {
                    if start < hole_start {
                        rest.push((start, hole_start));
                    }
                    start = min(hole_end, end);
                    if start == end {
                        break;
                    }
                }
            }
            if start < end {
                rest.push((start, end));
            }
        }
        Self { intervals: rest }
    }

    /// The intervals that end behind the first index of `other` and begin before its last.
    fn around(&self, other: &Self) -> &[(u64, u64)] {
        let (Some(&(start, _)), Some(&(_, end))) = (other.intervals.first(), other.intervals.last()) else {
            return &[];
        };
        let first = self.intervals.partition_point(|interval| interval.1 <= start);
        let rest = &self.intervals[first..];
        &rest[..rest.partition_point(|interval| interval.0 < end)]
    }

    /// The indices in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut common = Vec::new();
        // A small set meets but a part of a large one.
        let (mut mine, mut theirs) = (self.around(other), other.around(self));
        while let (Some(&a), Some(&b)) = (mine.first(), theirs.first()) {
            let (start, end) = (max(a.0, b.0), min(a.1, b.1));
            if start < end {
                common.push((start, end));
            }
            if a.1 <= b.1 {
                mine = &mine[1..];
            } else {
                theirs = &theirs[1..];
            }
        }
        Self { intervals: common }
    }

    /// Adds all indices of `other`.
    pub fn extend_with(&mut self, other: &Self) {
        match other.intervals.as_slice() {
            [] => {}
            &[(start, end)] => self.insert(start..end),
            _ => *self = self.union(other),
        }
    }

    /// Takes all indices of `other` out.
    pub fn subtract(&mut self, other: &Self) {
        match other.intervals.as_slice() {
            [] => {}
            &[(start, end)] => self.remove(start..end),
            _ => *self = self.difference(other),
        }
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.intervals.capacity() * size_of::<(u64, u64)>()
    }

    /// Takes the `n` smallest indices out and returns them; all of them when there are no more than `n`.
    pub fn take_first(&mut self, n: u64) -> Self {
        let mut wanted = n;
        let mut whole = 0;
        while let Some(&(start, end)) = self.intervals.get(whole) {
            if end - start > wanted {
                break;
            }
            wanted -= end - start;
            whole += 1;
        }
        let mut taken: Vec<_> = self.intervals.drain(..whole).collect();
        if wanted > 0
            && let Some(interval) = self.intervals.first_mut()
        {
            let cut = interval.0 + wanted;
            taken.push((interval.0, cut));
            interval.0 = cut;
        }
        Self { intervals: taken }
    }
}

impl fmt::Debug for IntervalSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.ranges()).finish()
    }
}

/// A set of task indices that changes one by one in any order: as an [`IntervalSet`], but in a tree, so that a
/// change costs the logarithm of the number of intervals. It also knows how many indices it has.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct IntervalTree {
    /// Start to end, with a gap between neighbours.
    intervals: BTreeMap<u64, u64>,
    len: u64,
}

impl IntervalTree {
    /// Number of indices.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no index.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `index` is in the set.
    pub(crate) fn contains(&self, index: u64) -> bool {
        self.intervals.range(..=index).next_back().is_some_and(|(_, &end)| index < end)
    }

    /// Adds the indices of `range`; an empty or backward range adds nothing.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // From the last interval that begins in or directly behind the range down to the one that reaches the range's start.
        while let Some((&known_start, &known_end)) = self.intervals.range(..=range.end).next_back() {
            if known_end < range.start {
                break;
            }
            (start, end) = (min(start, known_start), max(end, known_end));
            self.len -= known_end - known_start;
            if known_start <= range.start {
                // Extend that interval in place.
                self.intervals.insert(known_start, end);
                self.len += end - start;
                return;
            }
            self.intervals.remove(&known_start);
        }
        self.intervals.insert(start, end);
        self.len += end - start;
    }

    /// Takes the indices of `range` out; those that are not in the set do not matter.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        while let Some((&start, &end)) = self.intervals.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            self.len -= min(end, range.end) - max(start, range.start);
            if range.end < end {
                self.intervals.insert(range.end, end);
            }
            if start < range.start {
                self.intervals.insert(start, range.start);
                break;
            }
            self.intervals.remove(&start);
        }
    }

    /// Adds all indices of `other`.
    pub(crate) fn extend_with(&mut self, other: &IntervalSet) {
        other.ranges().for_each(|range| self.insert(range));
    }

    /// Takes all indices of `other` out.
    pub(crate) fn subtract(&mut self, other: &IntervalSet) {
        other.ranges().for_each(|range| self.remove(range));
    }

    /// The indices in both sets.
    pub(crate) fn intersection(&self, other: &IntervalSet) -> IntervalSet {
        let mut intervals = Vec::new();
        for range in other.ranges() {
            let before = self.intervals.range(..range.start).next_back();
            let within = self.intervals.range(range.clone());
            for (&start, &end) in before.into_iter().chain(within) {
                let (start, end) = (max(start, range.start), min(end, range.end));
                if start < end {
                    intervals.push((start, end));
                }
            }
        }
        IntervalSet { intervals }
    }

    /// The intervals in ascending order, with a gap between neighbours.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.intervals.iter().map(|(&start, &end)| start..end)
    }
}

impl fmt::Debug for IntervalTree {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.ranges()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0_u64..120, 0_u64..12), 0..12)
    }

    fn both(list: &[(u64, u64)]) -> (IntervalSet, BTreeSet<u64>) {
        let mut set = IntervalSet::new();
        let mut model = BTreeSet::new();
        for &(start, length) in list {
            set.insert(start..start + length);
            model.extend(start..start + length);
        }
        (set, model)
    }

    /// The set has the model's indices, and its intervals are the maximal runs of the model.
    fn assert_same(set: &IntervalSet, model: &BTreeSet<u64>) {
        assert_eq!(set.indices().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
        assert_eq!(set.len(), model.len() as u64);
        assert_eq!(set.is_empty(), model.is_empty());
        assert_eq!(set.first(), model.first().copied());
        let runs = model.iter().filter(|&&index| index == 0 || !model.contains(&(index - 1))).count();
        assert_eq!(set.intervals(), runs);
        assert!(set.ranges().all(|range| range.start < range.end));
    }

    proptest! {
        #[test]
        fn single_changes_agree_with_a_tree_of_indices(
            steps in prop::collection::vec((0_u8..4, 0_u64..60, 0_u64..15), 0..40),
        ) {
            let (mut set, mut model) = both(&[]);
            for (kind, start, length) in steps {
                match kind {
                    0 => {
                        set.insert(start..start + length);
                        model.extend(start..start + length);
                    }
                    1 => {
                        set.remove(start..start + length);
                        model.retain(|index| !(start..start + length).contains(index));
                    }
                    2 => prop_assert_eq!(set.insert_index(start), model.insert(start)),
                    _ => prop_assert_eq!(set.remove_index(start), model.remove(&start)),
                }
                assert_same(&set, &model);
                for index in 0..80 {
                    prop_assert_eq!(set.contains(index), model.contains(&index));
                }
            }
        }

        #[test]
        fn the_tree_agrees_with_a_tree_of_indices(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..15), 0..40), other in ranges(),
        ) {
            let (mut tree, mut model) = (IntervalTree::default(), BTreeSet::new());
            for (insert, start, length) in steps {
                if insert {
                    tree.insert(start..start + length);
                    model.extend(start..start + length);
                } else {
                    tree.remove(start..start + length);
                    model.retain(|index| !(start..start + length).contains(index));
                }
                let same: IntervalSet = tree.ranges().collect();
                assert_same(&same, &model);
                prop_assert_eq!(same.intervals(), tree.intervals.len());
                prop_assert_eq!((tree.len(), tree.is_empty()), (model.len() as u64, model.is_empty()));
                for index in 0..80 {
                    prop_assert_eq!(tree.contains(index), model.contains(&index));
                }
            }
            let (other, other_model) = both(&other);
            assert_same(&tree.intersection(&other), &(&model & &other_model));
            let mut more = tree.clone();
            more.extend_with(&other);
            assert_same(&more.ranges().collect(), &(&model | &other_model));
            tree.subtract(&other);
            assert_same(&tree.ranges().collect(), &(&model - &other_model));
        }

        #[test]
        fn set_algebra_agrees_with_a_tree_of_indices(a in ranges(), b in ranges()) {
            let ((set_a, model_a), (set_b, model_b)) = (both(&a), both(&b));
            assert_same(&set_a.union(&set_b), &(&model_a | &model_b));
            assert_same(&set_a.difference(&set_b), &(&model_a - &model_b));
            assert_same(&set_a.intersection(&set_b), &(&model_a & &model_b));
            let mut set = set_a.clone();
            set.extend_with(&set_b);
            assert_same(&set, &(&model_a | &model_b));
            let mut set = set_a.clone();
            set.subtract(&set_b);
            assert_same(&set, &(&model_a - &model_b));
        }

        #[test]
        fn the_first_indices_are_taken(list in ranges(), n in 0_u64..150) {
            let (mut set, mut model) = both(&list);
            let taken = set.take_first(n);
            let expected: BTreeSet<u64> = model.iter().copied().take(n as usize).collect();
            model.retain(|index| !expected.contains(index));
            assert_same(&taken, &expected);
            assert_same(&set, &model);
        }

        #[test]
        fn encoded_sets_decode_to_the_same(list in ranges()) {
            let (set, _) = both(&list);
            let mut bytes = Vec::new();
            ciborium::into_writer(&set, &mut bytes).unwrap();
            let back: IntervalSet = ciborium::from_reader(bytes.as_slice()).unwrap();
            prop_assert_eq!(back, set);
        }

        #[test]
        fn a_decoded_list_is_in_normal_form(list in prop::collection::vec((0_u64..40, 0_u64..6), 0..5)) {
            let mut bytes = Vec::new();
            ciborium::into_writer(&list, &mut bytes).unwrap();
            let decoded: Result<IntervalSet, _> = ciborium::from_reader(bytes.as_slice());
            let (_, model) = both(&list);
            let normal = list.iter().all(|&(_, length)| length > 0)
                && list.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0);
            prop_assert_eq!(decoded.is_ok(), normal);
            if let Ok(set) = decoded {
                assert_same(&set, &model);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(set) = ciborium::from_reader::<IntervalSet, _>(bytes.as_slice()) {
                prop_assert!(set.ranges().all(|range| range.start < range.end));
            }
        }
    }

    #[test]
    fn lists_in_no_normal_form_are_refused() {
        let refused = |list: &[(u64, u64)]| IntervalSet::try_from(list.to_vec()).unwrap_err();
        assert_eq!(refused(&[(3, 0)]), IntervalError::Empty(0));
        assert_eq!(refused(&[(0, 1), (u64::MAX, 1)]), IntervalError::Overflow(1));
        assert_eq!(refused(&[(5, 2), (1, 2)]), IntervalError::Order(1));
        assert_eq!(refused(&[(5, 2), (6, 2)]), IntervalError::Order(1));
        assert_eq!(refused(&[(5, 2), (7, 2)]), IntervalError::Order(1));
    }

    #[test]
    fn extreme_indices_are_handled() {
        let mut set = IntervalSet::from(0..u64::MAX);
        assert_eq!(set.len(), u64::MAX);
        assert!(!set.insert_index(u64::MAX) && !set.contains(u64::MAX));
        assert!(!set.remove_index(u64::MAX));
        assert!(set.remove_index(u64::MAX - 1));
        assert_eq!(set.take_first(u64::MAX), IntervalSet::from(0..u64::MAX - 1));
        assert!(set.is_empty());
        let backward = Range { start: 9, end: 4 };
        set.insert(backward.clone());
        assert!(set.is_empty());
        set.insert(0..20);
        set.remove(backward);
        assert_eq!(set.len(), 20);
    }
}
