//! Golden bytes: every message between peers, and every record on disk. A change here is a change of the protocol, or
//! of the store's format, and needs a new version of it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use idlewood_overlay::{Contact, Node, PeerId, Side, WallTime};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::rounds::Plan;
use idlewood_scheduler::{
    Acting, Activity, Appointment, Asker, BagHeader, BagId, BlobId, Capacity, Checkpoint, Closing, Conditions,
    DeclineReason, DecodeError, Delta, Enclosed, Ending, Endless, EndlessBag, Grant, Lease, Limit, MachineReport,
    MachinesPage, Message, Path, Record, RecordError, RecordKey, Replication, Reputation, Request, SilentMachine,
    Sizes, SmallOutput, Speaker, Stamp, Standing, Supply, TaskResult, WhichMachines,
};

fn contact(byte: u8) -> Contact {
    Contact { peer: PeerId([byte; 32]), incarnation: u64::from(byte), address: "/a".into(), nonce: None }
}

fn speaker(byte: u8) -> Speaker {
    (&contact(byte)).into()
}

fn bag() -> BagHeader {
    BagHeader {
        id: BagId([7; 32]),
        submitter: contact(1),
        tasks: 100,
        task_mops: 1.5,
        application_size_mops: 150.0,
        declared: true,
    }
}

fn result() -> TaskResult {
    TaskResult {
        index: 3,
        attempt: 1,
        success: true,
        crashed: false,
        unfinished: false,
        output: BlobId([5; 32]),
        output_bytes: 9,
        content: None,
        work_mops: 2.0,
        exit_code: None,
        receipt: None,
        fingerprint: None,
    }
}

/// A result with its output inside.
fn with_output() -> TaskResult {
    TaskResult { attempt: 0, exit_code: Some(0), content: SmallOutput::new(b"an output"), ..result() }
}

fn request() -> Request {
    Request {
        bag: bag(),
        number: 4,
        attempt: 1,
        ranges: IntervalSet::from(2..5),
        age: Duration::from_millis(1500),
        path: Path::default().down(Side::Left).down(Side::Right),
        climbed: 2,
        machines: 0,
        link_kb_s: idlewood_scheduler::LINK_KB_S,
        leads: false,
        copy: None,
        begins_within: None,
        ticket: 0,
        checkpoints: Box::default(),
        lines: Box::default(),
        envelope: Enclosed::default(),
        acting: None,
    }
}

fn checkpoint() -> Checkpoint {
    Checkpoint { blob: BlobId([6; 32]), bytes: 500 }
}

fn asker(speed_mops: f64, stretch: f64) -> Asker {
    Asker { contact: contact(3), speed_mops, slots: 1, stretch }
}

