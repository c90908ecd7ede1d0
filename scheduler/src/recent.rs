//! Remembers recent requests, so that none is split or executed twice (invariant I7).
//!
//! A request and its parts count as the same: while the tree changes, a repeated message can reach a machine as the whole,
//! or as a part, of a request that the machine has had already.

use std::collections::VecDeque;

use crate::bag::{BagId, Path, Request};

/// How many requests are remembered. Our choice: many times those that arrive while one request is under way.
const REQUESTS_MAX: usize = 1024;

/// The latest requests, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<Mark>);

/// What identifies a request.
#[derive(Debug)]
struct Mark {
    /// The first bytes of its bag's id: that saves memory.
    bag: u64,
    number: u64,
    path: Path,
}

impl Recent {
    /// Whether this request, a whole that it is a part of, or a part of it, is remembered.
    pub(crate) fn contains(&self, request: &Request) -> bool {
        let bag = first_bytes(&request.bag.id.0);
        let same = |mark: &&Mark| mark.number == request.number && mark.bag == bag;
        self.0.iter().filter(same).any(|mark| mark.path.is_above(&request.path) || request.path.is_above(&mark.path))
    }

    /// Remembers a request; returns whether it is new.
    pub(crate) fn insert(&mut self, request: &Request) -> bool {
        if self.contains(request) {
            return false;
        }
        if self.0.len() == REQUESTS_MAX {
            self.0.pop_front();
        }
        let (number, path) = (request.number, request.path.clone());
        self.0.push_back(Mark { bag: first_bytes(&request.bag.id.0), number, path });
        true
    }

    pub(crate) fn forget(&mut self, bag: BagId) {
        self.0.retain(|mark| mark.bag != first_bytes(&bag.0));
    }
}

fn first_bytes(bytes: &[u8; 32]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(first)
}
