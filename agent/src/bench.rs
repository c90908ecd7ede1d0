//! `idlewood bench`: the cost of small tasks, from the submission to the acknowledged result.
//!
//! Agent processes with state directories of their own, as in the demo, get one bag of tasks that do nothing (or
//! compute for five milliseconds). Everything on the way is real: control API, signed and journalled bag, queue, worker
//! processes, durable results, acknowledgements. When the bag is closed and no executor keeps an unacknowledged result,
//! every result is checked.
//!
//! The figures are the system's: processor time and bytes written of each agent and its workers from before the
//! submission to the last acknowledgement, and of this program, the client, in the same time. After that the client asks for the
//! first ten results, kills the submitter, and starts it again until it knows the bag. Left out of the processor time: starting
//! and ending the agents, checking the results, the restart.

mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal as _, Seek as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use idlewood_api::client::Client;
use idlewood_api::{BagState, SubmitRequest, TaskResult};
use idlewood_trust::manifest::Input;
use serde::Serialize;

use self::processes::{Usage, own_cpu, usage};
use crate::demo::grid::{Grid, Interrupt};

/// The task programs: `agent/tasks/{noop,spin,distinct}`, built by `agent/tasks/build.sh`.
const NOOP_PROGRAM: &[u8] = include_bytes!("../tasks/noop/noop.wasm");
const SPIN_PROGRAM: &[u8] = include_bytes!("../tasks/spin/spin.wasm");
const DISTINCT_PROGRAM: &[u8] = include_bytes!("../tasks/distinct/distinct.wasm");
/// How long the agents may take to become one grid.
const FORM_TIMEOUT: Duration = Duration::from_secs(45);
/// A bag whose count does not move for so long has failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Our choice: more agents than a machine has processors measure the machine.
const AGENTS_MAX: u32 = 16;
/// How often the agents are asked for progress, and their memory is measured.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long the submitter may take to start again: a million results take some ten seconds.
const RESTART_TIMEOUT: Duration = Duration::from_secs(600);
/// Results that are asked for as `bag get --index 0-9` does.
const FIRST_RESULTS: std::ops::RangeInclusive<u64> = 0..=9;
/// Speed of a slot, Mop/s: measuring it would only take time, since no task declares its work.
const SPEED_MOPS: f64 = 1000.0;

/// The work of each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TaskKind {
    /// Nothing.
    Noop,
    /// Computes until the clock says that five milliseconds have passed.
    #[value(name = "5ms")]
    FiveMs,
}

impl TaskKind {
    /// Duration of one task; `None`: none.
    fn span(self) -> Option<Duration> {
        match self {
            Self::Noop => None,
            Self::FiveMs => Some(Duration::from_millis(5)),
        }
    }
}

/// Options of `idlewood bench`.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Tasks of the bag.
    pub tasks: u64,
    /// The work of each task.
    pub task: TaskKind,
    /// Each prints a line of its own, of about 100 bytes, so that no two outputs are equal.
    pub distinct: bool,
    /// Agent processes, of which the first submits.
    pub agents: u32,
    /// No progress on stderr.
    pub quiet: bool,
}

/// One agent's part.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct AgentReport {
    /// `submitter`, which executes too, or `executor`.
    pub role: &'static str,
    /// Tasks whose result came from there.
    pub executed: u64,
    /// Processor time of the agent process, divided by the tasks of the whole bag, in µs.
    pub agent_cpu_us_per_task: f64,
    /// Processor time of its workers, divided likewise; includes the tasks themselves.
    pub workers_cpu_us_per_task: f64,
    /// Bytes the agent and its workers caused to be written to disk.
    pub bytes_written: u64,
}

