//! The store on a faulty disk: every byte flipped, files truncated, missing, or outdated.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::disk::MARK_FILE;
use super::super::journal::JOURNAL_DIR;
use super::*;

/// All files of a store, by their paths below the state directory.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A state directory in memory if possible: syncing costs nothing there.
fn state_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

fn read_files(dir: &Path) -> Files {
    let mut files = Files::new();
    let mut add = |path: PathBuf| {
        files.insert(path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap());
    };
    for part in [STORE_DIR, JOURNAL_DIR] {
        for entry in fs::read_dir(dir.join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                add(path);
            }
        }
    }
    add(dir.join(MARK_FILE));
    files
}

fn write_files(files: &Files) -> TempDir {
    let dir = state_dir();
    // sled requires it.
    fs::create_dir_all(dir.path().join(STORE_DIR).join("blobs")).unwrap();
    for (path, bytes) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    dir
}

/// A small store: its records after each commit, from none on, and its files after a kill (the last commits are in the
/// journal alone) and after closing.
struct Small {
    states: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    killed: Files,
    closed: Files,
}

impl Small {
    fn make() -> Self {
        let dir = state_dir();
        let mut states = vec![BTreeMap::new()];
        let mut commit = |opened: &mut Opened, changes: Vec<Change>| {
            let mut state: BTreeMap<_, _> = states.last().cloned().unwrap();
            for Change { key, value } in &changes {
                match value {
                    Some(value) => drop(state.insert(key.clone(), value.clone())),
                    None => drop(state.remove(key)),
                }
            }
            states.push(state);
            opened.store.try_commit(changes, 0).unwrap();
            assert_eq!(next(&mut opened.results).result, Ok(()));
        };
        let remove = |key: &[u8]| Change { key: key.to_vec(), value: None };
        let (mut opened, lock) = open(dir.path());
        commit(&mut opened, vec![set(b"bag one", &[1; 70]), set(b"bag two", &[2; 30])]);
        commit(&mut opened, vec![set(b"task", &[3; 20])]);
        opened.store.close();
        drop(lock);
        let (mut opened, lock) = open(dir.path());
        commit(&mut opened, vec![set(b"bag two", &[4; 25]), set(b"bag three", &[5; 90]), remove(b"task")]);
        commit(&mut opened, vec![set(b"bag four", &[6; 40])]);
        let killed = read_files(dir.path());
        opened.store.close();
        drop(lock);
        let closed = read_files(dir.path());
        Self { states, killed, closed }
    }

    /// The records after `count` commits.
    fn records(&self, count: usize) -> Records {
        self.states[count].clone().into_iter().collect()
    }

    fn all(&self) -> Records {
        self.records(self.states.len() - 1)
    }

    fn journal(files: &Files) -> PathBuf {
        let journals: Vec<&PathBuf> = files.keys().filter(|path| path.starts_with(JOURNAL_DIR)).collect();
        assert_eq!(journals.len(), 1, "one generation");
        journals[0].clone()
    }
}

/// The bytes of a file to flip: all up to the last that is not 0 and those right after it, and some of the space that
/// sled allocated and did not use.
fn worth_flipping(bytes: &[u8]) -> Vec<usize> {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let near = (used + 64).min(bytes.len());
    (0..near).chain((near..bytes.len()).step_by(9973)).collect()
}

/// Every byte that was ever written, of every file.
#[test]
fn no_flipped_byte_of_a_store_costs_anything() {
    let small = Small::make();
    for (what, files) in [("killed", &small.killed), ("closed", &small.closed)] {
        let places: Vec<(&PathBuf, usize)> = files
            .iter()
            .flat_map(|(path, bytes)| worth_flipping(bytes).into_iter().map(move |at| (path, at)))
            .collect();
        let sizes = files.iter().map(|(path, bytes)| (path, bytes.len(), worth_flipping(bytes).len()));
        println!("{what}: {:?}", sizes.collect::<Vec<_>>());
        let (taken, noticed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(&(path, at)) = places.get(taken.fetch_add(1, Ordering::Relaxed)) {
                        let was_set_aside = flip(&small, files, path, at);
                        noticed.fetch_add(usize::from(was_set_aside), Ordering::Relaxed);
                    }
                });
            }
        });
        let (places, noticed) = (places.len(), noticed.into_inner());
        println!("{what}: {places} bytes, of which {noticed} were noticed, and their files set aside");
        assert!(noticed > places / 2, "{noticed} of {places}");
    }
}

