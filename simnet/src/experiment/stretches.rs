//! The stretches of bags and of users, beside those of the rivals and the offline bound.

use std::collections::BTreeMap;

use idlewood_overlay::Time;
use idlewood_scheduler::PerSubmitter;

use super::rivals::{self, CLAIRVOYANT, Outcome, SPEED_SPLIT};
use super::table::Values;
use crate::baseline::{Instance, Measure, offline_bound};
use crate::record::{BagRecord, Predicted};
use crate::simulation::Simulation;
use crate::workload;

/// Maximum and mean stretch, absolute and relative to the rivals'.
pub(super) fn compared(measure: Measure, instance: &Instance, simulation: &Simulation, values: &mut Values) {
    let end = simulation.now();
    // Bags that would have come later do not count.
    let bags = &simulation.record().bags()[..instance.bags.len()];
    let ours: Vec<Option<Time>> = bags.iter().map(|bag| bag.completed).collect();
    values.push(("unfinished_bags".to_owned(), ours.iter().filter(|completed| completed.is_none()).count() as f64));
    // Those of them of which a task never ran to its end: of the others the submitter is away, or does not know.
    values.push(("unended_bags".to_owned(), bags.iter().filter(|bag| bag.ended.is_none()).count() as f64));
    // An incomplete bag counts with the time so far.
    let ours: Vec<Option<Time>> = ours.into_iter().map(|completed| completed.or(Some(end))).collect();
    // A rival's bag is complete when its last task ends, whether or not its submitter knows.
    let ended = bags.iter().map(|bag| bag.ended.or(Some(end)));
    let ended: Vec<Option<Time>> = ended.collect();
    let rivals = rivals::outcomes(measure, instance, bags);
    after_the_end(instance, bags, values);
    let known = (0..bags.len()).filter_map(|number| simulation.record().known_after(number, end));
    values.extend(known.max().map(|known| ("known_after_return_s_max".to_owned(), known.as_secs_f64())));
    predicted(bags, values);
    // The experiment's own measure comes first and without a prefix.
    let others = [Measure::Application, Measure::Effective, Measure::Dedicated];
    let others = others.into_iter().filter(|other| *other != measure);
    for (measure, word) in [(measure, "")].into_iter().chain(others.map(|other| (other, word_of(other)))) {
        let summary = |completed: &[Option<Time>]| {
            let stretches = instance.stretches(completed, measure);
            (stretches.iter().copied().fold(0.0, f64::max), stretches.iter().sum::<f64>() / stretches.len() as f64)
        };
        let (largest, mean) = summary(&ours);
        let mut push = |name: &str, value: f64| values.push((format!("{word}{name}"), value));
        for (name, completed) in &rivals {
            let (their_largest, their_mean) = summary(completed);
            push(&format!("ratio_{name}"), largest / their_largest);
            push(&format!("mean_ratio_{name}"), mean / their_mean);
            push(&format!("max_stretch_{name}"), their_largest);
        }
        let (last_largest, last_mean) = summary(&ended);
        for (name, completed) in &rivals {
            let (their_largest, their_mean) = summary(completed);
            push(&format!("ended_ratio_{name}"), last_largest / their_largest);
            push(&format!("ended_mean_ratio_{name}"), last_mean / their_mean);
        }
        let bound = offline_bound(instance, &instance.sizes(measure));
        push("ratio_offline", largest / bound);
        push("max_stretch_offline", bound);
        push("max_stretch", largest);
        push("mean_stretch", mean);
        let of =
            |name: &str| rivals.iter().find(|(known, _)| *known == name).map(|(_, completed)| summary(completed).0);
        let least = |is_meant: &dyn Fn(&str) -> bool| {
            let meant = rivals.iter().filter(|(name, _)| is_meant(name));
            meant.map(|(_, completed)| summary(completed).0).reduce(f64::min)
        };
        // 0 as good as the rival that knows nothing, 1 as good as the bound.
        let mut push_share = |name: &str, null: Option<f64>, best: Option<f64>| {
            share_of_the_way(null, largest, best).into_iter().for_each(|share| push(name, share));
        };
        push_share("share_of_the_way", of(SPEED_SPLIT), Some(bound));
        if word.is_empty() {
            push_share("share_of_the_possible_way", of(SPEED_SPLIT), of(CLAIRVOYANT));
            let per_submitter = simulation.scenario().peer.per_submitter;
            let best = least(&|name| rivals::has_same_objective(name, per_submitter));
            best.into_iter().for_each(|best| push("ratio_best_rival", largest / best));
            least(&rivals::is_null).into_iter().for_each(|null| push("ratio_best_null", largest / null));
            // For figures: seed by seed, since a quotient of means is no mean of quotients.
            for name in ["mincent", "fcfs", CLAIRVOYANT, "judged"] {
                of(name).into_iter().for_each(|theirs| push(&format!("ratio_{name}_offline"), theirs / bound));
            }
            if let (Some(mincent), Some(fcfs)) = (of("mincent"), of("fcfs")) {
                push("ratio_fcfs_mincent", fcfs / mincent);
                push("ratio_offline_mincent", bound / mincent);
            }
        }
    }
    let per_submitter = simulation.scenario().peer.per_submitter;
    by_submitter(measure, instance, bags, &ours, (&rivals, per_submitter), values);
}

