//! Tests of the router, at the lower of the two routers of a grid of three machines.

use std::collections::VecDeque;
use std::time::Duration;

use idlewood_overlay::{Effect, Event, GridId, PeerId};

use super::*;
use crate::bag::{BagHeader, BagId, Path};
use crate::enclosed::Enclosed;
use crate::queue::{Entry, Load};
use crate::ranges::IntervalSet;

fn contact(number: u8) -> Contact {
    Contact { peer: PeerId([number; 32]), incarnation: 1, address: "/a".into(), nonce: None }
}

/// Three overlays whose messages arrive at once.
struct Grid {
    overlays: Vec<Overlay>,
    now: Time,
}

impl Grid {
    /// A grid in which each leaf has published this summary.
    fn new(leaf: &Summary) -> Self {
        let codec = crate::peer::reports(leaf.form);
        let config = idlewood_overlay::Config::default();
        let overlays = (0..3)
            .map(|n| Overlay::new(config.clone(), GridId([9; 32]), contact(n), u64::from(n), Time::ZERO, codec))
            .collect();
        let mut grid = Self { overlays, now: Time::ZERO };
        for index in 1..3 {
            grid.give(index, Event::Bootstrap(contact(0)));
        }
        grid.run(Duration::from_secs(60));
        for index in 0..3 {
            grid.publish(index, leaf);
        }
        grid.run(Duration::from_secs(60));
        grid
    }

    fn publish(&mut self, index: usize, leaf: &Summary) {
        let mut effects = Vec::new();
        self.overlays[index].publish(self.now, Node::Leaf, leaf.flatten(), &mut effects);
        self.carry_out(index, effects);
    }

    fn give(&mut self, index: usize, event: Event) {
        let mut effects = Vec::new();
        self.overlays[index].handle(self.now, event, &mut effects);
        self.carry_out(index, effects);
    }

