//! The network: one async task with a loop that owns the libp2p swarm (`event_loop`), and the handle for the rest of
//! the agent.
//!
//! TCP with Noise, certificates (`admission`) and yamux; on loopback only for an agent without a grid, and for one that
//! does not listen on the network (`reach`). The protocols' names carry the grid. Strangers get little of an agent's
//! time (`throttle`). Delivery is best effort: a message may be lost, and an unreachable peer is reported once per
//! attempt; two messages to one peer usually arrive in order, without guarantee. Every queue is bounded, and counts
//! what it drops; so are connections, with room reserved for those that this agent dials. A peer is dialled at its
//! contact's address, and if that does not answer, at the addresses that it announced last (identify).
//!
//! Agents that listen on the network find each other by mDNS. [`fetch`] downloads blobs.
//!
//! Left out: discovery beyond the local network (the overlay keeps its own neighbours; Kademlia cost 2.2 MB and much
//! CPU per swarm), QUIC and NAT traversal, and the meaning of messages.

mod addresses;
mod admission;
mod answers;
mod bounds;
mod causes;
mod event_loop;
pub mod fetch;
mod found;
mod joining;
mod outbound;
mod rate;
mod reach;
mod room;
mod serving;
mod shares;
mod swarm;
mod throttle;
mod waiting;
mod wire;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use blake3::Hash;
use idlewood_blobs::Blobs;
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BagId, BagKey};
use idlewood_trust::{Gate, Refused, address, identity};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use room::{Kind, Room, Share};
use swarm::Limits;

pub use admission::JoinError;
pub use joining::{JoiningError, join};
pub use rate::{Rate, Rates};
pub use reach::{AddressError, Reach, loopback_address};
pub use wire::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX};

/// Commands queued for the loop: more than there is room for messages ([`room`]), so that it never refuses one.
const COMMANDS_MAX: usize = 12 * 1024;

/// Events queued in the channel to the agent; the loop holds some more.
const EVENTS_MAX: usize = 64;

/// Longest time for [`NetHandle::dial`] and [`NetHandle::chunk`].
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time for a shutdown: a second to deliver, and some to close.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Configuration of the network.
#[derive(Debug)]
pub struct NetConfig {
    /// The machine's key, from [`identity::load_or_create`].
    pub keypair: Keypair,
    /// Decides admission. The grid's id is in the protocols' names.
    pub gate: Arc<Gate>,
    /// Listen addresses: loopback only without a grid; port 0 lets the system choose. Empty: dial only, on loopback.
    pub listen: Vec<Multiaddr>,
}

/// An event of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetEvent {
    /// This agent can be reached here (with the real port).
    Listening(Multiaddr),
    /// A peer of the same grid is connected; reported once until it is lost again, and not necessarily before its first
    /// message.
    Connected {
        /// The peer.
        peer: PeerId,
        /// An address at which it can be dialled: the one dialled, or one that it announces.
        address: Option<Multiaddr>,
    },
    /// A machine of the grid was found on the local network, and is connected.
    Found(Contact),
    /// A message came in.
    Received {
        /// The authenticated sender.
        from: PeerId,
        /// At most [`MESSAGE_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// A message could not be delivered, a dial failed or the last connection closed. Reported once for simultaneous
    /// failures; not for a connection that this agent closed because it was idle.
    Unreachable(PeerId),
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

/// Why a piece of a blob was not received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The peer cannot be reached, or the connection broke.
    #[error("{0:?} cannot be reached")]
    Unreachable(PeerId),
    /// The peer's answer does not fit the request.
    #[error("{0:?} sent an answer that does not fit the request")]
    Protocol(PeerId),
    /// The network has shut down.
    #[error("the network is shut down")]
    Closed,
}

/// The answer to a request for a piece of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkReply {
    /// The piece at the offset asked for, of full length unless the blob ends with it.
    Chunk {
        /// Length of the whole blob.
        total: u64,
        /// [`CHUNK_BYTES_MAX`], or up to the end.
        bytes: Vec<u8>,
    },
    /// The peer does not have the blob.
    Missing,
    /// The peer is busy; ask again later.
    Busy,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Bytes of frames sent: messages, chunks and answers, before encryption and TCP.
    pub bytes_sent: u64,
    /// Bytes of frames received, counted in the same way.
    pub bytes_received: u64,
    /// Messages that the receiver acknowledged, and those written with an answer to one of its own.
    pub messages_sent: u64,
    /// Messages handed to the agent.
    pub messages_received: u64,
    /// Outgoing messages lost: too long, peer unreachable or busy, or a message of the tree without room.
    pub messages_dropped: u64,
    /// Incoming requests refused: the agent did not keep up, or the peer sent too many.
    pub messages_refused: u64,
    /// Frames that were too long, malformed or incomplete, answers that do not fit their request, and blobs with a
    /// wrong hash.
    pub protocol_errors: u64,
}

