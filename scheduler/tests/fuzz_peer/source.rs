//! The bytes of a case, read as what peers say and drivers report.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{
    Body, Contact, Handover, HandoverChild, Leave, Member, Node, Payload, PeerId, PositionKey, Report, ReportAck,
    RootInfo, Side, Span, Subtree, Verdict,
};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::summary::Summary;
use idlewood_scheduler::{
    Activity, Asker, BagHeader, BagId, BlobId, Checkpoint, DeclineReason, Enclosed, EndlessBag, Finished, Grant, Lease,
    Limit, MachineReport, MachinesPage, Message, Path, Replication, Request, SilentMachine, Sizes, SmallOutput,
    Speaker, Stamp, Standing, TaskOutcome, TaskResult, WhichMachines,
};

use super::{GRID, ME, PEERS};

const REASONS: [DeclineReason; 9] = [
    DeclineReason::Unavailable,
    DeclineReason::Forged,
    DeclineReason::Role,
    DeclineReason::Stranger,
    DeclineReason::Submitter,
    DeclineReason::Program,
    DeclineReason::Native,
    DeclineReason::Size,
    DeclineReason::Quota,
];

/// The bytes of a case, read as numbers; 0 behind the end.
pub(super) struct Source<'a>(pub(super) &'a [u8]);

