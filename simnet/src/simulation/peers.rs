//! What peers are given, and the orders that they answer with.

use std::time::Duration;

use idlewood_scheduler::{BagId, Effect, Event, Message, Notice, Path, TaskId};

use super::Surroundings;
use super::shard::{LOCAL_DELAY, Occurrence, Shard};
use super::trace::Trace;
use super::world::News;
use crate::event_queue::HostIndex;

/// What a peer did about a request, as the simulator saw it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    /// A leaf started a task.
    Started {
        /// Which.
        task: TaskId,
        /// Of its issue: rises when the submitter issues the task again.
        attempt: u32,
    },
    /// A router sent a part of a request down.
    SentDown {
        /// Of which bag.
        bag: BagId,
        /// Number of the request.
        number: u64,
        /// Way of the part.
        path: Path,
    },
}

impl Shard {
    /// Gives an event to the peer of a machine that is up, and carries out what it answers.
    pub(super) fn give(&mut self, host: HostIndex, event: Event, around: &Surroundings) {
        self.counts.events += 1;
        let now = self.now;
        let machine = &mut self.hosts[(host / self.count) as usize];
        let mut trace = Trace(&mut machine.trace);
        trace.word(now.as_micros() as u64);
        trace.event(&event);
        let mut effects = std::mem::take(&mut self.effects);
        machine.handle(now, event, &mut effects);
        let mut left = false;
        for effect in effects.drain(..) {
            left |= matches!(effect, Effect::Notify(Notice::Left));
            self.carry_out(host, effect, around);
        }
        self.effects = effects;
        if left {
            self.counts.leaves += 1;
            // In good order nothing is lost.
            self.go_down(host, false, around);
        } else {
            self.arm(host);
        }
    }

    fn carry_out(&mut self, host: HostIndex, effect: Effect, around: &Surroundings) {
        let now = self.now;
        let machine = &mut self.hosts[(host / self.count) as usize];
        Trace(&mut machine.trace).effect(&effect);
        let life = machine.life;
        match effect {
            Effect::Send { to, message } => {
                if self.is_watched
                    && let Message::Request { request, climbing: false, .. } = &message
                {
                    let (bag, number, path) = (request.bag.id, request.number, request.path.clone());
                    self.deeds.push((host, Deed::SentDown { bag, number, path }));
                }
                self.send(host, to.peer, message, around);
            }
            Effect::Persist { ticket, changes } => {
                machine.store.begin(ticket, changes);
                // One write at a time, in the order they were asked for: a crash may come between any two.
                machine.durable = machine.durable.max(now) + around.scenario.persist;
                let at = machine.durable;
                self.cause(host, at, host, Occurrence::Durable { life });
            }
            Effect::StartTask { place, task, attempt, .. } => {
                let end = machine.run(place, task, around.work_mops(task), now);
                if self.is_watched {
                    self.deeds.push((host, Deed::Started { task, attempt }));
                }
                self.tell(host, News::Started(task));
                if let Some((at, serial)) = end {
                    self.cause(host, at, host, Occurrence::RunEnds { life, place, serial });
                }
            }
            Effect::FreezeTask { place, task } => {
                machine.freeze(place, task, now);
                self.counts.preemptions += 1;
            }
            Effect::ThawTask { place, task } => {
                if let Some((at, serial)) = machine.thaw(place, task, now) {
                    self.cause(host, at, host, Occurrence::RunEnds { life, place, serial });
                }
            }
            Effect::StopTask { place, task } => {
                if machine.stop(place, task) {
                    self.cause(host, now + LOCAL_DELAY, host, Occurrence::Stopped { life, task });
                }
            }
            Effect::SuspendTasks => machine.suspend(now),
            Effect::ResumeTasks => {
                for (place, at, serial) in machine.resume(now) {
                    self.cause(host, at, host, Occurrence::RunEnds { life, place, serial });
                }
            }
            Effect::MeasureTask { bag } => {
                let work_mops = around.work_mops(TaskId { bag, index: 0 });
                let takes = Duration::from_secs_f64(work_mops / machine.speed_mops).max(LOCAL_DELAY);
                self.cause(host, now + takes, host, Occurrence::Measured { life, bag });
            }
            Effect::FetchOutput { task, output_bytes, from, .. } => {
                self.want(host, task, output_bytes, from.peer, around);
            }
            Effect::Notify(Notice::BagAccepted(bag)) => self.tell(host, News::Accepted(bag)),
            Effect::Notify(Notice::BagClosed(bag)) => self.tell(host, News::Closed(bag)),
            Effect::Notify(Notice::Joined | Notice::Left) => {}
        }
    }
}
