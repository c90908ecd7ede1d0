//! How many connections a machine has, and for how long: the bounds that the agent's network keeps, and that simulations keep, too.

use std::ops::Add;
use std::time::Duration;

/// Most connections in all; further ones are closed at once. A peer of the tree keeps a few dozen; a submitter hears of its tasks from each machine that
/// has some. At most 86 KiB of memory each (`measure_memory` in `agent/net/src/tests/measurements.rs`). Our choice, as all that follow.
pub const ESTABLISHED_MAX: u32 = 2048;

/// Most connections that others have opened: fewer than in all, so that many strangers leave room for connections that this machine dials, to
/// its neighbours.
pub const INCOMING_MAX: u32 = 1536;

/// Most handshakes under way, in each direction: all machines that a large bag goes to dial its submitter within a second or two, and a handshake takes
/// two round trips.
pub const PENDING_MAX: u32 = 512;

/// Longest time from a dial to an admitted connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection over which nothing goes is kept this long: twice the time between two exchanges of the overlay with the same neighbour (60 s), so that these do
/// not open one each time.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// With more connections than this, those that were not used for longest are closed, unless they were used within [`UNUSED_MIN`]: a submitter whose tasks run
/// on thousands of machines hears of each in turn, and a machine that is turned away may finish a task whose result never arrives. Half of all, which leaves the rest for many
/// that come at once.
pub const KEPT_MAX: usize = 1024;

/// See [`KEPT_MAX`].
pub const UNUSED_MIN: Duration = Duration::from_secs(2);

/// After a failed dial the same address is not dialled again for this long, and a peer is not reported lost twice
/// within it.
pub const QUIET: Duration = Duration::from_millis(500);

/// How often a machine writes down its neighbours, to find the grid again when it starts.
pub const NEIGHBOURS_INTERVAL: Duration = Duration::from_secs(5);

/// Most neighbours that a machine takes over when it starts: a full leaf set, and room beside it in what the overlay remembers.
pub const NEIGHBOURS_MAX: usize = 16;

/// Which of `open` connections are to be closed, where more than `kept` are open, since further ones need room. `unused`: those over which nothing is under
/// way, and when each was used last.
pub fn to_close<T: Copy + Ord + Add<Duration, Output = T>, K: Ord>(
    now: T,
    kept: usize,
    open: usize,
    unused: impl IntoIterator<Item = (T, K)>,
) -> Vec<K> {
    let surplus = open.saturating_sub(kept);
    if surplus == 0 {
        return Vec::new();
    }
    let mut longest: Vec<(T, K)> = unused.into_iter().filter(|(used, _)| *used + UNUSED_MIN <= now).collect();
    longest.sort_unstable();
    longest.truncate(surplus);
    longest.into_iter().map(|(_, key)| key).collect()
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::Time;

    use super::*;

    #[test]
    fn those_unused_for_longest_are_closed_where_there_are_many() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        // Number 5 was used first, then 6, and so on.
        let unused: Vec<(Time, u64)> = (0..300).map(|number| (at(10 + (number + 295) % 300), number)).collect();
        assert_eq!(to_close(at(1000), 290, 290, unused.clone()), Vec::<u64>::new());
        assert_eq!(to_close(at(1000), 290, 293, unused.clone()), [5, 6, 7]);
        assert_eq!(to_close(at(13), 256, 300, unused), [5, 6], "the others were used a moment ago");
    }
}
