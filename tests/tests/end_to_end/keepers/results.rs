//! Stewards keep results, too: machine and disk of the submitter are lost, and nothing that had ended runs again.

use std::collections::BTreeMap;

use super::*;

/// Tasks of the bag whose results are kept: few, since half of them have to end before anything is shown.
const KEPT: usize = 40;

/// Who ended each task that has succeeded, and with which attempt.
fn ended(agent: &Agent, bag: &str) -> BTreeMap<u64, (String, u64)> {
    let listed = agent.ask(&["bag", "tasks", bag, "--state", "succeeded", "--limit", "0"]);
    let tasks = listed["tasks"].as_array().expect("a list").iter();
    let of = |task: &Value| {
        let machine = task["machine"].as_str().expect("whoever ran it").to_owned();
        (number(&task["index"]), (machine, number(&task["attempt"])))
    };
    tasks.map(of).collect()
}

#[test]
fn a_bag_whose_results_are_kept_survives_its_machine_and_its_disk_with_every_output() {
    let (mut grid, tickets) = grid_with_tickets(5);
    let bag = submit(&grid, KEPT, &["--keep-results"]);
    wait_until_kept(&grid, &bag);
    let shown = |grid: &Grid| grid.agents[0].ask(&["bag", "show", &bag]);
    wait_for("half of the tasks to end", || number(&shown(&grid)["done"]) >= KEPT as u64 / 2);
    // What ends in the seconds before the loss is not with others yet: so that all of it is, nothing begins for a while.
    grid.agents[0].ask(&["bag", "hold", &bag]);
    wait_for("what runs to end, and its results to be safe", || {
        let shown = shown(&grid);
        let kept = &shown["results_kept"];
        number(&shown["placed"]) == 0 && kept["safe"] == true && kept["ended"] == shown["done"]
    });
    let said = grid.agents[0].text(&["bag", "show", &bag]);
    assert!(said.contains("safe: those of ") && said.contains(" are on another machine, too"), "{said}");
    let before = ended(&grid.agents[0], &bag);
    assert!(before.len() >= KEPT / 2 && before.len() < KEPT, "{} have ended", before.len());
    let ticket = ticket(&tickets).expect("it was written when others began to keep the bag");

    grid.agents[0].kill();
    fs::remove_dir_all(&grid.agents[0].dir).expect("our directory");
    let second = grid.add("second");
    let said = adopt(&ticket, &grid.agents[second]);
    assert!(said.contains("--keep-results"), "{said}");
    grid.run(second);
    let adopter = &grid.agents[second];
    wait_for("all results to come", || ended(adopter, &bag).len() >= before.len());
    let now = ended(adopter, &bag);
    assert!(before.iter().all(|(index, of)| now.get(index) == Some(of)), "{before:?} before, {now:?} now");
    assert_eq!(adopter.ask(&["bag", "show", &bag])["results_lost"], Value::Null);
    adopter.cli(&["bag", "release", &bag]);
    assert_every_byte(adopter, &bag, KEPT, &out(&grid, "out"));
    let last = ended(adopter, &bag);
    assert!(before.iter().all(|(index, of)| last.get(index) == Some(of)), "no task that had ended ran again");
    let keeps = |agent: &Agent| number(&agent.ask(&["status"])["kept"]);
    wait_for("nobody to keep what is over", || grid.running().iter().all(|agent| keeps(agent) == 0));
}

#[test]
fn without_results_kept_it_is_said_which_tasks_run_again() {
    let (mut grid, tickets) = grid_with_tickets(4);
    let bag = submit(&grid, TASKS, &[]);
    wait_until_kept(&grid, &bag);
    wait_for("some tasks to end", || number(&grid.agents[0].ask(&["bag", "show", &bag])["done"]) >= 12);
    let said = grid.agents[0].text(&["bag", "show", &bag]);
    assert!(said.contains("computed again if its disk is lost"), "{said}");
    let ticket = ticket(&tickets).expect("it was written when others began to keep the bag");
    grid.agents[0].kill();
    fs::remove_dir_all(&grid.agents[0].dir).expect("our directory");
    let said = adopt(&ticket, &grid.agents[0]);
    assert!(said.contains("without --keep-results"), "{said}");
    grid.run(0);
    wait_for("the machine to say what is lost", || {
        grid.agents[0].ask(&["bag", "show", &bag])["results_lost"].as_str().is_some_and(|tasks| !tasks.is_empty())
    });
    let said = grid.agents[0].text(&["bag", "show", &bag]);
    assert!(said.contains("results that no machine has: tasks ") && said.contains("computed again"), "{said}");
    assert_every_byte(&grid.agents[0], &bag, TASKS, &out(&grid, "out"));
}

#[test]
fn results_are_kept_only_where_somebody_can_keep_them() {
    let grid = Grid::start(1);
    let program = probe_program();
    let program = program.to_str().expect("a path of ours");
    for (args, option) in [(["--stewards", "0"], "--stewards 0"), (["--replicas", "3"], "--replicas")] {
        let fixed = ["submit", "--program", program, "--array", "0-9", "--keep-results"];
        let answer = grid.agents[0].cli(&[&fixed, &args[..], &["--", "hello"]].concat());
        assert!(answer.code != 0 && answer.stderr.contains(option), "{}", answer.stderr);
    }
    grid.agents[0].configure("[submit]\nstewards = 0\n");
    wait_for("the settings to count", || grid.agents[0].log().contains("the settings have changed"));
    let answer =
        grid.agents[0].cli(&["submit", "--program", program, "--array", "0-9", "--keep-results", "--", "hello"]);
    assert!(answer.code != 0 && answer.stderr.contains("results are kept by stewards"), "{}", answer.stderr);
}
