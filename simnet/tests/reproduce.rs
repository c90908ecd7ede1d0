//! The experiments on the overlay as a command: the same result in every process and on any number of threads, files
//! that agree with the summary, errors that say what to write.

mod command;

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::Value;

use command::{Directory, begin, interrupt, json};

fn overlay(arguments: &str, out: &Directory) -> Output {
    command::reproduce(&format!("overlay {arguments}"), out)
}

/// The values that do not depend on the machine that computed them.
fn simulated(mut summary: Value) -> Value {
    let fields = summary.as_object_mut().expect("an object");
    for field in ["cpu_s", "events_per_cpu_s", "peer_hours_per_cpu_hour", "peak_rss_bytes", "peak_rss_bytes_per_peer"] {
        assert!(fields.remove(field).is_some_and(|value| value.as_f64() > Some(0.0)), "{field}");
    }
    summary
}

/// Cases of one seed begin with copies of one grid.
#[test]
fn a_case_has_the_same_result_alone_and_beside_others() {
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
fn two_processes_agree_with_any_number_of_threads() {
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
fn the_summary_agrees_with_the_files() {
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
    assert!(leave.starts_with("nodes,seed,case,quantity,value,check,key\n24,1,,growth_s,"), "{leave}");
    assert_eq!(leave.matches(",links_s,").count(), 30);
}

/// The measurements in all tables of a directory, with or without the rows put aside.
fn measured(out: &Directory, with_before: bool) -> BTreeSet<String> {
    let files = std::fs::read_dir(&out.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let tables = files.filter(|name| name.ends_with(".csv") && (with_before || !name.ends_with("-before.csv")));
    let lines = |name: String| {
        let lines: Vec<String> = out.read(&name).lines().map(str::to_owned).collect();
        // By table, whether its rows were put aside or not.
        lines.into_iter().map(move |line| format!("{}: {line}", name.replace("-before.csv", ".csv")))
    };
    tables.flat_map(lines).collect()
}

#[test]
fn results_of_other_settings_are_put_aside_and_taken_back() {
    let out = Directory::new("aside");
    let command = |nodes: u32, only: &str| format!("--nodes {nodes} --seed 3 --seeds 2 --only {only} --output json");
    let first = json(&overlay(&command(12, "steady,crash"), &out));
    let (tables, summary) = (measured(&out, false), out.read("summary.json"));
    let of_crash = out.read("crash.csv").lines().count();
    assert!(of_crash > 60 && !out.0.join("crash-before.csv").exists(), "{of_crash}");

    // Another size and other experiments: the tables have no earlier rows, and none are lost.
    let other = json(&overlay(&command(10, "crash"), &out));
    assert_ne!(other["trace_hash"], first["trace_hash"]);
    assert!(out.read("crash.csv").lines().skip(1).all(|line| line.starts_with("10,")));
    assert_eq!(out.read("crash-before.csv").lines().count(), of_crash);
    assert!(!out.0.join("steady.csv").exists() && out.0.join("steady-before.csv").exists());
    let all = measured(&out, true);
    assert!(tables.is_subset(&all), "{:?}", tables.difference(&all).collect::<Vec<_>>());

    // Requested again, the results are the same to the last digit and were not run again: processor time is that of
    // before, too.
    let again = overlay(&command(12, "steady,crash"), &out);
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert!(stderr.contains("4 of 4 jobs were found in the directory"), "{stderr}");
    assert_eq!((json(&again), measured(&out, false)), (first, tables));
    assert_eq!(out.read("summary.json"), summary);
    assert_eq!(measured(&out, true), all);
    assert!(!out.0.join("steady-before.csv").exists(), "nothing of it is aside any more");

    // With further experiments only the missing jobs are run.
    let more = overlay(&command(12, "steady,crash,mass"), &out);
    assert!(String::from_utf8_lossy(&more.stderr).contains("4 of 10 jobs were found"), "{more:?}");
    // A removed table is made again.
    std::fs::remove_file(out.0.join("heights.csv")).unwrap();
    let mended = overlay(&command(12, "steady"), &out);
    let stderr = String::from_utf8_lossy(&mended.stderr);
    assert!(mended.status.success() && !stderr.contains("found in the directory"), "{stderr}");
    assert!(out.read("heights.csv").lines().count() > 2);
}

#[test]
fn tables_of_an_older_program_are_kept() {
    let out = Directory::new("older");
    let old = "nodes,seed,case,quantity,value\n9,1,,growth_s,1.5\n9,1,root,links_s,2\n9,1,root,links_s,2\n";
    std::fs::write(out.0.join("crash.csv"), old).unwrap();
    json(&overlay("--nodes 8 --only crash --output json", &out));
    assert_eq!(out.read("crash-before.csv"), old);
    assert!(!out.read("crash.csv").contains("\n9,"));
}

#[test]
fn an_interrupted_experiment_continues_where_it_stopped() {
    let (out, whole) = (Directory::new("goes-on"), Directory::new("whole"));
    let arguments = "--nodes 150 --seed 2 --seeds 6 --only crash --threads 1 --output json";
    let begun = || out.0.join("overlay.csv").exists() && out.read("overlay.csv").lines().count() > 1;
    let told = interrupt(begin(&format!("overlay {arguments}"), &out, begun));
    assert!(told.ends_with("of 6 jobs are kept; the same command goes on from there"), "{told}");
    let kept: Value = serde_json::from_str(&out.read("summary.json")).unwrap();
    assert_eq!(kept["complete"], false);
    let rest = overlay(arguments, &out);
    let stderr = String::from_utf8_lossy(&rest.stderr);
    assert!(stderr.contains("of 6 jobs were found in the directory"), "{stderr}");
    // Each seed has one case, so that no grid is grown again: the result is that of an uninterrupted experiment.
    assert_eq!(simulated(json(&rest)), simulated(json(&overlay(arguments, &whole))));
    assert_eq!(out.read("crash.csv"), whole.read("crash.csv"));
}

#[test]
fn a_job_without_rows_in_some_table_is_not_run_again() {
    let out = Directory::new("one-machine");
    let arguments = "--nodes 1 --only steady --output json";
    let first = json(&overlay(arguments, &out));
    assert!(!out.0.join("traffic.csv").exists(), "a machine alone sends nothing");
    let again = overlay(arguments, &out);
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert!(stderr.contains("1 of 1 jobs were found in the directory"), "{stderr}");
    assert_eq!(json(&again), first);
}

#[test]
fn a_job_whose_rows_were_cut_is_run_again() {
    let out = Directory::new("cut");
    let arguments = "--nodes 12 --seeds 2 --only steady,crash --output json";
    let first = simulated(json(&overlay(arguments, &out)));
    for table in ["crash.csv", "traffic.csv", "heights.csv"] {
        let whole = out.read(table);
        // All of the first seed, and some of the second.
        let kept = whole.lines().count() - 1;
        let cut: String = whole.split_inclusive('\n').take(kept).collect();
        std::fs::write(out.0.join(table), cut).unwrap();
        let again = overlay(arguments, &out);
        let stderr = String::from_utf8_lossy(&again.stderr);
        assert!(stderr.contains("3 of 4 jobs were found in the directory"), "{table}: {stderr}");
        assert_eq!((out.read(table), simulated(json(&again))["complete"].clone()), (whole, first["complete"].clone()));
    }
    assert!(String::from_utf8_lossy(&overlay(arguments, &out).stderr).contains("4 of 4 jobs were found"));
    let (path, whole) = (out.0.join("crash.csv"), out.read("crash.csv"));
    let mut bytes = whole.clone().into_bytes();
    let end = bytes.len() - 3;
    bytes[end] = 0xff;
    std::fs::write(path, bytes).unwrap();
    let again = overlay(arguments, &out);
    assert!(String::from_utf8_lossy(&again.stderr).contains("3 of 4 jobs were found"), "{again:?}");
    assert_eq!(out.read("crash.csv"), whole);
    // Edited rows are not reused either.
    let growth = whole.lines().nth(1).unwrap().split(',').nth(4).unwrap();
    std::fs::write(out.0.join("crash.csv"), whole.replacen(growth, "0.5", 1)).unwrap();
    let again = overlay(arguments, &out);
    assert!(String::from_utf8_lossy(&again.stderr).contains("3 of 4 jobs were found"), "{again:?}");
    assert_eq!((out.read("crash.csv"), &json(&again)["trace_hash"]), (whole, &first["trace_hash"]));
}

/// A second process, which had few jobs remaining, has less memory for fewer machines at a time.
#[test]
fn memory_for_each_machine_is_that_of_the_process_that_had_the_most() {
    let out = Directory::new("memory");
    let arguments = "--nodes 12 --seeds 2 --only steady --output json";
    json(&overlay(arguments, &out));
    let table = out.read("overlay.csv");
    let mut rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|known| *known == name).expect("a column");
    let [peak, per_peer, checked] = ["peak_rss_bytes", "peak_rss_bytes_per_peer", "check"].map(column);
    for (row, values) in [(1, ["9000000", "250000"]), (2, ["6000000", "500000"])] {
        [rows[row][peak], rows[row][per_peer]] = values;
    }
    // As docs/lab/method.md defines it.
    let check = |row: &[&str]| -> String {
        let full = rows[0].iter().zip(row).filter(|(name, cell)| **name != "check" && !cell.is_empty());
        let text: String = full.map(|(name, cell)| format!("{name}={cell}\n")).collect();
        blake3::hash(text.as_bytes()).to_hex()[..8].to_owned()
    };
    let checks: Vec<String> = rows.iter().map(|row| check(row)).collect();
    for row in [1, 2] {
        rows[row][checked] = &checks[row];
    }
    let told: String = rows.iter().map(|row| row.join(",") + "\n").collect();
    std::fs::write(out.0.join("overlay.csv"), told).unwrap();
    let summary = json(&overlay(arguments, &out));
    assert_eq!(
        (&summary["peak_rss_bytes"], &summary["peak_rss_bytes_per_peer"]),
        (&9_000_000.into(), &250_000.0.into())
    );
}

#[test]
fn a_page_shows_results_of_overlays() {
    let out = Directory::new("page");
    let arguments = "--nodes 12 --seed 3 --seeds 2 --only steady,crash --output json";
    let summary = json(&overlay(arguments, &out));
    let mut report = Command::new(env!("CARGO_BIN_EXE_simnet"));
    let output = report.arg("report").arg(&out.0).output().expect("simnet starts");
    assert!(output.status.success(), "{output:?}");
    let page = out.read("report.html");
    let (commit, height) = (summary["commit"].as_str().unwrap(), &summary["height"]);
    for part in [
        "<h2>overlay</h2>".to_owned(),
        "<pre>simnet reproduce overlay --nodes 12 --seed 3 --seeds 2 --only steady,crash</pre>".to_owned(),
        format!("Seeds 3 to 4, commit {commit}, from <code>"),
        format!("<th>height</th><td>{}</td>", height.as_f64().unwrap()),
        format!("<th>crash repair p50 s</th><td>{:.3}</td>", summary["crash_repair_p50_s"].as_f64().unwrap()),
        "<th>crash repair by place, root: max s</th>".to_owned(),
        "<th>traffic by kind, Ping: bytes</th>".to_owned(),
    ] {
        assert!(page.contains(&part), "{part} in {page}");
    }
    assert!(!page.contains("Not complete") && !page.contains("mass failure"), "{page}");
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
fn a_trace_that_ends_early_is_refused_and_a_machine_whose_trace_ends_stays_down() {
    let out = Directory::new("short");
    let path = out.0.join("event_trace.tab");
    let row = |node: u32, from: u64, to: u64| format!("0\t0\t{node}\t3\tx\t1\t{from}\t{to}\t0\n");
    let arguments = format!("--nodes 12 --only trace --output json --trace {}", path.display());
    // An hour and a minute are replayed.
    std::fs::write(&path, row(1, 1_000, 1_000 + 3_660) + &row(2, 2_000_000, 2_000_600)).unwrap();
    let output = overlay(&arguments, &out);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let sentence = "follows no machine for longer than 3660 s, and 3660 s of it are replayed at trace-speedup 1: give a longer one\n";
    assert!(stderr.ends_with(sentence), "{stderr}");
    // Experiments other than `trace` accept it.
    json(&overlay(&arguments.replace("--only trace", "--only crash"), &out));
    // Every second machine follows one that was up for ten minutes: it goes once, and never comes back.
    std::fs::write(&path, row(1, 1_000, 1_000 + 7_000) + &row(2, 2_000_000, 2_000_600)).unwrap();
    let summary = json(&overlay(&arguments, &out));
    assert_eq!(summary["trace_changes"], 6.0);
    let trace = out.read("trace.csv");
    assert!(trace.contains(",arrivals,0,") && trace.contains(",departures,6,"), "{trace}");
    let output = overlay(&format!("{arguments} --trace-speedup 2"), &out);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.ends_with("give a longer one or a smaller --trace-speedup\n"), "{stderr}");
}

#[test]
fn wrong_usage_is_refused_in_a_sentence() {
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
    // So are files that cannot be read or written.
    std::fs::create_dir_all(out.0.join("crash.csv")).unwrap();
    let output = overlay("--nodes 4 --only crash", &out);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("crash.csv cannot be read") && output.stdout.is_empty(), "{stderr}");
}

#[test]
fn an_interrupted_experiment_says_which_results_are_saved() {
    let out = Directory::new("interrupted");
    let child = begin("overlay --nodes 5000 --only steady,churn-4h", &out, || out.0.join(".lock").exists());
    assert_eq!(interrupt(child), "interrupted: 0 of 3 jobs are kept; the same command goes on from there");
}
