//! The handshake that opens every connection: Noise, then certificates both ways, and only then streams.
//!
//! It is part of the transport's upgrade, so that a connection is nothing else before it is admitted: no behaviour of
//! the swarm sees it, no stream can be opened, no other byte is read. Its protocol's name carries the grid: agents of
//! different grids part before either has shown a key.
//!
//! | step | dialler | listener |
//! |---|---|---|
//! | 1 | shows its certificate, or an invitation's secret | |
//! | 2 | | refuses, or shows its own; to a guest, the guest's new certificate, and closes |
//! | 3 | refuses, or confirms | |
//!
//! The listener shows its certificate only to machines of the grid. Noise proves the key of the other side, so that a
//! certificate is of no use to any other machine.

use std::future::Future;
use std::io;
use std::iter;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use idlewood_machine::connections::CONNECT_TIMEOUT;
use idlewood_overlay::GridId;
use idlewood_trust::message::{self, Answer, FRAME_BYTES_MAX, First, Hello, Welcome};
use idlewood_trust::{Gate, Invitation, Outcome, Refused, address, identity};
use libp2p::core::Endpoint;
use libp2p::core::transport::{DialOpts, PortUse, Transport as _};
use libp2p::core::upgrade::{
    InboundConnectionUpgrade, NegotiationError, OutboundConnectionUpgrade, UpgradeInfo, Version,
};
use libp2p::futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, noise, tcp, yamux};
use tracing::debug;

use super::causes::{find, innermost};
use super::reach;

/// Why a connection was not established.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdmissionError {
    /// Encryption failed.
    #[error("{0}")]
    Noise(noise::Error),
    /// The connection broke.
    #[error("{0}")]
    Io(io::Error),
    /// The other side is of another grid, or speaks another version. The dialler notices at the first answer.
    #[error("it is of another grid")]
    WrongGrid,
    /// This machine refuses the other side.
    #[error("refused: {0}")]
    Refused(Refused),
    /// The other side refuses this machine.
    #[error("it does not let this machine in: {0}")]
    RefusedByOther(Refused),
    /// Not an error: the connection served for joining only.
    #[error("a machine joined; the connection has served its purpose")]
    Joined,
}

impl From<io::Error> for AdmissionError {
    fn from(error: io::Error) -> Self {
        match find(&error) {
            Some(NegotiationError::Failed) => Self::WrongGrid,
            Some(NegotiationError::ProtocolError(_)) | None => Self::Io(error),
        }
    }
}

impl From<noise::Error> for AdmissionError {
    fn from(error: noise::Error) -> Self {
        match error {
            noise::Error::Io(error) => error.into(),
            other => Self::Noise(other),
        }
    }
}

/// The upgrade: Noise, then certificates, judged by this machine's gate.
#[derive(Clone)]
pub(super) struct Admission {
    noise: noise::Config,
    gate: Arc<Gate>,
}

type Protocol = String;

/// Name of the handshake's protocol in a grid.
fn protocol(grid: GridId) -> Protocol {
    format!("/idlewood/{}/admission/1", hex::encode(grid.0))
}

impl Admission {
    pub(super) fn new(key: &Keypair, gate: Arc<Gate>) -> Result<Self, noise::Error> {
        Ok(Self { noise: noise::Config::new(key)?, gate })
    }
}

impl UpgradeInfo for Admission {
    type Info = Protocol;
    type InfoIter = iter::Once<Protocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once(protocol(self.gate.grid()))
    }
}

