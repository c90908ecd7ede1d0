//! Tests that need several packages or real processes; the library is empty. The binary `agent` is the real agent,
//! built from its library, so that the tests have a process to start.