fn messages() -> Vec<Message> {
    vec![
        Message::Request { request: request(), node: Node::Router, climbing: true },
        Message::Holding {
            bag: bag().id,
            executor: speaker(2),
            version: 6,
            attempt: 1,
            ranges: IntervalSet::from(0..2),
            finished: IntervalSet::from(1..2),
            capacity: None,
        },
        Message::Holding {
            bag: bag().id,
            executor: speaker(2),
            version: 7,
            attempt: 1,
            ranges: IntervalSet::from(0..2),
            finished: IntervalSet::new(),
            capacity: None,
        },
        Message::Holding {
            bag: bag().id,
            executor: speaker(2),
            version: 8,
            attempt: 1,
            ranges: IntervalSet::from(0..2),
            finished: IntervalSet::new(),
            capacity: Some(Capacity { slots: 4, speed_mops: 1500.0 }),
        },
        Message::Booked { bag: bag().id, tasks: IntervalSet::from(0..2) },
        Message::Begin { bag: bag().id, tasks: IntervalSet::from(0..2) },
        Message::Lease(Lease {
            version: 6,
            term: Duration::from_secs(60),
            key: Some([3; 32].into()),
            manifest: Enclosed::of(b"a manifest"),
            sizes: Some(Sizes { task_mops: 10.0, application_size_mops: 400.0, declared: true, priority: 0 }),
            ..Lease::of(bag().id)
        }),
        Message::Lease(Lease { submitter: Some(speaker(1)), drop: IntervalSet::from(4..5), ..Lease::of(bag().id) }),
        Message::Renewal { executor: speaker(2), bags: vec![(bag().id, 6), (BagId([8; 32]), 70)] },
        Message::Renewed { bags: vec![(bag().id, 6)], term: Duration::from_secs(60) },
        Message::Ask { asker: asker(1000.0, 1e-5), node: Node::Router, climbing: true, climbed: 2, ticket: 0 },
        Message::Offer { bag: bag().id, executor: speaker(2), ranges: IntervalSet::from(0..2), to: contact(3) },
        Message::Results { bag: bag().id, executor: speaker(2), results: vec![result()], signature: None },
        Message::ResultsAck { bag: bag().id, attempt: 0, indices: IntervalSet::from(3..4) },
        Message::ResultsAck { bag: bag().id, attempt: 2, indices: IntervalSet::from(3..4) },
        Message::Request {
            request: Request { checkpoints: Box::new([(3, checkpoint())]), ..request() },
            node: Node::Leaf,
            climbing: false,
        },
        Message::Results {
            bag: bag().id,
            executor: speaker(2),
            results: vec![TaskResult { success: false, unfinished: true, ..result() }],
            signature: None,
        },
        Message::Decline { bag: bag().id, ranges: IntervalSet::from(0..2), reason: DeclineReason::Quota },
        Message::Results {
            bag: bag().id,
            executor: speaker(2),
            results: vec![TaskResult { exit_code: Some(3), ..result() }],
            signature: Some(vec![9; 64]),
        },
        Message::Results {
            bag: bag().id,
            executor: speaker(2),
            results: vec![TaskResult { attempt: 0, exit_code: Some(0), ..result() }],
            signature: None,
        },
        Message::Results {
            bag: bag().id,
            executor: speaker(2),
            results: vec![with_output()],
            signature: Some(vec![9; 64]),
        },
        Message::Request { request: Request { ticket: 7, ..request() }, node: Node::Router, climbing: true },
        Message::Ask { asker: asker(1000.0, 0.0), node: Node::Router, climbing: true, climbed: 0, ticket: 8 },
        Message::Ticket { ticket: 8 },
        Message::Request {
            request: Request { begins_within: Some(12), ..request() },
            node: Node::Leaf,
            climbing: false,
        },
        Message::Request { request: Request { copy: Some(90), ..request() }, node: Node::Leaf, climbing: false },
        Message::Share { bag: bag().id, tasks: [(3, 0), (4, 90)].into() },
        Message::Decline { bag: bag().id, ranges: IntervalSet::from(0..2), reason: DeclineReason::Later },
        Message::Decline { bag: bag().id, ranges: IntervalSet::from(0..2), reason: DeclineReason::Copy },
        Message::Request {
            request: Request { acting: Some(Box::new(acting())), ..request() },
            node: Node::Leaf,
            climbing: false,
        },
        Message::KeepOffer { bag: bag() },
        Message::KeepAnswer { bag: bag().id, accepts: true },
        Message::Acts { acting: Box::new(acting()) },
        Message::Deltas { deltas: vec![delta(), Delta { number: 0, is_over: true, ..empty_delta() }] },
        Message::DeltasAck { bags: vec![(bag().id, 7, acting().term())] },
        Message::WhatIsKept { bags: vec![(bag().id, acting().term())] },
        Message::Kept {
            acting: Box::new(acting()),
            tasks: IntervalSet::from(3..9),
            results: vec![(PeerId([4; 32]), TaskResult { receipt: Some(vec![1, 2]), ..with_output() })],
        },
        Message::KeptAck { bag: bag().id, indices: IntervalSet::from(3..4), full: false },
        Message::KeptAck { bag: bag().id, indices: IntervalSet::from(3..4), full: true },
        Message::WhichMachines {
            question: WhichMachines { id: 5, number: 6, first: 7, last: u64::MAX, wait_ms: 9_850 },
            node: Node::Router,
            climbing: true,
        },
        Message::Machines {
            number: 6,
            page: Box::new(MachinesPage {
                last: u64::MAX,
                machines: vec![
                    MachineReport {
                        peer: PeerId([2; 32]),
                        at: 8,
                        name: "lab-pc".into(),
                        version: "0.3.1".into(),
                        activity: Activity::Suspended,
                        reason: Some("on_battery".into()),
                        slots: 4,
                        speed_mops: 1000.5,
                        running: 2,
                        waiting: 70,
                    },
                    MachineReport {
                        peer: PeerId([3; 32]),
                        at: 9,
                        name: "".into(),
                        version: "".into(),
                        activity: Activity::Idle,
                        reason: None,
                        slots: 1,
                        speed_mops: 1.0,
                        running: 0,
                        waiting: 0,
                    },
                ],
                silent: vec![SilentMachine { peer: PeerId([4; 32]), at: 10, heard_s: 12 }],
                unreached: 3,
                is_busy: true,
            }),
        },
        Message::Lease(Lease {
            submitter: Some(speaker(1)),
            term: Duration::from_secs(60),
            sizes: Some(Sizes { task_mops: 10.0, application_size_mops: 400.0, declared: true, priority: 3 }),
            ..Lease::of(bag().id)
        }),
        Message::Lease(Lease { term: Duration::from_secs(60), withheld: true, ..Lease::of(bag().id) }),
        Message::Results {
            bag: bag().id,
            executor: speaker(2),
            results: vec![TaskResult { success: false, exit_code: Some(3), fingerprint: Some(7), ..result() }],
            signature: None,
        },
        Message::Announce { bag: Box::new(endless()), climbed: 2 },
        Message::Announce {
            bag: Box::new(EndlessBag { uplink_bytes_s: 1e6, standing: Standing::Idle, ..endless() }),
            climbed: 0,
        },
        Message::Granted { bag: bag().id, grant: grant(), asks: None },
        Message::Granted {
            bag: bag().id,
            grant: Grant { ahead: 2, limit: Limit::Waits, ..grant() },
            asks: Some(speaker(2)),
        },
        Message::Absorbs { node: Node::Leaf, stamp: stamp(), work_mops: vec![1000.0, 0.5] },
        Message::Shares { node: Node::Router, stamp: stamp(), table: None, work_mops: vec![1000.0, 0.5] },
        Message::Shares { node: Node::Leaf, stamp: stamp(), table: Some(vec![endless()]), work_mops: vec![0.0] },
        Message::Want { bag: bag().id, executor: speaker(2), tasks: 7 },
        Message::Request {
            request: Request {
                lines: Box::new([(3, "a line".into())]),
                envelope: Enclosed::of(b"an envelope"),
                ..request()
            },
            node: Node::Leaf,
            climbing: false,
        },
        Message::Deltas { deltas: vec![Delta { drained: IntervalSet::from(0..9), ..empty_delta() }] },
    ]
}

