//! The truth of one run of the model: how long each process takes on each slot, and when slots can work.
//!
//! A process takes what its class takes on that machine, times a factor of its own (lognormal, mean 1): that factor
//! nobody predicts. Slots work in *sessions*; a process that has not ended when its slot's session ends has to begin anew.

use std::time::Duration;

use idlewood_scheduler::rounds::{Costs, Curve, Process, Slot};
use rand::{Rng, RngExt};

use super::paper;
use crate::churn::Churn;
use crate::random::{exp, exponential, ln, normal_quantile, stream};
use crate::scenario::{Scenario, Sessions};

/// The most mixed of the paper's sets: five clusters on three sites.
const SET: usize = 6;
/// Ten times the paper's, so that the application takes an hour or two and owners matter.
const ITERATIONS: u64 = 2000;
/// Of each run, before the first iteration (our choice; the paper does not say).
const START_S: f64 = 1.0;
/// Merging the results of a synchronous stage.
const MERGE_S: f64 = 3.0;
/// How long after the beginning machines come and go, in seconds. What is not done then is lost.
const HORIZON_S: f64 = 60.0 * 86_400.0;
/// Owners are away and at their machine for so long on average, as in the experiment `desktops` (`20m_1h`).
pub(super) const OWNER_AWAY_S: u64 = 3600;
pub(super) const OWNER_SESSION_S: u64 = 1200;
/// So many of the 40 machines vanish for good, each at a moment of the first hour.
const VANISHING: u32 = 4;
const VANISH_WITHIN_S: f64 = 3600.0;

/// Who comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machines {
    /// Nobody.
    Stay,
    /// Owners, at all machines: 20 minutes there, an hour away.
    Owners,
    /// A tenth of the machines vanishes for good.
    Vanish,
    /// Machines with the sessions of personal devices.
    Desktop,
}

impl Machines {
    pub(super) const ALL: [Self; 4] = [Self::Stay, Self::Owners, Self::Vanish, Self::Desktop];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stay => "stay",
            Self::Owners => "owners",
            Self::Vanish => "vanish",
            Self::Desktop => "desktop",
        }
    }
}

/// A time in which a slot can work, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Session {
    pub(super) from_s: f64,
    pub(super) to_s: f64,
}

/// What is true in one run.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) processes: Vec<Process>,
    /// All of them, each a machine of its own, free from the beginning on.
    pub(super) slots: Vec<Slot>,
    /// What processes of mean length cost.
    pub(super) costs: Costs,
    /// What each process takes by that.
    factors: Vec<f64>,
    /// By slot, in order.
    pub(super) sessions: Vec<Vec<Session>>,
}

impl World {
    /// The world of a seed; `task_cv` is the coefficient of variation of processes.
    pub(super) fn draw(machines: Machines, task_cv: f64, seed: u64) -> Self {
        let clusters: Vec<usize> = paper::slots(SET).iter().map(|slot| slot.machine).collect();
        let mut costs = paper::costs(SET, MERGE_S);
        let of_cluster = |&cluster: &usize| -> Vec<Curve> {
            costs.curves[cluster].iter().map(|curve| Curve { start_s: START_S, ..*curve }).collect()
        };
        costs.curves = clusters.iter().map(of_cluster).collect();
        let processes = paper::processes(ITERATIONS);
        let mut rng = stream(seed, "rounds task", 0);
        let factors = processes.iter().map(|_| varied(&mut rng, task_cv)).collect();
        let slots = (0..clusters.len()).map(|machine| Slot { machine, free_s: 0.0 }).collect();
        let sessions = sessions(machines, clusters.len() as u32, seed);
        Self { processes, slots, costs, factors, sessions }
    }

    /// Processes of one class that take so long, equal slots with these sessions; all processes are predicted to take
    /// 10 s.
    #[cfg(test)]
    pub(super) fn by_hand(lengths_s: &[f64], sessions: Vec<Vec<Session>>, merge_s: f64) -> Self {
        let slots = 0..sessions.len();
        Self {
            processes: vec![Process { class: 0, iterations: 1, home: None }; lengths_s.len()],
            slots: slots.clone().map(|machine| Slot { machine, free_s: 0.0 }).collect(),
            costs: Costs {
                curves: slots.map(|_| vec![Curve { start_s: 0.0, iteration_s: 10.0 }]).collect(),
                transfer_s: 0.0,
                merge_s,
            },
            factors: lengths_s.iter().map(|length_s| length_s / 10.0).collect(),
            sessions,
        }
    }

    /// How long this process takes on this slot.
    pub(super) fn time_s(&self, process: usize, slot: usize) -> f64 {
        let Process { class, iterations, .. } = self.processes[process];
        self.costs.curves[slot][class].time_s(iterations) * self.factors[process]
    }

    /// Whether this slot can work at this moment.
    pub(super) fn is_up(&self, slot: usize, now_s: f64) -> bool {
        self.session_at(slot, now_s).is_some_and(|session| session.from_s <= now_s)
    }

    /// The session in which this moment lies, or the next one.
    pub(super) fn session_at(&self, slot: usize, now_s: f64) -> Option<Session> {
        let sessions = &self.sessions[slot];
        sessions.get(sessions.partition_point(|session| session.to_s <= now_s)).copied()
    }

    /// When some slot begins or ends a session next.
    pub(super) fn next_change_s(&self, after_s: f64) -> Option<f64> {
        let of_slot = |slot| {
            let session = self.session_at(slot, after_s)?;
            Some(if session.from_s > after_s { session.from_s } else { session.to_s })
        };
        let changes = (0..self.slots.len()).filter_map(of_slot);
        changes.filter(|at_s| at_s.is_finite()).min_by(f64::total_cmp)
    }

