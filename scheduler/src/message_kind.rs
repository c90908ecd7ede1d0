//! The kinds of messages that drivers count, under the same names in the agent and in simulation.

use idlewood_overlay::Body;

use crate::message::Message;

/// Short names of the kinds of messages.
pub const MESSAGE_KINDS: [&str; 35] = [
    "overlay ping",
    "overlay ack",
    "overlay find",
    "overlay found",
    "overlay report with load",
    "overlay report",
    "overlay report ack",
    "overlay root changed",
    "overlay dead",
    "overlay suspect",
    "overlay hint",
    "overlay leave",
    "overlay handover",
    "request",
    "holding",
    "lease",
    "results",
    "results_ack",
    "renewal",
    "renewed",
    "ask",
    "offer",
    "decline",
    "ticket",
    "share",
    "keep_offer",
    "keep_answer",
    "acts",
    "deltas",
    "deltas_ack",
    "what_is_kept",
    "kept",
    "kept_ack",
    "which_machines",
    "machines",
];

impl Message {
    /// Its kind, those of the tree told apart, as an index into [`MESSAGE_KINDS`].
    pub fn kind_index(&self) -> usize {
        match self {
            Message::Overlay(message) => match &message.body {
                Body::Ping { .. } => 0,
                Body::Ack { .. } => 1,
                Body::Find { .. } => 2,
                Body::Found { .. } => 3,
                Body::Report(report) if report.load.is_some() => 4,
                Body::Report(_) => 5,
                Body::ReportAck(_) => 6,
                Body::RootChanged { .. } => 7,
                Body::Dead(_) => 8,
                Body::Suspect(_) => 9,
                Body::Hint(_) => 10,
                Body::Leave(_) => 11,
                Body::Handover(_) => 12,
            },
            Message::Request { .. } => 13,
            Message::Holding { .. } => 14,
            Message::Lease { .. } => 15,
            Message::Results { .. } => 16,
            Message::ResultsAck { .. } => 17,
            Message::Renewal { .. } => 18,
            Message::Renewed { .. } => 19,
            Message::Ask { .. } => 20,
            Message::Offer { .. } => 21,
            Message::Decline { .. } => 22,
            Message::Ticket { .. } => 23,
            Message::Share { .. } => 24,
            Message::KeepOffer { .. } => 25,
            Message::KeepAnswer { .. } => 26,
            Message::Acts { .. } => 27,
            Message::Deltas { .. } => 28,
            Message::DeltasAck { .. } => 29,
            Message::WhatIsKept { .. } => 30,
            Message::Kept { .. } => 31,
            Message::KeptAck { .. } => 32,
            Message::WhichMachines { .. } => 33,
            Message::Machines { .. } => 34,
        }
    }
}
