//! The network: one task that owns the libp2p swarm, and the handle the rest of the agent holds.
//!
//! TCP with Noise, certificates (`admission`) and yamux; on loopback only for an agent without a grid, and for one that
//! does not listen on the network (`reach`). The protocols' names carry the grid. Strangers get little of an agent's time
//! (`throttle`). Delivery is best effort: a message may be lost, and a
//! peer that cannot be reached is reported once per attempt; order between two messages to one peer is usual, not
//! promised. Everything that waits has a bound, and what exceeds it is dropped and counted; so have connections, with
//! room left for those that this agent dials. A peer is dialled at its contact's address, and where that does not answer,
//! where the peer said last that it listens (identify).
//!
//! Agents that listen on the network find each other by mDNS. Blobs are got by [`fetch`].
//!
//! Left out: discovery beyond the local network (the overlay keeps its own neighbours; Kademlia cost 2.2 MB and much CPU
//! per swarm), QUIC and NAT traversal, and what the bytes mean.

mod addresses;
mod admission;
mod answers;
mod bounds;
mod causes;
pub mod fetch;
mod found;
mod joining;
mod outwards;
mod rate;
mod reach;
mod room;
mod serving;
mod shares;
mod swarm;
mod task;
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

/// Commands that wait for the task: more than there is room for messages ([`room`]), so that it never turns one away.
const COMMANDS_MAX: usize = 12 * 1024;

/// Events that wait for the agent in the channel; the task holds some more.
const EVENTS_MAX: usize = 64;

/// Longest time for [`NetHandle::dial`] and [`NetHandle::chunk`].
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time for a shutdown: a second to deliver, and some to close.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// What the network task needs to know.
#[derive(Debug)]
pub struct NetConfig {
    /// The machine's key, from [`identity::load_or_create`].
    pub keypair: Keypair,
    /// Who is let in. The grid's id is in the protocols' names.
    pub gate: Arc<Gate>,
    /// Where to listen: loopback only without a grid; port 0 lets the system choose. Empty: dial only, on loopback.
    pub listen: Vec<Multiaddr>,
}

/// What happened on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetEvent {
    /// This agent can be reached here (the real port).
    Listening(Multiaddr),
    /// A peer of the same grid is connected; comes once until it is lost again, and not necessarily before the first
    /// message from it.
    Connected {
        /// Who.
        peer: PeerId,
        /// Where it can be dialled: the address that was, or one on which it says it listens.
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
    /// A message could not be delivered, a dial failed or the last connection closed. Comes once for what failed
    /// together; a connection that this agent closed because it was idle is not reported.
    Unreachable(PeerId),
}

/// Why the network could not be started. Nothing is left open.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Somebody else listens there.
    #[error("{0} is in use by another program; stop it, or listen on another port (port 0 picks a free one)")]
    Busy(Multiaddr),
    /// The system refuses the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which address.
        address: Multiaddr,
        /// What the system said.
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
    /// The address is out of reach or not understood.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Nobody answered, or not in the way an agent does.
    #[error("no agent answers at {address}: {reason}")]
    Failed {
        /// Which address.
        address: Multiaddr,
        /// What happened.
        reason: String,
    },
    /// It answered and is of another grid (or speaks another major version).
    #[error("the agent at {0} belongs to another grid or speaks another version; check the grid id")]
    OtherGrid(Multiaddr),
    /// It answered, and does not let this machine in.
    #[error("the agent at {0} does not let this machine in: {1}")]
    Refused(Multiaddr, Refused),
    /// The address is this agent's own.
    #[error("{0} is this agent's own address; give the address of another one")]
    Oneself(Multiaddr),
    /// The network task has ended.
    #[error("the network is shut down")]
    Closed,
}

