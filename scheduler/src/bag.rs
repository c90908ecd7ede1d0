//! Bags of tasks, as the scheduler knows them: numbers only. What a task runs and reads stays with the agent, in the bag's
//! manifest.

mod decline;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Side, WallTime};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::decline::DeclineReason;
use crate::conditions::is_priority;
use crate::enclosed::Enclosed;
use crate::link::{LINK_KB_S, Writers};
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::IntervalSet;
use crate::steward::Acting;

/// Most tasks a bag may have; one of so many is endless ([`crate::Endless`]).
pub const BAG_TASKS_MAX: u64 = 1 << 40;
/// Most intervals of one request; more scattered tasks travel in several requests.
pub const REQUEST_INTERVALS_MAX: usize = 256;
/// Most checkpoints that one request names.
pub(crate) const CHECKPOINTS_MAX: usize = 256;
/// Most tasks of one request of a bag whose tasks are lines, and the longest line: so many fit in a message.
pub(crate) const LINES_MAX: usize = 32;
/// The longest line that is a task of an endless bag, in bytes.
pub const LINE_BYTES_MAX: usize = 4096;
/// Largest accepted work, in Mop: ten thousand machines for three hundred years.
pub const BAG_WORK_MOPS_MAX: f64 = 1e18;
/// Most intervals of one bag on one machine: so many that what is said of them fits in a message, also where the answer
/// has three times as many.
pub(crate) const HELD_INTERVALS_MAX: usize = 4096;
/// Most checkpoints with which unfinished tasks of one bag came to one machine. Our choice: with as many intervals they take half of
/// the largest record.
pub(crate) const HELD_CHECKPOINTS_MAX: usize = 4096;
/// Largest accepted age of a request. Older ones are clamped.
pub const AGE_MAX: Duration = Duration::from_secs(90 * 24 * 3600);
/// How far clocks of machines that are kept right are apart. Our choice.
pub(crate) const CLOCKS_APART_MAX: Duration = Duration::from_secs(600);
/// Largest output that travels within its result and is kept in the record that has the result. Our choice: what most short
/// tasks print; a file of its own costs far more than so many bytes.
pub const SMALL_OUTPUT_BYTES_MAX: usize = 4096;
/// Largest output that a machine may say there is, so that the sum of many is a number. Our choice, above what any is.
pub(crate) const OUTPUT_BYTES_MAX: u64 = 1 << 40;
/// Most bytes of small outputs in one message.
pub const SMALL_OUTPUTS_BYTES_MAX: usize = 128 * 1024;
/// Deepest path down the tree; position keys have 256 bits, and so has a trie over them levels.
const PATH_LENGTH_MAX: usize = 256;

/// A bag's identity: BLAKE3 of what its submitter signed of it, which everybody may read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BagId(#[serde(with = "idlewood_overlay::bytes32")] pub [u8; 32]);

impl fmt::Display for BagId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(&self.0[..6]))
    }
}

impl fmt::Debug for BagId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bag:{self}")
    }
}

/// What a submitter tells those alone who hold tasks of a bag: who proves that it has it may read the bag's blobs. A bag's id
/// is no secret, since requests pass through others' routers.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BagKey(#[serde(with = "idlewood_overlay::bytes32")] [u8; 32]);

impl BagKey {
    /// The key of a bag, by a secret that its submitter's machine alone has and never changes.
    pub(crate) fn of(secret: &[u8; 32], bag: BagId) -> Self {
        Self(*blake3::keyed_hash(secret, &bag.0).as_bytes())
    }

    /// What shows `reader`'s peer `server` that `reader` has this key. It is good between the two alone, so that who is shown it
    /// cannot show it to others.
    pub fn proof(&self, reader: PeerId, server: PeerId) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        *hasher.update(&reader.0).update(&server.0).finalize().as_bytes()
    }

    /// Whether this is that proof. Takes as long whatever is wrong with it.
    pub fn is_proven(&self, proof: [u8; 32], reader: PeerId, server: PeerId) -> bool {
        blake3::Hash::from_bytes(self.proof(reader, server)) == blake3::Hash::from_bytes(proof)
    }
}

