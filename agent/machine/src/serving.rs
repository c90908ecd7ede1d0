//! Pieces of blobs for others, without IO: whose turn it is, how many leave at a time, how long they are, and who is told that this machine is busy.
//!
//! Whoever asks waits ten seconds for an answer. Where many ask a machine on a slow line at once, all of whose pieces would leave at the
//! same time, none would arrive within them, and all that was sent would be for nothing. So a piece is begun only when few are still leaving: fewer
//! and shorter ones where they take long. Whoever cannot have a turn soon is told at once to ask again.
//!
//! A piece may also take long because its receiver is slow, or does not read on purpose. No peer has more than half of the places, those that were slow lately share
//! half of them, get shorter pieces, and one that took nothing of a piece is told to ask again later.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

/// At most so many pieces leave at a time once they leave quickly. Our choice: as many slow receivers do not leave a fast line empty.
const LEAVING_MAX: usize = 16;
/// At most so many at the start, and on a slow line. Our choice: one alone would leave the line empty while its receiver asks for the next.
const LEAVING_MIN: usize = 2;
/// Longest piece of a blob, in bytes. Our choice: small enough not to delay messages on a connection of 10 Mbit/s by more than a fifth of a second.
pub const PIECE_BYTES_MAX: usize = 256 * 1024;
/// Shortest, unless the blob ends with it: two of them leave a line of 32 kbit/s in eight seconds. Our choice.
pub const PIECE_BYTES_MIN: usize = 16 * 1024;
/// Longest before any has left. Our choice: two of them leave a line of 256 kbit/s in four seconds, or in eight where messages take half of it.
const PIECE_BYTES_FIRST: usize = 64 * 1024;
/// Where a piece takes longer than the first, fewer leave at a time, and shorter ones; where it takes less, one more does; where it takes less than the second,
/// pieces become longer.
const SLOW: Duration = Duration::from_secs(3);
const QUICK: Duration = Duration::from_secs(1);

/// For how long after a slow piece a peer counts as slow, and for how long after one of which it took nothing it is told to ask again. Our choice.
const SLOW_FOR: Duration = Duration::from_secs(60);
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Requests that wait: of one peer, and of how many peers.
const WAITING_PER_PEER_MAX: usize = 32;
const WAITING_PEERS_MAX: usize = 64;

/// Slow peers that are remembered, and those that were told to ask again. Our choice: as many as are usually connected.
const SLOW_PEERS_MAX: usize = 1024;
const REFUSED_PEERS_MAX: usize = 1024;

/// A request that has waited so long is answered as busy, and the peer asks again: the other side allows a request ten
/// seconds, and a later piece would be for nothing.
const TURN_MAX: Duration = Duration::from_secs(4);

/// Whoever asks next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn<T> {
    /// The piece is begun; [`Serving::ended`] is told when it has left.
    Serve(T),
    /// It has waited for too long: it is told that this machine is busy.
    TooLate(T),
}

/// Requests for pieces of blobs; peers take turns.
#[derive(Debug)]
pub struct Serving<T> {
    /// Peers with waiting requests, the next one first.
    waiting: VecDeque<(PeerId, VecDeque<(Time, T)>)>,
    /// Since when peers ask that were told to ask again and have got nothing since: they come first, the longest first.
    refused: BTreeMap<PeerId, Time>,
    /// How many pieces are leaving for whom.
    leaving: BTreeMap<PeerId, usize>,
    /// How many may leave at a time.
    leaving_max: usize,
    /// Longest piece that may leave now.
    piece_bytes: usize,
    /// When one of both changed last: pieces that began before show nothing of how they are now.
    changed: Time,
    /// Peers for which a piece took long.
    slow: BTreeMap<PeerId, Slow>,
}

/// A peer for which a piece took long.
#[derive(Clone, Copy, Debug)]
struct Slow {
    /// Longest piece that it is given.
    piece_bytes: usize,
    /// When the last piece that took long ended, and whether the peer took nothing of it.
    at: Time,
    took_nothing: bool,
}

impl<T> Default for Serving<T> {
    fn default() -> Self {
        let (waiting, refused) = (VecDeque::new(), BTreeMap::new());
        let (leaving, slow) = (BTreeMap::new(), BTreeMap::new());
        let (leaving_max, piece_bytes, changed) = (LEAVING_MIN, PIECE_BYTES_FIRST, Time::ZERO);
        Self { waiting, refused, leaving, leaving_max, piece_bytes, changed, slow }
    }
}

