//! Listings: which machines are on a part of the line, and what each says of itself (ours; docs/adr/0047).
//!
//! A listing is for people who want to see their grid, however large that is. A machine asks about a *part* of the line that holds
//! [`MACHINES_A_PAGE`] machines in the mean, so that a *page* costs the same in any grid: the question goes up to the first router whose
//! subtree contains the part, and from there to all leaves in it; pages come back on the same way, and each router
//! adds up what it gets. No router holds more than a page. The asker goes on with the next part.
//!
//! What does not answer in time is named (a leaf), or counted (all below a router). Here is what routers keep of questions; who is
//! asked is decided in `peer::listing`.
//!
//! Left out: proof of what machines say. A router can invent machines below it, or hide some: a listing decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Node, PeerId, Time};
use serde::{Deserialize, Serialize};

use crate::bag::is_zero;
use crate::queue::{SLOTS_MAX, SPEED_MOPS_MIN};
use crate::summary::SPEED_SUM_MOPS_MAX;

/// Machines in the part of one question, in the mean. Our choice: 10,000 machines in 79 pages of some 15 kB.
pub(crate) const MACHINES_A_PAGE: u64 = 128;
/// Most machines in one page; the next page begins behind them. By chance alone no part has so many.
pub const PAGE_MACHINES_MAX: usize = 512;
/// Most machines that a page names as silent.
pub const PAGE_SILENT_MAX: usize = 64;
/// Longest name of a machine, in bytes; that of a host.
pub const MACHINE_NAME_BYTES_MAX: usize = 64;
/// Longest version, and longest code of a reason, in bytes.
const WORD_BYTES_MAX: usize = 32;

/// Longest that a page may take, and that any router waits for parts of one.
pub(crate) const PAGE_WAIT: Duration = Duration::from_secs(30);
/// How long a leaf may take to answer its parent. Our choice: several round trips, and a machine that is busy.
const LEAF_WAIT: Duration = Duration::from_secs(2);
/// A node may take so much longer than those that it asks: a round trip. Our choice: twice the longest between homes.
pub(crate) const HOP_WAIT: Duration = Duration::from_millis(500);
/// Questions that a machine passes on from one below it, or asks itself: so many at once, then one each interval.
const FROM_BELOW: Limit = Limit { burst: 16, interval: Duration::from_millis(250) };
/// The same of its parent, which passes on what comes from both its children and from above.
const FROM_ABOVE: Limit = Limit { burst: 64, interval: Duration::from_millis(30) };
/// An answer may speak of the beginning of a part only, but not of less than this share of it: nobody makes a grid endless.
const SHARE_LEAST: u64 = 64;
/// Levels of a tree that are believed: twice those of a million machines.
const LEVELS_MAX: u32 = 64;
/// Most questions that wait for answers.
const OPEN_MAX: usize = 64;
/// Most machines whose questions are counted; a router has two children and a parent.
const LINKS_MAX: usize = 8;

/// What a machine says of itself beside what its peer knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// What its owner calls it, or its host's name.
    pub name: Box<str>,
    /// The version of its agent.
    pub version: Box<str>,
    /// Why tasks do not run on it as they could: the code of a reason of the policy.
    pub reason: Option<Box<str>>,
}

/// What a machine does for the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activity {
    /// It takes tasks, and has none.
    #[serde(rename = "i")]
    Idle,
    /// Tasks run.
    #[serde(rename = "w")]
    Working,
    /// It begins no tasks.
    #[serde(rename = "s")]
    Suspended,
}

