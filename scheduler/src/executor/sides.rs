//! Finite and endless bags on one machine: how many of its slots the endless ones have.
//!
//! Endless bags are guaranteed the part σ of a machine while finite ones wait ([`crate::Config::endless_share`]), and have all that finite ones
//! leave. σ of k slots is a number of whole slots and a rest: the rest is a slot that they have from time to time, when they are behind by
//! [`QUANTUM`] of slot time until they are not any more. Time is measured, not tasks counted, so that long tasks gain nothing.

use std::time::Duration;

use idlewood_overlay::Time;

/// How far endless bags get behind their part before they have one more slot, in slot time. Our choice: long beside what freezing a task takes,
/// short beside the promises of finite bags.
const QUANTUM: Duration = Duration::from_secs(5);
/// Added to a moment at which the slots change, so that rounding does not wake the executor too early.
const ROUNDING: Duration = Duration::from_millis(1);

/// Slot time that endless bags are behind.
#[derive(Debug)]
pub(super) struct Sides {
    share: f64,
    behind_s: f64,
    /// How fast that grows; `None` while the two kinds of bags do not compete.
    grows: Option<f64>,
    since: Time,
    /// Endless bags have one more slot than whole ones.
    has_one_more: bool,
}

impl Sides {
    pub(super) fn new(share: f64) -> Self {
        Self { share, behind_s: 0.0, grows: None, since: Time::ZERO, has_one_more: false }
    }

    /// σ.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// The slots that endless bags have, where each kind has so many tasks that could run.
    pub(super) fn endless_slots(&mut self, slots: usize, finite: u64, endless: u64, now: Time) -> usize {
        self.pass(now);
        let guaranteed = (self.share * slots as f64).floor() as usize + usize::from(self.has_one_more);
        let left = slots - (finite.min(slots as u64) as usize);
        guaranteed.max(left).min(slots).min(usize::try_from(endless).unwrap_or(usize::MAX))
    }

    fn pass(&mut self, now: Time) {
        if let Some(grows) = self.grows {
            self.behind_s += grows * now.since(self.since).as_secs_f64();
            if self.behind_s >= QUANTUM.as_secs_f64() {
                self.has_one_more = true;
            } else if self.behind_s <= 0.0 {
                // What they had beyond their part is not held against them for long.
                (self.has_one_more, self.behind_s) = (false, self.behind_s.max(-QUANTUM.as_secs_f64()));
            }
        }
        self.since = now;
    }

    /// From now on endless bags run on so many slots; `compete`: more tasks of both kinds could run than there are slots.
    pub(super) fn run(&mut self, slots: usize, endless: usize, compete: bool) {
        if !compete {
            (self.behind_s, self.has_one_more) = (0.0, false);
        }
        self.grows = compete.then_some(self.share * slots as f64 - endless as f64);
    }

    /// When endless bags have another number of slots, if nothing else happens.
    pub(super) fn changes_at(&self) -> Option<Time> {
        let grows = self.grows?;
        let left_s = match self.has_one_more {
            false if grows > 0.0 => (QUANTUM.as_secs_f64() - self.behind_s) / grows,
            true if grows < 0.0 => self.behind_s / -grows,
            _ => return None,
        };
        Some(self.since + Duration::try_from_secs_f64(left_s.max(0.0)).ok()? + ROUNDING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slot time of endless bags over so many seconds, where both kinds have as many tasks as they can run.
    fn slot_seconds(share: f64, slots: usize, seconds: i64) -> f64 {
        let mut sides = Sides::new(share);
        let (mut now, mut had) = (Time::ZERO, 0.0);
        let end = Time::from_micros(seconds * 1_000_000);
        while now < end {
            let endless = sides.endless_slots(slots, 100, 100, now);
            sides.run(slots, endless, true);
            let next = sides.changes_at().map_or(end, |at| at.min(end));
            had += endless as f64 * next.since(now).as_secs_f64();
            now = next;
        }
        had
    }

    #[test]
    fn endless_bags_have_their_part_of_the_time() {
        for (share, slots) in [(0.25, 1), (0.25, 4), (0.5, 3), (0.1, 16), (0.0, 2), (0.9, 2)] {
            let had = slot_seconds(share, slots, 2000);
            let expected = share * slots as f64 * 2000.0;
            assert!((had - expected).abs() <= 6.0, "{share} of {slots}: {had} instead of {expected}");
        }
    }

    #[test]
    fn each_kind_has_what_the_other_leaves() {
        let mut sides = Sides::new(0.25);
        let mut slots = |finite, endless| sides.endless_slots(4, finite, endless, Time::ZERO);
        assert_eq!([slots(0, 9), slots(3, 9), slots(9, 9), slots(9, 0), slots(2, 1)], [4, 1, 1, 0, 1]);
    }
}
