//! Links between machines, and their faults.
//!
//! Every message travels alone: it may be lost, arrive twice, or be held back so that later ones overtake it. A group
//! of machines may be cut off from another, in one direction only. A sender does not learn that a message is lost, or
//! that its receiver is down. The time that a message takes to leave and to arrive is not modelled here: the full
//! simulation adds it, and connections ([`Simulation`](crate::Simulation)); the one of overlays alone leaves both out.

use std::time::Duration;

use rand::{Rng, RngExt};

use crate::event_queue::HostIndex;
use crate::latency::{PAIR_MIN, Pairs};
use crate::random::happens;
use crate::scenario::Scenario;

pub use crate::quality::Quality;

/// Most groups that machines can be put into.
pub const GROUPS_MAX: u8 = 64;

/// Delays of a message's copies; none: it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// The first copy.
    pub first: Option<Duration>,
    /// The second.
    pub second: Option<Duration>,
}

/// The links.
#[derive(Clone, Debug)]
pub struct Network {
    quality: Quality,
    /// Latencies that differ from pair to pair; the quality's latency then only gives the jitter's proportion.
    pairs: Option<Pairs>,
    /// Group of each machine; those beyond the end are in group 0.
    groups: Vec<u8>,
    /// By group of the sender: a bit for each group that it cannot send to.
    cut: [u64; GROUPS_MAX as usize],
}

impl Network {
    /// Links of this quality between all machines.
    pub fn new(quality: Quality) -> Self {
        Self { quality, pairs: None, groups: Vec::new(), cut: [0; GROUPS_MAX as usize] }
    }

    /// The links of a scenario.
    pub fn of(scenario: &Scenario) -> Self {
        Self { pairs: Pairs::of(scenario), ..Self::new(scenario.quality()) }
    }

    /// How links behave.
    pub fn quality(&self) -> &Quality {
        &self.quality
    }

    /// Changes the behaviour; messages under way are not affected.
    pub fn set_quality(&mut self, quality: Quality) {
        self.quality = quality;
    }

