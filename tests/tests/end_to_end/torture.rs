//! All faults at once, for a bounded time. For longer: `cargo run -p idlewood-tests --bin torture`.

use std::time::Duration;

use idlewood_tests::torture::{self, Options};

use crate::harness::{AGENT, alone, probe_program};

#[test]
fn every_task_ends_once_under_all_faults_of_processes() {
    let _turn = alone();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options {
        program: AGENT.into(),
        tasks: probe_program(),
        seed: 20_261_120,
        agents: 5,
        span: Duration::from_secs(30),
        disk_bytes: None,
        dir: dir.path().to_owned(),
    };
    let report = match torture::run(&options) {
        Ok(report) => report,
        Err(sentence) => panic!("{sentence}; what is left is in {}", dir.keep().display()),
    };
    println!("{report}");
    let killed = report.deeds.get("agents killed").copied().unwrap_or(0);
    assert!(killed >= 10 && report.bags.0 >= 5 && report.tasks.0 > 20, "hardly anything happened: {report}");
}
