//! A switch in this process: joins the interfaces of a namespace, delays each frame, loses some, and drops what is cut off.
//!
//! It does what `tc … netem` does where the kernel has that. A frame goes to the port that its address names ([`address`]), a broadcast
//! to all ports, and multicast nowhere: between homes, as in simulation, machines do not find each other by mDNS. One thread reads each port; another gives what is delayed to its port in time. Rates are not its business: the kernel
//! shapes both directions of each port.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};

use crate::packet_socket::{FRAME_BYTES_MAX, PREFIX_BYTES};

/// Bytes of Ethernet's header.
const ETHERNET_BYTES: u64 = 14;
/// Bytes of the headers of one frame of TCP: Ethernet, IP, TCP with time stamps.
const HEADERS_BYTES: u64 = ETHERNET_BYTES + 20 + 32;

/// The Ethernet address of what is behind a port.
pub(crate) fn address(port: usize) -> String {
    format!("02:00:00:00:{:02x}:{:02x}", port >> 8, port & 0xff)
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Port(usize),
    All,
    Nowhere,
}

fn target(frame: &[u8]) -> Target {
    match frame {
        [2, 0, 0, 0, high, low, ..] => Target::Port(usize::from(*high) << 8 | usize::from(*low)),
        [255, 255, 255, 255, 255, 255, ..] => Target::All,
        _ => Target::Nowhere,
    }
}

/// Into how many segments the kernel divides a frame, by what goes before it.
fn segments(prefix: &[u8], frame_bytes: usize) -> u64 {
    let size = u16::from_le_bytes([prefix[4], prefix[5]]);
    let payload = (frame_bytes as u64).saturating_sub(HEADERS_BYTES);
    if prefix[1] == 0 || size == 0 { 1 } else { payload.div_ceil(u64::from(size)).max(1) }
}

/// How many bytes of a stream a frame carries: 0 for what is no TCP, and for mere acknowledgements.
fn payload(frame: &[u8]) -> u64 {
    let Some((ethernet, packet)) = frame.split_at_checked(ETHERNET_BYTES as usize) else { return 0 };
    let &[version_length, _, high, low, _, _, _, _, _, protocol, ..] = packet else { return 0 };
    if ethernet[12..] != [8, 0] || version_length >> 4 != 4 || protocol != 6 {
        return 0;
    }
    let ip_bytes = u64::from(version_length & 15) * 4;
    let Some(offset) = packet.get(ip_bytes as usize + 12) else { return 0 };
    u64::from(u16::from_be_bytes([high, low])).saturating_sub(ip_bytes + u64::from(offset >> 4) * 4)
}

/// A frame on its way.
struct Due {
    at: Instant,
    /// Frames that are due at the same moment leave in the order of their arrival.
    order: u64,
    port: usize,
    frame: Arc<[u8]>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// What crossed the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crossed {
    /// Bytes of all frames that came, as they are on a wire, but for preamble and check sequence.
    pub(crate) bytes: u64,
    /// How many.
    pub(crate) frames: u64,
    /// Bytes of the packets that carry bytes of a stream: without Ethernet's headers, and without mere acknowledgements.
    pub(crate) stream_bytes: u64,
}

/// Whether the frame with this number is lost, where this share of all is, in percent: the same ones in each run.
fn is_lost(order: u64, loss_percent: f64) -> bool {
    if loss_percent <= 0.0 {
        return false;
    }
    let [a, b, c, d, ..] = *blake3::hash(&order.to_le_bytes()).as_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) < loss_percent / 100.0 * f64::from(u32::MAX)
}

struct Shared {
    ports: Vec<OwnedFd>,
    delay: Duration,
    loss_percent: f64,
    /// Ports of the same group reach each other.
    groups: RwLock<Vec<u32>>,
    waiting: Mutex<BinaryHeap<Reverse<Due>>>,
    /// Something earlier than all before waits, or the switch ends.
    earlier: Condvar,
    ends: AtomicBool,
    bytes: AtomicU64,
    frames: AtomicU64,
    stream_bytes: AtomicU64,
    order: AtomicU64,
}

/// The switch. It ends when it is dropped.
pub(crate) struct Switch {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Switch {
    /// Begins to carry frames between these ports: each arrives after the delay, but for the share that is lost.
    pub(crate) fn start(ports: Vec<OwnedFd>, delay: Duration, loss_percent: f64) -> Self {
        let count = ports.len();
        let shared = Arc::new(Shared {
            ports,
            delay,
            loss_percent,
            groups: RwLock::new(vec![0; count]),
            waiting: Mutex::default(),
            earlier: Condvar::new(),
            ends: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            frames: AtomicU64::new(0),
            stream_bytes: AtomicU64::new(0),
            order: AtomicU64::new(0),
        });
        let reader = |port| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.read(port))
        };
        let mut threads: Vec<_> = (0..count).map(reader).collect();
        let of_delayed = Arc::clone(&shared);
        threads.push(std::thread::spawn(move || of_delayed.give_in_time()));
        Self { shared, threads }
    }

    /// Puts a port into a group; all begin in group 0. Frames under way arrive.
    pub(crate) fn put_into(&self, group: u32, port: usize) {
        self.shared.groups.write().unwrap_or_else(PoisonError::into_inner)[port] = group;
    }

    /// What has come so far.
    pub(crate) fn crossed(&self) -> Crossed {
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let Shared { bytes, frames, stream_bytes, .. } = &*self.shared;
        Crossed { bytes: read(bytes), frames: read(frames), stream_bytes: read(stream_bytes) }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.shared.earlier.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                eprintln!("a thread of the switch panicked");
            }
        }
    }
}

