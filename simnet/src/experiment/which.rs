//! Which experiments there are.

/// The experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Experiment {
    /// Maximum stretch relative to the centralised schedulers (Celaya and Marchal 2010, Fig. 4a).
    Fairness,
    /// Time for a leaf's change to reach the root (Fig. 4b).
    Updates,
    /// Update time and use of the links by update limit (Table 1).
    Table1,
    /// When a router keeps a request: where requests are decided, and at what cost (§6).
    Bound,
    /// The largest grids.
    Scale,
    /// Bags as in production grids, and the benefit of each of our additions there.
    Desktops,
    /// What a user gains by cheating, and what rules against that cost an honest user with many bags (ADR 17).
    Submitters,
    /// Loads that tell schedulers apart, for days, beside all rivals.
    Loads,
}

impl Experiment {
    /// All experiments.
    pub const ALL: [Self; 8] = [
        Self::Fairness,
        Self::Updates,
        Self::Table1,
        Self::Bound,
        Self::Scale,
        Self::Desktops,
        Self::Submitters,
        Self::Loads,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fairness => "fairness",
            Self::Updates => "updates",
            Self::Table1 => "table1",
            Self::Bound => "bound",
            Self::Scale => "scale",
            Self::Desktops => "desktops",
            Self::Submitters => "submitters",
            Self::Loads => "loads",
        }
    }

    /// Sizes of grids by default.
    pub fn default_nodes(self) -> &'static [u32] {
        match self {
            Self::Fairness | Self::Updates => &[50, 100, 200, 500, 1000],
            Self::Table1 => &[1000],
            Self::Bound => &[200],
            Self::Scale => &[1_000, 10_000, 100_000],
            Self::Desktops => &[100, 300],
            Self::Submitters => &[50, 100],
            Self::Loads => &[20],
        }
    }

    /// Seeds by default.
    pub fn default_seeds(self) -> u64 {
        match self {
            Self::Fairness | Self::Submitters => 10,
            Self::Updates | Self::Loads => 3,
            Self::Table1 | Self::Scale => 1,
            Self::Bound => 5,
            Self::Desktops => 20,
        }
    }
}
