//! When look-ups begin, and whom they ask first. One is under way at a time.
//!
//! A peer looks its own key up to join, after changes next to it, when a lost peer answers again, and once a minute: so
//! a peer that the line forgot finds its place again. Look-ups of random places fill sparse buckets of fingers.
//!
//! A method that may end a look-up returns the peers nearest to its place: the caller, `membership`, verifies them.

use std::time::Duration;

use rand::RngExt;
use rand::seq::{IndexedRandom, IteratorRandom};

use crate::finger::Fingers;
use crate::identity::{Member, PositionKey};
use crate::line::Line;
use crate::local::Local;
use crate::lookup::Lookup;
use crate::message::Body;
use crate::nearest::nearest_known;
use crate::time::Time;

/// Wait before a look-up that follows a change; doubles from there.
const PERIOD_MIN: Duration = Duration::from_secs(1);
/// How many times more often a peer that may have lost sight of part of the line looks itself up.
const DOUBT_HURRY: u32 = 6;
/// Peers that a look-up in doubt of the line asks first, of the fingers and of the peers named by others each.
const DOUBT_FINGERS: usize = 6;
/// The same for a peer that lost all neighbours.
const LONELY_FINGERS: usize = 32;
/// The longest wait for the next look-up of a finger, in shortest ones.
const FINGER_PERIODS_MAX: u32 = 16;

/// The look-up under way, and those to come.
#[derive(Clone, Debug)]
pub(crate) struct Lookups {
    current: Option<Lookup>,
    /// The own key was looked up since joining began.
    looked_up: bool,
    /// When the own key is looked up next.
    own_next: Time,
    own_period: Duration,
    /// When a finger is looked up next.
    finger_next: Time,
    finger_period: Duration,
    /// Number of fingers when one was looked up last.
    fingers_len: usize,
}

impl Lookups {
    pub(crate) fn new(local: &mut Local) -> Self {
        Self {
            current: None,
            looked_up: false,
            own_next: local.now,
            own_period: PERIOD_MIN,
            finger_next: local.after_ms(local.config.exchange_ms),
            finger_period: Duration::from_millis(local.config.exchange_ms),
            fingers_len: 0,
        }
    }

    /// Whether a look-up is under way, of the own key or of a finger.
    pub(crate) fn is_looking_up(&self) -> bool {
        self.current.is_some()
    }

