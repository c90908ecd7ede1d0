//! A machine that hosts the grid's root router, keeps its place in the tree, and drops every request on its way
//! through.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idlewood_net::{NetEvent, NetHandle};
use idlewood_overlay::{Contact, Node, Time, WallTime};
use idlewood_scheduler::{Config, DeclineReason, Effect, Event, Message, Peer};
use idlewood_trust::Gate;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::harness::{Grid, assert_complete, wait_for};
use crate::redteam::{contact_of, enter, join};
use crate::tree::{Member, expected};

/// Time limit for the case: 12 tasks, none of which was placed in 75 s.
const PLACED_WITHIN: Duration = Duration::from_secs(60);

/// A machine whose place is the root of the grid of these agents: places are drawn until one suits.
fn at_the_root(grid: &Grid) -> PathBuf {
    let agents: Vec<Member> = grid.agents.iter().map(Member::of).collect();
    (0..200)
        .map(|number| join(grid, &grid.agents[0], &format!("dropper-{number}")))
        .find(|dir| {
            let gate = certified(dir);
            let nonce = gate.nonce_of(gate.me()).map(Box::new);
            let contact = Contact { peer: gate.me(), incarnation: 1, address: "".into(), nonce };
            let me = Member::at(contact.key(gate.grid()).0, "dropper".to_owned());
            let members = [agents.as_slice(), &[me]].concat();
            expected(&members).iter().any(|(member, place)| member.peer == "dropper" && place.is_root())
        })
        .expect("every third place is")
}

fn certified(dir: &Path) -> Gate {
    let keypair = idlewood_trust::identity::load_or_create(dir).unwrap();
    let membership = idlewood_trust::Membership::load(dir, &keypair).unwrap().expect("it has joined");
    Gate::open(&keypair, Some(membership)).unwrap()
}

/// A peer with a network, and the kinds of messages that it drops.
struct Dropper {
    peer: Peer,
    net: NetHandle,
    gate: Arc<Gate>,
    begun: Instant,
    dropped: Arc<AtomicU64>,
}

impl Dropper {
    fn now(&self) -> Time {
        Time::from_micros(i64::try_from(self.begun.elapsed().as_micros()).expect("not so long"))
    }

    fn give(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.peer.handle(self.now(), event, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Send { to, message: message @ Message::Overlay(_) } => {
                        self.net.send_of_tree(&to, message.encode());
                    }
                    Effect::Send { to, message } => drop(self.net.send(&to, message.encode())),
                    Effect::Persist { ticket, .. } => events.push_back(Event::Persisted(ticket)),
                    Effect::Authorise { bag, .. } => {
                        let verdict = Err(DeclineReason::Submitter);
                        events.push_back(Event::Authorised { bag: bag.id, verdict });
                    }
                    _ => {}
                }
            }
        }
    }

    fn hear(&mut self, event: NetEvent) {
        let NetEvent::Received { from, bytes } = event else { return };
        let Ok(message) = Message::decode(&bytes) else { return };
        if matches!(message, Message::Request { node: Node::Router, .. }) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some(nonce) = self.gate.nonce_of(from) {
            self.give(Event::Certified { peer: from, nonce });
        }
        self.give(Event::Received { from, message });
    }

    async fn run(mut self, mut events: mpsc::Receiver<NetEvent>) {
        loop {
            let wait = self.peer.deadline().map_or(Duration::from_secs(1), |deadline| deadline.since(self.now()));
            match tokio::time::timeout(wait, events.recv()).await {
                Ok(Some(event)) => self.hear(event),
                Ok(None) => return,
                Err(_) => self.give(Event::DeadlineReached),
            }
        }
    }
}

#[test]
fn a_router_that_drops_requests_is_named_and_bags_go_past_it() {
    let grid = Grid::start(2);
    let dir = at_the_root(&grid);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let dropped = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let (net, mut events, gate) = enter(&dir);
        let Some(NetEvent::Listening(address)) = events.recv().await else { panic!("it does not listen") };
        let nonce = gate.nonce_of(gate.me()).map(Box::new);
        let me = Contact { peer: gate.me(), incarnation: 1, address: address.to_string().into(), nonce };
        let config = Config { speed_mops: 1000.0, expects_grid: true, ..Config::default() };
        let wall = WallTime(1_700_000_000_000_000);
        let peer = Peer::restore(config, gate.grid(), me, 1, Time::ZERO, wall, Vec::new()).unwrap();
        let mut dropper = Dropper { peer, net, gate, begun: Instant::now(), dropped: dropped.clone() };
        dropper.give(Event::Bootstrap(contact_of(&grid.agents[0])));
        tokio::spawn(dropper.run(events));
    });
    let submitter = &grid.agents[1];
    let count = |value: &Value| value.as_u64().expect("a number");
    let has_formed = |agent: &crate::harness::Agent| {
        let (status, peers) = (agent.ask(&["status"]), agent.ask(&["peers"]));
        count(&status["grid_machines"]) == 3 && peers["is_root"] == false && peers["root"]["peer"].is_string()
    };
    wait_for("the dropper hosts the root", || grid.agents.iter().all(has_formed));

    let begun = Instant::now();
    let bag = submitter.submit_sleeps(12, 200);
    let name = Value::from(idlewood_trust::identity::to_libp2p(certified(&dir).me()).to_string());
    assert_complete(submitter, &bag, 12);
    let took = begun.elapsed();
    println!("12 tasks took {took:?} past a router that dropped {} requests", dropped.load(Ordering::Relaxed));
    assert!(dropped.load(Ordering::Relaxed) > 0, "it was asked");
    let shown = submitter.ask(&["bag", "show", &bag]);
    assert!(shown["swallowed"].to_string().contains(name.as_str().expect("a name")), "it is named: {shown}");
    assert!(took < 2 * PLACED_WITHIN, "{took:?}");
}
