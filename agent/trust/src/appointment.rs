//! Signed appointments: who keeps a bag, by word of its submitter. What is signed is made by the scheduler
//! ([`idlewood_scheduler::Appointment::statement`]). Bytes: `docs/formats.md`.

use idlewood_scheduler::Appointment;
use libp2p::identity::ed25519;

use super::canonical;

/// Prefix of an appointment's statement when it is signed.
const DOMAIN: &[u8] = b"idlewood appointment v1";

/// Signs an appointment as the submitter.
pub(super) fn sign_appointment(key: &ed25519::Keypair, appointment: &Appointment) -> [u8; 64] {
    canonical::sign(key, DOMAIN, &appointment.statement())
}

/// Whether the machine that an appointment names as the bag's submitter signed it. That the bag is that machine's the receiver
/// knows: an executor by the bag that it holds, a steward by whom it agreed with.
pub fn is_signed_by_its_submitter(appointment: &Appointment) -> bool {
    let signature = <&[u8; 64]>::try_from(appointment.signature.as_slice());
    let (Some(submitter), Ok(signature)) = (appointment.submitter(), signature) else { return false };
    canonical::is_signed_by(&submitter.peer.0, DOMAIN, &appointment.statement(), signature)
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::{Contact, WallTime};
    use idlewood_scheduler::BagId;
    use libp2p::identity::Keypair;

    use super::*;
    use crate::identity;

    fn machine(seed: u8) -> (ed25519::Keypair, Contact) {
        let key = Keypair::ed25519_from_bytes([seed; 32]).expect("any bytes are a key");
        let peer = identity::peer_id(&key).expect("it is Ed25519");
        let contact = Contact { peer, incarnation: 1, address: "/ip4/10.0.0.1/tcp/1".into(), nonce: None };
        (key.try_into_ed25519().expect("it is Ed25519"), contact)
    }

    #[test]
    fn an_appointment_is_good_as_its_submitter_signed_it_and_not_otherwise() {
        let [(key, submitter), (other_key, other), (_, third)] = [1, 2, 3].map(machine);
        let keepers = vec![submitter, other];
        let bag = BagId([7; 32]);
        let unsigned = Appointment { bag, term: 5, keepers, until: WallTime(9), signature: Vec::new() };
        let sign = |key: &ed25519::Keypair, appointment: &Appointment| {
            let signature = sign_appointment(key, appointment).to_vec();
            Appointment { signature, ..appointment.clone() }
        };
        let good = sign(&key, &unsigned);
        assert!(is_signed_by_its_submitter(&good));
        assert!(!is_signed_by_its_submitter(&unsigned));
        assert!(!is_signed_by_its_submitter(&sign(&other_key, &unsigned)), "a steward appoints nobody");
        let changed = |change: &dyn Fn(&mut Appointment)| {
            let mut appointment = good.clone();
            change(&mut appointment);
            is_signed_by_its_submitter(&appointment)
        };
        assert!(!changed(&|appointment| appointment.bag = BagId([8; 32])));
        assert!(!changed(&|appointment| appointment.term += 1), "a signature is for one term");
        assert!(!changed(&|appointment| appointment.until = WallTime(10)));
        assert!(!changed(&|appointment| appointment.keepers[1] = third.clone()));
        assert!(!changed(&|appointment| appointment.keepers[1].address = "/ip4/10.0.0.9/tcp/1".into()));
        assert!(!changed(&|appointment| appointment.keepers.swap(0, 1)));
        assert!(!changed(&|appointment| appointment.keepers.clear()));
        assert!(!changed(&|appointment| appointment.signature[3] ^= 1));
        assert!(!changed(&|appointment| appointment.signature.truncate(63)));
    }
}
