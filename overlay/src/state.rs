//! Where a peer stands between alone and left.

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
    /// Gone: every event but [`Event::Return`] is ignored.
    Left,
}
