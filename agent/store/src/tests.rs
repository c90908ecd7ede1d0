//! The store after crashes, on faulty disks, and with a second agent.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::commit::COMMITS_MAX;
use super::database::{COUNT_KEY, wait_for_lock};
use super::layout::{SLED_FILE, STORE_DIR};
use super::rebuild::{REBUILT_DIR, RETIRED_DIR};
use super::thresholds::{THRESHOLDS, Thresholds};
use super::*;

mod damage;
mod full_disk;

type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Longer than any commit takes, also on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Environment variable for the process that is to be killed: the directory of its store.
const VICTIM_DIR: &str = "IDLEWOOD_TEST_STORE_DIR";

fn set(key: &[u8], value: &[u8]) -> Change {
    Change { key: key.to_vec(), value: Some(value.to_vec()) }
}

/// The next result; fails if none comes in time.
fn next(results: &mut mpsc::Receiver<CommitResult>) -> CommitResult {
    let begin = Instant::now();
    loop {
        match results.try_recv() {
            Ok(result) => return result,
            Err(mpsc::error::TryRecvError::Disconnected) => panic!("the writer ended, and a commit has no result"),
            Err(mpsc::error::TryRecvError::Empty) => {
                assert!(begin.elapsed() < PATIENCE, "a commit has no result after {PATIENCE:?}");
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

fn open(dir: &Path) -> (Opened, StateLock) {
    let lock = StateLock::acquire(dir).unwrap();
    (Store::open(&lock).unwrap(), lock)
}

/// sled itself, without a store around it.
fn database(dir: &Path) -> sled::Db {
    wait_for_lock(&dir.join(STORE_DIR)).unwrap();
    sled::open(dir.join(STORE_DIR)).unwrap()
}

fn sound(opened: &Opened) -> bool {
    let Opened { damaged, commits_lost, set_aside, .. } = opened;
    let why = set_aside.as_ref().and_then(|aside| fs::read_to_string(aside.join("why.txt")).ok());
    println!("{} records damaged, {commits_lost} commits lost, set aside: {set_aside:?}, since {why:?}", damaged.len());
    damaged.is_empty() && *commits_lost == 0 && set_aside.is_none()
}

/// A directory with a closed store of `count` records.
fn filled(count: u32) -> (TempDir, Records) {
    let dir = tempfile::tempdir().unwrap();
    let (mut opened, _lock) = open(dir.path());
    let mut records = Vec::new();
    for number in 0..count {
        let record = (format!("key {number:05}").into_bytes(), vec![number as u8; 50 + (number as usize * 37) % 400]);
        opened.store.try_commit(vec![set(&record.0, &record.1)], number.into()).unwrap();
        // One flush each, so that the log has many parts.
        assert_eq!(next(&mut opened.results).result, Ok(()));
        records.push(record);
    }
    opened.store.close();
    (dir, records)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { fs::copy(&path, &target).map(drop).unwrap() }
    }
}

#[test]
fn records_survive_a_restart_and_changes_apply_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (mut opened, lock) = open(dir.path());
    assert!(opened.records.is_empty() && sound(&opened));
    opened.store.try_commit(vec![set(b"a", b"1"), set(b"b", b"2"), set(b"c", b"")], 10).unwrap();
    opened.store.try_commit(vec![set(b"a", b"3"), Change { key: b"b".to_vec(), value: None }], 11).unwrap();
    opened.store.try_commit(vec![], 12).unwrap();
    opened.store.try_commit(vec![set(&[1; KEY_BYTES_MAX], &[2; VALUE_BYTES_MAX])], 13).unwrap();
    for ticket in 10..14 {
        assert_eq!(next(&mut opened.results), CommitResult { ticket, result: Ok(()) });
    }
    for (ticket, bad) in [
        (20, set(b"", b"")),
        (21, set(b"\xff", b"")),
        (22, set(&[0; 257], b"")),
        (23, set(b"k", &[0; VALUE_BYTES_MAX + 1])),
    ] {
        opened.store.try_commit(vec![set(b"d", b"not this"), bad], ticket).unwrap();
        let result = Err(CommitError::Unfit);
        assert_eq!(next(&mut opened.results), CommitResult { ticket, result });
    }
    opened.store.close();
    drop(lock);
    let (opened, _lock) = open(dir.path());
    assert!(sound(&opened));
    let expected = vec![
        (vec![1; KEY_BYTES_MAX], vec![2; VALUE_BYTES_MAX]),
        (b"a".to_vec(), b"3".to_vec()),
        (b"c".to_vec(), vec![]),
    ];
    assert_eq!(opened.records, expected);
}

#[test]
fn waiting_commits_are_written_together() {
    let dir = tempfile::tempdir().unwrap();
    let (mut opened, _lock) = open(dir.path());
    // Another program's burst of writes can spoil a comparison, but not all of them.
    let is_faster = (0..10).any(|_| {
        let start = Instant::now();
        for number in 0..50_u64 {
            opened.store.try_commit(vec![set(&number.to_be_bytes(), &[1; 100])], number).unwrap();
            assert_eq!(next(&mut opened.results).result, Ok(()));
        }
        let one_by_one = start.elapsed();
        let start = Instant::now();
        for number in 0..500_u64 {
            opened.store.try_commit(vec![set(&number.to_be_bytes(), &[2; 100])], number).unwrap();
        }
        for number in 0..500 {
            assert_eq!(next(&mut opened.results), CommitResult { ticket: number, result: Ok(()) });
        }
        let together = start.elapsed();
        println!("one by one {:?} each; 500 at once {together:?}", one_by_one / 50);
        together < one_by_one * 5
    });
    assert!(is_faster, "500 at once take as long as one by one");
}

/// In how many groups commits a millisecond apart went to disk: results of one group come together.
fn groups(commit: impl Fn(&Store, u64)) -> usize {
    const COMMITS: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let (mut opened, _lock) = open(dir.path());
    let results = &mut opened.results;
    let (mut groups, mut ended, mut is_within) = (0, 0, false);
    let mut queued = 0;
    let begin = Instant::now();
    while ended < COMMITS {
        while queued < COMMITS && begin.elapsed() >= Duration::from_millis(queued) {
            commit(&opened.store, queued);
            queued += 1;
        }
        match results.try_recv() {
            Ok(result) => {
                assert_eq!(result, CommitResult { ticket: ended, result: Ok(()) });
                groups += usize::from(!is_within);
                (ended, is_within) = (ended + 1, true);
            }
            Err(_) => {
                assert!(begin.elapsed() < PATIENCE, "{ended} of {COMMITS} have a result");
                is_within = false;
                std::thread::sleep(Duration::from_micros(500));
            }
        }
    }
    groups
}

#[test]
fn commits_that_may_wait_go_to_disk_in_fewer_groups() {
    let change = |number: u64| vec![set(&number.to_be_bytes(), &[1; 100])];
    // Another program's burst of writes can spoil a comparison, but not all of them.
    let are_fewer = (0..5).any(|_| {
        let (mut at_once, mut patiently) = (0, 0);
        for _ in 0..3 {
            at_once += groups(|store, number| store.try_commit(change(number), number).unwrap());
            patiently += groups(|store, number| store.try_commit_patiently(change(number), number).unwrap());
        }
        println!("{at_once} groups, {patiently} of those that may wait");
        4 * patiently < 3 * at_once
    });
    assert!(are_fewer, "patience saves nothing");
}

#[test]
fn a_full_queue_refuses_instead_of_growing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut opened, _lock) = open(dir.path());
    let mut queued = 0;
    // Results are not received: both queues fill, and the writer holds some more.
    let error = loop {
        match opened.store.try_commit(vec![set(b"k", b"v")], queued) {
            Ok(()) => queued += 1,
            Err(error) if queued > 2 * COMMITS_MAX as u64 => break error,
            // The writer is at work.
            Err(QueueError::Full) => std::thread::sleep(Duration::from_millis(1)),
            Err(QueueError::Closed) => panic!("closed"),
        }
        assert!(queued < 4 * COMMITS_MAX as u64);
    };
    assert_eq!(error, QueueError::Full);
    for ticket in 0..queued {
        assert_eq!(next(&mut opened.results), CommitResult { ticket, result: Ok(()) });
    }
}

