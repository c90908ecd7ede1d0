//! Pieces of blobs for others, without IO: whose turn it is, how many leave at a time, how long they are, and who is told that this machine is busy.
//!
//! Whoever asks waits ten seconds for an answer. Where many ask a machine on a slow line at once, all of whose pieces would leave at the
//! same time, none would arrive within them, and all that was sent would be for nothing. So a piece is begun only when few are still leaving: fewer
//! and shorter ones where they take long. Whoever cannot have a turn soon is told at once to ask again.
//!
//! A piece may also take long because its receiver is slow, or does not read on purpose. Such a peer gets shorter pieces, and half of the places are for the
//! others.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

/// Most pieces that leave at a time, and most before any has left or where these take long. Our choice: more than four would not leave sooner, and one of two is for
/// peers that are not slow.
const LEAVING_MAX: usize = 4;
const LEAVING_MIN: usize = 2;
/// Longest piece of a blob, in bytes. Our choice: small enough not to delay messages on a connection of 10 Mbit/s by more than a fifth of a second.
pub const PIECE_BYTES_MAX: usize = 256 * 1024;
/// Shortest, unless the blob ends with it: so much leaves a line of 16 kbit/s in eight seconds. Our choice.
pub const PIECE_BYTES_MIN: usize = 16 * 1024;
/// Longest before any has left. Our choice: two of them leave a line of 256 kbit/s in four seconds, or in eight where messages take half of it.
const PIECE_BYTES_FIRST: usize = 64 * 1024;
/// A piece that took longer shows that too many leave at a time, or too long ones; one that took less, that more may, and longer ones.
const SLOW: Duration = Duration::from_secs(3);
const QUICK: Duration = Duration::from_secs(1);

/// Requests that wait: of one peer, and of how many peers.
const WAITING_PER_PEER_MAX: usize = 32;
const WAITING_PEERS_MAX: usize = 64;

/// Slow peers that are remembered. Our choice: as many as are usually connected.
const SLOW_PEERS_MAX: usize = 1024;

/// A request that has waited so long is answered as busy, and the peer asks again: the other side allows a request ten
/// seconds, and a later piece would be for nothing.
const TURN_MAX: Duration = Duration::from_secs(4);

/// Whoever asks next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn<T> {
    /// The piece is begun; [`Serving::left`] says when it has left.
    Serve(T),
    /// It has waited for too long: it is told that this machine is busy.
    TooLate(T),
}

/// Requests for pieces of blobs; peers take turns.
#[derive(Debug)]
pub struct Serving<T> {
    /// Peers with waiting requests, the next one first.
    waiting: VecDeque<(PeerId, VecDeque<(Time, T)>)>,
    /// How many pieces are leaving for whom.
    leaving: BTreeMap<PeerId, usize>,
    /// How many may leave at a time.
    leaving_max: usize,
    /// Longest piece that may leave now.
    piece_bytes: usize,
    /// Peers whose last piece took long, and the longest piece for each.
    slow: BTreeMap<PeerId, usize>,
}

impl<T> Default for Serving<T> {
    fn default() -> Self {
        let (waiting, leaving, slow) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        Self { waiting, leaving, leaving_max: LEAVING_MIN, piece_bytes: PIECE_BYTES_FIRST, slow }
    }
}

impl<T> Serving<T> {
    /// A peer asks for a piece.
    ///
    /// # Errors
    /// The request, if too many of that peer, or of too many peers, wait: this machine is busy.
    pub fn ask(&mut self, now: Time, from: PeerId, request: T) -> Result<(), T> {
        match self.waiting.iter().position(|(other, _)| *other == from) {
            Some(place) if self.waiting[place].1.len() < WAITING_PER_PEER_MAX => {
                self.waiting[place].1.push_back((now, request));
            }
            None if self.waiting.len() < WAITING_PEERS_MAX => {
                self.waiting.push_back((from, [(now, request)].into()));
            }
            Some(_) | None => return Err(request),
        }
        Ok(())
    }

    /// The first request of the peer whose turn it is; `None`: nobody asks, or enough is leaving.
    pub fn next(&mut self, now: Time) -> Option<Turn<T>> {
        if self.leaving.values().sum::<usize>() >= self.leaving_max {
            return None;
        }
        let of_slow: usize =
            self.leaving.iter().filter(|(peer, _)| self.slow.contains_key(peer)).map(|(_, of)| of).sum();
        let may_begin = |peer: &PeerId| of_slow < self.leaving_max / 2 || !self.slow.contains_key(peer);
        let place = self.waiting.iter().position(|(peer, _)| may_begin(peer))?;
        let (peer, mut requests) = self.waiting.remove(place)?;
        let request = requests.pop_front();
        if !requests.is_empty() {
            self.waiting.push_back((peer, requests));
        }
        let (came, request) = request?;
        if now.since(came) >= TURN_MAX {
            return Some(Turn::TooLate(request));
        }
        *self.leaving.entry(peer).or_default() += 1;
        Some(Turn::Serve(request))
    }

    /// Longest piece that this peer may be given now, in bytes.
    pub fn piece_bytes(&self, to: PeerId) -> usize {
        self.slow.get(&to).map_or(self.piece_bytes, |&bytes| bytes.min(self.piece_bytes))
    }

