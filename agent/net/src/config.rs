//! What the network is started with, and why it may not start.

use std::io;
use std::sync::Arc;

use idlewood_trust::Gate;
use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use crate::reach::AddressError;

/// Configuration of the network.
#[derive(Debug)]
pub struct NetConfig {
    /// The machine's key, from [`idlewood_trust::identity::load_or_create`].
    pub keypair: Keypair,
    /// Decides admission. The grid's id is in the protocols' names.
    pub gate: Arc<Gate>,
    /// Listen addresses: loopback only without a grid; port 0 lets the system choose. Empty: dial only, on loopback.
    pub listen: Vec<Multiaddr>,
}

/// Why the network could not be started. Nothing remains open.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Another program listens there.
    #[error("{0} is in use by another program; stop it, or listen on another port (port 0 picks a free one)")]
    Busy(Multiaddr),
    /// The system refuses the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: Multiaddr,
        /// The system's error.
        source: io::Error,
    },
    /// The key is not usable.
    #[error("the machine's key cannot be used for encryption: {0}; restore the identity key or make a new one")]
    Key(String),
    /// There is no tokio runtime here.
    #[error("the network must be started inside a tokio runtime")]
    NoRuntime,
}
