//! The link of one machine: an uplink and a downlink with bandwidths of their own, and their queues.
//!
//! Messages go in order (FIFO). A message leaves the uplink after those before it and its own bytes; then it is under
//! way for the latency; its last byte has arrived when the downlink has had the time for all its bytes since the
//! message before. Two links in a row take the time of the slower one, not of both: bytes flow on while others still
//! leave. When a machine crashes, messages waiting for its uplink are lost, and the one that has begun to leave
//! arrives; when a machine leaves in good order, all messages are sent.
//!
//! Files and outputs of tasks are data. They also go one after another, but messages precede them: data on an uplink is delayed by all
//! messages sent meanwhile. A message waits for the data that is in the queue of the link before it, no longer than that queue is
//! (`data_queue_ms`). So a large output cannot silence a machine, nor can it in the agent, whose streams share a connection. Left out: the part of a downlink that messages take while
//! data arrives, and retransmissions below the messages: sizes are those of messages, plus what a scenario says that the transport adds
//! (`overhead_bytes`, `answer_bytes`).

use std::time::Duration;

use idlewood_overlay::Time;

const SECOND_US: i64 = 1_000_000;

/// Use of one direction by one kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// In total, in microseconds.
    pub(crate) busy_us: u64,
    /// In the busiest second, in microseconds.
    pub(crate) peak_us: u32,
    second: u32,
    second_us: u32,
}

impl Use {
    /// Counts it as busy from one moment to another, not before the last time.
    fn note(&mut self, from: Time, to: Time) {
        let (mut from, to) = (from.as_micros(), to.as_micros());
        self.busy_us += (to - from) as u64;
        while from < to {
            let whole = to / SECOND_US - 1;
            if from < (whole - 1) * SECOND_US && from % SECOND_US == 0 {
                // Whole seconds, of which the last is enough.
                from = whole * SECOND_US;
            }
            let second = from / SECOND_US;
            let end = to.min((second + 1) * SECOND_US);
            if second as u32 != self.second {
                (self.second, self.second_us) = (second as u32, 0);
            }
            self.second_us += (end - from) as u32;
            self.peak_us = self.peak_us.max(self.second_us);
            from = end;
        }
    }
}

/// One direction of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direction {
    bytes_s: u64,
    /// When the last message has passed.
    free: Time,
    /// When the last message that has begun to leave has left: only uplinks have a queue.
    leaving: Time,
    /// When the last output has passed, if no message precedes it.
    data_free: Time,
    /// Time taken by all messages so far: data is delayed by the increase.
    taken_us: u64,
    pub(crate) messages: Use,
    /// The tree's part of these: reports, probes, look-ups, and their answers.
    pub(crate) tree: Use,
    pub(crate) data: Use,
}

impl Direction {
    fn new(bytes_s: u64) -> Self {
        let (free, leaving, data_free) = (Time::ZERO, Time::ZERO, Time::ZERO);
        let (messages, tree, data) = (Use::default(), Use::default(), Use::default());
        Self { bytes_s, free, leaving, data_free, taken_us: 0, messages, tree, data }
    }

    /// How long so many bytes take, at least a microsecond.
    pub(crate) fn takes(&self, bytes: u64) -> Duration {
        Duration::from_micros((bytes.saturating_mul(1_000_000) / self.bytes_s).max(1))
    }

    /// Drops data that has not passed; later data can begin to pass at `from`.
    fn cut_data(&mut self, now: Time, from: Time) {
        self.data.busy_us -= (self.data_free.since(from).as_micros() as u64).min(self.data.busy_us);
        self.data_free = self.data_free.min(now);
    }

    /// Drops messages that have not passed by then.
    fn cut_messages(&mut self, by: Time) {
        let all_us = (self.free.since(by).as_micros() as u64).min(self.messages.busy_us);
        // Which of the waiting messages are the tree's is unknown: assume the same part as of all before.
        let tree_us = all_us as u128 * u128::from(self.tree.busy_us) / u128::from(self.messages.busy_us.max(1));
        self.tree.busy_us -= tree_us as u64;
        self.messages.busy_us -= all_us;
        self.free = self.free.min(by);
    }

    fn pass(&mut self, from: Time, to: Time, since: Time, is_tree: bool) {
        self.free = to;
        self.taken_us += to.since(from).as_micros() as u64;
        if from >= since {
            self.messages.note(from, to);
            if is_tree {
                self.tree.note(from, to);
            }
        }
    }
}

/// Both directions. Traffic before `since` does not count as use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) up: Direction,
    pub(crate) down: Direction,
    since: Time,
    /// Longest that a message waits for data before it.
    data_queue: Duration,
}

