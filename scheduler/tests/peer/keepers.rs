//! Bags with several keepers: submitters and stewards that crash and return, partitions, and stewards that lie.

use idlewood_scheduler::{Acting, Appointment, Delta, STEWARDS_MAX, Term, Wish};

use super::*;

mod adopting;
mod apart;
mod leaving;
mod results;
mod returning;
mod rounds;

const SUBMITTER: u8 = 2;
const TASKS: u64 = 40;

/// Machines 2 to 6, each up or down.
struct Grid {
    hosts: BTreeMap<u8, Host>,
    down: BTreeMap<u8, Vec<Record>>,
    /// Pairs that do not hear each other.
    cut: Vec<(u8, u8)>,
    /// These messages never come.
    is_lost: fn(&Message) -> bool,
    now: Time,
    seconds: u64,
    runs: BTreeMap<TaskId, u32>,
    config: Config,
}

fn config() -> Config {
    Config { stewards: 2, kept_bags_max: 8, ..Config::default() }
}

fn number(peer: PeerId) -> u8 {
    peer.0[0]
}

fn is_signed(message: &Message) -> bool {
    message.appointments().all(|appointment| {
        let submitter = appointment.submitter().expect("valid").peer;
        appointment.signature == signature(submitter, &appointment.statement())
    })
}

impl Grid {
    fn new() -> Self {
        Self::with(config(), false)
    }

    fn with(config: Config, keep_results: bool) -> Self {
        Self::of(config, Submission { retries_max: 2, keep_results, ..submission(TASKS, 30_000.0) })
    }

    fn of(config: Config, submission: Submission) -> Self {
        let hosts = (2..7).map(|number| (number, Host::restore(number, config.clone(), Vec::new()))).collect();
        let (down, cut, runs) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let is_lost: fn(&Message) -> bool = |_| false;
        let mut grid = Self { hosts, down, cut, is_lost, now: Time::ZERO, seconds: 0, runs, config };
        for number in 3..7 {
            grid.give(number, Event::Bootstrap(contact(2)));
        }
        grid.pass(30);
        grid.give(SUBMITTER, Event::Submitted(submission));
        grid
    }

    fn give(&mut self, number: u8, event: Event) {
        self.hosts.get_mut(&number).expect("it is up").give(event);
    }

