//! How fast slots are by the clock, as tasks show it.
//!
//! The reference kernel counts processor time. By the clock a machine is slower where tasks are ready to compute and have to wait for a processor: under a
//! quota that the agent cannot see, such as one of a container, and beside programs of others. Time in which tasks wait for anything else does not count.
//!
//! About the last minute of computing counts ([`COUNTED_S`]), and half as much for each [`HALF_LIFE`] that has passed since, so that a machine that was slow and
//! got no tasks is tried again. Without observations the speed is the one that the system grants.

use std::time::Duration;

use idlewood_overlay::Time;

/// Our choice: programs that run beside tasks come and go within minutes.
const HALF_LIFE: Duration = Duration::from_secs(600);
/// How much time of each slot counts at most; what came first goes first. Our choice: long beside the turns of a quota and of programs beside, and
/// short beside tasks.
const COUNTED_S: f64 = 60.0;
/// Time of each slot on a processor without any waiting that counts before anything was seen, and ever less the more was seen. Our choice: a few seconds of
/// a task tell how fast a machine is.
const ASSUMED_S: f64 = 1.0;
/// Least share of a core: behind programs that take all processors tasks may stand still, and would never be done by prediction. Our choice.
const SHARE_MIN: f64 = 1.0 / 64.0;
/// A speed that has changed by less is not news. Our choice, as for factors of programs.
const NEWS: f64 = 0.05;

/// The speed of each slot.
#[derive(Debug)]
pub(crate) struct Speed {
    /// Of a core while it computes.
    kernel_mops: f64,
    /// By the clock, by what the system grants this agent.
    granted_mops: f64,
    slots: f64,
    /// How long slots computed, and waited for a processor, as much as that still counts.
    ran_s: f64,
    waited_s: f64,
    /// When these two last changed.
    noted: Time,
    /// By the clock, as the peer was told last.
    mops: f64,
}

impl Speed {
    pub(crate) fn new(kernel_mops: f64, granted_mops: f64, slots: u32, now: Time) -> Self {
        let slots = f64::from(slots.max(1));
        Self { kernel_mops, granted_mops, slots, ran_s: 0.0, waited_s: 0.0, noted: now, mops: granted_mops }
    }

    /// By the clock, in Mop/s, as it was last told.
    pub(crate) fn mops(&self) -> f64 {
        self.mops
    }

    /// Slots have computed, and waited for a processor, for so long. Returns the speed by the clock where that is news.
    pub(crate) fn computed(&mut self, ran: Duration, waited: Duration, now: Time) -> Option<f64> {
        let forgotten = 0.5_f64.powf(now.since(self.noted).as_secs_f64() / HALF_LIFE.as_secs_f64());
        let (ran_s, waited_s) = (ran.as_secs_f64(), waited.as_secs_f64());
        let counted_s = COUNTED_S * self.slots;
        let room_s = (counted_s - ran_s - waited_s).max(0.0);
        let part = forgotten.min(room_s / (self.ran_s + self.waited_s).max(f64::MIN_POSITIVE));
        self.noted = now;
        self.ran_s = self.ran_s * part + ran_s;
        self.waited_s = self.waited_s * part + waited_s;
        let unseen = (1.0 - (self.ran_s + self.waited_s) / counted_s).max(0.0);
        let computes_s = self.ran_s + ASSUMED_S * self.slots * unseen;
        let share = (computes_s / (computes_s + self.waited_s)).max(SHARE_MIN);
        let mops = self.granted_mops.min(self.kernel_mops * share);
        ((mops / self.mops - 1.0).abs() > NEWS).then(|| {
            self.mops = mops;
            mops
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time::ZERO + Duration::from_secs(s)
    }

    fn after(speed: &mut Speed, from_s: u64, seconds: u64, share: f64) -> f64 {
        for second in from_s..from_s + seconds {
            speed.computed(Duration::from_secs_f64(share), Duration::from_secs_f64(1.0 - share), at(second));
        }
        speed.mops()
    }

    #[test]
    fn a_quota_that_nobody_sees_is_known_after_seconds() {
        let mut speed = Speed::new(100.0, 100.0, 1, at(0));
        assert_eq!(speed.computed(Duration::from_secs(5), Duration::ZERO, at(0)), None, "it does not wait");
        let mut speed = Speed::new(100.0, 100.0, 1, at(0));
        let soon = after(&mut speed, 0, 20, 0.1);
        assert!((10.0..16.0).contains(&soon), "{soon}");
        let later = after(&mut speed, 20, 200, 0.1);
        assert!((9.9..11.0).contains(&later), "{later}");
    }

    #[test]
    fn a_machine_that_becomes_slower_or_faster_is_known_after_minutes() {
        let mut speed = Speed::new(100.0, 100.0, 1, at(0));
        after(&mut speed, 0, 1200, 1.0);
        let soon = after(&mut speed, 1200, 60, 0.1);
        assert!((35.0..50.0).contains(&soon), "{soon}");
        let later = after(&mut speed, 1260, 180, 0.1);
        assert!((10.0..14.0).contains(&later), "{later}");
        let again = after(&mut speed, 1440, 240, 1.0);
        assert!(again > 95.0, "{again}");
    }

    #[test]
    fn what_was_seen_is_forgotten_however_long_it_was_so() {
        for slots in [1, 8] {
            let mut speed = Speed::new(100.0, 100.0, slots, at(0));
            for second in 0..3600 {
                let of_all = f64::from(slots);
                speed.computed(
                    Duration::from_secs_f64(0.1 * of_all),
                    Duration::from_secs_f64(0.9 * of_all),
                    at(second),
                );
            }
            assert!(speed.mops() < 11.0, "{}", speed.mops());
            let tried = speed.computed(Duration::ZERO, Duration::ZERO, at(2 * 3600)).expect("news");
            assert!((50.0..70.0).contains(&tried), "{tried} with {slots} slots");
            let later = speed.computed(Duration::ZERO, Duration::ZERO, at(3 * 3600)).expect("news");
            assert!(later > 95.0, "{later}");
        }
    }

    #[test]
    fn a_quota_that_was_seen_counts_where_slots_do_not_wait() {
        let mut speed = Speed::new(100.0, 50.0, 1, at(0));
        assert_eq!(after(&mut speed, 0, 30, 1.0), 50.0, "one of two slots works");
        let behind = after(&mut speed, 30, 300, 0.25);
        assert!((24.0..33.0).contains(&behind), "{behind}");
        let still = after(&mut speed, 330, 3600, 0.0);
        assert!((100.0 / 64.0..2.0).contains(&still), "{still}");
    }
}
