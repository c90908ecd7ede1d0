//! How long machines take to start programs. A slot compiles a program before its task, unless some slot of the machine has done so before, as in the
//! agent. What it takes to start a compiled program is left out.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;
use rand::RngExt;

use crate::event_queue::HostIndex;
use crate::random::SmallStream;
use crate::scenario::Scenario;

/// Starts differ by this much, plus or minus, as a share. Measured: 24 workers that start one program at once on two cores take 0.53 to 0.73 s.
const SPREAD: f64 = 0.2;

/// The programs of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Starts {
    takes: Duration,
    /// When the first slot has compiled each.
    compiled: BTreeMap<u8, Time>,
    rng: SmallStream,
}

impl Starts {
    pub(crate) fn new(scenario: &Scenario, index: HostIndex) -> Self {
        let rng = SmallStream::new(scenario.seed, "program start", u64::from(index));
        Self { takes: scenario.program_start, compiled: BTreeMap::new(), rng }
    }

    /// How long it takes until a task that runs this program can begin.
    pub(crate) fn of(&mut self, program: u8, now: Time) -> Duration {
        if self.takes.is_zero() {
            return Duration::ZERO;
        }
        let compiled = self.compiled.entry(program).or_insert(Time::MAX);
        if *compiled <= now {
            return Duration::ZERO;
        }
        let takes = self.takes.mul_f64(self.rng.random_range(1.0 - SPREAD..1.0 + SPREAD));
        *compiled = (now + takes).min(*compiled);
        takes
    }

    /// The disk is taken, with what was compiled.
    pub(crate) fn lose_disk(&mut self) {
        self.compiled.clear();
    }

    /// The machine goes down: what it was compiling is lost.
    pub(crate) fn go_down(&mut self, now: Time) {
        self.compiled.retain(|_, at| *at <= now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_compiles_a_program_once() {
        let scenario = Scenario { program_start: Duration::from_secs(1), ..Scenario::default() };
        let mut starts = Starts::new(&scenario, 3);
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        let mut takes = |program, millis| starts.of(program, at(millis)).as_secs_f64();
        let first = takes(1, 0);
        assert!((0.8..1.2).contains(&first), "{first}");
        assert!(takes(1, 300) >= 0.8, "another slot that begins meanwhile does not wait for the first");
        assert_eq!(takes(1, 2_000), 0.0);
        assert!(takes(2, 2_000) >= 0.8, "another one is compiled, too");
        starts.go_down(at(2_100));
        assert_eq!(starts.of(1, at(9_000)), Duration::ZERO, "what was compiled is on the disk");
        assert!(starts.of(2, at(9_000)) > Duration::ZERO, "what was being compiled is lost");
        assert_eq!(Starts::new(&Scenario::default(), 3).of(1, at(0)), Duration::ZERO, "as in the paper");
    }
}
