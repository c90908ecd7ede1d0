//! How slow a machine is, whatever it runs. On a machine whose processor is too hot, or shares its caches with others, all tasks take longer than
//! the speed that the machine states lets expect.
//!
//! The tasks of the last hour tell, [`SEEN_MAX`] at most: each by the time that it ran, divided by the time that it should have run. The tasks of
//! one submitter are one voice, since their work may have been said wrongly. Where all are of one submitter, those of one program are a voice. One
//! voice alone says nothing. The effect of the machine is the mean of the voices' logarithms, weighted by their precision; its variance is scaled by
//! what the voices differ beyond it (Birge, *Phys. Rev.* 40, 1932). The effect counts as far as its square exceeds [`SURE`] variances, as in the
//! positive part of James and Stein's estimator.
//!
//! After an hour without tasks a machine counts as being as fast as it states, and is tried again. No machine is taken to be faster than it states.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use crate::bag::BlobId;
use crate::factors::Factor;

/// Most tasks that count, and for how long each does. Our choice: a machine that was slow and is fast again knows that after as many tasks, or that time.
const SEEN_MAX: usize = 32;
const SEEN_FOR: Duration = Duration::from_secs(3600);
/// A machine is slow as far as the square of what is seen exceeds so many variances: two standard errors. Our choice.
const SURE: f64 = 4.0;

/// A task that has ended, or runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) submitter: PeerId,
    pub(crate) program: BlobId,
    /// For how many times as long as expected it ran.
    pub(crate) ratio: f64,
}

/// Tasks that ended of late, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<(Time, Seen)>);

