use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::error::DISK_FREE_MIN;
use super::*;

fn open(dir: &Path, quota_bytes: u64) -> Blobs {
    Blobs::open(&dir.join("blobs"), quota_bytes).unwrap()
}

fn files(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

#[test]
fn a_blob_is_found_under_its_hash_and_read_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = open(dir.path(), 1 << 20);
    let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    let hash = blobs.put_bytes(&content).unwrap();
    assert_eq!(hash, blake3::hash(&content));
    let path = blobs.path(hash).unwrap().unwrap();
    assert!(path.to_str().unwrap().ends_with(&format!("/{}/{}", &hash.to_hex()[..2], &hash.to_hex()[2..])));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o400);
    let mut read = Vec::new();
    loop {
        let chunk = blobs.read_chunk(hash, read.len() as u64, 30_000).unwrap().unwrap();
        assert_eq!(chunk.total, 100_000);
        if chunk.bytes.is_empty() {
            break;
        }
        assert!(chunk.bytes.len() <= 30_000);
        read.extend(chunk.bytes);
    }
    assert_eq!(read, content);
    assert_eq!(blobs.read_chunk(hash, u64::MAX, 10).unwrap().unwrap().bytes, b"");
    assert_eq!(blobs.read_chunk(blake3::hash(b"?"), 0, 10).unwrap(), None);

    assert_eq!(blobs.put_durable(&content).unwrap(), hash);
    assert_eq!((blobs.used_bytes(), blobs.len(hash)), (100_000, Some(100_000)));
    assert_eq!(files(&dir.path().join("blobs")), 1);
}

#[test]
fn a_blob_that_found_no_room_makes_room_bytes_zero() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = open(dir.path(), 1000);
    let first = blobs.put_bytes(&[1; 700]).unwrap();
    blobs.pin(first);
    assert_eq!((blobs.room_bytes(), blobs.kept_bytes()), (300, (700, 1000)));
    let mut offered = blobs.receive(blake3::hash(&[2; 400]), 400).unwrap();
    assert!(matches!(offered.write(&[2; 400]), Err(BlobError::Full { .. })));
    assert_eq!(blobs.room_bytes(), 300, "others may offer anything");
    blobs.put_bytes(&[3; 400]).unwrap_err();
    assert_eq!((blobs.room_bytes(), blobs.kept_bytes()), (0, (700, 1000)));
    blobs.set_quota(2000);
    assert_eq!(blobs.room_bytes(), 1300);
    blobs.set_quota(1000);
    blobs.put_bytes(&[3; 400]).unwrap_err();
    blobs.unpin(first);
    assert_eq!(blobs.room_bytes(), 1000);
}

#[test]
fn a_restart_keeps_the_whole_and_drops_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = open(dir.path(), 1 << 20);
    let kept = blobs.put_durable(b"kept").unwrap();
    let torn = blobs.put_bytes(b"torn by a power cut").unwrap();
    let flipped = blobs.put_bytes(b"flipped").unwrap();
    let mut unfinished = blobs.receive(blake3::hash(b"unfinished"), 100).unwrap();
    unfinished.write(b"unfin").unwrap();
    std::mem::forget(unfinished); // as if killed
    for (hash, content) in [(torn, &b"torn by"[..]), (flipped, b"fl1pped")] {
        let path = blobs.path(hash).unwrap().unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, content).unwrap();
    }
    drop(blobs);
    assert_eq!(files(&dir.path().join("blobs")), 4);
    let blobs = open(dir.path(), 1 << 20);
    assert_eq!(files(&dir.path().join("blobs")), 3);
    assert!(blobs.path(kept).unwrap().is_some());
    assert_eq!(blobs.path(torn).unwrap(), None);
    assert_eq!(blobs.read_chunk(flipped, 0, 10).unwrap(), None);
    assert_eq!(blobs.used_bytes(), 4);
    assert_eq!(blobs.put_bytes(b"flipped").unwrap(), flipped);
    assert!(blobs.path(flipped).unwrap().is_some());
}

