//! The summary in bytes: rounded down to a scale, predicted, and range-coded; whole, or against an earlier one.
//!
//! An encoded summary is a version, whether it is whole, the sums, and then decisions of an adaptive coder: which
//! stretches have a row, and each row's cells. Cells are codes on a scale (`scale`). What is known of a matrix is
//! not sent: availability does not fall as the stretch or the horizon grows, and with tasks four times as large at
//! most a quarter fit. So a cell lies between the largest of its two lower neighbours and a quarter of the one
//! before it; where both are the same, it costs nothing. Elsewhere it is coded as its distance from a prediction.
//!
//! Encoding never raises a cell, and what was decoded is encoded to the same bytes again, so that a summary that
//! nothing is added to loses only once. Two bodies of the same model exist, one for each direction of [`Coder`].

use super::coder::{Chance, Coder, Number, Reader, Writer};
use super::grid::{STRETCH_COUNT, TASK_SIZE_COUNT};
use super::matrix::{CELLS, Rows};
use super::{CELL_MAX, LEAVES_MAX, SPEED_SUM_MOPS_MAX, Summary, scale};

/// Largest encoded summary, bytes.
pub const ENCODED_BYTES_MAX: usize = 64 * 1024;

/// Of the format and of the grids.
const VERSION: u8 = 2;
const WHOLE: u8 = VERSION << 1;
const DIFFERENCE: u8 = WHOLE | 1;

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

/// A row in codes.
type Codes = [u16; CELLS];

/// A summary on the scale.
#[derive(Clone, Debug, PartialEq)]
struct Scaled {
    minimum_stretch: f32,
    maximum_stretch: f32,
    speed_mops: f32,
    leaves: u64,
    rows: Vec<(u8, Codes)>,
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

impl Scaled {
    fn of(summary: &Summary) -> Self {
        let bits = scale::bits(summary.leaves);
        let mut rows: Vec<(u8, Codes)> = Vec::with_capacity(summary.rows.len());
        for (index, row) in &summary.rows {
            rows.push((*index, row.dense().map(|cell| scale::code(cell, bits))));
        }
        // Monotone as it is but for rounding, and for what a booking took off: lowering is always allowed.
        let mut above: Option<Codes> = None;
        for (_, codes) in rows.iter_mut().rev() {
            if let Some(above) = above {
                codes.iter_mut().zip(above).for_each(|(code, above)| *code = above.min(*code));
            }
            for at in (0..CELLS - TASK_SIZE_COUNT).rev() {
                codes[at] = codes[at].min(codes[at + TASK_SIZE_COUNT]);
            }
            above = Some(*codes);
            for line in codes.chunks_exact_mut(TASK_SIZE_COUNT) {
                for at in 1..TASK_SIZE_COUNT {
                    line[at] = line[at].min(scale::quarter(line[at - 1], bits));
                }
            }
        }
        let mut before = [0; CELLS];
        rows.retain(|(_, codes)| std::mem::replace(&mut before, *codes) != *codes);
        Self {
            minimum_stretch: round_down(summary.minimum_stretch),
            maximum_stretch: -round_down(-summary.maximum_stretch.min(f64::from(f32::MAX))),
            speed_mops: round_down(summary.speed_mops),
            leaves: summary.leaves,
            rows,
        }
    }

    fn into_summary(self) -> Summary {
        let bits = scale::bits(self.leaves);
        let mut rows = Rows::default();
        for (index, codes) in &self.rows {
            rows.push(usize::from(*index), &codes.map(|code| scale::value(code, bits)));
        }
        Summary {
            minimum_stretch: f64::from(self.minimum_stretch),
            maximum_stretch: f64::from(self.maximum_stretch),
            speed_mops: f64::from(self.speed_mops),
            leaves: self.leaves,
            rows: rows.0,
        }
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
        }
    }

    fn encode(&self, base: Option<&Self>) -> Vec<u8> {
        let mut bytes = vec![if base.is_some() { DIFFERENCE } else { WHOLE }];
        for value in [self.minimum_stretch, self.maximum_stretch, self.speed_mops] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        put(&mut bytes, self.leaves);
        let mut writer = Writer::new(bytes);
        let mut model = Model::new(self.leaves, base);
        let mut rows = self.rows.iter().peekable();
        for index in 0..STRETCH_COUNT as u8 {
            let row = rows.next_if(|row| row.0 == index);
            model.row(&mut writer, index, row.map(|row| &row.1));
        }
        writer.finish()
    }

