//! What peers say to each other, and its encoding.
//!
//! Plain CBOR, with a letter for each name: whole names would be half of the bytes. Every message is decoded under a size cap and a recursion limit and validated before it is handled.

mod capacity;
mod lease;
pub(crate) mod short;

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{ADDRESS_BYTES_MAX, Contact, Member, Node, PeerId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::capacity::Capacity;
pub use self::lease::Lease;
use crate::bag::{
    BagHeader, BagId, DeclineReason, HELD_INTERVALS_MAX, REQUEST_INTERVALS_MAX, Request, SMALL_OUTPUTS_BYTES_MAX,
    TaskResult, is_zero,
};
use crate::endless::{ENDLESS_MAX, EndlessBag, Grant, Stamp};
use crate::listing::{MachinesPage, WhichMachines};
use crate::queue::{SLOTS_MAX, SPEED_MOPS_MIN};
use crate::ranges::IntervalSet;
use crate::steward::feed::Delta;
use crate::steward::{Acting, Appointment, Term};
use crate::summary::{self, SPEED_SUM_MOPS_MAX};

/// Largest encoded message, in bytes. What a sender has to say is bounded so that it fits, or split.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Deepest nesting a message can have.
const RECURSION_MAX: usize = 32;
/// Most bags in one renewal.
pub(crate) const RENEWALS_MAX: usize = 512;
/// An Ed25519 signature.
const SIGNATURE_BYTES: usize = 64;
/// Most tasks in one [`Message::Share`]: those that have begun on one machine.
pub(crate) const SHARED_MAX: usize = 512;
/// Set in the seconds of a shared task that ends late since its machine is slow; machines of before this read them as very many.
pub(crate) const SHARED_LATE: u32 = 1 << 31;
/// Most results in one message.
pub const RESULTS_MAX: usize = 512;

/// The sender's contact without its id: that is the connection's, so that no peer can speak for another. Travels as two values
/// without names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// As in its contact.
    pub incarnation: u64,
    /// Where to answer.
    pub address: Box<str>,
}

impl Speaker {
    /// The contact of the sender, whose id the transport knows.
    pub fn contact(self, peer: PeerId) -> Contact {
        let Self { incarnation, address } = self;
        Contact { peer, incarnation, address, nonce: None }
    }

    fn is_valid(&self) -> bool {
        self.address.len() <= ADDRESS_BYTES_MAX
    }
}

impl From<&Contact> for Speaker {
    fn from(contact: &Contact) -> Self {
        Self { incarnation: contact.incarnation, address: contact.address.clone() }
    }
}

impl From<&Member> for Speaker {
    fn from(member: &Member) -> Self {
        Self::from(&**member)
    }
}

impl Serialize for Speaker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.incarnation, &self.address).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Speaker {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (incarnation, address) = Deserialize::deserialize(deserializer)?;
        Ok(Self { incarnation, address })
    }
}

