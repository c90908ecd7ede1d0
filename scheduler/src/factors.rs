//! By what factor a program takes longer on a machine than the reference kernel lets one expect, learned from ended tasks.
//!
//! Speeds are those of one kernel; a program that misses caches, or computes with other numbers, is faster or slower than that on some
//! machines. Each ended task tells a ratio: the time that it ran here by the time that its work, as it was said to be, takes at the speed of the kernel. The factor is the mean of the
//! logarithms of these ratios, shrunk towards 0 (a factor of 1) by the credibility of Bühlmann (*Experience Rating and Credibility*, 1967):
//! n tasks count as n/(n + k), with k the variance within a pair of program and machine by that between pairs. The former is estimated from the
//! ratios, to which a guess counts as [`GUESS_TASKS`] more; the latter is our guess, since few machines have run many programs. So one
//! task moves the factor by a third of what it tells, and five tasks that are alike by seven eighths.
//!
//! Logarithms, because errors multiply, and a machine that needs twice as long is as likely as one that needs half. Half of the observed
//! variance is added, since the mean of times counts and not their median. Older tasks count less: with [`TASKS_MAX`] all count half.
//!
//! On a machine that is slow as such (`slowness`) programs are shrunk towards what it needs for all of them (Jewell 1975).
//!
//! Left out: factors of machine models, which no machine tells others; records on disk. A restart relearns.

use std::collections::BTreeMap;

use crate::bag::BlobId;

/// Standard deviation of the logarithms of factors between pairs of program and machine. Our guess: the times of programs of the SPEC
/// suites relative to each other differ by a third between processors of one time.
const BETWEEN: f64 = 0.3;
/// The same of tasks of one pair, as long as few have ended: by the coefficient of variation of tasks in bags of a production grid, 0.45.
const WITHIN: f64 = 0.43;
/// That guess counts as much as so many tasks. Our choice.
const GUESS_TASKS: f64 = 2.0;
/// Most tasks that are remembered with full weight. Our choice.
const TASKS_MAX: f64 = 64.0;
/// Ratios are taken to lie within this factor of 1. Our choice.
const RATIO_MAX: f64 = 64.0;
/// Most pairs that are remembered; the one that was not used for longest is forgotten. Our choice.
const PAIRS_MAX: usize = 256;

/// The factor of one pair of program and machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Factor {
    tasks: f64,
    /// Of the logarithms of ratios.
    sum: f64,
    squares: f64,
}

impl Factor {
    /// A task has ended that took so many times what was expected. Ignored unless above 0 and finite.
    pub(crate) fn note(&mut self, ratio: f64) {
        if !ratio.is_finite() || ratio <= 0.0 {
            return;
        }
        if self.tasks >= TASKS_MAX {
            *self = Self { tasks: self.tasks / 2.0, sum: self.sum / 2.0, squares: self.squares / 2.0 };
        }
        let log = ratio.clamp(1.0 / RATIO_MAX, RATIO_MAX).ln();
        *self = Self { tasks: self.tasks + 1.0, sum: self.sum + log, squares: self.squares + log * log };
    }

    /// The factor, above 0; 1 before any task has ended.
    pub(crate) fn value(&self) -> f64 {
        self.value_beside(1.0)
    }

    /// The factor, above 0, on a machine on which all programs take so many times as long; that before any task has ended.
    fn value_beside(&self, slowness: f64) -> f64 {
        if self.tasks == 0.0 {
            return slowness;
        }
        let Moments { mean, spread, within } = self.moments();
        let weight = self.tasks / (self.tasks + within / (BETWEEN * BETWEEN));
        let usual = slowness.ln();
        (usual + weight * (mean - usual + spread / self.tasks / 2.0)).exp()
    }

    /// The mean of the logarithms as what they say of the machine, and its variance, that between pairs included; `None` before any task has ended.
    pub(crate) fn of_machine(&self) -> Option<(f64, f64)> {
        let Moments { mean, within, .. } = (self.tasks > 0.0).then(|| self.moments())?;
        Some((mean, BETWEEN * BETWEEN + within / self.tasks))
    }

    /// Of the logarithms of ratios, of which there is one.
    fn moments(&self) -> Moments {
        let mean = self.sum / self.tasks;
        let spread = (self.squares - self.tasks * mean * mean).max(0.0);
        let within = (GUESS_TASKS * WITHIN * WITHIN + spread) / (GUESS_TASKS + self.tasks - 1.0);
        Moments { mean, spread, within }
    }
}

/// Mean, sum of the squared deviations from it, and estimated variance of one pair.
struct Moments {
    mean: f64,
    spread: f64,
    within: f64,
}

/// The factors of this machine, by program.
#[derive(Debug, Default)]
pub(crate) struct Factors {
    pairs: BTreeMap<BlobId, (Factor, u64)>,
    /// How often any was used, which tells which one was not for longest.
    uses: u64,
}