/// A machine as it describes itself to members of its grid. Nothing in it is about whose tasks it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineReport {
    /// Which machine; its parent in the tree vouches for that.
    #[serde(rename = "p")]
    pub peer: PeerId,
    /// Where it is on the line: the first 64 bits of its position key.
    #[serde(rename = "a")]
    pub at: u64,
    /// What it is called; empty where it has no name.
    #[serde(rename = "n", default, skip_serializing_if = "str::is_empty")]
    pub name: Box<str>,
    /// The version of its agent.
    #[serde(rename = "v", default, skip_serializing_if = "str::is_empty")]
    pub version: Box<str>,
    /// What it does.
    #[serde(rename = "s")]
    pub activity: Activity,
    /// Why tasks do not run on it as they could.
    #[serde(rename = "y", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    /// Tasks that it runs at once.
    #[serde(rename = "k")]
    pub slots: u32,
    /// Speed of one slot, in Mop/s.
    #[serde(rename = "m")]
    pub speed_mops: f64,
    /// Tasks that have begun on it.
    #[serde(rename = "r", default, skip_serializing_if = "is_zero")]
    pub running: u32,
    /// Tasks that wait on it.
    #[serde(rename = "w", default)]
    pub waiting: u64,
}

/// A machine that did not answer its parent in the tree in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentMachine {
    /// Which machine.
    #[serde(rename = "p")]
    pub peer: PeerId,
    /// Where it is on the line.
    #[serde(rename = "a")]
    pub at: u64,
    /// When its parent heard of it last, in seconds ago.
    #[serde(rename = "h")]
    pub heard_s: u32,
}

/// What is known of a part of the line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachinesPage {
    /// The last place that it is about; `u64::MAX` is the end of the line.
    #[serde(rename = "l")]
    pub last: u64,
    /// Machines that answered, in the order of the line.
    #[serde(rename = "m", default)]
    pub machines: Vec<MachineReport>,
    /// Machines that did not.
    #[serde(rename = "s", default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentMachine>,
    /// About how many other machines may be there, since a router did not answer.
    #[serde(rename = "u", default, skip_serializing_if = "is_none")]
    pub unreached: u64,
    /// Machines were not asked, since too many questions were on their way: ask again later.
    #[serde(rename = "b", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_busy: bool,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

/// A question for the machines on a part of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhichMachines {
    /// Names the question on all its way: no router passes it on twice.
    #[serde(rename = "i")]
    pub id: u64,
    /// What the answer names.
    #[serde(rename = "t")]
    pub number: u32,
    /// The first place of the part.
    #[serde(rename = "f")]
    pub first: u64,
    /// The last place of the part.
    #[serde(rename = "l")]
    pub last: u64,
    /// The answer is of use for so long, in ms.
    #[serde(rename = "w")]
    pub wait_ms: u32,
}

impl WhichMachines {
    pub(crate) fn is_valid(&self) -> bool {
        self.first <= self.last
    }

    pub(crate) fn contains(&self, at: u64) -> bool {
        (self.first..=self.last).contains(&at)
    }
}

impl About {
    /// The same within the bounds of what travels, without control characters.
    pub(crate) fn bounded(&self) -> Self {
        let word = |text: &str, most: usize| -> Box<str> {
            let clean: String = text.chars().filter(|letter| !letter.is_control()).collect();
            let end = (0..=most.min(clean.len())).rev().find(|&end| clean.is_char_boundary(end)).unwrap_or(0);
            clean[..end].into()
        };
        Self {
            name: word(&self.name, MACHINE_NAME_BYTES_MAX),
            version: word(&self.version, WORD_BYTES_MAX),
            reason: self.reason.as_deref().map(|reason| word(reason, WORD_BYTES_MAX)),
        }
    }
}

impl MachineReport {
    fn is_valid(&self) -> bool {
        self.name.len() <= MACHINE_NAME_BYTES_MAX
            && self.version.len() <= WORD_BYTES_MAX
            && self.reason.as_ref().is_none_or(|reason| reason.len() <= WORD_BYTES_MAX)
            && ![&self.name, &self.version].into_iter().chain(&self.reason).any(|word| word.contains(char::is_control))
            && (1..=SLOTS_MAX).contains(&self.slots)
            && (SPEED_MOPS_MIN..=SPEED_SUM_MOPS_MAX).contains(&self.speed_mops)
    }
}

impl MachinesPage {
    pub(crate) fn is_valid(&self) -> bool {
        self.machines.len() <= PAGE_MACHINES_MAX
            && self.silent.len() <= PAGE_SILENT_MAX
            && self.machines.iter().all(MachineReport::is_valid)
    }