/// A directory at its path stands for any read error: root may read every file.
#[test]
fn a_blob_that_cannot_be_read_at_the_moment_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = open(dir.path(), 1 << 20);
    let (hash, gone) = (blobs.put_durable(b"kept").unwrap(), blobs.put_durable(b"gone").unwrap());
    let [path, lost] = [hash, gone].map(|hash| blobs.path(hash).unwrap().unwrap());
    drop(blobs);
    let blobs = open(dir.path(), 1 << 20);
    let aside = dir.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    fs::create_dir(&path).unwrap();
    fs::remove_file(lost).unwrap();
    for _ in 0..2 {
        assert!(matches!(blobs.path(hash), Err(BlobError::Io { .. })));
        assert!(matches!(blobs.read_chunk(hash, 0, 10), Err(BlobError::Io { .. })));
        assert!(matches!(blobs.make_durable(hash), Err(BlobError::Io { .. })));
    }
    assert_eq!(blobs.path(gone).unwrap(), None);
    assert_eq!((blobs.len(hash), blobs.len(gone)), (Some(4), None));
    fs::remove_dir(&path).unwrap();
    fs::rename(&aside, &path).unwrap();
    assert_eq!(blobs.read_chunk(hash, 0, 10).unwrap().unwrap().bytes, b"kept");
}

#[test]
fn a_doubted_blob_is_hashed_again() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = open(dir.path(), 1 << 20);
    let hashes = [&b"sound"[..], b"changed", b"gone"].map(|content| blobs.put_durable(content).unwrap());
    let [_, changed, gone] = hashes.map(|hash| blobs.path(hash).unwrap().unwrap());
    fs::remove_file(&changed).unwrap();
    fs::write(&changed, b"CHANGED").unwrap();
    fs::remove_file(gone).unwrap();
    assert_eq!(hashes.map(|hash| blobs.is_durable(hash)), [true; 3]);
    hashes.iter().for_each(|&hash| blobs.doubt(hash));
    assert_eq!(hashes.map(|hash| blobs.is_durable(hash)), [false; 3]);
    assert_eq!(hashes.map(|hash| blobs.path(hash).unwrap().is_some()), [true, false, false]);
    assert_eq!(blobs.put_durable(b"changed").unwrap(), hashes[1]);
    assert_eq!(blobs.read_chunk(hashes[1], 0, 10).unwrap().unwrap().bytes, b"changed");
}

#[test]
fn the_least_recently_used_goes_and_the_pinned_stays() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = open(dir.path(), 1000);
    let [a, b, c] = [1, 2, 3].map(|n| blobs.put_bytes(&[n; 300]).unwrap());
    assert!(blobs.path(a).unwrap().is_some());
    let d = blobs.put_bytes(&[4; 300]).unwrap();
    assert_eq!([a, b, c, d].map(|hash| blobs.path(hash).unwrap().is_some()), [true, false, true, true]);
    blobs.pin(a);
    blobs.pin(a);
    blobs.unpin(a);
    blobs.pin(c);
    let error = blobs.put_bytes(&[5; 401]).unwrap_err();
    assert!(matches!(error, BlobError::Full { needed_bytes: 401, kept_bytes: 600, quota_bytes: 1000 }), "{error}");
    assert!(error.to_string().contains("raise the disk quota"), "{error}");
    assert!(blobs.path(d).unwrap().is_some(), "what cannot fit evicts nobody");
    assert_eq!(blobs.used_bytes(), 900);
    let e = blobs.put_bytes(&[5; 400]).unwrap();
    assert_eq!([a, c, d, e].map(|hash| blobs.path(hash).unwrap().is_some()), [true, true, false, true]);
    blobs.unpin(a);
    blobs.put_bytes(&[6; 600]).unwrap();
    assert_eq!([a, c, e].map(|hash| blobs.path(hash).unwrap().is_some()), [false, true, false]);
    // Pinned before it is stored.
    let late = blake3::hash(&[7; 100]);
    blobs.pin(late);
    blobs.put_bytes(&[7; 100]).unwrap();
    blobs.put_bytes(&[8; 600]).unwrap();
    assert!(blobs.path(late).unwrap().is_some());
    drop(blobs);
    let blobs = open(dir.path(), 650);
    assert!(blobs.used_bytes() <= 650, "a smaller quota holds from the start");
}

#[test]
fn a_download_is_checked_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = open(dir.path(), 1000);
    let hash = blake3::hash(b"hello world");
    let mut writer = blobs.receive(hash, 11).unwrap();
    writer.write(b"hello ").unwrap();
    assert_eq!((writer.written(), blobs.used_bytes()), (6, 6));
    writer.write(b"world").unwrap();
    assert_eq!(blobs.path(hash).unwrap(), None, "not before it is finished");
    assert_eq!(writer.finish().unwrap(), hash);
    assert_eq!(fs::read(blobs.path(hash).unwrap().unwrap()).unwrap(), b"hello world");

    let mut writer = blobs.receive(blake3::hash(b"x"), 11).unwrap();
    writer.write(b"y").unwrap();
    assert!(matches!(writer.finish(), Err(BlobError::Mismatch { .. })));
    let mut writer = blobs.receive(hash, 10).unwrap();
    assert!(matches!(writer.write(b"hello world"), Err(BlobError::TooLarge { size_max: 10, .. })));
    drop(writer);
    // Two that fit one by one and not together.
    let mut first = blobs.receive(hash, 2000).unwrap();
    let mut second = blobs.receive(hash, 2000).unwrap();
    first.write(&[0; 600]).unwrap();
    assert!(matches!(second.write(&[0; 600]), Err(BlobError::Full { .. })));
    drop((first, second));
    assert_eq!(blobs.used_bytes(), 11, "what did not finish leaves nothing");
    let mut writer = blobs.receive(hash, 2000).unwrap();
    writer.write(&[0; 995]).unwrap();
    drop(writer);
    assert_eq!(files(&dir.path().join("blobs")), 0, "a download may push an idle blob out");
}

