//! Runs a simulation until a condition holds.

use idlewood_overlay::Time;
use idlewood_simnet::Simulation;

/// Runs the simulation until `reached` holds.
#[track_caller]
pub(crate) fn step_until(simulation: &mut Simulation, reached: impl Fn(&Simulation) -> bool) {
    while !reached(simulation) {
        assert!(simulation.step(Time::MAX), "it never came to that");
    }
}

/// Tasks whose results their submitter has.
pub(crate) fn delivered(simulation: &Simulation) -> usize {
    simulation.record().accepted_tasks().filter(|task| task.delivered).count()
}
