//! Requests for invented bags.

use std::time::Duration;

use idlewood_overlay::{Contact, Node, PeerId};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagHeader, BagId, DeclineReason, Enclosed, Event, Lease, Message, Path, Request};

use super::ME;
use super::host::{Host, config};

/// The queue, the disk and the time for one event stay bounded.
#[test]
fn a_flood_of_invented_bags_fills_neither_memory_nor_disk() {
    const BAGS_MAX: usize = 4096;
    let mut host = Host::new(ME, config(0));
    let invented = |number: u32, submitter: u32| {
        let (mut id, mut peer) = ([0; 32], [5; 32]);
        id[..4].copy_from_slice(&number.to_le_bytes());
        peer[..4].copy_from_slice(&submitter.to_le_bytes());
        let submitter = Contact { peer: PeerId(peer), incarnation: 1, address: "/a".into(), nonce: None };
        let (tasks, task_mops) = (10, 100.0);
        let bag =
            BagHeader { id: BagId(id), submitter, tasks, task_mops, application_size_mops: 1000.0, declared: true };
        let request = Request {
            bag,
            number: 1,
            attempt: 0,
            ranges: IntervalSet::from(0..10),
            age: Duration::ZERO,
            path: Path::default(),
            climbed: 0,
            machines: 0,
            link_kb_s: idlewood_scheduler::LINK_KB_S,
            leads: false,
            copy: None,
            begins_within: None,
            lines: Box::default(),
            envelope: Enclosed::default(),
            acting: None,
            ticket: 0,
            checkpoints: Default::default(),
        };
        Message::Request { request, node: Node::Leaf, climbing: false }
    };
    let mut speaker = [5; 32];
    speaker[..4].fill(0);
    let (from, others) = (PeerId(speaker), PeerId([6; 32]));
    // Of bags that are not authorised only a few requests are kept.
    for number in 0..BAGS_MAX as u32 {
        host.give(Event::Received { from: others, message: invented(1_000_000 + number, number) });
    }
    assert_eq!((host.authorising.len(), host.peer.held().len(), host.writes.len()), (64, 0, 1));
    while let Some(bag) = host.authorising.pop_front() {
        host.give(Event::Authorised { bag, verdict: Err(DeclineReason::Forged) });
    }
    host.write();
    assert_eq!((host.peer.held().len(), host.disk.len()), (0, 1));
    // The submitter has spoken for the first bag; the others were approved all the same.
    let arrives = |host: &mut Host, number, submitter| {
        host.give(Event::Received { from: others, message: invented(number, submitter) });
        host.authorise();
        host.write();
    };
    arrives(&mut host, 0, 0);
    let (version, submitter, term) = (0, None, Duration::from_secs(3600));
    let (drop, rest) = (IntervalSet::new(), Duration::ZERO);
    host.give(Event::Received {
        from,
        message: Message::Lease(Lease { version, submitter, term, drop, rest, ..Lease::of(BagId([0; 32])) }),
    });
    let id = |number: u32| {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_le_bytes());
        BagId(id)
    };
    for number in 1..(BAGS_MAX as u32 + 600) {
        arrives(&mut host, number, number);
    }
    let held = host.peer.held();
    assert!(held.len() <= BAGS_MAX, "{} bags", held.len());
    assert!(host.disk.len() <= BAGS_MAX + 10, "{} records", host.disk.len());
    assert!(held.iter().any(|held| held.bag == id(0)), "what somebody speaks for stays");
    // The fuzzer's driver refuses every eighth bag.
    let last = BAGS_MAX as u32 + 598;
    assert!(held.iter().any(|held| held.bag == id(last)), "and there is room for what comes");
    // One submitter fills a quarter of it at most.
    let mut host = Host::new(ME, config(0));
    for number in 0..2000 {
        arrives(&mut host, number, 1);
    }
    assert_eq!(host.peer.held().len(), 1024);
}
