//! A scenario in simnet, with several seeds: in reality too chance decides where on the line machines are.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_simnet::scenario::{GivenBag, GivenMachine, Workload};
use idlewood_simnet::{Report, Scenario as Simulated, Simulation};

use crate::figures::{Counted, Fate, Figures, Took, figures};
use crate::lab::QUEUE_MS;
use crate::real::TAIL_S;
use crate::scenario::{Deed, SPEED_MOPS, Scenario};
use crate::stop;

/// How long a grid of real agents takes to form, about; the last of them have settled for as long as the scenario says.
const FORMING: Duration = Duration::from_secs(5);
/// A link without a rate: what a virtual one carries.
const RATE_BYTES_S: u64 = 500_000_000;
/// The program of all tasks, which machines fetch like any other.
const PROBE: &[u8] = include_bytes!("../../agent/tasks/probe/probe.wasm");
/// Processor time that a worker takes to start that program: measured, 24 workers that begin at once on two cores start it within 0.53 to
/// 0.73 s, and 11 workers within 0.42 to 0.58 s. All agents share this computer's cores while their first tasks begin.
const START: Duration = Duration::from_millis(60);
/// A usual output of a task that sleeps, signed statement included: measured.
const OUTPUT_BYTES: u64 = 70;
/// What becomes of a scenario that does not end.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// Simulates it with this many seeds, and tasks that take as long as real ones did.
///
/// # Errors
/// A sentence: simnet refuses it, a bag does not end, or a signal stopped it.
pub(crate) fn run(scenario: &Scenario, took: Took, seeds: u64) -> Result<Vec<Figures>, String> {
    (1..=seeds).map(|seed| once(scenario, took, seed)).collect()
}

/// The same scenario as simnet reads it.
fn simulated(scenario: &Scenario, took: Took, seed: u64) -> Simulated {
    let rate = scenario.rate_kbit_s.map_or(RATE_BYTES_S, |rate| rate * 1_000 / 8);
    let bag = |bag: &crate::scenario::Bag| GivenBag {
        at: Duration::from_secs_f64(bag.at_s),
        submitter: bag.submitter,
        tasks: bag.tasks,
        task_mops: Scenario::task_mops(bag) * took.times,
        output_bytes: Some(OUTPUT_BYTES + bag.output_bytes),
        rounds: None,
        endless: None,
    };
    let machine = |number: u32| {
        scenario.one(number).map(|_| GivenMachine {
            speed_mops: Some(scenario.speed_mops(number)),
            up_bytes_s: scenario.rate_bytes_s(number),
            down_bytes_s: scenario.rate_bytes_s(number),
            ..GivenMachine::of(number)
        })
    };
    let mut simulated = Simulated {
        nodes: scenario.machines,
        seed,
        slots: scenario.slots,
        speed_mops_min: SPEED_MOPS as u64,
        speed_mops_max: SPEED_MOPS as u64,
        latency_ms: scenario.latency_ms,
        jitter_percent: 0,
        // TCP sends again what was lost: messages are late, and none is lost.
        reorder_percent: scenario.loss_percent,
        reorder_ms: late_ms_max(scenario.latency_ms),
        bandwidth_bytes_s: rate,
        workload: Workload::Given,
        task_cv: took.cv,
        given_bags: scenario.bag.iter().map(bag).collect(),
        given_machines: (0..scenario.machines).filter_map(machine).collect(),
        data_queue: Duration::from_millis(QUEUE_MS),
        program_bytes: PROBE.len() as u64,
        input_bytes: scenario.input_bytes(),
        programs: 1,
        program_start: START.mul_f64(f64::from(scenario.machines * scenario.slots) / cores()),
        owner_idle: Duration::from_secs(1),
        warm_up: FORMING + Duration::from_secs(scenario.settle_s),
        ..Simulated::default()
    };
    simulated.peer.lease = Duration::from_secs(scenario.lease_s);
    simulated
}

/// How late a message comes whose frame was lost, at most, in milliseconds, drawn evenly: TCP resends it after a round trip where other frames follow, else
/// after the kernel's least time of 200 ms and a round trip. Left out: connections that lose their first segment wait for a second, what follows a lost
/// segment waits with it, and files lose nothing.
fn late_ms_max(latency_ms: u64) -> u64 {
    2 * latency_ms + 200
}