    /// Whether the own key was looked up since joining began, and nothing is looked up any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.looked_up && self.current.is_none()
    }

    /// Joining begins: the own key has not been looked up.
    pub(crate) fn forget_place(&mut self) {
        self.looked_up = false;
    }

    /// When the first answer is overdue.
    pub(crate) fn deadline(&self) -> Time {
        self.current.as_ref().map_or(Time::MAX, Lookup::deadline)
    }

    /// When the next look-up begins, if this peer knows others.
    pub(crate) fn next(&self) -> Time {
        self.own_next.min(self.finger_next)
    }

    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self) {
        self.current.iter().for_each(Lookup::assert_ordered);
    }

    // ---- beginning ----

    /// Looks the own key up if that is due.
    #[must_use]
    pub(crate) fn begin_own(&mut self, local: &mut Local, line: &mut Line, fingers: &Fingers) -> Vec<Member> {
        if self.own_next > local.now {
            return Vec::new();
        }
        let is_doubtful = !line.is_lonely() && line.leaf_set.is_doubtful();
        let longest = Duration::from_millis(local.config.lookup_ms) / if is_doubtful { DOUBT_HURRY } else { 1 };
        let period = self.own_period;
        self.own_next = local.now + local.pace(period);
        self.own_period = (period * 2).min(longest);
        if is_doubtful {
            self.look_up_in_doubt(local, line, fingers)
        } else {
            self.look_up_own_key(local, line, fingers, Vec::new())
        }
    }

    /// Looks a finger up if that is due.
    #[must_use]
    pub(crate) fn begin_finger(&mut self, local: &mut Local, line: &mut Line, fingers: &Fingers) -> Vec<Member> {
        if self.finger_next > local.now {
            return Vec::new();
        }
        let nearest = self.look_up_finger(local, line, fingers);
        self.finger_next = local.now + local.pace(self.finger_period);
        nearest
    }

    /// Looks the own key up, asking these peers first (or random ones if there are none).
    #[must_use]
    pub(crate) fn look_up_own_key(
        &mut self,
        local: &mut Local,
        line: &mut Line,
        fingers: &Fingers,
        seeds: Vec<Member>,
    ) -> Vec<Member> {
        let is_urgent = !seeds.is_empty() || !local.life.is_member();
        let seeds = if seeds.is_empty() { self.random_seeds(local, line, fingers) } else { seeds };
        match &mut self.current {
            Some(lookup) if lookup.key == local.key => {
                if is_urgent {
                    lookup.hurry();
                }
            }
            current => *current = Some(Lookup::new(local.key, local.rng.random(), is_urgent)),
        }
        self.seed(local, line, seeds)
    }

    /// Looks the own key up at once, since we may have lost sight of part of the line. Asks several peers first, near
    /// and far, since many may be gone.
    #[must_use]
    pub(crate) fn look_up_in_doubt(&mut self, local: &mut Local, line: &mut Line, fingers: &Fingers) -> Vec<Member> {
        if self.current.as_ref().is_some_and(|lookup| lookup.key == local.key) {
            return Vec::new();
        }
        let mut seeds: Vec<Member> = [line.pred(), line.succ()].into_iter().flatten().cloned().collect();
        seeds.extend(nearest_known(local, line, fingers, &local.key, 1, Some(local.me.peer)));
        (0..DOUBT_FINGERS).for_each(|_| seeds.extend(random_finger(local, fingers)));
        seeds.extend(random_heard_of(local, fingers, DOUBT_FINGERS));
        if seeds.is_empty() { Vec::new() } else { self.look_up_own_key(local, line, fingers, seeds) }
    }

    /// Looks up a place in a bucket with few fingers; less and less often while no finger is lost.
    #[must_use]
    fn look_up_finger(&mut self, local: &mut Local, line: &mut Line, fingers: &Fingers) -> Vec<Member> {
        let known = std::mem::replace(&mut self.fingers_len, fingers.len());
        let shortest = Duration::from_millis(local.config.exchange_ms);
        // Messages of other peers fill buckets too: only a loss is a reason to hurry.
        let is_loss = self.fingers_len < known;
        self.finger_period =
            if is_loss { shortest } else { (self.finger_period * 2).min(shortest * FINGER_PERIODS_MAX) };
        if self.current.is_some() {
            return Vec::new();
        }
        let pick = local.rng.random_range(0..256);
        let Some(deepest) = line.leaf_set.deepest_bucket_beyond() else { return Vec::new() };
        let Some(bucket) = fingers.sparse_bucket(deepest, pick) else { return Vec::new() };
        let key = fingers.place_in(bucket, local.rng.random());
        let mut seeds = nearest_known(local, line, fingers, &key, 1, None);
        seeds.retain(|contact| contact.peer != local.me.peer);
        self.current = Some(Lookup::new(key, local.rng.random(), false));
        self.seed(local, line, seeds)
    }

    /// Brings the next look-up of the own key forward.
    pub(crate) fn look_up_soon(&mut self, now: Time) {
        self.own_period = PERIOD_MIN;
        self.own_next = self.own_next.min(now + PERIOD_MIN);
    }

    fn seed(&mut self, local: &mut Local, line: &mut Line, seeds: Vec<Member>) -> Vec<Member> {
        let Some(lookup) = &mut self.current else { return Vec::new() };
        for contact in seeds {
            lookup.seed(contact.key(local.grid), contact);
        }
        self.step(local, line)
    }

    /// One far and one near peer: the far one notices if the line that we know is incomplete. A peer that lost all
    /// neighbours asks many.
    fn random_seeds(&self, local: &mut Local, line: &Line, fingers: &Fingers) -> Vec<Member> {
        if line.is_lonely() {
            let far = fingers.iter().map(|(_, contact)| contact).sample(&mut *local.rng, LONELY_FINGERS);
            let far: Vec<Member> = far.into_iter().cloned().collect();
            return [far, random_heard_of(local, fingers, LONELY_FINGERS)].concat();
        }
        let mut seeds = Vec::new();
        seeds.extend(random_finger(local, fingers));
        if !self.looked_up || seeds.is_empty() {
            seeds.extend(line.near().cloned());
        }
        seeds
    }

    // ---- under way ----

    /// Asks the next candidates; ends the look-up when there are none.
    #[must_use]
    pub(crate) fn step(&mut self, local: &mut Local, line: &mut Line) -> Vec<Member> {
        let expires = local.now + local.timeout(None);
        let Some(lookup) = &mut self.current else { return Vec::new() };
        let (nonce, key) = (lookup.nonce, lookup.key);
        lookup.ask(expires).into_iter().for_each(|to| local.send(to, Body::Find { nonce, key }));
        if !lookup.is_done() {
            return Vec::new();
        }
        let (nearest, has_answers) = (lookup.nearest().cloned().collect::<Vec<_>>(), lookup.has_answers());
        self.current = None;
        if key == local.key {
            self.looked_up |= has_answers;
            line.believe_ends(local, &nearest);
        }
        nearest
    }

    /// Asks late candidates once more, gives others up, and goes on.
    #[must_use]
    pub(crate) fn expire(&mut self, local: &mut Local, line: &mut Line, fingers: &mut Fingers) -> Vec<Member> {
        let timeout = (local.timeout(None) * 2).min(local.timeout_max());
        let Some(lookup) = &mut self.current else { return Vec::new() };
        let (again, failed) = lookup.expire(local.now, timeout);
        let (nonce, key) = (lookup.nonce, lookup.key);
        again.into_iter().for_each(|to| local.send(to, Body::Find { nonce, key }));
        // No answer at all may be our own fault.
        if lookup.has_answers() {
            failed.into_iter().for_each(|peer| fingers.remove(peer));
        }
        self.step(local, line)
    }

    /// Notes an answer; false if nobody waits for it.
    pub(crate) fn answered(&mut self, local: &Local, sender: &Member, nonce: u32) -> bool {
        let lookup = self.current.as_mut().filter(|lookup| lookup.nonce == nonce);
        lookup.is_some_and(|lookup| lookup.answered(&sender.key(local.grid), sender))
    }

    /// Adds a candidate that an answer named; one that is `known` need not be asked.
    pub(crate) fn add(&mut self, key: PositionKey, contact: Member, known: bool) {
        if let Some(lookup) = &mut self.current {
            lookup.add(key, contact, known);
        }
    }
}

fn random_finger(local: &mut Local, fingers: &Fingers) -> Option<Member> {
    let pick = local.rng.random_range(0..fingers.len().max(1));
    fingers.iter().nth(pick).map(|(_, contact)| contact.clone())
}

fn random_heard_of(local: &mut Local, fingers: &Fingers, len: usize) -> Vec<Member> {
    fingers.heard_of().sample(&mut *local.rng, len).cloned().collect()
}
