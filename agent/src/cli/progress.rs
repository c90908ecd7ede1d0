//! How far a bag is, and what came of it, in words.
//!
//! Where nothing of a bag can run no time is forecast: the line says what keeps it from running instead.

use idlewood_api::{Bag, BagState, Bound};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::kept;
use crate::output;

/// Cells of the bar.
const BAR_CELLS: u64 = 20;
/// From how many times the shortest on the longest task is worth a word. Our choice.
const SPREAD_MIN: f64 = 10.0;
/// Fairness is told of bags that take so long alone on the grid, in seconds. Our choice: what people would notice.
const ALONE_LEAST_S: f64 = 0.1;
/// Fewer columns than this are not known columns.
const COLUMNS_LEAST: usize = 20;

/// One line of at most so many columns: a bar, if there is room, and the words.
pub(super) fn fitted(bag: &Bag, columns: usize) -> String {
    // The last column stays free: some terminals wrap when it is filled.
    let room = columns.max(COLUMNS_LEAST) - 1;
    let (now, zone) = (Timestamp::now(), TimeZone::system());
    let (exact, words) = (line(bag, &now, &zone, true), line(bag, &now, &zone, false));
    let bar = bar(bag);
    let safe = kept::safe(bag).map(|safe| format!("{exact}, {safe}"));
    let longest = safe.into_iter().chain([exact]).flat_map(|words| [format!("{bar} {words}"), words]);
    let mut all = longest.chain([format!("{bar} {words}"), words.clone()]);
    all.find(|text| text.chars().count() <= room).unwrap_or_else(|| {
        let cut: String = words.chars().take(room - 1).collect();
        format!("{cut}…")
    })
}

fn bar(bag: &Bag) -> String {
    // A bag has at least one task.
    let cells = |tasks: u64| (u128::from(tasks) * u128::from(BAR_CELLS) / u128::from(bag.tasks.max(1))) as u64;
    let over = cells(bag.done.saturating_add(bag.failed)).min(BAR_CELLS);
    let placed = cells(bag.placed).min(BAR_CELLS - over);
    let part = |mark: &str, count: u64| mark.repeat(count as usize);
    format!("[{}{}{}]", part("#", over), part("-", placed), part(" ", BAR_CELLS - over - placed))
}

/// `12 of 100 done, 1 failed, running on 3 machines, ends about 14:32`, with how unlike its tasks are and ` ± 3 min` if it is to be exact.
fn line(bag: &Bag, now: &Timestamp, zone: &TimeZone, is_exact: bool) -> String {
    let mut parts = match &bag.endless {
        Some(endless) if !endless.closed => {
            vec![format!("{} done, {} tasks/s", bag.done, output::number(endless.rate))]
        }
        _ => vec![format!("{} of {} done", bag.done, bag.tasks)],
    };
    if bag.failed > 0 {
        parts.push(format!("{} failed", bag.failed));
    }
    match bag.state {
        BagState::Held | BagState::Waiting | BagState::Measuring | BagState::Running => {
            let first = bag.bounds.first();
            match first {
                Some(bound) if bound.code == "runs" => {
                    let machines = bound.machines.unwrap_or(bag.machines);
                    parts.push(format!("running on {}", output::count(machines, "machine")));
                }
                Some(bound) if bound.code == "measures" => parts.push("trying the first task".to_owned()),
                Some(bound) => parts.push(output::printable(&bound.sentence)),
                None => parts.push(output::state(bag.state).to_owned()),
            }
            if let Some(end) = end(bag, now, zone) {
                let within = if is_exact { within(bag).unwrap_or_default() } else { String::new() };
                parts.extend(spread(bag).filter(|_| is_exact));
                parts.push(format!("ends about {end}{within}"));
            }
        }
        BagState::Succeeded | BagState::Failed | BagState::Cancelled => parts.push(output::state(bag.state).to_owned()),
    }
    parts.join(", ")
}

