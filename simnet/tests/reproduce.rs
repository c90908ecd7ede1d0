//! The experiments as a command: the same result in every process and on any number of threads, files that say the
//! same as the summary, errors that say what to write.

mod command;

use std::process::Output;

use serde_json::Value;

use command::{Directory, begin, interrupt, json};

fn overlay(arguments: &str, out: &Directory) -> Output {
    command::reproduce(&format!("overlay {arguments}"), out)
}

/// What does not depend on the machine that it ran on.
fn simulated(mut summary: Value) -> Value {
    let fields = summary.as_object_mut().expect("an object");
    for field in ["cpu_s", "events_per_cpu_s", "peer_hours_per_cpu_hour", "peak_rss_bytes", "peak_rss_bytes_per_peer"] {
        assert!(fields.remove(field).is_some_and(|value| value.as_f64() > Some(0.0)), "{field}");
    }
    summary
}

/// Cases of one seed begin with copies of one grid.
#[test]
fn a_case_comes_to_the_same_alone_and_beside_others() {
    let (alone, beside) = (Directory::new("alone"), Directory::new("beside"));
    let arguments = "--nodes 40 --seed 8 --seeds 2 --only mass,partition --output json";
    let both = json(&overlay(arguments, &beside));
    let one = json(&overlay(&format!("{arguments} --cases 80"), &alone));
    let rows = |table: String| table.lines().filter(|row| row.contains(",80,")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(rows(alone.read("mass.csv")).len(), 4);
    assert_eq!(rows(alone.read("mass.csv")), rows(beside.read("mass.csv")));
    assert_eq!(one["mass_failure_80_s"], both["mass_failure_80_s"]);
    assert!(both["partition_heal_s"].as_f64() > Some(0.0) && both["strangers_merge_s"].as_f64() > Some(0.0));
}

#[test]
fn two_processes_agree_whatever_the_number_of_threads() {
    let arguments = "--nodes 24 --seed 5 --seeds 2 --only steady,crash,mass --output json";
    let (one, two) = (Directory::new("one"), Directory::new("two"));
    let first = simulated(json(&overlay(&format!("{arguments} --threads 1"), &one)));
    let second = simulated(json(&overlay(&format!("{arguments} --threads 2"), &two)));
    assert_eq!(first, second);
    for file in ["steady.csv", "crash.csv", "mass.csv", "heights.csv", "traffic.csv"] {
        assert_eq!(one.read(file), two.read(file), "{file}");
    }
    let other = overlay("--nodes 24 --seed 6 --only crash --output json", &one);
    assert_ne!(json(&other)["trace_hash"], first["trace_hash"]);
}

#[test]
fn the_summary_says_what_the_files_say() {
    let out = Directory::new("summary");
    let summary = json(&overlay("--nodes 24 --only steady,join,leave,mass,partition,churn-10min --output json", &out));
    for field in [
        "height",
        "mean_depth",
        "leave_repair_p99_s",
        "mass_failure_50_s",
        "mass_failure_80_s",
        "partition_heal_s",
        "path_available_10min",
        "bytes_per_peer_s",
        "join_messages_p50",
        "join_p99_s",
        "events_per_cpu_s",
    ] {
        assert!(summary[field].as_f64() > Some(0.0), "{field} in {summary}");
    }
    for field in ["crash_repair_p50_s", "crash_repair_p99_s", "path_available_4h", "path_available_trace"] {
        assert!(summary[field].is_null(), "{field} was not asked for: {summary}");
    }
    assert_eq!((&summary["nodes"], &summary["seeds"], &summary["complete"]), (&24.into(), &1.into(), &true.into()));
    assert_eq!(summary["unhealed"], 0);
    assert!(summary["path_available_10min"].as_f64() <= Some(1.0));
    let heights = out.read("heights.csv");
    let rows = heights.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let depths: Vec<(f64, f64)> = rows.map(|row| (row[2].parse().unwrap(), row[3].parse().unwrap())).collect();
    let leaves: f64 = depths.iter().map(|(_, leaves)| leaves).sum();
    assert_eq!((leaves, depths.last().map(|(depth, _)| *depth)), (24.0, summary["height"].as_f64()));
    let mean = depths.iter().map(|(depth, leaves)| depth * leaves).sum::<f64>() / leaves;
    assert!((mean - summary["mean_depth"].as_f64().unwrap()).abs() < 1e-9);
    let kept: Value = serde_json::from_str(&out.read("summary.json")).unwrap();
    assert_eq!(kept["trace_hash"], summary["trace_hash"]);
    let leave = out.read("leave.csv");
    assert!(leave.starts_with("nodes,seed,case,quantity,value\n24,1,,growth_s,"), "{leave}");
    assert_eq!(leave.matches(",links_s,").count(), 30);
}

#[test]
fn a_trace_is_replayed() {
    let out = Directory::new("trace");
    let path = out.0.join("event_trace.tab");
    // Three machines that are up for two minutes of every three, in turn, for a day.
    let rows = (0..3).flat_map(|node| {
        let starts = (0..480).map(move |round| 1_000_000 + round * 180 + node * 60);
        starts.map(move |start| format!("0\t0\t{node}\t3\tx\t1\t{start}\t{}\t0\n", start + 120))
    });
    std::fs::write(&path, rows.collect::<String>()).unwrap();
    let arguments = format!("--nodes 12 --only trace --output json --trace {}", path.display());
    let summary = json(&overlay(&arguments, &out));
    let changes = summary["trace_changes"].as_f64().unwrap();
    // Two changes of each machine in three minutes of an hour and a minute.
    assert!((440.0..=500.0).contains(&changes), "{changes}");
    let faster = json(&overlay(&format!("{arguments} --trace-speedup 2"), &out))["trace_changes"].as_f64().unwrap();
    assert!((1.8..2.2).contains(&(faster / changes)), "{faster} of {changes}");
    let share = summary["path_available_trace"].as_f64().unwrap();
    assert!(share > 0.5 && share < 1.0, "{share}");

    std::fs::write(&path, "0 0 1 3 x 1 100 200 0\n0 0 1 3 x 7 200 300 0\n").unwrap();
    let output = overlay(&arguments, &out);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("event_trace.tab:2: event_type is 7: 1 (available) or 0 (unavailable)"), "{stderr}");
}

#[test]
fn bad_usage_is_told_in_a_sentence() {
    let out = Directory::new("usage");
    let trace = out.0.join("trace.tab");
    std::fs::write(&trace, "0 0 1 3 x 1 100 200 0\n").unwrap();
    for (arguments, sentence) in [
        ("--nodes 0", "nodes must be between 1 and 1000000"),
        ("--seeds 0", "seeds must be between 1 and 1000000"),
        ("--only mess", "write one of steady, join, crash, leave, mass, partition"),
        ("--only trace", "trace needs a file: write --trace FILE"),
        ("--only trace --trace-speedup 0 --trace TRACE", "trace-speedup must be at least 1"),
        ("--threads 0", "threads must be at least 1"),
        ("--trace /nowhere", "/nowhere cannot be read"),
    ] {
        let output = overlay(&arguments.replace("TRACE", &trace.display().to_string()), &out);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {stderr}");
        assert!(stderr.contains(sentence) && output.stdout.is_empty(), "{arguments}: {stderr}");
    }
}

#[test]
fn who_interrupts_is_told_what_is_kept() {
    let out = Directory::new("interrupted");
    let child = begin("overlay --nodes 5000 --only steady,churn-4h", &out, || out.0.join(".lock").exists());
    assert_eq!(interrupt(child), "interrupted: what 0 of 3 jobs came to is kept");
}