/// Flips one bit, opens the store, and checks its records. True if the damaged file was set aside.
fn flip(small: &Small, files: &Files, path: &Path, at: usize) -> bool {
    let mut files = files.clone();
    let damaged = files.get_mut(path).unwrap();
    damaged[at] ^= 1 << (at % 8);
    let damaged = damaged.clone();
    let dir = write_files(&files);
    let (opened, lock) = open(dir.path());
    assert_eq!(opened.records, small.all(), "{path:?} at {at}");
    assert_eq!((opened.damaged.len(), opened.commits_lost), (0, 0), "{path:?} at {at}");
    let is_ours = path.starts_with(JOURNAL_DIR);
    assert!(opened.set_aside.is_some() || !is_ours, "{path:?} at {at}: our own file is damaged and nobody noticed");
    if let Some(aside) = &opened.set_aside {
        let name = if is_ours { Path::new(JOURNAL_DIR) } else { path };
        assert!(fs::read(aside.join(name)).unwrap() == damaged, "{path:?} at {at}: what is kept is not what was there");
        let why = fs::read_to_string(aside.join("why.txt")).unwrap();
        assert!(why.contains("nothing that was acknowledged is lost"), "{path:?} at {at}: {why}");
    }
    let was_set_aside = opened.set_aside.is_some();
    // The store works, and repaired files stay repaired. Unnoticed damage in sled's files may show at the next opening.
    if at.is_multiple_of(16) || !was_set_aside {
        let Opened { store, mut results, .. } = opened;
        store.try_commit(vec![set(b"new", b"1")], 1).unwrap();
        assert_eq!(next(&mut results).result, Ok(()), "{path:?} at {at}");
        store.close();
        drop(lock);
        let (again, _lock) = open(dir.path());
        assert_eq!((again.damaged.len(), again.commits_lost), (0, 0), "{path:?} at {at}");
        assert_eq!(again.records.len(), small.all().len() + 1, "{path:?} at {at}");
        assert!(again.set_aside.is_none() || !was_set_aside, "{path:?} at {at}: what was written anew is damaged");
    }
    was_set_aside
}

/// After a power cut the count of acknowledged commits may be older than the journal's end.
#[test]
fn a_truncated_journal_restores_an_earlier_moment() {
    let small = Small::make();
    let journal = Small::journal(&small.killed);
    let length = small.killed[&journal].len();
    let mut counts = [0; 5];
    for knows_count in [true, false] {
        for cut in 0..length {
            let mut files = small.killed.clone();
            files.get_mut(&journal).unwrap().truncate(cut);
            if !knows_count {
                files.remove(Path::new(MARK_FILE));
            }
            let dir = write_files(&files);
            let (opened, _lock) = open(dir.path());
            let count = (0..small.states.len()).find(|count| small.records(*count) == opened.records);
            let count = count.unwrap_or_else(|| panic!("cut at {cut}: {:?} never was", opened.records));
            assert!(count >= 2, "cut at {cut}: sled had more");
            assert!(opened.damaged.is_empty());
            let lost = (small.states.len() - 1 - count) as u64;
            assert_eq!(opened.commits_lost, if knows_count { lost } else { 0 }, "cut at {cut}");
            counts[count] += 1;
        }
    }
    println!("of {} times, so many commits were left: {counts:?}", 2 * length);
    assert!(counts[2] > 0 && counts[3] > 0 && counts[4] > 0, "{counts:?}");
}