    fn decode(bytes: &[u8], base: Option<&Self>) -> Result<Self, DecodeError> {
        if bytes.len() > ENCODED_BYTES_MAX {
            return Err(DecodeError::TooLong(bytes.len()));
        }
        let mut rest = bytes;
        let [kind] = take(&mut rest)?;
        if kind != if base.is_some() { DIFFERENCE } else { WHOLE } {
            return Err(DecodeError::Format);
        }
        let minimum_stretch = f32::from_le_bytes(take(&mut rest)?);
        let maximum_stretch = f32::from_le_bytes(take(&mut rest)?);
        let speed_mops = f32::from_le_bytes(take(&mut rest)?);
        let leaves = get(&mut rest)?;
        let in_range = minimum_stretch >= 0.0
            && (0.0..f32::INFINITY).contains(&maximum_stretch)
            && (0.0..=SPEED_SUM_MOPS_MAX).contains(&f64::from(speed_mops))
            && leaves <= LEAVES_MAX;
        if !in_range {
            return Err(DecodeError::Range);
        }
        let mut reader = Reader::new(rest);
        let mut model = Model::new(leaves, base);
        let mut rows = Vec::new();
        for index in 0..STRETCH_COUNT as u8 {
            let before = model.codes;
            if model.row(&mut reader, index, None) && model.codes != before {
                rows.push((index, model.codes));
            }
            if !reader.is_sound() {
                return Err(DecodeError::Damaged);
            }
        }
        if !reader.is_done() {
            return Err(DecodeError::Damaged);
        }
        Ok(Self { minimum_stretch, maximum_stretch, speed_mops, leaves, rows })
    }
}

/// What is expected of the rows, and how surely; the same for who writes and who reads.
struct Model<'a> {
    bits: u32,
    base: Option<&'a Scaled>,
    /// The last row; zeros before the first.
    codes: Codes,
    /// How far its cells were from what was expected.
    misses: [u8; CELLS],
    was_present: bool,
    present: [Chance; 4],
    /// Whether a cell is what it is in the base.
    kept: [Chance; 8],
    /// Whether a cell is not what is expected: by the misses around it, and what it may be.
    missed: [Chance; 216],
    above: [Chance; 3],
    distance: [Number; 4],
    /// Of the very first cell, which nothing predicts.
    corner: Number,
}

/// Which codes a cell may have, and which one is expected; `low < high`.
#[derive(Clone, Copy, Debug)]
struct Guess {
    low: u16,
    high: u16,
    expected: u16,
}

impl<'a> Model<'a> {
    fn new(leaves: u64, base: Option<&'a Scaled>) -> Self {
        Self {
            bits: scale::bits(leaves),
            base,
            codes: [0; CELLS],
            misses: [0; CELLS],
            was_present: false,
            present: Default::default(),
            kept: Default::default(),
            missed: [Chance::default(); 216],
            above: Default::default(),
            distance: Default::default(),
            corner: Number::default(),
        }
    }

    /// Writes or reads the row at this stretch, if there is one; whether there was. `self.codes` is the row then.
    fn row(&mut self, coder: &mut impl Coder, index: u8, row: Option<&Codes>) -> bool {
        let holding = self.base.and_then(|base| {
            let holding = base.rows.partition_point(|row| row.0 <= index);
            holding.checked_sub(1).map(|at| (&base.rows[at], scale::bits(base.leaves)))
        });
        let in_base = holding.is_some_and(|(row, _)| row.0 == index);
        let context = usize::from(self.was_present) | usize::from(in_base) << 1;
        self.was_present = coder.bit(&mut self.present[context], row.is_some());
        if self.was_present {
            let base = holding.map(|((_, codes), bits)| {
                if bits == self.bits {
                    *codes
                } else {
                    codes.map(|code| scale::code(scale::value(code, bits), self.bits))
                }
            });
            self.cells(coder, row, base.as_ref());
        }
        self.was_present
    }

    fn cells(&mut self, coder: &mut impl Coder, row: Option<&Codes>, base: Option<&Codes>) {
        let below = self.codes;
        let is_first = below.iter().all(|&code| code == 0);
        for start in (0..CELLS).step_by(TASK_SIZE_COUNT) {
            let end = start + TASK_SIZE_COUNT;
            for at in start..end {
                let guess = self.guess(at, &below, is_first);
                if guess.high == 0 {
                    // Nor do larger tasks fit.
                    self.codes[at..end].fill(0);
                    self.misses[at..end].fill(0);
                    break;
                }
                if guess.low >= guess.high {
                    self.codes[at] = guess.high;
                    self.misses[at] = 0;
                    continue;
                }
                let wanted = row.map_or(0, |row| row[at]);
                self.codes[at] = match base {
                    Some(base) if self.keeps(coder, at, guess, base, wanted) => base[at],
                    _ => self.cell(coder, at, guess, wanted),
                };
            }
        }
    }