impl<T> Serving<T> {
    /// A peer asks for a piece.
    ///
    /// # Errors
    /// The request, if too many of that peer, or of too many peers, wait: this machine is busy.
    pub fn ask(&mut self, now: Time, from: PeerId, request: T) -> Result<(), T> {
        let is_refused = |slow: &Slow| slow.took_nothing && now.since(slow.at) < REFUSED_FOR;
        if self.slow.get(&from).is_some_and(is_refused) {
            return Err(request);
        }
        match self.waiting.iter().position(|(other, _)| *other == from) {
            Some(place) if self.waiting[place].1.len() < WAITING_PER_PEER_MAX => {
                self.waiting[place].1.push_back((now, request));
            }
            None if self.waiting.len() < WAITING_PEERS_MAX => {
                let since = |peer: &PeerId| self.refused.get(peer).copied().unwrap_or(Time::MAX);
                let mine = since(&from);
                let place = self.waiting.iter().position(|(peer, _)| since(peer) > mine);
                self.waiting.insert(place.unwrap_or(self.waiting.len()), (from, [(now, request)].into()));
            }
            Some(_) => return Err(request),
            None => {
                self.refuse(now, from);
                return Err(request);
            }
        }
        Ok(())
    }

    /// A peer that asked then is told to ask again.
    fn refuse(&mut self, came: Time, peer: PeerId) {
        if self.refused.len() >= REFUSED_PEERS_MAX && !self.refused.contains_key(&peer) {
            self.refused.clear();
        }
        self.refused.entry(peer).or_insert(came);
    }

    /// A request that has waited for too long, or else the first of the peer whose turn it is; `None`: nobody asks, or enough is leaving. To be called again
    /// when a piece has left, and each second.
    pub fn next(&mut self, now: Time) -> Option<Turn<T>> {
        let is_late =
            |requests: &VecDeque<(Time, T)>| requests.front().is_some_and(|(came, _)| now.since(*came) >= TURN_MAX);
        if let Some(place) = self.waiting.iter().position(|(_, requests)| is_late(requests)) {
            let (peer, came, request) = self.take(place)?;
            self.refuse(came, peer);
            return Some(Turn::TooLate(request));
        }
        if self.leaving.values().sum::<usize>() >= self.leaving_max {
            return None;
        }
        let half = self.leaving_max / 2;
        let is_slow = |peer: &PeerId| self.slow.get(peer).is_some_and(|slow| now.since(slow.at) < SLOW_FOR);
        let of_slow: usize = self.leaving.iter().filter(|(peer, _)| is_slow(peer)).map(|(_, of)| of).sum();
        let may_begin = |peer: &PeerId| {
            self.leaving.get(peer).is_none_or(|&of_peer| of_peer < half) && (of_slow < half || !is_slow(peer))
        };
        let place = self.waiting.iter().position(|(peer, _)| may_begin(peer))?;
        let (peer, _, request) = self.take(place)?;
        self.refused.remove(&peer);
        *self.leaving.entry(peer).or_default() += 1;
        Some(Turn::Serve(request))
    }

    /// The first request of the peer at this place of the line, and when it came; the peer goes to the end of the line.
    fn take(&mut self, place: usize) -> Option<(PeerId, Time, T)> {
        let (peer, mut requests) = self.waiting.remove(place)?;
        let (came, request) = requests.pop_front()?;
        if !requests.is_empty() {
            self.waiting.push_back((peer, requests));
        }
        Some((peer, came, request))
    }

    /// Longest piece that this peer may be given now, in bytes.
    pub fn piece_bytes(&self, to: PeerId) -> usize {
        self.slow.get(&to).map_or(self.piece_bytes, |slow| slow.piece_bytes.min(self.piece_bytes))
    }

