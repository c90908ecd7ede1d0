//! How large tasks are whose ratios of bytes to operations differ: the paper does not say.

use clap::ValueEnum;

/// Work of a task where it is the same for all, in MFLOP: a product of two 3500 × 3500 matrices. Only relative sizes matter to rates.
const WORK_MFLOP: f64 = 2.0 * 3500.0 * 3500.0 * 3500.0 / 1e6;

/// What applications with different ratios have in common.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Scale {
    /// A task of each has the same number of operations.
    EqualFlops,
    /// A task of each has the same number of bytes.
    EqualBytes,
    /// Half-way: operations fall, and bytes rise, with the square root of the ratio.
    Between,
}

impl Scale {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::EqualFlops, Self::EqualBytes, Self::Between];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::EqualFlops => "equal_flops",
            Self::EqualBytes => "equal_bytes",
            Self::Between => "between",
        }
    }

    /// MFLOP and MB of a task with so many bytes for an operation, where the smallest ratio is `ratio_min`.
    pub(super) fn task(self, ratio_min: f64, ratio: f64) -> (f64, f64) {
        let mflop = match self {
            Self::EqualFlops => WORK_MFLOP,
            Self::EqualBytes => WORK_MFLOP * ratio_min / ratio,
            Self::Between => WORK_MFLOP * (ratio_min / ratio).sqrt(),
        };
        (mflop, mflop * ratio)
    }
}
