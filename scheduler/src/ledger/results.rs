//! What comes of the results that executors send: each counts once its output is here, and is journalled before its executor may
//! forget it.

use std::time::Duration;

use idlewood_overlay::{Contact, PeerId};

use super::Ledger;
use crate::bag::{Checkpoint, TaskId, TaskResult};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::Message;
use crate::peer::Effect;
use crate::ranges::IntervalSet;
use crate::record::{Change, Record};

/// What a result is to the ledger of its bag.
enum Standing {
    /// The result is being written, or an output of its task is being fetched: an acknowledgement or a repetition follows.
    Pending,
    /// The task has ended already.
    Over,
    /// The result is from before the rerun of its task.
    Void,
    /// A failure or a checkpoint that counted already, or is from a machine that does not have the task.
    Old,
    /// A failure that came before the `Holding` with which its machine takes the task. It counts once that is here.
    Early,
    /// The machine never had the task.
    Unasked,
    /// A task that comes back with a checkpoint that nobody can go on from: of a replica, whose machine may have made it up, or to a
    /// steward, whose signature no machine takes for the submitter's.
    MadeUp,
    /// A failed try: the machine or chance may be to blame.
    Fails,
    /// The end of the task, or a vote on its end.
    Ends,
}

impl Ledger {
    /// Results arrive: each counts once its output is here. One from a machine that never had the task is refused; a `Lease`
    /// asks that machine for a `Holding`, since an earlier one may have been lost.
    pub(crate) fn results(&mut self, executor: &Contact, results: Vec<TaskResult>, io: &mut Io, config: &Config) {
        let (mut unwanted, mut retried) = (Vec::new(), Vec::new());
        let (mut begins_anew, mut asks_for_holding) = (Vec::new(), false);
        let (tasks, most) = (self.tasks(), self.bag.tasks);
        for result in results.into_iter().filter(|result| result.is_valid(most)) {
            let index = result.index;
            if index >= tasks {
                unwanted.extend(self.is_beyond_end(index).then_some(result));
                continue;
            }
            match self.standing(executor, &result, io) {
                Standing::Pending => {}
                Standing::Over => {
                    self.counts.duplicates += u64::from(!self.is_closed());
                    unwanted.push(result);
                }
                Standing::Void if self.begins_anew_there(index, executor, io) => retried.push(result),
                // A `Holding` on its way may still list the task; it is believed until the lease ends.
                Standing::Void => unwanted.push(result),
                Standing::Old => {
                    asks_for_holding |= self.doubt(index, executor.peer);
                    unwanted.push(result);
                }
                Standing::Early => asks_for_holding = true,
                Standing::Unasked => {
                    self.counts.unasked += 1;
                    asks_for_holding = true;
                }
                Standing::MadeUp => {
                    self.take_back(index, executor, None, io);
                    // A `Holding` on its way may still list the task.
                    self.placed.require_holding(executor.peer);
                    unwanted.push(result);
                }
                Standing::Fails
                    if !self.fails_for_good(&result, executor.peer)
                        && self.count_failed_try(&result, executor.peer) =>
                {
                    let until = Some(self.next_try(index, io));
                    self.take_back(index, executor, until, io);
                    if !result.crashed {
                        // The checkpoint may be the cause.
                        begins_anew.extend(self.begin_anew(index, io));
                    }
                    retried.push(result);
                }
                Standing::Fails | Standing::Ends => self.fetch_decided(executor, result, io),
            }
        }
        let bag = self.bag.id;
        if asks_for_holding {
            let lease = Message::lease(bag, Some((&io.me).into()), self.term(io, config), IntervalSet::new());
            io.send(executor.clone(), lease);
        }
        Message::acks(bag, &unwanted).for_each(|ack| io.send(executor.clone(), ack));
        if !retried.is_empty() {
            let mut changes: Vec<Change> = retried.iter().map(|result| self.tries.change(result.index, bag)).collect();
            changes.extend(begins_anew);
            let acks = Message::acks(bag, &retried).map(|ack| Then::Send(executor.clone(), ack));
            io.persist(changes, acks.collect());
        }
        self.avoid_if_due(executor, io, config);
    }

