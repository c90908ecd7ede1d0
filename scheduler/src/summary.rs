//! The availability summary: what a subtree can take, in four dimensions (paper §5.2), and what a router does
//! with it: adding (§5.2), booking what it has just sent (§5.3), looking up the smallest stretch (Algorithm 4).
//!
//! The paper samples n(S, r, w, a). Ours differs in this:
//!
//! - The second coordinate is the horizon T = S·w − g, g the age: at fixed S the availability depends on (r, w)
//!   only through the deadline, which lies T from now.
//! - All grids are absolute, so that any two summaries can be added: S in steps of 1.5 ([`STRETCHES`]), T in steps
//!   of 2 ([`HORIZONS_S`]), a in steps of 4 ([`TASK_SIZES_MOPS`]).
//! - One release time, the moment of the report ([`AGES`] = 1; the paper found one value best). A cell stays a
//!   lower bound as time passes, while the leaf serves its queue in the order of deadlines at that stretch; it
//!   serves in the order at its own maximum stretch, which differs where bags have changed places between the two.
//! - S is kept sparsely: rows (T × a) with the index from which on they hold. Below the first nothing is
//!   available; an idle leaf is a single row from index 0, since at a given T its availability does not depend on S.
//!
//! A cell is a lower bound for every request that maps to it: S and T are rounded down, a up. Requests outside the
//! grids: T below 1 s or a above 2^32 Mop finds nothing; T beyond the last horizon (48 days) finds what there is by
//! then; a below 1 Mop counts as 1 Mop. The bound is that of real numbers; floating point may exceed it by what
//! changes a stretch in the twelfth digit.
//!
//! Left out: the lossy encoding that design.md measured. [`Summary::encode`] is exact up to the cap.

use crate::availability::Slack;
use crate::queue::{Capacity, Load};
use crate::stretch::Jobs;

/// Number of stretch samples.
pub const STRETCH_COUNT: usize = 105;
/// Number of horizons.
pub const HORIZON_COUNT: usize = 23;
/// Number of task sizes.
pub const TASK_SIZE_COUNT: usize = 17;
/// Number of release times: one, the moment of the report. Kept in the format.
pub const AGES: usize = 1;

/// Samples of the stretch S, s/Mop: 2^-44 (a second for 1.8·10^13 Mop) times powers of 1.5 up to 1.2·10^5.
pub const STRETCHES: [f64; STRETCH_COUNT] = geometric(1.0 / (1_u64 << 44) as f64, 1.5);
/// Samples of the horizon T, seconds: powers of 2 from 1 s to 2^22 s (48 days).
pub const HORIZONS_S: [f64; HORIZON_COUNT] = geometric(1.0, 2.0);
/// Samples of the task size a, Mop: powers of 4 from 1 to 2^32.
pub const TASK_SIZES_MOPS: [f64; TASK_SIZE_COUNT] = geometric(1.0, 4.0);

/// Largest value of a cell; sums stop there.
pub const CELL_MAX: u64 = 1 << 60;
/// Largest encoded summary, bytes.
pub const ENCODED_BYTES_MAX: usize = 64 * 1024;
/// Most leaves that a summary may claim.
pub const LEAVES_MAX: u64 = 1 << 40;
/// Largest sum of speeds that a summary may claim, Mop/s.
pub const SPEED_SUM_MOPS_MAX: f64 = (1_u64 << 52) as f64;
/// Speeds are kept in multiples of this, Mop/s, so that sums up to 2^43 Mop/s are exact in any order.
pub const SPEED_STEP_MOPS: f64 = 1.0 / 1024.0;

const CELLS: usize = HORIZON_COUNT * TASK_SIZE_COUNT;
const VERSION: u8 = 1;

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

/// Index of the largest sample of the stretch that is at most `stretch`; `None` below the first.
pub fn stretch_at_most(stretch: f64) -> Option<usize> {
    at_most(&STRETCHES, stretch)
}

/// Index of the smallest sample of the stretch that is at least `stretch`; `None` above the last.
pub fn stretch_at_least(stretch: f64) -> Option<usize> {
    at_least(&STRETCHES, stretch)
}

fn at_most(grid: &[f64], value: f64) -> Option<usize> {
    grid.partition_point(|&sample| sample <= value).checked_sub(1)
}

fn at_least(grid: &[f64], value: f64) -> Option<usize> {
    // Comparing this way round sends what is not a number beyond the last.
    grid.iter().position(|&sample| sample >= value)
}

/// A row with all its zeros.
type Cells = [u64; CELLS];

/// What is available at one stretch: horizons × task sizes, without the zeros behind the last task size of each
/// horizon that finds anything.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// For each horizon, how many task sizes are kept.
    widths: [u8; HORIZON_COUNT],
    /// What is kept, horizon after horizon.
    cells: Box<[u64]>,
}

impl Row {
    fn new(cells: &Cells) -> Self {
        let mut widths = [0; HORIZON_COUNT];
        let mut kept = Vec::with_capacity(CELLS);
        for (width, line) in widths.iter_mut().zip(cells.chunks_exact(TASK_SIZE_COUNT)) {
            let used = line.iter().rposition(|&cell| cell > 0).map_or(0, |last| last + 1);
            *width = used as u8;
            kept.extend_from_slice(&line[..used]);
        }
        Self { widths, cells: kept.into_boxed_slice() }
    }

    fn get(&self, horizon: usize, size: usize) -> u64 {
        if size >= usize::from(self.widths[horizon]) {
            return 0;
        }
        let before: usize = self.widths[..horizon].iter().map(|&width| usize::from(width)).sum();
        self.cells[before + size]
    }

