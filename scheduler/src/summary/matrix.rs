//! The rows of the summary: horizons × task sizes at one stretch, without zeros and repetitions.

use super::grid::{HORIZON_COUNT, TASK_SIZE_COUNT};
use super::limits::CELL_MAX;

/// Cells of a row.
pub(super) const CELLS: usize = HORIZON_COUNT * TASK_SIZE_COUNT;

/// A row with all its zeros.
pub(super) type Cells = [u64; CELLS];

/// The availability at one stretch: horizons × task sizes, for each horizon without the zeros behind the last cell above 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// For each horizon, how many task sizes are kept.
    widths: [u8; HORIZON_COUNT],
    /// The kept cells, horizon after horizon.
    cells: Box<[u64]>,
}

impl Row {
    pub(super) fn new(cells: &Cells) -> Self {
        let lines = || cells.chunks_exact(TASK_SIZE_COUNT);
        let used = |line: &[u64]| line.iter().rposition(|&cell| cell > 0).map_or(0, |last| last + 1);
        let mut widths = [0; HORIZON_COUNT];
        widths.iter_mut().zip(lines()).for_each(|(width, line)| *width = used(line) as u8);
        // With its final capacity: rows are made by the million.
        let mut kept = Vec::with_capacity(widths.iter().map(|&width| usize::from(width)).sum());
        widths.iter().zip(lines()).for_each(|(&width, line)| kept.extend_from_slice(&line[..usize::from(width)]));
        Self { widths, cells: kept.into_boxed_slice() }
    }

    pub(super) fn get(&self, horizon: usize, size: usize) -> u64 {
        if size >= usize::from(self.widths[horizon]) {
            return 0;
        }
        let before: usize = self.widths[..horizon].iter().map(|&width| usize::from(width)).sum();
        self.cells[before + size]
    }

    /// The kept cells of each horizon.
    pub(super) fn lines(&self) -> impl Iterator<Item = &[u64]> {
        let mut rest = &*self.cells;
        self.widths.iter().map(move |&width| {
            let (line, behind) = rest.split_at(usize::from(width));
            rest = behind;
            line
        })
    }

    pub(super) fn add_to(&self, cells: &mut Cells) {
        let mut kept = self.cells.iter();
        for (&width, line) in self.widths.iter().zip(cells.chunks_exact_mut(TASK_SIZE_COUNT)) {
            for (cell, more) in line[..usize::from(width)].iter_mut().zip(&mut kept) {
                *cell = cell.saturating_add(*more).min(CELL_MAX);
            }
        }
    }

    pub(super) fn dense(&self) -> Cells {
        let mut cells = [0; CELLS];
        self.add_to(&mut cells);
        cells
    }
}

/// Collects rows, without leading rows of zeros and repetitions.
#[derive(Default)]
pub(super) struct Rows(pub(super) Vec<(u8, Row)>);

impl Rows {
    pub(super) fn push(&mut self, index: usize, cells: &Cells) {
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
