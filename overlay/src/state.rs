//! Where a peer stands between alone and left, and until when.

use crate::time::Time;

/// Where a peer stands between alone and left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A grid of one, as far as this peer knows.
    Alone,
    /// A first contact was given or met; the place on the line is being verified.
    Joining,
    /// On the line, with verified neighbours.
    Member,
    /// The neighbourhood knows; the peer lingers for peers that missed the farewell.
    Leaving,
    /// Gone: every event but [`Event::Return`](crate::Event::Return) is ignored.
    Left,
}

/// The state of this peer, and how long it lasts.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) state: State,
    /// When a joining peer becomes a member even if candidates go on turning up.
    pub(crate) join_until: Time,
    /// When a new member completes its leaf set.
    pub(crate) settle_until: Time,
    /// When a leaving peer stops.
    pub(crate) leave_until: Time,
}

impl Life {
    /// A peer alone.
    pub(crate) fn new(now: Time) -> Self {
        Self { state: State::Alone, join_until: now, settle_until: now, leave_until: now }
    }

    pub(crate) fn is_member(&self) -> bool {
        self.state == State::Member
    }

    pub(crate) fn is_joining(&self) -> bool {
        self.state == State::Joining
    }

    /// Whether the peer has left, or lingers only to repeat its farewell.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Leaving | State::Left)
    }

    /// Whether the peer verifies its next neighbours only; the others follow once its links stand.
    pub(crate) fn is_arriving(&self, now: Time) -> bool {
        self.is_joining() || now < self.settle_until
    }
}