    /// Of the part of this question nothing is known, where about so many machines are.
    pub(crate) fn unreached(question: &WhichMachines, machines: u64) -> Self {
        Self { last: question.last, unreached: machines, ..Self::default() }
    }

    /// The same, since too much is asked.
    pub(crate) fn busy(question: &WhichMachines, machines: u64) -> Self {
        Self { is_busy: true, ..Self::unreached(question, machines) }
    }

    /// Adds what another page says of the places up to `last` of both.
    fn add(&mut self, other: Self) {
        self.last = self.last.min(other.last);
        self.machines.extend(other.machines);
        self.silent.extend(other.silent);
        self.unreached = self.unreached.saturating_add(other.unreached);
        self.is_busy |= other.is_busy;
    }

    /// Brings it into the order of the line and within its bounds: each machine once, and none behind `last`, which comes nearer where
    /// there are too many.
    fn settle(&mut self, first: u64) {
        self.machines.sort_by_key(|machine| (machine.at, machine.peer));
        self.machines.dedup_by_key(|machine| machine.peer);
        if let Some(beyond) = self.machines.get(PAGE_MACHINES_MAX) {
            self.last = self.last.min(beyond.at.saturating_sub(1)).max(first);
        }
        self.machines.truncate(PAGE_MACHINES_MAX);
        let part = first..=self.last;
        self.machines.retain(|machine| part.contains(&machine.at));
        self.silent.retain(|silent| part.contains(&silent.at));
        self.silent.sort_by_key(|silent| (silent.at, silent.peer));
        self.silent.dedup_by_key(|silent| silent.peer);
        let beyond = self.silent.len().saturating_sub(PAGE_SILENT_MAX);
        self.silent.truncate(PAGE_SILENT_MAX);
        self.unreached = self.unreached.saturating_add(beyond as u64);
    }
}

/// Who waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedBy {
    /// This machine's driver, under its ticket.
    Driver(u64),
    /// Another machine, which is answered with its number.
    Machine(PeerId, u32),
}

/// A node that was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) peer: PeerId,
    /// A leaf that does not answer is named; below a router about so many machines are in the part.
    pub(crate) node: Node,
    /// The first and the last place of which it may speak.
    pub(crate) within: (u64, u64),
    pub(crate) heard: Time,
    pub(crate) machines: u64,
    /// Its answer is waited for until then.
    pub(crate) until: Time,
}

/// A page that is being put together.
#[derive(Debug)]
struct Open {
    id: u64,
    asked_by: AskedBy,
    first: u64,
    /// No answer makes the page end before this place.
    least: u64,
    page: MachinesPage,
    waiting: BTreeMap<u32, Asked>,
}

/// A rate: so many at once, then one each interval.
#[derive(Clone, Copy, Debug)]
struct Limit {
    burst: u32,
    interval: Duration,
}

/// The questions that wait for answers on one machine.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    open: Vec<Open>,
    numbers: u32,
    /// When each machine that asks would have used up what it may, by the interval of its limit.
    links: BTreeMap<(PeerId, bool), Time>,
}

impl Listings {
    /// Whether a machine may ask now, from below or from above; that counts.
    pub(crate) fn may_ask(&mut self, peer: PeerId, is_below: bool, now: Time) -> bool {
        let limit = if is_below { FROM_BELOW } else { FROM_ABOVE };
        if self.links.len() >= LINKS_MAX && !self.links.contains_key(&(peer, is_below)) {
            // What has recovered says nothing any more.
            self.links.retain(|_, used_up| *used_up > now);
            if self.links.len() >= LINKS_MAX {
                return false;
            }
        }
        let used_up = self.links.entry((peer, is_below)).or_insert(now);
        let next = (*used_up).max(now) + limit.interval;
        let may = next.since(now) <= limit.interval * limit.burst;
        if may {
            *used_up = next;
        }
        may
    }

