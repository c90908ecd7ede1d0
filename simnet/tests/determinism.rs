//! The same scenario gives the same trace, in one process and in two; errors and flags of the command line.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_simnet::overlay::Wire;
use idlewood_simnet::{Execution, Report, Scenario, Simulation};

fn run(scenario: Scenario) -> Report {
    Simulation::new(scenario).expect("a valid scenario").run(|_| ())
}

fn run_with(scenario: Scenario, threads: usize, wire: Wire) -> Report {
    Simulation::with(scenario, Execution { threads, wire }).expect("a valid scenario").run(|_| ())
}

fn restless(seed: u64) -> Scenario {
    Scenario {
        nodes: 6,
        bags: 2,
        churn: Some(Duration::from_secs(600)),
        loss_percent: 5.0,
        tasks_per_node: 4,
        seed,
        ..Scenario::default()
    }
}

fn simnet(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_simnet")).args(arguments.split_whitespace()).output().expect("simnet starts")
}

fn last_line(output: &Output) -> serde_json::Value {
    let stdout = String::from_utf8(output.stdout.clone()).expect("text");
    serde_json::from_str(stdout.lines().next_back().expect("a line")).expect("one JSON object")
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_gives_another_trace() {
    let report = run(restless(7));
    assert!(report.crashes > 0 && report.messages_lost > 0, "nothing happened that could differ: {report:?}");
    assert_eq!(report, run(restless(7)));
    assert_ne!(report.trace_hash, run(restless(8)).trace_hash);
}

/// Crashes and restarts at once, losses, late and duplicate messages, several slots: all kinds of exchange between
/// machines and with the world.
fn turbulent(seed: u64) -> Scenario {
    Scenario {
        nodes: 13,
        bags: 4,
        downtime: Duration::from_secs(20),
        leave_percent: 30.0,
        duplicate_percent: 3.0,
        reorder_percent: 5.0,
        slots: 2,
        ..restless(seed)
    }
}

#[test]
fn any_number_of_threads_gives_the_same_report() {
    let one = run_with(turbulent(1), 1, Wire::Sizes);
    assert!(one.crashes > 3 && one.leaves > 1 && one.messages_lost > 0, "nothing could differ: {one:?}");
    for threads in [2, 3, 20] {
        assert_eq!(one, run_with(turbulent(1), threads, Wire::Sizes), "{threads} threads");
    }
}

#[test]
fn failed_tries_and_fetches_are_the_same_on_any_number_of_threads() {
    // Outputs that do not come with the word that a task has ended.
    let (output_bytes, unfetched_percent) = (100_000, 20.0);
    let failing =
        Scenario { fails_percent: 20.0, crashes_percent: 10.0, unfetched_percent, output_bytes, ..turbulent(6) };
    let one = run_with(failing.clone(), 1, Wire::Sizes);
    assert!(
        one.failed_executions > 3 && one.crashed_executions > 3 && one.crashes > 3,
        "nothing could differ: {one:?}"
    );
    assert_eq!(one, run_with(failing, 2, Wire::Bytes));
}

/// Machines that restart at once and have lost what they held.
fn restarting() -> Scenario {
    Scenario {
        churn: Some(Duration::from_secs(60)),
        downtime: Duration::ZERO,
        queue_lost: true,
        leave_percent: 0.0,
        horizon: Duration::from_secs(400),
        ..turbulent(4)
    }
}

/// A machine that restarts at once is started by the world outside, which only acts between windows.
#[test]
fn stepping_gives_the_trace_of_running() {
    for scenario in [turbulent(5), restarting()] {
        let report = run_with(scenario.clone(), 1, Wire::Sizes);
        assert!(report.crashes > 3, "{report:?}");
        for threads in [1, 3] {
            let execution = Execution { threads, wire: Wire::Sizes };
            let mut simulation = Simulation::with(scenario.clone(), execution).expect("a valid scenario");
            // The last window is run to its end.
            let end = Time::from_micros((report.sim_s * 1e6).round() as i64);
            while simulation.step(end) {}
            assert_eq!(simulation.report().trace_hash, report.trace_hash, "{threads} threads");
        }
    }
}

#[test]
fn messages_as_bytes_and_as_values_give_the_same_result() {
    assert_eq!(run_with(turbulent(3), 1, Wire::Bytes), run_with(turbulent(3), 1, Wire::Sizes));
}

/// No window is longer than the shortest latency, however short.
#[test]
fn latencies_down_to_nothing_are_allowed_with_any_number_of_threads() {
    let short = |latency_ms, jitter_percent| Scenario {
        latency_ms,
        jitter_percent,
        bags: 1,
        tasks_per_node: 1,
        horizon: Duration::from_secs(120),
        ..restless(1)
    };
    for scenario in [short(0, 0), short(50, 100)] {
        let one = run_with(scenario.clone(), 1, Wire::Sizes);
        assert!(one.messages > 1_000 && one.bags_accepted == 1, "{one:?}");
        assert_eq!(one, run_with(scenario, 2, Wire::Sizes));
    }
}

#[test]
fn two_processes_agree() {
    let arguments = "run --nodes 6 --bags 2 --tasks-per-node 4 --churn 10m --loss 5 --seed 7 --output json";
    let one = simnet(arguments);
    assert!(one.status.success(), "{one:?}");
    let (mut json, mut other) = (last_line(&one), last_line(&simnet(&format!("{arguments} --threads 2 --wire sizes"))));
    for json in [&mut json, &mut other] {
        let cost = json.as_object_mut().and_then(|report| report.remove("cost")).expect("what it cost");
        assert!(cost["cpu_s"].as_f64() > Some(0.0), "{cost}");
    }
    assert_eq!(json, other);
    assert_eq!(json["trace_hash"], run(restless(7)).trace_hash, "the library and the program differ");
    assert_eq!([&json["lost_tasks"], &json["open_tasks"]], [0, 0]);
    assert_eq!(json["completed_tasks"], json["accepted_tasks"]);
    for field in ["duplicate_tasks", "max_stretch", "events"] {
        assert!(json[field].is_number(), "{field}");
    }
}

#[test]
fn a_simulation_ended_by_the_horizon_reports_open_tasks() {
    let output = simnet("run --nodes 2 --bags 1 --horizon 60s --output json");
    let (json, stderr) = (last_line(&output), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let (accepted, open) = (json["accepted_tasks"].as_u64().unwrap(), json["open_tasks"].as_u64().unwrap());
    assert!(open > 0 && json["completed_tasks"].as_u64() == Some(accepted - open), "{json}");
    assert_eq!([&json["lost_tasks"], &json["bags_closed"]], [0, 0]);
    assert!(stderr.contains(&format!("the horizon ended it, {open} tasks are not done yet")), "{stderr}");
}

#[test]
fn a_bag_that_no_machine_has_accepted_is_reported() {
    let output = simnet("run --nodes 1 --bags 1 --churn 1s --downtime 300d --horizon 100s --output json");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("tasks are of bags that no machine has accepted"), "{stderr}");
    let json = last_line(&output);
    assert_eq!(json["unaccepted_tasks"], json["bags"][0]["tasks"]);
    let waited_s = 100.0 - json["bags"][0]["arrival_s"].as_f64().unwrap();
    let size_mops = json["bags"][0]["tasks"].as_f64().unwrap() * json["bags"][0]["task_mops"].as_f64().unwrap();
    assert!((json["max_stretch"].as_f64().unwrap() * size_mops / waited_s - 1.0).abs() < 1e-9, "{json}");
    let output = simnet("run --nodes 3 --bags 4 --horizon 20s");
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stderr).contains("4 bags would have come later")
    );
}

