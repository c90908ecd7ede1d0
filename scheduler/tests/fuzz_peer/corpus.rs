//! The committed cases, and how cases are changed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use super::CASE_BYTES_MAX;

pub(super) fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus_peer")
}

/// All files, with their names.
pub(super) fn read() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(directory())
        .expect("the corpus is committed")
        .map(|file| file.expect("a readable directory").path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

pub(super) fn random(rng: &mut ChaCha8Rng) -> Vec<u8> {
    (0..rng.random_range(1..1500)).map(|_| rng.random()).collect()
}

pub(super) fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..rng.random_range(1..8) {
        let at = rng.random_range(0..bytes.len().max(1)).min(bytes.len());
        match rng.random_range(0..7) {
            0 => bytes.insert(at, rng.random()),
            1 => drop(bytes.drain(at..(at + rng.random_range(0..20)).min(bytes.len()))),
            2 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = rng.random()),
            3 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = 240 + rng.random_range(0..16)),
            4 => {
                let other = &others[rng.random_range(0..others.len())];
                bytes.truncate(at);
                bytes.extend(other.iter().skip(rng.random_range(0..other.len().max(1))));
            }
            5 => bytes.iter_mut().take(1).for_each(|byte| *byte = rng.random()),
            _ => {
                let repeated: Vec<u8> = bytes.iter().skip(at).take(rng.random_range(1..100)).copied().collect();
                bytes.splice(at..at, repeated);
            }
        }
    }
    bytes.truncate(CASE_BYTES_MAX);
}

/// Runs a case of one of the two targets; one that fails joins the corpus.
pub(super) fn guard(name: &str, bytes: &[u8], target: impl Fn(&[u8])) {
    if let Err(failure) = catch_unwind(AssertUnwindSafe(|| target(bytes))) {
        std::fs::write(directory().join(name), bytes).unwrap();
        std::panic::resume_unwind(failure);
    }
}

/// The fewest of these cases, nearly, that reach together what all of them reach: the one that adds most first.
pub(super) fn fewest(cases: &[(Vec<u8>, Vec<u32>)], counters: usize) -> Vec<&[u8]> {
    let (mut reached, mut chosen) = (vec![false; counters], Vec::new());
    loop {
        let adds = |new: &[u32], reached: &[bool]| new.iter().filter(|place| !reached[**place as usize]).count();
        let best = cases.iter().max_by_key(|(case, new)| (adds(new, &reached), std::cmp::Reverse(case.len())));
        let Some((case, new)) = best.filter(|(_, new)| adds(new, &reached) > 0) else { return chosen };
        new.iter().for_each(|place| reached[*place as usize] = true);
        chosen.push(case.as_slice());
    }
}
