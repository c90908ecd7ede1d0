//! Programs, inputs and results: files named by the BLAKE3 hash of their content.
//!
//! A blob lives under `<dir>/ab/cdef…` and never changes. Writers fill a file under `<dir>/tmp`, hash it meanwhile and
//! rename it at the end, so a name never stands for half a file. Blobs of an earlier process are hashed again at their
//! first use: one that was torn by a power cut or changed by the disk is dropped instead of served; one that cannot be
//! read at the moment stays.
//! The quota counts finished blobs, unfinished ones, and small outputs in records of the store. Unpinned blobs are
//! evicted, least recently used first; before any of them, the beginnings of interrupted downloads (`partial`).
//!
//! Pins are counts in memory; an owner that needs a blob across restarts pins it again when it restores its records.
//! Left out: storing blobs in the database (200 blobs of 1 MiB cost sled 594 MB of disk and 262 MB of memory),
//! deduplication of parts of blobs, and compression. All calls touch the disk: async callers go through
//! `spawn_blocking`.

mod blobs;
mod durable;
mod error;
mod incoming;
mod index;
mod partial;
mod readers;
mod space;
mod writer;

#[cfg(test)]
mod tests;

pub use self::blobs::{Blobs, Chunk, Unneeded};
pub use self::error::BlobError;
pub use self::incoming::Incoming;
pub use self::readers::{Claim, Loan, To};
pub use self::writer::BlobWriter;
/// Name of a blob: the BLAKE3 hash of its content.
pub use blake3::Hash;
