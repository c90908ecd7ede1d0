//! A machine's link: what it takes in a second, and how often the machines that hold tasks of one submitter write to it, so
//! that its link has room for everything else.
//!
//! A machine takes its link for the paper's until it has downloaded something. A piece of a download came at a rate that the link
//! has at least; its source, or another download, may be what limits it. So the estimate jumps up to the rate of the
//! fastest piece, and sinks slowly while pieces come more slowly. An estimate that is too low costs time, since machines write more
//! rarely; one that is too high fills the link of a submitter with very many machines for a while.
//!
//! Left out: the uplink. Answers to the machines are shorter than what they write, and the shares below are so small that
//! an uplink of an eighth of the downlink has room for them.

use std::time::Duration;

/// A link of the paper, 1 Mb/s, in kB/s: what a machine takes its own for until it has measured it.
pub const LINK_KB_S: u32 = 125;
/// The slowest and the fastest link that are believed, in kB/s: below the first no program arrives in good time, and the second
/// is 10 Gb/s.
const LINK_KB_S_MIN: u32 = 16;
const LINK_KB_S_MAX: u32 = 1_250_000;
/// The estimate moves by this part of the difference towards a slower piece. Our choice: half of the way after five of them.
const SINKS_BY: u32 = 8;

/// Longest time for the answers to one request, however many machines there are. Our choice.
pub(crate) const ANSWER_WITHIN_MAX: Duration = Duration::from_secs(600);
/// Bytes of a `Holding` with its answer, measured on encoded messages; so many of 1,000 bytes on the link are such answers.
const ANSWER_BYTES: u64 = 150;
const ANSWERS_PER_MILLE: u64 = 30;
/// Bytes of a `Renewal` with its answer, measured likewise, and their share.
const RENEWAL_BYTES: u64 = 200;
const RENEWALS_PER_MILLE: u64 = 100;
/// Bytes of `Results` with two tasks. Where every machine writes at once, they take nine tenths of the link.
const RESULTS_BYTES: u64 = 280;
const RESULTS_PER_MILLE: u64 = 900;

/// The estimate after a piece of a download has come at this rate, in kB/s.
pub(crate) fn measured(link_kb_s: u32, piece_kb_s: u32) -> u32 {
    let slower = link_kb_s - (link_kb_s.saturating_sub(piece_kb_s)).div_ceil(SINKS_BY);
    slower.max(piece_kb_s).clamp(LINK_KB_S_MIN, LINK_KB_S_MAX)
}

/// How long a share of a link takes for a message of so many bytes of each of so many machines.
fn takes(machines: u64, bytes: u64, per_mille: u64, link_kb_s: u32) -> Duration {
    let link_kb_s = u64::from(link_kb_s.clamp(LINK_KB_S_MIN, LINK_KB_S_MAX));
    // bytes over kB/s are milliseconds, and over a thousandth of those seconds.
    let micros = u128::from(machines) * u128::from(bytes) * 1_000_000 / u128::from(link_kb_s * per_mille);
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// How long a tenth of a submitter's link takes for the renewals of so many executors.
pub(crate) fn renewals_take(executors: u64, link_kb_s: u32) -> Duration {
    takes(executors, RENEWAL_BYTES, RENEWALS_PER_MILLE, link_kb_s)
}

/// The machines that write to one submitter about one bag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writers {
    /// How many there may be.
    pub(crate) machines: u32,
    /// What the submitter's link takes, in kB/s.
    pub(crate) link_kb_s: u32,
}

impl Writers {
    /// Longest time that they take to answer a request: 3 % of the link each way.
    pub(crate) fn answer_within(self) -> Duration {
        takes(self.machines.into(), ANSWER_BYTES, ANSWERS_PER_MILLE, self.link_kb_s).min(ANSWER_WITHIN_MAX)
    }

    /// How long the whole link takes for results of each of them.
    pub(crate) fn results_take(self) -> Duration {
        takes(self.machines.into(), RESULTS_BYTES, RESULTS_PER_MILLE, self.link_kb_s).min(ANSWER_WITHIN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the paper's link: 25 answers and 400 results in a second, and 62.5 renewals.
    #[test]
    fn machines_write_as_often_as_the_link_allows() {
        let writers = Writers { machines: 1000, link_kb_s: LINK_KB_S };
        assert_eq!(writers.answer_within(), Duration::from_secs(40));
        assert!((2.48..2.5).contains(&writers.results_take().as_secs_f64()), "{:?}", writers.results_take());
        assert_eq!(renewals_take(1000, LINK_KB_S), Duration::from_secs(16));
        let tenfold = Writers { link_kb_s: 10 * LINK_KB_S, ..writers };
        assert_eq!(tenfold.answer_within(), Duration::from_secs(4));
        assert_eq!(Writers { machines: u32::MAX, link_kb_s: 0 }.answer_within(), ANSWER_WITHIN_MAX);
    }

    #[test]
    fn the_fastest_piece_shows_what_a_link_takes() {
        let fast = measured(LINK_KB_S, 4_000);
        assert_eq!(fast, 4_000);
        let slow = (0..5).fold(fast, |link, _| measured(link, 200));
        assert!((2_000..2_200).contains(&slow), "{slow}");
        let sunk = (0..200).fold(fast, |link, _| measured(link, 200));
        assert_eq!(sunk, 200);
        assert_eq!((0..200).fold(LINK_KB_S, |link, _| measured(link, 0)), LINK_KB_S_MIN);
        assert_eq!(measured(LINK_KB_S, u32::MAX), LINK_KB_S_MAX);
    }
}