    /// When a process ends on a slot that is to begin with it at this moment, and anew with each session that is too
    /// short; none if it never does.
    pub(super) fn end_s(&self, process: usize, slot: usize, from_s: f64) -> Option<f64> {
        let time_s = self.time_s(process, slot);
        let first = self.sessions[slot].partition_point(|session| session.to_s <= from_s);
        let ends_s = |session: &Session| session.from_s.max(from_s) + time_s;
        let long_enough = self.sessions[slot][first..].iter().find(|session| ends_s(session) <= session.to_s);
        long_enough.map(ends_s)
    }
}

/// Lognormal with mean 1 and this coefficient of variation.
pub(super) fn varied(rng: &mut impl Rng, cv: f64) -> f64 {
    let square = ln(1.0 + cv * cv);
    exp(square.sqrt() * normal_quantile(rng.random()) - square / 2.0)
}

/// When each slot can work.
fn sessions(machines: Machines, slots: u32, seed: u64) -> Vec<Vec<Session>> {
    let always = vec![Session { from_s: 0.0, to_s: f64::INFINITY }];
    match machines {
        Machines::Stay => vec![always; slots as usize],
        Machines::Owners => (0..slots).map(|slot| owned(slot, seed)).collect(),
        Machines::Vanish => {
            let mut sessions = vec![always; slots as usize];
            let mut rng = stream(seed, "rounds vanish", 0);
            let mut staying: Vec<usize> = (0..slots as usize).collect();
            for _ in 0..VANISHING {
                let slot = staying.swap_remove(rng.random_range(0..staying.len()));
                sessions[slot][0].to_s = rng.random::<f64>() * VANISH_WITHIN_S;
            }
            sessions
        }
        Machines::Desktop => (0..slots).map(|slot| desktop(slot, seed)).collect(),
    }
}

/// An owner who is away for three quarters of the time.
fn owned(slot: u32, seed: u64) -> Vec<Session> {
    let mut rng = stream(seed, "rounds owner", u64::from(slot));
    let is_there = rng.random::<f64>() * ((OWNER_AWAY_S + OWNER_SESSION_S) as f64) < OWNER_SESSION_S as f64;
    let mut now_s = if is_there { exponential(&mut rng, OWNER_SESSION_S) as f64 } else { 0.0 };
    let mut sessions = Vec::new();
    while now_s < HORIZON_S {
        let to_s = now_s + exponential(&mut rng, OWNER_AWAY_S) as f64;
        sessions.push(Session { from_s: now_s, to_s });
        now_s = to_s + exponential(&mut rng, OWNER_SESSION_S) as f64;
    }
    sessions
}

/// The sessions of a personal device.
fn desktop(slot: u32, seed: u64) -> Vec<Session> {
    let scenario = Scenario { seed, sessions: Sessions::Desktops, ..Scenario::default() };
    let mut churn = Churn::new(&scenario, slot);
    let mut now_s = churn.absence().as_secs_f64();
    let mut sessions = Vec::new();
    while now_s < HORIZON_S {
        let to_s = now_s + churn.session().map_or(HORIZON_S, |session: Duration| session.as_secs_f64());
        sessions.push(Session { from_s: now_s, to_s });
        now_s = to_s + churn.downtime().as_secs_f64();
    }
    sessions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_work_in_their_sessions() {
        let sessions = vec![Session { from_s: 5.0, to_s: 20.0 }, Session { from_s: 50.0, to_s: 90.0 }];
        let world = World::by_hand(&[10.0, 20.0, 41.0], vec![sessions], 0.0);
        let up: Vec<bool> = [0.0, 5.0, 19.0, 20.0, 89.0, 90.0].iter().map(|&at| world.is_up(0, at)).collect();
        assert_eq!(up, [false, true, true, false, true, false]);
        let changes = [0.0, 5.0, 20.0, 50.0, 90.0].map(|after| world.next_change_s(after));
        assert_eq!(changes, [Some(5.0), Some(20.0), Some(50.0), Some(90.0), None]);
        // What fits into the first session, what waits for the second one, and what fits into none.
        let ends = |process| [0.0, 8.0, 12.0, 60.0].map(|from| world.end_s(process, 0, from));
        assert_eq!(ends(0), [Some(15.0), Some(18.0), Some(60.0), Some(70.0)]);
        assert_eq!(ends(1), [Some(70.0), Some(70.0), Some(70.0), Some(80.0)]);
        assert_eq!(ends(2), [None; 4]);
    }

    #[test]
    fn owners_are_away_for_three_quarters_of_the_time_and_processes_vary_as_asked() {
        let world = World::draw(Machines::Owners, 0.3, 1);
        let shares =
            world.sessions.iter().map(|of| of.iter().map(|session| session.to_s - session.from_s).sum::<f64>());
        let share = shares.sum::<f64>() / HORIZON_S / world.sessions.len() as f64;
        assert!((share - 0.75).abs() < 0.02, "{share}");
        let count = world.factors.len() as f64;
        let mean = world.factors.iter().sum::<f64>() / count;
        let variance = world.factors.iter().map(|factor| (factor - mean).powi(2)).sum::<f64>() / count;
        assert!((mean - 1.0).abs() < 0.05 && (variance.sqrt() - 0.3).abs() < 0.04, "{mean} {variance}");
        let gone = World::draw(Machines::Vanish, 0.0, 1).sessions.iter().filter(|of| of[0].to_s.is_finite()).count();
        assert_eq!(gone, 4);
    }
}
