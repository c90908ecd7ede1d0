//! Machines that break a promise on purpose. Judges that see nothing wrong with them see nothing at all.

use crate::event_queue::HostIndex;
use crate::random::{SmallStream, happens};
use crate::scenario::{Flaw, Scenario};

/// A promise is broken for one in so many records or tasks: always the same ones, since the protocol recovers from a loss that does not
/// come again.
const BROKEN_ONE_IN: u8 = 4;

/// The promise that one machine breaks, if any.
#[derive(Debug)]
pub(crate) struct Flawed(Option<Flaw>);

impl Flawed {
    pub(crate) fn new(scenario: &Scenario, index: HostIndex) -> Self {
        let mut rng = SmallStream::new(scenario.seed, "flawed", u64::from(index));
        Self(happens(&mut rng, scenario.flawed_percent).then_some(scenario.flaw))
    }

    /// Whether the machine breaks this promise for the record with this key, or for this task of a bag.
    pub(crate) fn breaks(&self, promise: Flaw, about: &[u8]) -> bool {
        self.0 == Some(promise) && blake3::hash(about).as_bytes()[0].is_multiple_of(BROKEN_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flawed_machine_breaks_its_promise_for_some_and_others_never() {
        let broken = |flawed_percent: f64, promise: Flaw| {
            let scenario = Scenario { flawed_percent, flaw: Flaw::DropsRecords, ..Scenario::default() };
            let machine = Flawed::new(&scenario, 3);
            (0_u16..400).filter(|about| machine.breaks(promise, &about.to_le_bytes())).count()
        };
        assert!((60..140).contains(&broken(100.0, Flaw::DropsRecords)));
        assert_eq!(broken(100.0, Flaw::ForgetsTasks), 0);
        assert_eq!(broken(0.0, Flaw::DropsRecords), 0);
    }
}
