//! Whose bags run in the grid.

use idlewood_overlay::PeerId;

use super::super::certificate::{Chain, Refused, Role};
use super::super::receipt::Batch;
use super::super::signed::SignedManifest;
use super::{Gate, Unauthorised, now_s};

impl Gate {
    /// Signs a manifest of this machine.
    ///
    /// # Errors
    /// When this machine may not submit.
    pub fn sign_manifest(&self, manifest: Vec<u8>) -> Result<SignedManifest, Unauthorised> {
        let state = self.state();
        if state.chain.own.terms.role < Role::Submitter {
            return Err(Unauthorised::Role);
        }
        Ok(SignedManifest::sign(manifest, state.chain.encode(), &self.machine))
    }

    /// Signs what this machine says of tasks that it ran.
    pub(crate) fn sign_results(&self, batch: &Batch) -> [u8; 64] {
        batch.sign(&self.machine)
    }

    /// Whether tasks of this manifest may run here: its submitter signed it, and may submit. Where the certificate in it has
    /// expired since, the one counts by which the submitter is connected now.
    ///
    /// # Errors
    /// Why not.
    pub fn authorise(&self, signed: &SignedManifest, submitter: PeerId) -> Result<(), Unauthorised> {
        self.authorise_at(signed, submitter, now_s())
    }

    pub(super) fn authorise_at(
        &self,
        signed: &SignedManifest,
        submitter: PeerId,
        now_s: u64,
    ) -> Result<(), Unauthorised> {
        if !signed.is_signed_by(submitter) {
            return Err(Unauthorised::Signature);
        }
        // Its own bags are its own business, also those from before it joined a grid.
        if submitter == self.me {
            return Ok(());
        }
        let state = self.state();
        let is_revoked = |peer, role| state.is_revoked(peer, role);
        let judge =
            |chain: &Chain| chain.verify(self.grid, submitter, now_s, is_revoked).map(|()| chain.own.terms.role);
        let shown = Chain::decode(&signed.chain).map_err(Refused::from).and_then(|chain| judge(&chain));
        let role = match (shown, state.admitted.get(&submitter)) {
            (Err(_), Some(admitted)) => judge(&admitted.chain),
            (shown, _) => shown,
        };
        match role {
            Ok(Role::Submitter | Role::Admin) => Ok(()),
            Ok(Role::Member) => Err(Unauthorised::Role),
            Err(refused) => Err(Unauthorised::Refused(refused)),
        }
    }

    /// Whether a machine was revoked.
    pub fn is_revoked(&self, peer: PeerId) -> bool {
        let state = self.state();
        state.is_revoked(peer, state.known_role(peer))
    }
}
