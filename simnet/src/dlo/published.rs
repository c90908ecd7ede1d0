//! What the paper says (Tables 1 and 2, §8.3, §9), and the step sizes that it found.

use super::lagrangian::{Kind, Steps};
use super::mix::Mix;
use super::size::Size;

/// Levels of the factorial experiment of Table 1: γ_ρ and γ_ρ̃, then γ_λ and γ_μ.
const NAIVE_LEVELS: ([f64; 2], [f64; 2]) = ([0.001, 0.1], [1e-15, 1e-13]);
/// From so many machines on, which the paper did not have, the naive algorithm has one combination: that of §6.5.3.
const ALL_LEVELS_NODES_MAX: usize = 1000;
/// "around 50 iterations to reach the new optimal equilibrium".
pub(super) const REMOVAL_WAVES: f64 = 50.0;
/// The size of that platform.
pub(super) const REMOVAL_SIZE: Size = Size { nodes: 100, degree: 5 };

/// Step sizes to try, in the order in which the first of equally good ones is taken.
pub(super) fn steps(kind: Kind, size: Size) -> Vec<Steps> {
    match kind {
        Kind::Adaptive => vec![adaptive(size)],
        Kind::Naive if size.nodes > ALL_LEVELS_NODES_MAX => {
            vec![Steps { rate: 0.001, smoothing: 0.001, processor: 1e-13, edge: 1e-15 }]
        }
        Kind::Naive => {
            let (rates, prices) = NAIVE_LEVELS;
            let of = |number: usize| Steps {
                rate: rates[number & 1],
                smoothing: rates[number >> 1 & 1],
                processor: prices[number >> 2 & 1],
                edge: prices[number >> 3 & 1],
            };
            (0..16).map(of).collect()
        }
    }
}

/// Table 2; a size that it does not have gets the steps of the next one below.
fn adaptive(size: Size) -> Steps {
    let (rate, smoothing, processor, edge) = match (size.nodes, size.degree) {
        (0..40, 0..10) => (0.05, 0.05, 1.3, 0.7),
        (0..40, _) => (0.01, 0.15, 0.7, 1.3),
        (40..100, _) => (0.01, 0.05, 1.3, 0.7),
        (100..500, _) => (0.01, 0.05, 0.7, 0.7),
        _ => (0.002, 0.05, 0.7, 0.7),
    };
    Steps { rate, smoothing, processor, edge }
}

/// Platforms of 30 that converged within 85 %.
pub(super) fn within_85(kind: Kind, mix: Mix, size: Size) -> Option<u32> {
    let of = |counts: [u32; 5]| {
        let place = [(20, 5), (20, 15), (40, 5), (100, 5), (500, 15)];
        let place = place.iter().position(|known| *known == (size.nodes, size.degree))?;
        Some(counts[place])
    };
    match (kind, mix) {
        (Kind::Naive, Mix::Equal) => of([28, 29, 27, 24, 20]),
        // "fails to converge in any of the 480 experiments" (§6.6)
        (Kind::Naive, Mix::Mixed) => (size == Size { nodes: 20, degree: 5 }).then_some(0),
        (Kind::Adaptive, Mix::Mixed) => of([24, 30, 28, 27, 29]),
        (Kind::Adaptive, Mix::Equal) | (_, Mix::Light | Mix::Given) => None,
    }
}

/// The 95 % interval of the mean of waves (§8.3).
pub(super) fn waves(kind: Kind, mix: Mix, size: Size) -> Option<[f64; 2]> {
    let is_known = kind == Kind::Adaptive && mix == Mix::Mixed && size == Size { nodes: 500, degree: 15 };
    is_known.then_some([373.0, 531.0])
}
