//! The report of a simulation. The same for every run of one scenario.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::ops::Add;
use std::time::Duration;

use idlewood_overlay::Time;
use serde::Serialize;

use crate::link::Link;
use crate::record::{BagRecord, Record, TaskRecord};
use crate::scenario::Scenario;

/// Messages of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageCount {
    /// How many were sent.
    pub count: u64,
    /// Their encoded size.
    pub bytes: u64,
}

impl Add for MessageCount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }
}

impl Sum for MessageCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

/// Use of links by one kind of traffic, since the first moment a bag could arrive. Messages that waited when a machine
/// crashed or the simulation ended, and outputs that waited when it left, count in peaks, as if they had passed, and
/// not in means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TrafficUse {
    /// Mean over all uplinks and all time.
    pub up_mean_percent: f64,
    /// Mean over all downlinks and all time.
    pub down_mean_percent: f64,
    /// The busiest second of any uplink.
    pub up_peak_percent: f64,
    /// The busiest second of any downlink.
    pub down_peak_percent: f64,
}

/// Use of the links of some machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LinkUse {
    /// Machines whose router is at this depth at the end, 0 the root; none: all machines.
    pub depth: Option<u32>,
    /// How many.
    pub machines: u32,
    /// By messages of peers.
    pub messages: TrafficUse,
    /// The tree's part of these: reports, probes, look-ups, and their answers.
    pub tree: TrafficUse,
    /// By outputs of tasks.
    pub data: TrafficUse,
}

impl LinkUse {
    /// Adds a machine at the end; until [`LinkUse::over`] the means are sums in microseconds.
    pub(crate) fn add(&mut self, mut link: Link, end: Time) {
        link.end(end);
        self.machines += 1;
        let kinds = [
            (&mut self.messages, link.up.messages, link.down.messages),
            (&mut self.tree, link.up.tree, link.down.tree),
            (&mut self.data, link.up.data, link.down.data),
        ];
        for (of, up, down) in kinds {
            of.up_mean_percent += up.busy_us as f64;
            of.down_mean_percent += down.busy_us as f64;
            // Percent of a second.
            of.up_peak_percent = of.up_peak_percent.max(f64::from(up.peak_us) / 1e4);
            of.down_peak_percent = of.down_peak_percent.max(f64::from(down.peak_us) / 1e4);
        }
    }

    /// The sums, averaged over a time.
    pub(crate) fn over(mut self, span: Duration) -> Self {
        let all_us = span.as_micros() as f64 * f64::from(self.machines);
        for of in [&mut self.messages, &mut self.tree, &mut self.data] {
            for mean in [&mut of.up_mean_percent, &mut of.down_mean_percent] {
                *mean = if all_us > 0.0 { *mean / all_us * 100.0 } else { 0.0 };
            }
        }
        self
    }
}

/// The fate of one bag; times in simulated seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BagReport {
    /// When its user requested it.
    pub arrival_s: f64,
    /// n.
    pub tasks: u64,
    /// a, in Mop.
    pub task_mops: f64,
    /// The machine that it was handed to last.
    pub submitter: Option<u32>,
    /// When.
    pub submitted_s: Option<f64>,
    /// When that accepted it.
    pub accepted_s: Option<f64>,
    /// When its last task had run to its end for the first time, anywhere.
    pub ended_s: Option<f64>,
    /// When its last task was delivered or had failed for good.
    pub completed_s: Option<f64>,
}

