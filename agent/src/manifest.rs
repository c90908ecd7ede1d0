//! What a bag runs: the part of a submission that every executor needs and the scheduler does not.
//!
//! The manifest is a blob; its BLAKE3 is the bag's id. Executors fetch it from the submitter (or from whoever has
//! it) when they first start a task of the bag. What a task produced travels back as one blob too, [`TaskOutput`].

use std::collections::BTreeMap;

use idlewood_overlay::PeerId;
use idlewood_scheduler::{BagId, BlobId};
use serde::{Deserialize, Serialize};

/// Version of the forms below.
pub const MANIFEST_VERSION: u32 = 1;
/// Largest manifest, in bytes: about a million entries.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Largest output of one task, stdout, stderr and files together, in bytes.
pub const OUTPUT_BYTES_MAX: u64 = 256 << 20;
/// Largest program or input, in bytes.
pub const INPUT_BYTES_MAX: u64 = 4 << 30;

/// A file that tasks can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// File name below `inputs/`; no separators.
    pub name: String,
    /// Its content.
    pub blob: BlobId,
    /// Its size.
    pub bytes: u64,
}

/// What distinguishes one task from the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its line, number or file, as `IDLEWOOD_ENTRY` and `{}` show it.
    pub text: String,
    /// Its own file, where it has one.
    pub input: Option<Input>,
}

/// Everything an executor needs to run the tasks of a bag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_VERSION`].
    pub version: u32,
    /// The user's name for the bag.
    pub name: String,
    /// Who submits it.
    pub submitter: PeerId,
    /// Tells two submissions of the same work apart.
    pub nonce: u64,
    /// Number of tasks.
    pub tasks: u64,
    /// The WebAssembly module.
    pub program: Input,
    /// Arguments after the program's name; `{}` stands for the entry, `{index}` for the task's index.
    pub args: Vec<String>,
    /// One per task, or none at all.
    pub entries: Vec<Entry>,
    /// Files shared by all tasks.
    pub inputs: Vec<Input>,
    /// The input that is the task's standard input; `{}` stands for the entry's own file.
    pub stdin: Option<String>,
    /// Environment beside the `IDLEWOOD_*` variables.
    pub env: BTreeMap<String, String>,
    /// Memory a task may use.
    pub memory_bytes: u64,
    /// Time a task may run, frozen time left out.
    pub time_limit_s: u64,
    /// Exit codes that mean success.
    pub success_codes: Vec<i32>,
}

/// What a task produced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskOutput {
    /// Its exit code; `None` where it did not end by itself.
    pub exit_code: Option<i32>,
    /// Why it did not end by itself.
    pub error: Option<String>,
    /// Captured standard output.
    #[serde(with = "serde_bytes")]
    pub stdout: Vec<u8>,
    /// Captured standard error.
    #[serde(with = "serde_bytes")]
    pub stderr: Vec<u8>,
    /// Files it left in its working directory, by path relative to it, with `/`.
    pub files: BTreeMap<String, serde_bytes::ByteBuf>,
    /// CPU time used.
    pub cpu_s: f64,
    /// Time it ran, frozen time left out.
    pub wall_s: f64,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not a manifest at all.
    #[error("not a manifest: {0}")]
    Malformed(String),
    /// Of another version.
    #[error("manifest of version {0}; this idlewood reads version {MANIFEST_VERSION}: update it")]
    Version(u32),
    /// Its parts do not fit.
    #[error("{0}")]
    Invalid(String),
}

impl Manifest {
    /// The bytes whose hash is the bag's id.
    pub fn encode(&self) -> Vec<u8> {
        to_cbor(self)
    }

    /// Reads and validates a manifest.
    ///
    /// # Errors
    /// [`ManifestError`]: none of it may be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self = ciborium::de::from_reader_with_recursion_limit(bytes, 16)
            .map_err(|error| ManifestError::Malformed(error.to_string()))?;
        manifest.validate()?;
        Ok(manifest)
    }

    /// The bag's id.
    pub fn id(bytes: &[u8]) -> BagId {
        BagId(*blake3::hash(bytes).as_bytes())
    }

    /// Whether its parts fit.
    ///
    /// # Errors
    /// [`ManifestError`] with a sentence that says what does not, and what to do.
    pub fn validate(&self) -> Result<(), ManifestError> {
        let invalid = |sentence: String| Err(ManifestError::Invalid(sentence));
        if self.version != MANIFEST_VERSION {
            return Err(ManifestError::Version(self.version));
        }
        if self.tasks == 0 {
            return invalid("a bag needs at least one task".to_owned());
        }
        if !self.entries.is_empty() && self.entries.len() as u64 != self.tasks {
            return invalid(format!("{} tasks but {} entries", self.tasks, self.entries.len()));
        }
        let own = self.entries.iter().filter_map(|entry| entry.input.as_ref());
        for input in self.inputs.iter().chain(own) {
            if !is_file_name(&input.name) {
                return invalid(format!("{:?} cannot be the name of an input: use a plain file name", input.name));
            }
            if input.bytes > INPUT_BYTES_MAX {
                return invalid(format!("input {} is over {} GiB: split it", input.name, INPUT_BYTES_MAX >> 30));
            }
        }
        if self.success_codes.is_empty() {
            return invalid("no exit code would count as success: name at least one".to_owned());
        }
        if self.time_limit_s == 0 || self.memory_bytes < 1 << 16 {
            return invalid("a task needs at least 1 s of time and 64 KiB of memory".to_owned());
        }
        Ok(())
    }

    /// The entry of a task; an empty one where the bag has none.
    pub fn entry(&self, index: u64) -> Entry {
        let position = usize::try_from(index).unwrap_or(usize::MAX);
        self.entries.get(position).cloned().unwrap_or_default()
    }

    /// `template` with `{index}` and `{}` filled in for a task. An entry with a file stands for its path.
    pub fn fill(&self, template: &str, index: u64) -> String {
        let entry = self.entry(index);
        let value = entry.input.map_or(entry.text, |input| format!("inputs/{}", input.name));
        template.replace("{index}", &index.to_string()).replace("{}", &value)
    }

    /// The files a task can read: the shared ones and its own.
    pub fn task_inputs(&self, index: u64) -> Vec<Input> {
        self.inputs.iter().cloned().chain(self.entry(index).input).collect()
    }

    /// The name of the input that is a task's standard input.
    pub fn task_stdin(&self, index: u64) -> Option<String> {
        let name = self.stdin.as_ref()?;
        if name == "{}" { self.entry(index).input.map(|input| input.name) } else { Some(name.clone()) }
    }
}

impl TaskOutput {
    /// The bytes that travel and are kept.
    pub fn encode(&self) -> Vec<u8> {
        to_cbor(self)
    }

    /// Reads an output blob.
    ///
    /// # Errors
    /// [`ManifestError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        ciborium::de::from_reader_with_recursion_limit(bytes, 16)
            .map_err(|error| ManifestError::Malformed(error.to_string()))
    }
}

fn to_cbor<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("a Vec takes every write, and these types hold no unserialisable value");
    bytes
}

/// Whether a name is a plain file name: no separator, no way up, printable.
pub fn is_file_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != "."
        && name != ".."
        && !name.chars().any(|character| matches!(character, '/' | '\\') || character.is_control())
}
