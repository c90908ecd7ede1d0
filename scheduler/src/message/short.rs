//! A contact within a message: three values without names. Other places where a contact is stored keep them.

use idlewood_overlay::{Contact, PeerId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(contact: &Contact, serializer: S) -> Result<S::Ok, S::Error> {
    (&contact.peer, contact.incarnation, &contact.address).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Contact, D::Error> {
    let (peer, incarnation, address): (PeerId, u64, Box<str>) = Deserialize::deserialize(deserializer)?;
    Ok(Contact { peer, incarnation, address, nonce: None })
}
