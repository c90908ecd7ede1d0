//! What a machine that gets tasks of an application in rounds says of itself.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::queue::{SLOTS_MAX, SPEED_MOPS_MIN};
use crate::summary::SPEED_SUM_MOPS_MAX;

/// What a machine can do. Travels as two values without names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Tasks that it runs at once.
    pub slots: u32,
    /// Speed of each, in Mop/s.
    pub speed_mops: f32,
}

impl Capacity {
    pub(super) fn is_valid(self) -> bool {
        (1..=SLOTS_MAX).contains(&self.slots)
            && self.speed_mops.is_finite()
            && (SPEED_MOPS_MIN..=SPEED_SUM_MOPS_MAX).contains(&f64::from(self.speed_mops))
    }
}

impl Serialize for Capacity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.slots, self.speed_mops).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (slots, speed_mops) = Deserialize::deserialize(deserializer)?;
        Ok(Self { slots, speed_mops })
    }
}
