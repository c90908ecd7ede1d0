//! Scenario files: the included ones can be run, flags override them, and real inputs can be replayed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use idlewood_simnet::scenario::{DEFAULTS, Latencies, Sessions, Workload};
use idlewood_simnet::workload::{bandwidths_bytes_s, slots};
use idlewood_simnet::{Report, Scenario, Simulation};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

fn simnet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_simnet")).args(arguments).output().expect("simnet starts")
}

#[track_caller]
fn run_to_the_end(scenario: Scenario) -> Report {
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let report = simulation.run(|_| ());
    let bags = u64::from(report.scenario.bags);
    assert_eq!((report.lost_tasks, report.open_tasks, report.bags_closed), (0, 0, bags), "{report:?}");
    assert_eq!(simulation.record().without_output, 0, "{report:?}");
    report
}

/// As they are, but smaller.
#[test]
fn included_scenarios_run_to_their_end() {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(directory()).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let scenario = Scenario::read(&path).unwrap_or_else(|sentence| panic!("{sentence}"));
        seen.push(path.file_stem().expect("a name").to_string_lossy().into_owned());
        let small = Scenario { nodes: 10, bags: 3, tasks_per_node: 2, ..scenario };
        if small.sessions == Sessions::Desktops {
            // Its longest tasks take days.
            let horizon = Duration::from_secs(12 * 3600);
            let report = Simulation::new(Scenario { horizon, ..small }).expect("a valid scenario").run(|_| ());
            assert!(report.crashes > 0 && report.leaves > 0 && report.reclaims > 0, "{report:?}");
            assert!(report.completed_tasks > 0, "{report:?}");
        } else {
            run_to_the_end(small);
        }
    }
    seen.sort();
    assert_eq!(seen, ["default", "desktops", "few", "paper", "servers"]);
}

#[test]
fn flags_override_the_file() {
    let path = directory().join("paper.toml");
    let path = path.to_str().expect("text");
    let flags = ["--nodes", "4", "--bags", "1", "--tasks-per-node", "1", "--churn", "none", "--output", "json"];
    let output = simnet(&[&["run", "--scenario", path], flags.as_slice()].concat());
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let scenario = &json["scenario"];
    assert_eq!((scenario["nodes"].as_u64(), scenario["churn_s"].as_f64()), (Some(4), None));
    assert_eq!((&scenario["queue_lost"], &scenario["policy"]["preemptive"]), (&true.into(), &false.into()));
    // The paper's settings are the same in the file and as a flag.
    let flags = ["--nodes", "4", "--bags", "1", "--tasks-per-node", "1", "--output", "json"];
    let output = simnet(&[&["run", "--paper"], flags.as_slice()].concat());
    let paper: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(paper["scenario"]["policy"], scenario["policy"]);
    let printed = simnet(&["run", "--print-scenario"]);
    assert_eq!(String::from_utf8_lossy(&printed.stdout), DEFAULTS);
}

/// Owners and machines come and go all the time: frozen tasks continue, and none is lost.
#[test]
fn owners_delay_work_and_lose_none_of_it() {
    let scenario = Scenario { nodes: 6, bags: 2, tasks_per_node: 4, ..Scenario::default() };
    let alone = run_to_the_end(scenario.clone());
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let owned =
        Scenario { owner_session: Some(minutes(5)), owner_away: minutes(5), owner_idle: Duration::ZERO, ..scenario };
    let report = run_to_the_end(owned.clone());
    assert!(report.reclaims > 10, "{report:?}");
    assert!(report.makespan_s > 1.3 * alone.makespan_s, "{} after {}", report.makespan_s, alone.makespan_s);
    assert_eq!(report.duplicate_tasks, 0, "a task that is frozen was run elsewhere: {report:?}");
    let report = run_to_the_end(Scenario { churn: Some(minutes(20)), downtime: minutes(1), ..owned });
    assert!(report.crashes > 2, "{report:?}");
}

#[test]
fn tasks_whose_work_differs_from_the_declaration_complete() {
    let report =
        run_to_the_end(Scenario { nodes: 6, bags: 3, tasks_per_node: 4, task_cv: 0.45, ..Scenario::default() });
    assert!(report.makespan_s > 0.0, "{report:?}");
}

