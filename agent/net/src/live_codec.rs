//! What is said between a machine that follows what running tasks write and the one that runs them ([`live`](crate::live)).

use std::time::Duration;

use libp2p::request_response;
use serde::{Deserialize, Serialize};

use crate::small_codec::{self, SmallCodec};

/// Most bytes of all tasks' output in one answer. Our choice: half a piece of a blob.
pub const LIVE_BYTES_MAX: usize = 128 << 10;
/// Most ranges of tasks, and most places in their output, in one question. Our choice: more than all but the largest machines have slots;
/// of more tasks than that the first are told.
pub const LIVE_TASKS_MAX: usize = 512;
/// Longest question, and longest answer, in bytes: with as many numbers as it may have.
const ASK_BYTES_MAX: usize = 64 << 10;
const TOLD_BYTES_MAX: usize = LIVE_BYTES_MAX + (96 << 10);
/// How long an answer may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Questions at a time on one connection.
const STREAMS_MAX: usize = 8;

/// How far the asker has read what one run of a task writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivePlace {
    /// The task's index.
    #[serde(rename = "i")]
    pub index: u64,
    /// The run, as the machine has named it.
    #[serde(rename = "r")]
    pub run: u64,
    /// Bytes of standard output that the asker has.
    #[serde(rename = "o")]
    pub stdout: u64,
    /// Bytes of standard error that the asker has.
    #[serde(rename = "e")]
    pub stderr: u64,
}

/// "What have tasks of this bag written that run at your place?"
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAsk {
    /// The bag.
    #[serde(rename = "b", with = "serde_bytes")]
    pub bag: [u8; 32],
    /// Only tasks in these ranges, from and to, the latter included; none: all.
    #[serde(rename = "t")]
    pub tasks: Vec<(u64, u64)>,
    /// What the asker has already.
    #[serde(rename = "s")]
    pub seen: Vec<LivePlace>,
}

/// What one running task has written behind what the asker has; all of it where its run is another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveTask {
    /// Where the bytes below begin.
    #[serde(rename = "p")]
    pub place: LivePlace,
    /// Which attempt runs.
    #[serde(rename = "a")]
    pub attempt: u32,
    /// It does not run at present: the owner is there, or another bag comes first.
    #[serde(rename = "f")]
    pub stands_still: bool,
    /// Standard output.
    #[serde(rename = "o", with = "serde_bytes")]
    pub stdout: Vec<u8>,
    /// Standard error.
    #[serde(rename = "e", with = "serde_bytes")]
    pub stderr: Vec<u8>,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveTold {
    /// The running tasks; null: this machine holds nothing of the bag, or not for the asker.
    #[serde(rename = "t")]
    pub tasks: Option<Vec<LiveTask>>,
}

/// Why what running tasks write is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// The machine does not answer.
    #[error("it does not answer")]
    Unreachable,
    /// It has too much to do.
    #[error("it is busy")]
    Busy,
    /// It does not speak the protocol.
    #[error("its idlewood is older than `bag logs --follow`: what its tasks write is here when they have ended")]
    Older,
    /// The network has shut down.
    #[error("the network is shut down")]
    Closed,
}

impl LiveAsk {
    /// Whether it has no more parts than questions may have.
    pub(super) fn is_bounded(&self) -> bool {
        self.tasks.len() <= LIVE_TASKS_MAX && self.seen.len() <= LIVE_TASKS_MAX
    }
}

/// How both are written.
pub(super) type Codec = SmallCodec<LiveAsk, LiveTold, ASK_BYTES_MAX, TOLD_BYTES_MAX>;

/// The behaviour for the protocol of a grid.
pub(super) fn behaviour(grid: idlewood_overlay::GridId) -> request_response::Behaviour<Codec> {
    small_codec::behaviour(grid, "live/1", TIMEOUT, STREAMS_MAX)
}

#[cfg(test)]
mod tests {
    use libp2p::futures::io::Cursor;

    use super::*;
    use crate::small_codec::{read, write};

    fn place(number: u64) -> LivePlace {
        LivePlace { index: number, run: number, stdout: number, stderr: number }
    }

    #[tokio::test]
    async fn questions_and_answers_keep_their_bytes_and_have_a_bound() {
        let ask = LiveAsk { bag: [7; 32], tasks: vec![(1, 2)], seen: vec![place(3)] };
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &ask).await.unwrap();
        let expected = format!("a361625820{}617481820102617381a4616903617203616f03616503", "07".repeat(32));
        assert_eq!(hex::encode(bytes.get_ref()), expected);
        let task = LiveTask { place: place(3), attempt: 1, stands_still: false, stdout: vec![9], stderr: Vec::new() };
        let told = LiveTold { tasks: Some(vec![task.clone()]) };
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &told).await.unwrap();
        let expected = "a1617481a56170a4616903617203616f036165036161016166f4616f4109616540";
        assert_eq!(hex::encode(bytes.get_ref()), expected);
        assert_eq!(read::<_, LiveTold, TOLD_BYTES_MAX>(&mut &bytes.get_ref()[..]).await.unwrap(), told);
    }

    /// The largest that may be said fits, and what is larger is refused before it is decoded.
    #[tokio::test]
    async fn the_largest_question_and_answer_fit() {
        let all = |most: u64| LivePlace { index: most, run: most, stdout: most, stderr: most };
        let ask = LiveAsk {
            bag: [255; 32],
            tasks: vec![(u64::MAX, u64::MAX); LIVE_TASKS_MAX],
            seen: vec![all(u64::MAX); LIVE_TASKS_MAX],
        };
        assert!(ask.is_bounded());
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &ask).await.unwrap();
        assert_eq!(read::<_, LiveAsk, ASK_BYTES_MAX>(&mut &bytes.get_ref()[..]).await.unwrap(), ask);
        let task = |bytes: usize| LiveTask {
            place: all(u64::MAX),
            attempt: u32::MAX,
            stands_still: true,
            stdout: vec![0; bytes],
            stderr: Vec::new(),
        };
        let mut tasks = vec![task(0); LIVE_TASKS_MAX - 1];
        tasks.push(task(LIVE_BYTES_MAX));
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &LiveTold { tasks: Some(tasks) }).await.unwrap();
        assert!(read::<_, LiveTold, TOLD_BYTES_MAX>(&mut &bytes.get_ref()[..]).await.is_ok());
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &LiveTold { tasks: Some(vec![task(TOLD_BYTES_MAX)]) }).await.unwrap();
        assert!(read::<_, LiveTold, TOLD_BYTES_MAX>(&mut &bytes.get_ref()[..]).await.is_err());
        assert!(!LiveAsk { tasks: vec![(0, 0); LIVE_TASKS_MAX + 1], ..ask }.is_bounded());
    }
}
