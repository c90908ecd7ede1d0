//! How long answers take on the path to a peer.

use std::time::Duration;

/// Smoothed round trip and mean deviation of the path to a peer, as in TCP (RFC 6298).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// 0 is unknown.
    round_trip_us: u32,
    deviation_us: u32,
}

impl Path {
    pub(crate) fn sample(&mut self, round_trip: Duration) {
        let sample_us = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX).clamp(1, 60_000_000);
        if self.round_trip_us == 0 {
            *self = Self { round_trip_us: sample_us, deviation_us: sample_us / 4 };
        } else {
            self.deviation_us = (self.deviation_us * 3 + self.round_trip_us.abs_diff(sample_us)) / 4;
            self.round_trip_us = (self.round_trip_us * 7 + sample_us) / 8;
        }
    }

    /// The time within which nearly every answer comes, at most four round trips; none while nothing is known.
    pub(crate) fn answer_within(&self) -> Option<Duration> {
        let (round_trip_us, deviation_us) = (u64::from(self.round_trip_us), u64::from(self.deviation_us));
        let within = Duration::from_micros(round_trip_us + 4 * deviation_us.min(round_trip_us * 3 / 4));
        (self.round_trip_us > 0).then_some(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_awaited_for_the_round_trip_and_four_deviations() {
        let mut path = Path::default();
        assert_eq!(path.answer_within(), None);
        (0..50).for_each(|_| path.sample(Duration::from_millis(100)));
        assert_eq!(path.answer_within().map(|within| within.as_millis()), Some(100));
        path.sample(Duration::from_millis(180));
        assert_eq!(path.answer_within().map(|within| within.as_millis()), Some(190));
    }
}
