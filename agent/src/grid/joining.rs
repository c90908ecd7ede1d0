//! Joining a grid by an invitation: the issuer is asked at each of its addresses, and what it answers is verified before
//! anything is kept.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use super::canonical::Malformed;
use super::certificate::{Certificate, Chain, Refused, Role};
use super::gate::{Gate, Offer};
use super::invitation::Invitation;
use super::membership::{Admin, Membership, MembershipError};
use super::message::Welcome;
use super::now_s;
use crate::identity;
use crate::net::{self, JoinError};

/// Why a machine did not join. It belongs to no grid then.
#[derive(Debug, thiserror::Error)]
pub enum JoiningError {
    /// It is too late.
    #[error("the invitation has expired: ask for a new one")]
    Expired,
    /// There is nowhere to go.
    #[error("the invitation holds no address: its issuer listened nowhere")]
    NoAddress,
    /// The issuer was not reached, or refused.
    #[error(transparent)]
    Asking(#[from] JoinError),
    /// What it answered does not prove what the invitation promised.
    #[error("what the issuer answered does not lead to the invitation's grid: {0}")]
    Unproven(Refused),
    /// It cannot be kept, or the machine has a grid.
    #[error(transparent)]
    Membership(#[from] MembershipError),
}

/// Joins the grid of `invitation` with this machine's key, and keeps the certificate in `state_dir`.
///
/// # Errors
/// When the machine has a grid, nobody answers, or the invitation is not good.
pub async fn join(state_dir: &Path, machine: &Keypair, invitation: &Invitation) -> Result<Membership, JoiningError> {
    if let Some(membership) = Membership::load(state_dir, machine)? {
        return Err(MembershipError::Already(membership.name().to_owned()).into());
    }
    if invitation.expires_s <= now_s() {
        return Err(JoiningError::Expired);
    }
    let mut failure = JoiningError::NoAddress;
    for address in &invitation.addresses {
        let Ok(address) = address.parse::<Multiaddr>() else { continue };
        match net::ask_to_join(machine, invitation, &address).await {
            Ok(welcome) => return keep(state_dir, machine, invitation, &welcome, &address),
            Err(error @ JoinError::Refused(_)) => return Err(error.into()),
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

/// Makes the machine of `state_dir` a submitter of the issuer's grid, where both are directories of one user: the demo's.
///
/// # Errors
/// As [`join`], and when the issuer may not invite.
pub(crate) fn join_beside(issuer: &Gate, state_dir: &Path, machine: &Keypair) -> anyhow::Result<()> {
    let hour = Duration::from_secs(3_600);
    let invitation = issuer.invite(Offer { role: Role::Submitter, valid: hour, uses: 1, lifetime: 24 * hour }, None)?;
    let me = identity::peer_id(machine).context("the machine's key is not an Ed25519 key")?;
    let welcome = issuer.welcome(me, &invitation.secret)?;
    keep(state_dir, machine, &invitation, &welcome, &Multiaddr::empty())?;
    Ok(())
}

fn keep(
    state_dir: &Path,
    machine: &Keypair,
    invitation: &Invitation,
    welcome: &Welcome,
    address: &Multiaddr,
) -> Result<Membership, JoiningError> {
    let (chain, issuer) = check(machine, invitation, welcome).map_err(JoiningError::Unproven)?;
    let issuer = (issuer.terms.peer, Admin { certificate: issuer, address: address.to_string() });
    Ok(Membership::join(state_dir, &welcome.name, chain, issuer)?)
}

fn check(machine: &Keypair, invitation: &Invitation, welcome: &Welcome) -> Result<(Chain, Certificate), Refused> {
    let me = identity::peer_id(machine).ok_or(Malformed)?;
    let chain = Chain::decode(&welcome.chain)?;
    chain.verify(invitation.grid, me, now_s(), |_, _| false)?;
    let issuer = Certificate::decode(&welcome.issuer)?;
    issuer.verify_admin(invitation.grid)?;
    if issuer.terms.peer != invitation.issuer {
        return Err(Refused::Forged);
    }
    Ok((chain, issuer))
}
