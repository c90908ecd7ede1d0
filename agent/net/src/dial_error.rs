//! Why a dial fails, in the words of this crate.

use idlewood_trust::Refused;
use libp2p::swarm::DialError as SwarmDialError;
use libp2p::{Multiaddr, TransportError};

use crate::admission::AdmissionError;
use crate::causes::{find, innermost};
use crate::reach::AddressError;

/// Why a peer could not be dialled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The address is beyond this agent's reach, or malformed.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No agent answered.
    #[error("no agent answers at {address}: {reason}")]
    Failed {
        /// The address.
        address: Multiaddr,
        /// The failure.
        reason: String,
    },
    /// The agent is of another grid, or speaks another major version.
    #[error("the agent at {0} belongs to another grid or speaks another version; check the grid id")]
    OtherGrid(Multiaddr),
    /// The agent refuses this machine.
    #[error("the agent at {0} does not let this machine in: {1}")]
    Refused(Multiaddr, Refused),
    /// The address is this agent's own.
    #[error("{0} is this agent's own address; give the address of another one")]
    Oneself(Multiaddr),
    /// The network has shut down.
    #[error("the network is shut down")]
    Closed,
}

/// What the swarm's error says.
pub(super) fn dial_error(address: Multiaddr, error: &SwarmDialError) -> DialError {
    let reason = match error {
        SwarmDialError::LocalPeerId { .. } => return DialError::Oneself(address),
        SwarmDialError::WrongPeerId { obtained, .. } => format!("another agent lives there ({obtained})"),
        SwarmDialError::Denied { .. } => "too many connections are open".to_owned(),
        SwarmDialError::Transport(errors) => match errors.first() {
            Some((_, TransportError::Other(error))) => match find(error) {
                Some(AdmissionError::WrongGrid) => return DialError::OtherGrid(address),
                Some(AdmissionError::RefusedByOther(refused)) => return DialError::Refused(address, *refused),
                Some(AdmissionError::Refused(refused)) => format!("an agent answers, but {refused}"),
                Some(_) | None => innermost(error),
            },
            Some((_, TransportError::MultiaddrNotSupported(_))) | None => "the address is not supported".to_owned(),
        },
        SwarmDialError::NoAddresses | SwarmDialError::DialPeerConditionFalse(_) | SwarmDialError::Aborted => {
            error.to_string()
        }
    };
    DialError::Failed { address, reason }
}

/// Whether the agent at that address will keep refusing this machine: it is of another grid, or knows it as revoked.
pub(super) fn turns_us_away(error: &std::io::Error) -> bool {
    use AdmissionError::{Refused, RefusedByOther, WrongGrid};
    matches!(find(error), Some(WrongGrid | RefusedByOther(_) | Refused(_)))
}
