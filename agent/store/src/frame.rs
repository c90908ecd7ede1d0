//! The frame of each record on disk: a version, and a checksum of key and value.

/// Version byte of a frame.
pub(super) const FRAME_VERSION: u8 = 1;

/// Bytes of BLAKE3 kept with a record.
pub(super) const CHECKSUM_BYTES: usize = 8;

/// Bytes of a record before its value.
pub(super) const HEADER_BYTES: usize = 1 + CHECKSUM_BYTES;

pub(super) fn checksum(key: &[u8], value: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    let mut checksum = [0; CHECKSUM_BYTES];
    checksum.copy_from_slice(&hasher.finalize().as_bytes()[..CHECKSUM_BYTES]);
    checksum
}

pub(super) fn encode(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + value.len());
    record.push(FRAME_VERSION);
    record.extend(checksum(key, value));
    record.extend(value);
    record
}

pub(super) fn decode<'a>(key: &[u8], record: &'a [u8]) -> Option<&'a [u8]> {
    let (version, rest) = record.split_first()?;
    let (sum, value) = rest.split_first_chunk::<CHECKSUM_BYTES>()?;
    (*version == FRAME_VERSION && *sum == checksum(key, value)).then_some(value)
}

/// Bytes of the records alone.
pub(super) fn live_bytes(records: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    records.iter().map(|(key, value)| (key.len() + value.len() + HEADER_BYTES) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a record written for this key decodes, to its value.
    #[test]
    fn mutations_of_records_on_disk() {
        let (key, other) = (b"key".as_slice(), b"kez".as_slice());
        idlewood_testing::mutations("record", vec![encode(key, b"a value"), encode(key, b"")], |record| {
            let Some(value) = decode(key, record) else { return false };
            assert_eq!(encode(key, value), record);
            assert_eq!(decode(other, record), None);
            true
        });
    }
}
