//! One machine of a world: its peer, its identity and its place.

use idlewood_overlay::{Overlay, PeerId, Time};

use crate::condition::{Condition, Pause};
use crate::event_queue::{HostIndex, Key};
use crate::random::{SmallStream, digest};

/// One machine.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) overlay: Option<Box<Overlay>>,
    /// For its messages.
    pub(super) network_rng: SmallStream,
    /// For the contacts that it joins through.
    pub(super) contact_rng: SmallStream,
    /// None in most cases: a machine in good condition.
    pub(super) condition: Option<Box<Condition>>,
    pub(super) trace: u64,
    sequence: u64,
    /// When the pending wake is due.
    pub(super) wake: Time,
    /// Its peer's deadline after its last event, by its own clock.
    pub(super) deadline: Time,
    /// When this life began.
    pub(super) started: Time,
    /// The last incarnation, as on its disk.
    pub(super) incarnation: u64,
    /// Number of its starts: events of an earlier life are void.
    pub(super) life: u32,
    /// Number of machines that had this index before.
    pub(super) identity: u32,
    /// Tag of the present identity.
    pub(super) tag: u64,
    /// Its position among those that are up.
    pub(super) place: u32,
    pub(super) wakes_at_once: u16,
    /// Messages sent or received in this life.
    pub(super) messages: u32,
}

/// The identity of machine number `identity` at this index. Its first bytes give the index.
pub(super) fn identity(seed: u64, host: HostIndex, identity: u32) -> PeerId {
    let mut id = digest(seed, "identity", u64::from(identity) << 32 | u64::from(host));
    id[..4].copy_from_slice(&host.to_be_bytes());
    PeerId(id)
}

/// Its address, as agents write it: nothing is dialled here, but messages have their true length.
pub(super) fn address(host: HostIndex) -> Box<str> {
    let [_, a, b, c] = host.to_be_bytes();
    format!("/ip4/10.{a}.{b}.{c}/tcp/40113").into()
}

/// Distinguishes the machines of one index.
pub(super) fn tag(PeerId([_, _, _, _, a, b, c, d, e, f, g, h, ..]): PeerId) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Not among those that are up.
pub(super) const NOWHERE: u32 = u32::MAX;

impl Host {
    /// A machine that is down, number `index` of a world with this seed.
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