impl Recent {
    /// A task has ended.
    pub(crate) fn note(&mut self, seen: Seen, now: Time) {
        if self.0.len() == SEEN_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, seen));
    }

    /// The speed that the machine states is now so many times what it was.
    pub(crate) fn restated(&mut self, times: f64) {
        self.0.iter_mut().for_each(|(_, seen)| seen.ratio *= times);
    }

    /// Forgets what is too old; returns whether that was anything.
    pub(crate) fn forget(&mut self, now: Time) -> bool {
        let before = self.0.len();
        self.0.retain(|(at, _)| *at + SEEN_FOR > now);
        self.0.len() < before
    }

    /// When something is forgotten next.
    pub(crate) fn due(&self) -> Option<Time> {
        self.0.front().map(|(at, _)| *at + SEEN_FOR)
    }

    /// How many times as long all tasks take here, at least 1: by those that ended, and by `running`, which have run for so long and go on.
    pub(crate) fn slowness(&self, running: &[Seen]) -> f64 {
        let all = || self.0.iter().map(|(_, seen)| seen).chain(running);
        let submitters: BTreeSet<PeerId> = all().map(|seen| seen.submitter).collect();
        let mut voices: BTreeMap<[u8; 32], Factor> = BTreeMap::new();
        for seen in all() {
            let voice = if submitters.len() > 1 { seen.submitter.0 } else { seen.program.0 };
            voices.entry(voice).or_default().note(seen.ratio);
        }
        let (mut precision, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for (mean, variance) in voices.values().filter_map(Factor::of_machine) {
            precision += 1.0 / variance;
            sum += mean / variance;
            squares += mean * mean / variance;
        }
        if voices.len() < 2 || sum <= 0.0 {
            return 1.0;
        }
        let mean = sum / precision;
        let differ = (squares - precision * mean * mean).max(0.0) / (voices.len() - 1) as f64;
        let variance = differ.max(1.0) / precision;
        (mean * (1.0 - SURE * variance / (mean * mean)).max(0.0)).exp()
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

    use super::*;

    fn seen(submitter: u8, program: u8, ratio: f64) -> Seen {
        Seen { submitter: PeerId([submitter; 32]), program: BlobId([program; 32]), ratio }
    }

    /// How slow a machine is whose tasks of so many programs took so many times what was said, each program of a submitter of its own, and on which others run on.
    fn slow(ended: &[&[f64]], running: &[(u8, f64)]) -> f64 {
        let mut recent = Recent::default();
        for (number, ratios) in (0..).zip(ended) {
            ratios.iter().for_each(|&ratio| recent.note(seen(number, number, ratio), Time::ZERO));
        }
        let running: Vec<Seen> = running.iter().map(|&(number, ratio)| seen(number, number, ratio)).collect();
        recent.slowness(&running)
    }

    #[test]
    fn a_machine_is_slow_on_which_the_tasks_of_several_take_long() {
        assert_eq!(slow(&[], &[]), 1.0);
        assert_eq!(slow(&[&[10.0; 20]], &[]), 1.0, "its work may have been said wrongly");
        // By hand: two voices with a variance of 0.43² + 0.3² each, so of 0.137 together; 2.3·(1 - 4·0.137/2.3²) = 2.06.
        let two = slow(&[&[10.0], &[10.0]], &[]);
        assert!((two - 7.88).abs() < 0.05, "{two}");
        let many = slow(&[&[10.0; 10], &[10.0; 10], &[10.0; 10]], &[]);
        assert!((9.0..10.0).contains(&many), "{many}");
        assert_eq!(slow(&[&[2.0], &[2.0]], &[]), 1.0, "that may be chance");
        assert_eq!(slow(&[&[10.0], &[1.0], &[1.0]], &[]), 1.0, "the first was said wrongly");
        assert_eq!(slow(&[&[0.1; 9], &[0.1; 9], &[0.1; 9]], &[]), 1.0, "it is fast");
        let runs_on = slow(&[], &[(0, 4.0), (1, 4.0)]);
        assert!((2.0..4.0).contains(&runs_on), "{runs_on}");
        assert!(slow(&[&[4.0]], &[(0, 8.0), (1, 8.0)]) > runs_on);
    }

    #[test]
    fn one_submitter_is_one_voice_where_there_are_others() {
        let of = |tasks: &[Seen]| {
            let mut recent = Recent::default();
            tasks.iter().for_each(|task| recent.note(*task, Time::ZERO));
            recent.slowness(&[])
        };
        let understated = [seen(1, 1, 64.0), seen(1, 2, 64.0), seen(1, 3, 64.0)];
        assert!(of(&understated) > 10.0, "nobody else has tasks here");
        assert_eq!(of(&[understated.as_slice(), &[seen(2, 4, 1.0)]].concat()), 1.0);
    }

    #[test]
    fn a_machine_that_changes_is_known_after_some_tasks_or_an_hour() {
        let mut recent = Recent::default();
        let work = |recent: &mut Recent, times: f64, tasks: u8, from: Time| {
            (0..tasks).for_each(|number| recent.note(seen(number % 8, number, times), from));
            recent.slowness(&[])
        };
        assert_eq!(work(&mut recent, 1.0, 100, Time::ZERO), 1.0);
        let after_eight = work(&mut recent, 10.0, 24, Time::ZERO);
        assert!(after_eight > 2.0, "{after_eight}");
        assert!(work(&mut recent, 10.0, 8, Time::ZERO) > 8.0);
        assert_eq!(work(&mut recent, 1.0, 32, Time::ZERO), 1.0);
        assert!(work(&mut recent, 10.0, 32, Time::ZERO) > 8.0);
        let end = recent.due().expect("tasks are remembered");
        assert!(!recent.forget(end - Duration::from_millis(1)) && recent.slowness(&[]) > 8.0);
        assert!(recent.forget(end));
        assert_eq!((recent.slowness(&[]), recent.due()), (1.0, None));
        // A machine that states a tenth of its speed expects ten times the time.
        assert!(work(&mut recent, 10.0, 32, end) > 8.0);
        recent.restated(0.1);
        assert_eq!(recent.slowness(&[]), 1.0);
    }

    /// On a machine that is as fast as it says, programs and tasks differ by as much as is assumed of them.
    #[test]
    fn few_machines_are_taken_for_slow_that_are_not() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut normal = move || (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
        let mut slow = Vec::new();
        for _ in 0..2000 {
            let mut recent = Recent::default();
            for number in 0..5 {
                let of_program = normal() * 0.3;
                (0..3)
                    .for_each(|_| recent.note(seen(number, number, (of_program + normal() * 0.43).exp()), Time::ZERO));
            }
            slow.push(recent.slowness(&[]));
        }
        let taken_for_slow = slow.iter().filter(|&&times| times > 1.0).count();
        assert!(taken_for_slow < 100, "{taken_for_slow} of 2000, two standard errors are exceeded by 2.3 %");
        assert!(slow.iter().all(|&times| times < 1.7), "{:?}", slow.iter().copied().reduce(f64::max));
    }
}
