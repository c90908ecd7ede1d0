//! How wrong predicted run times are on real agents, left alone by owners and other bags: for `docs/lab/prediction.md`.
//!
//! Three programs that compute: the demo's tiles, the solver of `wasi_smt_bag` where its directory is given, and the optimiser of `agent/tasks/evolve`.
//! Of each bag two predictions are judged by its end. *Before it*: of tiles and problems by the time of the first task alone, as a bag without
//! `--work` is measured; of the optimiser by a sweep of short runs of one process of each topology ([`Sweep`], Netto and others 2011, §4.1), a first merge, and the paper's
//! mapping ([`map`]). *While it ran*: the mean error of the ends predicted after each tenth of its tasks, as `bag show` says it. Both in percent, the first
//! of the time that the bag really took from its first start, the second of its whole time.
//!
//! Left out: machines of different speeds, since all agents are on this one; owners.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use idlewood::tiles::Picture;
use idlewood_scheduler::rounds::{Costs, Curve, ITERATIONS_MAX, Mode, PartialRun, Process, Slot, Step, Sweep, map};
use serde_json::{Value, json};

/// The topologies of the optimiser, each a class of processes.
const TOPOLOGIES: [&str; 4] = ["regular", "scale-free", "small-world", "random"];
/// Processes and rounds of the optimiser.
const PROCESSES: usize = 8;
const ROUNDS: u64 = 6;
/// How long agents may take to become one grid.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to measure, and on what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent's program.
    pub program: PathBuf,
    /// Agents of one slot each.
    pub agents: usize,
    /// Bags of each kind.
    pub runs: u64,
    /// Tiles of the picture.
    pub tiles: u32,
    /// Iterations of a process of the optimiser in a round.
    pub iterations: u64,
    /// The directory of the solver and its problems.
    pub solver: Option<PathBuf>,
}

struct Agent {
    dir: PathBuf,
    process: Child,
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.process.kill().and_then(|()| self.process.wait()).is_err() {
            eprintln!("an agent had ended already");
        }
    }
}

struct Grid<'a> {
    options: &'a Options,
    agents: Vec<Agent>,
    root: PathBuf,
}

/// One bag that has ended.
#[derive(Clone, Debug)]
struct Ended {
    shown: Value,
    /// From its first start to its end, in seconds.
    took_s: f64,
}

