//! agent

pub mod blobs;
pub mod fetch;
pub mod identity;
pub mod net;
pub mod store;
