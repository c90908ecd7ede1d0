//! What `idlewood doctor` finds.

use idlewood_sensing::Unavailable;
use serde::Serialize;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(super) struct Finding {
    pub(super) source: &'static str,
    pub(super) works: bool,
    /// Its present reading, or why it does not work.
    pub(super) detail: String,
    /// The remedy; null if nothing is wrong.
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn works(source: &'static str, detail: impl Into<String>) -> Self {
        Self { source, works: true, detail: detail.into(), advice: None }
    }

    pub(super) fn fails(source: &'static str, unavailable: Unavailable) -> Self {
        let advice = Some(unavailable.remedy).filter(|remedy| !remedy.is_empty());
        Self { source, works: false, detail: unavailable.why, advice }
    }
}
