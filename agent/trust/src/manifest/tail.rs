//! What is told of an output without reading or comparing all of it: how long its task ran, from the end of its encoded bytes (the time
//! is the last field), and a fingerprint.

use super::TaskOutput;

/// So many bytes from the end of an encoded [`TaskOutput`] say how long its task ran.
pub const TAIL_BYTES: usize = 16;
/// The key of the last field, as CBOR has it: a text of six bytes.
const KEY: &[u8] = b"\x66wall_s";

impl TaskOutput {
    /// What the task printed and left, and how it ended, hashed without its times: failures with the same cause have the same.
    ///
    /// # Panics
    /// Never: a hash takes every write.
    pub fn fingerprint(&self) -> u64 {
        let Self { exit_code, error, stdout, stderr, files, left_out, folders, cpu_s: _, wall_s: _ } = self;
        let mut hasher = blake3::Hasher::new();
        let (stdout, stderr) = (serde_bytes::Bytes::new(stdout), serde_bytes::Bytes::new(stderr));
        ciborium::into_writer(&(exit_code, error, stdout, stderr, files, left_out), &mut hasher)
            .expect("a hash takes every write, and an output holds no unserialisable value");
        for folder in folders {
            hasher.update(folder.as_bytes()).update(b"/");
        }
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first)
    }

    /// The `wall_s` of an output that ends in these bytes; `None` if it is no output as [`TaskOutput::encode`] makes it.
    pub fn wall_s_at_the_end(tail: &[u8]) -> Option<f64> {
        let at = tail.windows(KEY.len()).rposition(|window| window == KEY)?;
        let seconds: f64 = ciborium::from_reader(&tail[at + KEY.len()..]).ok()?;
        (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_of_everything_but_times() {
        let output = TaskOutput { exit_code: Some(3), stderr: b"no such file".to_vec(), ..TaskOutput::default() };
        let later = TaskOutput { wall_s: 7.0, cpu_s: 1.0, ..output.clone() };
        assert_eq!(output.fingerprint(), later.fingerprint());
        for other in [
            TaskOutput { exit_code: Some(4), ..output.clone() },
            TaskOutput { stderr: b"no such files".to_vec(), ..output.clone() },
            TaskOutput { stdout: b"x".to_vec(), ..output.clone() },
            TaskOutput { files: [("f".to_owned(), Vec::new().into())].into(), ..output.clone() },
        ] {
            assert_ne!(other.fingerprint(), output.fingerprint(), "{other:?}");
        }
    }

    #[test]
    fn the_end_of_an_output_says_how_long_its_task_ran() {
        for wall_s in [0.0, 0.5, 1.0, 1.000_000_1, 86_400.0, 1e300] {
            let output = TaskOutput {
                wall_s,
                stdout: KEY.repeat(9),
                files: [("wall_s".to_owned(), vec![0x66; 99].into())].into(),
                ..TaskOutput::default()
            };
            let bytes = output.encode();
            assert_eq!(TaskOutput::wall_s_at_the_end(&bytes[bytes.len() - TAIL_BYTES..]), Some(wall_s));
            assert_eq!(TaskOutput::decode(&bytes).expect("it is one").wall_s, wall_s);
        }
        for wall_s in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(TaskOutput::wall_s_at_the_end(&TaskOutput { wall_s, ..TaskOutput::default() }.encode()), None);
        }
        for bytes in [&b""[..], b"nonsense", KEY, b"\x66wall_s\xff"] {
            assert_eq!(TaskOutput::wall_s_at_the_end(bytes), None, "{bytes:?}");
        }
    }
}
