//! Whether appointments of keepers are signed by the submitters that they name.

use std::collections::{BTreeSet, VecDeque};

use idlewood_scheduler::{Appointment, Message};
use idlewood_trust::is_signed_by_its_submitter;

/// Appointments that were found signed and are remembered: a steward says by which it acts before each of its leases.
const APPOINTMENTS_MAX: usize = 1024;
/// Appointments whose signatures have been checked.
#[derive(Debug, Default)]
pub(super) struct Appointments {
    signed: BTreeSet<[u8; 32]>,
    /// The same, the oldest first.
    order: VecDeque<[u8; 32]>,
}

impl Appointments {
    /// Whether each appointment in a message is signed by the machine that it names as its bag's submitter.
    pub(super) fn are_signed(&mut self, message: &Message) -> bool {
        message.appointments().all(|appointment| self.is_signed(appointment))
    }

    fn is_signed(&mut self, appointment: &Appointment) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&appointment.statement()).update(&appointment.signature);
        let name = *hasher.finalize().as_bytes();
        if self.signed.contains(&name) {
            return true;
        }
        if !is_signed_by_its_submitter(appointment) {
            return false;
        }
        if self.order.len() >= APPOINTMENTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.signed.remove(&oldest);
        }
        self.signed.insert(name);
        self.order.push_back(name);
        true
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::{Contact, WallTime};
    use idlewood_scheduler::{Acting, BagId};
    use idlewood_trust::Gate;
    use libp2p::identity::Keypair;

    use super::*;

    fn gate() -> Gate {
        Gate::open(&Keypair::generate_ed25519(), None).expect("alone")
    }

    fn contact(gate: &Gate) -> Contact {
        Contact { peer: gate.me(), incarnation: 1, address: "/ip4/10.0.0.1/tcp/1".into(), nonce: None }
    }

    fn acts(appointment: &Appointment) -> Message {
        Message::Acts { acting: Box::new(Acting { appointment: appointment.clone(), acting: 1, rank: 1 }) }
    }

    #[test]
    fn messages_with_forged_appointments_are_not_heard() {
        let [submitter, steward] = [gate(), gate()];
        let keepers = vec![contact(&submitter), contact(&steward)];
        let (bag, until) = (BagId([7; 32]), WallTime(i64::MAX));
        let unsigned = Appointment { bag, term: 5, keepers, until, signature: vec![0; 64] };
        let signed_by = |gate: &Gate, appointment: &Appointment| {
            let signature = gate.sign_appointment(appointment).to_vec();
            Appointment { signature, ..appointment.clone() }
        };
        let good = signed_by(&submitter, &unsigned);
        let mut known = Appointments::default();
        for _ in 0..2 {
            assert!(known.are_signed(&acts(&good)));
            assert!(!known.are_signed(&acts(&unsigned)));
            assert!(!known.are_signed(&acts(&signed_by(&steward, &unsigned))), "a steward does not appoint itself");
            assert!(!known.are_signed(&acts(&Appointment { term: 6, ..good.clone() })), "for another term");
            let other = Appointment { bag: BagId([8; 32]), ..good.clone() };
            assert!(!known.are_signed(&acts(&other)), "for another bag");
        }
        assert!(known.are_signed(&Message::KeepAnswer { bag, accepts: true }), "it has none");
    }

    #[test]
    fn a_bounded_number_of_appointments_is_remembered() {
        let submitter = gate();
        let keepers = vec![contact(&submitter)];
        let mut known = Appointments::default();
        for term in 1..APPOINTMENTS_MAX as u64 + 10 {
            let bag = BagId([7; 32]);
            let unsigned =
                Appointment { bag, term, keepers: keepers.clone(), until: WallTime(1), signature: Vec::new() };
            let signature = submitter.sign_appointment(&unsigned).to_vec();
            assert!(known.are_signed(&acts(&Appointment { signature, ..unsigned })));
        }
        assert_eq!((known.order.len(), known.signed.len()), (APPOINTMENTS_MAX, APPOINTMENTS_MAX));
    }
}
