//! The owner at a display: a real X server with real key presses, and a message bus with fake desktop services.

use std::io::{BufRead as _, BufReader, ErrorKind};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::runtime::Runtime;
use zbus::{Connection, OwnedObjectPath, connection, interface};

use crate::bus::Bus;
use crate::harness::{Grid, Senses, wait_for};
use crate::owner::{RECLAIM_MAX_S, reclaims};

/// Tasks run after two seconds without input, whatever else the machine does.
const SETTINGS: &str = "[owner]\nidle = \"2s\"\nforeign_cpu_percent = 100\non_battery = true\n";

/// An X server without a screen.
struct Display {
    process: Child,
    name: String,
}

impl Display {
    /// None if there is no `Xvfb` or no `xdotool`.
    fn start() -> Option<Self> {
        let there =
            |program: &str| Command::new(program).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if ["Xvfb", "xdotool"]
            .iter()
            .any(|program| matches!(there(program), Err(error) if error.kind() == ErrorKind::NotFound))
        {
            return None;
        }
        let mut command = Command::new("Xvfb");
        command.args(["-displayfd", "1", "-nolisten", "tcp", "-screen", "0", "320x240x24"]);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut number = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut number).expect("it says where it is");
        Some(Self { process, name: format!(":{}", number.trim()) })
    }

    fn press_a_key(&self) {
        let status = Command::new("xdotool").args(["key", "a"]).env("DISPLAY", &self.name).status();
        assert!(status.expect("it is there").success());
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.process.kill().expect("it is a child");
        self.process.wait().expect("it is a child");
    }
}

/// Runs an agent that senses, and computes while the owner is away; `input` lets the owner come back.
fn give_back_and_go_on(grid: &mut Grid, source: &str, rounds: u64, input: impl Fn()) {
    grid.run(0);
    let agent = &grid.agents[0];
    let bag = agent.submit_spins(1);
    for round in 1..=rounds {
        agent.wait_until_it_computes();
        // The owner stays until the agent has noticed.
        wait_for("the agent to say that the machine is the owner's", || {
            input();
            reclaims(&agent.ask(&["status"])).0 >= round
        });
        let status = agent.ask(&["status"]);
        // Two seconds later tasks continue: a slow test may come too late to see them stopped.
        if status["activity"] == "suspended" {
            assert_eq!(status["reason_code"], "owner_active", "{status}");
            assert!(status["until"].as_str().is_some_and(|until| until.contains("without input")), "{status}");
        }
    }
    let (count, p99_s) = reclaims(&agent.ask(&["status"]));
    println!("{source}: {count} returns of the owner: nothing ran after {p99_s:.3} s at the latest");
    assert!(p99_s < RECLAIM_MAX_S, "{p99_s} s");
    agent.wait_until_it_computes();
    agent.ask(&["bag", "cancel", &bag]);
}

#[test]
fn a_key_press_on_x11_gives_the_machine_back() {
    // Agents watch every local display, those of another test as well: it has its turn first.
    let mut grid = Grid::prepare_one(SETTINGS);
    let Some(display) = Display::start() else {
        idlewood_testing::missing("there is no Xvfb or no xdotool (Debian: apt install xvfb xdotool)");
        return;
    };
    grid.senses = Some(Senses { display: Some(display.name.clone()), ..Senses::default() });
    give_back_and_go_on(&mut grid, "X11", 3, || display.press_a_key());
    let doctor =
        Command::new(crate::harness::AGENT).args(["doctor", "--output", "json"]).env("DISPLAY", &display.name).output();
    let findings: serde_json::Value = serde_json::from_slice(&doctor.expect("it starts").stdout).expect("JSON");
    let x11 = findings.as_array().expect("a list").iter().find(|finding| finding["source"] == "input: x11");
    assert!(x11.is_some_and(|x11| x11["works"] == true), "{findings}");
}

/// GNOME's idle monitor, with the last input.
#[derive(Clone)]
struct Mutter(Arc<Mutex<Instant>>);

impl Mutter {
    fn touch(&self) {
        *self.0.lock().expect("nobody panicked") = Instant::now();
    }
}

#[interface(name = "org.gnome.Mutter.IdleMonitor")]
impl Mutter {
    fn get_idletime(&self) -> u64 {
        let last = *self.0.lock().expect("nobody panicked");
        u64::try_from(last.elapsed().as_millis()).expect("it is short")
    }
}

#[test]
fn input_that_gnome_tells_of_gives_the_machine_back() {
    let Some(bus) = Bus::start() else {
        idlewood_testing::missing("there is no dbus-daemon");
        return;
    };
    let mutter = Mutter(Arc::new(Mutex::new(Instant::now())));
    let runtime = Runtime::new().expect("threads");
    let _serving: Connection = runtime.block_on(async {
        let builder = connection::Builder::address(bus.address.as_str()).name("org.gnome.Mutter.IdleMonitor");
        builder.serve_at("/org/gnome/Mutter/IdleMonitor/Core", mutter.clone()).build().await.expect("our bus")
    });
    let mut grid = Grid::prepare_one(SETTINGS);
    grid.senses = Some(Senses { session_bus: Some(bus.address.clone()), ..Senses::default() });
    give_back_and_go_on(&mut grid, "Mutter", 2, || mutter.touch());
}

/// A logind with one graphical session.
struct Logind;

const SESSION: &str = "/org/freedesktop/login1/session/_31";

#[interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    fn list_sessions(&self) -> Vec<(String, u32, String, String, OwnedObjectPath)> {
        let path = OwnedObjectPath::try_from(SESSION).expect("a path");
        vec![("1".to_owned(), 1000, "owner".to_owned(), "seat0".to_owned(), path)]
    }
}

/// Its session, idle or not.
struct Session(Arc<Mutex<bool>>);

#[interface(name = "org.freedesktop.login1.Session")]
impl Session {
    #[zbus(property, name = "Type")]
    fn kind(&self) -> String {
        "wayland".to_owned()
    }

    #[zbus(property)]
    fn class(&self) -> String {
        "user".to_owned()
    }

    #[zbus(property)]
    fn idle_hint(&self) -> bool {
        *self.0.lock().expect("nobody panicked")
    }

    #[zbus(property)]
    fn idle_since_hint(&self) -> u64 {
        1
    }
}

#[test]
fn a_graphical_session_that_cannot_be_watched_is_in_use_until_its_desktop_says_otherwise() {
    let Some(bus) = Bus::start() else {
        idlewood_testing::missing("there is no dbus-daemon");
        return;
    };
    let is_idle = Arc::new(Mutex::new(false));
    let runtime = Runtime::new().expect("threads");
    let _serving: Connection = runtime.block_on(async {
        let builder = connection::Builder::address(bus.address.as_str()).name("org.freedesktop.login1");
        let builder = builder.serve_at("/org/freedesktop/login1", Logind);
        builder.serve_at(SESSION, Session(is_idle.clone())).build().await.expect("our bus")
    });
    let mut grid = Grid::prepare_one(SETTINGS);
    grid.senses = Some(Senses::default());
    grid.bus = Some(bus.address.clone());
    grid.run(0);
    let agent = &grid.agents[0];
    wait_for("the session to count", || agent.ask(&["status"])["reason_code"] == "owner_active");
    *is_idle.lock().expect("nobody panicked") = true;
    wait_for("the hint to count", || agent.ask(&["status"])["reason_code"].is_null());
}
