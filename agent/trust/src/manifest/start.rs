//! What a task of a later round begins with: one blob, which its submitter signs for it as it signs checkpoints.
//!
//! It names the outputs of others, and holds those that are little; larger ones are blobs, which executors fetch as inputs.
//! The files of a checkpoint are in it where the task came back before its end.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use idlewood_scheduler::BlobId;
use idlewood_scheduler::rounds::UNMERGED_PROCESSES_MAX;
use idlewood_units::FILES_MAX;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::bounded::{at_most, at_most_pairs};
use super::{ManifestError, OUTPUT_BYTES_MAX, TaskOutput, to_cbor};

/// Largest such blob, in bytes: as large as an output.
pub const START_BYTES_MAX: u64 = OUTPUT_BYTES_MAX;
/// Most outputs that one task begins with: of as many processes as fit in there, with small outputs.
const GIVEN_MAX: usize = 1 << 20;
const _: () = assert!(UNMERGED_PROCESSES_MAX < GIVEN_MAX as u64);

/// Where a task finds an output that it begins with, below `inputs/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// `state/`: what its process left one round before.
    #[serde(rename = "s")]
    State,
    /// `merged/`: what the merge left there, for all and for its process.
    #[serde(rename = "m")]
    Merged,
    /// `results/<process>/`.
    #[serde(rename = "r")]
    Result(u64),
}

/// An output that a task begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Given {
    /// Where it is to be.
    #[serde(rename = "p")]
    pub place: Place,
    /// Its hash.
    #[serde(rename = "o")]
    pub output: BlobId,
    /// Its size.
    #[serde(rename = "b")]
    pub bytes: u64,
    /// All of it, where it is no blob.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ByteBuf>,
}

/// What a task begins with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Outputs of others.
    #[serde(rename = "g", deserialize_with = "at_most::<_, _, GIVEN_MAX>")]
    pub given: Vec<Given>,
    /// How many iterations it does; none: as many as all.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<NonZeroU64>,
    /// Its checkpoint's files, if it has begun elsewhere.
    #[serde(
        rename = "k",
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "at_most_pairs::<_, _, FILES_MAX>"
    )]
    pub checkpoint: BTreeMap<String, ByteBuf>,
}

impl Start {
    /// The bytes that are signed.
    pub fn encode(&self) -> Vec<u8> {
        to_cbor(self)
    }

    /// Reads what [`Start::encode`] made.
    ///
    /// # Errors
    /// [`ManifestError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        ciborium::de::from_reader_with_recursion_limit(bytes, 16)
            .map_err(|error| ManifestError::Malformed(error.to_string()))
    }
}

impl Place {
    /// The files of an output that belong here, by their paths below `inputs/`, for a task of this process.
    pub fn files(self, output: TaskOutput, process: Option<u64>) -> Vec<(String, ByteBuf)> {
        let path = |path: String| match self {
            Self::State => Some(format!("state/{path}")),
            Self::Result(process) => Some(format!("results/{process}/{path}")),
            Self::Merged => {
                let (first, _) = path.strip_prefix("merged/")?.split_once('/').unwrap_or_default();
                let is_of_another = first.parse::<u64>().is_ok_and(|of| Some(of) != process);
                (!is_of_another).then_some(path)
            }
        };
        output.files.into_iter().filter_map(|(name, bytes)| Some((path(name)?, bytes))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(names: &[&str]) -> TaskOutput {
        let files = names.iter().map(|name| ((*name).to_owned(), ByteBuf::from(b"x".to_vec()))).collect();
        TaskOutput { files, ..TaskOutput::default() }
    }

    fn names(place: Place, names: &[&str], process: Option<u64>) -> Vec<String> {
        place.files(output(names), process).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn each_process_gets_what_the_merge_left_for_all_and_for_it() {
        let left = ["log", "merged/7", "merged/all", "merged/1/own", "merged/12/own", "merged/deep/own"];
        assert_eq!(names(Place::Merged, &left, Some(1)), ["merged/1/own", "merged/7", "merged/all", "merged/deep/own"]);
        assert_eq!(names(Place::State, &["a/b", "merged/x"], Some(1)), ["state/a/b", "state/merged/x"]);
        assert_eq!(names(Place::Result(4), &["a"], None), ["results/4/a"]);
    }

    #[test]
    fn mutations_of_starts() {
        let content = Some(ByteBuf::from(output(&["a"]).encode()));
        let (output_hash, bytes) = (BlobId([3; 32]), 9);
        let given = vec![
            Given { place: Place::State, output: output_hash, bytes, content },
            Given { place: Place::Result(3), output: output_hash, bytes, content: None },
        ];
        let start = Start { given, iterations: NonZeroU64::new(7), checkpoint: output(&["progress"]).files };
        assert_eq!(Start::decode(&start.encode()).expect("it is one"), start);
        idlewood_testing::mutations("start", vec![start.encode()], |bytes| Start::decode(bytes).is_ok());
    }
}
