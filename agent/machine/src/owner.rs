//! The owner: what the policy's judgement means for tasks that run here.
//!
//! The machine has workers frozen or thawed first; then the peer hears whether it may begin tasks. Under a limit of the processor all workers
//! run for a part of each second and rest for the other. A first task that is measured stands still for a pause alone: the owner who
//! is there may have submitted it.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::Event as PeerEvent;

use crate::effect::Effect;
use crate::policy::hours::LocalTime;
use crate::policy::{Facts, Input, Judgement, Orders, OwnerSettings, Policy, Reason};

/// A limit of the processor is kept within each such time, by letting tasks run for a part of it. Our choice.
const THROTTLE_CYCLE: Duration = Duration::from_secs(1);

/// Tasks under a limit of the processor.
#[derive(Clone, Copy, Debug)]
struct Throttle {
    rests: bool,
    /// When they rest, or go on, next.
    turns_at: Time,
}

/// What a machine knows of its owner, and what follows.
#[derive(Debug)]
pub struct Owner {
    settings: OwnerSettings,
    orders: Orders,
    facts: Facts,
    /// When these facts held; the time since the last input grows from then on.
    sensed: Time,
    policy: Policy,
    throttle: Option<Throttle>,
    /// As the driver was told last.
    measurer_frozen: bool,
}

impl Owner {
    /// Nobody has looked yet.
    pub(crate) fn new(settings: OwnerSettings, now: Time) -> Self {
        let facts = Facts {
            input: Input::Unknown,
            on_battery: false,
            foreign_cpu: None,
            program: None,
            disk_room: 1.0,
            local: LocalTime { weekday: 0, minute: 0 },
        };
        Self {
            settings,
            orders: Orders::default(),
            facts,
            sensed: now,
            policy: Policy::new(now),
            throttle: None,
            measurer_frozen: false,
        }
    }

    /// The policy's last judgement.
    pub fn judgement(&self) -> &Judgement {
        self.policy.judgement()
    }

    /// Whether the owner is there, whatever else keeps tasks from running.
    pub fn is_in_use(&self) -> bool {
        self.policy.is_in_use()
    }

    /// The owner's orders that are in force.
    pub fn orders(&self) -> Orders {
        self.orders
    }

    /// Whether all workers stand still now: the owner is there, or tasks under a limit of the processor rest.
    pub(crate) fn workers_stand_still(&self) -> bool {
        self.throttle.is_some_and(|throttle| throttle.rests) || self.policy.judgement().stands_still()
    }

    /// What was sensed. What the peer has to hear follows, as from the others below.
    pub(crate) fn sense(&mut self, facts: Facts, now: Time, effects: &mut Vec<Effect>) -> Vec<PeerEvent> {
        self.facts = facts;
        self.sensed = now;
        self.judge(now, effects)
    }

    /// The owner's orders are these from now on.
    pub(crate) fn order(&mut self, orders: Orders, now: Time, effects: &mut Vec<Effect>) -> Vec<PeerEvent> {
        let before = std::mem::replace(&mut self.orders, orders);
        let mut told = self.judge(now, effects);
        if orders.pause != before.pause {
            effects.push(Effect::KeepPause(orders.pause));
        }
        if orders.finish {
            // Also where the owner is there: nothing that waits will begin.
            told.push(PeerEvent::Vacate);
        }
        told
    }

    /// The settings are these from now on.
    pub(crate) fn set(&mut self, settings: OwnerSettings, now: Time, effects: &mut Vec<Effect>) -> Vec<PeerEvent> {
        let vacate = settings.vacate;
        let before = std::mem::replace(&mut self.settings, settings);
        let mut told = Vec::new();
        if vacate != before.vacate {
            told.push(PeerEvent::VacatesAfter(vacate));
        }
        if self.settings.kept_bags_max != before.kept_bags_max {
            told.push(PeerEvent::KeepsAtMost(self.settings.kept_bags_max));
        }
        told.append(&mut self.judge(now, effects));
        told
    }

    /// What time alone changes.
    pub(crate) fn wake(&mut self, now: Time, effects: &mut Vec<Effect>) -> Vec<PeerEvent> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        if self.pause_ends().is_some_and(|until| until <= now) {
            self.orders.pause = None;
            effects.push(Effect::KeepPause(None));
        }
        let told = self.judge(now, effects);
        self.turn_throttle(now);
        self.settle(effects);
        told
    }

    /// When [`Owner::wake`] has something to do: a pause ends, the owner has given no input for long enough, tasks under a limit rest or
    /// go on.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let idle_ends = match self.facts.input {
            Input::Idle(idle) if self.policy.is_in_use() => Some(self.sensed + self.settings.idle.saturating_sub(idle)),
            Input::Idle(_) | Input::Present | Input::Unknown => None,
        };
        let turns_at = self.throttle.map(|throttle| throttle.turns_at);
        [self.pause_ends(), idle_ends, turns_at].into_iter().flatten().min()
    }

    fn pause_ends(&self) -> Option<Time> {
        self.orders.pause.and_then(|pause| pause.until)
    }

    /// Judges anew and does what follows: what the peer has to hear.
    fn judge(&mut self, now: Time, effects: &mut Vec<Effect>) -> Vec<PeerEvent> {
        if let Input::Idle(idle) = &mut self.facts.input {
            *idle += now.since(self.sensed);
        }
        self.sensed = now;
        if !self.policy.judge(now, &self.settings, &self.facts, self.orders) {
            return Vec::new();
        }
        let judgement = self.policy.judgement().clone();
        let rest = Throttle { rests: true, turns_at: now + rest_of_cycle(judgement.cpu_percent) };
        self.throttle = (1..100).contains(&judgement.cpu_percent).then_some(rest);
        self.settle(effects);
        let stands_still = judgement.stands_still();
        let mut told =
            vec![if judgement.takes_work { PeerEvent::OwnerLeft } else { PeerEvent::OwnerReturned { stands_still } }];
        let finishes = self.orders.finish && !judgement.takes_work && !stands_still;
        if judgement.reason == Some(Reason::DiskFull) || finishes {
            // Tasks that have not begun may begin elsewhere at once: nobody knows when there will be room here.
            told.push(PeerEvent::Vacate);
        }
        effects.push(Effect::Judged(judgement));
        told
    }

    fn turn_throttle(&mut self, now: Time) {
        let percent = self.policy.judgement().cpu_percent;
        if let Some(throttle) = self.throttle.as_mut().filter(|throttle| throttle.turns_at <= now) {
            throttle.rests = !throttle.rests;
            let rest = rest_of_cycle(percent);
            throttle.turns_at = now + if throttle.rests { rest } else { THROTTLE_CYCLE - rest };
        }
    }

    /// Freezes the first task that is measured when a pause begins, and thaws it when the pause ends.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        let paused = self.orders.pause.is_some();
        if paused != std::mem::replace(&mut self.measurer_frozen, paused) {
            effects.push(if paused { Effect::FreezeMeasurer } else { Effect::ThawMeasurer });
        }
    }
}

/// How much of a cycle tasks rest that may use this share of a processor.
fn rest_of_cycle(cpu_percent: u32) -> Duration {
    THROTTLE_CYCLE * 100_u32.saturating_sub(cpu_percent) / 100
}

#[cfg(test)]
mod tests;