    /// A task takes half a minute; messages a tenth of a second.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            let mut sent = Vec::new();
            for (&from, host) in &mut self.hosts {
                host.pass(Duration::from_millis(100));
                sent.extend(
                    std::mem::take(&mut host.sent).into_iter().map(|(to, message)| (from, number(to.peer), message)),
                );
            }
            self.now += Duration::from_millis(100);
            for (from, to, message) in sent {
                let is_cut = self.cut.contains(&(from, to)) || self.cut.contains(&(to, from));
                let message = Message::decode(&message.encode()).expect("valid");
                if is_cut || !self.hosts.contains_key(&to) {
                    if let Some(host) = self.hosts.get_mut(&from) {
                        host.give(Event::ConnectionLost(PeerId([to; 32])));
                    }
                } else if is_signed(&message) && !(self.is_lost)(&message) {
                    self.hosts.get_mut(&to).expect("it is up").receive(from, message);
                }
            }
            self.seconds += 1;
            if self.seconds.is_multiple_of(100) {
                for host in self.hosts.values_mut() {
                    let over =
                        host.peer.running().into_iter().filter(|task| !task.frozen && task.active >= seconds_of(25));
                    for running in over.collect::<Vec<_>>() {
                        *self.runs.entry(running.task).or_default() += 1;
                        host.finish(running.task, true);
                    }
                }
            }
        }
    }

    fn crash(&mut self, number: u8) {
        let host = self.hosts.remove(&number).expect("it is up");
        self.down.insert(number, host.store.into_values().collect());
    }

    fn start(&mut self, number: u8) {
        let records = self.down.remove(&number).expect("it is down");
        let mut me = contact(number);
        me.incarnation = 1;
        let config = Config { expects_grid: true, ..self.config.clone() };
        let mut host = Host::restore_at(number, config, records, self.now);
        let other = self.hosts.keys().copied().find(|&other| other != number).expect("somebody is up");
        host.give(Event::Bootstrap(contact(other)));
        self.hosts.insert(number, host);
    }

    /// What another machine begins with that adopts the ticket of the bag.
    fn adopted(&self) -> Vec<Record> {
        let ticket = self.hosts[&SUBMITTER].peer.records_of(BAG);
        let adopt = |record: Record| match record {
            Record::Stewards { appointment, .. } => Record::Stewards { appointment, adopts: true },
            record => record,
        };
        ticket.into_iter().map(adopt).collect()
    }

    /// The submitter's disk is lost: another machine adopts the ticket of its bag.
    fn lose_submitter(&mut self) {
        let adopted = self.adopted();
        self.crash(SUBMITTER);
        self.down.insert(SUBMITTER, adopted);
    }

    /// The stewards by rank.
    fn stewards(&self) -> Vec<u8> {
        let keepers = self.hosts[&SUBMITTER].peer.keepers(BAG);
        keepers.iter().skip(1).map(|keeper| number(keeper.peer)).collect()
    }

    fn acting(&self) -> Vec<u8> {
        let acts = |host: &Host| host.peer.kept().any(|(bag, acts)| bag == BAG && acts);
        self.hosts.iter().filter(|(_, host)| acts(host)).map(|(&number, _)| number).collect()
    }

    /// In which terms the stewards of the submitter's appointment, as they know it, were appointed.
    fn appointed_terms(&self) -> Vec<u64> {
        let records = self.hosts.values().flat_map(|host| host.store.values());
        records
            .filter_map(|record| match record {
                Record::Kept { acting, .. } => Some(acting.appointment.term),
                _ => None,
            })
            .collect()
    }

    fn done(&self) -> u64 {
        self.hosts[&SUBMITTER].peer.bag(BAG).expect("submitted").done
    }

    fn run_twice(&self) -> usize {
        self.runs.values().filter(|runs| **runs > 1).count()
    }

    fn wait_until_kept(&mut self) -> Vec<u8> {
        self.pass(70);
        let keepers = self.hosts[&SUBMITTER].peer.keepers(BAG);
        assert_eq!(keepers.len(), 3, "{keepers:?}");
        assert!(keepers.iter().all(|keeper| keeper.is_up_to_date), "{keepers:?}");
        self.stewards()
    }
}

fn seconds_of(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_steward_that_acts_issues_nothing_of_a_bag_that_is_held() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.give(SUBMITTER, Event::Wished { bag: BAG, wish: Wish::Hold });
    grid.pass(60);
    grid.crash(SUBMITTER);
    grid.pass(200);
    assert_eq!(grid.acting(), [stewards[0]]);
    let running = |grid: &Grid| grid.hosts.values().map(|host| host.peer.running().len()).sum::<usize>();
    let ended = |grid: &Grid| grid.hosts[&stewards[0]].peer.over(BAG).0.len();
    let before = ended(&grid);
    assert!(running(&grid) == 0 && before < TASKS, "{before} have ended");
    grid.pass(100);
    assert_eq!(ended(&grid), before);
    grid.start(SUBMITTER);
    grid.pass(60);
    assert!(grid.hosts[&SUBMITTER].peer.bag(BAG).expect("submitted").conditions.withheld);
    assert_eq!((running(&grid), grid.done()), (0, before));
    grid.give(SUBMITTER, Event::Wished { bag: BAG, wish: Wish::Release });
    grid.pass(500);
    assert_eq!(grid.done(), TASKS);
}

/// Whoever has submitted long tasks may switch the machine off at once; a bag of seconds needs nobody.
#[test]
fn a_bag_of_long_tasks_is_kept_by_others_within_seconds_and_one_of_short_tasks_is_not() {
    let mut grid = Grid::new();
    grid.pass(8);
    let keepers = grid.hosts[&SUBMITTER].peer.keepers(BAG);
    assert_eq!(keepers.iter().filter(|keeper| keeper.is_up_to_date).count(), 3, "{keepers:?}");

    let mut grid = Grid::new();
    let short = BagId([9; 32]);
    grid.give(SUBMITTER, Event::Submitted(Submission { id: short, ..submission(TASKS, 9_000.0) }));
    grid.pass(20);
    assert_eq!(grid.hosts[&SUBMITTER].peer.keepers(short), []);
}

