//! The `idlewood` binary.
fn main() {}
