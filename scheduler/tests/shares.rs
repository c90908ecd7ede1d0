//! FOLD judged by a general solver that shares no code with it: on random trees with capacities, applications that enter
//! anywhere, and weights, the rates that come down are feasible on every machine and edge, and as good as the best.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettings, DefaultSolver, IPSolver, SolverStatus, SupportedConeT};
use idlewood_scheduler::shares::{Absorption, Application, Core, CoreNode, Ratios, Uplink, whole_tasks};
use proptest::prelude::*;

/// A machine of a tree, below its parent, with the edge between them.
#[derive(Clone, Debug)]
struct Machine {
    parent: usize,
    speed_mops: f64,
    down_bytes_s: f64,
    up_bytes_s: f64,
}

#[derive(Clone, Debug)]
struct Asked {
    ratio: f64,
    weight: f64,
    uplink_bytes_s: f64,
    machine: usize,
}

#[derive(Clone, Debug)]
struct World {
    machines: Vec<Machine>,
    asked: Vec<Asked>,
}

/// All machines of a tree, by FOLD: Mop/s of each application.
struct Fold<'a> {
    world: &'a World,
    ratios: Ratios,
    is_core: Vec<bool>,
    absorptions: Vec<Absorption>,
    rates: Vec<Vec<f64>>,
}

impl World {
    fn is_below(&self, mut machine: usize, top: usize) -> bool {
        while machine > top {
            machine = self.machines[machine].parent;
        }
        machine == top
    }

    /// Applications that cross the edge above a machine, downwards or upwards, and the machines beyond.
    fn crossing(&self, child: usize, goes_down: bool) -> Vec<(usize, Vec<usize>)> {
        let crosses = |asked: &Asked| self.is_below(asked.machine, child) != goes_down;
        let beyond = |machine: &usize| self.is_below(*machine, child) == goes_down;
        let applications = (0..self.asked.len()).filter(|application| crosses(&self.asked[*application]));
        applications.map(|application| (application, (0..self.machines.len()).filter(beyond).collect())).collect()
    }

    /// What each machine, edge and submitter has to do and can do.
    fn loads(&self, rates: &[Vec<f64>]) -> Vec<(f64, f64)> {
        let mut loads = Vec::new();
        for (number, machine) in self.machines.iter().enumerate() {
            loads.push((rates[number].iter().sum(), machine.speed_mops));
            for (goes_down, limit) in [(true, machine.down_bytes_s), (false, machine.up_bytes_s)] {
                let crossing = if number == 0 { Vec::new() } else { self.crossing(number, goes_down) };
                let bytes = crossing.iter().flat_map(|(application, beyond)| {
                    beyond.iter().map(|machine| rates[*machine][*application] * self.asked[*application].ratio)
                });
                loads.push((bytes.sum(), limit));
            }
        }
        for (application, asked) in self.asked.iter().enumerate() {
            let bytes: f64 = rates.iter().map(|of_machine| of_machine[application] * asked.ratio).sum();
            loads.push((bytes, asked.uplink_bytes_s));
        }
        loads
    }

