//! The encoded form of a summary: rounded down to a scale, predicted, and range-coded; whole, or as the difference to an
//! earlier one.
//!
//! It has a version, whether it is whole, the sums, and then decisions of an adaptive coder: which stretches have a row,
//! which lines (the task sizes of one horizon) of a row differ from the row before, and the cells of those lines. Most
//! lines equal that of a quarter of their horizon, for tasks a quarter as large, as on an idle leaf: one decision. Of the
//! others the first cell is coded, then whether the rest follows from it. Few decisions make it fast: each costs some
//! nanoseconds, however probable it is.
//!
//! Cells are codes on a scale (`scale`). What holds of every matrix is not sent: availability does not fall as the stretch
//! or the horizon grows, and of tasks four times as large at most a quarter fit. So a cell lies between the larger of its
//! two lower neighbours and a quarter of the one before it; where both bounds are the same, it costs nothing. Else it is
//! coded as its distance from a prediction.
//!
//! On several slots a cell may be more than a quarter of the one before: larger tasks are counted as whole ones where
//! smaller ones are counted by their work. A summary with such cells is *loose*: it has a flag, and the cell before is the
//! upper bound.
//!
//! In the paper's form sizes of tasks double: there it is half instead of a quarter.
//!
//! Encoding never raises a cell, and a decoded summary is encoded to the same bytes again, so that a summary to which
//! nothing is added loses only once. The model is compiled twice, once for each direction of [`Coder`].

mod model;

use self::model::Model;
use super::coder::{Reader, Writer};
use super::grid::SummaryForm;
use super::idle::Idle;
use super::limits::{CELL_MAX, LEAVES_MAX, SPEED_SUM_MOPS_MAX};
use super::scale::{self, WAIT_BITS};
use super::scaled::{Codes, Head, Scaled, ScaledRow, bit, is_loose_line};
use super::sums::Summary;
use crate::queue::SLOTS_MAX;

/// Largest encoded summary, bytes.
pub const ENCODED_BYTES_MAX: usize = 64 * 1024;

/// Version of the format and of the grids.
const VERSION: u8 = 7;
/// That of [`SummaryForm::Paper`]: no version that ships.
const PAPERS_VERSION: u8 = 31;
const DIFFERENCE: u8 = 1;
const LOOSE: u8 = 2;
const CAN_WAIT: u8 = 4;

fn version(form: SummaryForm) -> u8 {
    match form {
        SummaryForm::Horizons => VERSION << 3,
        SummaryForm::Paper => PAPERS_VERSION << 3,
    }
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
    /// They are of another version, with other grids, or a difference where a whole summary was expected.
    #[error("a summary of another format")]
    Format,
    /// They have a number that no sum of leaves has.
    #[error("a summary with a value out of range")]
    Range,
}

impl Summary {
    /// The summary in bytes, at most [`ENCODED_BYTES_MAX`]: rounded down to the scale and monotone. Where that does
    /// not suffice every other row is left out; the one before it holds on, and all cells stay lower bounds.
    pub fn encode(&self) -> Vec<u8> {
        let mut scaled = Scaled::of(self);
        scaled.fit(ENCODED_BYTES_MAX)
    }

    /// Reads what [`Self::encode`] wrote of a summary of [`SummaryForm::Horizons`].
    ///
    /// # Errors
    /// For bytes that are no summary of this format; whatever they are, this neither panics nor takes more memory
    /// than the largest summary, before and after it is taken off the scale (700 kB).
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Ok(Scaled::decode(bytes, None)?.into_summary())
    }
}

impl Scaled {
    /// The encoded whole, in at most `bytes_max`.
    fn fit(&mut self, bytes_max: usize) -> Vec<u8> {
        loop {
            let bytes = self.encode(None);
            if bytes.len() <= bytes_max || self.rows.is_empty() {
                return bytes;
            }
            self.thin_out();
        }
    }

    pub(super) fn encode(&self, base: Option<&Self>) -> Vec<u8> {
        let (mut writer, mut model) = self.head.encode(base);
        let (mut last, mut rows) = (None, self.rows.iter());
        loop {
            last = model.row(&mut writer, last, rows.next());
            if last.is_none() {
                return writer.finish();
            }
        }
    }

    fn decode(bytes: &[u8], base: Option<&Self>) -> Result<Self, DecodeError> {
        let mut rows = Vec::new();
        let push = |index, changed, codes: &Codes| rows.push(ScaledRow { index, changed, codes: *codes });
        let head = decode(SummaryForm::Horizons, bytes, base, push)?;
        Ok(Self { head, rows })
    }
}

impl Head {
    /// Writes the head, and returns the writer and model for the rows.
    pub(super) fn encode<'a>(&self, base: Option<&'a Scaled>) -> (Writer, Model<'a>) {
        let mut bytes = Vec::with_capacity(1024);
        let flags = bit(DIFFERENCE, base.is_some()) | bit(LOOSE, self.is_loose) | bit(CAN_WAIT, self.can_wait);
        bytes.push(version(self.form) | flags);
        for value in [self.minimum_stretch, self.maximum_stretch, self.speed_mops] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.push(self.height);
        put(&mut bytes, self.leaves);
        put(&mut bytes, u64::from(self.slots));
        put(&mut bytes, u64::from(self.longest_wait));
        put(&mut bytes, self.idle.classes().len() as u64);
        let mut from = 0;
        for &(class, slots) in self.idle.classes() {
            put(&mut bytes, u64::from(class - from));
            put(&mut bytes, slots);
            from = class + 1;
        }
        (Writer::new(bytes), Model::new(self.form, self.height, self.is_loose, base))
    }
}

