//! Pace: each machine sends its messages about a bag at a moment of its own in a period, so that not all take the
//! submitter's link at once.

use std::time::Duration;

use idlewood_overlay::{Contact, Time};

/// A period, and this machine's own moment in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) period: Duration,
    /// The own moment, as a share of the period in [0, 1).
    pub(crate) share: f64,
}

impl Pace {
    /// No pace: messages are sent at once.
    pub(crate) const NONE: Self = Self { period: Duration::ZERO, share: 0.0 };

    /// The pace of one machine for a subject: the share is a hash of both.
    pub(crate) fn new(period: Duration, me: &Contact, subject: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&me.peer.0).update(subject);
        let mut first = [0; 4];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..4]);
        Self { period, share: f64::from(u32::from_le_bytes(first)) / 2.0_f64.powi(32) }
    }

    /// The same share of a period of at most `most`.
    pub(crate) fn within(self, most: Duration) -> Self {
        Self { period: self.period.min(most), ..self }
    }

    /// Whether messages are sent at once.
    pub(crate) fn is_none(&self) -> bool {
        self.period.is_zero()
    }

    /// The next own moment, `now` or later.
    pub(crate) fn next(&self, now: Time) -> Time {
        let period_us = (self.period.as_micros() as i64).max(1);
        let own_us = (period_us as f64 * self.share) as i64;
        now + Duration::from_micros((own_us - now.as_micros()).rem_euclid(period_us) as u64)
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::PeerId;

    use super::*;

    /// Machines that learn something at the same moment send at their own moments, spread over the period, period after period.
    #[test]
    fn own_moments_are_spread_over_the_period() {
        let (period, now) = (Duration::from_secs(100), Time::from_micros(123_456_789));
        let moments = (0..200_u8).map(|number| {
            let me = Contact { peer: PeerId([number; 32]), incarnation: 1, address: "".into(), nonce: None };
            let pace = Pace::new(period, &me, b"subject");
            let moment = pace.next(now);
            assert_eq!(pace.next(moment + Duration::from_micros(1)), moment + period);
            moment.since(now)
        });
        let mut tenths = [0; 10];
        moments.for_each(|wait| tenths[(wait.as_secs_f64() / 10.0) as usize] += 1);
        assert!(tenths.iter().all(|&count| (8..=35).contains(&count)), "{tenths:?}");
        let short = Pace { period, share: 0.5 }.within(Duration::from_secs(1));
        assert!(short.next(now).since(now) < Duration::from_secs(1));
        assert_eq!(Pace::NONE.next(now), now);
    }
}
