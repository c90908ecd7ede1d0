//! Places for downloads: a bounded number, of which no source and no bag can have all, so that a slow source, or a bag
//! with very many files, delays no other.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};
use idlewood_scheduler::BagId;

/// Downloads at a time: in all, from one source, for one bag. Our choice: one source alone gets as many as are useful
/// on one connection; four sources that are as slow as possible still leave places free until they are left alone.
const PLACES_MAX: usize = 20;
const OF_SOURCE_MAX: usize = 4;
const OF_BAG_MAX: usize = 16;

/// Downloads at a time that this machine's line is thought to take, at least. Our choice: one alone would leave the line empty while it
/// asks.
const PLACES_MIN: usize = 2;
/// An answer that took longer may show that more comes at a time than the line takes: whoever asks waits ten seconds, and what comes later
/// is for nothing. One that took less shows that the line takes more.
const SLOW: Duration = Duration::from_secs(4);
const QUICK: Duration = Duration::from_secs(2);

/// Names a download; never used again by these downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DownloadId(pub u64);

/// A download that waits for a place.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    download: DownloadId,
    source: PeerId,
    bag: BagId,
}

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    /// As many as the line seems to take, at most [`PLACES_MAX`].
    places: usize,
    /// When these became fewer: what was asked before says nothing of how many there are now.
    fewer_since: Time,
    taken: usize,
    of_source: BTreeMap<PeerId, usize>,
    of_bag: BTreeMap<BagId, usize>,
    waiting: VecDeque<Waiting>,
}

impl Default for Places {
    fn default() -> Self {
        let (of_source, of_bag, waiting) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { places: PLACES_MAX, fewer_since: Time::ZERO, taken: 0, of_source, of_bag, waiting }
    }
}

impl Places {
    /// A source has answered with a piece, or not at all, to what was asked then. One slow source makes places few for a moment, until
    /// others have answered quickly.
    pub(super) fn heard(&mut self, asked: Time, now: Time, came: bool) {
        let took = now.since(asked);
        if took >= SLOW && asked >= self.fewer_since {
            self.places = (self.places / 2).max(PLACES_MIN);
            self.fewer_since = now;
        } else if came && took < QUICK {
            self.places = (self.places + 1).min(PLACES_MAX);
        }
    }

    fn has_room_for(&self, source: PeerId, bag: BagId) -> bool {
        self.taken < self.places
            && self.of_source.get(&source).is_none_or(|&taken| taken < OF_SOURCE_MAX)
            && self.of_bag.get(&bag).is_none_or(|&taken| taken < OF_BAG_MAX)
    }

    fn occupy(&mut self, source: PeerId, bag: BagId) {
        self.taken += 1;
        *self.of_source.entry(source).or_default() += 1;
        *self.of_bag.entry(bag).or_default() += 1;
    }

    /// Gives a download a place, or lets it wait for one: then it is among those that [`Places::give_back`] returns.
    pub(super) fn take(&mut self, download: DownloadId, source: PeerId, bag: BagId) -> bool {
        let has_room = self.has_room_for(source, bag);
        if has_room {
            self.occupy(source, bag);
        } else {
            self.waiting.push_back(Waiting { download, source, bag });
        }
        has_room
    }

    /// A place is free again. Returns the downloads that have one now, in the order in which they waited.
    pub(super) fn give_back(&mut self, source: PeerId, bag: BagId) -> Vec<DownloadId> {
        self.taken -= 1;
        release(&mut self.of_source, source);
        release(&mut self.of_bag, bag);
        self.give()
    }

    /// Gives the places that are free to downloads that wait: those that have one now, in the order in which they waited.
    pub(super) fn give(&mut self) -> Vec<DownloadId> {
        let mut given = Vec::new();
        while let Some(position) = self.waiting.iter().position(|next| self.has_room_for(next.source, next.bag))
            && let Some(next) = self.waiting.remove(position)
        {
            self.occupy(next.source, next.bag);
            given.push(next.download);
        }
        given
    }

