//! What a task leaves: [`TaskOutput`], which travels back as one blob.

use std::collections::BTreeMap;

use idlewood_units::FILES_MAX;
use serde::{Deserialize, Serialize};

use super::bounded::{at_most, at_most_pairs};
use super::{ManifestError, to_cbor};

/// Bytes read of [`TaskOutput::error`].
pub const ERROR_BYTES_MAX: usize = 4096;
/// Most paths of [`TaskOutput::left_out`]; agents write far fewer.
const LEFT_OUT_MAX: usize = 1024;

/// The output of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskOutput {
    /// Its exit code; `None` if it did not end by itself.
    pub exit_code: Option<i32>,
    /// Why it did not end by itself.
    pub error: Option<String>,
    /// Captured standard output.
    #[serde(with = "serde_bytes")]
    pub stdout: Vec<u8>,
    /// Captured standard error.
    #[serde(with = "serde_bytes")]
    pub stderr: Vec<u8>,
    /// Files in its working directory at its end, by relative path with `/`.
    #[serde(deserialize_with = "at_most_pairs::<_, _, FILES_MAX>")]
    pub files: BTreeMap<String, serde_bytes::ByteBuf>,
    /// Paths in that directory that are not kept: links, files with other names, too deep ones. If there are very many:
    /// the first, and the number of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "at_most::<_, _, LEFT_OUT_MAX>")]
    pub left_out: Vec<String>,
    /// Empty folders in that directory, by relative path with `/`; none where files are chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "at_most::<_, _, FILES_MAX>")]
    pub folders: Vec<String>,
    /// CPU time used.
    pub cpu_s: f64,
    /// Time it ran, without the time that it was frozen.
    pub wall_s: f64,
}

impl TaskOutput {
    /// The bytes that travel and are kept.
    pub fn encode(&self) -> Vec<u8> {
        to_cbor(self)
    }

    /// Reads an output blob. On any bytes it uses at most twice their size and 2 MB of memory. An error longer than
    /// [`ERROR_BYTES_MAX`], which no agent writes, is cut.
    ///
    /// # Errors
    /// [`ManifestError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let mut output: Self = ciborium::de::from_reader_with_recursion_limit(bytes, 16)
            .map_err(|error| ManifestError::Malformed(error.to_string()))?;
        if let Some(error) = &mut output.error
            && error.len() > ERROR_BYTES_MAX
        {
            let whole = error.len();
            error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
            error.push_str(&format!(" ... ({whole} bytes of error, cut)"));
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_error_is_cut() {
        let output = TaskOutput { error: Some("ä".repeat(1_500_000)), ..TaskOutput::default() };
        let error = TaskOutput::decode(&output.encode()).expect("it is an output").error.expect("it failed");
        assert!(
            error.len() < ERROR_BYTES_MAX + 100 && error.ends_with("(3000000 bytes of error, cut)"),
            "{}",
            error.len()
        );
    }
}
