//! Runs one simulation, and measures it.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;
use rand::RngExt;

use super::case::{Case, applications, capacities};
use super::optimum::{Application, Capacity, best, gap};
use super::settle::{self, Settled, There};
use crate::event_queue::HostIndex;
use crate::experiment::Values;
use crate::random::SmallStream;
use crate::report::MessageCount;
use crate::simulation::{Execution, Simulation};

/// How often it is looked who is up, and what finite bags have.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The best rates are those of what machines could do in the mean of so many looks.
const LOOKS: u32 = 12;
/// Between two changes of bags or machines.
const BETWEEN: Duration = Duration::from_secs(60);
/// For how long finite bags are waited for.
const WAIT_MAX: Duration = Duration::from_secs(2 * 3600);
/// Machines that vanish come back after the end.
const FOR_GOOD: Duration = Duration::from_secs(24 * 3600);
/// Kinds of messages of the wave of shares.
const WAVE: [&str; 4] = ["announce", "granted", "absorbs", "shares"];

/// Bytes of messages and their answers so far: of all, and of each kind.
fn bytes(simulation: &Simulation) -> (f64, BTreeMap<&'static str, f64>) {
    let report = simulation.report();
    // An answer goes with each message that is not carried by one.
    let of = |count: MessageCount| (count.bytes + count.count * report.scenario.answer_bytes) as f64;
    (report.bytes as f64, report.messages_by_kind.iter().map(|(&kind, &count)| (kind, of(count))).collect())
}

/// Work of each bag without an end whose results are at its submitter, in Mop.
fn delivered(simulation: &Simulation) -> Vec<f64> {
    let bags = simulation.record().bags().iter();
    bags.filter_map(|bag| Some(bag.endless.as_ref()?.delivered.len() as f64 * bag.bag.task_mops)).collect()
}

/// The part of a machine that is not busy with finite bags now.
fn part_left(simulation: &Simulation, host: HostIndex) -> f64 {
    let Some(peer) = simulation.peer(host) else { return 0.0 };
    let is_finite = |bag| {
        let record = simulation.record();
        record.bags()[record.number(bag)].endless.is_none()
    };
    let busy = peer.running().into_iter().filter(|running| !running.frozen && is_finite(running.task.bag)).count();
    let slots = f64::from(crate::workload::slots(simulation.scenario(), host));
    (1.0 - busy as f64 / slots).max(0.0)
}

/// Runs for so long; returns the work that would be the best of each bag, in Mop.
fn best_work(
    simulation: &mut Simulation,
    (applications, machines): (&[Application], &[Capacity]),
    (has_finite, span): (bool, Duration),
    progress: &mut dyn FnMut(Time),
) -> Vec<f64> {
    let begin = simulation.now();
    let mut work = vec![0.0; applications.len()];
    let mut known: Option<(Vec<f64>, Vec<f64>)> = None;
    while simulation.now() < begin + span {
        let mut parts = vec![0.0; machines.len()];
        let from = simulation.now();
        for _ in 0..LOOKS {
            for &host in simulation.up() {
                let part = if has_finite { part_left(simulation, host) } else { 1.0 };
                parts[host as usize] += part / f64::from(LOOKS);
            }
            simulation.run_until((simulation.now() + LOOK_EVERY).min(begin + span));
        }
        progress(simulation.now());
        let took_s = simulation.now().since(from).as_secs_f64();
        if known.as_ref().is_none_or(|(of, _)| *of != parts) {
            let capacities = machines.iter().zip(&parts).map(|(machine, part)| Capacity {
                speed_mops: machine.speed_mops * part,
                // A link is idle no more often than its machine is down.
                link_bytes_s: machine.link_bytes_s * if has_finite { part.ceil() } else { *part },
            });
            // Infinitely many bytes are none while a machine is down.
            let capacities = capacities.filter(|capacity| capacity.speed_mops > 0.0);
            known = Some((parts.clone(), best(applications, capacities)));
        }
        let rates = known.iter().flat_map(|(_, rates)| rates);
        work.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate * took_s);
    }
    work
}

/// Bags without an end that were submitted, are open, and had arrived by now.
fn there(simulation: &Simulation, all: &[Application]) -> There {
    let bags = simulation.record().bags().iter().filter(|bag| bag.endless.is_some());
    let open = bags.zip(all).filter(|(bag, _)| bag.bag.arrival <= simulation.now() && bag.closed.is_none());
    open.map(|(bag, application)| (bag.bag.id, *application)).collect()
}

/// A bag comes, goes, and half of the machines vanish: what each took.
fn changes(simulation: &mut Simulation, all: &[Application], machines: &[Capacity]) -> [Settled; 3] {
    let last = simulation.record().bags().len() - 1;
    let arrival = simulation.record().bags()[last].bag.arrival;
    simulation.run_until(arrival);
    let came = settle::watch(simulation, &there(simulation, all), machines, arrival);
    simulation.run_until(arrival + BETWEEN);
    let mut left = there(simulation, all);
    left.remove(&simulation.record().bags()[last].bag.id);
    simulation.cancel(last);
    let now = simulation.now();
    let went = settle::watch(simulation, &left, machines, now);
    simulation.run_until(now + BETWEEN);
    let nodes = simulation.scenario().nodes;
    let submitters: Vec<Option<HostIndex>> =
        simulation.record().bags().iter().map(|bag| bag.submitted.map(|(host, _)| host)).collect();
    let may_vanish = |host: &HostIndex| !submitters.contains(&Some(*host));
    let mut others: Vec<HostIndex> = simulation.up().iter().copied().filter(may_vanish).collect();
    others.sort_unstable();
    let mut rng = SmallStream::new(simulation.scenario().seed, "vanishes", 0);
    for _ in 0..simulation.up().len().min(nodes as usize) / 2 {
        if !others.is_empty() {
            let host = others.swap_remove(rng.random_range(0..others.len()));
            simulation.crash_for(host, Some(FOR_GOOD));
        }
    }
    let now = simulation.now();
    let halved = settle::watch(simulation, &left, machines, now);
    [came, went, halved]
}

