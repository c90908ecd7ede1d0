//! When a bag ends, by the pace at which its tasks have ended so far (ours; the paper's application scheduler predicts each task by a
//! partial run, which is the first task of a bag here).
//!
//! The ledger knows neither the speeds of the slots that work for a bag nor how much of them its owners and other bags leave it: both
//! show in how many tasks ended, and when. The pace is the slope of the line of least squares through the recent
//! *marks* (tasks ended so far, moment): machines that are alike end their tasks in bursts, and the line runs
//! through the middles of the bursts, whereas the difference of two marks depends on where in their bursts they lie. Recent is the later half of the time, and the time of two tasks at
//! least. A bag whose first tasks have just ended has a mark one task's time before them, at which it is taken to have begun: how long it
//! waited for other bags before says nothing. That mark stands for the middle of a burst as large as the first. A pause that is longer than those before it puts the end off by what is longer.
//!
//! How far a prediction is to be trusted is the time of a task, the chance in how many tasks have ended and are to end (as if they came at random,
//! which is too much for machines that nobody disturbs), and how far the predictions have moved in the mean since the first that was kept. Owners
//! and other bags show in that, and nowhere else.
//!
//! Each bag keeps the predictions of the moments at which a tenth, two tenths and so on of its tasks had ended, and judges them when
//! it is closed. They follow from the results on the disk, so that a restart forgets none.
//!
//! Left out: sizes of tasks that have not ended yet, which nobody knows; the machines that hold the last tasks.

use std::time::Duration;

use idlewood_overlay::Time;

/// Most marks that are kept: every second one goes when there are more.
const MARKS_MAX: usize = 64;
/// Predictions that are kept are made each time one more of so many equal parts of the bag has ended.
const PARTS: u64 = 10;

/// When a bag is predicted to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// The predicted end.
    pub end: Time,
    /// The bag ends so much earlier or later than that in seven to ten of ten cases (docs/lab/prediction.md).
    pub within: Duration,
}

/// A prediction that is judged when the bag is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptPrediction {
    /// When it was made.
    pub made: Time,
    /// Tasks that had ended by then.
    pub ended: u64,
    /// What was predicted.
    pub prediction: Prediction,
}

/// Tasks of a bag that had ended by some moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    ended: u64,
    at: Time,
}

/// The ends of a bag's tasks, and what was predicted from them.
#[derive(Debug, Default)]
pub(super) struct Predicting {
    /// Ends of tasks from before a restart, in any order, until all are known.
    restored: Vec<Time>,
    ended: u64,
    /// Tasks that had ended before this ledger saw one end: it is a steward's.
    before: u64,
    /// Oldest first.
    marks: Vec<Mark>,
    /// Every so many ends make a mark.
    marks_every: u64,
    last: Option<Time>,
    /// When the first task ended, and how many had a quarter of a task's time later.
    first: Option<(Time, u64)>,
    longest_pause: Duration,
    kept: Vec<KeptPrediction>,
}

/// What the ledger knows of the bag beside the ends of its tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Tasks of the bag.
    pub(super) tasks: u64,
    /// When it was submitted.
    pub(super) released: Time,
    /// How long one of its tasks takes on a slot of this machine.
    pub(super) task: Duration,
}

impl Predicting {
    /// A task had ended before the restart.
    pub(super) fn restore(&mut self, at: Time) {
        self.restored.push(at);
    }

    /// So many tasks ended, nobody here knows when.
    pub(super) fn restore_count(&mut self, ended: u64) {
        (self.before, self.ended) = (ended, ended);
    }

    /// So many tasks run again, as if they had never ended: the bag's pace is looked for anew, and former predictions are void.
    pub(super) fn begin_again(&mut self, tasks: u64) {
        let ended = self.ended.saturating_sub(tasks);
        *self = Self::default();
        self.restore_count(ended);
    }

