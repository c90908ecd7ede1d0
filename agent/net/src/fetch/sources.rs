//! Speed of sources; those that are too slow are left alone for a while.
//!
//! Each slow answer counts, with the bytes that it brought. An honest machine says at once that it is busy, and a piece
//! is of full length unless the blob ends: so even a machine whose owner gives 64 KiB/s to all others brings several
//! times the minimum rate with each of its slow answers. A timeout brings nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idlewood_overlay::PeerId;
use tokio::time::Instant;

/// Time limits of a fetcher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Faster answers do not count: a healthy machine gives them on any connection.
    pub(crate) slow_answer: Duration,
    /// A source is judged by so much waiting for slow answers together.
    pub(crate) judged_after: Duration,
    /// How long a source is left alone the first time; doubled each time in a row, up to 16 times.
    pub(crate) alone_first: Duration,
    /// Longest pause while all sources are busy.
    pub(crate) busy_pause_max: Duration,
    /// How long sources may be busy without giving a piece.
    pub(crate) busy_max: Duration,
}

impl Default for Patience {
    /// Our choice: a source is judged after two answers that time out, or more that do not.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            slow_answer: seconds(1),
            judged_after: seconds(16),
            alone_first: seconds(30),
            busy_pause_max: seconds(2),
            busy_max: seconds(120),
        }
    }
}

/// Rate that a source must reach during its slow answers. Our choice: a sixth of the rate of the slowest honest source
/// of full pieces.
const LEAST_BYTES_PER_S: f64 = 4096.0;

/// How often the time for which a source is left alone can double.
const DOUBLINGS_MAX: u32 = 4;

/// Shorter pieces show the round trip to their source rather than what the link takes. Our choice.
const MEASURED_BYTES_MIN: usize = 64 << 10;

/// Sources that are remembered. Our choice: as many as may be connected.
const SOURCES_MAX: usize = 1024;

/// The sources' records.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) patience: Patience,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The fastest piece since [`Sources::take_fastest`], in kB/s.
    fastest_kb_s: Option<u32>,
    known: BTreeMap<PeerId, Known>,
    /// How many times a source was found too slow.
    found_slow: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    waited: Duration,
    bytes: u64,
    /// How many times in a row it was found too slow.
    strikes: u32,
    alone_until: Option<Instant>,
    heard: Instant,
}