#[test]
fn a_bag_that_is_held_from_the_beginning_is_kept_by_others() {
    let mut grid = Grid::new();
    grid.give(SUBMITTER, Event::Cancelled(BAG));
    let held = BagId([9; 32]);
    let conditions = Conditions { withheld: true, ..Conditions::default() };
    grid.give(SUBMITTER, Event::Submitted(Submission { id: held, conditions, ..submission(TASKS, 30_000.0) }));
    grid.pass(70);
    let keepers = grid.hosts[&SUBMITTER].peer.keepers(held);
    assert!(keepers.len() == 3 && keepers.iter().all(|keeper| keeper.is_up_to_date), "{keepers:?}");
    grid.crash(SUBMITTER);
    grid.pass(120);
    assert!(grid.hosts.values().all(|host| host.peer.running().is_empty()));
}

#[test]
fn a_bag_outlives_the_crash_of_its_submitter() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    assert!(grid.acting().is_empty());
    grid.crash(SUBMITTER);
    grid.pass(60);
    assert_eq!(grid.acting(), [stewards[0]]);
    grid.pass(600);
    let over = grid.hosts[&stewards[0]].peer.over(BAG);
    assert_eq!(over.0.len(), TASKS, "all tasks have ended while their submitter was away");
    assert_eq!(grid.hosts[&stewards[0]].peer.bag(BAG).expect("it acts").closed, None, "a steward closes nothing");
    let before = grid.run_twice();
    grid.start(SUBMITTER);
    grid.pass(60);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.run_twice() <= before + 1, "nothing is run again but what its own slot had begun");
    grid.pass(60);
    assert!(grid.hosts.values().all(|host| host.peer.kept().next().is_none()), "it is over, and nobody keeps it");
    assert!(grid.hosts[&stewards[0]].forgotten.contains(&BAG));
    let left = grid.hosts[&stewards[0]].store.values().filter(|record| {
        matches!(record, Record::Kept { .. } | Record::Bag { .. } | Record::Done { .. } | Record::Placed { .. })
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn the_next_steward_acts_where_the_first_is_gone_too() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.crash(SUBMITTER);
    grid.pass(60);
    grid.crash(stewards[0]);
    grid.pass(120);
    assert_eq!(grid.acting(), [stewards[1]]);
    grid.start(SUBMITTER);
    grid.pass(30);
    assert!(grid.acting().is_empty(), "it has stood down");
    grid.start(stewards[0]);
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
}

#[test]
fn two_that_act_at_once_only_duplicate_work() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    // Nobody hears the submitter but the last machine.
    grid.cut = (3..6).map(|number| (SUBMITTER, number)).collect();
    grid.pass(100);
    grid.cut.clear();
    grid.pass(60);
    assert!(grid.acting().is_empty(), "{:?} of {stewards:?}", grid.acting());
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
}

#[test]
fn all_keepers_that_die_at_once_lose_nothing() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    for number in [SUBMITTER, stewards[0], stewards[1]] {
        grid.crash(number);
    }
    grid.pass(120);
    for number in [stewards[1], SUBMITTER, stewards[0]] {
        grid.start(number);
    }
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.run_twice() <= 8, "{}", grid.run_twice());
}

#[test]
fn an_executor_obeys_nobody_without_an_appointment_by_the_submitter() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    let appointment = |term: u64, keepers: &[u8]| Appointment {
        bag: BAG,
        term,
        keepers: keepers.iter().map(|&number| contact(number)).collect(),
        until: START + Duration::from_secs(3600),
        signature: vec![0; 64],
    };
    let acts = |term, keepers: &[u8], acting, rank| Message::Acts {
        acting: Box::new(Acting { appointment: appointment(term, keepers), acting, rank }),
    };
    let all = IntervalSet::from(0..5);
    // A steward by somebody else's word, one that speaks for another, and one without any.
    host.receive(4, acts(9, &[7, 4], 1, 1));
    host.receive(4, acts(9, &[1, 3], 1, 1));
    host.receive(4, lease(0, all.clone()));
    assert_eq!(host.peer.unfinished()[&BAG], all);
    assert_eq!(host.last_receiver().peer, super::SUBMITTER);
    host.receive(3, acts(9, &[1, 3], 1, 1));
    host.pass(seconds(3.0));
    assert_eq!(host.last_receiver().peer, contact(3).peer, "the steward acts");
    // Terms that are over.
    host.receive(4, acts(8, &[1, 4], 7, 1));
    host.receive(4, lease(0, all.clone()));
    host.receive(1, lease(0, all.clone()));
    assert_eq!(host.peer.unfinished()[&BAG], all, "nor the submitter in a lower term");
    host.receive(1, acts(10, &[1, 3], 0, 0));
    host.pass(seconds(3.0));
    assert_eq!(host.last_receiver().peer, super::SUBMITTER);
    host.receive(1, lease(0, all));
    assert!(host.peer.unfinished().get(&BAG).is_none_or(IntervalSet::is_empty));
    assert!(Message::decode(&acts(9, &[1, 3, 4, 5, 6, 7], 1, 1).encode()).is_err(), "more than {STEWARDS_MAX}");
}