/// The times of bags agree with the ratios.
#[test]
fn a_simulation_is_compared_with_centralised_schedulers_on_request() {
    let arguments = "run --nodes 8 --bags 3 --tasks-per-node 4 --churn 30m --seed 5 --output json";
    let plain = last_line(&simnet(arguments));
    let json = last_line(&simnet(&format!("{arguments} --compare")));
    assert_eq!((&plain["compared"], &plain["trace_hash"]), (&serde_json::Value::Null, &json["trace_hash"]));
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{json}"));
    let stretches = json["bags"].as_array().unwrap().iter().map(|bag| {
        let size_mops = number(&bag["tasks"]) * number(&bag["task_mops"]);
        (number(&bag["completed_s"]) - number(&bag["arrival_s"])) / size_mops
    });
    let largest = stretches.fold(0.0, f64::max);
    let compared = &json["compared"];
    let of_bound = largest / number(&compared["max_stretch_offline"]);
    assert!((number(&compared["ratio_offline"]) / of_bound - 1.0).abs() < 1e-6 && of_bound >= 1.0, "{json}");
    assert!(number(&compared["ratio_mincent"]) > 0.9 && number(&compared["ratio_fcfs"]) > 0.0, "{json}");
    let text = simnet(&arguments.replace("--output json", "--compare").replace("--nodes 8", "--nodes 2"));
    assert!(String::from_utf8_lossy(&text.stderr).contains("per_submitter = \"off\""), "{text:?}");
    assert!(String::from_utf8_lossy(&text.stdout).contains("\nratio_mincent "), "{text:?}");
}

