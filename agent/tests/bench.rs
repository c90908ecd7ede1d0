//! `idlewood bench` from outside: its output, and that it leaves nothing behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here takes, also on a loaded machine with an unoptimised build.
const PATIENCE: Duration = Duration::from_secs(120);

fn bench(temporary: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idlewood"));
    command.arg("bench").args(args).args(["--output", "json"]).env("TMPDIR", temporary).stdin(Stdio::null());
    command
}

/// Runs it; returns the object on its last line.
fn report(args: &[&str]) -> Value {
    let temporary = tempfile::tempdir().unwrap();
    let output = bench(temporary.path(), args).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("starting"), "progress is told: {stderr}");
    assert_nothing_left(temporary.path());
    serde_json::from_str(stdout.lines().last().expect("a line")).expect("JSON")
}

/// Neither files nor processes are left.
fn assert_nothing_left(temporary: &Path) {
    let files: Vec<_> = fs::read_dir(temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.is_empty(), "{files:?}");
    assert_eq!(processes_on(temporary), Vec::<String>::new());
}

/// Command lines that name the directory.
fn processes_on(temporary: &Path) -> Vec<String> {
    let name = temporary.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    // A process may end meanwhile.
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(name)).collect()
}

#[test]
fn five_hundred_tasks_are_counted_and_nothing_remains() {
    let report = report(&["--tasks", "500"]);
    assert_eq!(report["tasks"], 500);
    for field in [
        "cpu_us_per_task",
        "tasks_per_s",
        "submit_s",
        "first_start_s",
        "peak_rss_bytes",
        "bytes_written",
        "makespan_s",
        "first_results_s",
        "restart_s",
        "client_cpu_us_per_task",
    ] {
        assert!(report[field].as_f64().is_some_and(|number| number >= 0.0), "{field}: {report}");
    }
    assert!(report["peak_rss_bytes"].as_u64().unwrap() > 1 << 20, "{report}");
    assert_eq!(report["efficiency"], Value::Null, "of tasks that take no time there is none");
    assert_eq!(report["agents"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["agents"][0]["executed"], 500);
    let parts = ["agent_cpu_us_per_task", "workers_cpu_us_per_task"].map(|part| report["agents"][0][part].as_f64());
    let parts: f64 = parts.into_iter().flatten().sum::<f64>() + report["client_cpu_us_per_task"].as_f64().unwrap();
    assert!((parts - report["cpu_us_per_task"].as_f64().unwrap()).abs() < 1e-6, "{report}");
}

#[test]
fn two_agents_share_tasks_of_five_milliseconds() {
    let report = report(&["--tasks", "200", "--task", "5ms", "--agents", "2"]);
    assert!(report["efficiency"].as_f64().is_some_and(|share| share > 0.0 && share <= 1.0), "{report}");
    let executed: Vec<u64> =
        report["agents"].as_array().unwrap().iter().map(|agent| agent["executed"].as_u64().unwrap()).collect();
    assert_eq!((executed.len(), executed.iter().sum::<u64>()), (2, 200), "{report}");
    assert_eq!(report["agents"][0]["role"], "submitter");
}

/// Every task prints something else, and all of it arrives.
#[test]
fn distinct_outputs_of_four_agents_all_arrive() {
    let report = report(&["--tasks", "400", "--distinct", "--agents", "4"]);
    assert_eq!((&report["tasks"], &report["distinct"]), (&400.into(), &true.into()), "{report}");
    assert_eq!(report["agents"].as_array().map(Vec::len), Some(4));
}

#[test]
fn an_interrupt_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let child = bench(temporary.path(), &["--tasks", "1000000"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
    let child = child.unwrap();
    let begin = Instant::now();
    // An agent runs.
    while !processes_on(temporary.path()).iter().any(|line| line.contains(" run ")) {
        assert!(begin.elapsed() < PATIENCE, "no agent was started");
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("interrupted"), "{stderr}");
    assert_nothing_left(temporary.path());
}
