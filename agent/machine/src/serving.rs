//! Pieces of blobs for others, without IO: whose turn it is, how many leave at a time, and who is told that this machine is busy.
//!
//! Whoever asks waits ten seconds for an answer. Where many ask a machine on a slow line at once, all of whose pieces would leave at the
//! same time, none would arrive within them, and all that was sent would be for nothing. So a piece is begun only when few are still leaving: fewer
//! where they take long. Whoever cannot have a turn soon is told at once to ask again.

use std::collections::VecDeque;
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

/// Most pieces that leave at a time. Our choice: more would not leave sooner.
const LEAVING_MAX: usize = 4;
/// A piece that took longer shows that too many leave at a time; one that took less, that another may.
const SLOW: Duration = Duration::from_secs(3);
const QUICK: Duration = Duration::from_secs(1);

/// Requests that wait: of one peer, and of how many peers.
const WAITING_PER_PEER_MAX: usize = 32;
const WAITING_PEERS_MAX: usize = 64;

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
    leaving: usize,
    /// How many may leave at a time.
    leaving_max: usize,
}

impl<T> Default for Serving<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), leaving: 0, leaving_max: LEAVING_MAX }
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
        if self.leaving >= self.leaving_max {
            return None;
        }
        let (peer, mut requests) = self.waiting.pop_front()?;
        let request = requests.pop_front();
        if !requests.is_empty() {
            self.waiting.push_back((peer, requests));
        }
        let (came, request) = request?;
        if now.since(came) >= TURN_MAX {
            return Some(Turn::TooLate(request));
        }
        self.leaving += 1;
        Some(Turn::Serve(request))
    }

    /// A piece that was begun has left, which took so long; `None`: there was none, or nobody takes it.
    pub fn left(&mut self, took: Option<Duration>) {
        self.leaving = self.leaving.saturating_sub(1);
        match took {
            Some(took) if took > SLOW => self.leaving_max = (self.leaving_max / 2).max(1),
            Some(took) if took < QUICK => self.leaving_max = (self.leaving_max + 1).min(LEAVING_MAX),
            Some(_) | None => {}
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

    #[test]
    fn a_peer_with_many_requests_delays_no_other() {
        let mut serving = Serving::default();
        let taken = (0..1000).take_while(|&number| serving.ask(at(0), peer(1), number).is_ok()).count();
        assert_eq!(taken, WAITING_PER_PEER_MAX);
        assert_eq!(serving.ask(at(0), peer(2), 2000), Ok(()));
        let turns: Vec<_> = std::iter::from_fn(|| serving.next(at(0))).collect();
        assert_eq!(turns, [0, 2000, 1, 2].map(Turn::Serve));
        for number in 3..2 + WAITING_PEERS_MAX as u8 {
            assert_eq!(serving.ask(at(0), peer(number), 0), Ok(()));
        }
        assert_eq!(serving.ask(at(0), peer(200), 7), Err(7), "of too many peers");
        assert_eq!(serving.ask(at(0), peer(1), 8), Ok(()), "it has room again");
        assert!(serving.drain().count() > WAITING_PEERS_MAX);
    }

    #[test]
    fn fewer_leave_at_a_time_on_a_slow_line_and_more_on_a_quick_one() {
        let mut serving = Serving::default();
        (0..30).for_each(|number| serving.ask(at(0), peer(number), 0).expect("there is room"));
        assert_eq!(begin(&mut serving, at(0)), LEAVING_MAX);
        (0..LEAVING_MAX).for_each(|_| serving.left(Some(Duration::from_secs(8))));
        assert_eq!(begin(&mut serving, at(0)), 1);
        serving.left(Some(Duration::from_secs(2)));
        assert_eq!(begin(&mut serving, at(2)), 1, "as long as it should take");
        serving.left(Some(Duration::from_millis(20)));
        assert_eq!(begin(&mut serving, at(2)), 2);
        serving.left(None);
        assert_eq!(begin(&mut serving, at(2)), 1, "nobody took it, which shows nothing");
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
