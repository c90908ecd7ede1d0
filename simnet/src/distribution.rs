//! Empirical distributions, as in the workload models of the Parallel Workloads Archive: a line of text for each value,
//! with the share of all values that are not above it.

use std::path::Path;

use crate::input::{self, Malformed, malformed};

/// Values and their cumulative shares, both rising.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// (share, value).
    points: Vec<(f64, f64)>,
}

/// Largest value.
const VALUE_MAX: f64 = 1e12;
/// The last share is at least this: rounded ones seldom reach 1.
const LAST_SHARE_MIN: f64 = 0.999;

impl Distribution {
    /// Reads a distribution, plain or compressed by gzip.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what is expected there.
    pub fn read(path: &Path) -> Result<Self, String> {
        input::read(path, "give a line for each value: it, and the share of all that are not above it", Self::parse)
    }

    /// Parses a distribution; lines that begin with # are comments.
    ///
    /// # Errors
    /// The flaw, and its line.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (number, line) in input::lines(text).filter(|(_, line)| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let &[value, share] = fields.as_slice() else {
                return malformed(number, format!("{} fields where a value and a share are expected", fields.len()));
            };
            let Some(value) = value.parse().ok().filter(|value| (0.0..=VALUE_MAX).contains(value)) else {
                return malformed(number, format!("{value} is not a value between 0 and {VALUE_MAX:e}"));
            };
            let Some(share) = share.parse().ok().filter(|share| (0.0..=1.0).contains(share)) else {
                return malformed(number, format!("{share} is not a share between 0 and 1"));
            };
            let (share_before, value_before) = points.last().copied().unwrap_or((0.0, -1.0));
            if value <= value_before {
                return malformed(number, format!("{value} is not above the value before it, {value_before}"));
            }
            if share < share_before {
                return malformed(number, format!("the share {share} is below the one before it, {share_before}"));
            }
            points.push((share, value));
        }
        match points.last() {
            Some((share, _)) if *share >= LAST_SHARE_MIN => Ok(Self { points }),
            Some((share, _)) => Err(Malformed::whole(format!("the last share is {share} and not 1"))),
            None => Err(Malformed::whole("there is no value in it")),
        }
    }

    /// A distribution of rising values, each with its share; at least one.
    pub(crate) fn of_shares(shares: &[(f64, f64)]) -> Self {
        let all: f64 = shares.iter().map(|(_, share)| share).sum();
        let mut sum = 0.0;
        let points = shares.iter().map(|&(value, share)| {
            sum += share / all;
            (sum, value)
        });
        Self { points: points.collect() }
    }

    /// The value at this share, in [0, 1): with a uniform share, a draw.
    pub fn quantile(&self, share: f64) -> f64 {
        let at = self.points.partition_point(|(below, _)| *below <= share);
        self.points[at.min(self.points.len() - 1)].1
    }

    /// The mean of draws.
    pub fn mean(&self) -> f64 {
        let mut before = 0.0;
        let mut sum = 0.0;
        for (share, value) in &self.points {
            sum += (share - before) * value;
            before = *share;
        }
        // The share missing to 1 counts as the last value.
        sum + (1.0 - before) * self.most()
    }

    /// The largest value.
    fn most(&self) -> f64 {
        self.points.last().map_or(0.0, |(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_drawn_as_often_as_the_file_says() {
        let found = Distribution::parse("0 0\n1 .5\n# two is never drawn\n2 .5\n\n8 0.9995\n").unwrap();
        let drawn = [0.0, 0.499, 0.5, 0.99949, 0.9999].map(|share| found.quantile(share));
        assert_eq!(drawn, [1.0, 1.0, 8.0, 8.0, 8.0]);
        let mean = (0..1_000).map(|at| found.quantile((f64::from(at) + 0.5) / 1e3)).sum::<f64>() / 1e3;
        assert!((mean - found.mean()).abs() < 1e-9 && (mean - 4.5).abs() < 1e-9, "{mean} and {}", found.mean());
        assert_eq!(found.most(), 8.0);
    }

    #[test]
    fn flaws_are_named_with_their_line() {
        for (text, sentence) in [
            ("1 0.5\n2\n", "line 2: 1 fields where a value and a share are expected"),
            ("one 0.5\n", "line 1: one is not a value"),
            ("-1 0.5\n", "line 1: -1 is not a value"),
            ("1 nan\n", "line 1: nan is not a share"),
            ("1 1.5\n", "line 1: 1.5 is not a share"),
            ("\n1 0.5\n1 0.6\n", "line 3: 1 is not above the value before it, 1"),
            ("1 0.5\n2 0.4\n", "line 2: the share 0.4 is below the one before it, 0.5"),
            ("1 0.5\n", "the last share is 0.5 and not 1"),
            ("", "there is no value in it"),
        ] {
            let error = Distribution::parse(text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error} for {text}");
        }
    }
}
