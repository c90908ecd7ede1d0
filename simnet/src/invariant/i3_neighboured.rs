//! I3: a member has a live peer on each side of its leaf set, or it looks for one.
//!
//! Source: `docs/design/overlay.md`; Zave shows that a ring whose members may lose their whole successor list cannot be
//! repaired (arXiv 1610.01140, 1502.06461), hence the look-up that makes up for it. Why: a member without a peer on a
//! side takes itself for the end of the line, and the tree falls into parts that each look complete.
//!
//! When it must hold: a side *lacks a neighbour* while a member of the grid stands there and no peer in the leaf set on
//! that side is up. A member whose side lacks one for longer than [`patience`] must have had a look-up under way within
//! that time. That covers the time to notice a crash, and the pause between two look-ups. A machine that is down, has
//! its lid shut, or believes itself alone is exempt: I6 covers the last.

use std::time::Duration;

use idlewood_overlay::{Config, Overlay, State, Time};

use super::keys::Keys;
use super::rule::Invariant;
use crate::event_queue::HostIndex;
use crate::overlay::World;

/// I3.
pub const RULE: Invariant =
    Invariant { name: "I3", rule: "at least one live peer on each side of the leaf set, or a look-up is active" };

/// How long a side may lack a neighbour without a look-up: a crash is noticed after a heartbeat and all tries, further
/// ones after all tries again; then look-ups of the own key are at most a period apart.
pub fn patience(config: &Config) -> Duration {
    let tries = Duration::from_millis(config.probe_timeout_ms_max) * config.probe_tries;
    (Duration::from_millis(config.heartbeat_ms + config.lookup_ms) + tries * 2) * 3 / 2
}

/// When each machine last complied: no side lacked a neighbour, or a look-up was under way.
#[derive(Debug)]
pub struct Neighboured {
    patience: Duration,
    in_order: Vec<(u32, Time)>,
}

impl Neighboured {
    /// No machine is up yet.
    pub fn new(config: &Config, hosts: u32) -> Self {
        Self { patience: patience(config), in_order: vec![(0, Time::ZERO); hosts as usize] }
    }

    /// Checks a machine that has just handled an event.
    ///
    /// # Errors
    /// For how long a side has lacked a neighbour.
    pub fn check(&mut self, world: &World, keys: &mut Keys, host: HostIndex, overlay: &Overlay) -> Result<(), String> {
        let (life, since) = &mut self.in_order[host as usize];
        let now = world.now();
        let is_excused = *life != world.life(host) || overlay.state() != State::Member || overlay.is_looking_up();
        if is_excused || !lacks_neighbour(world, keys, host, overlay) {
            (*life, *since) = (world.life(host), now);
            return Ok(());
        }
        if now.since(*since) <= self.patience {
            return Ok(());
        }
        Err(format!("for {:?} it has had nobody on a side where there are members, and looked for none", {
            now.since(*since)
        }))
    }

    /// Exempts a machine up to now: its lid was shut.
    pub fn excuse(&mut self, world: &World, host: HostIndex) {
        self.in_order[host as usize] = (world.life(host), world.now());
    }
}

/// Whether a member stands on a side of the line where no peer of the leaf set is up.
fn lacks_neighbour(world: &World, keys: &mut Keys, host: HostIndex, overlay: &Overlay) -> bool {
    let me = keys.of(overlay.me().peer);
    let mut has = [false; 2];
    for contact in overlay.neighbours() {
        if world.host_of(contact.peer).is_some_and(|neighbour| world.is_up(neighbour)) {
            has[usize::from(keys.of(contact.peer) > me)] = true;
        }
    }
    if has == [true; 2] {
        return false;
    }
    let others = world.up().iter().filter(|other| **other != host).filter_map(|other| world.overlay(*other));
    let mut members = others.filter(|other| other.state() == State::Member);
    members.any(|other| !has[usize::from(keys.of(other.me().peer) > me)])
}
