//! `simnet reproduce steady` as a command: CG-WAVE beside the optimum, the paper's heuristics, platforms of one's own, errors that say what to write.

mod command;

use serde_json::{Value, json};

use command::{Directory, begin, interrupt, json as last_line, reproduce};

fn rows<'a>(summary: &'a Value, algorithm: &str) -> Vec<&'a Value> {
    let rows = summary["rows"].as_array().expect("rows");
    rows.iter().filter(|row| row["algorithm"] == algorithm).collect()
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("no number {name}: {row}"))
}

/// Its rates are within 2 % of the optimum after eight waves, certified to 1 % after twelve, and nothing is asked of a port or processor that it
/// cannot do.
#[test]
fn waves_come_near_to_the_optimum() {
    let out = Directory::new("near");
    let arguments = "steady --sizes 5/2,20/5,50/15 --instances 4 --only cg_wave,periodic --tasks 50 --output json";
    let summary = last_line(&reproduce(arguments, &out));
    assert_eq!(summary, serde_json::from_str::<Value>(&out.read("steady.json")).expect("JSON"));
    let of_waves = rows(&summary, "cg_wave");
    assert_eq!(of_waves.len(), 9);
    for row in of_waves {
        assert_eq!((&row["instances"], &row["certified"]), (&json!(4), &json!(4)), "{row}");
        assert!(number(row, "waves_max") <= 12.0 && number(row, "waves_to_2_percent_max") <= 8.0, "{row}");
        // The solver that judges is exact to 1e-5.
        assert!((1.0 - 1e-5..=1.01 + 1e-5).contains(&number(row, "lp_ratio_max")), "{row}");
        assert!(number(row, "lp_ratio_geomean") >= 1.0 - 1e-5, "{row}");
        assert!(number(row, "load_max") <= 1.0 + 1e-9, "{row}");
    }
    // The periodic schedule delivers what whole tasks leave of the rates.
    for row in rows(&summary, "periodic") {
        assert!((1.0 - 1e-5..=1.0 / 0.99 + 1e-5).contains(&number(row, "lp_ratio_max")), "{row}");
        assert!(number(row, "buffer_tasks_max") >= 2.0, "{row}");
    }
}

/// Only the optimum's rates, and what is mixed from what can be done, come near to it; no rates and no tasks are better.
#[test]
fn no_algorithm_is_better_than_the_optimum() {
    let out = Directory::new("all");
    let arguments = "steady --sizes 10/5 --scales equal_flops,between --instances 4 --tasks 2000 --output json";
    let summary = last_line(&reproduce(arguments, &out));
    let all = ["periodic", "demand_driven", "fcfs", "cgbc", "pbc", "data_centric", "cg_wave"];
    for algorithm in all {
        for row in rows(&summary, algorithm) {
            assert!(number(row, "lp_ratio_geomean") >= 1.0 - 1e-5, "{row}");
            // A window of whole tasks may begin before a task and end behind one.
            assert!(number(row, "tasks_ratio_geomean") >= 0.99, "{row}");
        }
    }
    let mean = |algorithm: &str| number(rows(&summary, algorithm)[0], "lp_ratio_geomean");
    assert!(mean("fcfs") > mean("cg_wave") && mean("cgbc") > mean("cg_wave"));
    assert_eq!(summary["totals"].as_array().expect("totals").len(), 3 * all.len());
    let published = &rows(&summary, "fcfs")[0]["published"];
    assert_eq!(published["geomean"], json!(1.564));
}

/// By hand: the root does 1 task/s, and its port best sends 4 tasks/s to the machine with the larger bandwidth and none to the other one. With weight 2
/// that counts as 2.5.
#[test]
fn a_platform_of_ones_own_has_the_rates_computed_by_hand() {
    let out = Directory::new("own");
    let file = out.0.join("platform.json");
    let platform = json!({
        "machines": [
            {"parent": null, "mflop_s": 10.0},
            {"parent": 0, "mflop_s": 10.0, "mb_s": 2.0},
            {"parent": 0, "mflop_s": 90.0, "mb_s": 4.0},
        ],
        "applications": [{"mflop": 10.0, "mb": 1.0, "weight": 2.0}],
    });
    std::fs::write(&file, platform.to_string()).expect("it is written");
    let arguments = format!("steady --output json --tasks 1000 --platform {}", file.display());
    let summary = last_line(&reproduce(&arguments, &out));
    for algorithm in ["periodic", "cgbc", "cg_wave", "data_centric"] {
        let row = rows(&summary, algorithm)[0];
        assert!((number(row, "best_throughput") - 2.5).abs() < 1e-5, "{row}");
        assert!((number(row, "lp_ratio_max") - 1.0).abs() < 1e-2, "{row}");
    }
    let row = rows(&summary, "fcfs")[0];
    // Half of the port's time keeps the machine with the smaller bandwidth busy with 1 task/s: 1 + 1 + 2 tasks/s.
    assert!((number(row, "tasks_ratio_max") - 1.25).abs() < 0.02, "{row}");
}

#[test]
fn wrong_arguments_are_answered_by_what_to_write() {
    let out = Directory::new("wrong");
    let file = out.0.join("platform.json");
    let wrong = |arguments: &str| {
        let output = reproduce(arguments, &out);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(wrong("steady --sizes 20").contains("such as 20/5"));
    assert!(wrong("steady --weights 1,0").contains("numbers above 0"));
    assert!(wrong("steady --instances 0").contains("1 to 10000 instances"));
    assert!(wrong("steady --tasks 1").contains("10 to 1000000 tasks"));
    assert!(wrong("steady --only fastest").contains("cg_wave"));
    std::fs::write(&file, r#"{"machines": [{"parent": 3, "mflop_s": 1}], "applications": []}"#).expect("it is written");
    let arguments = format!("steady --platform {}", file.display());
    assert!(wrong(&arguments).contains("write 1 to 32 applications"));
    std::fs::write(&file, "{}").expect("it is written");
    assert!(wrong(&arguments).contains("is no platform"));
}

#[test]
fn an_interrupted_run_says_how_far_it_was() {
    let out = Directory::new("interrupted");
    let is_begun = || out.0.read_dir().is_ok_and(|mut files| files.next().is_some());
    let child = begin("steady --sizes 100/2 --instances 9 --scales between --tasks 1000000", &out, is_begun);
    let said = interrupt(child);
    assert!(said.contains("0 of 9 platforms were done; the same command begins anew"), "{said}");
    assert!(!out.0.join("steady.json").exists());
}

/// The first of these trees loses a tenth of its rates where idle processors may take tasks ahead of their rate.
#[test]
fn whole_tasks_keep_to_the_rates_of_the_waves() {
    let out = Directory::new("whole");
    let arguments = "steady --sizes 10/2,20/5 --scales between --instances 1 --only cg_wave --tasks 2000 --output json";
    let summary = last_line(&reproduce(arguments, &out));
    for row in rows(&summary, "cg_wave") {
        assert!(number(row, "tasks_below_rates_max") <= 0.04, "{row}");
    }
}
