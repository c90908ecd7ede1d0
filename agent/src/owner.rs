//! Whether the owner of the machine is there.
//!
//! The probe is a narrow interface: it is asked, and answers present or away. What exists now is a scripted one
//! (present while a file exists), for tests, the demo and owners with a script of their own. Detection by display
//! servers and input devices comes with the owner's policy; until then a machine without a probe counts as idle,
//! and `idlewood pause` is how its owner takes it back.

use std::path::PathBuf;
use std::time::Duration;

/// How often the probe is asked: leaves most of the second in which the machine must be the owner's again.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Tells whether the owner is there.
#[derive(Clone, Debug)]
pub(crate) enum OwnerProbe {
    /// Nobody can tell: counts as away.
    None,
    /// Present while this file exists.
    File(PathBuf),
}

impl OwnerProbe {
    /// Whether the owner is there now.
    pub(crate) fn is_present(&self) -> bool {
        match self {
            Self::None => false,
            Self::File(path) => path.exists(),
        }
    }
}