#[test]
fn a_second_agent_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let lock = StateLock::acquire(dir.path()).unwrap();
    let error = StateLock::acquire(dir.path()).unwrap_err().to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    assert!(error.contains(dir.path().to_str().unwrap()), "{error}");
    drop(lock);
    StateLock::acquire(dir.path()).unwrap();
}

/// Not a test: the process that `nothing_acknowledged_is_lost_by_kill` kills.
#[test]
#[ignore = "started by another test"]
fn victim() {
    let Ok(dir) = std::env::var(VICTIM_DIR) else { return };
    let (mut opened, _lock) = open_busy(Path::new(&dir));
    let first = opened.records.iter().map(|(_, value)| u64::from_be_bytes(value[..8].try_into().unwrap())).max();
    let first = first.map_or(0, |last| last + 1);
    let (mut next, mut heard) = (first, Instant::now());
    loop {
        assert!(heard.elapsed() < PATIENCE, "commits have no results after {PATIENCE:?}");
        // Three keys change together, over a changing number of commits that wait.
        while opened
            .store
            .try_commit(
                (0..3_u8)
                    .map(|part| set(&[part, (next % 50) as u8], &[&next.to_be_bytes()[..], &[part; 300]].concat()))
                    .collect::<Vec<_>>(),
                next,
            )
            .is_ok()
        {
            next += 1;
            if next % 7 == 0 {
                break;
            }
        }
        while let Ok(result) = opened.results.try_recv() {
            assert_eq!(result.result, Ok(()));
            println!("acknowledged {}", result.ticket);
            heard = Instant::now();
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = None;
    for round in 0..8 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::victim", "--ignored", "--nocapture"])
            .env(VICTIM_DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        for _ in 0..200 + 311 * round {
            let line = lines.next().expect("the victim must go on").unwrap();
            if let Some((_, ticket)) = line.split_once("acknowledged ") {
                last = Some(ticket.parse::<u64>().unwrap());
            }
        }
        victim.kill().unwrap(); // SIGKILL
        victim.wait().unwrap();
        // Lines still in the pipe count, too.
        for line in lines.map_while(Result::ok) {
            if let Some(ticket) = line.strip_prefix("acknowledged ").and_then(|ticket| ticket.parse().ok()) {
                last = Some(ticket);
            }
        }
        let last = last.unwrap();
        let (opened, _lock) = open(dir.path());
        assert!(sound(&opened), "{opened:?}");
        let value = |part: u8, slot: u64| {
            let (_, value) = opened.records.iter().find(|(key, _)| *key == [part, slot as u8]).unwrap();
            assert_eq!(value[8..], [part; 300]);
            u64::from_be_bytes(value[..8].try_into().unwrap())
        };
        for number in last.saturating_sub(49)..=last {
            let found = value(0, number % 50);
            assert!(found >= number, "round {round}: {number} was acknowledged, {found} is there");
            assert_eq!([value(1, number % 50), value(2, number % 50)], [found; 2], "a commit was torn");
        }
    }
}

#[test]
fn a_store_full_of_garbage_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let (mut opened, lock) = open(dir.path());
    for number in 0..120_u64 {
        let value = vec![number as u8; VALUE_BYTES_MAX];
        opened.store.try_commit(vec![set(&number.to_be_bytes(), &value)], number).unwrap();
        assert_eq!(next(&mut opened.results).result, Ok(()));
    }
    let clear =
        (1..120_u64).map(|number| Change { key: number.to_be_bytes().to_vec(), value: None }).collect::<Vec<_>>();
    opened.store.try_commit(clear, 0).unwrap();
    assert_eq!(next(&mut opened.results).result, Ok(()));
    opened.store.close();
    drop(lock);
    for name in [REBUILT_DIR, RETIRED_DIR] {
        // As an interrupted rebuild leaves them.
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let size = |path: &Path| database(path).size_on_disk().unwrap();
    let before = size(dir.path());
    let (mut opened, lock) = open(dir.path());
    assert!(sound(&opened));
    assert_eq!(opened.records, [(0_u64.to_be_bytes().to_vec(), vec![0; VALUE_BYTES_MAX])]);
    opened.store.try_commit(vec![set(b"after", b"")], 1).unwrap();
    assert_eq!(next(&mut opened.results).result, Ok(()));
    opened.store.close();
    drop(lock);
    let after = size(dir.path());
    println!("{before} bytes before, {after} after");
    assert!(before < THRESHOLDS.rebuild_bytes_min || after < before / 4);
    let (opened, _lock) = open(dir.path());
    assert!(sound(&opened) && opened.records.len() == 2);
}

/// A store that is rebuilt at one MiB.
fn open_small(dir: &Path) -> (Opened, StateLock) {
    let lock = StateLock::acquire(dir).unwrap();
    let thresholds = Thresholds { rebuild_bytes_min: 1 << 20, checkpoint_bytes: 0, ..THRESHOLDS };
    (Store::open_with(&lock, thresholds).unwrap(), lock)
}

/// A store that makes checkpoints and generations all the time.
fn open_busy(dir: &Path) -> (Opened, StateLock) {
    let lock = StateLock::acquire(dir).unwrap();
    let thresholds = Thresholds { checkpoint_bytes: 8 << 10, generation_bytes_min: 32 << 10, ..THRESHOLDS };
    (Store::open_with(&lock, thresholds).unwrap(), lock)
}

fn size_of(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    // Files may be removed meanwhile.
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) => size_of(&entry.path()),
        Err(_) => 0,
    });
    sizes.sum()
}

