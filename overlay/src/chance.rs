//! A peer's random generator, `ChaCha8Rng` with a `Clone` that continues at the same position: the library's has none.

use std::ops::{Deref, DerefMut};

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

#[derive(Debug)]
pub(crate) struct Chance(ChaCha8Rng);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }
}

impl Clone for Chance {
    fn clone(&self) -> Self {
        Self(ChaCha8Rng::deserialize_state(&self.0.serialize_state()))
    }
}

impl Deref for Chance {
    type Target = ChaCha8Rng;

    fn deref(&self) -> &ChaCha8Rng {
        &self.0
    }
}

impl DerefMut for Chance {
    fn deref_mut(&mut self) -> &mut ChaCha8Rng {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    #[test]
    fn a_copy_goes_on_where_the_original_stands() {
        for drawn in [0, 1, 7, 63, 64, 65, 1_000] {
            let mut chance = Chance::new(5);
            (0..drawn).for_each(|_| _ = chance.random::<u32>());
            let mut copy = chance.clone();
            let both: Vec<(u64, u64)> = (0..200).map(|_| (chance.random(), copy.random())).collect();
            assert!(both.iter().all(|(one, other)| one == other), "after {drawn}");
        }
    }
}