    /// A piece that was begun for this peer has ended after so long, of which so many bytes were taken; `None`: there was none.
    pub fn ended(&mut self, now: Time, to: PeerId, piece: Option<(usize, Duration)>) {
        if let Some(leaving) = self.leaving.get_mut(&to) {
            *leaving -= 1;
            if *leaving == 0 {
                self.leaving.remove(&to);
            }
        }
        let Some((bytes, took)) = piece else { return };
        let longest = self.piece_bytes(to);
        if took > SLOW {
            if self.slow.len() >= SLOW_PEERS_MAX && !self.slow.contains_key(&to) {
                self.slow.clear();
            }
            self.changed = now;
            let piece_bytes = (longest / 2).max(PIECE_BYTES_MIN);
            let before = self.slow.insert(to, Slow { piece_bytes, at: now, took_nothing: bytes == 0 });
            if before.is_some() {
                // Of a peer that is known to be slow, another one shows little of this machine's line.
                self.leaving_max = (self.leaving_max - 1).max(LEAVING_MIN);
            } else {
                self.leaving_max = (self.leaving_max / 2).max(LEAVING_MIN);
                self.piece_bytes = (self.piece_bytes / 2).max(PIECE_BYTES_MIN);
            }
        } else if bytes >= longest.min(PIECE_BYTES_FIRST) / 2 {
            // The end of a blob, or a short one, leaves quickly everywhere.
            let lengthens = took < QUICK && self.lengthens_for_all(now, to);
            if now.since(self.changed) >= took {
                self.changed = now;
                self.leaving_max = (self.leaving_max + 1).min(LEAVING_MAX);
                self.piece_bytes = (self.piece_bytes << u32::from(lengthens)).min(PIECE_BYTES_MAX);
            }
        }
    }

    /// Longer pieces for this peer, if it was slow; returns whether others may get longer ones.
    fn lengthens_for_all(&mut self, now: Time, to: PeerId) -> bool {
        let Some(slow) = self.slow.get_mut(&to) else { return true };
        let is_shorter = slow.piece_bytes < self.piece_bytes;
        if is_shorter {
            slow.piece_bytes *= 2;
        } else if now.since(slow.at) >= SLOW_FOR {
            self.slow.remove(&to);
            return true;
        }
        false
    }

