//! A summary on the scale: its cells as codes, in order, and rounded down. Both the encoded form that travels and the flat
//! form that a machine keeps are made of it.

use super::grid::{HORIZON_COUNT, SummaryForm, TASK_SIZE_COUNT};
use super::idle::Idle;
use super::limits::CELL_MAX;
use super::matrix::{CELLS, Rows};
use super::scale::{self, WAIT_BITS};
use super::sums::Summary;

/// The task sizes of one horizon, in codes.
pub(super) type Line = [u16; TASK_SIZE_COUNT];
/// A row in codes: the lines of all horizons.
pub(super) type Codes = [Line; HORIZON_COUNT];
/// The cells below the first row.
pub(super) const NOTHING: Codes = [[0; TASK_SIZE_COUNT]; HORIZON_COUNT];

/// A row on the scale.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScaledRow {
    /// Index of the stretch from which the row holds.
    pub(super) index: u8,
    /// Bit t: whether line t differs from that of the row before.
    pub(super) changed: u32,
    pub(super) codes: Codes,
}

/// Notes in each row which of its lines are not those of the row before.
fn compare(rows: &mut [ScaledRow]) {
    let mut before = &NOTHING;
    for row in rows {
        row.changed = changed_lines(before, &row.codes);
        before = &row.codes;
    }
}

/// Whether two lines are the same: without a call, which costs more than the comparison.
pub(super) fn is_same(one: &Line, other: &Line) -> bool {
    one.iter().zip(other).fold(0, |all, (one, other)| all | one ^ other) == 0
}

/// Whether no cell is above the one before; compared all at once, as above.
fn is_falling(line: &Line) -> bool {
    line.windows(2).fold(true, |all, pair| all & (pair[1] <= pair[0]))
}

/// Bit t: whether line t differs.
pub(super) fn changed_lines(before: &Codes, codes: &Codes) -> u32 {
    let differs = |(t, (before, line)): (usize, (&Line, &Line))| u32::from(!is_same(before, line)) << t;
    before.iter().zip(codes).enumerate().map(differs).sum()
}

/// The sums of a summary, as they travel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    pub(super) form: SummaryForm,
    pub(super) minimum_stretch: f32,
    pub(super) maximum_stretch: f32,
    pub(super) speed_mops: f32,
    pub(super) leaves: u64,
    pub(super) height: u8,
    pub(super) slots: u32,
    /// On the scale of waits.
    pub(super) longest_wait: u16,
    pub(super) idle: Idle,
    /// Whether a cell is more than a quarter of the one before; in the paper's form, whose task sizes double, more than half.
    pub(super) is_loose: bool,
    /// [`Summary::can_wait`].
    pub(super) can_wait: bool,
}

/// A summary on the scale. Its cells are in order: they do not fall with stretch or horizon, nor grow with the task.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scaled {
    pub(super) head: Head,
    pub(super) rows: Vec<ScaledRow>,
}

impl Scaled {
    pub(super) fn of(summary: &Summary) -> Self {
        let (bits, task_steps) = (scale::bits(summary.height), summary.form.task_steps());
        let mut rows: Vec<ScaledRow> = Vec::with_capacity(summary.rows.len());
        for (index, row) in &summary.rows {
            let mut codes = NOTHING;
            for (line, cells) in codes.iter_mut().zip(row.lines()) {
                line.iter_mut().zip(cells).for_each(|(code, &cell)| *code = scale::code(cell, bits));
            }
            rows.push(ScaledRow { index: *index, changed: 0, codes });
        }
        // Cells are ordered but for rounding and bookings: lowering one is always allowed.
        let mut above = [[u16::MAX; TASK_SIZE_COUNT]; HORIZON_COUNT];
        let mut is_loose = false;
        for ScaledRow { codes, .. } in rows.iter_mut().rev() {
            let mut later = [u16::MAX; TASK_SIZE_COUNT];
            for (line, above) in codes.iter_mut().zip(&mut above).rev() {
                for ((code, above), later) in line.iter_mut().zip(above.iter_mut()).zip(&mut later) {
                    *code = (*code).min(*above).min(*later);
                    (*above, *later) = (*code, *code);
                }
                if !is_falling(line) {
                    (1..TASK_SIZE_COUNT).for_each(|at| line[at] = line[at].min(line[at - 1]));
                }
                is_loose = is_loose || is_loose_line(line, bits, task_steps);
            }
        }
        compare(&mut rows);
        rows.retain(|row| row.changed != 0);
        let head = Head {
            form: summary.form,
            minimum_stretch: round_down(summary.minimum_stretch),
            maximum_stretch: -round_down(-summary.maximum_stretch.min(f64::from(f32::MAX))),
            speed_mops: round_down(summary.speed_mops),
            leaves: summary.leaves,
            height: summary.height,
            slots: summary.slots,
            longest_wait: scale::code(summary.longest_wait_s.min(CELL_MAX), WAIT_BITS),
            idle: summary.idle.clone(),
            is_loose,
            can_wait: summary.can_wait,
        };
        Self { head, rows }
    }

    pub(super) fn into_summary(self) -> Summary {
        let bits = scale::bits(self.head.height);
        let mut rows = Rows::default();
        let mut cells = [0; CELLS];
        for row in &self.rows {
            for (t, (cells, codes)) in cells.chunks_exact_mut(TASK_SIZE_COUNT).zip(&row.codes).enumerate() {
                if row.changed >> t & 1 == 1 {
                    cells.iter_mut().zip(codes).for_each(|(cell, &code)| *cell = scale::value(code, bits));
                }
            }
            rows.push(usize::from(row.index), &cells);
        }
        Summary {
            form: self.head.form,
            minimum_stretch: f64::from(self.head.minimum_stretch),
            maximum_stretch: f64::from(self.head.maximum_stretch),
            speed_mops: f64::from(self.head.speed_mops),
            leaves: self.head.leaves,
            height: self.head.height,
            slots: self.head.slots,
            longest_wait_s: scale::value(self.head.longest_wait, WAIT_BITS),
            idle: self.head.idle,
            can_wait: self.head.can_wait,
            rows: rows.0,
        }
    }

    /// Leaves out every other row: the row before holds in its place.
    pub(super) fn thin_out(&mut self) {
        let mut kept = self.rows.len() == 1;
        self.rows.retain(|_| {
            kept = !kept;
            kept
        });
        compare(&mut self.rows);
        self.head.is_loose &= self.has_loose_cells();
    }

    fn has_loose_cells(&self) -> bool {
        let (bits, task_steps) = (scale::bits(self.head.height), self.head.form.task_steps());
        self.rows.iter().any(|row| row.codes.iter().any(|line| is_loose_line(line, bits, task_steps)))
    }
}

/// Whether a cell of this line is more than the part of the one before that fits of tasks of the next size.
pub(super) fn is_loose_line(line: &Line, bits: u32, task_steps: u32) -> bool {
    line.windows(2).fold(false, |any, pair| any | (pair[1] > scale::part(pair[0], bits, task_steps)))
}

pub(super) fn round_down(value: f64) -> f32 {
    let rounded = value as f32;
    if f64::from(rounded) > value { rounded.next_down() } else { rounded }
}

/// The flag, if it is set, else 0.
pub(super) fn bit(of: u8, is_set: bool) -> u8 {
    if is_set { of } else { 0 }
}
