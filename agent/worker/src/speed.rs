//! The reference kernel: how fast one core of this machine is, in Mop/s.
//!
//! Task sizes are given in Mop and machines' speeds in Mop/s, so both need one fixed yardstick. It is a loop that mixes
//! what tasks mix: integer arithmetic, floating-point arithmetic, and memory accesses that a first- or second-level
//! cache serves. **One operation is one pass of that loop; one Mop is 10^6 passes.** A pass is, in this order:
//!
//! 1. integer: a step of the 64-bit generator `s = s * 6364136223846793005 + 1442695040888963407`, then
//!    `s ^= s >> 29`;
//! 2. memory: entry `s >> 51` of a table of 8192 words of 64 bits (64 KiB) is read, `s` is added, it is written back;
//! 3. floating point: `x = x * (1.0 - x) * 3.75 + 0.0625`, plus the entry's top bits scaled into [0, 0.0625), kept in
//!    [0, 1) by subtracting 1 where it is not below 1.
//!
//! Each pass depends on the one before, so the compiler can neither drop nor reorder nor vectorise it, and the result
//! is checked against a known one before anything is timed.
//!
//! Measured in processor time of the thread, so that other load on the machine does not count; the median of short
//! pieces, so that neither does a slow moment.
//!
//! Left out: the number of cores, memory bandwidth, and the cost of load on the other hyper-thread.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Version of the kernel; a cached speed of another version is measured anew. Raise it with any change to the passes. A
/// build without optimisation runs the kernel several times slower than its tasks: it keeps its speeds apart.
const VERSION: &str = if cfg!(debug_assertions) { "1-unoptimised" } else { "1" };
/// How long [`measure`] takes.
const MEASURE_TIME: Duration = Duration::from_secs(2);
/// Words of the table.
const TABLE_WORDS: usize = 8192;
/// Passes between two looks at the clock: about a millisecond.
const PASSES_PER_LOOK: u32 = 200_000;
/// Pieces of which the median counts.
const PIECES: u32 = 15;
/// Checksum of the state after the first [`PASSES_PER_LOOK`] passes, the same on every machine.
const CHECKSUM: u64 = 0x2284_c282_4c90_e97d;

/// Why a measured speed could not be written. The speed itself is valid.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep the measured speed in {path}: {source}; it will be measured again at the next start")]
pub struct SaveError {
    path: String,
    source: io::Error,
}

/// Content of the cache file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cached {
    kernel: String,
    mops_per_second: f64,
}

/// The state of the kernel.
struct Kernel {
    table: Vec<u64>,
    state: u64,
    x: f64,
}

impl Kernel {
    fn new() -> Self {
        Kernel { table: vec![0; TABLE_WORDS], state: 1, x: 0.5 }
    }

    #[inline(never)]
    fn run(&mut self, passes: u32) {
        let Kernel { table, state, x } = self;
        for _ in 0..passes {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *state ^= *state >> 29;
            let entry = &mut table[(*state >> 51) as usize % TABLE_WORDS];
            *entry = entry.wrapping_add(*state);
            // The top 16 bits, divided by 2^20.
            let nudge = (*entry >> 48) as f64 * (1.0 / 1_048_576.0);
            *x = *x * (1.0 - *x) * 3.75 + 0.0625 + nudge;
            if *x >= 1.0 {
                *x -= 1.0;
            }
        }
    }

    fn checksum(&self) -> u64 {
        self.table.iter().fold(self.state ^ self.x.to_bits(), |sum, word| sum.rotate_left(5) ^ word)
    }
}

/// Measures the speed of one core, Mop/s. Takes about two seconds of processor time of the calling thread.
pub fn measure() -> f64 {
    measure_for(MEASURE_TIME)
}

/// As [`measure`], taking about `time`. Below some tens of milliseconds the result is rough.
pub fn measure_for(time: Duration) -> f64 {
    let mut kernel = Kernel::new();
    kernel.run(PASSES_PER_LOOK);
    if kernel.checksum() != CHECKSUM {
        // Not a reason to stop: the speed is still about right. But tasks would compute nonsense here as well.
        tracing::error!("this machine computes the reference kernel wrong: its processor or memory may be defective");
    }
    let piece = time / PIECES;
    let mut speeds: Vec<f64> = (0..PIECES).map(|_| measure_piece(&mut kernel, piece)).collect();
    std::hint::black_box(kernel.checksum());
    speeds.sort_by(f64::total_cmp);
    speeds[speeds.len() / 2]
}