impl Sources {
    pub(super) fn new(patience: Patience) -> Self {
        Self { patience, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an answer that took so long and brought so many bytes. If the source is now too slow, returns for how long
    /// it is left alone.
    pub(super) fn answered(&self, now: Instant, source: PeerId, took: Duration, bytes: usize) -> Option<Duration> {
        let Patience { slow_answer, judged_after, alone_first, .. } = self.patience;
        let mut state = self.state();
        if bytes >= MEASURED_BYTES_MIN {
            let kb_s = (bytes as f64 / took.as_secs_f64().max(1e-6) / 1000.0) as u32;
            state.fastest_kb_s = state.fastest_kb_s.max(Some(kb_s));
        }
        if took < slow_answer && !state.known.contains_key(&source) {
            return None;
        }
        if state.known.len() >= SOURCES_MAX && !state.known.contains_key(&source) {
            let oldest = state.known.iter().min_by_key(|(_, known)| (known.alone_until, known.heard));
            let oldest = oldest.map(|(&peer, _)| peer);
            oldest.and_then(|oldest| state.known.remove(&oldest));
        }
        let new = Known { waited: Duration::ZERO, bytes: 0, strikes: 0, alone_until: None, heard: now };
        let known = state.known.entry(source).or_insert(new);
        known.heard = now;
        if took < slow_answer {
            return None;
        }
        known.waited += took;
        known.bytes += bytes as u64;
        if known.waited < judged_after {
            return None;
        }
        let is_slow = (known.bytes as f64) < known.waited.as_secs_f64() * LEAST_BYTES_PER_S;
        (known.waited, known.bytes) = (Duration::ZERO, 0);
        if !is_slow {
            known.strikes = 0;
            return None;
        }
        if known.alone_until.is_some_and(|until| until > now) {
            // A request that was under way when the source was judged.
            return None;
        }
        let alone = alone_first * 2_u32.pow(known.strikes.min(DOUBLINGS_MAX));
        known.strikes += 1;
        known.alone_until = Some(now + alone);
        state.found_slow += 1;
        Some(alone)
    }

    /// The rate of the fastest piece since the last call, in kB/s; `None` without any. This machine's link takes at least that.
    pub(super) fn take_fastest(&self) -> Option<u32> {
        self.state().fastest_kb_s.take()
    }

    /// For how much longer this source is left alone.
    pub(super) fn alone(&self, now: Instant, source: PeerId) -> Option<Duration> {
        let until = self.state().known.get(&source)?.alone_until?;
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Sources left alone, and the total number of such judgements.
    pub(super) fn all_alone(&self, now: Instant) -> (Vec<(PeerId, Duration)>, u64) {
        let state = self.state();
        let alone = state.known.iter().filter_map(|(&peer, known)| {
            let left = known.alone_until?.checked_duration_since(now)?;
            (!left.is_zero()).then_some((peer, left))
        });
        (alone.collect(), state.found_slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId([1; 32]);
    const PIECE: usize = crate::CHUNK_BYTES_MAX;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_source_that_sends_a_byte_now_and_then_is_left_alone_ever_longer() {
        let sources = Sources::default();
        let mut now = Instant::now();
        let mut alone = Vec::new();
        for _ in 0..7 {
            assert_eq!(sources.answered(now, PEER, 8 * SECOND, 1), None, "one may be chance");
            let found = sources.answered(now, PEER, 8 * SECOND, 1).expect("it is too slow");
            assert_eq!(sources.alone(now, PEER), Some(found));
            assert_eq!(sources.answered(now, PEER, 30 * SECOND, 0), None, "what was under way");
            alone.push(found.as_secs());
            now += found;
            assert_eq!(sources.alone(now, PEER), None);
        }
        assert_eq!(alone, [30, 60, 120, 240, 480, 480, 480]);
        assert_eq!(sources.all_alone(now), (vec![], 7));
        // It brings a full piece, and its record is cleared.
        for _ in 0..2 {
            assert_eq!(sources.answered(now, PEER, 9 * SECOND, PIECE), None);
        }
        for _ in 0..2 {
            sources.answered(now, PEER, 10 * SECOND, 0);
        }
        assert_eq!(sources.alone(now, PEER), Some(30 * SECOND));
    }

    #[test]
    fn the_fastest_full_piece_shows_what_the_link_takes() {
        let (sources, now) = (Sources::default(), Instant::now());
        sources.answered(now, PEER, SECOND / 1000, 1000);
        assert_eq!(sources.take_fastest(), None, "short pieces show nothing");
        for seconds in [4, 1, 2] {
            sources.answered(now, PEER, seconds * SECOND, PIECE);
        }
        assert_eq!(sources.take_fastest(), Some(PIECE as u32 / 1000));
        assert_eq!(sources.take_fastest(), None);
    }

    #[test]
    fn an_honest_slow_connection_is_not_too_slow() {
        let (sources, now) = (Sources::default(), Instant::now());
        // `upload = "64K"` shared among several: a piece each nine seconds, and small ones at once.
        for _ in 0..1000 {
            assert_eq!(sources.answered(now, PEER, 9 * SECOND, PIECE), None);
            assert_eq!(sources.answered(now, PEER, SECOND / 2, 1), None);
        }
        // Immediate failures do not count either.
        for _ in 0..1000 {
            assert_eq!(sources.answered(now, PEER, SECOND / 100, 0), None);
        }
        assert_eq!(sources.all_alone(now), (vec![], 0));
    }

    #[test]
    fn records_are_bounded_and_sources_left_alone_stay_longest() {
        let (sources, now) = (Sources::default(), Instant::now());
        let peer = |number: u32| {
            let mut peer = [0; 32];
            peer[..4].copy_from_slice(&number.to_be_bytes());
            PeerId(peer)
        };
        sources.answered(now, PEER, 20 * SECOND, 0).expect("it is too slow");
        for number in 0..3 * SOURCES_MAX as u32 {
            sources.answered(now, peer(number), 2 * SECOND, 1);
        }
        assert_eq!(sources.state().known.len(), SOURCES_MAX);
        assert!(sources.alone(now, PEER).is_some());
    }
}