#[test]
fn scenarios_that_centralised_schedulers_cannot_express_are_not_compared() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("incomparable.toml");
    for (text, instead) in [
        ("choosy_percent = 10.0\n", "choosy_percent = 0.0"),
        ("bad_routers_percent = 10.0\n", "bad_routers_percent = 0.0"),
        ("replicas = 3\nquorum = 2\n", "replicas = 1 and quorum = 1"),
        ("declared = false\n", "declared = true"),
    ] {
        std::fs::write(&path, format!("nodes = 4\nbags = 1\ntasks_per_node = 1\n{text}")).expect("a file");
        let run = |flags: &str| simnet(&format!("run --scenario {} --output json{flags}", path.display()));
        assert!(run("").status.success(), "{text}");
        let output = run(" --compare");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}: {stderr}");
        assert!(stderr.contains("leave out --compare") && stderr.contains(instead), "{text}: {stderr}");
    }
}

#[test]
fn wrong_usage_is_refused_in_a_sentence() {
    for (arguments, sentence) in [
        ("run --nodes 0", "nodes must be between 1 and 1000000"),
        ("run --churn 4", "write a whole number and one of ms, s, m, h, d, such as 30m or 4h"),
        ("run --churn 0s", "churn must be none or a mean session between 1s and 366d"),
        ("run --loss 100", "loss must be at least 0 and below 100 percent"),
        ("run --horizon h", "write a whole number and one of ms, s, m, h, d"),
        ("run --scenario nowhere.toml", "nowhere.toml cannot be read"),
        ("run --scenario Cargo.toml", "Cargo.toml: TOML parse error at line 1"),
        ("run --threads 0", "threads must be at least 1"),
        ("run --frobnicate", "unexpected argument '--frobnicate'"),
    ] {
        let output = simnet(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {stderr}");
        assert!(stderr.contains(sentence) && output.stdout.is_empty(), "{arguments}: {stderr}");
    }
}

#[test]
fn flags_without_effect_are_refused() {
    let scenario = Path::new(env!("CARGO_TARGET_TMPDIR")).join("homes.toml");
    std::fs::write(
        &scenario,
        "sessions = \"desktops\"\ncores = \"desktops\"\nlatencies = \"homes\"\nworkload = \"desktops\"\n",
    )
    .expect("a file");
    let scenario = format!("--scenario {}", scenario.display());
    let unread = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unread.toml");
    std::fs::write(&unread, "queue_lost = true\n").expect("a file");
    let unread = format!("--scenario {}", unread.display());
    assert!(simnet(&format!("run {unread} --nodes 2 --bags 1 --tasks-per-node 1 --churn 4h")).status.success());
    for (before, flags, instead) in [
        (scenario.as_str(), "--churn 10m", "exponential"),
        (&scenario, "--slots 3", "paper"),
        (&scenario, "--latency-ms 500", "constant"),
        (&scenario, "--heavy-tailed", "paper"),
        ("", "--downtime 5m", "churn"),
        ("--churn none", "--queue-lost", "churn"),
        (
            &unread,
            "--nodes 2",
            "unread.toml: queue_lost would change nothing in this scenario: leave that out, or set churn",
        ),
        (&unread, "--churn none", "unread.toml: queue_lost"),
    ] {
        let output = simnet(&format!("run {before} {flags}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("would change nothing") && error.contains(instead), "{error}");
    }
}
