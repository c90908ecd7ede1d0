//! Who a peer is and where it stands on the line.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

/// Domain separator of position keys, so that no other hash of the same bytes can collide with one.
const POSITION_DOMAIN: &[u8] = b"idlewood position key v1";

/// Longest address a contact may carry, in bytes; longer ones are refused by [`Contact::is_valid`].
pub const ADDRESS_BYTES_MAX: usize = 256;

/// A machine's identity: its Ed25519 public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId(#[serde(with = "crate::bytes32")] pub [u8; 32]);

impl fmt::Debug for PeerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "peer:{}", hex::encode(&self.0[..4]))
    }
}

/// Which grid a message belongs to. Peers of different grids never link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GridId(#[serde(with = "crate::bytes32")] pub [u8; 32]);

impl GridId {
    /// The first eight bytes, which messages carry. Enough to tell grids apart by accident; not a protection: the grid
    /// id is no secret. The transport checks membership.
    pub fn tag(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(first)
    }
}

impl fmt::Debug for GridId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "grid:{}", hex::encode(&self.0[..4]))
    }
}

/// A place on the line: 256 bits, compared as a big-endian number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PositionKey(#[serde(with = "serde_bytes")] pub [u8; 32]);

impl PositionKey {
    /// The key of a peer without a certificate in a grid: as [`Contact::key`], with an empty nonce.
    pub fn new(grid: GridId, peer: PeerId) -> Self {
        Self::with_nonce(grid, peer, &[])
    }

    fn with_nonce(grid: GridId, peer: PeerId, nonce: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(POSITION_DOMAIN);
        hasher.update(&grid.0);
        hasher.update(&peer.0);
        hasher.update(nonce);
        Self(*hasher.finalize().as_bytes())
    }

    /// The first 64 bits as a number.
    pub fn head(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(first)
    }

    /// Length of the longest common prefix with `other`, in bits: 256 when they are equal.
    pub fn common_prefix(&self, other: &Self) -> u16 {
        let mut bits = 0;
        for (mine, theirs) in self.0.iter().zip(other.0.iter()) {
            let difference = mine ^ theirs;
            if difference != 0 {
                return bits + difference.leading_zeros() as u16;
            }
            bits += 8;
        }
        bits
    }
}

impl PartialOrd for PositionKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PositionKey {
    /// The first two words decide almost always.
    fn cmp(&self, other: &Self) -> Ordering {
        self.head().cmp(&other.head()).then_with(|| self.0.cmp(&other.0))
    }
}

impl fmt::Debug for PositionKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "key:{}", hex::encode(&self.0[..4]))
    }
}

/// Random bytes that a peer's issuer draws for its place on the line. Without them, anybody able to make many keys
/// would choose one whose hash gives them a place that they want, for instance the root's.
pub type Nonce = [u8; 16];

/// How to speak of and reach a peer.
///
/// Two contacts of one peer differ by incarnation: the higher one is the newer life of that machine.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Contact {
    /// Identity, authenticated by the transport.
    pub peer: PeerId,
    /// max(persisted + 1, wall-clock milliseconds at the agent's start); 0 where it is not known yet.
    pub incarnation: u64,
    /// Where to dial, in the driver's own notation: a multiaddress for the agent, the number of the machine in simnet.
    /// Empty where there is none to tell.
    pub address: Box<str>,
    /// The nonce in the peer's certificate; `None` without certificates, or while unknown. The transport vouches for
    /// the nonce of a sender; the nonce of any other peer is hearsay. It decides places only, and so travels in the
    /// overlay's own messages and nowhere else.
    #[serde(skip)]
    pub nonce: Option<Box<Nonce>>,
}

impl Contact {
    /// The place of this peer on the line of `grid`: BLAKE3(domain ‖ grid id ‖ peer id ‖ nonce).
    pub fn key(&self, grid: GridId) -> PositionKey {
        PositionKey::with_nonce(grid, self.peer, self.nonce.as_deref().map_or(&[], |nonce| nonce))
    }

    /// Whether a contact that a remote peer sent is within bounds.
    pub fn is_valid(&self) -> bool {
        self.address.len() <= ADDRESS_BYTES_MAX
    }
}

impl fmt::Debug for Contact {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}@{}", self.peer, self.incarnation)
    }
}

/// A handle to a contact and to its place on the line, which is computed when first asked for.
///
/// Clones share both, so the hash that a place costs is computed once for all of them. The place never travels: a
/// contact that arrives from another machine begins without one.
#[derive(Clone)]
pub struct Member(Arc<Shared>);

struct Shared {
    contact: Contact,
    /// The grid that a key was asked for, and that key.
    place: OnceLock<(GridId, PositionKey)>,
}

impl Member {
    /// The place of this peer on the line of `grid`.
    pub fn key(&self, grid: GridId) -> PositionKey {
        let (known, key) = self.0.place.get_or_init(|| (grid, self.0.contact.key(grid)));
        if *known == grid { *key } else { self.0.contact.key(grid) }
    }
}

impl From<Contact> for Member {
    fn from(contact: Contact) -> Self {
        Self(Arc::new(Shared { contact, place: OnceLock::new() }))
    }
}

impl From<PeerId> for Member {
    /// A peer of which only the identity is known.
    fn from(peer: PeerId) -> Self {
        Contact { peer, incarnation: 0, address: "".into(), nonce: None }.into()
    }
}

impl Deref for Member {
    type Target = Contact;

    fn deref(&self) -> &Contact {
        &self.0.contact
    }
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl Eq for Member {}

impl fmt::Debug for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}
