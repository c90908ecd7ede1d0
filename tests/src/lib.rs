//! Tests that need several packages or real processes. The binary `agent` is the real agent, built from its library, so
//! that the tests have a process to start; `torture` torments such agents for as long as one likes. `guide` finds the
//! commands that the documents show.

pub mod guide;
pub mod torture;