impl Factors {
    /// A task of this program has ended ([`Factor::note`]).
    pub(crate) fn note(&mut self, program: BlobId, ratio: f64) {
        self.uses += 1;
        let (factor, used) = self.pairs.entry(program).or_default();
        *used = self.uses;
        factor.note(ratio);
        if self.pairs.len() > PAIRS_MAX
            && let Some(oldest) = self.pairs.iter().min_by_key(|(_, (_, used))| *used).map(|(&program, _)| program)
        {
            self.pairs.remove(&oldest);
        }
    }

    /// The factor of this program, on a machine on which all take so many times as long.
    pub(crate) fn of(&self, program: BlobId, slowness: f64) -> f64 {
        self.pairs.get(&program).map_or(slowness, |(factor, _)| factor.value_beside(slowness))
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

    use super::*;

    fn after(ratios: &[f64]) -> f64 {
        let mut factor = Factor::default();
        ratios.iter().for_each(|&ratio| factor.note(ratio));
        factor.value()
    }

    #[test]
    fn little_evidence_moves_little_and_much_evidence_all_the_way() {
        assert_eq!(after(&[]), 1.0);
        // By hand: one task has k = 0.43²/0.3² = 2.05, and so a weight of 0.33: 2^0.33.
        assert!((after(&[2.0]) - 1.255).abs() < 0.002, "{}", after(&[2.0]));
        // Five that are alike: k = 2·0.43²/6/0.3² = 0.68, a weight of 0.88.
        assert!((after(&[2.0; 5]) - 1.84).abs() < 0.01, "{}", after(&[2.0; 5]));
        assert!((after(&[2.0; 60]) - 2.0).abs() < 0.02 && (after(&[0.1; 60]) - 0.1).abs() < 0.003);
        // What differs widely is believed less than what agrees.
        assert!(after(&[1.0, 4.0, 1.0, 4.0, 2.0]) < after(&[2.0; 5]) * 1.1);
        assert!(after(&[f64::NAN, -1.0, 0.0, f64::INFINITY]) == 1.0);
    }

    #[test]
    fn a_machine_that_changes_is_learned_anew() {
        let mut factor = Factor::default();
        (0..1000).for_each(|_| factor.note(1.0));
        (0..200).for_each(|_| factor.note(3.0));
        assert!((factor.value() - 3.0).abs() < 0.4, "{}", factor.value());
    }

    #[test]
    fn on_a_slow_machine_programs_are_expected_to_take_as_much_longer() {
        let (factors, program) = (Factors::default(), BlobId([1; 32]));
        assert_eq!(factors.of(program, 5.0), 5.0);
        let mut factor = Factor::default();
        (0..60).for_each(|_| factor.note(1.0));
        assert!(factor.value_beside(5.0) < 1.1, "it is known");
    }

    #[test]
    fn what_was_not_used_for_longest_is_forgotten() {
        let mut factors = Factors::default();
        let program = |number: usize| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_le_bytes());
            BlobId(id)
        };
        for number in 0..2 * PAIRS_MAX {
            factors.note(program(0), 2.0);
            factors.note(program(number + 1), 2.0);
        }
        assert_eq!((factors.pairs.len(), factors.of(program(1), 1.0)), (PAIRS_MAX, 1.0));
        assert!(factors.of(program(0), 1.0) > 1.9);
    }

    /// Mean error of the predicted time of the task that follows `seen` ones, in percent: without factors, by the plain mean of the ratios
    /// (as of one bag without declared sizes), and with factors. Printed for docs/lab/prediction.md.
    #[test]
    fn factors_predict_better_than_none_and_than_plain_means() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut normal = move || (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
        let mut of = |between: f64, cv: f64, seen: usize| {
            let sigma = (1.0 + cv * cv).ln().sqrt();
            let mut errors = [0.0; 3];
            let pairs = 4000;
            for _ in 0..pairs {
                let truth = (between * normal()).exp();
                let mut ratio = || truth * (sigma * normal() - sigma * sigma / 2.0).exp();
                let ratios: Vec<f64> = (0..seen).map(|_| ratio()).collect();
                let mean = if seen == 0 { 1.0 } else { ratios.iter().sum::<f64>() / seen as f64 };
                let next = ratio();
                for (error, predicted) in errors.iter_mut().zip([1.0, mean, after(&ratios)]) {
                    *error += 100.0 * (predicted - next).abs() / next / f64::from(pairs);
                }
            }
            println!(
                "between {between}, within {cv}, {seen} seen: none {:.1}, mean {:.1}, factor {:.1}",
                errors[0], errors[1], errors[2]
            );
            errors
        };
        for between in [0.0, 0.3, 0.6] {
            for cv in [0.0, 0.1, 0.45] {
                let [none, mean, factor] = of(between, cv, 1);
                assert!(factor <= none.max(mean) * 1.02, "{between} {cv}");
                for seen in [5, 20] {
                    let [none, mean, factor] = of(between, cv, seen);
                    assert!(factor < mean * 1.1 + 7.0 && (between == 0.0 || factor < none), "{between} {cv} {seen}");
                }
            }
        }
    }
}
