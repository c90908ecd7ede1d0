//! CG-WAVE on a platform: [`shares`](idlewood_scheduler::shares) of the scheduler, each machine with what its children say.

use idlewood_scheduler::shares::{Columns, Curve, Mixture, Node};

use super::platform::{Platform, Rates};

/// Waves stop where the rates are certainly as near to the best.
const CERTIFIED: f64 = 0.01;
/// Waves at most, certified or not.
const WAVES_MAX: usize = 40;

/// What the waves come to.
pub(super) struct Outcome {
    /// After the last wave.
    pub(super) rates: Rates,
    /// Smallest ρ_k/ω_k after each wave.
    pub(super) fair: Vec<f64>,
    /// Largest load of a processor or port in any column and in any mixture.
    pub(super) load: f64,
    /// Whether the rates are certainly within [`CERTIFIED`] of the best.
    pub(super) is_certified: bool,
}

/// Runs waves until the rates are certified.
pub(super) fn run(platform: &Platform) -> Outcome {
    let tree = platform.children();
    let mut root = Columns::new(platform.weights());
    let mut columns: Vec<Rates> = Vec::new();
    let mut outcome = Outcome { rates: Vec::new(), fair: Vec::new(), load: 0.0, is_certified: false };
    let mut prices = root.first_prices();
    while outcome.fair.len() < WAVES_MAX && !outcome.is_certified {
        for prices in &prices {
            let nodes = up(platform, &tree, prices);
            root.add(prices, nodes[0].curve());
            columns.push(down(platform, &tree, &nodes));
            outcome.load = outcome.load.max(platform.load(columns.last().expect("just added")));
        }
        let mixture = root.mixture().expect("the root itself does some of every application");
        outcome.rates = mixed(&columns, &mixture);
        outcome.load = outcome.load.max(platform.load(&outcome.rates));
        outcome.fair.push(platform.fair_of(&outcome.rates));
        outcome.is_certified = root.bound() <= (1.0 + CERTIFIED) * mixture.throughput;
        prices = vec![mixture.prices];
    }
    outcome
}

/// Every machine hears its children, and tells its parent.
fn up(platform: &Platform, tree: &[Vec<usize>], prices: &[f64]) -> Vec<Node> {
    let tasks = platform.tasks();
    let mut nodes: Vec<Option<Node>> = vec![None; tree.len()];
    for (machine, of) in platform.machines.iter().enumerate().rev() {
        let hear = |child: &usize| {
            let node = nodes[*child].as_ref().expect("children stand behind their parent");
            (node.curve().clone(), platform.machines[*child].mb_s * 1e6)
        };
        let children: Vec<(Curve, f64)> = tree[machine].iter().map(hear).collect();
        nodes[machine] = Some(Node::new(of.mflop_s, &tasks, prices, &children));
    }
    nodes.into_iter().map(|node| node.expect("each was visited")).collect()
}

/// Every machine divides what reaches it: the column by machine and application.
fn down(platform: &Platform, tree: &[Vec<usize>], nodes: &[Node]) -> Rates {
    let mut bytes_s = vec![0.0; tree.len()];
    bytes_s[0] = nodes[0].curve().last().bytes_s;
    let mut column = Vec::with_capacity(platform.machines.len());
    for (machine, node) in nodes.iter().enumerate() {
        let division = node.divide(bytes_s[machine]);
        tree[machine].iter().zip(division.children).for_each(|(child, of)| bytes_s[*child] = of);
        column.push(division.own);
    }
    column
}

/// What each machine makes of its parts of the columns.
fn mixed(columns: &[Rates], mixture: &Mixture) -> Rates {
    let mut rates = columns[0].iter().map(|of| vec![0.0; of.len()]).collect::<Rates>();
    for (column, share) in columns.iter().zip(&mixture.shares) {
        for (sum, of) in rates.iter_mut().zip(column) {
            sum.iter_mut().zip(of).for_each(|(sum, rate)| *sum += share * rate);
        }
    }
    rates
}