/// Reads the head of a summary of this form, and hands the index, changed lines and codes of each row to `take_row`. A base has
/// the same form.
pub(super) fn decode(
    form: SummaryForm,
    bytes: &[u8],
    base: Option<&Scaled>,
    mut take_row: impl FnMut(u8, u32, &Codes),
) -> Result<Head, DecodeError> {
    if bytes.len() > ENCODED_BYTES_MAX {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let mut rest = bytes;
    let [kind] = take(&mut rest)?;
    if kind & !(LOOSE | CAN_WAIT) != version(form) | base.map_or(0, |_| DIFFERENCE) {
        return Err(DecodeError::Format);
    }
    let mut head = Head {
        form,
        is_loose: kind & LOOSE != 0,
        can_wait: kind & CAN_WAIT != 0,
        minimum_stretch: f32::from_le_bytes(take(&mut rest)?),
        maximum_stretch: f32::from_le_bytes(take(&mut rest)?),
        speed_mops: f32::from_le_bytes(take(&mut rest)?),
        height: take::<1>(&mut rest)?[0],
        leaves: get(&mut rest)?,
        slots: u32::try_from(get(&mut rest)?).map_err(|_| DecodeError::Range)?,
        longest_wait: u16::try_from(get(&mut rest)?).map_err(|_| DecodeError::Range)?,
        idle: Idle::default(),
    };
    let (classes, mut from) = (get(&mut rest)?, 0_u64);
    for _ in 0..classes {
        let (class, slots) = (from.saturating_add(get(&mut rest)?), get(&mut rest)?);
        if !u16::try_from(class).is_ok_and(|class| head.idle.push(class, slots)) {
            return Err(DecodeError::Range);
        }
        from = class + 1;
    }
    let in_range = head.longest_wait <= scale::code(CELL_MAX, WAIT_BITS)
        && head.minimum_stretch >= 0.0
        && (0.0..f32::INFINITY).contains(&head.maximum_stretch)
        && (0.0..=SPEED_SUM_MOPS_MAX).contains(&f64::from(head.speed_mops))
        && head.leaves <= LEAVES_MAX
        && head.slots <= SLOTS_MAX
        && head.idle.slots() <= head.leaves.saturating_mul(head.slots.into());
    if !in_range {
        return Err(DecodeError::Range);
    }
    let (bits, task_steps) = (scale::bits(head.height), form.task_steps());
    let mut reader = Reader::new(rest);
    let mut model = Model::new(form, head.height, head.is_loose, base);
    let (mut last, mut has_loose_cells) = (None, false);
    while let Some(index) = model.row(&mut reader, last, None) {
        if model.changed != 0 {
            take_row(index, model.changed, &model.codes);
            has_loose_cells |= head.is_loose && model.codes.iter().any(|line| is_loose_line(line, bits, task_steps));
        }
        if !reader.is_sound() {
            return Err(DecodeError::Damaged);
        }
        last = Some(index);
    }
    // The flag must be the right one, so that each summary has one encoding.
    if !reader.is_done() || head.is_loose && !has_loose_cells {
        return Err(DecodeError::Damaged);
    }
    Ok(head)
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
            // Each number has one encoding.
            if byte == 0 && shift > 0 {
                return Err(DecodeError::Damaged);
            }
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
    use super::*;

    use super::super::grid::{STRETCH_COUNT, TASK_SIZE_COUNT};
    use super::super::matrix::{CELLS, Rows};

    #[test]
    fn oversized_summaries_lose_rows() {
        // Unpredictable rows, ordered as all matrices are.
        let mut state = 1_u64;
        let mut summary = Summary::unavailable();
        let mut rows = Rows::default();
        for s in 0..STRETCH_COUNT {
            let mut cells = [0; CELLS];
            for (t, line) in cells.chunks_exact_mut(TASK_SIZE_COUNT).enumerate() {
                for (a, cell) in line.iter_mut().enumerate() {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    *cell = ((1_000_000 + (state >> 34)) * (s as u64 + 1) * (t as u64 + 1)) << 17 >> (2 * a);
                }
            }
            rows.push(s, &cells);
        }
        summary.rows = rows.0;
        let whole = Scaled::of(&summary);
        let all = whole.encode(None).len();
        assert!(whole.rows.len() > 50 && all > 1_000, "{} rows in {all} bytes", whole.rows.len());
        for bytes_max in [all, all - 1, 300, 20, 0] {
            let mut fitted = whole.clone();
            let bytes = fitted.fit(bytes_max);
            assert!(bytes.len() <= bytes_max || fitted.rows.is_empty());
            assert_eq!(fitted.rows.len() == whole.rows.len(), bytes_max == all);
            let is_of_whole =
                |row: &ScaledRow| whole.rows.iter().any(|of| (of.index, of.codes) == (row.index, row.codes));
            assert!(fitted.rows.iter().all(is_of_whole));
            assert_eq!(Scaled::decode(&bytes, None).as_ref(), Ok(&fitted));
        }
    }

    #[test]
    fn sums_are_rounded_carefully() {
        let odd = 1.0 + 1e-12;
        let summary = Summary { minimum_stretch: odd, maximum_stretch: odd, speed_mops: odd, ..Summary::unavailable() };
        let read = Summary::decode(&summary.encode()).unwrap();
        assert_eq!((read.minimum_stretch, read.speed_mops), (1.0, 1.0));
        assert!(read.maximum_stretch > odd && read.maximum_stretch < odd + 1e-6);
        let far = Summary { minimum_stretch: 1e300, maximum_stretch: 1e300, ..Summary::unavailable() };
        assert!(Summary::decode(&far.encode()).unwrap().maximum_stretch.is_finite());
        let never = Summary::decode(&Summary::unavailable().encode()).unwrap();
        assert_eq!(never, Summary::unavailable());
    }
}
