//! Payloads: bytes of the layer above that climb the tree, as they travel and as they are stored.

use std::sync::Arc;

/// Longest payload of a report or of the root, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 64 * 1024;

/// Bytes of the layer above, as they travel.
#[derive(Default, Clone, Debug)]
pub struct Payload {
    /// Rises with every payload that the node publishes, within one life of the sender; never 0.
    pub version: u64,
    /// The version that `bytes` are the difference to; none when they are the whole payload.
    pub base: Option<u64>,
    /// Opaque here.
    pub bytes: Vec<u8>,
    /// The unpacked payload, if the sender is in the same process, as in a simulation: saves unpacking, and changes
    /// nothing else.
    unpacked: Option<Arc<[u8]>>,
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        (self.version, self.base, &self.bytes) == (other.version, other.base, &other.bytes)
    }
}

impl Eq for Payload {}

impl Payload {
    /// A payload as it was received.
    pub fn new(version: u64, base: Option<u64>, bytes: Vec<u8>) -> Self {
        Self { version, base, bytes, unpacked: None }
    }

    /// The payload: the difference applied to `base`, or the whole. None if the bytes do not unpack.
    pub(crate) fn unpack(self, base: Option<&[u8]>, codec: &PayloadCodec) -> Option<Arc<[u8]>> {
        self.unpacked.or_else(|| (codec.unpack)(base, &self.bytes).map(Arc::from))
    }
}

/// A payload as a machine stores it.
#[derive(Default, Clone, Debug)]
pub(crate) struct Load {
    /// Version of the payload; 0 is none.
    pub(crate) version: u64,
    /// Unpacked.
    pub(crate) bytes: Arc<[u8]>,
}

impl Load {
    /// As it travels to a peer that holds no earlier one; empty if the codec refuses it.
    pub(crate) fn packed(&self, codec: &PayloadCodec) -> Payload {
        self.packed_against(None, codec).unwrap_or_else(|| Payload::new(self.version, None, Vec::new()))
    }

    /// As it travels to a peer that holds `base`.
    pub(crate) fn packed_against(&self, base: Option<&Self>, codec: &PayloadCodec) -> Option<Payload> {
        let bytes = (codec.pack)(base.map(|base| &*base.bytes), &self.bytes)?;
        let (base, unpacked) = (base.map(|base| base.version), Some(Arc::clone(&self.bytes)));
        Some(Payload { version: self.version, base, bytes, unpacked })
    }
}

/// Computes bytes from an earlier payload, if there is one, and other bytes.
pub type Translate = fn(Option<&[u8]>, &[u8]) -> Option<Vec<u8>>;

/// How payloads of the layer above travel: it publishes and reads them in its own form; on the way they are as short as
/// it can make them, above all as differences to an earlier one.
#[derive(Clone, Copy, Debug)]
pub struct PayloadCodec {
    /// Packs the second payload for a peer that holds the first, or, without a first, as a whole. None if it cannot:
    /// the whole then replaces a difference, an empty payload the whole.
    pub pack: Translate,
    /// Unpacks: the second payload from the first and the packed bytes; none if they do not apply. Safe on any bytes:
    /// it neither panics nor allocates much.
    pub unpack: Translate,
}

impl PayloadCodec {
    /// Sends every payload whole and as it is.
    pub const WHOLE: Self = Self {
        pack: |base, new| base.is_none().then(|| new.to_vec()),
        unpack: |base, bytes| base.is_none().then(|| bytes.to_vec()),
    };
}
