//! Whether other machines reach this one: a machine that is connected is asked to dial back, and says what came of it.
//!
//! Whoever is asked dials one address alone: the asker's, as the connection shows it, and the port that the asker names. So it can be
//! made to knock nowhere else, and dials with the usual handshake, which nobody but the asker passes. It does so for each machine once
//! in [`PAUSE`], and for [`DIALS_MAX`] at a time. The protocol is one of its own, which machines with an earlier release do not speak.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use idlewood_overlay::PeerId;
use idlewood_trust::{address, identity};
use libp2p::request_response::{self, OutboundRequestId, ResponseChannel};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, Swarm};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::debug;

use crate::causes::lacks_protocol;
use crate::command::answer;
use crate::dial_codec::{Ask, DIALS_MAX, Told};
use crate::dial_error::DialError;
use crate::dialled_back::DialledBack;
use crate::reach;
use crate::swarm::Behaviour;

/// Machines that are asked. Our choice: one alone may be the one whose firewall is at fault.
const ASKED_MAX: usize = 3;
/// Between two dials for one machine.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest reason in an answer, in characters.
const REASON_MAX: usize = 200;

/// A dial for another machine.
struct Dial {
    address: IpAddr,
    channel: ResponseChannel<Told>,
}

/// A question of this machine's.
struct Asked {
    at: Instant,
    wall_ms: u64,
    port: u16,
    reply: oneshot::Sender<DialledBack>,
}

/// Questions and dials under way.
#[derive(Default)]
pub(super) struct DialBacks {
    /// Where the other end of each connection is.
    remotes: HashMap<ConnectionId, IpAddr>,
    dialling: HashMap<ConnectionId, Dial>,
    dialled: BTreeMap<PeerId, Instant>,
    asked: HashMap<OutboundRequestId, Asked>,
}

fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl DialBacks {
    // ---- connections ----

    /// A connection is open: perhaps what another machine had asked for.
    pub(super) fn opened(&mut self, id: ConnectionId, remote: &libp2p::Multiaddr, swarm: &mut Swarm<Behaviour>) {
        if let Ok((socket, _)) = address::parse(remote) {
            self.remotes.insert(id, socket.ip());
        }
        if let Some(dial) = self.dialling.remove(&id) {
            dial.tell(None, swarm);
            swarm.close_connection(id);
        }
    }

    /// A connection is closed.
    pub(super) fn closed(&mut self, id: ConnectionId) {
        self.remotes.remove(&id);
    }

    /// A dial failed.
    pub(super) fn failed(&mut self, id: ConnectionId, why: impl FnOnce() -> DialError, swarm: &mut Swarm<Behaviour>) {
        if let Some(dial) = self.dialling.remove(&id) {
            let why = match why() {
                DialError::Failed { reason, .. } => reason,
                error => error.to_string(),
            };
            dial.tell(Some(why.chars().take(REASON_MAX).collect()), swarm);
        }
    }

    // ---- this machine asks ----

    /// Asks some of these machines to dial this one back at `port`; what each says comes by a channel of its own.
    pub(super) fn ask(
        &mut self,
        port: u16,
        connected: impl Iterator<Item = PeerId>,
        swarm: &mut Swarm<Behaviour>,
    ) -> Vec<oneshot::Receiver<DialledBack>> {
        let ask = |peer: PeerId| {
            let (reply, answer) = oneshot::channel();
            let id = swarm.behaviour_mut().dial_back.send_request(&identity::to_libp2p(peer), Ask { port });
            self.asked.insert(id, Asked { at: Instant::now(), wall_ms: wall_ms(), port, reply });
            answer
        };
        connected.take(ASKED_MAX).map(ask).collect()
    }

    pub(super) fn on_event(&mut self, event: request_response::Event<Ask, Told>, swarm: &mut Swarm<Behaviour>) {
        use request_response::{Event, Message};
        match event {
            Event::Message {
                peer,
                connection_id,
                message: Message::Request { request: Ask { port }, channel, .. },
            } => {
                self.dial(peer, connection_id, port, channel, swarm);
            }
            Event::Message { peer, message: Message::Response { request_id, response }, .. } => {
                if let (Some(by), Some(asked)) = (identity::from_libp2p(&peer), self.asked.remove(&request_id)) {
                    answer(asked.reply, told(by, asked.at, asked.wall_ms, asked.port, response));
                }
            }
            Event::OutboundFailure { peer, request_id, error, .. } => {
                if let (Some(by), Some(asked)) = (identity::from_libp2p(&peer), self.asked.remove(&request_id)) {
                    let failure = if lacks_protocol(&error) {
                        "it has an earlier release, which cannot be asked".to_owned()
                    } else {
                        format!("it does not say: {error}")
                    };
                    answer(asked.reply, DialledBack { by, at: None, failure: Some(failure), clock_ahead_s: None });
                }
            }
            Event::InboundFailure { peer, error, .. } => debug!(%peer, %error, "does not hear whether it was reached"),
            Event::ResponseSent { .. } => {}
        }
    }

    // ---- this machine is asked ----

    fn dial(
        &mut self,
        to: libp2p::PeerId,
        over: ConnectionId,
        port: u16,
        channel: ResponseChannel<Told>,
        swarm: &mut Swarm<Behaviour>,
    ) {
        let Some((peer, &address)) = identity::from_libp2p(&to).zip(self.remotes.get(&over)) else { return };
        let now = Instant::now();
        self.dialled.retain(|_, at| now.duration_since(*at) < PAUSE);
        let dial = Dial { address, channel };
        if port == 0 || self.dialling.len() >= DIALS_MAX || self.dialled.contains_key(&peer) {
            return dial.tell(Some("it dials for others at present; ask again in some seconds".to_owned()), swarm);
        }
        self.dialled.insert(peer, now);
        let at = reach::multiaddr(SocketAddr::new(address, port));
        // From another port than this agent listens at, as a stranger would.
        let options =
            DialOpts::peer_id(to).condition(PeerCondition::Always).addresses(vec![at]).allocate_new_port().build();
        let id = options.connection_id();
        match swarm.dial(options) {
            Ok(()) => drop(self.dialling.insert(id, dial)),
            Err(error) => dial.tell(Some(error.to_string().chars().take(REASON_MAX).collect()), swarm),
        }
    }
}

impl Dial {
    fn tell(self, failure: Option<String>, swarm: &mut Swarm<Behaviour>) {
        let told = Told { address: self.address.to_string(), failure, wall_ms: wall_ms() };
        if swarm.behaviour_mut().dial_back.send_response(self.channel, told).is_err() {
            debug!("whoever asked to be dialled is gone");
        }
    }
}

/// What an answer means to the one who asked.
fn told(by: PeerId, asked_at: Instant, asked_ms: u64, port: u16, told: Told) -> DialledBack {
    let took_s = asked_at.elapsed().as_secs_f64();
    // The other clock was read at some time in between.
    let ahead_s = (told.wall_ms as f64 - asked_ms as f64) / 1000.0 - took_s / 2.0;
    let at = told.address.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, port));
    let failure = told.failure.map(|why| why.chars().take(REASON_MAX).collect());
    DialledBack { by, at, failure, clock_ahead_s: Some((ahead_s, took_s / 2.0)) }
}
