//! A submitter that has to find a place for a second copy of all tasks of a bag, which are scattered over many machines.

use std::time::Duration;

use idlewood_overlay::{Contact, GridId, PeerId, Time, WallTime};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagHeader, BagId, Config, Event, Message, Peer, Record, Replication};

/// Tasks on each machine, none beside another.
const TASKS_EACH: u64 = 8;

fn contact(number: u64) -> Contact {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..8]);
    Contact { peer: PeerId(id), incarnation: 1, address: "/a".into(), nonce: None }
}

/// The submitter, and the word of one of the machines after which it looks for copies of all.
pub(crate) fn submitter(machines: u64) -> (Peer, Event) {
    let (bag, me, tasks) = (BagId([7; 32]), contact(0), machines * TASKS_EACH);
    let header = BagHeader {
        id: bag,
        submitter: me.clone(),
        tasks,
        task_mops: 1e5,
        application_size_mops: tasks as f64 * 1e5,
        declared: true,
    };
    let replication = Replication { replicas: 2, quorum: 2, recheck: 0 };
    let (wall, attempt, closed) = (WallTime(1_700_000_000_000_000), 0, None);
    let of = |machine: u64, parts: u64| -> IntervalSet {
        (0..parts).map(|part| part * machines + machine..part * machines + machine + 1).collect()
    };
    let placed = (0..machines).map(|machine| Record::Placed {
        bag,
        executor: contact(machine + 1),
        ranges: of(machine, TASKS_EACH),
    });
    let records = [Record::Bag {
        bag: header,
        released: wall,
        retries_max: 3,
        attempt,
        closed,
        replication,
        stewards: None,
        keep_results: false,
        reruns: 0,
        conditions: Box::default(),
        supply: None,
    }];
    let records = records.into_iter().chain(placed);
    let mut peer = Peer::restore(Config::default(), GridId([1; 32]), me, 5, Time::ZERO, wall, records)
        .expect("the default is valid");
    let mut effects = Vec::new();
    peer.handle(Time::ZERO + Duration::from_millis(1), Event::DeadlineReached, &mut effects);
    let (executor, version, ranges) = ((&contact(1)).into(), 1, of(0, TASKS_EACH - 1));
    let message =
        Message::Holding { bag, executor, version, attempt, ranges, finished: IntervalSet::new(), capacity: None };
    (peer, Event::Received { from: contact(1).peer, message })
}