#[test]
fn a_missing_file_costs_nothing_or_is_reported() {
    let small = Small::make();
    let all = small.states.len() - 1;
    for (files, in_sled) in [(&small.closed, all), (&small.killed, 2)] {
        let names: Vec<PathBuf> = files.keys().cloned().collect();
        let parts = [STORE_DIR, JOURNAL_DIR].map(PathBuf::from);
        for missing in names.iter().chain(&parts) {
            let dir = write_files(files);
            let path = dir.path().join(missing);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
            let (opened, lock) = open(dir.path());
            let count = if missing.starts_with(JOURNAL_DIR) { in_sled } else { all };
            assert_eq!(opened.records, small.records(count), "{missing:?}");
            assert_eq!(opened.commits_lost, (all - count) as u64, "{missing:?}");
            opened.store.close();
            drop(lock);
            let (again, _lock) = open(dir.path());
            assert!(sound(&again), "{missing:?} is told once, not at every start");
            assert_eq!(again.records, small.records(count));
        }
    }
}

#[test]
fn an_outdated_generation_loses_nothing() {
    let small = Small::make();
    let journal = Small::journal(&small.killed);
    let generation: u64 = journal.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let name = |number: u64| Path::new(JOURNAL_DIR).join(format!("{number:08}"));
    // One that was to be removed when the agent was killed, and one that was never completed.
    let mut files = small.killed.clone();
    files.insert(name(generation - 1), small.closed[&journal].clone());
    files.insert(Path::new(JOURNAL_DIR).join("00000099.new"), b"half".to_vec());
    let dir = write_files(&files);
    let (opened, _lock) = open(dir.path());
    assert!(sound(&opened));
    assert_eq!(opened.records, small.all());
    assert_eq!(fs::read_dir(dir.path().join(JOURNAL_DIR)).unwrap().count(), 1, "the others are gone");

    // An old journal beside a new database, as from an incomplete backup.
    let mut files = small.closed.clone();
    let early = early_journal(&small);
    files.insert(journal.clone(), early.clone());
    let dir = write_files(&files);
    let (opened, _lock) = open(dir.path());
    assert_eq!((opened.records, opened.commits_lost), (small.all(), 0));
    assert!(fs::read(opened.set_aside.unwrap().join(JOURNAL_DIR)).unwrap() == early);

    // The newest is damaged beyond healing, and so is sled: the older one, and the sound entries of the newest.
    let mut files = small.killed.clone();
    let newest = files.insert(journal, early).unwrap();
    let half = newest.len() / 2;
    let newest = newest.into_iter().enumerate().map(|(at, byte)| byte ^ u8::from(at < half)).collect();
    files.insert(name(generation + 1), newest);
    files.get_mut(&Path::new(STORE_DIR).join("conf")).unwrap()[20] ^= 1;
    let dir = write_files(&files);
    let (opened, _lock) = open(dir.path());
    assert!(opened.commits_lost > 0 && opened.set_aside.is_some());
    for (key, value) in small.records(2) {
        let now = opened.records.iter().find(|(found, _)| *found == key).map(|(_, value)| value);
        let was_changed = small.states[3..].iter().any(|state| state.get(&key) != Some(&value));
        assert!(now == Some(&value) || was_changed, "{key:?}");
    }
}

/// The journal after two commits.
fn early_journal(small: &Small) -> Vec<u8> {
    let journal = Small::journal(&small.killed);
    let cut = (0..small.killed[&journal].len()).find_map(|cut| {
        let mut files = small.killed.clone();
        files.get_mut(&journal).unwrap().truncate(cut);
        files.retain(|path, _| path.starts_with(JOURNAL_DIR));
        let dir = write_files(&files);
        let (opened, _lock) = open(dir.path());
        (opened.records == small.records(2)).then(|| files[&journal].clone())
    });
    cut.unwrap()
}