    fn add_to(&self, cells: &mut Cells) {
        let mut kept = self.cells.iter();
        for (&width, line) in self.widths.iter().zip(cells.chunks_exact_mut(TASK_SIZE_COUNT)) {
            for (cell, more) in line[..usize::from(width)].iter_mut().zip(&mut kept) {
                *cell = cell.saturating_add(*more).min(CELL_MAX);
            }
        }
    }

    fn dense(&self) -> Cells {
        let mut cells = [0; CELLS];
        self.add_to(&mut cells);
        cells
    }
}

/// What a subtree can take, and a few sums that ride along.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The smallest maximum stretch of a leaf that takes work, s/Mop (the paper's S_min, §6): 0 where one is idle,
    /// infinite where no leaf takes work.
    pub minimum_stretch: f64,
    /// The largest maximum stretch of a leaf that takes work, s/Mop; 0 where all are idle or none takes work.
    pub maximum_stretch: f64,
    /// Sum of the speeds of all slots of leaves that take work, Mop/s.
    pub speed_mops: f64,
    /// Number of leaves, those that take no work included.
    pub leaves: u64,
    /// (index of the stretch from which on it holds, row): ascending, no row equal to the one before it, the first
    /// not all zero.
    rows: Vec<(u8, Row)>,
}

/// Why bytes are not a summary; nothing was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More than [`ENCODED_BYTES_MAX`].
    #[error("a summary of {0} bytes: at most {ENCODED_BYTES_MAX}")]
    TooLong(usize),
    /// They end too early, go on too long, or a number does not fit.
    #[error("the bytes of a summary are damaged")]
    Damaged,
    /// Another version, or other grids.
    #[error("a summary of another format")]
    Format,
    /// A number that no sum of leaves has.
    #[error("a summary with a value out of range")]
    Range,
}

impl Summary {
    /// What no leaf at all offers: the neutral element of [`Self::merge`].
    pub fn empty() -> Self {
        Self { minimum_stretch: f64::INFINITY, maximum_stretch: 0.0, speed_mops: 0.0, leaves: 0, rows: Vec::new() }
    }

    /// What a leaf offers that takes no work, since its owner is there.
    pub fn unavailable() -> Self {
        Self { leaves: 1, ..Self::empty() }
    }

    /// What a leaf with this queue offers (paper §5.1 and §5.2). A load that does not validate offers nothing.
    pub fn of_leaf(load: &Load) -> Self {
        if load.validate().is_err() {
            return Self::unavailable();
        }
        let capacity = Capacity::new(load);
        let mut jobs = Jobs::new(load);
        let own_stretch = jobs.max_stretch(&capacity);
        let steps = (load.speed_mops * f64::from(load.slots) / SPEED_STEP_MOPS).floor().max(1.0);
        let mut rows = Rows::default();
        if let Some(first) = stretch_at_least(own_stretch) {
            let mut slack = Slack::new();
            jobs.sort(STRETCHES[STRETCH_COUNT - 1]);
            let last = leaf_cells(&jobs, &capacity, &mut slack);
            for (index, &stretch) in STRETCHES.iter().enumerate().skip(first) {
                jobs.sort(stretch);
                let cells = leaf_cells(&jobs, &capacity, &mut slack);
                rows.push(index, &cells);
                // Cells never fall as the stretch rises, so nothing changes between here and the last.
                if cells == last {
                    break;
                }
            }
        }
        Self {
            minimum_stretch: own_stretch,
            maximum_stretch: own_stretch,
            speed_mops: (steps * SPEED_STEP_MOPS).min(SPEED_SUM_MOPS_MAX),
            leaves: 1,
            rows: rows.0,
        }
    }

    /// Adds what another subtree offers (paper §5.2). Associative and commutative, as long as the sum of speeds
    /// stays below 2^43 Mop/s.
    pub fn merge(&mut self, other: &Self) {
        self.minimum_stretch = self.minimum_stretch.min(other.minimum_stretch);
        self.maximum_stretch = self.maximum_stretch.max(other.maximum_stretch);
        self.speed_mops = (self.speed_mops + other.speed_mops).min(SPEED_SUM_MOPS_MAX);
        self.leaves = self.leaves.saturating_add(other.leaves).min(LEAVES_MAX);
        if other.rows.is_empty() {
            return;
        }
        if self.rows.is_empty() {
            self.rows.clone_from(&other.rows);
            return;
        }
        let mut merged = Rows::default();
        let (mut mine, mut theirs) = (self.rows.as_slice(), other.rows.as_slice());
        let (mut my_row, mut their_row) = (None, None);
        loop {
            let next = [mine.first(), theirs.first()].into_iter().flatten().map(|row| row.0).min();
            let Some(index) = next else { break };
            for (rows, row) in [(&mut mine, &mut my_row), (&mut theirs, &mut their_row)] {
                if let Some((first, rest)) = rows.split_first()
                    && first.0 == index
                {
                    *row = Some(&first.1);
                    *rows = rest;
                }
            }
            let mut cells = [0; CELLS];
            for row in [my_row, their_row].into_iter().flatten() {
                row.add_to(&mut cells);
            }
            merged.push(usize::from(index), &cells);
        }
        self.rows = merged.0;
    }

    /// How many tasks of `task_mops` (a) of a bag of size `application_size_mops` (w) and age `age_s` (g) the
    /// subtree can take with nobody's stretch above [`STRETCHES`]`[s_index]`: a lower bound. 0 for indices and
    /// numbers out of range.
    pub fn tasks(&self, s_index: usize, age_s: f64, application_size_mops: f64, task_mops: f64) -> u64 {
        match Cell::of(s_index, age_s, application_size_mops, task_mops) {
            Some(cell) => self.at(s_index, cell),
            None => 0,
        }
    }

