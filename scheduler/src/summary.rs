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
//!   lower bound while the leaf works its queue off.
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
    let index = grid.iter().position(|&sample| sample >= value)?;
    Some(index)
}

/// A row with all its zeros.
type Cells = [u64; CELLS];

/// What is available at one stretch: horizons × task sizes, without the zeros behind the last task size of each
/// horizon that finds anything.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    widths: [u8; HORIZON_COUNT],
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
        let horizon_s = STRETCHES.get(s_index)? * application_size_mops - age_s.max(0.0);
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