fn endless() -> EndlessBag {
    EndlessBag {
        bag: bag().id,
        submitter: contact(1),
        weight: 2.0,
        task_mops: 1.5,
        task_bytes: 100.0,
        uplink_bytes_s: 0.0,
        standing: Standing::Active,
        waited_s: 9,
    }
}

fn grant() -> Grant {
    Grant { ahead: 0, work_mops: 10.0, alone_mops: 30.0, grid_mops: 40.0, limit: Limit::Processors }
}

fn stamp() -> Stamp {
    Stamp(5, Some(PeerId([1; 32])))
}

fn supply() -> Supply {
    let endless = Endless { weight: 2.0, task_bytes: 100.0, tasks: 50 };
    Supply { endless, is_ended: true, drained: IntervalSet::from(0..9), drained_failed: 1, was_range: false }
}

fn acting() -> Acting {
    let appointment = Appointment {
        bag: bag().id,
        term: 5,
        keepers: vec![contact(1), contact(2)],
        until: WallTime(1_700_000_000_000_000),
        signature: vec![8; 64],
    };
    Acting { appointment, acting: 1, rank: 1 }
}

fn empty_delta() -> Delta {
    Delta { number: 7, ..Delta::alive(bag().id, acting().term()) }
}

fn delta() -> Delta {
    Delta {
        acting: Some(Box::new(acting())),
        key: Some([3; 32].into()),
        records: vec![Record::Placed { bag: bag().id, executor: contact(2), ranges: IntervalSet::from(0..2) }],
        gone: vec![RecordKey::Former(bag().id, PeerId([2; 32])), RecordKey::Done(bag().id, 4)],
        done: IntervalSet::from(3..4),
        failed: IntervalSet::from(5..6),
        is_whole: true,
        ..empty_delta()
    }
}