#[test]
fn a_store_that_only_grows_garbage_is_rebuilt_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (mut opened, lock) = open_small(dir.path());
    let mut largest = 0;
    for number in 0..60_u64 {
        let changes: Vec<Change> = (0..2_u8).map(|key| set(&[key], &[number as u8; 500_000])).collect();
        opened.store.try_commit(changes, number).unwrap();
        assert_eq!(next(&mut opened.results).result, Ok(()));
        largest = largest.max(size_of(&dir.path().join(STORE_DIR)));
    }
    let left = size_of(&dir.path().join(STORE_DIR));
    println!("60 MB written, at most {largest} on disk, {left} in the end");
    opened.store.close();
    drop(lock);
    assert!(largest < 12_000_000, "{largest} bytes");
    let (opened, _lock) = open(dir.path());
    assert!(sound(&opened));
    assert_eq!(opened.records, (0..2_u8).map(|key| (vec![key], vec![59; 500_000])).collect::<Vec<_>>());
}

/// Not a test: the process that is killed while it rebuilds its store.
#[test]
#[ignore = "started by another test"]
fn rebuilder() {
    let Ok(dir) = std::env::var(VICTIM_DIR) else { return };
    let (mut opened, _lock) = open_small(Path::new(&dir));
    let first = opened.records.iter().map(|(_, value)| u64::from_be_bytes(value[..8].try_into().unwrap())).max();
    for number in first.map_or(0, |last| last + 1).. {
        let value = [&number.to_be_bytes()[..], &[7; 20_000]].concat();
        opened.store.try_commit(vec![set(&[(number % 5) as u8], &value)], number).unwrap();
        assert_eq!(next(&mut opened.results).result, Ok(()));
        println!("acknowledged {number}");
    }
}

