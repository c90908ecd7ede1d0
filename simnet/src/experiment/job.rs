//! One job: a simulation, and the rivals that it is compared with.

use std::time::Duration;

use idlewood_overlay::Time;

use super::case::Case;
use super::progress::JobProgress;
use super::published::{UPDATE_SHARES, quantile_name};
use super::stretches;
use super::table::Values;
use super::updates::Updates;
use crate::baseline::{Instance, Measure};
use crate::scenario::HORIZON_MAX;
use crate::simulation::{Execution, Simulation};
use crate::workload;

/// Steps between two progress reports.
const PROGRESS_STEPS: u64 = 1 << 14;

/// Runs a case with a seed, on so many threads; returns the simulation's trace hash and its values.
///
/// # Panics
/// When the scenario is invalid, which a plan checks before.
pub(super) fn run(case: &Case, seed: u64, threads: usize, progress: &mut impl FnMut(JobProgress)) -> (String, Values) {
    // Plans are checked by their first seed; another may take a little longer.
    let horizon = horizon(case, seed).min(HORIZON_MAX);
    let scenario = crate::Scenario { seed, horizon, ..case.scenario.clone() };
    let instance = Instance::of(&scenario);
    let execution = Execution { threads, ..Execution::usual(scenario.nodes) };
    let cpu_s = cpu_s(threads);
    let mut simulation = Simulation::with(scenario, execution).expect("a plan is validated");
    let mut updates = Updates::default();
    if case.follows_updates {
        let mut steps = 0_u64;
        while simulation.step(instance.horizon) {
            updates.look(&simulation);
            steps += 1;
            if steps.is_multiple_of(PROGRESS_STEPS) {
                progress(progress_of(case, simulation.progress()));
            }
        }
    } else {
        simulation.run(|of| progress(progress_of(case, of)));
    }
    let cpu_s = self::cpu_s(threads) - cpu_s;
    let report = simulation.report();
    let mut values = Values::new();
    if case.by_user {
        stretches::by_user(case.measure, &simulation, &mut values);
    }
    if case.to_the_end {
        stretches::compared(case.measure, &instance, &simulation, &mut values);
    }
    decided(&report, &mut values);
    if case.follows_updates {
        update_times(updates.times_s, &mut values);
    }
    totals(&report, case.to_the_end, cpu_s, &mut values);
    // A ratio to nothing is no value, and could not be read back.
    values.retain(|(_, value)| value.is_finite());
    (report.trace_hash, values)
}

/// The largest and the mean stretch of the simulation, beside those of the centralised schedulers and the offline bound
/// on the same machines, bags and failures: columns as in the rows of experiments.
pub fn compare(simulation: &Simulation) -> Vec<(String, f64)> {
    let instance = Instance::of(simulation.scenario());
    let mut values = Values::new();
    stretches::compared(Measure::Application, &instance, simulation, &mut values);
    values
}

/// Simulated time at which a case with a seed is cut off, for a valid scenario. If all work is done, a run in good
/// order ends before: machines could do the work twice after the last arrival, and half a day more.
pub(super) fn horizon(case: &Case, seed: u64) -> Duration {
    if !case.to_the_end {
        return case.scenario.horizon;
    }
    let scenario = crate::Scenario { seed, ..case.scenario.clone() };
    let bags = workload::bags(&scenario);
    let last = bags.last().map_or(Duration::ZERO, |bag| bag.arrival.since(Time::ZERO));
    let work_mops: f64 = bags.iter().map(|bag| bag.application_size_mops()).sum();
    last + Duration::from_secs_f64(work_mops / workload::capacity_mops(&scenario) * 2.0)
        + Duration::from_secs(12 * 3600)
}

fn progress_of(case: &Case, of: crate::Progress) -> JobProgress {
    let crate::Progress { now, bags_closed, bags, events } = of;
    let share = if case.to_the_end {
        bags_closed as f64 / bags.max(1) as f64
    } else {
        now.as_secs_f64() / case.scenario.horizon.as_secs_f64()
    };
    JobProgress { now, events, share, took: Duration::ZERO }
}

