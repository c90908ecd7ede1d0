//! Bags that other machines keep go on while their own is killed, stopped, or lost for good.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::durability::small_disk;
use crate::harness::{Agent, Grid, command, probe_program, wait_for};

mod endless;
mod results;
mod rounds;

const TASKS: usize = 100;
/// Each task takes so long on each of four to six machines: a minute is left when others keep the bag.
const TASK_MS: u32 = 3000;

/// A grid whose bags are kept by others from their second second on.
fn grid(count: usize) -> Grid {
    start(Grid::prepare_unstarted(count))
}

/// The same, whose first agent writes tickets; and where.
fn grid_with_tickets(count: usize) -> (Grid, PathBuf) {
    let grid = Grid::prepare_unstarted(count);
    let tickets = write_tickets(&grid);
    (start(grid), tickets)
}

fn start(mut grid: Grid) -> Grid {
    grid.keeps_soon = true;
    let count = grid.agents.len();
    for number in 0..count {
        grid.run(number);
    }
    grid.wait_until_formed(count);
    grid
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn name(agent: &Agent) -> String {
    agent.ask(&["status"])["peer"].as_str().expect("a name").to_owned()
}

/// Submits from the first agent a bag whose tasks write their index, and waits until others keep it.
fn submit(grid: &Grid, tasks: usize, args: &[&str]) -> String {
    let program = probe_program();
    let (program, range) = (program.to_str().expect("a path of ours"), format!("0-{}", tasks - 1));
    let millis = TASK_MS.to_string();
    let fixed = ["submit", "--program", program, "--array", &range, "--work", "3000"];
    // Files of other names and lengths: each output is a blob of its own.
    let bag = grid.agents[0].ask(&[&fixed, args, &["--", "fill", "{}-", "1", "5{}", &millis]].concat());
    assert_eq!(bag["safe_to_switch_off"], false, "nobody has heard of it: {bag}");
    bag["id"].as_str().expect("an id").to_owned()
}

fn wait_until_kept(grid: &Grid, bag: &str) -> Value {
    wait_for("it to be safe to switch the submitter off", || {
        let shown = grid.agents[0].ask(&["bag", "show", bag]);
        let stewards = shown["keepers"].as_array().expect("a list").iter().skip(1);
        let have_all = stewards.filter(|steward| steward["up_to_date"] == true && steward["heard"] == true).count();
        assert_eq!(shown["safe_to_switch_off"], have_all > 0, "{shown}");
        have_all == 2
    });
    grid.agents[0].ask(&["bag", "show", bag])
}

/// The agents that keep the bag, in the order of their ranks.
fn stewards(grid: &Grid, shown: &Value) -> Vec<usize> {
    let names: Vec<String> = grid.agents.iter().map(name).collect();
    let keepers = shown["keepers"].as_array().expect("a list").iter().skip(1);
    keepers.map(|keeper| names.iter().position(|name| keeper["machine"] == **name).expect("one of ours")).collect()
}

fn acts(agent: &Agent) -> bool {
    number(&agent.ask(&["status"])["acts_for"]) == 1
}

/// Tasks that ran on these agents.
fn tasks_run(grid: &Grid) -> u64 {
    grid.running().iter().map(|agent| number(&agent.ask(&["status"])["tasks_run"])).sum()
}

/// Waits until all tasks have ended, and checks each output.
fn assert_every_byte(agent: &Agent, bag: &str, tasks: usize, out: &Path) {
    let waited = agent.cli(&["bag", "wait", bag]);
    assert_eq!(waited.code, 0, "{}: {}", waited.stderr, agent.log());
    let shown = agent.ask(&["bag", "show", bag]);
    assert_eq!((number(&shown["done"]), number(&shown["failed"])), (tasks as u64, 0), "{shown}");
    assert_eq!(shown["safe_to_switch_off"], true, "it is over: {shown}");
    assert_eq!(number(&shown["tasks"]), tasks as u64, "each task has one result: {shown}");
    agent.ask(&["bag", "get", bag, "--receipts", "--out", out.to_str().expect("a path of ours")]);
    for index in 0..tasks {
        let dir = out.join(index.to_string());
        let code = fs::read_to_string(dir.join("exit_code")).unwrap_or_else(|error| panic!("task {index}: {error}"));
        assert_eq!(code.trim(), "0", "task {index}");
        let bytes: u64 = format!("5{index}").parse().expect("a number");
        let file = dir.join(format!("outputs/{index}-0"));
        assert_eq!(fs::read(&file).map(|content| content.len() as u64).ok(), Some(bytes), "{}", file.display());
    }
    let file = |index: usize| out.join(index.to_string()).join("receipt").to_str().expect("ours").to_owned();
    let files: Vec<String> = (0..tasks).map(file).collect();
    let said = agent.ask(&["bag", "receipts"].into_iter().chain(files.iter().map(String::as_str)).collect::<Vec<_>>());
    assert_eq!(said.as_array().map(Vec::len), Some(tasks), "whoever ran a task signed what it says");
}

fn out(grid: &Grid, name: &str) -> PathBuf {
    grid.root.path().join(name)
}

/// Has the first agent write tickets, and returns where.
fn write_tickets(grid: &Grid) -> PathBuf {
    let tickets = out(grid, "tickets");
    fs::create_dir(&tickets).expect("our directory");
    grid.agents[0].configure(&format!("[submit]\ntickets = {:?}\n", tickets.to_str().expect("ours")));
    tickets
}

fn ticket(tickets: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(tickets).expect("it is there").flatten().map(|file| file.path());
    files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "ticket"))
}