impl BagReport {
    fn of(record: &BagRecord) -> Self {
        let seconds = |at: Option<Time>| at.map(Time::as_secs_f64);
        Self {
            arrival_s: record.bag.arrival.as_secs_f64(),
            tasks: record.bag.tasks,
            task_mops: record.bag.task_mops,
            submitter: record.submitted.map(|(host, _)| host),
            submitted_s: seconds(record.submitted.map(|(_, at)| at)),
            accepted_s: seconds(record.accepted),
            ended_s: seconds(record.ended),
            completed_s: seconds(record.completed),
        }
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The scenario.
    pub scenario: Scenario,
    /// What happened to each bag, in the order of their arrival.
    pub bags: Vec<BagReport>,
    /// Bags that their submitter accepted.
    pub bags_accepted: u64,
    /// Bags that their submitter closed.
    pub bags_closed: u64,
    /// Tasks of accepted bags.
    pub accepted_tasks: u64,
    /// Tasks of bags that a user requested and no machine accepted until the end.
    pub unaccepted_tasks: u64,
    /// Tasks whose result is durable at the submitter, with its output; each counts once.
    pub completed_tasks: u64,
    /// Tasks that failed for good.
    pub failed_tasks: u64,
    /// Accepted tasks that are neither completed nor failed, and never will be: of bags that are closed at their
    /// submitter, or that it no longer knows, or all if no event is pending.
    pub lost_tasks: u64,
    /// The other accepted tasks that are neither completed nor failed when the run ends.
    pub open_tasks: u64,
    /// Executions that ran to the end and succeeded, beyond the copies of each task that were asked for (`replicas`,
    /// usually one).
    pub duplicate_tasks: u64,
    /// Executions begun.
    pub started_executions: u64,
    /// Executions that ran to the end and succeeded.
    pub finished_executions: u64,
    /// Executions that failed at their end, at most 255 of a task.
    pub failed_executions: u64,
    /// Work that was done, in Mop: also of tries that failed, were stopped or lost, and of copies.
    pub executed_mops: f64,
    /// The share of it that no delivered result came of, at the end of a run: copies that were asked for count, too. First tasks
    /// that are only measured are left out.
    pub wasted_work_share: f64,
    /// Executions that ended with their worker's death, at most 255 of a task.
    pub crashed_executions: u64,
    /// Largest (C − r)/w of a bag with the paper's w = n·a, in s/Mop, with r the time of its user's request; unfinished
    /// bags count with the time so far.
    pub max_stretch: f64,
    /// Mean of the same.
    pub mean_stretch: f64,
    /// Largest (C − r)/w' with the effective size w' = a·max(n, machines), in s/Mop.
    pub max_effective_stretch: f64,
    /// Invented results that their submitter accepted.
    pub false_tasks: u64,
    /// Tasks frozen for others, each time.
    pub preemptions: u64,
    /// Returns of owners.
    pub reclaims: u64,
    /// From the first submission to the last delivery, in simulated seconds.
    pub makespan_s: f64,
    /// Simulated time, in seconds.
    pub sim_s: f64,
    /// Power cuts.
    pub crashes: u64,
    /// Farewells.
    pub leaves: u64,
    /// Messages sent.
    pub messages: u64,
    /// Messages that the network lost, or that waited in the uplink, or for a connection, of a machine that crashed, each once.
    pub messages_lost: u64,
    /// Messages that reached a machine that was down, or that did not have their connection any more, each copy, and those for which no
    /// connection could be opened.
    pub messages_in_vain: u64,
    /// Bytes of all messages sent, with what they, their answers and their connections take on links beside their own.
    pub bytes: u64,
    /// Bytes sent per machine (up or down) and simulated second.
    pub bytes_per_node_s: f64,
    /// Messages sent, by kind, with what they take on links beside their own bytes.
    pub messages_by_kind: BTreeMap<&'static str, MessageCount>,
    /// Those of them that answers carried, and that take nothing beside their own.
    pub carried_by_kind: BTreeMap<&'static str, MessageCount>,
    /// Answers to messages, without the messages that they carry.
    pub answers: MessageCount,
    /// Outputs of tasks that were sent.
    pub outputs: MessageCount,
    /// Files of bags that were sent: what submitters signed, manifests, programs, inputs.
    pub files: MessageCount,
    /// Requests for pieces of either that were answered as busy.
    pub refusals: u64,
    /// Connections that were opened, and the bytes of their handshakes, of both sides.
    pub connections: MessageCount,
    /// Those that could not be opened, since one side had as many as an agent has at most.
    pub connections_refused: u64,
    /// Most that one machine had at once.
    pub connections_at_most: u32,
    /// How busy links were: those of all machines, then by the depth of their routers.
    pub links: Vec<LinkUse>,
    /// Requests by the depth of the router that first split them; 0 is the root, and [`u32::MAX`] a router that does
    /// not know its depth. Requests that one leaf took whole are not counted.
    pub decided: BTreeMap<u32, u64>,
    /// Events given to peers.
    pub events: u64,
    /// BLAKE3 over the events and effects of each peer, in the order of machines; hexadecimal.
    pub trace_hash: String,
}

impl Report {
    /// The part of the report that the record gives at the end of a simulation; the simulation adds the rest.
    /// `is_over`: no machine will run any more of an accepted bag, whatever happens later.
    pub(crate) fn of(scenario: &Scenario, record: &Record, end: Time, is_over: impl Fn(&BagRecord) -> bool) -> Self {
        let bags = record.bags();
        let count = |of: &dyn Fn(&TaskRecord) -> u64| record.accepted_tasks().map(of).sum::<u64>();
        let accepted_tasks = count(&|_| 1);
        let completed_tasks = count(&|task| u64::from(task.delivered));
        let failed_tasks = count(&|task| u64::from(task.failed));
        let is_open = |task: &&TaskRecord| !task.delivered && !task.failed;
        let over = bags.iter().filter(|bag| bag.accepted.is_some() && is_over(bag));
        let lost_tasks = over.map(|bag| bag.tasks.iter().filter(is_open).count() as u64).sum();
        let stretches: Vec<f64> = bags.iter().filter_map(|bag| bag.stretch(end)).collect();
        // The same with w' = a·max(n, N): the paper's stretch times the ratio of the sizes.
        let width = |tasks: u64| tasks as f64 / tasks.max(u64::from(scenario.nodes)) as f64;
        let effective = bags.iter().filter_map(|bag| Some(bag.stretch(end)? * width(bag.bag.tasks)));
        let unaccepted = bags.iter().filter(|bag| bag.accepted.is_none() && bag.bag.arrival <= end);
        let first = bags.iter().filter_map(|bag| bag.submitted).map(|(_, at)| at).min();
        let last = bags.iter().filter(|bag| bag.submitted.is_some()).map(|bag| bag.completed.unwrap_or(end)).max();
        Self {
            scenario: scenario.clone(),
            bags: bags.iter().map(BagReport::of).collect(),
            bags_accepted: bags.iter().filter(|bag| bag.accepted.is_some()).count() as u64,
            bags_closed: bags.iter().filter(|bag| bag.closed.is_some()).count() as u64,
            accepted_tasks,
            unaccepted_tasks: unaccepted.map(|bag| bag.bag.tasks).sum(),
            completed_tasks,
            failed_tasks,
            lost_tasks,
            open_tasks: accepted_tasks - completed_tasks - failed_tasks - lost_tasks,
            duplicate_tasks: count(&|task| u64::from(task.finished.saturating_sub(scenario.replicas))),
            started_executions: count(&|task| u64::from(task.started)),
            finished_executions: count(&|task| u64::from(task.finished)),
            failed_executions: count(&|task| u64::from(task.failures)),
            crashed_executions: count(&|task| u64::from(task.crashes)),
            max_stretch: stretches.iter().copied().fold(0.0, f64::max),
            mean_stretch: stretches.iter().fold(0.0, |sum, stretch| sum + stretch) / stretches.len().max(1) as f64,
            max_effective_stretch: effective.fold(0.0, f64::max),
            makespan_s: first.zip(last).map_or(0.0, |(first, last)| last.since(first).as_secs_f64()),
            sim_s: end.as_secs_f64(),
            ..Self::default()
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(formatter, "{name:<27} {value}");
        line("bags closed", format!("{} of {}", self.bags_closed, self.bags.len()))?;
        line("tasks completed", format!("{} of {}", self.completed_tasks, self.accepted_tasks))?;
        line("tasks failed", self.failed_tasks.to_string())?;
        line("tasks with a false result", self.false_tasks.to_string())?;
        line("tasks lost", self.lost_tasks.to_string())?;
        line("tasks not done yet", self.open_tasks.to_string())?;
        line("tasks of bags not accepted", self.unaccepted_tasks.to_string())?;
        line("tasks run twice", self.duplicate_tasks.to_string())?;
        line("work thrown away", format!("{:.2} %", 100.0 * self.wasted_work_share))?;
        line("tries failed, crashed", format!("{}, {}", self.failed_executions, self.crashed_executions))?;
        line("maximum stretch", format!("{:.4e} s/Mop", self.max_stretch))?;
        line("mean stretch", format!("{:.4e} s/Mop", self.mean_stretch))?;
        line("maximum effective stretch", format!("{:.4e} s/Mop", self.max_effective_stretch))?;
        line("tasks frozen for others", self.preemptions.to_string())?;
        line("owners who came back", self.reclaims.to_string())?;
        line("makespan", format!("{:.1} s", self.makespan_s))?;
        line("simulated time", format!("{:.1} s", self.sim_s))?;
        line("crashes, farewells", format!("{}, {}", self.crashes, self.leaves))?;
        line(
            "messages",
            format!("{} ({} lost, {} in vain)", self.messages, self.messages_lost, self.messages_in_vain),
        )?;
        line("traffic", format!("{} bytes, {:.1} B/s per machine", self.bytes, self.bytes_per_node_s))?;
        for (kind, MessageCount { count, bytes }) in &self.messages_by_kind {
            line(&format!("  {kind}"), format!("{count} messages, {bytes} bytes"))?;
        }
        line("  answers", format!("{} answers, {} bytes", self.answers.count, self.answers.bytes))?;
        line("outputs", format!("{} sent, {} bytes", self.outputs.count, self.outputs.bytes))?;
        let MessageCount { count, bytes } = self.files;
        line("files", format!("{count} sent, {bytes} bytes; {} times busy", self.refusals))?;
        let MessageCount { count, bytes } = self.connections;
        let (refused, most) = (self.connections_refused, self.connections_at_most);
        line(
            "connections",
            format!("{count} opened, {bytes} bytes; {refused} refused; at most {most} of one machine"),
        )?;
        for of in &self.links {
            let name = of.depth.map_or("use of links".to_owned(), |depth| format!("  router at depth {depth}"));
            let say = |of: &TrafficUse| {
                let (mean, peak) =
                    (of.up_mean_percent.max(of.down_mean_percent), of.up_peak_percent.max(of.down_peak_percent));
                format!("{mean:.3} %, {peak:.2} % in the busiest second")
            };
            line(&name, format!("messages {}; data {}", say(&of.messages), say(&of.data)))?;
        }
        line("events", self.events.to_string())?;
        line("trace hash", self.trace_hash.clone())
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::{BagId, TaskId};

    use super::*;
    use crate::host::Ending;
    use crate::workload::Bag;

    fn bag(number: u8) -> Bag {
        let (id, arrival) = (BagId([number; 32]), Time::ZERO);
        Bag { id, arrival, tasks: 3, task_mops: 4.0, declared_mops: 4.0, seat: None, whole: 0, first: 0, endless: None }
    }

    /// Two bags of three tasks, each with one task done, and one that no machine accepted.
    #[test]
    fn a_task_is_lost_where_its_bag_is_over_and_open_where_it_is_not() {
        let mut record = Record::new([1, 2, 3].map(bag).to_vec());
        for number in [1, 2] {
            let id = BagId([number; 32]);
            record.submitted(usize::from(number) - 1, 0, Time::ZERO);
            record.accepted(id, Time::ZERO);
            record.journalled(TaskId { bag: id, index: 1 }, 0, true, true, Time::ZERO);
        }
        let of = |is_over: fn(&BagRecord) -> bool| {
            let report = Report::of(&Scenario::default(), &record, Time::ZERO, is_over);
            (report.lost_tasks, report.open_tasks)
        };
        assert_eq!(of(|_| false), (0, 4));
        assert_eq!(of(|bag| bag.bag.id == BagId([2; 32])), (2, 2));
        assert_eq!(of(|_| true), (4, 0));
    }

    #[test]
    fn copies_that_were_asked_for_are_no_duplicates() {
        let mut record = Record::new(vec![bag(1)]);
        let id = BagId([1; 32]);
        record.submitted(0, 0, Time::ZERO);
        record.accepted(id, Time::ZERO);
        for (index, runs) in [(0, 1), (1, 3), (2, 5)] {
            (0..runs).for_each(|_| record.run_ended(TaskId { bag: id, index }, Ending::Success, Time::ZERO));
        }
        let of = |replicas| {
            let scenario = Scenario { replicas, ..Scenario::default() };
            Report::of(&scenario, &record, Time::ZERO, |_| false).duplicate_tasks
        };
        assert_eq!([1, 2, 3].map(of), [6, 4, 2]);
    }
}
