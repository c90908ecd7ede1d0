//! Which applications share a platform.

/// Which applications share the platform.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Mix {
    /// Three alike (§6.5).
    Equal,
    /// Multiplication and addition of matrices, and sorting, for which 13.81 GFLOP are read as in §6.5.
    Mixed,
    /// The same with 13.81 MFLOP for sorting, as in §6.2.
    Light,
    /// Those of a platform file.
    Given,
}

impl Mix {
    /// Those of drawn platforms.
    pub(super) const DRAWN: [Self; 3] = [Self::Equal, Self::Mixed, Self::Light];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Mixed => "mixed",
            Self::Light => "mixed_13.81_mflop",
            Self::Given => "file",
        }
    }

    /// GFLOP and MB of a task (§6.2).
    pub(super) fn kinds(self) -> [(f64, f64); 3] {
        let (multiplying, adding, sorting) = ((42.875, 196.0), (0.01225, 196.0), (13.81, 8.0));
        match self {
            Self::Equal => [sorting; 3],
            Self::Mixed | Self::Given => [multiplying, adding, sorting],
            Self::Light => [multiplying, adding, (0.01381, 8.0)],
        }
    }
}
