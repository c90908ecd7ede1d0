//! Tests that need several packages or real processes. The binary `agent` is the real agent, built from its library, so
//! that the tests have a process to start; `torture` torments such agents for any length of time; `predictions` measures
//! how wrong predicted run times are on them. `guide` finds the
//! commands in the documents.

pub mod guide;
pub mod predictions;
pub mod torture;
