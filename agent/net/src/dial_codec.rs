//! What is said between a machine that wants to know whether it is reached and the one that dials it ([`dial_back`](crate::dial_back)).

use std::time::Duration;

use libp2p::request_response;
use serde::{Deserialize, Serialize};

use crate::small_codec::{self, SmallCodec};

/// Dials at a time, for all machines.
pub(super) const DIALS_MAX: usize = 4;
/// Longest question or answer, in bytes. Reasons have up to 200 characters, of four bytes each at most.
const BYTES_MAX: usize = 1024;
/// How long an answer may take: a dial, and the way there and back.
const TIMEOUT: Duration = Duration::from_secs(15);

/// "Dial me back at this port."
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    #[serde(rename = "p")]
    pub(super) port: u16,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    /// The asker's address, as it was seen.
    #[serde(rename = "a")]
    pub(super) address: String,
    /// Null: the asker was reached.
    #[serde(rename = "f")]
    pub(super) failure: Option<String>,
    /// The clock of who dialled, in milliseconds of Unix time.
    #[serde(rename = "t")]
    pub(super) wall_ms: u64,
}

/// How both are written.
pub(super) type Codec = SmallCodec<Ask, Told, BYTES_MAX, BYTES_MAX>;

/// The behaviour for the protocol of a grid.
pub(super) fn behaviour(grid: idlewood_overlay::GridId) -> request_response::Behaviour<Codec> {
    small_codec::behaviour(grid, "dial-back/1", TIMEOUT, DIALS_MAX)
}

#[cfg(test)]
mod tests {
    use libp2p::futures::io::Cursor;

    use super::*;
    use crate::small_codec::{read, write};

    #[tokio::test]
    async fn questions_and_answers_keep_their_bytes_and_have_a_bound() {
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &Ask { port: 4001 }).await.unwrap();
        assert_eq!(bytes.get_ref(), b"\xa1\x61p\x19\x0f\xa1");
        let answer = Told { address: "192.0.2.7".to_owned(), failure: None, wall_ms: 1 };
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &answer).await.unwrap();
        assert_eq!(bytes.get_ref(), b"\xa3\x61a\x69192.0.2.7\x61f\xf6\x61t\x01");
        let read_back: Told = read::<_, _, BYTES_MAX>(&mut &bytes.get_ref()[..]).await.unwrap();
        assert_eq!(read_back, answer);
        let long = Told { failure: Some("x".repeat(BYTES_MAX)), ..answer };
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &long).await.unwrap();
        assert!(read::<_, Told, BYTES_MAX>(&mut &bytes.get_ref()[..]).await.is_err());
        assert!(read::<_, Ask, BYTES_MAX>(&mut &b"\xff"[..]).await.is_err());
    }
}
