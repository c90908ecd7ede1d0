//! Fuzzing of decoders by mutations of valid inputs, for the tests of all modules that have a decoder.
//!
//! Every test run tries the same few thousand. To spend some minutes on each decoder: `IDLEWOOD_FUZZ_SECONDS=600 cargo
//! test --release --workspace --lib mutations -- --nocapture --test-threads=64`; tests run in parallel, the decoders
//! within one test (six at most) in sequence. `IDLEWOOD_FUZZ_SEED` picks another sequence. Failing inputs are written
//! to `corpus/` (`<decoder>/crash-…`), where every test run finds them. `IDLEWOOD_FUZZ_KEEP=1` adds a few accepted
//! ones.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Inputs of one decoder by default.
const INPUTS: u64 = 3000;
/// Largest input, and most inputs kept for further mutation.
const BYTES_MAX: usize = 20_000;
const POOL_MAX: usize = 500;

/// Accepted inputs written by `IDLEWOOD_FUZZ_KEEP`, and their longest size.
const KEEP: usize = 6;
const KEEP_BYTES_MAX: usize = 1500;

/// The committed inputs of a decoder.
fn corpus_directory(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name.replace(' ', "-"))
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(corpus_directory(name)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it is ours").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).expect("it is ours")).collect()
}

fn keep(name: &str, kind: &str, bytes: &[u8]) {
    let directory = corpus_directory(name);
    let file = directory.join(format!("{kind}-{}", &blake3::hash(bytes).to_hex()[..12]));
    std::fs::create_dir_all(directory).and_then(|()| std::fs::write(file, bytes)).expect("a directory of ours");
}

/// Feeds `target` with its corpus, and with mutations of that, of `seeds`, and of mutations that it accepted by
/// returning true.
pub fn mutations(name: &str, seeds: Vec<Vec<u8>>, target: impl Fn(&[u8]) -> bool) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let (seconds, seed) = (number("IDLEWOOD_FUZZ_SECONDS"), number("IDLEWOOD_FUZZ_SEED").unwrap_or(1));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut pool, mut inputs, mut accepted) = (seeds, 0, 0);
    assert!(pool.iter().all(|seed| target(seed)), "{name}: what it starts from is good");
    // Former crashes are refused now.
    pool.extend(corpus(name).into_iter().filter(|kept| target(kept)));
    let begin = Instant::now();
    while seconds.map_or(inputs < INPUTS, |seconds| begin.elapsed() < Duration::from_secs(seconds)) {
        let mut bytes = pool[rng.random_range(0..pool.len())].clone();
        mutate(&mut rng, &mut bytes, &pool);
        match catch_unwind(AssertUnwindSafe(|| target(&bytes))) {
            Ok(false) => {}
            Ok(true) => {
                accepted += 1;
                let place = rng.random_range(0..POOL_MAX);
                if pool.len() < POOL_MAX { pool.push(bytes) } else { pool[place] = bytes }
            }
            Err(failure) => {
                println!("{name}, seed {seed}, input {inputs}: {}", hex::encode(&bytes));
                keep(name, "crash", &bytes);
                resume_unwind(failure);
            }
        }
        inputs += 1;
    }
    if std::env::var_os("IDLEWOOD_FUZZ_KEEP").is_some() {
        let short: Vec<_> = pool.iter().filter(|bytes| bytes.len() <= KEEP_BYTES_MAX && target(bytes)).collect();
        // The latest were mutated most.
        short.iter().rev().take(KEEP).for_each(|bytes| keep(name, "case", bytes));
    }
    println!("{name}: seed {seed}, {inputs} inputs, of which {accepted} accepted");
}

fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..8) {
            0 => bytes.insert(at, rng.random()),
            1 => drop(bytes.drain(at..(at + rng.random_range(0..9)).min(bytes.len()))),
            2 => bytes.truncate(at),
            3 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.random_range(0..8)),
            // The first byte of a long, large, nested or endless value.
            4 => bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte = [0x1b, 0x5b, 0x7b, 0x9b, 0x9f, 0xbf, 0x5f, 0xfb, 0xff, 0x81][at % 10]),
            5 => {
                let other = &others[rng.random_range(0..others.len())];
                let from = rng.random_range(0..=other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
            6 => {
                let repeated: Vec<u8> = bytes.iter().skip(at).take(rng.random_range(1..40)).copied().collect();
                (0..rng.random_range(1..20)).for_each(|_| drop(bytes.splice(at..at, repeated.iter().copied())));
            }
            _ => {
                let length = rng.random_range(1..2000);
                bytes.splice(at..at, std::iter::repeat_n(rng.random::<u8>(), length));
            }
        }
    }
    bytes.truncate(BYTES_MAX);
}
