//! A piece of a blob: what one machine asks another for, and the answers.

use blake3::Hash;
use idlewood_overlay::PeerId;
use idlewood_scheduler::{BagId, BagKey};

/// A request for a piece of a bag's blob.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The blob.
    pub hash: Hash,
    /// Offset of the first byte.
    pub offset: u64,
    /// The bag.
    pub bag: BagId,
    /// The bag's key, if this machine has it.
    pub key: Option<BagKey>,
}

/// The answer to a request for a piece of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkReply {
    /// The piece at the offset asked for, at least as long as the shortest piece unless the blob ends with it.
    Chunk {
        /// Length of the whole blob.
        total: u64,
        /// [`PIECE_BYTES_MIN`](idlewood_machine::serving::PIECE_BYTES_MIN) to [`CHUNK_BYTES_MAX`](crate::CHUNK_BYTES_MAX), or up to the end.
        bytes: Vec<u8>,
    },
    /// The peer does not have the blob.
    Missing,
    /// The peer is busy; ask again later.
    Busy,
}

/// Why a piece of a blob was not received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The peer cannot be reached, or the connection broke.
    #[error("{0:?} cannot be reached")]
    Unreachable(PeerId),
    /// The peer's answer does not fit the request.
    #[error("{0:?} sent an answer that does not fit the request")]
    Protocol(PeerId),
    /// The network has shut down.
    #[error("the network is shut down")]
    Closed,
}