    /// Drops the requests that wait, and returns them.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.waiting.drain(..).flat_map(|(_, requests)| requests).map(|(_, request)| request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> PeerId {
        PeerId([number; 32])
    }

    fn at(seconds: i64) -> Time {
        Time::from_micros(1_000_000 * seconds)
    }

    /// How many may begin now.
    fn begin(serving: &mut Serving<u32>, now: Time) -> usize {
        std::iter::from_fn(|| serving.next(now)).filter(|turn| matches!(turn, Turn::Serve(_))).count()
    }

    /// A piece of the longest kind has left for this peer.
    fn leave(serving: &mut Serving<u32>, now: Time, to: u8, millis: u64) {
        serving.ended(now, peer(to), Some((serving.piece_bytes(peer(to)), Duration::from_millis(millis))));
    }

    /// These peers ask.
    fn ask(serving: &mut Serving<u32>, now: Time, peers: std::ops::RangeInclusive<u8>) {
        peers.for_each(|number| serving.ask(now, peer(number), u32::from(number)).expect("there is room"));
    }

    #[test]
    fn a_peer_with_many_requests_delays_no_other() {
        let mut serving = Serving::default();
        let taken = (0..1000).take_while(|&number| serving.ask(at(0), peer(1), number).is_ok()).count();
        assert_eq!(taken, WAITING_PER_PEER_MAX);
        assert_eq!(serving.next(at(0)), Some(Turn::Serve(0)));
        assert_eq!(serving.next(at(0)), None, "half of the places are not for one peer");
        assert_eq!(serving.ask(at(0), peer(2), 2000), Ok(()));
        assert_eq!(serving.next(at(0)), Some(Turn::Serve(2000)));
        for number in 3..2 + WAITING_PEERS_MAX as u8 {
            assert_eq!(serving.ask(at(0), peer(number), 0), Ok(()));
        }
        assert_eq!(serving.ask(at(0), peer(200), 7), Err(7), "of too many peers");
        assert_eq!(serving.ask(at(0), peer(1), 8), Ok(()), "it has room again");
        assert!(serving.drain().count() > WAITING_PEERS_MAX);
    }

    #[test]
    fn shorter_ones_leave_a_slow_line_and_more_and_longer_ones_a_quick_one() {
        let mut serving = Serving::default();
        ask(&mut serving, at(0), 0..=1);
        assert_eq!(begin(&mut serving, at(0)), LEAVING_MIN);
        (0..2).for_each(|to| leave(&mut serving, at(8), to, 8_000));
        assert_eq!(serving.piece_bytes(peer(9)), PIECE_BYTES_MIN, "also for those that have had none");
        ask(&mut serving, at(8), 2..=20);
        assert_eq!(begin(&mut serving, at(8)), LEAVING_MIN);
        serving.ended(at(8), peer(2), Some((100, Duration::from_millis(1))));
        assert_eq!(
            (begin(&mut serving, at(8)), serving.piece_bytes(peer(9))),
            (1, PIECE_BYTES_MIN),
            "a short one shows nothing"
        );
        leave(&mut serving, at(10), 3, 2_000);
        assert_eq!(
            (begin(&mut serving, at(10)), serving.piece_bytes(peer(9))),
            (2, PIECE_BYTES_MIN),
            "one more, and none longer"
        );
        serving.ended(at(10), peer(4), None);
        assert_eq!(begin(&mut serving, at(10)), 1, "there was none, which shows nothing");
        leave(&mut serving, at(11), 5, 20);
        assert_eq!((begin(&mut serving, at(11)), serving.piece_bytes(peer(9))), (2, 2 * PIECE_BYTES_MIN));
        leave(&mut serving, at(11), 6, 20);
        assert_eq!(serving.leaving_max, 4, "it began before there were as many");
        (7..20).for_each(|to| leave(&mut serving, at(11) + Duration::from_millis(50 * u64::from(to)), to, 20));
        assert_eq!((serving.leaving_max, serving.piece_bytes(peer(30))), (LEAVING_MAX, PIECE_BYTES_MAX));
        leave(&mut serving, at(20), 20, 8_000);
        assert_eq!((serving.leaving_max, serving.piece_bytes(peer(30))), (LEAVING_MAX / 2, PIECE_BYTES_MAX / 2));
    }

    #[test]
    fn peers_that_take_pieces_slowly_or_not_at_all_leave_room_for_the_others() {
        let mut serving = Serving::default();
        let stalls = Some((0, Duration::from_secs(10)));
        ask(&mut serving, at(0), 1..=2);
        assert_eq!(begin(&mut serving, at(0)), 2);
        (1..=2).for_each(|number| serving.ended(at(10), peer(number), stalls));
        assert_eq!(serving.ask(at(11), peer(1), 7), Err(7), "it has just taken nothing");
        ask(&mut serving, at(20), 1..=9);
        let turns: Vec<_> = std::iter::from_fn(|| serving.next(at(20))).collect();
        assert_eq!(turns, [1, 3].map(Turn::Serve), "half of the places are not for those that are slow");
        for number in 3..=9 {
            let now = at(20) + Duration::from_millis(50 * u64::from(number));
            leave(&mut serving, now, number, 20);
            begin(&mut serving, now);
        }
        let line = (serving.leaving_max, serving.piece_bytes);
        assert_eq!(line, (2 + 7, PIECE_BYTES_MAX));
        assert_eq!(serving.piece_bytes(peer(2)), PIECE_BYTES_MIN, "the line is quick, and that peer is not");
        serving.ended(at(30), peer(1), stalls);
        assert_eq!((serving.leaving_max, serving.piece_bytes), (line.0 - 1, line.1), "it was known to be slow");
        (0..9).for_each(|_| leave(&mut serving, at(31), 2, 20));
        assert_eq!(serving.piece_bytes(peer(2)), PIECE_BYTES_MAX);
        assert!(serving.slow.contains_key(&peer(2)), "it was slow a moment ago");
        leave(&mut serving, at(80), 2, 20);
        assert!(!serving.slow.contains_key(&peer(2)));
    }

    #[test]
    fn whoever_has_waited_for_too_long_is_told_to_ask_again_although_nothing_leaves() {
        let mut serving = Serving::default();
        ask(&mut serving, at(0), 1..=3);
        ask(&mut serving, at(1), 4..=4);
        assert_eq!(begin(&mut serving, at(0)), 2);
        assert_eq!(serving.next(at(3)), None);
        assert_eq!(serving.next(at(4)), Some(Turn::TooLate(3)));
        assert_eq!(serving.next(at(4)), None);
        assert_eq!(serving.next(at(5)), Some(Turn::TooLate(4)));
    }

    #[test]
    fn whoever_was_told_to_ask_again_comes_before_those_that_ask_for_the_first_time() {
        let mut serving = Serving::default();
        ask(&mut serving, at(0), 1..=4);
        assert_eq!(begin(&mut serving, at(0)), 2);
        let late: Vec<_> = std::iter::from_fn(|| serving.next(at(4))).collect();
        assert_eq!(late, [3, 4].map(Turn::TooLate));
        ask(&mut serving, at(4), 5..=6);
        ask(&mut serving, at(5), 4..=4);
        ask(&mut serving, at(6), 3..=3);
        (1..=2).for_each(|number| serving.ended(at(6), peer(number), None));
        let turns: Vec<_> = std::iter::from_fn(|| serving.next(at(6))).collect();
        assert_eq!(turns, [4, 3].map(Turn::Serve), "both since the same moment");
        assert!(serving.refused.is_empty());
    }
}