    /// What a result is to this ledger: the first standing that applies.
    fn standing(&self, executor: &Contact, result: &TaskResult, io: &Io) -> Standing {
        let index = result.index;
        let is_over = self.is_closed() || self.ended.contains(index);
        let task = TaskId { bag: self.bag.id, index };
        if io.is_recording(executor.peer, task) || is_over && io.is_recording_task(task) {
            // A repetition while the store is slow, or another machine's result. An acknowledgement now would have the executor
            // forget the result too early.
            Standing::Pending
        } else if is_over {
            Standing::Over
        } else if self.outputs.is_fetching(index) {
            Standing::Pending
        } else if self.tries.is_void(result) {
            Standing::Void
        } else if !result.success && !self.is_of_current_attempt(executor, result) {
            if self.is_early(executor.peer, result, io) { Standing::Early } else { Standing::Old }
        } else if !self.may_end(index, executor.peer, io) {
            Standing::Unasked
        } else if (self.votes.is_quorum() || self.is_kept()) && result.unfinished {
            Standing::MadeUp
        } else if !result.success && !result.unfinished && (result.crashed || !self.votes.is_quorum()) {
            Standing::Fails
        } else {
            Standing::Ends
        }
    }

    /// Whether a machine that does not hold the task may have got it with a request that nobody has answered yet.
    fn is_early(&self, executor: PeerId, result: &TaskResult, io: &Io) -> bool {
        let task = IntervalSet::from(result.index..result.index + 1);
        !self.votes.is_quorum()
            && !self.placed.holds(executor, result.index)
            && !self.gained(executor, &task, &IntervalSet::new(), result.attempt, io).is_empty()
    }

    /// A result that does not count is acknowledged, and its machine forgets the task. Where the task is placed there all the same,
    /// this requires a `Holding` of that machine. Returns whether it did.
    fn doubt(&mut self, index: u64, executor: PeerId) -> bool {
        let is_placed = self.placed.holds(executor, index);
        if is_placed {
            self.placed.require_holding(executor);
        }
        is_placed
    }

    /// A result from before the rerun of its task. Returns whether the machine holds the task: then it answered the rerun with
    /// its old result, or repeats that while it runs the task anew. The copy is taken back, and only results of later
    /// attempts count.
    fn begins_anew_there(&mut self, index: u64, executor: &Contact, io: &mut Io) -> bool {
        let task = IntervalSet::from(index..index + 1);
        if !self.placed.holds(executor.peer, index) || !self.votes.of(executor.peer, &task).is_empty() {
            return false;
        }
        self.tries.not_before(index, self.attempt + 1);
        self.take_back(index, executor, None, io);
        self.placed.require_holding(executor.peer);
        let former = self.note_former(executor.peer, &task);
        io.persist(vec![former], Vec::new());
        true
    }

    /// A result that ends its task, or a vote on that: the output of a decided task is fetched.
    fn fetch_decided(&mut self, executor: &Contact, result: TaskResult, io: &mut Io) {
        let index = result.index;
        let decided =
            if self.votes.is_quorum() { self.vote(executor, result, io) } else { Some((result, executor.clone())) };
        let Some((result, from)) = decided else { return };
        if result.content.is_some() {
            // The result has its output in it.
            return self.record_result(result, from, io);
        }
        io.effects.push(Effect::FetchOutput {
            task: TaskId { bag: self.bag.id, index },
            output: result.output,
            output_bytes: result.output_bytes,
            unfinished: result.unfinished,
            from: from.clone(),
        });
        self.outputs.fetch(result, from);
    }

