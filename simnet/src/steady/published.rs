//! What the paper says (§5.2): geometric means over its platforms of the throughput of LP's tasks relative to that of a heuristic's.

use serde_json::{Value, json};

use super::algorithm::Algorithm;
use crate::dlo::Size;

/// Machines and children at most (§5.1.2): 15 shapes.
pub(super) const NODES: [usize; 5] = [5, 10, 20, 50, 100];
pub(super) const DEGREES: [usize; 3] = [2, 5, 15];
/// From so many machines on platforms are "larger ones (size 50 and 100)".
pub(super) const LARGE_NODES_MIN: usize = 50;
/// What a throughput near 0 counts as: the logarithm of the deviation "has been normalized to 8".
pub(super) const LOGARITHM_MAX: f64 = 8.0;

/// The 15 shapes.
pub(super) fn sizes() -> Vec<Size> {
    NODES.into_iter().flat_map(|nodes| DEGREES.map(|degree| Size { nodes, degree })).collect()
}

/// Mean and largest ratio over all platforms, and the mean over large ones.
pub(super) fn ratios(algorithm: Algorithm) -> Value {
    match algorithm {
        Algorithm::Fcfs => json!({"geomean": 1.564, "max": "more than 8", "geomean_of_large": 2.0399}),
        Algorithm::Cgbc => json!({"geomean": 1.156, "max": "2", "geomean_of_large": 1.243}),
        Algorithm::DataCentric => json!({"geomean": 1.164, "max": "16"}),
        Algorithm::Pbc => json!({"starved_share": "more than 0.35"}),
        Algorithm::Periodic | Algorithm::DemandDriven | Algorithm::CgWave => Value::Null,
    }
}
