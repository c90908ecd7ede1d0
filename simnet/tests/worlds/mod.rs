//! Seeded worlds with all faults of the catalogue, for the tests of one invariant each.

use idlewood_simnet::invariant::Invariant;
use idlewood_simnet::swarm::Case;

/// Seeds of the worlds.
const SEEDS: std::ops::Range<u64> = 0..12;

/// Runs the worlds, and checks this invariant alone.
#[track_caller]
pub(crate) fn hold(invariant: Invariant) {
    let (mut events, mut faults) = (0, 0);
    for seed in SEEDS {
        let outcome = Case::with_all_faults(seed).run(&[invariant]);
        if let Some(violation) = outcome.violation {
            panic!("world {seed}: {violation}");
        }
        events += outcome.events;
        faults += outcome.faults;
    }
    assert!(events > 50_000 && faults > 300, "{events} events and {faults} faults are too few to show anything");
}
