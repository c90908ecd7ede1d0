//! Round trips that were measured between places, as a matrix.

use std::path::Path;
use std::time::Duration;

use crate::input::{self, Malformed, malformed};

/// Shortest latency of a pair, one way: our choice.
pub const PAIR_MIN: Duration = Duration::from_millis(4);

/// Measured round trips between places.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    pub(super) side: usize,
    /// One way, in microseconds, row by row.
    pub(super) one_way_us: Vec<u32>,
}

impl Matrix {
    /// Reads a matrix of round trips in milliseconds, plain or compressed by gzip.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what is expected there.
    pub fn read(path: &Path) -> Result<Self, String> {
        input::read(path, "give a matrix of round trips in milliseconds", Self::parse)
    }

    /// Parses a matrix: a line for each row.
    ///
    /// # Errors
    /// The flaw, and its line.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut one_way_us = Vec::new();
        // By the first row, since others may be missing.
        let (mut side, mut rows) = (0, 0);
        for (number, line) in input::lines(text) {
            let before = one_way_us.len();
            for field in line.split_whitespace() {
                match field.parse::<f64>() {
                    Ok(round_trip_ms) if (0.0..1e6).contains(&round_trip_ms) => {
                        one_way_us.push((round_trip_ms * 500.0) as u32);
                    }
                    _ => return malformed(number, format!("{field} is not a time in milliseconds")),
                }
            }
            let found = one_way_us.len() - before;
            rows += 1;
            if rows == 1 {
                side = found;
            }
            if found != side {
                return malformed(number, format!("{found} values where the first row has {side}"));
            }
            if rows > side {
                return malformed(number, format!("row {rows} of a matrix whose rows have {side} values"));
            }
        }
        if side < 2 {
            return Err(Malformed::whole("a matrix has at least two rows"));
        }
        if rows < side {
            let sentence = format!("it ends after {rows} rows where {side} are expected, as many as each has values");
            return Err(Malformed::whole(sentence));
        }
        // Such a matrix would make all pairs equal.
        if one_way_us.iter().all(|&us| Duration::from_micros(us.into()) < PAIR_MIN) {
            let shortest_ms = 2 * PAIR_MIN.as_millis();
            let sentence = format!(
                "no round trip reaches {shortest_ms} ms, the shortest that is simulated: are these seconds? Write milliseconds"
            );
            return Err(Malformed::whole(sentence));
        }
        Ok(Self { side, one_way_us })
    }
}
