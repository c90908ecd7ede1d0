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

use super::coder::{Chance, Coder, Number, Reader, Writer};
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

/// What is expected of the rows, and how surely; the same for who writes and who reads.
struct Model<'a> {
    bits: u32,
    is_loose: bool,
    /// The rows of the base from the one that holds at the last stretch on, and their scale.
    base: &'a [ScaledRow],
    base_bits: u32,
    has_base: bool,
    /// The last row; zeros before the first.
    codes: Codes,
    /// Which lines of the last row are not those of the row before it.
    changed: u32,
    is_first: bool,
    /// How far its cells were from what was expected.
    misses: [[u8; TASK_SIZE_COUNT]; HORIZON_COUNT],
    more_rows: [Chance; 2],
    at_base: Chance,
    gap: [Number; 2],
    /// Which lines are not those of the row before: whether the first is the expected one, how far it is otherwise, whether
    /// the next one is altered too, whether any more are, and how far that is.
    at_start: Chance,
    start: Number,
    goes_on: [Chance; 2],
    more_lines: Chance,
    between: Number,
    /// Whether a row, a line, a cell is what it is in the base.
    kept_row: [Chance; 2],
    kept_line: [Chance; 4],
    kept: [Chance; 8],
    last_row_kept: bool,
    /// Whether a line is that of a quarter of its horizon for tasks a quarter as large.
    shifted: [Chance; 4],
    last_shifted: bool,
    /// Whether the cells behind the first are all as expected; how many are before the first that is not.
    smooth: [Chance; 4],
    last_smooth: bool,
    run: [Number; 2],
    /// Whether a cell is not what is expected: by the misses around it, and what it may be.
    missed: [Chance; 216],
    above: [Chance; 3],
    distance: [Number; 4],
    /// Of the very first cell, which nothing predicts.
    corner: Number,
}

/// Which codes a cell may have, and which one is expected.
#[derive(Clone, Copy, Debug)]
struct Guess {
    low: u16,
    high: u16,
    expected: u16,
}

/// What is around a line: that of a quarter of its horizon, that of the horizon before, the same line in the row before,
/// and that of the horizon before there.
#[derive(Clone, Copy, Debug)]
struct Around {
    quarter: Option<Line>,
    earlier: Line,
    below: Line,
    below_earlier: Line,
}

/// Whether two lines are the same: without a call, which costs more than the comparison.
fn is_same(one: &Line, other: &Line) -> bool {
    one.iter().zip(other).fold(0, |all, (one, other)| all | one ^ other) == 0
}

/// Whether no code of the one is above that of the other.
fn is_at_most(one: &Line, other: &Line) -> bool {
    one.iter().zip(other).fold(true, |all, (one, other)| all & (one <= other))
}

impl<'a> Model<'a> {
    fn new(height: u8, is_loose: bool, base: Option<&'a Scaled>) -> Self {
        // What is loose there cannot be kept here where nothing is.
        let usable = base.filter(|base| is_loose || !base.is_loose);
        Self {
            bits: scale::bits(height),
            is_loose,
            base: usable.map_or(&[], |base| &base.rows),
            base_bits: usable.map_or(0, |base| scale::bits(base.height)),
            has_base: false,
            codes: NOTHING,
            changed: 0,
            is_first: true,
            misses: [[0; TASK_SIZE_COUNT]; HORIZON_COUNT],
            more_rows: Default::default(),
            at_base: Chance::default(),
            gap: Default::default(),
            at_start: Chance::default(),
            start: Number::default(),
            goes_on: Default::default(),
            more_lines: Chance::default(),
            between: Number::default(),
            kept_row: Default::default(),
            kept_line: Default::default(),
            kept: Default::default(),
            last_row_kept: false,
            shifted: Default::default(),
            last_shifted: false,
            smooth: Default::default(),
            last_smooth: false,
            run: Default::default(),
            missed: [Chance::default(); 216],
            above: Default::default(),
            distance: Default::default(),
            corner: Number::default(),
        }
    }

