//! All machines of a large grid are listed through its tree, page by page, and no page costs more than a few hundred messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};
use idlewood_scheduler::MachinesPage;
use idlewood_simnet::MessageCount;
use idlewood_simnet::event_queue::HostIndex;
use idlewood_simnet::{Scenario, Simulation};

/// Longest that a page may take in simulated time where all answer: sixty hops at the scenario's latency.
const PAGE_TAKES: Duration = Duration::from_secs(5);
/// Most bytes that a page of some 128 machines has.
const BYTES_A_PAGE: u64 = 40_000;
/// Most bytes that travel for each machine listed, all messages and all hops together.
const BYTES_A_MACHINE: u64 = 6_000;

fn grid(nodes: u32) -> Simulation {
    let scenario = Scenario { nodes, bags: 0, horizon: Duration::from_secs(3600), seed: 7, ..Scenario::default() };
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let is_whole = |simulation: &Simulation| {
        let count = |host| simulation.peer(host)?.overlay_view().root().map(|root| root.count);
        (0..nodes).step_by(97).all(|host| count(host) == Some(u64::from(nodes)))
    };
    while !is_whole(&simulation) {
        let until = simulation.now() + Duration::from_secs(5);
        assert!(until < Time::ZERO + Duration::from_secs(1800), "the tree is not whole");
        simulation.run_until(until);
    }
    simulation
}

/// What was sent about machines since `before`: messages and bytes of all machines together, and the most of one.
fn cost(simulation: &Simulation, before: &BTreeMap<HostIndex, MessageCount>) -> [(u64, u64); 2] {
    let since = |(host, now): (HostIndex, MessageCount)| {
        let before = before.get(&host).copied().unwrap_or_default();
        (now.count - before.count, now.bytes - before.bytes)
    };
    let sent: Vec<(u64, u64)> = simulation.listing_messages().into_iter().map(since).collect();
    let sum = sent.iter().fold((0, 0), |sum, sent| (sum.0 + sent.0, sum.1 + sent.1));
    let most = sent.iter().fold((0, 0), |most, sent| (most.0.max(sent.0), most.1.max(sent.1)));
    [sum, most]
}

/// One page; asserts that it comes in this time.
fn page(simulation: &mut Simulation, host: HostIndex, first: u64, within: Duration) -> MachinesPage {
    simulation.list_machines(host, first, first);
    let until = simulation.now() + within;
    loop {
        if let Some(listed) = simulation.take_listed().pop() {
            assert_eq!((listed.host, listed.ticket), (host, first));
            return listed.page;
        }
        assert!(simulation.now() < until, "no page from {first} on within {within:?}");
        let next = simulation.now() + Duration::from_millis(20);
        simulation.run_until(next);
    }
}

/// All pages, as a user who asks as fast as it may.
fn pages(simulation: &mut Simulation, host: HostIndex, within: Duration) -> Vec<MachinesPage> {
    let (mut pages, mut first) = (Vec::new(), 0);
    loop {
        let page = page(simulation, host, first, within);
        if page.is_busy {
            simulation.run_until(simulation.now() + Duration::from_secs(1));
            continue;
        }
        let last = page.last;
        pages.push(page);
        if last == u64::MAX {
            return pages;
        }
        first = last + 1;
    }
}

