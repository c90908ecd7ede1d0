//! How much a peer holds, for observers.

/// How much one peer holds; every part is bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Neighbours in the leaf set.
    pub leaf_set: usize,
    /// Peers far away on the line.
    pub fingers: usize,
    /// Peers that were only heard of.
    pub heard_of: usize,
    /// Probes under way.
    pub probes: usize,
    /// Lost peers remembered.
    pub graves: usize,
}