    /// All tasks that ended before the restart are known.
    pub(super) fn all_restored(&mut self, known: Known) {
        let mut restored = std::mem::take(&mut self.restored);
        restored.sort_unstable();
        restored.into_iter().for_each(|at| self.note(at, known));
    }

    /// A task has ended. Times do not decrease.
    pub(super) fn note(&mut self, at: Time, known: Known) {
        self.ended += 1;
        if let Some(last) = self.last {
            self.longest_pause = self.longest_pause.max(at.since(last));
        }
        self.last = Some(at);
        let (first, burst) = self.first.get_or_insert((at, 0));
        *burst += u64::from(at.since(*first) <= known.task / 4);
        if self.marks.is_empty() {
            self.marks_every = 1;
            self.marks.push(Mark { ended: self.before, at: known.released.max(at - known.task) });
        }
        if self.ended.is_multiple_of(self.marks_every) {
            self.marks.push(Mark { ended: self.ended, at });
        }
        if self.marks.len() > MARKS_MAX {
            let mut number = 0;
            self.marks.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.marks_every *= 2;
        }
        let parts = |ended: u64| u128::from(ended) * u128::from(PARTS) / u128::from(known.tasks.max(1));
        if parts(self.ended) > parts(self.ended - 1)
            && let Some(prediction) = self.predict(at, known)
        {
            self.kept.push(KeptPrediction { made: at, ended: self.ended, prediction });
        }
    }

    /// When the bag ends; `None` before the first task has ended, and once all have.
    pub(super) fn predict(&self, now: Time, known: Known) -> Option<Prediction> {
        let last = self.last?;
        let to_go = known.tasks.checked_sub(self.ended).filter(|&to_go| to_go > 0)? as f64;
        let pace = self.pace(last, known)?;
        let left_s = to_go / pace;
        let usual_pause = self.longest_pause.max(known.task).saturating_mul(2);
        let longer = now.since(last).saturating_sub(usual_pause);
        let end = (last + Duration::try_from_secs_f64(left_s).ok()? + longer).max(now);
        let by_chance_s = left_s * (1.0 / self.ended as f64 + 1.0 / to_go).sqrt().min(1.0);
        let spread = Duration::try_from_secs_f64(by_chance_s + self.moved_s(end).unwrap_or(left_s / 2.0)).ok()?;
        Some(Prediction { end, within: known.task + spread + longer })
    }

    /// How far from this end the kept predictions were in the mean, in seconds.
    fn moved_s(&self, end: Time) -> Option<f64> {
        let moves_s = self.kept.iter().map(|kept| apart_s(end, kept.prediction.end));
        (!self.kept.is_empty()).then(|| moves_s.sum::<f64>() / self.kept.len() as f64)
    }