#[test]
fn a_kill_in_the_middle_of_a_rebuild_leaves_one_good_store() {
    let dir = tempfile::tempdir().unwrap();
    let (mut found, mut last) = ([0; 3], None);
    for round in 0..12 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::rebuilder", "--ignored", "--nocapture"])
            .env(VICTIM_DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = victim.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.filter_map(|line| line.split_once("acknowledged ")?.1.parse::<u64>().ok()).last()
        });
        let [rebuilt, retired] = [REBUILT_DIR, RETIRED_DIR].map(|name| dir.path().join(name));
        let deadline = Instant::now() + PATIENCE;
        while !rebuilt.exists() {
            assert!(Instant::now() < deadline, "it never rebuilds");
        }
        // From its beginning to about its end.
        std::thread::sleep(Duration::from_millis(4 * round));
        victim.kill().unwrap();
        victim.wait().unwrap();
        found[if retired.exists() { 2 } else { usize::from(rebuilt.exists()) }] += 1;
        // None if it rebuilt the store that it found at its start.
        last = last.max(reader.join().unwrap());
        let (opened, _lock) = open(dir.path());
        assert!(sound(&opened), "{opened:?}");
        assert!(!rebuilt.exists() && !retired.exists());
        let numbers = opened.records.iter().map(|(_, value)| u64::from_be_bytes(value[..8].try_into().unwrap()));
        assert!(numbers.max() >= last, "round {round}: {last:?} was acknowledged");
    }
    assert!(last.is_some());
    println!("killed after, during and at the end of a rebuild: {found:?}");
    assert!(found[1] > 0, "never in the middle of one");
}

