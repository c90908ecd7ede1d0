//! Fig. 8: all machines that work leave at once.
//!
//! Readings: they leave after [`WAVES_MAX`] waves, as the paper's algorithm had converged when they did (at its wave 140); a machine works if more than
//! [`WORKING_SHARE`] of its processor is used then, which makes "around 15 %" of the machines, as there; the masters and the machines on the paths between them
//! stay ("beside the masters and the nodes connecting them to the network"); what leaves is the processor, while edges go on
//! carrying data, as "one application was redeployed on another part of the network" (Fig. 8b).

use super::fold::Fold;
use super::lagrangian::{Kind, Lagrangian, WAVES_MAX};
use super::mix::Mix;
use super::optimum::best_utility;
use super::platform::Platform;
use super::published::{REMOVAL_SIZE, steps};
use super::rows::{Case, Outcome, Series};

/// The share of a processor from which on its machine works.
const WORKING_SHARE: f64 = 0.5;

/// Both algorithms on one platform; none where no machine works outside of the core.
///
/// # Errors
/// A sentence where the convex solver finds no optimum.
pub(super) fn run(platform: &Platform, mix: Mix, seed: u64) -> Result<Vec<(Series, Outcome)>, String> {
    let ways = platform.ways();
    let steps = steps(Kind::Adaptive, REMOVAL_SIZE)[0];
    let mut adaptive = Lagrangian::new(platform, &ways, Kind::Adaptive, steps, seed);
    (0..WAVES_MAX).for_each(|_| adaptive.wave());
    let fold = Fold::new(platform, &ways);
    let before = fold.wave();

    let mut reduced = platform.clone();
    let mut removed = 0;
    for (machine, rates) in adaptive.rates().iter().enumerate() {
        let used: f64 = platform.applications.iter().zip(rates).map(|(of, rate)| of.gflop * rate).sum();
        if used > WORKING_SHARE * platform.machines[machine].gflop_s && !fold.core().contains(&machine) {
            reduced.machines[machine].gflop_s = 0.0;
            removed += 1;
        }
    }
    if removed == 0 {
        return Ok(Vec::new());
    }
    let removed_share = f64::from(removed) / platform.machines.len() as f64;
    let best = best_utility(&reduced, &ways)?;
    let series = |algorithm, steps| Series { case: Case::Removal, mix, algorithm, steps };

    adaptive.move_to(&reduced);
    let of_adaptive = Outcome::of_lagrangian(&reduced, &ways, adaptive, WAVES_MAX, best);
    let fold = Fold::new(&reduced, &ways);
    let clipped = fold.clipped(&before.rates);
    let mut of_fold = Outcome::of_wave(&reduced, &ways, &fold, best);
    of_fold.gap_before = Some(best - reduced.utility(&reduced.throughputs(&clipped)));
    of_fold.load_before = Some(reduced.load(&ways, &clipped));
    let mut outcomes = vec![(series(Kind::Adaptive.name(), Some(steps)), of_adaptive), (series("fold", None), of_fold)];
    outcomes.iter_mut().for_each(|(_, outcome)| outcome.removed_share = Some(removed_share));
    Ok(outcomes)
}
