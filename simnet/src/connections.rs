//! The connections of one simulated machine, with the bounds that the agent's network keeps ([`idlewood_machine::connections`]).
//!
//! Messages and requests for pieces go over connections, which either side may have opened. Without one they wait until it is open, or until that has
//! failed. A connection over which nothing has gone for two minutes is closed. A machine with many closes those that were not used for longest. A machine
//! that was switched off has none any more, and resets one over which something comes. How connections are opened is in `simulation/connecting.rs`.
//!
//! Left out: a second connection between two machines that dial each other at the same time, and the handshakes of one address that the agent's
//! `throttle` bounds (each simulated machine has an address of its own).

use std::collections::BTreeMap;

use idlewood_machine::connections::{self, ESTABLISHED_MAX, IDLE_TIMEOUT, INCOMING_MAX, KEPT_MAX, PENDING_MAX, QUIET};
use idlewood_overlay::Time;

use crate::event_queue::HostIndex;

/// An open connection.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// When something went over it last.
    used: Time,
    is_incoming: bool,
}

/// A connection that is being opened by this machine, and what waits for it.
#[derive(Debug)]
struct Dial<T> {
    number: u64,
    waiting: Vec<T>,
}

/// What becomes of something that is to be sent to a machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Way<T> {
    /// It can go now.
    Open(T),
    /// It waits for a connection that is being opened.
    Waits,
    /// It waits, and the machine is to be dialled under this number.
    Dial(u64),
    /// This machine has no room for a further connection, or a dial has just failed. `is_new`: that was not reported a moment ago.
    Refused { item: T, is_new: bool },
}

/// The connection over which something has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard<T> {
    /// It is open.
    Known,
    /// This machine has dialled it, and it is open now: what has waited can go.
    Dialled(Vec<T>),
    /// This machine does not have it: it is reset.
    Unknown,
}

/// All of one machine; `T` is what waits.
#[derive(Debug)]
pub(crate) struct Connections<T> {
    open: BTreeMap<HostIndex, Open>,
    dials: BTreeMap<HostIndex, Dial<T>>,
    /// Handshakes that others have begun.
    pending: u32,
    /// Machines that could not be reached, and until when they are not dialled again.
    quiet: BTreeMap<HostIndex, Time>,
    dialled: u64,
    /// Most that were open at once, in all lives.
    most: u32,
}

impl<T> Default for Connections<T> {
    fn default() -> Self {
        let (open, dials, quiet) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { open, dials, pending: 0, quiet, dialled: 0, most: 0 }
    }
}

impl<T> Connections<T> {
    /// Something is to be sent.
    pub(crate) fn send(&mut self, now: Time, to: HostIndex, item: T) -> Way<T> {
        if let Some(open) = self.open.get_mut(&to) {
            if now.since(open.used) < IDLE_TIMEOUT {
                open.used = open.used.max(now);
                return Way::Open(item);
            }
            self.open.remove(&to);
        }
        if let Some(dial) = self.dials.get_mut(&to) {
            dial.waiting.push(item);
            return Way::Waits;
        }
        self.quiet.retain(|_, until| *until > now);
        if self.quiet.contains_key(&to) {
            return Way::Refused { item, is_new: false };
        }
        if self.dials.len() >= PENDING_MAX as usize {
            self.quiet.insert(to, now + QUIET);
            return Way::Refused { item, is_new: true };
        }
        self.dialled += 1;
        self.dials.insert(to, Dial { number: self.dialled, waiting: vec![item] });
        Way::Dial(self.dialled)
    }

    /// Something has come from a machine over a connection.
    pub(crate) fn hear(&mut self, now: Time, from: HostIndex) -> Heard<T> {
        if let Some(dial) = self.dials.remove(&from) {
            self.insert(now, from, false);
            return Heard::Dialled(dial.waiting);
        }
        // The other side has used it within its time: this side's ends a moment later.
        match self.open.get_mut(&from) {
            Some(open) => {
                open.used = open.used.max(now);
                Heard::Known
            }
            None => Heard::Unknown,
        }
    }

