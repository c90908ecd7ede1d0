//! The store on a disk that fills up.

use super::*;

/// A small file system that goes away with this.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(dir))
    }

    /// A file that takes all room but `room_bytes`.
    fn fill(&self, room_bytes: u64) -> PathBuf {
        let disk = rustix::fs::statvfs(self.0.path()).unwrap();
        let taken = (disk.f_bavail * disk.f_frsize).saturating_sub(room_bytes);
        let filler = self.0.path().join("filler");
        fs::write(&filler, vec![0; usize::try_from(taken).unwrap()]).unwrap();
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn a_full_disk_fails_commits_until_there_is_room() {
    let Some(disk) = SmallDisk::mount("32m") else {
        println!("not tested: this user may not mount a file system");
        return;
    };
    let dir = disk.0.path().join("state");
    let (mut opened, lock) = open(&dir);
    let commit = |opened: &mut Opened, key: &[u8]| {
        opened.store.try_commit(vec![set(key, &[7; 1000])], 1).unwrap();
        next(&mut opened.results).result
    };
    assert_eq!(commit(&mut opened, b"before"), Ok(()));
    let filler = disk.fill(4 << 20);
    let error = commit(&mut opened, b"full").unwrap_err();
    assert!(matches!(error, CommitError::DiskFull { .. }), "{error}");
    fs::remove_file(&filler).unwrap();
    // A process that another test has just forked may hold the file for a moment more.
    let deadline = Instant::now() + Duration::from_secs(10);
    while commit(&mut opened, b"after").is_err() {
        assert!(Instant::now() < deadline, "there is room again");
        std::thread::sleep(Duration::from_millis(10));
    }
    opened.store.close();
    drop(lock);
    let (opened, _lock) = open(&dir);
    assert!(sound(&opened));
    assert_eq!(opened.records.iter().map(|(key, _)| key.as_slice()).collect::<Vec<_>>(), [&b"after"[..], b"before"]);
}

/// Not a test: the process that meets a full disk without the check before it.
#[test]
#[ignore = "started by another test"]
fn unchecked() {
    let Ok(dir) = std::env::var(VICTIM_DIR) else { return };
    let lock = StateLock::acquire(Path::new(&dir)).unwrap();
    let mut opened = Store::open_with(&lock, Thresholds { free_bytes_min: 0, ..THRESHOLDS }).unwrap();
    let mut full = 0;
    for number in 0..2000_u64 {
        opened.store.try_commit(vec![set(&number.to_be_bytes(), &[8; 30_000])], number).unwrap();
        match next(&mut opened.results).result {
            Ok(()) => {
                println!("acknowledged {number}");
            }
            // The journal leaves nothing of it behind.
            Err(CommitError::DiskFull { .. }) => {
                full += 1;
                if full == 3 {
                    // Now sled meets the full disk, too.
                    opened.store.close();
                    println!("closed");
                    return;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_disk_that_fills_under_sled_costs_nothing_but_a_restart() {
    let Some(disk) = SmallDisk::mount("48m") else {
        println!("not tested: this user may not mount a file system");
        return;
    };
    let dir = disk.0.path().join("state");
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let filler = disk.fill(8 << 20);
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::full_disk::unchecked", "--ignored", "--nocapture"])
            .env(VICTIM_DIR, &dir)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && text.contains("closed"),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        acknowledged.extend(text.lines().filter_map(|line| line.split_once("acknowledged ")?.1.parse::<u64>().ok()));
        fs::remove_file(&filler).unwrap();
        let (mut opened, _lock) = open(&dir);
        // sled's own files may be damaged by that, and are set aside then; the journal has all.
        assert!(opened.damaged.is_empty() && opened.commits_lost == 0);
        if let Some(aside) = &opened.set_aside {
            fs::remove_dir_all(aside).unwrap();
        }
        for number in &acknowledged {
            let key = number.to_be_bytes();
            assert!(opened.records.iter().any(|(found, _)| *found == key), "{number} was acknowledged and is gone");
        }
        // Half of it goes, so that the next round has something to fill.
        let half = acknowledged.split_off(acknowledged.len() / 2);
        let changes =
            half.iter().map(|number| Change { key: number.to_be_bytes().to_vec(), value: None }).collect::<Vec<_>>();
        opened.store.try_commit(changes, 1).unwrap();
        let result = next(&mut opened.results).result;
        println!("round {round}: {} records, then {result:?}", opened.records.len());
        assert!(matches!(result, Ok(()) | Err(CommitError::DiskFull { .. })), "{result:?}");
    }
    assert!(!acknowledged.is_empty());
}