    /// How far the utility of this work may be below the best, by a linear program of a conic solver: the logarithm is concave, so that no
    /// feasible work has more than Σ ω·log(work) + max Σ ω·(other/work − 1).
    fn gap(&self, work: &[f64]) -> f64 {
        let (count, machines) = (self.asked.len(), self.machines.len());
        let at = |machine: usize, application: usize| machine * count + application;
        // Variables of like size: Mop/s in this unit.
        let unit = |application: usize| 1.0 / self.asked[application].ratio.max(1.0);
        let (mut rows, mut columns, mut values, mut limits) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut push = |uses: Vec<(usize, f64)>, limit: f64| {
            for (variable, value) in uses {
                rows.push(limits.len());
                columns.push(variable);
                values.push(value);
            }
            limits.push(limit);
        };
        (0..machines * count).for_each(|variable| push(vec![(variable, -1.0)], 0.0));
        for (number, machine) in self.machines.iter().enumerate() {
            let share = |application| unit(application) / machine.speed_mops;
            push((0..count).map(|application| (at(number, application), share(application))).collect(), 1.0);
            for (goes_down, limit) in [(true, machine.down_bytes_s), (false, machine.up_bytes_s)] {
                let crossing = if number == 0 { Vec::new() } else { self.crossing(number, goes_down) };
                let uses = crossing.iter().flat_map(|(application, beyond)| {
                    let share = self.asked[*application].ratio * unit(*application) / limit;
                    beyond.iter().map(move |machine| (at(*machine, *application), share))
                });
                push(uses.collect(), 1.0);
            }
        }
        for (application, asked) in self.asked.iter().enumerate() {
            let share = asked.ratio * unit(application) / asked.uplink_bytes_s;
            push((0..machines).map(|machine| (at(machine, application), share)).collect(), 1.0);
        }
        let cost = |variable: usize| {
            let application = variable % count;
            -self.asked[application].weight * unit(application) / work[application]
        };
        let costs: Vec<f64> = (0..machines * count).map(cost).collect();
        let matrix = CscMatrix::new_from_triplets(limits.len(), costs.len(), rows, columns, values);
        let quadratic = CscMatrix::zeros((costs.len(), costs.len()));
        let cones = [SupportedConeT::NonnegativeConeT(limits.len())];
        let settings = DefaultSettings { verbose: false, ..DefaultSettings::default() };
        let mut solver = DefaultSolver::new(&quadratic, &costs, &matrix, &limits, &cones, settings).unwrap();
        solver.solve();
        // By the dual value, no feasible work has more.
        assert_eq!(solver.solution.status, SolverStatus::Solved);
        -solver.solution.obj_val_dual - self.asked.iter().map(|asked| asked.weight).sum::<f64>()
    }
}

impl<'a> Fold<'a> {
    fn of(world: &'a World) -> Self {
        let ratios = Ratios::new(world.asked.iter().map(|asked| asked.ratio).collect()).unwrap();
        let machines = world.machines.len();
        // Between two entries lie the machines that have one below them, but not all of them, or have one of their own.
        let entries = |top: usize| world.asked.iter().filter(|asked| world.is_below(asked.machine, top)).count();
        let top = (0..machines).rev().find(|top| entries(*top) == world.asked.len()).unwrap();
        let is_core = (0..machines).map(|machine| entries(machine) > 0 && world.is_below(machine, top)).collect();
        let of_machine = |machine: &Machine| Absorption::of_machine(&ratios, machine.speed_mops, f64::INFINITY);
        let absorptions = world.machines.iter().map(of_machine).collect();
        Self { world, ratios, is_core, absorptions, rates: Vec::new() }
    }

    /// Machines outside of the core that hang on this one, with the capacity of the edge to them.
    fn hanging(&self, on: usize) -> Vec<(usize, f64)> {
        let mut hanging = Vec::new();
        for (number, machine) in self.world.machines.iter().enumerate().skip(1) {
            if machine.parent == on && !self.is_core[number] && !self.leads_to_core(number) {
                hanging.push((number, machine.down_bytes_s));
            } else if number == on && !self.is_core[machine.parent] && self.leads_to_core(number) {
                hanging.push((machine.parent, machine.up_bytes_s));
            }
        }
        hanging
    }

    /// Whether the way to the core goes down from here.
    fn leads_to_core(&self, machine: usize) -> bool {
        (0..self.is_core.len()).any(|core| self.is_core[core] && self.world.is_below(core, machine))
    }

    fn up(&mut self, machine: usize) {
        for (hanging, edge_bytes_s) in self.hanging(machine) {
            self.up(hanging);
            let below = self.absorptions[hanging].clone().through(&self.ratios, edge_bytes_s);
            self.absorptions[machine].add(&below);
        }
    }

    fn down(&mut self, machine: usize, work_mops: &[f64]) {
        let hanging = self.hanging(machine);
        let own = Absorption::of_machine(&self.ratios, self.world.machines[machine].speed_mops, f64::INFINITY);
        let mut parts = vec![own];
        let below = hanging.iter().map(|(below, edge)| self.absorptions[*below].clone().through(&self.ratios, *edge));
        parts.extend(below);
        let mut divided = Absorption::divide(&self.ratios, work_mops, &parts).into_iter();
        self.rates[machine] = divided.next().unwrap();
        for ((below, _), work_mops) in hanging.into_iter().zip(divided) {
            self.down(below, &work_mops);
        }
    }

