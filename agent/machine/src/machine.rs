//! The machine: feeds its peer, and takes from the peer's orders those that its parts decide about.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::{BagId, Change, Peer, Record};

use crate::measuring::{FirstTask, Measured, Measuring};
use crate::outputs::{FetchEnd, FetchId, Outputs, Wanted};

/// A fact that reached this machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// What its peer alone has to do with, but for what the events below say in its place: never
    /// [`idlewood_scheduler::Event::Fetched`] nor [`idlewood_scheduler::Event::Measured`].
    Peer(idlewood_scheduler::Event),
    /// The answer to [`Effect::Fetch`].
    FetchEnded {
        /// Which fetch.
        fetch: FetchId,
        /// How it ended.
        end: FetchEnd,
    },
    /// The answer to [`Effect::RunFirstTask`].
    FirstTaskEnded {
        /// Of which bag.
        bag: BagId,
        /// What it showed.
        first: FirstTask,
    },
}

impl From<idlewood_scheduler::Event> for Event {
    fn from(event: idlewood_scheduler::Event) -> Self {
        Self::Peer(event)
    }
}

/// An order to the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Of the peer, but for what the orders below say in its place: never [`idlewood_scheduler::Effect::FetchOutput`] nor
    /// [`idlewood_scheduler::Effect::MeasureTask`].
    Peer(idlewood_scheduler::Effect),
    /// Get the output of a task and keep it durably; [`Event::FetchEnded`] follows.
    Fetch {
        /// Names the fetch.
        fetch: FetchId,
        /// What is to be fetched.
        wanted: Wanted,
    },
    /// Nobody waits for this fetch any more: end it. No event follows.
    AbandonFetch {
        /// Which fetch.
        fetch: FetchId,
    },
    /// Run the first task of a bag of this machine, beside all others, to see how long it takes; [`Event::FirstTaskEnded`] follows.
    RunFirstTask {
        /// Which bag.
        bag: BagId,
        /// It is ended after that.
        time_limit: Duration,
    },
    /// End the first task of a bag; [`Event::FirstTaskEnded`] follows as of one that was not stopped.
    StopFirstTask {
        /// Which bag.
        bag: BagId,
    },
}

/// One whole machine.
pub struct Machine {
    peer: Peer,
    /// Speed of a slot.
    speed_mops: f64,
    outputs: Outputs,
    measuring: Measuring,
    peer_effects: Vec<idlewood_scheduler::Effect>,
}

impl Machine {
    /// A machine with this peer, whose slots have this speed in Mop/s.
    pub fn new(peer: Peer, speed_mops: f64) -> Self {
        let (outputs, measuring) = (Outputs::default(), Measuring::default());
        Self { peer, speed_mops, outputs, measuring, peer_effects: Vec::new() }
    }

    /// Its peer, to look at.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether outputs of its bags wait until it has room for them.
    pub fn lacks_room_for_outputs(&self) -> bool {
        self.outputs.lack_room()
    }

    /// Feeds one event; appends effects in the order in which they must be carried out. `now` never decreases.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Peer(event) => self.feed(now, event, effects),
            Event::FetchEnded { fetch, end } => {
                if let Some((task, end)) = self.outputs.ended(fetch, end, now) {
                    let here = matches!(end, FetchEnd::Here { .. });
                    let checkpoint = if let FetchEnd::Here { checkpoint } = end { checkpoint } else { None };
                    self.feed(now, idlewood_scheduler::Event::Fetched { task, here, checkpoint }, effects);
                }
            }
            Event::FirstTaskEnded { bag, first } => {
                if let Some(Measured { bag, cpu, result }) = self.measuring.ended(bag, first, now) {
                    let task_mops = cpu.as_secs_f64() * self.speed_mops;
                    self.feed(now, idlewood_scheduler::Event::Measured { bag, task_mops, result }, effects);
                }
            }
        }
        let is_open = |bag| self.peer.bag(bag).is_some_and(|bag| bag.closed.is_none());
        self.outputs.fetch(now, |wanted| is_open(wanted.task.bag), effects);
        self.measuring.begin(now, is_open, effects);
    }

    /// When [`Machine::handle`] next has timed work to do, on [`idlewood_scheduler::Event::DeadlineReached`]; `None` when only an
    /// event can wake it.
    pub fn deadline(&self) -> Option<Time> {
        [self.peer.deadline(), self.outputs.deadline(), self.measuring.deadline()].into_iter().flatten().min()
    }

    /// Gives the peer an event, and each part what it decides of the peer's orders.
    fn feed(&mut self, now: Time, event: idlewood_scheduler::Event, effects: &mut Vec<Effect>) {
        let mut orders = std::mem::take(&mut self.peer_effects);
        let mut next = Some(event);
        let mut refused = Vec::new();
        while let Some(event) = next {
            self.peer.handle(now, event, &mut orders);
            for order in orders.drain(..) {
                match order {
                    idlewood_scheduler::Effect::FetchOutput { task, output, output_bytes, unfinished, from } => {
                        let is_own = from.peer == self.peer.me().peer;
                        let wanted = Wanted { task, output, output_bytes, unfinished, from };
                        if is_own {
                            effects.push(self.outputs.keep_own(wanted));
                        } else if !self.outputs.push(wanted) {
                            refused.push(task);
                        }
                    }
                    idlewood_scheduler::Effect::MeasureTask { bag } => self.measuring.push(bag),
                    order => {
                        let closed = closed_by(&order);
                        effects.push(Effect::Peer(order));
                        for bag in closed {
                            self.outputs.let_go(bag, effects);
                            self.measuring.stop(bag, effects);
                        }
                    }
                }
            }
            let of_refused = |task| idlewood_scheduler::Event::Fetched { task, here: false, checkpoint: None };
            next = refused.pop().map(of_refused);
        }
        self.peer_effects = orders;
    }
}

/// Bags that a write closes.
fn closed_by(order: &idlewood_scheduler::Effect) -> Vec<BagId> {
    let idlewood_scheduler::Effect::Persist { changes, .. } = order else { return Vec::new() };
    let closed = |change: &Change| match change {
        Change::Put(Record::Bag { bag, closed: Some(_), .. }) => Some(bag.id),
        Change::Put(_) | Change::Delete(_) => None,
    };
    changes.iter().filter_map(closed).collect()
}