impl From<[u8; 32]> for BagKey {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for BagKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a bag's key")
    }
}

/// Content address of a blob: BLAKE3 of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlobId(#[serde(with = "idlewood_overlay::bytes32")] pub [u8; 32]);

impl fmt::Debug for BlobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "blob:{}", hex::encode(&self.0[..4]))
    }
}

/// The bytes of a small output. Clones share them.
#[derive(Clone, PartialEq, Eq)]
pub struct SmallOutput(Arc<[u8]>);

impl SmallOutput {
    /// `None` where they are more than [`SMALL_OUTPUT_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= SMALL_OUTPUT_BYTES_MAX).then(|| Self(bytes.into()))
    }

    /// All of them.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SmallOutput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.0.len())
    }
}

impl Serialize for SmallOutput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for SmallOutput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?;
        let too_long = || serde::de::Error::custom("a small output is too long");
        Self::new(&bytes).ok_or_else(too_long)
    }
}

/// The state from which a task goes on, as its last machine saved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// All of it, as one blob.
    #[serde(rename = "o")]
    pub blob: BlobId,
    /// Size of that blob.
    #[serde(rename = "b")]
    pub bytes: u64,
}

/// How old a bag is whose manifest was made at `made`, by a wall clock that shows `now`: what a driver says of it
/// ([`crate::Event::Authorised`]). The longest duration where it is ahead of that clock by more than clocks may be apart: such a
/// date tells nothing.
pub fn manifest_age(made: WallTime, now: WallTime) -> Duration {
    if made.since(now) > CLOCKS_APART_MAX { Duration::MAX } else { now.since(made) }
}

/// One task of a bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// Its bag.
    pub bag: BagId,
    /// Its place in the bag, from 0.
    pub index: u64,
}

/// What every machine that holds a part of a bag knows of the whole. Its names travel as letters; what was stored with
/// whole names can still be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BagHeader {
    /// Which bag.
    #[serde(rename = "i", alias = "id")]
    pub id: BagId,
    /// Who submitted it: results go there.
    #[serde(rename = "s", alias = "submitter")]
    pub submitter: Contact,
    /// n: number of tasks of the whole bag.
    #[serde(rename = "n", alias = "tasks")]
    pub tasks: u64,
    /// a: work of one task, in Mop.
    #[serde(rename = "a", alias = "task_mops")]
    pub task_mops: f64,
    /// w, or the effective size w' = a·max(n, N) of `docs/design/scheduler.md`: what deadlines are computed with, in Mop.
    #[serde(rename = "w", alias = "application_size_mops")]
    pub application_size_mops: f64,
    /// Whether the user declared a; if not, finished tasks correct it.
    #[serde(rename = "d", alias = "declared")]
    pub declared: bool,
}

impl BagHeader {
    /// Whether these numbers can be computed with.
    pub fn is_valid(&self) -> bool {
        self.submitter.is_valid() && (1..=BAG_TASKS_MAX).contains(&self.tasks) && self.sizes(0).is_valid()
    }

    /// Whether the bag has no last task.
    pub fn is_endless(&self) -> bool {
        self.tasks == BAG_TASKS_MAX
    }

    /// a and w.
    pub(crate) fn sizes(&self, priority: i32) -> Sizes {
        let Self { task_mops, application_size_mops, declared, .. } = *self;
        Sizes { task_mops, application_size_mops, declared, priority }
    }
}

/// a and w of a bag as its submitter says them itself, and its priority among the submitter's bags.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sizes {
    /// a in Mop.
    #[serde(rename = "a")]
    pub task_mops: f64,
    /// w in Mop.
    #[serde(rename = "w")]
    pub application_size_mops: f64,
    /// Whether the submitter declared a, instead of measuring it.
    #[serde(rename = "d")]
    pub declared: bool,
    /// Bags of a higher priority come first among those of one submitter; 0 where nothing is said.
    #[serde(rename = "p", default, skip_serializing_if = "is_ordinary")]
    pub priority: i32,
}

