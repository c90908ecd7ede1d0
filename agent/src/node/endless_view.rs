//! Endless bags in the API's words.

use idlewood_api::TaskSource;
use idlewood_scheduler::{BagView, Limit};
use idlewood_trust::manifest::Source;

/// How many tasks a bag has; of an endless one so far.
pub(super) fn tasks(view: &BagView) -> u64 {
    let Some(endless) = &view.endless else { return view.bag.tasks };
    endless.tasks.unwrap_or(view.done + view.failed + view.placed + view.unplaced)
}

/// An endless bag in the API's words. `source`: what its manifest says, if that could be read.
pub(super) fn shown(view: &BagView, source: Option<Source>) -> Option<idlewood_api::Endless> {
    let endless = view.endless.as_ref()?;
    let per_task = |mops: f64| if view.bag.task_mops > 0.0 { mops / view.bag.task_mops } else { 0.0 };
    // One that waits has no rate yet that anybody could tell.
    let grant = endless.grant.filter(|_| view.closed.is_none());
    let source = source.map(|source| match source {
        Source::Range { .. } => TaskSource::Range,
        Source::Lines => TaskSource::Lines,
        Source::Files => TaskSource::Files,
    });
    Some(idlewood_api::Endless {
        source,
        share: endless.weight,
        closed: endless.is_ended || view.closed.is_some(),
        rate: endless.rate,
        mean_rate: endless.mean_rate,
        granted_rate: grant.map(|grant| per_task(grant.work_mops)),
        alone_rate: grant.map(|grant| per_task(grant.alone_mops)),
        share_percent: grant
            .filter(|grant| grant.grid_mops > 0.0)
            .map(|grant| 100.0 * grant.work_mops / grant.grid_mops),
        limit: endless.limit.map(|limit| name(limit).to_owned()),
        ahead: grant.map_or(0, |grant| grant.ahead.into()),
        waiting: endless.waiting,
        undrained: endless.undrained,
        undrained_bytes: endless.undrained_bytes,
        drained: endless.drained,
    })
}

fn name(limit: Limit) -> &'static str {
    match limit {
        Limit::Processors => "processors",
        Limit::Uplink => "uplink",
        Limit::Downlinks => "downlinks",
        Limit::Machines => "machines",
        Limit::Waits => "waits",
        Limit::Tasks => "tasks",
        Limit::Undrained => "undrained",
    }
}