/// Anything one peer sends to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// The tree's own traffic.
    #[serde(rename = "o")]
    Overlay(idlewood_overlay::Message),
    /// Tasks looking for machines.
    #[serde(rename = "q")]
    Request {
        /// Which tasks of which bag.
        #[serde(rename = "q")]
        request: Request,
        /// Whether the receiver's leaf or its router is meant.
        #[serde(rename = "n")]
        node: Node,
        /// From below (it may be refused and climb further) or from above (it may not).
        #[serde(rename = "u")]
        climbing: bool,
    },
    /// Executor to submitter: all tasks of this bag for which the executor accounts: waiting, running, and finished but
    /// unacknowledged. Places new ones, renews the lease, and gives up those that are no longer listed.
    #[serde(rename = "h")]
    Holding {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Who speaks, and where to answer.
        #[serde(rename = "e")]
        executor: Speaker,
        /// Rises with every such message of one incarnation.
        #[serde(rename = "v")]
        version: u64,
        /// Highest attempt among them.
        #[serde(rename = "t")]
        attempt: u32,
        /// Which tasks.
        #[serde(rename = "r")]
        ranges: IntervalSet,
        /// Those of them that have succeeded and whose results follow: the submitter does not drop them for copies elsewhere.
        #[serde(rename = "f", default, skip_serializing_if = "IntervalSet::is_empty")]
        finished: IntervalSet,
        /// What the executor can do, where tasks came with what they begin with: the submitter prefers machines by that.
        #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
        capacity: Option<Capacity>,
    },
    /// Executor to submitter: slots are kept free for these tasks, which are to begin at once with others elsewhere. Said again until the submitter
    /// has answered.
    #[serde(rename = "bk")]
    Booked {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Which tasks.
        #[serde(rename = "r")]
        tasks: IntervalSet,
    },
    /// Submitter to executor: these tasks begin now.
    #[serde(rename = "bg")]
    Begin {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Which tasks.
        #[serde(rename = "r")]
        tasks: IntervalSet,
    },
    /// Submitter to executor: the answer to `Holding`, also unasked.
    #[serde(rename = "l")]
    Lease(Lease),
    /// Executor to submitter: of each bag the executor still accounts for the tasks in its `Holding` of that version, less those
    /// that the submitter has acknowledged or dropped since. Renews the leases in less space than `Holding`.
    #[serde(rename = "n")]
    Renewal {
        /// Who speaks, and where to answer.
        #[serde(rename = "e")]
        executor: Speaker,
        /// Which bags, and the version of each.
        #[serde(rename = "l")]
        bags: Vec<(BagId, u64)>,
    },
    /// Submitter to executor: the answer to `Renewal`. About bags that are not listed there is a `Lease` instead.
    #[serde(rename = "d")]
    Renewed {
        /// Which bags, and the version of each.
        #[serde(rename = "l")]
        bags: Vec<(BagId, u64)>,
        /// How long the leases last.
        #[serde(rename = "d")]
        term: Duration,
    },
    /// A machine asks for work that waits elsewhere.
    #[serde(rename = "a")]
    Ask {
        /// Which machine.
        #[serde(rename = "a")]
        asker: Asker,
        /// Whether the receiver's router or its leaf, which has work to give, is meant.
        #[serde(rename = "n")]
        node: Node,
        /// From below, or from above.
        #[serde(rename = "u")]
        climbing: bool,
        /// Routers that it has climbed through.
        #[serde(rename = "c")]
        climbed: u16,
        /// What the receiver's router sends back; 0: nothing.
        #[serde(rename = "t", default, skip_serializing_if = "is_zero")]
        ticket: u32,
    },
    /// Router to the machine that handed over a request or an `Ask`: the message with this ticket has arrived.
    #[serde(rename = "t")]
    Ticket {
        /// The ticket of that message.
        #[serde(rename = "t")]
        ticket: u32,
    },
    /// Executor to submitter: these tasks, which have not begun, may go to that machine, which asked for work.
    #[serde(rename = "g")]
    Offer {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Who offers them, and where to answer.
        #[serde(rename = "e")]
        executor: Speaker,
        /// Which tasks.
        #[serde(rename = "r")]
        ranges: IntervalSet,
        /// Who can have them.
        #[serde(rename = "o", with = "short")]
        to: Contact,
    },
    /// Executor to submitter: these tasks have begun here, and a copy of each may run elsewhere. Takes the place of what the executor
    /// said so before of the bag; none: no copies are needed any more.
    #[serde(rename = "s")]
    Share {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Which tasks, and in how many seconds each is predicted to end here; 0: nobody knows. `SHARED_LATE` is added for a task that ends late, since this
        /// machine has learned that it is slow.
        #[serde(rename = "t")]
        tasks: BTreeMap<u64, u32>,
    },
    /// Executor to submitter: the executor does not queue these tasks.
    #[serde(rename = "x")]
    Decline {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Which tasks.
        #[serde(rename = "r")]
        ranges: IntervalSet,
        /// Why.
        #[serde(rename = "y")]
        reason: DeclineReason,
    },
    /// Executor to submitter: finished tasks, until acknowledged.
    #[serde(rename = "r")]
    Results {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Who ran them, and where their output can be fetched.
        #[serde(rename = "e")]
        executor: Speaker,
        /// What came out.
        #[serde(rename = "f")]
        results: Vec<TaskResult>,
        /// The executor's signature under all of them, which is its driver's to make and the submitter's driver's to check:
        /// 64 bytes.
        #[serde(rename = "z", default, skip_serializing_if = "Option::is_none", with = "serde_bytes")]
        signature: Option<Vec<u8>>,
    },
    /// Submitter to executor: these results are journalled, or not wanted; the executor forgets them. An acknowledgement may be late
    /// or come twice, after the task came back: a result of another attempt is not meant.
    #[serde(rename = "k")]
    ResultsAck {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Of which attempt.
        #[serde(rename = "t", default, skip_serializing_if = "is_zero")]
        attempt: u32,
        /// Which tasks.
        #[serde(rename = "i")]
        indices: IntervalSet,
    },
    /// Submitter to another machine: will it keep this bag, if it is appointed?
    #[serde(rename = "v")]
    KeepOffer {
        /// The bag.
        #[serde(rename = "b")]
        bag: BagHeader,
    },
    /// Its answer; also unasked, of a steward that cannot keep the bag any longer.
    #[serde(rename = "w")]
    KeepAnswer {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Whether it will.
        #[serde(rename = "y")]
        accepts: bool,
    },
    /// Keeper to executor: "I act", before a lease of it.
    #[serde(rename = "i")]
    Acts {
        /// By what right.
        #[serde(rename = "p")]
        acting: Box<Acting>,
    },
    /// Keeper that acts to another one: what has changed of the bags that both keep.
    #[serde(rename = "m")]
    Deltas {
        /// Of each bag what has changed.
        #[serde(rename = "l")]
        deltas: Vec<Delta>,
    },
    /// Its answer: of each bag the number of the last delta of the sender's term that is durable, and the highest term heard of;
    /// in place of the number `u64::MAX` where the submitter has other stewards now that have all.
    #[serde(rename = "y")]
    DeltasAck {
        /// Which bags; of one that is not kept the number is 0.
        #[serde(rename = "l")]
        bags: Vec<(BagId, u64, Term)>,
    },
    /// A submitter is back: what do its stewards know of these bags beyond these terms?
    #[serde(rename = "b")]
    WhatIsKept {
        /// Which bags, and the last term of each that the submitter knows.
        #[serde(rename = "l")]
        bags: Vec<(BagId, Term)>,
    },
    /// Steward to submitter: results that it took for the submitter, until acknowledged. Keeper that acts to steward: results that it is to
    /// keep, too; none: which has it?
    #[serde(rename = "e")]
    Kept {
        /// By what right it acted, which names the bag.
        #[serde(rename = "p")]
        acting: Box<Acting>,
        /// All tasks whose results it has, and hands over.
        #[serde(rename = "r")]
        tasks: IntervalSet,
        /// Some of the results, and who ran each. Each has its receipt, which the submitter's driver checks.
        #[serde(rename = "f")]
        results: Vec<(PeerId, TaskResult)>,
    },
    /// Submitter to steward: these results are durable with their outputs, or not wanted: the steward need not hand them over. Steward to the
    /// keeper that acts: these results are kept here, durably, with their outputs.
    #[serde(rename = "f")]
    KeptAck {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Which tasks.
        #[serde(rename = "i")]
        indices: IntervalSet,
        /// Whether there is no room here for more at the moment.
        #[serde(rename = "x", default, skip_serializing_if = "std::ops::Not::not")]
        full: bool,
    },
    /// Which machines are on a part of the line? To neighbours in the tree alone.
    #[serde(rename = "p")]
    WhichMachines {
        /// Which part.
        #[serde(rename = "q")]
        question: WhichMachines,
        /// Whether the receiver's leaf or its router is meant.
        #[serde(rename = "n")]
        node: Node,
        /// From below, or from above.
        #[serde(rename = "u")]
        climbing: bool,
    },
    /// Its answer.
    #[serde(rename = "z")]
    Machines {
        /// The question's number.
        #[serde(rename = "t")]
        number: u32,
        /// The machines.
        #[serde(rename = "p")]
        page: Box<MachinesPage>,
    },
    /// Submitter to the root, by way of the routers above it: an endless bag wants a share of the grid. Repeated like a lease. Also straight to the
    /// machine that the submitter takes for the root, and to a root that asks for it ([`Self::Granted`]).
    #[serde(rename = "en")]
    Announce {
        /// The bag.
        #[serde(rename = "b")]
        bag: Box<EndlessBag>,
        /// How often it was sent on, from 1; 0 in the answer to a question of the root's, which the root does not answer again.
        #[serde(rename = "c")]
        climbed: u16,
    },
    /// The root's answer.
    #[serde(rename = "eg")]
    Granted {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// What it has.
        #[serde(rename = "g")]
        grant: Grant,
        /// The root, where what it knows of the bag came by way of others: the submitter is to say it straight to the root, whose word counts.
        #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
        asks: Option<Speaker>,
    },
    /// A node to its parent's router: what the part of the tree below the node would do for each endless bag, if that were alone.
    #[serde(rename = "ea")]
    Absorbs {
        /// Which node of the sender.
        #[serde(rename = "n")]
        node: Node,
        /// By which table.
        #[serde(rename = "t")]
        stamp: Stamp,
        /// Mop/s of each bag of that table.
        #[serde(rename = "w")]
        work_mops: Vec<f64>,
    },
    /// A router to its child: the rates of the endless bags below it.
    #[serde(rename = "es")]
    Shares {
        /// Which node of the receiver.
        #[serde(rename = "n")]
        node: Node,
        /// By which table.
        #[serde(rename = "t")]
        stamp: Stamp,
        /// That table, where the receiver has not shown that it knows it.
        #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
        table: Option<Vec<EndlessBag>>,
        /// Mop/s of each bag of that table.
        #[serde(rename = "w")]
        work_mops: Vec<f64>,
    },
    /// Leaf to submitter: it takes so many more tasks of an endless bag. Replaces what it said before.
    #[serde(rename = "ew")]
    Want {
        /// Which bag.
        #[serde(rename = "b")]
        bag: BagId,
        /// Who wants them.
        #[serde(rename = "e")]
        executor: Speaker,
        /// How many.
        #[serde(rename = "n")]
        tasks: u32,
    },
}

