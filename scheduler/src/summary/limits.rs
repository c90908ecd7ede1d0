//! Bounds of what a summary may claim.

/// Largest value of a cell; sums stop there.
pub const CELL_MAX: u64 = 1 << 60;
/// Most leaves that a summary may claim.
pub const LEAVES_MAX: u64 = 1 << 40;
/// Largest sum of speeds that a summary may claim, Mop/s.
pub const SPEED_SUM_MOPS_MAX: f64 = (1_u64 << 52) as f64;
/// Speeds are kept in multiples of this, Mop/s, so that sums up to 2^43 Mop/s are exact in any order.
pub const SPEED_STEP_MOPS: f64 = 1.0 / 1024.0;
