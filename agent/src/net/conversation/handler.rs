//! One connection: the streams that this side opened, those that the other opened, and what is open on each.

use std::collections::{HashMap, VecDeque};
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::upgrade::ReadyUpgrade;
use libp2p::futures::future::{BoxFuture, Either, FutureExt as _, select, try_join};
use libp2p::futures::stream::{FuturesUnordered, StreamExt as _};
use libp2p::futures::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::swarm::SubstreamProtocol;
use libp2p::swarm::handler::{
    ConnectionEvent, ConnectionHandler, ConnectionHandlerEvent, DialUpgradeError, FullyNegotiatedInbound,
    FullyNegotiatedOutbound, StreamUpgradeError,
};
use libp2p::{Stream, StreamProtocol};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::frames::{self, FRAME_TIMEOUT, Frame, Reader, Traffic};
use super::{Answer, AskedId, Channel, Failure, HeardId, Lane, Request, next_heard};
use crate::net::swarm::{IN_FLIGHT_MAX, REQUEST_TIMEOUT};

/// Streams that the other side may have open: one for each lane, and as many that take the place of broken ones.
const HEARD_STREAMS_MAX: usize = 2 * Lane::ALL.len();

/// Requests of the other side that are not answered. An honest one has [`IN_FLIGHT_MAX`]; beyond this its streams are not
/// read.
const UNANSWERED_MAX: usize = 2 * IN_FLIGHT_MAX;

/// How much later than its time a request may be given up, so that there is one timer for many.
const GIVE_UP_INTERVAL: Duration = Duration::from_millis(500);

/// What was read and waits for the behaviour.
const READ_MAX: usize = 16;

/// What is written at once where there is as much.
const WRITE_BYTES: usize = 64 * 1024;

/// What a connection says to the behaviour.
#[derive(Debug)]
pub(in crate::net) enum Said {
    Asked { id: HeardId, bytes: Vec<u8>, channel: Channel },
    Answer { id: AskedId, bytes: Vec<u8> },
    Failed { id: AskedId, failure: Failure },
    Answered { id: HeardId, is_written: bool },
}

/// What a stream says to its connection.
enum Read {
    Asked { id: HeardId, bytes: Vec<u8>, channel: Channel },
    Answer { lane: Lane, stream: u64, frame: Frame },
    Answered { id: HeardId, is_written: bool },
}

/// Which stream has ended, and why.
enum Ended {
    Ours { lane: Lane, stream: u64, why: String },
    Theirs,
}

/// Requests of one kind, and the stream that they take.
#[derive(Default)]
struct Asking {
    /// They wait for a stream.
    waiting: VecDeque<Request>,
    is_opening: bool,
    open: Option<mpsc::UnboundedSender<(u32, Vec<u8>)>>,
    /// Tells a stream from the one before it.
    stream: u64,
    /// By the number that they have on the stream.
    asked: HashMap<u32, AskedId>,
    last_number: u32,
}

pub(in crate::net) struct Handler {
    protocol: StreamProtocol,
    traffic: Arc<Traffic>,
    last_heard: Arc<AtomicU64>,
    asking: [Asking; Lane::ALL.len()],
    /// When requests are given up, in order, some of which have been answered since.
    deadlines: VecDeque<(Instant, Lane, AskedId)>,
    timer: Option<Pin<Box<Sleep>>>,
    streams: FuturesUnordered<BoxFuture<'static, Ended>>,
    heard_streams: usize,
    unanswered: Arc<Semaphore>,
    /// How long the connection is kept after something was last asked or answered on it, and when that was.
    idle: Duration,
    used: Instant,
    idle_timer: Pin<Box<Sleep>>,
    is_idle: bool,
    read: mpsc::Receiver<Read>,
    reads: mpsc::Sender<Read>,
    events: VecDeque<Said>,
}