    fn carry_out(&mut self, index: usize, effects: Vec<Effect>) {
        let mut all: VecDeque<_> = effects.into_iter().map(|effect| (index, effect)).collect();
        while let Some((sender, effect)) = all.pop_front() {
            let Effect::Send { to, message } = effect else { continue };
            let index = usize::from(to.peer.0[0]);
            let mut effects = Vec::new();
            let event = Event::Received { from: contact(sender as u8).peer.into(), message };
            self.overlays[index].handle(self.now, event, &mut effects);
            all.extend(effects.into_iter().map(|effect| (index, effect)));
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((at, index)) =
            (0..3).filter_map(|n| Some((self.overlays[n].deadline()?, n))).min().filter(|(at, _)| *at <= end)
        {
            self.now = at.max(self.now);
            self.give(index, Event::DeadlineReached);
        }
        self.now = end;
    }

    /// The machine whose router is below the other one; both children of it are leaves.
    fn lower(&self) -> &Overlay {
        let lower = self.overlays.iter().find(|overlay| overlay.parent(Node::Router).is_some());
        let lower = lower.expect("one of two routers is not the root");
        let children: Vec<_> = lower.children().into_iter().flatten().map(|child| child.node).collect();
        assert_eq!(children, [Node::Leaf, Node::Leaf]);
        lower
    }
}

fn leaf(queued: f64) -> Summary {
    let entry = Entry { release_s: 0.0, application_size_mops: 1e7, task_mops: 1024.0, left: queued };
    let entries = if queued > 0.0 { vec![entry] } else { vec![] };
    Summary::of_leaf(&Load {
        now_s: 0.0,
        speed_mops: 1024.0,
        slots: 1,
        preemptive: true,
        running_mops: vec![],
        entries,
    })
}

fn request(tasks: u64) -> Request {
    let bag = BagHeader {
        id: BagId([7; 32]),
        submitter: contact(2),
        tasks: 1 << 40,
        task_mops: 1024.0,
        application_size_mops: 1e7,
        declared: true,
    };
    let (ranges, age, path) = (IntervalSet::from(5..5 + tasks), Duration::ZERO, Path::default());
    Request {
        bag,
        number: 1,
        attempt: 0,
        ranges,
        age,
        path,
        climbed: 0,
        machines: 0,
        link_kb_s: crate::link::LINK_KB_S,
        leads: true,
        copy: None,
        begins_within: None,
        ticket: 0,
        checkpoints: Box::default(),
        lines: Box::default(),
        envelope: Enclosed::default(),
        acting: None,
    }
}

/// How many tasks each child gets, in the order of children; `None` if the request climbed.
fn parts(sent: &[(Contact, Message)], asked: &Request) -> Option<Vec<u64>> {
    let mut ranges = IntervalSet::new();
    let mut parts = Vec::new();
    for (_, message) in sent {
        let Message::Request { request, node, climbing } = message else { panic!("{message:?}") };
        if *climbing {
            assert_eq!((sent.len(), *node, request.climbed), (1, Node::Router, asked.climbed + 1));
            assert_eq!((&request.ranges, &request.path), (&asked.ranges, &asked.path));
            return None;
        }
        assert_eq!((*node, request.path.len()), (Node::Leaf, asked.path.len() + 1));
        assert!(ranges.intersection(&request.ranges).is_empty());
        assert_eq!(request.leads, request.ranges.first() == asked.ranges.first(), "one part has the first");
        ranges.extend_with(&request.ranges);
        parts.push(request.ranges.len());
    }
    assert_eq!(ranges, asked.ranges, "no task is lost");
    Some(parts)
}

/// The router that requests climb to from the lower one.
fn up(grid: &Grid) -> Option<Contact> {
    grid.lower().parent(Node::Router).cloned()
}

/// Routes a request at a new router: how many tasks each child gets, `None` if it climbs.
fn routed(grid: &Grid, asked: &Request, climbing: bool, platform: &Platform, config: &Config) -> Option<Vec<u64>> {
    let origin = if climbing { Origin::Below { up: up(grid) } } else { Origin::Above };
    let sent = Router::default().route(asked.clone(), origin, grid.lower(), platform, grid.now, config);
    parts(&sent, asked)
}

#[test]
fn a_request_from_above_is_never_refused() {
    let config = Config::default();
    // Nothing is good enough while a leaf somewhere is idle.
    let platform = Platform::default();
    for leaf in [leaf(0.0), leaf(100.0), Summary::unavailable()] {
        let grid = Grid::new(&leaf);
        for tasks in [1, 10, 1 << 39] {
            let asked = request(tasks);
            assert_eq!(routed(&grid, &asked, true, &platform, &config), None, "from below it climbs");
            let from_above = routed(&grid, &asked, false, &platform, &config);
            assert!(from_above.is_some_and(|parts| parts.iter().sum::<u64>() == tasks));
        }
    }
}

#[test]
fn a_request_that_climbed_through_64_routers_stays() {
    let grid = Grid::new(&leaf(0.0));
    for (climbed, stays) in [(CLIMBED_MAX - 1, false), (CLIMBED_MAX, true)] {
        let asked = Request { climbed, ..request(10) };
        let parts = routed(&grid, &asked, true, &Platform::default(), &Config::default());
        assert_eq!(parts.is_some(), stays, "{climbed} routers");
    }
}

#[test]
fn a_router_without_children_sends_nothing() {
    let alone = Grid::new(&leaf(0.0));
    let last = alone.overlays.iter().find(|overlay| !overlay.hosts_router()).expect("the last on the line");
    let (platform, config) = (Platform::default(), Config::default());
    let sent = Router::default().route(request(1), Origin::Above, last, &platform, alone.now, &config);
    assert!(sent.is_empty());
}

#[test]
fn under_the_papers_rule_a_request_stays_up_to_b_times_the_least_stretch_of_a_leaf() {
    let grid = Grid::new(&leaf(0.0));
    let asked = request(64);
    let children = [&leaf(0.0), &leaf(0.0)];
    let s_index = Summary::smallest_stretch(&children, 64, 0.0, 1e7, 1024.0).unwrap();
    for (share, stretch_bound, stays) in [(1.0, 1.0, true), (0.99, 1.0, false), (0.51, 2.0, true), (0.49, 2.0, false)] {
        let platform = Platform { minimum_stretch: STRETCHES[s_index] * share, ..Platform::default() };
        let config = Config { stretch_bound, ..Config::default() };
        assert_eq!(routed(&grid, &asked, true, &platform, &config).is_some(), stays, "{share} {stretch_bound}");
    }
}

#[test]
fn under_the_whole_grids_rule_a_request_climbs_only_where_that_helps() {
    let config = Config { climbing: ClimbingRule::WholeGrid, ..Config::default() };
    let grid = Grid::new(&leaf(0.0));
    let asked = request(640);
    let told = |leaves: usize| {
        let mut whole = Summary::empty();
        (0..leaves).for_each(|_| whole.merge(&leaf(0.0)));
        Platform::decode(&Platform::of(&whole.flatten(), config.climbing).encode())
    };
    assert!(routed(&grid, &asked, true, &told(2), &config).is_some(), "no more there than here");
    assert_eq!(routed(&grid, &asked, true, &told(200), &config), None);
    let generous = Config { stretch_bound: 1000.0, ..config.clone() };
    assert!(routed(&grid, &asked, true, &told(200), &generous).is_some());
    // If even the whole grid has no room, or its availability is unknown, the request climbs to the root.
    assert_eq!(routed(&grid, &request(1 << 39), true, &told(2), &config), None);
    assert_eq!(routed(&grid, &asked, true, &Platform::default(), &config), None);
    let damaged = Platform::of(&[1, 2, 3], config.climbing);
    assert_eq!(routed(&grid, &asked, true, &damaged, &config), None);
    // Availability travels only if the climbing rule needs it.
    assert!(Platform::of(&leaf(0.0).flatten(), ClimbingRule::Minimum).availability.is_empty());
}

#[test]
fn the_platform_is_short_and_its_default_if_damaged() {
    let mut summary = leaf(100.0);
    summary.longest_wait_s = summary::wait_s(5120.0);
    let platform = Platform::of(&summary.flatten(), ClimbingRule::Minimum);
    assert!(platform.maximum_stretch > 0.0);
    let bytes = platform.encode();
    assert!(bytes.len() <= 25, "{} bytes", bytes.len());
    assert_eq!(Platform::decode(&bytes), platform);
    assert_eq!([Platform::decode(&bytes[..8]), Platform::decode(&[])], [Platform::default(), Platform::default()]);
    let absurd = Platform { speed_mops: f64::NAN, ..platform };
    assert_eq!(Platform::decode(&absurd.encode()), Platform::default());
}

fn available(router: &Router, grid: &Grid) -> u64 {
    let report = Summary::of_flat(&router.report(SummaryForm::Horizons, grid.lower()).unwrap()).unwrap();
    report.tasks(60, 0.0, 4096.0 / STRETCHES[60], 1024.0)
}

#[test]
fn sent_tasks_are_taken_off_until_the_child_reports_or_they_are_given_up() {
    let config = Config::default();
    let mut grid = Grid::new(&leaf(0.0));
    let mut router = Router::default();
    router.refresh(grid.lower(), grid.now, &config);
    assert!(router.take_changed() && !router.take_changed());
    let whole = available(&router, &grid);
    assert_eq!((whole, router.deadline(&config)), (8192, None));
    let send = |router: &mut Router, grid: &Grid, now| {
        let sent = router.route(request(200), Origin::Above, grid.lower(), &Platform::default(), now, &config);
        assert_eq!(parts(&sent, &request(200)), Some(vec![100, 100]));
        assert!(!router.take_changed(), "the router above has taken it off");
    };
    let start = grid.now;
    send(&mut router, &grid, start);
    // One more for each child: leaves round on their own. All is rounded down, by less than 1 in 128.
    let once = available(&router, &grid);
    assert!((whole - 202 - whole / 128..=whole - 202).contains(&once), "{once}");
    send(&mut router, &grid, start + Duration::from_secs(5));
    let twice = available(&router, &grid);
    assert!((whole - 404 - whole / 128..=whole - 404).contains(&twice), "{twice}");
    // Both are given up once the child should have reported the first.
    let end = start + config.placement_timeout;
    assert_eq!(router.deadline(&config), Some(end));
    router.refresh(grid.lower(), end - Duration::from_micros(1), &config);
    assert!(!router.take_changed() && available(&router, &grid) == twice);
    router.refresh(grid.lower(), end, &config);
    assert!(router.take_changed() && available(&router, &grid) == whole);
    assert_eq!(router.deadline(&config), None);
    // Or the child reports: what it got is in its report.
    send(&mut router, &grid, start);
    for index in 0..3 {
        grid.publish(index, &leaf(100.0));
    }
    grid.run(Duration::from_secs(10));
    router.refresh(grid.lower(), start, &config);
    assert!(router.take_changed());
    let report = Summary::of_children(&[&leaf(100.0), &leaf(100.0)]).flatten();
    assert_eq!((router.report(SummaryForm::Horizons, grid.lower()), router.deadline(&config)), (Some(report), None));
}

#[test]
fn growth_alone_is_not_urgent() {
    let config = Config::default();
    let mut grid = Grid::new(&leaf(100.0));
    let mut router = Router::default();
    router.refresh(grid.lower(), grid.now, &config);
    assert!(router.is_urgent() && router.take_changed() && !router.is_urgent(), "a new child");
    let mut grown = leaf(50.0);
    grown.can_wait = true;
    for (first, second, is_urgent) in
        [(&grown, &grown, false), (&grown, &leaf(70.0), true), (&leaf(80.0), &grown, true)]
    {
        let children: Vec<_> =
            grid.lower().children().into_iter().flatten().map(|child| child.contact.peer.0[0]).collect();
        for (child, leaf) in children.into_iter().zip([first, second]) {
            grid.publish(usize::from(child), leaf);
            grid.run(Duration::from_secs(10));
            router.refresh(grid.lower(), grid.now, &config);
        }
        assert_eq!(router.is_urgent(), is_urgent);
        assert!(router.take_changed() && !router.is_urgent());
    }
    // Another child in the place of one, with a report that can wait.
    for index in 0..2 {
        let slot = router.slots[index].as_mut().expect("a child");
        (slot.child.0, slot.generation) = (contact(9).peer, slot.generation - 1);
        router.refresh(grid.lower(), grid.now, &config);
        assert!(router.is_urgent() && router.take_changed());
    }
    let platform = Platform { minimum_stretch: 1e9, ..Platform::default() };
    let sent = router.route(request(2), Origin::Below { up: up(&grid) }, grid.lower(), &platform, grid.now, &config);
    assert!(!sent.is_empty() && router.is_urgent(), "the router above has not taken it off");
}

#[test]
fn many_small_requests_take_off_no_more_than_one_large() {
    let (config, grid, mut router) = (Config::default(), Grid::new(&leaf(0.0)), Router::default());
    router.refresh(grid.lower(), grid.now, &config);
    let whole = available(&router, &grid);
    let requests = PARTS_MAX as u64 + 36;
    for sent_before in 0..requests {
        let sent = router.route(request(2), Origin::Above, grid.lower(), &Platform::default(), grid.now, &config);
        assert_eq!(parts(&sent, &request(2)), Some(vec![1, 1]));
        // A task and one more for each child; rounded down at both children, in the sum, and when parts are folded.
        let (left, booked) = (available(&router, &grid), 4 * (sent_before + 1));
        assert!((whole - booked - 3 * whole / 128..=whole - booked).contains(&left), "{left} after {booked}");
    }
}

#[test]
fn a_split_of_a_request_from_below_is_reported() {
    let (config, grid, mut router) = (Config::default(), Grid::new(&leaf(0.0)), Router::default());
    router.refresh(grid.lower(), grid.now, &config);
    assert!(router.take_changed());
    let platform = Platform { minimum_stretch: 1e9, ..Platform::default() };
    let sent = router.route(request(200), Origin::Below { up: up(&grid) }, grid.lower(), &platform, grid.now, &config);
    assert_eq!(parts(&sent, &request(200)), Some(vec![100, 100]));
    assert!(router.take_changed(), "the router above has not taken it off");
}

#[test]
fn the_next_request_goes_where_less_was_sent() {
    let config = Config::default();
    let mut grid = Grid::new(&leaf(0.0));
    let lower = grid.lower();
    let last: Vec<_> = lower.children().into_iter().flatten().map(|child| child.contact.peer.0[0]).collect();
    grid.publish(usize::from(last[1]), &leaf(3000.0));
    grid.run(Duration::from_secs(10));
    let mut router = Router::default();
    let mut parts_of = |tasks| {
        let asked = request(tasks);
        let sent = router.route(asked.clone(), Origin::Above, grid.lower(), &Platform::default(), grid.now, &config);
        let of = |peer: u8| {
            let to = sent.iter().filter(|(to, _)| to.peer.0[0] == peer);
            let sizes = to.map(|(_, message)| match message {
                Message::Request { request, .. } => request.ranges.len(),
                other => panic!("{other:?}"),
            });
            sizes.sum::<u64>()
        };
        (of(last[0]), of(last[1]))
    };
    assert_eq!(parts_of(2000), (2000, 0), "one is idle");
    let (idle, busy) = parts_of(2000);
    assert!(busy > 500 && idle + busy == 2000, "{idle} and {busy}");
}

#[test]
fn a_dry_machine_is_sent_to_the_longest_wait_once_for_each_report() {
    let config = Config::default();
    let mut grid = Grid::new(&leaf(0.0));
    let children: Vec<usize> =
        grid.lower().children().into_iter().flatten().map(|child| usize::from(child.contact.peer.0[0])).collect();
    let waits = |wait_s| {
        let mut summary = leaf(100.0);
        summary.longest_wait_s = summary::wait_s(wait_s);
        summary
    };
    let mut router = Router::default();
    let stranger = 9;
    let mut ask = |grid: &Grid, idle: u8, least_s| {
        let asker = Asker { contact: contact(idle), speed_mops: 1.0, slots: 1, stretch: 0.0 };
        let sent = router.ask(&asker, least_s, grid.lower(), grid.now, &config);
        sent.map(|(child, node)| (usize::from(child.peer.0[0]), node))
    };
    assert_eq!(ask(&grid, stranger, 5.0), None, "nothing waits");
    grid.publish(children[0], &waits(100.0));
    grid.publish(children[1], &waits(1000.0));
    grid.run(Duration::from_secs(10));
    assert_eq!(ask(&grid, stranger, 2000.0), None);
    assert_eq!(ask(&grid, stranger, 5.0), Some((children[1], Node::Leaf)));
    assert_eq!(ask(&grid, children[0] as u8, 5.0), None, "not to itself, nor twice to the other");
    assert_eq!(ask(&grid, stranger, 5.0), Some((children[0], Node::Leaf)));
    assert_eq!(ask(&grid, stranger, 5.0), None);
    grid.publish(children[0], &waits(100.0));
    grid.run(Duration::from_secs(10));
    assert_eq!(ask(&grid, stranger, 5.0), Some((children[0], Node::Leaf)));
}

#[test]
fn a_machine_with_work_is_sent_to_the_largest_stretch() {
    let config = Config::default();
    let mut grid = Grid::new(&leaf(0.0));
    let children: Vec<usize> =
        grid.lower().children().into_iter().flatten().map(|child| usize::from(child.contact.peer.0[0])).collect();
    // The leaf with the longest wait is not the one with the largest stretch.
    for (child, stretch, wait_s) in [(0, 1e-3, 1000.0), (1, 2e-3, 10.0)] {
        let mut summary = leaf(100.0);
        (summary.maximum_stretch, summary.longest_wait_s) = (stretch, summary::wait_s(wait_s));
        grid.publish(children[child], &summary);
    }
    grid.run(Duration::from_secs(10));
    let asker = Asker { contact: contact(9), speed_mops: 1.0, slots: 1, stretch: 5e-4 };
    let sent = |least: f64| {
        let sent = Router::default().ask(&asker, least, grid.lower(), grid.now, &config);
        sent.map(|(child, _)| usize::from(child.peer.0[0]))
    };
    assert_eq!([sent(6e-4), sent(1.9e-3), sent(2.1e-3)], [Some(children[1]), Some(children[1]), None]);
}

#[test]
fn with_the_papers_summaries_sent_tasks_are_taken_off_at_every_stretch() {
    let config = Config { summaries: SummaryForm::Paper, idle_slots: false, ..Config::default() };
    let load = Load {
        now_s: 0.0,
        speed_mops: 1024.0,
        slots: 1,
        preemptive: false,
        running_mops: vec![],
        entries: vec![Entry { release_s: 0.0, application_size_mops: 1e7, task_mops: 1024.0, left: 100.0 }],
    };
    let grid = Grid::new(&Summary::of_leaf_at(&load, 60.0));
    let mut router = Router::default();
    let tasks = |router: &Router, s_index| {
        let report = Summary::of_flat(&router.report(SummaryForm::Paper, grid.lower()).unwrap()).unwrap();
        assert_eq!((report.form, report.leaves), (SummaryForm::Paper, 2));
        report.tasks(s_index, 0.0, 1e7, 1024.0)
    };
    router.refresh(grid.lower(), grid.now, &config);
    let before: Vec<u64> = (0..STRETCHES.len()).map(|s_index| tasks(&router, s_index)).collect();
    assert!(before.iter().any(|tasks| (1..1000).contains(tasks)), "some stretches leave little room: {before:?}");
    let sent = |router: &mut Router, n| {
        let sent = router.route(request(n), Origin::Above, grid.lower(), &Platform::default(), grid.now, &config);
        parts(&sent, &request(n))
    };
    assert_eq!(sent(&mut router, 100), Some(vec![50, 50]));
    for (s_index, before) in before.iter().enumerate() {
        let (is, booked) = (tasks(&router, s_index), before.saturating_sub(100));
        // What the router reports is rounded down by less than a 128th.
        assert!(is <= booked && is as f64 >= booked as f64 * 0.99 - 2.0, "{is}, not {booked}");
    }
    // More than there is room for at any stretch is split and booked all the same.
    assert_eq!(sent(&mut router, 1 << 42), Some(vec![1 << 41, 1 << 41]));
    assert!((0..STRETCHES.len()).all(|s_index| tasks(&router, s_index) == 0));
}
