//! Speed of sources; those that are too slow are left alone for a while.
//!
//! Each slow piece counts, with the bytes that it brought, and each request that nobody answered in time, which brought none. That a source is busy does not count:
//! the download asks elsewhere meanwhile, and gives up when all are busy for too long.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

/// Time limits of downloads.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Faster answers do not count: a healthy machine gives them on any connection.
    pub slow_answer: Duration,
    /// A source is judged by so much waiting for slow answers together.
    pub judged_after: Duration,
    /// How long a source is left alone the first time; doubled each time in a row, up to 16 times.
    pub alone_first: Duration,
    /// Longest pause while all sources are busy.
    pub busy_pause_max: Duration,
    /// How long sources may be busy without giving a piece.
    pub busy_max: Duration,
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

/// Rate that a source must reach during its slow answers. Our choice: a piece of the shortest kind in the ten seconds that a request may take comes faster.
const LEAST_BYTES_PER_S: f64 = 1024.0;

/// How often the time for which a source is left alone can double.
const DOUBLINGS_MAX: u32 = 4;

/// Sources that are remembered. Our choice: as many as may be connected.
const SOURCES_MAX: usize = 1024;

/// The sources' records.
#[derive(Debug, Default)]
pub struct Sources {
    pub(super) patience: Patience,
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
    alone_until: Option<Time>,
    heard: Time,
}

impl Sources {
    /// No source is known yet.
    pub fn new(patience: Patience) -> Self {
        Self { patience, ..Self::default() }
    }

    /// Notes an answer that took so long and brought so many bytes; `None`: the source is busy, which does not count. If the source is now too slow, returns for how long
    /// it is left alone.
    pub fn answered(&mut self, now: Time, source: PeerId, took: Duration, bytes: Option<usize>) -> Option<Duration> {
        let bytes = bytes?;
        let Patience { slow_answer, judged_after, alone_first, .. } = self.patience;
        if took < slow_answer && !self.known.contains_key(&source) {
            return None;
        }
        if self.known.len() >= SOURCES_MAX && !self.known.contains_key(&source) {
            let oldest = self.known.iter().min_by_key(|(_, known)| (known.alone_until, known.heard));
            let oldest = oldest.map(|(&peer, _)| peer);
            oldest.and_then(|oldest| self.known.remove(&oldest));
        }
        let new = Known { waited: Duration::ZERO, bytes: 0, strikes: 0, alone_until: None, heard: now };
        let known = self.known.entry(source).or_insert(new);
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
        self.found_slow += 1;
        Some(alone)
    }

    /// For how much longer this source is left alone.
    pub fn alone(&self, now: Time, source: PeerId) -> Option<Duration> {
        let until = self.known.get(&source)?.alone_until?;
        (until > now).then(|| until.since(now))
    }

    /// Sources left alone, and the total number of such judgements.
    pub fn all_alone(&self, now: Time) -> (Vec<(PeerId, Duration)>, u64) {
        let alone = self.known.keys().filter_map(|&peer| Some((peer, self.alone(now, peer)?)));
        (alone.collect(), self.found_slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId([1; 32]);
    const PIECE: usize = 256 * 1024;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_source_that_sends_a_byte_now_and_then_is_left_alone_ever_longer() {
        let mut sources = Sources::default();
        let mut now = Time::ZERO;
        let mut alone = Vec::new();
        for _ in 0..7 {
            assert_eq!(sources.answered(now, PEER, 8 * SECOND, Some(1)), None, "one may be chance");
            assert_eq!(sources.answered(now, PEER, 30 * SECOND, None), None, "it was busy");
            let found = sources.answered(now, PEER, 8 * SECOND, Some(1)).expect("it is too slow");
            assert_eq!(sources.alone(now, PEER), Some(found));
            assert_eq!(sources.answered(now, PEER, 30 * SECOND, Some(0)), None, "what was under way");
            alone.push(found.as_secs());
            now += found;
            assert_eq!(sources.alone(now, PEER), None);
        }
        assert_eq!(alone, [30, 60, 120, 240, 480, 480, 480]);
        assert_eq!(sources.all_alone(now), (vec![], 7));
        // It brings a full piece, and its record is cleared.
        for _ in 0..2 {
            assert_eq!(sources.answered(now, PEER, 9 * SECOND, Some(PIECE)), None);
        }
        for _ in 0..2 {
            sources.answered(now, PEER, 10 * SECOND, Some(0));
        }
        assert_eq!(sources.alone(now, PEER), Some(30 * SECOND));
    }

    #[test]
    fn an_honest_slow_connection_is_not_too_slow() {
        let (mut sources, now) = (Sources::default(), Time::ZERO);
        // `upload = "64K"` shared among several: a piece each nine seconds, and small ones at once.
        for _ in 0..1000 {
            assert_eq!(sources.answered(now, PEER, 9 * SECOND, Some(PIECE)), None);
            assert_eq!(sources.answered(now, PEER, SECOND / 2, Some(1)), None);
        }
        // Immediate failures do not count either.
        for _ in 0..1000 {
            assert_eq!(sources.answered(now, PEER, SECOND / 100, Some(0)), None);
        }
        assert_eq!(sources.all_alone(now), (vec![], 0));
    }

    #[test]
    fn records_are_bounded_and_sources_left_alone_stay_longest() {
        let (mut sources, now) = (Sources::default(), Time::ZERO);
        let peer = |number: u32| {
            let mut peer = [0; 32];
            peer[..4].copy_from_slice(&number.to_be_bytes());
            PeerId(peer)
        };
        sources.answered(now, PEER, 20 * SECOND, Some(0)).expect("it is too slow");
        for number in 0..3 * SOURCES_MAX as u32 {
            sources.answered(now, peer(number), 2 * SECOND, Some(1));
        }
        assert_eq!(sources.known.len(), SOURCES_MAX);
        assert!(sources.alone(now, PEER).is_some());
    }
}
