//! Where this agent listens and whom it joins through: addresses as told or set, and the names of machines in them.
//!
//! A name is looked up each time that it is dialled, since a machine may get another address while this agent runs, and at
//! the start of a computer its names may not be known yet. Where to listen is looked up once.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use idlewood_net::NetEvent;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::sync::mpsc;

use crate::settings::Network;

/// How long the first listen address may take, and how long one is waited for that others can dial, where there is one
/// already that they cannot.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
const DIALABLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Where to listen: as told, or as the settings say once the machine belongs to a grid, or on a free port of loopback.
pub(super) fn to_listen_on(told: Vec<Multiaddr>, settings: &Network, is_alone: bool) -> Vec<Multiaddr> {
    if !told.is_empty() {
        return told;
    }
    let set: Vec<Multiaddr> = settings.listen.iter().map(|address| address.0.clone()).collect();
    if is_alone && !set.iter().all(is_loopback) {
        tracing::warn!("network.listen counts once this machine belongs to a grid; until then it listens on loopback");
    } else if !set.is_empty() {
        return set;
    }
    vec![idlewood_net::loopback_address()]
}

/// Whom to join through: as told, or as the settings say once the machine belongs to a grid.
pub(super) fn to_join_through(told: Vec<Multiaddr>, settings: &Network, is_alone: bool) -> Vec<Multiaddr> {
    if !told.is_empty() || is_alone {
        return told;
    }
    settings.bootstrap.iter().map(|address| address.0.clone()).collect()
}

/// These addresses with the name of a machine replaced by what it is called on the network now.
///
/// # Errors
/// Names the first one whose name is not known.
pub(super) async fn resolve_all(addresses: Vec<Multiaddr>) -> anyhow::Result<Vec<Multiaddr>> {
    let mut resolved = Vec::new();
    for address in addresses {
        let found = resolve(&address).await;
        resolved.extend(found.with_context(|| format!("cannot listen on {address}, whose name is not known"))?);
    }
    Ok(resolved)
}

/// The addresses that this one stands for: itself, unless it has the name of a machine.
///
/// # Errors
/// When the name is not known now.
pub(super) async fn resolve(address: &Multiaddr) -> io::Result<Vec<Multiaddr>> {
    let mut parts = address.iter();
    let (name, wanted): (_, fn(&SocketAddr) -> bool) = match parts.next() {
        Some(Protocol::Dns(name)) => (name, |_| true),
        Some(Protocol::Dns4(name)) => (name, SocketAddr::is_ipv4),
        Some(Protocol::Dns6(name)) => (name, SocketAddr::is_ipv6),
        Some(_) | None => return Ok(vec![address.clone()]),
    };
    let rest: Multiaddr = parts.collect();
    let found = tokio::net::lookup_host((&*name, 0)).await?;
    let addresses = found.filter(wanted).map(|socket| Multiaddr::from(socket.ip()).into_iter().chain(&rest).collect());
    let addresses: Vec<Multiaddr> = addresses.collect();
    if addresses.is_empty() {
        return Err(io::Error::other(format!("{name} has no address of that kind")));
    }
    Ok(addresses)
}

/// The address that others are told: the first one, or of an agent that listens on all the first that is not loopback, if
/// there is one.
pub(super) async fn first(events: &mut mpsc::Receiver<NetEvent>, listen: &[Multiaddr]) -> anyhow::Result<Multiaddr> {
    let first = tokio::time::timeout(LISTEN_TIMEOUT, next(events)).await.ok().flatten();
    let Some(first) = first else {
        bail!("the network did not start listening; give another address with --listen");
    };
    if listen.iter().all(is_loopback) {
        return Ok(first);
    }
    let dialable = async {
        let mut address = Some(first.clone());
        while let Some(found) = address {
            if !is_loopback(&found) {
                return Some(found);
            }
            address = next(events).await;
        }
        None
    };
    Ok(tokio::time::timeout(DIALABLE_TIMEOUT, dialable).await.ok().flatten().unwrap_or(first))
}

async fn next(events: &mut mpsc::Receiver<NetEvent>) -> Option<Multiaddr> {
    while let Some(event) = events.recv().await {
        if let NetEvent::Listening(address) = event {
            return Some(address);
        }
    }
    None
}

/// Whether only this machine reaches it.
pub(super) fn is_loopback(address: &Multiaddr) -> bool {
    idlewood_trust::address::parse(address).is_ok_and(|(socket, _)| socket.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service has no command line that its administrator changes.
    #[test]
    fn where_to_listen_is_told_or_set_and_loopback_without_a_grid() {
        let address = |text: &str| text.parse::<Multiaddr>().expect("an address");
        let everywhere = "/ip4/0.0.0.0/tcp/4001";
        let set = Network { listen: vec![everywhere.parse().expect("an address")], ..Network::default() };
        let free = vec![address("/ip4/127.0.0.1/tcp/0")];
        let told = vec![address("/ip4/127.0.0.1/tcp/7")];
        assert_eq!(to_listen_on(told.clone(), &set, false), told);
        assert_eq!(to_listen_on(Vec::new(), &set, false), [address(everywhere)]);
        assert_eq!(to_listen_on(Vec::new(), &set, true), free);
        assert_eq!(to_listen_on(Vec::new(), &Network::default(), false), free);
        let local = Network { listen: vec!["/ip4/127.0.0.1/tcp/9".parse().expect("an address")], ..Network::default() };
        assert_eq!(to_listen_on(Vec::new(), &local, true), [address("/ip4/127.0.0.1/tcp/9")]);
        let through = Network { bootstrap: local.listen, ..Network::default() };
        assert_eq!(to_join_through(Vec::new(), &through, false), [address("/ip4/127.0.0.1/tcp/9")]);
        assert_eq!(to_join_through(Vec::new(), &through, true), [], "nobody can be joined without a grid");
        assert_eq!(to_join_through(told.clone(), &through, false), told);
    }

    #[tokio::test]
    async fn names_are_looked_up() {
        let address = |text: &str| text.parse::<Multiaddr>().expect("an address");
        let plain = address("/ip4/192.0.2.7/tcp/4001");
        assert_eq!(resolve(&plain).await.expect("nothing to look up"), [plain]);
        let found = resolve(&address("/dns/localhost/tcp/4001")).await.expect("every machine knows it");
        assert!(found.iter().all(is_loopback) && found[0].to_string().ends_with("/tcp/4001"), "{found:?}");
        let error = resolve_all(vec![address("/dns/nowhere.invalid/tcp/4001")]).await.expect_err("there is none");
        assert!(format!("{error:#}").starts_with("cannot listen on /dns/nowhere.invalid/tcp/4001"), "{error:#}");
    }
}
