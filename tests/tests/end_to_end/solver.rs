//! A real program by others: an SMT solver compiled to WASI, and 57 problems with known verdicts, which its authors did
//! not write. Its exit code is the verdict: 10 satisfiable, 20 unsatisfiable.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::Grid;

#[test]
fn a_solver_gives_the_known_verdicts() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/wasi_smt_bag");
    let Ok(description) = fs::read_to_string(data.join("bag.json")) else {
        println!(
            "skipped: {} is not there; it holds a solver and problems that are not ours to publish",
            data.display()
        );
        return;
    };
    let description: Value = serde_json::from_str(&description).unwrap();
    let expected: BTreeMap<&str, &Value> = description["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| (task["input"].as_str().unwrap().trim_start_matches("tasks/"), task))
        .collect();
    assert_eq!(expected.len(), 57);

    let grid = Grid::start(3);
    let agent = &grid.agents[1];
    let bag = agent.ask(&[
        "submit",
        "--program",
        data.join("boolector.wasm").to_str().unwrap(),
        "--glob",
        data.join("tasks/*.smt2").to_str().unwrap(),
        "--stdin",
        "{}",
        "--success-codes",
        "10,20",
        "--",
        "--smt2",
    ]);
    let id = bag["id"].as_str().unwrap();
    let waited = agent.cli(&["bag", "wait", id]);
    assert_eq!(waited.code, 0, "{}", waited.stderr);
    let out = grid.root.path().join("verdicts");
    agent.ask(&["bag", "get", id, "--out", out.to_str().unwrap()]);
    let results: Vec<Value> = serde_json::from_str(&fs::read_to_string(out.join("results.json")).unwrap()).unwrap();
    assert_eq!(results.len(), 57);
    for result in results {
        let name = Path::new(result["entry"].as_str().unwrap()).file_name().unwrap().to_str().unwrap();
        let task = out.join(result["index"].to_string());
        let known = expected[name];
        assert_eq!(
            fs::read_to_string(task.join("exit_code")).unwrap().trim(),
            known["expect_exit"].to_string(),
            "{name}"
        );
        assert_eq!(
            fs::read_to_string(task.join("stdout")).unwrap(),
            known["expect_stdout"].as_str().unwrap(),
            "{name}"
        );
    }
}
