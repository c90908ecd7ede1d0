//! A case: what happens to a peer among others.
//!
//! The first byte says who the others are. *Machines* are real peers, whose messages arrive in order unless the case loses,
//! doubles, delays, garbles or replaces them. *Strangers* are not there: what they say is made up. Those that *echo* answer
//! pings, look-ups, reports and tickets with the numbers in them and report a leaf of their own, so that peers adopt them as
//! neighbours, and routers stand on them and above them. The bytes after that are moves; one below 240 is a message that one
//! of eight made up, or an act of the driver. In a *plain* case all moves are those.

use std::collections::VecDeque;
use std::time::Duration;

use idlewood_overlay::{
    Body, Handover, HandoverChild, Member, Node, Payload, PeerId, PositionKey, Report, ReportAck, Span, Subtree, Time,
    Verdict,
};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{Event, Lease, Message, TaskResult};

use super::host::{Act, Host, config, contact};
use super::source::Source;
use super::{CASE_BYTES_MAX, GRID, ME, PEERS};

/// Most that a peer may want to be woken within a second of its time.
const WAKES_PER_S_MAX: usize = 500;
/// So long a message is under way between machines, unless the case delays it.
const LATENCY: Duration = Duration::from_millis(10);
/// Drivers that leave nothing undone look around so often.
const STEP: Duration = Duration::from_millis(250);
/// Time of a case with several machines, all together: its events are worth more than its heartbeats.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Most messages between machines that a second of time may bring; our choice, many times what a grid of four with bags has.
const DELIVERIES_PER_S_MAX: usize = 5_000;
/// Messages to strangers that can still be answered, and messages under way.
const HEARD_MAX: usize = 64;
const POST_MAX: usize = 4096;

/// A message on its way to a machine.
struct Letter {
    at: Time,
    from: PeerId,
    to: usize,
    message: Message,
}

/// Who is there.
#[derive(Clone, Copy)]
struct Company {
    machines: u8,
    echoing: u8,
    settings: u8,
    /// Drivers leave nothing undone.
    diligent: bool,
    /// All moves are those below 240.
    plain: bool,
}

impl Company {
    fn read(byte: u8) -> Self {
        Self {
            machines: 1 + byte % 4,
            echoing: byte / 4 % 4,
            settings: byte / 16 % 4,
            diligent: byte / 64 % 2 == 1,
            plain: byte >= 128,
        }
    }

    /// Whether the peer is alone with messages that are made up.
    fn is_alone(self) -> bool {
        self.machines == 1 && self.echoing == 0 && !self.diligent
    }
}

struct Grid {
    company: Company,
    hosts: Vec<Host>,
    post: VecDeque<Letter>,
    /// What machines told strangers lately: the machine, the stranger, the message.
    heard: VecDeque<(usize, PeerId, Message)>,
    /// The last whole payload of a report, which echoing strangers repeat.
    payload: Vec<u8>,
    now: Time,
    /// The machine that moves are about.
    at: usize,
    passed: Duration,
    delivered: usize,
}

fn overlay(body: Body) -> Message {
    let address = Some("/a".into());
    Message::Overlay(idlewood_overlay::Message { grid: GRID.tag(), incarnation: 3, address, body })
}

impl Grid {
    fn new(company: Company) -> Self {
        let settings = config(company.settings);
        let hosts = (0..company.machines).map(|number| Host::new(ME + number, settings.clone())).collect();
        let mut grid = Self {
            company,
            hosts,
            post: VecDeque::new(),
            heard: VecDeque::new(),
            payload: Vec::new(),
            now: Time::ZERO,
            at: 0,
            passed: Duration::ZERO,
            delivered: 0,
        };
        if company.is_alone() {
            return grid;
        }
        let others = company.machines + company.echoing;
        for (number, host) in grid.hosts.iter_mut().enumerate() {
            let known = if number == 0 { ME + others - 1 } else { ME };
            if known != ME + number as u8 {
                host.give(Event::Bootstrap(contact(known)));
            }
        }
        grid.pass(Duration::from_secs(3));
        grid
    }

