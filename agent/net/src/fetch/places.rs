//! Places for downloads: a bounded number, of which no source and no bag can have all, so that a slow source, or a bag
//! with very many files, delays no other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idlewood_overlay::PeerId;
use idlewood_scheduler::BagId;
use tokio::sync::oneshot;

/// Downloads at a time: in all, from one source, for one bag. Our choice: one source alone gets as many as are useful
/// on one connection; four sources that are as slow as possible still leave places free until they are left alone.
const PLACES_MAX: usize = 20;
const OF_SOURCE_MAX: usize = 4;
const OF_BAG_MAX: usize = 16;

/// All places.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    taken: usize,
    of_source: BTreeMap<PeerId, usize>,
    of_bag: BTreeMap<BagId, usize>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    source: PeerId,
    bag: BagId,
    given: oneshot::Sender<Place>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    source: PeerId,
    bag: BagId,
}

impl State {
    fn has_room_for(&self, source: PeerId, bag: BagId) -> bool {
        self.taken < PLACES_MAX
            && self.of_source.get(&source).is_none_or(|&taken| taken < OF_SOURCE_MAX)
            && self.of_bag.get(&bag).is_none_or(|&taken| taken < OF_BAG_MAX)
    }

    fn take(&mut self, source: PeerId, bag: BagId) {
        self.taken += 1;
        *self.of_source.entry(source).or_default() += 1;
        *self.of_bag.entry(bag).or_default() += 1;
    }

    fn give_back(&mut self, source: PeerId, bag: BagId) {
        self.taken -= 1;
        let of_source = self.of_source.entry(source).or_default();
        *of_source -= 1;
        if *of_source == 0 {
            self.of_source.remove(&source);
        }
        let of_bag = self.of_bag.entry(bag).or_default();
        *of_bag -= 1;
        if *of_bag == 0 {
            self.of_bag.remove(&bag);
        }
    }

    /// The first in the queue that may have a place.
    fn next(&mut self) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.given.is_closed());
        let fits = |waiting: &Waiting| self.has_room_for(waiting.source, waiting.bag);
        let position = self.waiting.iter().position(fits)?;
        let next = self.waiting.remove(position)?;
        self.take(next.source, next.bag);
        Some(next)
    }
}

impl Places {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. Dropping the future passes the turn on.
    pub(super) async fn take(self: &Arc<Self>, source: PeerId, bag: BagId) -> Place {
        loop {
            let given = {
                let mut state = self.state();
                if state.has_room_for(source, bag) {
                    state.take(source, bag);
                    return Place { places: self.clone(), source, bag };
                }
                let (given, gets) = oneshot::channel();
                state.waiting.push_back(Waiting { source, bag, given });
                gets
            };
            // The sender is never dropped without sending a place.
            if let Ok(place) = given.await {
                return place;
            }
        }
    }

    /// Numbers of places taken and of callers waiting.
    pub(super) fn count(&self) -> (usize, usize) {
        let state = self.state();
        (state.taken, state.waiting.iter().filter(|waiting| !waiting.given.is_closed()).count())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.state().give_back(self.source, self.bag);
        loop {
            let next = self.places.state().next();
            let Some(Waiting { source, bag, given }) = next else { return };
            // If the receiver was just dropped, dropping the place passes it on.
            drop(given.send(Place { places: self.places.clone(), source, bag }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn source(number: u8) -> PeerId {
        PeerId([number; 32])
    }

    fn bag(number: u8) -> BagId {
        BagId([number; 32])
    }

    type Taking = Pin<Box<dyn Future<Output = Place>>>;

    fn begin(places: &Arc<Places>, of: PeerId, for_bag: BagId) -> Taking {
        let places = places.clone();
        Box::pin(async move { places.take(of, for_bag).await })
    }

    fn poll(taking: &mut Taking) -> Option<Place> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    #[test]
    fn no_source_and_no_bag_has_all_places() {
        let places = Arc::new(Places::default());
        let take = |of: u8, for_bag: u8| poll(&mut begin(&places, source(of), bag(for_bag)));
        let greedy: Vec<Place> = (0..100).map_while(|_| take(1, 1)).collect();
        assert_eq!(greedy.len(), OF_SOURCE_MAX);
        let many: Vec<Place> = (2..100).map_while(|of| take(of, 1)).collect();
        assert_eq!(greedy.len() + many.len(), OF_BAG_MAX, "of as many sources as there are");
        let others: Vec<Place> = (2..100).map_while(|of| take(of, of)).collect();
        assert_eq!(greedy.len() + many.len() + others.len(), PLACES_MAX);
        drop((greedy, many, others));
        assert_eq!(places.count(), (0, 0));
        assert!(places.state().of_source.is_empty() && places.state().of_bag.is_empty());
    }

    #[test]
    fn a_caller_waiting_for_a_busy_source_is_overtaken_and_served_in_turn() {
        let places = Arc::new(Places::default());
        let mut taken: Vec<Place> =
            (0..OF_SOURCE_MAX).filter_map(|_| poll(&mut begin(&places, source(1), bag(1)))).collect();
        let mut waiting: Vec<Taking> = (0..3).map(|_| begin(&places, source(1), bag(1))).collect();
        assert!(waiting.iter_mut().all(|taking| poll(taking).is_none()));
        assert_eq!(places.count(), (OF_SOURCE_MAX, 3));
        let other = poll(&mut begin(&places, source(2), bag(1)));
        assert!(other.is_some(), "another source waits for none of them");
        // A waiting caller that is dropped loses its turn, before and after it was called.
        drop(waiting.remove(0));
        taken.pop();
        drop(waiting.remove(0));
        let last = poll(&mut waiting[0]);
        assert!(last.is_some());
        assert_eq!(places.count(), (OF_SOURCE_MAX + 1, 0));
        drop((taken, last, other));
        assert_eq!(places.count(), (0, 0));
    }
}