#[test]
fn a_kill_while_a_snapshot_is_written_costs_nothing() {
    for part in [0, 5, 40] {
        let (dir, records) = filled(20);
        // sled writes one if its log is not empty.
        open(dir.path()).0.store.close();
        let store = dir.path().join(STORE_DIR);
        let names = || fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let whole = names().find(|name| name.starts_with("snap.")).expect("a snapshot");
        let mut bytes = fs::read(store.join(whole)).unwrap();
        bytes.truncate(part);
        fs::write(store.join("snap.00000000FFFFFFFF.generating"), bytes).unwrap();
        let lock = StateLock::acquire(dir.path()).unwrap();
        assert_eq!(inspect(&lock).unwrap().flaws, Vec::<String>::new());
        drop(lock);
        let (opened, _lock) = open(dir.path());
        assert!(sound(&opened), "{opened:?}");
        assert_eq!(opened.records, records);
        assert!(!names().any(|name| name.ends_with(".generating")));
    }
}

#[test]
fn an_interrupted_rebuild_is_undone_or_completed() {
    // State at an interruption: the store itself, a copy that may be incomplete, and the old store under its other
    // name.
    for (store, copy_of_it, old) in [(true, Some("half"), false), (false, Some("whole"), true), (true, None, true)] {
        let (dir, records) = filled(20);
        let [path, rebuilt, retired] = [STORE_DIR, REBUILT_DIR, RETIRED_DIR].map(|name| dir.path().join(name));
        match copy_of_it {
            Some("half") => {
                fs::create_dir(&rebuilt).unwrap();
                fs::write(rebuilt.join(SLED_FILE), b"half").unwrap();
            }
            Some(_) => copy(&path, &rebuilt),
            None => {}
        }
        if old {
            copy(&path, &retired);
        }
        if !store {
            fs::remove_dir_all(&path).unwrap();
        }
        let (opened, _lock) = open(dir.path());
        assert!(sound(&opened) && !rebuilt.exists() && !retired.exists());
        assert_eq!(opened.records, records);
    }
}