/// The largest and the mean stretch of the finite bags, once they are done, and how many are not.
fn finite_stretches(simulation: &mut Simulation, values: &mut Values) {
    let is_open = |simulation: &Simulation| {
        let bags = simulation.record().bags().iter();
        bags.filter(|bag| bag.endless.is_none() && bag.completed.is_none()).count()
    };
    let until = simulation.now() + WAIT_MAX;
    while is_open(simulation) > 0 && simulation.now() < until {
        simulation.run_until(simulation.now() + LOOK_EVERY);
    }
    let end = simulation.now();
    let stretches: Vec<f64> = simulation.record().bags().iter().filter_map(|bag| bag.stretch(end)).collect();
    let mean = stretches.iter().sum::<f64>() / stretches.len().max(1) as f64;
    values.push(("finite_bags".to_owned(), stretches.len() as f64));
    values.push(("finite_open".to_owned(), is_open(simulation) as f64));
    values.push(("finite_stretch_max".to_owned(), stretches.iter().copied().fold(0.0, f64::max)));
    values.push(("finite_stretch_mean".to_owned(), mean));
}

/// Runs a case with a seed; returns its trace hash and its values. `progress` is told which share of it is done.
///
/// # Panics
/// When the scenario is invalid, which a plan checks before.
pub(super) fn run(case: &Case, seed: u64, progress: &mut dyn FnMut(f64)) -> (String, Values) {
    let scenario = case.scenario(seed);
    let (all, machines) = (applications(&scenario), capacities(&scenario));
    let execution = Execution::usual(scenario.nodes);
    let mut simulation = Simulation::with(scenario, execution).expect("a plan is validated");
    let begin = simulation.scenario().first_arrival();
    let end = begin + case.changes_from();
    let span_s = end.as_secs_f64();
    let mut tell = |now: Time| progress(now.as_secs_f64() / span_s);
    // The window ends a moment before the last bag comes.
    simulation.run_until(begin + case.warm_up());
    let mut values = Values::new();
    let (bytes_before, before) = (bytes(&simulation), delivered(&simulation));
    let within = (case.finite, case.window);
    let best = best_work(&mut simulation, (&all[..case.bags], &machines), within, &mut tell);
    let (bytes_after, after) = (bytes(&simulation), delivered(&simulation));
    let machine_s = f64::from(case.nodes) * case.window.as_secs_f64();
    values.push(("bytes_per_machine_s".to_owned(), (bytes_after.0 - bytes_before.0) / machine_s));
    let of = |(kind, after): (&&'static str, &f64)| (*kind, after - bytes_before.1.get(kind).copied().unwrap_or(0.0));
    let by_kind: Vec<(&str, f64)> = bytes_after.1.iter().map(of).filter(|(_, bytes)| *bytes > 0.0).collect();
    let of_wave = by_kind.iter().filter(|(kind, _)| WAVE.contains(kind)).map(|(_, bytes)| bytes);
    let wave = of_wave.fold(0.0, |all, bytes| all + bytes);
    values.push(("wave_bytes_per_machine_s".to_owned(), wave / machine_s));
    values.extend(by_kind.into_iter().map(|(kind, bytes)| (format!("bytes_{kind}_per_machine_s"), bytes / machine_s)));
    if case.bags > 0 {
        let done: Vec<f64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        for (number, (done, best)) in done.iter().zip(&best).enumerate() {
            values.push((format!("throughput_ratio_{number}"), done / best));
            values.push((format!("work_mops_s_{number}"), done / case.window.as_secs_f64()));
        }
        values.push(("utility_gap".to_owned(), gap(&all[..case.bags], &best, &done)));
    }
    if case.has_changes() {
        let names = ["comes", "goes", "half"];
        for (name, settled) in names.into_iter().zip(changes(&mut simulation, &all, &machines)) {
            values.push((format!("settle_{name}_s"), settled.rates_s));
            values.push((format!("tree_{name}_s"), settled.tree_s));
        }
    }
    if case.finite {
        finite_stretches(&mut simulation, &mut values);
    }
    let report = simulation.report();
    let repeated: u64 =
        simulation.record().bags().iter().filter_map(|bag| bag.endless.as_ref()).map(|endless| endless.repeated).sum();
    values.push(("repeated_tasks".to_owned(), repeated as f64));
    values.push(("wasted_work_share".to_owned(), report.wasted_work_share));
    values.push(("lost_tasks".to_owned(), report.lost_tasks as f64));
    values.push(("crashes".to_owned(), report.crashes as f64));
    values.push(("sim_s".to_owned(), report.sim_s));
    values.push(("events".to_owned(), report.events as f64));
    // What is nothing or without bound is no value, and could not be read back.
    values.retain(|(_, value)| value.is_finite());
    (report.trace_hash, values)
}