/// Machines crash, leave in good order and return, and links break and heal, in any order: in the end every task has ended for its submitter, and one keeper
/// acts.
#[test]
fn whatever_dies_and_returns_all_tasks_end() {
    for seed in 1..=12_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut grid = Grid::new();
        grid.pass(20 + draw(60));
        for _ in 0..10 {
            let number = 2 + draw(5) as u8;
            match draw(4) {
                0 if grid.hosts.contains_key(&number) && grid.hosts.len() > 2 => grid.leave(number),
                1 if grid.hosts.contains_key(&number) && grid.hosts.len() > 2 => grid.crash(number),
                0..=2 if grid.down.contains_key(&number) => grid.start(number),
                2 => grid.cut.clear(),
                _ => {
                    grid.cut =
                        (2..7).filter(|other| draw(2) == 0 && *other != number).map(|other| (number, other)).collect()
                }
            }
            grid.pass(5 + draw(80));
        }
        grid.cut.clear();
        for number in grid.down.keys().copied().collect::<Vec<_>>() {
            grid.start(number);
        }
        grid.pass(Config::default().lease.as_secs());
        assert!(grid.acting().is_empty(), "seed {seed}: {:?} act, and the submitter", grid.acting());
        grid.pass(1500);
        assert_eq!(grid.done(), TASKS, "seed {seed}");
    }
}

/// The submitter is lost, and another machine goes on in its place, with a ticket and what stewards know. When the first comes back
/// after all, it does nothing for the bag, and says so.
#[test]
fn the_machine_that_adopts_a_bag_goes_on_and_the_first_yields() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    let adopted = grid.adopted();
    grid.crash(SUBMITTER);
    let first = grid.down.remove(&SUBMITTER).expect("it is down");
    grid.pass(60);
    assert_eq!(grid.acting(), [stewards[0]]);
    grid.down.insert(SUBMITTER, adopted);
    grid.start(SUBMITTER);
    grid.pass(60);
    assert!(grid.acting().is_empty(), "the one that adopted it acts");
    assert!(!grid.hosts[&SUBMITTER].peer.is_elsewhere(BAG));
    // Keepers that it has not heard have issued tasks, too: no attempt of its is one of theirs.
    let records = grid.hosts[&SUBMITTER].peer.records_of(BAG);
    let attempt = records.iter().find_map(|record| match record {
        Record::Bag { attempt, .. } => Some(*attempt),
        _ => None,
    });
    assert!(attempt.is_some_and(|attempt| attempt >= 1 << 20), "{attempt:?}");
    let done = grid.done();
    assert!(done < TASKS, "{done}");
    // The first one comes back in the place of the other: at the same address there is one at a time.
    grid.crash(SUBMITTER);
    let second = grid.down.insert(SUBMITTER, first).expect("it is down");
    // Cut off it waits for the stewards in vain, and appoints them anew at a later clock than the other did.
    grid.cut = (3..7).map(|other| (SUBMITTER, other)).collect();
    grid.start(SUBMITTER);
    grid.pass(30);
    assert!(!grid.hosts[&SUBMITTER].peer.is_elsewhere(BAG), "it has heard of nothing");
    grid.cut.clear();
    grid.pass(30);
    assert!(grid.hosts[&SUBMITTER].peer.is_elsewhere(BAG));
    assert!(grid.hosts[&SUBMITTER].notices.contains(&Notice::BagElsewhere(BAG)), "its user is told");
    let terms: Vec<u64> = grid.appointed_terms();
    grid.pass(120);
    assert_eq!(grid.appointed_terms(), terms, "it appoints nobody");
    assert!(!grid.acting().is_empty(), "for the stewards its own machine is away");
    grid.crash(SUBMITTER);
    grid.down.insert(SUBMITTER, second);
    grid.start(SUBMITTER);
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
}

