//! Leaving in good order.
//!
//! A leaving peer tells its neighbours, children and parents, hands over its router's children and its end of the line,
//! and stays for a moment to repeat the farewell to peers that missed it. Repair then takes a message instead of some
//! seconds.

use std::time::Duration;

use crate::identity::Member;
use crate::line::Line;
use crate::links::Links;
use crate::local::Local;
use crate::membership::Membership;
use crate::message::{Body, Leave};
use crate::state::State;
use crate::tree::Tree;

/// Tells the neighbourhood, and lingers.
pub(crate) fn leave(local: &mut Local, line: &Line, tree: &Tree) {
    if local.life.state == State::Leaving {
        return;
    }
    let mut informed: Vec<Member> = line.near().cloned().collect();
    for contact in tree.links.children().chain(tree.links.targets()) {
        if contact.peer != local.me.peer && informed.iter().all(|other| other.peer != contact.peer) {
            informed.push(contact.clone());
        }
    }
    if let Some(pred) = line.pred().cloned() {
        tree.hand_over(local, pred);
    }
    local.life.state = State::Leaving;
    local.life.leave_until = local.now + Duration::from_millis(local.config.leave_linger_ms);
    if informed.is_empty() {
        local.life.leave_until = local.now;
    }
    informed.into_iter().for_each(|contact| say_goodbye(local, line, contact));
}

/// Sends the farewell, also in answer to a peer that missed it.
pub(crate) fn say_goodbye(local: &mut Local, line: &Line, to: Member) {
    let near = [line.pred(), line.succ()].into_iter().flatten().cloned().collect();
    local.send(to, Body::Leave(Leave { near, ends: line.ends }));
}

/// Ends a leaving peer's life once it has lingered.
pub(crate) fn linger(local: &mut Local) {
    if local.now >= local.life.leave_until {
        local.life.state = State::Left;
        local.outbox.notices.left = true;
    }
}

/// Takes the farewell of another peer.
pub(crate) fn on_leave(
    local: &mut Local,
    membership: &mut Membership,
    links: &Links,
    sender: &Member,
    Leave { near, ends }: Leave,
) {
    let line = &membership.line;
    // The peer has come back since: its late farewell does not count.
    if line.known_contact(links, sender.peer).is_some_and(|known| known.incarnation > sender.incarnation) {
        local.counters.stale_life += 1;
        return;
    }
    let was_next = [line.pred(), line.succ()].map(|next| next.is_some_and(|next| next.peer == sender.peer));
    membership.forget(local, sender.peer);
    membership.line.end_probe(sender.peer);
    membership.line.inherit_ends(was_next, ends);
    membership.lost.bid_farewell(local, sender);
    near.iter().for_each(|contact| membership.consider(local, contact));
}
