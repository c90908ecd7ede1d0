//! Bags that their user cancels or removes: they are told when that is durable, so that no restart takes it back.

use idlewood_scheduler::{BagId, Event};

use super::driver::Driver;
use crate::handle::{Refusal, Reply, answer};

/// Somebody who waits for the end of a bag to be durable.
#[derive(Debug)]
pub(super) struct Ending {
    /// The bag as it was before its removal.
    was: Option<idlewood_api::Bag>,
    reply: Reply<idlewood_api::Bag>,
}

impl Driver {
    pub(super) fn cancel(&mut self, id: &str, reply: Reply<idlewood_api::Bag>) {
        let bag = match self.find(id) {
            Ok(view) if view.closed.is_some() => {
                return answer(reply, Err(Refusal::Conflict(format!("bag {} is over already", view.bag.id))));
            }
            Ok(view) => view.bag.id,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        self.ending.entry(bag).or_default().push(Ending { was: None, reply });
        self.feed(Event::Cancelled(bag));
    }

    /// Forgets a bag that is over. Its results go when their room is needed.
    pub(super) fn remove(&mut self, id: &str, reply: Reply<idlewood_api::Bag>) {
        let view = match self.find(id) {
            Ok(view) => view,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let bag = view.bag.id;
        if view.closed.is_none() {
            let why = format!("bag {bag} is not over: wait for it, or cancel it first");
            return answer(reply, Err(Refusal::Conflict(why)));
        }
        let was = Some(self.bag_view(&view));
        self.ending.entry(bag).or_default().push(Ending { was, reply });
        self.first_starts.remove(&bag);
        self.feed(Event::Removed(bag));
    }

    /// The end of a bag is durable.
    pub(super) fn answer_ending(&mut self, bag: BagId) {
        for Ending { was, reply } in self.ending.remove(&bag).unwrap_or_default() {
            let gone = || Refusal::NotFound("the bag was removed meanwhile".to_owned());
            let shown = was.or_else(|| self.peer().bag(bag).map(|view| self.bag_view(&view)));
            answer(reply, shown.ok_or_else(gone));
        }
    }

    /// The end of a bag could not be written: it is tried again until it can, and whoever waits for it hears so.
    pub(super) fn tell_unended(&mut self, bag: BagId) {
        for Ending { reply, .. } in self.ending.remove(&bag).unwrap_or_default() {
            let why = format!(
                "the end of bag {bag} could not be written to disk: free some space; until it is written a restart of the agent takes \
                 it back"
            );
            answer(reply, Err(Refusal::Unavailable(why)));
        }
    }
}
