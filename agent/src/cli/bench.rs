//! `idlewood bench`: options and report; the benchmark is in `crate::bench`.

use std::io::{self, Write as _};
use std::process::ExitCode;

use super::context::Context;
use crate::bench::{self, BenchOptions, Report, TaskKind};
use crate::output::{self, Format};

/// Arguments of `bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// Tasks of the bag
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub tasks: u64,
    /// What each task does
    #[arg(long, value_enum, default_value = "noop", value_name = "KIND")]
    pub task: TaskKind,
    /// Each task prints a line of its own, of about 100 bytes
    #[arg(long)]
    pub distinct: bool,
    /// Agent processes to start, of which the first submits
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub agents: u32,
}

pub(super) fn run(context: &Context, args: &BenchArgs) -> anyhow::Result<ExitCode> {
    // JSON goes to standard output, progress to standard error: both can be used at once.
    let &BenchArgs { tasks, task, distinct, agents } = args;
    let options = BenchOptions { tasks, task, distinct, agents, quiet: false };
    let report = bench::run(&options)?;
    match context.format {
        Format::Json => output::json(&report)?,
        Format::Text => print(&report)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut pairs = vec![
        ("tasks", format!("{}, {}{}", report.tasks, report.task, if report.distinct { ", distinct" } else { "" })),
        ("processor time", format!("{:.1} µs per task", report.cpu_us_per_task)),
        ("throughput", format!("{:.0} tasks/s", report.tasks_per_s)),
        ("submission", format!("{:.1} ms", report.submit_s * 1e3)),
        ("first start", format!("{:.1} ms after it", report.first_start_s * 1e3)),
        ("all acknowledged", output::duration(report.makespan_s)),
        ("memory", format!("{} at most", output::bytes(report.peak_rss_bytes))),
        ("written", output::bytes(report.bytes_written)),
        ("results 0 to 9", format!("{:.1} ms", report.first_results_s * 1e3)),
        ("start after a kill", output::duration(report.restart_s)),
        ("duplicates", output::count(report.duplicates, "result")),
    ];
    if let Some(efficiency) = report.efficiency {
        pairs.push(("efficiency", format!("{:.1} %", efficiency * 100.0)));
    }
    for agent in &report.agents {
        let cpu = format!(
            "{} tasks; {:.1} µs per task of the bag in the agent, {:.1} µs in its workers",
            agent.executed, agent.agent_cpu_us_per_task, agent.workers_cpu_us_per_task
        );
        pairs.push((agent.role, cpu));
    }
    pairs.push(("client", format!("{:.1} µs per task", report.client_cpu_us_per_task)));
    output::pairs(&mut out, &pairs)?;
    out.flush()
}
