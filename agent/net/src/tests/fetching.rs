//! Downloads from scripted sources.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tokio::sync::Semaphore;

use super::*;
use crate::command::{Command, Item};
use crate::fetch::Patience;

const PIECE: usize = CHUNK_BYTES_MAX;

/// A source's answer to a request for a piece, and its delay.
type Answer = (Duration, Result<ChunkReply, ChunkError>);

/// A network on which sources answer by `script`, given source, blob and offset.
fn scripted(mut script: impl FnMut(PeerId, [u8; 32], u64) -> Answer + Send + 'static) -> NetHandle {
    scripted_when(move |from, hash, offset| (None, script(from, hash, offset)))
}

/// The same, with answers that wait for a permit.
fn scripted_when(
    mut script: impl FnMut(PeerId, [u8; 32], u64) -> (Option<Arc<Semaphore>>, Answer) + Send + 'static,
) -> NetHandle {
    let (handle, mut asked) = NetHandle::without_loop();
    tokio::spawn(async move {
        while let Some(command) = asked.recv().await {
            let Command::Send { to, item: Item::Chunk { wanted, reply }, .. } = command else { continue };
            let (hash, offset) = (*wanted.hash.as_bytes(), wanted.offset);
            let (when, (after, answer)) = script(to, hash, offset);
            tokio::spawn(async move {
                if let Some(when) = when {
                    when.acquire().await.unwrap().forget();
                }
                tokio::time::sleep(after).await;
                drop(reply.send(answer));
            });
        }
    });
    handle
}

fn peer(number: u8) -> PeerId {
    PeerId([number; 32])
}

fn source(number: u8) -> Contact {
    Contact { peer: peer(number), incarnation: 1, address: "".into(), nonce: None }
}

fn piece(content: &[u8], offset: u64) -> Result<ChunkReply, ChunkError> {
    let from = (offset as usize).min(content.len());
    let to = (from + PIECE).min(content.len());
    Ok(ChunkReply::Chunk { total: content.len() as u64, bytes: content[from..to].to_vec() })
}

fn fetcher(dir: &TempDir, net: NetHandle) -> (Fetcher, Arc<Blobs>) {
    let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 64 << 20).unwrap());
    let patience = Patience {
        slow_answer: Duration::from_secs(2),
        judged_after: Duration::from_secs(4),
        busy_pause_max: Duration::from_millis(50),
        busy_max: Duration::from_secs(1),
        ..Patience::default()
    };
    (Fetcher::patient(blobs.clone(), net, tokio::sync::mpsc::channel(1).0, patience), blobs)
}

/// One piece more than four, each of another byte.
fn content() -> Vec<u8> {
    (0..5).flat_map(|byte| vec![byte; if byte < 4 { PIECE } else { 7 }]).collect()
}

const SOON: Duration = Duration::from_millis(1);
/// Counts as slow in these tests.
const LATE: Duration = Duration::from_millis(2200);

#[tokio::test]
async fn a_slow_source_delays_no_other_and_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let small: Vec<[u8; 1]> = (0..40).map(|byte| [byte]).collect();
    let blob_of = small.clone();
    // The slow source's answers wait for a permit, and come late.
    let may = Arc::new(Semaphore::new(0));
    let waits = may.clone();
    let net = scripted_when(move |from, hash, offset| {
        let content = blob_of.iter().find(|content| *blake3::hash(&content[..]).as_bytes() == hash).unwrap();
        let is_slow = from == peer(1);
        (is_slow.then(|| waits.clone()), (if is_slow { LATE } else { SOON }, piece(content, offset)))
    });
    let (fetcher, _) = fetcher(&dir, net);
    let begin = |number: usize, from: u8| {
        let (fetcher, hash) = (fetcher.clone(), blake3::hash(&small[number]));
        tokio::spawn(async move { fetcher.fetch(hash, 10, &origin(vec![source(from)])).await })
    };
    let slow: Vec<_> = (0..20).map(|number| begin(number, 1)).collect();
    tokio::task::yield_now().await;
    for honest in (20..40).map(|number| begin(number, 2)).collect::<Vec<_>>() {
        honest.await.unwrap().expect("it waits for nobody");
    }
    assert_eq!(fetcher.downloads().left_alone, []);
    may.add_permits(1000);
    let mut refused = 0;
    for slow in slow {
        if let Err(error) = slow.await.unwrap() {
            let text = error.to_string();
            assert!(text.contains("answers too slowly") && text.contains("left alone for"), "{text}");
            refused += 1;
        }
    }
    assert!(refused >= 12, "{refused}");
    let downloads = fetcher.downloads();
    assert_eq!((downloads.under_way, downloads.waiting, downloads.found_slow), (0, 0, 1));
    assert_eq!(downloads.left_alone.iter().map(|(peer, _)| *peer).collect::<Vec<_>>(), [peer(1)], "it is named");
    let error = fetcher.fetch(blake3::hash(&small[19]), 10, &origin(vec![source(1)])).await.unwrap_err();
    assert!(error.to_string().contains("left alone"), "not even asked: {error}");
    fetcher.fetch(blake3::hash(&small[19]), 10, &origin(vec![source(1), source(2)])).await.expect("others are asked");
}