/// Whether this priority is that of a bag of which nothing is said.
pub(crate) fn is_ordinary(priority: &i32) -> bool {
    *priority == 0
}

impl Sizes {
    /// Whether these numbers can be computed with.
    pub fn is_valid(&self) -> bool {
        let sane = |mops: f64| mops.is_finite() && (WORK_MOPS_MIN..=BAG_WORK_MOPS_MAX).contains(&mops);
        sane(self.task_mops) && sane(self.application_size_mops) && is_priority(self.priority)
    }
}

/// How one task ended. Its names travel as letters, and what is usual not at all; what was stored with whole names can still be
/// read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Which task of the bag.
    #[serde(rename = "i", alias = "index")]
    pub index: u64,
    /// 0 for the first try.
    #[serde(rename = "t", alias = "attempt", default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Whether its exit code is among those the bag declares as success.
    #[serde(rename = "s", alias = "success", default = "yes", skip_serializing_if = "is_yes")]
    pub success: bool,
    /// Whether its worker died under it, which may be the machine's fault. False in version 1 of what is stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub crashed: bool,
    /// Whether the task is handed back before its end: the output is its checkpoint, and no try failed.
    #[serde(rename = "u", default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
    /// Hash of everything it produced: the name of a blob where that is not `content`.
    #[serde(rename = "o", alias = "output")]
    pub output: BlobId,
    /// Size of that.
    #[serde(rename = "b", alias = "output_bytes")]
    pub output_bytes: u64,
    /// Everything it produced, where that is little. The driver that hears of a result checks that it is what the hash says.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub content: Option<SmallOutput>,
    /// Work it turned out to be, in Mop.
    #[serde(rename = "w", alias = "work_mops")]
    pub work_mops: f64,
    /// Its exit code; `None` where it did not end by itself, and in what was stored before version 4.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// Of a failure: what it printed and left, hashed without times, so that failures of the same kind can be told.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<u64>,
    /// What its executor signed of it, as the submitter's driver has checked it; never on the way between machines.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none", with = "serde_bytes")]
    pub receipt: Option<Vec<u8>>,
}

/// For fields that are left out of what travels where they are 0.
pub(crate) fn is_zero<N: PartialEq + Default>(number: &N) -> bool {
    *number == N::default()
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

/// How a task that ran ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Whether its exit code is among those the bag declares as success.
    pub success: bool,
    /// Whether its worker died under it, which may be this machine's fault.
    pub crashed: bool,
    /// Hash of everything it produced: of a blob that is durable on this machine already, where that is not `content`.
    pub output: BlobId,
    /// Size of that.
    pub output_bytes: u64,
    /// Everything it produced, where that is little: becomes durable with the record of the result.
    pub content: Option<SmallOutput>,
    /// Work it turned out to be, in Mop.
    pub work_mops: f64,
    /// Its exit code; `None` where it did not end by itself.
    pub exit_code: Option<u8>,
    /// [`TaskResult::fingerprint`].
    pub fingerprint: Option<u64>,
    /// How many times the iterations of others it was told to do, where it fills its time ([`crate::rounds::Plan`]); else 1.
    pub times: f64,
}

impl TaskResult {
    /// Of a task that ran, not signed yet.
    pub fn of(index: u64, attempt: u32, finished: Finished) -> Self {
        let Finished { success, crashed, output, output_bytes, content, work_mops, exit_code, fingerprint, .. } =
            finished;
        let (unfinished, receipt) = (false, None);
        Self {
            index,
            attempt,
            success,
            crashed,
            unfinished,
            output,
            output_bytes,
            content,
            work_mops,
            exit_code,
            fingerprint,
            receipt,
        }
    }

    /// Bytes of its output that it carries.
    pub fn content_bytes(&self) -> usize {
        self.content.as_ref().map_or(0, |content| content.bytes().len())
    }

    /// Of a task that is handed back before its end with what it had.
    pub(crate) fn unfinished(index: u64, attempt: u32, checkpoint: Checkpoint) -> Self {
        let Checkpoint { blob: output, bytes: output_bytes } = checkpoint;
        let (success, crashed, content, work_mops, exit_code) = (false, false, None, 0.0, None);
        let (fingerprint, times) = (None, 1.0);
        let finished =
            Finished { success, crashed, output, output_bytes, content, work_mops, exit_code, fingerprint, times };
        Self { unfinished: true, ..Self::of(index, attempt, finished) }
    }

