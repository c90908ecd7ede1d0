//! A fixed clock and fixed random numbers, the same on every machine, so that the results of two of them can be
//! compared.
//!
//! The clock starts at the beginning of 2000 and advances by a millisecond with each reading, so that a program that
//! waits for time to pass does not wait for ever; sleeping takes its real time, which the clock does not show.
//!
//! Left out: the order of directories, which the file system decides, and the bits of NaNs, which the processor
//! decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::ChaCha8Rng;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

/// 2000-01-01 in Unix time.
const BEGIN: Duration = Duration::from_secs(946_684_800);
/// Per reading.
const STEP: Duration = Duration::from_millis(1);

/// The clock's number of readings.
#[derive(Clone, Debug, Default)]
struct Looks(Arc<AtomicU64>);

impl Looks {
    fn passed(&self) -> Duration {
        STEP.saturating_mul(u32::try_from(self.0.fetch_add(1, Ordering::Relaxed)).unwrap_or(u32::MAX))
    }
}

impl HostWallClock for Looks {
    fn resolution(&self) -> Duration {
        STEP
    }

    fn now(&self) -> Duration {
        BEGIN + self.passed()
    }
}

impl HostMonotonicClock for Looks {
    fn resolution(&self) -> u64 {
        STEP.as_nanos() as u64
    }

    fn now(&self) -> u64 {
        self.passed().as_nanos() as u64
    }
}

/// Gives a program this clock and these random numbers.
pub(super) fn fix(wasi: &mut WasiCtxBuilder, seed: u64) {
    let clock = Looks::default();
    wasi.wall_clock(clock.clone()).monotonic_clock(clock);
    let generator = |stream| {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        generator
    };
    wasi.secure_random(generator(0)).insecure_random(generator(1)).insecure_random_seed(u128::from(seed));
}
