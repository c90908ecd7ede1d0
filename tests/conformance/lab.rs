//! The machines of a run: a namespace each, joined by a switch in a namespace of its own.
//!
//! Machine n has the address 10.77.a.b, with n + 1 = 256·a + b. Its uplink is shaped by `tbf` where the frames leave the machine, its
//! downlink where they leave the switch.

use std::fmt::Write as _;
use std::time::Duration;

use crate::namespace::Namespace;
use crate::packet_socket;
use crate::scenario::Scenario;
use crate::switch::{self, Switch};

/// How long a frame may wait for its turn on a link with a rate; beyond, it is dropped. Our choice: what home routers hold.
pub(crate) const QUEUE_MS: u64 = 400;
/// Least that a link may carry at once: two full frames.
const BURST_BYTES_MIN: u64 = 3_200;

/// Whether a run can be done here.
///
/// # Errors
/// A sentence that says what is missing.
pub(crate) fn check() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err(
            "network namespaces need root: run it with sudo, or with --simulate for the simulations alone".to_owned()
        );
    }
    let namespace = Namespace::new()?;
    namespace.ip("link add probe0 type veth peer name probe1\nlink set probe0 up\n")?;
    namespace
        .tc("qdisc add dev probe0 root tbf rate 1mbit burst 3200 latency 400ms\n")
        .map_err(|said| format!("this kernel shapes no traffic, which needs its module sch_tbf: {said}"))
}

/// The machines.
pub(crate) struct Lab {
    // Before the namespaces, whose interfaces its sockets are of.
    pub(crate) switch: Switch,
    pub(crate) machines: Vec<Namespace>,
    _hub: Namespace,
}

/// The address of a machine.
pub(crate) fn address(number: u32) -> String {
    let [_, _, high, low] = (number + 1).to_be_bytes();
    format!("10.77.{high}.{low}")
}

impl Lab {
    /// Makes the machines of a scenario.
    ///
    /// # Errors
    /// A sentence: what the system refuses.
    pub(crate) fn new(scenario: &Scenario) -> Result<Self, String> {
        let hub = Namespace::new()?;
        let machines: Vec<Namespace> = (0..scenario.machines).map(|_| Namespace::new()).collect::<Result<_, _>>()?;
        let mut links = String::new();
        for (number, machine) in machines.iter().enumerate() {
            let (ethernet, id) = (switch::address(number), machine.id());
            writeln!(links, "link add p{number} type veth peer name eth0 address {ethernet} netns {id}")
                .and_then(|()| writeln!(links, "link set p{number} up"))
                .map_err(|error| error.to_string())?;
        }
        hub.ip(&links)?;
        for (number, machine) in (0..).zip(&machines) {
            let address = address(number);
            machine.ip(&format!(
                "address add {address}/16 dev eth0\nlink set eth0 up\nroute add default via 10.77.255.254\n"
            ))?;
            if scenario.loss_percent > 0.0 {
                // Each segment is a frame that may be lost by itself.
                machine.ip("link set eth0 gso_max_segs 1\n")?;
            }
            if let Some(rate) = scenario.rate_bytes_s(number) {
                // A hundredth of a second at once.
                let (bits, burst) = (rate * 8, (rate / 100).max(BURST_BYTES_MIN));
                let shaped = |interface: &str| {
                    format!("qdisc add dev {interface} root tbf rate {bits}bit burst {burst} latency {QUEUE_MS}ms\n")
                };
                machine.tc(&shaped("eth0"))?;
                hub.tc(&shaped(&format!("p{number}")))?;
            }
        }
        let count = scenario.machines;
        let ports = hub.run(move || {
            (0..count).map(|number| packet_socket::open(&format!("p{number}"))).collect::<std::io::Result<Vec<_>>>()
        });
        let ports = ports.map_err(|error| format!("the switch cannot take frames: {error}"))?;
        let switch = Switch::start(ports, Duration::from_millis(scenario.latency_ms), scenario.loss_percent);
        Ok(Self { switch, machines, _hub: hub })
    }
}