impl Handler {
    pub(super) fn new(
        protocol: StreamProtocol,
        traffic: Arc<Traffic>,
        idle: Duration,
        last_heard: Arc<AtomicU64>,
    ) -> Self {
        let (reads, read) = mpsc::channel(READ_MAX);
        let used = Instant::now();
        Self {
            protocol,
            traffic,
            last_heard,
            asking: Default::default(),
            deadlines: VecDeque::new(),
            timer: None,
            streams: FuturesUnordered::new(),
            heard_streams: 0,
            unanswered: Arc::new(Semaphore::new(UNANSWERED_MAX)),
            idle,
            used,
            idle_timer: Box::pin(sleep_until(used + idle)),
            is_idle: false,
            read,
            reads,
            events: VecDeque::new(),
        }
    }

    fn ask(&mut self, request: Request) {
        self.used = Instant::now();
        self.deadlines.push_back((self.used + REQUEST_TIMEOUT, request.lane, request.id));
        self.asking[request.lane as usize].ask(request);
    }

    fn on_stream(&mut self, lane: Lane, mut stream: Stream) {
        // Open requests keep the connection, not the stream.
        stream.ignore_for_keep_alive();
        let asking = &mut self.asking[lane as usize];
        let (requests, to_write) = mpsc::unbounded_channel();
        asking.is_opening = false;
        asking.open = Some(requests);
        asking.stream += 1;
        let number = asking.stream;
        std::mem::take(&mut asking.waiting).into_iter().for_each(|request| asking.ask(request));
        let (traffic, reads) = (self.traffic.clone(), self.reads.clone());
        let talk = async move {
            let why = match talk(stream, lane, number, to_write, &traffic, reads).await {
                Ok(()) => "the other side has closed it".to_owned(),
                Err(error) => error.to_string(),
            };
            Ended::Ours { lane, stream: number, why }
        };
        self.streams.push(talk.boxed());
    }

    fn on_no_stream(&mut self, lane: Lane, failure: impl Fn() -> Failure) {
        let asking = &mut self.asking[lane as usize];
        asking.is_opening = false;
        let failed = std::mem::take(&mut asking.waiting).into_iter();
        self.events.extend(failed.map(|request| Said::Failed { id: request.id, failure: failure() }));
    }

    fn on_stream_of_theirs(&mut self, mut stream: Stream) {
        stream.ignore_for_keep_alive();
        if self.heard_streams >= HEARD_STREAMS_MAX {
            // It is reset.
            self.traffic.damaged.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.heard_streams += 1;
        let (traffic, reads) = (self.traffic.clone(), self.reads.clone());
        let (unanswered, last_heard) = (self.unanswered.clone(), self.last_heard.clone());
        let listen = async move {
            // The other side learns of it by the end of the stream.
            drop(listen(stream, unanswered, &last_heard, &traffic, reads).await);
            Ended::Theirs
        };
        self.streams.push(listen.boxed());
    }

    fn on_ended(&mut self, ended: Ended) {
        match ended {
            Ended::Theirs => self.heard_streams -= 1,
            Ended::Ours { lane, stream, why } => {
                let asking = &mut self.asking[lane as usize];
                if asking.stream == stream {
                    asking.open = None;
                    let mut failed: Vec<AskedId> = asking.asked.drain().map(|(_, id)| id).collect();
                    failed.sort_unstable();
                    let failed = failed.into_iter();
                    self.events.extend(failed.map(|id| Said::Failed { id, failure: Failure::Broken(why.clone()) }));
                }
            }
        }
    }

    fn on_read(&mut self, read: Read) -> Option<Said> {
        self.used = Instant::now();
        match read {
            Read::Asked { id, bytes, channel } => Some(Said::Asked { id, bytes, channel }),
            Read::Answered { id, is_written } => Some(Said::Answered { id, is_written }),
            Read::Answer { lane, stream, frame: Frame { number, bytes } } => {
                let asking = &mut self.asking[lane as usize];
                if asking.stream != stream {
                    return None;
                }
                // Nobody waits for it any more, or it was never asked for.
                let id = asking.asked.remove(&number)?;
                Some(match bytes {
                    Some(bytes) => Said::Answer { id, bytes },
                    None => Said::Failed { id, failure: Failure::Unanswered },
                })
            }
        }
    }

    /// Gives up what has waited too long.
    fn give_up(&mut self, now: Instant) {
        while let Some((_, lane, id)) = self.deadlines.pop_front_if(|(due, _, _)| *due <= now) {
            let asking = &mut self.asking[lane as usize];
            let number = asking.asked.iter().find(|(_, asked)| **asked == id).map(|(number, _)| *number);
            let was_asked = number.is_some_and(|number| asking.asked.remove(&number).is_some());
            let waited = asking.waiting.iter().position(|request| request.id == id);
            if was_asked || waited.is_some_and(|place| asking.waiting.remove(place).is_some()) {
                self.events.push_back(Said::Failed { id, failure: Failure::Timeout });
            }
        }
    }

    fn is_asking(&self) -> bool {
        self.asking.iter().any(|asking| !asking.asked.is_empty() || !asking.waiting.is_empty())
    }

    /// Whether something is asked or to be answered.
    fn is_in_use(&self) -> bool {
        // Each stream that is read holds a place for what it reads next.
        let open = UNANSWERED_MAX - self.unanswered.available_permits();
        self.is_asking() || open > self.heard_streams
    }

    /// Looks, once in a while, whether the connection is still wanted: libp2p's own timer would be set anew with each
    /// message, and wakes a thread of its own for that.
    fn poll_idle(&mut self, cx: &mut Context<'_>) {
        while !self.is_idle && self.idle_timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.is_in_use() {
                self.used = now;
            }
            self.is_idle = self.used + self.idle <= now;
            self.idle_timer.as_mut().reset(self.used + self.idle);
        }
    }