/// Makes a state directory of a ticket; returns what that says.
fn adopt(ticket: &Path, agent: &Agent) -> String {
    let dir = agent.dir.to_str().expect("ours");
    let adopted = command(&["bag", "adopt", ticket.to_str().expect("ours"), "--into", dir]);
    assert!(adopted.status.success(), "{adopted:?}");
    String::from_utf8_lossy(&adopted.stdout).into_owned()
}

#[test]
fn a_bag_goes_on_while_its_machine_is_killed_and_loses_nothing() {
    let mut grid = grid(6);
    let input = out(&grid, "shared.txt");
    fs::write(&input, "what all tasks read").expect("our directory");
    let bag = submit(&grid, TASKS, &["--input", input.to_str().expect("ours")]);
    let shown = wait_until_kept(&grid, &bag);
    let said = grid.agents[0].text(&["bag", "show", &bag]);
    assert!(said.contains("3 machines; this machine can be switched off"), "{said}");
    let keepers = stewards(&grid, &shown);
    assert_eq!(keepers.len(), 2, "{shown}");
    let kept = |agent: &Agent| number(&agent.ask(&["status"])["kept"]);
    assert!(keepers.iter().all(|&keeper| kept(&grid.agents[keeper]) == 1));
    assert!(
        grid.agents[1..].iter().all(|agent| agent.ask(&["bag", "list"]).as_array().expect("a list").is_empty()),
        "what a machine keeps for another is not among its own bags"
    );
    let done_before = number(&grid.agents[0].ask(&["bag", "show", &bag])["done"]);
    grid.agents[0].kill();
    // One leaves in good order, one does not; what they held is run by the three others.
    let leaving: Vec<usize> = (1..6).filter(|number| !keepers.contains(number)).take(2).collect();
    grid.agents[leaving[0]].terminate();
    grid.agents[leaving[1]].kill();
    wait_for("the first steward to act", || acts(&grid.agents[keepers[0]]));
    let run = tasks_run(&grid);
    wait_for("all tasks to have ended", || grid.running().iter().all(|agent| agent.holds() == 0));
    assert!(tasks_run(&grid) >= run + 4, "it was over too soon to show anything");
    grid.run(0);
    let begin = std::time::Instant::now();
    assert_every_byte(&grid.agents[0], &bag, TASKS, &out(&grid, "out"));
    assert!(begin.elapsed() < Duration::from_secs(60), "nothing of it runs again: {:?}", begin.elapsed());
    assert!(done_before < TASKS as u64);
    grid.run(leaving[0]);
    grid.run(leaving[1]);
    wait_for("nobody to keep what is over", || grid.agents.iter().all(|agent| kept(agent) == 0));
}