    /// Writes or reads the row behind the one at `last`, if there is one: the index of its stretch. `self.codes` is the
    /// row then.
    fn row(&mut self, coder: &mut impl Coder, last: Option<u8>, row: Option<&ScaledRow>) -> Option<u8> {
        let from = last.map_or(0, |last| last + 1);
        if usize::from(from) >= STRETCH_COUNT {
            return None;
        }
        let of_base = self.base.iter().map(|row| row.index).find(|&index| index >= from);
        if !coder.bit(&mut self.more_rows[usize::from(of_base.is_some())], row.is_some()) {
            return None;
        }
        let wanted = row.map_or(from, |row| row.index);
        let index = match of_base {
            Some(index) if coder.bit(&mut self.at_base, wanted == index) => index,
            _ => {
                let gap = self.gap[usize::from(self.is_first)].code(coder, u16::from(wanted - from));
                gap.min(STRETCH_COUNT as u16 - 1 - u16::from(from)) as u8 + from
            }
        };
        while self.base.get(1).is_some_and(|row| row.index <= index) {
            self.base = &self.base[1..];
        }
        self.has_base = self.base.first().is_some_and(|row| row.index <= index);
        let (mut base, bits) = (self.has_base.then(|| self.base[0].codes), self.base_bits);
        if let Some(base) = &mut base
            && bits != self.bits
        {
            let rescale = |code: &mut u16| *code = scale::code(scale::value(*code, bits), self.bits);
            base.iter_mut().flatten().for_each(rescale);
        }
        self.lines(coder, row, base.as_ref());
        self.is_first = false;
        Some(index)
    }

    fn lines(&mut self, coder: &mut impl Coder, row: Option<&ScaledRow>, base: Option<&Codes>) {
        if let Some(base) = base {
            let changed = changed_lines(&self.codes, base);
            if changed != 0 && self.codes.iter().zip(base).all(|(below, base)| is_at_most(below, base)) {
                let context = usize::from(self.last_row_kept);
                self.last_row_kept = coder.bit(&mut self.kept_row[context], row.is_some_and(|row| row.codes == *base));
                if self.last_row_kept {
                    (self.codes, self.changed) = (*base, changed);
                    self.misses = [[0; TASK_SIZE_COUNT]; HORIZON_COUNT];
                    return;
                }
            }
        }
        let wanted = row.map_or(0, |row| row.changed);
        let mut changed = 0;
        let mut below_earlier = [0; TASK_SIZE_COUNT];
        let mut next = self.first_altered(coder, wanted);
        if let Some(before) = next.checked_sub(1) {
            below_earlier = self.codes[before];
        }
        while next < HORIZON_COUNT {
            let t = next;
            let around = Around {
                quarter: t.checked_sub(2).map(|quarter| self.codes[quarter]),
                earlier: t.checked_sub(1).map_or([0; TASK_SIZE_COUNT], |earlier| self.codes[earlier]),
                below: self.codes[t],
                below_earlier,
            };
            let wanted_line = row.map(|row| &row.codes[t]);
            let line = match base {
                Some(base) if self.keeps_line(coder, t, &around, base, wanted_line) => {
                    self.misses[t] = [0; TASK_SIZE_COUNT];
                    base[t]
                }
                _ => self.line(coder, t, &around, base, wanted_line),
            };
            self.codes[t] = line;
            changed |= u32::from(!is_same(&line, &around.below)) << t;
            next = self.next_altered(coder, t, wanted);
            below_earlier =
                if next == t + 1 { around.below } else { self.codes.get(next - 1).copied().unwrap_or(line) };
        }
        self.changed = changed;
    }

    /// The first line that is not that of the row before.
    fn first_altered(&mut self, coder: &mut impl Coder, wanted: u32) -> usize {
        // Where the row before ended.
        let expected = if self.is_first { 0 } else { 32 - self.changed.leading_zeros() as usize };
        let wanted = (wanted.trailing_zeros() as usize).min(HORIZON_COUNT - 1);
        if expected < HORIZON_COUNT && coder.bit(&mut self.at_start, wanted == expected) {
            return expected;
        }
        usize::from(self.start.code(coder, wanted as u16)).min(HORIZON_COUNT - 1)
    }

    /// The one behind `t`; [`HORIZON_COUNT`] where there is none.
    fn next_altered(&mut self, coder: &mut impl Coder, t: usize, wanted: u32) -> usize {
        let from = t + 1;
        if from == HORIZON_COUNT {
            return from;
        }
        // Otherwise it has to.
        let may_stay = is_at_most(&self.codes[t], &self.codes[from]);
        if !may_stay || coder.bit(&mut self.goes_on[usize::from(self.is_first)], wanted >> from & 1 == 1) {
            return from;
        }
        let rest = wanted >> from;
        if from + 1 == HORIZON_COUNT || !coder.bit(&mut self.more_lines, rest != 0) {
            return HORIZON_COUNT;
        }
        let between = self.between.code(coder, (rest.trailing_zeros() as u16).saturating_sub(1));
        (from + 1 + usize::from(between)).min(HORIZON_COUNT - 1)
    }

