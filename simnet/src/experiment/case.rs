//! The cases of each experiment: scenarios without their seed, and their labels.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::{ClimbingRule, PerSubmitter};
use serde_json::{Map, Value, json};

use super::table::Labels;
use super::which::Experiment;
use crate::baseline::Measure;
use crate::log::Log;
use crate::processor_load::ProcessorLoad;
use crate::scenario::{Flaw, Owners, Scenario, Sessions, Workload, papers_scheme};

/// The paper's mean time between two failures of a machine (§7.1).
const FAILURE_INTERVAL: Duration = Duration::from_secs(4 * 3600);
/// How long a grid is watched after its last bag is expected, if the experiment does not wait for the end of the work.
const WATCH: Duration = Duration::from_secs(600);
/// Grids of this size and above are only watched for an hour.
const SOAK_NODES_MIN: u32 = 1_000_000;

/// A scenario, but for its seed.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Its labels, in the order of columns.
    pub(super) labels: Labels,
    pub(super) scenario: Scenario,
    /// The measure of stretches.
    pub(super) measure: Measure,
    /// Whether stretches are reported for one user and for the others, too: of whole bags, where the user splits them.
    pub(super) by_user: bool,
    /// Whether all work is done, by the centralised schedulers, too; else the horizon is the end.
    pub(super) to_the_end: bool,
    /// Whether changes are traced up the tree.
    pub(super) follows_updates: bool,
    /// Run only if a word of this label is selected; `None`: always.
    pub(super) on_demand: Option<&'static str>,
}

impl Case {
    /// The labels as `--only` has them: texts as they are, numbers with their name.
    pub(super) fn words(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.labels.iter().filter(|(name, _)| *name != "nodes").map(|(name, value)| match value {
            Value::String(text) => (*name, text.clone()),
            number => (*name, format!("{name}={number}")),
        })
    }

