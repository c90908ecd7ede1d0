//! The peers nearest to a place on the line that this peer knows: whom its own look-ups ask first, and whom its answers
//! to the look-ups of others name.

use crate::finger::Fingers;
use crate::identity::{Member, PeerId, PositionKey};
use crate::line::Line;
use crate::local::Local;

/// Peers on either side of the place that an answer names: our choice; three cost a sixth more bytes, and joins took as
/// many messages.
const FOUND_SIDE_LEN: usize = 2;

/// The peers that an answer to `asker` names: the nearest that we know, ourselves included, and on either side at least
/// one next to the place that answered us lately. Fingers may be dead, and dead ones that are nearer would hide the
/// living from the asker every time.
pub(crate) fn named_near(
    local: &Local,
    line: &Line,
    fingers: &Fingers,
    key: &PositionKey,
    asker: PeerId,
) -> Vec<Member> {
    let mut near = nearest_known(local, line, fingers, key, FOUND_SIDE_LEN, Some(asker));
    let place = key.head();
    let is_above = |contact: &Member| contact.key(local.grid).head() >= place;
    for above in [false, true] {
        let sure = line.near().chain([&local.me]);
        let sure = sure.filter(|contact| contact.peer != asker && is_above(contact) == above);
        let Some(nearest) = sure.min_by_key(|contact| contact.key(local.grid).head().abs_diff(place)) else {
            continue;
        };
        let side: Vec<usize> = (0..near.len()).filter(|at| is_above(&near[*at]) == above).collect();
        let is_named = side.iter().any(|at| near[*at].peer == nearest.peer);
        // `side` is nearest first.
        if let Some(farthest) = side.last().filter(|_| !is_named) {
            near[*farthest] = nearest.clone();
        }
    }
    near
}

/// The peers nearest to a place on either side that we know, ourselves included.
pub(crate) fn nearest_known(
    local: &Local,
    line: &Line,
    fingers: &Fingers,
    key: &PositionKey,
    side_len: usize,
    without: Option<PeerId>,
) -> Vec<Member> {
    let leaf_set = line.leaf_set.iter().map(|neighbour| (neighbour.key.head(), neighbour.contact()));
    let me = (local.key.head(), &local.me);
    let place = key.head();
    // Nearest first.
    let mut sides: [Vec<(u64, &Member)>; 2] = [Vec::new(), Vec::new()];
    for (head, contact) in leaf_set.chain(fingers.iter()).chain([me]) {
        let side = &mut sides[usize::from(head >= place)];
        // Most are farther than the peers found already.
        let is_farther = |last: &(u64, &Member)| last.0.abs_diff(place) < head.abs_diff(place);
        if (side.len() == side_len && side.last().is_some_and(is_farther)) || Some(contact.peer) == without {
            continue;
        }
        let at = side.partition_point(|(other, _)| other.abs_diff(place) < head.abs_diff(place));
        if let Some((_, same)) = side.get_mut(at).filter(|(_, same)| same.peer == contact.peer) {
            *same = if same.incarnation < contact.incarnation { contact } else { *same };
        } else if at < side_len {
            side.insert(at, (head, contact));
            side.truncate(side_len);
        }
    }
    sides.iter().flatten().map(|(_, contact)| (*contact).clone()).collect()
}
