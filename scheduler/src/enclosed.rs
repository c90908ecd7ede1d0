//! Short files of a bag that travel with the messages that place its tasks, instead of being fetched one by one from its submitter
//! (docs/adr/0063).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest file that is enclosed, in bytes. Our choice: what a submitter signs of a bag has some 700, and a message with it still fits
/// into one packet.
pub const ENCLOSED_BYTES_MAX: usize = 1024;

/// A file of a bag as a message carries it; empty where it is longer than [`ENCLOSED_BYTES_MAX`], or not known to whoever sends the message: the
/// receiver fetches it then. Whoever uses it compares its hash with the name that it should have.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Enclosed(Arc<[u8]>);

impl Enclosed {
    /// This file, if it is short.
    pub fn of(file: &[u8]) -> Self {
        if file.len() > ENCLOSED_BYTES_MAX { Self::default() } else { Self(file.into()) }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there is no file.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether what a remote peer sent is as short as it has to be.
    pub fn is_valid(&self) -> bool {
        self.0.len() <= ENCLOSED_BYTES_MAX
    }
}

impl fmt::Debug for Enclosed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes", self.0.len())
    }
}

impl Serialize for Enclosed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Enclosed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde_bytes::ByteBuf::deserialize(deserializer).map(|bytes| Self(bytes.into_vec().into()))
    }
}
