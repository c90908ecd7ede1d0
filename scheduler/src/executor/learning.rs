//! How long programs take here: what ended tasks show of a program corrects what is expected of its other bags and tasks on this machine
//! ([`crate::factors`]), and so the queue, what the leaf's summary offers, and which begun tasks are late.
//!
//! Only times are corrected. Deadlines follow from sizes as submitters say them, which are the same on all machines: a program that is
//! slow here must not bring its bag another turn here than elsewhere. Sizes that are far from the truth are corrected by `rating`.
//!
//! Where the tasks of several users take longer than was said, the machine itself is slow (`slowness`). Tasks that run on, and those that are
//! stopped since a copy was faster, count with what they have run: a machine whose tasks are always overtaken ends none. What does not count: the
//! time in which a program is fetched and started, ended tasks of less than a minute, and programs that wait instead of computing. A machine that
//! has learned that it is slow offers less, predicts later ends, and lets begun tasks be copied (`sharing`). Each time that its slowness has
//! doubled, its unstarted tasks go back to their submitters.
//!
//! Left out: bags submitted here, whose work was measured on this very machine.

use std::collections::BTreeSet;
use std::time::Duration;

use idlewood_overlay::Time;

use super::Executor;
use super::held_bag::HeldBag;
use super::places::Running;
use super::sharing::OVERRUN;
use crate::bag::{BagId, BlobId};
use crate::config::Config;
use crate::io::Io;
use crate::ranges::IntervalSet;
use crate::slowness::{Recent, Seen};

/// A factor that has moved by less is not news. Our choice: else each end of a task would change the order and the summary.
const NEWS: f64 = 0.05;
/// A worker's first task of a program takes longer, since the program is fetched and compiled meanwhile: a second or so, ten on a slow link. Tasks
/// that are shorter than this tell nothing of those that follow. Our choice.
const START_UP_MAX: Duration = Duration::from_secs(60);

/// So much of the time that a task has run may have gone into fetching and starting its program, and says nothing of the machine. Our choice.
const START_UP: Duration = Duration::from_secs(15);
/// Added to the moment at which a task is looked at, so that rounding does not wake the executor too early.
const ROUNDING: Duration = Duration::from_millis(1);

/// A program waits, for input or a clock, of whose time a task computes less than this share. Our choice.
const COMPUTES: f64 = 0.5;
/// Most programs that are known to wait. Our choice.
const WAITING_MAX: usize = 256;

/// How many times as long all tasks take here as the machine's speed lets expect.
#[derive(Debug)]
pub(super) struct Slowness {
    /// At least 1.
    times: f64,
    /// What `times` was when unstarted tasks last went back because of it; 1 where `times` has been 1 since.
    given_back_at: f64,
    recent: Recent,
    /// Begun tasks that have run for far longer than expected: for how many times as long, in steps that double.
    running: Vec<Seen>,
    /// Programs that wait instead of computing.
    waiting: BTreeSet<BlobId>,
    /// Whether a task has ended, or the stated speed has changed, since `times` was computed.
    is_stale: bool,
}

impl Default for Slowness {
    fn default() -> Self {
        let (recent, running, waiting) = (Recent::default(), Vec::new(), BTreeSet::new());
        Self { times: 1.0, given_back_at: 1.0, recent, running, waiting, is_stale: false }
    }
}

impl Slowness {
    pub(super) fn times(&self) -> f64 {
        self.times
    }

    fn note(&mut self, seen: Seen, now: Time) {
        self.recent.note(seen, now);
        self.is_stale = true;
    }
}

impl Executor {
    /// The driver says what a bag runs.
    pub(super) fn runs(&mut self, bag: BagId, program: Option<BlobId>) {
        let Some((held, program)) = self.bags.get_mut(&bag).zip(program) else { return };
        held.program = Some(program);
        self.corrects(Some(program));
    }

    /// A task succeeded here, the first of its program on its worker or a later one, after so many times the iterations of others. How long it ran is
    /// learned, and not how much it computed: that is next to nothing where a task waits for something.
    pub(super) fn learn(&mut self, running: &Running, (times, work_mops): (f64, f64), is_first: bool, now: Time) {
        let ran = running.active(now);
        if is_first && ran < START_UP_MAX {
            return;
        }
        let Some(held) = self.bags.get(&running.task.bag) else { return };
        let Some(program) = held.program else { return };
        let done_mops = running.done_mops(self.told_mops, now);
        let ratio = done_mops / times / held.bag.task_mops;
        let (submitter, is_endless) = (held.bag.submitter.peer, held.bag.is_endless());
        let is_long = ran >= START_UP_MAX || held.bag.task_mops / self.told_mops >= START_UP_MAX.as_secs_f64();
        self.factors.note(program, ratio);
        if work_mops >= COMPUTES * done_mops {
            self.slowness.waiting.remove(&program);
            if is_long && !is_endless {
                self.slowness.note(Seen { submitter, program, ratio }, now);
            }
        } else {
            self.slowness.waiting.insert(program);
            if self.slowness.waiting.len() > WAITING_MAX {
                self.slowness.waiting.pop_first();
            }
        }
        self.corrects(Some(program));
    }

    /// These tasks are about to be stopped, as a rule since their results came from elsewhere: one that has run for far longer than was said would have taken as long at
    /// least.
    pub(super) fn learn_of_stopped(&mut self, bag: BagId, tasks: &IntervalSet, now: Time) {
        let stopped = self.places.of(bag).filter(|running| tasks.contains(running.task.index));
        let beyond: Vec<Seen> = stopped.filter_map(|running| self.far_beyond(running, now)).collect();
        for seen in beyond {
            self.factors.note(seen.program, seen.ratio);
            self.slowness.note(seen, now);
            self.corrects(Some(seen.program));
        }
    }

