//! Endless bags on grids of a few peers: what each gets of them, and that nothing is lost or done twice.

use idlewood_scheduler::{BAG_TASKS_MAX, Closing, Endless, EndlessBag, EndlessView, Grant, Limit, Standing, Supply};

use super::*;

mod stewards;

const OPEN: Endless = Endless { weight: 1.0, task_bytes: 0.0, tasks: BAG_TASKS_MAX };

fn id(number: u8) -> BagId {
    BagId([number; 32])
}

fn endless(bag: u8, task_mops: f64, endless: Endless) -> Event {
    Event::Submitted(Submission {
        id: id(bag),
        tasks: BAG_TASKS_MAX,
        endless: Some(endless),
        ..submission(1, task_mops)
    })
}

/// Peers that run tasks at 1,000 Mop/s, each for as long as its bag's tasks take.
struct Grid {
    hosts: BTreeMap<u8, Host>,
    config: Config,
    /// Seconds that a task of each bag takes; 2 where nothing is said.
    takes_s: BTreeMap<BagId, f64>,
    /// For which part of that time a task computes; all of it where nothing is said.
    computes: BTreeMap<BagId, f64>,
    /// How often each task ran to its end.
    runs: BTreeMap<TaskId, u32>,
    /// Time that tasks of each bag ran.
    ran_s: BTreeMap<BagId, f64>,
    now: Time,
}

impl Grid {
    fn new(hosts: u8, config: Config) -> Self {
        Self::with(hosts, config, |_, _| ())
    }

    fn with(hosts: u8, config: Config, adapt: impl Fn(u8, &mut Config)) -> Self {
        let of = |number| {
            let mut config = config.clone();
            adapt(number, &mut config);
            (number, Host::restore(number, config, Vec::new()))
        };
        let hosts: BTreeMap<u8, Host> = (2..2 + hosts).map(of).collect();
        let (takes_s, computes, runs, ran_s) = Default::default();
        let mut grid = Self { hosts, config, takes_s, computes, runs, ran_s, now: Time::ZERO };
        let others: Vec<u8> = grid.hosts.keys().copied().skip(1).collect();
        others.into_iter().for_each(|number| grid.give(number, Event::Bootstrap(contact(2))));
        grid.pass(30.0);
        grid
    }

    fn give(&mut self, number: u8, event: Event) {
        self.hosts.get_mut(&number).expect("it is up").give(event);
    }

    fn pass(&mut self, seconds: f64) {
        for _ in 0..(seconds * 10.0) as u64 {
            let mut sent = Vec::new();
            for (&from, host) in &mut self.hosts {
                host.pass(Duration::from_millis(100));
                let messages = std::mem::take(&mut host.sent).into_iter();
                sent.extend(messages.map(|(to, message)| (from, to.peer.0[0], message)));
            }
            self.now += Duration::from_millis(100);
            for (from, to, message) in sent {
                let message = Message::decode(&message.encode()).expect("valid");
                match (self.hosts.contains_key(&to), self.hosts.get_mut(&from)) {
                    (true, _) => self.hosts.get_mut(&to).expect("it is up").receive(from, message),
                    (false, Some(host)) => host.give(Event::ConnectionLost(PeerId([to; 32]))),
                    (false, None) => {}
                }
            }
            for host in self.hosts.values_mut() {
                // How long tasks have run is told as of the last event.
                host.give(Event::DeadlineReached);
                for running in host.peer.running().into_iter().filter(|running| !running.frozen) {
                    *self.ran_s.entry(running.task.bag).or_default() += 0.1;
                    let takes_s = self.takes_s.get(&running.task.bag).copied().unwrap_or(2.0);
                    if running.active.as_secs_f64() >= takes_s - 1e-6 {
                        let computes = self.computes.get(&running.task.bag).copied().unwrap_or(1.0);
                        *self.runs.entry(running.task).or_default() += 1;
                        let finished = Finished {
                            success: true,
                            crashed: false,
                            output: BlobId([1; 32]),
                            output_bytes: 10,
                            content: None,
                            work_mops: takes_s * 1000.0 * computes,
                            exit_code: Some(0),
                            fingerprint: None,
                            times: 1.0,
                        };
                        let outcome = TaskOutcome::Finished(finished);
                        host.give(Event::TaskEnded { task: running.task, outcome });
                    }
                }
            }
        }
    }

