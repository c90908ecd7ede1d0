//! Rival schedulers for comparison: centralised ones with perfect information, and a bound that no scheduler can pass
//! (Celaya and Marchal 2010, §7).
//!
//! An [`Instance`] is a scenario as a scheduling problem: the same machines with the same speeds and slots, the same
//! bags at the same moments, the same machines down at the same moments. The centralised schedulers ([`schedule`]) know
//! all of it at once and for free: no latency, no messages, no transfer of outputs, a centre that never fails; they do
//! not know by how much a task's true work differs from its bag's declaration. When a machine goes down they lose only
//! its running tasks, and of a task that continues there only the work after its last checkpoint; all waiting tasks are
//! at the centre.
//!
//! - [`Policy::MIN_CENT`] is the paper's: at every arrival the smallest maximum stretch over all bags, then the
//!   earliest deadline at that stretch first; without preemption.
//! - [`Policy::FCFS`] serves bags in the order of their arrival, [`Policy::smallest_first`] in that of their sizes.
//! - [`Policy::min_cent_plus`] is MinCent with idlewood's freedoms, the effective size and preemption by freezing.
//! - [`Policy::min_cent_replanning`] and [`Policy::min_cent_plus_replanning`] order anew at every change of the grid, and let a task
//!   wait for a faster slot where it ends earlier there; [`Policy::judged`] does so for the very measure that is judged.
//! - [`clairvoyant`] is the best schedule found by a centre that knows all bags to come.
//! - [`speed_split`] knows nothing but the speeds of machines: on a load where it is good, no scheduler can show anything.
//! - [`offline_bound`] is the smallest maximum stretch of a clairvoyant preemptive schedule on one machine with the
//!   speed of all.
//!
//! They know who is at which machine now, and not for how long; a task that stands still behind an owner is at once begun anew elsewhere in
//! its turn (`central/owners.rs`). They know how fast slowed machines are in truth.
//!
//! Left out, and refused by [`check`]: owners who decline bags, tasks that run several times, and tasks that have to be
//! measured.

mod central;
mod clairvoyant;
mod instance;
mod offline;
mod plan;
mod policy;
mod split;

pub use central::schedule;
pub use clairvoyant::clairvoyant;
pub use instance::{Instance, Machine, Measure, Session};
pub use offline::offline_bound;
pub use policy::Policy;
pub use split::speed_split;

use crate::scenario::Scenario;

/// Refuses a scenario with a feature that affects the comparison and that the rivals do not model.
///
/// # Errors
/// A sentence that names the feature, and how to leave it out.
pub fn check(scenario: &Scenario) -> Result<(), String> {
    let sentence = if scenario.bad_routers_percent > 0.0 {
        "nobody else has routers: leave out --compare, or set bad_routers_percent = 0.0"
    } else if scenario.flawed_percent > 0.0 {
        "nobody else breaks promises: leave out --compare, or set flawed_percent = 0.0"
    } else if scenario.choosy_percent > 0.0 {
        "nobody else knows of owners who decline bags: leave out --compare, or set choosy_percent = 0.0"
    } else if scenario.has_failing_tries() {
        "nobody else knows of tries that fail: leave out --compare, or set fails_percent = 0.0 and crashes_percent = 0.0"
    } else if scenario.replicas > 1 {
        "the others run each task once: leave out --compare, or set replicas = 1 and quorum = 1"
    } else if scenario.given_bags.iter().any(|bag| bag.endless.is_some()) {
        "nobody else has bags without an end: leave out --compare, or set given_bags that have tasks"
    } else if !scenario.declared {
        "the others plan by what bags declare of their tasks: leave out --compare, or set declared = true"
    } else {
        return Ok(());
    };
    Err(sentence.to_owned())
}
