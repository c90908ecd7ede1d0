//! What a run comes to, as one value. It holds nothing that differs between two runs of one scenario.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::scenario::Scenario;

/// Messages of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageCount {
    /// How many were sent.
    pub count: u64,
    /// Their encoded size.
    pub bytes: u64,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was simulated.
    pub scenario: Scenario,
    /// Bags that their submitter accepted.
    pub bags_accepted: u64,
    /// Bags that their submitter closed.
    pub bags_closed: u64,
    /// Tasks of accepted bags.
    pub accepted_tasks: u64,
    /// Tasks whose result is durable at the submitter, with its output; each counts once.
    pub completed_tasks: u64,
    /// Tasks that failed for good.
    pub failed_tasks: u64,
    /// Accepted tasks that are neither completed nor failed when the run ends, for whatever reason.
    pub lost_tasks: u64,
    /// Executions that ran to the end, beyond the first of each task.
    pub duplicate_tasks: u64,
    /// Executions begun.
    pub started_executions: u64,
    /// Executions that ran to the end.
    pub finished_executions: u64,
    /// Largest (C − r)/w of a bag with the paper's w = n·a, in s/Mop; unfinished bags count with the time so far.
    pub max_stretch: f64,
    /// Mean of the same.
    pub mean_stretch: f64,
    /// Largest (C − r)/w' with the effective size w' = a·max(n, machines), in s/Mop.
    pub max_effective_stretch: f64,
    /// Tasks frozen for others, each time.
    pub preemptions: u64,
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
    /// Messages that the network lost.
    pub messages_lost: u64,
    /// Messages that reached a machine that was down.
    pub messages_in_vain: u64,
    /// Encoded size of all messages sent.
    pub bytes: u64,
    /// The same per machine (up or down) and simulated second.
    pub bytes_per_node_s: f64,
    /// Messages sent, by kind.
    pub messages_by_kind: BTreeMap<&'static str, MessageCount>,
    /// Events given to peers.
    pub events: u64,
    /// BLAKE3 over what each peer was given and answered, in the order of machines; hexadecimal.
    pub trace_hash: String,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(formatter, "{name:<27} {value}");
        line("bags closed", format!("{} of {}", self.bags_closed, self.scenario.bags))?;
        line("tasks completed", format!("{} of {}", self.completed_tasks, self.accepted_tasks))?;
        line("tasks failed", self.failed_tasks.to_string())?;
        line("tasks lost", self.lost_tasks.to_string())?;
        line("tasks run twice", self.duplicate_tasks.to_string())?;
        line("maximum stretch", format!("{:.4e} s/Mop", self.max_stretch))?;
        line("mean stretch", format!("{:.4e} s/Mop", self.mean_stretch))?;
        line("maximum effective stretch", format!("{:.4e} s/Mop", self.max_effective_stretch))?;
        line("tasks frozen for others", self.preemptions.to_string())?;
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
        line("events", self.events.to_string())?;
        line("trace hash", self.trace_hash.clone())
    }
}