    fn crash(&mut self, number: u8) -> Vec<Record> {
        self.hosts.remove(&number).expect("it is up").store.into_values().collect()
    }

    fn start(&mut self, number: u8, records: Vec<Record>) {
        let config = Config { expects_grid: true, ..self.config.clone() };
        let other = *self.hosts.keys().next().expect("somebody is up");
        let mut host = Host::restore_at(number, config, records, self.now);
        host.give(Event::Bootstrap(contact(other)));
        self.hosts.insert(number, host);
    }

    fn done(&self, host: u8, bag: u8) -> u64 {
        self.hosts[&host].peer.bag(id(bag)).expect("it was submitted").done
    }

    fn view(&self, host: u8, bag: u8) -> EndlessView {
        self.hosts[&host].peer.bag(id(bag)).and_then(|bag| bag.endless).expect("an endless bag")
    }

    /// The tasks that several machines ran to their end.
    fn twice(&self) -> Vec<TaskId> {
        self.runs.iter().filter(|(_, runs)| **runs > 1).map(|(task, _)| *task).collect()
    }

    fn root(&self) -> u8 {
        let is_root = |(_, host): &(&u8, &Host)| host.peer.overlay_view().is_root();
        self.hosts.iter().find(is_root).map(|(&number, _)| number).expect("a root")
    }
}

fn assert_near(value: f64, expected: f64, within: f64, what: &str) {
    assert!((value - expected).abs() <= within * expected, "{what}: {value} instead of {expected}");
}

#[test]
fn three_bags_have_the_grid_in_proportion_to_their_weights() {
    let mut grid = Grid::new(4, Config::default());
    for (host, weight) in [(2, 1.0), (3, 2.0), (4, 4.0)] {
        grid.give(host, endless(host, 2000.0, Endless { weight, ..OPEN }));
    }
    grid.pass(30.0);
    let before = [2, 3, 4].map(|host| grid.done(host, host));
    grid.pass(350.0);
    let all = 350.0 * 4.0 / 2.0;
    for (number, weight) in [1.0, 2.0, 4.0].into_iter().enumerate() {
        let host = number as u8 + 2;
        let done = grid.done(host, host) - before[number];
        assert_near(done as f64, all * weight / 7.0, 0.03, "tasks");
        let view = grid.view(host, host);
        let grant = view.grant.expect("a share");
        assert_eq!((grant.limit, view.limit), (Limit::Processors, Some(Limit::Processors)));
        assert_near(grant.work_mops, 4000.0 * weight / 7.0, 0.03, "its rate");
        assert_near(grant.alone_mops, 4000.0, 0.03, "its rate alone");
        assert_near(view.rate, 2.0 * weight / 7.0, 0.1, "its tasks/s");
    }
    assert_eq!(grid.twice(), []);
}

#[test]
fn a_bag_of_long_tasks_has_no_more_than_one_of_short_ones() {
    let mut grid = Grid::new(3, Config::default());
    grid.takes_s.insert(id(2), 20.0);
    grid.takes_s.insert(id(3), 0.5);
    // The second says that its tasks are a tenth of what they are.
    grid.give(2, endless(2, 20_000.0, OPEN));
    grid.give(3, endless(3, 50.0, OPEN));
    grid.pass(40.0);
    grid.ran_s.clear();
    grid.pass(600.0);
    for bag in [2, 3] {
        assert_near(grid.ran_s[&id(bag)], 900.0, 0.05, "time of the bag's tasks");
    }
}

/// By the work of its tasks a machine could run a thousand of them in a second.
#[test]
fn no_more_tasks_that_wait_are_in_hand_than_machines_end_soon() {
    let mut grid = Grid::new(2, Config::default());
    (grid.takes_s, grid.computes) = ([(id(1), 1.0)].into(), [(id(1), 0.001)].into());
    grid.give(2, endless(1, 1000.0, OPEN));
    grid.pass(120.0);
    let bag = grid.hosts[&2].peer.bag(id(1)).expect("it was submitted");
    assert!(bag.done > 100 && (1..=20).contains(&bag.placed), "{} done, {} in hand", bag.done, bag.placed);
}