#[tokio::test]
async fn a_download_survives_busy_answers_attempts_and_sources() {
    let dir = tempfile::tempdir().unwrap();
    let content = content();
    let hash = blake3::hash(&content);
    let given = Arc::new(Mutex::new(Vec::new()));
    let (gives, whole, busy) = (given.clone(), content.clone(), Mutex::new(0));
    let net = scripted(move |from, _, offset| {
        let number = offset / PIECE as u64;
        let mut busy = busy.lock().unwrap();
        // The first source is busy for a while, and is gone after its third piece.
        if from == peer(1) && number == 2 && *busy < 15 {
            *busy += 1;
            return (SOON, Ok(ChunkReply::Busy));
        }
        if from == peer(1) && number == 3 {
            return (SOON, Err(ChunkError::Unreachable(from)));
        }
        gives.lock().unwrap().push((from.0[0], offset / PIECE as u64));
        (SOON, piece(&whole, offset))
    });
    let (fetcher, blobs) = fetcher(&dir, net);
    fetcher.fetch(hash, 2 << 20, &origin(vec![source(1)])).await.expect_err("it is gone");
    assert_eq!(blobs.partials(), (1, 3 * PIECE as u64));
    let path = fetcher.fetch(hash, 2 << 20, &origin(vec![source(1), source(2)])).await.unwrap();
    assert_eq!(std::fs::read(path).unwrap(), content);
    assert_eq!(*given.lock().unwrap(), [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4)], "no piece came twice");
    assert_eq!(blobs.partials(), (0, 0));
    assert_eq!(fetcher.downloads().found_slow, 0, "who says that it is busy is not slow");
}

#[tokio::test]
async fn a_busy_source_takes_no_place_and_is_given_up_at_last() {
    let dir = tempfile::tempdir().unwrap();
    let net = scripted(|_, _, _| (SOON, Ok(ChunkReply::Busy)));
    let (fetcher, _) = fetcher(&dir, net);
    let calls: Vec<_> = (0..100_u8)
        .map(|number| {
            let fetcher = fetcher.clone();
            tokio::spawn(async move { fetcher.fetch(blake3::hash(&[number]), 10, &origin(vec![source(1)])).await })
        })
        .collect();
    for call in calls {
        let error = call.await.unwrap().expect_err("it never gives anything").to_string();
        assert!(error.contains("is busy"), "{error}");
    }
    assert_eq!((fetcher.downloads().under_way, fetcher.downloads().waiting), (0, 0));
}

#[tokio::test]
async fn a_false_beginning_spoils_no_honest_source() {
    let dir = tempfile::tempdir().unwrap();
    let content = content();
    let hash = blake3::hash(&content);
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let (asks, whole) = (asked.clone(), content.clone());
    let net = scripted(move |from, _, offset| {
        asks.lock().unwrap().insert((from.0[0], offset / PIECE as u64));
        match (from.0[0], offset) {
            (1, 0) => (SOON, piece(&vec![9; content.len()], 0)),
            (1, _) => (SOON, Err(ChunkError::Unreachable(from))),
            (3, _) => (SOON, piece(&vec![9; content.len()], offset)),
            _ => (SOON, piece(&content, offset)),
        }
    });
    let (fetcher, blobs) = fetcher(&dir, net.clone());
    for _ in 0..2 {
        fetcher.fetch(hash, 2 << 20, &origin(vec![source(1)])).await.expect_err("it gives a beginning only");
        assert_eq!(blobs.partials(), (1, PIECE as u64));
    }
    let path = fetcher.fetch(hash, 2 << 20, &origin(vec![source(1), source(2)])).await.unwrap();
    assert_eq!(std::fs::read(path).unwrap(), whole);
    let honest: Vec<u64> =
        asked.lock().unwrap().iter().filter(|(from, _)| *from == 2).map(|(_, piece)| *piece).collect();
    assert_eq!(honest, [0, 1, 2, 3, 4], "in the end all of it");
    assert_eq!(net.counters().protocol_errors, 0, "whose fault it was is not known");
    // One source that gives the whole blob is known to be at fault.
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, blobs) = self::fetcher(&dir, net.clone());
    let error = fetcher.fetch(hash, 2 << 20, &origin(vec![source(3)])).await.unwrap_err().to_string();
    assert!(error.contains("other content"), "{error}");
    assert_eq!((net.counters().protocol_errors, blobs.used_bytes()), (1, 0));
}

#[tokio::test]
async fn a_dropped_caller_frees_its_place_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let content = content();
    let hash = blake3::hash(&content);
    let asked = Arc::new(tokio::sync::Notify::new());
    let asks = asked.clone();
    let net = scripted_when(move |_, _, offset| {
        let never = (offset > 0).then(|| Arc::new(Semaphore::new(0)));
        never.iter().for_each(|_| asks.notify_one());
        (never, (SOON, piece(&content, offset)))
    });
    let (fetcher, blobs) = fetcher(&dir, net);
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let fetcher = fetcher.clone();
            tokio::spawn(async move { fetcher.fetch(hash, 2 << 20, &origin(vec![source(1)])).await })
        })
        .collect();
    // The second piece is requested, and does not come.
    asked.notified().await;
    assert_eq!(fetcher.downloads().under_way, 1, "the others wait for it");
    for call in calls {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
    assert_eq!((fetcher.downloads().under_way, fetcher.downloads().waiting), (0, 0));
    until("what has come to be kept", || blobs.partials() == (1, PIECE as u64)).await;
    blobs.tidy_partials(tokio::time::Instant::now(), |bag| bag != BAG);
    until("what has come to go with its bag", || blobs.used_bytes() == 0).await;
}
