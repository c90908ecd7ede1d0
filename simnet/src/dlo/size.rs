//! Sizes of drawn platforms.

use std::fmt;
use std::str::FromStr;

/// Machines of a drawn platform.
const NODES: std::ops::RangeInclusive<usize> = 4..=100_000;

/// How many machines a platform has, and children each of them at most.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Size {
    /// Machines.
    pub nodes: usize,
    /// Children at most (d_max).
    pub degree: usize,
}

impl Size {
    /// The paper's, and a larger one.
    pub const ALL: [Self; 6] = [
        Self { nodes: 20, degree: 5 },
        Self { nodes: 20, degree: 15 },
        Self { nodes: 40, degree: 5 },
        Self { nodes: 100, degree: 5 },
        Self { nodes: 500, degree: 15 },
        Self { nodes: 5000, degree: 15 },
    ];
}

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}/{}", self.nodes, self.degree)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("write machines and children at most, such as 20/5; machines {NODES:?}");
        let (nodes, degree) = text.split_once('/').ok_or_else(wanted)?;
        let size = Self { nodes: nodes.parse().map_err(|_| wanted())?, degree: degree.parse().map_err(|_| wanted())? };
        if NODES.contains(&size.nodes) && size.degree >= 1 { Ok(size) } else { Err(wanted()) }
    }
}
