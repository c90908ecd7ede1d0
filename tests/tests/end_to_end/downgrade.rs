//! An older release after a newer one: it refuses what it cannot read, says what to do, and leaves everything as it is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use idlewood_store::{Change, StateLock, Store};

use crate::harness::{Agent, Grid, assert_complete, command};

/// The contents of all files of a state directory, but for its lock.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).expect("ours").flatten().map(|entry| entry.path()));
        } else if !path.ends_with("lock") {
            found.insert(path.clone(), fs::read(&path).expect("ours"));
        }
    }
    found
}

/// Starts the agent, which has to refuse; what it says.
fn refused(agent: &Agent) -> String {
    let directory = agent.dir.to_str().expect("a path of ours");
    let output = command(&["run", "--state-dir", directory, "--speed-mops", "1000"]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_state_of_a_newer_release_is_refused_and_stays_as_it_is() {
    let mut grid = Grid::start(1);
    let bag = grid.agents[0].submit_sleeps(2, 10);
    assert_complete(&grid.agents[0], &bag, 2);
    grid.agents[0].terminate();
    let agent = &grid.agents[0];
    let release = agent.dir.join("release.json");
    let ours = fs::read_to_string(&release).expect("the agent has noted its release");

    fs::write(&release, r#"{"release":"9.9.0","format":200}"#).expect("our directory");
    let before = contents(&agent.dir);
    let told = refused(agent);
    assert!(told.contains("install 9.9.0 or a later one") && told.contains("--state-dir"), "{told}");
    assert!(contents(&agent.dir) == before, "nothing was changed");

    // A release that did not note itself: each record says its version.
    fs::write(&release, ours).expect("our directory");
    let lock = StateLock::acquire(&agent.dir).expect("no agent runs");
    let mut opened = Store::open(&lock).expect("it is sound");
    let newer = Change { key: b"zz".to_vec(), value: Some(vec![200, 1, 2, 3]) };
    opened.store.try_commit([newer], 1).expect("there is room");
    assert!(opened.results.blocking_recv().expect("it is told").result.is_ok());
    opened.store.close();
    drop(lock);
    let told = refused(agent);
    assert!(told.contains("written by a newer idlewood") && told.contains("install that release"), "{told}");
    let checked = agent.cli(&["store", "check"]);
    assert_eq!((checked.code, checked.json["newer"].as_u64(), checked.json["damaged"].as_u64()), (1, Some(1), Some(0)));

    // Without it, as for the release that wrote it, the agent goes on with all that it had.
    let lock = StateLock::acquire(&agent.dir).expect("no agent runs");
    let mut opened = Store::open(&lock).expect("it is sound");
    opened.store.try_commit([Change { key: b"zz".to_vec(), value: None }], 1).expect("there is room");
    assert!(opened.results.blocking_recv().expect("it is told").result.is_ok());
    opened.store.close();
    drop(lock);
    grid.run(0);
    assert_complete(&grid.agents[0], &bag, 2);
}
