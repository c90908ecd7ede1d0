//! What became of the bags under each rival, and which rivals have our objective.

use idlewood_overlay::Time;
use idlewood_scheduler::{Config, PerSubmitter};

use crate::baseline::{Instance, Measure, Policy, clairvoyant, schedule, speed_split};
use crate::record::BagRecord;

/// On larger grids, and with more bags, the rivals that plan for each slot are left out: they take a time that grows with machines by tasks, and with the
/// square of the bags. Our choice.
const PLANNED_MACHINES_MAX: usize = 2_000;
const PLANNED_BAGS_MAX: usize = 400;

/// The rival whose largest stretch is 0 of the way to the bound.
pub(super) const SPEED_SPLIT: &str = "speed_split";
/// The one that knows what is to come.
pub(super) const CLAIRVOYANT: &str = "clairvoyant";

/// A rival's name, and when each bag was complete there.
pub(super) type Outcome = (&'static str, Vec<Option<Time>>);

/// What became of the bags under each rival. The names of those that know whose bag each is, as ours do by default, end in
/// `submitters`; two work for the measure itself.
pub(super) fn outcomes(measure: Measure, instance: &Instance, bags: &[BagRecord]) -> Vec<Outcome> {
    // A bag that was never submitted is nobody's.
    let nobody = |number: usize| u32::MAX - number as u32;
    let submitters =
        bags.iter().enumerate().map(|(number, bag)| bag.submitted.map_or(nobody(number), |(host, _)| host));
    let with_users = Instance { submitters: submitters.collect(), ..instance.clone() };
    // The default of peers in all variants, so that all variants have the same rivals.
    let frozen_max = Config::default().frozen_max as usize;
    let plus = Policy::min_cent_plus(frozen_max);
    let mut outcomes = vec![
        ("mincent", schedule(instance, Policy::MIN_CENT)),
        ("mincent_plus", schedule(instance, plus)),
        ("fcfs", schedule(instance, Policy::FCFS)),
        ("smallest_first", schedule(instance, Policy::smallest_first(frozen_max))),
        ("mincent_submitters", schedule(&with_users, Policy::MIN_CENT)),
        ("mincent_plus_submitters", schedule(&with_users, plus)),
        (SPEED_SPLIT, speed_split(instance, frozen_max)),
    ];
    if instance.machines.len() <= PLANNED_MACHINES_MAX && instance.bags.len() <= PLANNED_BAGS_MAX {
        let (replanning, plus) = (Policy::min_cent_replanning(), Policy::min_cent_plus_replanning(frozen_max));
        let sizes = instance.sizes(measure);
        outcomes.extend([
            ("mincent_replanning", schedule(instance, replanning)),
            ("mincent_plus_replanning", schedule(instance, plus)),
            ("mincent_replanning_submitters", schedule(&with_users, replanning)),
            ("mincent_plus_replanning_submitters", schedule(&with_users, plus)),
            ("judged", schedule(instance, Policy::judged(&sizes, frozen_max))),
            (CLAIRVOYANT, clairvoyant(instance, &sizes, frozen_max)),
        ]);
    }
    outcomes
}

/// Whether a rival knows as little as ours of what is to come, and takes bags of one user as ours do.
pub(super) fn has_same_objective(name: &str, per_submitter: PerSubmitter) -> bool {
    let is_central = name.starts_with("mincent") || name == "judged";
    is_central && name.ends_with("_submitters") == (per_submitter == PerSubmitter::Line)
}

/// Whether a rival knows at most sizes, speeds and arrivals.
pub(super) fn is_null(name: &str) -> bool {
    [SPEED_SPLIT, "fcfs", "smallest_first"].contains(&name)
}
