//! Applications in rounds whose submitter's disk is lost.

use super::*;
use crate::rounds::{front, get, optimise, rounds};

const ROUNDS: u64 = 60;

#[test]
fn an_application_goes_on_from_its_last_complete_round_where_its_ticket_is_adopted() {
    let options = ["--rounds", "60", "--iterations", "300"];
    let alone = {
        let grid = Grid::start(1);
        let bag = optimise(&grid.agents[0], grid.root.path(), &options);
        assert_eq!(grid.agents[0].cli(&["bag", "wait", &bag]).code, 0, "{}", grid.agents[0].log());
        front(&get(&grid.agents[0], &bag, grid.root.path().join("alone")))
    };
    let (mut grid, tickets) = grid_with_tickets(4);
    let bag = optimise(&grid.agents[0], grid.root.path(), &options);
    let complete = |grid: &Grid| number(&rounds(&grid.agents[0], &bag)["complete"]);
    wait_for("three rounds", || complete(&grid) >= 3);
    // Rounds take a moment each: it stands still until others keep what there is.
    grid.agents.iter().for_each(|agent| agent.set_owner(true));
    wait_for("three rounds that others keep, too", || {
        let shown = grid.agents[0].ask(&["bag", "show", &bag]);
        assert_eq!(shown["state"].as_str(), Some("running"), "it was over too soon: {shown}");
        number(&shown["results_kept"]["elsewhere"]) >= 3 * 9
    });
    let said = grid.agents[0].text(&["bag", "show", &bag]);
    assert!(said.contains("`idlewood bag adopt` goes on from the last complete round"), "{said}");
    let before = complete(&grid);
    let ticket = ticket(&tickets).expect("it was written when others began to keep the bag");
    grid.agents[0].kill();
    fs::remove_dir_all(&grid.agents[0].dir).expect("our directory");
    let said = adopt(&ticket, &grid.agents[0]);
    assert!(said.contains("last complete round"), "{said}");
    grid.run(0);
    grid.agents[1..].iter().for_each(|agent| agent.set_owner(false));
    wait_for("the rounds to come from those who keep them", || complete(&grid) + 1 >= before);
    assert_eq!(grid.agents[0].cli(&["bag", "wait", &bag]).code, 0, "{}", grid.agents[0].log());
    let shown = grid.agents[0].ask(&["bag", "show", &bag]);
    assert_eq!((shown["state"].as_str(), number(&shown["done"])), (Some("succeeded"), ROUNDS * 9), "{shown}");
    let gone = number(&shown["rounds"]["gone"]);
    // Keepers that were told soon enough have the results of the first rounds, too.
    assert!(gone < before, "{gone} of {before}: {shown}");
    if gone > 0 {
        let early = grid.agents[0].cli(&["bag", "get", &bag, "--round", "1", "--out", "early"]);
        assert!(early.code == 2 && early.stderr.contains("lost"), "{} {}", early.code, early.stderr);
    }
    assert!(front(&get(&grid.agents[0], &bag, out(&grid, "together"))) == alone, "the fronts differ");
}