/// Cores of this computer.
fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

fn once(scenario: &Scenario, took: Took, seed: u64) -> Result<Figures, String> {
    let mut simulation = Simulation::new(simulated(scenario, took, seed))?;
    let begin = simulation.scenario().first_arrival();
    // Bags arrive after what a moment before is counted.
    advance(&mut simulation, Time::from_micros(begin.as_micros() - 1))?;
    let overhead_bytes = simulation.scenario().overhead_bytes;
    let counted = |simulation: &Simulation| counted(&simulation.report(), overhead_bytes);
    let before = counted(&simulation);
    let deeds = scenario.deeds();
    let last_s = deeds.last().map_or(0.0, |(at_s, _)| *at_s);
    for (at_s, deed) in deeds {
        advance(&mut simulation, begin + Duration::from_secs_f64(at_s))?;
        act(&mut simulation, deed);
    }
    while simulation.record().bags().iter().any(|bag| bag.completed.is_none()) {
        let now = simulation.now();
        if now > begin + PATIENCE {
            return Err(format!("{}: simulated with seed {seed} a bag does not end", scenario.name));
        }
        advance(&mut simulation, now + Duration::from_millis(100))?;
    }
    let fates: Vec<Fate> = (0..scenario.bag.len()).filter_map(|number| fate(&simulation, number, begin)).collect();
    let ended_s = fates.iter().map(|fate| fate.ended_s).fold(last_s, f64::max);
    advance(&mut simulation, begin + Duration::from_secs_f64(ended_s + TAIL_S))?;
    let fates: Vec<Fate> = (0..scenario.bag.len()).filter_map(|number| fate(&simulation, number, begin)).collect();
    Ok(figures(scenario, &fates, &counted(&simulation).since(&before)))
}

fn advance(simulation: &mut Simulation, until: Time) -> Result<(), String> {
    while simulation.step(until) {}
    stop::check()
}

fn act(simulation: &mut Simulation, deed: Deed) {
    match deed {
        // The simulation submits it by itself, and switches on by itself.
        Deed::Submit(_) | Deed::Back(_) => {}
        Deed::Crash { machine, down_s: None } => simulation.crash_for(machine, Some(PATIENCE * 10)),
        Deed::Crash { machine, down_s: Some(down_s) } => {
            simulation.crash_for(machine, Some(Duration::from_secs_f64(down_s)));
        }
        Deed::Owner { machine, here } => simulation.owner(machine, here),
        Deed::CutOff(machines) => {
            let network = simulation.network_mut();
            machines.iter().for_each(|machine| network.put_into(1, *machine));
            network.partition(0, 1);
        }
        Deed::Heal => simulation.network_mut().heal(),
    }
}

fn fate(simulation: &Simulation, number: usize, begin: Time) -> Option<Fate> {
    let bag = &simulation.record().bags()[number];
    let seconds = |at: Time| at.since(begin).as_secs_f64();
    let (submitter, at) = bag.submitted?;
    let view = simulation.peer(submitter).and_then(|peer| peer.bag(bag.bag.id));
    Some(Fate {
        submitted_s: seconds(at),
        ended_s: seconds(bag.completed?),
        reissued: view.as_ref().map_or(0, |view| view.reissued),
        twice: view.as_ref().map_or(0, |view| view.duplicates),
    })
}

/// Agents count the bytes of their messages without those of what carries them.
fn counted(report: &Report, overhead_bytes: u64) -> Counted {
    let messages = report.messages_by_kind.iter().map(|(kind, of)| {
        let carried = report.carried_by_kind.get(kind).map_or(0, |carried| carried.count);
        ((*kind).to_owned(), (of.count, of.bytes - (of.count - carried) * overhead_bytes))
    });
    Counted {
        messages: messages.collect(),
        blob_bytes: report.outputs.bytes + report.files.bytes,
        wire_bytes: report.bytes + report.outputs.bytes + report.files.bytes,
        tasks_run: report.finished_executions + report.failed_executions,
    }
}