    /// Another machine begins a handshake; false if too many are under way.
    pub(crate) fn knock(&mut self) -> bool {
        let has_room = self.pending < PENDING_MAX;
        self.pending += u32::from(has_room);
        has_room
    }

    /// The handshake that another machine has begun is over: what has waited for a connection to it and can go now, or `None` if there is no room.
    pub(crate) fn admit(&mut self, now: Time, from: HostIndex) -> Option<Vec<T>> {
        self.pending = self.pending.saturating_sub(1);
        self.close_idle(now);
        // The other side has begun anew, and does not have the one that is open here.
        self.open.remove(&from);
        let incoming = self.open.values().filter(|open| open.is_incoming).count();
        if incoming >= INCOMING_MAX as usize || self.open.len() >= ESTABLISHED_MAX as usize {
            return None;
        }
        self.insert(now, from, true);
        // Without a dial of this machine's own nothing waits.
        Some(self.dials.remove(&from).map_or_else(Vec::new, |dial| dial.waiting))
    }

    /// A dial of this machine has been answered: what has waited and can go now. `Err`: what has waited in vain, since there is no room any more. `None`: the
    /// dial is over already.
    pub(crate) fn answered(&mut self, now: Time, to: HostIndex, number: u64) -> Option<Result<Vec<T>, Vec<T>>> {
        let dial = self.take_dial(to, number)?;
        self.close_idle(now);
        if self.open.len() >= ESTABLISHED_MAX as usize {
            self.quiet.insert(to, now + QUIET);
            return Some(Err(dial.waiting));
        }
        self.insert(now, to, false);
        Some(Ok(dial.waiting))
    }

    /// A dial of this machine has failed: what has waited in vain; `None`: the dial is over already.
    pub(crate) fn failed(&mut self, now: Time, to: HostIndex, number: u64) -> Option<Vec<T>> {
        let dial = self.take_dial(to, number)?;
        self.quiet.insert(to, now + QUIET);
        Some(dial.waiting)
    }

    /// A file is under way to a machine, or from it, until then.
    pub(crate) fn serves(&mut self, to: HostIndex, until: Time) {
        if let Some(open) = self.open.get_mut(&to) {
            open.used = open.used.max(until);
        }
    }

    /// Closes connections that were not used for longest where there are many; returns with whom.
    pub(crate) fn make_room(&mut self, now: Time) -> Vec<HostIndex> {
        let unused = self.open.iter().map(|(other, open)| (open.used, *other));
        let closed = connections::to_close(now, KEPT_MAX, self.open.len(), unused);
        self.open.retain(|other, _| !closed.contains(other));
        closed
    }

    /// The other side says that it has no such connection, or closes it; true if this side had it.
    pub(crate) fn reset(&mut self, by: HostIndex) -> bool {
        self.open.remove(&by).is_some()
    }

    /// The machine goes down: whom it has connections with, and what waits for one.
    pub(crate) fn clear(&mut self) -> (Vec<HostIndex>, Vec<T>) {
        let with = std::mem::take(&mut self.open).into_keys().collect();
        let waiting = std::mem::take(&mut self.dials).into_values().flat_map(|dial| dial.waiting).collect();
        self.pending = 0;
        self.quiet.clear();
        (with, waiting)
    }

