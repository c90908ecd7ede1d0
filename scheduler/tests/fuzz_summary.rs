//! Hostile bytes for the decoder of summaries: mutations of a committed corpus, and of what they lead to.
//!
//! A run of some minutes:
//! `IDLEWOOD_FUZZ_SECONDS=600 cargo test --release -p idlewood-scheduler --test fuzz_summary -- --ignored --nocapture`.
//! `IDLEWOOD_FUZZ_SEED` picks another one. What fails is written to `tests/corpus/` (name `crash-…`), where the
//! everyday test finds it. No libFuzzer: it needs a nightly compiler and a C++ one.
#![allow(clippy::disallowed_methods, reason = "a test that runs for a given time")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use idlewood_scheduler::queue::{Entry, Load};
use idlewood_scheduler::summary::{ENCODED_BYTES_MAX, Summary, pack, unpack};
use idlewood_testing::Counting;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

/// What decoding may take at most beside its input, as the documentation of `Summary::decode` has it.
const DECODE_BYTES_MAX: usize = 700 * 1024;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

fn corpus_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(corpus_directory())
        .expect("the corpus is committed")
        .map(|file| file.expect("a readable directory").path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

/// All that must hold of any bytes, with some base; `measured` where nothing else allocates at the same time. Returns
/// what was accepted.
fn check(base: &[u8], bytes: &[u8], measured: bool) -> Vec<Vec<u8>> {
    // What a child was heard to say before, if anything.
    let base = unpack(None, base);
    let before = ALLOCATOR.restart_peak();
    let read = Summary::decode(bytes);
    let applied = base.as_ref().and_then(|base| unpack(Some(base), bytes));
    if measured {
        let taken = ALLOCATOR.peak().saturating_sub(before);
        assert!(taken <= DECODE_BYTES_MAX, "decoding took {taken} bytes");
    }
    let mut accepted = Vec::new();
    if let Ok(summary) = read {
        let again = summary.encode();
        assert!(again.len() <= ENCODED_BYTES_MAX);
        assert_eq!(Summary::decode(&again).as_ref(), Ok(&summary), "what was read travels on unchanged");
        let mut sum = summary.clone();
        sum.merge(&summary);
        sum.reserve(50, 1 << 40, 1e18);
        assert!(sum.tasks(60, 0.0, 1e9, 1.0) <= 2 * summary.tasks(60, 0.0, 1e9, 1.0));
        let flat = summary.flatten();
        assert!(flat.len() <= ENCODED_BYTES_MAX);
        let difference = base.as_ref().and_then(|base| pack(Some(base), &flat));
        if let Some(difference) = difference {
            assert_eq!(unpack(base.as_deref(), &difference).as_ref(), Some(&flat), "a difference leads back");
            accepted.push(difference);
        }
        accepted.push(again);
    }
    if let Some(applied) = applied {
        let summary = Summary::of_flat(&applied).expect("what arrives can be read");
        assert_eq!(summary.flatten(), applied, "what differences lead to is canonical");
        accepted.push(summary.encode());
    }
    accepted
}

fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..rng.random_range(1..6) {
        let len = bytes.len().max(1);
        let at = rng.random_range(0..len);
        match rng.random_range(0..8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), rng.random()),
            2 => bytes.extend((0..rng.random_range(1..64)).map(|_| rng.random::<u8>())),
            3 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.random_range(0..8)),
            4 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = [0, 0xff, 0x80, 12, 13, 14, 15][at % 7]),
            5 => bytes.iter_mut().skip(at).for_each(|byte| *byte = rng.random()),
            6 => {
                let other = &others[rng.random_range(0..others.len())];
                bytes.truncate(at);
                bytes.extend(other.iter().skip(at));
            }
            _ => {
                let count = if at == 0 { 70_000 } else { 2_000 };
                bytes.truncate(at);
                bytes.resize(at + rng.random_range(0..count), rng.next_u32() as u8);
            }
        }
    }
}

fn run(seconds: u64, seed: u64, measured: bool) -> u64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut pool: Vec<Vec<u8>> = corpus().into_iter().map(|(_, bytes)| bytes).collect();
    let start = Instant::now();
    let mut tried = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        let base = pool[rng.random_range(0..pool.len())].clone();
        let mut bytes = pool[rng.random_range(0..pool.len())].clone();
        if rng.random_range(0..10) > 0 {
            mutate(&mut rng, &mut bytes, &pool);
        }
        match catch_unwind(AssertUnwindSafe(|| check(&base, &bytes, measured))) {
            Ok(accepted) => {
                // What decodes leads further; the pool stays small.
                for found in accepted {
                    let place = rng.random_range(0..2_000);
                    if pool.len() < 2_000 { pool.push(found) } else { pool[place] = found }
                }
            }
            Err(failure) => {
                let name = format!("crash-{seed}-{tried}");
                std::fs::write(corpus_directory().join(&name), &bytes).unwrap();
                std::fs::write(corpus_directory().join(name + "-base"), &base).unwrap();
                std::panic::resume_unwind(failure);
            }
        }
        tried += 1;
    }
    tried
}

