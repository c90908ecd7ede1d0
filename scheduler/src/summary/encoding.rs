//! The summary in bytes: rounded down to a scale, predicted, and range-coded; whole, or against an earlier one.
//!
//! An encoded summary is a version, whether it is whole, the sums, and then decisions of an adaptive coder: which
//! stretches have a row, which lines (the task sizes of one horizon) of a row are not those of the row before, and
//! what those are. Most are that of a quarter of their horizon, for tasks a quarter as large: what an idle leaf offers,
//! in one decision. Of the others first the one cell is coded, then whether the rest follows from it. Few decisions
//! make it fast: each costs some nanoseconds, however little it surprises. Cells are codes on a scale (`scale`). What is known of a matrix is not sent: availability does not fall
//! as the stretch or the horizon grows, and with tasks four times as large at most a quarter fit. So a cell lies between
//! the larger of its two lower neighbours and a quarter of the one before it; where both are the same, it costs nothing.
//! Elsewhere it is coded as its distance from a prediction.
//!
//! On several slots more than a quarter may be promised: larger tasks pack as whole ones where smaller ones are reckoned
//! by their work. A summary that has such cells is *loose*: says so, and has the cell before as the upper bound.
//!
//! Encoding never raises a cell, and what was decoded is encoded to the same bytes again, so that a summary that
//! nothing is added to loses only once. Two bodies of the same model exist, one for each direction of [`Coder`].

mod model;

use self::model::{Model, is_same};
use super::coder::{Reader, Writer};
use super::grid::{HORIZON_COUNT, STRETCH_COUNT, TASK_SIZE_COUNT};
use super::matrix::{CELLS, Rows};
use super::{CELL_MAX, LEAVES_MAX, SPEED_SUM_MOPS_MAX, Summary, WAIT_BITS, scale};
use crate::queue::SLOTS_MAX;

/// Largest encoded summary, bytes.
pub const ENCODED_BYTES_MAX: usize = 64 * 1024;

/// Of the format and of the grids.
const VERSION: u8 = 5;
const WHOLE: u8 = VERSION << 2;
const DIFFERENCE: u8 = 1;
const LOOSE: u8 = 2;

/// Why bytes are not a summary; nothing was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More than [`ENCODED_BYTES_MAX`].
    #[error("a summary of {0} bytes: at most {ENCODED_BYTES_MAX}")]
    TooLong(usize),
    /// They end too early, go on too long, or a number does not fit.
    #[error("the bytes of a summary are damaged")]
    Damaged,
    /// Another version, or other grids, or a difference where a whole summary was expected.
    #[error("a summary of another format")]
    Format,
    /// A number that no sum of leaves has.
    #[error("a summary with a value out of range")]
    Range,
}

/// The task sizes of one horizon, in codes.
type Line = [u16; TASK_SIZE_COUNT];
/// A row in codes: the lines of all horizons.
type Codes = [Line; HORIZON_COUNT];
/// What there is below the first row.
const NOTHING: Codes = [[0; TASK_SIZE_COUNT]; HORIZON_COUNT];

/// A row on the scale.
#[derive(Clone, Debug, PartialEq)]
struct ScaledRow {
    /// Of the stretch from which on it holds.
    index: u8,
    /// Bit t: whether line t differs from that of the row before.
    changed: u32,
    codes: Codes,
}

impl ScaledRow {
    /// A row as it follows another; nothing where they are the same.
    fn after(before: &Codes, index: u8, codes: Codes) -> Option<Self> {
        let changed = changed_lines(before, &codes);
        (changed != 0).then_some(Self { index, changed, codes })
    }
}

/// Bit t: whether line t differs.
fn changed_lines(before: &Codes, codes: &Codes) -> u32 {
    let differs = |(t, (before, line)): (usize, (&Line, &Line))| u32::from(!is_same(before, line)) << t;
    before.iter().zip(codes).enumerate().map(differs).sum()
}

/// A summary on the scale. Its cells are in order: they do not fall with stretch or horizon, nor grow with the task.
#[derive(Clone, Debug, PartialEq)]
struct Scaled {
    minimum_stretch: f32,
    maximum_stretch: f32,
    speed_mops: f32,
    leaves: u64,
    height: u8,
    slots: u32,
    /// On the scale of waits.
    longest_wait: u16,
    /// Whether a cell is more than a quarter of the one before.
    is_loose: bool,
    rows: Vec<ScaledRow>,
}

