//! The availability summary: how many tasks a subtree can take, in four dimensions (paper §5.2), and a router's operations
//! on it: adding (§5.2), booking tasks that it has just sent (§5.3), looking up the smallest stretch (Algorithm 4).
//!
//! The paper samples n(S, r, w, a). Simulations can have that matrix ([`SummaryForm::Paper`], `papers`; docs/adr/0039), by the same
//! code but for what its samples are. Ours differs in this:
//!
//! - The second coordinate is the horizon T = S·w − g, g the age: at fixed S the availability depends on (r, w)
//!   only through the deadline, which lies T from now.
//! - All grids are absolute, so that any two summaries can be added: S in steps of 1.5 ([`STRETCHES`]), T in steps
//!   of 2 ([`HORIZONS_S`]), a in steps of 4 ([`TASK_SIZES_MOPS`]).
//! - One release time, the moment of the report (the paper found one value best, and takes one ahead). A cell stays a
//!   lower bound as time passes, while the leaf serves its queue in the order of deadlines at that stretch; it
//!   serves in the order at its own maximum stretch, which differs where bags have changed places between the two.
//! - S is kept sparsely: rows (T × a), each with the index of the stretch from which it holds. Below the first row no task can be
//!   taken; an idle leaf is a single row from index 0, since at a given T its availability does not depend on S.
//!
//! A cell is a lower bound for every request that maps to it: S and T are rounded down, a up. Requests outside the grids:
//! for T below 1 s or a above 2^36 Mop the answer is 0; T beyond the last horizon (48 days) counts as that horizon; a below
//! 1 Mop counts as 1 Mop. The bound is that of real numbers; floating point may exceed it by as much as changes a stretch
//! in the twelfth digit.
//!
//! Beside the cells a summary has a few sums, and the idle slots by speed (`idle`): for a few tasks on a grid that is
//! mostly idle, cells are too coarse to tell which machines are fast.
//!
//! `sums` has the summary itself, `grid` the samples, `matrix` the rows, `scaled` a summary on the `scale` of codes; `encoding`, with `coder`, has the
//! encoded form that travels, `flat` the form that machines keep.

mod coder;
mod encoding;
mod flat;
mod grid;
mod idle;
mod limits;
mod matrix;
mod papers;
mod scale;
mod scaled;
mod sums;
#[cfg(test)]
mod tests;

pub use encoding::{DecodeError, ENCODED_BYTES_MAX};
pub(crate) use flat::{can_wait, is_same_offer, read, set_can_wait};
pub use flat::{longest_wait_s, maximum_stretch, pack, report, unpack, unpack_papers};
pub use grid::{
    HORIZON_COUNT, HORIZONS_S, PAPERS_APPLICATION_SIZES_MOPS, PAPERS_STRETCH_COUNT, PAPERS_TASK_SIZES_MOPS,
    STRETCH_COUNT, STRETCHES, SummaryForm, TASK_SIZE_COUNT, TASK_SIZES_MOPS, stretch_at_least,
};
pub use idle::Idle;
pub(crate) use idle::{fastest, soonest};
pub use limits::{CELL_MAX, LEAVES_MAX, SPEED_STEP_MOPS, SPEED_SUM_MOPS_MAX};
pub(crate) use papers::release_in;
pub use scale::wait_s;
pub use sums::Summary;
