//! One block of the journal: a payload written at once, with enough redundancy to heal one damaged stretch.
//!
//! ```text
//! header | the same header again | payload | parity
//! ```
//!
//! The header holds the payload's hash. The parity has as many bytes as a *row*: its byte j is the exclusive or of the
//! payload's bytes j, j + row, j + 2 row, …, so that any row of consecutive bytes can be computed from it and all
//! others. A row is a sixteenth of the payload, and at least 64 bytes; a shorter payload is its own parity. To heal a
//! payload, each stretch of half a row in turn is assumed damaged and recomputed, until the hash fits: so a flipped
//! byte costs nothing, wherever it is.
//!
//! Left out: damage in more than one place of a block. Its sound entries are recovered by [`super::journal::salvage`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// First bytes of a header: magic, and the version of this format.
const MAGIC: [u8; 4] = *b"iwj\x01";
/// Bytes kept of a payload's BLAKE3.
const HASH_BYTES: usize = 16;
/// Bytes kept of a header's BLAKE3.
const SUM_BYTES: usize = 8;
/// Magic, kind, length, two counts, two hashes.
pub(super) const HEADER_BYTES: usize = 4 + 1 + 4 + 8 + 8 + HASH_BYTES + SUM_BYTES;

/// Rows of a payload, and the least length of one.
const ROWS: usize = 16;
const ROW_BYTES_MIN: usize = 64;

/// Bytes of a file that are searched at once for the next header.
const WINDOW_BYTES: usize = 256 * 1024;

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A part of the snapshot with which a journal begins.
    Part,
    /// The end of that snapshot, which is complete.
    Whole,
    /// Commits that became durable together.
    Group,
    /// sled holds everything up to here, durably.
    Indexed,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Self::Part => 1,
            Self::Whole => 2,
            Self::Group => 3,
            Self::Indexed => 4,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Part, Self::Whole, Self::Group, Self::Indexed].into_iter().find(|kind| kind.byte() == byte)
    }
}

/// The header of a block, written twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Bytes of the payload.
    payload_bytes: u32,
    /// Commits before this block and including it: the `after` of a block is the `before` of the next.
    pub(super) before: u64,
    pub(super) after: u64,
    hash: [u8; HASH_BYTES],
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.push(self.kind.byte());
        bytes.extend(self.payload_bytes.to_le_bytes());
        bytes.extend(self.before.to_le_bytes());
        bytes.extend(self.after.to_le_bytes());
        bytes.extend(self.hash);
        bytes.extend(&blake3::hash(&bytes).as_bytes()[..SUM_BYTES]);
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&bytes);
        header
    }

    /// The header that these bytes begin with, if it is sound.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>()?;
        let (body, sum) = bytes.split_at(HEADER_BYTES - SUM_BYTES);
        if !body.starts_with(&MAGIC) || *sum != blake3::hash(body).as_bytes()[..SUM_BYTES] {
            return None;
        }
        let word = |at: usize| body.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        Some(Self {
            kind: Kind::from_byte(body[4])?,
            payload_bytes: u32::from_le_bytes(body[5..9].try_into().ok()?),
            before: word(9)?,
            after: word(17)?,
            hash: body[25..].try_into().ok()?,
        })
    }

    fn fits(&self, payload: &[u8]) -> bool {
        blake3::hash(payload).as_bytes()[..HASH_BYTES] == self.hash
    }

    /// Bytes of the whole block.
    fn block_bytes(&self) -> u64 {
        let payload_bytes = self.payload_bytes as usize;
        (2 * HEADER_BYTES + payload_bytes + row_bytes(payload_bytes)) as u64
    }
}

fn row_bytes(payload_bytes: usize) -> usize {
    payload_bytes.div_ceil(ROWS).max(payload_bytes.min(ROW_BYTES_MIN))
}

fn parity(payload: &[u8]) -> Vec<u8> {
    let row_bytes = row_bytes(payload.len());
    let mut parity = vec![0; row_bytes];
    for row in payload.chunks(row_bytes.max(1)) {
        parity.iter_mut().zip(row).for_each(|(sum, byte)| *sum ^= byte);
    }
    parity
}