/// The result of a benchmark.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// Tasks submitted, and results found.
    pub tasks: u64,
    /// The work of each task.
    pub task: &'static str,
    /// Whether no two outputs were equal.
    pub distinct: bool,
    /// Processor time, user and system, of all agents, their workers and this client, divided by the tasks, in µs.
    pub cpu_us_per_task: f64,
    /// Tasks divided by the time from submission until the last result was acknowledged.
    pub tasks_per_s: f64,
    /// From the request with the bag to the answer that it is durable, with the program uploaded before.
    pub submit_s: f64,
    /// From the agent's acceptance of the submission until the first task ran in a worker.
    pub first_start_s: f64,
    /// From submission until the last result was acknowledged.
    pub makespan_s: f64,
    /// Resident memory of agents and workers, summed, shared pages counted in each: the maximum of ten samples a
    /// second.
    pub peak_rss_bytes: u64,
    /// Bytes written to disk by agents and workers.
    pub bytes_written: u64,
    /// Results of tasks that were finished already.
    pub duplicates: u64,
    /// Share of the slots' time from the first start to the last acknowledgement that was spent in tasks; only for
    /// tasks with a duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<f64>,
    /// From the request for the results of the first ten tasks to the answer.
    pub first_results_s: f64,
    /// From the start of the submitter, after it was killed, until it reports that the bag has succeeded.
    pub restart_s: f64,
    /// This client's part of `cpu_us_per_task`, in µs.
    pub client_cpu_us_per_task: f64,
    /// The agents, the submitter first.
    pub agents: Vec<AgentReport>,
}

/// Runs it and cleans up.
///
/// # Errors
/// When a result is missing or wrong, or the user interrupts; nothing is left running.
pub fn run(options: &BenchOptions) -> anyhow::Result<Report> {
    ensure!((1..=AGENTS_MAX).contains(&options.agents), "the benchmark has between 1 and {AGENTS_MAX} agents");
    ensure!((1..=10_000_000).contains(&options.tasks), "the benchmark has between 1 and 10,000,000 tasks");
    let interrupt = Interrupt::listen()?;
    let mut show = Show::new(options.quiet);
    show.line(&format!("starting {} on loopback", crate::output::count(u64::from(options.agents), "agent")));
    let mut grid = Grid::start("idlewood-bench-", options.agents as usize, SPEED_MOPS, &interrupt)?;
    grid.wait_until_formed(FORM_TIMEOUT, &interrupt)?;
    let client = grid.agents.first().context("no agent was started")?.client()?;
    let request = submission(&client, options)?;
    interrupt.check()?;

    let mut watch = Watch::begin(&grid)?;
    let begin = Instant::now();
    let bag = client.submit(&request)?;
    let submit_s = begin.elapsed().as_secs_f64();
    let first_start_s = watch.follow(&grid, &client, &bag.id, &mut show, &interrupt)?;
    let makespan_s = begin.elapsed().as_secs_f64();
    let spent = watch.end(&grid)?;

    show.line("looking at every result");
    let executed = check(client.results(&bag.id)?, options)?;
    let mut agents = Vec::new();
    for (number, (agent, usage)) in grid.agents.iter().zip(&spent.agents).enumerate() {
        let id = agent.status()?.peer;
        agents.push(AgentReport {
            role: if number == 0 { "submitter" } else { "executor" },
            executed: executed.get(&id).copied().unwrap_or(0),
            agent_cpu_us_per_task: per_task(usage.agent_cpu, options.tasks),
            workers_cpu_us_per_task: per_task(usage.workers_cpu, options.tasks),
            bytes_written: usage.bytes_written,
        });
    }
    let duplicates = client.bag(&bag.id)?.bag.duplicates;
    let first_results_s = time_first_results(&client, &bag.id, options.tasks)?;
    show.line("killing the submitter and starting it again");
    let restart_s = time_restart(&mut grid, &bag.id, &interrupt)?;
    let all: Duration = spent.agents.iter().map(|usage| usage.agent_cpu + usage.workers_cpu).sum();
    let slot_s = (makespan_s - first_start_s) * f64::from(options.agents);
    let report = Report {
        tasks: options.tasks,
        task: match options.task {
            TaskKind::Noop => "noop",
            TaskKind::FiveMs => "5ms",
        },
        distinct: options.distinct,
        cpu_us_per_task: per_task(all + spent.client_cpu, options.tasks),
        tasks_per_s: options.tasks as f64 / makespan_s,
        submit_s,
        first_start_s,
        makespan_s,
        peak_rss_bytes: spent.peak_rss_bytes,
        bytes_written: spent.agents.iter().map(|usage| usage.bytes_written).sum(),
        duplicates,
        efficiency: options.task.span().map(|span| options.tasks as f64 * span.as_secs_f64() / slot_s),
        first_results_s,
        restart_s,
        client_cpu_us_per_task: per_task(spent.client_cpu, options.tasks),
        agents,
    };
    grid.stop();
    Ok(report)
}