fn every_machine_is_listed_once(nodes: u32) {
    let mut simulation = grid(nodes);
    let (before, begin) = (simulation.listing_messages(), simulation.now());
    let pages = pages(&mut simulation, nodes / 3, PAGE_TAKES);
    let listed: Vec<PeerId> = pages.iter().flat_map(|page| &page.machines).map(|machine| machine.peer).collect();
    let all: BTreeSet<PeerId> = (0..nodes).map(|host| simulation.peer(host).expect("it is up").me().peer).collect();
    assert_eq!(listed.len(), all.len(), "each once");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), all);
    assert!(pages.iter().all(|page| page.unreached == 0 && page.silent.is_empty()), "all answer");
    let largest = pages.iter().map(|page| page.machines.len()).max();
    assert!(largest < Some(256), "{largest:?} machines on one page");
    assert!(pages.len() <= nodes as usize / 64 + 1, "{} pages", pages.len());
    // A question and an answer for each leaf and router, and the way there and back.
    let [(messages, bytes), (messages_most, bytes_most)] = cost(&simulation, &before);
    let count = pages.len() as u64;
    let took = simulation.now().since(begin);
    println!(
        "{nodes} machines: {count} pages in {:.1} s; {messages} messages of {bytes} bytes, {:.2} and {:.0} for each machine; \
         at most {messages_most} messages and {bytes_most} bytes of one machine",
        took.as_secs_f64(),
        messages as f64 / f64::from(nodes),
        bytes as f64 / f64::from(nodes),
    );
    assert!(messages <= u64::from(nodes) * 4 + count * 120, "{messages} messages for {count} pages");
    // Each report goes up some seven levels of its page's own tree, and then on the way to the asker.
    assert!(bytes <= u64::from(nodes) * BYTES_A_MACHINE, "{bytes} bytes for {nodes} machines");
    // The machine that has most to pass on, and the one that asks, see each page once or twice.
    assert!(messages_most <= count * 8 && bytes_most <= count * 2 * BYTES_A_PAGE, "{messages_most}, {bytes_most}");
}

#[test]
fn every_machine_of_a_thousand_is_listed_once() {
    every_machine_is_listed_once(1000);
}

/// Takes two minutes of a processor: `cargo test --release --workspace --test listing -- --ignored --nocapture`.
#[test]
#[ignore = "ten thousand machines take two minutes with optimisation"]
fn every_machine_of_ten_thousand_is_listed_once() {
    every_machine_is_listed_once(10_000);
}

/// The pages that a machine gets right now, and how many machines are listed, silent and counted on them.
fn looked(simulation: &mut Simulation, host: HostIndex) -> (BTreeSet<PeerId>, BTreeSet<PeerId>, u64) {
    let pages = pages(simulation, host, Duration::from_secs(31));
    let listed = pages.iter().flat_map(|page| &page.machines).map(|machine| machine.peer).collect();
    let silent = pages.iter().flat_map(|page| &page.silent).map(|machine| machine.peer).collect();
    (listed, silent, pages.iter().map(|page| page.unreached).sum())
}

/// A machine that has just crashed is named; where a router is gone with it, those below are counted until the tree is whole again.
#[test]
fn machines_that_do_not_answer_are_named_or_counted() {
    let nodes = 100;
    let mut simulation = grid(nodes);
    let view = |simulation: &Simulation, host| simulation.peer(host).expect("it is up").overlay_view().clone();
    let root = (0..nodes).find(|host| view(&simulation, *host).is_root()).expect("there is one");
    let last = (0..nodes).find(|host| !view(&simulation, *host).hosts_router()).expect("the last on the line");
    let gone = view(&simulation, last).me().peer;
    simulation.crash_for(last, Some(Duration::from_secs(1800)));
    let (listed, silent, unreached) = looked(&mut simulation, root);
    assert_eq!((silent, unreached), (BTreeSet::from([gone]), 0));
    assert_eq!((listed.len() as u32, listed.contains(&gone)), (nodes - 1, false));

    simulation.run_until(simulation.now() + Duration::from_secs(60));
    let children = |host: &HostIndex| {
        let overlay = view(&simulation, *host);
        overlay.children().into_iter().flatten().map(|child| child.count).sum::<u64>()
    };
    let router = (0..nodes).filter(|host| ![root, last].contains(host)).max_by_key(children).expect("there are others");
    let below = children(&router);
    simulation.crash_for(router, Some(Duration::from_secs(1800)));
    let (listed, silent, unreached) = looked(&mut simulation, root);
    assert!(unreached >= below / 2, "{below} are below it, and {unreached} are counted");
    // How many are below a router that does not answer is judged by the part of the line that it has.
    let told = listed.len() as u64 + silent.len() as u64 + unreached;
    assert!(told + below / 2 >= u64::from(nodes) - 2, "nobody is left out unsaid: {told} told, {below} were below");

    // Once the tree is whole again they are not missed.
    simulation.run_until(simulation.now() + Duration::from_secs(60));
    let (listed, silent, unreached) = looked(&mut simulation, root);
    assert_eq!((listed.len() as u32, silent.len(), unreached), (nodes - 2, 0, 0));
}
