//! The grids of the summary: absolute, so that an index means the same value on every machine and any two summaries
//! can be added.

use serde::{Deserialize, Serialize};

/// What the lines and columns of a summary stand for, and what follows from that: how requests are looked up and booked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryForm {
    /// Ours: lines are horizons ([`HORIZONS_S`]), columns task sizes in steps of 4 ([`TASK_SIZES_MOPS`]); cells are for the
    /// moment of the report, and lower bounds for all requests that map to them.
    #[default]
    Horizons,
    /// The paper's (§5.2, §5.3): lines are application sizes and columns task sizes, both in steps of 2
    /// ([`PAPERS_APPLICATION_SIZES_MOPS`], [`PAPERS_TASK_SIZES_MOPS`]); cells are for one release time, the next multiple of five
    /// minutes, and requests find the nearest. For simulations only (docs/adr/0039): agents do not read it.
    Paper,
}

impl SummaryForm {
    /// log₂ of the step between two task sizes. Between two lines it is 1, so that a line that many behind another is for as many tasks of the next
    /// size on an idle leaf.
    pub(super) fn task_steps(self) -> u32 {
        match self {
            Self::Horizons => 2,
            Self::Paper => 1,
        }
    }
}

/// Number of stretch samples.
pub const STRETCH_COUNT: usize = 105;
/// Number of horizons, and of the paper's application sizes.
pub const HORIZON_COUNT: usize = 23;
/// Number of task sizes, in both forms.
pub const TASK_SIZE_COUNT: usize = 19;
/// Samples of the stretch S, s/Mop: 2^-44 (a second for 1.8·10^13 Mop) times powers of 1.5 up to 1.2·10^5.
pub const STRETCHES: [f64; STRETCH_COUNT] = geometric(1.0 / (1_u64 << 44) as f64, 1.5);
/// Samples of the horizon T, seconds: powers of 2 from 1 s to 2^22 s (48 days).
pub const HORIZONS_S: [f64; HORIZON_COUNT] = geometric(1.0, 2.0);
/// Samples of the task size a, Mop: powers of 4 from 1 to 2^36 (a day at 8·10^5 Mop/s).
pub const TASK_SIZES_MOPS: [f64; TASK_SIZE_COUNT] = geometric(1.0, 4.0);

/// Samples of the application size w in [`SummaryForm::Paper`], Mop: powers of 2 from 2^14 to 2^36, from a task of half a minute on a slow
/// machine to the paper's load on 20,000 machines. The step is the paper's, the range our choice.
pub const PAPERS_APPLICATION_SIZES_MOPS: [f64; HORIZON_COUNT] = geometric((1_u64 << 14) as f64, 2.0);
/// Samples of the task size a in [`SummaryForm::Paper`], Mop: powers of 2 from 2^10 to 2^28, from half a second to a day and a half
/// on a machine of 2,000 Mop/s. The step is the paper's, the range our choice.
pub const PAPERS_TASK_SIZES_MOPS: [f64; TASK_SIZE_COUNT] = geometric((1_u64 << 10) as f64, 2.0);
/// How many samples of the stretch a summary of [`SummaryForm::Paper`] has, from the smallest that is feasible on. The paper fixes
/// the number and does not say it. Ours reaches on an idle machine of 2,000 Mop/s from
/// the smallest stretch at which any cell is above 0 to 1 s/Mop, that of a single task of half a minute which waited for eight hours.
pub const PAPERS_STRETCH_COUNT: usize = 64;

/// first, first·step, first·step² …, by repeated multiplication: the same on every machine.
const fn geometric<const N: usize>(first: f64, step: f64) -> [f64; N] {
    let mut values = [first; N];
    let mut i = 1;
    while i < N {
        values[i] = values[i - 1] * step;
        i += 1;
    }
    values
}

/// Index of the smallest sample of the stretch that is at least `stretch`; `None` above the last.
pub fn stretch_at_least(stretch: f64) -> Option<usize> {
    at_least(&STRETCHES, stretch)
}

pub(super) fn at_most(grid: &[f64], value: f64) -> Option<usize> {
    grid.partition_point(|&sample| sample <= value).checked_sub(1)
}

/// Index of the sample nearest to a value; of two as near the smaller.
pub(super) fn nearest(grid: &[f64], value: f64) -> usize {
    match grid.partition_point(|&sample| sample < value) {
        0 => 0,
        above if above == grid.len() => above - 1,
        above if value - grid[above - 1] <= grid[above] - value => above - 1,
        above => above,
    }
}

pub(super) fn at_least(grid: &[f64], value: f64) -> Option<usize> {
    // Compared this way round, NaN is beyond the last sample.
    grid.iter().position(|&sample| sample >= value)
}
