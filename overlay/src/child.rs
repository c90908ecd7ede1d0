//! A child as the layer above sees it.

use crate::identity::Contact;
use crate::node::Node;
use crate::time::Time;

/// A child of this machine's router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child<'a> {
    /// Its machine.
    pub contact: &'a Contact,
    /// Which node of that machine.
    pub node: Node,
    /// Leaves below it (1 for a leaf).
    pub count: u64,
    /// Links on the longest way down (0 for a leaf).
    pub height: u32,
    /// The payload that it published last, as far as it arrived; empty before.
    pub payload: &'a [u8],
    /// Changes whenever the payload is replaced or the child is another one.
    pub generation: u64,
    /// When a report of it came last.
    pub heard: Time,
}