impl Summary {
    /// The summary in bytes, at most [`ENCODED_BYTES_MAX`]: rounded down to the scale and monotone. Where that does
    /// not suffice every other row is left out; the one before it holds on, and all cells stay lower bounds.
    pub fn encode(&self) -> Vec<u8> {
        let mut scaled = Scaled::of(self);
        scaled.fit(ENCODED_BYTES_MAX)
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// For bytes that are no summary of this format; whatever they are, this neither panics nor takes more memory
    /// than the largest summary, before and after it is taken off the scale (700 kB).
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Ok(Scaled::decode(bytes, None)?.into_summary())
    }
}

/// Summaries up to this size travel whole. Our choice: most reports are those of a few leaves, whose differences would
/// save some hundred bytes and cost both ends four times the processor time.
const WHOLE_BYTES: usize = 400;

/// What makes `new` out of `base`, both encoded summaries; nothing where one of them is not what [`Summary::encode`]
/// writes, where `new` is small enough as it is, or where the difference is no shorter.
pub fn diff(base: &[u8], new: &[u8]) -> Option<Vec<u8>> {
    if new.len() <= WHOLE_BYTES {
        return None;
    }
    let base = Scaled::decode(base, None).ok()?;
    let scaled = Scaled::decode(new, None).ok()?;
    let bytes = scaled.encode(Some(&base));
    debug_assert_eq!(scaled.encode(None), new, "only what an encoder wrote has differences");
    (bytes.len() < new.len()).then_some(bytes)
}

/// The summary that [`diff`] was given as `new`; nothing where these are no such bytes.
pub fn apply(base: &[u8], difference: &[u8]) -> Option<Vec<u8>> {
    let base = Scaled::decode(base, None).ok()?;
    let bytes = Scaled::decode(difference, Some(&base)).ok()?.encode(None);
    (bytes.len() <= ENCODED_BYTES_MAX).then_some(bytes)
}

/// [`Summary::longest_wait_s`] of an encoded summary, at little cost; 0 where these bytes are none.
pub fn longest_wait_s(bytes: &[u8]) -> u64 {
    let read = || {
        let mut rest = bytes.get(14..).filter(|_| bytes[0] & !LOOSE == WHOLE)?;
        get(&mut rest).ok()?;
        get(&mut rest).ok()?;
        u16::try_from(get(&mut rest).ok()?).ok()
    };
    let code: Option<u16> = read();
    code.filter(|&code| code <= scale::code(CELL_MAX, WAIT_BITS)).map_or(0, |code| scale::value(code, WAIT_BITS))
}

/// [`Summary::maximum_stretch`] of an encoded summary, at little cost; 0 where these bytes are none.
pub fn maximum_stretch(bytes: &[u8]) -> f64 {
    let mut rest = bytes.get(5..).filter(|_| bytes[0] & !LOOSE == WHOLE).unwrap_or_default();
    let stretch = take(&mut rest).map_or(0.0, f32::from_le_bytes);
    if (0.0..f32::INFINITY).contains(&stretch) { f64::from(stretch) } else { 0.0 }
}

/// The report of a router above children with these encoded summaries: as decoding, [`Summary::of_children`] and
/// encoding would give it, in less time and memory. What is no summary counts as a leaf that takes no work.
pub fn report(children: &[&[u8]]) -> Vec<u8> {
    let read = |bytes: &[u8]| Scaled::decode(bytes, None).unwrap_or_else(|_| Scaled::of(&Summary::unavailable()));
    match children {
        [one, other] => read(one).plus(&read(other)).fit(ENCODED_BYTES_MAX),
        _ => {
            let children: Vec<Summary> = children.iter().map(|child| read(child).into_summary()).collect();
            Summary::of_children(&children.iter().collect::<Vec<_>>()).encode()
        }
    }
}

