//! An application in rounds on whole peers: what an agent's ledger, the tree and executors make of it.
//!
//! The machines are those of the paper's set 6, each a slot; the application is a bag of 40 processes in four classes, as many of
//! each as the paper has, and 12 rounds, the paper's stages. What a process takes in a round varies by `task_cv`, which nobody can predict. Each
//! row says how the end compares with a prediction from true mean works and speeds, which the experiment makes for the beginning and the
//! peers do not know, and with the rivals of [`super::whole`], who know the very sessions and works of this run.
//!
//! `stay`: no owners, all machines up. `owners`: at all machines, an hour away and 20 minutes there; tasks stand still meanwhile. `desktop`: sessions
//! of personal devices, but for the submitter's machine; what a machine has done of a task is lost when it goes down.

use std::time::Duration;

use idlewood_overlay::Time;
use serde_json::{Value, json};

use super::paper;
use super::samples::{self, Ratios};
use super::whole::Truth;
use super::world::{OWNER_AWAY_S, OWNER_SESSION_S, Session};
use crate::churn::{Churn, Owner};
use crate::report::Report;
use crate::scenario::{GivenBag, GivenMachine, GivenRounds, Scenario, Sessions, Workload};
use crate::simulation::Simulation;
use crate::workload;

/// The most mixed of the paper's sets.
const SET: usize = 6;
/// The paper's stages, with as many processes as slots in each.
const PROCESSES: u64 = 40;
const ROUNDS: u64 = 12;
/// Ten times the paper's, so that a round takes three to twenty minutes.
const ITERATIONS: f64 = 2000.0;
/// Of the fastest cluster, in Mop/s per slot (our choice: no result depends on it).
const SPEED_MOPS: f64 = 1000.0;
const MERGE_S: f64 = 3.0;
const TASK_CVS: [f64; 3] = [0.0, 0.1, 0.3];
/// What is not done then is lost.
const HORIZON: Duration = Duration::from_secs(30 * 86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machines {
    Stay,
    Owners,
    Desktop,
}

impl Machines {
    const ALL: [Self; 3] = [Self::Stay, Self::Owners, Self::Desktop];

    fn name(self) -> &'static str {
        match self {
            Self::Stay => "stay",
            Self::Owners => "owners",
            Self::Desktop => "desktop",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    machines: Machines,
    asynchronous: bool,
    task_cv: f64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    ratios: Ratios,
    /// Failed ones included: there is no reason to fail.
    lost_tasks: u64,
    open_tasks: u64,
    unaccepted_tasks: u64,
    wasted_work_share: f64,
}

/// A row for each kind of machines, mode and variation.
pub(super) fn rows(seed: u64, seeds: u64, progress: impl FnMut(usize, usize)) -> Vec<Value> {
    let modes = [false, true];
    let cases: Vec<Case> = Machines::ALL
        .into_iter()
        .flat_map(|machines| modes.map(|mode| TASK_CVS.map(|task_cv| Case { machines, asynchronous: mode, task_cv })))
        .flatten()
        .collect();
    let samples = samples::run(&cases, seed, seeds, sample, progress);
    cases.iter().zip(samples.chunks(seeds as usize)).map(|(case, samples)| row(case, samples)).collect()
}

fn row(case: &Case, samples: &[Sample]) -> Value {
    let mut row = json!({
        "part": "peers",
        "machines": case.machines.name(),
        "mode": if case.asynchronous { "async" } else { "sync" },
        "task_cv": case.task_cv,
        "seeds": samples.len(),
        "lost_tasks": samples.iter().map(|sample| sample.lost_tasks).sum::<u64>(),
        "open_tasks": samples.iter().map(|sample| sample.open_tasks).sum::<u64>(),
        "unaccepted_tasks": samples.iter().map(|sample| sample.unaccepted_tasks).sum::<u64>(),
        "wasted_work_share": samples.iter().map(|sample| sample.wasted_work_share).sum::<f64>() / samples.len() as f64,
    });
    let ratios: Vec<Ratios> = samples.iter().map(|sample| sample.ratios).collect();
    samples::add_ratios(&mut row, &ratios);
    row
}

fn sample(case: Case, seed: u64) -> Sample {
    let scenario = scenario(case, seed);
    let mut simulation = Simulation::new(scenario.clone()).expect("a scenario of ours");
    let report = simulation.run(|_| ());
    let begins_s = report.bags[0].submitted_s.unwrap_or(0.0);
    let truth = truth(case, &scenario, begins_s);
    let ended_s = report.bags[0].completed_s.map(|at_s| at_s - begins_s);
    let Report { lost_tasks, open_tasks, unaccepted_tasks, failed_tasks, wasted_work_share, .. } = report;
    Sample {
        ratios: Ratios::new(ended_s, truth.predicted_s(), truth.clairvoyant_s(), truth.best_static_s()),
        lost_tasks: lost_tasks + failed_tasks,
        open_tasks,
        unaccepted_tasks,
        wasted_work_share,
    }
}

fn scenario(case: Case, seed: u64) -> Scenario {
    let class_mops = paper::iterations_s().map(|iteration_s| ITERATIONS * iteration_s * SPEED_MOPS).to_vec();
    let rounds = GivenRounds {
        processes: PROCESSES,
        rounds: ROUNDS,
        at_once: false,
        asynchronous: case.asynchronous,
        merge_mops: MERGE_S * SPEED_MOPS,
        class_mops: class_mops.clone(),
    };
    let bag = GivenBag {
        at: Duration::ZERO,
        submitter: 0,
        tasks: rounds.plan().tasks(),
        task_mops: class_mops.iter().sum::<f64>() / class_mops.len() as f64,
        output_bytes: None,
        rounds: Some(rounds),
        endless: None,
    };
    let machine = |(number, share): (usize, f64)| GivenMachine {
        number: number as u32,
        speed_mops: Some(share * SPEED_MOPS),
        up_bytes_s: None,
        down_bytes_s: None,
        limit_kb_s: None,
    };
    let speeds = paper::speeds(SET);
    let (sessions, steady_percent) = match case.machines {
        Machines::Desktop => (Sessions::Desktops, 100.0 / speeds.len() as f64),
        Machines::Stay | Machines::Owners => (Sessions::Exponential, 0.0),
    };
    Scenario {
        nodes: speeds.len() as u32,
        seed,
        workload: Workload::Given,
        given_bags: vec![bag],
        given_machines: speeds.into_iter().enumerate().map(machine).collect(),
        task_cv: case.task_cv,
        sessions,
        steady_percent,
        owner_session: (case.machines == Machines::Owners).then_some(Duration::from_secs(OWNER_SESSION_S)),
        owner_away: Duration::from_secs(OWNER_AWAY_S),
        horizon: HORIZON,
        ..Scenario::default()
    }
}

/// What is true of a run whose bag was submitted at this moment.
fn truth(case: Case, scenario: &Scenario, begins_s: f64) -> Truth {
    let bags = workload::bags(scenario);
    let rounds = scenario.given_bags[0].rounds.as_ref().expect("a bag in rounds");
    let plan = rounds.plan();
    let index = |round, process| plan.index(idlewood_scheduler::rounds::Part::Process { round, process });
    let of_round = |round| -> Vec<f64> {
        (0..PROCESSES).map(|process| workload::work_mops(scenario, 0, &bags[0], index(round, process))).collect()
    };
    Truth {
        sessions: sessions(scenario, begins_s),
        speeds_mops: (0..scenario.nodes).map(|host| workload::true_speed_mops(scenario, host)).collect(),
        work_mops: (0..ROUNDS).map(of_round).collect(),
        mean_mops: (0..PROCESSES).map(|process| rounds.work_mops(index(0, process)).1).collect(),
        resumes: case.machines == Machines::Owners,
        merge_s: MERGE_S,
        is_asynchronous: case.asynchronous,
    }
}

/// When each machine can work, in seconds since this moment, drawn as the simulation draws it.
fn sessions(scenario: &Scenario, begins_s: f64) -> Vec<Vec<Session>> {
    let starts = workload::starts(scenario);
    starts.map(|(host, start)| of_machine(scenario, host, start, begins_s)).collect()
}

fn of_machine(scenario: &Scenario, host: u32, start: Time, begins_s: f64) -> Vec<Session> {
    let horizon = Time::ZERO + scenario.horizon;
    let mut sessions = Vec::new();
    let mut add = |from: Time, to: Time| {
        let (from_s, to_s) = (from.as_secs_f64() - begins_s, to.as_secs_f64() - begins_s);
        if to_s > from_s.max(0.0) {
            sessions.push(Session { from_s, to_s });
        }
    };
    let mut now = start;
    if scenario.has_owners() {
        let mut owner = Owner::new(scenario, host);
        // An owner counts as there for a while after they have left.
        let mut idle = Duration::ZERO;
        while now < horizon {
            let to = owner.away(now).map_or(horizon, |away| now + away);
            add(now + idle, to);
            now = to + owner.session(to).unwrap_or_default();
            idle = scenario.owner_idle;
        }
        return sessions;
    }
    let mut churn = Churn::new(scenario, host);
    while now < horizon {
        let to = churn.session().map_or(horizon, |session| now + session);
        add(now, to);
        churn.leaves();
        now = to + churn.downtime();
    }
    sessions
}
