//! The model that drives the adaptive coder: what it predicts of the rows of a summary, and how surely.
//!
//! It is compiled twice, once for each direction of [`Coder`]; writer and reader have the same state after each decision.

use super::super::coder::{Chance, Coder, Number};
use super::super::grid::{HORIZON_COUNT, STRETCH_COUNT, SummaryForm, TASK_SIZE_COUNT};
use super::super::limits::CELL_MAX;
use super::super::scale;
use super::super::scaled::{Codes, Line, NOTHING, Scaled, ScaledRow, changed_lines, is_same};

/// The predictions, the same for writer and reader.
pub(crate) struct Model<'a> {
    bits: u32,
    /// [`SummaryForm::task_steps`].
    task_steps: u32,
    is_loose: bool,
    /// The rows of the base from the one that holds at the last stretch on, and their scale.
    base: &'a [ScaledRow],
    base_bits: u32,
    has_base: bool,
    /// The last row; zeros before the first.
    pub(super) codes: Codes,
    /// Which lines of the last row differ from the row before it.
    pub(super) changed: u32,
    is_first: bool,
    /// How far its cells were from their predictions.
    misses: [[u8; TASK_SIZE_COUNT]; HORIZON_COUNT],
    more_rows: [Chance; 2],
    at_base: Chance,
    gap: [Number; 2],
    /// Which lines differ from the row before: whether the first is the predicted one, how far it is from that otherwise,
    /// whether the next line differs too, whether any more do, and how far the next of them is.
    at_start: Chance,
    start: Number,
    goes_on: [Chance; 2],
    more_lines: Chance,
    between: Number,
    /// Whether a row, a line, a cell is the same as in the base.
    kept_row: [Chance; 2],
    kept_line: [Chance; 4],
    kept: [Chance; 8],
    last_row_kept: bool,
    /// Whether a line equals that of a horizon a quarter as long, for tasks a quarter as large (half, in the paper's form).
    shifted: [Chance; 4],
    last_shifted: bool,
    /// Whether the cells behind the first are all as predicted; how many are before the first that is not.
    smooth: [Chance; 4],
    last_smooth: bool,
    run: [Number; 2],
    /// Whether a cell differs from its prediction: by the misses around it, and the codes it may have.
    missed: [Chance; 216],
    above: [Chance; 3],
    distance: [Number; 4],
    /// For the very first cell, which has no prediction.
    corner: Number,
}

/// The codes a cell may have, and the predicted one.
#[derive(Clone, Copy, Debug)]
struct Guess {
    low: u16,
    high: u16,
    expected: u16,
}

/// The neighbours of a line: that of a horizon shorter by as much as tasks of the next size are larger, that of the horizon before, the same line in the row before, and
/// that row's line of the horizon before.
#[derive(Clone, Copy, Debug)]
struct Around {
    shorter: Option<Line>,
    earlier: Line,
    below: Line,
    below_earlier: Line,
}

/// Whether no code of `one` is above that of `other`.
fn is_at_most(one: &Line, other: &Line) -> bool {
    one.iter().zip(other).fold(true, |all, (one, other)| all & (one <= other))
}

impl<'a> Model<'a> {
    pub(super) fn new(form: SummaryForm, height: u8, is_loose: bool, base: Option<&'a Scaled>) -> Self {
        // Lines of a loose base cannot be kept in a summary that is not loose.
        let usable = base.filter(|base| is_loose || !base.head.is_loose);
        Self {
            bits: scale::bits(height),
            task_steps: form.task_steps(),
            is_loose,
            base: usable.map_or(&[], |base| &base.rows),
            base_bits: usable.map_or(0, |base| scale::bits(base.head.height)),
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
    pub(crate) fn row(&mut self, coder: &mut impl Coder, last: Option<u8>, row: Option<&ScaledRow>) -> Option<u8> {
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
                shorter: t.checked_sub(self.task_steps as usize).map(|shorter| self.codes[shorter]),
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

    /// The first line that differs from the row before.
    fn first_altered(&mut self, coder: &mut impl Coder, wanted: u32) -> usize {
        // Where the row before ended.
        let expected = if self.is_first { 0 } else { 32 - self.changed.leading_zeros() as usize };
        let wanted = (wanted.trailing_zeros() as usize).min(HORIZON_COUNT - 1);
        if expected < HORIZON_COUNT && coder.bit(&mut self.at_start, wanted == expected) {
            return expected;
        }
        usize::from(self.start.code(coder, wanted as u16)).min(HORIZON_COUNT - 1)
    }

    /// The next one behind `t`; [`HORIZON_COUNT`] where there is none.
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

    /// Whether a line that differs from the row before is the same as in the base.
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
        // Whether all are as predicted.
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

    /// The line of an idle leaf: as many tasks as by a quarter of the time in tasks a quarter as large (half, in the paper's form). `None`
    /// where the bounds exclude it.
    fn shift(&self, around: &Around) -> Option<Line> {
        let shorter = around.shorter.as_ref()?;
        let mut shifted = [0; TASK_SIZE_COUNT];
        shifted[0] = scale::code((scale::value(shorter[0], self.bits) << self.task_steps).min(CELL_MAX), self.bits);
        shifted[1..].copy_from_slice(&shorter[..TASK_SIZE_COUNT - 1]);
        let most = if self.is_loose { shifted[0] } else { scale::part(shifted[0], self.bits, self.task_steps) };
        let may_be = is_at_most(&around.earlier, &shifted) && is_at_most(&around.below, &shifted);
        (may_be && shifted[1] <= most && !is_same(&shifted, &around.below)).then_some(shifted)
    }

    /// The bounds and the prediction of a cell, from those before it.
    fn guess(&self, t: usize, at: usize, around: &Around, line: &Line) -> Guess {
        let Around { earlier, below, below_earlier, .. } = around;
        let low = below[at].max(earlier[at]);
        let part = |code| i32::from(scale::part(code, self.bits, self.task_steps));
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
            // The same upper bound holds here and there: keep the distance from it.
            let most = part(line[at - 1]);
            let expected = match (self.is_first, t) {
                (true, 0) => most,
                (true, _) => code(earlier[at]) + most - part(earlier[at - 1]),
                (false, _) => code(below[at]) + most - part(below[at - 1]),
            };
            (if self.is_loose { line[at - 1] } else { most as u16 }, expected)
        };
        // In range of the type after the clamp.
        let expected = expected.max(code(low)).min(code(high)) as u16;
        Guess { low, high, expected }
    }

    /// Whether the cell is the same as in the base.
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

    /// Codes a cell by its distance from the prediction.
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
            // A distance that no writer writes is read as the furthest possible.
            number.code(coder, wanted.abs_diff(expected).saturating_sub(1)).min(room - 1) + 1
        };
        self.misses[t][at] = distance.min(255) as u8;
        if is_above { expected + distance } else { expected - distance }
    }
}