    /// A piece that was begun for this peer has left, of so many bytes (0: it was not taken), after so long; `None`: there was none.
    pub fn left(&mut self, to: PeerId, piece: Option<(usize, Duration)>) {
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
            // Of a peer that is known to be slow, another one shows nothing of this machine's line.
            if self.slow.insert(to, (longest / 2).max(PIECE_BYTES_MIN)).is_none() {
                self.leaving_max = (self.leaving_max / 2).max(LEAVING_MIN);
                self.piece_bytes = (self.piece_bytes / 2).max(PIECE_BYTES_MIN);
            }
        } else if took < QUICK && bytes >= longest / 2 {
            // The end of a blob, or a short one, leaves quickly everywhere.
            match self.slow.get_mut(&to) {
                Some(bytes) if *bytes < self.piece_bytes => *bytes *= 2,
                _ => {
                    self.slow.remove(&to);
                    self.leaving_max = (self.leaving_max + 1).min(LEAVING_MAX);
                    self.piece_bytes = (self.piece_bytes * 2).min(PIECE_BYTES_MAX);
                }
            }
        }
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
    fn leave(serving: &mut Serving<u32>, to: u8, millis: u64) {
        serving.left(peer(to), Some((serving.piece_bytes(peer(to)), Duration::from_millis(millis))));
    }

    #[test]
    fn a_peer_with_many_requests_delays_no_other() {
        let mut serving = Serving::default();
        let taken = (0..1000).take_while(|&number| serving.ask(at(0), peer(1), number).is_ok()).count();
        assert_eq!(taken, WAITING_PER_PEER_MAX);
        assert_eq!(serving.ask(at(0), peer(2), 2000), Ok(()));
        let turns: Vec<_> = std::iter::from_fn(|| serving.next(at(0))).collect();
        assert_eq!(turns, [0, 2000].map(Turn::Serve));
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
        (0..30).for_each(|number| serving.ask(at(0), peer(number), 0).expect("there is room"));
        assert_eq!(begin(&mut serving, at(0)), LEAVING_MIN);
        (0..2).for_each(|to| leave(&mut serving, to, 8_000));
        assert_eq!(serving.piece_bytes(peer(9)), PIECE_BYTES_MIN, "also for those that have had none");
        assert_eq!(begin(&mut serving, at(1)), LEAVING_MIN);
        serving.left(peer(2), Some((100, Duration::from_millis(1))));
        leave(&mut serving, 3, 2_000);
        let is_same = serving.piece_bytes(peer(9)) == PIECE_BYTES_MIN;
        assert!(is_same, "a short one shows nothing, nor one that takes as long as it should");
        assert_eq!(begin(&mut serving, at(1)), LEAVING_MIN);
        leave(&mut serving, 4, 20);
        assert_eq!((begin(&mut serving, at(2)), serving.piece_bytes(peer(9))), (2, 2 * PIECE_BYTES_MIN));
        serving.left(peer(5), None);
        assert_eq!(begin(&mut serving, at(2)), 1, "there was none, which shows nothing");
        serving.left(peer(6), Some((0, Duration::from_secs(1))));
        assert_eq!(begin(&mut serving, at(2)), 1, "nobody took it, which shows nothing");
        (7..12).for_each(|to| leave(&mut serving, to, 20));
        assert_eq!((serving.leaving_max, serving.piece_bytes(peer(9))), (LEAVING_MAX, PIECE_BYTES_MAX));
        leave(&mut serving, 20, 8_000);
        assert_eq!((serving.leaving_max, serving.piece_bytes(peer(9))), (LEAVING_MIN, PIECE_BYTES_MAX / 2));
    }

    #[test]
    fn peers_that_take_pieces_slowly_or_not_at_all_leave_room_for_the_others() {
        let mut serving = Serving::default();
        let stalls = Some((0, Duration::from_secs(10)));
        (1..=2).for_each(|number| serving.ask(at(0), peer(number), 0).expect("there is room"));
        assert_eq!(begin(&mut serving, at(0)), 2);
        (1..=2).for_each(|number| serving.left(peer(number), stalls));
        (1..=9).for_each(|number| serving.ask(at(10), peer(number), u32::from(number)).expect("there is room"));
        assert_eq!(serving.next(at(10)), Some(Turn::Serve(1)));
        assert_eq!(serving.next(at(10)), Some(Turn::Serve(3)), "half of the places are not for those that are slow");
        assert_eq!(serving.next(at(10)), None);
        for number in 3..=9 {
            leave(&mut serving, number, 20);
            begin(&mut serving, at(10));
        }
        assert_eq!((serving.leaving_max, serving.piece_bytes), (LEAVING_MAX, PIECE_BYTES_MAX));
        assert_eq!(serving.piece_bytes(peer(2)), PIECE_BYTES_FIRST / 4, "the line is quick, and that peer is not");
        serving.left(peer(1), stalls);
        assert_eq!(
            (serving.leaving_max, serving.piece_bytes),
            (LEAVING_MAX, PIECE_BYTES_MAX),
            "it was known to be slow"
        );
        (0..5).for_each(|_| leave(&mut serving, 2, 20));
        assert_eq!(serving.piece_bytes(peer(2)), PIECE_BYTES_MAX);
        assert!(!serving.slow.contains_key(&peer(2)));
    }

    #[test]
    fn whoever_has_waited_for_too_long_is_told_to_ask_again() {
        let mut serving = Serving::default();
        serving.ask(at(0), peer(1), 1).expect("there is room");
        serving.ask(at(1), peer(2), 2).expect("there is room");
        assert_eq!(serving.next(at(4)), Some(Turn::TooLate(1)));
        assert_eq!(serving.next(at(4)), Some(Turn::Serve(2)));
        assert_eq!(serving.next(at(4)), None);
    }
}
