//! What another machine says of this one after it has dialled back.

use std::net::SocketAddr;

use idlewood_overlay::PeerId;

/// What another machine says of this one.
#[derive(Clone, Debug, PartialEq)]
pub struct DialledBack {
    /// Who was asked.
    pub by: PeerId,
    /// This machine's address and port, as seen from there; `None` where that machine did not say.
    pub at: Option<SocketAddr>,
    /// Why this machine was not reached, in words; `None`: it was reached.
    pub failure: Option<String>,
    /// How far the other machine's clock is ahead of this one's, in seconds, and how far that may be off.
    pub clock_ahead_s: Option<(f64, f64)>,
}
