//! Lists bounded while they are decoded: an item of one byte on the wire may take a hundred in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Reads a list of at most `MAX` items.
pub(super) fn at_most<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(Bounded::<Vec<T>, MAX>(PhantomData))
}

/// Reads a map from strings of at most `MAX` pairs, repeated keys included.
pub(super) fn at_most_pairs<'de, D, T, const MAX: usize>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_map(Bounded::<BTreeMap<String, T>, MAX>(PhantomData))
}

struct Bounded<C, const MAX: usize>(PhantomData<C>);

fn too_many<E: Error>(max: usize) -> E {
    E::custom(format_args!("a list of more than {max}"))
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<Vec<T>, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = access.next_element()? {
            if list.len() == MAX {
                return Err(too_many(MAX));
            }
            list.push(item);
        }
        Ok(list)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<BTreeMap<String, T>, MAX> {
    type Value = BTreeMap<String, T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a map of at most {MAX}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        for number in 0.. {
            let Some((key, value)) = access.next_entry()? else { break };
            if number == MAX {
                return Err(too_many(MAX));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}
