//! The local peer: what each part of the overlay is given to act with.
//!
//! Who we are, what time it is, our settings, our randomness, and where messages and notices go. [`Local`] knows
//! nothing of other peers: that is for the parts, which get it with each call.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use crate::chance::Chance;
use crate::config::Config;
use crate::counters::Counters;
use crate::event::{Effect, Notice};
use crate::identity::{Contact, GridId, Member, PositionKey};
use crate::message::{Body, Message};
use crate::path::Path;
use crate::state::Life;
use crate::time::Time;

/// Lifeguard's bound of local health.
const SLOWNESS_MAX: u32 = 8;
/// How long an answer of a peer that we never met may take while no such answer was measured: RFC 6298, rule 2.1.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// Incarnations of ours, claimed by others, that are so many milliseconds later than our clock are lies: 139 years, so
/// that a clock that fell back to 1970 does no harm.
const INCARNATION_LEAD_MAX: u64 = 1 << 42;

/// This peer, without the peers that it knows.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub(crate) config: Arc<Config>,
    pub(crate) grid: GridId,
    pub(crate) me: Member,
    /// Our place on the line.
    pub(crate) key: PositionKey,
    /// When this incarnation began, and its number: together our guess of the time of day.
    born: (Time, u64),
    pub(crate) rng: Chance,
    /// The time of the event that is being handled.
    pub(crate) now: Time,
    pub(crate) life: Life,
    /// How slow we seem to be ourselves (Lifeguard's local health): 0 is healthy.
    slowness: u32,
    /// What first answers of peers took: the next stranger is expected to be about as far away.
    pub(crate) strangers: Path,
    pub(crate) outbox: Outbox,
    pub(crate) counters: Counters,
}

/// What goes out once the event is handled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    /// The driver's list while an event is handled, else empty.
    pub(crate) effects: Vec<Effect>,
    pub(crate) notices: Notices,
}

/// Notices for the layer above, collected while an event is handled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notices {
    pub(crate) joined: bool,
    pub(crate) children: bool,
    pub(crate) place: bool,
    pub(crate) root: bool,
    pub(crate) left: bool,
}

impl Outbox {
    #[cfg(debug_assertions)]
    pub(crate) fn is_empty(&self) -> bool {
        self.effects.is_empty() && self.notices == Notices::default()
    }

    /// Turns the notices collected so far into effects.
    pub(crate) fn notify(&mut self) {
        let notices = std::mem::take(&mut self.notices);
        let notices = [
            (notices.joined, Notice::Joined),
            (notices.place, Notice::PlaceChanged),
            (notices.children, Notice::ChildrenChanged),
            (notices.root, Notice::RootChanged),
            (notices.left, Notice::Left),
        ];
        self.effects.extend(notices.iter().filter(|(is_new, _)| *is_new).map(|(_, notice)| Effect::Notify(*notice)));
    }
}

impl Local {
    pub(crate) fn new(config: Arc<Config>, grid: GridId, me: Member, seed: u64, now: Time) -> Self {
        Self {
            config,
            grid,
            key: me.key(grid),
            born: (now, me.incarnation),
            me,
            rng: Chance::new(seed),
            now,
            life: Life::new(now),
            slowness: 0,
            strangers: Path::default(),
            outbox: Outbox::default(),
            counters: Counters::default(),
        }
    }

    /// A newer incarnation goes on where `last` ended: with its clock, its counters, what it measured of strangers, and
    /// the effects of this event.
    pub(crate) fn inherit(&mut self, last: Self) {
        (self.outbox.effects, self.counters, self.born) = (last.outbox.effects, last.counters, last.born);
        self.strangers = last.strangers;
    }

    /// A peer counts this incarnation of ours, or a later one, as over: begins a newer one. False if it is refused.
    ///
    /// Only up to a bound that moves with our own clock, or a forged rumour would use up all incarnations. Others
    /// believe what we announce of ourselves, so the newer incarnation prevails.
    pub(crate) fn rise_above(&mut self, incarnation: u64) -> bool {
        let (began, first) = self.born;
        let clock = first.saturating_add(self.now.since(began).as_millis() as u64);
        if incarnation > clock.saturating_add(INCARNATION_LEAD_MAX) {
            self.counters.incarnations_refused += 1;
            return false;
        }
        self.me = Contact { incarnation: incarnation.saturating_add(1), ..(*self.me).clone() }.into();
        self.counters.risen += 1;
        true
    }

    // ---- health ----

    pub(crate) fn feel_slower(&mut self) {
        self.slowness = (self.slowness + 1).min(SLOWNESS_MAX);
    }

    pub(crate) fn feel_faster(&mut self) {
        self.slowness = self.slowness.saturating_sub(1);
    }

    /// How long the first try waits for an answer over this path, or that of a stranger: longer, the slower we seem to
    /// be.
    pub(crate) fn timeout(&self, path: Option<Path>) -> Duration {
        let first = self.strangers.answer_within(FIRST_ANSWER);
        let (shortest, longest) = self.config.probe_timeouts();
        self.slowed(path.unwrap_or_default().answer_within(first).clamp(shortest, longest))
    }

    /// How long any try waits at most.
    pub(crate) fn timeout_max(&self) -> Duration {
        self.slowed(self.config.probe_timeouts().1)
    }

    fn slowed(&self, wait: Duration) -> Duration {
        wait * (2 + self.slowness) / 2
    }

    // ---- spread in time ----

    /// The moment after a period with its spread.
    pub(crate) fn after_ms(&mut self, period_ms: u64) -> Time {
        self.now + self.pace(Duration::from_millis(period_ms))
    }

    /// A duration with its spread.
    pub(crate) fn pace(&mut self, duration: Duration) -> Duration {
        duration * self.pace_percent() / 100
    }

    /// A random factor around 100 %.
    pub(crate) fn pace_percent(&mut self) -> u32 {
        let jitter = self.config.jitter_percent.min(50) as u32;
        self.rng.random_range(100 - jitter..=100 + jitter)
    }

    // ---- messages ----

    /// Sends a message with our address.
    pub(crate) fn send(&mut self, to: Member, body: Body) {
        let address = Some(self.me.address.clone());
        self.send_as(to, address, body);
    }

    /// Sends a message to a peer that knows our address.
    pub(crate) fn send_short(&mut self, to: Member, body: Body) {
        self.send_as(to, None, body);
    }

    fn send_as(&mut self, to: Member, address: Option<Box<str>>, body: Body) {
        let message = Message { grid: self.grid.tag(), incarnation: self.me.incarnation, address, body };
        self.outbox.effects.push(Effect::Send { to, message });
    }
}
