//! CG-WAVE judged by a general solver that shares no code with it: on random trees whose machines send to one child at a time, the rates are
//! feasible and as good as certified, curves price exactly, and columns can be done.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettings, DefaultSolver, IPSolver, SolverStatus, SupportedConeT};
use idlewood_scheduler::shares::{Columns, Curve, Node, SEGMENTS_MAX, Task};
use proptest::prelude::*;

/// A machine below its parent, with what the link between them carries.
#[derive(Clone, Debug)]
struct Machine {
    parent: usize,
    speed_mops: f64,
    bytes_s: f64,
}

#[derive(Clone, Debug)]
struct World {
    machines: Vec<Machine>,
    tasks: Vec<(f64, f64)>,
    weights: Vec<f64>,
}

/// Tasks/s by machine and application.
type Rates = Vec<Vec<f64>>;

impl World {
    fn tasks(&self) -> Vec<Task> {
        self.tasks.iter().map(|(mop, bytes)| Task { mop: *mop, bytes: *bytes }).collect()
    }

    fn children(&self, of: usize) -> Vec<usize> {
        (1..self.machines.len()).filter(|machine| self.machines[*machine].parent == of).collect()
    }

    fn is_below(&self, mut machine: usize, top: usize) -> bool {
        while machine > top {
            machine = self.machines[machine].parent;
        }
        machine == top
    }

    /// How full the fullest processor or port of a subtree is.
    fn load(&self, top: usize, rates: &Rates) -> f64 {
        let mut load = 0.0_f64;
        let below = |(number, _): &(usize, &Machine)| self.is_below(*number, top);
        for (number, machine) in self.machines.iter().enumerate().filter(below) {
            let mops: f64 = rates[number].iter().zip(&self.tasks).map(|(rate, (mop, _))| rate * mop).sum();
            let mut port = 0.0;
            for child in self.children(number) {
                let below = (0..self.machines.len()).filter(|other| self.is_below(*other, child));
                let bytes =
                    below.flat_map(|other| rates[other].iter().zip(&self.tasks).map(|(rate, (_, bytes))| rate * bytes));
                port += bytes.sum::<f64>() / self.machines[child].bytes_s;
            }
            load = load.max(mops / machine.speed_mops).max(port);
        }
        load
    }

    /// The largest value that rates can have, of which the subtree below `top` receives `bytes_s` at most: with prices their Σ y·ρ, without the
    /// smallest ρ/ω. By the dual, so that no rates have more.
    fn best(&self, top: usize, bytes_s: f64, prices: Option<&[f64]>) -> f64 {
        let count = self.tasks.len();
        let machines: Vec<usize> = (0..self.machines.len()).filter(|machine| self.is_below(*machine, top)).collect();
        let (mut rows, mut columns, mut values, mut limits) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut push = |uses: Vec<(usize, f64)>, limit: f64| {
            for (variable, value) in uses {
                rows.push(limits.len());
                columns.push(variable);
                values.push(value);
            }
            limits.push(limit);
        };
        // Shares of what a machine does of an application alone.
        let unit = |machine: usize, application: usize| self.machines[machine].speed_mops / self.tasks[application].0;
        let variables = |place: usize| (0..count).map(move |application| (place * count + application, application));
        let fair = machines.len() * count;
        (0..fair).for_each(|variable| push(vec![(variable, -1.0)], 0.0));
        for (place, machine) in machines.iter().enumerate() {
            push(variables(place).map(|(variable, _)| (variable, 1.0)).collect(), 1.0);
            let mut port = Vec::new();
            for child in self.children(*machine) {
                for (place, below) in machines.iter().enumerate().filter(|(_, below)| self.is_below(**below, child)) {
                    port.extend(variables(place).map(|(variable, application)| {
                        let bytes = unit(*below, application) * self.tasks[application].1;
                        (variable, bytes / self.machines[child].bytes_s)
                    }));
                }
            }
            push(port, 1.0);
        }
        if bytes_s.is_finite() {
            let all = machines.iter().enumerate().flat_map(|(place, machine)| {
                variables(place)
                    .map(|(variable, application)| (variable, unit(*machine, application) * self.tasks[application].1))
            });
            let all: Vec<(usize, f64)> = all.collect();
            let scale = bytes_s.max(1e-3);
            push(all.into_iter().map(|(variable, bytes)| (variable, bytes / scale)).collect(), bytes_s / scale);
        }
        let mut costs = vec![0.0; fair + 1];
        let mut scale = 1.0;
        match prices {
            Some(prices) => {
                for (place, machine) in machines.iter().enumerate() {
                    variables(place).for_each(|(variable, application)| {
                        costs[variable] = -prices[application] * unit(*machine, application);
                    });
                }
                scale = costs.iter().fold(1e-30, |largest: f64, cost| largest.max(-cost));
                costs.iter_mut().for_each(|cost| *cost /= scale);
            }
            None => {
                costs[fair] = -1.0;
                for (application, weight) in self.weights.iter().enumerate() {
                    let all = machines.iter().enumerate();
                    let uses = all
                        .map(|(place, machine)| (place * count + application, -unit(*machine, application) / weight));
                    push(uses.chain([(fair, 1.0)]).collect(), 0.0);
                }
            }
        }
        push(vec![(fair, -1.0)], 0.0);
        let matrix = CscMatrix::new_from_triplets(limits.len(), costs.len(), rows, columns, values);
        if prices.is_some() {
            // Nothing else holds it.
            costs[fair] = 1.0;
        }
        let quadratic = CscMatrix::zeros((costs.len(), costs.len()));
        let cones = [SupportedConeT::NonnegativeConeT(limits.len())];
        let settings = DefaultSettings { verbose: false, ..DefaultSettings::default() };
        let mut solver = DefaultSolver::new(&quadratic, &costs, &matrix, &limits, &cones, settings).unwrap();
        solver.solve();
        assert!(matches!(solver.solution.status, SolverStatus::Solved | SolverStatus::AlmostSolved));
        -solver.solution.obj_val_dual * scale
    }