/// A machine that asks for work: it is dry, or its stretch is clearly smaller than another's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asker {
    /// Which machine.
    #[serde(rename = "c", with = "short")]
    pub contact: Contact,
    /// Its speed, all slots together, in Mop/s.
    #[serde(rename = "s")]
    pub speed_mops: f64,
    /// How many slots these are.
    #[serde(rename = "k")]
    pub slots: u32,
    /// The smallest maximum stretch of what it holds, in s/Mop; 0 where it has nothing to do.
    #[serde(rename = "m")]
    pub stretch: f64,
}

impl Asker {
    /// The longest wait in a report, in seconds, or, if the asker has work, the largest stretch: it asks where that is most.
    pub(crate) fn most(&self, report: &[u8]) -> f64 {
        if self.stretch > 0.0 { summary::maximum_stretch(report) } else { summary::longest_wait_s(report) as f64 }
    }

    fn is_valid(&self) -> bool {
        self.contact.is_valid()
            && (SPEED_MOPS_MIN..=SPEED_SUM_MOPS_MAX).contains(&self.speed_mops)
            && (1..=SLOTS_MAX).contains(&self.slots)
            && (0.0..f64::INFINITY).contains(&self.stretch)
    }
}

/// Why received bytes are not a message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Refused before decoding.
    #[error("message of {0} bytes is over the limit of {MESSAGE_BYTES_MAX}")]
    TooLarge(usize),
    /// Not CBOR, or not of this form.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// Decoded, but its content cannot be.
    #[error("message with impossible content: {0}")]
    Invalid(&'static str),
}

