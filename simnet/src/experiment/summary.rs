//! The summary of an experiment: one JSON object with a row for each case.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::case::Case;
use super::plan::{Job, Plan};
use super::program::commit;
use super::statistic::{Combination, together};
use super::table::Table;
use super::which::Experiment;

/// Values of runs that are done to their end; null in the rows of others.
const OF_THE_END: [&str; 12] = [
    "ratio_mincent",
    "ratio_mincent_plus",
    "ratio_mincent_submitters",
    "ratio_mincent_plus_submitters",
    "ratio_fcfs",
    "ratio_speed_split",
    "ratio_offline",
    "share_of_the_way",
    "ratio_best_rival",
    "share_of_the_possible_way",
    "unfinished_bags",
    "lost_tasks",
];

/// The summary of the jobs done so far.
pub(super) fn of(plan: &Plan, cases: &[Case], jobs: &[Job], table: &Table) -> Value {
    let rows = cases.iter().enumerate().filter_map(|(number, case)| {
        let lines = jobs.iter().zip(&table.lines).filter(|(job, _)| job.case == number);
        let lines: Vec<_> = lines.filter_map(|(_, line)| line.as_ref()).collect();
        let mut row = case.row();
        row.insert("seeds".to_owned(), json!(lines.len()));
        let hashes: Vec<&str> = lines.iter().map(|line| line.trace_hash.as_str()).collect();
        row.insert("trace_hash".to_owned(), json!(trace_hash(&hashes)));
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in lines.iter().flat_map(|line| &line.values) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        for name in names {
            let values = lines.iter().flat_map(|line| &line.values).filter(|(known, _)| known == name);
            let mut values: Vec<f64> = values.map(|(_, value)| *value).collect();
            let how = how(plan.experiment, name);
            if name.ends_with("_share") {
                // If no request was decided there is no value.
                values.resize(lines.len(), 0.0);
            }
            let (value, interval) = together(how, &values);
            row.insert(name.to_owned(), json!(value));
            if let Some(interval) = interval.filter(|_| !name.contains("_depth_")) {
                row.insert(format!("{name}_ci95"), json!(interval));
            }
        }
        if !case.to_the_end {
            row.extend(OF_THE_END.map(|name| (name.to_owned(), Value::Null)));
        } else {
            // Such as a share of the way where the best is no better than the rival that knows nothing.
            for name in OF_THE_END {
                row.entry(name).or_insert(Value::Null);
            }
        }
        if plan.experiment == Experiment::Submitters {
            by_honest(number, cases, jobs, table, &mut row);
        }
        (!lines.is_empty()).then_some(Value::Object(row))
    });
    let nodes: BTreeSet<u32> = plan.nodes.iter().copied().collect();
    json!({
        "experiment": plan.experiment.name(),
        "command": plan.command(),
        "commit": commit(),
        "nodes": nodes,
        "seed": plan.seed,
        "seeds": plan.seeds,
        "complete": table.lines.iter().all(Option::is_some),
        "rows": rows.collect::<Vec<_>>(),
    })
}

/// The trace hash of the only seed, or one over those of all seeds in their order.
fn trace_hash(hashes: &[&str]) -> String {
    match hashes {
        [hash] => (*hash).to_owned(),
        hashes => blake3::hash(hashes.concat().as_bytes()).to_hex().to_string(),
    }
}

/// Stretches relative to those of the same seeds with an honest user and the paper's deadlines, as far as both are
/// done.
fn by_honest(number: usize, cases: &[Case], jobs: &[Job], table: &Table, row: &mut Map<String, Value>) {
    let is_reference = |case: &Case| {
        case.labels.iter().zip(&cases[number].labels).all(|((name, value), (_, own))| match *name {
            "user" => value == "honest",
            "variant" => value == "off",
            _ => value == own,
        })
    };
    let Some(reference) = cases.iter().position(is_reference) else { return };
    let lines = |case: usize| {
        let of_case = jobs.iter().zip(&table.lines).filter(move |(job, _)| job.case == case);
        of_case.filter_map(|(_, line)| line.as_ref())
    };
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for line in lines(number) {
        let Some(honest) = lines(reference).find(|honest| honest.seed == line.seed) else { continue };
        let is_of_people = |name: &str| ["user", "others"].iter().any(|of| name.starts_with(of));
        let of_people = line.values.iter().filter(|(name, _)| is_of_people(name) && name.ends_with("_stretch"));
        for (name, value) in of_people {
            let same = honest.values.iter().find(|(known, _)| known == name);
            ratios.entry(name).or_default().extend(same.map(|(_, reference)| value / reference));
        }
    }
    for (name, ratios) in ratios.into_iter().filter(|(_, ratios)| !ratios.is_empty()) {
        let (value, interval) = together(Combination::Geometric, &ratios);
        row.insert(format!("{name}_by_honest"), json!(value));
        row.extend(interval.map(|interval| (format!("{name}_by_honest_ci95"), json!(interval))));
    }
}