    /// Tasks per second, by the recent marks.
    fn pace(&self, last: Time, known: Known) -> Option<f64> {
        let first = self.marks.first()?;
        let recent = (last.since(first.at) / 2).max(known.task.saturating_mul(2));
        let newest = Some(Mark { ended: self.ended, at: last }).filter(|newest| self.marks.last() != Some(newest));
        let marks = self.marks.iter().filter(|mark| last.since(mark.at) <= recent).chain(&newest);
        let half_a_burst = self.first.map_or(0.0, |(_, burst)| (burst - 1) as f64 / 2.0);
        // Relative to the newest, so that numbers stay small.
        let point = |mark: &Mark| {
            let before = if mark.ended == self.before { half_a_burst } else { 0.0 };
            (-last.since(mark.at).as_secs_f64(), -((self.ended - mark.ended) as f64) - before)
        };
        let points: Vec<(f64, f64)> = marks.map(point).collect();
        let count = points.len() as f64;
        let (sum_x, sum_y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
        let (mean_x, mean_y) = (sum_x / count, sum_y / count);
        let (products, squares) = points.iter().fold((0.0, 0.0), |(products, squares), (x, y)| {
            (products + (x - mean_x) * (y - mean_y), squares + (x - mean_x) * (x - mean_x))
        });
        Some(products / squares).filter(|pace| pace.is_finite() && *pace > 0.0)
    }

    /// The predictions that were kept.
    pub(super) fn kept(&self) -> &[KeptPrediction] {
        &self.kept
    }

    /// By how much the kept predictions were wrong in the mean, as a share of the bag's whole time; `None` where there are none.
    pub(super) fn error(&self, released: Time, closed: Time) -> Option<f64> {
        let took_s = closed.since(released).as_secs_f64();
        let made_before = self.kept.iter().filter(|kept| kept.made < closed);
        let errors: Vec<f64> = made_before.map(|kept| apart_s(kept.prediction.end, closed) / took_s).collect();
        (!errors.is_empty() && took_s > 0.0).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
    }
}

/// How far two moments are apart, in seconds.
fn apart_s(one: Time, other: Time) -> f64 {
    one.since(other).max(other.since(one)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time::ZERO + Duration::from_secs_f64(seconds)
    }

    fn known(tasks: u64, task_s: f64) -> Known {
        Known { tasks, released: Time::ZERO, task: Duration::from_secs_f64(task_s) }
    }

    /// Ends of tasks of a bag that begins at some moment on slots which take so long for a task, as a machine with a queue gives them
    /// out: the next task to the slot that is free first.
    fn ends(tasks: usize, begins_s: f64, slots_s: &[f64]) -> Vec<f64> {
        let mut free: Vec<f64> = vec![begins_s; slots_s.len()];
        let mut ends: Vec<f64> = (0..tasks)
            .map(|_| {
                let next = (0..free.len()).min_by(|one, other| free[*one].total_cmp(&free[*other])).expect("a slot");
                free[next] += slots_s[next];
                free[next]
            })
            .collect();
        ends.sort_by(f64::total_cmp);
        ends
    }

    /// By how much the ends predicted after so many tasks were wrong at most, as a share of the whole time. Between the ends of one burst,
    /// which take no time, nobody looks.
    fn worst(ends: &[f64], task_s: f64, from: usize) -> f64 {
        let (known, mut predicting) = (known(ends.len() as u64, task_s), Predicting::default());
        let last = *ends.last().expect("tasks");
        let mut worst = 0.0_f64;
        for (count, &end) in ends.iter().enumerate() {
            predicting.note(at(end), known);
            if count + 1 >= from
                && ends.get(count + 1) != Some(&end)
                && let Some(prediction) = predicting.predict(at(end), known)
            {
                worst = worst.max((prediction.end.as_secs_f64() - last).abs() / last);
            }
        }
        worst
    }

    #[test]
    fn bursts_of_machines_that_are_alike_and_queues_before_do_not_mislead_it() {
        // Eight at once every ten seconds; after the first burst the end is known.
        assert!(worst(&ends(80, 0.0, &[10.0; 8]), 10.0, 8) < 0.01);
        // The same after an hour in which the bag's turn had not come.
        assert!(worst(&ends(80, 3600.0, &[10.0; 8]), 10.0, 8) < 0.001);
        // One slot alone.
        assert!(worst(&ends(30, 0.0, &[7.0]), 7.0, 1) < 0.01);
        // Slots of which the fastest is ten times as fast as the slowest, and a bag whose tasks take 20 s on this machine.
        let slots = [5.0, 8.0, 13.0, 20.0, 20.0, 31.0, 50.0];
        assert!(worst(&ends(400, 0.0, &slots), 20.0, 40) < 0.06);
    }

    #[test]
    fn machines_that_come_or_go_show_within_as_long_again() {
        let known = known(200, 10.0);
        let mut predicting = Predicting::default();
        // Ten slots until 100 of the tasks have ended after 100 s; then five are gone: the rest takes 200 s.
        let first = ends(100, 0.0, &[10.0; 10]);
        let all: Vec<f64> = first.into_iter().chain(ends(100, 100.0, &[10.0; 5])).collect();
        let mut errors = Vec::new();
        for (count, &end) in all.iter().enumerate() {
            predicting.note(at(end), known);
            if let Some(prediction) = predicting.predict(at(end), known) {
                errors.push((count + 1, (prediction.end.as_secs_f64() - 300.0).abs() / 300.0));
            }
        }
        let at_count = |count: usize| errors.iter().find(|(of, _)| *of == count).expect("predicted").1;
        assert!((at_count(100) - 1.0 / 3.0).abs() < 0.02, "nobody knows that they go: {}", at_count(100));
        assert!(at_count(150) < 0.03, "{}", at_count(150));
    }

    #[test]
    fn a_pause_puts_the_end_off() {
        let (known, mut predicting) = (known(20, 10.0), Predicting::default());
        (1..=10).for_each(|count| predicting.note(at(f64::from(count) * 10.0), known));
        let end = |now: f64| predicting.predict(at(now), known).expect("tasks are left").end.as_secs_f64();
        assert!((end(100.0) - 200.0).abs() < 0.1);
        assert!((end(115.0) - 200.0).abs() < 0.1, "a usual pause");
        assert!((end(500.0) - 580.0).abs() < 0.1, "400 s, of which 20 are usual");
        assert!(predicting.predict(at(9000.0), known).expect("tasks are left").end >= at(9000.0));
    }

    #[test]
    fn predictions_are_kept_and_judged_also_after_a_restart() {
        let all = ends(50, 0.0, &[10.0, 10.0, 14.0]);
        let (known, closed) = (known(50, 10.0), at(all[49]));
        let mut lived = Predicting::default();
        all.iter().for_each(|&end| lived.note(at(end), known));
        let error = lived.error(Time::ZERO, closed).expect("nine were made before the end");
        assert!(error > 0.0 && error < 0.1, "{error}");
        assert_eq!(lived.kept.len(), 9);
        let mut restarted = Predicting::default();
        all.iter().rev().take(30).chain(all.iter().take(20)).for_each(|&end| restarted.restore(at(end)));
        restarted.all_restored(known);
        assert_eq!(restarted.error(Time::ZERO, closed), Some(error));
        assert_eq!(Predicting::default().error(Time::ZERO, closed), None);
        // It is wrong by what it is wrong by.
        let kept = |made: f64, end: f64| {
            let prediction = Prediction { end: at(end), within: Duration::ZERO };
            KeptPrediction { made: at(made), ended: 1, prediction }
        };
        let wrong = Predicting { kept: vec![kept(10.0, 150.0), kept(50.0, 100.0)], ..Predicting::default() };
        assert_eq!(wrong.error(Time::ZERO, at(100.0)), Some(0.25));
    }

    #[test]
    fn ends_at_one_moment_and_bags_of_one_task_predict_nothing_that_is_no_number() {
        let known = known(3, 0.0);
        let mut predicting = Predicting::default();
        assert_eq!(predicting.predict(at(5.0), known), None);
        predicting.note(Time::ZERO, known);
        predicting.note(Time::ZERO, known);
        assert_eq!(predicting.predict(at(5.0), known), None, "no time has passed between the ends");
        predicting.note(at(1.0), known);
        assert_eq!(predicting.predict(at(5.0), known), None, "all have ended");
    }

    #[test]
    fn marks_are_bounded() {
        let (known, mut predicting) = (known(1 << 20, 1.0), Predicting::default());
        for count in 1..200_000_u64 {
            predicting.note(Time::from_micros(count as i64 * 100_000), known);
            assert!(predicting.marks.len() <= MARKS_MAX);
        }
        let prediction = predicting.predict(at(20_000.0), known).expect("tasks are left");
        assert!((prediction.end.as_secs_f64() / 104_857.6 - 1.0).abs() < 0.001, "{prediction:?}");
    }
}
