//! Counts the messages that this machine sends, by their kind: what a simulation counts of the same machine, under the same names.
//!
//! Counted when the machine sends a message, whether or not it arrives, by the bytes of the message alone. What carries it (framing,
//! encryption, TCP) is left out, and so are blobs and gossip.

use std::collections::BTreeMap;

use idlewood_api::MessageCount;
use idlewood_scheduler::{MESSAGE_KINDS, Message};

/// Messages sent since the agent's start.
#[derive(Debug)]
pub(super) struct Sent([MessageCount; MESSAGE_KINDS.len()]);

impl Default for Sent {
    fn default() -> Self {
        Self([MessageCount::default(); MESSAGE_KINDS.len()])
    }
}

impl Sent {
    /// A message of so many bytes leaves.
    pub(super) fn count(&mut self, message: &Message, bytes: usize) {
        let of_kind = &mut self.0[message.kind_index()];
        of_kind.count += 1;
        of_kind.bytes += bytes as u64;
    }

    /// Kinds of which some were sent.
    pub(super) fn by_kind(&self) -> BTreeMap<String, MessageCount> {
        let kinds = MESSAGE_KINDS.into_iter().zip(self.0).filter(|(_, sent)| sent.count > 0);
        kinds.map(|(kind, sent)| (kind.to_owned(), sent)).collect()
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::BagId;

    use super::*;

    #[test]
    fn messages_are_counted_by_their_kind_and_length() {
        let mut sent = Sent::default();
        assert!(sent.by_kind().is_empty());
        let renewal = Message::Renewed { bags: vec![(BagId([1; 32]), 2)], term: std::time::Duration::from_secs(3) };
        for message in [&renewal, &renewal, &Message::Ticket { ticket: 1 }] {
            sent.count(message, 10);
        }
        let counted: Vec<_> = sent.by_kind().into_iter().map(|(kind, of)| (kind, of.count, of.bytes)).collect();
        assert_eq!(counted, [("renewed".to_owned(), 2, 20), ("ticket".to_owned(), 1, 10)]);
    }
}
