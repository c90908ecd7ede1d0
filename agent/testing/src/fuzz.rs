//! Hostile bytes for decoders: mutations of what they read every day, for the tests of all modules that have one.
//!
//! Everybody runs a few thousand of them, always the same. A run of some minutes for each decoder:
//! `IDLEWOOD_FUZZ_SECONDS=600 cargo test --release --workspace --lib mutations -- --nocapture --test-threads=64`; the tests run
//! at the same time, the decoders of one (six at most) one after the other.
//! `IDLEWOOD_FUZZ_SEED` picks another sequence. What fails is written to `corpus/` (`<decoder>/crash-…`), where the
//! everyday run finds it. `IDLEWOOD_FUZZ_KEEP=1` adds a few of those that were accepted.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Inputs of one decoder where nothing else is asked for.
const INPUTS: u64 = 3000;
/// Largest input, and most that are kept to go on from.
const BYTES_MAX: usize = 20_000;
const POOL_MAX: usize = 500;

/// Of these so many are kept when somebody asks for it, none longer than so many bytes.
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

/// Feeds `target` with what is kept for it, and with mutations of that, of `seeds`, and of what it accepted of them (that is
/// what it returns).
pub fn mutations(name: &str, seeds: Vec<Vec<u8>>, target: impl Fn(&[u8]) -> bool) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let (seconds, seed) = (number("IDLEWOOD_FUZZ_SECONDS"), number("IDLEWOOD_FUZZ_SEED").unwrap_or(1));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut pool, mut inputs, mut accepted) = (seeds, 0, 0);
    assert!(pool.iter().all(|seed| target(seed)), "{name}: what it starts from is good");
    // Some of it was a crash, and is refused now.
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