/// Why a piece of a blob did not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The peer cannot be reached, or the connection broke.
    #[error("{0:?} cannot be reached")]
    Unreachable(PeerId),
    /// The peer answered with something else.
    #[error("{0:?} sent an answer that does not fit the request")]
    Protocol(PeerId),
    /// The network task has ended.
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
    /// The peer serves too many just now; ask again later.
    Busy,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Bytes of frames sent: messages, chunks and answers, without what encryption and TCP add.
    pub bytes_sent: u64,
    /// Bytes of frames received, counted alike.
    pub bytes_received: u64,
    /// Messages that the receiver has acknowledged, and those that were written with an answer to one of its own.
    pub messages_sent: u64,
    /// Messages handed to the agent.
    pub messages_received: u64,
    /// Messages lost on the way out: too long, peer unreachable or busy, or of the tree and no room for them.
    pub messages_dropped: u64,
    /// Requests turned away on the way in: the agent did not keep up, or the peer sent too many.
    pub messages_refused: u64,
    /// Frames that were too long, not understood or broke off, answers that do not fit their request, and blobs that are others than
    /// their names say.
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

/// A message on its way out, with its share of the room for messages.
#[derive(Debug)]
struct Outbound {
    bytes: Vec<u8>,
    share: Share,
}

/// A piece of a blob of a bag.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Which blob.
    pub hash: Hash,
    /// From which byte on.
    pub offset: u64,
    /// Of which bag.
    pub bag: BagId,
    /// That bag's key, where this machine has it.
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

/// The way to the network task. The task ends when it is told to, when the last handle is dropped, or when nobody
/// receives its events any more.
#[derive(Clone, Debug)]
pub struct NetHandle {
    commands: mpsc::Sender<Command>,
    room: Arc<Room>,
    counters: Arc<Counters>,
    rates: Arc<Rates>,
    reach: Reach,
    task: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// The peer that `address` names with `/p2p/<peer>` at its end, reached there; its life is not known.
pub fn named_contact(address: &Multiaddr) -> Option<Contact> {
    let (socket, peer) = address::parse(address).ok()?;
    let peer = identity::from_libp2p(&peer?)?;
    Some(Contact { peer, incarnation: 0, address: reach::multiaddr(socket).to_string().into(), nonce: None })
}

/// Binds the listen addresses and starts the network task.
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
    let task = task::Task::new(&config, limits, blobs, counters.clone(), serving, command_receiver, events)?;
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

/// libp2p shares its ports (SO_REUSEPORT): a second agent on the same one would start and silently take half the
/// connections. A plain bind finds out.
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
    /// The caps on what blobs may take of the line; none at first.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Sends a message about a bag if there is room for it, and never waits. What cannot be delivered is dropped and counted, and
    /// reported as [`NetEvent::Unreachable`] if the peer is the reason.
    ///
    /// False: there is no room, and nothing was sent; [`NetHandle::freed`] names the peer when there is.
    pub fn send(&self, to: &Contact, bytes: Vec<u8>) -> bool {
        self.send_of(Kind::Bag, to, bytes)
    }

    /// The same of a message of the tree. Where there is no room for it, it is lost.
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

    /// Waits for peers to which a message did not leave, and for which there is room again. May be dropped at any time.
    pub async fn freed(&self) -> BTreeSet<PeerId> {
        self.room.freed().await
    }

    /// Connects to an agent whose name may be unknown (`--bootstrap`), with or without `/p2p/<peer>` at the end.
    ///
    /// # Errors
    /// When the address is refused, nobody answers, or the agent is of another grid.
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
    /// When the peer cannot be reached or answers nonsense.
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

    /// Counts what the layers above found that a peer sent and makes no sense.
    pub(crate) fn count_protocol_error(&self) {
        Counters::add(&self.counters.errors);
    }

    /// Delivers what is queued for at most about a second, then closes all connections. Events still have to be
    /// received meanwhile, or be dropped with their receiver. Other handles are of no use afterwards.
    pub async fn shutdown(self) {
        // Refused only by a task that has ended already.
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
