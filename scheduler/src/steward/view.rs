//! Who keeps a bag, for those who look at a peer.

use idlewood_overlay::{PeerId, Time};

use super::feed::Feed;
use super::keeping::Stewards;
use super::{HEARD_WITHIN, KeeperView};
use crate::bag::BagId;

impl Stewards {
    /// The keepers of a bag that was submitted here or is kept here, by rank, and since when the one that acts does, as far as this
    /// machine knows.
    pub(crate) fn view(&self, bag: BagId, me: PeerId, now: Time) -> (Vec<KeeperView>, Option<Time>) {
        let (appointment, acts, since, feeds) = match (self.own.get(&bag), self.copies.get(&bag)) {
            (Some(own), _) => {
                let (acts, since) = own.acts(me);
                (own.appointment.as_ref(), Some(acts), since, &own.feeds)
            }
            (None, Some(copy)) => {
                let acts = copy.acting.keeper().map(|keeper| keeper.peer);
                (Some(&copy.acting.appointment), acts, Some(copy.acting_since), &copy.feeds)
            }
            (None, None) => return (Vec::new(), None),
        };
        let keepers = appointment.into_iter().flat_map(|appointment| appointment.keepers.iter().enumerate());
        let views = keepers.map(|(place, keeper)| {
            let (is_me, feed) = (keeper.peer == me, feeds.get(&keeper.peer));
            KeeperView {
                peer: keeper.peer,
                rank: u8::try_from(place).unwrap_or(u8::MAX),
                acting: acts == Some(keeper.peer),
                is_up_to_date: is_me && acts == Some(me) || feed.is_some_and(Feed::is_up_to_date),
                is_heard: is_me || feed.is_some_and(|feed| now.since(feed.heard) < HEARD_WITHIN),
            }
        });
        (views.collect(), since)
    }
}
