//! Results on their way to submitters: what one machine is told of one bag within a turn of the driver shares a message and a signature,
//! so that many small tasks cost few of both.

use std::collections::BTreeMap;

use idlewood_overlay::{Member, PeerId};
use idlewood_scheduler::{BagId, Speaker, TaskResult, results_within};

use crate::effect::Effect;

#[derive(Debug)]
struct Batch {
    to: Member,
    executor: Speaker,
    results: Vec<TaskResult>,
}

/// Results that wait for the end of the turn.
#[derive(Debug, Default)]
pub(crate) struct Results(BTreeMap<(PeerId, BagId), Batch>);

impl Results {
    /// The peer sends these results. Those that wait leave at once where one message cannot take all.
    pub(crate) fn push(
        &mut self,
        to: Member,
        bag: BagId,
        executor: Speaker,
        results: Vec<TaskResult>,
        effects: &mut Vec<Effect>,
    ) {
        let place = (to.peer, bag);
        let waiting = self.0.get(&place).map_or(&[][..], |batch| &batch.results);
        let together = waiting.len() + results.len();
        if results_within(waiting.iter().chain(&results)) < together
            && let Some(full) = self.0.remove(&place)
        {
            effects.push(order(bag, full));
        }
        let batch = self.0.entry(place).or_insert_with(|| Batch { to, executor, results: Vec::new() });
        batch.results.extend(results);
    }

    /// The turn ends: everything leaves.
    pub(crate) fn end_turn(&mut self, effects: &mut Vec<Effect>) {
        let leaving = std::mem::take(&mut self.0);
        effects.extend(leaving.into_iter().map(|((_, bag), batch)| order(bag, batch)));
    }
}

fn order(bag: BagId, Batch { to, executor, results }: Batch) -> Effect {
    Effect::SendResults { to, bag, executor, results }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::Contact;
    use idlewood_scheduler::{BlobId, RESULTS_MAX};

    use super::*;

    fn results(indices: std::ops::Range<u64>) -> Vec<TaskResult> {
        let result = |index| TaskResult {
            index,
            attempt: 0,
            success: true,
            crashed: false,
            unfinished: false,
            output: BlobId([3; 32]),
            output_bytes: 0,
            content: None,
            work_mops: 1.0,
            exit_code: Some(0),
            receipt: None,
            fingerprint: None,
        };
        indices.map(result).collect()
    }

    /// Whom, of which bag, which tasks.
    type Sent = (u8, u8, Vec<u64>);

    fn push(waiting: &mut Results, to: u8, bag: u8, indices: std::ops::Range<u64>) -> Vec<Sent> {
        let contact = Contact { peer: PeerId([to; 32]), incarnation: 1, address: "".into(), nonce: None };
        let executor = Speaker { incarnation: 1, address: "".into() };
        let mut effects = Vec::new();
        waiting.push(contact.into(), BagId([bag; 32]), executor, results(indices), &mut effects);
        sent(effects)
    }

    fn end_turn(waiting: &mut Results) -> Vec<Sent> {
        let mut effects = Vec::new();
        waiting.end_turn(&mut effects);
        sent(effects)
    }

    fn sent(effects: Vec<Effect>) -> Vec<Sent> {
        let of = |effect| match effect {
            Effect::SendResults { to, bag, results, .. } => {
                (to.peer.0[0], bag.0[0], results.iter().map(|result| result.index).collect())
            }
            other => panic!("{other:?}"),
        };
        effects.into_iter().map(of).collect()
    }

    #[test]
    fn results_of_one_bag_to_one_machine_leave_together_when_the_turn_ends() {
        let mut waiting = Results::default();
        for (to, bag, indices) in [(1, 1, 0..2), (2, 1, 2..3), (1, 2, 0..1), (1, 1, 7..9)] {
            assert_eq!(push(&mut waiting, to, bag, indices), []);
        }
        assert_eq!(end_turn(&mut waiting), [(1, 1, vec![0, 1, 7, 8]), (1, 2, vec![0]), (2, 1, vec![2])]);
        assert_eq!(end_turn(&mut waiting), [], "nothing leaves twice");
    }

    #[test]
    fn what_one_message_takes_leaves_before_the_turn_ends() {
        let mut waiting = Results::default();
        let most = RESULTS_MAX as u64;
        assert_eq!(push(&mut waiting, 1, 1, 0..most - 1), []);
        assert_eq!(push(&mut waiting, 1, 1, most - 1..most), []);
        assert_eq!(push(&mut waiting, 1, 1, most..most + 1), [(1, 1, (0..most).collect())]);
        assert_eq!(end_turn(&mut waiting), [(1, 1, vec![most])]);
    }
}