    /// Sets the timer for the next request that is given up; whether some were.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_asking() {
            self.deadlines.clear();
            self.timer = None;
            return false;
        }
        let Some(&(due, _, _)) = self.deadlines.front() else { return false };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due + GIVE_UP_INTERVAL)));
        if timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.timer = None;
        self.give_up(Instant::now());
        true
    }
}

impl Asking {
    fn ask(&mut self, request: Request) {
        let Some(open) = &self.open else { return self.waiting.push_back(request) };
        self.last_number = self.last_number.wrapping_add(1);
        self.asked.insert(self.last_number, request.id);
        // Its stream has just ended where this fails, which fails what is asked on it.
        drop(open.send((self.last_number, request.bytes)));
    }
}

/// Writes requests to a stream of ours and reads their answers, until the other side closes it.
async fn talk(
    stream: Stream,
    lane: Lane,
    number: u64,
    mut to_write: mpsc::UnboundedReceiver<(u32, Vec<u8>)>,
    traffic: &Traffic,
    reads: mpsc::Sender<Read>,
) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let read = async {
        let mut reader = Reader::new(reader);
        while let Some(frame) = reader.next(traffic).await? {
            if reads.send(Read::Answer { lane, stream: number, frame }).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    let write = async {
        let mut buffer = Vec::new();
        while let Some((number, bytes)) = to_write.recv().await {
            frames::append(&mut buffer, number, Some(&bytes));
            while buffer.len() < WRITE_BYTES
                && let Ok((number, bytes)) = to_write.try_recv()
            {
                frames::append(&mut buffer, number, Some(&bytes));
            }
            write_all(&mut writer, &mut buffer, traffic).await?;
        }
        Ok(())
    };
    match select(Box::pin(read), Box::pin(write)).await {
        Either::Left((ended, _)) | Either::Right((ended, _)) => ended,
    }
}

/// Reads requests from a stream of the other side and writes answers to it, until it is closed and all are written.
async fn listen(
    stream: Stream,
    unanswered: Arc<Semaphore>,
    last_heard: &AtomicU64,
    traffic: &Traffic,
    reads: mpsc::Sender<Read>,
) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let (answers, mut to_write) = mpsc::unbounded_channel::<Answer>();
    let listened = reads.clone();
    let read = async move {
        let mut reader = Reader::new(reader);
        loop {
            let Ok(place) = unanswered.clone().acquire_owned().await else { return Ok(()) };
            let Some(Frame { number, bytes }) = reader.next(traffic).await? else { return Ok(()) };
            let Some(bytes) = bytes else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a request without content"));
            };
            let id = next_heard(last_heard);
            let channel = Channel { answers: Some(answers.clone()), id, number, place: Some(place) };
            if listened.send(Read::Asked { id, bytes, channel }).await.is_err() {
                return Ok(());
            }
        }
    };
    let write = async {
        let (mut buffer, mut written) = (Vec::new(), Vec::new());
        while let Some(answer) = to_write.recv().await {
            let mut next = Some(answer);
            while let Some(answer) = next {
                frames::append(&mut buffer, answer.number, answer.bytes.as_deref());
                written.push((answer.id, answer.bytes.is_some(), answer.place));
                next = if buffer.len() < WRITE_BYTES { to_write.try_recv().ok() } else { None };
            }
            write_all(&mut writer, &mut buffer, traffic).await?;
            for (id, is_written, place) in written.drain(..) {
                drop(place);
                if reads.send(Read::Answered { id, is_written }).await.is_err() {
                    return Ok(());
                }
            }
        }
        writer.close().await
    };
    try_join(read, write).await.map(|_| ())
}

