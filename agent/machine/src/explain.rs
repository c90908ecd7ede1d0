//! Why tasks of a bag do not run, as far as the machine that submitted it knows: its ledger, its own owner and queue, and the root's
//! last report on the grid.
//!
//! What a machine does not know is left out: which owners of other machines are back (the root tells how much of the grid works, not
//! who does not), and how far tasks are that run elsewhere.

use std::time::Duration;

use idlewood_overlay::{PeerId, State, Time};
use idlewood_scheduler::{Awaited, BagId, BagView, DeclineReason, Declines};

use crate::policy::{Judgement, Reason};

/// A machine that gets a task answers within this time, unless something is wrong. Our choice: a few round trips and writes.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Less of the speed of the grid than this share is rounding.
const SHARE_LEAST: f64 = 0.001;

/// Something that keeps tasks of a bag from running, or [`Bound::Runs`].
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// Tasks run, or wait on machines that work.
    Runs {
        /// How many are on such machines.
        tasks: u64,
        /// How many machines these are.
        machines: u64,
    },
    /// Tasks have ended on other machines, and this one has no room on its disk for their results.
    NoRoom {
        /// How many.
        tasks: u64,
    },
    /// The first task runs on this machine, to show how long a task takes.
    Measures,
    /// The first tasks of so many other bags of this machine run before.
    MeasuresOthers {
        /// How many bags.
        bags: u64,
    },
    /// The owner of this machine does not let these tasks run.
    Owner {
        /// Why.
        reason: Reason,
        /// Tasks that this machine holds.
        tasks: u64,
    },
    /// A task needs more memory than this machine gives to all.
    Memory {
        /// What a task may take.
        wanted_bytes: u64,
        /// What this machine gives.
        limit_bytes: u64,
        /// Tasks that this machine holds.
        tasks: u64,
    },
    /// This machine has no place in the grid yet.
    Joining,
    /// More machines have to agree on a task than the grid has.
    FewMachines {
        /// How many have to agree.
        quorum: u32,
        /// How many there are.
        machines: u64,
    },
    /// No other machine takes work at the moment.
    NobodyWorks {
        /// Other machines of the grid.
        machines: u64,
        /// Tasks that they hold.
        tasks: u64,
    },
    /// Machines decline the bag.
    Declined {
        /// Why.
        reason: DeclineReason,
        /// How many machines and tasks.
        declines: Declines,
    },
    /// Tasks wait until they are tried again, since they failed.
    Pauses {
        /// How many.
        tasks: u64,
        /// Until when the first of them waits.
        until: Option<Time>,
    },
    /// No machine has said that it has these tasks.
    Unheard {
        /// How many.
        tasks: u64,
        /// How long ago they were sent.
        ago: Duration,
    },
    /// Tasks on which machines disagree, and nobody else can be asked.
    Undecided {
        /// How many.
        tasks: u64,
    },
    /// Other bags come first on this machine.
    Behind {
        /// These bags, of these machines.
        before: Vec<(BagId, PeerId)>,
        /// Tasks of all other bags that wait or run here.
        tasks: u64,
        /// Tasks of the bag that wait for them.
        waiting: u64,
    },
    /// Its user holds the bag.
    Held {
        /// Tasks that are not over and that no machine has.
        tasks: u64,
    },
    /// The bag waits for others to succeed.
    After {
        /// These, and why they have not.
        bags: Vec<(BagId, Awaited)>,
    },
    /// As many tasks are handed out as the user lets run at once.
    Full {
        /// How many.
        most: u64,
        /// Tasks that wait for that.
        tasks: u64,
    },
    /// Tasks are on their way to machines.
    OnTheWay {
        /// How many.
        tasks: u64,
    },
}

/// What holds for the tasks of a bag now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// Whether any task may be running: without it, how long the bag takes cannot be told.
    pub runs: bool,
    /// What holds, the most important first; none for a bag that is over.
    pub bounds: Vec<Bound>,
}

/// What the machine that submitted a bag knows.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// The bag.
    pub bag: &'a BagView,
    /// The time.
    pub now: Time,
    /// Bags of this machine whose first tasks run before, while the bag is to be measured.
    pub measured_before: u64,
    /// Tasks of the bag that this machine holds itself.
    pub here: u64,
    /// Those of them that it has begun.
    pub begun_here: u64,
    /// Tasks of the bag that have ended elsewhere, and for whose results this machine's disk has no room.
    pub without_room: u64,
    /// Other bags of which this machine holds unfinished tasks, and how many tasks.
    pub others_here: &'a [(BagId, PeerId, u64)],
    /// What this machine's owner lets tasks do.
    pub judgement: &'a Judgement,
    /// What a task may take of memory, if that is known.
    pub memory_bytes: Option<u64>,
    /// What this machine gives to all tasks.
    pub memory_max_bytes: u64,
    /// Where this machine stands in its grid.
    pub state: State,
    /// Machines of the grid.
    pub machines: u64,
    /// Speed of all slots of the grid that take work, by the root's last report.
    pub grid_mops: f64,
    /// Speed of this machine's slots.
    pub own_mops: f64,
}

