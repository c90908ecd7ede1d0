//! Digests of what peers are given and answer: the same however a scenario is executed.
//!
//! Each machine has a digest of 64 bits into which all its events and answers are mixed in order; it finds differences
//! between two runs and is not for security. Identities and hashes enter by their first eight bytes: they are random
//! already.

use idlewood_machine::policy::Input;
use idlewood_machine::{Effect as Order, FetchEnd, FirstTask, WorkEvent, WorkOrder};
use idlewood_overlay::PeerId;
use idlewood_scheduler::{BagId, Change, Event, Notice, TaskId, TaskOutcome, Wish};

use crate::size::mix;
use crate::size::size_of;

/// Adds words to the digest of a machine.
pub(super) struct Trace<'a>(pub(super) &'a mut u64);

fn head(bytes: &[u8; 32]) -> u64 {
    bytes.first_chunk().map_or(0, |head| u64::from_le_bytes(*head))
}

/// Part of an identity, enough to distinguish peers.
pub(super) fn tag(peer: PeerId) -> u64 {
    head(&peer.0)
}

impl Trace<'_> {
    pub(super) fn word(&mut self, word: u64) {
        *self.0 = mix(*self.0, word);
    }

    fn letter(&mut self, letter: u8) {
        self.word(letter.into());
    }

    fn bag(&mut self, bag: BagId) {
        self.word(head(&bag.0));
    }

    fn task(&mut self, task: &TaskId) {
        self.bag(task.bag);
        self.word(task.index);
    }

    /// Adds an event of a machine.
    pub(super) fn of_machine(&mut self, event: &idlewood_machine::Event) {
        match event {
            idlewood_machine::Event::Peer(event) => self.event(event),
            idlewood_machine::Event::Sensed(facts) => {
                self.letter(if facts.input == Input::Present { b'o' } else { b'a' });
            }
            idlewood_machine::Event::Ordered(_) => self.letter(b'O'),
            idlewood_machine::Event::OwnerSet(_) => self.letter(b'V'),
            idlewood_machine::Event::Called { .. } => self.letter(b'c'),
            idlewood_machine::Event::Written { write, .. } => {
                self.letter(b'p');
                self.word(write.0);
            }
            idlewood_machine::Event::Computed { ran, waited } => {
                self.letter(b'S');
                self.word(ran.as_micros() as u64);
                self.word(waited.as_micros() as u64);
            }
            idlewood_machine::Event::Closing => self.letter(b'C'),
            idlewood_machine::Event::Busy(is_busy) => self.letter(if *is_busy { b'B' } else { b'I' }),
            idlewood_machine::Event::FetchEnded { fetch, end } => {
                self.letter(if matches!(end, FetchEnd::Here { .. }) { b'f' } else { b'n' });
                self.word(fetch.0);
            }
            idlewood_machine::Event::FirstTaskEnded { bag, first } => {
                self.letter(if matches!(first, FirstTask::Ran { .. }) { b'm' } else { b'M' });
                self.bag(*bag);
            }
            idlewood_machine::Event::PieceCame(piece) => {
                self.letter(b'c');
                self.word(piece.bytes as u64);
                self.word(piece.took.as_micros() as u64);
            }
            idlewood_machine::Event::Work(event) => self.work_event(event),
        }
    }

    fn work_event(&mut self, event: &WorkEvent) {
        match event {
            WorkEvent::Prepared { job, .. } => {
                self.letter(b'P');
                self.word(job.0);
            }
            WorkEvent::Ended { slot, job, outcome, .. } => {
                self.outcome(outcome.as_ref());
                self.word(*slot as u64);
                self.word(job.0);
            }
            WorkEvent::Over { job, task, outcome } => {
                self.outcome(Some(outcome));
                self.word(job.0);
                self.task(task);
            }
            WorkEvent::TakenBack { slot, jobs } => {
                self.letter(b'B');
                self.word(*slot as u64);
                jobs.iter().for_each(|job| self.word(job.0));
            }
            WorkEvent::MemoryMax(bytes) => {
                self.letter(b'q');
                self.word(*bytes);
            }
        }
    }

    fn outcome(&mut self, outcome: Option<&TaskOutcome>) {
        self.letter(match outcome {
            Some(TaskOutcome::Finished(_)) => b'F',
            Some(TaskOutcome::NotStarted { .. }) => b'N',
            Some(TaskOutcome::Stopped) => b'S',
            None => b'K',
        });
    }

    /// Adds an order of a machine.
    pub(super) fn order(&mut self, order: &Order) {
        match order {
            // The digest of the message follows.
            Order::Send { to, .. } => {
                self.letter(b'0');
                self.word(tag(to.peer));
            }
            Order::KeepCheckpoints { bag, tasks, .. } => {
                self.letter(b'K');
                self.bag(*bag);
                self.word(tasks.len());
            }
            Order::MakeStart { task, .. } => {
                self.letter(b'M');
                self.task(task);
            }
            Order::Authorise { bag, .. } => {
                self.letter(b'a');
                self.bag(bag.id);
            }
            Order::List { ticket, page } => {
                self.letter(b'l');
                self.word(*ticket);
                self.word(page.machines.len() as u64);
            }
            Order::Notify(notice) => self.notice(notice),
            Order::SignAppointment(appointment) => {
                self.letter(b'S');
                self.bag(appointment.bag);
                self.word(appointment.term);
            }
            Order::KeepFiles { bag, .. } => {
                self.letter(b'k');
                self.bag(bag.id);
            }
            Order::ReadResults { bag, tasks, to } => {
                self.letter(b'r');
                self.bag(*bag);
                self.word(tasks.len());
                self.word(tag(*to));
            }
            Order::ForgetFiles { bag } => {
                self.letter(b'F');
                self.bag(*bag);
            }
            Order::Fetch { fetch, wanted } => {
                self.letter(b'7');
                self.word(fetch.0);
                self.task(&wanted.task);
                self.word(head(&wanted.output.0));
                self.word(wanted.output_bytes);
                self.word(tag(wanted.from.peer));
            }
            Order::AbandonFetch { fetch } => {
                self.letter(b'x');
                self.word(fetch.0);
            }
            Order::Changed(changes) => {
                self.letter(b'1');
                changes.iter().for_each(|change| self.change(change));
            }
            Order::Write { write, changes, .. } => {
                self.letter(b'w');
                self.word(write.0);
                self.word(changes.len() as u64);
            }
            Order::Unwritten(bags) => {
                self.letter(b'U');
                bags.iter().for_each(|bag| self.bag(*bag));
            }
            Order::SendResults { to, .. } => {
                self.letter(b'0');
                self.word(tag(to.peer));
            }
            Order::FreezeMeasurer | Order::ThawMeasurer => self.letter(b'q'),
            Order::Judged(judgement) => {
                self.letter(b'j');
                self.word(judgement.cpu_percent.into());
            }
            Order::KeepPause(_) => self.letter(b'P'),
            Order::End => self.letter(b'E'),
            Order::RunFirstTask { bag, .. } => {
                self.letter(b'6');
                self.bag(*bag);
            }
            Order::StopFirstTask { bag } => {
                self.letter(b's');
                self.bag(*bag);
            }
            Order::Work(order) => self.work_order(order),
        }
    }

    fn work_order(&mut self, order: &WorkOrder) {
        let of_slot = |letter: u8, slot: &usize| (letter, *slot as u64);
        let (letter, word) = match order {
            WorkOrder::Prepare { job, .. } => (b'1', job.0),
            WorkOrder::KeepExample { job, .. } => (b'e', job.0),
            WorkOrder::ForgetExample { bag } => (b'E', head(&bag.0)),
            WorkOrder::Give { slot, .. } => of_slot(b'g', slot),
            WorkOrder::TakeBack { slot } => of_slot(b't', slot),
            WorkOrder::Stop { slot } => of_slot(b'2', slot),
            WorkOrder::Freeze { slot } => of_slot(b'3', slot),
            WorkOrder::Thaw { slot } => of_slot(b'8', slot),
            WorkOrder::FreezeAll => (b'4', 0),
            WorkOrder::ThawAll => (b'5', 0),
            WorkOrder::Forget { job } => (b'd', job.0),
            WorkOrder::TellNoMemory { wanted_bytes, .. } => (b'M', *wanted_bytes),
        };
        self.letter(letter);
        self.word(word);
        if let WorkOrder::Prepare { task, attempt, .. } | WorkOrder::Give { task, attempt, .. } = order {
            self.task(task);
            self.word(u64::from(*attempt));
        }
    }

    /// Adds an event of a peer, but for the message, whose digest stands before.
    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::Bootstrap(contact) => {
                self.letter(b'b');
                self.word(tag(contact.peer));
            }
            Event::Certified { peer, .. } => {
                self.letter(b'n');
                self.word(tag(*peer));
            }
            Event::Received { .. } => self.letter(b'r'),
            Event::ConnectionLost(peer) => {
                self.letter(b'c');
                self.word(tag(*peer));
            }
            Event::Persisted(ticket) => {
                self.letter(b'p');
                self.word(ticket.0);
            }
            Event::Submitted(submission) => {
                self.letter(b's');
                self.bag(submission.id);
            }
            Event::Measured { bag, task_mops, .. } => {
                self.letter(b'm');
                self.bag(*bag);
                self.word(task_mops.to_bits());
            }
            Event::Cancelled(bag) => {
                self.letter(b'x');
                self.bag(*bag);
            }
            Event::Rerun { bag, tasks } => {
                self.letter(b'e');
                self.bag(*bag);
                self.word(tasks.len());
            }
            Event::Wished { bag, wish } => {
                self.letter(match wish {
                    Wish::Hold => b'h',
                    Wish::Release => b'g',
                    Wish::Rename(_) => b'n',
                    Wish::Prioritise(_) => b'p',
                });
                self.bag(*bag);
            }
            Event::TasksAdded { bag, tasks } => {
                self.letter(b't');
                self.bag(*bag);
                self.word(*tasks);
            }
            Event::SupplyEnded(bag) => {
                self.letter(b'i');
                self.bag(*bag);
            }
            Event::Drained { bag, tasks } => {
                self.letter(b'j');
                self.bag(*bag);
                self.word(tasks.len());
            }
            Event::Removed(bag) => {
                self.letter(b'z');
                self.bag(*bag);
            }
            Event::TaskEnded { task, outcome } => {
                self.outcome(Some(outcome));
                self.task(task);
            }
            Event::Fetched { task, here, .. } => {
                self.letter(if *here { b'f' } else { b'n' });
                self.task(task);
            }
            Event::StartMade { task, .. } => {
                self.letter(b'm');
                self.task(task);
            }
            Event::FetchPutOff { task } => {
                self.letter(b'o');
                self.task(task);
            }
            Event::CheckpointsFound { bag, .. } | Event::CheckpointsKept { bag, .. } => {
                self.letter(b'k');
                self.bag(*bag);
            }
            Event::Authorised { bag, verdict } => {
                self.letter(if verdict.is_ok() { b'y' } else { b'n' });
                self.bag(*bag);
                self.word(verdict.map_or(0, |approval| approval.signed_ago.as_secs()));
            }
            Event::Downloaded { kb_s } => {
                self.letter(b'D');
                self.word(u64::from(*kb_s));
            }
            Event::SpeedChanged(mops) => {
                self.letter(b'S');
                self.word(mops.to_bits());
            }
            Event::Vacate => self.letter(b'v'),
            Event::VacatesAfter(_) | Event::KeepsAtMost(_) => self.letter(b'V'),
            Event::OwnerReturned { .. } => self.letter(b'o'),
            Event::OwnerLeft => self.letter(b'a'),
            Event::DiskFull(is_full) => self.letter(if *is_full { b'B' } else { b'D' }),
            Event::Leave => self.letter(b'l'),
            Event::Return => self.letter(b'R'),
            Event::Unsent { to, .. } => {
                self.letter(b'u');
                self.word(tag(to.peer));
            }
            Event::Room(peer) => {
                self.letter(b'U');
                self.word(tag(*peer));
            }
            Event::Describes(_) => self.letter(b'c'),
            Event::ListMachines { ticket, .. } => {
                self.letter(b'L');
                self.word(*ticket);
            }
            Event::DeadlineReached => self.letter(b'd'),
            Event::AppointmentSigned(appointment) => {
                self.letter(b'S');
                self.bag(appointment.bag);
            }
            Event::ResultsRead { bag, to, results } => {
                self.letter(b'r');
                self.bag(*bag);
                self.word(tag(*to));
                self.word(results.len() as u64);
            }
            Event::FilesKept { bag, kept } => {
                self.letter(if *kept { b'K' } else { b'N' });
                self.bag(*bag);
            }
        }
    }

    fn notice(&mut self, notice: &Notice) {
        let (letter, bag) = match notice {
            Notice::BagAccepted(bag) => (b'A', Some(*bag)),
            Notice::BagClosed(bag) => (b'C', Some(*bag)),
            Notice::BagChanged(bag) => (b'W', Some(*bag)),
            Notice::BagDrained(bag) => (b'D', Some(*bag)),
            Notice::BagRemoved(bag) => (b'R', Some(*bag)),
            Notice::BagElsewhere(bag) => (b'E', Some(*bag)),
            Notice::BagGivenUp { bag, .. } => (b'G', Some(*bag)),
            Notice::Joined => (b'J', None),
            Notice::Left => (b'L', None),
        };
        self.letter(letter);
        bag.into_iter().for_each(|bag| self.bag(bag));
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Put(record) => {
                self.letter(b'+');
                self.word(size_of(record).digest);
            }
            Change::Delete(key) => {
                self.letter(b'-');
                key.to_bytes().chunks(8).for_each(|chunk| {
                    let mut word = [0; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    self.word(u64::from_le_bytes(word));
                });
            }
        }
    }
}