/// How the values of a quantity are combined.
fn how(experiment: Experiment, name: &str) -> Combination {
    match name {
        "lost_tasks" | "open_tasks" | "unaccepted_tasks" | "duplicate_tasks" | "unfinished_bags" | "unended_bags" => {
            Combination::Sum
        }
        "peak_rss_bytes"
        | "update_time_max_s"
        | "known_after_ended_s_max"
        | "known_after_return_s_max"
        | "held_up_max" => Combination::Largest,
        _ if ["link_peak", "tree_peak", "data_peak"].iter().any(|peak| name.starts_with(peak)) => Combination::Largest,
        _ if matches!(experiment, Experiment::Desktops | Experiment::Loads | Experiment::Submitters)
            && name.contains("ratio_") =>
        {
            Combination::Geometric
        }
        _ if experiment == Experiment::Submitters && name.contains("stretch") => Combination::Geometric,
        _ => Combination::Mean,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiment::job;
    use crate::experiment::table::Line;

    /// The case of a million machines, on six.
    #[test]
    fn a_run_that_is_only_watched_says_that_it_has_no_ratios() {
        let out = std::env::temp_dir().join(format!("idlewood-soak-{}", std::process::id()));
        std::fs::create_dir_all(&out).expect("a new directory");
        let plan = Plan {
            experiment: Experiment::Scale,
            nodes: vec![6, 1_000_000],
            seed: 1,
            seeds: 1,
            bags: Some(2),
            log: None,
            owners: None,
            only: Vec::new(),
            out,
            threads: Some(1),
        };
        let mut cases = plan.cases();
        cases[1].scenario.nodes = 6;
        cases[1].scenario.horizon =
            cases[1].scenario.first_arrival().since(idlewood_overlay::Time::ZERO) + Duration::from_secs(60);
        let jobs = plan.jobs(&cases, "build");
        let identities = jobs.iter().map(|job| (job.key.clone(), cases[job.case].labels.clone(), job.seed));
        let mut table = Table::open(plan.out.join("scale.csv"), identities.collect()).expect("a new table");
        for (job, line) in jobs.iter().zip(&mut table.lines) {
            let (trace_hash, values) = job::run(&cases[job.case], job.seed, 1, &mut |_| ());
            let (key, labels) = (job.key.clone(), cases[job.case].labels.clone());
            *line = Some(Line { key, labels, seed: job.seed, trace_hash, values });
        }
        let summary = of(&plan, &cases, &jobs, &table);
        let [finite, soak] = [0, 1].map(|row| summary["rows"][row].as_object().expect("a row"));
        assert_eq!([&finite["load"], &soak["load"]], ["finite", "soak"]);
        assert!(OF_THE_END.iter().all(|name| finite[*name].is_number()), "{finite:?}");
        // Present, and null: neither omitted nor 0.
        assert!(OF_THE_END.iter().all(|name| soak.get(*name) == Some(&Value::Null)), "{soak:?}");
        assert!(soak.keys().all(|name| OF_THE_END.contains(&name.as_str()) || !name.contains("ratio_")), "{soak:?}");
        assert!(soak["open_tasks"].as_f64() > Some(0.0), "{soak:?}");
        assert_eq!([&finite["open_tasks"], &finite["unfinished_bags"]], [0.0, 0.0]);
        assert!(soak["bytes_per_node_s"].as_f64() > Some(0.0), "{soak:?}");
        std::fs::remove_dir_all(&plan.out).expect("it is there");
    }
}
