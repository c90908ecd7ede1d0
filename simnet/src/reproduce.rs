//! `simnet reproduce overlay`: experiments on the overlay, over several seeds, on all cores.
//!
//! Every case of an experiment with a seed is a job of its own; those of one seed begin with copies of one grid, which
//! is grown once. Jobs run on as many threads as there are cores, and their results are combined in their order, so
//! that the number of threads changes only the duration.
//!
//! After each job its results are in the directory: `overlay.csv` has a row for each job, and a table of each
//! experiment its samples; `summary.json` follows soon. As with the [other experiments](crate::experiment), results of
//! the same build for the same settings and seed are reused, and other rows are put aside.

mod job;
mod reproduction;
mod tables;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idlewood_overlay::Time;
use serde::Serialize;

use crate::experiment::{Line, Plan, Refresh, build, lock, replace, unwritable};
use crate::overlay::experiment::{self, Experiment, Grid};
use crate::seeds::{self, JobEvent};
use job::{Done, Job};
use tables::{KindRate, Reading, Tables};

pub use reproduction::Reproduction;

/// Grids with more machines than this in all are neither run at the same time nor kept for another case, to save
/// memory.
const CONCURRENT_NODES_MAX: u32 = 200_000;
/// Progress of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobProgress {
    /// Simulated time.
    pub now: Time,
    /// Events so far.
    pub events: u64,
}

/// Progress while jobs run.
#[derive(Debug)]
pub enum ProgressEvent<'a> {
    /// Jobs done by an earlier run, if any; all jobs.
    Found(usize, usize),
    /// Running jobs, by name, and their progress; jobs done; all jobs.
    Running(&'a BTreeMap<String, JobProgress>, usize, usize),
    /// This job is done, after so long.
    Done(&'a str, Duration),
}

/// Results over all seeds; none for experiments not run. Times are in seconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// `overlay`.
    pub experiment: &'static str,
    /// The command line, without directory and threads, which change no result.
    pub command: String,
    /// Commit that the program was built from.
    pub commit: &'static str,
    /// Machines of each grid.
    pub nodes: u32,
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// Whether every job was run; false in the file of an interrupted run.
    pub complete: bool,
    /// Links on the longest way from the root to a leaf, by the root; the largest of all seeds.
    pub height: Option<f64>,
    /// Links between a leaf and the root, by the leaves, on average.
    pub mean_depth: Option<f64>,
    /// Time from the last machine's start in growth until the tree was exact; the largest.
    pub growth_s: Option<f64>,
    /// Until all links are right after a single crash; routers, the last of the line and roots in equal parts.
    pub crash_repair_p50_s: Option<f64>,
    /// The same.
    pub crash_repair_p99_s: Option<f64>,
    /// Until all links and all counts, up to the root's, are right.
    pub crash_repair_counts_p99_s: Option<f64>,
    /// By the machine's place in the tree.
    pub crash_repair_by_place: BTreeMap<String, Quantiles>,
    /// Until all links are right after a single announced leave.
    pub leave_repair_p50_s: Option<f64>,
    /// The same.
    pub leave_repair_p99_s: Option<f64>,
    /// By the machine's place in the tree.
    pub leave_repair_by_place: BTreeMap<String, Quantiles>,
    /// Until links and counts are right after 10 % crashed at once; the largest.
    pub mass_failure_10_s: Option<f64>,
    /// After 50 %.
    pub mass_failure_50_s: Option<f64>,
    /// After 80 %.
    pub mass_failure_80_s: Option<f64>,
    /// Until links and counts are right after the end of a partition of some minutes; the largest.
    pub partition_heal_s: Option<f64>,
    /// Until two grids that were never one are one, after one machine was given a contact of the other; the largest.
    pub strangers_merge_s: Option<f64>,
    /// Machines with a wrong link or count in their own half at the end of a partition, on average.
    pub partition_wrong_while_apart: Option<f64>,
    /// After a partition of an hour.
    pub partition_hour_heal_s: Option<f64>,
    /// Repairs that took longer than ten minutes, or joins that never completed.
    pub unhealed: u64,
    /// Share of leaves with a path to the root: sessions of 4 h, 80 % announced leaves.
    pub path_available_4h: Option<f64>,
    /// Sessions of 4 h, crashes only.
    pub path_available_4h_crashes: Option<f64>,
    /// Sessions of 10 min, crashes only.
    pub path_available_10min: Option<f64>,
    /// Sessions of 10 min, 80 % announced leaves.
    pub path_available_10min_announced: Option<f64>,
    /// Churn as in the trace.
    pub path_available_trace: Option<f64>,
    /// Comings and goings in the trace.
    pub trace_changes: Option<f64>,
    /// Encoded messages that a peer sends when nothing happens.
    pub bytes_per_peer_s: Option<f64>,
    /// The same.
    pub messages_per_peer_s: Option<f64>,
    /// By kind.
    pub traffic_by_kind: BTreeMap<String, Traffic>,
    /// Messages that a machine sent or received from its start until its nodes were linked.
    pub join_messages_p50: Option<f64>,
    /// The same.
    pub join_messages_p99: Option<f64>,
    /// Until its nodes were linked.
    pub join_p50_s: Option<f64>,
    /// The same.
    pub join_p99_s: Option<f64>,
    /// Until it was a member.
    pub join_member_p99_s: Option<f64>,
    /// Events given to peers, those of growth once for each time that a grid was grown.
    pub events: u64,
    /// CPU time of all jobs.
    pub cpu_s: f64,
    /// Events per CPU-second.
    pub events_per_cpu_s: f64,
    /// Simulated hours of machines that were up, per CPU-hour.
    pub peer_hours_per_cpu_hour: f64,
    /// Peak memory of a process that ran some of the jobs; none if the system does not tell.
    pub peak_rss_bytes: Option<u64>,
    /// Peak memory of that process, for each machine of the grids in it at the same time, kept ones included.
    pub peak_rss_bytes_per_peer: Option<f64>,
    /// Over the traces of all jobs, in their order.
    pub trace_hash: String,
}