/// Beyond the guarantee: several damaged places in both copies.
#[test]
fn two_damaged_copies_keep_sound_records_and_report_the_loss() {
    let small = Small::make();
    let journal = Small::journal(&small.killed);
    let mut harmed = 0;
    let length = small.killed[&journal].len();
    for first in (0..length).step_by(13) {
        for sled_file in ["conf", "db"] {
            let mut files = small.killed.clone();
            for at in [first, (first + 151) % length, (first + 302) % length] {
                files.get_mut(&journal).unwrap()[at] ^= 0x40;
            }
            let bytes = files.get_mut(&Path::new(STORE_DIR).join(sled_file)).unwrap();
            let middle = bytes.len() / 3;
            bytes[middle] ^= 0x40;
            let dir = write_files(&files);
            let (opened, lock) = open(dir.path());
            assert!(opened.set_aside.is_some(), "{first}");
            for (key, value) in &opened.records {
                let was = small.states.iter().any(|state| state.get(key) == Some(value));
                assert!(was, "{first}: {key:?} never had that value");
            }
            if opened.records != small.all() {
                harmed += 1;
                assert!(opened.commits_lost > 0 || !opened.damaged.is_empty(), "{first}, {sled_file}: nothing said");
            }
            opened.store.close();
            drop(lock);
            let (again, _lock) = open(dir.path());
            assert!(sound(&again), "{first}: told once, not at every start");
        }
    }
    println!("{harmed} times something was lost, and told");
    assert!(harmed > 0);
}

/// Wrong records that sled returns without an error.
#[test]
fn records_lost_or_changed_by_sled_are_noticed() {
    let (dir, records) = filled(10);
    let harm = |harm: &dyn Fn(&sled::Db)| {
        let copied = tempfile::tempdir().unwrap();
        copy(dir.path(), copied.path());
        let db = database(copied.path());
        harm(&db);
        drop(db);
        let (opened, _lock) = open(copied.path());
        assert_eq!(opened.records, records);
        assert!(opened.damaged.is_empty() && opened.commits_lost == 0 && opened.set_aside.is_some());
    };
    let key = &records[3].0;
    harm(&|db| drop(db.remove(key).unwrap()));
    harm(&|db| drop(db.remove(COUNT_KEY).unwrap()));
    harm(&|db| drop(db.insert(b"short", &[1, 1]).unwrap()));
    harm(&|db| {
        let mut record = db.get(key).unwrap().unwrap().to_vec();
        *record.last_mut().unwrap() ^= 1;
        db.insert(key, record).unwrap();
    });
    // An outdated sound record, and one of another key.
    harm(&|db| drop(db.insert(key, frame::encode(key, b"old")).unwrap()));
    harm(&|db| drop(db.insert(key, db.get(&records[4].0).unwrap().unwrap()).unwrap()));
}

#[test]
fn the_number_of_damaged_stores_kept_is_bounded() {
    let (dir, records) = filled(3);
    for _ in 0..6 {
        let conf = dir.path().join(STORE_DIR).join("conf");
        let mut bytes = fs::read(&conf).unwrap();
        bytes[20] ^= 0x10;
        fs::write(&conf, bytes).unwrap();
        let (opened, _lock) = open(dir.path());
        assert_eq!(opened.records, records);
    }
    let aside = rebuild::list_aside(dir.path()).unwrap();
    assert_eq!(aside.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [3, 4, 5, 6]);
}

/// sled repairs in place, so a second opening would see the first one's repair unless that is undone.
#[test]
fn an_interrupted_opening_starts_again_from_the_original_files() {
    let small = Small::make();
    let mut files = small.closed.clone();
    let db = Path::new(STORE_DIR).join("db");
    let good = files[&db].clone();
    // Inside written data, not in allocated space.
    let middle = good.iter().rposition(|byte| *byte != 0).unwrap() / 2;
    let damaged: Vec<u8> = good.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == middle)).collect();
    files.insert(db, vec![0; 10]);
    let conf = files[&Path::new(STORE_DIR).join("conf")].clone();
    for (name, bytes) in [("conf", conf), ("db", damaged.clone())] {
        files.insert(Path::new("store.opening").join(name), bytes);
    }
    let dir = write_files(&files);
    fs::create_dir(dir.path().join("store.opening/blobs")).unwrap();
    let (opened, _lock) = open(dir.path());
    assert_eq!((opened.records, opened.commits_lost), (small.all(), 0));
    assert!(fs::read(opened.set_aside.unwrap().join("store/db")).unwrap() == damaged);
    assert!(!dir.path().join("store.opening").exists());
}