    /// A download does not wait any more.
    pub(super) fn leave(&mut self, download: DownloadId) {
        self.waiting.retain(|waiting| waiting.download != download);
    }

    /// Numbers of places taken and of downloads waiting.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.taken, self.waiting.len())
    }
}

fn release<K: Ord + Copy>(taken: &mut BTreeMap<K, usize>, key: K) {
    let of_key = taken.entry(key).or_default();
    *of_key -= 1;
    if *of_key == 0 {
        taken.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u8) -> PeerId {
        PeerId([number; 32])
    }

    fn bag(number: u8) -> BagId {
        BagId([number; 32])
    }

    const ANY: DownloadId = DownloadId(0);

    #[test]
    fn no_source_and_no_bag_has_all_places() {
        let mut places = Places::default();
        let mut take = |of: u8, for_bag: u8| places.take(ANY, source(of), bag(for_bag)).then_some((of, for_bag));
        let greedy: Vec<_> = (0..100).map_while(|_| take(1, 1)).collect();
        assert_eq!(greedy.len(), OF_SOURCE_MAX);
        let many: Vec<_> = (2..100).map_while(|of| take(of, 1)).collect();
        assert_eq!(greedy.len() + many.len(), OF_BAG_MAX, "of as many sources as there are");
        let others: Vec<_> = (2..100).map_while(|of| take(of, of)).collect();
        assert_eq!(greedy.len() + many.len() + others.len(), PLACES_MAX);
        places.leave(ANY);
        for (of, for_bag) in [greedy, many, others].concat() {
            assert_eq!(places.give_back(source(of), bag(for_bag)), []);
        }
        assert_eq!(places.count(), (0, 0));
        assert!(places.of_source.is_empty() && places.of_bag.is_empty());
    }

    #[test]
    fn a_download_waiting_for_a_busy_source_is_overtaken_and_served_in_turn() {
        let mut places = Places::default();
        assert!((0..OF_SOURCE_MAX).all(|_| places.take(ANY, source(1), bag(1))));
        assert!((1..=3).all(|number| !places.take(DownloadId(number), source(1), bag(1))));
        assert_eq!(places.count(), (OF_SOURCE_MAX, 3));
        assert!(places.take(ANY, source(2), bag(1)), "another source waits for none of them");
        places.leave(DownloadId(1));
        assert_eq!(places.give_back(source(1), bag(1)), [DownloadId(2)], "who is gone loses its turn");
        assert_eq!(places.give_back(source(2), bag(1)), [], "of another source");
        assert_eq!(places.give_back(source(1), bag(1)), [DownloadId(3)]);
        assert_eq!(places.count(), (OF_SOURCE_MAX, 0));
    }

    #[test]
    fn a_line_that_is_full_has_fewer_places_and_a_quick_one_more() {
        let at = |seconds: i64| Time::from_micros(1_000_000 * seconds);
        let mut places = Places::default();
        places.heard(at(0), at(8), true);
        assert_eq!(places.places, PLACES_MAX / 2);
        places.heard(at(1), at(10), false);
        assert_eq!(places.places, PLACES_MAX / 2, "it was asked while there were more");
        places.heard(at(8), at(18), false);
        assert_eq!(places.places, PLACES_MAX / 4);
        (20..40).for_each(|second| places.heard(at(second), at(second + 9), true));
        assert_eq!(places.places, PLACES_MIN);
        places.heard(at(50), at(53), true);
        assert_eq!(places.places, PLACES_MIN, "as long as it may take");
        places.heard(at(50), at(51), true);
        places.heard(at(50), at(51), false);
        assert_eq!(places.places, PLACES_MIN + 1, "only a piece shows that the line has room");
        let given = (0..9).take_while(|&number| places.take(ANY, source(number), bag(1))).count();
        assert_eq!(given, PLACES_MIN + 1);
        places.heard(at(60), at(61), true);
        assert_eq!(places.give(), [ANY], "whoever waits has the new one");
    }
}
