//! One machine of a world: the state of its peer, and who and where it is.

use idlewood_overlay::{Overlay, PeerId, Time};

use crate::condition::{Condition, Pause};
use crate::event_queue::{HostIndex, Key};
use crate::random::{SmallStream, digest};

/// One machine.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) overlay: Option<Box<Overlay>>,
    /// For what it sends.
    pub(super) network_rng: SmallStream,
    /// For whom it joins through.
    pub(super) contact_rng: SmallStream,
    /// Usually there is nothing to say.
    pub(super) condition: Option<Box<Condition>>,
    pub(super) trace: u64,
    sequence: u64,
    /// When the pending wake is due.
    pub(super) wake: Time,
    /// What its peer gave for its deadline when it last handled something, by its clock.
    pub(super) deadline: Time,
    /// When this life began.
    pub(super) started: Time,
    /// The last incarnation, as on its disk.
    pub(super) incarnation: u64,
    /// Counts its starts: what was meant for an earlier life is void.
    pub(super) life: u32,
    /// Counts the machines that stood in this place.
    pub(super) identity: u32,
    /// Of the present one.
    pub(super) tag: u64,
    /// Where it is among those that are up.
    pub(super) place: u32,
    pub(super) wakes_at_once: u16,
    /// Messages sent or received in this life.
    pub(super) messages: u32,
}

/// The identity of the machine that is number `identity` in its place. Its first bytes tell the place.
pub(super) fn identity(seed: u64, host: HostIndex, identity: u32) -> PeerId {
    let mut id = digest(seed, "identity", u64::from(identity) << 32 | u64::from(host));
    id[..4].copy_from_slice(&host.to_be_bytes());
    PeerId(id)
}

/// Where it is reached, as agents write it: nothing is dialled here, but messages have the length that they have there.
pub(super) fn address(host: HostIndex) -> Box<str> {
    let [_, a, b, c] = host.to_be_bytes();
    format!("/ip4/10.{a}.{b}.{c}/tcp/40113").into()
}

/// What tells apart the machines of one place.
pub(super) fn tag(PeerId([_, _, _, _, a, b, c, d, e, f, g, h, ..]): PeerId) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// No place among those that are up.
pub(super) const NOWHERE: u32 = u32::MAX;

impl Host {
    /// One that is down, number `index` of its world, of the world's seed.
    pub(super) fn new(seed: u64, index: HostIndex) -> Self {
        Self {
            overlay: None,
            network_rng: SmallStream::new(seed, "network", index.into()),
            contact_rng: SmallStream::new(seed, "contact", index.into()),
            condition: None,
            trace: 0,
            sequence: 0,
            wake: Time::MAX,
            deadline: Time::MAX,
            started: Time::ZERO,
            incarnation: 0,
            life: 0,
            identity: 0,
            tag: tag(identity(seed, index, 0)),
            place: NOWHERE,
            wakes_at_once: 0,
            messages: 0,
        }
    }

    pub(super) fn condition_mut(&mut self) -> &mut Condition {
        self.condition.get_or_insert_default()
    }

    pub(super) fn pause(&self) -> Option<Pause> {
        self.condition.as_ref()?.pause
    }

    /// The peer's deadline in simulated time.
    pub(super) fn deadline(&self) -> Time {
        match &self.condition {
            Some(condition) => condition.moment(self.started, self.deadline),
            None => Time::from_micros(self.deadline.as_micros().saturating_add(self.started.as_micros())),
        }
    }

    pub(super) fn key(&mut self, at: Time, source: HostIndex, target: HostIndex) -> Key {
        self.sequence += 1;
        Key { at, target, source, sequence: self.sequence }
    }
}
