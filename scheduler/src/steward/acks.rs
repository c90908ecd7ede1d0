//! What keepers answer to what they were told of a bag.

use idlewood_overlay::Contact;

use super::feed::Changes;
use super::keeping::{Ledgers, Stewards};
use super::{DISMISSED, Term};
use crate::bag::BagId;
use crate::io::Io;
use crate::message::Message;

impl Stewards {
    /// A keeper has acknowledged what it was told.
    pub(crate) fn acknowledged(
        &mut self,
        by: Contact,
        bags: Vec<(BagId, u64, Term)>,
        ledgers: &mut Ledgers,
        io: &mut Io,
    ) {
        let from = by.peer;
        for (bag, number, term) in bags {
            if self.away.is_some() {
                self.farewell_heard(from, bag, number, term, io.now);
                continue;
            }
            if let (Some(own), Some(ledger)) = (self.own.get_mut(&bag), ledgers.get_mut(&bag)) {
                own.acknowledged(from, number, term, ledger, io);
                if self.is_to_ask(bag, from, ledgers) {
                    self.due = io.now;
                }
                continue;
            }
            let Some(copy) = self.copies.get_mut(&bag) else {
                // One that was away asks what it lacks.
                if let Some(answer) = self.past.answer(bag).filter(|_| number == 0) {
                    io.send(by.clone(), Message::DeltasAck { bags: vec![answer] });
                }
                continue;
            };
            if number == DISMISSED && !copy.is_submitter(from) {
                self.hear_of_the_end(from, bag, term, ledgers, io);
                continue;
            }
            let is_before = copy.is_before(from, io.me.peer);
            if copy.is_submitter(from) {
                copy.submitter_heard = Some(io.now);
                copy.is_past &= number == DISMISSED;
                if term > copy.term() {
                    // It acts again, in a term that this machine has not been told of, or has appointed others.
                    copy.is_dismissed |= number == DISMISSED && term.appointed > copy.term().appointed;
                    copy.hear(None, io.now);
                    if let Some(ledger) = ledgers.remove(&bag) {
                        copy.stand_down(ledger, io);
                    }
                    continue;
                }
            }
            if !ledgers.contains_key(&bag) && is_before && term >= copy.term() {
                copy.hear(None, io.now);
            }
            let mine = copy.term();
            if let Some(ledger) = ledgers.get(&bag).filter(|_| number == 0)
                && copy.tells_again(from, ledger, io)
            {
                self.due = io.now;
                continue;
            }
            if let Some(feed) = copy.feeds.get_mut(&from)
                && feed.acknowledged(number, term == mine, io.now)
                && let Some(ledger) = ledgers.get(&bag)
            {
                feed.restart(Changes::base(ledger.records(io), ledger.ended()));
            }
            if self.is_to_ask(bag, from, ledgers) {
                self.due = io.now;
            }
        }
    }
}