/// Prints a line of JSON for each kind of bag.
///
/// # Errors
/// A sentence: what went wrong. No agent is left running.
pub fn run(options: &Options, root: &Path) -> Result<(), String> {
    let grid = Grid::start(options, root)?;
    let tiles = grid.tile_args();
    let bag = |of: &[String], what: &[&str]| -> Vec<String> {
        what.iter().map(|word| (*word).to_owned()).chain(of.iter().cloned()).collect()
    };
    let tile = grid.task("tile");
    let mut lines = vec![grid.plain("tiles", &|tasks| {
        let range = format!("0-{}", tasks.unwrap_or(u64::from(options.tiles)) - 1);
        bag(&tiles, &["--program", &tile, "--array", &range, "--"])
    })?];
    if let Some(solver) = &options.solver {
        let problems = solver.join("tasks").display().to_string();
        let program = solver.join("boolector.wasm").display().to_string();
        lines.push(grid.plain("solver", &|tasks| {
            // The first problem by name is the bag's first task.
            let pattern = if tasks.is_some() { format!("{problems}/000_*") } else { format!("{problems}/*.smt2") };
            let words = ["--program", &program, "--glob", &pattern, "--stdin", "{}", "--success-codes", "10,20"];
            bag(&["--".to_owned(), "--smt2".to_owned()], &words)
        })?);
    }
    let (curves, runs) = grid.sweep()?;
    for mode in ["sync", "async"] {
        lines.push(grid.optimiser(mode, &curves, runs)?);
    }
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn percent(predicted_s: f64, took_s: f64) -> f64 {
    100.0 * (predicted_s - took_s).abs() / took_s
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl<'a> Grid<'a> {
    fn start(options: &'a Options, root: &Path) -> Result<Self, String> {
        let mut grid = Self { options, agents: Vec::new(), root: root.to_owned() };
        let mut token = String::new();
        for number in 0..options.agents.max(1) {
            let dir = root.join(format!("agent-{number}"));
            fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
            if number == 0 {
                grid.command(&dir, &["grid", "create", "--name", "predictions"])?;
            } else {
                grid.command(&dir, &["grid", "join", &token])?;
            }
            let first = grid.agents.first().map(|agent| agent.dir.clone());
            let process = grid.spawn(&dir, first.as_deref())?;
            grid.agents.push(Agent { dir: dir.clone(), process });
            let begin = Instant::now();
            while grid.command(&dir, &["status"]).is_err() {
                if begin.elapsed() > PATIENCE {
                    return Err(format!("agent {number} does not answer: see {}", dir.display()));
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            if number == 0 {
                let uses = options.agents.to_string();
                let made = grid.command(&dir, &["grid", "invite", "--role", "submitter", "--uses", &uses])?;
                token = made["token"].as_str().ok_or("an invitation without a token")?.to_owned();
            }
        }
        let begin = Instant::now();
        while grid.ask(&["status"])?["grid_machines"] != json!(grid.agents.len()) {
            if begin.elapsed() > PATIENCE {
                return Err("the agents did not become one grid".to_owned());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(grid)
    }

    fn spawn(&self, dir: &Path, first: Option<&Path>) -> Result<Child, String> {
        let log = fs::File::create(dir.join("agent.log")).map_err(|error| error.to_string())?;
        fs::write(dir.join("config.toml"), "[owner]\non_battery = true\n").map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.options.program);
        command.args(["run", "--listen", "/ip4/127.0.0.1/tcp/0", "--slots", "1", "--die-with-parent"]);
        command.arg("--state-dir").arg(dir).arg("--config").arg(dir.join("config.toml"));
        // No file is there: nobody is.
        command.arg("--owner-probe").arg(dir.join("owner"));
        if let Some(first) = first {
            let status = self.command(first, &["status"])?;
            let address = status["listen"][0].as_str().ok_or("an agent that listens nowhere")?.to_owned();
            command.arg("--bootstrap").arg(address);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().map_err(|error| format!("{} does not start: {error}", self.options.program.display()))
    }

    fn command(&self, dir: &Path, words: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(&self.options.program);
        command.arg("--state-dir").arg(dir).args(["--output", "json"]).args(words);
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null))
    }

    /// What the submitting agent answers.
    fn ask(&self, words: &[&str]) -> Result<Value, String> {
        self.command(&self.agents[0].dir, words)
    }

    fn task(&self, name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../agent/tasks/{name}/{name}.wasm"));
        path.display().to_string()
    }

    /// The arguments of a picture of so many tiles.
    fn tile_args(&self) -> Vec<String> {
        let tiles = self.options.tiles;
        let rows = (1..=tiles.isqrt()).rev().find(|rows| tiles.is_multiple_of(*rows)).unwrap_or(1);
        let columns = tiles / rows;
        let tile = (1024 / columns.max(rows)).max(8);
        Picture { width: tile * columns, height: tile * rows, tile, ..Picture::demo(1) }.args()
    }

    /// Submits a bag and waits for its end.
    fn bag(&self, words: &[String]) -> Result<Ended, String> {
        let words: Vec<&str> =
            ["submit", "--stewards", "0"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let bag = self.ask(&words)?;
        let id = bag["id"].as_str().ok_or("a bag without an id")?.to_owned();
        self.ask(&["bag", "wait", &id])?;
        let shown = self.ask(&["bag", "show", &id])?;
        let number = |name: &str| shown[name].as_f64().ok_or(format!("the bag has no {name}"));
        let took_s = number("elapsed_s")? - number("first_start_s")?;
        Ok(Ended { took_s, shown })
    }

    /// A kind of bags without rounds: `words` for its first task alone, or for all.
    fn plain(&self, name: &str, words: &dyn Fn(Option<u64>) -> Vec<String>) -> Result<Value, String> {
        let (mut before, mut during, mut spread) = (Vec::new(), Vec::new(), (f64::INFINITY, 0.0_f64));
        let mut tasks = 0;
        for _ in 0..self.options.runs {
            let first_s = self.bag(&words(Some(1)))?.took_s;
            let Ended { shown, took_s } = self.bag(&words(None))?;
            tasks = shown["tasks"].as_u64().unwrap_or(0);
            let each = tasks.div_ceil(self.agents.len() as u64);
            before.push(percent(first_s * each as f64, took_s));
            during.extend(shown["prediction_error_percent"].as_f64());
            let of = |name: &str| shown[name].as_f64().unwrap_or(f64::NAN);
            spread = (spread.0.min(of("task_s_least")), spread.1.max(of("task_s_most")));
        }
        Ok(json!({
            "bags": name, "tasks": tasks, "agents": self.agents.len(), "runs": self.options.runs,
            "task_s_least": spread.0, "task_s_most": spread.1,
            "error_before_percent": rounded(mean(&before)), "error_while_it_ran_percent": rounded(mean(&during)),
        }))
    }

    fn evolve(&self, topology: &str, seed: u64, iterations: u64) -> Vec<String> {
        let (seed, iterations) = (seed.to_string(), iterations.to_string());
        let args = ["--function", "2", "--topology", topology, "--seed", &seed, "--iterations", &iterations];
        args.map(str::to_owned).to_vec()
    }

    /// What an iteration of each topology costs, by the product's sweep; and how many runs that took.
    fn sweep(&self) -> Result<(Vec<Curve>, u64), String> {
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

    fn optimiser(&self, mode: &str, curves: &[Curve], runs: u64) -> Result<Value, String> {
        let list = self.root.join("processes.txt");
        let lines: Vec<String> = (0..PROCESSES).map(|it| format!("{} {}\n", TOPOLOGIES[it % 4], it + 1)).collect();
        fs::write(&list, lines.concat()).map_err(|error| error.to_string())?;
        let submit = |rounds: u64, iterations: u64| -> Vec<String> {
            let (list, rounds, iterations) = (list.display().to_string(), rounds.to_string(), iterations.to_string());
            let (evolve, pareto) = (self.task("evolve"), self.task("pareto"));
            let fixed =
                ["--program", &evolve, "--each-line", &list, "--colsep", " ", "--merge", &pareto, "--mode", mode];
            let rest = ["--rounds", &rounds, "--iterations", &iterations, "--work", "1000", "--", "--function", "2"];
            let args = ["--topology", "{1}", "--seed", "{2}", "--iterations", "{iterations}"];
            fixed.iter().chain(&rest).chain(&args).map(|word| (*word).to_owned()).collect()
        };
        // Two rounds of one iteration: what lies between rounds, beside the processes' own time.
        let short = self.bag(&submit(2, 1))?.took_s;
        let slots: Vec<Slot> = (0..self.agents.len()).map(|machine| Slot { machine, free_s: 0.0 }).collect();
        let process = |number: usize| Process { class: number % 4, iterations: self.options.iterations, home: None };
        let processes: Vec<Process> = (0..PROCESSES).map(process).collect();
        let one: Vec<Process> = processes.iter().map(|it| Process { iterations: 1, ..*it }).collect();
        let costs = Costs { curves: vec![curves.to_vec(); slots.len()], transfer_s: 0.0, merge_s: 0.0 };
        // Processes of a round wait for none of each other, so that each round is mapped by Algorithm 2, as the ledger does.
        let round_s = |processes: &[Process]| {
            map(Mode::Asynchronous, processes, &slots, &costs).map(|mapping| mapping.ends_s).ok_or("no slot")
        };
        let between_s = ((short - 2.0 * round_s(&one)?) / 2.0).max(0.0);
        let predicted_s = ROUNDS as f64 * (round_s(&processes)? + between_s);
        let (mut before, mut during, mut took) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.options.runs {
            let Ended { shown, took_s } = self.bag(&submit(ROUNDS, self.options.iterations))?;
            before.push(percent(predicted_s, took_s));
            during.extend(shown["prediction_error_percent"].as_f64());
            took.push(took_s);
        }
        Ok(json!({
            "bags": "optimiser", "mode": mode, "processes": PROCESSES, "rounds": ROUNDS, "iterations": self.options.iterations,
            "agents": self.agents.len(), "runs": self.options.runs, "partial_runs": runs,
            "iteration_ms": curves.iter().map(|curve| rounded(1000.0 * curve.iteration_s)).collect::<Vec<_>>(),
            "start_ms": curves.iter().map(|curve| rounded(1000.0 * curve.start_s)).collect::<Vec<_>>(),
            "between_rounds_s": rounded(between_s), "predicted_s": rounded(predicted_s), "took_s": rounded(mean(&took)),
            "error_before_percent": rounded(mean(&before)), "error_while_it_ran_percent": rounded(mean(&during)),
        }))
    }
}
