//! Hostile bytes for decoders: mutations of what they read every day, for the tests of all modules that have one.
//!
//! Everybody runs a few thousand of them, always the same. A run of some minutes for each decoder:
//! `IDLEWOOD_FUZZ_SECONDS=600 cargo test --release -p idlewood --lib mutations -- --nocapture`;
//! `IDLEWOOD_FUZZ_SEED` picks another sequence. What fails is printed, and belongs among the seeds of its test.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Inputs of one decoder where nothing else is asked for.
const INPUTS: u64 = 3000;
/// Largest input, and most that are kept to go on from.
const BYTES_MAX: usize = 20_000;
const POOL_MAX: usize = 500;

/// Feeds `target` with mutations of `seeds`, and of what it accepted of them (that is what it returns).
pub(crate) fn mutations(name: &str, seeds: Vec<Vec<u8>>, target: impl Fn(&[u8]) -> bool) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let (seconds, seed) = (number("IDLEWOOD_FUZZ_SECONDS"), number("IDLEWOOD_FUZZ_SEED").unwrap_or(1));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let begin = Instant::now();
    let (mut pool, mut inputs, mut accepted) = (seeds, 0, 0);
    assert!(pool.iter().all(|seed| target(seed)), "{name}: what it starts from is good");
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
                resume_unwind(failure);
            }
        }
        inputs += 1;
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
            // The first byte of something long, large, nested, or endless.
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