/// The predicted end, while tasks run: `14:32`, `Fri 14:32`, or a date.
fn end(bag: &Bag, now: &Timestamp, zone: &TimeZone) -> Option<String> {
    let end = bag.predicted_end.as_ref()?.parse::<Timestamp>().ok()?.to_zoned(zone.clone());
    let days = end.date().since(now.to_zoned(zone.clone()).date()).ok()?.get_days();
    let format = match days {
        0 => "%H:%M",
        1..=6 => "%a %H:%M",
        _ => "%Y-%m-%d",
    };
    Some(end.strftime(format).to_string())
}

/// How unlike the tasks of a bag are so far, where that is far: `tasks of 0.2 s to 3 min`. In rounds merges are no processes.
fn spread(bag: &Bag) -> Option<String> {
    let (least, most) = bag.task_s_least.zip(bag.task_s_most).filter(|_| bag.rounds.is_none())?;
    let is_far = most >= SPREAD_MIN * least && most >= 1.0;
    is_far.then(|| format!("tasks of {} to {}", output::span(least), output::span(most)))
}

/// By how much the predicted end may be wrong, from a minute on: ` ± 3 min`.
fn within(bag: &Bag) -> Option<String> {
    let seconds = bag.predicted_end_within_s.filter(|seconds| *seconds >= 60.0)?;
    Some(match seconds {
        ..5_970.0 => format!(" ± {:.0} min", seconds / 60.0),
        ..169_200.0 => format!(" ± {:.0} h", seconds / 3_600.0),
        _ => format!(" ± {:.0} d", seconds / 86_400.0),
    })
}

/// What keeps a bag from running, and what would end that; the first bound alone.
pub(super) fn bound(bound: &Bound) -> String {
    let mut text = output::printable(&bound.sentence);
    if let Some(at) = &bound.ends_at {
        text = format!("{text}; until {}", output::when(at));
    }
    if let Some(ends) = &bound.ends {
        text = format!("{text}; ends when: {}", output::printable(ends));
    }
    text
}

/// What an endless bag has of the grid, and what keeps it from more.
pub(super) fn endless(bag: &Bag) -> Vec<(&'static str, String)> {
    let Some(endless) = &bag.endless else { return Vec::new() };
    let number = output::number;
    let mut pairs = vec![(
        "rate",
        format!("{} tasks/s in the last minute, {} in the mean", number(endless.rate), number(endless.mean_rate)),
    )];
    if !bag.state.is_closed() {
        let share = endless.share_percent.map_or_else(
            || format!("weight {}", number(endless.share)),
            |percent| {
                format!(
                    "{percent:.0} % of what the grid does for endless bags, by its weight of {}",
                    number(endless.share)
                )
            },
        );
        pairs.push(("share", share));
        if let Some((granted, alone)) = endless.granted_rate.zip(endless.alone_rate) {
            pairs.push(("granted", format!("{} tasks/s; {} if it were the only one", number(granted), number(alone))));
        }
        pairs.extend(endless.limit.as_deref().map(|limit| ("limited by", limit_in_words(limit, endless.ahead))));
    }
    let bytes = output::bytes(endless.undrained_bytes);
    let undrained = output::count(endless.undrained, "result");
    pairs.push(("drained", format!("{}; {undrained} of {bytes} to be saved (bag get --follow)", endless.drained)));
    pairs
}

fn limit_in_words(limit: &str, ahead: u64) -> String {
    match limit {
        "processors" => "the processors of the grid".to_owned(),
        "uplink" => "what can leave this machine".to_owned(),
        "downlinks" => "what machines can fetch".to_owned(),
        "machines" => "no machine has said that it computes for it, yet".to_owned(),
        "waits" => {
            format!("so many endless bags share the grid that it waits; {} before it", output::count(ahead, "bag"))
        }
        "tasks" => "it has no task to give: nothing comes, or it is closed or held".to_owned(),
        "undrained" => "its results take all the room that they may have: save them with bag get --follow".to_owned(),
        other => output::printable(other),
    }
}

