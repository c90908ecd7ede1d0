//! Accepting an issuer's answer to an invitation: it is verified before anything is written.

use std::path::Path;

use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use super::canonical::Malformed;
use super::certificate::{Certificate, Chain, Refused};
use super::identity;
use super::invitation::Invitation;
use super::membership::{Admin, Membership, MembershipError};
use super::message::Welcome;
use super::unix_time::now_s;

/// Why an answer is not accepted. The machine then belongs to no grid.
#[derive(Debug, thiserror::Error)]
pub enum WelcomeError {
    /// The answer does not prove what the invitation promised.
    #[error("what the issuer answered does not lead to the invitation's grid: {0}")]
    Unproven(Refused),
    /// It cannot be written, or the machine has a grid.
    #[error(transparent)]
    Membership(#[from] MembershipError),
}

/// Makes the machine of `state_dir` a member of the invitation's grid, by the answer of its issuer at `address`.
///
/// # Errors
/// When the answer does not prove that, or cannot be written.
pub fn keep(
    state_dir: &Path,
    machine: &Keypair,
    invitation: &Invitation,
    welcome: &Welcome,
    address: &Multiaddr,
) -> Result<Membership, WelcomeError> {
    let (chain, issuer) = check(machine, invitation, welcome).map_err(WelcomeError::Unproven)?;
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