    fn at(&self, s_index: usize, cell: Cell) -> u64 {
        let holding = self.rows.partition_point(|row| usize::from(row.0) <= s_index);
        holding.checked_sub(1).map_or(0, |row| self.rows[row].1.get(cell.horizon, cell.size))
    }

    /// Index of the smallest stretch at which these subtrees together can take `n` tasks of `task_mops` (a) of a
    /// bag of size `application_size_mops` (w) and age `age_s` (g), by binary search (paper §6, Algorithm 4).
    /// `None` where even the largest is too small.
    pub fn smallest_stretch(
        summaries: &[&Self],
        n: u64,
        age_s: f64,
        application_size_mops: f64,
        task_mops: f64,
    ) -> Option<usize> {
        let suffices = |s_index: usize| {
            let Some(cell) = Cell::of(s_index, age_s, application_size_mops, task_mops) else { return n == 0 };
            let sum = summaries.iter().fold(0_u64, |sum, summary| sum.saturating_add(summary.at(s_index, cell)));
            sum >= n
        };
        let (mut low, mut high) = (0, STRETCH_COUNT);
        while low < high {
            let middle = low.midpoint(high);
            if suffices(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        (low < STRETCH_COUNT).then_some(low)
    }

    /// Books `n` tasks of `task_mops` that were just sent into this subtree at [`STRETCHES`]`[s_index]`, until its
    /// next report comes (paper §5.3). Cells never rise.
    ///
    /// At this stretch and above, cells lose ⌈n·a_new/a⌉, and one more for each leaf that may have got some: those
    /// leaves round on their own. For leaves with one slot that keeps the lower bound. Below, cells are estimates:
    /// they lose as much, and at least the share of the leaves that may have got some, since such a leaf offers
    /// nothing below its own maximum stretch, which is now near this one.
    pub fn reserve(&mut self, s_index: usize, n: u64, task_mops: f64) {
        if n == 0 || self.rows.is_empty() {
            return;
        }
        let touched = n.min(self.leaves);
        let work_mops = if task_mops > 0.0 { n as f64 * task_mops } else { 0.0 };
        // The cast saturates.
        let losses = TASK_SIZES_MOPS.map(|size| ((work_mops / size).ceil() as u64).saturating_add(touched));
        let untouched = self.leaves - touched;
        let mut booked = Rows::default();
        let old = std::mem::take(&mut self.rows);
        for (position, (index, row)) in old.iter().enumerate() {
            let full = {
                let mut cells = row.dense();
                for line in cells.chunks_exact_mut(TASK_SIZE_COUNT) {
                    for (cell, loss) in line.iter_mut().zip(losses) {
                        *cell = cell.saturating_sub(loss);
                    }
                }
                cells
            };
            let start = usize::from(*index);
            if start < s_index {
                let mut below = row.dense();
                for (cell, full) in below.iter_mut().zip(full) {
                    let share = u128::from(*cell) * u128::from(untouched) / u128::from(self.leaves.max(1));
                    *cell = full.min(u64::try_from(share).unwrap_or(full));
                }
                booked.push(start, &below);
                // The row went on past the stretch of the booking.
                let end = old.get(position + 1).map_or(STRETCH_COUNT, |next| usize::from(next.0));
                if s_index < end.min(STRETCH_COUNT) {
                    booked.push(s_index, &full);
                }
            } else {
                booked.push(start, &full);
            }
        }
        self.rows = booked.0;
    }

    /// Number of rows: how often the availability changes as the stretch rises.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The summary in bytes, at most [`ENCODED_BYTES_MAX`]. Exact where that suffices; else every other row is left
    /// out until it does, the one before it holds on, and all cells stay lower bounds.
    ///
    /// A version, the sizes of the grids, the sums; then each row against what the row before it and the
    /// next smaller task size let expect, in variable-length integers with runs of zeros.
    pub fn encode(&self) -> Vec<u8> {
        let mut rows: Vec<&(u8, Row)> = self.rows.iter().collect();
        loop {
            let bytes = self.encode_rows(&rows);
            if bytes.len() <= ENCODED_BYTES_MAX {
                return bytes;
            }
            let mut kept = false;
            rows.retain(|_| {
                kept = !kept;
                kept
            });
        }
    }

    fn encode_rows(&self, rows: &[&(u8, Row)]) -> Vec<u8> {
        let mut bytes = vec![VERSION, STRETCH_COUNT as u8, AGES as u8, HORIZON_COUNT as u8, TASK_SIZE_COUNT as u8];
        for value in [self.minimum_stretch, self.maximum_stretch, self.speed_mops] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        put(&mut bytes, self.leaves);
        put(&mut bytes, rows.len() as u64);
        let mut previous = [0; CELLS];
        for (index, row) in rows {
            bytes.push(*index);
            let cells = row.dense();
            let mut zeros = 0;
            for at in 0..CELLS {
                let difference = cells[at].wrapping_sub(expected(&cells, &previous, at)) as i64;
                if difference == 0 {
                    zeros += 1;
                    continue;
                }
                if zeros > 0 {
                    put(&mut bytes, zeros << 1);
                    zeros = 0;
                }
                // Zigzag: small differences of either sign become small numbers. The lowest bit tells from a run.
                let zigzag = ((difference << 1) ^ (difference >> 63)) as u64;
                put(&mut bytes, zigzag << 1 | 1);
            }
            if zeros > 0 {
                put(&mut bytes, zeros << 1);
            }
            previous = cells;
        }
        bytes
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// For bytes that are no summary of this format; whatever they are, this neither panics nor takes more memory
    /// than the largest summary (some 350 kB).
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > ENCODED_BYTES_MAX {
            return Err(DecodeError::TooLong(bytes.len()));
        }
        let mut rest = bytes;
        let header = take::<5>(&mut rest)?;
        if header.map(usize::from) != [usize::from(VERSION), STRETCH_COUNT, AGES, HORIZON_COUNT, TASK_SIZE_COUNT] {
            return Err(DecodeError::Format);
        }
        let minimum_stretch = f64::from_le_bytes(take(&mut rest)?);
        let maximum_stretch = f64::from_le_bytes(take(&mut rest)?);
        let speed_mops = f64::from_le_bytes(take(&mut rest)?);
        let leaves = get(&mut rest)?;
        let in_range = minimum_stretch >= 0.0
            && (0.0..f64::INFINITY).contains(&maximum_stretch)
            && (0.0..=SPEED_SUM_MOPS_MAX).contains(&speed_mops)
            && leaves <= LEAVES_MAX;
        if !in_range {
            return Err(DecodeError::Range);
        }
        let count = get(&mut rest)?;
        if count > STRETCH_COUNT as u64 {
            return Err(DecodeError::Range);
        }
        let mut rows = Rows::default();
        let mut previous = [0; CELLS];
        let mut previous_index = None;
        for _ in 0..count {
            let [index] = take(&mut rest)?;
            if usize::from(index) >= STRETCH_COUNT || previous_index.is_some_and(|before| index <= before) {
                return Err(DecodeError::Range);
            }
            let cells = get_cells(&mut rest, &previous)?;
            rows.push(usize::from(index), &cells);
            previous = cells;
            previous_index = Some(index);
        }
        if !rest.is_empty() {
            return Err(DecodeError::Damaged);
        }
        Ok(Self { minimum_stretch, maximum_stretch, speed_mops, leaves, rows: rows.0 })
    }
}

/// Where a request finds its number in a row.
#[derive(Clone, Copy, Debug)]
struct Cell {
    horizon: usize,
    size: usize,
}

impl Cell {
    /// `None` where nothing can be available: the bag is due too soon, or its tasks are too large.
    fn of(s_index: usize, age_s: f64, application_size_mops: f64, task_mops: f64) -> Option<Self> {
        if !(age_s >= 0.0 && application_size_mops.is_finite() && task_mops > 0.0) {
            return None;
        }
        let horizon_s = STRETCHES.get(s_index)? * application_size_mops - age_s;
        let horizon = at_most(&HORIZONS_S, horizon_s)?;
        let size = at_least(&TASK_SIZES_MOPS, task_mops)?;
        Some(Self { horizon, size })
    }
}

/// Rows in the making: drops leading zeros and repetitions.
#[derive(Default)]
struct Rows(Vec<(u8, Row)>);

impl Rows {
    fn push(&mut self, index: usize, cells: &Cells) {
        let row = Row::new(cells);
        let repeats = match self.0.last() {
            Some((_, last)) => *last == row,
            None => row.cells.is_empty(),
        };
        if !repeats {
            self.0.push((index as u8, row));
        }
    }
}

/// The row of a leaf whose jobs are sorted for one stretch: for each horizon h, for each task size ⌊h/a⌋.
fn leaf_cells(jobs: &Jobs, capacity: &Capacity, slack: &mut Slack) -> Cells {
    let mut cells = [0; CELLS];
    if !capacity.depends_on_tasks() {
        slack.fill(jobs, capacity, 0.0);
        for (line, horizon_s) in cells.chunks_exact_mut(TASK_SIZE_COUNT).zip(HORIZONS_S) {
            // Sizes are powers of 4: ⌊h/4^l⌋ = ⌊h⌋ >> 2l. The cast saturates.
            let whole_mops = slack.work_by(horizon_s, jobs, capacity) as u64;
            for (power, cell) in line.iter_mut().enumerate() {
                *cell = (whole_mops >> (2 * power)).min(CELL_MAX);
            }
        }
        return cells;
    }
    for (column, size_mops) in TASK_SIZES_MOPS.iter().enumerate() {
        slack.fill(jobs, capacity, *size_mops);
        let mut any = false;
        for (row, horizon_s) in HORIZONS_S.iter().enumerate() {
            let tasks = (slack.work_by(*horizon_s, jobs, capacity) / size_mops) as u64;
            cells[row * TASK_SIZE_COUNT + column] = tasks.min(CELL_MAX);
            any |= tasks > 0;
        }
        // Larger tasks find even less.
        if !any {
            break;
        }
    }
    cells
}

/// What the cell `at` of a row probably is, given the cells before it and the row before: with the size of tasks
/// four times that of the cell before, a quarter of it, off by what the row before was off by.
fn expected(cells: &Cells, previous: &Cells, at: usize) -> u64 {
    if at.is_multiple_of(TASK_SIZE_COUNT) {
        return previous[at];
    }
    let off = previous[at].wrapping_sub(previous[at - 1] >> 2);
    (cells[at - 1] >> 2).wrapping_add(off)
}

fn get_cells(rest: &mut &[u8], previous: &Cells) -> Result<Cells, DecodeError> {
    let mut cells = [0; CELLS];
    let mut at = 0;
    while at < CELLS {
        let token = get(rest)?;
        let (run, difference) = if token & 1 == 0 {
            (usize::try_from(token >> 1).map_err(|_| DecodeError::Damaged)?, 0)
        } else {
            let zigzag = token >> 1;
            (1, ((zigzag >> 1) as i64) ^ -((zigzag & 1) as i64))
        };
        if run == 0 || run > CELLS - at {
            return Err(DecodeError::Damaged);
        }
        for _ in 0..run {
            let cell = expected(&cells, previous, at).wrapping_add(difference as u64);
            if cell > CELL_MAX {
                return Err(DecodeError::Range);
            }
            cells[at] = cell;
            at += 1;
        }
    }
    Ok(cells)
}

/// Appends a number, seven bits to a byte, lowest first (LEB128).
fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn get(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let [byte] = take(rest)?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return Err(DecodeError::Damaged);
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::Damaged)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (head, tail) = rest.split_first_chunk().ok_or(DecodeError::Damaged)?;
    *rest = tail;
    Ok(*head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::availability::available_tasks;
    use crate::queue::Entry;
    use crate::queue::tests::loads;

    /// Twelve digits are exact; nine leave room for what the oracle itself rounds.
    const ROUNDING: f64 = 1e-9;

    fn slots() -> impl Strategy<Value = u32> {
        prop_oneof![3 => Just(1_u32), 1 => 2_u32..=6]
    }

    /// A request: log2 of the horizon at the stretch it is asked at, age, log2 of the task size.
    fn requests() -> impl Strategy<Value = (f64, f64, f64)> {
        (-1.0..25.0_f64, prop_oneof![Just(0.0), 0.0..1e6_f64], -3.0..33.0_f64)
    }

    /// What the leaf itself promises, a little generously.
    fn exact(load: &Load, stretch: f64, age_s: f64, w: f64, a: f64) -> u64 {
        let (more, less) = (1.0 + ROUNDING, 1.0 - ROUNDING);
        // Ages are generous too, but those of the queue are given.
        available_tasks(load, stretch * more, load.now_s - age_s * less, w * more, a * less)
    }

    /// A bag's size such that it is due in 2^log_horizon seconds at this stretch.
    fn size(stretch: f64, age_s: f64, log_horizon: f64) -> f64 {
        (log_horizon.exp2() + age_s) / stretch
    }

    /// A cell by its place in the grids, through the public lookup.
    fn cell(summary: &Summary, s_index: usize, horizon: usize, column: usize) -> u64 {
        let w = HORIZONS_S[horizon] * (1.0 + 1e-12) / STRETCHES[s_index];
        summary.tasks(s_index, 0.0, w, TASK_SIZES_MOPS[column])
    }

    fn places() -> impl Iterator<Item = (usize, usize, usize)> {
        (0..STRETCH_COUNT)
            .flat_map(|s| (0..HORIZON_COUNT).flat_map(move |t| (0..TASK_SIZE_COUNT).map(move |a| (s, t, a))))
    }

    fn merged(parts: &[Summary]) -> Summary {
        let mut sum = Summary::empty();
        parts.iter().for_each(|part| sum.merge(part));
        sum
    }

    fn summaries(n: usize) -> impl Strategy<Value = Vec<Summary>> {
        prop::collection::vec(loads(slots(), 6).prop_map(|load| Summary::of_leaf(&load)), n)
    }

    proptest! {
        #[test]
        fn a_cell_is_a_lower_bound_for_every_request_that_maps_to_it(
            load in loads(slots(), 8), request in requests(), s in 0_usize..STRETCH_COUNT, above in 1.0..1.5_f64,
        ) {
            let (log_horizon, age_s, log_task) = request;
            let summary = Summary::of_leaf(&load);
            // Anywhere between two samples of the stretch, and around the load's own.
            let own = stretch_at_least(summary.minimum_stretch).unwrap_or(0);
            for s_index in [s, own, (own + s % 12).min(STRETCH_COUNT - 1)] {
                let stretch = STRETCHES[s_index] * above;
                let (w, a) = (size(STRETCHES[s_index], age_s, log_horizon), log_task.exp2());
                let promised = summary.tasks(s_index, age_s, w, a);
                let exact = exact(&load, stretch, age_s, w, a);
                prop_assert!(promised <= exact, "{} > {} at {} {:?}", promised, exact, s_index, request);
            }
        }

        #[test]
        fn at_the_samples_it_is_the_leafs_own_answer(
            load in loads(slots(), 8), t in 0..HORIZON_COUNT, column in 0..TASK_SIZE_COUNT, above in 0_usize..20,
        ) {
            let summary = Summary::of_leaf(&load);
            let s_index = (stretch_at_least(summary.minimum_stretch).unwrap_or(0) + above).min(STRETCH_COUNT - 1);
            let (stretch, a) = (STRETCHES[s_index], TASK_SIZES_MOPS[column]);
            let w = HORIZONS_S[t] / stretch;
            let promised = cell(&summary, s_index, t, column);
            let (more, less) = (1.0 + ROUNDING, 1.0 - ROUNDING);
            let low = available_tasks(&load, stretch * less, load.now_s, w * less, a * more);
            prop_assert!(promised <= exact(&load, stretch, 0.0, w, a));
            // Around the own stretch the smaller one may be infeasible, which says nothing.
            prop_assert!(promised >= low, "{} < {}", promised, low);
        }

        #[test]
        fn below_its_own_stretch_a_leaf_offers_nothing(load in loads(slots(), 8)) {
            let summary = Summary::of_leaf(&load);
            for (s, t, a) in places().filter(|place| STRETCHES[place.0] < summary.minimum_stretch * (1.0 - ROUNDING)) {
                prop_assert_eq!(cell(&summary, s, t, a), 0);
            }
        }

        #[test]
        fn time_passing_keeps_the_bound_while_the_queue_is_worked_off(
            load in loads(Just(1_u32), 8), request in requests(), above in 0_usize..12, passed in 0.0..1.0_f64,
        ) {
            let (log_horizon, age_s, log_task) = request;
            let mut load = load;
            load.running_mops.clear();
            let summary = Summary::of_leaf(&load);
            let s_index = (stretch_at_least(summary.minimum_stretch).unwrap_or(0) + above).min(STRETCH_COUNT - 1);
            let stretch = STRETCHES[s_index];
            let total: f64 = load.entries.iter().map(Entry::left_mops).sum();
            let passed_s = passed * (total / load.speed_mops).max(100.0);
            // Served by earliest deadline at the stretch that is asked for.
            let mut worked = passed_s * load.speed_mops;
            let mut later = load.clone();
            later.now_s += passed_s;
            for index in load.order(stretch) {
                let entry = &mut later.entries[index];
                let done = worked.min(entry.left_mops());
                worked -= done;
                entry.left = (entry.left - done / entry.task_mops * (1.0 + 1e-12)).max(0.0);
            }
            let (w, a) = (size(stretch, age_s + passed_s, log_horizon), log_task.exp2());
            let promised = summary.tasks(s_index, age_s + passed_s, w, a);
            let exact = exact(&later, stretch, age_s + passed_s, w, a);
            prop_assert!(promised <= exact, "{} > {}", promised, exact);
        }

        #[test]
        fn merging_adds_every_cell(parts in summaries(3)) {
            let sum = merged(&parts);
            for (s, t, a) in places() {
                let expected: u64 = parts.iter().map(|part| cell(part, s, t, a)).sum();
                prop_assert_eq!(cell(&sum, s, t, a), expected);
            }
            prop_assert_eq!(sum.leaves, 3);
            prop_assert_eq!(sum.speed_mops, parts.iter().map(|part| part.speed_mops).sum::<f64>());
            let smallest = parts.iter().map(|part| part.minimum_stretch).fold(f64::INFINITY, f64::min);
            let largest = parts.iter().map(|part| part.maximum_stretch).fold(0.0, f64::max);
            prop_assert_eq!((sum.minimum_stretch, sum.maximum_stretch), (smallest, largest));
        }

        #[test]
        fn merging_is_associative_and_commutative(
            parts in summaries(4), order in Just(vec![0_usize, 1, 2, 3]).prop_shuffle(),
        ) {
            let mut parts = parts;
            parts[3] = Summary::unavailable();
            let forward = merged(&parts);
            let shuffled = merged(&order.iter().map(|&index| parts[index].clone()).collect::<Vec<_>>());
            prop_assert_eq!(&shuffled, &forward);
            let (left, right) = parts.split_at(2);
            prop_assert_eq!(&merged(&[merged(left), merged(right)]), &forward);
        }

        #[test]
        fn what_was_encoded_decodes_to_the_same(parts in summaries(3), single in any::<bool>()) {
            let summary = if single { parts[0].clone() } else { merged(&parts) };
            let bytes = summary.encode();
            prop_assert!(bytes.len() <= ENCODED_BYTES_MAX);
            prop_assert_eq!(Summary::decode(&bytes).unwrap(), summary);
        }

        #[test]
        fn damaged_bytes_never_panic(
            parts in summaries(2), changes in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6),
            cut in any::<u16>(),
        ) {
            let mut bytes = merged(&parts).encode();
            for (at, value) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            if cut % 2 == 0 {
                bytes.truncate(usize::from(cut) % bytes.len());
            }
            if let Ok(summary) = Summary::decode(&bytes) {
                // Whatever it says can be worked with, and travels on.
                let mut sum = summary.clone();
                sum.merge(&summary);
                sum.reserve(50, 1 << 40, 1e18);
                prop_assert!(places().all(|(s, t, a)| cell(&sum, s, t, a) <= CELL_MAX));
                prop_assert_eq!(Summary::decode(&summary.encode()).unwrap(), summary);
            }
        }

        #[test]
        fn random_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Summary::decode(&tail).is_err());
            let mut bytes = Summary::unavailable().encode();
            bytes.truncate(30);
            bytes.extend(tail);
            if let Ok(summary) = Summary::decode(&bytes) {
                prop_assert_eq!(Summary::decode(&summary.encode()).unwrap(), summary);
            }
        }

