//! Ten quiet simulated seconds of a thousand overlays, with messages as values or as bytes.

use std::time::Duration;

use divan::Bencher;
use divan::counter::ItemsCount;
use idlewood_simnet::overlay::{Settings, Wire, World};

const HOSTS: u32 = 1_000;

fn main() {
    divan::main();
}

/// Items are events given to peers: as many as in the ten seconds before.
#[divan::bench(args = [Wire::Sizes, Wire::Bytes], sample_count = 5, sample_size = 1)]
fn quiet(bencher: Bencher, wire: Wire) {
    let mut world = World::new(Settings { wire, ..Settings::new(HOSTS, 1) });
    world.grow(HOSTS, Duration::from_secs(2), |_| {});
    world.run_until(world.now() + Duration::from_secs(130));
    let before = world.events();
    world.run_until(world.now() + Duration::from_secs(10));
    let events = world.events() - before;
    bencher.counter(ItemsCount::new(events)).bench_local(|| world.run_until(world.now() + Duration::from_secs(10)));
}
