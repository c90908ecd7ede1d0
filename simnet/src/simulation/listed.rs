//! Which machines of the grid a machine was told of.

use idlewood_overlay::Time;
use idlewood_scheduler::MachinesPage;

use crate::event_queue::HostIndex;

/// A page of machines that a machine has asked for.
#[derive(Clone, Debug)]
pub struct Listed {
    /// When it was complete.
    pub at: Time,
    /// Who asked.
    pub host: HostIndex,
    /// The ticket of the question.
    pub ticket: u64,
    /// The page.
    pub page: MachinesPage,
}
