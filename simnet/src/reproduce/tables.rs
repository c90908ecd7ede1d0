//! The tables of `simnet reproduce overlay`: what jobs have measured, written to disk and read back.

use std::collections::BTreeMap;

use super::job::{Done, Job};
use super::reproduction::Reproduction;
use crate::cost::peak_rss_bytes;
use crate::experiment::{Line, Samples, Table};
use crate::overlay::experiment::{Experiment, Rate, Sample};

/// Columns of what an experiment has measured, of leaves by depth, and of traffic by kind of message.
const MEASURED: &str = "nodes,seed,case,quantity,value,check,key";
const HEIGHTS: &str = "nodes,seed,depth,leaves,check,key";
const TRAFFIC: &str = "nodes,seed,kind,messages_per_peer_s,bytes_per_peer_s,check,key";

/// A table with what jobs have measured.
struct Measured {
    name: &'static str,
    columns: &'static str,
    /// The column of `overlay.csv` that says how many rows a job has here.
    count: &'static str,
}

/// The tables that an experiment writes into.
fn tables_of(experiment: Experiment) -> Vec<Measured> {
    let own = Measured { name: experiment.name(), columns: MEASURED, count: "measured_lines" };
    match experiment {
        Experiment::Steady => vec![
            own,
            Measured { name: "heights", columns: HEIGHTS, count: "heights_lines" },
            Measured { name: "traffic", columns: TRAFFIC, count: "traffic_lines" },
        ],
        _ => vec![own],
    }
}

/// All that is known of the jobs, as on disk.
pub(super) struct Tables {
    /// A row for each job.
    pub(super) jobs: Table,
    /// What they measured, by the name of the table.
    pub(super) samples: BTreeMap<&'static str, Samples>,
}

impl Tables {
    /// Takes over what earlier runs have measured for these jobs, and puts everything else aside.
    pub(super) fn open(of: &Reproduction, jobs: &[Job]) -> Result<Self, String> {
        let path = |name: &str| of.out.join(format!("{name}.csv"));
        let mut samples = BTreeMap::new();
        for Measured { name, columns, .. } in Experiment::ALL.into_iter().flat_map(tables_of) {
            samples.insert(name, Samples::open(path(name), columns)?);
        }
        let identities = jobs.iter().map(|job| (job.key.clone(), of.labels(job), job.seed));
        let mut tables = Self { jobs: Table::open(path("overlay"), identities.collect())?, samples };
        for (job, kept) in jobs.iter().zip(&mut tables.jobs.lines) {
            // A job whose table, or some of its rows, have been removed is run again.
            let is_whole = |line: &Line| {
                tables_of(job.experiment).iter().all(|Measured { name, count, .. }| {
                    let told = line.values.iter().find(|(known, _)| known == count).map(|(_, lines)| *lines);
                    told == Some(tables.samples[name].lines(&job.key).len() as f64)
                })
            };
            if !kept.as_ref().is_some_and(is_whole) {
                *kept = None;
            }
        }
        let keys = tables.keys();
        for samples in tables.samples.values() {
            samples.put_aside(&keys)?;
        }
        Ok(tables)
    }

    /// Keys of the finished jobs.
    fn keys(&self) -> Vec<&str> {
        self.jobs.lines.iter().flatten().map(|line| line.key.as_str()).collect()
    }

    /// Takes in the results of a job, and writes them.
    pub(super) fn insert(
        &mut self,
        of: &Reproduction,
        number: usize,
        job: &Job,
        done: &Done,
        grids: usize,
    ) -> Result<(), String> {
        let Done { outcome, cpu_s } = done;
        let (nodes, seed, key) = (of.nodes, job.seed, &job.key);
        let measured = outcome
            .samples
            .iter()
            .filter(|sample| sample.value.is_finite())
            .map(|Sample { case, quantity, value }| format!("{nodes},{seed},{case},{quantity},{value}"));
        let depths = outcome.depths.iter().enumerate().filter(|(_, leaves)| **leaves > 0);
        let heights = depths.map(|(depth, leaves)| format!("{nodes},{seed},{depth},{leaves}"));
        let traffic = outcome
            .rates
            .iter()
            .map(|(kind, Rate { messages, bytes })| format!("{nodes},{seed},{kind},{messages},{bytes}"));
        let mut values = vec![
            ("events".to_owned(), outcome.events as f64),
            ("time_up_s".to_owned(), outcome.time_up.as_secs_f64()),
            ("cpu_s".to_owned(), *cpu_s),
        ];
        if let Some(bytes) = peak_rss_bytes() {
            values.push(("peak_rss_bytes".to_owned(), bytes as f64));
            values.push(("peak_rss_bytes_per_peer".to_owned(), bytes as f64 / f64::from(nodes) / grids as f64));
        }
        let mut rows: BTreeMap<&str, Vec<String>> = BTreeMap::from([
            (job.experiment.name(), measured.collect()),
            ("heights", heights.collect()),
            ("traffic", traffic.collect()),
        ]);
        for Measured { name, count, .. } in tables_of(job.experiment) {
            let rows = rows.remove(name).expect("there are rows for each table");
            values.push((count.to_owned(), rows.len() as f64));
            self.samples.get_mut(name).expect("there is one of each name").insert(key, rows)?;
        }
        let trace_hash = outcome.trace.to_hex().to_string();
        // Last: a row there says that the rows of the other tables are complete, and how many they are.
        self.jobs.insert(number, Line { key: key.clone(), labels: of.labels(job), seed, trace_hash, values })
    }

    /// Writes all of them in the order of the jobs.
    pub(super) fn write(&self) -> Result<(), String> {
        let keys = self.keys();
        self.samples.values().try_for_each(|samples| samples.write(&keys))?;
        self.jobs.write()
    }
}

/// A row of the table of an experiment, read back.
pub(super) struct Reading<'a> {
    pub(super) experiment: Experiment,
    pub(super) case: &'a str,
    pub(super) quantity: &'a str,
    pub(super) value: f64,
}

impl<'a> Reading<'a> {
    /// Reads cells in the order of [`MEASURED`].
    pub(super) fn of(experiment: Experiment, cells: &[&'a str]) -> Option<Self> {
        let &[_nodes, _seed, case, quantity, value, _check, _key] = cells else { return None };
        Some(Self { experiment, case, quantity, value: number(value) })
    }
}

/// Messages of one kind, read back from `traffic.csv`.
pub(super) struct KindRate<'a> {
    pub(super) kind: &'a str,
    pub(super) rate: Rate,
}

impl<'a> KindRate<'a> {
    /// Reads cells in the order of [`TRAFFIC`].
    pub(super) fn of(cells: &[&'a str]) -> Option<Self> {
        let &[_nodes, _seed, kind, messages, bytes, _check, _key] = cells else { return None };
        Some(Self { kind, rate: Rate { messages: number(messages), bytes: number(bytes) } })
    }
}

/// A row that was read back has numbers where numbers belong.
fn number(cell: &str) -> f64 {
    cell.parse().unwrap_or(f64::NAN)
}
