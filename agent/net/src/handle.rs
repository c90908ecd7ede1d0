//! The handle to the network for the rest of the agent, and how the network starts.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idlewood_blobs::Blobs;
use idlewood_overlay::{Contact, PeerId};
use idlewood_trust::{address, identity};
use libp2p::Multiaddr;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use crate::chunk::{ChunkError, ChunkReply, Wanted};
use crate::command::{Command, Item, Outbound};
use crate::config::{NetConfig, NetError};
use crate::counters::{Counters, NetCounters};
use crate::dial_error::DialError;
use crate::dialled_back::DialledBack;
use crate::event::NetEvent;
use crate::event_loop::EventLoop;
use crate::live::LiveQuestion;
use crate::live_codec::{LiveAsk, LiveError, LiveTold};
use crate::rate::Rates;
use crate::reach::{self, AddressError, Reach};
use crate::room::{Kind, Room};
use crate::serving::Serving;
use crate::swarm::Limits;
use crate::wire::MESSAGE_BYTES_MAX;

/// Commands queued for the loop: more than there is room for messages ([`room`](crate::room)), so that it never refuses one.
const COMMANDS_MAX: usize = 12 * 1024;

/// Events queued in the channel to the agent; the loop holds some more.
const EVENTS_MAX: usize = 64;

/// Questions about running tasks that wait for the agent.
const QUESTIONS_MAX: usize = 32;

/// Longest time for [`NetHandle::dial`] and [`NetHandle::chunk`].
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time for a shutdown: a second to deliver, and some to close.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// The handle to the network. Its loop ends on shutdown, when the last handle is dropped, or when the receiver of
/// events is dropped.
#[derive(Clone, Debug)]
pub struct NetHandle {
    commands: mpsc::Sender<Command>,
    room: Arc<Room>,
    counters: Arc<Counters>,
    rates: Arc<Rates>,
    reach: Reach,
    /// Until the agent takes it.
    questions: Arc<Mutex<Option<mpsc::Receiver<LiveQuestion>>>>,
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
    let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    start_within(Limits::within(open_files), config, blobs)
}

/// [`start`] with other limits of connections than the agent's.
pub(crate) fn start_within(
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
    let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
    let rates = Arc::new(Rates::default());
    let serving = Serving::new(rates.clone(), blobs, counters.traffic.clone());
    let task = EventLoop::new(&config, limits, counters.clone(), serving, command_receiver, events, questions)?;
    let handle = NetHandle {
        commands,
        room: Room::new(),
        counters,
        rates,
        reach,
        questions: Arc::new(Mutex::new(Some(asked))),
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

    /// Asks some connected machines to dial this one back. What each says, without those that say nothing in time; none where no machine
    /// is connected.
    pub async fn dialled_back(&self) -> Vec<DialledBack> {
        let (reply, asked) = oneshot::channel();
        if self.commands.send(Command::DialBack { reply }).await.is_err() {
            return Vec::new();
        }
        let deadline = tokio::time::Instant::now() + CALL_TIMEOUT;
        let mut told = Vec::new();
        for answer in asked.await.unwrap_or_default() {
            if let Ok(Ok(answer)) = tokio::time::timeout_at(deadline, answer).await {
                told.push(answer);
            }
        }
        told
    }

    /// Asks a machine what tasks have written that run there.
    ///
    /// # Errors
    /// [`LiveError`]; ask again later.
    pub async fn live(&self, from: &Contact, ask: LiveAsk) -> Result<LiveTold, LiveError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Live { from: from.clone(), ask, reply };
        self.commands.send(command).await.map_err(|_| LiveError::Closed)?;
        answer.await.map_err(|_| LiveError::Closed)?
    }

    /// The questions of other machines about tasks that run here: for one caller, the others get none.
    pub fn questions(&self) -> Option<mpsc::Receiver<LiveQuestion>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Totals since the start.
    pub fn counters(&self) -> NetCounters {
        self.counters.totals()
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

#[cfg(test)]
impl NetHandle {
    /// A handle whose commands the test answers in the loop's place.
    pub(crate) fn without_loop() -> (Self, mpsc::Receiver<Command>) {
        let (commands, asked) = mpsc::channel(COMMANDS_MAX);
        let (counters, rates, reach) = (Arc::default(), Arc::default(), Reach::Machine);
        let questions = Arc::default();
        (Self { commands, room: Room::new(), counters, rates, reach, questions, task: Arc::default() }, asked)
    }
}
