//! The two nodes of a machine, and the two sides of a router.

use serde::{Deserialize, Serialize};

/// Which of the two roles on a machine a message or link concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Node {
    /// The processing node: every peer has exactly one.
    Leaf,
    /// The routing node of the gap to the successor: every peer but the last on the line has exactly one.
    Router,
}

/// Which child slot of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Side {
    /// The subtree that ends at the router's own machine.
    Left,
    /// The subtree that begins at the successor.
    Right,
}

/// Both nodes, in the order in which tables by node are kept.
pub(crate) const NODES: [Node; 2] = [Node::Leaf, Node::Router];
/// Both sides, in the order in which tables by side are kept.
pub(crate) const SIDES: [Side; 2] = [Side::Left, Side::Right];