/// Where requests were decided: the router that split them first.
fn decided(report: &crate::Report, values: &mut Values) {
    let all: u64 = report.decided.values().sum();
    let share = |count: u64| count as f64 / all.max(1) as f64;
    values.push(("requests".to_owned(), all as f64));
    values.push(("root_share".to_owned(), share(report.decided.get(&0).copied().unwrap_or(0))));
    for (depth, count) in &report.decided {
        let depth = if *depth == u32::MAX { "unknown".to_owned() } else { format!("{depth:02}") };
        values.push((format!("decided_at_depth_{depth}_share"), share(*count)));
    }
}

fn update_times(mut times_s: Vec<f64>, values: &mut Values) {
    times_s.sort_by(f64::total_cmp);
    values.push(("updates".to_owned(), times_s.len() as f64));
    for share in UPDATE_SHARES {
        let rank = (share * times_s.len() as f64).ceil() as usize;
        values.extend(times_s.get(rank.saturating_sub(1)).map(|time_s| (quantile_name(share), *time_s)));
    }
    values.extend(times_s.last().map(|time_s| ("update_time_max_s".to_owned(), *time_s)));
}

/// How busy links were: the busier direction of each, with all messages, with the tree's and with outputs of tasks.
fn links(report: &crate::Report, values: &mut Values) {
    for of in &report.links {
        let place = of.depth.map_or(String::new(), |depth| format!("_depth_{depth:02}"));
        for (kind, traffic) in [("link", of.messages), ("tree", of.tree), ("data", of.data)] {
            let mut push = |name: &str, value: f64| values.push((format!("{kind}_{name}_percent{place}"), value));
            push("mean", traffic.up_mean_percent.max(traffic.down_mean_percent));
            push("peak", traffic.up_peak_percent.max(traffic.down_peak_percent));
        }
    }
}

fn totals(report: &crate::Report, to_the_end: bool, cpu_s: f64, values: &mut Values) {
    links(report, values);
    let nodes = f64::from(report.scenario.nodes);
    let machine_hours = nodes * report.sim_s / 3600.0;
    let mut push = |name: &str, value: f64| values.push((name.to_owned(), value));
    push("accepted_tasks", report.accepted_tasks as f64);
    if to_the_end {
        push("lost_tasks", report.lost_tasks as f64);
        push("open_tasks", report.open_tasks as f64);
    } else {
        // At the cut-off of a watched run, lost and open tasks are not distinguished.
        push("open_tasks", (report.lost_tasks + report.open_tasks) as f64);
    }
    push("wasted_work_share", report.wasted_work_share);
    push("unaccepted_tasks", report.unaccepted_tasks as f64);
    push("duplicate_tasks", report.duplicate_tasks as f64);
    push("crashes", report.crashes as f64);
    push("preemptions", report.preemptions as f64);
    push("makespan_s", report.makespan_s);
    push("sim_s", report.sim_s);
    push("messages_per_node_s", report.messages as f64 / report.sim_s / nodes);
    push("bytes_per_node_s", report.bytes_per_node_s);
    push("events", report.events as f64);
    push("cpu_s", cpu_s);
    push("cpu_s_per_machine_hour", cpu_s / machine_hours);
    if let Some(bytes) = crate::cost::peak_rss_bytes() {
        push("peak_rss_bytes", bytes as f64);
        push("rss_bytes_per_node", bytes as f64 / nodes);
    }
}

/// CPU time of this thread; of the whole process if the job has several, and so runs alone.
fn cpu_s(threads: usize) -> f64 {
    use rustix::time::ClockId::{ProcessCPUTime, ThreadCPUTime};
    let time = rustix::time::clock_gettime(if threads > 1 { ProcessCPUTime } else { ThreadCPUTime });
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
