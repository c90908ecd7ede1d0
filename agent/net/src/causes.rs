//! Errors of libp2p, which come in chains: what happened, below the layers that it went through.

use std::io;

/// The end of the chain of causes says what happened; the rest says through which layers it went.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The first error of type `E` in the chain of causes. I/O errors that wrap another one do not name it as their cause.
pub(super) fn find<'a, E: std::error::Error + 'static>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a E> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => find(wrapped),
        None => error.source().and_then(find),
    }
}
