//! How wrong predicted run times are on real agents, left alone by owners and other bags: for `docs/lab/prediction.md`.
//!
//! Three programs that compute: the demo's tiles, the solver of `wasi_smt_bag` where its directory is given, and the optimiser of `agent/tasks/evolve`.
//! Of each bag two predictions are judged by its end. *Before it*: of tiles and problems by the time of the first task alone, as a bag without
//! `--work` is measured; of the optimiser by a sweep of short runs of one process of each topology ([`Sweep`](idlewood_scheduler::rounds::Sweep), Netto and others 2011, §4.1), a first merge, and the paper's
//! mapping ([`map`](idlewood_scheduler::rounds::map)). *While it ran*: the mean error of the ends predicted after each tenth of its tasks, as `bag show` says it. Both in percent, the first
//! of the time that the bag really took from its first start, the second of its whole time.
//!
//! With quotas the optimiser alone is run, on machines of which each has so many percent of a processor, and predicted by a mapping that knows them
//! ([`Options::quotas`]). Where it is disturbed ([`Options::is_disturbed`]) one machine is killed and one taken by its owner, of which the prediction before it
//! knows nothing. Synchronous runs with the same iterations have to find the same front, disturbed or not: runs of one command are compared, and the hash is printed.

mod grid;
mod optimiser;
mod options;

use std::path::Path;

use idlewood::tiles::Picture;
use serde_json::{Value, json};

use self::grid::{Ended, Grid};
pub use self::options::Options;

/// Prints a line of JSON for each kind of bag.
///
/// # Errors
/// A sentence: what went wrong. No agent is left running.
pub fn run(options: &Options, root: &Path) -> Result<(), String> {
    let mut grid = Grid::start(options, root)?;
    let (curves, runs) = grid.sweep()?;
    grid.join_others()?;
    let mut lines = if options.quotas.is_empty() { grid.without_rounds()? } else { Vec::new() };
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

impl Grid<'_> {
    /// The arguments of a picture of so many tiles.
    fn tile_args(&self) -> Vec<String> {
        let tiles = self.options.tiles;
        let rows = (1..=tiles.isqrt()).rev().find(|rows| tiles.is_multiple_of(*rows)).unwrap_or(1);
        let columns = tiles / rows;
        let tile = (1024 / columns.max(rows)).max(8);
        Picture { width: tile * columns, height: tile * rows, tile, ..Picture::demo(1) }.args()
    }

    /// The bags without rounds, a line for each kind.
    fn without_rounds(&self) -> Result<Vec<Value>, String> {
        let tiles = self.tile_args();
        let bag = |of: &[String], what: &[&str]| -> Vec<String> {
            what.iter().map(|word| (*word).to_owned()).chain(of.iter().cloned()).collect()
        };
        let tile = self.task("tile");
        let mut lines = vec![self.plain("tiles", &|tasks| {
            let range = format!("0-{}", tasks.unwrap_or(u64::from(self.options.tiles)) - 1);
            bag(&tiles, &["--program", &tile, "--array", &range, "--"])
        })?];
        if let Some(solver) = &self.options.solver {
            let problems = solver.join("tasks").display().to_string();
            let program = solver.join("boolector.wasm").display().to_string();
            lines.push(self.plain("solver", &|tasks| {
                // The first problem by name is the bag's first task.
                let pattern = if tasks.is_some() { format!("{problems}/000_*") } else { format!("{problems}/*.smt2") };
                let words = ["--program", &program, "--glob", &pattern, "--stdin", "{}", "--success-codes", "10,20"];
                bag(&["--".to_owned(), "--smt2".to_owned()], &words)
            })?);
        }
        Ok(lines)
    }

    /// A kind of bags without rounds: `words` for its first task alone, or for all.
    fn plain(&self, name: &str, words: &dyn Fn(Option<u64>) -> Vec<String>) -> Result<Value, String> {
        let (mut before, mut during, mut spread) = (Vec::new(), Vec::new(), (f64::INFINITY, 0.0_f64));
        let mut tasks = 0;
        for _ in 0..self.options.runs {
            let first_s = self.bag(&words(Some(1)))?.took_s;
            let Ended { shown, took_s, .. } = self.bag(&words(None))?;
            tasks = shown["tasks"].as_u64().unwrap_or(0);
            let each = tasks.div_ceil(self.options.agents as u64);
            before.push(percent(first_s * each as f64, took_s));
            during.extend(shown["prediction_error_percent"].as_f64());
            let of = |name: &str| shown[name].as_f64().unwrap_or(f64::NAN);
            spread = (spread.0.min(of("task_s_least")), spread.1.max(of("task_s_most")));
        }
        Ok(json!({
            "bags": name, "tasks": tasks, "agents": self.options.agents, "runs": self.options.runs,
            "task_s_least": spread.0, "task_s_most": spread.1,
            "error_before_percent": rounded(mean(&before)), "error_while_it_ran_percent": rounded(mean(&during)),
        }))
    }
}
