//! Finding the cause in libp2p's chains of errors.

use std::io;

use libp2p::core::upgrade::NegotiationError;
use libp2p::request_response::OutboundFailure;

/// The text of the innermost cause; the errors around it only name layers.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The first error of type `E` in the chain. I/O errors that wrap another one do not report it as their source.
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

/// Whether a request failed because the other side does not speak its protocol. A request leaves with the proposal of its protocol, so that the refusal
/// may be read in place of an answer.
pub(super) fn lacks_protocol(error: &OutboundFailure) -> bool {
    match error {
        OutboundFailure::UnsupportedProtocols => true,
        OutboundFailure::Io(error) => matches!(find(error), Some(NegotiationError::Failed)),
        _ => false,
    }
}
