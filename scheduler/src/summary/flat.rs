//! The flat form of a summary, in which a machine keeps it: bytes that are quick to read and to add, and few.
//!
//! The encoded form that travels is a fifth as long, but each of its numbers costs decisions of an adaptive coder. So a
//! summary is encoded once when it is sent and decoded once when it arrives; routers add up flat forms, and look only at
//! lines that change from one stretch to the next.
//!
//! The flat form has a byte of flags (loose, can wait, the paper's form); the sums, each in a fixed number of bytes; the idle slots of each
//! class of speed; then for each row the index of its stretch, a bit for each line that differs from the row before, and
//! for each of these lines how many task sizes are above 0 and their codes. Each summary has one flat form.

use super::encoding::{self, DecodeError, ENCODED_BYTES_MAX};
use super::grid::{HORIZON_COUNT, PAPERS_STRETCH_COUNT, SummaryForm, TASK_SIZE_COUNT};
use super::idle::Idle;
use super::limits::{CELL_MAX, LEAVES_MAX, SPEED_SUM_MOPS_MAX};
use super::scale::{self, WAIT_BITS};
use super::scaled::{Codes, Head, Line, NOTHING, Scaled, ScaledRow, bit, is_loose_line, is_same, round_down};
use super::sums::Summary;

/// Up to this length the encoded form is at most [`ENCODED_BYTES_MAX`]: as a rule it is a fifth as long, and even an
/// unpredictable code, which has two bytes here, takes no more than a few there.
const SURE_BYTES: usize = ENCODED_BYTES_MAX / 4;

/// Summaries whose flat form is up to this size travel whole. Our choice: most reports are of a few leaves, whose
/// differences would save some hundred bytes and cost both ends several times the processor time.
pub(super) const WHOLE_BYTES: usize = 8_000;

/// Bits of the first byte.
const LOOSE: u8 = 1;
const CAN_WAIT: u8 = 2;
const PAPERS: u8 = 4;
const MAXIMUM_STRETCH: usize = 5;
const WAIT: usize = 26;
/// Length of the head where no slot is idle.
const HEAD_BYTES: usize = 30;

impl Head {
    fn put(&self, bytes: &mut Vec<u8>) {
        let is_papers = self.form == SummaryForm::Paper;
        bytes.push(bit(LOOSE, self.is_loose) | bit(CAN_WAIT, self.can_wait) | bit(PAPERS, is_papers));
        for value in [self.minimum_stretch, self.maximum_stretch, self.speed_mops] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.push(self.height);
        bytes.extend_from_slice(&self.leaves.to_le_bytes());
        bytes.extend_from_slice(&self.slots.to_le_bytes());
        bytes.extend_from_slice(&self.longest_wait.to_le_bytes());
        let classes = self.idle.classes();
        bytes.extend_from_slice(&(classes.len() as u16).to_le_bytes());
        for (class, slots) in classes {
            bytes.extend_from_slice(&class.to_le_bytes());
            bytes.extend_from_slice(&slots.to_le_bytes());
        }
    }
}

/// Reads a summary row by row.
struct Reader<'a> {
    head: Head,
    rest: &'a [u8],
    /// The last row that was read; of zeros before the first.
    row: ScaledRow,
}

const BEFORE_THE_FIRST: ScaledRow = ScaledRow { index: 0, changed: 0, codes: NOTHING };

impl<'a> Reader<'a> {
    /// `None` where these bytes are no flat form.
    fn new(flat: &'a [u8]) -> Option<Self> {
        let mut rest = flat;
        let [kind] = take(&mut rest)?;
        let mut head = Head {
            form: if kind & PAPERS == 0 { SummaryForm::Horizons } else { SummaryForm::Paper },
            is_loose: kind & LOOSE != 0,
            can_wait: kind & CAN_WAIT != 0,
            minimum_stretch: f32::from_le_bytes(take(&mut rest)?),
            maximum_stretch: f32::from_le_bytes(take(&mut rest)?),
            speed_mops: f32::from_le_bytes(take(&mut rest)?),
            height: take::<1>(&mut rest)?[0],
            leaves: u64::from_le_bytes(take(&mut rest)?),
            slots: u32::from_le_bytes(take(&mut rest)?),
            longest_wait: u16::from_le_bytes(take(&mut rest)?),
            idle: Idle::default(),
        };
        for _ in 0..u16::from_le_bytes(take(&mut rest)?) {
            let (class, slots) = (u16::from_le_bytes(take(&mut rest)?), u64::from_le_bytes(take(&mut rest)?));
            if !head.idle.push(class, slots) {
                return None;
            }
        }
        Some(Self { head, rest, row: BEFORE_THE_FIRST })
    }