#[test]
fn the_second_steward_acts_where_the_first_is_killed_too() {
    let mut grid = grid(5);
    let bag = submit(&grid, TASKS, &[]);
    let shown = wait_until_kept(&grid, &bag);
    let keepers = stewards(&grid, &shown);
    grid.agents[0].kill();
    wait_for("the first steward to act", || acts(&grid.agents[keepers[0]]));
    let run = tasks_run(&grid);
    wait_for("it to take results", || tasks_run(&grid) >= run + 4);
    grid.agents[keepers[0]].kill();
    wait_for("the second steward to act", || acts(&grid.agents[keepers[1]]));
    let run = tasks_run(&grid);
    wait_for("further tasks to run", || tasks_run(&grid) >= run + 3);
    grid.run(keepers[0]);
    grid.run(0);
    assert_every_byte(&grid.agents[0], &bag, TASKS, &out(&grid, "out"));
}

#[test]
fn a_bag_goes_on_within_seconds_while_its_machine_is_stopped() {
    let mut grid = grid(4);
    let bag = submit(&grid, TASKS, &[]);
    let shown = wait_until_kept(&grid, &bag);
    let keepers = stewards(&grid, &shown);
    let took = grid.agents[0].terminate();
    assert!(took < Duration::from_secs(5), "nobody is waited for: {took:?}");
    let begin = std::time::Instant::now();
    wait_for("the first steward to act", || acts(&grid.agents[keepers[0]]));
    assert!(begin.elapsed() < Duration::from_secs(5), "at once, and not after 30 s: {:?}", begin.elapsed());
    let run = tasks_run(&grid);
    wait_for("tasks to go on", || tasks_run(&grid) >= run + 6);
    // The one that acts is stopped, too: then the next one does.
    let took = grid.agents[keepers[0]].terminate();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let begin = std::time::Instant::now();
    wait_for("the second steward to act", || acts(&grid.agents[keepers[1]]));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    grid.run(keepers[0]);
    grid.run(0);
    assert_every_byte(&grid.agents[0], &bag, TASKS, &out(&grid, "out"));
}

#[test]
fn a_steward_that_is_stopped_or_whose_owner_wants_its_room_is_replaced_at_once() {
    let mut grid = grid(5);
    let bag = submit(&grid, TASKS, &[]);
    let shown = wait_until_kept(&grid, &bag);
    let keepers = stewards(&grid, &shown);
    let are_without = |grid: &Grid, gone: &[usize]| {
        let shown = grid.agents[0].ask(&["bag", "show", &bag]);
        let names: Vec<String> = gone.iter().map(|&number| name(&grid.agents[number])).collect();
        let stewards: Vec<&Value> = shown["keepers"].as_array().expect("a list").iter().skip(1).collect();
        stewards.len() == 2
            && stewards.iter().all(|steward| steward["up_to_date"] == true)
            && stewards.iter().all(|steward| names.iter().all(|name| steward["machine"] != **name))
    };
    grid.agents[keepers[0]].configure("[limits]\nkeep = 0\n");
    wait_for("another to keep the bag", || are_without(&grid, &[keepers[0]]));
    wait_for("the owner to have the room", || number(&grid.agents[keepers[0]].ask(&["status"])["kept"]) == 0);
    let shown = grid.agents[0].ask(&["bag", "show", &bag]);
    let gone = stewards(&grid, &shown)[0];
    let gone_name = name(&grid.agents[gone]);
    assert!(grid.agents[gone].terminate() < Duration::from_secs(5));
    wait_for("the one that has left to be named no longer", || {
        let shown = grid.agents[0].ask(&["bag", "show", &bag]);
        shown["keepers"].as_array().expect("a list").iter().all(|keeper| keeper["machine"] != *gone_name)
    });
    assert_every_byte(&grid.agents[0], &bag, TASKS, &out(&grid, "out"));
}