/// By how much submitters knew of their bags' ends later than those were, at most, and how far one task held its bag up: the bag's time as
/// a multiple of that of all its other tasks and one task more on a usual machine, at most.
fn after_the_end(instance: &Instance, bags: &[BagRecord], values: &mut Values) {
    let known = bags.iter().filter_map(|bag| Some(bag.completed?.since(bag.ended?).as_secs_f64()));
    values.push(("known_after_ended_s_max".to_owned(), known.fold(0.0, f64::max)));
    let median_mops = instance.median_speed_mops();
    let held_up = bags.iter().filter_map(|bag| {
        let since = |at: Time| at.since(bag.bag.arrival).as_secs_f64();
        Some(since(bag.ended?) / (since(bag.ended_but_one?) + bag.bag.task_mops / median_mops))
    });
    values.push(("held_up_max".to_owned(), held_up.fold(0.0, f64::max)));
}

/// By how much the ends of bags that submitters predicted after each tenth of the tasks were wrong in the mean, in percent of a bag's time, each
/// bag counting once, beside the error of who takes a bag to go on as it has since it was submitted; and how many of the predictions held, within what they said of themselves.
fn predicted(bags: &[BagRecord], values: &mut Values) {
    let all: Vec<Predicted> = bags.iter().filter_map(|bag| bag.predicted).collect();
    if all.is_empty() {
        return;
    }
    let mut push_error = |name: &str, of: fn(&Predicted) -> f64| {
        values.push((name.to_owned(), 100.0 * all.iter().map(of).sum::<f64>() / all.len() as f64));
    };
    push_error("prediction_error_percent", |predicted| predicted.error);
    push_error("null_prediction_error_percent", |predicted| predicted.null_error);
    let of = |number: &dyn Fn(&Predicted) -> u32| all.iter().map(|predicted| f64::from(number(predicted))).sum::<f64>();
    let held = of(&|predicted| predicted.held) / of(&|predicted| predicted.count);
    values.push(("predictions_held_percent".to_owned(), 100.0 * held));
}

/// Which part of the way from one largest stretch to another one has gone; `None` where they are within a hundredth of each other, so
/// that there is no way.
fn share_of_the_way(null: Option<f64>, largest: f64, best: Option<f64>) -> Option<f64> {
    let (null, best) = null.zip(best).filter(|(null, best)| *null > 1.01 * best)?;
    Some((null - largest) / (null - best))
}

