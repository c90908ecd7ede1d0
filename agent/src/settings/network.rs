//! Addresses: `[network]` of the settings. Flags and environment variables of `idlewood run` take precedence.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use idlewood_scheduler::MACHINE_NAME_BYTES_MAX;
use idlewood_trust::address;
use idlewood_units::steers;

use super::values;

/// The host's name, as Linux has it.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Listen addresses of this agent, and agents to join through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Addresses at which other agents reach this one, once its machine belongs to a grid; none: loopback.
    #[serde(deserialize_with = "values::list")]
    pub listen: Vec<Address>,
    /// Agents to join through, besides known ones.
    #[serde(deserialize_with = "values::list")]
    pub bootstrap: Vec<Address>,
    /// What members of the grid see this machine as; none: its host's name.
    #[serde(deserialize_with = "machine_name", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Network {
    /// What members of the grid see this machine as; empty where it has no name.
    pub fn name(&self) -> String {
        let of_host = || fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_owned();
        let name = self.name.clone().unwrap_or_else(of_host);
        if name.len() <= MACHINE_NAME_BYTES_MAX { name } else { String::new() }
    }
}

fn machine_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let is_name = (1..=MACHINE_NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(steers);
    let wrong = || {
        D::Error::custom(format!(
            "{name:?} is no name of a machine: write 1 to {MACHINE_NAME_BYTES_MAX} bytes of text, for example \"lab-pc\""
        ))
    };
    if is_name { Ok(Some(name)) } else { Err(wrong()) }
}

/// An address that agents can listen on or dial: `host:port`, or as libp2p writes it. The name of a machine is looked up when
/// it is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(pub Multiaddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let read = if text.starts_with('/') { multiaddr(text) } else { host_and_port(text) };
        let wrong = "write for example \"0.0.0.0:4001\", \"lab-pc:4001\" or \"/ip4/0.0.0.0/tcp/4001\"";
        read.map(Self).ok_or_else(|| format!("{text:?} is not an address of an agent: {wrong}"))
    }
}

/// An address as libp2p writes it, whose machine is named by a number or a name.
fn multiaddr(text: &str) -> Option<Multiaddr> {
    let address: Multiaddr = text.parse().ok()?;
    let mut numbers = address.clone();
    if let Some(Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name)) = address.iter().next() {
        is_name(&name).then_some(())?;
        let rest = address.iter().skip(1);
        numbers = std::iter::once(Protocol::Ip4(Ipv4Addr::LOCALHOST)).chain(rest).collect();
    }
    address::parse(&numbers).ok().map(|_| address)
}

/// `192.0.2.7:4001`, `[::1]:4001`, `localhost:4001`, `lab-pc:4001`; `*:4001` is every address of this machine.
fn host_and_port(text: &str) -> Option<Multiaddr> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(Multiaddr::from(socket.ip()).with(Protocol::Tcp(socket.port())));
    }
    let (host, port) = text.rsplit_once(':')?;
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = is_number.then(|| port.parse::<u16>().ok())??;
    let host = match host {
        "*" => Protocol::Ip4(Ipv4Addr::UNSPECIFIED),
        _ if host.eq_ignore_ascii_case("localhost") => Protocol::Ip4(Ipv4Addr::LOCALHOST),
        _ if is_name(host) => Protocol::Dns(host.into()),
        _ => return None,
    };
    Some(Multiaddr::empty().with(host).with(Protocol::Tcp(port)))
}

/// Whether a machine can be called so. Four numbers are an IP address that is none.
fn is_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    host.len() <= 253 && host.split('.').all(is_label) && !host.split('.').all(|label| label.parse::<u32>().is_ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        for (text, wanted) in [
            ("0.0.0.0:4001", "/ip4/0.0.0.0/tcp/4001"),
            ("localhost:4001", "/ip4/127.0.0.1/tcp/4001"),
            ("*:0", "/ip4/0.0.0.0/tcp/0"),
            ("[::1]:4001", "/ip6/::1/tcp/4001"),
            (" lab-pc.example.org:4001 ", "/dns/lab-pc.example.org/tcp/4001"),
            ("/ip4/192.0.2.7/tcp/4001", "/ip4/192.0.2.7/tcp/4001"),
            ("/dns4/lab-pc/tcp/4001", "/dns4/lab-pc/tcp/4001"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(wanted));
            assert_eq!(read(wanted).as_deref(), Ok(wanted), "as it is shown");
        }
        for text in [
            "",
            "localhost",
            "4001",
            ":4001",
            "lab pc:4001",
            "lab-pc:",
            "lab-pc:port",
            "lab-pc:70000",
            "lab-pc:+1",
            "::1:4001",
            "1.2.3.4.5:4001",
            "256.1.1.1:4001",
            "http://lab-pc:4001",
            "/dns/a b/tcp/1",
            "/dns/lab-pc/udp/1",
            "/ip4/1.2.3.4",
            "-x:1",
            "a..b:1",
        ] {
            let sentence = read(text).expect_err(text);
            assert!(sentence.contains("write for example \"0.0.0.0:4001\""), "{text}: {sentence}");
        }
    }
}
