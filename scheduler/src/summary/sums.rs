//! A summary: of a leaf, of a router's children together, and what it says of requests.

use super::grid::{
    HORIZONS_S, PAPERS_STRETCH_COUNT, STRETCH_COUNT, STRETCHES, SummaryForm, TASK_SIZE_COUNT, TASK_SIZES_MOPS,
    at_least, at_most, stretch_at_least,
};
use super::idle::Idle;
use super::limits::{CELL_MAX, LEAVES_MAX, SPEED_STEP_MOPS, SPEED_SUM_MOPS_MAX};
use super::matrix::{CELLS, Cells, Row, Rows};
use super::papers;
use crate::availability::Slack;
use crate::queue::{Capacity, Load};
use crate::stretch::Jobs;

/// The availability of a subtree, and a few sums.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// What its cells stand for. Summaries of different forms are not added: the other's leaves count, and offer nothing.
    pub form: SummaryForm,
    /// The smallest maximum stretch of a leaf that takes work, s/Mop (the paper's S_min, §6): 0 where one is idle,
    /// infinite where no leaf takes work.
    pub minimum_stretch: f64,
    /// The largest maximum stretch of a leaf that takes work, s/Mop; 0 where all are idle or none takes work.
    pub maximum_stretch: f64,
    /// Sum of the speeds of all slots of leaves that take work, Mop/s.
    pub speed_mops: f64,
    /// Number of leaves, those that take no work included.
    pub leaves: u64,
    /// Routers on the longest way from a leaf to the subtree's own router, that one included: how often a cell was rounded, on
    /// which the step of the next rounding depends.
    pub height: u8,
    /// Most slots of a leaf that takes work; 0 where none does.
    pub slots: u32,
    /// The longest time that a leaf's unstarted tasks would take on it alone, in seconds on the scale of [`wait_s`](super::wait_s).
    pub longest_wait_s: u64,
    /// Idle slots of leaves that take work.
    pub idle: Idle,
    /// Whether availability only grew since the last report, so that a router may delay this one by
    /// [`Config::summary_patience`](crate::Config::summary_patience). For a sum its router decides.
    pub can_wait: bool,
    /// (index of the stretch from which the row holds, row): ascending, no row equal to the one before it, the first
    /// not all zero.
    pub(super) rows: Vec<(u8, Row)>,
}

impl Summary {
    /// The summary of no leaf: the neutral element of [`Self::merge`].
    pub fn empty() -> Self {
        Self {
            form: SummaryForm::Horizons,
            minimum_stretch: f64::INFINITY,
            maximum_stretch: 0.0,
            speed_mops: 0.0,
            leaves: 0,
            height: 0,
            slots: 0,
            longest_wait_s: 0,
            idle: Idle::default(),
            can_wait: false,
            rows: Vec::new(),
        }
    }

    /// The summary of a leaf that takes no work.
    pub fn unavailable() -> Self {
        Self { leaves: 1, ..Self::empty() }
    }

    /// This summary without its offers: what waits there is reported.
    pub(crate) fn without_offers(self) -> Self {
        let Self { form, maximum_stretch, longest_wait_s, .. } = self;
        Self { form, maximum_stretch, longest_wait_s, ..Self::unavailable() }
    }

    /// The summary of a leaf with this queue in [`SummaryForm::Horizons`]; [`Self::unavailable`] for a load that does not
    /// validate.
    pub fn of_leaf(load: &Load) -> Self {
        if load.validate().is_err() {
            return Self::unavailable();
        }
        let capacity = Capacity::new(load);
        let mut jobs = Jobs::new(load);
        let own_stretch = jobs.max_stretch(&capacity);
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
        let idle = Idle::of_slots(load.idle_slots(), load.speed_mops);
        Self { idle, ..Self::of_rows(SummaryForm::Horizons, load, own_stretch, rows) }
    }