    fn wave(&mut self) {
        let core: Vec<usize> = (0..self.is_core.len()).filter(|machine| self.is_core[*machine]).collect();
        core.iter().for_each(|machine| self.up(*machine));
        let place = |machine: usize| core.iter().position(|core| *core == machine).unwrap();
        let node = |machine: &usize| {
            let of = &self.world.machines[*machine];
            let is_top = *machine == core[0];
            let uplink = (!is_top).then(|| Uplink {
                parent: place(of.parent),
                down_bytes_s: of.down_bytes_s,
                up_bytes_s: of.up_bytes_s,
            });
            CoreNode { absorption: self.absorptions[*machine].clone(), uplink }
        };
        let application = |asked: &Asked| Application {
            weight: asked.weight,
            uplink_bytes_s: asked.uplink_bytes_s,
            entry: place(asked.machine),
        };
        let applications: Vec<Application> = self.world.asked.iter().map(application).collect();
        let solved = Core { nodes: core.iter().map(node).collect() }.solve(&self.ratios, &applications);
        self.rates = vec![Vec::new(); self.is_core.len()];
        for (machine, work_mops) in core.into_iter().zip(solved) {
            self.down(machine, &work_mops);
        }
    }
}

fn log_uniform(low: f64, high: f64) -> impl Strategy<Value = f64> + Clone {
    (low.ln()..high.ln()).prop_map(f64::exp)
}

fn machines() -> impl Strategy<Value = Vec<Machine>> {
    let machine = (any::<prop::sample::Index>(), 1.0..10.0_f64, log_uniform(0.5, 100.0), log_uniform(0.5, 100.0));
    prop::collection::vec(machine, 1..25).prop_map(|drawn| {
        let of = |(number, (parent, speed_mops, down_bytes_s, up_bytes_s)): (
            usize,
            (prop::sample::Index, f64, f64, f64),
        )| {
            Machine { parent: if number == 0 { 0 } else { parent.index(number) }, speed_mops, down_bytes_s, up_bytes_s }
        };
        drawn.into_iter().enumerate().map(of).collect()
    })
}

fn asked() -> impl Strategy<Value = Vec<(f64, f64, f64, prop::sample::Index)>> {
    let ratio = prop_oneof![1 => Just(0.0), 1 => Just(2.0), 6 => log_uniform(0.01, 1000.0)];
    let uplink = prop_oneof![3 => Just(1e6), 1 => log_uniform(1.0, 100.0)];
    prop::collection::vec((ratio, log_uniform(0.2, 5.0), uplink, any::<prop::sample::Index>()), 1..6)
}

