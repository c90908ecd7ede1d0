//! How long a task ran, from the end of its encoded output: the time is the output's last field, so that of a large output only the
//! end has to be read.

use super::TaskOutput;

/// So many bytes from the end of an encoded [`TaskOutput`] say how long its task ran.
pub const TAIL_BYTES: usize = 16;
/// The key of the last field, as CBOR has it: a text of six bytes.
const KEY: &[u8] = b"\x66wall_s";

impl TaskOutput {
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
