//! Whose bags may run in the grid, and signing of this machine's own.

use idlewood_overlay::PeerId;
use idlewood_scheduler::Appointment;

use super::super::appointment;
use super::super::certificate::{Chain, Refused, Role};
use super::super::checkpoint::{self, CHECKPOINT_ADDED_BYTES};
use super::super::receipt::Batch;
use super::super::signed::SignedBag;
#[cfg(test)]
use super::super::signed::SignedForm;
use super::super::unix_time::now_s;
use super::{Gate, State, Unauthorised};

/// Submitters remembered; beyond this, those whose chains are no longer valid are forgotten.
const SUBMITTERS_MAX: usize = 4096;

impl Gate {
    /// Signs the envelope of a bag of this machine.
    ///
    /// # Errors
    /// When this machine may not submit.
    pub fn sign_bag(&self, envelope: Vec<u8>) -> Result<SignedBag, Unauthorised> {
        let state = self.state();
        if state.chain.own.terms.role < Role::Submitter {
            return Err(Unauthorised::Role);
        }
        Ok(SignedBag::sign(envelope, state.chain.encode(), &self.machine))
    }

    /// Signs a manifest as agents did before envelopes existed.
    #[cfg(test)]
    pub(crate) fn sign_earlier_manifest(&self, manifest: Vec<u8>) -> SignedBag {
        SignedBag::sign_as(SignedForm::Manifest, manifest, self.state().chain.encode(), &self.machine)
    }

    /// Secret from which this machine derives its bags' keys: constant, and unpredictable without the machine's key.
    pub fn bag_secret(&self) -> [u8; 32] {
        blake3::derive_key("idlewood 2026 bag keys v1", &self.machine.to_bytes())
    }

    /// Signs this machine's statements about tasks that it ran.
    pub fn sign_results(&self, batch: &Batch) -> [u8; 64] {
        batch.sign(&self.machine)
    }

    /// Signs a checkpoint for a task of this machine's; the signature precedes it in the blob that requests name.
    pub fn sign_checkpoint(&self, bag: &[u8; 32], index: u64, checkpoint: &[u8]) -> [u8; CHECKPOINT_ADDED_BYTES] {
        checkpoint::sign_checkpoint(&self.machine, bag, index, checkpoint)
    }

    /// Signs who keeps a bag of this machine.
    pub fn sign_appointment(&self, appointment: &Appointment) -> [u8; 64] {
        appointment::sign_appointment(&self.machine, appointment)
    }

    /// Whether tasks of this bag may run here: its submitter signed it, and may submit. If the certificate in it has
    /// expired, the submitter's present one counts, if the submitter is connected.
    ///
    /// # Errors
    /// Why not.
    pub fn authorise(&self, signed: &SignedBag, submitter: PeerId) -> Result<(), Unauthorised> {
        self.authorise_at(signed, submitter, now_s())
    }

    pub(super) fn authorise_at(&self, signed: &SignedBag, submitter: PeerId, now_s: u64) -> Result<(), Unauthorised> {
        if !signed.is_signed_by(submitter) {
            return Err(Unauthorised::Signature);
        }
        // A machine's own bags may always run, even those from before it joined a grid.
        if submitter == self.me {
            return Ok(());
        }
        let mut state = self.state();
        let judge = |chain: Chain| {
            chain.verify(self.grid, submitter, now_s, |peer, role| state.is_revoked(peer, role)).map(|()| chain)
        };
        let shown = Chain::decode(&signed.chain).map_err(Refused::from).and_then(judge);
        let chain = match (shown, state.admitted.get(&submitter)) {
            (Err(_), Some(admitted)) => judge(admitted.chain.clone()),
            (shown, _) => shown,
        };
        match chain {
            Ok(chain) if chain.own.terms.role >= Role::Submitter => {
                state.remember_submitter(submitter, chain, now_s);
                Ok(())
            }
            Ok(_) => Err(Unauthorised::Role),
            Err(refused) => Err(Unauthorised::Refused(refused)),
        }
    }

    /// Whether a submitter with an authorised bag may still submit. Cheap: checks no signature.
    ///
    /// # Errors
    /// Why not.
    pub fn standing(&self, submitter: PeerId) -> Result<(), Unauthorised> {
        self.standing_at(submitter, now_s())
    }

    pub(super) fn standing_at(&self, submitter: PeerId, now_s: u64) -> Result<(), Unauthorised> {
        if submitter == self.me {
            return Ok(());
        }
        let state = self.state();
        let judge = |chain: &Chain| match chain.still_valid(now_s, |peer, role| state.is_revoked(peer, role)) {
            Ok(()) if chain.own.terms.role >= Role::Submitter => Ok(()),
            Ok(()) => Err(Unauthorised::Role),
            Err(refused) => Err(Unauthorised::Refused(refused)),
        };
        let shown = state.submitters.get(&submitter).map_or(Err(Unauthorised::Refused(Refused::Expired)), judge);
        match (shown, state.admitted.get(&submitter)) {
            (Err(_), Some(admitted)) => judge(&admitted.chain),
            (shown, _) => shown,
        }
    }
}

impl State {
    /// Stores the chain, unless a valid one that expires no earlier is known.
    fn remember_submitter(&mut self, submitter: PeerId, chain: Chain, now_s: u64) {
        let is_valid =
            |state: &Self, chain: &Chain| chain.still_valid(now_s, |peer, role| state.is_revoked(peer, role)).is_ok();
        if self.submitters.get(&submitter).is_some_and(|known| {
            is_valid(self, known) && known.own.terms.role >= Role::Submitter && known.expires_s() >= chain.expires_s()
        }) {
            return;
        }
        if self.submitters.len() >= SUBMITTERS_MAX {
            let valid = |known: &Chain| is_valid(self, known);
            let gone: Vec<PeerId> =
                self.submitters.iter().filter(|(_, known)| !valid(known)).map(|(&peer, _)| peer).collect();
            for peer in &gone {
                self.submitters.remove(peer);
            }
        }
        self.submitters.insert(submitter, chain);
    }
}
