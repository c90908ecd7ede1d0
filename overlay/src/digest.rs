//! Digests of what peers announce of themselves.

use crate::identity::Contact;

/// A digest of what a peer announces of itself, compared to learn whether the other knows it already. It need not
/// withstand an attack: a liar about its own state only misleads itself, and could as well say nothing.
#[derive(Default)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn add(&mut self, word: u64) {
        // Rotate, multiply by an odd constant (2⁶⁴ divided by the golden ratio) and fold: every bit reaches all others.
        let mixed = (self.0.rotate_left(26) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    pub(crate) fn add_contact(&mut self, contact: &Contact) {
        let (words, _) = contact.peer.0.as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        self.add(contact.incarnation);
        self.add(contact.address.len() as u64);
        contact.address.bytes().for_each(|byte| self.add(u64::from(byte)));
        if let Some(nonce) = &contact.nonce {
            let (words, _) = nonce.as_chunks::<8>();
            words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        }
    }

    /// Never 0. Short, since every heartbeat carries some: if two contents collide, the next change or the next look-up
    /// of the own key repairs it.
    pub(crate) fn short(&self) -> u32 {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).max(1) as u32
    }
}
