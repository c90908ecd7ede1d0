//! Which requests came lately, so that none is split or executed twice (invariant I7).

use std::collections::VecDeque;

use crate::bag::{BagId, Request};

/// How many are remembered: our choice, many times what arrives while one request is under way.
const REQUESTS_MAX: usize = 1024;

/// The latest requests, the oldest first: of each the first bytes of its bag's id and of the hash of the rest, since many
/// peers remember many.
#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<(u64, u64)>);

impl Recent {
    pub(crate) fn contains(&self, request: &Request) -> bool {
        self.0.contains(&mark(request))
    }

    /// Remembers a request; whether it is new.
    pub(crate) fn insert(&mut self, request: &Request) -> bool {
        if self.contains(request) {
            return false;
        }
        if self.0.len() == REQUESTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(mark(request));
        true
    }

    pub(crate) fn forget(&mut self, bag: BagId) {
        self.0.retain(|mark| mark.0 != first_bytes(&bag.0));
    }
}

fn mark(request: &Request) -> (u64, u64) {
    let Request { bag, number, path, .. } = request;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(path.steps().as_bytes());
    (first_bytes(&bag.id.0), first_bytes(hasher.finalize().as_bytes()))
}

fn first_bytes(bytes: &[u8; 32]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(first)
}