impl Source<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte
            }
            None => 0,
        }
    }

    pub(super) fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    pub(super) fn flag(&mut self) -> bool {
        self.byte().is_multiple_of(2)
    }

    /// Small numbers, and those at the edges.
    pub(super) fn number(&mut self) -> u64 {
        match self.byte() {
            250 => u64::from(self.byte()) << 32,
            251 => 1 << 40,
            252 => u64::MAX - u64::from(self.byte()),
            253 => u64::from(u32::MAX),
            254 => i64::MAX as u64,
            255 => u64::MAX,
            small => u64::from(small % 16),
        }
    }

    pub(super) fn real(&mut self) -> f64 {
        match self.byte() {
            245 => f64::NAN,
            246 => f64::INFINITY,
            247 => -1.0,
            248 => 0.0,
            249 => f64::MIN_POSITIVE,
            250 => 1e-9,
            251 => 1e18,
            252 => f64::MAX,
            253 => 1e300,
            other => f64::from(other) * 10.0 + 1.0,
        }
    }

    pub(super) fn time(&mut self) -> Duration {
        match self.below(6) {
            0 => Duration::ZERO,
            1 => Duration::from_millis(self.number() % 1000),
            2 => Duration::from_secs(self.number() % 100),
            3 => Duration::from_secs(90 * 86_400),
            4 => Duration::new(u64::MAX, 999_999_999),
            _ => Duration::from_micros(self.number()),
        }
    }

    /// A machine: this one, or one of seven others.
    pub(super) fn peer(&mut self) -> PeerId {
        PeerId([self.below(PEERS) + ME; 32])
    }

    pub(super) fn contact(&mut self) -> Contact {
        let address = if self.flag() { "/a" } else { "/ip4/10.0.0.1/tcp/1" };
        Contact { peer: self.peer(), incarnation: self.number(), address: address.into(), nonce: None }
    }

    /// Reads as much as a contact, so that a case means the same where a speaker takes the place of one.
    pub(super) fn speaker(&mut self) -> Speaker {
        (&self.contact()).into()
    }

    pub(super) fn member(&mut self) -> Member {
        self.contact().into()
    }

    pub(super) fn members(&mut self) -> Vec<Member> {
        (0..self.below(10)).map(|_| self.member()).collect()
    }

    pub(super) fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.flag() { Some(make(self)) } else { None }
    }

    pub(super) fn bag(&mut self) -> BagId {
        BagId([self.below(4); 32])
    }

    pub(super) fn header(&mut self) -> BagHeader {
        BagHeader {
            id: self.bag(),
            submitter: self.contact(),
            tasks: self.number(),
            task_mops: self.real(),
            application_size_mops: self.real(),
            declared: self.flag(),
        }
    }

    pub(super) fn ranges(&mut self) -> IntervalSet {
        let mut set = IntervalSet::new();
        for _ in 0..self.below(5) {
            let start = self.number();
            set.insert(start..start.saturating_add(self.number()));
        }
        if self.below(32) == 0 {
            (0..u64::from(self.byte()) * 20).for_each(|index| _ = set.insert_index(index * 2));
        }
        set
    }

    pub(super) fn result(&mut self) -> TaskResult {
        let output_bytes = self.number();
        let content = if self.below(4) == 0 { SmallOutput::new(&vec![1; output_bytes.min(99) as usize]) } else { None };
        TaskResult {
            index: self.number(),
            attempt: self.number() as u32,
            success: self.flag(),
            crashed: self.flag(),
            unfinished: self.below(4) == 0,
            output: BlobId([self.byte(); 32]),
            output_bytes,
            content,
            work_mops: self.real(),
            exit_code: None,
            receipt: None,
            fingerprint: None,
        }
    }

    pub(super) fn node(&mut self) -> Node {
        if self.flag() { Node::Leaf } else { Node::Router }
    }

    pub(super) fn path(&mut self) -> Path {
        (0..self.below(6))
            .fold(Path::default(), |path, _| path.down(if self.flag() { Side::Left } else { Side::Right }))
    }

    /// A summary, which may lie, or what is none.
    pub(super) fn payload(&mut self) -> Vec<u8> {
        match self.below(4) {
            0 => Vec::new(),
            1 => Summary::unavailable().encode(),
            2 => {
                let mut bytes = Summary::empty().encode();
                let at = usize::from(self.byte()) % bytes.len();
                bytes[at] ^= self.byte();
                bytes
            }
            _ => (0..self.byte()).map(|_| self.byte()).collect(),
        }
    }

    pub(super) fn load(&mut self) -> Payload {
        Payload::new(self.number(), self.maybe(Self::number), self.payload())
    }

    pub(super) fn subtree(&mut self) -> Subtree {
        let span =
            Span { lo: self.maybe(Self::member), l: self.member(), r: self.member(), ro: self.maybe(Self::member) };
        Subtree { span, count: self.number(), height: self.number() as u32 }
    }

    pub(super) fn root(&mut self) -> RootInfo {
        RootInfo {
            contact: self.member(),
            stamp: self.number(),
            count: self.number(),
            height: self.number() as u32,
            payload: self.payload(),
        }
    }

    pub(super) fn body(&mut self) -> Body {
        let nonce = self.number() as u32;
        match self.below(13) {
            0 => Body::Ping { nonce, mine: self.number() as u32, seen: self.number() as u32 },
            1 => Body::Ack { nonce, mine: 1, set: self.maybe(Self::members), ask: self.number() as u32 },
            2 => Body::Find { nonce, key: PositionKey([self.byte(); 32]) },
            3 => Body::Found { nonce, near: self.members() },
            4 | 5 => Body::Report(Report {
                node: self.node(),
                version: self.number(),
                tree: self.maybe(|source| Box::new(source.subtree())),
                load: self.maybe(Self::load),
                root: nonce,
            }),
            6 => Body::ReportAck(ReportAck {
                node: self.node(),
                version: self.number(),
                verdict: match self.below(3) {
                    0 => Verdict::Linked { load: self.number(), depth: self.maybe(|source| source.number() as u32) },
                    1 => Verdict::Unknown,
                    _ => Verdict::Refused { pred: self.maybe(Self::member), succ: self.maybe(Self::member) },
                },
                root: self.maybe(|source| source.root().into()),
                edition: nonce,
            }),
            7 => Body::RootChanged {
                node: self.node(),
                root: self.maybe(|source| source.root().into()),
                depth: self.maybe(|source| source.number() as u32),
                edition: nonce,
            },
            8 => Body::Dead(self.member()),
            9 => Body::Suspect(self.member()),
            10 => Body::Hint(self.members()),
            11 => Body::Leave(Leave { near: self.members(), ends: [self.flag(), self.flag()] }),
            _ => {
                let child = |source: &mut Self| HandoverChild {
                    contact: source.member(),
                    node: source.node(),
                    version: source.number(),
                    tree: source.subtree(),
                    load: source.load(),
                };
                Body::Handover(Handover { children: (0..self.below(4)).map(|_| child(self)).collect() })
            }
        }
    }

    pub(super) fn enclosed(&mut self) -> Enclosed {
        self.maybe(|source| Enclosed::of(&[source.byte(); 32])).unwrap_or_default()
    }

    pub(super) fn message(&mut self) -> Message {
        match self.below(18) {
            0..5 => Message::Overlay(idlewood_overlay::Message {
                grid: GRID.tag(),
                incarnation: self.number(),
                address: self.maybe(|_| "/a".into()),
                body: self.body(),
            }),
            5..8 => {
                let mut request = Request {
                    bag: self.header(),
                    number: self.number(),
                    attempt: self.number() as u32,
                    ranges: self.ranges(),
                    age: self.time(),
                    path: self.path(),
                    climbed: self.number() as u16,
                    machines: self.number() as u32,
                    link_kb_s: self.number() as u32,
                    leads: self.flag(),
                    copy: None,
                    begins_within: self
                        .maybe(|source| if source.flag() { u32::MAX - 1 } else { source.number() as u32 }),
                    lines: Box::default(),
                    envelope: self.enclosed(),
                    acting: None,
                    ticket: 0,
                    checkpoints: self
                        .checkpoints()
                        .into_iter()
                        .filter_map(|(index, kept)| Some((index, kept?)))
                        .collect(),
                };
                request.ticket = request.number as u32 % 4;
                Message::Request { request, node: self.node(), climbing: self.flag() }
            }
            8 => Message::Holding {
                bag: self.bag(),
                executor: self.speaker(),
                version: self.number(),
                attempt: self.number() as u32,
                ranges: self.ranges(),
                finished: self.ranges(),
                capacity: None,
            },
            9 | 10 => Message::Lease(Lease {
                version: self.number(),
                submitter: self.maybe(Self::speaker),
                term: self.time(),
                drop: self.ranges(),
                rest: self.time(),
                key: self.maybe(|source| [source.number() as u8; 32].into()),
                manifest: self.enclosed(),
                sizes: self.maybe(Self::sizes),
                ..Lease::of(self.bag())
            }),
            11 => {
                let bags = (0..self.below(5)).map(|_| (self.bag(), self.number())).collect();
                if self.flag() {
                    Message::Renewal { executor: self.speaker(), bags }
                } else {
                    Message::Renewed { bags, term: self.time() }
                }
            }
            12 => {
                let (contact, speed_mops, stretch) = (self.contact(), self.real(), self.real());
                let slots = (speed_mops.to_bits() % 2048) as u32;
                let asker = Asker { contact, speed_mops, slots, stretch };
                let (node, climbing, climbed) = (self.node(), self.flag(), self.number() as u16);
                Message::Ask { asker, node, climbing, climbed, ticket: u32::from(climbed) % 4 }
            }
            13 => {
                Message::Offer { bag: self.bag(), executor: self.speaker(), ranges: self.ranges(), to: self.contact() }
            }
            14 => Message::Results {
                bag: self.bag(),
                executor: self.speaker(),
                results: (0..self.below(5)).map(|_| self.result()).collect(),
                signature: None,
            },
            15 => Message::Booked { bag: self.bag(), tasks: self.ranges() },
            16 => Message::Begin { bag: self.bag(), tasks: self.ranges() },
            _ => {
                let (bag, attempt, indices) = (self.bag(), self.number() as u32, self.ranges());
                if indices.is_empty() {
                    Message::Ticket { ticket: attempt }
                } else {
                    Message::ResultsAck { bag, attempt, indices }
                }
            }
        }
    }

    pub(super) fn checkpoints(&mut self) -> BTreeMap<u64, Option<Checkpoint>> {
        let checkpoint = |source: &mut Self| Checkpoint { blob: BlobId([source.byte(); 32]), bytes: source.number() };
        (0..self.below(3)).map(|_| (self.number(), self.maybe(checkpoint))).collect()
    }

    /// Beside [`Source::message`], so that older cases mean what they did.
    pub(super) fn decline(&mut self) -> Message {
        let (bag, ranges) = (self.bag(), self.ranges());
        if ranges.is_empty() {
            Message::Share { bag, tasks: (0..self.below(4)).map(|_| (self.number(), self.number() as u32)).collect() }
        } else {
            Message::Decline { bag, ranges, reason: self.reason() }
        }
    }

    /// Listings and what is said of endless bags, beside [`Source::message`] likewise.
    pub(super) fn later(&mut self) -> Message {
        match self.below(8) {
            0 => Message::WhichMachines {
                question: WhichMachines {
                    id: self.number(),
                    number: self.number() as u32 % 4,
                    first: self.number(),
                    last: u64::MAX - self.number(),
                    wait_ms: self.number() as u32,
                },
                node: self.node(),
                climbing: self.flag(),
            },
            1 | 2 => Message::Machines { number: self.number() as u32 % 8, page: Box::new(self.page()) },
            3 => Message::Announce { bag: Box::new(self.endless_bag()), climbed: self.number() as u16 },
            4 => Message::Granted { bag: self.bag(), grant: self.grant(), asks: self.maybe(Self::speaker) },
            5 => Message::Absorbs { node: self.node(), stamp: self.stamp(), work_mops: self.rates() },
            6 => {
                let work_mops = self.rates();
                let table = self.maybe(|source| work_mops.iter().map(|_| source.endless_bag()).collect());
                Message::Shares { node: self.node(), stamp: self.stamp(), table, work_mops }
            }
            _ => Message::Want { bag: self.bag(), executor: self.speaker(), tasks: self.number() as u32 },
        }
    }

    fn page(&mut self) -> MachinesPage {
        let report = |source: &mut Self| MachineReport {
            peer: source.peer(),
            at: source.number(),
            name: if source.flag() { "".into() } else { "a machine".into() },
            version: "0.1.0".into(),
            activity: [Activity::Idle, Activity::Working, Activity::Suspended][usize::from(source.below(3))],
            reason: source.maybe(|_| "on_battery".into()),
            slots: source.number() as u32,
            speed_mops: source.real(),
            running: source.number() as u32,
            waiting: source.number(),
        };
        let silent = |source: &mut Self| SilentMachine {
            peer: source.peer(),
            at: source.number(),
            heard_s: source.number() as u32,
        };
        MachinesPage {
            last: u64::MAX - self.number(),
            machines: (0..self.below(5)).map(|_| report(self)).collect(),
            silent: (0..self.below(3)).map(|_| silent(self)).collect(),
            unreached: self.number(),
            is_busy: self.below(8) == 0,
        }
    }

    fn endless_bag(&mut self) -> EndlessBag {
        EndlessBag {
            bag: self.bag(),
            submitter: self.contact(),
            weight: self.real(),
            task_mops: self.real(),
            task_bytes: self.real(),
            uplink_bytes_s: self.real(),
            standing: [Standing::Active, Standing::Idle, Standing::Gone][usize::from(self.below(3))],
            waited_s: self.number(),
        }
    }

    fn grant(&mut self) -> Grant {
        let limits = [Limit::Processors, Limit::Uplink, Limit::Downlinks, Limit::Machines, Limit::Waits, Limit::Tasks];
        Grant {
            ahead: self.number() as u32,
            work_mops: self.real(),
            alone_mops: self.real(),
            grid_mops: self.real(),
            limit: limits[usize::from(self.below(6))],
        }
    }

    fn stamp(&mut self) -> Stamp {
        Stamp(self.number(), self.maybe(Self::peer))
    }

    fn rates(&mut self) -> Vec<f64> {
        (0..self.below(5)).map(|_| self.real()).collect()
    }

    pub(super) fn reason(&mut self) -> DeclineReason {
        REASONS[usize::from(self.below(REASONS.len() as u8))]
    }

    pub(super) fn replication(&mut self) -> Replication {
        [(1, 1, 0), (3, 2, 0), (2, 2, 1), (4, 3, 5)].map(|(replicas, quorum, recheck)| Replication {
            replicas,
            quorum,
            recheck,
        })[usize::from(self.below(4))]
    }

    pub(super) fn verdict(&mut self, load: u64) -> Verdict {
        match self.below(4) {
            0 => Verdict::Unknown,
            1 => Verdict::Refused { pred: self.maybe(Self::member), succ: self.maybe(Self::member) },
            2 => Verdict::Linked { load: self.number(), depth: self.maybe(|source| source.number() as u32) },
            _ => Verdict::Linked { load, depth: Some(u32::from(self.below(9))) },
        }
    }

    pub(super) fn sizes(&mut self) -> Sizes {
        let BagHeader { task_mops, application_size_mops, declared, .. } = self.header();
        let priority = task_mops as i32 % 3 - 1;
        Sizes { task_mops, application_size_mops, declared, priority }
    }

    pub(super) fn outcome(&mut self) -> TaskOutcome {
        match self.below(4) {
            0 => TaskOutcome::Stopped,
            1 => TaskOutcome::NotStarted { retry_after: Duration::from_secs(u64::from(self.byte())) },
            _ => TaskOutcome::Finished(Finished {
                success: self.flag(),
                crashed: self.flag(),
                output: BlobId([1; 32]),
                output_bytes: 1,
                content: if self.flag() { SmallOutput::new(&[1]) } else { None },
                work_mops: f64::from(self.byte()),
                exit_code: self.flag().then_some(0),
                fingerprint: None,
                times: 1.0,
            }),
        }
    }
}
