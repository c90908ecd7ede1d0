//! A machine that is put to sleep, by a fake logind on a private bus.

use std::io::{PipeReader, Read as _, pipe};
use std::sync::{Arc, Mutex};

use tokio::runtime::Runtime;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, OwnedFd, connection, interface};

use crate::bus::Bus;
use crate::harness::{Grid, assert_complete, wait_for};
use crate::places::{patiently, wait_for_the_tree};

const PATH: &str = "/org/freedesktop/login1";

/// The other ends of the delay locks that it has handed out.
#[derive(Clone, Default)]
struct Locks(Arc<Mutex<Vec<PipeReader>>>);

struct Logind {
    locks: Locks,
}

#[interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> OwnedFd {
        assert_eq!((what, who, mode), ("sleep", "idlewood", "delay"), "{why}");
        let (reader, writer) = pipe().expect("a pipe");
        self.locks.0.lock().expect("nobody panicked").push(reader);
        std::os::fd::OwnedFd::from(writer).into()
    }

    #[zbus(signal)]
    async fn prepare_for_sleep(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

#[test]
fn a_machine_that_is_put_to_sleep_leaves_first_and_comes_back_with_its_tasks() {
    let Some(bus) = Bus::start() else {
        idlewood_testing::missing("there is no dbus-daemon");
        return;
    };
    let runtime = Runtime::new().expect("threads");
    let locks = Locks::default();
    let logind: Connection = runtime.block_on(async {
        let builder = connection::Builder::address(bus.address.as_str()).name("org.freedesktop.login1");
        builder.serve_at(PATH, Logind { locks: locks.clone() }).build().await.expect("our bus")
    });
    let tell = |start: bool| {
        runtime.block_on(async {
            let emitter = SignalEmitter::new(&logind, PATH).expect("a path");
            Logind::prepare_for_sleep(&emitter, start).await.expect("our bus");
        });
    };
    let locks_given = || locks.0.lock().expect("nobody panicked").len();

    let mut grid = Grid::start(3);
    grid.agents[2].kill();
    grid.bus = Some(bus.address.clone());
    grid.run(2);
    grid.wait_until_formed(3);
    wait_for("the agent to ask logind for time", || locks_given() == 1);
    let (submitter, sleeper) = (&grid.agents[0], &grid.agents[2]);
    assert!(submitter.log().contains("nobody says when this machine sleeps"), "{}", submitter.log());
    let name = sleeper.ask(&["status"])["peer"].clone();
    let bag = submitter.submit_sleeps(6, 8_000);
    wait_for("the sleeper to have tasks", || sleeper.holds() > 0);

    tell(true);
    let mut lock = locks.0.lock().expect("nobody panicked").pop().expect("it was given");
    assert_eq!(lock.read(&mut [0]).expect("our pipe"), 0, "the lock is let go, not written to");
    wait_for("the leave to be complete", || sleeper.ask(&["status"])["membership"] == "left");
    for agent in &grid.agents[..2] {
        wait_for("the others to know", || {
            let peers = agent.ask(&["peers"]);
            peers["neighbours"].as_array().expect("a list").iter().all(|neighbour| neighbour["peer"] != name)
        });
    }

    tell(false);
    wait_for("the agent to ask for time again", || locks_given() == 1);
    wait_for_the_tree(&grid, patiently);
    assert_complete(submitter, &bag, 6);
}