fn records() -> Vec<Record> {
    let released = WallTime(1_700_000_000_000_000);
    vec![
        Record::Incarnation(8),
        Record::Held {
            bag: bag(),
            released,
            attempt: 1,
            attempts: None,
            ranges: IntervalSet::from(0..2),
            checkpoints: BTreeMap::new(),
            priority: 0,
            at_once: IntervalSet::new(),
        },
        Record::Outbox { bag: bag(), released, result: result() },
        Record::Bag {
            bag: bag(),
            released,
            retries_max: 2,
            attempt: 3,
            closed: Some((Closing::Completed, released)),
            replication: Replication::default(),
            stewards: None,
            keep_results: false,
            reruns: 0,
            conditions: Box::default(),
            supply: None,
        },
        Record::Placed { bag: bag().id, executor: contact(2), ranges: IntervalSet::from(0..2) },
        Record::Done { bag: bag().id, executor: PeerId([2; 32]), finished: released, result: result() },
        Record::Former { bag: bag().id, executor: PeerId([2; 32]), ranges: IntervalSet::from(2..3) },
        Record::Failures {
            bag: bag().id,
            index: 3,
            count: 1,
            crashed_on: vec![PeerId([2; 32])],
            next_attempt: 4,
            void_before: 0,
            endings: Vec::new(),
        },
        Record::Held {
            bag: bag(),
            released,
            attempt: 2,
            attempts: Some(BTreeMap::from([(2, IntervalSet::from(1..2))])),
            ranges: IntervalSet::from(0..2),
            checkpoints: BTreeMap::from([(1, checkpoint())]),
            priority: -5,
            at_once: IntervalSet::from(0..1),
        },
        Record::Checkpoint { bag: bag().id, index: 3, checkpoint: checkpoint() },
        Record::Bag {
            bag: bag(),
            released,
            retries_max: 2,
            attempt: 3,
            closed: None,
            replication: Replication { replicas: 3, quorum: 2, recheck: 20 },
            stewards: None,
            keep_results: false,
            reruns: 0,
            conditions: Box::default(),
            supply: None,
        },
        Record::Reputation {
            executor: PeerId([2; 32]),
            reputation: Reputation { agreed_in_row: 7, dissents: 1, dissented: None },
        },
        Record::Reputation {
            executor: PeerId([2; 32]),
            reputation: Reputation { agreed_in_row: 0, dissents: 2, dissented: Some(released) },
        },
        Record::Done {
            bag: bag().id,
            executor: PeerId([2; 32]),
            finished: released,
            result: TaskResult { exit_code: Some(0), receipt: Some(vec![1, 2]), ..result() },
        },
        Record::Failures {
            bag: bag().id,
            index: 3,
            count: 0,
            crashed_on: Vec::new(),
            next_attempt: 0,
            void_before: 4,
            endings: Vec::new(),
        },
        Record::Outbox { bag: bag(), released, result: with_output() },
        Record::Done { bag: bag().id, executor: PeerId([2; 32]), finished: released, result: with_output() },
        Record::Stewards { appointment: acting().appointment, adopts: false },
        Record::Kept {
            acting: acting(),
            key: [3; 32].into(),
            done: IntervalSet::from(0..2),
            failed: IntervalSet::from(2..3),
            drained: IntervalSet::new(),
            has_files: true,
            theirs: IntervalSet::new(),
        },
        Record::Kept {
            acting: acting(),
            key: [3; 32].into(),
            done: IntervalSet::from(0..2),
            failed: IntervalSet::new(),
            drained: IntervalSet::new(),
            has_files: true,
            theirs: IntervalSet::from(0..1),
        },
        Record::Bag {
            bag: bag(),
            released,
            retries_max: 2,
            attempt: 3,
            closed: None,
            replication: Replication::default(),
            stewards: None,
            keep_results: true,
            reruns: 2,
            conditions: Box::default(),
            supply: None,
        },
        Record::Bag {
            bag: BagHeader { id: BagId([8; 32]), tasks: idlewood_scheduler::BAG_TASKS_MAX, ..bag() },
            released,
            retries_max: 2,
            attempt: 3,
            closed: None,
            replication: Replication::default(),
            stewards: Some(0),
            keep_results: false,
            reruns: 0,
            conditions: Box::default(),
            supply: Some(Box::new(supply())),
        },
        Record::Obeyed { acting: acting() },
        Record::Bag {
            bag: bag(),
            released,
            retries_max: 2,
            attempt: 3,
            closed: None,
            replication: Replication::default(),
            stewards: None,
            keep_results: false,
            reruns: 0,
            supply: None,
            conditions: Box::new(Conditions {
                withheld: true,
                after: [BagId([9; 32])].into(),
                running_max: Some(3),
                retry_on: Some([75].into()),
                name: Some("night run".to_owned()),
                submitted: Some(released),
                priority: 7,
                rounds: Some(Plan {
                    processes: 2,
                    rounds: 3,
                    rounds_min: 1,
                    merges: true,
                    is_asynchronous: false,
                    fill: None,
                    at_once: true,
                }),
                converged: true,
                rounds_gone: 1,
                rounds_begun: 2,
            }),
        },
        Record::Failures {
            bag: bag().id,
            index: 3,
            count: 1,
            crashed_on: Vec::new(),
            next_attempt: 4,
            void_before: 0,
            endings: vec![Ending { machine: PeerId([2; 32]), exit_code: 3, fingerprint: 7 }],
        },
        Record::Kept {
            acting: acting(),
            key: [3; 32].into(),
            done: IntervalSet::from(5..6),
            failed: IntervalSet::new(),
            drained: IntervalSet::from(0..5),
            has_files: true,
            theirs: IntervalSet::new(),
        },
    ]
}

