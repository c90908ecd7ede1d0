//! Which rates are best: the part of the tree that lies between the places where applications enter.

use super::absorption::Absorption;
use super::optimum::{Problem, Row};
use super::ratios::Ratios;

/// What the best rates depend on besides the ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Application {
    /// Its weight ω: with limited processors alone, work is shared in proportion to it. Above 0.
    pub weight: f64,
    /// Bytes/s that can leave its submitter; infinitely many where that does not count.
    pub uplink_bytes_s: f64,
    /// The node of the core where it enters.
    pub entry: usize,
}

/// The edge between a node of the core and its parent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uplink {
    /// Number of the parent, below that of the node.
    pub parent: usize,
    /// Bytes/s from the parent.
    pub down_bytes_s: f64,
    /// Bytes/s to the parent.
    pub up_bytes_s: f64,
}

/// A node of the core.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreNode {
    /// What the node itself and the parts that hang on it outside of the core can do.
    pub absorption: Absorption,
    /// None for the first node, and for that alone.
    pub uplink: Option<Uplink>,
}

/// The core of a tree: the smallest subtree with all places where applications enter. On idlewood's own tree that is the root
/// alone, as data does not travel along it.
#[derive(Clone, Debug, PartialEq)]
pub struct Core {
    /// A parent stands before its children.
    pub nodes: Vec<CoreNode>,
}

impl Core {
    /// The rates that maximise Σ ω·log(work): Mop/s of each application on each node of the core, with what hangs on it. All of
    /// them together are feasible; their utility is below the best possible by less than 1e-9 of the sum of weights. An application that nothing can
    /// be done for has rates of 0.
    ///
    /// # Panics
    /// When an entry or a parent is no node of the core.
    pub fn solve(&self, ratios: &Ratios, applications: &[Application]) -> Vec<Vec<f64>> {
        let (count, nodes) = (applications.len(), self.nodes.len());
        let mut rows = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            for other in 0..count {
                let uses =
                    (0..count).map(|application| (number * count + application, ratios.use_of(application, other)));
                rows.push(Row { uses: uses.collect(), limit: node.absorption.alone(other) });
            }
        }
        rows.extend(self.edges(ratios, applications));
        for (application, of) in applications.iter().enumerate() {
            let uses = (0..nodes).map(|number| (number * count + application, ratios.of(application)));
            rows.push(Row { uses: uses.collect(), limit: of.uplink_bytes_s });
        }
        let problem = Problem {
            weights: applications.iter().map(|application| application.weight).collect(),
            group_of: (0..nodes * count).map(|variable| variable % count).collect(),
            rows,
        };
        let best = problem.solve();
        (0..nodes).map(|number| best[number * count..(number + 1) * count].to_vec()).collect()
    }

    /// Both directions of each edge: an application crosses it towards the nodes on the other side of its entry.
    fn edges(&self, ratios: &Ratios, applications: &[Application]) -> Vec<Row> {
        let mut rows = Vec::new();
        for (child, node) in self.nodes.iter().enumerate() {
            let Some(uplink) = node.uplink else { continue };
            for (goes_down, limit) in [(true, uplink.down_bytes_s), (false, uplink.up_bytes_s)] {
                let mut uses = Vec::new();
                for (application, of) in applications.iter().enumerate() {
                    let crosses = |number: &usize| {
                        self.is_below(of.entry, child) != goes_down && self.is_below(*number, child) == goes_down
                    };
                    let beyond = (0..self.nodes.len()).filter(crosses);
                    uses.extend(
                        beyond.map(|number| (number * applications.len() + application, ratios.of(application))),
                    );
                }
                rows.push(Row { uses, limit });
            }
        }
        rows
    }

    fn is_below(&self, mut node: usize, top: usize) -> bool {
        while node > top {
            match self.nodes[node].uplink {
                Some(uplink) => node = uplink.parent,
                None => return false,
            }
        }
        node == top
    }
}
