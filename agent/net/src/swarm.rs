//! The agent's swarm: transport, behaviours, and limits of connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::connections::{
    CONNECT_TIMEOUT, ESTABLISHED_MAX, IDLE_TIMEOUT, INCOMING_MAX, KEPT_MAX, PENDING_MAX,
};
use idlewood_machine::downloads::REQUEST_TIMEOUT;
use idlewood_trust::address::Unusable;
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::upgrade::Version;
use libp2p::request_response::{self, ProtocolSupport};
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::{self, NetworkBehaviour};
use libp2p::{
    Multiaddr, StreamProtocol, Swarm, Transport as _, TransportError, identify, identity::Keypair, mdns, ping, tcp,
    yamux,
};
use tracing::{debug, warn};

use super::admission::Admission;
use super::bounds::IN_FLIGHT_MAX;
use super::config::{NetConfig, NetError};
use super::dial_codec;
use super::live_codec;
use super::metered::Metered;
use super::reach::{AddressError, Reach, Within};
use super::throttle;
use super::wire::{Codec, Traffic};

/// How often each connection is pinged. The tree itself checks which peers live; this closes connections that are dead,
/// and libp2p's 15 s would be a third of a quiet grid's traffic.
const PING_INTERVAL: Duration = Duration::from_secs(60);

/// Bytes of a connection that the system keeps before the line takes them. Our choice: what a line of 1 Mbit/s takes in a quarter of a second.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES_MAX: u32 = 32 * 1024;

/// Streams of one connection: ours and the peer's, and some for chunks.
const STREAMS_MAX: usize = 3 * IN_FLIGHT_MAX;

/// Streams of one connection that may be open, whatever they are for: yamux buffers 256 KiB for each that is not read.
/// Honest machines have [`IN_FLIGHT_MAX`] each way, and a few. Our choice; yamux's 512 would be 128 MiB.
const OPEN_STREAMS_MAX: usize = STREAMS_MAX + IN_FLIGHT_MAX;

/// Limits of connections ([`idlewood_machine::connections`]). Excess ones are closed at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// In all.
    pub(super) established: u32,
    /// Opened by others.
    pub(super) incoming: u32,
    /// To one peer: two if both dial at once, one for a bootstrap dial, one that is closing.
    pub(super) per_peer: u32,
    /// Handshakes under way, in each direction.
    pub(super) pending: u32,
    /// With more connections than this, those not used for longest are closed.
    pub(super) kept: usize,
}

impl Default for Limits {
    fn default() -> Self {
        // Those of one peer are our choice.
        Self { established: ESTABLISHED_MAX, incoming: INCOMING_MAX, per_peer: 4, pending: PENDING_MAX, kept: KEPT_MAX }
    }
}

impl Limits {
    /// Those of a process that may have so many files open (none: any number), of which connections and handshakes take three quarters at most.
    pub(super) fn within(open_files: Option<u64>) -> Self {
        let whole = Self::default();
        let most = u64::from(whole.established + 2 * whole.pending);
        let files = open_files.map_or(most, |files| most.min(files / 4 * 3));
        let part = |of: u32| u32::try_from(u64::from(of) * files / most).unwrap_or(of);
        Self {
            established: part(whole.established),
            incoming: part(whole.incoming),
            pending: part(whole.pending),
            kept: part(whole.kept as u32) as usize,
            ..whole
        }
    }
}

#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    // First, so that excess connections are refused before any other behaviour sees them.
    throttle: throttle::Behaviour,
    limits: connection_limits::Behaviour,
    pub(super) mdns: Toggle<mdns::tokio::Behaviour>,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    pub(super) requests: request_response::Behaviour<Codec>,
    pub(super) dial_back: request_response::Behaviour<dial_codec::Codec>,
    pub(super) live: request_response::Behaviour<live_codec::Codec>,
}