#[test]
fn a_bag_behind_a_narrow_uplink_leaves_the_rest_to_others() {
    let narrow = |number: u8, config: &mut Config| config.uplink_kb_s = u32::from(number == 2);
    let mut grid = Grid::with(4, Config::default(), narrow);
    grid.give(2, endless(2, 2000.0, Endless { task_bytes: 5000.0, ..OPEN }));
    grid.give(3, endless(3, 2000.0, OPEN));
    grid.pass(30.0);
    let before = [2, 3].map(|host| grid.done(host, host));
    grid.pass(300.0);
    assert_near((grid.done(2, 2) - before[0]) as f64, 60.0, 0.1, "tasks of the narrow one");
    assert_near((grid.done(3, 3) - before[1]) as f64, 540.0, 0.03, "tasks of the other");
    assert_eq!(grid.view(2, 2).limit, Some(Limit::Uplink));
}

#[test]
fn finite_bags_have_their_part_and_endless_ones_what_they_leave() {
    let mut grid = Grid::new(2, Config::default());
    grid.give(2, endless(2, 2000.0, OPEN));
    grid.pass(60.0);
    assert!(grid.done(2, 2) >= 40, "alone it has all: {}", grid.done(2, 2));
    grid.takes_s.insert(id(9), 7.0);
    grid.give(3, Event::Submitted(Submission { id: id(9), ..submission(60, 7000.0) }));
    grid.pass(20.0);
    grid.ran_s.clear();
    grid.pass(200.0);
    assert_near(grid.ran_s[&id(9)], 300.0, 0.06, "time of the finite bag");
    assert_near(grid.ran_s[&id(2)], 100.0, 0.18, "time of the endless bag");
    // 420 s of work on two machines, of which it has three quarters.
    grid.pass(80.0);
    let finite = grid.hosts[&3].peer.bag(id(9)).unwrap();
    assert!(finite.closed.is_some(), "{finite:?}");
    let (done, _) = (grid.done(2, 2), grid.ran_s.clear());
    grid.pass(60.0);
    assert_near((grid.done(2, 2) - done) as f64, 60.0, 0.06, "all is the endless bag's again");
    assert_eq!(grid.twice(), []);
}

/// All places are taken, by the frozen task of the endless bag and by a long one, when a bag comes that is ahead of the long one.
#[test]
fn a_bag_that_comes_ahead_does_not_change_places_with_an_endless_task() {
    let mut grid = Grid::new(1, Config { frozen_max: 1, ..Config::default() });
    grid.takes_s.extend([(id(2), 20.0), (id(8), 100.0), (id(9), 5.0)]);
    grid.give(2, endless(2, 20_000.0, OPEN));
    grid.pass(19.0);
    grid.give(2, Event::Submitted(Submission { id: id(8), ..submission(1, 100_000.0) }));
    grid.pass(2.0);
    let running = grid.hosts[&2].peer.running();
    assert!(running.iter().any(|it| it.task.bag == id(2) && it.preempted) && running.len() == 2, "{running:?}");
    grid.give(2, Event::Submitted(Submission { id: id(9), ..submission(1, 5_000.0) }));
    grid.pass(300.0);
    let ended = [8, 9].map(|bag| grid.hosts[&2].peer.bag(id(bag)).unwrap().closed.is_some());
    assert_eq!(ended, [true, true]);
}

#[test]
fn the_thirty_third_bag_waits_and_says_so() {
    let mut grid = Grid::new(2, Config::default());
    for bag in 20..53 {
        grid.give(2 + bag % 2, endless(bag, 2000.0, OPEN));
        grid.pass(0.2);
    }
    grid.pass(30.0);
    let waits = grid.view(2, 52);
    assert_eq!((waits.grant.map(|grant| grant.ahead), waits.limit), (Some(1), Some(Limit::Waits)));
    assert_eq!(grid.done(2, 52), 0);
    for bag in 20..52 {
        assert_eq!(grid.view(2 + bag % 2, bag).grant.map(|grant| grant.ahead), Some(0), "bag {bag}");
    }
    grid.give(2, Event::Cancelled(id(20)));
    grid.pass(40.0);
    let shares = grid.view(2, 52);
    assert_eq!(shares.grant.map(|grant| grant.ahead), Some(0));
    grid.pass(120.0);
    assert!(grid.done(2, 52) > 0, "{shares:?}");
}