fn world() -> impl Strategy<Value = World> {
    (machines(), asked()).prop_map(|(machines, asked)| {
        let of = |(ratio, weight, uplink_bytes_s, machine): (f64, f64, f64, prop::sample::Index)| Asked {
            ratio,
            weight,
            uplink_bytes_s,
            machine: machine.index(machines.len()),
        };
        World { asked: asked.into_iter().map(of).collect(), machines }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn one_wave_is_feasible_and_as_good_as_the_best(world in world()) {
        let mut fold = Fold::of(&world);
        fold.wave();
        for (load, limit) in world.loads(&fold.rates) {
            prop_assert!(load <= limit * (1.0 + 1e-9), "{load} of {limit}");
        }
        let of = |application: usize| fold.rates.iter().map(|rates| rates[application]).sum::<f64>();
        let work: Vec<f64> = (0..world.asked.len()).map(of).collect();
        // The solver is right to a share of the sum of weights.
        let gap = world.gap(&work) / world.asked.iter().map(|asked| asked.weight).sum::<f64>().max(1.0);
        prop_assert!(gap <= 1e-5, "the best may be better by {gap} for each unit of weight");
    }

    /// No link between machines counts, as on idlewood's own tree; what the root computes reaches the machines.
    #[test]
    fn division_loses_nothing_on_the_way_down(
        machines in prop::collection::vec((1.0..10.0_f64, log_uniform(0.1, 1000.0)), 1..40),
        ratios in prop::collection::vec(log_uniform(0.001, 1000.0), 1..13),
        demands in prop::collection::vec(0.0..1.0_f64, 12),
    ) {
        let ratios = Ratios::new(ratios).unwrap();
        let parts: Vec<Absorption> =
            machines.iter().map(|(speed, link)| Absorption::of_machine(&ratios, *speed, *link)).collect();
        let mut whole = Absorption::none(&ratios);
        parts.iter().for_each(|part| whole.add(part));
        let drawn = &demands[..ratios.applications()];
        // As much as just fits.
        let scale = whole.load(&ratios, drawn).max(1e-9);
        let demand: Vec<f64> = drawn.iter().map(|work| work / scale).collect();
        let divided = Absorption::divide(&ratios, &demand, &parts);
        for (application, demanded) in demand.iter().enumerate() {
            let given: f64 = divided.iter().map(|part| part[application]).sum();
            prop_assert!((given - demanded).abs() <= 1e-9 * (1.0 + demanded), "{given} of {demanded}");
        }
        for ((speed, link), work) in machines.iter().zip(&divided) {
            let bytes: f64 = work.iter().enumerate().map(|(application, work)| work * ratios.of(application)).sum();
            prop_assert!(work.iter().all(|work| *work >= 0.0));
            prop_assert!(work.iter().sum::<f64>() <= speed * (1.0 + 1e-9));
            prop_assert!(bytes <= link * (1.0 + 1e-9), "{bytes} of {link}");
        }
    }

    #[test]
    fn whole_tasks_are_exact(tasks in 0..1_u64 << 50, rates in prop::collection::vec(prop_oneof![Just(0.0), 1e-9..1e9_f64], 1..40)) {
        let parts = whole_tasks(tasks, &rates);
        let sum: f64 = rates.iter().sum();
        if sum == 0.0 {
            prop_assert!(parts.iter().all(|part| *part == 0));
            return Ok(());
        }
        prop_assert_eq!(parts.iter().sum::<u64>(), tasks);
        for (part, rate) in parts.iter().zip(&rates) {
            let exact = tasks as f64 * (rate / sum);
            prop_assert!((*part as f64 - exact).abs() < 1.0 + exact * 1e-12);
            prop_assert!(*rate > 0.0 || *part == 0);
        }
    }
}

/// Weights 1:2:4 come out as 1:2:4 where all compute only.
#[test]
fn weights_are_kept_where_all_compute_only() {
    let ratios = Ratios::new(vec![0.0; 3]).unwrap();
    let node = CoreNode { absorption: Absorption::of_machine(&ratios, 700.0, 0.0), uplink: None };
    let of = |weight| Application { weight, uplink_bytes_s: 0.0, entry: 0 };
    let rates = Core { nodes: vec![node] }.solve(&ratios, &[of(1.0), of(2.0), of(4.0)]);
    for (rate, expected) in rates[0].iter().zip([100.0, 200.0, 400.0]) {
        assert!((rate - expected).abs() < 1e-6, "{rates:?}");
    }
}

/// 32 applications, as many as a grid admits.
#[test]
fn an_application_limited_by_its_own_uplink_leaves_the_rest_to_others() {
    let ratios = Ratios::new((1..=32).map(|number| f64::from(number) / 10.0).collect()).unwrap();
    let mut whole = Absorption::none(&ratios);
    (0..100).for_each(|_| whole.add(&Absorption::of_machine(&ratios, 10.0, 1e6)));
    let application =
        |number: u32| Application { weight: 1.0, uplink_bytes_s: if number == 31 { 3.2 } else { 1e6 }, entry: 0 };
    let applications: Vec<Application> = (0..32).map(application).collect();
    let rates = Core { nodes: vec![CoreNode { absorption: whole, uplink: None }] }.solve(&ratios, &applications);
    let (last, others) = rates[0].split_last().unwrap();
    assert!((last - 1.0).abs() < 1e-6, "{last}");
    assert!(others.iter().all(|rate| (rate - 999.0 / 31.0).abs() < 1e-6), "{others:?}");
}

#[test]
fn a_ratio_that_is_none_is_refused_with_a_sentence() {
    let error = Ratios::new(vec![1.0, f64::NAN]).unwrap_err();
    assert_eq!(error.to_string(), "application 1 has NaN bytes for a Mop: write a finite number that is not negative");
    assert!(Ratios::new(vec![-1.0]).is_err() && Ratios::new(vec![f64::INFINITY]).is_err());
}
