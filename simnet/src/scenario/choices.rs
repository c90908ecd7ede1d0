//! The settings of a scenario that are one of a few words.

use serde::{Deserialize, Serialize};

/// How long machines are up and down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sessions {
    /// Exponential with means `churn` and `downtime`.
    #[default]
    Exponential,
    /// As personal devices.
    Desktops,
    /// As cluster nodes.
    Servers,
    /// As in `sessions_file`.
    Trace,
}

/// When owners are at their machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owners {
    /// Exponential with means `owner_session` and `owner_away`.
    #[default]
    Exponential,
    /// While the processors of the machines in `owner_file` were busy.
    Load,
}

/// What machines and links are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Equipment {
    /// As in the paper, by the scenario's numbers.
    #[default]
    Paper,
    /// As in homes.
    Desktops,
    /// As in a file that a survey gave.
    Survey,
}

/// How fast machines are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speeds {
    /// As in the paper, by the scenario's numbers.
    #[default]
    Paper,
    /// As in homes.
    Desktops,
}

/// How far machines are from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Latencies {
    /// `latency_ms` for all.
    #[default]
    Constant,
    /// By quantiles of round trips over the Internet, one for each pair.
    Internet,
    /// The same between homes.
    Homes,
    /// By the measured round trips in `latency_file`.
    Matrix,
}

/// Where bags come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// The paper's generator.
    #[default]
    Paper,
    /// Sizes and run times as in a production grid's log.
    Desktops,
    /// Sizes, tasks and times between bags as in `tasks_file`, `lengths_file` and `intervals_file`.
    Distributions,
    /// The bags of `log_file`.
    Log,
    /// Each the bag of one of `workflow_files`.
    Workflows,
    /// The bags of `given_bags`.
    Given,
}

/// A promise that a machine breaks on purpose, so that a test can show that its judges see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flaw {
    /// Its workers never begin a fourth of the tasks that they are given, and say nothing.
    #[default]
    ForgetsTasks,
    /// Its disk says of a fourth of the records that they are durable, and does not have them.
    DropsRecords,
}

/// What a bad router does with the requests and questions for work that others send through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadRouting {
    /// It drops them.
    #[default]
    Drop,
    /// It passes them on after a minute.
    Delay,
    /// It sends each whole request to the same child.
    OneChild,
}