    /// Whether there is no room for another question.
    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= OPEN_MAX
    }

    /// Whether this question waits here already.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.open.iter().any(|open| open.id == id)
    }

    /// The number for the next message with a question.
    pub(crate) fn number(&mut self) -> u32 {
        self.numbers = self.numbers.wrapping_add(1);
        self.numbers
    }

    /// Waits for the answers of those that were asked, each under its number, beside what is known already.
    pub(crate) fn open(
        &mut self,
        asked_by: AskedBy,
        question: &WhichMachines,
        page: MachinesPage,
        waiting: BTreeMap<u32, Asked>,
    ) {
        let WhichMachines { id, first, last, .. } = *question;
        let least = first + (last - first) / SHARE_LEAST;
        self.open.push(Open { id, asked_by, first, least, page, waiting });
    }

    /// A machine has answered. What nobody waits for is ignored.
    pub(crate) fn answered(&mut self, from: PeerId, number: u32, mut page: MachinesPage) {
        let waits = |open: &&mut Open| open.waiting.get(&number).is_some_and(|asked| asked.peer == from);
        let Some(open) = self.open.iter_mut().find(waits) else { return };
        let Some(asked) = open.waiting.remove(&number) else { return };
        let (l, r) = asked.within;
        page.machines.retain(|machine| (l..=r).contains(&machine.at));
        page.silent.retain(|silent| (l..=r).contains(&silent.at));
        if asked.node == Node::Leaf {
            // A leaf speaks of itself alone.
            page.machines.retain(|machine| machine.peer == from);
            page = MachinesPage { last: u64::MAX, machines: page.machines, ..MachinesPage::default() };
        }
        if page.last < open.least {
            (page.last, page.unreached) = (open.least, page.unreached.saturating_add(1));
        }
        open.page.add(page);
    }

    /// Pages that are complete: all that was asked has answered, or is not waited for any longer.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<(AskedBy, MachinesPage)> {
        for open in &mut self.open {
            open.give_up(now);
        }
        if self.open.iter().all(|open| !open.waiting.is_empty()) {
            return Vec::new();
        }
        let (open, due): (Vec<Open>, Vec<Open>) =
            std::mem::take(&mut self.open).into_iter().partition(|open| !open.waiting.is_empty());
        self.open = open;
        let complete = |mut open: Open| {
            open.page.settle(open.first);
            (open.asked_by, open.page)
        };
        due.into_iter().map(complete).collect()
    }

    /// When [`Self::take_due`] next gives somebody up.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.open.iter().flat_map(|open| open.waiting.values()).map(|asked| asked.until).min()
    }
}

impl Open {
    /// Names or counts what has not answered in time.
    fn give_up(&mut self, now: Time) {
        let page = &mut self.page;
        self.waiting.retain(|_, asked| {
            let waits = asked.until > now;
            let heard_s = u32::try_from(now.since(asked.heard).as_secs()).unwrap_or(u32::MAX);
            match asked.node {
                _ if waits => {}
                Node::Leaf => page.silent.push(SilentMachine { peer: asked.peer, at: asked.within.0, heard_s }),
                Node::Router => page.unreached = page.unreached.saturating_add(asked.machines),
            }
            waits
        });
    }
}

/// How long to wait for a node below which there are so many levels; for the parent these are those of the whole tree, and the
/// way up.
pub(crate) fn wait_for(levels: u32) -> Duration {
    (LEAF_WAIT + HOP_WAIT * levels.min(LEVELS_MAX)).min(PAGE_WAIT)
}

/// About how many of so many machines are in this part of the line, at least 1.
pub(crate) fn expected(first: u64, last: u64, machines: u64) -> u64 {
    let share = (last.saturating_sub(first) as f64) / (u64::MAX as f64);
    ((share * machines as f64).ceil() as u64).max(1)
}

/// The last place of a part that begins at `first` and holds so many of all machines in the mean.
pub(crate) fn last_of_part(first: u64, part: u64, machines: u64) -> u64 {
    if machines <= part {
        return u64::MAX;
    }
    first.saturating_add(u64::MAX / machines.max(1) * part)
}

#[cfg(test)]
mod tests;
