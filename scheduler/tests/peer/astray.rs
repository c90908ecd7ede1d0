//! A router that drops the requests that pass it: they go another way, and whoever loses them is named and left out.

use super::*;

/// The two machines of a grid: first the one whose requests go through the other's router.
fn below_a_router() -> [Host; 2] {
    let [host, other] = pair();
    assert_ne!(host.peer.overlay_view().hosts_router(), other.peer.overlay_view().hosts_router());
    if other.peer.overlay_view().hosts_router() { [host, other] } else { [other, host] }
}

/// Lets them talk for so long; the second one's router drops requests.
fn talk_past_a_dropper(host: &mut Host, dropper: &mut Host, seconds: u32) {
    let number = |one: &Host| one.peer.me().peer.0[0];
    for _ in 0..seconds * 10 {
        for one in [&mut *host, &mut *dropper] {
            one.pass(Duration::from_millis(100));
        }
        let [up, down] = [&mut *host, &mut *dropper].map(|one| std::mem::take(&mut one.sent));
        let is_dropped = |message: &Message| matches!(message, Message::Request { node: Node::Router, .. });
        let from = number(host);
        up.into_iter()
            .filter(|(_, message)| !is_dropped(message))
            .for_each(|(_, message)| dropper.receive(from, message));
        let from = number(dropper);
        down.into_iter().for_each(|(_, message)| host.receive(from, message));
    }
}

#[test]
fn what_a_router_drops_goes_another_way_and_it_is_named_within_a_minute() {
    let [mut host, mut dropper] = below_a_router();
    host.give(Event::Submitted(submission(12, 1e6)));
    talk_past_a_dropper(&mut host, &mut dropper, 14);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.astray, view.swallowed.len()), (0, 0, 0), "nothing is known yet");
    talk_past_a_dropper(&mut host, &mut dropper, 3);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.astray, host.started.len()), (1, 1, 1), "its own leaf is idle, and begins at once");
    assert!(view.swallowed.values().all(|swallowed| !swallowed.is_left_out), "one loss is no verdict: {view:?}");
    talk_past_a_dropper(&mut host, &mut dropper, 43);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.executors, view.unplaced), (12, 2, 0), "on both leaves: {view:?}");
    let swallowed: Vec<_> = view.swallowed.iter().map(|(router, swallowed)| (*router, swallowed.is_left_out)).collect();
    assert_eq!(swallowed, [(dropper.peer.me().peer, true)]);
    assert_eq!(view.astray, 12);
    // The next bag does not wait for what is known.
    let next = BagId([8; 32]);
    host.give(Event::Submitted(Submission { id: next, ..submission(12, 1e6) }));
    talk_past_a_dropper(&mut host, &mut dropper, 2);
    let view = host.peer.bag(next).expect("a bag");
    assert_eq!((view.placed, view.astray), (12, 12), "{view:?}");
}

#[test]
fn nothing_goes_astray_below_a_router_that_passes_all_on() {
    let [mut host, mut other] = pair();
    host.give(Event::Submitted(submission(12, 1e6)));
    talk(&mut host, &mut other, 60);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.astray, view.swallowed.len(), view.reissued), (12, 0, 0, 0));
}

/// It gives the number of a request of which one task was lost, which it can guess, so that it seems that the router got that task
/// alone.
#[test]
fn a_stranger_who_makes_requests_up_has_nobody_left_out() {
    let [mut host, mut router] = below_a_router();
    host.give(Event::Submitted(submission(12, 1e6)));
    let is_request = |message: &Message| matches!(message, Message::Request { .. });
    let mut sent = std::mem::take(&mut host.sent);
    let place = sent.iter().position(|(_, message)| is_request(message)).expect("a request to the router");
    let Message::Request { request, node, climbing } = sent.remove(place).1 else { unreachable!() };
    let part = |ranges: Range<u64>| Message::Request {
        request: Request { ranges: ranges.into(), ..request.clone() },
        node,
        climbing,
    };
    router.receive(host.peer.me().peer.0[0], part(0..11));
    host.receive(9, part(11..12));
    // What it made up is lost on its way.
    assert!(host.sent.iter().any(|(_, message)| is_request(message)));
    host.sent.clear();
    let is_second = host.peer.me().peer.0[0] == 3;
    let [one, other] = if is_second { [&mut router, &mut host] } else { [&mut host, &mut router] };
    talk(one, other, 40);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.reissued), (12, 1), "{view:?}");
    assert!(view.swallowed.is_empty(), "{view:?}");
}