impl Link {
    /// `bandwidths`: up and down, in bytes a second.
    pub(crate) fn new(bandwidths: (u64, u64), since: Time) -> Self {
        let (up_bytes_s, down_bytes_s) = bandwidths;
        let (up, down) = (Direction::new(up_bytes_s), Direction::new(down_bytes_s));
        Self { up, down, since, data_queue: Duration::ZERO }
    }

    /// The same with queues of this length, in which messages wait for data.
    pub(crate) fn with_queues(self, data_queue: Duration) -> Self {
        Self { data_queue, ..self }
    }

    /// At the end of the simulation: traffic that has not passed does not count.
    pub(crate) fn end(&mut self, now: Time) {
        self.up.cut_data(now, self.up.free.max(now));
        self.up.cut_messages(now);
        self.cut_down(now);
    }

    /// The machine's power is cut: its queues are dropped. The message that has begun to leave still arrives.
    pub(crate) fn crash(&mut self, now: Time) {
        self.up.cut_data(now, self.up.free.max(now));
        self.up.cut_messages(now.max(self.up.leaving));
        self.cut_down(now);
    }

    /// The machine leaves in good order: waiting messages are still sent, outputs are not.
    pub(crate) fn leave(&mut self, now: Time) {
        self.up.cut_data(now, self.up.free.max(now));
        self.cut_down(now);
    }

    fn cut_down(&mut self, now: Time) {
        // On a downlink data does not wait for messages.
        self.down.cut_data(now, now);
        self.down.cut_messages(now);
    }

    /// Sends a message, the tree's own or another; returns when its last byte leaves.
    pub(crate) fn send(&mut self, now: Time, bytes: u64, is_tree: bool) -> Time {
        let from = self.up.free.max(now);
        let takes = self.up.takes(bytes);
        self.up.pass(from, from + takes, self.since, is_tree);
        if from == now {
            self.up.leaving = from + takes;
        }
        let behind = self.up.data_free.since(from).min(self.data_queue);
        if self.up.data_free > now {
            self.up.data_free += takes;
        }
        from + behind + takes
    }

    /// A waiting message begins to leave; returns when its last byte does.
    pub(crate) fn begin(&mut self, now: Time, bytes: u64) -> Time {
        self.up.leaving = now + self.up.takes(bytes);
        self.up.leaving
    }

    /// The last byte of a message, the tree's own or another, reaches the downlink; returns when it has passed.
    pub(crate) fn receive(&mut self, now: Time, bytes: u64, is_tree: bool) -> Time {
        let takes = self.down.takes(bytes);
        let to = (self.down.free + takes).max(now);
        self.down.pass(to - takes, to, self.since, is_tree);
        to + self.down.data_free.since(to).min(self.data_queue)
    }

    /// Sends an output; returns when its last byte leaves if no message is sent meanwhile, and the time that messages
    /// have taken so far, for [`Link::late`].
    pub(crate) fn send_data(&mut self, now: Time, bytes: u64) -> (Time, u64) {
        let takes = self.up.takes(bytes);
        let from = self.up.data_free.max(self.up.free).max(now);
        self.up.data_free = from + takes;
        if from >= self.since {
            self.up.data.note(from, from + takes);
        }
        (self.up.data_free, self.up.taken_us)
    }

    /// How long an output that was to leave now still waits for messages, which had taken `taken_us` at the last call.
    pub(crate) fn late(&self, now: Time, taken_us: u64) -> Option<(Time, u64)> {
        let late = Duration::from_micros(self.up.taken_us - taken_us);
        (late > Duration::ZERO).then(|| (now + late, self.up.taken_us))
    }