/// How many of these results, from the first on, one message takes.
pub fn results_within<'a>(results: impl IntoIterator<Item = &'a TaskResult>) -> usize {
    let fits = |bytes: &mut usize, result: &TaskResult| {
        *bytes += result.content_bytes();
        (*bytes <= SMALL_OUTPUTS_BYTES_MAX).then_some(())
    };
    results.into_iter().scan(0, fits).take(RESULTS_MAX).count()
}

/// Whether these can be the rates of a table's bags, in Mop/s.
fn are_rates(work_mops: &[f64]) -> bool {
    work_mops.len() <= ENDLESS_MAX && work_mops.iter().all(|rate| (0.0..=SPEED_SUM_MOPS_MAX).contains(rate))
}

impl Message {
    /// The acknowledgements of these results, of each attempt one.
    pub(crate) fn acks<'a>(
        bag: BagId,
        results: impl IntoIterator<Item = &'a TaskResult>,
    ) -> impl Iterator<Item = Self> {
        let mut by_attempt: BTreeMap<u32, IntervalSet> = BTreeMap::new();
        for result in results {
            by_attempt.entry(result.attempt).or_default().insert_index(result.index);
        }
        by_attempt.into_iter().map(move |(attempt, indices)| Self::ResultsAck { bag, attempt, indices })
    }

    /// The acknowledgement of one result.
    pub(crate) fn ack(bag: BagId, result: &TaskResult) -> Self {
        Self::ResultsAck { bag, attempt: result.attempt, indices: IntervalSet::from(result.index..result.index + 1) }
    }

    /// A `Lease` that answers no `Holding`: where the submitter is, how long the lease lasts, and what the executor is to forget.
    pub(crate) fn lease(bag: BagId, submitter: Option<Speaker>, term: Duration, drop: IntervalSet) -> Self {
        Self::Lease(Lease { submitter, term, drop, ..Lease::of(bag) })
    }

    /// The bytes that travel.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256);
        ciborium::into_writer(self, &mut bytes)
            .expect("a Vec takes every write, and messages hold no unserialisable value");
        bytes
    }

    /// Decodes and validates received bytes.
    ///
    /// # Errors
    /// [`DecodeError`]; nothing was handled.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(DecodeError::TooLarge(bytes.len()));
        }
        let mut rest = bytes;
        let message: Self = ciborium::de::from_reader_with_recursion_limit(&mut rest, RECURSION_MAX)
            .map_err(|error| DecodeError::Malformed(error.to_string()))?;
        if !rest.is_empty() {
            return Err(DecodeError::Malformed(format!("{} bytes behind its end", rest.len())));
        }
        message.validate()?;
        Ok(message)
    }

    fn validate(&self) -> Result<(), DecodeError> {
        let (valid, what) = match self {
            // The overlay validates its own.
            Self::Overlay(_) => (true, ""),
            Self::ResultsAck { indices, .. } => (indices.intervals() <= HELD_INTERVALS_MAX, "acknowledgement"),
            Self::Lease(lease) => (lease.is_valid(), "lease"),
            Self::Request { request, .. } => (request.is_valid(), "request"),
            Self::Holding { executor, ranges, finished, capacity, .. } => {
                let most = ranges.intervals().max(finished.intervals());
                let is_sane = capacity.is_none_or(Capacity::is_valid);
                (executor.is_valid() && most <= HELD_INTERVALS_MAX && is_sane, "holding")
            }
            Self::Booked { tasks, .. } | Self::Begin { tasks, .. } => {
                (tasks.intervals() <= HELD_INTERVALS_MAX, "booking")
            }
            Self::Renewal { executor, bags } => (executor.is_valid() && bags.len() <= RENEWALS_MAX, "renewal"),
            Self::Renewed { bags, .. } => (bags.len() <= RENEWALS_MAX, "renewed"),
            Self::Ask { asker, .. } => (asker.is_valid(), "ask"),
            Self::Ticket { .. } => (true, ""),
            Self::Offer { executor, ranges, to, .. } => {
                (executor.is_valid() && to.is_valid() && ranges.intervals() <= REQUEST_INTERVALS_MAX, "offer")
            }
            Self::Share { tasks, .. } => (tasks.len() <= SHARED_MAX, "share"),
            Self::Decline { ranges, .. } => (ranges.intervals() <= REQUEST_INTERVALS_MAX, "decline"),
            Self::KeepOffer { bag } => (bag.is_valid(), "offer to keep"),
            Self::KeepAnswer { .. } => (true, ""),
            Self::Acts { acting } => (acting.is_valid(), "keepers"),
            Self::Deltas { deltas } => (deltas.len() <= RENEWALS_MAX && deltas.iter().all(Delta::is_valid), "deltas"),
            Self::DeltasAck { bags } => (bags.len() <= RENEWALS_MAX, "acknowledgement of deltas"),
            Self::WhatIsKept { bags } => (bags.len() <= RENEWALS_MAX, "question"),
            Self::Kept { acting, tasks, results } => {
                let are_few = results.len() <= RESULTS_MAX && tasks.intervals() <= HELD_INTERVALS_MAX;
                (acting.is_valid() && are_few, "kept results")
            }
            Self::KeptAck { indices, .. } => (indices.intervals() <= HELD_INTERVALS_MAX, "acknowledgement"),
            Self::WhichMachines { question, .. } => (question.is_valid(), "question for machines"),
            Self::Machines { page, .. } => (page.is_valid(), "machines"),
            Self::Announce { bag, .. } => (bag.is_valid(), "announcement"),
            Self::Granted { grant, asks, .. } => {
                (grant.is_valid() && asks.as_ref().is_none_or(Speaker::is_valid), "grant")
            }
            Self::Absorbs { work_mops, .. } => (are_rates(work_mops), "absorption"),
            Self::Shares { table, work_mops, .. } => {
                let is_sane =
                    |table: &Vec<EndlessBag>| table.len() == work_mops.len() && table.iter().all(EndlessBag::is_valid);
                (are_rates(work_mops) && table.as_ref().is_none_or(is_sane), "shares")
            }
            Self::Want { executor, .. } => (executor.is_valid(), "want"),
            Self::Results { executor, results, signature, .. } => {
                let is_bare = results.iter().all(|result| result.receipt.is_none());
                let is_one = signature.as_ref().is_none_or(|signature| signature.len() == SIGNATURE_BYTES);
                (executor.is_valid() && results.len() <= RESULTS_MAX && is_bare && is_one, "results")
            }
        };
        if valid { Ok(()) } else { Err(DecodeError::Invalid(what)) }
    }

    /// A short name of the kind, for counters and traces.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Overlay(_) => "overlay",
            Self::Request { .. } => "request",
            Self::Holding { .. } => "holding",
            Self::Booked { .. } => "booked",
            Self::Begin { .. } => "begin",
            Self::Lease(_) => "lease",
            Self::Renewal { .. } => "renewal",
            Self::Renewed { .. } => "renewed",
            Self::Ask { .. } => "ask",
            Self::Ticket { .. } => "ticket",
            Self::Offer { .. } => "offer",
            Self::Share { .. } => "share",
            Self::Decline { .. } => "decline",
            Self::Results { .. } => "results",
            Self::ResultsAck { .. } => "results_ack",
            Self::KeepOffer { .. } => "keep_offer",
            Self::KeepAnswer { .. } => "keep_answer",
            Self::Acts { .. } => "acts",
            Self::Deltas { .. } => "deltas",
            Self::DeltasAck { .. } => "deltas_ack",
            Self::WhatIsKept { .. } => "what_is_kept",
            Self::Kept { .. } => "kept",
            Self::KeptAck { .. } => "kept_ack",
            Self::WhichMachines { .. } => "which_machines",
            Self::Machines { .. } => "machines",
            Self::Announce { .. } => "announce",
            Self::Granted { .. } => "granted",
            Self::Absorbs { .. } => "absorbs",
            Self::Shares { .. } => "shares",
            Self::Want { .. } => "want",
        }
    }

    /// The appointments in it. A driver drops a received message with one that the bag's submitter did not sign
    /// ([`Appointment::statement`]).
    pub fn appointments(&self) -> impl Iterator<Item = &Appointment> {
        let deltas = if let Self::Deltas { deltas } = self { deltas.as_slice() } else { &[] };
        let one = match self {
            Self::Acts { acting } | Self::Kept { acting, .. } => Some(&**acting),
            Self::Request { request, .. } => request.acting.as_deref(),
            _ => None,
        };
        one.into_iter()
            .chain(deltas.iter().filter_map(|delta| delta.acting.as_deref()))
            .map(|acting| &acting.appointment)
    }
}