    /// Reads a child's summary; bytes that are none of this form count as a leaf that takes no work.
    fn of(form: SummaryForm, flat: &'a [u8]) -> Self {
        Self::new(flat).filter(|reader| reader.head.form == form).unwrap_or_else(|| Self::unavailable(form))
    }

    fn unavailable(form: SummaryForm) -> Self {
        let head = Head {
            form,
            is_loose: false,
            can_wait: false,
            minimum_stretch: f32::INFINITY,
            maximum_stretch: 0.0,
            speed_mops: 0.0,
            height: 0,
            leaves: 1,
            slots: 0,
            longest_wait: 0,
            idle: Idle::default(),
        };
        Self { head, rest: &[], row: BEFORE_THE_FIRST }
    }

    /// The stretch of the next row.
    fn next_index(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Reads the next row; `false` at the end, or where the bytes are damaged, after which no row follows.
    fn advance(&mut self) -> bool {
        let mut rest = std::mem::take(&mut self.rest);
        let row = &mut self.row;
        let mut read = || {
            row.index = take::<1>(&mut rest)?[0];
            row.changed = u32::from_le_bytes(take(&mut rest)?);
            let mut left = row.changed;
            while left != 0 {
                let line = row.codes.get_mut(left.trailing_zeros() as usize)?;
                left &= left - 1;
                let width = usize::from(take::<1>(&mut rest)?[0]);
                let (codes, behind) = (line.get_mut(..width)?, rest.get(2 * width..)?);
                for (code, bytes) in codes.iter_mut().zip(rest.chunks_exact(2)) {
                    *code = u16::from_le_bytes([bytes[0], bytes[1]]);
                }
                line[width..].fill(0);
                rest = behind;
            }
            (row.changed != 0).then_some(())
        };
        let is_read = read().is_some();
        if is_read {
            self.rest = rest;
        }
        is_read
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn put_row(flat: &mut Vec<u8>, index: u8, changed: u32, codes: &Codes) {
    flat.push(index);
    flat.extend_from_slice(&changed.to_le_bytes());
    let mut left = changed;
    while left != 0 {
        let line = &codes[left.trailing_zeros() as usize];
        left &= left - 1;
        // Behind a 0 all codes are 0.
        let width = line.iter().position(|&code| code == 0).unwrap_or(TASK_SIZE_COUNT);
        flat.push(width as u8);
        line[..width].iter().for_each(|code| flat.extend_from_slice(&code.to_le_bytes()));
    }
}

impl Summary {
    /// The summary in the flat form, in which a machine keeps it, at most [`ENCODED_BYTES_MAX`]: rounded and thinned out as by
    /// [`Self::encode`].
    pub fn flatten(&self) -> Vec<u8> {
        Scaled::of(self).flatten()
    }

    /// Reads the flat form, as [`Self::flatten`], [`report`] and [`unpack`] write it; `None` where these
    /// bytes are none.
    pub fn of_flat(flat: &[u8]) -> Option<Self> {
        Some(Scaled::of_flat(flat)?.into_summary())
    }
}

impl Scaled {
    /// The flat form, of at most [`ENCODED_BYTES_MAX`] bytes: where it or the encoded form would be longer, every other row
    /// is left out, until both fit.
    pub(super) fn flatten(&mut self) -> Vec<u8> {
        loop {
            let flat = self.all_flat();
            let fits = || flat.len() <= ENCODED_BYTES_MAX && self.encode(None).len() <= ENCODED_BYTES_MAX;
            if flat.len() <= SURE_BYTES || self.rows.is_empty() || fits() {
                return flat;
            }
            self.thin_out();
        }
    }

    fn all_flat(&self) -> Vec<u8> {
        let mut flat = Vec::with_capacity(HEAD_BYTES + 64 * self.rows.len());
        self.head.put(&mut flat);
        self.rows.iter().for_each(|row| put_row(&mut flat, row.index, row.changed, &row.codes));
        flat
    }

    /// Reads the flat form; `None` where these bytes are none.
    pub(super) fn of_flat(flat: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(flat)?;
        let mut rows = Vec::new();
        while !reader.rest.is_empty() {
            if !reader.advance() {
                return None;
            }
            rows.push(reader.row.clone());
        }
        Some(Self { head: reader.head, rows })
    }
}

/// Encodes `new`, a flat summary: as the difference to `base`, which the receiver has, or whole without one. `None` where
/// one of them is no flat summary, where `new` is so small that it travels whole, or where the result would be above
/// [`ENCODED_BYTES_MAX`].
pub fn pack(base: Option<&[u8]>, new: &[u8]) -> Option<Vec<u8>> {
    if base.is_some() && new.len() <= WHOLE_BYTES {
        return None;
    }
    let base = match base {
        Some(base) => Some(Scaled::of_flat(base)?),
        None => None,
    };
    let bytes = encode(new, base.as_ref())?;
    (bytes.len() <= ENCODED_BYTES_MAX).then_some(bytes)
}

/// The flat summary of [`SummaryForm::Horizons`] that [`pack`] encoded; `None` where these bytes are none. Whatever the bytes, this
/// neither panics nor takes more memory than twice the largest summary (300 kB).
pub fn unpack(base: Option<&[u8]>, bytes: &[u8]) -> Option<Vec<u8>> {
    unpack_form(SummaryForm::Horizons, base, bytes)
}

/// [`unpack`] of a summary of [`SummaryForm::Paper`].
pub fn unpack_papers(base: Option<&[u8]>, bytes: &[u8]) -> Option<Vec<u8>> {
    unpack_form(SummaryForm::Paper, base, bytes)
}

fn unpack_form(form: SummaryForm, base: Option<&[u8]>, bytes: &[u8]) -> Option<Vec<u8>> {
    let base = match base {
        Some(base) => Some(Scaled::of_flat(base).filter(|base| base.head.form == form)?),
        None => None,
    };
    let flat = decode(form, bytes, base.as_ref()).ok()?;
    (flat.len() <= ENCODED_BYTES_MAX).then_some(flat)
}

/// The encoded form of a flat summary; `None` where these bytes are no flat form.
pub(super) fn encode(flat: &[u8], base: Option<&Scaled>) -> Option<Vec<u8>> {
    let mut reader = Reader::new(flat)?;
    let (mut writer, mut model) = reader.head.encode(base);
    let mut last = None;
    loop {
        let has_row = !reader.rest.is_empty();
        if has_row && !reader.advance() {
            return None;
        }
        last = model.row(&mut writer, last, has_row.then_some(&reader.row));
        if last.is_none() {
            return Some(writer.finish());
        }
    }
}

/// The flat form of an encoded summary.
pub(super) fn decode(form: SummaryForm, bytes: &[u8], base: Option<&Scaled>) -> Result<Vec<u8>, DecodeError> {
    let mut rows = Vec::with_capacity(8 * bytes.len());
    let head = encoding::decode(form, bytes, base, |index, changed, codes| put_row(&mut rows, index, changed, codes))?;
    let mut flat = Vec::with_capacity(HEAD_BYTES + rows.len());
    head.put(&mut flat);
    flat.append(&mut rows);
    Ok(flat)
}

/// [`Summary::longest_wait_s`] of a flat summary, at little cost; 0 where these bytes are none.
pub fn longest_wait_s(flat: &[u8]) -> u64 {
    let code = flat.get(WAIT..).and_then(|mut rest| take(&mut rest)).map_or(0, u16::from_le_bytes);
    if code <= scale::code(CELL_MAX, WAIT_BITS) { scale::value(code, WAIT_BITS) } else { 0 }
}

/// [`Summary::maximum_stretch`] of a flat summary, at little cost; 0 where these bytes are none.
pub fn maximum_stretch(flat: &[u8]) -> f64 {
    let stretch = flat.get(MAXIMUM_STRETCH..).and_then(|mut rest| take(&mut rest)).map_or(0.0, f32::from_le_bytes);
    if (0.0..f32::INFINITY).contains(&stretch) { f64::from(stretch) } else { 0.0 }
}

/// [`Summary::can_wait`] of a flat summary.
pub(crate) fn can_wait(flat: &[u8]) -> bool {
    flat.first().is_some_and(|kind| kind & CAN_WAIT != 0)
}

/// Sets [`Summary::can_wait`] of a flat summary.
pub(crate) fn set_can_wait(flat: &mut [u8], can_wait: bool) {
    if let Some(kind) = flat.first_mut() {
        *kind = *kind & !CAN_WAIT | bit(CAN_WAIT, can_wait);
    }
}

/// Whether two flat summaries differ at most in [`Summary::can_wait`]. (The other flag follows from the rest.)
pub(crate) fn is_same_offer(one: &[u8], other: &[u8]) -> bool {
    one.get(1..) == other.get(1..)
}

/// A child's summary; bytes that are no flat summary of this form count as a leaf that takes no work.
pub(crate) fn read(form: SummaryForm, flat: &[u8]) -> Summary {
    let summary = Summary::of_flat(flat).filter(|summary| summary.form == form);
    summary.unwrap_or_else(|| Summary { form, ..Summary::unavailable() })
}

/// The report of a router whose children have these summaries of one form, all in the flat form: the same as by
/// [`Summary::of_children`], in less time and memory. Bytes that are no such summary count as a leaf that takes no work.
pub fn report(form: SummaryForm, children: &[&[u8]]) -> Vec<u8> {
    let [one, other] = children else {
        let read = |flat: &&[u8]| read(form, flat);
        let children: Vec<Summary> = children.iter().map(read).collect();
        return Summary::of_children(&children.iter().collect::<Vec<_>>()).flatten();
    };
    let [one, other] = [one, other].map(|flat| Reader::of(form, flat));
    let sum = plus(one, other);
    if sum.len() <= SURE_BYTES {
        return sum;
    }
    Scaled::of_flat(&sum).map_or(sum, |mut whole| whole.flatten())
}

/// The sum of two flat summaries, one higher. Ordered cells stay ordered when they are added and rounded down, so only
/// rounding lowers them.
fn plus<'a>(mut one: Reader<'a>, mut other: Reader<'a>) -> Vec<u8> {
    let (mine, theirs) = (&one.head, &other.head);
    let (form, task_steps) = (mine.form, mine.form.task_steps());
    let height = mine.height.max(theirs.height).saturating_add(1);
    let bits = [mine.height, theirs.height, height].map(scale::bits);
    // Cells at most a quarter (half) of the one before stay so in the sum, but for sums that stop at the largest cell.
    let is_strict = !mine.is_loose && !theirs.is_loose;
    let mut idle = mine.idle.clone();
    idle.merge(&theirs.idle);
    let head = Head {
        form,
        is_loose: false,
        can_wait: false,
        minimum_stretch: mine.minimum_stretch.min(theirs.minimum_stretch),
        maximum_stretch: mine.maximum_stretch.max(theirs.maximum_stretch),
        speed_mops: round_down((f64::from(mine.speed_mops) + f64::from(theirs.speed_mops)).min(SPEED_SUM_MOPS_MAX)),
        height,
        leaves: mine.leaves.saturating_add(theirs.leaves).min(LEAVES_MAX),
        slots: mine.slots.max(theirs.slots),
        longest_wait: mine.longest_wait.max(theirs.longest_wait),
        idle,
    };
    let mut flat = Vec::with_capacity(HEAD_BYTES + one.rest.len() + other.rest.len());
    head.put(&mut flat);
    let mut codes = NOTHING;
    let mut is_loose = false;
    let mut end = None;
    while let Some(index) = [&one, &other].iter().filter_map(|rows| rows.next_index()).min() {
        if form == SummaryForm::Paper
            && usize::from(index) >= *end.get_or_insert(usize::from(index) + PAPERS_STRETCH_COUNT)
        {
            break;
        }
        let mut touched = 0;
        for rows in [&mut one, &mut other] {
            if rows.next_index() == Some(index) && rows.advance() {
                touched |= rows.row.changed;
            }
        }
        let mut changed = 0;
        for t in (0..HORIZON_COUNT).filter(|t| touched >> t & 1 == 1) {
            let line = sum_of_lines(&one.row.codes[t], &other.row.codes[t], bits, task_steps, is_strict);
            if !is_same(&line, &codes[t]) {
                changed |= 1 << t;
                is_loose |= !is_strict && is_loose_line(&line, bits[2], task_steps);
                codes[t] = line;
            }
        }
        if changed != 0 {
            put_row(&mut flat, index, changed, &codes);
        }
    }
    flat[0] |= bit(LOOSE, is_loose);
    flat
}

/// The sum of two lines: `mine`, `theirs` and `bits` are the bits of the scales of both and of the sum.
fn sum_of_lines(one: &Line, other: &Line, [mine, theirs, bits]: [u32; 3], task_steps: u32, is_strict: bool) -> Line {
    let mut line = [0; TASK_SIZE_COUNT];
    let mut high = scale::code(CELL_MAX, bits);
    for (sum, (&one, &other)) in line.iter_mut().zip(one.iter().zip(other)) {
        if one == 0 && other == 0 {
            break;
        }
        let value = scale::value(one, mine) + scale::value(other, theirs);
        *sum = scale::code(value.min(CELL_MAX), bits).min(high);
        high = if is_strict { scale::part(*sum, bits, task_steps) } else { *sum };
    }
    line
}
