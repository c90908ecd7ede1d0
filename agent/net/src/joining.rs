//! Joining a grid by an invitation: asks the issuer at each of its addresses, and verifies the answer before writing
//! anything.

use std::path::Path;

use idlewood_trust::{Invitation, Membership, MembershipError, WelcomeError, keep, now_s};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use super::admission::{JoinError, ask_to_join};

/// Why a machine did not join. It then belongs to no grid.
#[derive(Debug, thiserror::Error)]
pub enum JoiningError {
    /// The invitation has expired.
    #[error("the invitation has expired: ask for a new one")]
    Expired,
    /// The invitation has no address.
    #[error("the invitation holds no address: its issuer listened nowhere")]
    NoAddress,
    /// The issuer was not reached, or refused.
    #[error(transparent)]
    Asking(#[from] JoinError),
    /// The issuer's answer was not accepted.
    #[error(transparent)]
    Welcome(#[from] WelcomeError),
    /// The machine has a grid already, or its state cannot be read.
    #[error(transparent)]
    Membership(#[from] MembershipError),
}

/// Joins the grid of `invitation` with this machine's key, and writes the certificate to `state_dir`.
///
/// # Errors
/// When the machine has a grid, no agent answers, or the invitation is not valid.
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