    /// Most that were open at once so far.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    fn take_dial(&mut self, to: HostIndex, number: u64) -> Option<Dial<T>> {
        self.dials.get(&to).filter(|dial| dial.number == number)?;
        self.dials.remove(&to)
    }

    fn insert(&mut self, now: Time, other: HostIndex, is_incoming: bool) {
        self.open.insert(other, Open { used: now, is_incoming });
        self.close_idle(now);
        self.most = self.most.max(self.open.len() as u32);
    }

    fn close_idle(&mut self, now: Time) {
        self.open.retain(|_, open| now.since(open.used) < IDLE_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_sent_before_a_connection_is_open_shares_one_dial_and_goes_once_it_is() {
        let mut one = Connections::default();
        assert_eq!(one.send(at(0), 7, 'a'), Way::Dial(1));
        assert_eq!(one.send(at(0), 7, 'b'), Way::Waits);
        assert_eq!(one.answered(at(1), 7, 1), Some(Ok(vec!['a', 'b'])));
        assert_eq!(one.answered(at(1), 7, 1), None, "it is over");
        assert_eq!(one.send(at(120), 7, 'c'), Way::Open('c'));
        assert_eq!(one.send(at(239), 7, 'd'), Way::Open('d'), "it was used two minutes ago");
        assert_eq!(one.send(at(359), 7, 'e'), Way::Dial(2), "it has been closed");
    }

    #[test]
    fn a_connection_serves_both_sides_and_one_that_is_gone_is_reset() {
        let mut one = Connections::default();
        assert_eq!(one.hear(at(0), 7), Heard::Unknown);
        assert!(one.knock());
        assert_eq!(one.admit(at(0), 7), Some(vec![]));
        assert_eq!(one.send(at(1), 7, 'a'), Way::Open('a'));
        assert_eq!(one.hear(at(1), 7), Heard::Known);
        assert!(one.reset(7));
        assert!(!one.reset(7));
        // Two that dial each other: the first connection serves.
        assert_eq!(one.send(at(2), 7, 'b'), Way::Dial(1));
        assert!(one.knock());
        assert_eq!(one.admit(at(2), 7), Some(vec!['b']));
        assert_eq!(one.failed(at(3), 7, 1), None);
    }

    #[test]
    fn a_machine_that_could_not_be_reached_is_left_alone_for_a_moment() {
        let mut one = Connections::default();
        assert_eq!(one.send(at(0), 7, 'a'), Way::Dial(1));
        assert_eq!(one.failed(at(10), 7, 1), Some(vec!['a']));
        assert_eq!(one.send(at(10), 7, 'b'), Way::Refused { item: 'b', is_new: false });
        assert_eq!(one.send(at(11), 7, 'c'), Way::Dial(2));
    }

    #[test]
    fn bounds_are_those_of_the_agent() {
        let mut one = Connections::default();
        for from in 0..PENDING_MAX {
            assert!(one.knock(), "{from}");
        }
        assert!(!one.knock());
        for from in 0..INCOMING_MAX {
            assert!(one.admit(at(0), from).is_some(), "{from}");
        }
        assert_eq!(one.admit(at(0), INCOMING_MAX), None);
        // Those that it opens itself have room of their own, some at a time.
        let (mut numbers, others) = (1.., 5000..5000 + ESTABLISHED_MAX - INCOMING_MAX);
        for first in others.step_by(PENDING_MAX as usize) {
            let these = first..first + PENDING_MAX;
            for to in these.clone() {
                assert!(matches!(one.send(at(0), to, ()), Way::Dial(_)), "{to}");
            }
            assert_eq!(one.send(at(0), 9000 + first, ()), Way::Refused { item: (), is_new: true });
            for (to, number) in these.zip(&mut numbers) {
                assert_eq!(one.answered(at(0), to, number), Some(Ok(vec![()])), "{to}");
            }
        }
        assert_eq!(one.most(), ESTABLISHED_MAX);
        let Way::Dial(number) = one.send(at(1), 9000, ()) else { panic!("it does not dial") };
        assert_eq!(one.answered(at(1), 9000, number), Some(Err(vec![()])));
        // Those that were not used for longest make room.
        assert_eq!(one.make_room(at(2)).len(), ESTABLISHED_MAX as usize - KEPT_MAX);
        assert!(one.admit(at(2), INCOMING_MAX).is_some());
        one.serves(INCOMING_MAX, at(100));
        // Two minutes later all are idle but one, which a file leaves over.
        assert!(one.admit(at(122), 3000).is_some());
        assert_eq!(one.clear().0, [INCOMING_MAX, 3000]);
    }
}
