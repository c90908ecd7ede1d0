//! Latencies between machines: one for all, or one for each pair.
//!
//! Latencies of pairs come from the quantiles of round trips in `docs/design/defaults.md`, or from a matrix of measured
//! round trips, of which each machine has a row. A pair keeps its latency, the same both ways, for the whole run;
//! latencies below [`PAIR_MIN`] are raised to it, since machines are simulated independently for windows of the
//! shortest latency.

pub(crate) mod matrix;

use std::sync::Arc;

use crate::event_queue::HostIndex;
use crate::random::quantile;
use crate::scenario::{Latencies, Scenario};
use crate::size::mix;

pub use self::matrix::{Matrix, PAIR_MIN};

/// Quantiles of round trips over the Internet, in milliseconds, and our ends of the distribution.
const INTERNET_MS: [(f64, f64); 8] =
    [(0.0, 8.0), (0.05, 19.0), (0.25, 59.0), (0.5, 135.0), (0.75, 205.0), (0.95, 331.0), (0.99, 425.0), (1.0, 600.0)];
/// The same between homes.
const HOMES_MS: [(f64, f64); 6] =
    [(0.0, 20.0), (0.25, 110.0), (0.5, 220.0), (0.75, 440.0), (0.95, 920.0), (1.0, 2_000.0)];
/// Steps in which a distribution is tabulated.
const STEPS_BITS: u32 = 10;

/// Latencies of all pairs.
#[derive(Clone, Debug)]
pub(crate) enum Pairs {
    /// By the quantiles of a distribution, in microseconds, one way.
    Drawn { table: Arc<[u32]>, seed: u64 },
    /// By a matrix, in which each machine has a row.
    Measured { matrix: Arc<Matrix>, seed: u64 },
}

impl Pairs {
    /// The latencies of a scenario's pairs; none if all latencies are equal.
    pub(crate) fn of(scenario: &Scenario) -> Option<Self> {
        let drawn = |points: &[(f64, f64)]| {
            let steps = 1u32 << STEPS_BITS;
            let middle = |step: u32| (f64::from(step) + 0.5) / f64::from(steps);
            let table = (0..steps).map(|step| (quantile(points, middle(step)) * 500.0) as u32).collect();
            Some(Self::Drawn { table, seed: scenario.seed })
        };
        match scenario.latencies {
            Latencies::Constant => None,
            Latencies::Internet => drawn(&INTERNET_MS),
            Latencies::Homes => drawn(&HOMES_MS),
            Latencies::Matrix => {
                let matrix = scenario.inputs.latencies.clone()?;
                Some(Self::Measured { matrix, seed: scenario.seed })
            }
        }
    }

    /// One way, in microseconds.
    pub(crate) fn one_way_us(&self, from: HostIndex, to: HostIndex) -> u64 {
        let (low, high) = (u64::from(from.min(to)), u64::from(from.max(to)));
        let us = match self {
            Self::Drawn { table, seed } => {
                let chance = mix(mix(*seed, low + 1), high + 1);
                table[(chance >> (64 - STEPS_BITS)) as usize]
            }
            Self::Measured { matrix, seed } => {
                let place = |host: u64| (mix(mix(*seed, host + 1), 7) >> 16) as usize % matrix.side;
                matrix.one_way_us[place(low) * matrix.side + place(high)]
            }
        };
        u64::from(us).max(PAIR_MIN.as_micros() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_latencies_have_the_quantiles_and_are_the_same_both_ways() {
        let scenario = Scenario { latencies: Latencies::Internet, ..Scenario::default() };
        let pairs = Pairs::of(&scenario).unwrap();
        let mut all: Vec<u64> = (0..200)
            .flat_map(|from| (0..from).map(move |to| (from, to)))
            .map(|(from, to)| pairs.one_way_us(from, to))
            .collect();
        assert_eq!(pairs.one_way_us(3, 9), pairs.one_way_us(9, 3));
        all.sort_unstable();
        for (share, round_trip_ms) in [(0.25, 59.0), (0.5, 135.0), (0.95, 331.0)] {
            let found = all[(all.len() as f64 * share) as usize] as f64 / 500.0;
            assert!((found / round_trip_ms - 1.0).abs() < 0.05, "{found} instead of {round_trip_ms}");
        }
    }

    #[test]
    fn a_matrix_is_square_and_its_faults_are_named_with_their_line() {
        let matrix = Matrix::parse("0 100 20\n100 0 1\n\n20 1 0\n").unwrap();
        assert_eq!((matrix.side, matrix.one_way_us[1]), (3, 50_000));
        let mut scenario = Scenario { latencies: Latencies::Matrix, ..Scenario::default() };
        scenario.inputs.latencies = Some(Arc::new(matrix));
        let pairs = Pairs::of(&scenario).unwrap();
        let others = (0..30).flat_map(|from| (0..from).map(move |to| (from, to)));
        let all: std::collections::BTreeSet<u64> = others.map(|(from, to)| pairs.one_way_us(from, to)).collect();
        // Latencies below the minimum are raised to it.
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [4_000, 10_000, 50_000]);
        for (text, sentence) in [
            ("0 1\n1 0 2\n", "line 2: 3 values where the first row has 2"),
            ("0 1 2\n1 0 2\n2 2", "line 3: 2 values where the first row has 3"),
            ("0 1 2\n1 0 2\n", "it ends after 2 rows where 3 are expected"),
            ("0 1\n1 0\n\n1 2\n", "line 4: row 3 of a matrix whose rows have 2 values"),
            ("", "at least two rows"),
            ("0 x\n1 0\n", "line 1: x is not a time"),
            ("0 -1\n1 0\n", "line 1: -1 is not a time"),
            ("0\n", "at least two rows"),
            // Seconds.
            ("0 0.11 0.42\n0.11 0 0.09\n0.42 0.09 0\n", "are these seconds? Write milliseconds"),
        ] {
            let error = Matrix::parse(text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}");
        }
    }
}