impl Scaled {
    fn of(summary: &Summary) -> Self {
        let bits = scale::bits(summary.height);
        let mut all: Vec<(u8, Codes)> = Vec::with_capacity(summary.rows.len());
        for (index, row) in &summary.rows {
            let mut codes = NOTHING;
            for (line, cells) in codes.iter_mut().zip(row.lines()) {
                line.iter_mut().zip(cells).for_each(|(code, &cell)| *code = scale::code(cell, bits));
            }
            all.push((*index, codes));
        }
        // In order as they are, but for rounding and for what a booking took off: lowering is always allowed.
        let mut above = [[u16::MAX; TASK_SIZE_COUNT]; HORIZON_COUNT];
        let mut is_loose = false;
        for (_, codes) in all.iter_mut().rev() {
            let mut later = [u16::MAX; TASK_SIZE_COUNT];
            for (line, above) in codes.iter_mut().zip(&mut above).rev() {
                for ((code, above), later) in line.iter_mut().zip(above.iter_mut()).zip(&mut later) {
                    *code = (*code).min(*above).min(*later);
                    (*above, *later) = (*code, *code);
                }
                for at in 1..TASK_SIZE_COUNT {
                    line[at] = line[at].min(line[at - 1]);
                    if line[at] == 0 {
                        line[at..].fill(0);
                        break;
                    }
                    is_loose |= line[at] > scale::quarter(line[at - 1], bits);
                }
            }
        }
        let mut before = NOTHING;
        let mut rows = Vec::with_capacity(all.len());
        for (index, codes) in all {
            rows.extend(ScaledRow::after(&before, index, codes));
            before = codes;
        }
        Self {
            minimum_stretch: round_down(summary.minimum_stretch),
            maximum_stretch: -round_down(-summary.maximum_stretch.min(f64::from(f32::MAX))),
            speed_mops: round_down(summary.speed_mops),
            leaves: summary.leaves,
            height: summary.height,
            slots: summary.slots,
            longest_wait: scale::code(summary.longest_wait_s.min(CELL_MAX), WAIT_BITS),
            is_loose,
            rows,
        }
    }