#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    errors: AtomicU64,
    traffic: Arc<wire::Traffic>,
}

impl Counters {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// An outgoing message, with its share of the room.
#[derive(Debug)]
struct Outbound {
    bytes: Vec<u8>,
    share: Share,
}

/// A request for a piece of a bag's blob.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The blob.
    pub hash: Hash,
    /// Offset of the first byte.
    pub offset: u64,
    /// The bag.
    pub bag: BagId,
    /// The bag's key, if this machine has it.
    pub key: Option<BagKey>,
}

#[derive(Debug)]
enum Item {
    Message(Outbound),
    Chunk { wanted: Wanted, reply: oneshot::Sender<Result<ChunkReply, ChunkError>> },
    Grid(Vec<u8>),
}

#[derive(Debug)]
enum Command {
    Send { to: PeerId, address: Box<str>, item: Item },
    Dial { address: Multiaddr, reply: oneshot::Sender<Result<PeerId, DialError>> },
    Shutdown,
}

/// The handle to the network. Its loop ends on shutdown, when the last handle is dropped, or when the receiver of
/// events is dropped.
#[derive(Clone, Debug)]
pub struct NetHandle {
    commands: mpsc::Sender<Command>,
    room: Arc<Room>,
    counters: Arc<Counters>,
    rates: Arc<Rates>,
    reach: Reach,
    task: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// A contact for the peer that `address` names with `/p2p/<peer>` at its end; its incarnation is unknown.
pub fn named_contact(address: &Multiaddr) -> Option<Contact> {
    let (socket, peer) = address::parse(address).ok()?;
    let peer = identity::from_libp2p(&peer?)?;
    Some(Contact { peer, incarnation: 0, address: reach::multiaddr(socket).to_string().into(), nonce: None })
}

/// Binds the listen addresses and starts the network's loop.
///
/// # Errors
/// When an address is out of reach, in use or refused; nothing runs then.
pub fn start(config: NetConfig, blobs: Arc<Blobs>) -> Result<(NetHandle, mpsc::Receiver<NetEvent>), NetError> {
    start_within(Limits::default(), config, blobs)
}

fn start_within(
    limits: Limits,
    config: NetConfig,
    blobs: Arc<Blobs>,
) -> Result<(NetHandle, mpsc::Receiver<NetEvent>), NetError> {
    let runtime = Handle::try_current().map_err(|_| NetError::NoRuntime)?;
    let reach = Reach::of(&config.listen)?;
    for address in &config.listen {
        let (socket, _) = reach.check(address)?;
        if config.gate.is_alone() && !socket.ip().is_loopback() {
            return Err(AddressError::NotLoopback(address.clone()).into());
        }
        probe(address, socket)?;
    }
    let counters = Arc::new(Counters::default());
    let (commands, command_receiver) = mpsc::channel(COMMANDS_MAX);
    let (events, event_receiver) = mpsc::channel(EVENTS_MAX);
    let rates = Arc::new(Rates::default());
    let serving = serving::Serving::new(rates.clone());
    let task = event_loop::EventLoop::new(&config, limits, blobs, counters.clone(), serving, command_receiver, events)?;
    let handle = NetHandle {
        commands,
        room: Room::new(),
        counters,
        rates,
        reach,
        task: Arc::new(Mutex::new(Some(runtime.spawn(task.run())))),
    };
    Ok((handle, event_receiver))
}

/// libp2p shares its ports (SO_REUSEPORT): a second agent on the same port would silently take half the connections. A
/// plain bind detects that.
fn probe(address: &Multiaddr, socket: SocketAddr) -> Result<(), NetError> {
    if socket.port() == 0 {
        return Ok(());
    }
    match TcpListener::bind(socket) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(NetError::Busy(address.clone())),
        Err(source) => Err(NetError::Listen { address: address.clone(), source }),
    }
}