    /// What the machines say upward at these prices.
    fn up(&self, prices: &[f64]) -> Vec<Node> {
        let tasks = self.tasks();
        let mut nodes: Vec<Option<Node>> = vec![None; self.machines.len()];
        for machine in (0..self.machines.len()).rev() {
            let children: Vec<(Curve, f64)> = self
                .children(machine)
                .into_iter()
                .map(|child| (nodes[child].as_ref().unwrap().curve().clone(), self.machines[child].bytes_s))
                .collect();
            nodes[machine] = Some(Node::new(self.machines[machine].speed_mops, &tasks, prices, &children));
        }
        nodes.into_iter().map(Option::unwrap).collect()
    }

    /// What every machine does if so many bytes/s reach the subtree below `top`.
    fn down(&self, nodes: &[Node], top: usize, bytes_s: f64) -> Rates {
        let mut rates = vec![vec![0.0; self.tasks.len()]; self.machines.len()];
        let mut reached = vec![None; self.machines.len()];
        reached[top] = Some(bytes_s);
        for machine in top..self.machines.len() {
            let Some(bytes_s) = reached[machine] else { continue };
            let division = nodes[machine].divide(bytes_s);
            self.children(machine).into_iter().zip(division.children).for_each(|(child, of)| reached[child] = Some(of));
            rates[machine] = division.own;
        }
        rates
    }
}

fn sums(rates: &Rates) -> Vec<f64> {
    (0..rates[0].len()).map(|application| rates.iter().map(|of| of[application]).sum()).collect()
}

fn value(prices: &[f64], rates: &[f64]) -> f64 {
    prices.iter().zip(rates).map(|(price, rate)| price * rate).sum()
}

fn log_uniform(low: f64, high: f64) -> impl Strategy<Value = f64> + Clone {
    (low.ln()..high.ln()).prop_map(f64::exp)
}

