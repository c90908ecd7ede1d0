//! Hostile peers, and hostile bytes for the decoders of messages and records.
//!
//! A case is a string of bytes that is read as a sequence of moves (`grid`): messages of all kinds from real and from made-up
//! machines, the peers' own acts, time, restarts. So a case is mutated as any input, and what fails is a file. A case that
//! takes long leads nowhere: it ends with its bytes.
//!
//! A run of some minutes:
//! `IDLEWOOD_FUZZ_SECONDS=600 cargo test --release -p idlewood-scheduler --test fuzz_peer -- --ignored --nocapture minutes`.
//! `IDLEWOOD_FUZZ_SEED` picks another one. What fails is written to `tests/corpus_peer/` (name `crash-…`), where the everyday
//! test finds it.
//!
//! `scheduler/tests/fuzz_peer/coverage.sh 600` does so guided by coverage: cases that reach something new are changed further.
//! It prints the lines of `scheduler` and `overlay` that were reached. With `IDLEWOOD_FUZZ_KEEP=1` it also replaces the
//! corpus by the fewest cases that reach as much.
#![allow(clippy::disallowed_methods, reason = "a test that runs for a given time")]
#![allow(unexpected_cfgs, reason = "`coverage` is set by coverage.sh")]

mod corpus;
mod coverage;
mod flood;
mod grid;
mod host;
mod source;

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use idlewood_overlay::GridId;
use idlewood_scheduler::{Message, Record};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

use self::corpus::{guard, mutate, random};
use self::coverage::Coverage;
use self::grid::play;
use self::source::Source;

const GRID: GridId = GridId([9; 32]);
/// The peer, and how many there are with it.
const ME: u8 = 1;
const PEERS: u8 = 8;
/// Longest case.
const CASE_BYTES_MAX: usize = 4096;
/// Cases that are changed further.
const POOL_MAX: usize = 400;
/// Longest case of the corpus: the everyday test plays all of it.
const KEPT_BYTES_MAX: usize = 1500;

/// Bytes of messages and records, mutated: what is read must be what was written of it.
fn decode(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        let again = Message::decode(&message.encode());
        // Not equal to itself where it has no number.
        assert!(again.is_ok_and(|again| again == message || format!("{again:?}") == format!("{message:?}")));
    }
    if let Ok(record) = Record::decode(bytes) {
        let again = Record::decode(&record.encode());
        assert!(again.is_ok_and(|again| again == record || format!("{again:?}") == format!("{record:?}")));
    }
}

/// What a run has done.
#[derive(Default)]
struct Done {
    cases: u64,
    moves: u64,
    /// Inputs of the decoders.
    inputs: u64,
    coverage: Coverage,
    /// The cases that reached something new, and all that each reached.
    new: Vec<(Vec<u8>, Vec<u32>)>,
}

impl Done {
    /// Plays a case. Returns whether it reached something new; `None` where that is not known.
    fn play(&mut self, name: &str, case: &[u8]) -> Option<bool> {
        let played = std::cell::Cell::new(0);
        let reached = self.coverage.of(|| guard(name, case, |case| played.set(play(case))));
        (self.cases, self.moves) = (self.cases + 1, self.moves + played.get() as u64);
        let reached = reached?;
        if reached.is_new {
            self.new.push((case.to_vec(), reached.counters));
        }
        Some(reached.is_new)
    }
}

fn run(time: Duration, seed: u64) -> Done {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut pool: Vec<Vec<u8>> = corpus::read().into_iter().map(|(_, bytes)| bytes).collect();
    pool.extend((0..50).map(|_| random(&mut rng)));
    let mut encoded: Vec<Vec<u8>> = Vec::new();
    let mut done = Done::default();
    let start = Instant::now();
    for (number, case) in pool.iter().enumerate().take_while(|_| start.elapsed() < time / 4) {
        done.play(&format!("crash-{seed}-first-{number}"), case);
    }
    while start.elapsed() < time {
        let mut case = pool[rng.random_range(0..pool.len())].clone();
        mutate(&mut rng, &mut case, &pool);
        let is_new = done.play(&format!("crash-{seed}-{}", done.cases), &case);
        let place = rng.random_range(0..POOL_MAX);
        match is_new {
            Some(true) => pool.push(case.clone()),
            // It leads nowhere.
            Some(false) => {}
            None if pool.len() < POOL_MAX => pool.push(case.clone()),
            None => pool[place] = case.clone(),
        }

        let mut source = Source(&case);
        while !source.0.is_empty() && encoded.len() < 2000 {
            encoded.push(source.message().encode());
            encoded.push(source.decline().encode());
        }
        for _ in 0..20 {
            let mut bytes = encoded[rng.random_range(0..encoded.len())].clone();
            mutate(&mut rng, &mut bytes, &encoded);
            // A record has a version in front.
            bytes.splice(0..0, (0..rng.next_u32() % 2).map(|_| 2));
            guard(&format!("crash-bytes-{seed}-{}", done.inputs), &bytes, decode);
            done.inputs += 1;
        }
    }
    done
}

#[test]
fn the_corpus_is_harmless() {
    let corpus = corpus::read();
    assert!(corpus.len() >= 10);
    for (name, bytes) in &corpus {
        let harmless = catch_unwind(|| {
            decode(bytes);
            play(bytes)
        });
        assert!(harmless.is_ok(), "{name}");
    }
}

#[test]
fn seconds_of_hostile_peers() {
    let done = run(Duration::from_secs(4), 1);
    assert!(done.cases > 0 && done.moves > done.cases);
}

#[test]
#[ignore = "runs for IDLEWOOD_FUZZ_SECONDS"]
fn minutes_of_hostile_peers() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let (seconds, seed) = (number("IDLEWOOD_FUZZ_SECONDS", 60), number("IDLEWOOD_FUZZ_SEED", 2));
    let done = run(Duration::from_secs(seconds), seed);
    let Done { cases, moves, inputs, ref coverage, ref new } = done;
    println!("seed {seed}: {cases} cases with {moves} moves, and {inputs} inputs of decoders, in {seconds} s");
    let (reached, all) = coverage.total();
    if all > 0 {
        println!("{} cases reached something new, {reached} of {all} counters in all", new.len());
        if std::env::var_os("IDLEWOOD_FUZZ_KEEP").is_some() {
            keep(new, all);
        }
    }
}

/// Replaces the cases of the corpus but those that have a name of their own.
fn keep(new: &[(Vec<u8>, Vec<u32>)], counters: usize) {
    let short: Vec<_> = new.iter().filter(|(case, _)| case.len() <= KEPT_BYTES_MAX).cloned().collect();
    for (name, _) in corpus::read().into_iter().filter(|(name, _)| name.starts_with("case-")) {
        std::fs::remove_file(corpus::directory().join(name)).unwrap();
    }
    let fewest = corpus::fewest(&short, counters);
    for (number, case) in fewest.iter().enumerate() {
        std::fs::write(corpus::directory().join(format!("case-{number:03}")), case).unwrap();
    }
    println!("{} cases are kept", fewest.len());
}