    fn into_summary(self) -> Summary {
        let bits = scale::bits(self.height);
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
            minimum_stretch: f64::from(self.minimum_stretch),
            maximum_stretch: f64::from(self.maximum_stretch),
            speed_mops: f64::from(self.speed_mops),
            leaves: self.leaves,
            height: self.height,
            slots: self.slots,
            longest_wait_s: scale::value(self.longest_wait, WAIT_BITS),
            rows: rows.0,
        }
    }

    /// What a router offers above these two. What is in order stays in order when it is added and rounded down, so
    /// nothing else is lowered.
    fn plus(&self, other: &Self) -> Self {
        let height = self.height.max(other.height).saturating_add(1);
        let (my_bits, their_bits, bits) = (scale::bits(self.height), scale::bits(other.height), scale::bits(height));
        let (mut mine, mut theirs) = (self.rows.as_slice(), other.rows.as_slice());
        let (mut my_codes, mut their_codes) = (&NOTHING, &NOTHING);
        let mut rows: Vec<ScaledRow> = Vec::with_capacity(STRETCH_COUNT.min(mine.len() + theirs.len()));
        let mut codes = NOTHING;
        // Quarters of what is in order add up, but for sums that stop at the largest cell.
        let is_strict = !self.is_loose && !other.is_loose;
        while let Some(index) = [mine.first(), theirs.first()].into_iter().flatten().map(|row| row.index).min() {
            let mut touched = 0;
            for (rows, codes) in [(&mut mine, &mut my_codes), (&mut theirs, &mut their_codes)] {
                if let Some((first, rest)) = rows.split_first()
                    && first.index == index
                {
                    *codes = &first.codes;
                    touched |= first.changed;
                    *rows = rest;
                }
            }
            let mut changed = 0;
            for t in 0..HORIZON_COUNT {
                if touched >> t & 1 == 0 {
                    continue;
                }
                let mut line = [0; TASK_SIZE_COUNT];
                let mut high = scale::code(CELL_MAX, bits);
                for at in 0..TASK_SIZE_COUNT {
                    let (one, two) = (my_codes[t][at], their_codes[t][at]);
                    if one == 0 && two == 0 {
                        break;
                    }
                    let sum = scale::value(one, my_bits) + scale::value(two, their_bits);
                    line[at] = scale::code(sum.min(CELL_MAX), bits).min(high);
                    high = if is_strict { scale::quarter(line[at], bits) } else { line[at] };
                }
                changed |= u32::from(!is_same(&line, &codes[t])) << t;
                codes[t] = line;
            }
            if changed != 0 {
                rows.push(ScaledRow { index, changed, codes });
            }
        }
        let mut sum = Self {
            minimum_stretch: self.minimum_stretch.min(other.minimum_stretch),
            maximum_stretch: self.maximum_stretch.max(other.maximum_stretch),
            speed_mops: round_down((f64::from(self.speed_mops) + f64::from(other.speed_mops)).min(SPEED_SUM_MOPS_MAX)),
            leaves: self.leaves.saturating_add(other.leaves).min(LEAVES_MAX),
            height,
            slots: self.slots.max(other.slots),
            longest_wait: self.longest_wait.max(other.longest_wait),
            is_loose: false,
            rows,
        };
        sum.is_loose = !is_strict && sum.has_loose_cells();
        sum
    }

    /// The whole in at most so many bytes.
    fn fit(&mut self, bytes_max: usize) -> Vec<u8> {
        loop {
            let bytes = self.encode(None);
            if bytes.len() <= bytes_max || self.rows.is_empty() {
                return bytes;
            }
            let mut kept = self.rows.len() == 1;
            self.rows.retain(|_| {
                kept = !kept;
                kept
            });
            let mut before = &NOTHING;
            for row in &mut self.rows {
                row.changed = changed_lines(before, &row.codes);
                before = &row.codes;
            }
            self.is_loose &= self.has_loose_cells();
        }
    }

    fn encode(&self, base: Option<&Self>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1024);
        bytes.push(WHOLE | base.map_or(0, |_| DIFFERENCE) | if self.is_loose { LOOSE } else { 0 });
        for value in [self.minimum_stretch, self.maximum_stretch, self.speed_mops] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.push(self.height);
        put(&mut bytes, self.leaves);
        put(&mut bytes, u64::from(self.slots));
        put(&mut bytes, u64::from(self.longest_wait));
        let mut writer = Writer::new(bytes);
        let mut model = Model::new(self.height, self.is_loose, base);
        let (mut last, mut rows) = (None, self.rows.iter());
        loop {
            last = model.row(&mut writer, last, rows.next());
            if last.is_none() {
                return writer.finish();
            }
        }
    }

    fn decode(bytes: &[u8], base: Option<&Self>) -> Result<Self, DecodeError> {
        if bytes.len() > ENCODED_BYTES_MAX {
            return Err(DecodeError::TooLong(bytes.len()));
        }
        let mut rest = bytes;
        let [kind] = take(&mut rest)?;
        if kind & !LOOSE != WHOLE | base.map_or(0, |_| DIFFERENCE) {
            return Err(DecodeError::Format);
        }
        let is_loose = kind & LOOSE != 0;
        let minimum_stretch = f32::from_le_bytes(take(&mut rest)?);
        let maximum_stretch = f32::from_le_bytes(take(&mut rest)?);
        let speed_mops = f32::from_le_bytes(take(&mut rest)?);
        let [height] = take(&mut rest)?;
        let leaves = get(&mut rest)?;
        let slots = u32::try_from(get(&mut rest)?).map_err(|_| DecodeError::Range)?;
        let longest_wait = u16::try_from(get(&mut rest)?).map_err(|_| DecodeError::Range)?;
        let in_range = longest_wait <= scale::code(CELL_MAX, WAIT_BITS)
            && minimum_stretch >= 0.0
            && (0.0..f32::INFINITY).contains(&maximum_stretch)
            && (0.0..=SPEED_SUM_MOPS_MAX).contains(&f64::from(speed_mops))
            && leaves <= LEAVES_MAX
            && slots <= SLOTS_MAX;
        if !in_range {
            return Err(DecodeError::Range);
        }
        let mut reader = Reader::new(rest);
        let mut model = Model::new(height, is_loose, base);
        let mut rows = Vec::new();
        let mut last = None;
        while let Some(index) = model.row(&mut reader, last, None) {
            if model.changed != 0 {
                rows.push(ScaledRow { index, changed: model.changed, codes: model.codes });
            }
            if !reader.is_sound() {
                return Err(DecodeError::Damaged);
            }
            last = Some(index);
        }
        let scaled =
            Self { minimum_stretch, maximum_stretch, speed_mops, leaves, height, slots, longest_wait, is_loose, rows };
        // Whether it is loose has one answer, so that there is one way to write a summary.
        if !reader.is_done() || is_loose && !scaled.has_loose_cells() {
            return Err(DecodeError::Damaged);
        }
        Ok(scaled)
    }

    fn has_loose_cells(&self) -> bool {
        let bits = scale::bits(self.height);
        let is_loose = |line: &Line| line.windows(2).any(|pair| pair[1] > scale::quarter(pair[0], bits));
        self.rows.iter().any(|row| row.codes.iter().any(is_loose))
    }
}

fn round_down(value: f64) -> f32 {
    let rounded = value as f32;
    if f64::from(rounded) > value { rounded.next_down() } else { rounded }
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
    use super::*;

    #[test]
    fn what_does_not_fit_loses_rows() {
        // Rows that nothing predicts, in the order that all matrices have.
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
    fn sums_are_rounded_the_careful_way() {
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