/// What came of a bag that is over.
pub(super) fn outcome(bag: &Bag, is_verbose: bool) -> String {
    let id = output::short_id(&bag.id);
    let took = output::span(bag.elapsed_s);
    let on = match bag.machines_used {
        0 => String::new(),
        machines => format!(" on {}", output::count(machines, "machine")),
    };
    let computing =
        if bag.computed_s > 0.0 { format!(", {} of computing", output::span(bag.computed_s)) } else { String::new() };
    let text = match bag.state {
        BagState::Failed => {
            let see = format!("see `idlewood bag show {id}`");
            format!("bag {id} failed: {} done, {} failed in {took}{on}{computing}; {see}", bag.done, bag.failed)
        }
        BagState::Cancelled => {
            format!("bag {id} was cancelled: {} of {} done", bag.done, output::count(bag.tasks, "task"))
        }
        BagState::Succeeded | BagState::Held | BagState::Waiting | BagState::Measuring | BagState::Running => {
            format!(
                "bag {id} {}: {} in {took}{on}{computing}",
                output::state(bag.state),
                output::count(bag.done, "task")
            )
        }
    };
    match bag.stretch.filter(|_| is_verbose) {
        Some(stretch) => format!("{text}\nstretch {} s/Mop ({STRETCH})", output::number(stretch)),
        None => text,
    }
}

/// What the scheduler's figures mean, where they are shown.
pub(super) const STRETCH: &str = "the time that it took, for each million operations of work in the bag";
/// The same of the unit of work.
pub(super) const MOP: &str = "a Mop is a million operations of the program that measures machines";

/// `1.3 times what it would take alone on the grid`; for a bag of which anything is known, unless it would take no time at all: then it is
/// other things that take time.
pub(super) fn fairness(bag: &Bag) -> Option<String> {
    let times = bag.times_alone.filter(|times| bag.elapsed_s / times >= ALONE_LEAST_S)?;
    Some(format!("{} times what it would take alone on the grid, as the grid is now", output::times(times)))
}