    /// Whether what a remote peer sent can be used for a bag of `tasks` tasks.
    pub fn is_valid(&self, tasks: u64) -> bool {
        self.index < tasks
            && !(self.success && self.unfinished)
            && self
                .content
                .as_ref()
                .is_none_or(|content| !self.unfinished && content.bytes().len() as u64 == self.output_bytes)
            && self.output_bytes <= OUTPUT_BYTES_MAX
            && self.work_mops.is_finite()
            && (0.0..=BAG_WORK_MOPS_MAX).contains(&self.work_mops)
    }
}

/// The way a request took down from where it was accepted: one step per split.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Path(Box<str>);

impl Path {
    /// This path and one step more.
    pub fn down(&self, side: Side) -> Self {
        let step = match side {
            Side::Left => 'l',
            Side::Right => 'r',
        };
        let mut steps = String::with_capacity(self.0.len() + 1);
        steps.push_str(&self.0);
        steps.push(step);
        Self(steps.into())
    }

    /// Whether the other is this path or goes on from where it ends.
    pub(crate) fn is_above(&self, other: &Self) -> bool {
        other.0.starts_with(&*self.0)
    }

    /// Number of splits so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no split has happened yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A part of a bag on its way to the machines that will run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The whole bag's numbers.
    #[serde(rename = "b")]
    pub bag: BagHeader,
    /// Numbers the requests of one bag, so that each is executed once; re-issued ranges get a new one.
    #[serde(rename = "n")]
    pub number: u64,
    /// 0 for the first issue of these ranges.
    #[serde(rename = "t")]
    pub attempt: u32,
    /// Which tasks.
    #[serde(rename = "r")]
    pub ranges: IntervalSet,
    /// g = now − r: time since the bag was submitted, when its submitter sent it. A router passes a request on within the
    /// very call that brings it, so that nothing is added there; what messages take on their way is not in it, and r
    /// comes out later than it was by the latency of all hops, about one round trip of the tree.
    #[serde(rename = "g")]
    pub age: Duration,
    /// Splits so far.
    #[serde(rename = "p")]
    pub path: Path,
    /// Routers that passed it upward so far: bounds the way while the tree heals.
    #[serde(rename = "c")]
    pub climbed: u16,
    /// How many machines may get a part of it, at most as many as the bag has tasks. The more, and the slower the submitter's link,
    /// the longer each may take to say so, at a moment of its own, so that they do not take that link all at once
    /// (module `link`). The submitter waits so much longer for them.
    #[serde(rename = "m")]
    pub machines: u32,
    /// What the submitter's link takes, in kB/s; left out where it is [`LINK_KB_S`].
    #[serde(rename = "l", default = "link_kb_s", skip_serializing_if = "is_usual_link")]
    pub link_kb_s: u32,
    /// Whether this part has the first task of the request. Its executor answers at once, so that the submitter knows that the
    /// request was not lost.
    #[serde(rename = "f", default, skip_serializing_if = "std::ops::Not::not")]
    pub leads: bool,
    /// The ticket that the receiving router sends back to the machine that handed this over; 0: none. Each hop has its own.
    #[serde(rename = "h", default, skip_serializing_if = "is_zero")]
    pub ticket: u32,
    /// Checkpoints of the tasks that have one, by index. A slice, since few of many messages have any.
    #[serde(rename = "k", default, skip_serializing_if = "<[_]>::is_empty")]
    pub checkpoints: Box<[(u64, Checkpoint)]>,
    /// Whether these are copies of tasks that have begun elsewhere, and within how many seconds one has to end to be of use; 0: whenever.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<u32>,
    /// Of an application in rounds, whose submitter wants to know what its machines can do ([`crate::message::Capacity`]): within how many seconds
    /// each of these tasks has to begin. A machine that is preferred declines those that would begin later because of its owner or other bags.
    /// `u32::MAX`: whenever. `u32::MAX - 1`: a slot is kept free for each until the submitter says that they begin ([`crate::Message::Begin`]), also through the tree.
    #[serde(rename = "y", default, skip_serializing_if = "Option::is_none")]
    pub begins_within: Option<u32>,
    /// Of an endless bag whose tasks are lines: the line of each of these tasks. The submitter's driver adds them, and the executor's takes
    /// them out; the peer does not look at them.
    #[serde(rename = "x", default, skip_serializing_if = "<[_]>::is_empty")]
    pub lines: Box<[(u64, Box<str>)]>,
    /// What the submitter signed of the bag, on the way through the tree: machines judge by it whether the bag may queue there.
    #[serde(rename = "e", default, skip_serializing_if = "Enclosed::is_empty")]
    pub envelope: Enclosed,
    /// By what right a steward issues these tasks, to which their executors answer; left out where the submitter does.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub acting: Option<Box<Acting>>,
}

