//! What the algorithms come to on one platform, and rows of tables over all platforms of a size.

use serde_json::{Value, json};

use super::fold::Fold;
use super::lagrangian::{Kind, Lagrangian, Steps};
use super::mix::Mix;
use super::platform::{Platform, Way};
use super::published;
use super::size::Size;

/// Precisions, as shares of Π ρ^ω: the utility is within their logarithm of the best.
pub(super) const PRECISIONS: [f64; 3] = [0.85, 0.95, 0.99];
/// Waves at the end in which the utility must be that near (v_check, §6.4).
const WAVES_CHECKED: usize = 100;
/// For how long whole tasks are given out.
const WHOLE_S: f64 = 86_400.0;

/// Where a run begins.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Case {
    Start,
    Removal,
}

/// Runs that are compared over platforms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Series {
    pub(super) case: Case,
    pub(super) mix: Mix,
    pub(super) algorithm: &'static str,
    pub(super) steps: Option<Steps>,
}

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Waves until the utility is within each of the [`PRECISIONS`] for good; none where it is not at the end.
    settled: [Option<usize>; 3],
    messages_per_wave: usize,
    /// How full the fullest processor or edge is at the end.
    load: f64,
    /// How far the utility is from the best at the end, to either side.
    gap: f64,
    throughputs: Vec<f64>,
    best_utility: f64,
    /// The same as load where machines get whole tasks of a day.
    whole_load: Option<f64>,
    /// Before the wave after a removal.
    pub(super) gap_before: Option<f64>,
    pub(super) load_before: Option<f64>,
    pub(super) removed_share: Option<f64>,
}

impl Outcome {
    /// Runs so many waves.
    pub(super) fn of_lagrangian(
        platform: &Platform,
        ways: &[Way],
        mut of: Lagrangian<'_>,
        waves: usize,
        best_utility: f64,
    ) -> Self {
        let mut outside = [0; 3];
        let mut gap = f64::INFINITY;
        for wave in 1..=waves {
            of.wave();
            gap = (platform.utility(of.throughputs()) - best_utility).abs();
            for (last, precision) in outside.iter_mut().zip(PRECISIONS) {
                // Also where it is no number.
                if !is_within(gap, precision) {
                    *last = wave;
                }
            }
        }
        let settled = outside.map(|last| (last + WAVES_CHECKED <= waves).then_some(last + 1));
        // A machine that an application comes through passes it on and back by itself: the others do not know of it.
        let messages_per_wave = 2 * ways.iter().map(|way| way.outward.len()).sum::<usize>();
        Self {
            settled,
            messages_per_wave,
            load: platform.load(ways, &of.rates()),
            gap,
            throughputs: of.throughputs().to_vec(),
            best_utility,
            whole_load: None,
            gap_before: None,
            load_before: None,
            removed_share: None,
        }
    }

    /// One wave of FOLD.
    pub(super) fn of_wave(platform: &Platform, ways: &[Way], fold: &Fold<'_>, best_utility: f64) -> Self {
        let wave = fold.wave();
        let throughputs = platform.throughputs(&wave.rates);
        let gap = (platform.utility(&throughputs) - best_utility).abs();
        let whole = fold.whole(&wave.rates, WHOLE_S);
        let per_s = |tasks: &Vec<u64>| tasks.iter().map(|tasks| *tasks as f64 / WHOLE_S).collect();
        let whole: Vec<Vec<f64>> = whole.iter().map(per_s).collect();
        Self {
            settled: PRECISIONS.map(|precision| is_within(gap, precision).then_some(1)),
            messages_per_wave: wave.messages,
            load: platform.load(ways, &wave.rates),
            gap,
            throughputs,
            best_utility,
            whole_load: Some(platform.load(ways, &whole)),
            gap_before: None,
            load_before: None,
            removed_share: None,
        }
    }
}

fn is_within(gap: f64, precision: f64) -> bool {
    gap <= -precision.ln()
}

/// The row of a series: of several step sizes those with which most platforms settle, in the fewest waves.
pub(super) fn row(size: Size, series: &[Series], outcomes: &[Vec<&Outcome>]) -> Value {
    let settled = |of: &[&Outcome], place: usize| of.iter().filter(|outcome| outcome.settled[place].is_some()).count();
    let waves = |of: &[&Outcome]| mean(of.iter().filter_map(|outcome| outcome.settled[0]).map(|waves| waves as f64));
    let mut best = 0;
    for (number, of) in outcomes.iter().enumerate().skip(1) {
        let (counts, counts_best) = (settled(of, 0), settled(&outcomes[best], 0));
        let is_sooner = waves(of).unwrap_or(f64::MAX) < waves(&outcomes[best]).unwrap_or(f64::MAX);
        if counts > counts_best || counts == counts_best && is_sooner {
            best = number;
        }
    }
    let (series, of) = (series[best], &outcomes[best]);
    let largest = |value: fn(&Outcome) -> Option<f64>| {
        let values: Vec<f64> = of.iter().filter_map(|outcome| value(outcome)).collect();
        // What is no number is no bound: null.
        let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (!values.is_empty() && values.iter().all(|value| value.is_finite())).then_some(largest)
    };
    let kind = [Kind::Naive, Kind::Adaptive].into_iter().find(|kind| kind.name() == series.algorithm);
    let is_start = series.case == Case::Start;
    let published = kind.filter(|_| is_start);
    let published_waves = published.and_then(|kind| published::waves(kind, series.mix, size));
    let ended = of.iter().filter_map(|outcome| Some((outcome.settled[0]?, outcome.messages_per_wave)));
    let mut row = json!({
        "size": size.to_string(),
        "case": if is_start { "start" } else { "removal" },
        "applications": series.mix.name(),
        "algorithm": series.algorithm,
        "steps": series.steps.map(|Steps { rate, smoothing, processor, edge }| [rate, smoothing, processor, edge]),
        "platforms": of.len(),
        "within_85": settled(of, 0),
        "within_95": settled(of, 1),
        "within_99": settled(of, 2),
        "waves_mean": waves(of),
        "waves_max": of.iter().filter_map(|outcome| outcome.settled[0]).max(),
        "messages_mean": mean(ended.map(|(waves, messages)| (waves * messages) as f64)),
        "load_max": largest(|outcome| Some(outcome.load)),
        "gap_max": largest(|outcome| Some(outcome.gap)),
        "whole_load_max": largest(|outcome| outcome.whole_load),
        "published_within_85": published.and_then(|kind| published::within_85(kind, series.mix, size)),
        "published_waves_mean_ci95": published_waves,
    });
    if !is_start {
        row["removed_share_mean"] = json!(mean(of.iter().filter_map(|outcome| outcome.removed_share)));
        row["gap_before_max"] = json!(largest(|outcome| outcome.gap_before));
        row["load_before_max"] = json!(largest(|outcome| outcome.load_before));
        row["published_waves"] = json!(kind.map(|_| published::REMOVAL_WAVES));
    }
    if let [only] = of.as_slice() {
        row["tasks_per_s"] = json!(only.throughputs);
        row["best_utility"] = json!(only.best_utility);
    }
    row
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}