        #[test]
        fn what_does_not_fit_is_rounded_down(seed in any::<u64>(), same in any::<bool>()) {
            // Cells that nothing predicts.
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> 8
            };
            let mut rows = Rows::default();
            for s in 0..STRETCH_COUNT {
                let mut cells = [0; CELLS];
                cells.fill_with(|| next() % CELL_MAX);
                if same && s % 2 == 1 {
                    cells = [7; CELLS];
                }
                rows.push(s, &cells);
            }
            let large = Summary { rows: rows.0, ..Summary::unavailable() };
            let bytes = large.encode();
            prop_assert!(bytes.len() <= ENCODED_BYTES_MAX && bytes.len() > ENCODED_BYTES_MAX / 3);
            let small = Summary::decode(&bytes).unwrap();
            prop_assert!(small.rows() < large.rows());
            // Here rows are not monotone, so the bound is the cell of the last row that stayed.
            for (index, row) in &small.rows {
                prop_assert!(large.rows.iter().any(|(other, kept)| other == index && kept == row));
            }
        }

        #[test]
        fn an_idle_leaf_is_never_empty_for_what_it_could_take(
            speed in 1.0..1e5_f64, slots in 1_u32..9, log_task in -3.0..32.0_f64, beyond in 1.0..100.0_f64,
            age_s in 0.0..1e6_f64, s in 0_usize..STRETCH_COUNT,
        ) {
            let load = Load { now_s: 0.0, speed_mops: speed, slots, running_mops: vec![], entries: vec![] };
            let summary = Summary::of_leaf(&load);
            prop_assert_eq!(summary.rows(), 1);
            let a = log_task.exp2();
            // As documented: due in at least a second and eight times what a task of at least 1 Mop takes; and the
            // task, rounded up, ends within the last horizon.
            let horizon_s = (8.0 * a.max(1.0) / speed).max(1.0) * beyond;
            prop_assume!(4.0 * a.max(1.0) / speed <= HORIZONS_S[HORIZON_COUNT - 1]);
            let w = size(STRETCHES[s], age_s, (horizon_s * (1.0 + ROUNDING)).log2());
            prop_assert!(summary.tasks(s, age_s, w, a) > 0);
        }

        #[test]
        fn the_smallest_stretch_is_the_first_that_suffices(
            parts in summaries(2), request in requests(), n in prop_oneof![0_u64..200, any::<u64>()],
            booked in 0_u64..500,
        ) {
            let (log_w, age_s, log_task) = request;
            let (w, a) = (log_w.exp2(), log_task.exp2());
            let mut parts = parts;
            parts[0].reserve(40, booked, a);
            let all: Vec<&Summary> = parts.iter().collect();
            let suffices = |s: &usize| parts.iter().map(|part| part.tasks(*s, age_s, w, a)).sum::<u64>() >= n;
            prop_assert_eq!(Summary::smallest_stretch(&all, n, age_s, w, a), (0..STRETCH_COUNT).find(suffices));
        }

        #[test]
        fn booking_takes_the_papers_share_off(
            parts in summaries(3), s_index in 0..STRETCH_COUNT, n in 0_u64..5000, log_task in -3.0..33.0_f64,
        ) {
            let before = merged(&parts);
            let task_mops = log_task.exp2();
            let mut after = before.clone();
            after.reserve(s_index, n, task_mops);
            for (s, t, a) in places() {
                let (was, is) = (cell(&before, s, t, a), cell(&after, s, t, a));
                prop_assert!(is <= was);
                let loss = (n as f64 * task_mops / TASK_SIZES_MOPS[a]).ceil() as u64 + n.min(3);
                if n > 0 && s >= s_index {
                    prop_assert_eq!(is, was.saturating_sub(loss));
                } else if n > 0 {
                    prop_assert!(is <= was.saturating_sub(loss));
                    prop_assert!(is <= was * (3 - n.min(3)) / 3);
                }
            }
            prop_assert_eq!(Summary::decode(&after.encode()).unwrap(), after);
        }

        #[test]
        fn booking_keeps_the_lower_bound_at_and_above_the_stretch(
            leaves in prop::collection::vec(loads(Just(1_u32), 5), 1..4), above in 0_usize..14,
            log_n in 0.0..10.0_f64, log_task in 0.0..14.0_f64, log_w in 0.0..8.0_f64,
        ) {
            let parts: Vec<Summary> = leaves.iter().map(Summary::of_leaf).collect();
            let mut booked = merged(&parts);
            let largest = stretch_at_least(booked.maximum_stretch).unwrap_or(0).max(20);
            let s_index = (largest + above).min(STRETCH_COUNT - 1);
            let (task_mops, wanted) = (log_task.exp2(), log_n.exp2() as u64);
            let w = task_mops * wanted as f64 * log_w.exp2();
            // Each leaf takes what it can, in order, until all is placed.
            let mut unplaced = wanted;
            let mut later = Vec::new();
            for (load, part) in leaves.iter().zip(&parts) {
                let tasks = unplaced.min(part.tasks(s_index, 0.0, w, task_mops));
                unplaced -= tasks;
                let mut load = load.clone();
                let (release_s, left) = (load.now_s, tasks as f64);
                load.entries.push(Entry { release_s, application_size_mops: w, task_mops, left });
                later.push(load);
            }
            booked.reserve(s_index, wanted - unplaced, task_mops);
            for (s, t, a) in places().filter(|place| place.0 >= s_index) {
                let stretch = STRETCHES[s];
                let w = HORIZONS_S[t] / stretch * (1.0 + ROUNDING);
                let exact: u64 = later.iter().map(|load| exact(load, stretch, 0.0, w, TASK_SIZES_MOPS[a])).sum();
                let promised = cell(&booked, s, t, a);
                prop_assert!(promised <= exact, "{} > {} at {:?}", promised, exact, (s, t, a));
            }
        }
    }

    #[test]
    fn the_grids_are_the_same_everywhere() {
        assert_eq!(STRETCHES[0].to_bits(), 0x3d30_0000_0000_0000);
        assert_eq!(STRETCHES[1], STRETCHES[0] * 1.5);
        // From the 34th power of 1.5 on a product is rounded: repeated multiplication, in one order, fixes how.
        assert_eq!(STRETCHES[104].to_bits(), 0x40fc_9040_830a_a888);
        assert_eq!(STRETCHES[104].floor(), 116_996.0);
        // 48 days.
        assert_eq!(HORIZONS_S[22], 4_194_304.0);
        assert_eq!(TASK_SIZES_MOPS[16], 4_294_967_296.0);
        for (index, &sample) in STRETCHES.iter().enumerate() {
            assert_eq!((stretch_at_most(sample), stretch_at_least(sample)), (Some(index), Some(index)));
            assert_eq!(stretch_at_most(sample * 1.2), Some(index));
            assert_eq!(stretch_at_least(sample / 1.2), Some(index));
        }
        assert_eq!(stretch_at_most(0.0), None);
        assert_eq!(stretch_at_least(0.0), Some(0));
        assert_eq!(stretch_at_least(1e6), None);
        assert_eq!(stretch_at_most(1e6), Some(104));
        assert_eq!((stretch_at_most(f64::NAN), stretch_at_least(f64::NAN)), (None, None));
    }

    #[test]
    fn small_cases_by_hand() {
        let load = Load { now_s: 0.0, speed_mops: 1024.0, slots: 1, running_mops: vec![], entries: vec![] };
        let idle = Summary::of_leaf(&load);
        assert_eq!((idle.minimum_stretch, idle.maximum_stretch, idle.speed_mops, idle.leaves), (0.0, 0.0, 1024.0, 1));
        // Due in 8.7 s, which counts as 8; tasks of 100 Mop count as 256.
        let w = 8.7 / STRETCHES[60];
        assert_eq!(idle.tasks(60, 0.0, w, 100.0), 32);
        assert_eq!(idle.tasks(60, 4.0, w, 256.0), 16);
        assert_eq!(idle.tasks(60, 8.0, w, 1.0), 0);
        assert_eq!(idle.tasks(60, 8.7, w, 1.0), 0);
        assert_eq!(idle.tasks(60, 0.0, w, 0.001), 8192);
        assert_eq!(idle.tasks(60, 0.0, w, 4096.0), 2);
        assert_eq!(idle.tasks(60, 0.0, w, 5e9), 0);
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(idle.tasks(60, bad, w, 1.0), 0);
            assert_eq!(idle.tasks(60, 0.0, bad, 1.0), 0);
            assert_eq!(idle.tasks(60, 0.0, w, bad), 0);
        }
        assert_eq!(idle.tasks(STRETCH_COUNT, 0.0, w, 1.0), 0);
        assert_eq!(Summary::smallest_stretch(&[&idle], 32, 0.0, w, 100.0), Some(60));
        let four = Summary::of_leaf(&Load { slots: 4, ..load.clone() });
        // Tasks of 256 Mop: 32 to a slot in 8 s, less what the last to end may cost.
        assert_eq!((four.speed_mops, four.tasks(60, 0.0, w, 100.0)), (4096.0, 125));
        assert_eq!(Summary::of_leaf(&Load { slots: 0, ..load }), Summary::unavailable());
        let mut sum = Summary::empty();
        sum.merge(&Summary::unavailable());
        assert_eq!(sum, Summary::unavailable());
        assert_eq!(sum.tasks(100, 0.0, 1e9, 1.0), 0);
        assert_eq!(Summary::decode(&sum.encode()), Ok(sum));
    }

    #[test]
    fn a_summary_of_another_format_is_refused() {
        let bytes = Summary::unavailable().encode();
        for at in 0..5 {
            let mut other = bytes.clone();
            other[at] += 1;
            assert_eq!(Summary::decode(&other), Err(DecodeError::Format));
        }
        for (at, value) in [(5, f64::NAN), (5, -1.0), (13, f64::INFINITY), (21, f64::MAX)] {
            let mut other = bytes.clone();
            other[at..at + 8].copy_from_slice(&value.to_le_bytes());
            assert_eq!(Summary::decode(&other), Err(DecodeError::Range));
        }
        // Rows by hand: one cell at the limit or beyond, or below 0; then the same index twice.
        let with_rows = |count: u8, rows: &[(u8, u64)]| {
            let mut other = bytes[..bytes.len() - 1].to_vec();
            other.push(count);
            for &(index, token) in rows {
                other.push(index);
                put(&mut other, token);
                put(&mut other, (CELLS as u64 - 1) << 1);
            }
            Summary::decode(&other)
        };
        assert_eq!(with_rows(1, &[(9, (CELL_MAX << 1) << 1 | 1)]).map(|summary| summary.rows()), Ok(1));
        assert_eq!(with_rows(1, &[(9, ((CELL_MAX + 1) << 1) << 1 | 1)]), Err(DecodeError::Range));
        assert_eq!(with_rows(1, &[(9, (1 << 1 | 1) << 1 | 1)]), Err(DecodeError::Range));
        assert_eq!(with_rows(2, &[(9, 4 << 1 | 1), (10, 4 << 1 | 1)]).map(|summary| summary.rows()), Ok(2));
        assert_eq!(with_rows(2, &[(9, 4 << 1 | 1), (9, 4 << 1 | 1)]), Err(DecodeError::Range));
        assert_eq!(with_rows(2, &[(9, 4 << 1 | 1), (8, 4 << 1 | 1)]), Err(DecodeError::Range));
        assert_eq!(with_rows(1, &[(105, 4 << 1 | 1)]), Err(DecodeError::Range));
        assert_eq!(with_rows(106, &[]), Err(DecodeError::Range));
        assert_eq!(Summary::decode(&bytes[..20]), Err(DecodeError::Damaged));
        assert_eq!(Summary::decode(&[&bytes[..], &[0]].concat()), Err(DecodeError::Damaged));
        assert_eq!(Summary::decode(&vec![0; ENCODED_BYTES_MAX + 1]), Err(DecodeError::TooLong(ENCODED_BYTES_MAX + 1)));
    }
}