    /// The summary of a leaf with this queue in [`SummaryForm::Paper`] (paper §5.1 and §5.2), for bags released at `release_s` (r, in seconds from
    /// the origin of [`Load::now_s`]); of a leaf that takes no work for numbers that do not validate, or a release before now.
    pub fn of_leaf_at(load: &Load, release_s: f64) -> Self {
        if load.validate().is_err() || !(load.now_s..f64::INFINITY).contains(&release_s) {
            return Self { form: SummaryForm::Paper, ..Self::unavailable() };
        }
        let own_stretch = Jobs::new(load).max_stretch(&Capacity::new(load));
        Self::of_rows(SummaryForm::Paper, load, own_stretch, papers::leaf_rows(load, own_stretch, release_s))
    }

    /// The summary of a leaf that offers these rows.
    fn of_rows(form: SummaryForm, load: &Load, own_stretch: f64, rows: Rows) -> Self {
        let steps = (load.speed_mops * f64::from(load.slots) / SPEED_STEP_MOPS).floor().max(1.0);
        Self {
            form,
            minimum_stretch: own_stretch,
            maximum_stretch: own_stretch,
            speed_mops: (steps * SPEED_STEP_MOPS).min(SPEED_SUM_MOPS_MAX),
            slots: load.slots,
            rows: rows.0,
            ..Self::unavailable()
        }
    }

    /// The summary of a router with these children: their sum, one higher.
    pub fn of_children(children: &[&Self]) -> Self {
        let mut sum = Self::empty();
        children.iter().for_each(|child| sum.merge(child));
        sum.height = sum.height.saturating_add(1);
        sum
    }

