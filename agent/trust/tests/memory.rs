//! Memory that decoding hostile manifests and outputs takes.

use std::collections::BTreeMap;

use idlewood_overlay::PeerId;
use idlewood_scheduler::BlobId;
use idlewood_testing::Counting;
use idlewood_trust::manifest::{Entry, Input, MANIFEST_VERSION, Manifest, TaskOutput};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

fn manifest() -> Manifest {
    Manifest {
        version: MANIFEST_VERSION,
        name: "bag".to_owned(),
        submitter: PeerId([2; 32]),
        nonce: 3,
        made_s: 1,
        tasks: 1,
        program: Input { name: "program.wasm".to_owned(), blob: BlobId([1; 32]), bytes: 1 },
        args: Vec::new(),
        fields: None,
        entries: Vec::new(),
        inputs: Vec::new(),
        stdin: None,
        env: BTreeMap::new(),
        memory_bytes: 1 << 20,
        disk_bytes: 1 << 20,
        time_limit_s: 1,
        speed_mops: 0,
        success_codes: Vec::new(),
        deterministic: false,
        native: false,
        executable: Vec::new(),
        own: Vec::new(),
        outputs: Vec::new(),
        output_bytes: None,
        folders: Vec::new(),
        own_folders: Vec::new(),
        rounds: None,
        blob: None,
        source: None,
        line: None,
    }
}

/// `encoded` with `items` put into the empty list or map of this name: `head` is its CBOR type.
fn stuffed(encoded: &[u8], name: &str, head: u8, count: u32, items: &[u8]) -> Vec<u8> {
    let key = [&[0x60 + name.len() as u8], name.as_bytes(), &[head]].concat();
    let at = encoded.windows(key.len()).position(|window| window == key).expect("an empty list of this name");
    let (before, after) = (&encoded[..at + key.len() - 1], &encoded[at + key.len()..]);
    [before, &[head + 0x1a], &count.to_be_bytes(), items, after].concat()
}

/// The peak of memory that `decode` uses.
fn peak(decode: impl FnOnce()) -> usize {
    let before = ALLOCATOR.restart_peak();
    decode();
    ALLOCATOR.peak() - before
}

/// One test, so that nothing else allocates meanwhile.
#[test]
fn decoding_hostile_bytes_takes_little_memory() {
    const LIST: u8 = 0x80;
    const MAP: u8 = 0xa0;
    const COUNT: u32 = 5 << 18;
    let empty = manifest();
    let (manifest, output) = (empty.encode(), TaskOutput { left_out: Vec::new(), ..TaskOutput::default() });
    let many = |item: &[u8]| item.repeat(COUNT as usize);
    // Distinct keys of four letters each.
    let key = |number: u32| [18, 12, 6, 0].map(|shift| b'0' + (number >> shift & 63) as u8);
    let numbered = |value: u8| -> Vec<u8> {
        (0..COUNT).flat_map(|number| [&[0x64][..], &key(number), &[value]].concat()).collect()
    };
    for (name, head, items, bytes_max) in [
        ("args", LIST, many(b"\x60"), 4 << 20),
        ("entries", LIST, many(b"\xa1\x64text\x60"), 150 << 20),
        ("inputs", LIST, many(b"\xf6"), 1 << 20),
        ("env", MAP, numbered(0x60), 16 << 20),
        ("success_codes", LIST, many(b"\x00"), 1 << 20),
    ] {
        let hostile = stuffed(&manifest, name, head, COUNT, &items);
        let peak = peak(|| drop(Manifest::decode(&hostile).expect_err(name)));
        assert!(peak < bytes_max, "{name}: {peak} bytes for {} on the wire", hostile.len());
    }
    let hostile = stuffed(&output.encode(), "files", MAP, COUNT, &numbered(0x40));
    let taken = peak(|| drop(TaskOutput::decode(&hostile).expect_err("files")));
    assert!(taken < 2 << 20, "files: {taken}");
    let one = TaskOutput { left_out: vec![String::new()], ..TaskOutput::default() }.encode();
    let end = one.windows(9).position(|window| window == b"left_out\x81").expect("it is there") + 8;
    let hostile = [&one[..end], &[0x9a], &COUNT.to_be_bytes(), &many(b"\x60"), &one[end + 2..]].concat();
    let taken = peak(|| drop(TaskOutput::decode(&hostile).expect_err("left_out")));
    assert!(taken < 2 << 20, "left_out: {taken}");
    // The largest valid bags still decode.
    let entries = (0..1_000_000).map(|number: u32| Entry { text: number.to_string(), input: None }).collect();
    let bag = Manifest { tasks: 1_000_000, entries, success_codes: vec![0], ..empty };
    assert_eq!(Manifest::decode(&bag.encode()).expect("it is sound").tasks, 1_000_000);
}
