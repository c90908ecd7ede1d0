//! How long a task takes: the first task of a bag is run on its submitter's machine, where the user did not say.
//!
//! One bag at a time, the first submitted first. A first task that cannot start is tried a few times; a bag whose first task shows
//! nothing counts as one of short tasks.
//!
//! The first process of an application in rounds may do more iterations than fit [`TIME_LIMIT`]. Then how far it came tells how long all of
//! them take, if it said that (a single sweep, Netto and others 2011, §4.1). If it did not, short runs tell it (a multi-sweep), until they have
//! taken as long again.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::rounds::{Curve, ITERATIONS_MAX, PartialRun, Step, Sweep};
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

/// Short runs of a process that took too long.
#[derive(Debug)]
struct PartialRuns {
    sweep: Sweep,
    /// Iterations of the process, and processor time in which it did not do them.
    iterations: NonZeroU64,
    cpu: Duration,
    /// Processor time that short runs have taken, and how long that was by the clock.
    computed: Duration,
    spent: Duration,
}

impl PartialRuns {
    /// The iterations of the next run; `None`: enough is known, or there is no time for it.
    fn next(&self) -> Option<NonZeroU64> {
        let Step::Run(iterations) = self.sweep.step() else { return None };
        let by_the_clock = self.spent.as_secs_f64() / self.computed.max(CPU_LEAST).as_secs_f64();
        let takes_s = self.sweep.estimate().map_or(0.0, |it| it.curve.time_s(iterations) * by_the_clock.max(1.0));
        let has_time = takes_s <= TIME_LIMIT.saturating_sub(self.spent).as_secs_f64();
        NonZeroU64::new(iterations).filter(|_| has_time)
    }

    /// How long the process takes, by the runs so far.
    fn whole(&self) -> Duration {
        let curve = self.sweep.estimate().map(|estimate| estimate.curve);
        curve.map_or(self.cpu, |curve| whole(curve, self.iterations, self.cpu))
    }
}

/// How long a process takes by this curve: longer than it had run when it was ended.
fn whole(curve: Curve, iterations: NonZeroU64, ran: Duration) -> Duration {
    Duration::try_from_secs_f64(curve.time_s(iterations.get())).unwrap_or(Duration::MAX).max(ran)
}