    /// The fetch of an output has ended. Unless it is `here` the executor offers it again, until so many fetches failed that
    /// the task is issued again. Of an unfinished task the driver may have made another `checkpoint` than the one that
    /// came: requests name that one.
    pub(crate) fn fetched(&mut self, index: u64, here: bool, checkpoint: Option<Checkpoint>, io: &mut Io) {
        let Some((result, executor)) = self.outputs.fetched(index) else { return };
        if here {
            self.outputs.came(executor.peer, io.now);
            if result.unfinished {
                let came = Checkpoint { blob: result.output, bytes: result.output_bytes };
                self.record_checkpoint(&result, checkpoint.unwrap_or(came), executor, io);
            } else {
                self.record_result(result, executor, io);
            }
            return;
        }
        if self.outputs.gives_up(index, executor.peer) {
            self.run_again(index, executor, io);
        }
    }

    /// The output could not be had now: its executor, or this machine, has too much to do, or cannot be reached. The executor
    /// offers it again, until that has gone on for very long.
    pub(crate) fn put_off(&mut self, index: u64, io: &mut Io) {
        let Some((_, executor)) = self.outputs.fetched(index) else { return };
        if self.outputs.gives_up_waiting(index, executor.peer, io.now) {
            self.run_again(index, executor, io);
        }
    }

    /// The output of a task that has ended is not to be had: the task is issued again.
    fn run_again(&mut self, index: u64, executor: Contact, io: &mut Io) {
        self.keeping.relayed.remove(&index);
        self.votes.withdraw(executor.peer, index);
        let lost = IntervalSet::from(index..index + 1);
        io.send(executor.clone(), Message::lease(self.bag.id, None, Duration::ZERO, lost));
        self.counts.reissued += 1;
        self.take_back(index, &executor, None, io);
    }

    /// An unfinished task comes back: it is issued again, to go on from its checkpoint.
    fn record_checkpoint(&mut self, result: &TaskResult, checkpoint: Checkpoint, executor: Contact, io: &mut Io) {
        let (bag, index) = (self.bag.id, result.index);
        let ack = Message::ack(bag, result);
        if self.is_closed() || !self.is_of_current_attempt(&executor, result) {
            self.doubt(index, executor.peer);
            io.send(executor, ack);
            return;
        }
        self.checkpoints.insert(index, checkpoint);
        self.note_checkpoint(index);
        // Its executor lists the task until the acknowledgement arrives: that is no new placement.
        self.tries.not_before(index, self.attempt + 1);
        let changes = vec![Change::Put(Record::Checkpoint { bag, index, checkpoint }), self.tries.change(index, bag)];
        io.persist(changes, vec![Then::Send(executor.clone(), ack)]);
        self.take_back(index, &executor, None, io);
    }

    /// Journals a result; its executor is sent the acknowledgement once that is durable.
    pub(crate) fn record_result(&mut self, result: TaskResult, executor: Contact, io: &mut Io) {
        let (ran_on, ack) = self.acknowledgement(&result, &executor);
        if self.is_closed() || self.ended.contains(result.index) {
            return;
        }
        if result.success {
            self.avoided.note_end(ran_on, true);
        }
        let since = self.placed.of(ran_on).map_or(self.released, |placement| placement.since);
        self.work.note(ran_on, &result, io.now.since(since), io.start_mops);
        let (bag, index, success) = (self.bag.id, result.index, result.success);
        let has_failed = self.tries.is_known(result.index);
        let checkpoint = self.checkpoints.forget(result.index, bag);
        let stops = self.stop_copies(result.index, executor.peer, io);
        self.settle(&result, Some(executor.peer));
        self.note_undrained(&result, Some(io.now));
        self.predicting.note(io.now, self.of_bag(io));
        let mut changes: Vec<Change> = has_failed.then(|| self.tries.change(result.index, bag)).into_iter().collect();
        let (judged, mut then) = self.judge(&result, ran_on, io);
        changes.extend(judged);
        let done = Record::Done { bag, executor: ran_on, finished: io.wall(io.now), result };
        changes.push(Change::Put(done));
        changes.extend(checkpoint);
        then.push(ack);
        then.extend(stops);
        then.extend(self.goes_on(index, success));
        io.persist(changes, then);
        self.close_if_over(io);
    }
}
