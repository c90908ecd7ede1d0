//! Platforms that are trees of machines: how they are drawn, and read from files.

use std::collections::VecDeque;
use std::path::Path;

use rand::{Rng, RngExt};
use serde::de::DeserializeOwned;

use crate::dlo::Size;

/// Draws a tree breadth first: a machine taken from the queue has 1 to `size.degree` children, until all machines are there. `machine` draws one,
/// given the number of its parent, which is below its own.
pub(crate) fn draw<R: Rng, M>(size: Size, rng: &mut R, mut machine: impl FnMut(&mut R, Option<usize>) -> M) -> Vec<M> {
    let mut machines = Vec::with_capacity(size.nodes);
    let mut parents = VecDeque::from([None]);
    while machines.len() < size.nodes {
        let parent = parents.pop_front().expect("every machine has a child at least");
        let children = if machines.is_empty() { 1 } else { rng.random_range(1..=size.degree) };
        for _ in 0..children.min(size.nodes - machines.len()) {
            parents.push_back(Some(machines.len()));
            machines.push(machine(rng, parent));
        }
    }
    machines
}

/// Reads a platform from a JSON file; `example` is what such a file looks like.
///
/// # Errors
/// A sentence that says what to write instead.
pub(crate) fn read<P: DeserializeOwned>(
    path: &Path,
    example: &str,
    validate: impl Fn(&P) -> Result<(), String>,
) -> Result<P, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the platform {} cannot be read: {error}", path.display()))?;
    let platform: P = serde_json::from_str(&text)
        .map_err(|error| format!("{} is no platform: {error}; write {example}", path.display()))?;
    validate(&platform).map_err(|sentence| format!("{}: {sentence}", path.display()))?;
    Ok(platform)
}

/// Checks that a machine's parent stands before it.
///
/// # Errors
/// A sentence that says what to write instead.
pub(crate) fn validate_parent(number: usize, parent: Option<usize>) -> Result<(), String> {
    match parent {
        None if number == 0 => Ok(()),
        Some(parent) if parent < number => Ok(()),
        _ => Err(format!("machine {number} needs a parent that stands before it; only machine 0 has null")),
    }
}