#[test]
fn another_root_goes_on_and_half_of_the_machines_leave() {
    let mut grid = Grid::new(8, Config::default());
    // Submitters that are not root, and stay.
    let root = grid.root();
    let submitters: Vec<u8> = grid.hosts.keys().copied().filter(|&number| number != root).take(2).collect();
    for (&host, weight) in submitters.iter().zip([1.0, 3.0]) {
        grid.give(host, endless(host, 2000.0, Endless { weight, ..OPEN }));
    }
    grid.pass(0.4);
    grid.crash(root);
    grid.pass(60.0);
    let rates = |grid: &mut Grid, seconds: f64| {
        let before: Vec<u64> = submitters.iter().map(|&host| grid.done(host, host)).collect();
        grid.pass(seconds);
        let after = submitters.iter().map(|&host| grid.done(host, host));
        after.zip(before).map(|(after, before)| (after - before) as f64 / seconds).collect::<Vec<f64>>()
    };
    let seven = rates(&mut grid, 200.0);
    assert_near(seven[0], 3.5 / 4.0, 0.05, "the first of seven machines");
    assert_near(seven[1], 3.5 * 3.0 / 4.0, 0.05, "the second of seven machines");
    let others: Vec<u8> = grid.hosts.keys().copied().filter(|number| !submitters.contains(number)).take(4).collect();
    others.into_iter().for_each(|number| drop(grid.crash(number)));
    // The tree is repaired, and what the lost machines had is given to others when their leases have ended.
    grid.pass(160.0);
    let three = rates(&mut grid, 200.0);
    assert_near(three[0], 1.5 / 4.0, 0.06, "the first of three machines");
    assert_near(three[1], 1.5 * 3.0 / 4.0, 0.06, "the second of three machines");
    // What the lost machines had is done elsewhere: nothing is missing behind what was given since.
    for &host in &submitters {
        let (done, _) = grid.hosts[&host].peer.over(id(host));
        let missing = IntervalSet::from(0..done.ranges().last().unwrap().end - 40).difference(&done);
        assert!(missing.is_empty(), "{missing:?} of {done:?}");
    }
}

/// Two machines, each with an endless bag for a minute, and a third that is neither of them nor the root.
fn two_bags_and_a_liar() -> (Grid, [u8; 3]) {
    let mut grid = Grid::new(6, Config::default());
    let root = grid.root();
    let others: Vec<u8> = grid.hosts.keys().copied().filter(|&number| number != root).collect();
    for &host in &others[..2] {
        grid.give(host, endless(host, 2000.0, OPEN));
    }
    grid.pass(60.0);
    (grid, [others[0], others[1], others[2]])
}

/// Any machine can say of a bag of another one that it is over, has hardly any weight, or has no tasks.
#[test]
fn what_others_say_of_a_bag_does_not_take_its_share() {
    let (mut grid, [one, two, liar]) = two_bags_and_a_liar();
    let root = grid.root();
    let before = grid.done(one, one);
    let of_one = EndlessBag {
        bag: id(one),
        submitter: contact(one),
        weight: 1.0,
        task_mops: 2000.0,
        task_bytes: 0.0,
        uplink_bytes_s: 0.0,
        standing: Standing::Active,
        waited_s: 60,
    };
    for _ in 0..60 {
        for bag in [
            EndlessBag { standing: Standing::Gone, ..of_one.clone() },
            EndlessBag { standing: Standing::Idle, ..of_one.clone() },
            EndlessBag { weight: 0.001, task_bytes: 1e9, ..of_one.clone() },
            EndlessBag { submitter: contact(liar), ..of_one.clone() },
        ] {
            grid.hosts.get_mut(&root).unwrap().receive(liar, Message::Announce { bag: Box::new(bag), climbed: 3 });
        }
        grid.pass(5.0);
    }
    assert_near((grid.done(one, one) - before) as f64, 450.0, 0.04, "tasks of the one of which is lied");
    // Its own word ends it, within what the wave takes.
    grid.give(one, Event::Cancelled(id(one)));
    grid.pass(5.0);
    let ended = grid.done(two, two);
    grid.pass(60.0);
    assert_near((grid.done(two, two) - ended) as f64, 180.0, 0.04, "tasks of the other, which has all");
}