impl NetHandle {
    /// The owner's caps on blob transfers; none at first.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Sends a message about a bag if there is room for it, and never waits. An undeliverable one is dropped and
    /// counted, and reported as [`NetEvent::Unreachable`] if the peer is the reason.
    ///
    /// False: there is no room, and nothing was sent; [`NetHandle::freed`] reports the peer once there is.
    pub fn send(&self, to: &Contact, bytes: Vec<u8>) -> bool {
        self.send_of(Kind::Bag, to, bytes)
    }

    /// Sends a message of the tree. Without room it is lost.
    pub fn send_of_tree(&self, to: &Contact, bytes: Vec<u8>) {
        if !self.send_of(Kind::Tree, to, bytes) {
            debug!(peer = ?to.peer, "too much of the tree waits to be sent; message dropped");
            Counters::add(&self.counters.dropped);
        }
    }

    fn send_of(&self, kind: Kind, to: &Contact, bytes: Vec<u8>) -> bool {
        if bytes.len() > MESSAGE_BYTES_MAX {
            warn!(peer = ?to.peer, bytes = bytes.len(), "a message is longer than {MESSAGE_BYTES_MAX} bytes; dropped");
            Counters::add(&self.counters.dropped);
            return true;
        }
        let Some(share) = self.room.take(to.peer, kind, bytes.len()) else { return false };
        let item = Item::Message(Outbound { bytes, share });
        if let Err(error) = self.commands.try_send(Command::Send { to: to.peer, address: to.address.clone(), item }) {
            debug!(peer = ?to.peer, %error, "message dropped");
            Counters::add(&self.counters.dropped);
        }
        true
    }

    /// Waits for peers that have room again after a message to them was refused. Cancel-safe.
    pub async fn freed(&self) -> BTreeSet<PeerId> {
        self.room.freed().await
    }

    /// Connects to an agent whose peer id may be unknown (`--bootstrap`), with or without `/p2p/<peer>` at the end.
    ///
    /// # Errors
    /// When the address is refused, no agent answers, or the agent is of another grid.
    pub async fn dial(&self, address: Multiaddr) -> Result<PeerId, DialError> {
        self.reach.check(&address)?;
        let (reply, answer) = oneshot::channel();
        let call = async {
            let command = Command::Dial { address: address.clone(), reply };
            self.commands.send(command).await.map_err(|_| DialError::Closed)?;
            answer.await.map_err(|_| DialError::Closed)?
        };
        tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| {
            Err(DialError::Failed { address: address.clone(), reason: "no answer in time".to_owned() })
        })
    }

    /// Asks a peer for the piece of a blob at `offset`.
    ///
    /// # Errors
    /// When the peer cannot be reached or its answer is malformed.
    pub async fn chunk(&self, from: &Contact, wanted: Wanted) -> Result<ChunkReply, ChunkError> {
        let (reply, answer) = oneshot::channel();
        let call = async {
            let item = Item::Chunk { wanted, reply };
            let command = Command::Send { to: from.peer, address: from.address.clone(), item };
            self.commands.send(command).await.map_err(|_| ChunkError::Closed)?;
            answer.await.map_err(|_| ChunkError::Closed)?
        };
        tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or(Err(ChunkError::Unreachable(from.peer)))
    }

    /// Totals since the start.
    pub fn counters(&self) -> NetCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        NetCounters {
            bytes_sent: read(&counters.traffic.bytes_sent),
            bytes_received: read(&counters.traffic.bytes_received),
            messages_sent: read(&counters.sent),
            messages_received: read(&counters.received),
            messages_dropped: read(&counters.dropped),
            messages_refused: read(&counters.refused),
            protocol_errors: read(&counters.errors) + read(&counters.traffic.damaged),
        }
    }

    /// Counts a peer's fault that a layer above detected.
    pub(crate) fn count_protocol_error(&self) {
        Counters::add(&self.counters.errors);
    }

    /// Delivers queued messages for at most about a second, then closes all connections. Events must be received
    /// meanwhile, or their receiver dropped. Other handles cannot be used afterwards.
    pub async fn shutdown(self) {
        // Fails only if the loop has ended already.
        if self.commands.send(Command::Shutdown).await.is_err() {
            debug!("the network was shut down before");
        }
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut task) = task else { return };
        match tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the network task failed"),
            Err(_) => {
                warn!("the network task did not end in time; stopped");
                task.abort();
            }
        }
    }
}