/// Quantiles of some repairs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    /// How many.
    pub samples: usize,
    /// Median.
    pub p50_s: f64,
    /// 99 %.
    pub p99_s: f64,
    /// The largest.
    pub max_s: f64,
}

/// Per peer and second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Traffic {
    /// Messages sent.
    pub messages: f64,
    /// Their encoded size.
    pub bytes: f64,
}

/// The grid of one seed, for the cases that begin with it.
#[derive(Default)]
struct Nursery {
    grid: Option<Arc<Grid>>,
    /// Remaining jobs that begin with it.
    jobs: usize,
}

impl Reproduction {
    fn threads(&self, jobs: usize) -> usize {
        let cores = seeds::cores();
        let room = (CONCURRENT_NODES_MAX / self.nodes).max(1) as usize;
        self.threads.unwrap_or(cores.min(room)).min(jobs).max(1)
    }

    /// Runs the missing jobs; calls `progress` about five times a second.
    ///
    /// # Errors
    /// A sentence that names the file that could not be read or written, or that another process works in the
    /// directory.
    pub fn run(&self, mut progress: impl FnMut(ProgressEvent<'_>)) -> Result<Summary, String> {
        std::fs::create_dir_all(&self.out).map_err(|error| unwritable(&self.out, &error))?;
        let _locked = lock(&self.out)?;
        let all = self.jobs(&build()?);
        let mut tables = Tables::open(self, &all)?;
        // The summary of another command must not remain beside these tables.
        self.write(&all, &tables)?;
        let is_missing = |&number: &usize| tables.jobs.lines[number].is_none();
        let missing: Vec<usize> = (0..all.len()).filter(is_missing).collect();
        let mut count = all.len() - missing.len();
        if count > 0 {
            progress(ProgressEvent::Found(count, all.len()));
        }
        let jobs: Vec<&Job> = missing.iter().map(|&number| &all[number]).collect();
        let threads = self.threads(jobs.len());
        let grids = self.grids(jobs.len(), threads);
        let mut running = BTreeMap::new();
        let nurseries = self.nurseries(&jobs);
        let work = |number: usize, tell: &mut dyn FnMut(JobProgress)| self.work(jobs[number], &nurseries, tell);
        let mut refresh = Refresh::new();
        seeds::run(jobs.len(), threads, work, |word| {
            match word {
                JobEvent::Progress(job, progress, _) => _ = running.insert(jobs[job].name(), progress),
                JobEvent::Done(job, done, took) => {
                    let name = jobs[job].name();
                    running.remove(&name);
                    tables.insert(self, missing[job], jobs[job], &done, grids)?;
                    refresh.is_due = true;
                    count += 1;
                    progress(ProgressEvent::Done(&name, took));
                }
                JobEvent::Silence => {}
            }
            refresh.now_and_then(|| self.write(&all, &tables))?;
            progress(ProgressEvent::Running(&running, count, all.len()));
            Ok::<(), String>(())
        })?;
        tables.write().and_then(|()| self.write(&all, &tables))?;
        Ok(self.summary(&all, &tables))
    }

    fn work(&self, job: &Job, nurseries: &[Mutex<Nursery>], tell: &mut dyn FnMut(JobProgress)) -> Done {
        let Job { experiment, case, seed, .. } = *job;
        let cpu_s = thread_cpu_s();
        tell(JobProgress { now: Time::ZERO, events: 0 });
        let mut progress = |now, events| tell(JobProgress { now, events });
        let (grid, events, time_up) = self.grid(case, seed, nurseries, &mut progress);
        let mut outcome = experiment::run(experiment, case, self.nodes, seed, grid, self.trace.as_ref(), &mut progress);
        outcome.events += events;
        outcome.time_up += time_up;
        Done { outcome, cpu_s: thread_cpu_s() - cpu_s }
    }

    /// Most grids in memory at the same time: running ones, and one kept for a seed with several cases.
    fn grids(&self, jobs: usize, threads: usize) -> usize {
        let several = jobs as u64 > self.seeds;
        threads.min(jobs).max(1) + usize::from(several && self.keeps_grids())
    }

    fn keeps_grids(&self) -> bool {
        self.nodes <= CONCURRENT_NODES_MAX / 2
    }

    /// By seed.
    fn nurseries(&self, jobs: &[&Job]) -> Vec<Mutex<Nursery>> {
        let mut nurseries: Vec<Nursery> = (0..self.seeds).map(|_| Nursery::default()).collect();
        for job in jobs.iter().filter(|job| Experiment::begins_grown(job.case)) {
            nurseries[(job.seed - self.seed) as usize].jobs += 1;
        }
        nurseries.into_iter().map(Mutex::new).collect()
    }

    /// The grid with which a case begins, if any, and the work done here to grow it: events, and simulated time summed
    /// over all machines.
    fn grid(
        &self,
        case: &str,
        seed: u64,
        nurseries: &[Mutex<Nursery>],
        progress: &mut dyn FnMut(Time, u64),
    ) -> (Option<Grid>, u64, Duration) {
        if !Experiment::begins_grown(case) {
            return (None, 0, Duration::ZERO);
        }
        // Other jobs of the seed wait here while the grid grows.
        let mut nursery = nurseries[(seed - self.seed) as usize].lock().unwrap_or_else(PoisonError::into_inner);
        nursery.jobs -= 1;
        let (grid, events, time_up) = match nursery.grid.take() {
            Some(grid) => (grid, 0, Duration::ZERO),
            None => {
                let grid = Grid::grow(self.nodes, seed, progress);
                let (events, time_up) = (grid.events(), grid.time_up());
                (Arc::new(grid), events, time_up)
            }
        };
        if nursery.jobs > 0 && self.keeps_grids() {
            nursery.grid = Some(grid.clone());
        }
        drop(nursery);
        (Some(Arc::unwrap_or_clone(grid)), events, time_up)
    }

    // ---- summary ----

    fn summary(&self, jobs: &[Job], tables: &Tables) -> Summary {
        let finished = || jobs.iter().zip(&tables.jobs.lines).filter_map(|(job, line)| Some((job, line.as_ref()?)));
        let lines = |name: &str, job: &Job| tables.samples[name].lines(&job.key);
        let mut readings: Vec<Reading<'_>> = Vec::new();
        for (job, _) in finished() {
            let of_job = lines(job.experiment.name(), job);
            readings.extend(of_job.iter().filter_map(|cells| Reading::of(job.experiment, cells)));
        }
        let values = |experiment: Experiment, case: Option<&str>, quantity: &str| -> Vec<f64> {
            let fits = |reading: &&Reading<'_>| {
                reading.experiment == experiment
                    && reading.quantity == quantity
                    && case.is_none_or(|case| case == reading.case)
            };
            readings.iter().filter(fits).map(|reading| reading.value).collect()
        };
        let quantile = |experiment, quantity, share| quantile(&values(experiment, None, quantity), share);
        let most = |experiment, case, quantity| quantile_of(values(experiment, Some(case), quantity), 1.0);
        let mean = |experiment, case, quantity| mean(&values(experiment, case, quantity));
        let by_place = |experiment| {
            let places = ["router", "leaf", "root"].into_iter();
            let known = places.map(|place| (place.to_owned(), values(experiment, Some(place), "links_s")));
            known.filter_map(|(place, values)| Some((place, quantiles(&values)?))).collect()
        };
        let of_line = |line: &Line, name: &str| {
            let mut values = line.values.iter();
            values.find(|(known, _)| known == name).map(|(_, value)| *value)
        };
        let sum = |name| finished().filter_map(|(_, line)| of_line(line, name)).sum::<f64>();
        // The part of an interrupted run that another process finished has fewer grids, and does not measure the whole.
        let peaks = finished().filter_map(|(_, line)| Some((of_line(line, "peak_rss_bytes")?, line)));
        let peak = peaks.max_by(|(one, _), (other, _)| one.total_cmp(other));
        let (events, cpu_s, time_up_s) = (sum("events") as u64, sum("cpu_s"), sum("time_up_s"));
        let mut hasher = blake3::Hasher::new();
        for (_, line) in finished() {
            match blake3::Hash::from_hex(&line.trace_hash) {
                Ok(hash) => hasher.update(hash.as_bytes()),
                // A cell that somebody has edited is no hash, but must change the result, too.
                Err(_) => hasher.update(line.trace_hash.as_bytes()),
            };
        }
        let unhealed = readings.iter().filter(|reading| reading.quantity == "unhealed");
        let growth = readings.iter().filter(|reading| reading.quantity == "growth_s");
        let steady = finished().map(|(job, _)| job).filter(|job| job.experiment == Experiment::Steady);
        let traffic = steady.map(|job| {
            let of_job = lines("traffic", job);
            of_job.iter().filter_map(|cells| KindRate::of(cells)).collect()
        });
        Summary {
            experiment: "overlay",
            command: self.command(),
            commit: Plan::commit(),
            nodes: self.nodes,
            seed: self.seed,
            seeds: self.seeds,
            complete: tables.jobs.lines.iter().all(Option::is_some),
            height: most(Experiment::Steady, "", "height"),
            mean_depth: mean(Experiment::Steady, None, "mean_depth"),
            growth_s: growth.map(|reading| reading.value).reduce(f64::max),
            crash_repair_p50_s: quantile(Experiment::Crash, "links_s", 0.5),
            crash_repair_p99_s: quantile(Experiment::Crash, "links_s", 0.99),
            crash_repair_counts_p99_s: quantile(Experiment::Crash, "counts_s", 0.99),
            crash_repair_by_place: by_place(Experiment::Crash),
            leave_repair_p50_s: quantile(Experiment::Leave, "links_s", 0.5),
            leave_repair_p99_s: quantile(Experiment::Leave, "links_s", 0.99),
            leave_repair_by_place: by_place(Experiment::Leave),
            mass_failure_10_s: most(Experiment::Mass, "10", "counts_s"),
            mass_failure_50_s: most(Experiment::Mass, "50", "counts_s"),
            mass_failure_80_s: most(Experiment::Mass, "80", "counts_s"),
            partition_heal_s: most(Experiment::Partition, "halves", "counts_s"),
            strangers_merge_s: most(Experiment::Partition, "strangers", "counts_s"),
            partition_wrong_while_apart: mean(Experiment::Partition, Some("halves"), "wrong_while_apart"),
            partition_hour_heal_s: most(Experiment::PartitionHour, "halves", "counts_s"),
            unhealed: unhealed.count() as u64,
            path_available_4h: mean(Experiment::Churn4h, Some("announced"), "path_available"),
            path_available_4h_crashes: mean(Experiment::Churn4h, Some("crashes"), "path_available"),
            path_available_10min: mean(Experiment::Churn10min, Some("crashes"), "path_available"),
            path_available_10min_announced: mean(Experiment::Churn10min, Some("announced"), "path_available"),
            path_available_trace: mean(Experiment::Trace, None, "path_available"),
            trace_changes: mean(Experiment::Trace, None, "arrivals")
                .zip(mean(Experiment::Trace, None, "departures"))
                .map(|(arrivals, departures)| arrivals + departures),
            bytes_per_peer_s: mean(Experiment::Steady, None, "bytes_per_peer_s"),
            messages_per_peer_s: mean(Experiment::Steady, None, "messages_per_peer_s"),
            traffic_by_kind: traffic_by_kind(traffic),
            join_messages_p50: quantile(Experiment::Join, "messages", 0.5),
            join_messages_p99: quantile(Experiment::Join, "messages", 0.99),
            join_p50_s: quantile(Experiment::Join, "linked_s", 0.5),
            join_p99_s: quantile(Experiment::Join, "linked_s", 0.99),
            join_member_p99_s: quantile(Experiment::Join, "member_s", 0.99),
            events,
            cpu_s,
            events_per_cpu_s: events as f64 / cpu_s.max(1e-9),
            peer_hours_per_cpu_hour: time_up_s / cpu_s.max(1e-9),
            peak_rss_bytes: peak.map(|(bytes, _)| bytes as u64),
            peak_rss_bytes_per_peer: peak.and_then(|(_, line)| of_line(line, "peak_rss_bytes_per_peer")),
            trace_hash: hasher.finalize().to_hex().to_string(),
        }
    }

