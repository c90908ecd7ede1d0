//! What everything else of the agent names: sizes, spans of time and sets of numbers as people write them, the clocks, what
//! steers a terminal, and bounds on which several crates have to agree.

pub mod clock;
mod text;
mod values;

pub use text::steers;
pub use values::{ByteSize, Numbers, Span, TASKS_MAX, ValueError, Variable};

/// Most files that are taken of one task.
pub const FILES_MAX: usize = 4096;
