//! Addresses: `[network]` of the settings. Flags and environment variables of `idlewood run` take precedence.

use std::fmt;
use std::str::FromStr;

use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};

use idlewood_trust::address;

/// Listen addresses of this agent, and agents to join through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Addresses at which other agents reach this one, once its machine belongs to a grid; none: loopback.
    pub listen: Vec<Address>,
    /// Agents to join through, besides known ones.
    pub bootstrap: Vec<Address>,
}

/// An address that agents can listen on or dial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(pub Multiaddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an address of an agent: write for example \"/ip4/0.0.0.0/tcp/4001\"");
        let address: Multiaddr = text.parse().map_err(|_| wrong())?;
        address::parse(&address).map_err(|_| wrong())?;
        Ok(Self(address))
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.0.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
