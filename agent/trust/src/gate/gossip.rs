//! Gossip between connected machines of a grid: revocations, administrators, renewed certificates.

use std::iter;

use idlewood_overlay::PeerId;
use libp2p::Multiaddr;
use tracing::{info, warn};

use super::super::certificate::{Certificate, Chain, Refused, Role};
use super::super::membership::{ADMINS_MAX, Admin, MembershipError, fits_invitation};
use super::super::message;
use super::super::revocation::{Revocation, Revocations};
use super::super::unix_time::now_s;
use super::{Gate, GateError, Outcome, State};
use crate::identity;

impl Gate {
    /// Revokes a machine for good. The passphrase opens the grid's key, needed to revoke administrators, until the agent
    /// ends.
    ///
    /// # Errors
    /// When this machine may not revoke, or the revocation cannot be written.
    pub fn revoke(&self, peer: PeerId, passphrase: Option<&[u8]>) -> Result<(), GateError> {
        self.revoke_at(peer, passphrase, now_s())
    }

    pub(super) fn revoke_at(&self, peer: PeerId, passphrase: Option<&[u8]>, now_s: u64) -> Result<(), GateError> {
        if peer == self.me {
            return Err(GateError::Oneself);
        }
        let mut state = self.state();
        state.check_admin(self, now_s)?;
        // This machine may not know an administrator as one: use the grid's key whenever possible.
        let is_admin = state.known_role(peer) == Role::Admin;
        if is_admin || passphrase.is_some() || state.has_open_grid_key()? {
            state.open_grid_key(self.grid, passphrase)?;
        }
        let revocation = match &state.grid_key {
            Some(key) => Revocation::issue(self.grid, peer, now_s, key, None),
            None => Revocation::issue(self.grid, peer, now_s, &self.machine, Some(state.chain.own.clone())),
        };
        let Some(membership) = &state.membership else { return Err(GateError::NoGrid) };
        if !membership.revocations.is_new(&revocation) {
            return Err(GateError::RevokedAlready);
        }
        state.take_revocations(vec![revocation])?;
        if !state.is_revoked(peer, Role::Member) {
            return Err(GateError::Terms("there are too many revocations for this one to be kept"));
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits until [`Gate::pending_gossip`] has messages, or a connected machine may have to be disconnected.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes the messages that all connected machines should receive.
    pub fn pending_gossip(&self) -> Vec<Vec<u8>> {
        let mut state = self.state();
        let mut messages: Vec<Vec<u8>> = message::pages(std::mem::take(&mut state.unspread).iter(), Vec::new());
        if std::mem::take(&mut state.renewed) {
            messages.push(message::Gossip::Certificate(state.chain.encode()).encode());
        }
        messages
    }

    /// The messages that a newly admitted `peer` needs: everything if its digest differs.
    pub fn lacks(&self, peer: PeerId) -> Vec<Vec<u8>> {
        let state = self.state();
        let digest = state.digest();
        let Some(membership) = &state.membership else { return Vec::new() };
        let mut admins = Vec::new();
        // An administrator's address may have changed while the digest has not.
        if state.chain.own.terms.role == Role::Admin
            && let Some(address) = state.reachable_at().next()
        {
            admins.push((state.chain.own.encode(), address));
        }
        if state.admitted.get(&peer).is_none_or(|admitted| admitted.digest == digest) {
            return message::pages(iter::empty(), admins);
        }
        admins.extend(membership.admins.values().map(|it| (it.certificate.encode(), it.address.clone())));
        message::pages(membership.revocations.iter(), admins)
    }

    /// Handles a message about the grid from a connected machine; returns the answer. Blocks for the disk.
    ///
    /// # Errors
    /// When it is malformed, or the peer sent too many.
    pub fn hear(&self, from: PeerId, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
        self.hear_at(from, bytes, now_s())
    }

    pub(super) fn hear_at(&self, from: PeerId, bytes: &[u8], now_s: u64) -> Result<Vec<u8>, Refused> {
        if !self.state().may_gossip(from, now_s) {
            return Err(Refused::CannotIssue);
        }
        match message::Gossip::decode(bytes)? {
            message::Gossip::Known { revocations, admins } => {
                self.hear_known(from, revocations, admins)?;
                Ok(Vec::new())
            }
            message::Gossip::Certificate(chain) => {
                let digest = self.state().admitted.get(&from).map(|admitted| admitted.digest).unwrap_or_default();
                // A connected machine keeps its place on the line.
                let nonce = Chain::decode(&chain).map_err(|_| Refused::Malformed)?.own.terms.nonce;
                if self.nonce_of(from).is_some_and(|known| known != nonce) {
                    return Err(Refused::NotTheirs);
                }
                self.admit_at(from, &message::Hello { chain, digest }, now_s)?;
                Ok(Vec::new())
            }
            message::Gossip::Renew => {
                let renewed = self.renew(from, now_s);
                if let Ok(chain) = &renewed {
                    info!(machine = %identity::to_libp2p(from), until_s = chain.expires_s(), "certificate renewed");
                }
                Ok(message::Renewal(renewed.map(|chain| chain.encode())).encode())
            }
        }
    }

    fn hear_known(
        &self,
        from: PeerId,
        revocations: Vec<Revocation>,
        admins: Vec<(Certificate, String)>,
    ) -> Result<(), Refused> {
        let mut state = self.state();
        let mut new = Vec::new();
        for revocation in revocations {
            if !state.membership.as_ref().is_some_and(|membership| membership.revocations.is_new(&revocation)) {
                continue;
            }
            revocation.verify(self.grid)?;
            // Revocations by a revoked administrator do not count.
            if state.is_revoked(PeerId(revocation.issuer), Role::Admin) {
                continue;
            }
            new.push(revocation);
        }
        for (certificate, address) in admins {
            let peer = certificate.terms.peer;
            certificate.verify_admin(self.grid)?;
            if state.is_revoked(peer, Role::Admin)
                || address.parse::<Multiaddr>().is_err()
                || !fits_invitation(&address)
            {
                continue;
            }
            // An administrator itself knows its address best.
            let Some(membership) = &mut state.membership else { continue };
            let known = membership.admins.get(&peer);
            if known.is_none_or(|known| from == peer && known.address != address) {
                membership.remember_admin(peer, Admin { certificate, address });
                if let Err(error) = membership.save() {
                    warn!(%error, "what is known of administrators cannot be kept");
                }
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        for revocation in &new {
            let machine = identity::to_libp2p(revocation.peer);
            if revocation.admin.is_some() && state.known_role(revocation.peer) == Role::Admin {
                let by = identity::to_libp2p(PeerId(revocation.issuer));
                warn!(%machine, %by, "an admin revokes another, who stays one: only the grid's key ends admins");
                self.count(Outcome::RevokedInVain);
            } else {
                info!(%machine, "revoked from the grid");
            }
        }
        if let Err(error) = state.take_revocations(new) {
            warn!(%error, "revocations cannot be kept; they count until this agent ends");
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }
}

impl State {
    /// Adds verified revocations, and writes them.
    pub(super) fn take_revocations(&mut self, revocations: Vec<Revocation>) -> Result<(), MembershipError> {
        let Some(membership) = &mut self.membership else { return Ok(()) };
        for revocation in revocations {
            if revocation.admin.is_none() {
                membership.admins.remove(&revocation.peer);
            }
            if membership.revocations.insert(revocation.clone()) {
                self.unspread.push(revocation);
            }
        }
        membership.save_revocations()?;
        membership.save()
    }

    /// Equal if the same machines are revoked and the same administrators known.
    pub(super) fn digest(&self) -> [u8; 16] {
        let none = Revocations::default();
        let mut hasher = blake3::Hasher::new();
        let revocations = self.membership.as_ref().map_or(&none, |membership| &membership.revocations);
        hasher.update(&revocations.digest());
        let mut admins: Vec<PeerId> =
            self.membership.iter().flat_map(|membership| membership.admins.keys().copied()).collect();
        if self.chain.own.terms.role == Role::Admin {
            admins.push(self.chain.own.terms.peer);
        }
        admins.sort_unstable();
        for peer in admins.iter().take(ADMINS_MAX) {
            hasher.update(&peer.0);
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        digest
    }

    /// Whether one more message about the grid is accepted from `peer` now.
    pub(super) fn may_gossip(&mut self, peer: PeerId, now_s: u64) -> bool {
        self.admitted.get_mut(&peer).is_some_and(|admitted| admitted.gossip.take(now_s))
    }
}