    fn index(&self, peer: PeerId) -> Option<usize> {
        self.hosts.iter().position(|host| host.id() == peer)
    }

    fn echoes(&self, peer: PeerId) -> bool {
        let first = ME + self.company.machines;
        (first..first + self.company.echoing).contains(&peer.0[0])
    }

    /// Machines and echoing strangers in the order of the line.
    fn line(&self) -> Vec<Member> {
        let mut line: Vec<Member> =
            (ME..ME + self.company.machines + self.company.echoing).map(|id| contact(id).into()).collect();
        line.sort_by_key(|member| PositionKey::new(GRID, member.peer));
        line
    }

    // ---- messages ----

    /// Takes what the machines have sent to the network.
    fn collect(&mut self) {
        for number in 0..self.hosts.len() {
            for (to, message) in std::mem::take(&mut self.hosts[number].sent) {
                let from = self.hosts[number].id();
                if let Some(to) = self.index(to.peer) {
                    self.post(from, to, message);
                    continue;
                }
                if self.echoes(to.peer) {
                    for answer in self.echo(to.peer, &message) {
                        self.post(to.peer, number, answer);
                    }
                }
                if self.heard.len() == HEARD_MAX {
                    self.heard.pop_front();
                }
                self.heard.push_back((number, to.peer, message));
            }
        }
    }

    fn post(&mut self, from: PeerId, to: usize, message: Message) {
        if self.post.len() < POST_MAX {
            self.post.push_back(Letter { at: self.now + LATENCY, from, to, message });
        }
    }

    /// What an echoing stranger answers.
    fn echo(&mut self, stranger: PeerId, message: &Message) -> Vec<Message> {
        let ack = |nonce| overlay(Body::Ack { nonce, mine: 1, set: Some(self.line()), ask: 0 });
        match message {
            Message::Overlay(idlewood_overlay::Message { body, .. }) => match body {
                Body::Ping { nonce, .. } => vec![ack(*nonce), self.leaf_report(stranger)],
                Body::Ack { ask, .. } if *ask != 0 => vec![ack(*ask)],
                Body::Find { nonce, .. } => vec![overlay(Body::Found { nonce: *nonce, near: self.line() })],
                Body::Report(report) => {
                    let whole = report.load.as_ref().filter(|load| load.base.is_none());
                    if let Some(load) = whole {
                        self.payload.clone_from(&load.bytes);
                    }
                    let load = report.load.as_ref().map_or(0, |load| load.version);
                    vec![accepted(report, Verdict::Linked { load, depth: Some(1) })]
                }
                _ => Vec::new(),
            },
            Message::Request { request, .. } if request.ticket != 0 => vec![Message::Ticket { ticket: request.ticket }],
            Message::Ask { ticket, .. } if *ticket != 0 => vec![Message::Ticket { ticket: *ticket }],
            _ => Vec::new(),
        }
    }

    fn leaf_report(&self, stranger: PeerId) -> Message {
        let line = self.line();
        let place = line.iter().position(|member| member.peer == stranger).unwrap_or(0);
        self.report(Node::Leaf, &line, place, place, 1)
    }

    /// The report of the node that spans these places of a line.
    fn report(&self, node: Node, line: &[Member], l: usize, r: usize, version: u64) -> Message {
        let load = Some(Payload::new(version, None, self.payload.clone()));
        overlay(Body::Report(Report { node, version, tree: Some(Box::new(subtree(line, l, r))), load, root: 0 }))
    }

    /// Delivers what has arrived by now.
    fn deliver(&mut self) {
        self.collect();
        while let Some(place) = self.post.iter().position(|letter| letter.at <= self.now) {
            let Some(Letter { from, to, message, .. }) = self.post.remove(place) else { break };
            self.hosts[to].give(Event::Received { from, message });
            self.delivered += 1;
            self.collect();
        }
    }

    /// Delivers something that was made up, through its bytes, as all that comes from others.
    fn receive(&mut self, from: PeerId, message: &Message) {
        if let Ok(message) = Message::decode(&message.encode())
            && from != self.hosts[self.at].id()
        {
            self.hosts[self.at].give(Event::Received { from, message });
        }
    }