    /// Adds the summary of another subtree (paper §5.2). Associative and commutative, as long as the sum of speeds
    /// stays below 2^43 Mop/s.
    pub fn merge(&mut self, other: &Self) {
        self.minimum_stretch = self.minimum_stretch.min(other.minimum_stretch);
        self.maximum_stretch = self.maximum_stretch.max(other.maximum_stretch);
        self.speed_mops = (self.speed_mops + other.speed_mops).min(SPEED_SUM_MOPS_MAX);
        self.leaves = self.leaves.saturating_add(other.leaves).min(LEAVES_MAX);
        self.height = self.height.max(other.height);
        self.slots = self.slots.max(other.slots);
        self.longest_wait_s = self.longest_wait_s.max(other.longest_wait_s);
        self.idle.merge(&other.idle);
        if other.rows.is_empty() {
            return;
        }
        if self.rows.is_empty() {
            self.form = other.form;
            self.rows.clone_from(&other.rows);
            return;
        }
        if self.form != other.form {
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
        if self.form == SummaryForm::Paper
            && let Some((first, _)) = merged.0.first()
        {
            let end = usize::from(*first) + PAPERS_STRETCH_COUNT;
            merged.0.retain(|(index, _)| usize::from(*index) < end);
        }
        self.rows = merged.0;
    }

    /// How many tasks of `task_mops` (a) of a bag of size `application_size_mops` (w) and age `age_s` (g) the
    /// subtree can take with nobody's stretch above [`STRETCHES`]`[s_index]`: a lower bound in [`SummaryForm::Horizons`], that of the
    /// nearest sizes in [`SummaryForm::Paper`]. 0 for indices and numbers out of range.
    pub fn tasks(&self, s_index: usize, age_s: f64, application_size_mops: f64, task_mops: f64) -> u64 {
        match Cell::of(self.form, s_index, age_s, application_size_mops, task_mops) {
            Some(cell) => self.at(s_index, cell),
            None => 0,
        }
    }

    fn at(&self, s_index: usize, cell: Cell) -> u64 {
        let holding = self.rows.partition_point(|row| usize::from(row.0) <= s_index);
        holding.checked_sub(1).map_or(0, |row| self.rows[row].1.get(cell.line, cell.size))
    }

    /// Index of the smallest stretch at which these subtrees together can take `n` tasks of `task_mops` (a) of a
    /// bag of size `application_size_mops` (w) and age `age_s` (g), by binary search (paper §6, Algorithm 4).
    /// `None` where even the largest is too small. All summaries have the form of the first.
    pub fn smallest_stretch(
        summaries: &[&Self],
        n: u64,
        age_s: f64,
        application_size_mops: f64,
        task_mops: f64,
    ) -> Option<usize> {
        let form = summaries.first().map_or_else(SummaryForm::default, |summary| summary.form);
        let suffices = |s_index: usize| {
            let Some(cell) = Cell::of(form, s_index, age_s, application_size_mops, task_mops) else { return n == 0 };
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

    /// The first of [`HORIZONS_S`] by which these subtrees together can have done `n` tasks of `task_mops` at
    /// [`STRETCHES`]`[s_index]`; `None` where there is none. In [`SummaryForm::Horizons`].
    pub(crate) fn earliest_s(summaries: &[&Self], s_index: usize, n: u64, task_mops: f64) -> Option<f64> {
        let size = at_least(&TASK_SIZES_MOPS, task_mops)?;
        let available = |horizon| {
            let cell = Cell { line: horizon, size };
            summaries.iter().fold(0_u64, |sum, summary| sum.saturating_add(summary.at(s_index, cell)))
        };
        HORIZONS_S.iter().enumerate().find(|(horizon, _)| available(*horizon) >= n).map(|(_, horizon_s)| *horizon_s)
    }

    /// Books `n` tasks of `task_mops` that were just sent into this subtree at [`STRETCHES`]`[s_index]`, until its
    /// next report comes (paper §5.3). Cells never rise.
    ///
    /// At this stretch and above, cells lose ⌈n·a_new/a⌉, and one more for each leaf that may have got a task: those leaves
    /// round on their own. For each such leaf with k slots (the paper has one slot) they lose k − 1 more tasks of the
    /// larger of the two sizes: the bounds of `Capacity` on what the queue leaves, C − W of work in all, are at least C − W
    /// − (k − 1)·p for tasks up to p, and at most (C − W)·a/p of it in tasks of size a where the queue is reckoned in whole
    /// tasks, so that the bound after the booking is no further below the one before. That keeps the lower bound. Below
    /// this stretch, cells are estimates: they lose as much, and at least the share of the leaves that may have got a task,
    /// since such a leaf offers nothing below its own maximum stretch, which is now near this one. Booked are the idle
    /// slots on which the tasks would end soonest, and all of them where there are fewer than tasks.
    ///
    /// In [`SummaryForm::Paper`] all cells lose what the paper takes off, whatever their stretch.
    pub fn reserve(&mut self, s_index: usize, n: u64, task_mops: f64) {
        self.idle.book(n, task_mops);
        if n == 0 || self.rows.is_empty() {
            return;
        }
        if self.form == SummaryForm::Paper {
            self.rows = papers::book(&self.rows, n, task_mops).0;
            return;
        }
        let touched = n.min(self.leaves);
        let task_mops = if task_mops > 0.0 { task_mops } else { 0.0 };
        let others = f64::from(self.slots.saturating_sub(1));
        let losses = TASK_SIZES_MOPS.map(|size| {
            let idle_mops = touched as f64 * others * task_mops.max(size);
            // The cast saturates.
            (((n as f64 * task_mops + idle_mops) / size).ceil() as u64).saturating_add(touched)
        });
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
}

/// Where a request finds its number in a row.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The line: of a horizon, or of an application size of the paper's.
    line: usize,
    size: usize,
}

impl Cell {
    /// `None` where nothing can be available: the bag is due too soon, or its tasks are too large.
    fn of(form: SummaryForm, s_index: usize, age_s: f64, application_size_mops: f64, task_mops: f64) -> Option<Self> {
        if !(age_s >= 0.0 && application_size_mops.is_finite() && task_mops > 0.0) {
            return None;
        }
        let stretch = STRETCHES.get(s_index)?;
        if form == SummaryForm::Paper {
            let (line, size) = papers::cell(application_size_mops, task_mops);
            return Some(Self { line, size });
        }
        let horizon_s = stretch * application_size_mops - age_s;
        let line = at_most(&HORIZONS_S, horizon_s)?;
        let size = at_least(&TASK_SIZES_MOPS, task_mops)?;
        Some(Self { line, size })
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