#[test]
fn messages_keep_their_bytes() {
    let mut golden = String::new();
    for message in messages() {
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes).unwrap(), message);
        writeln!(golden, "{} {} bytes: {}", message.kind(), bytes.len(), hex::encode(&bytes)).unwrap();
    }
    insta::assert_snapshot!(golden);
}

#[test]
fn records_keep_their_bytes() {
    let mut golden = String::new();
    for record in records() {
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes).unwrap(), record);
        writeln!(golden, "{} = {}", hex::encode(record.key().to_bytes()), hex::encode(&bytes)).unwrap();
    }
    insta::assert_snapshot!(golden);
}

/// Records of version 1.
#[test]
fn older_records_are_read_and_newer_ones_refused_by_their_version() {
    let mut bytes = records()[2].encode();
    for version in [1, 2, 3, 4, 5, 6, 7] {
        bytes[0] = version;
        assert_eq!(Record::decode(&bytes).unwrap(), records()[2]);
    }
    for version in [0, 8, 255] {
        bytes[0] = version;
        assert!(matches!(Record::decode(&bytes), Err(RecordError::Version(found)) if found == version));
    }
}

#[test]
fn records_with_whole_field_names_are_read() {
    let stored = hex::decode(
        "01a1664f7574626f78a363626167a66269645820070707070707070707070707070707070707070707070707070707070707\
         0707697375626d6974746572a364706565725820010101010101010101010101010101010101010101010101010101010101\
         01016b696e6361726e6174696f6e016761646472657373622f61657461736b731864697461736b5f6d6f7073f93e00756170\
         706c69636174696f6e5f73697a655f6d6f7073f958b0686465636c61726564f56872656c65617365641b00060a24181e4000\
         66726573756c74a665696e6465780367617474656d7074016773756363657373f5666f757470757458200505050505050505\
         0505050505050505050505050505050505050505050505056c6f75747075745f62797465730969776f726b5f6d6f7073f940\
         00",
    );
    let record = Record::decode(&stored.unwrap()).unwrap();
    assert_eq!(record, records()[2]);
    assert!(record.encode().len() < 250, "{} bytes with letters", record.encode().len());
}

/// Version 4 wrote the attempt and the success of each result.
#[test]
fn records_with_explicit_defaults_are_read() {
    let stored = hex::decode(
        "04a1664f7574626f78a363626167a6616958200707070707070707070707070707070707070707070707070707070707\
         0707076173a36470656572582001010101010101010101010101010101010101010101010101010101010101016b696e\
         6361726e6174696f6e016761646472657373622f61616e18646161f93e006177f958b06164f56872656c65617365641b\
         00060a24181e400066726573756c74a66169036174006173f5616f582005050505050505050505050505050505050505\
         050505050505050505050505056162096177f94000",
    );
    let stored = stored.unwrap();
    let record = Record::decode(&stored).unwrap();
    let usual = TaskResult { attempt: 0, ..result() };
    assert_eq!(record, Record::Outbox { bag: bag(), released: WallTime(1_700_000_000_000_000), result: usual });
    assert_eq!(record.encode().len(), stored.len() - 6, "a letter and a value twice");
}

