//! What a peer counts for observers. Nothing of the protocol depends on it.

/// Messages refused and faults noticed since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages of another grid.
    pub foreign_grid: u64,
    /// Messages whose sender, by the transport, is this peer.
    pub forged_sender: u64,
    /// Messages with a payload, list or address that is too long.
    pub oversized: u64,
    /// Messages with values that no correct peer sends.
    pub malformed: u64,
    /// Messages of an incarnation that is over.
    pub stale_life: u64,
    /// Differences of payloads that could not be applied, though we hold their base.
    pub differences_refused: u64,
    /// Own payloads that were too long to publish.
    pub oversized_own: u64,
    /// Reports that we refused: the sender took us for its parent and we are not.
    pub links_refused: u64,
    /// Neighbours that answered no probe.
    pub crashes_found: u64,
    /// Times we began a newer incarnation because a peer took us for dead or knew a later one.
    pub risen: u64,
    /// Probes not begun because too many were under way.
    pub probes_dropped: u64,
    /// Messages without an address, from peers that we do not know.
    pub unknown_sender: u64,
    /// Incarnations claimed to be ours that no clock could give.
    pub incarnations_refused: u64,
    /// Times we woke so late that we must have been asleep.
    pub pauses: u64,
    /// Children known at once, since the former holder of the role handed them over.
    pub children_handed: u64,
}