#[test]
fn an_inspection_reports_all_and_changes_nothing() {
    let (dir, records) = filled(30);
    let files = |dir: &Path| {
        let mut files: Vec<_> = fs::read_dir(dir.join(STORE_DIR)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.retain(|path| path.is_file());
        files.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect::<Vec<_>>()
    };
    let before = files(dir.path());
    let lock = StateLock::acquire(dir.path()).unwrap();
    let found = inspect(&lock).unwrap();
    assert_eq!(found.records, records);
    assert!(found.damaged.is_empty() && found.commits_lost == 0 && found.flaws.is_empty());
    assert!(found.live_bytes > 3000 && found.size_bytes > found.live_bytes, "{found:?}");
    assert!(before == files(dir.path()), "it was written to");

    let db = database(dir.path());
    db.insert(&records[3].0, b"\x01not this").unwrap();
    drop(db);
    let found = inspect(&lock).unwrap();
    assert_eq!((found.flaws.len(), found.damaged.len(), found.records == records), (1, 0, true), "{:?}", found.flaws);
    let conf = dir.path().join(STORE_DIR).join("conf");
    let mut bytes = fs::read(&conf).unwrap();
    bytes[20] ^= 0x10;
    fs::write(&conf, bytes).unwrap();
    let found = inspect(&lock).unwrap();
    assert!(found.flaws.len() == 1 && found.set_aside.is_empty() && found.records == records);
    drop(lock);
    let (opened, lock) = open(dir.path());
    assert_eq!(inspect(&lock).unwrap().set_aside, [opened.set_aside.unwrap()]);
    // The copy is gone.
    let left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().starts_with("store.inspected")));
}

#[test]
fn a_store_that_another_process_still_holds_is_waited_for_and_never_set_aside() {
    let (dir, _) = filled(3);
    let held = File::open(dir.path().join(STORE_DIR).join(SLED_FILE)).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(held);
    });
    let (opened, lock) = open(dir.path());
    assert!(sound(&opened) && opened.records.len() == 3);
    holder.join().unwrap();
    opened.store.close();
    drop(opened.results);

    let held = File::open(dir.path().join(STORE_DIR).join(SLED_FILE)).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
    let error = Store::open(&lock).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    drop(held);
    assert!(sound(&Store::open(&lock).unwrap()));
}

/// `cargo test --release -p idlewood --lib store:: -- --ignored --nocapture measure`
#[test]
#[ignore = "a measurement"]
fn measure() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let (mut opened, lock) = open(dir.path());
    for group in [1_u64, 10, 100, 1000] {
        let mut latencies = Vec::new();
        for round in 0..200_u64 {
            let start = Instant::now();
            for number in 0..group {
                opened.store.try_commit(vec![set(&(round * group + number).to_be_bytes(), &[3; 200])], number).unwrap();
            }
            for _ in 0..group {
                assert_eq!(next(&mut opened.results).result, Ok(()));
            }
            latencies.push(start.elapsed());
        }
        latencies.sort_unstable();
        println!("{group} commits of 200 B at once: median {:?}, 99 % {:?}", latencies[100], latencies[198]);
    }
    let written = |when: &str| {
        let io = fs::read_to_string("/proc/self/io").unwrap();
        let of_writes = io.lines().filter(|line| line.contains("wchar") || line.starts_with("write_bytes"));
        println!("{when}: {}", of_writes.collect::<Vec<_>>().join(", "));
    };
    written("before");
    // Like a busy bag: each commit replaces the record of a placement, adds a result, and removes one.
    for number in 0..100_000_u64 {
        let key = |kind: u8, number: u64| [&[kind][..], &[7; 32], &number.to_be_bytes()].concat();
        let changes = vec![
            set(b"held", &[3; 300]),
            set(&key(b'd', number), &[4; 110]),
            set(&key(b'o', number), &[5; 110]),
            Change { key: key(b'o', number.saturating_sub(100)), value: None },
        ];
        opened.store.try_commit(changes, number).unwrap();
        if number % 96 == 95 || number == 99_999 {
            for _ in 0..=(number % 96) {
                assert_eq!(next(&mut opened.results).result, Ok(()));
            }
        }
    }
    written("after 100,000 commits, 96 at once");
    opened.store.close();
    let start = Instant::now();
    drop(lock);
    let (opened, _lock) = open(dir.path());
    println!("opening with {} records: {:?}", opened.records.len(), start.elapsed());
}
