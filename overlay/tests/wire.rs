//! Golden bytes: every message as it travels. A change here is a change of the protocol.

use std::fmt::Write;
use std::sync::Arc;

use idlewood_overlay::{
    Body, Contact, GridId, Handover, HandoverChild, Leave, Member, Message, Node, Payload, PeerId, PositionKey, Report,
    ReportAck, RootInfo, Span, Subtree, Verdict,
};

fn contact(byte: u8) -> Member {
    Contact { peer: PeerId([byte; 32]), incarnation: u64::from(byte), address: "/a".into(), nonce: None }.into()
}

fn every_body() -> Vec<Body> {
    let root = RootInfo { contact: contact(9), stamp: 1, count: 2, height: 1, payload: vec![1, 2] };
    let root = Arc::new(root);
    let span = Span { lo: None, l: contact(1), r: contact(2), ro: Some(contact(3)) };
    let report = Report {
        node: Node::Router,
        version: 3,
        tree: Some(Box::new(Subtree { span: span.clone(), count: 2, height: 1 })),
        load: Some(Payload::new(1, None, vec![5])),
        root: 7,
    };
    let ack = |verdict, root| Body::ReportAck(ReportAck { node: Node::Leaf, version: 3, verdict, root, edition: 4 });
    vec![
        Body::Ping { nonce: 1, mine: 2, seen: 3 },
        Body::Ack { nonce: 1, mine: 2, set: Some(vec![contact(1)]), ask: 6 },
        Body::Find { nonce: 1, key: PositionKey([4; 32]) },
        Body::Found { nonce: 1, near: vec![contact(1)] },
        Body::Report(report.clone()),
        Body::Report(Report { tree: None, load: None, ..report.clone() }),
        Body::Report(Report { tree: None, load: Some(Payload::new(2, Some(1), vec![6])), ..report }),
        ack(Verdict::Linked { load: 1, depth: Some(2) }, Some(root.clone())),
        ack(Verdict::Unknown, None),
        ack(Verdict::Refused { pred: None, succ: Some(contact(2)) }, None),
        Body::RootChanged { node: Node::Leaf, root: Some(root), depth: None, edition: 5 },
        Body::Dead(contact(1)),
        Body::Suspect(contact(1)),
        Body::Hint(vec![contact(1)]),
        Body::Leave(Leave { near: vec![contact(1)], ends: [false, true] }),
        Body::Handover(Handover {
            children: vec![HandoverChild {
                contact: contact(1),
                node: Node::Router,
                version: 3,
                tree: Subtree { span, count: 2, height: 1 },
                load: Payload::new(2, None, vec![5]),
            }],
        }),
        // One with a certificate, and one without.
        Body::Hint(vec![Contact { nonce: Some(Box::new([7; 16])), ..(*contact(1)).clone() }.into(), contact(2)]),
    ]
}

#[test]
fn messages_keep_their_bytes() {
    let mut golden = String::new();
    for (place, body) in every_body().into_iter().enumerate() {
        let address = (place > 0).then(|| contact(8).address.clone());
        let message = Message { grid: GridId([7; 32]).tag(), incarnation: 1_790_000_000_000, address, body };
        let mut bytes = Vec::new();
        ciborium::into_writer(&message, &mut bytes).unwrap();
        assert_eq!(ciborium::from_reader::<Message, _>(&bytes[..]).unwrap(), message);
        writeln!(golden, "{} bytes: {}", bytes.len(), hex::encode(&bytes)).unwrap();
    }
    insta::assert_snapshot!(golden);
}