#[test]
fn all_keepers_that_die_at_once_and_return_in_any_order_lose_nothing() {
    let mut grid = grid(5);
    let tickets = write_tickets(&grid);
    wait_for("the settings to count", || grid.agents[0].log().contains("the settings have changed"));
    // By rank; each order has one that comes back late, too.
    for (number, order) in [[2, 0, 1], [1, 2, 0], [0, 2, 1]].into_iter().enumerate() {
        let bag = submit(&grid, 40, &[]);
        let shown = wait_until_kept(&grid, &bag);
        let stewards = stewards(&grid, &shown);
        let keepers = [0, stewards[0], stewards[1]];
        let done = self::number(&shown["done"]);
        assert!(ticket(&tickets).is_some());
        grid.kill_at_once(&keepers);
        for rank in order {
            std::thread::sleep(Duration::from_secs(2));
            grid.run(keepers[rank]);
        }
        let now = grid.agents[0].ask(&["bag", "show", &bag]);
        assert!(self::number(&now["done"]) >= done, "what was done stays done: {now}");
        assert_every_byte(&grid.agents[0], &bag, 40, &out(&grid, &format!("out{number}")));
        wait_for("the ticket of a bag that is over to go", || ticket(&tickets).is_none());
    }
}

/// The submitter stands still for so long, and has others act meanwhile.
fn stands_still(still: Duration, tasks: usize) {
    let grid = grid(4);
    let bag = submit(&grid, tasks, &[]);
    let shown = wait_until_kept(&grid, &bag);
    let keepers = stewards(&grid, &shown);
    grid.agents[0].signal("STOP");
    let begin = std::time::Instant::now();
    wait_for("the first steward to act", || acts(&grid.agents[keepers[0]]));
    let others = || -> u64 { grid.agents[1..].iter().map(|agent| number(&agent.ask(&["status"])["tasks_run"])).sum() };
    let run = others();
    std::thread::sleep(still.saturating_sub(begin.elapsed()));
    assert!(others() > run + still.as_secs() / 10, "the others go on: {} after {run}", others());
    grid.agents[0].signal("CONT");
    wait_for("the steward to stand down", || !acts(&grid.agents[keepers[0]]));
    assert_every_byte(&grid.agents[0], &bag, tasks, &out(&grid, "out"));
    // Results that others repeated meanwhile have waited for the machine, so that its own count of those that came twice says less.
    let run = others() + number(&grid.agents[0].ask(&["status"])["tasks_run"]);
    assert!(run < tasks as u64 * 11 / 10, "hardly anything runs twice: {run} of {tasks} tasks were run");
}

#[test]
fn a_machine_that_stood_still_for_a_while_asks_before_it_goes_on() {
    stands_still(Duration::from_secs(90), 130);
}

#[test]
#[ignore = "takes a quarter of an hour"]
fn a_machine_that_stood_still_for_ten_minutes_asks_before_it_goes_on() {
    stands_still(Duration::from_secs(600), 750);
}

#[test]
fn a_steward_whose_disk_is_full_says_so_and_another_keeps_the_bag() {
    let mut grid = Grid::prepare_unstarted(5);
    let Some(_disk) = small_disk(&grid.agents[1].dir) else {
        return;
    };
    grid.keeps_soon = true;
    (0..5).for_each(|number| grid.run(number));
    grid.wait_until_formed(5);
    let bag = submit(&grid, TASKS, &[]);
    let shown = wait_until_kept(&grid, &bag);
    let keepers = stewards(&grid, &shown);
    assert!(keepers.contains(&1), "it has been up the longest of the others: {shown}");
    let full = name(&grid.agents[1]);
    let filler = grid.agents[1].dir.join("filler");
    fs::write(&filler, vec![0; 200 << 20]).expect_err("it does not fit");
    wait_for("another to keep the bag", || {
        let shown = grid.agents[0].ask(&["bag", "show", &bag]);
        let stewards: Vec<&Value> = shown["keepers"].as_array().expect("a list").iter().skip(1).collect();
        stewards.len() == 2 && stewards.iter().all(|one| one["up_to_date"] == true && one["machine"] != *full)
    });
    let log = grid.agents[1].log();
    assert!(log.contains("the disk is full: another machine is asked to keep a bag in this one's place"), "{log}");
    // The bag outlives its submitter without that machine.
    grid.agents[0].kill();
    let run = tasks_run(&grid);
    wait_for("the new keepers to go on", || tasks_run(&grid) >= run + 4);
    fs::remove_file(&filler).expect("our directory");
    grid.run(0);
    assert_every_byte(&grid.agents[0], &bag, TASKS, &out(&grid, "out"));
}