    // ---- time ----

    fn pass(&mut self, time: Duration) {
        let time = if self.company.is_alone() { time } else { time.min(TIME_MAX.saturating_sub(self.passed)) };
        self.passed += time;
        let end = self.now + time;
        let wakes_max = WAKES_PER_S_MAX * (1 + time.as_secs() as usize);
        let mut wakes = vec![0; self.hosts.len()];
        let deliveries_max = self.delivered + DELIVERIES_PER_S_MAX * (1 + time.as_secs() as usize);
        loop {
            self.deliver();
            assert!(self.delivered <= deliveries_max, "machines never stop talking: {:?}", self.heard.back());
            let deadlines = self.hosts.iter().filter_map(|host| host.peer.deadline());
            let letters = self.post.iter().map(|letter| letter.at);
            let step = self.company.diligent.then(|| self.now + STEP);
            let next = deadlines.chain(letters).chain(step).min().map(|next| next.max(self.now));
            self.now = next.filter(|next| *next <= end).unwrap_or(end);
            for (host, wakes) in self.hosts.iter_mut().zip(&mut wakes) {
                host.now = self.now;
                if host.peer.deadline().is_some_and(|deadline| deadline <= host.now) {
                    *wakes += 1;
                    assert!(*wakes <= wakes_max, "it wanted to be woken {wakes_max} times in {time:?}");
                    host.give(Event::DeadlineReached);
                    host.write();
                }
                if self.company.diligent {
                    host.carry_on();
                }
            }
            if next.is_none_or(|next| next > end) {
                self.deliver();
                return;
            }
        }
    }

    // ---- moves ----

    /// One move of the case.
    fn step(&mut self, source: &mut Source<'_>, number: usize) {
        let byte = source.byte();
        match if self.company.plain { byte % 4 } else { byte } {
            240 => self.at = usize::from(source.byte()) % self.hosts.len(),
            241 | 242 => self.answer(source),
            243 => drop(self.letter(source)),
            244 => {
                if let Some(Letter { at, from, to, message }) = self.letter(source) {
                    let twin = Letter { at, from, to, message: message.clone() };
                    self.post.extend([Letter { at, from, to, message }, twin]);
                }
            }
            245 => {
                if let Some(letter) = self.letter(source) {
                    let late = Duration::from_millis(u64::from(source.byte()) * 100);
                    self.post.push_back(Letter { at: self.now + late, ..letter });
                }
            }
            246 => self.garble(source),
            247 => {
                if let Some(letter) = self.letter(source)
                    && let Ok(message) = Message::decode(&source.message().encode())
                {
                    self.post.push_back(Letter { message, ..letter });
                }
            }
            248 => {
                let nonce = source.maybe(|source| [source.byte(); 16]).unwrap_or_default();
                self.hosts[self.at].give(Event::Certified { peer: source.peer(), nonce });
            }
            249 => {
                let event = match source.below(4) {
                    0 => Event::Downloaded { kb_s: source.number() as u32 },
                    1 => Event::VacatesAfter(source.time()),
                    2 => Event::SpeedChanged(f64::from_bits(source.number())),
                    _ => Event::CheckpointsFound { bag: source.bag(), tasks: source.ranges() },
                };
                self.hosts[self.at].give(event);
            }
            250 => {
                let withdrawn = Event::Authorised { bag: source.bag(), verdict: Err(source.reason()) };
                self.hosts[self.at].give(withdrawn);
            }
            251 => {
                let (from, message) = (source.peer(), source.decline());
                self.receive(from, &message);
            }
            252 | 253 => self.child(source),
            254 => {
                let kept = usize::from(source.below(4));
                self.hosts[self.at].restart(kept);
            }
            255 => match source.byte() {
                // What came later than most of the corpus, whose cases have few of these.
                224..=239 => {
                    let (from, message) = (source.peer(), source.later());
                    self.receive(from, &message);
                }
                240..=255 => self.hosts[self.at].order(source),
                seconds => self.pass(Duration::from_secs(u64::from(seconds % 16))),
            },
            below if below % 4 < 3 => {
                let from = source.peer();
                let message = source.message();
                self.receive(from, &message);
            }
            _ => {
                if let Act::Pass(time) = self.hosts[self.at].act(source) {
                    self.pass(time);
                }
            }
        }
        if !number.is_multiple_of(3) {
            self.hosts[self.at].write();
        }
        self.deliver();
    }