    /// Puts a machine into a group; all begin in group 0.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn put_into(&mut self, group: u8, host: HostIndex) {
        assert!(group < GROUPS_MAX, "group {group} of {GROUPS_MAX}");
        let host = host as usize;
        if host >= self.groups.len() {
            self.groups.resize(host + 1, 0);
        }
        self.groups[host] = group;
    }

    /// From now on `from` cannot send to `to`; the other direction stays. Messages under way arrive.
    pub fn cut(&mut self, from: u8, to: u8) {
        self.cut[usize::from(from)] |= 1 << to;
    }

    /// Cuts both directions.
    pub fn partition(&mut self, one: u8, other: u8) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Ends all partitions; groups stay.
    pub fn heal(&mut self) {
        self.cut = [0; GROUPS_MAX as usize];
    }

    fn group(&self, host: HostIndex) -> u8 {
        self.groups.get(host as usize).copied().unwrap_or(0)
    }

    /// Whether messages of `from` can reach `to`.
    pub fn reaches(&self, from: HostIndex, to: HostIndex) -> bool {
        self.cut[usize::from(self.group(from))] & 1 << self.group(to) == 0
    }

    /// Delays of a message that `from` sends to `to` now. `rng` is the sender's.
    pub fn carry(&self, rng: &mut impl Rng, from: HostIndex, to: HostIndex) -> Arrivals {
        let is_lost = happens(rng, self.quality.loss_percent);
        if is_lost || !self.reaches(from, to) {
            return Arrivals { first: None, second: None };
        }
        let first = Some(self.travel(rng, from, to));
        let second = happens(rng, self.quality.duplicate_percent).then(|| self.travel(rng, from, to));
        Arrivals { first, second }
    }

    fn travel(&self, rng: &mut impl Rng, from: HostIndex, to: HostIndex) -> Duration {
        let latency = self.latency(rng, from, to);
        if happens(rng, self.quality.reorder_percent) {
            latency + Duration::from_micros(rng.random_range(0..=self.quality.reorder_us))
        } else {
            latency
        }
    }

    /// The shortest possible latency.
    pub fn latency_min(&self) -> Duration {
        let least_us = self.pairs.as_ref().map_or(self.quality.latency_us, |_| PAIR_MIN.as_micros() as u64);
        Duration::from_micros((least_us - self.jitter_us(least_us)).max(1))
    }

    /// Spread of a latency, either way.
    fn jitter_us(&self, latency_us: u64) -> u64 {
        match &self.pairs {
            None => self.quality.jitter_us,
            // The same share of each.
            Some(_) => latency_us * self.quality.jitter_us / self.quality.latency_us.max(1),
        }
    }

    /// Latency of something that cannot be lost, always above zero. `rng` is the sender's.
    pub fn latency(&self, rng: &mut impl Rng, from: HostIndex, to: HostIndex) -> Duration {
        let latency_us = self.pairs.as_ref().map_or(self.quality.latency_us, |pairs| pairs.one_way_us(from, to));
        let jitter_us = self.jitter_us(latency_us);
        let low = latency_us - jitter_us;
        let micros = if jitter_us == 0 { low } else { rng.random_range(low..=low + 2 * jitter_us) };
        Duration::from_micros(micros.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{SmallStream, stream};

    fn carried(quality: Quality) -> Vec<Arrivals> {
        let network = Network::new(quality);
        let mut rng = SmallStream::new(3, "network", 0);
        (0..10_000).map(|_| network.carry(&mut rng, 0, 1)).collect()
    }

    #[test]
    fn latency_stays_within_its_spread_and_loss_takes_its_share() {
        let carried = carried(Quality { loss_percent: 20.0, ..Quality::default() });
        let arrived: Vec<_> = carried.iter().filter_map(|to| to.first).map(|travel| travel.as_micros()).collect();
        assert!((7_800..8_200).contains(&arrived.len()), "{}", arrived.len());
        assert!(arrived.iter().all(|micros| (45_000..=55_000).contains(micros)));
        assert!(arrived.iter().any(|micros| *micros < 46_000) && arrived.iter().any(|micros| *micros > 54_000));
        assert!(carried.iter().all(|to| to.second.is_none()));
    }

    #[test]
    fn some_arrive_twice_and_some_late() {
        let quality =
            Quality { duplicate_percent: 10.0, reorder_percent: 30.0, reorder_us: 200_000, ..Quality::default() };
        let carried = carried(quality);
        let twice = carried.iter().filter(|to| to.second.is_some()).count();
        assert!((900..1_100).contains(&twice), "{twice}");
        assert!(carried.iter().any(|to| to.second.is_some_and(|second| Some(second) < to.first)), "in both orders");
        let late = carried.iter().filter(|to| to.first > Some(Duration::from_millis(55))).count();
        assert!((2_700..3_300).contains(&late), "{late}");
        assert!(carried.iter().all(|to| to.first <= Some(Duration::from_millis(255))));
    }

    #[test]
    fn no_message_arrives_in_the_microsecond_it_was_sent() {
        let network = Network::new(Quality { latency_us: 0, jitter_us: 0, ..Quality::default() });
        let arrivals = network.carry(&mut stream(3, "network", 0), 0, 1);
        assert_eq!(arrivals.first, Some(Duration::from_micros(1)));
    }

    #[test]
    fn a_cut_has_a_direction_and_ends() {
        let mut network = Network::new(Quality::default());
        network.put_into(1, 5);
        network.cut(1, 0);
        let reaches =
            |network: &Network, from, to| network.carry(&mut stream(3, "network", 0), from, to).first.is_some();
        assert!(!reaches(&network, 5, 0) && !reaches(&network, 5, 9));
        assert!(reaches(&network, 0, 5) && reaches(&network, 0, 9) && reaches(&network, 5, 5));
        network.heal();
        assert!(reaches(&network, 5, 0));
    }
}
