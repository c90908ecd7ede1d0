//! `simnet reproduce dlo` as a command: FOLD beside the optimum, platforms of one's own, errors that say what to write.

mod command;

use serde_json::{Value, json};

use command::{Directory, begin, interrupt, json as last_line, reproduce};

fn rows<'a>(summary: &'a Value, algorithm: &str) -> Vec<&'a Value> {
    let rows = summary["rows"].as_array().expect("rows");
    rows.iter().filter(|row| row["algorithm"] == algorithm).collect()
}

/// Whether a value of a row is a number, and no larger; one that is infinite is no number in JSON.
fn is_at_most(row: &Value, name: &str, most: f64) -> bool {
    row[name].as_f64().is_some_and(|value| value <= most)
}

/// On drawn platforms one wave is enough, and nothing is asked of a link or processor that it cannot do.
#[test]
fn fold_is_exact_after_one_wave() {
    let out = Directory::new("exact");
    let summary = last_line(&reproduce("dlo --sizes 20/5,60/15 --seeds 4 --weights 1,2,4 --output json", &out));
    assert_eq!(summary, serde_json::from_str::<Value>(&out.read("dlo.json")).expect("JSON"));
    let fold = rows(&summary, "fold");
    assert_eq!(fold.len(), 6);
    for row in fold {
        assert_eq!(
            (&row["platforms"], &row["within_99"], &row["waves_max"]),
            (&json!(4), &json!(4), &json!(1)),
            "{row}"
        );
        assert!(is_at_most(row, "gap_max", 1e-4) && is_at_most(row, "load_max", 1.0 + 1e-9), "{row}");
    }
}

/// The paper's own algorithm needs many waves where applications differ.
#[test]
fn the_adaptive_algorithm_settles_after_many_waves() {
    let out = Directory::new("adaptive");
    let summary = last_line(&reproduce("dlo --sizes 20/15 --seeds 4 --output json", &out));
    let adaptive = rows(&summary, "adaptive");
    let mixed = adaptive.iter().find(|row| row["applications"] == "mixed").expect("a row");
    assert!(mixed["within_85"].as_u64() >= Some(1) && mixed["waves_mean"].as_f64() > Some(10.0), "{mixed}");
    assert_eq!(mixed["published_within_85"], 30);
}

#[test]
fn a_removal_is_mended_by_one_wave() {
    let out = Directory::new("removal");
    let summary = last_line(&reproduce("dlo --sizes 100/5 --seeds 1 --output json", &out));
    let fold = rows(&summary, "fold");
    let row = fold.iter().find(|row| row["case"] == "removal").expect("a row");
    assert_eq!((&row["within_99"], &row["waves_max"]), (&json!(1), &json!(1)));
    assert!(row["removed_share_mean"].as_f64() > Some(0.0));
    // Something was lost, and nothing is asked of what is left that it cannot do.
    assert!(row["gap_before_max"].as_f64() > Some(0.0) && is_at_most(row, "load_before_max", 1.0 + 1e-9), "{row}");
}

/// By hand: the second machine takes 2 MB/s, so that of an application with 2 MB for a GFLOP it does 1 GFLOP/s. Alone on
/// both machines it has 4 + 1 GFLOP/s, at 10 GFLOP a task.
#[test]
fn a_platform_of_ones_own_has_the_rates_computed_by_hand() {
    let out = Directory::new("own");
    let file = out.0.join("platform.json");
    let platform = json!({
        "machines": [
            {"parent": null, "gflop_s": 4.0},
            {"parent": 0, "gflop_s": 8.0, "down_mb_s": 2.0, "up_mb_s": 7.0},
        ],
        "applications": [{"machine": 0, "gflop": 10.0, "mb": 20.0}],
    });
    std::fs::write(&file, platform.to_string()).expect("it is written");
    let arguments = format!("dlo --output json --platform {}", file.display());
    let summary = last_line(&reproduce(&arguments, &out));
    let row = rows(&summary, "fold")[0];
    let found = row["tasks_per_s"][0].as_f64().expect("a rate");
    assert!((found - 0.5).abs() < 1e-8, "{row}");
    assert!((row["best_utility"].as_f64().expect("a number") - 0.5_f64.ln()).abs() < 1e-4, "{row}");
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
    assert!(wrong("dlo --sizes 20").contains("such as 20/5"));
    assert!(wrong("dlo --weights 1,2").contains("three numbers above 0"));
    assert!(wrong("dlo --seeds 0").contains("1 to 10000 seeds"));
    std::fs::write(&file, r#"{"machines": [{"parent": 3, "gflop_s": 1}], "applications": []}"#).expect("it is written");
    let arguments = format!("dlo --platform {}", file.display());
    assert!(wrong(&arguments).contains("write 1 to 32 applications"));
    std::fs::write(&file, "{}").expect("it is written");
    assert!(wrong(&arguments).contains("is no platform"));
}

#[test]
fn an_interrupted_run_says_how_far_it_was() {
    let out = Directory::new("interrupted");
    let child = begin("dlo --sizes 5000/15", &out, || out.0.read_dir().is_ok_and(|mut files| files.next().is_some()));
    let said = interrupt(child);
    assert!(said.contains("0 of 30 platforms were done"), "{said}");
    assert!(!out.0.join("dlo.json").exists());
}