fn measure_piece(kernel: &mut Kernel, time: Duration) -> f64 {
    let begin = thread_time();
    let mut passes = 0_u64;
    loop {
        kernel.run(PASSES_PER_LOOK);
        passes += u64::from(PASSES_PER_LOOK);
        let taken = thread_time().saturating_sub(begin);
        if taken >= time && !taken.is_zero() {
            return passes as f64 / 1e6 / taken.as_secs_f64();
        }
    }
}

/// Processor time of this thread since its start.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The speed cached in `path`, in Mop/s; `None` if there is none, it is of another kernel version, or the file is
/// damaged: measure again then.
pub fn load(path: &Path) -> Option<f64> {
    let cached: Cached = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let plausible = cached.mops_per_second.is_finite() && cached.mops_per_second > 0.0;
    (cached.kernel == VERSION && plausible).then_some(cached.mops_per_second)
}

/// Writes a measured speed to `path`, atomically.
///
/// # Errors
/// [`SaveError`]; the former content is untouched.
pub fn save(path: &Path, mops_per_second: f64) -> Result<(), SaveError> {
    let write = || -> io::Result<()> {
        let cached = Cached { kernel: VERSION.to_owned(), mops_per_second };
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        serde_json::to_writer(&mut file, &cached)?;
        file.write_all(b"\n")?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|source| SaveError { path: path.display().to_string(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_its_description_says() {
        // Written after the module's text, by other means: u128, an explicit table, no rotation.
        let mut table = [0_u64; 8192];
        let (mut s, mut x) = (1_u64, 0.5_f64);
        for _ in 0..PASSES_PER_LOOK {
            let product = u128::from(s) * 6364136223846793005 + 1442695040888963407;
            s = u64::try_from(product % (1 << 64)).unwrap();
            s ^= s / (1 << 29);
            let index = usize::try_from(s >> 51).unwrap();
            table[index] = table[index].wrapping_add(s);
            let top_bits = u32::try_from(table[index] / (1 << 48)).unwrap();
            x = x * (1.0 - x) * 3.75 + 0.0625 + f64::from(top_bits) / f64::from(1 << 20);
            if x >= 1.0 {
                x -= 1.0;
            }
            assert!((0.0..1.0).contains(&x));
        }
        let mut kernel = Kernel::new();
        kernel.run(PASSES_PER_LOOK);
        assert_eq!((kernel.state, kernel.x.to_bits(), &kernel.table[..]), (s, x.to_bits(), &table[..]));
        assert_eq!(kernel.checksum(), CHECKSUM, "{:#x}", kernel.checksum());
    }

    #[test]
    fn measures_a_plausible_and_repeatable_speed() {
        let (first, second) = (measure_for(Duration::from_millis(150)), measure_for(Duration::from_millis(150)));
        assert!(first > 0.5 && first < 5000.0, "{first}");
        // Other processes on the processor core take up to half of it, and come and go.
        assert!(first / second < 4.0 && second / first < 4.0, "{first} and {second}");
    }

    #[test]
    fn a_kept_speed_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("speed.json");
        assert_eq!(load(&path), None);
        save(&path, 123.456).unwrap();
        assert_eq!(load(&path), Some(123.456));
        save(&path, 7.0).unwrap();
        assert_eq!(load(&path), Some(7.0));
        assert!(save(&dir.path().join("missing/speed.json"), 1.0).is_err());
    }

    #[test]
    fn a_damaged_or_foreign_file_is_measured_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("speed.json");
        let good = format!("{{\"kernel\":\"{VERSION}\",\"mops_per_second\":5.0}}");
        for bad in [
            "",
            "{",
            "5.0",
            &good[..good.len() - 1],
            &good.replace("5.0", "0.0"),
            &good.replace("5.0", "-5.0"),
            &good.replace("5.0", "1e999"),
            &good.replace(VERSION, "0"),
        ] {
            fs::write(&path, bad).unwrap();
            assert_eq!(load(&path), None, "{bad:?}");
        }
        fs::write(&path, &good).unwrap();
        assert_eq!(load(&path), Some(5.0));
    }
}
