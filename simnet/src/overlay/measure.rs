//! Measures of an overlay message for the statistics: its kind, its encoded length, and a digest of its content.

use idlewood_overlay::Body;

use crate::size::{Size, size_of};

/// The measures of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    /// Bytes of its CBOR encoding.
    pub bytes: u64,
    /// Digest of its content.
    pub digest: u64,
    /// What kind of message it is.
    pub kind: &'static str,
    /// The kind as a number, in the order of the protocol.
    pub variant: u32,
}

/// Measures an overlay message as it travels between agents, inside the scheduler's envelope.
pub fn measure(message: &idlewood_overlay::Message) -> Measure {
    let Size { bytes, digest } = size_of(message);
    // The envelope is an enum's variant: a map of one entry, from its name.
    let envelope = 1 + 1 + "o".len() as u64;
    let (variant, kind) = kind(&message.body);
    Measure { bytes: bytes + envelope, digest, kind, variant }
}

fn kind(body: &Body) -> (u32, &'static str) {
    match body {
        Body::Ping { .. } => (0, "Ping"),
        Body::Ack { .. } => (1, "Ack"),
        Body::Find { .. } => (2, "Find"),
        Body::Found { .. } => (3, "Found"),
        Body::Report(_) => (4, "Report"),
        Body::ReportAck(_) => (5, "ReportAck"),
        Body::RootChanged { .. } => (6, "RootChanged"),
        Body::Dead(_) => (7, "Dead"),
        Body::Suspect(_) => (8, "Suspect"),
        Body::Hint(_) => (9, "Hint"),
        Body::Leave(_) => (10, "Leave"),
        Body::Handover(_) => (11, "Handover"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use idlewood_overlay::{
        Body, Contact, GridId, Handover, HandoverChild, Leave, Member, Message, Node, Payload, PeerId, PositionKey,
        Report, ReportAck, RootInfo, Span, Subtree, Verdict,
    };

    use super::*;

    /// Around every length that a number's head can have.
    const NUMBERS: [u64; 10] = [0, 23, 24, 255, 256, 65_535, 65_536, u32::MAX as u64, u32::MAX as u64 + 1, u64::MAX];

    fn contact(number: u64) -> Member {
        let address = "a".repeat(number.min(256) as usize).into();
        Contact { peer: PeerId([number as u8; 32]), incarnation: number, address, nonce: None }.into()
    }

    fn bodies(number: u64) -> Vec<Body> {
        let (digest, node) = (number as u32, Node::Router);
        let nonce = digest;
        let list = || vec![contact(number); number.min(30) as usize];
        let root = || {
            Arc::new(RootInfo { contact: contact(1), stamp: number, count: number, height: 3, payload: vec![7; 24] })
        };
        let span = Span { lo: None, l: contact(1), r: contact(2), ro: Some(contact(number)) };
        let tree = Subtree { span, count: number, height: digest };
        let load = Payload::new(number, Some(number), vec![1; number.min(300) as usize]);
        let child =
            HandoverChild { contact: contact(number), node, version: number, tree: tree.clone(), load: load.clone() };
        let (tree, load) = (Some(Box::new(tree)), Some(load));
        let ack = |verdict, root| Body::ReportAck(ReportAck { node, version: number, verdict, root, edition: digest });
        vec![
            Body::Ping { nonce, mine: digest, seen: !digest },
            Body::Ack { nonce, mine: digest, set: Some(list()), ask: 0 },
            Body::Ack { nonce, mine: digest, set: None, ask: digest },
            Body::Find { nonce, key: PositionKey([9; 32]) },
            Body::Found { nonce, near: list() },
            Body::Report(Report { node: Node::Leaf, version: number, tree, load, root: digest }),
            Body::Report(Report { node, version: number, tree: None, load: None, root: 0 }),
            ack(Verdict::Linked { load: number, depth: Some(nonce) }, Some(root())),
            ack(Verdict::Unknown, None),
            ack(Verdict::Refused { pred: None, succ: Some(contact(number)) }, None),
            Body::RootChanged { node, root: Some(root()), depth: None, edition: digest },
            Body::Dead(contact(number)),
            Body::Leave(Leave { near: list(), ends: [false, true] }),
            Body::Handover(Handover { children: vec![child] }),
        ]
    }

    #[test]
    fn lengths_are_those_of_the_encoding() {
        for number in NUMBERS {
            for body in bodies(number) {
                let address = (number > 0).then(|| contact(number).address.clone());
                let message = Message { grid: GridId([3; 32]).tag(), incarnation: number, address, body };
                let found = measure(&message);
                let kind = format!("{:?}", message.body);
                assert!(kind.starts_with(found.kind), "{kind} is not {}", found.kind);
                let bytes = idlewood_scheduler::Message::Overlay(message).encode();
                assert_eq!(found.bytes, bytes.len() as u64, "{kind}");
            }
        }
    }

    #[test]
    fn digests_follow_the_content() {
        let bodies = NUMBERS.into_iter().flat_map(bodies);
        let messages = bodies.map(|body| Message { grid: GridId([3; 32]).tag(), incarnation: 1, address: None, body });
        let (mut encoded, mut digests) = (Vec::new(), Vec::new());
        for message in messages {
            digests.push(measure(&message).digest);
            encoded.push(idlewood_scheduler::Message::Overlay(message).encode());
        }
        for (one, other) in (0..digests.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
            assert_eq!(digests[one] == digests[other], encoded[one] == encoded[other], "{one} and {other}");
        }
    }
}
