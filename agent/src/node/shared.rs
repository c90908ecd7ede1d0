//! What all parts of the loop use, and what they leave for the machine to hear.
//!
//! A part calls neither the loop nor the machine: it looks at the machine, does what it is told, and leaves events in [`Events`], which
//! the loop gives to the machine.

use std::collections::VecDeque;
use std::path::Path;

use idlewood_machine::Event;
use idlewood_net::NetHandle;
use idlewood_scheduler::{BagId, Config};
use idlewood_sensing::memory;
use idlewood_trust::Gate;
use idlewood_units::ByteSize;
use idlewood_units::clock::Clock;

use super::done::Done;
use super::jobs::Jobs;
use super::lines::Lines;
use super::manifests::Manifests;
use super::pin::Pin;
use super::sent::Sent;
use super::supplies::Supplies;
use crate::handle::{Refusal, Reply};
use crate::settings::Current;

/// What all parts use.
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) config: Config,
    /// Speed of a core while it computes, in Mop/s: processor time is turned into work by it.
    pub(super) kernel_mops: f64,
    /// The owner's; `owner` reads them again when they have changed.
    pub(super) settings: Current,
    /// What tasks get of this machine's memory where the owner says nothing.
    memory_share: ByteSize,
    pub(super) net: NetHandle,
    /// Messages sent so far.
    pub(super) sent: Sent,
    pub(super) supplies: Supplies,
    pub(super) manifests: Manifests,
    /// Lines that are tasks.
    pub(super) lines: Lines,
    pub(super) jobs: Jobs<Done>,
    /// Work beside the loop for whoever waits for an answer: it goes on also while what is to be written has no room.
    pub(super) answers: Jobs<Done>,
    pub(super) events: Events,
    /// Who is answered once the machine has heard all events.
    pub(super) due: Vec<Due>,
}

impl Shared {
    pub(super) fn new(
        clock: Clock,
        config: Config,
        kernel_mops: f64,
        settings: Current,
        net: NetHandle,
        supplies: Supplies,
        lines: Lines,
    ) -> Self {
        Self {
            clock,
            config,
            kernel_mops,
            settings,
            memory_share: memory::share(Path::new("/proc")),
            net,
            sent: Sent::default(),
            supplies,
            manifests: Manifests::default(),
            lines,
            jobs: Jobs::new(),
            answers: Jobs::new(),
            events: Events::default(),
            due: Vec::new(),
        }
    }

    /// Who is let in, and what this machine signs.
    pub(super) fn gate(&self) -> &Gate {
        &self.supplies.gate
    }

    /// Most memory for all tasks together while the owner is there or away.
    pub(super) fn memory_cap(&self, in_use: bool) -> ByteSize {
        self.settings.get().limits.memory_now(in_use).unwrap_or(self.memory_share)
    }

    /// Drops beside the loop what blocks when it is dropped.
    pub(super) fn discard(&mut self, discarded: impl Send + 'static) {
        let discard = move || {
            drop(discarded);
            Done::Discarded
        };
        self.jobs.spawn_blocking(discard, Done::Discarded);
    }
}

/// What the machine is yet to hear.
#[derive(Debug, Default)]
pub(super) struct Events {
    facts: VecDeque<Event>,
    follow_ups: VecDeque<Event>,
    pins: Vec<Pin>,
}

impl Events {
    /// Something has happened: the machine hears it after what happened before and all that followed from that.
    pub(super) fn tell(&mut self, fact: impl Into<Event>) {
        self.facts.push_back(fact.into());
    }

    /// The same of several facts.
    pub(super) fn tell_all(&mut self, facts: impl Iterator<Item = impl Into<Event>>) {
        self.facts.extend(facts.map(Into::into));
    }

    /// Something follows from an order of the machine's, which hears it before further facts.
    pub(super) fn follow_up(&mut self, event: impl Into<Event>) {
        self.follow_ups.push_back(event.into());
    }

    /// Pins an output until the machine has heard all events: its record pins it by then, or nobody wants it.
    pub(super) fn pin(&mut self, pin: Pin) {
        self.pins.push(pin);
    }

    /// The next event for the machine. Where there is none, no pin is needed any more.
    pub(super) fn next(&mut self) -> Option<Event> {
        let next = self.follow_ups.pop_front().or_else(|| self.facts.pop_front());
        if next.is_none() {
            self.pins.clear();
        }
        next
    }
}

/// Who is answered once the machine has heard all events, and with what.
#[derive(Debug)]
pub(super) enum Due {
    /// The state of this machine.
    Status(Reply<idlewood_api::Status>),
    /// A bag: as it `was` before its removal, or as it is.
    Bag {
        bag: BagId,
        was: Option<Box<idlewood_api::Bag>>,
        /// The answer where there is no such bag any more.
        gone: Refusal,
        reply: Reply<idlewood_api::Bag>,
    },
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use idlewood_blobs::Blobs;
    use idlewood_machine::WorkEvent;

    use super::*;

    #[test]
    fn what_follows_from_a_fact_is_heard_before_the_next_and_pins_stay_until_all_is() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 1000).expect("an empty directory"));
        let hash = blobs.put_bytes(b"output").expect("there is room");
        let memory = |bytes| WorkEvent::MemoryMax(bytes);
        let mut events = Events::default();
        let next = |events: &mut Events| match events.next() {
            Some(Event::Busy(is_busy)) => Some(u64::from(is_busy)),
            Some(Event::Work(WorkEvent::MemoryMax(bytes))) => Some(bytes),
            Some(other) => panic!("{other:?}"),
            None => None,
        };
        events.tell(Event::Busy(false));
        events.tell(Event::Busy(true));
        assert_eq!(next(&mut events), Some(0));
        events.pin(Pin::new(&blobs, hash));
        [7, 8].into_iter().for_each(|bytes| events.follow_up(memory(bytes)));
        assert_eq!(next(&mut events), Some(7));
        events.follow_up(memory(9));
        let rest = [(); 3].map(|()| next(&mut events));
        assert_eq!((rest, blobs.kept_bytes().0), ([Some(8), Some(9), Some(1)], 6), "it is pinned");
        assert_eq!((next(&mut events), blobs.kept_bytes().0), (None, 0));
    }
}