/// A steward that says again and again that it acts is believed once: then the submitter does without it.
#[test]
fn a_steward_that_claims_to_act_again_and_again_is_not_appointed_again() {
    let mut grid = Grid::new();
    let liar = grid.wait_until_kept()[0];
    let appointed = |grid: &Grid| grid.hosts[&SUBMITTER].peer.stewards(BAG).any(|steward| number(steward.peer) == liar);
    for is_appointed in [true, false] {
        let term = grid.appointed_terms()[0];
        let term = Term { appointed: term, acting: 9 };
        let claim = Message::DeltasAck { bags: vec![(BAG, 0, term)] };
        grid.hosts.get_mut(&SUBMITTER).expect("it is up").receive(liar, claim);
        grid.pass(20);
        assert_eq!(appointed(&grid), is_appointed);
    }
    // Nor is a term believed that this machine never signed.
    let claim = Message::DeltasAck { bags: vec![(BAG, 0, Term { appointed: u64::MAX, acting: 0 })] };
    grid.hosts.get_mut(&SUBMITTER).expect("it is up").receive(liar, claim);
    grid.pass(900);
    assert!(!grid.hosts[&SUBMITTER].peer.is_elsewhere(BAG));
    assert_eq!(grid.done(), TASKS);
}

/// A steward takes the highest term there is, has executors drop what they hold, and does nothing: the bag stands still, the next steward
/// does not act. All ends once the submitter is back, who appoints anew.
#[test]
fn a_steward_that_withholds_a_bag_holds_it_up_until_its_submitter_is_back() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    let (liar, next) = (stewards[0], stewards[1]);
    let Some(Record::Kept { acting, .. }) = grid.hosts[&liar].store.get(&RecordKey::Kept(BAG)).cloned() else {
        panic!("no copy")
    };
    let acting = Acting { acting: u32::MAX, rank: 1, ..acting };
    grid.crash(SUBMITTER);
    grid.crash(liar);
    let others: Vec<u8> = grid.hosts.keys().copied().collect();
    for _ in 0..40 {
        for &other in &others {
            let host = grid.hosts.get_mut(&other).expect("it is up");
            host.receive(liar, Message::Acts { acting: Box::new(acting.clone()) });
            host.receive(liar, lease(u64::MAX, IntervalSet::from(0..TASKS)));
        }
        let delta = Delta { acting: Some(Box::new(acting.clone())), ..Delta::alive(BAG, acting.term()) };
        grid.hosts.get_mut(&next).expect("it is up").receive(liar, Message::Deltas { deltas: vec![delta] });
        grid.pass(10);
    }
    assert!(grid.acting().is_empty(), "the next steward believes the first");
    assert!(grid.hosts.values().all(|host| host.peer.unfinished().get(&BAG).is_none_or(IntervalSet::is_empty)));
    grid.start(SUBMITTER);
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
}

/// A steward says that all tasks have ended, and has no result: they run again.
#[test]
fn a_steward_that_claims_that_all_has_ended_is_not_believed() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    let liar = stewards[0];
    let records = grid.hosts[&liar].store.clone();
    let Some(Record::Kept { acting, .. }) = records.get(&RecordKey::Kept(BAG)) else { panic!("no copy: {records:?}") };
    let acting = Acting { acting: 1, rank: 1, ..acting.clone() };
    grid.crash(liar);
    let before = grid.done();
    assert!(before < TASKS);
    let term = acting.term();
    let delta = Delta {
        number: 1,
        acting: Some(Box::new(acting)),
        records: records.get(&RecordKey::Bag(BAG)).cloned().into_iter().collect(),
        done: IntervalSet::from(0..TASKS),
        is_whole: true,
        ..Delta::alive(BAG, term)
    };
    grid.hosts.get_mut(&SUBMITTER).expect("it is up").receive(liar, Message::Deltas { deltas: vec![delta] });
    grid.pass(20);
    assert!(grid.done() < TASKS, "nothing has ended without its result");
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
}