#[test]
fn a_trace_a_log_and_a_matrix_are_replayed() {
    let directory = std::env::temp_dir().join(format!("idlewood-scenario-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("a file");
    file("sessions.json", r#"{"gap_seconds": 600, "data": [4, 5, 3, 6, 5, 2, 6]}"#);
    file("latencies.txt", "0 30 200\n30 0 90\n200 90 0\n");
    let job = |at, run, user| format!("1 {at} -1 {run} 3 -1 -1 -1 -1 -1 -1 {user} 1 -1 -1 -1 -1 -1\n");
    file("jobs.swf", &["; comment\n", &job(0, 600, 1), &job(60, 900, 1), &job(100, 300, 2)].concat());
    file(
        "real.toml",
        "nodes = 6\nbags = 9\nsessions = \"trace\"\nsessions_file = \"sessions.json\"\nlatencies = \"matrix\"\n\
         latency_file = \"latencies.txt\"\nworkload = \"log\"\nlog_file = \"jobs.swf\"\nhorizon = \"2d\"\n",
    );
    let scenario = Scenario::read(&directory.join("real.toml")).unwrap_or_else(|sentence| panic!("{sentence}"));
    assert_eq!((scenario.latencies, scenario.workload), (Latencies::Matrix, Workload::Log));
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let report = simulation.run(|_| ());
    assert_eq!((report.bags_closed, report.accepted_tasks), (2, 9), "{report:?}");
    assert_eq!((report.lost_tasks, report.open_tasks), (0, 0), "{report:?}");
    assert!(report.crashes > 0, "{report:?}");
    file("jobs.swf", "1 2 3\n");
    let error = Scenario::read(&directory.join("real.toml")).unwrap_err();
    assert!(error.ends_with("jobs.swf:1: 3 fields where 18 are expected"), "{error}");
    std::fs::remove_dir_all(&directory).expect("it was there");
}

/// Other files that a scenario may name, relative to its own directory.
#[test]
fn workflows_distributions_owners_and_surveys_are_read() {
    let directory = std::env::temp_dir().join(format!("idlewood-inputs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("a file");
    file("cores.csv", "2026-04-01,Physical CPUs,2 cpus,,1.0\n");
    file("links.json", r#"{"countries": {"A": {"up_mbits": 8, "down_mbits": 16}}}"#);
    file("busy.txt", "0 0 90 0 90\n1 90 0 90 0\n2 90 0 90 0\n");
    let machines = "nodes = 6\nbags = 3\ncores = \"survey\"\ncores_file = \"cores.csv\"\nbandwidths = \"survey\"\n\
        bandwidths_file = \"links.json\"\nowners = \"load\"\nowner_file = \"busy.txt\"\nowner_idle = \"0s\"\n";
    let task = |name| {
        format!(
            r#"{{"name": "{name}", "runtimeInSeconds": 700, "files": [{{"link": "output", "sizeInBytes": 12340}}]}}"#
        )
    };
    file("flow.json", &format!(r#"{{"workflow": {{"tasks": [{}, {}, {}]}}}}"#, task("a"), task("b"), task("c")));
    file("flows.toml", &format!("{machines}workload = \"workflows\"\nworkflow_files = [\"flow.json\"]\n"));
    file("four.cdf", "4 1\n");
    file("long.cdf", "1400000 1\n");
    file("minute.cdf", "60 1\n");
    file(
        "drawn.toml",
        &format!(
            "{machines}output_bytes = 12340\nworkload = \"distributions\"\ntasks_file = \"four.cdf\"\n\
             lengths_file = \"long.cdf\"\nintervals_file = \"minute.cdf\"\n"
        ),
    );
    for (name, tasks) in [("flows.toml", 9), ("drawn.toml", 12)] {
        let scenario = Scenario::read(&directory.join(name)).unwrap_or_else(|sentence| panic!("{sentence}"));
        assert!(scenario.has_owners());
        assert_eq!((slots(&scenario, 0), bandwidths_bytes_s(&scenario, 0)), (2, (1_000_000, 2_000_000)));
        let report = Simulation::new(scenario).expect("a valid scenario").run(|_| ());
        assert_eq!((report.bags_closed, report.accepted_tasks), (3, tasks), "{report:?}");
        assert_eq!((report.lost_tasks, report.open_tasks), (0, 0), "{report:?}");
        // Tasks longer than any absence of an owner are frozen at least once; owners come and go four times in 20
        // minutes.
        assert!(report.reclaims > 6 && report.makespan_s > 700.0, "{report:?}");
        let fetched = report.outputs.bytes / report.outputs.count;
        assert_eq!(fetched, 12_340, "{report:?}");
    }
    let drawn =
        format!("{machines}workload = \"distributions\"\ntasks_file = \"four.cdf\"\nlengths_file = \"long.cdf\"\n");
    file("none.cdf", "0 1\n");
    file("many.cdf", "1000000 1\n");
    file("more.cdf", "1000000000000 1\n");
    file("always.txt", "0 90 90\n");
    for (text, with) in [
        (format!("{drawn}intervals_file = \"none.cdf\"\nload = 0.5\n"), "that are all 0"),
        (drawn.replace("four", "gone"), "gone.cdf cannot be read"),
        (drawn.replace("four", "more"), "bags have 3000000000000 tasks"),
        (drawn.replace("four", "many").replace("bags = 3", "bags = 600"), "bags have 600000000 tasks"),
        (drawn.replace("busy", "always") + "load = 0.5\n", "owners are never away"),
    ] {
        file("wrong.toml", &text);
        let error = Scenario::read(&directory.join("wrong.toml")).and_then(Simulation::new).err();
        assert!(error.as_ref().is_some_and(|error| error.contains(with)), "{error:?} for {text}");
    }
    std::fs::remove_dir_all(&directory).expect("it was there");
}

/// Ctrl-C: the results so far, and the exit code that shells expect.
#[cfg(unix)]
#[test]
fn an_interrupted_simulation_prints_its_progress() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_simnet"))
        .args(["run", "--nodes", "30", "--bags", "0", "--horizon", "300d", "--threads", "2", "--output", "json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("simnet starts");
    // Once it prints its progress it handles signals.
    let mut stderr = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut line).expect("progress");
    assert!(line.contains("s simulated"), "{line}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(json["complete"], false, "{json}");
    assert!(json["sim_s"].as_f64() > Some(0.0) && json["events"].as_u64() > Some(1_000), "{json}");
}
