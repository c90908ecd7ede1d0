//! Joining a grid by an invitation: the issuer is asked at each of its addresses, and what it answers is verified before
//! anything is kept.

use std::path::Path;

use idlewood_trust::{Invitation, Membership, MembershipError, WelcomeError, keep, now_s};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use super::admission::{JoinError, ask_to_join};

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
    /// What it answered is not taken up.
    #[error(transparent)]
    Welcome(#[from] WelcomeError),
    /// The machine has a grid, or that is not known.
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
        match ask_to_join(machine, invitation, &address).await {
            Ok(welcome) => return Ok(keep(state_dir, machine, invitation, &welcome, &address)?),
            Err(error @ JoinError::Refused(_)) => return Err(error.into()),
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}
