//! Places of peers on the line, as the judges compute them.

use std::collections::BTreeMap;

use idlewood_overlay::{GridId, Overlay, PeerId, PositionKey};

/// Places on the line, each computed once from an identity.
#[derive(Debug)]
pub struct Keys {
    grid: GridId,
    known: BTreeMap<PeerId, PositionKey>,
}

impl Keys {
    /// Keys of a grid.
    pub fn new(grid: GridId) -> Self {
        Self { grid, known: BTreeMap::new() }
    }

    /// The place of a peer.
    pub fn of(&mut self, peer: PeerId) -> PositionKey {
        *self.known.entry(peer).or_insert_with(|| PositionKey::new(self.grid, peer))
    }

    /// Length in bits of the common prefix of two peers' keys.
    pub(super) fn prefix_bits(&mut self, one: PeerId, other: PeerId) -> u32 {
        prefix_bits(&self.of(one), &self.of(other))
    }

    /// Length of the prefix at the gap of this machine's router.
    pub(super) fn gap_bits(&mut self, overlay: &Overlay) -> Option<u32> {
        Some(self.prefix_bits(overlay.me().peer, overlay.gap()?.peer))
    }
}

/// Length in bits of the common prefix of two keys.
fn prefix_bits(one: &PositionKey, other: &PositionKey) -> u32 {
    let differing = one.0.iter().zip(&other.0).enumerate().find(|(_, (one, other))| one != other);
    differing.map_or(256, |(byte, (one, other))| byte as u32 * 8 + (one ^ other).leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_at_the_first_bit_that_differs() {
        let key = PositionKey([0xa5; 32]);
        for bit in [0, 7, 8, 100, 255] {
            let mut other = key;
            other.0[bit / 8] ^= 0x80 >> (bit % 8);
            assert_eq!(prefix_bits(&key, &other), bit as u32);
        }
        assert_eq!(prefix_bits(&key, &key), 256);
    }
}
