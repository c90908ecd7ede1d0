//! A simulated machine is set up as an agent is whose owner and user have left everything as it came.

use idlewood::settings::Settings;
use idlewood_scheduler::Config;
use idlewood_simnet::Scenario;

#[test]
fn simulations_have_the_settings_that_agents_come_with() {
    let (agent, simulated) = (Settings::default(), Scenario::default());
    let peer = agent.peer();
    // Simulated disks are never full of results.
    let expected = Config {
        kept_result_bytes_max: peer.kept_result_bytes_max,
        undrained_bytes_max: peer.undrained_bytes_max,
        ..simulated.peer.clone()
    };
    assert_eq!(peer, expected);
    assert_eq!(agent.owner.idle.0, simulated.owner_idle);
    assert_eq!(agent.limits.slots.get(), simulated.slots);
}
