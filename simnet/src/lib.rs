//! simnet