#[test]
fn many_threads_agree_on_the_stored_blobs() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = open(dir.path(), 4000);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let blobs = &blobs;
            scope.spawn(move || {
                for round in 0..300_u32 {
                    let content = vec![((round * 7 + thread) % 20) as u8; 400];
                    let hash = blake3::hash(&content);
                    blobs.pin(hash);
                    match blobs.put_bytes(&content) {
                        Ok(_) => assert_eq!(fs::read(blobs.path(hash).unwrap().unwrap()).unwrap(), content),
                        Err(error) => assert!(matches!(error, BlobError::Full { .. }), "{error}"),
                    }
                    blobs.unpin(hash);
                }
            });
        }
    });
    assert!(blobs.used_bytes() <= 4000);
    assert_eq!(files(&dir.path().join("blobs")) as u64 * 400, blobs.used_bytes());
}

/// On a full disk unneeded blobs are evicted however large the quota is; pinned ones stay.
#[test]
fn eviction_follows_the_free_space_of_the_disk() {
    let Some(disk) = idlewood_testing::SmallDisk::mount("64m") else {
        return;
    };
    let blobs = open(disk.path(), 1 << 30);
    let put = |number: u8| blobs.put_bytes(&vec![number; 4 << 20]);
    let kept = put(0).unwrap();
    blobs.pin(kept);
    let copies: Vec<Hash> = (1..=30).map(|number| put(number).unwrap()).collect();
    assert!(disk.free_bytes() >= DISK_FREE_MIN, "{}", disk.free_bytes());
    let here = copies.iter().filter(|copy| blobs.len(**copy).is_some()).count();
    assert!((8..12).contains(&here), "{here}: the disk has room for 11 beside what stays free");
    assert!(blobs.len(kept).is_some() && blobs.len(copies[29]).is_some(), "the oldest of those that nobody needs went");
    assert!((44 << 20..=48 << 20).contains(&blobs.limit_bytes()), "{}", blobs.limit_bytes());
    // Other programs fill the disk.
    let filler = disk.fill(2 << 20);
    put(40).expect("copies make room");
    copies.iter().for_each(|copy| blobs.pin(*copy));
    let more = disk.fill_more(1 << 20);
    let error = put(41).unwrap_err();
    assert!(matches!(error, BlobError::DiskFull { .. }) && error.is_for_want_of_room(), "{error}");
    assert!(error.to_string().contains("free some space"), "{error}");
    assert!(blobs.make_room_in_records(100).unwrap_err().is_for_want_of_room());
    [filler, more].iter().for_each(|filler| fs::remove_file(filler).unwrap());
    put(41).unwrap();
}

#[test]
fn what_nothing_needs_is_removed_on_demand_and_the_rest_stays() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = open(dir.path(), 1 << 20);
    let [kept, first, second] = [[1; 100], [2; 100], [3; 100]].map(|content| blobs.put_bytes(&content).unwrap());
    blobs.pin(kept);
    let mut incoming = blobs.resume(blake3::hash(b"more"), 100, idlewood_scheduler::BagId([1; 32])).unwrap();
    incoming.write(idlewood_overlay::PeerId([2; 32]), &[4; 50]).unwrap();
    drop(incoming);
    let all = Unneeded { files: 2, bytes: 200, partial_files: 1, partial_bytes: 50 };
    assert_eq!((blobs.unneeded(), files(&dir.path().join("blobs"))), (all, 4));
    assert_eq!(blobs.remove_unneeded(), all);
    assert_eq!((blobs.unneeded(), files(&dir.path().join("blobs"))), (Unneeded::default(), 1));
    assert_eq!((blobs.len(kept), blobs.len(first), blobs.len(second)), (Some(100), None, None));
    assert_eq!(blobs.used_bytes(), 100);
}
