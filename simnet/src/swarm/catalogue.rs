//! The faults that a case can draw, and what those of links do.

use rand::{Rng, RngExt};

use crate::event_queue::HostIndex;
use crate::network::{Network, Quality};
use crate::random::{happens, pick};

/// The catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All messages take longer, up to a second.
    Delay,
    /// Latencies vary, up to their own length.
    Jitter,
    /// Up to two messages in five are lost.
    Loss,
    /// Up to a third of all messages arrives twice.
    Duplication,
    /// Up to half of all messages is held back, for up to three seconds.
    Reordering,
    /// Groups of machines cannot send to others, in one direction or in both.
    Partition,
    /// Machines crash, one or many at once, and come back with what they know.
    Crash,
    /// Machines that crashed come back without their last incarnation.
    Amnesia,
    /// Machines that crashed come back with an incarnation before their last.
    Stale,
    /// Other machines take the place of those that crashed.
    Stranger,
    /// Machines leave in good order, and come back.
    Leave,
    /// Lids are shut, and opened again.
    Pause,
    /// Machines handle everything up to three seconds late.
    Slow,
    /// Clocks jump, up to two hours either way.
    ClockJump,
}

/// All of it.
pub const CATALOGUE: [Fault; 14] = [
    Fault::Delay,
    Fault::Jitter,
    Fault::Loss,
    Fault::Duplication,
    Fault::Reordering,
    Fault::Partition,
    Fault::Crash,
    Fault::Amnesia,
    Fault::Stale,
    Fault::Stranger,
    Fault::Leave,
    Fault::Pause,
    Fault::Slow,
    Fault::ClockJump,
];

impl Fault {
    /// Changes the links, if this is a fault of links; `usual` is their behaviour without faults.
    pub(super) fn befall_links(self, rng: &mut impl Rng, quality: &mut Quality, usual: &Quality) {
        match self {
            Fault::Delay => {
                quality.latency_us =
                    if happens(rng, 50.0) { usual.latency_us } else { rng.random_range(1_000..=1_000_000) };
                quality.jitter_us = quality.jitter_us.min(quality.latency_us);
            }
            Fault::Jitter => quality.jitter_us = rng.random_range(0..=quality.latency_us),
            Fault::Loss => quality.loss_percent = pick(rng, &[0.0, 2.0, 10.0, 40.0]),
            Fault::Duplication => quality.duplicate_percent = pick(rng, &[0.0, 5.0, 33.0]),
            Fault::Reordering => {
                quality.reorder_percent = pick(rng, &[0.0, 10.0, 50.0]);
                quality.reorder_us = rng.random_range(0..=3_000_000);
            }
            Fault::Partition
            | Fault::Crash
            | Fault::Amnesia
            | Fault::Stale
            | Fault::Stranger
            | Fault::Leave
            | Fault::Pause
            | Fault::Slow
            | Fault::ClockJump => {}
        }
    }
}

/// Machines are divided into groups that cannot send to others, in one direction or in both; or all partitions end.
pub(super) fn partition(rng: &mut impl Rng, network: &mut Network, hosts: HostIndex) {
    network.heal();
    if happens(rng, 30.0) {
        return;
    }
    let groups = rng.random_range(2..=4);
    for host in 0..hosts {
        network.put_into(rng.random_range(0..groups), host);
    }
    for one in 0..groups {
        for other in (0..groups).filter(|other| *other != one) {
            if happens(rng, 60.0) {
                network.cut(one, other);
            }
        }
    }
}