#[test]
fn a_machine_whose_disk_is_lost_is_replaced_from_a_ticket() {
    let (mut grid, tickets) = grid_with_tickets(5);
    let input = out(&grid, "shared.txt");
    fs::write(&input, "what all tasks read").expect("our directory");
    let bag = submit(&grid, TASKS, &["--input", input.to_str().expect("ours")]);
    let shown = wait_until_kept(&grid, &bag);
    let keepers = stewards(&grid, &shown);
    let ticket = ticket(&tickets).expect("it was written when others began to keep the bag");
    let bytes = fs::metadata(&ticket).expect("it is there").len();
    assert!(bytes < 64 << 10, "keys and names of stewards, not {bytes} bytes");
    grid.agents[0].kill();
    fs::remove_dir_all(&grid.agents[0].dir).expect("our directory");
    adopt(&ticket, &grid.agents[0]);
    // Nobody who has anything of the bag is there: the user is told whom to start, and that is enough.
    keepers.iter().for_each(|&keeper| grid.agents[keeper].kill());
    grid.run(0);
    wait_for("the machine to say that nobody answers", || {
        let shown = grid.agents[0].ask(&["bag", "show", &bag]);
        shown["files_missing"] == true && shown["keepers"][1]["heard"] == false
    });
    let said = grid.agents[0].text(&["bag", "show", &bag]);
    assert!(said.contains("no machine that keeps the bag answers: start ") && said.contains("bag cancel"), "{said}");
    keepers.iter().for_each(|&keeper| grid.run(keeper));
    wait_for("the bag's files to come", || grid.agents[0].ask(&["bag", "show", &bag])["files_missing"] == false);
    assert_every_byte(&grid.agents[0], &bag, TASKS, &out(&grid, "out"));
}

#[test]
fn the_first_machine_yields_to_the_one_that_adopted_its_bag_and_says_so() {
    let (mut grid, tickets) = grid_with_tickets(4);
    let bag = submit(&grid, TASKS, &[]);
    wait_until_kept(&grid, &bag);
    let ticket = ticket(&tickets).expect("it was written when others began to keep the bag");
    grid.agents[0].kill();
    let second = grid.add("second");
    adopt(&ticket, &grid.agents[second]);
    grid.run(second);
    wait_for("the second to act", || {
        let shown = grid.agents[second].ask(&["bag", "show", &bag]);
        shown["safe_to_switch_off"] == true && shown["keepers"][0]["acting"] == true
    });
    grid.run(0);
    wait_for("the first to hear of it", || grid.agents[0].ask(&["bag", "show", &bag])["adopted_elsewhere"] == true);
    let said = grid.agents[0].text(&["bag", "show", &bag]);
    assert!(said.contains("another machine, which adopted a ticket of it"), "{said}");
    assert!(grid.agents[0].log().contains("another machine has adopted a bag of this one"));
    wait_for("both to say that there are two of them", || {
        [0, second].iter().all(|&number| grid.agents[number].ask(&["status"])["lives_twice"] == true)
    });
    grid.agents[0].kill();
    assert_every_byte(&grid.agents[second], &bag, TASKS, &out(&grid, "out"));
    assert_eq!(grid.agents[second].ask(&["bag", "show", &bag])["adopted_elsewhere"], false);
}

#[test]
fn a_bag_without_stewards_is_kept_by_nobody_and_says_so() {
    let mut grid = grid(3);
    let bag = submit(&grid, TASKS, &["--stewards", "0"]);
    grid.agents[1].terminate();
    grid.agents[1].configure("[limits]\nkeep = 0\n");
    grid.run(1);
    let with = submit(&grid, TASKS, &["--stewards", "4"]);
    wait_for("the only machine that keeps bags to have all of it", || {
        grid.agents[0].ask(&["bag", "show", &with])["safe_to_switch_off"] == true
    });
    let shown = grid.agents[0].ask(&["bag", "show", &with]);
    assert_eq!(stewards(&grid, &shown), [2], "the owner of the other one keeps none: {shown}");
    let shown = grid.agents[0].ask(&["bag", "show", &bag]);
    assert_eq!((&shown["keepers"], &shown["safe_to_switch_off"]), (&Value::Array(Vec::new()), &false.into()));
    grid.agents[0].ask(&["bag", "cancel", &with]);
    wait_for("nobody to keep what was cancelled", || number(&grid.agents[2].ask(&["status"])["kept"]) == 0);
}