    /// The last byte of an output reaches the downlink; returns when it has passed.
    pub(crate) fn receive_data(&mut self, now: Time, bytes: u64) -> Time {
        let takes = self.down.takes(bytes);
        let to = (self.down.data_free + takes).max(now);
        self.down.data_free = to;
        if to - takes >= self.since {
            self.down.data.note(to - takes, to);
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Time {
        Time::from_micros(milliseconds * 1000)
    }

    /// 1 kB/ms up, 2 kB/ms down.
    fn link() -> Link {
        Link::new((1_000_000, 2_000_000), Time::ZERO)
    }

    #[test]
    fn messages_leave_one_after_another() {
        let mut link = link();
        assert_eq!(link.send(at(0), 10_000, true), at(10));
        assert_eq!(link.send(at(4), 5_000, false), at(15));
        assert_eq!(link.send(at(100), 1_000, true), at(101));
        assert_eq!((link.up.messages.busy_us, link.up.tree.busy_us), (16_000, 11_000));
    }

    /// However long: a year at a byte a second.
    #[test]
    fn traffic_that_has_not_passed_at_the_end_does_not_count() {
        let mut link = Link::new((1, 1), Time::ZERO);
        link.send(at(500), 400 * 86_400, true);
        link.send(at(500), 400 * 86_400, false);
        assert_eq!((link.up.messages.peak_us, link.up.messages.busy_us), (1_000_000, 800 * 86_400 * 1_000_000));
        link.end(at(10_500));
        assert_eq!((link.up.messages.busy_us, link.up.tree.busy_us), (10_000_000, 5_000_000));
        assert_eq!(link.send(at(10_500), 1, true), at(11_500));
        link.end(at(20_000));
        link.send_data(at(20_000), 5);
        link.send(at(30_000), 100, true);
        link.send_data(at(30_000), 1);
        link.end(at(30_000));
        assert_eq!(link.up.data.busy_us, 5_000_000, "what passed before stays, and what waits behind messages goes");
    }

    #[test]
    fn a_message_still_leaving_a_crashed_machine_counts_as_use() {
        let mut link = link();
        link.send(at(0), 10_000, true);
        link.send(at(0), 20_000, false);
        link.send(at(0), 70_000, false);
        link.send_data(at(0), 50_000);
        let (mut crashed, mut left) = (link, link);
        crashed.crash(at(4));
        assert_eq!((crashed.up.messages.busy_us, crashed.up.data.busy_us), (10_000, 0), "the first has begun to leave");
        assert_eq!(crashed.send(at(5), 1_000, true), at(11), "after that one");
        left.leave(at(4));
        assert_eq!((left.up.messages.busy_us, left.up.tree.busy_us, left.up.data.busy_us), (100_000, 10_000, 0));
        assert_eq!(left.send(at(5), 1_000, true), at(101), "after all of them");
        // The second begins to leave when the first is gone.
        assert_eq!(link.begin(at(10), 20_000), at(30));
        link.crash(at(12));
        assert_eq!(link.up.messages.busy_us, 30_000);
    }

    #[test]
    fn a_downlink_delays_only_what_comes_faster_than_it_takes() {
        let mut link = link();
        assert_eq!(link.receive(at(50), 10_000, true), at(50));
        // Five milliseconds of its own after the one before, though its last byte is here.
        assert_eq!(link.receive(at(51), 10_000, true), at(55));
        assert_eq!(link.receive(at(90), 10_000, true), at(90));
    }

    #[test]
    fn data_waits_for_data_and_for_messages_but_messages_do_not_wait_for_data() {
        let mut link = link();
        let (first, taken) = link.send_data(at(0), 100_000);
        let (second, _) = link.send_data(at(0), 50_000);
        assert_eq!((first, second), (at(100), at(150)));
        assert_eq!(link.send(at(20), 10_000, true), at(30));
        let (later, taken) = link.late(first, taken).expect("a message came in between");
        assert_eq!(later, at(110));
        assert_eq!(link.late(later, taken), None);
        assert_eq!(link.receive_data(at(10), 100_000), at(50));
        assert_eq!(link.receive_data(at(20), 100_000), at(100));
    }

    #[test]
    fn messages_wait_for_data_as_long_as_the_queue_is() {
        let mut link = link().with_queues(Duration::from_millis(30));
        link.send_data(at(0), 100_000);
        assert_eq!(link.send(at(20), 10_000, true), at(60), "a whole queue before it");
        assert_eq!(link.up.free, at(30), "it takes no more of the link");
        assert_eq!(link.send(at(100), 1_000, true), at(111), "the rest of the data before it");
        assert_eq!(link.send(at(200), 1_000, true), at(201));
        link.receive_data(at(10), 100_000);
        assert_eq!(link.receive(at(20), 2_000, true), at(50));
    }

    #[test]
    fn the_peak_is_that_of_the_busiest_second() {
        let mut link = link();
        link.send(at(900), 300_000, true);
        assert_eq!((link.up.messages.busy_us, link.up.messages.peak_us), (300_000, 200_000));
        link.send(at(1_500), 100_000, true);
        assert_eq!(link.up.messages.peak_us, 300_000);
        link.send(at(5_000), 100_000, true);
        assert_eq!((link.up.messages.busy_us, link.up.messages.peak_us), (500_000, 300_000));
        let mut counted_later = Link::new((1_000_000, 1_000_000), at(1_000));
        counted_later.send(at(900), 10_000, true);
        assert_eq!(counted_later.up.messages, Use::default());
    }
}