    /// Takes a message out of the network.
    fn letter(&mut self, source: &mut Source<'_>) -> Option<Letter> {
        let place = usize::from(source.byte());
        self.collect();
        if self.post.is_empty() { None } else { self.post.remove(place % self.post.len()) }
    }

    /// Changes bytes of a message on its way; one that cannot be read any more is lost.
    fn garble(&mut self, source: &mut Source<'_>) {
        let Some(letter) = self.letter(source) else { return };
        let mut bytes = letter.message.encode();
        for _ in 0..=source.below(3) {
            let place = usize::from(source.byte()) * 256 + usize::from(source.byte());
            let place = place % bytes.len();
            bytes[place] = if source.flag() { source.byte() } else { bytes[place] ^ 1 << source.below(8) };
        }
        if let Ok(message) = Message::decode(&bytes) {
            self.post.push_back(Letter { message, ..letter });
        }
    }

    /// A stranger, or somebody in a machine's name, reports a node or hands one over that has a place on the line of those
    /// whom the case names.
    fn child(&mut self, source: &mut Source<'_>) {
        let named = source.byte();
        let mut line: Vec<Member> =
            (0..PEERS).filter(|bit| named & 1 << bit != 0).map(|bit| contact(ME + bit).into()).collect();
        line.sort_by_key(|member| PositionKey::new(GRID, member.peer));
        if line.is_empty() {
            return;
        }
        let place = |source: &mut Source<'_>| usize::from(source.byte()) % line.len();
        let (one, other) = (place(source), place(source));
        let (l, r) = (one.min(other), one.max(other));
        let (node, version) = (if l == r { Node::Leaf } else { Node::Router }, source.number());
        // A router stands on the last machine of its left half: the case guesses.
        let from = line[(l + place(source)).min(r)].clone();
        let message = if source.flag() {
            let load = Payload::new(version, None, self.payload.clone());
            let child = HandoverChild { contact: from.clone(), node, version, tree: subtree(&line, l, r), load };
            overlay(Body::Handover(Handover { children: vec![child] }))
        } else {
            self.report(node, &line, l, r, version)
        };
        self.receive(from.peer, &message);
    }

    /// A stranger answers something that a machine told it: with its numbers, and otherwise as it likes.
    fn answer(&mut self, source: &mut Source<'_>) {
        self.collect();
        let place = usize::from(source.byte());
        if self.heard.is_empty() {
            return;
        }
        let (at, stranger, message) = self.heard[place % self.heard.len()].clone();
        let from = if source.below(8) == 0 { source.peer() } else { stranger };
        let answer = answer(source, from, &message);
        let before = std::mem::replace(&mut self.at, at);
        self.receive(from, &answer);
        self.at = before;
    }
}

fn accepted(report: &Report, verdict: Verdict) -> Message {
    let (node, version) = (report.node, report.version);
    overlay(Body::ReportAck(ReportAck { node, version, verdict, root: None, edition: 1 }))
}

/// The part of the line between two places, with plausible numbers.
fn subtree(line: &[Member], l: usize, r: usize) -> Subtree {
    let lo = l.checked_sub(1).map(|lo| line[lo].clone());
    let span = Span { lo, l: line[l].clone(), r: line[r].clone(), ro: line.get(r + 1).cloned() };
    Subtree { span, count: (r - l + 1) as u64, height: (r - l) as u32 }
}