impl Request {
    /// The keeper that issued it, to which executors answer.
    pub(crate) fn keeper(&self) -> &Contact {
        self.acting.as_ref().and_then(|acting| acting.keeper()).unwrap_or(&self.bag.submitter)
    }

    /// The machines that may get a part of it, as those that write to its submitter.
    pub(crate) fn writers(&self) -> Writers {
        Writers { machines: self.machines, link_kb_s: self.link_kb_s }
    }

    /// The part of this request that goes down one side.
    pub(crate) fn part(&self, ranges: IntervalSet, side: Side) -> Self {
        let checkpoints = self.checkpoints.iter().filter(|(index, _)| ranges.contains(*index)).copied().collect();
        let leads = self.leads && ranges.first() == self.ranges.first();
        Self { ranges, checkpoints, leads, ticket: 0, path: self.path.down(side), ..self.clone() }
    }

    /// This request without these tasks; `None` where none is left.
    pub(crate) fn without(mut self, ranges: &IntervalSet) -> Option<Self> {
        self.ranges.subtract(ranges);
        self.checkpoints = self.checkpoints.iter().filter(|(index, _)| self.ranges.contains(*index)).copied().collect();
        (!self.ranges.is_empty()).then_some(self)
    }

    /// Whether what a remote peer sent can be queued at all.
    pub fn is_valid(&self) -> bool {
        self.bag.is_valid()
            && !self.ranges.is_empty()
            && self.ranges.intervals() <= REQUEST_INTERVALS_MAX
            && self.ranges.ranges().last().is_some_and(|range| range.end <= self.bag.tasks)
            && self.path.len() <= PATH_LENGTH_MAX
            && self.checkpoints.len() <= CHECKPOINTS_MAX
            && self.checkpoints.iter().all(|(index, _)| self.ranges.contains(*index))
            && u64::from(self.machines) <= self.bag.tasks
            && self.lines.len() <= LINES_MAX
            && self.envelope.is_valid()
            && self.lines.iter().all(|(index, line)| line.len() <= LINE_BYTES_MAX && self.ranges.contains(*index))
            && self.acting.as_ref().is_none_or(|acting| acting.is_valid() && acting.appointment.bag == self.bag.id)
    }
}

fn link_kb_s() -> u32 {
    LINK_KB_S
}

fn is_usual_link(link_kb_s: &u32) -> bool {
    *link_kb_s == LINK_KB_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_that_is_far_ahead_tells_nothing() {
        let now = WallTime(1_700_000_000_000_000);
        for (ahead_s, age) in
            [(0, Duration::ZERO), (600, Duration::ZERO), (601, Duration::MAX), (1 << 30, Duration::MAX)]
        {
            assert_eq!(manifest_age(now + Duration::from_secs(ahead_s), now), age);
        }
        assert_eq!(manifest_age(now - Duration::from_secs(77), now), Duration::from_secs(77));
        assert_eq!(manifest_age(WallTime(i64::MAX), WallTime(i64::MIN)), Duration::MAX);
        assert_eq!(manifest_age(WallTime(0), now).as_micros(), now.0 as u128);
    }
}
