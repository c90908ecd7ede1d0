//! Links between machines: latency, jitter and loss.
//!
//! Every message travels alone: it may be lost, and with jitter a later one may overtake it. The sender of a message
//! that is lost, or whose receiver is down, hears nothing of it. Left out so far: bandwidth and queues of links
//! (outputs pay for their size, messages do not), latencies that depend on the pair, and transports that notice a
//! lost connection.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use crate::random::happens;
use crate::scenario::Scenario;

/// How links behave.
#[derive(Clone, Debug)]
pub struct Network {
    latency_us: u64,
    spread_us: u64,
    loss_percent: f64,
    bandwidth_bytes_s: u64,
}

impl Network {
    /// The links of a scenario.
    pub fn new(scenario: &Scenario) -> Self {
        let latency_us = scenario.latency_ms * 1000;
        Self {
            latency_us,
            spread_us: latency_us * scenario.jitter_percent / 100,
            loss_percent: scenario.loss_percent,
            bandwidth_bytes_s: scenario.bandwidth_bytes_s,
        }
    }

    /// How long one message is under way, always above zero; `None`: it is lost. `rng` is the sender's.
    pub fn travel(&self, rng: &mut ChaCha8Rng) -> Option<Duration> {
        if happens(rng, self.loss_percent) { None } else { Some(self.latency(rng)) }
    }

    /// How long something that cannot be lost is under way, always above zero. `rng` is the sender's.
    pub fn latency(&self, rng: &mut ChaCha8Rng) -> Duration {
        let low = self.latency_us - self.spread_us;
        let micros = if self.spread_us == 0 { low } else { rng.random_range(low..=low + 2 * self.spread_us) };
        Duration::from_micros(micros.max(1))
    }

    /// How long so many bytes take to leave their machine.
    pub fn transfer(&self, bytes: u64) -> Duration {
        Duration::from_micros(bytes.saturating_mul(1_000_000) / self.bandwidth_bytes_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    #[test]
    fn latency_stays_within_its_spread_and_loss_takes_its_share() {
        let scenario = Scenario { latency_ms: 50, jitter_percent: 10, loss_percent: 20.0, ..Scenario::default() };
        let network = Network::new(&scenario);
        let mut rng = stream(3, "network", 0);
        let travels: Vec<_> = (0..10_000).map(|_| network.travel(&mut rng)).collect();
        let arrived: Vec<_> = travels.iter().flatten().map(Duration::as_micros).collect();
        assert!((7_800..8_200).contains(&arrived.len()), "{}", arrived.len());
        assert!(arrived.iter().all(|micros| (45_000..=55_000).contains(micros)));
        assert!(arrived.iter().any(|micros| *micros < 46_000) && arrived.iter().any(|micros| *micros > 54_000));
    }

    #[test]
    fn no_message_arrives_in_the_microsecond_it_was_sent() {
        let network = Network::new(&Scenario { latency_ms: 0, ..Scenario::default() });
        assert_eq!(network.travel(&mut stream(3, "network", 0)), Some(Duration::from_micros(1)));
    }
}