/// Builds a swarm that listens.
pub(super) fn build(
    NetConfig { keypair: key, gate, listen }: &NetConfig,
    reach: Reach,
    protocol: StreamProtocol,
    traffic: Arc<Traffic>,
    limits: Limits,
) -> Result<Swarm<Behaviour>, NetError> {
    let admission = Admission::new(key, gate.clone()).map_err(|error| NetError::Key(error.to_string()))?;
    let mut streams = yamux::Config::default();
    streams.set_max_num_streams(OPEN_STREAMS_MAX);
    let (metered, admitted) = (traffic.clone(), traffic.clone());
    let transport = Within(reach, tcp::tokio::Transport::new(tcp::Config::new()))
        .map(move |stream, point| {
            let meter = metered.meters.begin(&point);
            Metered::new(limit_unsent(stream), metered.clone(), meter)
        })
        .upgrade(Version::V1Lazy)
        .authenticate(admission)
        .multiplex(streams)
        .map(move |(peer, connection), point| {
            admitted.meters.admitted(&point, peer);
            (peer, StreamMuxerBox::new(connection))
        });
    let limits = ConnectionLimits::default()
        .with_max_pending_incoming(Some(limits.pending))
        .with_max_pending_outgoing(Some(limits.pending))
        .with_max_established(Some(limits.established))
        .with_max_established_incoming(Some(limits.incoming))
        .with_max_established_per_peer(Some(limits.per_peer));
    let behaviour = Behaviour {
        throttle: throttle::Behaviour::new(gate.clone()),
        mdns: neighbourhood(key, reach).into(),
        limits: connection_limits::Behaviour::new(limits),
        identify: identify::Behaviour::new(
            identify::Config::new(protocol.to_string(), key.public())
                .with_agent_version(format!("idlewood/{}", env!("CARGO_PKG_VERSION")))
                .with_cache_size(0),
        ),
        ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_INTERVAL)),
        requests: request_response::Behaviour::with_codec(
            Codec { traffic },
            [(protocol, ProtocolSupport::Full)],
            request_response::Config::default()
                .with_request_timeout(REQUEST_TIMEOUT)
                .with_max_concurrent_streams(STREAMS_MAX),
        ),
        dial_back: dial_codec::behaviour(gate.grid()),
        live: live_codec::behaviour(gate.grid()),
    };
    let mut swarm = Swarm::new(
        TransportTimeout::new(transport, CONNECT_TIMEOUT).boxed(),
        behaviour,
        key.public().to_peer_id(),
        swarm::Config::with_tokio_executor()
            .with_idle_connection_timeout(IDLE_TIMEOUT)
            // A message leaves with the proposal of its protocol, of which there is one, and not a round trip later.
            .with_substream_upgrade_protocol_override(Version::V1Lazy),
    );
    for address in listen {
        swarm.listen_on(address.clone()).map_err(|error| listen_error(address, error))?;
    }
    Ok(swarm)
}

/// What is written waits here until the line takes it, and not in the system, so that what sockets have taken is about what has left.
fn limit_unsent(stream: tcp::tokio::TcpStream) -> tcp::tokio::TcpStream {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Err(error) = socket2::SockRef::from(&stream.0).set_tcp_notsent_lowat(UNSENT_BYTES_MAX) {
        debug!(%error, "the system queues as much as it likes");
    }
    stream
}

/// Finds agents on the local network, for an agent that listens there. Found agents still have to be admitted.
fn neighbourhood(key: &Keypair, reach: Reach) -> Option<mdns::tokio::Behaviour> {
    if reach == Reach::Machine {
        return None;
    }
    mdns::tokio::Behaviour::new(mdns::Config::default(), key.public().to_peer_id())
        .inspect_err(|error| warn!(%error, "machines of the local network cannot be found by themselves"))
        .ok()
}

fn listen_error(address: &Multiaddr, error: TransportError<io::Error>) -> NetError {
    match error {
        TransportError::MultiaddrNotSupported(address) => AddressError::from(Unusable(address.to_string())).into(),
        TransportError::Other(source) if source.kind() == io::ErrorKind::AddrInUse => NetError::Busy(address.clone()),
        TransportError::Other(source) => NetError::Listen { address: address.clone(), source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_three_quarters_of_the_files_that_may_be_open() {
        let of = |files| {
            let Limits { established, incoming, pending, kept, .. } = Limits::within(files);
            (established, incoming, pending, kept)
        };
        assert_eq!(of(None), (2048, 1536, 512, 1024));
        assert_eq!(of(Some(u64::MAX)), (2048, 1536, 512, 1024));
        let (established, incoming, pending, kept) = of(Some(1024));
        assert_eq!((established, incoming, pending, kept), (512, 384, 128, 256));
        assert!(established + 2 * pending <= 768);
    }
}