/// The bytes of a block; `None` where the payload is too long for one.
pub(super) fn encode(kind: Kind, before: u64, after: u64, payload: &[u8]) -> Option<Vec<u8>> {
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(&blake3::hash(payload).as_bytes()[..HASH_BYTES]);
    let header = Header { kind, payload_bytes: payload.len().try_into().ok()?, before, after, hash };
    let parity = parity(payload);
    let mut block = Vec::with_capacity(2 * HEADER_BYTES + payload.len() + parity.len());
    block.extend(header.encode());
    block.extend(header.encode());
    block.extend(payload);
    block.extend(parity);
    Some(block)
}

/// The payload restored by the parity, if it then has the right hash.
fn heal(header: &Header, payload: &[u8], stored_parity: &[u8]) -> Option<Vec<u8>> {
    let row_bytes = row_bytes(payload.len());
    let syndrome: Vec<u8> = parity(payload).iter().zip(stored_parity).map(|(is, was)| is ^ was).collect();
    if syndrome.iter().all(|byte| *byte == 0) {
        return None;
    }
    (0..payload.len()).step_by(row_bytes.div_ceil(2)).find_map(|start| {
        let mut healed = payload.to_vec();
        let end = payload.len().min(start + row_bytes);
        for (position, byte) in healed.iter_mut().enumerate().take(end).skip(start) {
            *byte ^= syndrome[position % row_bytes];
        }
        header.fits(&healed).then_some(healed)
    })
}

/// What was read at a place of a journal.
#[derive(Debug)]
pub(super) enum Found {
    /// A block, and the place of the next one.
    Sound { header: Header, payload: Vec<u8>, next: u64, was_healed: bool },
    /// A block whose payload is damaged beyond healing.
    Damaged { header: Header, payload: Vec<u8>, next: u64 },
    /// A block of which only the beginning is in the file.
    Cut { header: Header, payload: Vec<u8> },
    /// Bytes, but no block.
    Nothing,
    /// The end of the file.
    End,
}

/// Reads the block at `at`. For a block cut short, `payload` is complete if it could be restored, else empty.
pub(super) fn read(file: &File, at: u64) -> io::Result<Found> {
    let left_bytes = file.metadata()?.len().saturating_sub(at);
    if left_bytes == 0 {
        return Ok(Found::End);
    }
    let mut headers = [0; 2 * HEADER_BYTES];
    let present = headers.len().min(usize::try_from(left_bytes).unwrap_or(usize::MAX));
    file.read_exact_at(&mut headers[..present], at)?;
    let copies = [Header::decode(&headers), Header::decode(&headers[HEADER_BYTES..])];
    let Some(header) = copies.into_iter().flatten().next() else { return Ok(Found::Nothing) };
    let header_was_healed = copies[0] != copies[1];
    let is_cut = header.block_bytes() > left_bytes;
    let payload_bytes = header.payload_bytes as usize;
    let mut body =
        vec![0; usize::try_from(left_bytes.min(header.block_bytes())).unwrap_or(0).saturating_sub(2 * HEADER_BYTES)];
    file.read_exact_at(&mut body, at + 2 * HEADER_BYTES as u64)?;
    if body.len() < payload_bytes {
        // The parity is missing, too.
        return Ok(Found::Cut { header, payload: Vec::new() });
    }
    body.resize(payload_bytes + row_bytes(payload_bytes), 0);
    let stored_parity = body.split_off(payload_bytes);
    let next = at + header.block_bytes();
    let payload = body;
    let fits = header.fits(&payload);
    if is_cut {
        return Ok(Found::Cut { header, payload: if fits { payload } else { Vec::new() } });
    }
    if fits {
        let was_healed = header_was_healed || parity(&payload) != stored_parity;
        return Ok(Found::Sound { header, payload, next, was_healed });
    }
    Ok(match heal(&header, &payload, &stored_parity) {
        Some(payload) => Found::Sound { header, payload, next, was_healed: true },
        None => Found::Damaged { header, payload, next },
    })
}

