//! What is different in the paper's own summary ([`SummaryForm::Paper`](super::grid::SummaryForm), paper §5.2 and §5.3): what a leaf samples, where a
//! request finds its cell, and what a router takes off for tasks that it has sent. docs/adr/0039 has all differences to
//! ours, and says what the paper leaves open.

use std::time::Duration;

use idlewood_overlay::WallTime;

use super::grid::{
    PAPERS_APPLICATION_SIZES_MOPS, PAPERS_STRETCH_COUNT, PAPERS_TASK_SIZES_MOPS, STRETCHES, TASK_SIZE_COUNT, nearest,
    stretch_at_least,
};
use super::limits::CELL_MAX;
use super::matrix::{CELLS, Cells, Row, Rows};
use crate::availability::{Slack, queue_at};
use crate::queue::{Capacity, Load};
use crate::stretch::Jobs;

/// Release times lie so far apart (paper §5.2.4).
const RELEASES_APART: Duration = Duration::from_secs(300);

/// How far ahead the one release time of a summary lies that is made now: r is the next moment at which the number of minutes is a multiple of
/// five (paper §5.2.4), so that summaries made at different moments have the same r. Above 0, and at most five minutes.
pub(crate) fn release_in(now: WallTime) -> Duration {
    let apart_us = RELEASES_APART.as_micros() as i64;
    Duration::from_micros((apart_us - now.0.rem_euclid(apart_us)).unsigned_abs())
}

/// What a leaf samples: n(S, r, w, a) by Algorithm 3, for as many stretches as the paper's matrix has, beginning with the smallest at which it can
/// take a task: no bag misses its deadline then. `load` is valid, `own_stretch` its maximum stretch, and `release_s` (r, in seconds from the origin of
/// [`Load::now_s`]) not before now.
///
/// The queue is the one at r: tasks are gone that the leaf has begun by then, in the order of deadlines in which it works. Algorithm 3
/// compares the latest start of the first bag with "the current time": that is r, since the queue is that of r.
pub(super) fn leaf_rows(load: &Load, own_stretch: f64, release_s: f64) -> Rows {
    let then = queue_at(load, own_stretch, release_s);
    let capacity = Capacity::new(&then);
    let mut jobs = Jobs::new(&then);
    let mut slack = Slack::new();
    let mut rows = Rows::default();
    let first = stretch_at_least(jobs.max_stretch(&capacity)).unwrap_or(STRETCHES.len());
    for (index, &stretch) in STRETCHES.iter().enumerate().skip(first) {
        jobs.sort(stretch);
        rows.push(index, &row(stretch, &jobs, &capacity, &mut slack));
        if rows.0.first().is_some_and(|row| usize::from(row.0) + PAPERS_STRETCH_COUNT == index + 1) {
            break;
        }
    }
    rows
}

/// The cells at one stretch, by which the jobs are sorted.
fn row(stretch: f64, jobs: &Jobs, capacity: &Capacity, slack: &mut Slack) -> Cells {
    let mut cells = [0; CELLS];
    for (column, size_mops) in PAPERS_TASK_SIZES_MOPS.iter().enumerate() {
        // On one slot h does not depend on the size of tasks.
        if column == 0 || capacity.depends_on_tasks() {
            slack.fill(jobs, capacity, *size_mops);
        }
        for (line, application_size_mops) in PAPERS_APPLICATION_SIZES_MOPS.iter().enumerate() {
            let work_mops = slack.work_by(stretch * application_size_mops, jobs, capacity);
            // The cast saturates.
            cells[line * TASK_SIZE_COUNT + column] = ((work_mops / size_mops) as u64).min(CELL_MAX);
        }
    }
    cells
}

/// Line and column of the cells for requests of these sizes: the nearest samples (paper §5.2), at any stretch. There is one release time,
/// so that whenever a bag was released, that one is the nearest.
pub(super) fn cell(application_size_mops: f64, task_mops: f64) -> (usize, usize) {
    (nearest(&PAPERS_APPLICATION_SIZES_MOPS, application_size_mops), nearest(&PAPERS_TASK_SIZES_MOPS, task_mops))
}

/// Takes N = `n` tasks of `task_mops` (a_new) off all cells, whatever their stretch and application size (paper §5.3): N off those of the nearest
/// task size, ⌈N·a_new/a⌉ off the others. No cell falls below 0.
pub(super) fn book(rows: &[(u8, Row)], n: u64, task_mops: f64) -> Rows {
    let similar = nearest(&PAPERS_TASK_SIZES_MOPS, task_mops);
    let mut column = 0..TASK_SIZE_COUNT;
    let losses = PAPERS_TASK_SIZES_MOPS.map(|size_mops| {
        // The cast saturates, and makes 0 of NaN.
        if column.next() == Some(similar) { n } else { (n as f64 * task_mops / size_mops).ceil() as u64 }
    });
    let mut booked = Rows::default();
    for (index, row) in rows {
        let mut cells = row.dense();
        for line in cells.chunks_exact_mut(TASK_SIZE_COUNT) {
            line.iter_mut().zip(losses).for_each(|(cell, loss)| *cell = cell.saturating_sub(loss));
        }
        booked.push(usize::from(*index), &cells);
    }
    booked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_whole_multiples_of_five_minutes() {
        let minute_us = 60_000_000;
        for (now_us, minutes) in
            [(0, 5), (1, 5), (5 * minute_us - 1, 5), (5 * minute_us, 10), (12 * minute_us, 15), (-1, 0)]
        {
            let release_us = now_us + release_in(WallTime(now_us)).as_micros() as i64;
            assert_eq!(release_us, minutes * minute_us, "at {now_us} µs");
        }
    }
}