    // ---- files ----

    /// Writes the summary.
    fn write(&self, jobs: &[Job], tables: &Tables) -> Result<(), String> {
        let summary = serde_json::to_string_pretty(&self.summary(jobs, tables));
        replace(&self.out.join("summary.json"), &(summary.expect("finite numbers are JSON") + "\n"))
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The smallest value that at least this share of all does not exceed.
fn quantile(values: &[f64], share: f64) -> Option<f64> {
    quantile_of(values.to_vec(), share)
}

fn quantile_of(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

fn quantiles(values: &[f64]) -> Option<Quantiles> {
    let of = |share| quantile(values, share);
    Some(Quantiles { samples: values.len(), p50_s: of(0.5)?, p99_s: of(0.99)?, max_s: of(1.0)? })
}

/// Means over the seeds, each of which has messages and bytes by kind.
fn traffic_by_kind<'a>(seeds: impl Iterator<Item = Vec<KindRate<'a>>>) -> BTreeMap<String, Traffic> {
    let mut kinds: BTreeMap<String, Traffic> = BTreeMap::new();
    let mut worlds = 0.0;
    for rates in seeds {
        worlds += 1.0;
        for KindRate { kind, rate } in rates {
            let sum = kinds.entry(kind.to_owned()).or_default();
            sum.messages += rate.messages;
            sum.bytes += rate.bytes;
        }
    }
    for sum in kinds.values_mut() {
        sum.messages /= worlds;
        sum.bytes /= worlds;
    }
    kinds
}

/// CPU time of this thread, in seconds.
fn thread_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&values, share)), [Some(100.0), Some(198.0), Some(200.0)]);
        assert_eq!((quantile(&[7.0, 5.0, 6.0], 0.5), quantile(&[], 0.5)), (Some(6.0), None));
    }
}
