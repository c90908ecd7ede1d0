//! Issuing certificates by invitation and by renewal, and renewing this machine's own.

use std::time::Duration;

use blake3::Hash;
use idlewood_overlay::PeerId;
use tracing::{debug, info, warn};

use super::super::certificate::{Certificate, Chain, Refused, Role, Terms};
use super::super::invitation::{ADDRESSES_MAX, Invitation};
use super::super::membership::{INVITATIONS_MAX, Invited, USES_MAX, fits_invitation};
use super::super::message;
use super::super::unix_time::now_s;
use super::{Gate, GateError, Offer, RenewFrom, State};
use crate::identity;

/// Longest lifetime of a certificate and of an invitation.
const SPAN_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The part of a lifetime by which clocks may differ when a renewal is due.
const RENEWAL_SLACK: u64 = 20;

/// Wait between two attempts to renew: a twentieth of the lifetime, within these bounds.
const RENEWAL_RETRY_S: (u64, u64) = (1, 3_600);

impl Gate {
    /// Makes an invitation. The passphrase opens the grid's key, needed to invite administrators, until the agent ends.
    ///
    /// # Errors
    /// When this machine may not invite, the offer is out of range, or the invitation cannot be written.
    pub fn invite(&self, offer: Offer, passphrase: Option<&[u8]>) -> Result<Invitation, GateError> {
        self.invite_at(offer, passphrase, now_s())
    }

    pub(super) fn invite_at(
        &self,
        offer: Offer,
        passphrase: Option<&[u8]>,
        now_s: u64,
    ) -> Result<Invitation, GateError> {
        let Offer { role, valid, uses, lifetime } = offer;
        if !(1..=USES_MAX).contains(&uses) {
            return Err(GateError::Terms("an invitation is good for 1 to 10000 machines"));
        }
        for span in [valid, lifetime] {
            if span < Duration::from_secs(1) || span > SPAN_MAX {
                return Err(GateError::Terms("invitations and certificates are valid for a second to ten years"));
            }
        }
        let mut state = self.state();
        state.check_admin(self, now_s)?;
        if role == Role::Admin {
            state.open_grid_key(self.grid, passphrase)?;
        }
        let Some(membership) = &mut state.membership else { return Err(GateError::NoGrid) };
        membership.invitations.retain(|invited| invited.expires_s > now_s);
        if membership.invitations.len() >= INVITATIONS_MAX {
            return Err(GateError::Terms("too many invitations are open: wait until some have expired"));
        }
        let secret: [u8; 16] = rand::random();
        let expires_s = now_s + valid.as_secs();
        membership.invitations.push(Invited {
            secret_hash: *blake3::hash(&secret).as_bytes(),
            role,
            expires_s,
            uses,
            lifetime_s: lifetime.as_secs(),
            guests: Vec::new(),
        });
        if let Err(error) = membership.save_invitations() {
            membership.invitations.pop();
            return Err(error.into());
        }
        let addresses = state.reachable_at().filter(|address| fits_invitation(address));
        let addresses = addresses.take(ADDRESSES_MAX).collect();
        Ok(Invitation { grid: self.grid, issuer: self.me, addresses, secret, role, expires_s, uses })
    }

    /// Certifies a machine that shows the secret of an invitation. The use is written down before the certificate
    /// exists. Blocks for the disk.
    ///
    /// # Errors
    /// [`Refused::NotInvited`], [`Refused::Revoked`] or [`Refused::CannotIssue`].
    pub fn welcome(&self, guest: PeerId, secret: &[u8]) -> Result<message::Welcome, Refused> {
        self.welcome_at(guest, secret, now_s())
    }

    pub(super) fn welcome_at(&self, guest: PeerId, secret: &[u8], now_s: u64) -> Result<message::Welcome, Refused> {
        let mut state = self.state();
        if state.is_revoked(guest, Role::Member) {
            return Err(Refused::Revoked);
        }
        let secret_hash = blake3::hash(secret);
        let membership = state.membership.as_ref().ok_or(Refused::NotInvited)?;
        // Hashes are compared in constant time.
        let is_it = |invited: &Invited| Hash::from_bytes(invited.secret_hash) == secret_hash;
        let position = membership.invitations.iter().position(is_it).ok_or(Refused::NotInvited)?;
        let invited = &membership.invitations[position];
        let is_new = !invited.guests.contains(&guest);
        if invited.expires_s <= now_s || (is_new && invited.guests.len() >= invited.uses as usize) {
            return Err(Refused::NotInvited);
        }
        let (role, lifetime_s, name) = (invited.role, invited.lifetime_s, membership.name.clone());
        let chain = state.issue(self, guest, role, lifetime_s, self.nonce(guest), now_s)?;
        let issuer = state.chain.own.encode();
        if is_new && let Some(membership) = &mut state.membership {
            membership.invitations[position].guests.push(guest);
            if let Err(error) = membership.save_invitations() {
                warn!(%error, "a machine cannot join: that the invitation was used cannot be written down");
                membership.invitations[position].guests.pop();
                return Err(Refused::CannotIssue);
            }
        }
        info!(machine = %identity::to_libp2p(guest), %role, "joined the grid by an invitation of this machine");
        Ok(message::Welcome { chain: chain.encode(), issuer, name })
    }