fn answer(source: &mut Source<'_>, from: PeerId, message: &Message) -> Message {
    let executor = || (&contact(from.0[0])).into();
    match message {
        Message::Overlay(idlewood_overlay::Message { body, .. }) => overlay(match body {
            Body::Ping { nonce, .. } => Body::Ack {
                nonce: *nonce,
                mine: source.number() as u32,
                set: source.maybe(Source::members),
                ask: source.number() as u32,
            },
            Body::Ack { ask, .. } => Body::Ack { nonce: *ask, mine: 1, set: source.maybe(Source::members), ask: 0 },
            Body::Find { nonce, .. } => Body::Found { nonce: *nonce, near: source.members() },
            Body::Report(report) => {
                let verdict = source.verdict(report.load.as_ref().map_or(0, |load| load.version));
                return accepted(report, verdict);
            }
            _ => source.body(),
        }),
        Message::Request { request, .. } => {
            let (bag, attempt) = (request.bag.id, request.attempt);
            match source.below(6) {
                0 => Message::Ticket { ticket: request.ticket },
                1 => Message::Decline { bag, ranges: request.ranges.clone(), reason: source.reason() },
                2 => {
                    let indices = request.ranges.indices().take(3);
                    let results = indices.map(|index| TaskResult { index, attempt, ..source.result() }).collect();
                    Message::Results { bag, executor: executor(), results, signature: None }
                }
                3 => Message::Offer { bag, executor: executor(), ranges: request.ranges.clone(), to: source.contact() },
                _ => Message::Holding {
                    bag,
                    executor: executor(),
                    version: source.number(),
                    attempt,
                    ranges: request.ranges.clone(),
                    finished: source.ranges(),
                    capacity: None,
                },
            }
        }
        Message::Holding { bag, version, ranges, .. } => Message::Lease(Lease {
            version: *version,
            submitter: source.maybe(|_| executor()),
            term: source.time(),
            drop: if source.flag() { source.ranges() } else { ranges.clone() },
            rest: source.time(),
            key: source.maybe(|source| [source.byte(); 32].into()),
            manifest: source.enclosed(),
            sizes: source.maybe(Source::sizes),
            ..Lease::of(*bag)
        }),
        Message::Renewal { bags, .. } => Message::Renewed { bags: bags.clone(), term: source.time() },
        Message::Renewed { bags, .. } => Message::Renewal { executor: executor(), bags: bags.clone() },
        Message::Results { bag, results, .. } => {
            let attempt = results.first().map_or(0, |result| result.attempt);
            let indices = results.iter().map(|result| result.index..result.index + 1).collect();
            Message::ResultsAck { bag: *bag, attempt, indices }
        }
        Message::Lease(Lease { bag, version, .. }) => {
            if source.flag() {
                Message::Renewal { executor: executor(), bags: vec![(*bag, *version)] }
            } else {
                let results = (0..source.below(4)).map(|_| source.result()).collect();
                Message::Results { bag: *bag, executor: executor(), results, signature: None }
            }
        }
        Message::Ask { asker, ticket, .. } => match source.below(3) {
            0 => Message::Ticket { ticket: *ticket },
            1 => Message::Offer {
                bag: source.bag(),
                executor: executor(),
                ranges: source.ranges(),
                to: asker.contact.clone(),
            },
            _ => source.message(),
        },
        Message::ResultsAck { bag, attempt, .. } => Message::Holding {
            bag: *bag,
            executor: executor(),
            version: source.number(),
            attempt: *attempt,
            ranges: source.ranges(),
            finished: IntervalSet::new(),
            capacity: None,
        },
        _ => source.message(),
    }
}

/// Reads a case as moves; how many there were.
pub(super) fn play(case: &[u8]) -> usize {
    let mut source = Source(&case[..case.len().min(CASE_BYTES_MAX)]);
    let mut grid = Grid::new(Company::read(source.byte()));
    let mut moves = 0;
    while !source.0.is_empty() {
        grid.step(&mut source, moves);
        moves += 1;
    }
    grid.passed = Duration::ZERO;
    grid.pass(Duration::from_secs(5));
    grid.hosts.iter().for_each(Host::assert_bounded);
    grid.hosts.iter_mut().for_each(|host| host.restart(usize::MAX));
    grid.pass(Duration::from_secs(1));
    moves
}