impl Situation<'_> {
    /// Whether other machines of the grid take work.
    fn do_others_work(&self) -> bool {
        let own_mops = if self.judgement.takes_work && !self.judgement.stands_still() { self.own_mops } else { 0.0 };
        self.machines > 1 && self.grid_mops - own_mops > self.grid_mops * SHARE_LEAST
    }

    /// Whether tasks of the bag can run here.
    fn does_this_one(&self) -> bool {
        let may_begin = self.judgement.takes_work || self.begun_here > 0;
        !self.judgement.stands_still() && may_begin && self.fits()
    }

    fn fits(&self) -> bool {
        self.memory_bytes.is_none_or(|bytes| bytes <= self.memory_max_bytes)
    }
}

/// Says why tasks of the bag do not run, or that they do.
pub fn explain(situation: &Situation) -> Explanation {
    let Situation { bag, here, .. } = *situation;
    if bag.closed.is_some() {
        return Explanation::default();
    }
    let mut bounds = withheld(bag);
    if bag.bag.task_mops <= 0.0 {
        return if bounds.is_empty() { measuring(situation) } else { Explanation { runs: false, bounds } };
    }
    let elsewhere = bag.placed.saturating_sub(here);
    let without_room = situation.without_room.min(elsewhere);
    if without_room > 0 {
        bounds.push(Bound::NoRoom { tasks: without_room });
    }
    let elsewhere = elsewhere - without_room;
    let (others_work, this_works) = (situation.do_others_work(), situation.does_this_one());
    let running = if others_work { elsewhere } else { 0 } + if this_works { here } else { 0 };
    if running > 0 {
        let without_this = u64::from(here > 0 && !this_works);
        let machines = if others_work { bag.executors.saturating_sub(without_this) } else { 1 };
        // A machine whose last results are on their way holds no task that runs.
        let machines = machines.min(running);
        bounds.push(Bound::Runs { tasks: running, machines });
    }
    if let Some(most) = bag.conditions.running_max
        && bag.unplaced > bag.unheard
        && bag.placed + bag.unheard >= most
    {
        bounds.push(Bound::Full { most, tasks: bag.unplaced - bag.unheard });
    }
    let quorum = bag.replication.quorum;
    if u64::from(quorum) > situation.machines {
        bounds.push(Bound::FewMachines { quorum, machines: situation.machines });
    }
    if situation.state == State::Joining {
        bounds.push(Bound::Joining);
    }
    // Alone, what is not placed waits for this machine, too.
    let for_this = if situation.machines <= 1 { here + bag.unplaced } else { here };
    if for_this > 0 && !this_works {
        match &situation.judgement.reason {
            _ if !situation.fits() => bounds.push(Bound::Memory {
                wanted_bytes: situation.memory_bytes.unwrap_or_default(),
                limit_bytes: situation.memory_max_bytes,
                tasks: for_this,
            }),
            Some(reason) => bounds.push(Bound::Owner { reason: reason.clone(), tasks: for_this }),
            None => {}
        }
    }
    if situation.state == State::Member && situation.machines > 1 && !others_work && elsewhere + bag.unplaced > 0 {
        bounds.push(Bound::NobodyWorks { machines: situation.machines - 1, tasks: elsewhere });
    }
    let declined = bag.declined.iter().filter(|(_, declines)| bag.unplaced > 0 && declines.machines > 0);
    let before = bounds.len();
    bounds.extend(declined.map(|(&reason, &declines)| Bound::Declined { reason, declines }));
    // Declined tasks pause, too.
    if bag.pausing > 0 && bounds.len() == before {
        bounds.push(Bound::Pauses { tasks: bag.pausing, until: bag.pausing_until });
    }
    let ago = bag.unheard_since.map_or(Duration::ZERO, |since| situation.now.since(since));
    if bag.unheard > 0 && ago > ANSWER_WITHIN {
        bounds.push(Bound::Unheard { tasks: bag.unheard, ago });
    }
    if bag.undecided > 0 {
        bounds.push(Bound::Undecided { tasks: bag.undecided });
    }
    if here > 0 && this_works && situation.begun_here == 0 && !situation.others_here.is_empty() {
        let before = situation.others_here.iter().map(|&(bag, submitter, _)| (bag, submitter)).collect();
        let tasks = situation.others_here.iter().map(|(_, _, tasks)| tasks).sum();
        bounds.push(Bound::Behind { before, tasks, waiting: here });
    }
    if bounds.is_empty() {
        bounds.push(Bound::OnTheWay { tasks: bag.unplaced });
    }
    Explanation { runs: running > 0, bounds }
}

/// What keeps anything of the bag from being issued, by its user's word.
fn withheld(bag: &BagView) -> Vec<Bound> {
    let mut bounds = Vec::new();
    if bag.conditions.withheld {
        bounds.push(Bound::Held { tasks: bag.unplaced });
    }
    if !bag.awaited.is_empty() {
        bounds.push(Bound::After { bags: bag.awaited.iter().map(|(&bag, &why)| (bag, why)).collect() });
    }
    bounds
}

/// The same of a bag whose first task is to be measured here: it stands still for a pause alone.
fn measuring(situation: &Situation) -> Explanation {
    if let Some(reason @ Reason::PausedByUser) = &situation.judgement.reason {
        let bounds = vec![Bound::Owner { reason: reason.clone(), tasks: 1 }];
        return Explanation { runs: false, bounds };
    }
    let bags = situation.measured_before;
    let bound = if bags > 0 { Bound::MeasuresOthers { bags } } else { Bound::Measures };
    Explanation { runs: bags == 0, bounds: vec![bound] }
}

#[cfg(test)]
mod tests;
