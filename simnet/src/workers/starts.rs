//! How long workers take to start programs. A worker serves one bag, and is replaced before tasks of another, as in the agent.

use std::time::Duration;

use idlewood_scheduler::BagId;
use rand::RngExt;

use crate::event_queue::HostIndex;
use crate::random::SmallStream;
use crate::scenario::Scenario;

/// Starts differ by this much, plus or minus, as a share. Measured: 24 workers that start one program at once on two cores take 0.53 to 0.73 s.
const SPREAD: f64 = 0.2;

/// The programs of a machine's workers.
#[derive(Clone, Debug)]
pub(crate) struct Starts {
    takes: Duration,
    programs: Vec<Option<BagId>>,
    rng: SmallStream,
}

impl Starts {
    pub(crate) fn new(scenario: &Scenario, index: HostIndex, places: u32) -> Self {
        let rng = SmallStream::new(scenario.seed, "program start", u64::from(index));
        Self { takes: scenario.program_start, programs: vec![None; places as usize], rng }
    }

    /// How long a worker takes before a task of this bag begins.
    pub(crate) fn of(&mut self, slot: usize, bag: BagId) -> Duration {
        if self.takes.is_zero() || self.programs[slot].replace(bag) == Some(bag) {
            return Duration::ZERO;
        }
        self.takes.mul_f64(self.rng.random_range(1.0 - SPREAD..1.0 + SPREAD))
    }

    /// The machine goes down: no worker has a program any more.
    pub(crate) fn go_down(&mut self) {
        self.programs.fill(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_starts_a_program_once_and_again_after_another_one() {
        let scenario = Scenario { program_start: Duration::from_secs(1), ..Scenario::default() };
        let mut starts = Starts::new(&scenario, 3, 2);
        let [one, other] = [1, 2].map(|number| BagId([number; 32]));
        let mut takes = |slot, bag| starts.of(slot, bag).as_secs_f64();
        let first = takes(0, one);
        assert!((0.8..1.2).contains(&first), "{first}");
        assert_eq!(takes(0, one), 0.0);
        assert!(takes(1, one) > 0.0 && takes(0, other) > 0.0 && takes(0, one) > 0.0);
        starts.go_down();
        assert!(starts.of(0, one) > Duration::ZERO);
        assert_eq!(Starts::new(&Scenario::default(), 3, 2).of(0, one), Duration::ZERO, "as in the paper");
    }
}