    /// The nonce of a machine: constant for this issuer, and unpredictable without its key.
    pub(super) fn nonce(&self, guest: PeerId) -> [u8; 16] {
        let secret = blake3::derive_key("idlewood 2026 position nonces v1", &self.machine.to_bytes());
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&blake3::keyed_hash(&secret, &guest.0).as_bytes()[..16]);
        nonce
    }

    /// The administrator to ask for a new certificate now; none during the first half of the present one's lifetime.
    pub fn wants_renewal(&self) -> Option<RenewFrom> {
        self.wants_renewal_at(now_s())
    }

    pub(super) fn wants_renewal_at(&self, now_s: u64) -> Option<RenewFrom> {
        let mut state = self.state();
        let membership = state.membership.as_ref()?;
        // A chain expires with its administrator's certificate.
        let issued_s = state.chain.own.terms.issued_s;
        let lifetime_s = state.chain.expires_s().saturating_sub(issued_s);
        let retry_s = (lifetime_s / 20).clamp(RENEWAL_RETRY_S.0, RENEWAL_RETRY_S.1);
        let is_due = now_s >= issued_s + lifetime_s / 2 && now_s >= state.renewal_tried_s.saturating_add(retry_s);
        if !is_due || membership.admins.is_empty() {
            return None;
        }
        let place = state.renewals % membership.admins.len();
        let (peer, admin) = membership.admins.iter().nth(place)?;
        let from = RenewFrom { peer: *peer, address: admin.address.clone() };
        state.renewals += 1;
        state.renewal_tried_s = now_s;
        Some(from)
    }

    /// A new certificate for a connected machine, with role, nonce and lifetime of its present one, refused during its
    /// first half: so all certificates that an administrator issued expire soon after that administrator's revocation,
    /// whichever other one a machine asks.
    pub(super) fn renew(&self, peer: PeerId, now_s: u64) -> Result<Chain, Refused> {
        let state = self.state();
        let admitted = state.admitted.get(&peer).ok_or(Refused::NotInvited)?;
        admitted.chain.verify(self.grid, peer, now_s, |peer, role| state.is_revoked(peer, role))?;
        let Terms { role, issued_s, expires_s, nonce, .. } = admitted.chain.own.terms;
        let lifetime_s = expires_s - issued_s;
        if now_s.saturating_sub(issued_s) < lifetime_s / 2 - lifetime_s / RENEWAL_SLACK {
            return Err(Refused::CannotIssue);
        }
        state.issue(self, peer, role, lifetime_s, nonce, now_s)
    }

    /// Handles the answer to a request for renewal.
    pub fn renewed(&self, answer: &[u8]) {
        let chain = match message::Renewal::decode(answer) {
            Ok(message::Renewal(Ok(chain))) => chain,
            Ok(message::Renewal(Err(refused))) => {
                warn!(%refused, "an administrator does not renew this machine's certificate");
                return;
            }
            Err(error) => {
                debug!(%error, "an answer to a request for renewal");
                return;
            }
        };
        if let Err(error) = self.adopt(&chain, now_s()) {
            warn!(%error, "a renewed certificate cannot be used");
        }
    }

    pub(super) fn adopt(&self, bytes: &[u8], now_s: u64) -> anyhow::Result<()> {
        let chain = Chain::decode(bytes)?;
        let mut state = self.state();
        chain.verify(self.grid, self.me, now_s, |peer, role| state.is_revoked(peer, role))?;
        let (new, old) = (&chain.own.terms, &state.chain.own.terms);
        anyhow::ensure!((new.role, new.nonce) == (old.role, old.nonce), "it is not the old one renewed");
        anyhow::ensure!(chain.expires_s() > state.chain.expires_s(), "it does not last longer");
        let Some(membership) = &mut state.membership else { return Ok(()) };
        let old = std::mem::replace(&mut membership.chain, chain.clone());
        if let Err(error) = membership.save() {
            membership.chain = old;
            return Err(error.into());
        }
        info!(expires_s = chain.expires_s(), "this machine's certificate is renewed");
        state.chain = chain;
        state.renewed = true;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }
}

impl State {
    /// Signs a certificate: with the grid's key for administrators, with this machine's for the others.
    pub(super) fn issue(
        &self,
        gate: &Gate,
        peer: PeerId,
        role: Role,
        lifetime_s: u64,
        nonce: [u8; 16],
        now_s: u64,
    ) -> Result<Chain, Refused> {
        if self.check_admin(gate, now_s).is_err() {
            return Err(Refused::CannotIssue);
        }
        let mut terms =
            Terms { grid: gate.grid, peer, role, issued_s: now_s, expires_s: now_s.saturating_add(lifetime_s), nonce };
        if role == Role::Admin {
            let key = self.grid_key.as_ref().ok_or(Refused::CannotIssue)?;
            return Ok(Chain { own: Certificate::issue(terms, key), admin: None });
        }
        let admin = self.chain.own.clone();
        terms.expires_s = terms.expires_s.min(admin.terms.expires_s);
        Ok(Chain { own: Certificate::issue(terms, &gate.machine), admin: Some(admin) })
    }
}
