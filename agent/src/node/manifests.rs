//! What is at hand of bags: their labels, and decoded manifests, so that a task's start seldom reads one. A bounded number of
//! bytes, the least recently used goes first.

use std::collections::BTreeMap;
use std::sync::Arc;

use idlewood_scheduler::BagId;

use idlewood_trust::label::Label;
use idlewood_trust::manifest::Manifest;

/// Memory for manifests, in bytes. Our choice: two of the largest, or thousands of common ones.
const MEMORY_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug)]
struct Cached {
    label: Label,
    /// None where its label alone is known.
    manifest: Option<Arc<Manifest>>,
    bytes: u64,
    used: u64,
}

/// The manifests at hand.
#[derive(Debug)]
pub(super) struct Manifests {
    cached: BTreeMap<BagId, Cached>,
    bytes: u64,
    bytes_max: u64,
    clock: u64,
}

impl Default for Manifests {
    fn default() -> Self {
        Self { cached: BTreeMap::new(), bytes: 0, bytes_max: MEMORY_BYTES_MAX, clock: 0 }
    }
}

impl Manifests {
    pub(super) fn get(&mut self, bag: BagId) -> Option<Arc<Manifest>> {
        self.clock += 1;
        let cached = self.cached.get_mut(&bag)?;
        cached.used = self.clock;
        cached.manifest.clone()
    }

    /// What all may know of a bag.
    pub(super) fn label(&self, bag: BagId) -> Option<Label> {
        self.cached.get(&bag).map(|cached| cached.label)
    }

    /// Keeps the label of a bag whose manifest is not known yet.
    pub(super) fn remember_label(&mut self, bag: BagId, label: Label) {
        if !self.cached.contains_key(&bag) {
            self.insert(bag, label, None);
        }
    }

    /// Keeps a manifest, even one over the bound, and drops others for it.
    pub(super) fn remember(&mut self, bag: BagId, manifest: Arc<Manifest>) {
        if self.get(bag).is_none() {
            self.insert(bag, manifest.label(), Some(manifest));
        }
    }

    fn insert(&mut self, bag: BagId, label: Label, manifest: Option<Arc<Manifest>>) {
        self.bytes -= self.cached.remove(&bag).map_or(0, |cached| cached.bytes);
        self.clock += 1;
        let bytes = manifest.as_ref().map_or(size_of::<Cached>() as u64, |manifest| manifest.memory_bytes());
        while self.bytes + bytes > self.bytes_max {
            let oldest = self.cached.iter().min_by_key(|(_, cached)| cached.used).map(|(&bag, _)| bag);
            let Some(dropped) = oldest.and_then(|oldest| self.cached.remove(&oldest)) else { break };
            self.bytes -= dropped.bytes;
        }
        self.bytes += bytes;
        self.cached.insert(bag, Cached { label, manifest, bytes, used: self.clock });
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::tests::manifest;
    use super::*;

    #[test]
    fn the_least_recently_used_make_room() {
        let sized =
            |length: usize| Arc::new(Manifest { name: String::new(), args: vec!["x".repeat(length)], ..manifest() });
        let bag = |number| BagId([number; 32]);
        let mut manifests = Manifests { bytes_max: 40_000, ..Manifests::default() };
        for number in 1..=3 {
            manifests.remember(bag(number), sized(10_000));
        }
        assert!(manifests.get(bag(1)).is_some());
        manifests.remember(bag(4), sized(10_000));
        let there = |manifests: &mut Manifests| [1, 2, 3, 4, 5].map(|number| manifests.get(bag(number)).is_some());
        assert_eq!(there(&mut manifests), [true, false, true, true, false]);
        assert!(manifests.bytes <= 40_000);
        manifests.remember(bag(5), sized(100_000));
        assert_eq!(there(&mut manifests), [false, false, false, false, true], "one that is too large stays alone");
        manifests.remember(bag(1), sized(1000));
        assert_eq!(there(&mut manifests), [true, false, false, false, false]);
        assert!((1000..3000).contains(&manifests.bytes), "{}", manifests.bytes);
    }
}