#[test]
fn the_corpus_is_harmless_with_every_base() {
    let corpus = corpus();
    assert!(corpus.len() >= 10);
    for (base_name, base) in &corpus {
        for (name, bytes) in &corpus {
            let accepted = catch_unwind(|| check(base, bytes, false));
            assert!(accepted.is_ok(), "{name} with base {base_name}");
        }
    }
    let whole =
        |name: &str| corpus.iter().filter(|file| file.0.starts_with(name)).all(|f| Summary::decode(&f.1).is_ok());
    assert!(whole("whole-"));
}

#[test]
fn mutated_summaries_are_harmless_for_a_second() {
    run(1, 1, false);
}

#[test]
#[ignore = "runs for IDLEWOOD_FUZZ_SECONDS"]
fn mutated_summaries_are_harmless_for_minutes() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let (seconds, seed) = (number("IDLEWOOD_FUZZ_SECONDS", 60), number("IDLEWOOD_FUZZ_SEED", 2));
    println!("seed {seed}: {} inputs in {seconds} s", run(seconds, seed, true));
}

/// Writes the corpus anew, after a change of the format.
#[test]
#[ignore = "writes to the source tree"]
fn write_the_corpus() {
    let leaf_of = |seed: u32, bags: u32, slots: u32| {
        let entry = |bag: u32| Entry {
            release_s: -f64::from(bag * 977 % 5_000),
            application_size_mops: 1e5 * f64::from(1 + (bag * 31 + seed * 173 + 7) % 900),
            task_mops: 500.0 * f64::from(1 + (bag * 13 + seed * 5) % 37),
            left: f64::from(1 + (bag + seed) % 9),
        };
        let entries = (0..bags).map(entry).collect();
        let speed_mops = 1000.0 + f64::from(seed * 37 % 2000);
        Summary::of_leaf(&Load { now_s: 0.0, speed_mops, slots, preemptive: true, running_mops: vec![], entries })
    };
    let leaf = |seed: u32, bags: u32| leaf_of(seed, bags, 1);
    let sum = |leaves: u32, bags: u32| {
        let mut sum = Summary::empty();
        (0..leaves).for_each(|seed| sum.merge(&leaf(seed, (bags + seed % 5).saturating_sub(2))));
        sum.encode()
    };
    let mut files = vec![
        ("whole-none".to_owned(), Summary::empty().encode()),
        ("whole-away".to_owned(), Summary::unavailable().encode()),
    ];
    for (leaves, bags) in [(1, 0), (1, 2), (1, 60), (3, 10), (16, 20), (17, 20), (100, 3), (300, 40)] {
        files.push((format!("whole-{leaves}-leaves-{bags}-bags"), sum(leaves, bags)));
    }
    for (slots, bags) in [(4, 5), (16, 20)] {
        files.push((format!("whole-{slots}-slots-{bags}-bags"), leaf_of(1, bags, slots).encode()));
    }
    // Leaves with anything between one bag and fifty have rows at many stretches.
    for leaves in [200, 201] {
        let mut sum = Summary::empty();
        (0..leaves).for_each(|seed| sum.merge(&leaf(seed, 1 + seed * 7 % 50)));
        files.push((format!("whole-{leaves}-leaves-1-to-50-bags"), sum.encode()));
    }
    // Differences to small summaries are not sent, but those from them are.
    let last = files.len() - 1;
    for (base, new) in [(4, last), (last, last), (last - 1, last), (8, last)] {
        let [base_flat, new_flat] = [base, new].map(|at| unpack(None, &files[at].1).expect("a summary"));
        let difference = pack(Some(&base_flat), &new_flat);
        files.extend(difference.map(|bytes| (format!("difference-{base}-{new}"), bytes)));
    }
    let mut patient = leaf(2, 9);
    patient.can_wait = true;
    files.push(("whole-that-can-wait".to_owned(), patient.encode()));
    for (name, bytes) in files {
        std::fs::write(corpus_directory().join(name), bytes).unwrap();
    }
}