impl Shared {
    fn read(&self, port: usize) {
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        while !self.ends.load(Ordering::Relaxed) {
            match rustix::net::recv(&self.ports[port], &mut buffer[..], RecvFlags::empty()) {
                Ok((_, length)) if length > PREFIX_BYTES + 14 => self.carry(port, &buffer[..length]),
                // Nothing came for a while, a frame too short to be one, or the interface was down for a moment.
                Ok(_) => {}
                Err(error) if error == rustix::io::Errno::AGAIN || error == rustix::io::Errno::INTR => {}
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn carry(&self, from: usize, prefixed: &[u8]) {
        let (prefix, frame) = prefixed.split_at(PREFIX_BYTES);
        let segments = segments(prefix, frame.len());
        self.frames.fetch_add(segments, Ordering::Relaxed);
        let bytes = frame.len() as u64 + (segments - 1) * HEADERS_BYTES;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if payload(frame) > 0 {
            self.stream_bytes.fetch_add(bytes - segments * ETHERNET_BYTES, Ordering::Relaxed);
        }
        let order = self.order.fetch_add(1, Ordering::Relaxed);
        if is_lost(order, self.loss_percent) {
            return;
        }
        let at = Instant::now() + self.delay;
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        let reached = |port: &usize| *port != from && groups[*port] == groups[from];
        let ports = match target(frame) {
            Target::Port(port) => port..(port + 1).min(self.ports.len()),
            Target::All => 0..self.ports.len(),
            Target::Nowhere => 0..0,
        };
        let frame: Arc<[u8]> = prefixed.into();
        for port in ports.filter(reached) {
            if self.delay.is_zero() {
                self.give(port, &frame);
            } else {
                self.wait(Due { at, order, port, frame: Arc::clone(&frame) });
            }
        }
    }

    fn wait(&self, due: Due) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = waiting.peek().is_none_or(|Reverse(first)| due < *first);
        waiting.push(Reverse(due));
        if is_first {
            self.earlier.notify_one();
        }
    }

    fn give(&self, port: usize, frame: &[u8]) {
        // What a full queue drops is lost, as on any link.
        let sent: io::Result<usize> =
            rustix::net::send(&self.ports[port], frame, SendFlags::DONTWAIT).map_err(Into::into);
        drop(sent);
    }

    /// Gives each delayed frame to its port in time.
    fn give_in_time(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.ends.load(Ordering::Relaxed) {
            let now = Instant::now();
            match waiting.peek() {
                Some(Reverse(first)) if first.at <= now => {
                    let Some(Reverse(due)) = waiting.pop() else { continue };
                    drop(waiting);
                    self.give(due.port, &due.frame);
                    waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                }
                first => {
                    let patience = first.map_or(Duration::from_millis(250), |Reverse(first)| first.at - now);
                    waiting = self.earlier.wait_timeout(waiting, patience).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_where_their_address_says() {
        let frame = |address: &str| -> Vec<u8> {
            address.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).chain([0; 8]).collect()
        };
        for port in [0, 7, 300] {
            assert_eq!(target(&frame(&address(port))), Target::Port(port));
        }
        assert_eq!(target(&frame("ff:ff:ff:ff:ff:ff")), Target::All);
        assert_eq!(target(&frame("01:00:5e:00:00:fb")), Target::Nowhere, "multicast DNS");
    }

    #[test]
    fn the_given_share_of_frames_is_lost() {
        let lost = |percent| (0..10_000).filter(|order| is_lost(*order, percent)).count();
        assert_eq!((lost(0.0), lost(100.0)), (0, 10_000));
        assert!((150..250).contains(&lost(2.0)), "{}", lost(2.0));
    }

    #[test]
    fn a_mere_acknowledgement_carries_nothing() {
        let frame = |protocol: u8, total: u16, offset: u8| {
            let ip = [&[0x45, 0][..], &total.to_be_bytes(), &[0; 5], &[protocol], &[0; 10]].concat();
            [&[0; 12][..], &[8, 0], &ip, &[0; 12], &[offset << 4], &[0; 100]].concat()
        };
        assert_eq!(payload(&frame(6, 52 + 100, 8)), 100);
        assert_eq!(payload(&frame(6, 52, 8)), 0);
        assert_eq!(payload(&frame(6, 64, 11)), 0, "with selective acknowledgements");
        assert_eq!(payload(&frame(17, 52 + 100, 8)), 0, "UDP");
        assert_eq!(payload(&[2; 20]), 0);
    }

    #[test]
    fn an_undivided_frame_counts_as_the_segments_that_it_stands_for() {
        let prefix = |kind, size: u16| [&[0, kind, 0, 0], &size.to_le_bytes()[..], &[0; 4]].concat();
        assert_eq!(segments(&prefix(0, 0), 1_000), 1);
        assert_eq!(segments(&prefix(1, 1_448), 66 + 1_448 * 3), 3);
        assert_eq!(segments(&prefix(1, 1_448), 66 + 1_448 * 3 + 1), 4);
    }
}