/// Seconds that the results of the first tasks take.
fn time_first_results(client: &Client, bag: &str, tasks: u64) -> anyhow::Result<f64> {
    let (begin, mut found) = (Instant::now(), 0);
    client.each_result(bag, FIRST_RESULTS, |_| found += 1)?;
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(found == tasks.min(FIRST_RESULTS.count() as u64), "{found} of the first results were found");
    Ok(seconds)
}

/// Seconds that the submitter takes from its start, after it was killed, until it says that the bag has succeeded.
fn time_restart(grid: &mut Grid, bag: &str, interrupt: &Interrupt) -> anyhow::Result<f64> {
    grid.agents[0].kill();
    let begin = Instant::now();
    grid.restart(0, interrupt)?;
    loop {
        interrupt.check()?;
        // While the agent starts it does not answer.
        let known = grid.agents[0].client().and_then(|client| Ok(client.bag(bag)?));
        match known {
            Ok(known) => {
                ensure!(known.bag.state == BagState::Succeeded, "after a restart the bag is {:?}", known.bag.state);
                return Ok(begin.elapsed().as_secs_f64());
            }
            Err(error) => ensure!(begin.elapsed() < RESTART_TIMEOUT, "the submitter does not start again: {error:#}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn per_task(cpu: Duration, tasks: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / tasks as f64
}

/// Uploads the program; returns the bag that runs it.
fn submission(client: &Client, options: &BenchOptions) -> anyhow::Result<SubmitRequest> {
    let (name, program, args) = match (options.task, options.distinct) {
        (TaskKind::Noop, false) => ("noop.wasm", NOOP_PROGRAM, Vec::new()),
        (TaskKind::FiveMs, false) => ("spin.wasm", SPIN_PROGRAM, vec!["5".to_owned()]),
        (kind, true) => {
            let line = format!("task {{index}} prints {}\n", "this and no other task prints it. ".repeat(2));
            // With one more argument it computes first.
            let compute = kind.span().map(|_| "compute".to_owned());
            ("distinct.wasm", DISTINCT_PROGRAM, std::iter::once(line).chain(compute).collect())
        }
    };
    let hash = blake3::hash(program);
    let mut file = tempfile::tempfile().context("cannot create a temporary file")?;
    file.write_all(program).and_then(|()| file.rewind()).context("cannot write a temporary file")?;
    client.upload(hash, &file)?;
    let blob = idlewood_scheduler::BlobId(*hash.as_bytes());
    let program = Input { name: name.to_owned(), blob, bytes: program.len() as u64 };
    Ok(SubmitRequest::plain("bench", options.tasks, program, args))
}

/// How many tasks each machine executed.
///
/// # Errors
/// When not every task has succeeded exactly once, or outputs are equal that should not be.
fn check(results: Vec<TaskResult>, options: &BenchOptions) -> anyhow::Result<BTreeMap<String, u64>> {
    let tasks = options.tasks;
    ensure!(results.len() as u64 == tasks, "{} results for {tasks} tasks", results.len());
    let (mut seen, mut outputs) = (BTreeSet::new(), BTreeSet::new());
    let mut executed: BTreeMap<String, u64> = BTreeMap::new();
    for result in results {
        ensure!(result.success, "task {} failed", result.index);
        ensure!(result.index < tasks && seen.insert(result.index), "task {} should not be there", result.index);
        let is_another = !options.distinct || outputs.insert(result.output);
        ensure!(is_another, "task {} has the output of another", result.index);
        *executed.entry(result.machine).or_default() += 1;
    }
    Ok(executed)
}

/// The use of resources between two moments.
struct Spent {
    /// Usage of each agent, without memory.
    agents: Vec<Usage>,
    client_cpu: Duration,
    peak_rss_bytes: u64,
}

/// Follows a bag to its last acknowledgement.
struct Watch {
    agents: Vec<Usage>,
    client_cpu: Duration,
    peak_rss_bytes: u64,
}

impl Watch {
    fn begin(grid: &Grid) -> anyhow::Result<Self> {
        Ok(Self { agents: usages(grid)?, client_cpu: own_cpu(), peak_rss_bytes: 0 })
    }

    /// Returns when every result is acknowledged, with the seconds until the first task started.
    fn follow(
        &mut self,
        grid: &Grid,
        client: &Client,
        id: &str,
        show: &mut Show,
        interrupt: &Interrupt,
    ) -> anyhow::Result<f64> {
        let (mut done, mut moved) = (0, Instant::now());
        loop {
            interrupt.check()?;
            let bag = client.bag(id)?.bag;
            show.progress(bag.done, bag.tasks);
            self.look(grid)?;
            if bag.done > done {
                (done, moved) = (bag.done, Instant::now());
            }
            if bag.state.is_closed() {
                ensure!(bag.state == BagState::Succeeded, "the bag ended as {:?}", bag.state);
                if acknowledged(grid)? {
                    return bag.first_start_s.context("the agent does not know when the first task started");
                }
            }
            ensure!(moved.elapsed() < STALL_TIMEOUT, "nothing happened for {} s", STALL_TIMEOUT.as_secs());
            // For the last acknowledgements look more often.
            let wait = if bag.state.is_closed() { Duration::from_millis(5) } else { LOOK_INTERVAL };
            std::thread::sleep(wait);
        }
    }

    fn look(&mut self, grid: &Grid) -> anyhow::Result<()> {
        let rss_bytes = usages(grid)?.iter().map(|usage| usage.rss_bytes).sum();
        self.peak_rss_bytes = self.peak_rss_bytes.max(rss_bytes);
        Ok(())
    }

    fn end(mut self, grid: &Grid) -> anyhow::Result<Spent> {
        self.look(grid)?;
        let agents = usages(grid)?.iter().zip(&self.agents).map(|(after, before)| after.since(before)).collect();
        let client_cpu = own_cpu().saturating_sub(self.client_cpu);
        Ok(Spent { agents, client_cpu, peak_rss_bytes: self.peak_rss_bytes })
    }
}

/// Whether no executor keeps anything of the bag any more.
fn acknowledged(grid: &Grid) -> anyhow::Result<bool> {
    for agent in &grid.agents {
        if !agent.status()?.held.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn usages(grid: &Grid) -> anyhow::Result<Vec<Usage>> {
    grid.agents.iter().map(|agent| usage(agent.pid().context("an agent has ended")?)).collect()
}

/// Progress for people, on stderr.
struct Show {
    quiet: bool,
    terminal: bool,
    begin: Instant,
    last: Instant,
}

impl Show {
    fn new(quiet: bool) -> Self {
        let now = Instant::now();
        Self { quiet, terminal: std::io::stderr().is_terminal(), begin: now, last: now }
    }

    fn line(&mut self, line: &str) {
        if !self.quiet {
            let clear = if self.terminal { "\r\x1b[2K" } else { "" };
            eprintln!("{clear}{:6.1} s  {line}", self.begin.elapsed().as_secs_f64());
        }
    }

    /// A line a second; on a terminal always the same one.
    fn progress(&mut self, done: u64, tasks: u64) {
        if self.quiet || self.last.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.last = Instant::now();
        if self.terminal {
            eprint!("\r\x1b[2K{:6.1} s  {done}/{tasks} tasks", self.begin.elapsed().as_secs_f64());
        } else {
            self.line(&format!("{done}/{tasks} tasks"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(index: u64, success: bool) -> TaskResult {
        TaskResult {
            index,
            entry: String::new(),
            attempt: 0,
            success,
            machine: "m".to_owned(),
            finished: String::new(),
            work_mops: 1.0,
            output: String::new(),
            output_bytes: 0,
        }
    }

    #[test]
    fn missing_and_wrong_results_are_noticed() {
        let options = BenchOptions { tasks: 2, task: TaskKind::Noop, distinct: false, agents: 1, quiet: true };
        let executed = check(vec![result(0, true), result(1, true)], &options).expect("all is there");
        assert_eq!(executed, BTreeMap::from([("m".to_owned(), 2)]));
        for (results, complaint) in [
            (vec![result(0, true)], "1 results for 2 tasks"),
            (vec![result(0, true), result(1, false)], "task 1 failed"),
            (vec![result(0, true), result(0, true)], "task 0 should not be there"),
            (vec![result(0, true), result(2, true)], "task 2 should not be there"),
        ] {
            assert_eq!(check(results, &options).expect_err("it is wrong").to_string(), complaint);
        }
        let distinct = BenchOptions { distinct: true, ..options };
        let error = check(vec![result(0, true), result(1, true)], &distinct).expect_err("they are equal");
        assert_eq!(error.to_string(), "task 1 has the output of another");
    }
}
