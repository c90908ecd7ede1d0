//! How long answers take on the path to a peer.

use std::time::Duration;

/// Longest round trip that is taken for one: what is later says nothing of the path. Our choice.
const SAMPLE_MAX: Duration = Duration::from_secs(60);
/// Times that the wait is doubled at most: the longest wait of the configuration comes first.
const BACK_OFF_MAX: u8 = 6;

/// Estimate of the round trip to a peer, and of how much it varies: RFC 6298, section 2.
///
/// Karn's rule (its section 3) holds where samples are taken: an answer counts only if it shows which of our messages it
/// answers. Each ping has a number of its own, so that the answer to a repeated ping counts, too, as with the timestamps
/// of TCP (RFC 7323, section 4); a report has none, so that the answer to a repeated report does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// SRTT; 0 is unknown.
    round_trip_us: u32,
    /// RTTVAR.
    deviation_us: u32,
    /// How often the wait was doubled since the last sample: its rules 5.5 and 5.7.
    back_off: u8,
}

impl Path {
    /// Takes an answer that came after so long: its rules 2.2 and 2.3.
    pub(crate) fn sample(&mut self, round_trip: Duration) {
        let sample_us = round_trip.min(SAMPLE_MAX).as_micros().max(1) as u32;
        self.back_off = 0;
        if self.round_trip_us == 0 {
            (self.round_trip_us, self.deviation_us) = (sample_us, sample_us / 2);
        } else {
            self.deviation_us = (self.deviation_us * 3 + self.round_trip_us.abs_diff(sample_us)) / 4;
            self.round_trip_us = (self.round_trip_us * 7 + sample_us) / 8;
        }
    }

    /// No answer came in time: the next wait is twice as long, until an answer is measured.
    pub(crate) fn back_off(&mut self) {
        self.back_off = (self.back_off + 1).min(BACK_OFF_MAX);
    }

    /// The time within which nearly every answer comes, doubled for each wait in vain; `unknown` is what a first answer
    /// is given.
    pub(crate) fn answer_within(&self, unknown: Duration) -> Duration {
        let (round_trip_us, deviation_us) = (u64::from(self.round_trip_us), u64::from(self.deviation_us));
        let known = Duration::from_micros(round_trip_us + 4 * deviation_us);
        (if self.is_known() { known } else { unknown }) * (1 << self.back_off)
    }

    /// Whether an answer was ever measured.
    pub(crate) fn is_known(&self) -> bool {
        self.round_trip_us > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: Duration = Duration::from_millis(500);

    fn millis(path: &Path) -> u128 {
        path.answer_within(UNKNOWN).as_millis()
    }

    /// The values are those of RFC 6298 by hand.
    #[test]
    fn an_answer_is_awaited_for_the_round_trip_and_four_deviations() {
        let mut path = Path::default();
        assert_eq!(millis(&path), 500);
        path.sample(Duration::from_millis(100));
        assert_eq!(millis(&path), 300, "100 + 4 * 100 / 2");
        (0..50).for_each(|_| path.sample(Duration::from_millis(100)));
        assert_eq!(millis(&path), 100);
        path.sample(Duration::from_millis(180));
        assert_eq!(millis(&path), 190, "(7 * 100 + 180) / 8 + 4 * 80 / 4");
    }

    #[test]
    fn waits_in_vain_double_until_an_answer_is_measured() {
        let mut path = Path::default();
        path.back_off();
        path.back_off();
        assert_eq!(millis(&path), 2_000);
        path.sample(Duration::from_millis(1_500));
        assert_eq!(millis(&path), 4_500, "1500 + 4 * 1500 / 2");
        path.back_off();
        assert_eq!(millis(&path), 9_000);
        path.sample(Duration::from_millis(1_500));
        assert_eq!(millis(&path), 3_750, "1500 + 4 * 750 * 3 / 4");
        (0..100).for_each(|_| path.back_off());
        assert_eq!(millis(&path), 3_750 << BACK_OFF_MAX);
    }
}
