//! Prints how much memory peers take: idle ones, and such that hold a part of many bags. From the process's resident
//! set, so it includes what the allocator wastes. Linux only.
use std::time::Duration;

use idlewood_overlay::{Contact, GridId, Node, PeerId, Time, WallTime};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagHeader, BagId, Config, Effect, Event, Message, Path, Peer, Request};

const PEERS: u64 = 5_000;
const START: WallTime = WallTime(1_700_000_000_000_000);

fn contact(number: u64) -> Contact {
    let mut peer = [0; 32];
    peer[..8].copy_from_slice(&number.to_le_bytes());
    Contact {
        peer: PeerId(peer),
        incarnation: 1,
        address: "/ip4/192.168.100.100/udp/40000/quic-v1".into(),
        nonce: None,
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * 4096
}

/// Feeds an event; writes are durable at once.
fn give(peer: &mut Peer, now: Time, event: Event) {
    let mut events = vec![event];
    while let Some(event) = events.pop() {
        let mut effects = Vec::new();
        peer.handle(now, event, &mut effects);
        events.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Persist { ticket, .. } => Some(Event::Persisted(ticket)),
            _ => None,
        }));
    }
}

fn request(bag: u64) -> Message {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&bag.to_le_bytes());
    let bag = BagHeader {
        id: BagId(id),
        submitter: contact(1 << 40 | bag),
        tasks: 1000,
        task_mops: 60_000.0,
        application_size_mops: 6e7,
        declared: true,
    };
    let (ranges, age, path) = (IntervalSet::from(0..10), Duration::from_secs(bag.tasks), Path::default());
    let request = Request {
        bag,
        number: 1,
        attempt: 0,
        ranges,
        age,
        path,
        climbed: 0,
        machines: 0,
        link_kb_s: idlewood_scheduler::LINK_KB_S,
        leads: false,
        copy: None,
        begins_within: None,
        ticket: 0,
        checkpoints: Box::default(),
        lines: Box::default(),
        envelope: idlewood_scheduler::Enclosed::default(),
        acting: None,
    };
    Message::Request { request, node: Node::Leaf, climbing: false }
}

fn main() {
    let overlay = size_of::<idlewood_overlay::Overlay>();
    println!("a peer itself: {} bytes, of which its overlay {overlay}", size_of::<Peer>());
    let config = std::sync::Arc::new(Config::default());
    for bags in [0, 1, 10, 100] {
        let before = resident_bytes();
        let peers: Vec<Peer> = (0..PEERS)
            .map(|number| {
                let (grid, now) = (GridId([9; 32]), Time::ZERO);
                let peer = Peer::restore(config.clone(), grid, contact(number), number, now, START, Vec::new());
                let mut peer = peer.expect("the default settings are valid");
                give(&mut peer, now, Event::DeadlineReached);
                (0..bags).for_each(|bag| {
                    give(&mut peer, now, Event::Received { from: contact(0).peer, message: request(bag) })
                });
                peer
            })
            .collect();
        println!("with {bags} bags: {} bytes each", (resident_bytes() - before) / peers.len() as u64);
        std::mem::forget(peers);
    }
}