/// A submitter says again what it wants to the root that asked it last, which may be any machine.
#[test]
fn a_machine_that_asks_as_the_root_takes_no_share() {
    let (mut grid, [one, _, liar]) = two_bags_and_a_liar();
    let before = grid.done(one, one);
    let grant = Grant { ahead: 0, work_mops: 3000.0, alone_mops: 6000.0, grid_mops: 6000.0, limit: Limit::Processors };
    for _ in 0..150 {
        let asks = Some((&contact(liar)).into());
        grid.hosts.get_mut(&one).unwrap().receive(liar, Message::Granted { bag: id(one), grant, asks });
        grid.pass(2.0);
    }
    assert_near((grid.done(one, one) - before) as f64, 450.0, 0.04, "tasks of the one that is asked");
}

#[test]
fn a_submitter_that_crashes_loses_no_task_and_has_none_done_twice() {
    let mut grid = Grid::new(3, Config::default());
    grid.give(2, endless(2, 2000.0, OPEN));
    grid.pass(60.0);
    let done = grid.done(2, 2);
    let records = grid.crash(2);
    grid.pass(20.0);
    grid.start(2, records);
    assert_eq!(grid.done(2, 2), done, "what was done is on the disk");
    grid.pass(120.0);
    let (after, _) = grid.hosts[&2].peer.over(id(2));
    assert!(after.len() > done + 100, "{after:?}");
    let missing = IntervalSet::from(0..after.ranges().last().unwrap().end - 30).difference(&after);
    assert!(missing.is_empty(), "{missing:?} of {after:?}");
    // The machine itself lost the task that it ran.
    assert_eq!(grid.twice(), []);
}

/// Its parent may take it for the child that it was before.
#[test]
fn a_machine_that_was_started_again_has_its_part_again() {
    let mut grid = Grid::new(6, Config { expects_grid: true, ..Config::default() });
    grid.give(2, endless(1, 2000.0, OPEN));
    grid.pass(60.0);
    let root = grid.root();
    for number in (3..8).filter(|number| *number != root) {
        assert_eq!(grid.hosts[&number].peer.endless_shares().len(), 1, "machine {number}");
        let records = grid.crash(number);
        grid.start(number, records);
        grid.pass(70.0);
        assert_eq!(grid.hosts[&number].peer.endless_shares().len(), 1, "machine {number}, started again");
    }
}

#[test]
fn a_pipe_stalls_goes_on_and_ends() {
    let mut grid = Grid::new(3, Config::default());
    grid.give(2, endless(2, 2000.0, Endless { tasks: 0, ..OPEN }));
    grid.give(3, endless(3, 2000.0, OPEN));
    grid.pass(20.0);
    assert_eq!((grid.view(2, 2).limit, grid.view(2, 2).tasks), (Some(Limit::Tasks), Some(0)));
    let before = grid.done(3, 3);
    grid.pass(60.0);
    assert_near((grid.done(3, 3) - before) as f64, 90.0, 0.06, "the other has all");
    grid.give(2, Event::TasksAdded { bag: id(2), tasks: 30 });
    // Fewer than before are not taken back.
    grid.give(2, Event::TasksAdded { bag: id(2), tasks: 10 });
    grid.pass(60.0);
    assert_eq!(grid.done(2, 2), 30);
    grid.give(2, Event::TasksAdded { bag: id(2), tasks: 45 });
    grid.give(2, Event::SupplyEnded(id(2)));
    grid.give(2, Event::TasksAdded { bag: id(2), tasks: 99 });
    grid.pass(60.0);
    let bag = grid.hosts[&2].peer.bag(id(2)).unwrap();
    assert_eq!((bag.done, bag.closed.map(|(closing, _)| closing)), (45, Some(Closing::Completed)));
    assert_eq!(grid.twice(), []);
}