    /// Whether a line that is not that of the row before is what it is in the base.
    fn keeps_line(
        &mut self,
        coder: &mut impl Coder,
        t: usize,
        around: &Around,
        base: &Codes,
        wanted: Option<&Line>,
    ) -> bool {
        let line = &base[t];
        if *line == around.below || !is_at_most(&around.below, line) || !is_at_most(&around.earlier, line) {
            return false;
        }
        let earlier_kept = t.checked_sub(1).is_some_and(|earlier| base[earlier] == around.earlier);
        let context = usize::from(earlier_kept) | usize::from(t > 0) << 1;
        coder.bit(&mut self.kept_line[context], wanted.is_some_and(|wanted| wanted == line))
    }

    fn line(
        &mut self,
        coder: &mut impl Coder,
        t: usize,
        around: &Around,
        base: Option<&Codes>,
        wanted: Option<&Line>,
    ) -> Line {
        if let Some(shifted) = self.shift(around) {
            let context = usize::from(self.last_shifted) | usize::from(self.is_first) << 1;
            self.last_shifted =
                coder.bit(&mut self.shifted[context], wanted.is_some_and(|wanted| is_same(wanted, &shifted)));
            if self.last_shifted {
                self.misses[t] = [0; TASK_SIZE_COUNT];
                return shifted;
            }
        }
        let mut line = [0; TASK_SIZE_COUNT];
        self.line_cell(coder, (t, 0), around, base, wanted, &mut line);
        if line[0] == 0 {
            self.misses[t] = [0; TASK_SIZE_COUNT];
            return line;
        }
        // All as expected?
        let mut smooth = line;
        for at in 1..TASK_SIZE_COUNT {
            smooth[at] = self.guess(t, at, around, &smooth).expected;
            if smooth[at] == 0 {
                break;
            }
        }
        let context = usize::from(self.last_smooth) | usize::from(self.misses[t][0] > 0) << 1;
        self.last_smooth = coder.bit(&mut self.smooth[context], wanted.is_some_and(|wanted| is_same(wanted, &smooth)));
        if self.last_smooth {
            self.misses[t][1..].fill(0);
            return smooth;
        }
        let run = wanted.map_or(0, |wanted| {
            wanted.iter().zip(&smooth).skip(1).take_while(|(wanted, smooth)| wanted == smooth).count()
        });
        let expected = smooth.iter().skip(1).take_while(|&&code| code >= 4 << self.bits).count() as u16;
        let wanted_run = run as u16;
        let run = if coder.bit(&mut self.above[0], wanted_run >= expected) {
            expected.saturating_add(self.run[0].code(coder, wanted_run.wrapping_sub(expected).min(255)))
        } else {
            let short = self.run[1].code(coder, expected.wrapping_sub(wanted_run.wrapping_add(1)).min(255));
            expected.saturating_sub(short).saturating_sub(1)
        };
        let run = usize::from(run).min(TASK_SIZE_COUNT - 2);
        line[1..=run].copy_from_slice(&smooth[1..=run]);
        self.misses[t][1..=run].fill(0);
        for at in run + 1..TASK_SIZE_COUNT {
            if !self.line_cell(coder, (t, at), around, base, wanted, &mut line) {
                self.misses[t][at..].fill(0);
                break;
            }
        }
        line
    }

    /// One cell of a line; `false` where neither it nor one behind it can be above 0.
    fn line_cell(
        &mut self,
        coder: &mut impl Coder,
        (t, at): (usize, usize),
        around: &Around,
        base: Option<&Codes>,
        wanted: Option<&Line>,
        line: &mut Line,
    ) -> bool {
        let guess = self.guess(t, at, around, line);
        if guess.high == 0 {
            return false;
        }
        if guess.low >= guess.high {
            line[at] = guess.high;
            self.misses[t][at] = 0;
            return true;
        }
        let wanted = wanted.map_or(0, |wanted| wanted[at]);
        line[at] = match base {
            Some(base) if self.keeps(coder, (t, at), guess, base, line, wanted) => base[t][at],
            _ => self.cell(coder, (t, at), guess, wanted),
        };
        true
    }

