//! Machines to which copies can go.

use idlewood_overlay::Contact;

/// A machine to which copies can go.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) contact: Contact,
    /// Whether its position key is in the upper half of the line.
    pub(crate) right: bool,
}