/// Writes what is in the buffer, which is empty then.
async fn write_all(writer: &mut (impl AsyncWrite + Unpin), buffer: &mut Vec<u8>, traffic: &Traffic) -> io::Result<()> {
    let write = async {
        writer.write_all(buffer).await?;
        writer.flush().await
    };
    timeout(FRAME_TIMEOUT, write)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the other side does not read"))??;
    traffic.bytes_sent.fetch_add(buffer.len() as u64, Ordering::Relaxed);
    buffer.clear();
    buffer.shrink_to(WRITE_BYTES);
    Ok(())
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Request;
    type ToBehaviour = Said;
    type InboundProtocol = ReadyUpgrade<StreamProtocol>;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Lane;

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        SubstreamProtocol::new(ReadyUpgrade::new(self.protocol.clone()), ())
    }

    /// While something is asked or to be answered, and some time after. The swarm's own time for idle connections is to be
    /// zero.
    fn connection_keep_alive(&self) -> bool {
        !self.is_idle
    }

    fn on_behaviour_event(&mut self, request: Request) {
        self.ask(request);
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<Self::InboundProtocol, Self::OutboundProtocol, (), Lane>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                self.on_stream_of_theirs(protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                self.on_stream(info, protocol);
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => match error {
                StreamUpgradeError::Timeout => self.on_no_stream(info, || Failure::Timeout),
                StreamUpgradeError::NegotiationFailed => self.on_no_stream(info, || Failure::Unsupported),
                StreamUpgradeError::Io(error) => self.on_no_stream(info, || Failure::Broken(error.to_string())),
                StreamUpgradeError::Apply(never) => match never {},
            },
            _ => {}
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, Lane, Self::ToBehaviour>> {
        loop {
            if let Poll::Ready(Some(read)) = self.read.poll_recv(cx) {
                match self.on_read(read) {
                    Some(said) => return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(said)),
                    None => continue,
                }
            }
            if let Some(said) = self.events.pop_front() {
                return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(said));
            }
            if let Poll::Ready(Some(ended)) = self.streams.poll_next_unpin(cx) {
                self.on_ended(ended);
                continue;
            }
            if self.poll_timer(cx) {
                continue;
            }
            self.poll_idle(cx);
            for lane in Lane::ALL {
                let asking = &mut self.asking[lane as usize];
                if asking.open.is_none() && !asking.is_opening && !asking.waiting.is_empty() {
                    asking.is_opening = true;
                    let protocol = SubstreamProtocol::new(ReadyUpgrade::new(self.protocol.clone()), lane);
                    return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
                }
            }
            return Poll::Pending;
        }
    }
}
