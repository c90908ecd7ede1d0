//! What the network counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::Traffic;

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Bytes of frames sent: messages, chunks and answers, before encryption and TCP.
    pub bytes_sent: u64,
    /// Bytes of frames received, counted in the same way.
    pub bytes_received: u64,
    /// Bytes of blobs among those sent.
    pub blob_bytes_sent: u64,
    /// Bytes written to sockets: frames, and what handshakes, streams and encryption add. TCP's and IP's headers are not among them.
    pub wire_bytes_sent: u64,
    /// Bytes read from sockets, counted in the same way.
    pub wire_bytes_received: u64,
    /// How many times something was written to a socket: the packets, while no connection is full.
    pub wire_writes: u64,
    /// Messages that the receiver acknowledged, and those written with an answer to one of its own.
    pub messages_sent: u64,
    /// Messages handed to the agent.
    pub messages_received: u64,
    /// Outgoing messages lost: too long, peer unreachable or busy, or a message of the tree without room.
    pub messages_dropped: u64,
    /// Incoming requests refused: the agent did not keep up, or the peer sent too many.
    pub messages_refused: u64,
    /// Frames that were too long, malformed or incomplete, answers that do not fit their request, and blobs with a
    /// wrong hash.
    pub protocol_errors: u64,
}

/// The totals as they grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) blob_bytes_sent: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) traffic: Arc<Traffic>,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The totals now.
    pub(crate) fn totals(&self) -> NetCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NetCounters {
            bytes_sent: read(&self.traffic.bytes_sent),
            bytes_received: read(&self.traffic.bytes_received),
            blob_bytes_sent: read(&self.blob_bytes_sent),
            wire_bytes_sent: read(&self.traffic.wire_bytes_sent),
            wire_bytes_received: read(&self.traffic.wire_bytes_received),
            wire_writes: read(&self.traffic.wire_writes),
            messages_sent: read(&self.sent),
            messages_received: read(&self.received),
            messages_dropped: read(&self.dropped),
            messages_refused: read(&self.refused),
            protocol_errors: read(&self.errors) + read(&self.traffic.damaged),
        }
    }
}
