//! What holds for bags that are submitted from this machine.

use std::path::PathBuf;

use idlewood_scheduler::{STEWARDS_DEFAULT, STEWARDS_MAX};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Within, values};

/// Defaults of submissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Submit {
    /// How many other machines keep a bag, so that it goes on while this one is away.
    #[serde(deserialize_with = "values::whole")]
    pub stewards: Within<0, STEWARDS_MAX>,
    /// Where a ticket of each bag is written as soon as other machines keep it; none: nowhere.
    #[serde(deserialize_with = "directory", skip_serializing_if = "Option::is_none")]
    pub tickets: Option<PathBuf>,
}

impl Default for Submit {
    fn default() -> Self {
        Self { stewards: Within(STEWARDS_DEFAULT), tickets: None }
    }
}

fn directory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.is_absolute() {
        return Ok(Some(path));
    }
    Err(D::Error::custom(format!(
        "{} is not allowed: write the whole path of a directory, for example \"/home/ada/synced\"",
        path.display()
    )))
}
