//! Signed checkpoints: a checkpoint with its submitter's signature for one task.
//!
//! A request names the checkpoints of its tasks, and requests are unsigned: routers split them on the way. So the named
//! blob holds the submitter's signature over bag, task and content. It proves that the submitter issued this checkpoint
//! for that task, not that the machine which made it computed correctly. Bytes: `docs/formats.md`.

use idlewood_overlay::PeerId;
use libp2p::identity::ed25519;

use super::canonical;

/// Prefix of bag, task and checkpoint hash when they are signed.
const DOMAIN: &[u8] = b"idlewood checkpoint v1";

/// Bytes before the checkpoint in its blob: the signature.
pub const CHECKPOINT_ADDED_BYTES: usize = 64;

fn body(bag: &[u8; 32], index: u64, checkpoint: &[u8]) -> Vec<u8> {
    [bag.as_slice(), &index.to_be_bytes(), blake3::hash(checkpoint).as_bytes()].concat()
}

/// Signs a checkpoint as the submitter, for one task of a bag.
pub(super) fn sign_checkpoint(
    key: &ed25519::Keypair,
    bag: &[u8; 32],
    index: u64,
    checkpoint: &[u8],
) -> [u8; CHECKPOINT_ADDED_BYTES] {
    canonical::sign(key, DOMAIN, &body(bag, index, checkpoint))
}

/// The checkpoint in a blob, if `submitter` signed it for this task.
pub fn open_checkpoint<'a>(blob: &'a [u8], bag: &[u8; 32], index: u64, submitter: PeerId) -> Option<&'a [u8]> {
    let (signature, checkpoint) = blob.split_first_chunk()?;
    canonical::is_signed_by(&submitter.0, DOMAIN, &body(bag, index, checkpoint), signature).then_some(checkpoint)
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::*;
    use crate::identity;

    const BAG: [u8; 32] = [7; 32];

    fn machine(seed: u8) -> (ed25519::Keypair, PeerId) {
        let key = Keypair::ed25519_from_bytes([seed; 32]).expect("any bytes are a key");
        let peer = identity::peer_id(&key).expect("it is Ed25519");
        (key.try_into_ed25519().expect("it is Ed25519"), peer)
    }

    fn signed(checkpoint: &[u8]) -> Vec<u8> {
        [sign_checkpoint(&machine(1).0, &BAG, 5, checkpoint).as_slice(), checkpoint].concat()
    }

    #[test]
    fn a_checkpoint_is_good_for_one_task_of_its_submitters_bag() {
        let (submitter, other) = (machine(1).1, machine(2).1);
        let blob = signed(b"so far");
        assert_eq!(open_checkpoint(&blob, &BAG, 5, submitter), Some(b"so far".as_slice()));
        assert_eq!(open_checkpoint(&blob, &[8; 32], 5, submitter), None, "another bag");
        assert_eq!(open_checkpoint(&blob, &BAG, 6, submitter), None, "another task");
        assert_eq!(open_checkpoint(&blob, &BAG, 5, other), None, "another signer");
        let forged = [sign_checkpoint(&machine(2).0, &BAG, 5, b"so far").as_slice(), b"so far"].concat();
        assert_eq!(open_checkpoint(&forged, &BAG, 5, submitter), None);
        assert_eq!(open_checkpoint(b"so far", &BAG, 5, submitter), None, "not signed at all");
    }

    #[test]
    fn any_flipped_bit_of_a_checkpoint_is_refused() {
        let blob = signed(b"so far");
        for bit in 0..blob.len() * 8 {
            let mut changed = blob.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open_checkpoint(&changed, &BAG, 5, machine(1).1), None, "bit {bit}");
        }
        assert_eq!(open_checkpoint(&[blob.as_slice(), b"x"].concat(), &BAG, 5, machine(1).1), None);
        assert_eq!(open_checkpoint(&blob[..blob.len() - 1], &BAG, 5, machine(1).1), None);
    }

    #[test]
    fn signed_checkpoints_keep_their_bytes() {
        insta::assert_snapshot!(hex::encode(signed(b"so far")));
    }

    #[test]
    fn mutations_of_signed_checkpoints() {
        let blob = signed(b"so far");
        idlewood_testing::mutations("checkpoint", vec![blob.clone()], |bytes| {
            let is_one = open_checkpoint(bytes, &BAG, 5, machine(1).1).is_some();
            assert!(!is_one || bytes == blob);
            is_one
        });
    }
}
