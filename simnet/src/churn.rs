//! When machines come and go.
//!
//! A machine is up for an exponential session, then crashes (power cut: what was not durable is gone) or, in a share
//! of cases, leaves announced; it is down for an exponential time and comes back with its store. Every machine comes
//! back, also one that submitted something. Left out so far: sessions from traces (only the
//! overlay's experiments replay them), a day cycle, machines that never return.

use std::time::Duration;

use rand::rngs::ChaCha8Rng;

use crate::random::{exponential, happens, stream};
use crate::scenario::Scenario;

/// The coming and going of one machine.
#[derive(Debug)]
pub struct Churn {
    session: Option<Duration>,
    downtime: Duration,
    leave_percent: f64,
    rng: ChaCha8Rng,
}

impl Churn {
    /// That of machine number `host`.
    pub fn new(scenario: &Scenario, host: u32) -> Self {
        Self {
            session: scenario.churn,
            downtime: scenario.downtime,
            leave_percent: scenario.leave_percent,
            rng: stream(scenario.seed, "churn", u64::from(host)),
        }
    }

    /// How long the session that begins now lasts; `None`: to the end.
    pub fn session(&mut self) -> Option<Duration> {
        let session = self.session?;
        Some(draw(&mut self.rng, session))
    }

    /// Whether the session that ends now ends with a farewell.
    pub fn leaves(&mut self) -> bool {
        happens(&mut self.rng, self.leave_percent)
    }

    /// How long the machine that goes down now stays down.
    pub fn downtime(&mut self) -> Duration {
        draw(&mut self.rng, self.downtime)
    }
}

fn draw(rng: &mut ChaCha8Rng, mean: Duration) -> Duration {
    Duration::from_micros(exponential(rng, u64::try_from(mean.as_micros()).unwrap_or(u64::MAX)))
}