#[test]
fn impossible_messages_are_refused() {
    let refused = |change: &dyn Fn(&mut Request)| {
        let mut request = request();
        change(&mut request);
        let bytes = Message::Request { request, node: Node::Leaf, climbing: false }.encode();
        assert_eq!(Message::decode(&bytes), Err(DecodeError::Invalid("request")));
    };
    refused(&|request| request.bag.task_mops = f64::NAN);
    refused(&|request| request.bag.task_mops = -1.0);
    refused(&|request| request.bag.application_size_mops = f64::INFINITY);
    refused(&|request| request.bag.tasks = 0);
    refused(&|request| request.bag.tasks = 4);
    refused(&|request| request.ranges = IntervalSet::new());
    refused(&|request| request.machines = request.bag.tasks as u32 + 1);
    refused(&|request| request.checkpoints = Box::new([(5, checkpoint())]));
    refused(&|request| {
        request.bag.tasks = 1000;
        request.ranges = IntervalSet::from(0..1000);
        request.checkpoints = (0..257).map(|index| (index, checkpoint())).collect();
    });
    refused(&|request| request.bag.submitter.address = "x".repeat(1000).into());
    refused(&|request| {
        for step in 0..300 {
            request.path = request.path.down(if step % 2 == 0 { Side::Left } else { Side::Right });
        }
    });
    let ranges: IntervalSet = (0..4097).map(|at| 2 * at..2 * at + 1).collect();
    for (ranges, finished) in [(ranges.clone(), IntervalSet::new()), (IntervalSet::new(), ranges)] {
        let holding = Message::Holding {
            bag: bag().id,
            executor: speaker(2),
            version: 1,
            attempt: 0,
            ranges,
            finished,
            capacity: None,
        };
        assert_eq!(Message::decode(&holding.encode()), Err(DecodeError::Invalid("holding")));
    }
    let astray = || Speaker { incarnation: 1, address: "x".repeat(257).into() };
    let renewal = Message::Renewal { executor: astray(), bags: Vec::new() };
    assert_eq!(Message::decode(&renewal.encode()), Err(DecodeError::Invalid("renewal")));
    let (submitter, term, drop, rest) = (Some(astray()), Duration::ZERO, IntervalSet::new(), Duration::ZERO);
    let lease = Message::Lease(Lease { submitter, term, drop, rest, ..Lease::of(bag().id) });
    assert_eq!(Message::decode(&lease.encode()), Err(DecodeError::Invalid("lease")));
    for (speed_mops, stretch) in [
        (f64::NAN, 0.0),
        (f64::INFINITY, 0.0),
        (0.0, 0.0),
        (-1.0, 0.0),
        (1.0, f64::NAN),
        (1.0, f64::INFINITY),
        (1.0, -1.0),
    ] {
        let ask = Message::Ask {
            asker: asker(speed_mops, stretch),
            node: Node::Leaf,
            climbing: false,
            climbed: 0,
            ticket: 0,
        };
        assert_eq!(Message::decode(&ask.encode()), Err(DecodeError::Invalid("ask")), "{speed_mops} {stretch}");
    }
    let results = |receipt, signature| Message::Results {
        bag: bag().id,
        executor: speaker(2),
        results: vec![TaskResult { receipt, ..result() }],
        signature,
    };
    for message in [results(Some(vec![1]), None), results(None, Some(vec![1; 63]))] {
        assert_eq!(Message::decode(&message.encode()), Err(DecodeError::Invalid("results")));
    }
    let bags = (0..513).map(|version| (bag().id, version)).collect();
    let renewal = Message::Renewal { executor: speaker(2), bags };
    assert_eq!(Message::decode(&renewal.encode()), Err(DecodeError::Invalid("renewal")));
    for message in messages() {
        let longer = [message.encode(), vec![0]].concat();
        let error = DecodeError::Malformed("1 bytes behind its end".to_owned());
        assert_eq!(Message::decode(&longer), Err(error), "{}", message.kind());
    }
    assert!(matches!(Message::decode(&vec![0; 300 * 1024]), Err(DecodeError::TooLarge(_))));
    assert!(matches!(Message::decode(b"\xff\xff"), Err(DecodeError::Malformed(_))));
}

#[test]
fn records_of_a_newer_version_are_not_misread() {
    let mut bytes = records()[0].encode();
    bytes[0] = 200;
    assert!(Record::decode(&bytes).unwrap_err().to_string().contains("update"));
    assert!(Record::decode(&[]).is_err());
}
