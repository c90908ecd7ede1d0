//! Renewals of very many machines take at most a tenth of their submitter's link (`docs/design/scheduler.md`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::{Contact, GridId, PeerId, Time, WallTime};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagHeader, BagId, Config, Effect, Event, Lease, Message, Peer, Record, Replication};

const EXECUTORS: u64 = 10_000;
/// A tenth of the paper's 1 Mb/s.
const BYTES_PER_S_MAX: f64 = 125_000.0 / 10.0;
const START: WallTime = WallTime(1_700_000_000_000_000);

/// Names and addresses as long as those of agents.
fn contact(number: u64) -> Contact {
    let mut peer = [0; 32];
    peer[..8].copy_from_slice(&number.to_be_bytes());
    let address = format!("/ip4/10.{}.{}.{}/tcp/40113", number >> 16, number >> 8 & 255, number & 255);
    Contact { peer: PeerId(peer), incarnation: 1_763_677_000_000 + number, address: address.into(), nonce: None }
}

/// A submitter whose bags have a task on each executor, and the bytes on its link.
struct Submitter {
    peer: Peer,
    now: Time,
    bytes: usize,
    answers: Vec<(PeerId, Message)>,
    reissued: usize,
}

impl Submitter {
    /// Just submitted: the age of a bag does not lengthen its leases yet.
    fn new(bags: &[BagId]) -> Self {
        let header = |id| BagHeader {
            id,
            submitter: contact(0),
            tasks: EXECUTORS,
            task_mops: 1e6,
            application_size_mops: 1e6 * EXECUTORS as f64,
            declared: true,
        };
        let mut records = Vec::new();
        for &id in bags {
            let bag = header(id);
            let replication = Replication::default();
            records.push(Record::Bag {
                bag,
                released: START,
                retries_max: 1,
                attempt: 0,
                closed: None,
                replication,
                stewards: None,
                keep_results: false,
                reruns: 0,
                conditions: Box::default(),
                supply: None,
            });
            records.extend((1..=EXECUTORS).map(|number| Record::Placed {
                bag: id,
                executor: contact(number),
                ranges: IntervalSet::from(number - 1..number),
            }));
        }
        let grid = GridId([9; 32]);
        let peer = Peer::restore(Config::default(), grid, contact(0), 1, Time::ZERO, START, records);
        let peer = peer.expect("the records fit");
        let mut submitter = Self { peer, now: Time::ZERO, bytes: 0, answers: Vec::new(), reissued: 0 };
        submitter.give(Event::DeadlineReached);
        submitter
    }

    fn give(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.peer.handle(self.now, event, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Persist { ticket, .. } => events.push_back(Event::Persisted(ticket)),
                    Effect::Send { to, message } => {
                        self.bytes += message.encode().len();
                        self.reissued += usize::from(matches!(message, Message::Request { .. }));
                        self.answers.push((to.peer, message));
                    }
                    _ => {}
                }
            }
        }
    }

    fn hear(&mut self, from: &Contact, message: Message) {
        self.bytes += message.encode().len();
        self.give(Event::Received { from: from.peer, message });
    }

    fn wait_until(&mut self, end: Time) {
        while let Some(deadline) = self.peer.deadline().filter(|&deadline| deadline <= end) {
            self.now = deadline.max(self.now);
            self.give(Event::DeadlineReached);
        }
        self.now = end;
    }
}

/// Bytes per second over the link of a submitter with so many bags, of which each executor has a task.
fn bytes_per_s(bags: u8) -> f64 {
    let bags: Vec<BagId> = (1..=bags).map(|number| BagId([number; 32])).collect();
    let mut submitter = Submitter::new(&bags);
    let executors: BTreeMap<PeerId, Contact> =
        (1..=EXECUTORS).map(contact).map(|contact| (contact.peer, contact)).collect();
    // After its start it asks all executors, and each sends one `Holding`.
    for (number, executor) in (0..).zip(executors.values()) {
        for &bag in &bags {
            let ranges = IntervalSet::from(number..number + 1);
            let holding = Message::Holding {
                bag,
                executor: executor.into(),
                version: 1,
                attempt: 0,
                ranges,
                finished: IntervalSet::new(),
                capacity: None,
            };
            submitter.hear(executor, holding);
        }
    }
    // From then on each renews after half of its last term.
    let mut due: BTreeMap<Time, Vec<PeerId>> = BTreeMap::new();
    let mut shortest: BTreeMap<PeerId, Duration> = BTreeMap::new();
    for (to, message) in std::mem::take(&mut submitter.answers) {
        if let Message::Lease(Lease { version: 1, term, .. }) = message {
            shortest.entry(to).and_modify(|shortest| *shortest = term.min(*shortest)).or_insert(term);
        }
    }
    assert_eq!(shortest.len() as u64, EXECUTORS, "everybody was told for how long");
    for (peer, term) in shortest {
        due.entry(submitter.now + term / 2).or_default().push(peer);
    }
    submitter.bytes = 0;
    let (begin, end) = (submitter.now, submitter.now + Duration::from_secs(3600));
    while let Some((at, peers)) = due.pop_first().filter(|(at, _)| *at < end) {
        submitter.wait_until(at);
        for peer in peers {
            let executor = &executors[&peer];
            let renewal =
                Message::Renewal { executor: executor.into(), bags: bags.iter().map(|&bag| (bag, 1)).collect() };
            submitter.hear(executor, renewal);
        }
        for (to, message) in std::mem::take(&mut submitter.answers) {
            let Message::Renewed { bags: renewed, term } = message else { panic!("{message:?}") };
            assert_eq!(renewed.len(), bags.len());
            due.entry(submitter.now + term / 2).or_default().push(to);
        }
    }
    submitter.wait_until(end);
    assert_eq!(submitter.reissued, 0, "no lease ended");
    let bytes_per_s = submitter.bytes as f64 / end.since(begin).as_secs_f64();
    println!("{} bags on {EXECUTORS} executors: {bytes_per_s:.0} B/s of renewals and answers", bags.len());
    bytes_per_s
}

#[test]
fn renewals_of_ten_thousand_executors_take_a_tenth_of_the_link() {
    for bags in [1, 4] {
        let bytes_per_s = bytes_per_s(bags);
        assert!(bytes_per_s <= BYTES_PER_S_MAX, "{bags} bags: {bytes_per_s} B/s");
    }
}