    /// The labels, as a row of the summary begins.
    pub(super) fn row(&self) -> Map<String, Value> {
        self.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    /// Its name for people.
    pub(super) fn name(&self) -> String {
        let words: Vec<String> = self.words().map(|(_, word)| word).collect();
        format!("{} machines {}", self.scenario.nodes, words.join(" "))
    }
}

/// The cases of an experiment on grids of one size; `bags` replaces the experiment's own number of them,
/// `log` is one for the experiment of loads, `owners` are loads of processors for that of desktops.
pub(super) fn of(
    experiment: Experiment,
    nodes: u32,
    bags: Option<u32>,
    log: Option<&Log>,
    owners: Option<&Loads>,
) -> Vec<Case> {
    let usual = match experiment {
        Experiment::Scale => 20,
        Experiment::Submitters | Experiment::Loads => 60,
        _ => 100,
    };
    let paper = paper(nodes, bags.unwrap_or(usual));
    match experiment {
        Experiment::Fairness => fairness(&paper),
        Experiment::Updates => vec![updates(paper)],
        Experiment::Table1 => [2_500, 5_000, 10_000, 20_000, 40_000].map(|limit| table1(&paper, limit)).to_vec(),
        Experiment::Bound => bound(&paper),
        Experiment::Scale => scales(paper),
        Experiment::Desktops => desktops(&paper).into_iter().chain(owned(&paper, owners)).collect(),
        Experiment::Submitters => submitters(&paper),
        Experiment::Loads => loads(&paper, log),
    }
}

/// The paper's machines, links and load (§7.1), which are the defaults of a scenario, and peers as they ship: a user's bags are one
/// application, as for the rivals that know submitters.
fn paper(nodes: u32, bags: u32) -> Case {
    let scenario = Scenario { nodes, bags, ..Scenario::default() };
    Case {
        labels: vec![("nodes", json!(nodes))],
        scenario,
        measure: Measure::Application,
        by_user: false,
        to_the_end: true,
        follows_updates: false,
        on_demand: None,
    }
}

/// Machines that break a promise on purpose: whoever runs these sees the experiment fail.
const NEGATIVE_CONTROLS: [(&str, Flaw); 2] =
    [("forgets_tasks", Flaw::ForgetsTasks), ("drops_records", Flaw::DropsRecords)];

fn fairness(paper: &Case) -> Vec<Case> {
    let mut cases = Vec::new();
    for bag_interval_s in [10, 300] {
        for failures in ["none", "queue_lost", "durable"] {
            let mut case = paper.clone();
            case.labels.extend([("failures", json!(failures)), ("bag_interval_s", json!(bag_interval_s))]);
            case.scenario.bag_interval = Duration::from_secs(bag_interval_s);
            if failures != "none" {
                case.scenario.churn = Some(FAILURE_INTERVAL);
                // "Nodes recover immediately."
                case.scenario.downtime = Duration::ZERO;
            }
            case.scenario.queue_lost = failures == "queue_lost";
            // Handing work on helps most if queues are lost.
            let ablations = REDISTRIBUTIONS.iter().filter(|_| case.scenario.queue_lost);
            for (variant, change) in [&OURS, &BAGS_ALONE].into_iter().chain(ablations) {
                let mut case = Case { on_demand: (*variant != OURS.0).then_some("variant"), ..case.clone() };
                change(&mut case.scenario.peer);
                case.labels.push(("variant", json!(variant)));
                cases.push(case);
            }
            for (variant, flaw) in NEGATIVE_CONTROLS.into_iter().filter(|_| failures == "durable") {
                let mut case = Case { on_demand: Some("variant"), ..case.clone() };
                // Only a machine that fails misses its records.
                case.scenario.churn = Some(FAILURE_INTERVAL / 16);
                (case.scenario.flawed_percent, case.scenario.flaw) = (100.0, flaw);
                case.labels.push(("variant", json!(variant)));
                cases.push(case);
            }
        }
    }
    cases
}

/// Only while bags arrive: most changes happen then.
fn while_bags_arrive(mut case: Case) -> Case {
    let arrivals = case.scenario.bag_interval * case.scenario.bags;
    case.scenario.horizon = case.scenario.first_arrival().since(Time::ZERO) + arrivals + WATCH;
    Case { to_the_end: false, follows_updates: true, ..case }
}

fn updates(paper: Case) -> Case {
    let mut case = while_bags_arrive(paper);
    case.labels.push(("failures", json!("none")));
    case
}

fn table1(paper: &Case, limit_bytes_s: u64) -> Case {
    let mut case = while_bags_arrive(paper.clone());
    case.labels.push(("update_limit_bytes_s", json!(limit_bytes_s)));
    case.scenario.peer.overlay.report_rate_bytes_per_s = limit_bytes_s;
    case
}

fn bound(paper: &Case) -> Vec<Case> {
    let rules = [
        ("paper", ClimbingRule::Minimum, [1.0, 1.5, 2.0, 3.0, 5.0].as_slice()),
        ("whole_grid", ClimbingRule::WholeGrid, &[1.0, 1.2, 1.5, 2.0, 3.0]),
    ];
    let mut cases = Vec::new();
    for (name, rule, bounds) in rules {
        for &bound in bounds {
            let mut case = paper.clone();
            case.labels.extend([("rule", json!(name)), ("bound", json!(bound))]);
            case.scenario.peer.climbing = rule;
            case.scenario.peer.stretch_bound = bound;
            cases.push(case);
        }
    }
    cases
}

/// Twenty bags of about two tasks for each machine: short enough to finish at any size.
fn scale(mut case: Case) -> Case {
    case.scenario.tasks_per_node = 2;
    // The paper counts no outputs. From 10⁴ machines on a kilobyte of each task would keep the submitter's link of 1 Mb/s
    // busy for longer than a bag may take.
    case.scenario.output_bytes = 0;
    let is_soak = case.scenario.nodes >= SOAK_NODES_MIN;
    if is_soak {
        case.scenario.horizon = case.scenario.start_window() + Duration::from_secs(3600);
        case.to_the_end = false;
    }
    case.labels.extend([("failures", json!("none")), ("load", json!(if is_soak { "soak" } else { "finite" }))]);
    case
}

/// As it is, and with machines that are slower than they say.
fn scales(paper: Case) -> Vec<Case> {
    let mut slowed = Case { on_demand: Some("variant"), ..paper.clone() };
    slowed.scenario.slowed_percent = SLOWED_PERCENT;
    let mut slowed = scale(slowed);
    slowed.labels.push(("variant", json!("slowed")));
    let mut usual = scale(paper);
    usual.labels.push(("variant", json!(OURS.0)));
    vec![usual, slowed]
}

/// Share of machines that are slowed.
const SLOWED_PERCENT: f64 = 5.0;

/// Coefficient of variation of the tasks of a bag on a production grid (`docs/design/defaults.md`).
const GRID_TASK_CV: f64 = 0.45;
/// Share of machines that are always up, which submit all bags: a central scheduler is never away either.
const STEADY_PERCENT: f64 = 5.0;
/// Load as a share of the grid's speed.
const LOADS: [f64; 2] = [0.7, 0.95];

/// A change of the scheduler's settings.
type Variant = (&'static str, fn(&mut idlewood_scheduler::Config));

/// As it ships.
const OURS: Variant = ("ours", |_| {});

/// Each bag as if it were another user's, as for the rivals that do not know submitters.
const BAGS_ALONE: Variant = ("bags_alone", |config| config.per_submitter = PerSubmitter::Off);

/// Nobody keeps a bag beside its submitter.
const NO_STEWARDS: Variant = ("no_stewards", |config| (config.stewards, config.kept_bags_max) = (0, 0));

/// Compared on every load of desktops.
const RIVALS: [Variant; 2] = [OURS, ("paper", papers_scheme)];

/// Without levelling, and without handing any work on.
const REDISTRIBUTIONS: [Variant; 2] = [
    ("no_levelling", |config| config.levelling = false),
    ("no_redistribution", |config| config.redistribution = false),
];

/// Ours with one change, on the first of the loads.
const ABLATIONS: [Variant; 8] = [
    ("paper_size", |config| config.effective_size = false),
    ("no_preemption", |config| config.preemptive = false),
    ("frozen_1", |config| config.frozen_max = 1),
    ("frozen_4", |config| config.frozen_max = 4),
    ("no_idle_slots", |config| config.idle_slots = false),
    ("no_patience", |config| config.summary_patience = Duration::ZERO),
    ("whole_grid_1.2", |config| {
        config.climbing = ClimbingRule::WholeGrid;
        config.stretch_bound = 1.2;
    }),
    ("whole_grid_2", |config| {
        config.climbing = ClimbingRule::WholeGrid;
        config.stretch_bound = 2.0;
    }),
];

fn desktops(paper: &Case) -> Vec<Case> {
    let mut cases = Vec::new();
    for machines in ["stay", "desktop", "desktop_attended"] {
        for sizes in ["log_uniform", "empirical"] {
            for load in LOADS {
                let is_first = cases.is_empty();
                let ablations = ABLATIONS.iter().chain(&REDISTRIBUTIONS).filter(|_| is_first);
                let variants = RIVALS.iter().chain(ablations);
                cases.extend(variants.map(|variant| desktop(paper, machines, sizes, load, variant)));
                for variant in [&BAGS_ALONE, &NO_STEWARDS] {
                    let case = desktop(paper, machines, sizes, load, variant);
                    cases.push(Case { on_demand: Some("variant"), ..case });
                }
            }
        }
    }
    cases
}

/// Loads of processors, and their file.
pub(super) type Loads = (PathBuf, Arc<ProcessorLoad>);

/// Machines that stay, whose owners come and go; heavy-tailed bags at the lower load.
fn owned(paper: &Case, loads: Option<&Loads>) -> Vec<Case> {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let drawn = [("20m_1h", minutes(20), minutes(60)), ("4h_4h", minutes(240), minutes(240))];
    let mut cases = Vec::new();
    let mut add = |owners: &str, change: &dyn Fn(&mut Scenario)| {
        let mut case = desktop(paper, "stay", "log_uniform", LOADS[0], &OURS);
        change(&mut case.scenario);
        case.labels.retain(|(name, _)| *name != "owners");
        case.labels.push(("owners", json!(owners)));
        cases.push(Case { on_demand: Some("owners"), ..case });
    };
    for (owners, session, away) in drawn {
        add(owners, &|scenario| (scenario.owner_session, scenario.owner_away) = (Some(session), away));
    }
    if let Some((file, load)) = loads {
        add("load", &|scenario| {
            (scenario.owners, scenario.owner_file) = (Owners::Load, Some(file.clone()));
            scenario.inputs.owners = Some(Arc::clone(load));
        });
    }
    cases
}

fn desktop(paper: &Case, machines: &str, sizes: &str, load: f64, (variant, change): &Variant) -> Case {
    let mut case = paper.clone();
    let comes_and_goes = machines != "stay";
    case.measure = Measure::Dedicated;
    case.scenario.load = Some(load);
    if comes_and_goes {
        case.scenario.sessions = Sessions::Desktops;
    }
    if machines == "desktop_attended" {
        case.scenario.steady_percent = STEADY_PERCENT;
    }
    if sizes == "empirical" {
        case.scenario.workload = Workload::Desktops;
        case.scenario.task_cv = GRID_TASK_CV;
    } else {
        case.scenario.heavy_tailed = true;
    }
    change(&mut case.scenario.peer);
    case.labels.extend([
        ("failures", json!(if comes_and_goes { "durable" } else { "none" })),
        ("machines", json!(machines)),
        ("sizes", json!(sizes)),
        ("load", json!(load)),
        ("variant", json!(variant)),
        ("owners", json!("away")),
    ]);
    case
}

/// The loads of days: from a grid that has time to spare to one with more work than it can do while bags arrive.
const LOADS_OF_DAYS: [f64; 5] = [0.7, 0.85, 0.95, 1.0, 1.2];
/// Shortest and longest task of these, in Mop: a minute and an hour at the paper's mean speed. Our choice: the lengths of tasks differ
/// as much as those of bags do in number, and sixty bags take a day or two.
const LONG_TASK_MOPS: (f64, f64) = (120_000.0, 7_200_000.0);
/// Between two checkpoints, where machines are up for less than the longest tasks take.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(600);

/// Loads that tell schedulers apart: bags smaller and larger than the grid, or both, whose tasks differ; and those of a log.
fn loads(paper: &Case, log: Option<&Log>) -> Vec<Case> {
    let mut kinds = vec![
        ("stay", "mixed"),
        ("stay", "small"),
        ("stay", "large"),
        ("servers", "mixed"),
        ("desktop_attended", "mixed"),
    ];
    kinds.extend(log.map(|_| ("stay", "log")));
    let mut cases = Vec::new();
    for (machines, sizes) in kinds {
        for load in LOADS_OF_DAYS {
            for (variant, change) in [OURS, BAGS_ALONE] {
                let mut case = load_of_days(paper, machines, sizes, load, log);
                change(&mut case.scenario.peer);
                case.on_demand = (variant != OURS.0).then_some("variant");
                case.labels.push(("variant", json!(variant)));
                cases.push(case);
            }
        }
    }
    cases
}

fn load_of_days(paper: &Case, machines: &str, sizes: &str, load: f64, log: Option<&Log>) -> Case {
    let mut case = Case { measure: Measure::Dedicated, ..paper.clone() };
    let scenario = &mut case.scenario;
    scenario.load = Some(load);
    (scenario.task_mops_min, scenario.task_mops_max) = LONG_TASK_MOPS;
    scenario.task_cv = GRID_TASK_CV;
    match (sizes, log) {
        ("small", _) => {
            scenario.heavy_tailed = true;
            scenario.tasks_per_node = 1;
            // So that it takes days.
            scenario.bags *= 4;
        }
        ("large", _) => {
            scenario.tasks_spread_percent = 80;
            scenario.bags = scenario.bags.div_ceil(4);
        }
        ("log", Some(log)) => {
            let plain = Scenario::default();
            (scenario.task_mops_min, scenario.task_mops_max) = (plain.task_mops_min, plain.task_mops_max);
            scenario.task_cv = plain.task_cv;
            scenario.workload = Workload::Log;
            scenario.log_file = Some(log.path.clone());
            scenario.log_anywhere = true;
            scenario.inputs.bags = Some(Arc::clone(&log.bags));
        }
        _ => scenario.heavy_tailed = true,
    }
    match machines {
        "servers" => scenario.sessions = Sessions::Servers,
        "desktop_attended" => {
            scenario.sessions = Sessions::Desktops;
            scenario.steady_percent = STEADY_PERCENT;
            scenario.checkpoint_interval = Some(CHECKPOINT_INTERVAL);
        }
        _ => {}
    }
    case.labels.extend([("machines", json!(machines)), ("sizes", json!(sizes)), ("load", json!(load))]);
    case
}

/// A user's behaviour: honest, a bag split into many, or less work declared than true.
type User = (&'static str, fn(&mut Scenario));

const HONEST: User = ("honest", |_| {});
const CHEATS: [User; 4] = [
    ("splits_10", |scenario| scenario.user_splits_into = 10),
    ("splits_100", |scenario| scenario.user_splits_into = 100),
    ("declares_10", |scenario| scenario.user_declares_percent = 10.0),
    ("splits_10_declares_10", |scenario| {
        scenario.user_splits_into = 10;
        scenario.user_declares_percent = 10.0;
    }),
];

/// How deadlines are computed if a submitter has several bags.
const PER_SUBMITTER: [(&str, PerSubmitter); 2] = [("off", PerSubmitter::Off), ("line", PerSubmitter::Line)];

/// One user among many who cheats, or an honest one who has half of all bags; heavy-tailed bags, and more of them than
/// can be done at once.
fn submitters(paper: &Case) -> Vec<Case> {
    let mut cases = Vec::new();
    for load in [0.9, 2.0] {
        for user_percent in [10.0, 50.0] {
            let cheats = CHEATS.iter().filter(|_| user_percent < 50.0);
            for (user, change) in [&HONEST].into_iter().chain(cheats) {
                for (variant, per_submitter) in PER_SUBMITTER {
                    let mut case = Case { measure: Measure::Dedicated, by_user: true, ..paper.clone() };
                    case.scenario.load = Some(load);
                    case.scenario.heavy_tailed = true;
                    case.scenario.user_percent = user_percent;
                    change(&mut case.scenario);
                    case.scenario.peer.per_submitter = per_submitter;
                    case.labels.extend([
                        ("load", json!(load)),
                        ("user_percent", json!(user_percent)),
                        ("user", json!(user)),
                        ("variant", json!(variant)),
                    ]);
                    cases.push(case);
                }
            }
        }
    }
    cases
}
