//! Bags that this machine kept and that are over, or kept by others. A steward that was away when the submitter said so hears it from here.
//!
//! A submitter tells its stewards for ten minutes that a bag is over, and those that it has replaced when they speak to it. One that is back while the
//! submitter is off heard of neither: it would act, and run the bag anew from what it knew hours ago. So each steward remembers the bags that it has
//! forgotten in good order, and by which appointment, and says so to keepers that ask, or act, by that one or one before. They do nothing for the bag until
//! they hear of its submitter, whom they go on asking; they keep their copies, since another steward's word closes nothing. One that lies here withholds
//! a bag until its submitter is back, no more, as it can by acting (docs/adr/0041).
//!
//! Left out: a restart forgets them.

use std::collections::VecDeque;

use idlewood_overlay::PeerId;

use super::copy::Copy;
use super::feed::Delta;
use super::keeping::{Ledgers, Stewards};
use super::{DISMISSED, Term};
use crate::bag::BagId;
use crate::io::Io;

/// How many are remembered. Our choice: as many as a machine may keep.
const PAST_MAX: usize = 4096;

/// The bags, the oldest first, and the term of the last appointment of each that was heard of.
#[derive(Debug, Default)]
pub(super) struct Past(VecDeque<(BagId, u64)>);

impl Past {
    pub(super) fn insert(&mut self, bag: BagId, appointed: u64) {
        let known = self.remove(bag).unwrap_or(0);
        if self.0.len() == PAST_MAX {
            self.0.pop_front();
        }
        self.0.push_back((bag, appointed.max(known)));
    }

    pub(super) fn remove(&mut self, bag: BagId) -> Option<u64> {
        let place = self.0.iter().position(|(known, _)| *known == bag)?;
        self.0.remove(place).map(|(_, appointed)| appointed)
    }

    /// What is answered about a bag that is remembered.
    pub(super) fn answer(&self, bag: BagId) -> Option<(BagId, u64, Term)> {
        let (_, appointed) = self.0.iter().find(|(known, _)| *known == bag)?;
        Some((bag, DISMISSED, Term { appointed: *appointed, acting: 0 }))
    }
}

impl Stewards {
    /// What is answered to a keeper that tells of a bag that this machine remembers, and has no newer appointment for.
    pub(super) fn is_past_for(&self, from: PeerId, delta: &Delta) -> Option<(BagId, u64, Term)> {
        let submitter = delta.acting.as_ref().and_then(|acting| acting.appointment.submitter());
        let answer = self.past.answer(delta.bag)?;
        (submitter.is_none_or(|submitter| submitter.peer != from) && delta.term.appointed <= answer.2.appointed)
            .then_some(answer)
    }

    /// Another steward says that a bag is over, or kept by others.
    pub(super) fn hear_of_the_end(&mut self, from: PeerId, bag: BagId, term: Term, ledgers: &mut Ledgers, io: &mut Io) {
        let Some(copy) = self.copies.get_mut(&bag).filter(|copy| copy.believes_the_end(from, term)) else { return };
        copy.is_past = true;
        if let Some(ledger) = ledgers.remove(&bag) {
            copy.stand_down(ledger, io);
        }
    }
}

impl Copy {
    fn believes_the_end(&self, from: PeerId, term: Term) -> bool {
        let is_steward = self.acting.appointment.rank_of(from).is_some_and(|rank| rank > 0);
        is_steward && term.appointed >= self.term().appointed
    }
}
