//! The best schedule that was found by a centre that knows all bags to come: an upper bound of what is possible, beside the lower one
//! of [`offline_bound`].
//!
//! It is the best of the on-line rivals' schedules and of those found so: for a stretch S each bag is due at r + S·size, and bags are served in that order on the real machines, with all freedoms of the
//! on-line rivals: freezing, planning anew at every change, tasks that wait for a faster slot. S is halved in on between the offline
//! bound and the best maximum stretch so far; each S is tried with two orders, by the moment at which a bag is due, and by the moment
//! at which its last task has to begin for that. What is returned is a real schedule, with whole tasks on single slots; the
//! offline bound divides work among all machines at will, and lets each task run at the speed of the fastest. Where the two are near each other, both are
//! near the optimum; where they are not, the bound is loose (machines that come and go, bags of few long tasks) or this search is.
//!
//! Left out: keeping a slot free for a bag to come; what the true work of each task is, which this centre does not know either;
//! the optimum itself, which is hard to compute (makespan on machines of different speeds is NP-hard already).

use idlewood_overlay::Time;

use super::central::schedule;
use super::instance::Instance;
use super::offline::offline_bound;
use super::policy::Policy;
use super::split::speed_split;

/// Most stretches that are tried. Our choice: the interval is a thousandth of what it was then.
const TRIES: usize = 10;
/// The search ends where the best is this near to the largest stretch known to be too small.
const NEAR: f64 = 1.001;

/// The best schedule found: when each bag was complete, none if it was not by the horizon. Stretches are (C − r)/size by these sizes,
/// one for each bag.
pub fn clairvoyant(instance: &Instance, sizes: &[f64], frozen_max: usize) -> Vec<Option<Time>> {
    let largest = |completed: &[Option<Time>]| largest_stretch(instance, sizes, completed);
    let median_mops = instance.median_speed_mops();
    let on_line = [
        Policy::judged(sizes, frozen_max),
        Policy::min_cent_plus(frozen_max),
        Policy::min_cent_plus_replanning(frozen_max),
        Policy::smallest_first(frozen_max),
        Policy::MIN_CENT,
        Policy::FCFS,
    ];
    let mut best = schedule(instance, on_line[0]);
    let (mut low, mut high) = (offline_bound(instance, sizes), largest(&best));
    let others = on_line[1..].iter().map(|policy| schedule(instance, *policy));
    for found in others.chain([speed_split(instance, frozen_max)]) {
        let reached = largest(&found);
        if reached < high {
            (high, best) = (reached, found);
        }
    }
    for _ in 0..TRIES {
        if low <= 0.0 || high <= low * NEAR {
            break;
        }
        let stretch = (low * high).sqrt();
        let due = |number: usize| instance.bags[number].arrival.as_secs_f64() + stretch * sizes[number];
        let last_begins = |number: usize| due(number) - instance.bags[number].declared_mops / median_mops;
        let mut is_met = false;
        for key in [&due as &dyn Fn(usize) -> f64, &last_begins] {
            let moments: Vec<f64> = (0..sizes.len()).map(key).collect();
            let found = schedule(instance, Policy::due(&moments, frozen_max));
            let reached = largest(&found);
            is_met |= reached <= stretch;
            if reached < high {
                (high, best) = (reached, found);
            }
        }
        if !is_met {
            low = stretch;
        }
    }
    best
}

fn largest_stretch(instance: &Instance, sizes: &[f64], completed: &[Option<Time>]) -> f64 {
    let of = |((bag, size), at): ((&crate::workload::Bag, &f64), &Option<Time>)| {
        at.unwrap_or(instance.horizon).since(bag.arrival).as_secs_f64() / size
    };
    instance.bags.iter().zip(sizes).zip(completed).map(of).fold(0.0, f64::max)
}
