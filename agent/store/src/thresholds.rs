//! Sizes at which the store acts.

/// Sizes at which the store acts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    /// Free space, beside four times the size of the group, below which commits fail. 0 in the test of sled on a full
    /// disk.
    pub(super) free_bytes_min: u64,
    /// A smaller store is never rebuilt.
    pub(super) rebuild_bytes_min: u64,
    /// Space reserved for commits that must be written on a full disk.
    pub(super) reserve_bytes: u64,
    /// sled gets a checkpoint when it lacks more bytes than this.
    pub(super) checkpoint_bytes: u64,
    /// The journal begins its next generation when this many bytes, and as many as its snapshot, follow the snapshot.
    pub(super) generation_bytes_min: u64,
}

/// Our choice: sled grows in segments of half a MiB and rewrites some of them at each opening. Changes for the next
/// checkpoint take some times their bytes of memory; the more there are, the more of them are replaced or removed
/// before sled gets them.
pub(super) const THRESHOLDS: Thresholds = Thresholds {
    free_bytes_min: 8 << 20,
    reserve_bytes: 16 << 20,
    rebuild_bytes_min: 32 << 20,
    checkpoint_bytes: 2 << 20,
    generation_bytes_min: 16 << 20,
};
