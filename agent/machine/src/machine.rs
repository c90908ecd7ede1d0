//! The machine: feeds its peer, and takes from the peer's orders those that its parts decide about.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::{BagId, Change, Config, Peer, Record, TaskId};

use crate::execution::{Ended, Execution, WorkEvent, WorkOrder};
use crate::measuring::{FirstTask, Measured, Measuring};
use crate::outputs::{FetchEnd, FetchId, Outputs, Wanted};

/// A fact that reached this machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// What its peer alone has to do with, but for what the events below say in its place: never
    /// [`idlewood_scheduler::Event::Fetched`], [`idlewood_scheduler::Event::Measured`] nor
    /// [`idlewood_scheduler::Event::TaskEnded`].
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
    /// What happens to workers and what they run.
    Work(WorkEvent),
}

impl From<WorkEvent> for Event {
    fn from(event: WorkEvent) -> Self {
        Self::Work(event)
    }
}

impl From<idlewood_scheduler::Event> for Event {
    fn from(event: idlewood_scheduler::Event) -> Self {
        Self::Peer(event)
    }
}

/// An order to the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Of the peer, but for what the orders below say in its place: never [`idlewood_scheduler::Effect::FetchOutput`],
    /// [`idlewood_scheduler::Effect::MeasureTask`], nor to start, stop, freeze, thaw, suspend or resume tasks.
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
    /// About workers and what they run.
    Work(WorkOrder),
}

/// One whole machine.
pub struct Machine {
    peer: Peer,
    /// Speed of a slot.
    speed_mops: f64,
    outputs: Outputs,
    measuring: Measuring,
    execution: Execution,
    peer_effects: Vec<idlewood_scheduler::Effect>,
}

impl Machine {
    /// A machine with this peer, whose settings these are.
    pub fn new(peer: Peer, config: &Config) -> Self {
        Self {
            peer,
            speed_mops: config.speed_mops,
            outputs: Outputs::default(),
            measuring: Measuring::default(),
            execution: Execution::new(config),
            peer_effects: Vec::new(),
        }
    }

    /// Its peer, to look at.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether outputs of its bags wait until it has room for them.
    pub fn lacks_room_for_outputs(&self) -> bool {
        self.outputs.lack_room()
    }

    /// Whether a task that its peer has started is not over.
    pub fn is_busy(&self) -> bool {
        self.execution.is_busy()
    }

    /// Feeds one event; appends effects in the order in which they must be carried out. `now` never decreases.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Peer(event) => {
                if matches!(event, idlewood_scheduler::Event::DeadlineReached) {
                    self.execution.relieve(now);
                }
                self.feed(now, Some(event), effects);
            }
            Event::Work(event) => {
                self.execution.handle(now, event, effects);
                self.feed(now, None, effects);
            }
            Event::FetchEnded { fetch, end } => {
                if let Some((task, end)) = self.outputs.ended(fetch, end, now) {
                    let here = matches!(end, FetchEnd::Here { .. });
                    let checkpoint = if let FetchEnd::Here { checkpoint } = end { checkpoint } else { None };
                    self.feed(now, Some(idlewood_scheduler::Event::Fetched { task, here, checkpoint }), effects);
                }
            }
            Event::FirstTaskEnded { bag, first } => {
                if let Some(Measured { bag, cpu, result }) = self.measuring.ended(bag, first, now) {
                    let task_mops = cpu.as_secs_f64() * self.speed_mops;
                    self.feed(now, Some(idlewood_scheduler::Event::Measured { bag, task_mops, result }), effects);
                }
            }
        }
        let is_open = |bag| self.peer.bag(bag).is_some_and(|bag| bag.closed.is_none());
        self.outputs.fetch(now, |wanted| is_open(wanted.task.bag), effects);
        self.measuring.begin(now, is_open, effects);
        if cfg!(debug_assertions) {
            self.execution.check_invariants();
        }
    }

    /// When [`Machine::handle`] next has timed work to do, on [`idlewood_scheduler::Event::DeadlineReached`]; `None` when only an
    /// event can wake it.
    pub fn deadline(&self) -> Option<Time> {
        let parts = [self.outputs.deadline(), self.measuring.deadline(), self.execution.deadline()];
        parts.into_iter().chain([self.peer.deadline()]).flatten().min()
    }

    /// Gives the peer an event, if there is one, and tells it what has come of tasks.
    fn feed(&mut self, now: Time, event: Option<idlewood_scheduler::Event>, effects: &mut Vec<Effect>) {
        let mut refused = Vec::new();
        if let Some(event) = event {
            self.tell_peer(now, event, &mut refused, effects);
        }
        loop {
            if let Some(task) = refused.pop() {
                let refusal = idlewood_scheduler::Event::Fetched { task, here: false, checkpoint: None };
                self.tell_peer(now, refusal, &mut refused, effects);
            } else if let Some(Ended { job, task, outcome }) = self.execution.next_ended() {
                let ended = idlewood_scheduler::Event::TaskEnded { task, outcome };
                self.tell_peer(now, ended, &mut refused, effects);
                // By now the peer's record holds the output, or nobody wants it.
                effects.push(Effect::Work(WorkOrder::Forget { job }));
            } else if !self.execution.settle(now, effects) {
                return;
            }
        }
    }

    /// Gives the peer an event, and each part what it decides of the peer's orders. Outputs that find no room in the queue are
    /// `refused`.
    fn tell_peer(
        &mut self,
        now: Time,
        event: idlewood_scheduler::Event,
        refused: &mut Vec<TaskId>,
        effects: &mut Vec<Effect>,
    ) {
        let mut orders = std::mem::take(&mut self.peer_effects);
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
                    let Some(order) = self.execution.take(order, effects) else { continue };
                    let closed = closed_by(&order);
                    effects.push(Effect::Peer(order));
                    for bag in closed {
                        self.outputs.let_go(bag, effects);
                        self.measuring.stop(bag, effects);
                    }
                }
            }
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