    /// What is known of a cell from those before it.
    fn guess(&self, at: usize, below: &Codes, is_first: bool) -> Guess {
        let earlier = at.checked_sub(TASK_SIZE_COUNT);
        let of_earlier = |codes: &Codes| earlier.map_or(0, |earlier| codes[earlier]);
        let low = below[at].max(of_earlier(&self.codes));
        // Whatever bounds it from above there bounds it here: what is between them stays.
        let (high, high_below, high_earlier) = if at.is_multiple_of(TASK_SIZE_COUNT) {
            (scale::code(CELL_MAX, self.bits), 0, 0)
        } else {
            let quarter = |code| scale::quarter(code, self.bits);
            let high_earlier = earlier.map_or(0, |earlier| quarter(self.codes[earlier - 1]));
            (quarter(self.codes[at - 1]), quarter(below[at - 1]), high_earlier)
        };
        let expected = match (at.is_multiple_of(TASK_SIZE_COUNT), is_first, earlier) {
            // Twice the time, twice the work.
            (true, true, Some(earlier)) => i32::from(self.codes[earlier]) + (1 << self.bits),
            (true, true, None) => 0,
            (true, false, _) => {
                i32::from(below[at]) + i32::from(of_earlier(&self.codes)) - i32::from(of_earlier(below))
            }
            (false, true, Some(earlier)) => i32::from(self.codes[earlier]) + i32::from(high) - i32::from(high_earlier),
            (false, true, None) => i32::from(high),
            (false, false, _) => i32::from(below[at]) + i32::from(high) - i32::from(high_below),
        };
        // In range of the type after the clamp.
        let expected = expected.min(i32::from(high)).max(i32::from(low)) as u16;
        Guess { low, high, expected }
    }

    /// Whether the cell is what it is in the base.
    fn keeps(&mut self, coder: &mut impl Coder, at: usize, guess: Guess, base: &Codes, wanted: u16) -> bool {
        if !(guess.low..=guess.high).contains(&base[at]) {
            return false;
        }
        let agrees = |other: usize| usize::from(self.codes[other] == base[other]);
        let smaller = if at.is_multiple_of(TASK_SIZE_COUNT) { 0 } else { agrees(at - 1) };
        let earlier = at.checked_sub(TASK_SIZE_COUNT).map_or(0, agrees);
        let context = smaller | earlier << 1 | usize::from(self.misses[at] == 0) << 2;
        let keeps = coder.bit(&mut self.kept[context], wanted == base[at]);
        if keeps {
            self.misses[at] = 0;
        }
        keeps
    }

    /// A cell by its distance from what is expected.
    fn cell(&mut self, coder: &mut impl Coder, at: usize, guess: Guess, wanted: u16) -> u16 {
        let Guess { low, high, expected } = guess;
        let smaller = if at.is_multiple_of(TASK_SIZE_COUNT) { 0 } else { self.misses[at - 1] };
        let earlier = at.checked_sub(TASK_SIZE_COUNT).map_or(0, |earlier| self.misses[earlier]);
        let below = self.misses[at];
        let width = match high - low {
            1 => 0,
            2 => 1,
            3..=6 => 2,
            _ => 3,
        };
        let around = [smaller, earlier, below].iter().fold(0, |all, &miss| all * 3 + usize::from(miss.min(2)));
        let context = (around * 4 + width) * 2 + usize::from(high < 8);
        if !coder.bit(&mut self.missed[context], wanted != expected) {
            self.misses[at] = 0;
            return expected;
        }
        let is_above = match expected {
            _ if expected == low => true,
            _ if expected == high => false,
            _ => coder.bit(&mut self.above[usize::from(smaller.min(2))], wanted > expected),
        };
        let room = if is_above { high - expected } else { expected - low };
        let distance = if room == 1 {
            1
        } else {
            let number = match smaller.max(below) {
                _ if at == 0 && expected == 0 => &mut self.corner,
                0 => &mut self.distance[0],
                1 => &mut self.distance[1],
                2..=5 => &mut self.distance[2],
                _ => &mut self.distance[3],
            };
            // What nobody writes is read as the furthest there is.
            number.code(coder, wanted.abs_diff(expected).saturating_sub(1)).min(room - 1) + 1
        };
        self.misses[at] = distance.min(255) as u8;
        if is_above { expected + distance } else { expected - distance }
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
            assert!(fitted.rows.iter().all(|row| whole.rows.contains(row)));
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
