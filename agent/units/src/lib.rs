//! Units and bounds shared by the agent's crates: sizes, spans of time and sets of numbers as people write them,
//! clocks, characters that steer a terminal, and limits on which several crates must agree.

pub mod clock;
mod text;
mod values;

pub use text::steers;
pub use values::{Array, ByteSize, Numbers, Span, TASKS_MAX, ValueError, Variable};

/// Most files taken from one task's output.
pub const FILES_MAX: usize = 4096;
