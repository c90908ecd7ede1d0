//! The optimiser of `agent/tasks/evolve`, on machines that are equally fast or not.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use idlewood_scheduler::rounds::{Costs, Curve, ITERATIONS_MAX, Mode, PartialRun, Process, Slot, Step, Sweep, map};
use serde_json::{Value, json};

use super::grid::{Ended, Grid};
use super::{mean, percent, rounded};

/// The topologies of the optimiser, each a class of processes.
const TOPOLOGIES: [&str; 4] = ["regular", "scale-free", "small-world", "random"];
/// Processes and rounds of the optimiser.
const PROCESSES: usize = 8;
const ROUNDS: u64 = 6;
/// How long two rounds may take.
const PATIENCE: Duration = Duration::from_secs(3600);
const OWNER_STAYS: Duration = Duration::from_secs(30);

impl Grid<'_> {
    fn evolve(&self, topology: &str, seed: u64, iterations: u64) -> Vec<String> {
        let (seed, iterations) = (seed.to_string(), iterations.to_string());
        let args = ["--function", "2", "--topology", topology, "--seed", &seed, "--iterations", &iterations];
        args.map(str::to_owned).to_vec()
    }

    /// What an iteration of each topology costs, by the product's sweep; and how many runs that took.
    pub(super) fn sweep(&self) -> Result<(Vec<Curve>, u64), String> {
        let (mut curves, mut runs) = (Vec::new(), 0);
        for topology in TOPOLOGIES {
            let mut sweep = Sweep::new(ITERATIONS_MAX);
            let curve = loop {
                let iterations = match sweep.step() {
                    Step::Known(estimate) => break estimate.curve,
                    Step::Run(iterations) => iterations,
                };
                let fixed = ["--program".to_owned(), self.task("evolve"), "--".to_owned()];
                let words: Vec<String> = fixed.into_iter().chain(self.evolve(topology, 1, iterations)).collect();
                runs += 1;
                sweep.ended(PartialRun { iterations, took: Duration::from_secs_f64(self.bag(&words)?.took_s) });
            };
            curves.push(curve);
        }
        Ok((curves, runs))
    }

    /// Runs it in one of the modes; a line. `curves` are of a whole processor.
    pub(super) fn optimiser(&mut self, mode: &str, curves: &[Curve], runs: u64) -> Result<Value, String> {
        // Two rounds of one iteration: what lies between rounds, beside the processes' own time.
        let short = self.bag(&self.optimise(mode, 2, 1)?)?.took_s;
        let share = |machine: usize| self.options.quotas.get(machine).map_or(1.0, |percent| *percent as f64 / 100.0);
        let slowed = |machine: usize| {
            let slow = |curve: &Curve| Curve {
                start_s: curve.start_s / share(machine),
                iteration_s: curve.iteration_s / share(machine),
            };
            curves.iter().map(slow).collect::<Vec<_>>()
        };
        let slots: Vec<Slot> = (0..self.options.agents).map(|machine| Slot { machine, free_s: 0.0 }).collect();
        let process = |number: usize| Process { class: number % 4, iterations: self.options.iterations, home: None };
        let processes: Vec<Process> = (0..PROCESSES).map(process).collect();
        let one: Vec<Process> = processes.iter().map(|it| Process { iterations: 1, ..*it }).collect();
        let curves_of_machines = (0..self.options.agents).map(slowed).collect();
        let costs = Costs { curves: curves_of_machines, transfer_s: 0.0, merge_s: 0.0 };
        // Processes of a round wait for none of each other, so that each round is mapped by Algorithm 2, as the ledger does.
        let round_s = |processes: &[Process]| {
            map(Mode::Asynchronous, processes, &slots, &costs).map(|mapping| mapping.ends_s).ok_or("no slot")
        };
        let between_s = ((short - 2.0 * round_s(&one)?) / 2.0).max(0.0);
        let predicted_s = ROUNDS as f64 * (round_s(&processes)? + between_s);
        let (mut before, mut during, mut took) = (Vec::new(), Vec::new(), Vec::new());
        let mut fronts = BTreeSet::new();
        for _ in 0..self.options.runs {
            let id = self.submit(&self.optimise(mode, ROUNDS, self.options.iterations)?)?;
            if self.options.is_disturbed {
                self.disturb(&id)?;
            }
            let Ended { id, shown, took_s } = self.wait(id)?;
            if self.options.is_disturbed {
                self.revive(self.killed())?;
            }
            let whole = ROUNDS * PROCESSES as u64;
            let done: u64 = shown["rounds"]["done"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
            if done != whole {
                return Err(format!("{done} of {whole} processes are done: {shown}"));
            }
            fronts.insert(self.front(&id)?);
            before.push(percent(predicted_s, took_s));
            during.extend(shown["prediction_error_percent"].as_f64());
            took.push(took_s);
        }
        if mode == "sync" && fronts.len() > 1 {
            return Err(format!("runs of mode sync found {} different fronts", fronts.len()));
        }
        // The same in every run of mode sync, disturbed or not, with the same iterations.
        let front = fronts.first().filter(|_| mode == "sync").map(|front| blake3::hash(front).to_hex().to_string());
        let statuses = self.statuses();
        let of_each = |name: &str| statuses.iter().map(|status| status[name].clone()).collect::<Vec<_>>();
        Ok(json!({
            "bags": "optimiser", "mode": mode, "processes": PROCESSES, "rounds": ROUNDS, "iterations": self.options.iterations,
            "agents": self.options.agents, "runs": self.options.runs, "partial_runs": runs,
            "quotas_percent": self.options.quotas, "hidden": self.options.is_hidden, "disturbed": self.options.is_disturbed,
            "speeds_mops": of_each("speed_mops"), "tasks_run": of_each("tasks_run"), "front": front,
            "iteration_ms": curves.iter().map(|curve| rounded(1000.0 * curve.iteration_s)).collect::<Vec<_>>(),
            "start_ms": curves.iter().map(|curve| rounded(1000.0 * curve.start_s)).collect::<Vec<_>>(),
            "between_rounds_s": rounded(between_s), "predicted_s": rounded(predicted_s), "took_s": took.iter().map(|&took_s| rounded(took_s)).collect::<Vec<_>>(),
            "error_before_percent": rounded(mean(&before)), "error_while_it_ran_percent": rounded(mean(&during)),
        }))
    }

    /// The words that submit it.
    fn optimise(&self, mode: &str, rounds: u64, iterations: u64) -> Result<Vec<String>, String> {
        let list = self.root.join("processes.txt");
        let lines: Vec<String> = (0..PROCESSES).map(|it| format!("{} {}\n", TOPOLOGIES[it % 4], it + 1)).collect();
        fs::write(&list, lines.concat()).map_err(|error| error.to_string())?;
        let (list, rounds, iterations) = (list.display().to_string(), rounds.to_string(), iterations.to_string());
        let (evolve, pareto) = (self.task("evolve"), self.task("pareto"));
        let fixed = ["--program", &evolve, "--each-line", &list, "--colsep", " ", "--merge", &pareto, "--mode", mode];
        let rest = ["--rounds", &rounds, "--iterations", &iterations, "--work", "1000", "--", "--function", "2"];
        let args = ["--topology", "{1}", "--seed", "{2}", "--iterations", "{iterations}"];
        Ok(fixed.iter().chain(&rest).chain(&args).map(|word| (*word).to_owned()).collect())
    }

    /// The front of the last round.
    fn front(&self, id: &str) -> Result<Vec<u8>, String> {
        let out = self.root.join(format!("results-{id}"));
        self.ask(&["bag", "get", id, "--out", &out.display().to_string()])?;
        fs::read(out.join("merged/front")).map_err(|error| format!("the merge left no front: {error}"))
    }

    /// The agent that is killed where runs are disturbed.
    fn killed(&self) -> usize {
        self.options.agents - 2
    }

    /// Kills one machine, and gives another one's owner half a minute, once two rounds are complete.
    fn disturb(&mut self, id: &str) -> Result<(), String> {
        let begin = Instant::now();
        while self.ask(&["bag", "show", id])?["rounds"]["complete"].as_u64() < Some(2) {
            if begin.elapsed() > PATIENCE {
                return Err("no two rounds were complete".to_owned());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        self.kill(self.killed())?;
        self.set_owner(1, true)?;
        std::thread::sleep(OWNER_STAYS);
        self.set_owner(1, false)
    }
}