    /// As much in tasks four times as large as there is by a quarter of the time: what an idle leaf offers. Nothing where
    /// that cannot be.
    fn shift(&self, around: &Around) -> Option<Line> {
        let quarter = around.quarter.as_ref()?;
        let mut shifted = [0; TASK_SIZE_COUNT];
        shifted[0] = scale::code(scale::value(quarter[0], self.bits).saturating_mul(4).min(CELL_MAX), self.bits);
        shifted[1..].copy_from_slice(&quarter[..TASK_SIZE_COUNT - 1]);
        let most = if self.is_loose { shifted[0] } else { scale::quarter(shifted[0], self.bits) };
        let may_be = is_at_most(&around.earlier, &shifted) && is_at_most(&around.below, &shifted);
        (may_be && shifted[1] <= most && !is_same(&shifted, &around.below)).then_some(shifted)
    }

    /// What is known of a cell from those before it.
    fn guess(&self, t: usize, at: usize, around: &Around, line: &Line) -> Guess {
        let Around { earlier, below, below_earlier, .. } = around;
        let low = below[at].max(earlier[at]);
        let quarter = |code| i32::from(scale::quarter(code, self.bits));
        let code = |code: u16| i32::from(code);
        let (high, expected) = if at == 0 {
            let expected = match (self.is_first, t) {
                (true, 0) => 0,
                // Twice the time, twice the work.
                (true, _) => code(earlier[0]) + (1 << self.bits),
                (false, _) => code(below[0]) + code(earlier[0]) - code(below_earlier[0]),
            };
            (scale::code(CELL_MAX, self.bits), expected)
        } else {
            // Whatever bounds it from above there bounds it here: what is between them stays.
            let most = quarter(line[at - 1]);
            let expected = match (self.is_first, t) {
                (true, 0) => most,
                (true, _) => code(earlier[at]) + most - quarter(earlier[at - 1]),
                (false, _) => code(below[at]) + most - quarter(below[at - 1]),
            };
            (if self.is_loose { line[at - 1] } else { most as u16 }, expected)
        };
        // In range of the type after the clamp.
        let expected = expected.max(code(low)).min(code(high)) as u16;
        Guess { low, high, expected }
    }

    /// Whether the cell is what it is in the base.
    fn keeps(
        &mut self,
        coder: &mut impl Coder,
        (t, at): (usize, usize),
        guess: Guess,
        base: &Codes,
        line: &Line,
        wanted: u16,
    ) -> bool {
        let expected = base[t][at];
        if !(guess.low..=guess.high).contains(&expected) {
            return false;
        }
        let smaller = at > 0 && line[at - 1] == base[t][at - 1];
        let earlier = t > 0 && self.codes[t - 1][at] == base[t - 1][at];
        let context = usize::from(smaller) | usize::from(earlier) << 1 | usize::from(self.misses[t][at] == 0) << 2;
        let keeps = coder.bit(&mut self.kept[context], wanted == expected);
        if keeps {
            self.misses[t][at] = 0;
        }
        keeps
    }

    /// A cell by its distance from what is expected.
    fn cell(&mut self, coder: &mut impl Coder, (t, at): (usize, usize), guess: Guess, wanted: u16) -> u16 {
        let Guess { low, high, expected } = guess;
        let smaller = if at == 0 { 0 } else { self.misses[t][at - 1] };
        let earlier = if t == 0 { 0 } else { self.misses[t - 1][at] };
        let below = self.misses[t][at];
        let width = match high - low {
            1 => 0,
            2 => 1,
            3..=6 => 2,
            _ => 3,
        };
        let around = [smaller, earlier, below].iter().fold(0, |all, &miss| all * 3 + usize::from(miss.min(2)));
        let context = (around * 4 + width) * 2 + usize::from(high < 8);
        if !coder.bit(&mut self.missed[context], wanted != expected) {
            self.misses[t][at] = 0;
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
                _ if at == 0 && t == 0 && expected == 0 => &mut self.corner,
                0 => &mut self.distance[0],
                1 => &mut self.distance[1],
                2..=5 => &mut self.distance[2],
                _ => &mut self.distance[3],
            };
            // What nobody writes is read as the furthest there is.
            number.code(coder, wanted.abs_diff(expected).saturating_sub(1)).min(room - 1) + 1
        };
        self.misses[t][at] = distance.min(255) as u8;
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
