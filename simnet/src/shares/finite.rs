//! Finite bags beside those without an end: heavy-tailed, and half of what the grid can do.

use std::time::Duration;

use rand::RngExt;

use crate::random::SmallStream;
use crate::scenario::{GivenBag, Scenario};
use crate::workload;

/// Of what all machines can do: our choice, so that promises are kept and endless bags are in the way.
const LOAD: f64 = 0.5;
/// Bags drawn, of which those that come late are dropped.
const BAGS_MAX: u32 = 400;

/// Bags that come within so long, whose work is this share of what it would be if the time were an hour.
pub(super) fn bags(grid: &Scenario, within: Duration, scale: f64) -> Vec<GivenBag> {
    let drawn = Scenario {
        bags: BAGS_MAX,
        heavy_tailed: true,
        load: Some(LOAD),
        task_mops_min: grid.task_mops_min * scale,
        task_mops_max: grid.task_mops_max * scale,
        workload: Scenario::default().workload,
        given_bags: Vec::new(),
        ..grid.clone()
    };
    let first = drawn.first_arrival();
    let seats = drawn.seats();
    let given = workload::bags(&drawn).into_iter().enumerate().map(|(number, bag)| GivenBag {
        at: bag.arrival.since(first),
        submitter: SmallStream::new(grid.seed, "finite bag", number as u64).random_range(0..seats),
        tasks: bag.tasks,
        task_mops: bag.task_mops,
        output_bytes: None,
        rounds: None,
        endless: None,
    });
    given.take_while(|bag| bag.at < within).collect()
}
