//! A scenario with real agents.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use idlewood_tests::shares::Shares;

use crate::agents::Agents;
use crate::figures::{Counted, Fate, Figures, Took, figures};
use crate::lab::Lab;
use crate::namespace::Namespace;
use crate::scenario::{Deed, Scenario};
use crate::stop;

/// How often bags are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How long after the end of all bags messages still count.
pub(crate) const TAIL_S: f64 = 2.0;
/// How much longer than all work on one machine it may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// A bag that was submitted.
struct Submitted {
    id: String,
    submitter: u32,
    at_s: f64,
    fate: Option<Fate>,
}

/// Runs it once. Returns its figures, and how long tasks took.
///
/// # Errors
/// A sentence: what did not work, or that a signal stopped it.
pub(crate) fn run(scenario: &Scenario, keep: Option<&Path>) -> Result<(Figures, Took), String> {
    let temporary = tempfile::tempdir().map_err(|error| format!("no temporary directory can be made: {error}"))?;
    let root = keep.map_or_else(|| temporary.path().to_owned(), |keep| keep.join(&scenario.name));
    let shares = match Shares::new() {
        Ok(shares) => Some(shares),
        Err(sentence) => {
            eprintln!("{sentence}; what else this computer does disturbs the agents");
            None
        }
    };
    let lab = Lab::new(scenario)?;
    eprintln!("{}: {} agents form a grid", scenario.name, scenario.machines);
    let agents = Agents::start(scenario, &lab, shares.as_ref(), &root)?;
    stop::sleep_until(Instant::now() + Duration::from_secs(scenario.settle_s))?;
    let speed = |number| Ok::<_, String>((agents.status(number)?.peer, scenario.speed_mops(number)));
    let speeds = agents.running().into_iter().map(speed).collect::<Result<_, _>>()?;
    let (bags, gone) = (Vec::new(), Counted::default());
    let mut run = Run { scenario, lab: &lab, agents, begin: Instant::now(), bags, speeds, gone };
    let retransmitted = || lab.machines.iter().map(Namespace::retransmitted_segments).sum::<Option<u64>>();
    let (before, crossed, retransmitted_before) = (run.counted()?, lab.switch.crossed(), retransmitted());
    run.begin = Instant::now();
    eprintln!("{}: the bags", scenario.name);
    run.run_to_end()?;
    let mut counted = run.counted()?.since(&before);
    let after = lab.switch.crossed();
    counted.wire_bytes = after.stream_bytes - crossed.stream_bytes;
    let fates: Vec<Fate> = run.bags.iter().filter_map(|bag| bag.fate).collect();
    tell_overhead(scenario, &counted, after.bytes - crossed.bytes, after.frames - crossed.frames);
    if let Some((now, before)) = retransmitted().zip(retransmitted_before) {
        eprintln!("{}: TCP resent {} segments", scenario.name, now - before);
    }
    let took = run.took()?;
    eprintln!(
        "{}: tasks took {:.3} times their time, give or take {:.1} %",
        scenario.name,
        took.times,
        took.cv * 100.0
    );
    Ok((figures(scenario, &fates, &counted), took))
}

/// What carries messages and blobs, beside their own bytes.
fn tell_overhead(scenario: &Scenario, counted: &Counted, wire_bytes: u64, frames: u64) {
    let (messages, bytes) = counted.messages.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let beside = wire_bytes as f64 - bytes as f64 - counted.blob_bytes as f64;
    eprintln!(
        "{}: {wire_bytes} bytes in {frames} frames for {messages} messages of {bytes} bytes and {} bytes of blobs: {:.0} bytes beside \
         each message, {:.2} frames",
        scenario.name,
        counted.blob_bytes,
        beside / messages.max(1) as f64,
        frames as f64 / messages.max(1) as f64,
    );
}

struct Run<'a> {
    scenario: &'a Scenario,
    lab: &'a Lab,
    agents: Agents<'a>,
    begin: Instant,
    bags: Vec<Submitted>,
    /// Of each machine, by its name, in Mop/s.
    speeds: BTreeMap<String, f64>,
    /// What machines had counted that crashed.
    gone: Counted,
}

