//! Between homes, where some pairs are two seconds apart, nobody takes a living machine for dead; a machine that crashed is
//! still found soon where paths are short (docs/adr/0036).

use std::time::Duration;

use idlewood_simnet::network::Quality;
use idlewood_simnet::overlay::{Settings, Step, Watch, World};
use idlewood_simnet::scenario::Latencies;
use idlewood_simnet::{Report, Scenario, Simulation};

/// A grid between homes in which nobody goes down, for twenty minutes. Bytes are those of messages, without what the transport adds.
fn quiet_grid(seed: u64, links: Scenario) -> Report {
    let horizon = Duration::from_secs(1_200);
    let (latencies, overhead_bytes) = (Latencies::Homes, 0);
    let scenario = Scenario { nodes: 50, bags: 0, seed, latencies, horizon, overhead_bytes, ..links };
    Simulation::new(scenario).expect("a valid scenario").run(|_| ())
}

fn announced_dead(report: &Report) -> u64 {
    report.messages_by_kind.get("overlay dead").map_or(0, |count| count.count)
}

/// Bytes that a machine sends in a second.
fn bytes_per_s(report: &Report) -> f64 {
    let bytes: u64 = report.messages_by_kind.values().map(|count| count.bytes).sum();
    bytes as f64 / f64::from(report.scenario.nodes) / report.sim_s
}

#[test]
fn between_homes_nobody_is_declared_dead_who_lives() {
    for seed in [1, 2] {
        let report = quiet_grid(seed, Scenario::default());
        assert_eq!(announced_dead(&report), 0, "seed {seed}");
        // Measured: 202 and 213. In an hour on 100 machines, where joining counts for less, 133, 168 and 135 with seeds 1 to 3 (goal 160).
        assert!(bytes_per_s(&report) < 215.0, "seed {seed}: {} B/s, joining included", bytes_per_s(&report));
    }
}

/// Where a tenth of the questions has no answer, four in a row stay without one now and then: such a death is told once,
/// to the sixteen neighbours and to the machine itself.
#[test]
fn between_homes_with_loss_deaths_are_few_and_corrected() {
    let links = Scenario { loss_percent: 5.0, duplicate_percent: 2.0, reorder_percent: 5.0, ..Scenario::default() };
    let report = quiet_grid(1, links);
    assert!(announced_dead(&report) as f64 / report.sim_s < 0.5, "{} dead", announced_dead(&report));
    assert!(bytes_per_s(&report) < 250.0, "{} B/s", bytes_per_s(&report));
}

/// How long, after a crash, until all links of the tree are right again: mean of some crashes.
fn mean_repair(latency_us: u64) -> Duration {
    const CRASHES: u32 = 12;
    let quality = Quality { latency_us, jitter_us: latency_us / 10, ..Quality::default() };
    let mut world = World::new(Settings { quality, ..Settings::new(48, 1) });
    world.grow(48, Duration::from_secs(2), |_| {});
    world.run_until(world.now() + Duration::from_secs(90));
    let mut all = Duration::ZERO;
    for host in 0..CRASHES {
        world.crash(host);
        let (start, mut watch) = (world.now(), Watch::new(&world));
        assert!(watch.wrong_links > 0, "a crash leaves links to nobody");
        while watch.wrong_links > 0 {
            match world.step(start + Duration::from_secs(60)) {
                Some(Step::Handled(host)) => watch.update(&world, host),
                Some(_) => {}
                None => panic!("the crash of {host} is not repaired after a minute"),
            }
        }
        all += world.now().since(start);
        world.run_until(world.now() + Duration::from_secs(20));
    }
    all / CRASHES
}

/// A crash is noticed half a heartbeat after the last word at the latest, by four pings; then the neighbours link anew.
#[test]
fn a_crash_is_found_soon_where_paths_are_short() {
    for latency_us in [2_000, 50_000] {
        let repair = mean_repair(latency_us);
        println!("{latency_us} us one way: {repair:?}");
        assert!(repair < Duration::from_millis(4_000), "{latency_us} us one way: {repair:?}");
    }
}
