//! Answers that a machine owes to those whose messages it has received: an answer waits a moment for a message of the tree to the same
//! machine, and carries it, so that this message costs no stream of its own.
//!
//! That is what the agent's network does (`agent/net/src/answers.rs`), with its bounds.

use std::collections::VecDeque;
use std::time::Duration;

use idlewood_overlay::Time;

use crate::event_queue::HostIndex;

/// How long an answer waits, and how many do, in all and for one machine.
const PATIENCE: Duration = Duration::from_millis(10);
const WAITING_MAX: usize = 64;
const WAITING_PER_MACHINE_MAX: usize = 4;

/// The answers that have not left, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Answers(VecDeque<(HostIndex, Time)>);

impl Answers {
    /// A message has come from a machine.
    pub(crate) fn owe(&mut self, to: HostIndex, now: Time) {
        self.0.retain(|(_, due)| *due > now);
        self.0.push_back((to, now + PATIENCE));
        if self.0.iter().filter(|(other, _)| *other == to).count() > WAITING_PER_MACHINE_MAX {
            self.carry(to, now);
        } else if self.0.len() > WAITING_MAX {
            self.0.pop_front();
        }
    }

    /// Whether an answer to a machine can carry a message of the tree: then it leaves.
    pub(crate) fn carry(&mut self, to: HostIndex, now: Time) -> bool {
        let place = self.0.iter().position(|(other, due)| *other == to && *due > now);
        place.and_then(|place| self.0.remove(place)).is_some()
    }

    /// The machine goes down.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_carries_one_message_to_its_machine_within_its_time() {
        let at = |micros| Time::from_micros(micros);
        let mut answers = Answers::default();
        answers.owe(3, at(0));
        assert!(!answers.carry(4, at(5)), "it is another's");
        assert!(answers.carry(3, at(9_999)));
        assert!(!answers.carry(3, at(9_999)), "it has left");
        answers.owe(3, at(0));
        assert!(!answers.carry(3, at(10_000)), "it has left without a message");
        // The oldest leave where too many wait, of one machine or of all.
        (0..6).for_each(|_| answers.owe(3, at(20_000)));
        assert_eq!((0..9).filter(|_| answers.carry(3, at(20_001))).count(), WAITING_PER_MACHINE_MAX);
        (0..100).for_each(|host| answers.owe(host, at(30_000)));
        assert_eq!((0..100).filter(|host| answers.carry(*host, at(30_001))).count(), WAITING_MAX);
    }
}