impl Run<'_> {
    fn now_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Does all that happens in the scenario, and waits for the end of its bags.
    fn run_to_end(&mut self) -> Result<(), String> {
        let deeds = self.scenario.deeds();
        let last_s = deeds.last().map_or(0.0, |(at_s, _)| *at_s);
        let all_s: f64 = self.scenario.bag.iter().map(|bag| bag.tasks as f64 * bag.task_s).sum();
        let until_s = last_s + all_s + PATIENCE.as_secs_f64();
        let mut deeds = deeds.into_iter().peekable();
        loop {
            while let Some((at_s, deed)) = deeds.next_if(|(at_s, _)| *at_s <= self.now_s()) {
                self.act(deed).map_err(|sentence| format!("{} at {at_s} s: {sentence}", self.scenario.name))?;
            }
            self.look()?;
            if deeds.peek().is_none() && self.bags.iter().all(|bag| bag.fate.is_some()) {
                break;
            }
            if self.now_s() > until_s {
                return Err(format!("{}: after {until_s:.0} s a bag has not ended", self.scenario.name));
            }
            let look = Instant::now() + LOOK;
            let next = deeds.peek().map(|(at_s, _)| self.begin + Duration::from_secs_f64(*at_s));
            stop::sleep_until(next.map_or(look, |next| next.min(look)))?;
        }
        let ended_s = self.bags.iter().filter_map(|bag| bag.fate).map(|fate| fate.ended_s).fold(last_s, f64::max);
        stop::sleep_until(self.begin + Duration::from_secs_f64(ended_s + TAIL_S))
    }

    fn act(&mut self, deed: Deed) -> Result<(), String> {
        match deed {
            Deed::Submit(number) => {
                let bag = &self.scenario.bag[number];
                let shown = self.agents.submit(bag, number)?;
                let at_s = self.now_s() - shown.elapsed_s;
                self.bags.push(Submitted { id: shown.id, submitter: bag.submitter, at_s, fate: None });
            }
            Deed::Crash { machine, .. } => {
                // A machine without power says no farewell: the kernel's own would tell the others at once.
                self.gone.add(&of_status(&self.agents.status(machine)?));
                self.lab.switch.put_into(u32::MAX - machine, machine as usize);
                self.agents.kill(machine)?;
            }
            Deed::Back(machine) => {
                self.lab.switch.put_into(0, machine as usize);
                self.agents.switch_on(machine)?;
            }
            Deed::Owner { machine, here } => self.agents.owner(machine, here)?,
            Deed::CutOff(machines) => {
                machines.iter().for_each(|machine| self.lab.switch.put_into(1, *machine as usize));
            }
            Deed::Heal => {
                let running = self.agents.running();
                running.iter().for_each(|machine| self.lab.switch.put_into(0, *machine as usize));
            }
        }
        Ok(())
    }

    /// Looks at bags that have not ended.
    fn look(&mut self) -> Result<(), String> {
        let running = self.agents.running();
        for bag in self.bags.iter_mut().filter(|bag| bag.fate.is_none() && running.contains(&bag.submitter)) {
            // An agent that has just been switched on does not answer yet.
            let Ok(shown) = self.agents.bag(bag.submitter, &bag.id) else { continue };
            let shown = shown.bag;
            if shown.finished.is_some() {
                if shown.done != shown.tasks {
                    return Err(format!("{}: tasks of bag {} failed", self.scenario.name, bag.id));
                }
                bag.fate = Some(Fate {
                    submitted_s: bag.at_s,
                    ended_s: bag.at_s + shown.elapsed_s,
                    reissued: shown.reissued,
                    twice: shown.duplicates,
                });
            }
        }
        Ok(())
    }

    /// How long tasks took, by what they should have taken where they ran. Tasks that sleep and were frozen are left out: they go on sleeping
    /// meanwhile, and take less than they should.
    fn took(&self) -> Result<Took, String> {
        let mut times = Vec::new();
        for (bag, of) in self.bags.iter().zip(&self.scenario.bag) {
            let took = self.agents.took_s(bag.submitter, &bag.id)?.into_iter();
            let done_mops = took.map(|(machine, took_s)| {
                let speed_mops = self
                    .speeds
                    .get(&machine)
                    .ok_or(format!("a task ended on {machine}, which is no machine of the run"));
                speed_mops.map(|speed_mops| took_s * speed_mops)
            });
            let done_mops: Vec<f64> = done_mops.collect::<Result<_, _>>()?;
            let all = done_mops.into_iter().map(|done_mops| done_mops / Scenario::task_mops(of));
            times.extend(all.filter(|times| of.computes || *times >= 1.0));
        }
        Ok(Took::of(&times))
    }

    /// What all machines have counted so far.
    fn counted(&self) -> Result<Counted, String> {
        let mut all = self.gone.clone();
        for number in self.agents.running() {
            all.add(&of_status(&self.agents.status(number)?));
        }
        Ok(all)
    }
}

fn of_status(status: &idlewood_api::Status) -> Counted {
    let messages = status.messages_sent.iter().map(|(kind, of)| (kind.clone(), (of.count, of.bytes)));
    Counted {
        messages: messages.collect(),
        blob_bytes: status.blob_bytes_sent,
        wire_bytes: 0,
        tasks_run: status.tasks_run,
    }
}