/// The place of the next block after `at` with a sound header.
pub(super) fn find_next(file: &File, at: u64) -> io::Result<Option<u64>> {
    let length = file.metadata()?.len();
    let mut start = at + 1;
    while start < length {
        let mut window = vec![0; WINDOW_BYTES.min(usize::try_from(length - start).unwrap_or(WINDOW_BYTES))];
        file.read_exact_at(&mut window, start)?;
        for (offset, bytes) in window.windows(HEADER_BYTES).enumerate() {
            if !bytes.starts_with(&MAGIC) {
                continue;
            }
            let Some(header) = Header::decode(bytes) else { continue };
            let found = start + offset as u64;
            let mut second = [0; HEADER_BYTES];
            let is_first = file.read_exact_at(&mut second, found + HEADER_BYTES as u64).is_ok()
                && Header::decode(&second) == Some(header);
            // If a block's first header is damaged, this is its second; if both are, nothing of the block is reliable,
            // and the following block is found next.
            return Ok(Some(if is_first { found } else { found.saturating_sub(HEADER_BYTES as u64).max(at + 1) }));
        }
        if window.len() < WINDOW_BYTES {
            break;
        }
        start += (WINDOW_BYTES - HEADER_BYTES + 1) as u64;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(bytes).expect("our file");
        file
    }

    fn payload(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * at % 251) as u8).collect()
    }

    #[test]
    fn one_damaged_stretch_is_healed_wherever_it_is() {
        for length in [0, 1, 5, 64, 65, 200, 1_500, 5_000] {
            let good = encode(Kind::Group, 7, 9, &payload(length)).expect("it is short");
            for at in 0..good.len() {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                let Ok(Found::Sound { header, payload: found, next, was_healed }) = read(&file(&bad), 0) else {
                    panic!("{length} bytes, damaged at {at}")
                };
                assert_eq!((header.before, header.after, next), (7, 9, good.len() as u64));
                assert!(was_healed && found == payload(length), "{length} bytes, damaged at {at}");
            }
            // Half a row of the payload may be damaged.
            let burst = row_bytes(length) / 2;
            for at in 2 * HEADER_BYTES..(2 * HEADER_BYTES + length).saturating_sub(burst) {
                let mut bad = good.clone();
                bad[at..at + burst].iter_mut().for_each(|byte| *byte = !*byte);
                let Ok(Found::Sound { payload: found, .. }) = read(&file(&bad), 0) else {
                    panic!("{length} bytes, damaged from {at} on")
                };
                assert_eq!(found, payload(length));
            }
        }
    }

    #[test]
    fn the_block_behind_one_without_headers_is_found() {
        let first = encode(Kind::Group, 0, 1, &payload(300)).expect("it is short");
        let second = encode(Kind::Group, 1, 2, &payload(20)).expect("it is short");
        let both = [first.clone(), second].concat();
        for second_header in [false, true] {
            let mut bad = both.clone();
            for at in [3, HEADER_BYTES + 3] {
                bad[at] ^= 1;
            }
            if second_header {
                bad[first.len() + 9] ^= 1;
            }
            let file = file(&bad);
            assert!(matches!(read(&file, 0), Ok(Found::Nothing)));
            assert_eq!(find_next(&file, 0).expect("our file"), Some(first.len() as u64));
            let found = read(&file, first.len() as u64);
            assert!(matches!(found, Ok(Found::Sound { header, .. }) if header.after == 2), "{found:?}");
        }
    }

    /// From any bytes on disk only blocks that were written are read, without a panic.
    #[test]
    fn mutations_of_blocks_on_disk() {
        let seeds = [0, 30, 700].map(|length| encode(Kind::Group, 1, 2, &payload(length)).expect("it is short"));
        idlewood_testing::mutations("block", seeds.to_vec(), |bytes| {
            let file = file(bytes);
            let Found::Sound { header, payload, .. } = read(&file, 0).expect("a file in memory") else {
                find_next(&file, 0).expect("a file in memory");
                return false;
            };
            assert!(header.fits(&payload));
            true
        });
    }
}
