//! From a first contact to a place on the line, and back to being alone.
//!
//! A joining peer asks its contacts, looks its own key up, and probes the peers that would stand next to it; it is a
//! member once each of them has answered or failed. It completes its leaf set a second later, so that the links of its
//! nodes need not wait for that.

use std::time::Duration;

use crate::graveyard::LONELY_WAIT_MIN;
use crate::identity::Member;
use crate::local::Local;
use crate::membership::Membership;
use crate::state::State;

/// A new member completes its leaf set after so long: the links of its nodes come first. Our choice.
const SETTLE_IN: Duration = Duration::from_secs(1);
/// A joining peer becomes a member after so long even if candidates go on turning up.
const JOIN_MAX: Duration = Duration::from_secs(5);

/// Takes a contact to join through.
pub(crate) fn bootstrap(local: &mut Local, membership: &mut Membership, contact: &Member) {
    if contact.peer == local.me.peer || !contact.is_valid() || local.life.state == State::Leaving {
        return;
    }
    let next = local.now + LONELY_WAIT_MIN;
    membership.lost.graveyard.add_bootstrap(contact.clone(), next, LONELY_WAIT_MIN);
    if local.life.state == State::Alone {
        begin(local, membership);
    }
    membership.line.probe(local, contact, local.config.probe_tries);
}

fn begin(local: &mut Local, membership: &mut Membership) {
    local.life.state = State::Joining;
    local.life.join_until = local.now + JOIN_MAX;
    membership.lookups.forget_place();
    membership.line.ends = [false; 2];
}

/// Moves on to the state that the line allows: joining ends when the own key was looked up and no nearer peer is still
/// being probed.
pub(crate) fn advance(local: &mut Local, membership: &mut Membership) {
    let is_alone = membership.line.is_lonely();
    match local.life.state {
        State::Alone if !is_alone => {
            begin(local, membership);
            membership.look_up_own_key(local, Vec::new());
        }
        State::Member if is_alone => be_alone(local, membership),
        State::Joining if is_alone => {
            if !membership.lookups.is_looking_up() && membership.line.probes.is_empty() {
                be_alone(local, membership);
            }
        }
        State::Joining => {
            let is_settled = membership.lookups.is_settled() && !membership.line.awaits_neighbour(local);
            if is_settled || local.now >= local.life.join_until {
                be_member(local, membership);
            }
        }
        State::Alone | State::Member | State::Leaving | State::Left => {}
    }
}

fn be_member(local: &mut Local, membership: &mut Membership) {
    local.life.state = State::Member;
    local.life.settle_until = local.now + local.pace(SETTLE_IN);
    local.outbox.notices.joined = true;
    membership.line.changed = true;
    membership.line.complete_at(local.life.settle_until);
}

/// The last neighbour is gone: asks the bootstrap contacts, and lost peers, again soon.
fn be_alone(local: &mut Local, membership: &mut Membership) {
    local.life.state = State::Alone;
    membership.line.changed = true;
    membership.line.ends = [true; 2];
    membership.lost.visit_soon(local.now);
    membership.look_up_in_doubt(local);
}
