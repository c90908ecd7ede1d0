//! What everything else of the agent names: sizes, spans of time and sets of numbers as people write them, the clocks, and
//! bounds on which several crates have to agree.

pub mod clock;
mod values;

pub use values::{ByteSize, Numbers, Span, TASKS_MAX, ValueError, Variable};

/// Most files that are taken of one task.
pub const FILES_MAX: usize = 4096;