fn world() -> impl Strategy<Value = World> {
    let machine = (any::<prop::sample::Index>(), 1.0..10.0_f64, log_uniform(0.3, 30.0));
    let task = (log_uniform(0.3, 3.0), prop_oneof![1 => Just(0.0), 1 => Just(1.0), 6 => log_uniform(0.03, 30.0)]);
    let tasks = prop::collection::vec((task, log_uniform(0.3, 3.0)), 1..6);
    (prop::collection::vec(machine, 1..16), tasks).prop_map(|(drawn, tasks)| {
        let of = |(number, (parent, speed_mops, bytes_s)): (usize, (prop::sample::Index, f64, f64))| Machine {
            parent: if number == 0 { 0 } else { parent.index(number) },
            speed_mops,
            bytes_s,
        };
        let (tasks, weights) = tasks.into_iter().unzip();
        World { machines: drawn.into_iter().enumerate().map(of).collect(), tasks, weights }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A curve promises what a solver finds, within its error, and what is divided keeps the promise and all limits.
    #[test]
    fn a_wave_prices_as_a_solver_does(
        world in world(),
        drawn in prop::collection::vec(prop_oneof![1 => Just(0.0), 4 => 0.01..1.0_f64], 5),
        top in any::<prop::sample::Index>(),
        share in 0.0..1.2_f64,
    ) {
        let prices = &drawn[..world.tasks.len()];
        let nodes = world.up(prices);
        let top = top.index(world.machines.len());
        let curve = nodes[top].curve();
        prop_assert!(curve.points().len() <= SEGMENTS_MAX + 1);
        let bytes_s = share * curve.last().bytes_s;
        let promised = curve.rates(bytes_s);
        let divided = world.down(&nodes, top, bytes_s);
        for (promised, sum) in promised.iter().zip(sums(&divided)) {
            prop_assert!((promised - sum).abs() <= 1e-9 * (1.0 + sum), "{promised}, and {sum} are done");
        }
        prop_assert!(world.load(top, &divided) <= 1.0 + 1e-9);
        let used: f64 = sums(&divided).iter().zip(&world.tasks).map(|(rate, (_, bytes))| rate * bytes).sum();
        prop_assert!(used <= bytes_s * (1.0 + 1e-9) + 1e-12, "{used} of {bytes_s}");
        let (found, best) = (value(prices, &promised), world.best(top, bytes_s, Some(prices)));
        let tolerance = 1e-5 * (best + 1e-3);
        prop_assert!(found <= best + tolerance, "{found} where {best} is best");
        prop_assert!(found + curve.error() >= best - tolerance, "{found} where {best} is best");
        prop_assert!(curve.error() <= 0.01 * value(prices, &curve.last().rates) + 1e-12);
    }

    /// Waves until the rates are certified: each column and mixture can be done, no wave is worse than the one before, and the bound is one.
    #[test]
    fn waves_come_as_near_to_the_best_as_they_say(world in world()) {
        let mut root = Columns::new(world.weights.clone());
        let mut columns: Vec<Rates> = Vec::new();
        let mut prices = root.first_prices();
        let best = world.best(0, f64::INFINITY, None);
        let mut before = 0.0;
        for wave in 1.. {
            prop_assert!(wave <= 20, "{} of {best}", before);
            for prices in &prices {
                let nodes = world.up(prices);
                root.add(prices, nodes[0].curve());
                let column = world.down(&nodes, 0, nodes[0].curve().last().bytes_s);
                prop_assert!(world.load(0, &column) <= 1.0 + 1e-9);
                columns.push(column);
            }
            let mixture = root.mixture().unwrap();
            let mut rates = vec![vec![0.0; world.tasks.len()]; world.machines.len()];
            for (share, column) in mixture.shares.iter().zip(&columns) {
                for (sum, of) in rates.iter_mut().flatten().zip(column.iter().flatten()) {
                    *sum += share * of;
                }
            }
            prop_assert!(world.load(0, &rates) <= 1.0 + 1e-9);
            let ratios = sums(&rates).into_iter().zip(&world.weights).map(|(rate, weight)| rate / weight);
            let fair = ratios.fold(f64::INFINITY, f64::min);
            prop_assert!((fair - mixture.throughput).abs() <= 1e-9 * fair);
            prop_assert!(fair >= before * (1.0 - 1e-9), "{fair} after {before}");
            prop_assert!(fair <= best * (1.0 + 1e-5) && root.bound() >= best * (1.0 - 1e-5), "{fair}, {best}, {}", root.bound());
            let normal: f64 = mixture.prices.iter().zip(&world.weights).map(|(price, weight)| price * weight).sum();
            prop_assert!((normal - 1.0).abs() <= 1e-9);
            before = fair;
            if root.bound() <= 1.01 * fair {
                break;
            }
            prices = vec![mixture.prices];
        }
    }
}

/// By hand: a machine alone, with what it takes of two applications.
#[test]
fn a_machine_alone_takes_what_is_worth_most_for_a_byte() {
    let tasks = [Task { mop: 1.0, bytes: 1.0 }, Task { mop: 1.0, bytes: 4.0 }];
    let node = Node::new(10.0, &tasks, &[1.0, 2.0], &[]);
    let points: Vec<(f64, &[f64])> =
        node.curve().points().iter().map(|point| (point.bytes_s, &point.rates[..])).collect();
    assert_eq!(points, [(0.0, &[0.0, 0.0][..]), (10.0, &[10.0, 0.0][..]), (40.0, &[0.0, 10.0][..])]);
    assert_eq!(node.curve().rates(25.0), [5.0, 5.0]);
    assert_eq!(node.divide(100.0).own, [0.0, 10.0]);
    assert_eq!(node.curve().error(), 0.0);
}

/// By hand: the port sends for half of its time to a child that then does all it can, and for the other half to one that could do more.
#[test]
fn a_port_serves_one_child_at_a_time() {
    let tasks = [Task { mop: 1.0, bytes: 1.0 }];
    let leaf = |speed: f64| Node::new(speed, &tasks, &[1.0], &[]).curve().clone();
    let node = Node::new(1.0, &tasks, &[1.0], &[(leaf(100.0), 20.0), (leaf(15.0), 30.0)]);
    assert_eq!(node.curve().last().rates, [26.0]);
    assert_eq!(node.divide(26.0).children, [10.0, 15.0]);
}