/// The largest stretch of a submitter, and the geometric mean over submitters, absolute and relative to the rivals': its bags'
/// times added up, by their sizes added up. The best rival is the best of those with our objective, for each of the two by itself.
fn by_submitter(
    measure: Measure,
    instance: &Instance,
    bags: &[BagRecord],
    ours: &[Option<Time>],
    (rivals, per_submitter): (&[Outcome], PerSubmitter),
    values: &mut Values,
) {
    let sizes = instance.sizes(measure);
    let summary = |completed: &[Option<Time>]| {
        let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        let times = instance.stretches(completed, measure).into_iter().zip(&sizes).map(|(of, size)| of * size);
        for ((bag, time), size) in bags.iter().zip(times).zip(&sizes) {
            let Some((host, _)) = bag.submitted else { continue };
            let (all_time, all_size) = sums.entry(host).or_default();
            *all_time += time;
            *all_size += size;
        }
        let stretches: Vec<f64> = sums.values().map(|(time, size)| time / size).collect();
        let logarithms: f64 = stretches.iter().map(|stretch| stretch.ln()).sum();
        (stretches.iter().copied().fold(0.0, f64::max), (logarithms / stretches.len() as f64).exp(), stretches.len())
    };
    let (largest, mean, number) = summary(ours);
    let mut push = |name: &str, value: f64| values.push((name.to_owned(), value));
    push("submitters", number as f64);
    push("max_submitter_stretch", largest);
    push("mean_submitter_stretch", mean);
    let mut best = [f64::INFINITY; 2];
    for (name, completed) in rivals {
        let (their_largest, their_mean, _) = summary(completed);
        push(&format!("submitter_ratio_{name}"), largest / their_largest);
        push(&format!("mean_submitter_ratio_{name}"), mean / their_mean);
        if rivals::has_same_objective(name, per_submitter) {
            best = [best[0].min(their_largest), best[1].min(their_mean)];
        }
    }
    push("submitter_ratio_best_rival", largest / best[0]);
    push("mean_submitter_ratio_best_rival", mean / best[1]);
}

/// Geometric mean and maximum of the stretches of the one user's bags and of the others', each bag as it was before it
/// was split: complete with its last piece. Small bags have fewer tasks than there are machines.
pub(super) fn by_user(measure: Measure, simulation: &Simulation, values: &mut Values) {
    let whole = crate::Scenario { user_splits_into: 1, ..simulation.scenario().clone() };
    let instance = Instance::of(&whole);
    let records = simulation.record().bags().iter().filter(|piece| piece.bag.whole < instance.bags.len());
    let records: Vec<_> = records.collect();
    let mut completed = vec![Time::ZERO; instance.bags.len()];
    for piece in &records {
        let at = &mut completed[piece.bag.whole];
        *at = piece.completed.unwrap_or(simulation.now()).max(*at);
    }
    values.push(("submitted_bags".to_owned(), records.len() as f64));
    let completed: Vec<Option<Time>> = completed.into_iter().map(Some).collect();
    let stretches = instance.stretches(&completed, measure);
    let of = |is_meant: &dyn Fn(&workload::Bag) -> bool| -> Vec<f64> {
        instance.bags.iter().zip(&stretches).filter(|(bag, _)| is_meant(bag)).map(|(_, stretch)| *stretch).collect()
    };
    let is_small = |bag: &workload::Bag| bag.tasks < u64::from(whole.nodes);
    for (name, meant) in [
        ("user", of(&|bag| bag.is_users())),
        ("user_small", of(&|bag| bag.is_users() && is_small(bag))),
        ("user_large", of(&|bag| bag.is_users() && !is_small(bag))),
        ("others", of(&|bag| !bag.is_users())),
        ("others_small", of(&|bag| !bag.is_users() && is_small(bag))),
    ] {
        if !meant.is_empty() {
            let logarithms: f64 = meant.iter().map(|stretch| stretch.ln()).sum();
            values.push((format!("{name}_stretch"), (logarithms / meant.len() as f64).exp()));
            values.push((format!("{name}_max_stretch"), meant.iter().copied().fold(0.0, f64::max)));
        }
    }
}

fn word_of(measure: Measure) -> &'static str {
    match measure {
        Measure::Application => "application_",
        Measure::Effective => "effective_",
        Measure::Dedicated => "dedicated_",
    }
}
