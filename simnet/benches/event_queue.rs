//! The event queue against a binary heap with the same number of pending events: takes one and adds one, as a
//! simulation does.
//!
//! Half of the events added are messages (45 to 55 ms ahead), half are timers (up to 60 s ahead). Times are for
//! [`HOLDS`] such pairs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use divan::{Bencher, black_box, counter::ItemsCount};
use idlewood_overlay::Time;
use idlewood_simnet::event_queue::{EventQueue, Key};
use idlewood_simnet::random::SmallStream;
use rand::RngExt;

const HOLDS: u32 = 100_000;
const PENDING: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];

fn main() {
    divan::main();
}

/// A queue of pending events, by time and number.
trait Pending {
    fn add(&mut self, key: Key, event: u64);
    fn take(&mut self) -> (Key, u64);
}

impl Pending for EventQueue<u64> {
    fn add(&mut self, key: Key, event: u64) {
        self.push(key, event);
    }

    fn take(&mut self) -> (Key, u64) {
        self.pop().expect("something is pending")
    }
}

impl Pending for BinaryHeap<Reverse<(Key, u64)>> {
    fn add(&mut self, key: Key, event: u64) {
        self.push(Reverse((key, event)));
    }

    fn take(&mut self) -> (Key, u64) {
        self.pop().expect("something is pending").0
    }
}

struct Load<P> {
    pending: P,
    rng: SmallStream,
    sequence: u64,
}

impl<P: Pending> Load<P> {
    fn new(mut pending: P, len: u32) -> Self {
        let rng = SmallStream::new(1, "bench", 0);
        pending.add(Key { at: Time::ZERO, target: 0, source: 0, sequence: 0 }, 0);
        let mut load = Self { pending, rng, sequence: 0 };
        (1..len).for_each(|_| load.add(0));
        // Reach the steady state.
        load.hold(len);
        load
    }

    fn add(&mut self, now: i64) {
        self.sequence += 1;
        let is_message: bool = self.rng.random();
        let after =
            if is_message { self.rng.random_range(45_000..55_000) } else { self.rng.random_range(1..60_000_000) };
        let (target, source) = (self.rng.random_range(0..1_000_000), self.rng.random_range(0..1_000_000));
        let key = Key { at: Time::from_micros(now + after), target, source, sequence: self.sequence };
        self.pending.add(key, self.sequence);
    }

    fn hold(&mut self, times: u32) {
        for _ in 0..times {
            let (key, event) = self.pending.take();
            black_box(event);
            self.add(key.at.as_micros());
        }
    }
}

fn bench<P: Pending>(bencher: Bencher, pending: P, len: u32) {
    let mut load = Load::new(pending, len);
    bencher.counter(ItemsCount::new(HOLDS)).bench_local(|| load.hold(HOLDS));
}

#[divan::bench(args = PENDING, sample_count = 20)]
fn wheel(bencher: Bencher, len: u32) {
    bench(bencher, EventQueue::default(), len);
}

#[divan::bench(args = PENDING, sample_count = 20)]
fn heap(bencher: Bencher, len: u32) {
    bench(bencher, BinaryHeap::new(), len);
}
