//! The grids of the summary: absolute, so that an index means the same value on every machine and any two summaries
//! can be added.

/// Number of stretch samples.
pub const STRETCH_COUNT: usize = 105;
/// Number of horizons.
pub const HORIZON_COUNT: usize = 23;
/// Number of task sizes.
pub const TASK_SIZE_COUNT: usize = 19;
/// Number of release times: one, the moment of the report. More would be another version of the format.
pub const AGES: usize = 1;

/// Samples of the stretch S, s/Mop: 2^-44 (a second for 1.8·10^13 Mop) times powers of 1.5 up to 1.2·10^5.
pub const STRETCHES: [f64; STRETCH_COUNT] = geometric(1.0 / (1_u64 << 44) as f64, 1.5);
/// Samples of the horizon T, seconds: powers of 2 from 1 s to 2^22 s (48 days).
pub const HORIZONS_S: [f64; HORIZON_COUNT] = geometric(1.0, 2.0);
/// Samples of the task size a, Mop: powers of 4 from 1 to 2^36 (a day at 8·10^5 Mop/s).
pub const TASK_SIZES_MOPS: [f64; TASK_SIZE_COUNT] = geometric(1.0, 4.0);

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

pub(super) fn at_least(grid: &[f64], value: f64) -> Option<usize> {
    // Compared this way round, NaN is beyond the last sample.
    grid.iter().position(|&sample| sample >= value)
}