/// The bags to be measured.
#[derive(Debug, Default)]
pub(crate) struct Measuring {
    queue: VecDeque<BagId>,
    /// Stage of the first bag in `queue`.
    stage: Stage,
    tries: u32,
    /// Of that bag.
    partial: Option<PartialRuns>,
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
                let spent = self.partial.as_ref().map_or(Duration::ZERO, |partial| partial.spent);
                let (time_limit, iterations) = (TIME_LIMIT - spent, self.partial.as_ref().and_then(PartialRuns::next));
                effects.push(Effect::RunFirstTask { bag, time_limit, iterations });
                return;
            }
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        self.queue.pop_front();
        self.tries = 0;
        self.stage = Stage::Idle;
        self.partial = None;
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
        let (cpu, result) = match first {
            FirstTask::Ran { cpu, result } => (cpu, Some(result).filter(|result| result.success)),
            FirstTask::TooLong { .. } | FirstTask::Partial { .. } => (self.ran_on(first)?, None),
            FirstTask::NotStarted | FirstTask::Nothing => {
                (self.partial.as_ref().map_or(CPU_LEAST, PartialRuns::whole), None)
            }
        };
        self.drop_first();
        Some(Measured { bag, cpu: cpu.max(CPU_LEAST), result })
    }

    /// A process took too long, or a short run of it has ended: how long the process takes; `None`: a further run tells.
    fn ran_on(&mut self, first: FirstTask) -> Option<Duration> {
        match (first, &mut self.partial) {
            (FirstTask::TooLong { cpu, iterations, marks }, None) => {
                if let Some(curve) = Curve::of_marks(&marks) {
                    return Some(whole(curve, iterations, cpu));
                }
                let sweep = Sweep::new(iterations.get().min(ITERATIONS_MAX));
                let (computed, spent) = (Duration::ZERO, Duration::ZERO);
                self.partial = Some(PartialRuns { sweep, iterations, cpu, computed, spent });
            }
            (FirstTask::Partial { cpu, wall }, Some(partial)) => {
                if let Step::Run(iterations) = partial.sweep.step() {
                    partial.sweep.ended(PartialRun { iterations, took: cpu });
                }
                partial.computed += cpu;
                partial.spent = (partial.spent + wall.max(cpu)).min(TIME_LIMIT);
                if partial.next().is_none() {
                    return Some(partial.whole());
                }
            }
            // A program that does not care how many iterations it is to do.
            (_, Some(partial)) => return Some(partial.whole()),
            (_, None) => return Some(CPU_LEAST),
        }
        (self.tries, self.stage) = (0, Stage::Idle);
        None
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
        vec![Effect::RunFirstTask { bag: bag(number), time_limit: TIME_LIMIT, iterations: None }]
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

    fn iterations(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).expect("it is not 0")
    }

    fn too_long(of: u64, marks: &[(u64, f64)]) -> FirstTask {
        let mark = |&(iterations, took): &(u64, f64)| PartialRun { iterations, took: Duration::from_secs_f64(took) };
        FirstTask::TooLong { cpu: TIME_LIMIT, iterations: iterations(of), marks: marks.iter().map(mark).collect() }
    }

    /// A first task that takes `start_s` and `iteration_s` for each of 1,000 iterations: the iterations of its short runs, and how long it is
    /// predicted to take.
    fn swept(start_s: f64, iteration_s: f64) -> (Vec<u64>, Duration) {
        swept_waiting(start_s, iteration_s, 1.0)
    }

    /// The same of one that takes so many times as long by the clock.
    fn swept_waiting(start_s: f64, iteration_s: f64, waits: f64) -> (Vec<u64>, Duration) {
        let (mut measuring, now) = (Measuring::default(), Time::ZERO);
        measuring.push(bag(1));
        begin(&mut measuring, now);
        let (mut ended, mut runs) = (too_long(1000, &[]), Vec::new());
        loop {
            if let Some(measured) = measuring.ended(bag(1), ended, now) {
                assert_eq!(measured.result, None, "the task is still to be run");
                return (runs, measured.cpu);
            }
            let effects = begin(&mut measuring, now);
            let [Effect::RunFirstTask { time_limit, iterations: Some(next), .. }] = effects[..] else {
                panic!("{effects:?}");
            };
            let cpu = Duration::from_secs_f64(start_s + iteration_s * next.get() as f64);
            let wall = cpu.mul_f64(waits);
            ended = if wall > time_limit { too_long(next.get(), &[]) } else { FirstTask::Partial { cpu, wall } };
            runs.push(next.get());
        }
    }

    #[test]
    fn a_process_that_takes_too_long_is_predicted_from_how_far_it_came() {
        let (mut measuring, now) = (Measuring::default(), Time::ZERO);
        measuring.push(bag(1));
        begin(&mut measuring, now);
        // It began after 8 s, and had done 26 of 1,000 iterations of 2 s after 60.
        let marks = [(0, 5.0), (1, 10.0), (7, 22.0), (26, 60.0)];
        let measured = measuring.ended(bag(1), too_long(1000, &marks), now).expect("that is enough");
        assert_eq!((measured.cpu, measured.result), (Duration::from_secs(2008), None));
    }

    #[test]
    fn a_process_that_takes_too_long_and_says_nothing_is_predicted_from_short_runs() {
        let (runs, predicted) = swept(8.0, 0.2);
        assert_eq!(runs, [3, 6, 12], "the paper's");
        assert!((predicted.as_secs_f64() - 208.0).abs() < 1.0, "{predicted:?}");
        // There is no time for a third run, which would tell more of how it starts.
        let (runs, predicted) = swept(8.0, 4.0);
        assert_eq!(runs, [3, 6]);
        assert!((predicted.as_secs_f64() - 4008.0).abs() < 10.0, "{predicted:?}");
        // Nor is there for one whole run.
        let (runs, predicted) = swept(0.0, 30.0);
        assert_eq!((runs, predicted), (vec![3], TIME_LIMIT));
        // It waits for most of the time, which counts.
        let (runs, predicted) = swept_waiting(0.1, 0.4, 10.0);
        assert_eq!(runs, [3, 6], "13 s and 25 s by the clock: the next would take 49");
        assert!((predicted.as_secs_f64() - 400.1).abs() < 1.0, "{predicted:?}");
        // It does as much as it likes.
        assert_eq!(swept(70.0, 0.0), (vec![3], TIME_LIMIT));
        // Its first task took long by chance.
        assert_eq!(swept(0.0, 1e-3).1, TIME_LIMIT, "at least as long as it ran");
    }

    #[test]
    fn a_bag_behind_one_with_short_runs_runs_whole() {
        let (mut measuring, now) = (Measuring::default(), Time::ZERO);
        (1..=2).for_each(|number| measuring.push(bag(number)));
        begin(&mut measuring, now);
        assert_eq!(measuring.ended(bag(1), too_long(9, &[]), now), None);
        assert_eq!(begin(&mut measuring, now).len(), 1);
        assert_eq!(measuring.ended(bag(1), FirstTask::Nothing, now).map(|it| it.cpu), Some(TIME_LIMIT));
        assert_eq!(begin(&mut measuring, now), run(2));
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
