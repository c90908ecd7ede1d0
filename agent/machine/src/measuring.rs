//! How long a task takes: the first task of a bag is run on its submitter's machine, where the user did not say.
//!
//! One bag at a time, the first submitted first. A first task that cannot start is tried a few times; a bag whose first task shows
//! nothing counts as one of short tasks.

use std::collections::VecDeque;
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::{BagId, TaskResult};

use crate::effect::Effect;
use crate::event::FirstTask;

/// How long the first task of a bag may run to show how long a task takes. Our choice.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Least processor time of a task: below it clocks say nothing.
const CPU_LEAST: Duration = Duration::from_millis(1);
/// How often a first task that cannot start is tried, and the pause between two tries. Our choice.
const TRIES_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_secs(2);

/// What a bag's measurement tells the peer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) bag: BagId,
    pub(crate) cpu: Duration,
    /// Where the task succeeded.
    pub(crate) result: Option<TaskResult>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// Its first task is with the driver.
    Running,
    /// It could not start, and is tried again then.
    PausingUntil(Time),
}

/// The bags to be measured.
#[derive(Debug, Default)]
pub(crate) struct Measuring {
    queue: VecDeque<BagId>,
    /// Stage of the first bag in `queue`.
    stage: Stage,
    tries: u32,
}

impl Measuring {
    pub(crate) fn push(&mut self, bag: BagId) {
        self.queue.push_back(bag);
    }

    /// How many bags are measured before this one.
    pub(crate) fn before(&self, bag: BagId) -> u64 {
        self.queue.iter().position(|other| *other == bag).unwrap_or_default() as u64
    }

    /// Begins with the first bag that waits, unless one is being measured; `is_open` says whether a bag is not closed.
    pub(crate) fn begin(&mut self, now: Time, is_open: impl Fn(BagId) -> bool, effects: &mut Vec<Effect>) {
        match self.stage {
            Stage::Running => return,
            Stage::PausingUntil(until) if until > now => return,
            Stage::Idle | Stage::PausingUntil(_) => self.stage = Stage::Idle,
        }
        while let Some(&bag) = self.queue.front() {
            if is_open(bag) {
                self.tries += 1;
                self.stage = Stage::Running;
                effects.push(Effect::RunFirstTask { bag, time_limit: TIME_LIMIT });
                return;
            }
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        self.queue.pop_front();
        self.tries = 0;
        self.stage = Stage::Idle;
    }

    /// The first task of a bag is over. `None`: it is tried again, or nobody waits for it.
    pub(crate) fn ended(&mut self, bag: BagId, first: FirstTask, now: Time) -> Option<Measured> {
        if self.stage != Stage::Running || self.queue.front() != Some(&bag) {
            return None;
        }
        if first == FirstTask::NotStarted && self.tries < TRIES_MAX {
            self.stage = Stage::PausingUntil(now + PAUSE);
            return None;
        }
        self.drop_first();
        Some(match first {
            FirstTask::Ran { cpu, result } => {
                Measured { bag, cpu: cpu.max(CPU_LEAST), result: Some(result).filter(|result| result.success) }
            }
            FirstTask::NotStarted | FirstTask::Nothing => Measured { bag, cpu: CPU_LEAST, result: None },
        })
    }

    /// A bag is closed: how long its tasks take does not matter any more.
    pub(crate) fn stop(&mut self, bag: BagId, effects: &mut Vec<Effect>) {
        if self.queue.front() != Some(&bag) {
            self.queue.retain(|other| *other != bag);
            return;
        }
        match self.stage {
            // Its end comes as an event.
            Stage::Running => effects.push(Effect::StopFirstTask { bag }),
            Stage::Idle | Stage::PausingUntil(_) => self.drop_first(),
        }
    }

    /// When a first task that could not start is to be tried again.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if let Stage::PausingUntil(until) = self.stage { Some(until) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bag(number: u8) -> BagId {
        BagId([number; 32])
    }

    fn run(number: u8) -> Vec<Effect> {
        vec![Effect::RunFirstTask { bag: bag(number), time_limit: TIME_LIMIT }]
    }

    fn begin(measuring: &mut Measuring, now: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        measuring.begin(now, |_| true, &mut effects);
        effects
    }

    #[test]
    fn bags_are_measured_one_after_the_other() {
        let (mut measuring, now) = (Measuring::default(), Time::ZERO);
        (1..=3).for_each(|number| measuring.push(bag(number)));
        assert_eq!(begin(&mut measuring, now), run(1));
        assert_eq!(begin(&mut measuring, now), []);
        let nothing = Measured { bag: bag(1), cpu: CPU_LEAST, result: None };
        assert_eq!(measuring.ended(bag(1), FirstTask::Nothing, now), Some(nothing));
        assert_eq!(measuring.ended(bag(1), FirstTask::Nothing, now), None, "nobody waits for that");
        // The second is closed before its turn.
        let mut effects = Vec::new();
        measuring.begin(now, |open| open != bag(2), &mut effects);
        assert_eq!(effects, run(3));
    }

    #[test]
    fn a_first_task_that_cannot_start_is_tried_a_few_times_with_pauses() {
        let (mut measuring, mut now) = (Measuring::default(), Time::ZERO);
        measuring.push(bag(1));
        for _ in 1..TRIES_MAX {
            assert_eq!(begin(&mut measuring, now), run(1));
            assert_eq!(measuring.ended(bag(1), FirstTask::NotStarted, now), None);
            assert_eq!(begin(&mut measuring, now), [], "not at once");
            now = measuring.deadline().expect("it is tried again");
        }
        assert_eq!(begin(&mut measuring, now), run(1));
        let short = Measured { bag: bag(1), cpu: CPU_LEAST, result: None };
        assert_eq!(measuring.ended(bag(1), FirstTask::NotStarted, now), Some(short));
        assert_eq!(measuring.deadline(), None);
    }

    #[test]
    fn a_closed_bag_is_not_measured_on() {
        let (mut measuring, now) = (Measuring::default(), Time::ZERO);
        (1..=3).for_each(|number| measuring.push(bag(number)));
        assert_eq!(begin(&mut measuring, now), run(1));
        let mut effects = Vec::new();
        measuring.stop(bag(2), &mut effects);
        measuring.stop(bag(1), &mut effects);
        assert_eq!(effects, [Effect::StopFirstTask { bag: bag(1) }]);
        assert!(measuring.ended(bag(1), FirstTask::Nothing, now).is_some());
        assert_eq!(begin(&mut measuring, now), run(3));
        // One that pauses is dropped at once.
        assert_eq!(measuring.ended(bag(3), FirstTask::NotStarted, now), None);
        measuring.stop(bag(3), &mut effects);
        assert_eq!((measuring.deadline(), effects.len()), (None, 1));
    }
}