    /// The bag of a begun task that says something of this machine, and its program.
    fn telling(&self, running: &Running) -> Option<(&HeldBag, BlobId)> {
        let held = self.bags.get(&running.task.bag).filter(|held| !running.stopping && !held.bag.is_endless())?;
        let program = held.program.filter(|program| !self.slowness.waiting.contains(program))?;
        Some((held, program))
    }

    /// A task that has run for twice as long as was said or longer, its start not counted: for how many times as long, in steps that double.
    fn far_beyond(&self, running: &Running, now: Time) -> Option<Seen> {
        let (held, program) = self.telling(running)?;
        let times = self.beyond_start(running, now) / held.bag.task_mops;
        let ratio = times.log2().floor().exp2();
        (times >= OVERRUN).then_some(Seen { submitter: held.bag.submitter.peer, program, ratio })
    }

    /// Work that a begun task has done by the speed that the driver says, less what its start may have taken, in Mop; below 0 while it may still be starting.
    fn beyond_start(&self, running: &Running, now: Time) -> f64 {
        running.done_mops(self.told_mops, now) - START_UP.as_secs_f64() * self.told_mops
    }

    /// When a running task next gets to twice what was said, or to twice what it was at, or what ended is forgotten.
    pub(super) fn slowness_due(&self, now: Time) -> Option<Time> {
        let running = self.places.begun().filter(|running| running.runs() && !running.is_frozen());
        let due = running.filter_map(|running| {
            let (held, _) = self.telling(running)?;
            let done_mops = self.beyond_start(running, now);
            let next = OVERRUN.max((done_mops / held.bag.task_mops).log2().floor().exp2() * 2.0);
            let left_s = (next * held.bag.task_mops - done_mops) / self.told_mops;
            Some(now + Duration::try_from_secs_f64(left_s.max(0.0)).ok()? + ROUNDING)
        });
        due.chain(self.slowness.recent.due().filter(|_| self.slowness.times > 1.0)).min()
    }

    /// Learns from tasks that have ended, and from those that run on, how slow this machine is. Where it is twice as slow as when tasks last went back, those that have not begun
    /// go back, if there is another machine.
    pub(super) fn judge_speed(&mut self, io: &mut Io, config: &Config) {
        let running: Vec<Seen> = self.places.begun().filter_map(|running| self.far_beyond(running, io.now)).collect();
        let is_stale = std::mem::take(&mut self.slowness.is_stale) | self.slowness.recent.forget(io.now);
        if !is_stale && running == self.slowness.running {
            return;
        }
        let times = self.slowness.recent.slowness(&running);
        self.slowness.running = running;
        if (times / self.slowness.times - 1.0).abs() <= NEWS {
            return;
        }
        self.slowness.times = times;
        self.speed_mops = self.told_mops / times;
        self.corrects(None);
        let bags: Vec<BagId> = self.bags.values().map(|held| held.bag.id).collect();
        bags.into_iter().for_each(|bag| self.rate(bag, io.now));
        self.order_stale = true;
        self.changed = true;
        if times == 1.0 {
            self.slowness.given_back_at = 1.0;
        } else if times >= OVERRUN * self.slowness.given_back_at && io.leaves > 1 {
            self.slowness.given_back_at = times;
            let bags: Vec<BagId> = self.finite().map(|held| held.bag.id).collect();
            bags.into_iter().for_each(|bag| self.give_back_unstarted(bag, io, config));
        }
    }

    /// Work that a begun task has done by the speed that this machine seems to have, in Mop.
    pub(super) fn done_mops(&self, running: &Running, now: Time) -> f64 {
        running.done_mops(self.told_mops, now) / self.slowness.times
    }

    /// Slots are faster or slower by the clock from now on. Submitters who prefer machines by their speeds are told at once.
    pub(crate) fn change_speed(&mut self, told_mops: f64, now: Time) {
        self.places.count_work(self.told_mops, now);
        self.slowness.recent.restated(told_mops / self.told_mops);
        self.slowness.is_stale = true;
        self.told_mops = told_mops;
        self.speed_mops = told_mops / self.slowness.times;
        for held in self.bags.values_mut().filter(|held| held.says_capacity()) {
            held.updates.send_holding_now(now);
        }
        self.order_stale = true;
        self.changed = true;
    }

    /// All bags that run this program, or any, are expected to take what is known of it.
    fn corrects(&mut self, program: Option<BlobId>) {
        let slowness = self.slowness.times;
        let concerned = |held: &&HeldBag| program.is_none_or(|program| held.program == Some(program));
        let news = |held: &HeldBag| {
            let factor = held.program.map_or(1.0, |program| self.factors.of(program, slowness) / slowness);
            let is_news = (factor / held.factor - 1.0).abs() > NEWS || held.slowness != slowness;
            is_news.then_some((held.bag.id, factor))
        };
        let bags: Vec<(BagId, f64)> = self.bags.values().filter(concerned).filter_map(news).collect();
        for (bag, factor) in bags {
            if let Some(held) = self.bags.get_mut(&bag) {
                (held.factor, held.slowness) = (factor, slowness);
                self.order_stale = true;
                self.changed = true;
            }
        }
    }
}