type Upgraded<T> = (libp2p::PeerId, noise::Output<T>);
type Upgrading<T> = Pin<Box<dyn Future<Output = Result<Upgraded<T>, AdmissionError>> + Send>>;

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> InboundConnectionUpgrade<T> for Admission {
    type Output = Upgraded<T>;
    type Error = AdmissionError;
    type Future = Upgrading<T>;

    fn upgrade_inbound(self, socket: T, _: Protocol) -> Upgrading<T> {
        Box::pin(async move {
            let (peer, mut io) = self.noise.upgrade_inbound(socket, "/noise").await?;
            let answered = listen(&self.gate, peer, &mut io).await;
            if let Err(error) = &answered {
                count(&self.gate, error);
                // Let the answer be delivered before the connection closes.
                close(&mut io).await;
            }
            answered.map(|()| (peer, io))
        })
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> OutboundConnectionUpgrade<T> for Admission {
    type Output = Upgraded<T>;
    type Error = AdmissionError;
    type Future = Upgrading<T>;

    fn upgrade_outbound(self, socket: T, _: Protocol) -> Upgrading<T> {
        Box::pin(async move {
            let (peer, mut io) = self.noise.upgrade_outbound(socket, "/noise").await?;
            let answered = dial(&self.gate, peer, &mut io).await;
            if let Err(error) = &answered {
                count(&self.gate, error);
                close(&mut io).await;
            }
            answered.map(|()| (peer, io))
        })
    }
}

async fn close<T: AsyncWrite + Unpin>(io: &mut T) {
    if let Err(error) = io.close().await {
        debug!(%error, "the other side was faster");
    }
}

fn count(gate: &Gate, error: &AdmissionError) {
    match error {
        AdmissionError::Refused(refused) => gate.count(Outcome::Refused(*refused)),
        AdmissionError::RefusedByOther(refused) => gate.count(Outcome::RefusedByOther(*refused)),
        AdmissionError::Joined => gate.count(Outcome::Joined),
        // The throttle counts broken-off handshakes together with silent ones.
        AdmissionError::Noise(_) | AdmissionError::Io(_) | AdmissionError::WrongGrid => {}
    }
}

pub(super) async fn listen<T: AsyncRead + AsyncWrite + Unpin>(
    gate: &Arc<Gate>,
    peer: libp2p::PeerId,
    io: &mut T,
) -> Result<(), AdmissionError> {
    let first = First::decode(&read_frame(io).await?);
    let judged = match (identity::from_libp2p(&peer), first) {
        (Some(name), Ok(First::Hello(hello))) => gate.admit(name, &hello).map(|()| gate.hello()),
        (Some(name), Ok(First::Join { secret })) => {
            let gate = gate.clone();
            let welcome = tokio::task::spawn_blocking(move || gate.welcome(name, &secret)).await;
            let welcome = welcome.map_err(io::Error::other)?;
            write_answer(io, &welcome).await?;
            return Err(welcome.err().map_or(AdmissionError::Joined, AdmissionError::Refused));
        }
        (None, _) | (_, Err(_)) => Err(Refused::Malformed),
    };
    write_answer(io, &judged).await?;
    judged.map_err(AdmissionError::Refused)?;
    match message::decode_answer(&read_frame(io).await?) {
        Ok(Ok(())) => {}
        Ok(Err(refused)) => return Err(AdmissionError::RefusedByOther(refused)),
        Err(_) => return Err(AdmissionError::Refused(Refused::Malformed)),
    }
    gate.count(Outcome::Admitted);
    Ok(())
}

async fn dial<T: AsyncRead + AsyncWrite + Unpin>(
    gate: &Gate,
    peer: libp2p::PeerId,
    io: &mut T,
) -> Result<(), AdmissionError> {
    write_frame(io, &First::Hello(gate.hello()).encode()).await?;
    let judged = match (identity::from_libp2p(&peer), message::decode_answer::<Hello>(&read_frame(io).await?)) {
        (Some(name), Ok(Ok(hello))) => gate.admit(name, &hello),
        (_, Ok(Err(refused))) => return Err(AdmissionError::RefusedByOther(refused)),
        (None, _) | (_, Err(_)) => Err(Refused::Malformed),
    };
    write_answer(io, &judged).await?;
    judged.map_err(AdmissionError::Refused)?;
    gate.count(Outcome::Admitted);
    Ok(())
}

async fn write_answer<T: AsyncWrite + Unpin, A: Answer>(io: &mut T, answer: &Result<A, Refused>) -> io::Result<()> {
    write_frame(io, &message::encode_answer(answer)).await
}

async fn write_frame<T: AsyncWrite + Unpin>(io: &mut T, frame: &[u8]) -> io::Result<()> {
    let length = u16::try_from(frame.len()).map_err(io::Error::other)?;
    io.write_all(&length.to_be_bytes()).await?;
    io.write_all(frame).await?;
    io.flush().await
}

async fn read_frame<T: AsyncRead + Unpin>(io: &mut T) -> Result<Vec<u8>, AdmissionError> {
    let mut length = [0; 2];
    io.read_exact(&mut length).await?;
    let length = usize::from(u16::from_be_bytes(length));
    if length > FRAME_BYTES_MAX {
        return Err(AdmissionError::Refused(Refused::Malformed));
    }
    let mut frame = vec![0; length];
    io.read_exact(&mut frame).await?;
    Ok(frame)
}

// ---- joining ----

/// The dialling side of a connection for joining: it ends with the answer.
#[derive(Clone)]
struct Guest {
    noise: noise::Config,
    invitation: Invitation,
    welcome: Arc<Mutex<Option<Welcome>>>,
}

impl UpgradeInfo for Guest {
    type Info = Protocol;
    type InfoIter = iter::Once<Protocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once(protocol(self.invitation.grid))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> OutboundConnectionUpgrade<T> for Guest {
    type Output = Upgraded<T>;
    type Error = AdmissionError;
    type Future = Upgrading<T>;

    fn upgrade_outbound(self, socket: T, _: Protocol) -> Upgrading<T> {
        Box::pin(async move {
            let (peer, mut io) = self.noise.upgrade_outbound(socket, "/noise").await?;
            // The secret is for the issuer alone.
            if peer != identity::to_libp2p(self.invitation.issuer) {
                return Err(AdmissionError::Refused(Refused::NotTheirs));
            }
            write_frame(&mut io, &First::Join { secret: self.invitation.secret }.encode()).await?;
            let answer = message::decode_answer::<Welcome>(&read_frame(&mut io).await?);
            let welcome = answer.map_err(|_| AdmissionError::Refused(Refused::Malformed))?;
            let welcome = welcome.map_err(AdmissionError::RefusedByOther)?;
            *self.welcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(welcome);
            Err(AdmissionError::Joined)
        })
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> InboundConnectionUpgrade<T> for Guest {
    type Output = Upgraded<T>;
    type Error = AdmissionError;
    type Future = Upgrading<T>;

    /// A guest accepts no connections.
    fn upgrade_inbound(self, _: T, _: Protocol) -> Upgrading<T> {
        Box::pin(async { Err(AdmissionError::Refused(Refused::CannotIssue)) })
    }
}

/// Why a machine could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The key cannot be used.
    #[error("the machine's key cannot be used for encryption: {0}")]
    Key(String),
    /// The issuer refused.
    #[error("the machine that issued the invitation refuses: {0}")]
    Refused(Refused),
    /// No agent answered.
    #[error("no agent of the grid answers at {address}: {reason}")]
    Unreachable {
        /// The address.
        address: Multiaddr,
        /// The failure.
        reason: String,
    },
}

/// Shows an invitation to its issuer at one address; returns the unverified answer.
///
/// # Errors
/// When no agent answers there, or the issuer refuses.
pub(crate) async fn ask_to_join(
    key: &Keypair,
    invitation: &Invitation,
    address: &Multiaddr,
) -> Result<Welcome, JoinError> {
    let noise = noise::Config::new(key).map_err(|error| JoinError::Key(error.to_string()))?;
    let unreachable = |reason: String| JoinError::Unreachable { address: address.clone(), reason };
    let (socket, _) = address::parse(address).map_err(|error| unreachable(error.to_string()))?;
    let slot = Arc::new(Mutex::new(None));
    let guest = Guest { noise, invitation: invitation.clone(), welcome: slot.clone() };
    let mut transport = tcp::tokio::Transport::new(tcp::Config::new())
        .upgrade(Version::V1Lazy)
        .authenticate(guest)
        .multiplex(yamux::Config::default())
        .timeout(CONNECT_TIMEOUT);
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dialled = transport.dial(reach::multiaddr(socket), options);
    let error = match dialled.map_err(|error| unreachable(error.to_string()))?.await {
        Ok(_) => "it took this machine for a member".to_owned(),
        Err(error) => match find::<AdmissionError>(&error) {
            Some(AdmissionError::RefusedByOther(refused)) => return Err(JoinError::Refused(*refused)),
            Some(AdmissionError::Refused(Refused::NotTheirs)) => {
                "another machine lives there than the one that issued the invitation".to_owned()
            }
            Some(_) | None => innermost(&error),
        },
    };
    let welcome = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    welcome.ok_or_else(|| unreachable(error))
}