/// `off by 4.2 % in the mean`; for a bag that is over.
pub(super) fn prediction(bag: &Bag) -> Option<String> {
    let percent = bag.prediction_error_percent?;
    Some(format!("the ends that were predicted meanwhile were off by {percent:.1} % of its time in the mean"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bag(state: BagState, tasks: u64, done: u64, failed: u64, placed: u64) -> Bag {
        let any = serde_json::from_str(include_str!("../../tests/fixtures/bag.json")).expect("it is a bag");
        Bag { state, tasks, done, failed, placed, ..any }
    }

    fn bounded(code: &str, sentence: &str, machines: u64) -> Bound {
        let (code, sentence) = (code.to_owned(), sentence.to_owned());
        Bound { code, sentence, machines: Some(machines), tasks: None, ends: Some("x".to_owned()), ends_at: None }
    }

    fn at_noon(bag: &Bag) -> String {
        line(bag, &"2026-01-02T12:00:00Z".parse().expect("a time"), &TimeZone::fixed(jiff::tz::offset(1)), true)
    }

    fn ending(bag: &Bag, end: &str, within_s: f64) -> Bag {
        Bag { predicted_end: Some(end.to_owned()), predicted_end_within_s: Some(within_s), ..bag.clone() }
    }

    #[test]
    fn lines_say_what_matters() {
        let running = Bag {
            runs: true,
            bounds: vec![bounded("runs", "4 tasks are on 3 machines that work", 3)],
            ..bag(BagState::Running, 8, 1, 1, 4)
        };
        assert_eq!(at_noon(&running), "1 of 8 done, 1 failed, running on 3 machines", "nobody knows yet");
        let short = ending(&running, "2026-01-02T12:00:30Z", 7.0);
        assert_eq!(at_noon(&short), "1 of 8 done, 1 failed, running on 3 machines, ends about 13:00");
        let long = ending(&running, "2026-01-03T13:00:00Z", 200.0);
        assert_eq!(at_noon(&long), "1 of 8 done, 1 failed, running on 3 machines, ends about Sat 14:00 ± 3 min");
        let (wide, narrow) = (fitted(&long, 90), fitted(&long, 72));
        assert!(wide.contains('±') && !narrow.contains('±'), "where there is no room the ± goes first: {narrow}");
        assert!(narrow.ends_with("ends about 2026-01-03"), "and not the end: {narrow}");
        let unlike = Bag { task_s_least: Some(0.2), task_s_most: Some(200.0), ..long.clone() };
        let said = at_noon(&unlike);
        assert!(said.contains("machines, tasks of 0.2 s to ") && said.contains(", ends about Sat"), "{said}");
        let alike = Bag { task_s_least: Some(30.0), ..unlike.clone() };
        assert_eq!(at_noon(&alike), at_noon(&long), "within ten times of each other that is no news");
        let longer = ending(&running, "2026-04-16T12:00:00Z", 60.0 * 86_400.0);
        assert!(at_noon(&longer).ends_with("ends about 2026-04-16 ± 60 d"), "{}", at_noon(&longer));
        let measured = Bag { bounds: vec![bounded("measures", "", 1)], ..bag(BagState::Measuring, 8, 0, 0, 0) };
        assert_eq!(at_noon(&measured), "0 of 8 done, trying the first task");
        assert_eq!(at_noon(&bag(BagState::Cancelled, 8, 1, 0, 0)), "1 of 8 done, cancelled");
        assert!(outcome(&bag(BagState::Failed, 8, 7, 1, 0), false).contains("bag show 0123456789ab"));
    }

    #[test]
    fn no_end_is_forecast_for_a_bag_that_cannot_run() {
        let owner = bounded("owner_present", "this machine: owner is present; 4 tasks wait for it", 1);
        let stands = Bag { bounds: vec![owner.clone()], ..bag(BagState::Running, 8, 4, 0, 4) };
        assert_eq!(at_noon(&stands), "4 of 8 done, this machine: owner is present; 4 tasks wait for it");
        assert_eq!(super::bound(&owner), "this machine: owner is present; 4 tasks wait for it; ends when: x");
    }

    #[test]
    fn lines_fit() {
        let owner = bounded("owner_present", &"ä".repeat(200), 1);
        let stands = Bag { bounds: vec![owner], ..bag(BagState::Running, 8, 4, 0, 4) };
        let short = fitted(&bag(BagState::Cancelled, 8, 4, 0, 0), 80);
        assert_eq!(short, "[##########          ] 4 of 8 done, cancelled");
        for columns in [80, 40, 20, 3, 0] {
            let text = fitted(&stands, columns);
            assert_eq!(text.chars().count(), columns.max(20) - 1, "{text}");
            assert!(text.starts_with("4 of 8 done, ää") || columns < 20, "{text}");
            assert!(text.ends_with('…'));
        }
    }

    #[test]
    fn what_came_of_a_bag_is_told_with_machines_and_computing() {
        let done =
            Bag { machines_used: 5, computed_s: 72.0, elapsed_s: 16.2, ..bag(BagState::Succeeded, 13, 13, 0, 0) };
        assert_eq!(
            outcome(&done, false),
            "bag 0123456789ab succeeded: 13 tasks in 16 s on 5 machines, 1.2 min of computing"
        );
        assert!(outcome(&done, true).contains("\nstretch 0.125 s/Mop (the time that it took, for each million"));
        let alone = Bag { times_alone: Some(1.34), ..done };
        assert!(fairness(&alone).expect("it is known").starts_with("1.3 times what it would take alone"));
        assert_eq!(fairness(&Bag { times_alone: Some(96_409.0), ..alone }), None, "a bag of nothing");
    }

    #[test]
    fn the_bar_never_overflows() {
        assert_eq!(bar(&bag(BagState::Running, 4, 1, 1, 1)), "[##########-----     ]");
        assert_eq!(bar(&bag(BagState::Running, 4, 4, 4, 4)), "[####################]");
        assert_eq!(bar(&bag(BagState::Running, u64::MAX, u64::MAX, u64::MAX, u64::MAX)).len(), 22);
    }
}