#[test]
fn an_open_range_ends_with_what_was_given() {
    let mut grid = Grid::new(2, Config::default());
    grid.give(2, endless(2, 2000.0, OPEN));
    grid.pass(30.0);
    grid.give(2, Event::SupplyEnded(id(2)));
    assert!(grid.hosts[&2].notices.contains(&Notice::BagChanged(id(2))));
    let tasks = grid.view(2, 2).tasks.expect("an end");
    grid.pass(30.0);
    let bag = grid.hosts[&2].peer.bag(id(2)).unwrap();
    assert_eq!((bag.done, bag.unplaced), (tasks, 0));
    assert!(bag.closed.is_some() && tasks >= 20, "{bag:?}");
    // It is over after a restart, too.
    let records = grid.crash(2);
    grid.start(2, records);
    assert!(grid.hosts[&2].peer.bag(id(2)).unwrap().closed.is_some());
}

#[test]
fn what_is_not_drained_stops_the_bag_until_it_is() {
    let mut grid = Grid::new(2, Config { undrained_bytes_max: 200, ..Config::default() });
    grid.give(2, endless(2, 2000.0, OPEN));
    grid.pass(90.0);
    let full = grid.view(2, 2);
    // Twenty results of ten bytes, and those that were under way.
    assert_eq!(full.limit, Some(Limit::Undrained));
    assert!((20..32).contains(&full.undrained), "{full:?}");
    let records = grid.crash(2);
    grid.start(2, records);
    assert_eq!((grid.view(2, 2).undrained, grid.view(2, 2).undrained_bytes), (full.undrained, full.undrained_bytes));
    grid.pass(60.0);
    assert_eq!(grid.done(2, 2), full.undrained, "nothing more was given");
    let drained = grid.hosts[&2].peer.over(id(2)).0;
    grid.give(2, Event::Drained { bag: id(2), tasks: drained.clone() });
    assert!(grid.hosts[&2].notices.contains(&Notice::BagDrained(id(2))));
    let results = |grid: &Grid| grid.hosts[&2].store.keys().filter(|key| matches!(key, RecordKey::Done(..))).count();
    assert_eq!(results(&grid), 0, "no result is kept");
    grid.pass(60.0);
    let view = grid.view(2, 2);
    assert_eq!((view.drained, view.undrained), (full.undrained, results(&grid) as u64));
    assert!(view.undrained >= 20, "it goes on: {view:?}");
    let records = grid.crash(2);
    grid.start(2, records);
    assert_eq!(grid.view(2, 2).drained, full.undrained);
    assert!(grid.hosts[&2].peer.over(id(2)).0.intersection(&drained).is_empty());
    grid.pass(30.0);
    assert_eq!(grid.twice(), []);
}

#[test]
fn a_machine_that_declines_a_bag_is_not_asked_for_it_again_and_again() {
    let mut grid = Grid::new(2, Config::default());
    grid.hosts.get_mut(&3).unwrap().verdict = Some(Err(DeclineReason::Program));
    grid.give(2, endless(2, 2000.0, OPEN));
    grid.pass(120.0);
    assert!(grid.done(2, 2) >= 50);
    assert_eq!(grid.hosts[&3].looked_at.len(), 1);
    assert_eq!(grid.view(2, 2).grant.map(|grant| grant.limit), Some(Limit::Processors));
}

#[test]
fn numbers_that_are_no_endless_bags_are_refused() {
    let host = Host::new(2);
    let check = |submission: Submission| host.peer.check(&submission);
    let good = Submission { tasks: BAG_TASKS_MAX, endless: Some(OPEN), ..submission(1, 2000.0) };
    assert_eq!(check(good.clone()), Ok(()));
    assert_eq!(check(Submission { stewards: Some(1), ..good.clone() }), Ok(()));
    let of = |endless: Endless| Submission { endless: Some(endless), ..good.clone() };
    for bad in [
        Submission { endless: None, ..good.clone() },
        Submission { tasks: 5, ..good.clone() },
        Submission { stewards: Some(1), ..of(Endless { tasks: 0, ..OPEN }) },
        Submission { replication: Replication { replicas: 2, quorum: 2, recheck: 0 }, ..good.clone() },
        of(Endless { weight: 0.0, ..OPEN }),
        of(Endless { weight: f64::NAN, ..OPEN }),
        of(Endless { task_bytes: -1.0, ..OPEN }),
    ] {
        assert_eq!(check(bad.clone()), Err(SubmitError::Endless), "{bad:?}");
    }
}
