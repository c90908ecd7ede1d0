//! Manifests: the part of a submission that executors need and the scheduler does not.
//!
//! The manifest is a blob; the bag's signed envelope names it ([`crate::envelope`]). Executors fetch it from the
//! submitter, or from another holder, when they first start a task of the bag. A task's output travels back as one
//! blob, too: [`TaskOutput`].

mod bounded;
mod in_rounds;
mod input;
mod rounds;
mod start;
mod tail;
mod template;

use std::collections::{BTreeMap, BTreeSet};

use idlewood_overlay::PeerId;
use idlewood_scheduler::BlobId;
use idlewood_units::FILES_MAX;
use serde::{Deserialize, Serialize};

use self::bounded::{at_most, at_most_pairs};
pub use self::input::{Entry, Input};
pub use self::rounds::{GIVEN, Rounds};
pub use self::start::{Given, Place, START_BYTES_MAX, Start};
pub use self::tail::TAIL_BYTES;
pub use self::template::{FIELD_NAME_BYTES_MAX, FIELDS_MAX, Fields, Piece, is_number, pieces};
use crate::label::Label;

/// Version of the forms below.
pub const MANIFEST_VERSION: u32 = 1;
/// Version of manifests whose entries have fields: agents that do not fill these in must not run their tasks.
pub const MANIFEST_VERSION_FIELDS: u32 = 2;
/// Version of manifests of applications in rounds: agents that give their tasks nothing must not run them.
pub const MANIFEST_VERSION_ROUNDS: u32 = 3;
/// Largest manifest, in bytes: about a million entries.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Largest output of one task, in bytes: the encoded [`TaskOutput`], stdout, stderr and files together.
pub const OUTPUT_BYTES_MAX: u64 = 256 << 20;
/// Largest program or input, in bytes.
pub const INPUT_BYTES_MAX: u64 = 4 << 30;
/// Default disk space of a task, in bytes. Our choice: several of the largest outputs.
pub const DISK_BYTES_DEFAULT: u64 = 1 << 30;
/// Most bytes of arguments and environment of one task, filled in. Our choice: with the inputs below it fits the 1 MiB
/// of a worker's job message.
pub const ARGUMENT_BYTES_MAX: u64 = 512 << 10;
/// Size that an argument or a variable counts beside its text.
const ARGUMENT_OVERHEAD_BYTES: u64 = 16;
/// Most arguments, and most variables, that fit.
const ARGUMENTS_MAX: usize = (ARGUMENT_BYTES_MAX / ARGUMENT_OVERHEAD_BYTES) as usize;
/// Most entries of a bag. Our choice: as many as fit [`MANIFEST_BYTES_MAX`] if each names a file, and less than 100 MB
/// of memory if they are empty.
pub const ENTRIES_MAX: usize = 1 << 20;
/// Most exit codes that mean success: systems have 256.
const SUCCESS_CODES_MAX: usize = 1024;
/// Bytes read of [`TaskOutput::error`].
pub const ERROR_BYTES_MAX: usize = 4096;

/// Most paths of [`TaskOutput::left_out`]; agents write far fewer.
const LEFT_OUT_MAX: usize = 1024;
/// Most files shared by all tasks.
pub const INPUTS_MAX: usize = 1000;
/// Prefix of a task's input when it is hashed.
const INPUT_DOMAIN: &[u8] = b"idlewood input v1";
/// Longest name of a bag, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

/// Everything an executor needs to run the tasks of a bag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_VERSION`], or [`MANIFEST_VERSION_FIELDS`] with [`Manifest::fields`], or [`MANIFEST_VERSION_ROUNDS`] with
    /// [`Manifest::rounds`].
    pub version: u32,
    /// The user's name for the bag.
    pub name: String,
    /// The submitter.
    pub submitter: PeerId,
    /// Makes two submissions of the same work different.
    pub nonce: u64,
    /// When it was made, in seconds of Unix time by its submitter's clock; 0 in manifests from before this field.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub made_s: u64,
    /// Number of tasks.
    pub tasks: u64,
    /// The WebAssembly module, or, with [`Manifest::native`], an executable.
    pub program: Input,
    /// Arguments after the program's name; `{}` stands for the entry, `{index}` for the task's index, `{1}` and `{name}` for fields of the
    /// entry.
    #[serde(deserialize_with = "at_most::<_, _, ARGUMENTS_MAX>")]
    pub args: Vec<String>,
    /// One per task, or per process of an application in rounds, or none at all.
    #[serde(deserialize_with = "at_most::<_, _, ENTRIES_MAX>")]
    pub entries: Vec<Entry>,
    /// How the entries are cut into fields; none: each is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Fields>,
    /// Files shared by all tasks.
    #[serde(deserialize_with = "at_most::<_, _, INPUTS_MAX>")]
    pub inputs: Vec<Input>,
    /// The input that is the task's standard input; `{}` stands for the entry's own file.
    pub stdin: Option<String>,
    /// Environment beside the `IDLEWOOD_*` variables.
    #[serde(deserialize_with = "at_most_pairs::<_, _, ARGUMENTS_MAX>")]
    pub env: BTreeMap<String, String>,
    /// Memory that a task may use.
    pub memory_bytes: u64,
    /// Disk space of a task's files, its checkpoint included; the default in manifests from before this field.
    #[serde(default = "disk_bytes_default")]
    pub disk_bytes: u64,
    /// Time that a task may run, without the time that it is frozen.
    pub time_limit_s: u64,
    /// Exit codes that mean success.
    #[serde(deserialize_with = "at_most::<_, _, SUCCESS_CODES_MAX>")]
    pub success_codes: Vec<i32>,
    /// The same clock, random numbers and environment wherever a task runs, and no times in its output, so that the
    /// results of two machines can be compared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deterministic: bool,
    /// The program runs only on machines whose owner allows native programs and whose system can execute it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub native: bool,
    /// The tasks are rounds of an application's processes, and merges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Rounds>,
    /// The blob that it was read from. None if it is part of the signed blob, and before it is written.
    #[serde(skip)]
    pub blob: Option<BlobId>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn disk_bytes_default() -> u64 {
    DISK_BYTES_DEFAULT
}

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
    /// CPU time used.
    pub cpu_s: f64,
    /// Time it ran, without the time that it was frozen.
    pub wall_s: f64,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not a manifest at all.
    #[error("not a manifest: {0}")]
    Malformed(String),
    /// The manifest has another version.
    #[error(
        "manifest of version {0}; this idlewood reads versions {MANIFEST_VERSION} to {MANIFEST_VERSION_ROUNDS}: update it"
    )]
    Version(u32),
    /// Its parts do not fit together.
    #[error("{0}")]
    Invalid(String),
}

impl Manifest {
    /// The public facts of it.
    pub fn label(&self) -> Label {
        let &Self { submitter, tasks, made_s, memory_bytes, native, .. } = self;
        Label { submitter, tasks, made_s, program: self.program.blob, memory_bytes, native }
    }

    /// The same, with the program that this task runs.
    pub fn label_of(&self, index: u64) -> Label {
        Label { program: self.program_of(index).blob, ..self.label() }
    }

    /// The version of a manifest with such fields and rounds.
    pub fn version_of(fields: Option<&Fields>, rounds: Option<&Rounds>) -> u32 {
        match (fields, rounds) {
            (_, Some(_)) => MANIFEST_VERSION_ROUNDS,
            (Some(_), None) => MANIFEST_VERSION_FIELDS,
            (None, None) => MANIFEST_VERSION,
        }
    }

    /// Its encoding.
    pub fn encode(&self) -> Vec<u8> {
        to_cbor(self)
    }

    /// Reads and validates a manifest. On any bytes it uses at most twice their size and 150 MB of memory.
    ///
    /// # Errors
    /// [`ManifestError`]: the manifest must not be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self = ciborium::de::from_reader_with_recursion_limit(bytes, 16)
            .map_err(|error| ManifestError::Malformed(error.to_string()))?;
        manifest.validate()?;
        Ok(manifest)
    }

    /// Checks that its parts fit together.
    ///
    /// # Errors
    /// [`ManifestError`] with a sentence that names the flaw and the remedy.
    pub fn validate(&self) -> Result<(), ManifestError> {
        let invalid = |sentence: String| Err(ManifestError::Invalid(sentence));
        if self.version != Self::version_of(self.fields.as_ref(), self.rounds.as_ref()) {
            return Err(ManifestError::Version(self.version));
        }
        if let Some(flaw) = self.fields.as_ref().and_then(Fields::flaw) {
            return invalid(flaw);
        }
        if self.tasks == 0 {
            return invalid("a bag needs at least one task".to_owned());
        }
        if self.entries.len() > ENTRIES_MAX {
            return invalid(format!(
                "{} entries are too many: submit bags of {ENTRIES_MAX} at most",
                self.entries.len()
            ));
        }
        if self.success_codes.len() > SUCCESS_CODES_MAX {
            return invalid(format!(
                "{} exit codes are too many: name {SUCCESS_CODES_MAX} at most",
                self.success_codes.len()
            ));
        }
        let entries = self.rounds.as_ref().map_or(self.tasks, |rounds| rounds.plan.processes);
        if !self.entries.is_empty() && self.entries.len() as u64 != entries {
            return invalid(format!("{entries} tasks but {} entries", self.entries.len()));
        }
        let own = self.entries.iter().filter_map(|entry| entry.input.as_ref());
        if let Some(flaw) =
            self.rounds.as_ref().and_then(|rounds| rounds.flaw(self.tasks, self.inputs.iter().chain(own)))
        {
            return invalid(flaw);
        }
        if self.name.contains('\0') || self.name.len() > NAME_BYTES_MAX {
            return invalid(format!("a bag's name has at most {NAME_BYTES_MAX} bytes, none of them zero: shorten it"));
        }
        self.validate_files()?;
        self.validate_texts()?;
        if self.success_codes.is_empty() {
            return invalid("no exit code would count as success: name at least one".to_owned());
        }
        if self.time_limit_s == 0 || self.memory_bytes < 1 << 16 {
            return invalid("a task needs at least 1 s of time and 64 KiB of memory".to_owned());
        }
        Ok(())
    }

    /// Program, inputs and standard input.
    fn validate_files(&self) -> Result<(), ManifestError> {
        let invalid = |sentence: String| Err(ManifestError::Invalid(sentence));
        if self.inputs.len() > INPUTS_MAX {
            return invalid(format!(
                "{} shared inputs are too many: pack them, {INPUTS_MAX} at most",
                self.inputs.len()
            ));
        }
        for input in self.blobs() {
            if !is_file_name(&input.name) {
                return invalid(format!("{:?} cannot be the name of a file: use a plain file name", input.name));
            }
            if input.bytes > INPUT_BYTES_MAX {
                return invalid(format!("{} is over {} GiB: split it", input.name, INPUT_BYTES_MAX >> 30));
            }
        }
        let mut shared = BTreeSet::new();
        let own = self.entries.iter().filter_map(|entry| entry.input.as_ref());
        let twice = self.inputs.iter().find(|input| !shared.insert(input.name.as_str()));
        if let Some(input) = twice.or_else(|| own.into_iter().find(|input| shared.contains(input.name.as_str()))) {
            return invalid(format!("two inputs of a task are named {:?}: give each its own name", input.name));
        }
        if let Some(name) = &self.stdin {
            let is_it = |own: &Input| name == "{}" || *name == own.name;
            let all_have_it =
                !self.entries.is_empty() && self.entries.iter().all(|entry| entry.input.as_ref().is_some_and(is_it));
            if !all_have_it && !shared.contains(name.as_str()) {
                return invalid(format!("standard input {name:?} is not among the inputs of every task: add it"));
            }
        }
        Ok(())
    }

    /// Checks that C programs can take arguments, environment and entries, and that a worker's job message can hold
    /// them.
    fn validate_texts(&self) -> Result<(), ManifestError> {
        let invalid = |sentence: String| Err(ManifestError::Invalid(sentence));
        let entries = self.entries.iter().map(|entry| &entry.text);
        let mut texts = self.args.iter().chain(self.env.values()).chain(entries);
        if let Some(text) = texts.find(|text| text.contains('\0')) {
            return invalid(format!("{text:?} holds a zero byte, which no program can be given"));
        }
        if let Some(key) = self.env.keys().find(|key| key.is_empty() || key.contains(['\0', '='])) {
            return invalid(format!("{key:?} cannot be the name of an environment variable"));
        }
        let value =
            |entry: &Entry| entry.input.as_ref().map_or(entry.text.len(), |input| "inputs/".len() + input.name.len());
        let longest = self.entries.iter().map(value).max().unwrap_or(0);
        // A number of a round may stand there, too.
        let value_bytes = longest.max(if self.rounds.is_some() { 20 } else { 0 }) as u64;
        let index_bytes = self.tasks.to_string().len() as u64;
        let bytes = |template: &String| {
            let filled = pieces(template).into_iter().map(|piece| match piece {
                // A field is a part of the entry.
                Piece::Entry | Piece::Field(_) => value_bytes,
                Piece::Index => index_bytes,
                Piece::Text(_) => 0,
            });
            filled.fold(template.len() as u64 + ARGUMENT_OVERHEAD_BYTES, u64::saturating_add)
        };
        let keys = self.env.keys().map(|key| key.len() as u64);
        let entry_bytes = self.entries.iter().map(|entry| entry.text.len()).max().unwrap_or(0) as u64;
        let all =
            self.args.iter().chain(self.env.values()).map(bytes).chain(keys).fold(entry_bytes, u64::saturating_add);
        if all > ARGUMENT_BYTES_MAX {
            let most = ARGUMENT_BYTES_MAX >> 10;
            return invalid(format!(
                "arguments, environment and entry of a task take up to {all} bytes, over {most} KiB: use an input file"
            ));
        }
        Ok(())
    }

    /// The program and all inputs.
    pub fn blobs(&self) -> impl Iterator<Item = &Input> {
        let own = self.entries.iter().filter_map(|entry| entry.input.as_ref());
        let merge = self.rounds.iter().filter_map(|rounds| rounds.merge.as_ref());
        self.inputs.iter().chain(own).chain([&self.program]).chain(merge)
    }

    /// Approximate memory use, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let text = |text: &String| size_of::<String>() + text.len();
        let input = |input: &Input| size_of::<Input>() + input.name.len();
        let entry = |entry: &Entry| {
            size_of::<Entry>() + entry.text.len() + entry.input.as_ref().map_or(0, |input| input.name.len())
        };
        let entries: usize = self.entries.iter().map(entry).sum();
        let inputs: usize = self.inputs.iter().map(input).sum();
        let texts: usize = self.args.iter().chain(self.env.keys()).chain(self.env.values()).map(text).sum();
        (size_of::<Self>() + entries + inputs + texts) as u64
    }

    /// The entry of a task; an empty one if the bag has none.
    pub fn entry(&self, index: u64) -> Entry {
        let position = match &self.rounds {
            Some(rounds) => rounds.entry(index).unwrap_or(u64::MAX),
            None => index,
        };
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        self.entries.get(position).cloned().unwrap_or_default()
    }

    /// `template` filled in for a task: [`filled`].
    pub fn fill(&self, template: &str, index: u64) -> String {
        filled(template, index, &self.entry(index), self.fields.as_ref(), self.rounds.as_ref())
    }

    /// Hash of a task's input: arguments and environment filled in, its entry, its standard input's name, and names and
    /// hashes of its files (`docs/formats.md`). Equal across bags; leaves out variables that the agent adds, such as
    /// the attempt.
    pub fn input_hash(&self, index: u64) -> [u8; 32] {
        let args: Vec<String> = self.args.iter().map(|argument| self.fill(argument, index)).collect();
        let env: Vec<(&String, String)> =
            self.env.iter().map(|(name, value)| (name, self.fill(value, index))).collect();
        let files = self.task_inputs(index);
        let files: Vec<(&String, &serde_bytes::Bytes)> =
            files.iter().map(|input| (&input.name, serde_bytes::Bytes::new(&input.blob.0))).collect();
        let stdin = self.task_stdin(index).unwrap_or_default();
        let given = to_cbor(&(args, env, self.entry(index).text, stdin, files));
        let mut hasher = blake3::Hasher::new();
        hasher.update(INPUT_DOMAIN).update(&given);
        if self.rounds.is_some() {
            // What it begins with differs from round to round.
            hasher.update(&index.to_be_bytes());
        }
        *hasher.finalize().as_bytes()
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

/// `template` with `{index}`, `{}`, fields and what rounds say filled in for a task. If the entry has a file, `{}` is its path. What stands for no field of this
/// entry stays as it is.
pub fn filled(template: &str, index: u64, entry: &Entry, fields: Option<&Fields>, rounds: Option<&Rounds>) -> String {
    let path = entry.input.as_ref().map(|input| format!("inputs/{}", input.name));
    let value = path.as_ref().unwrap_or(&entry.text);
    let mut filled = String::with_capacity(template.len());
    for piece in pieces(template) {
        match piece {
            Piece::Text(text) => filled += text,
            Piece::Entry => filled += value,
            Piece::Index => filled += &index.to_string(),
            Piece::Field(name) => match fields {
                Some(fields) if fields.of(&entry.text, name).is_some() => {
                    filled += fields.of(&entry.text, name).unwrap_or_default();
                }
                None if name == "1" => filled += value,
                _ => match rounds.and_then(|rounds| rounds.value(index, name)) {
                    Some(value) => filled += &value.to_string(),
                    None => filled += &format!("{{{name}}}"),
                },
            },
        }
    }
    filled
}

fn to_cbor<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes)
        .expect("a Vec takes every write, and these types hold no unserialisable value");
    bytes
}

/// Whether a name is a plain file name: no separator, no `..`, no control character, and no change of text direction
/// that makes it look like another name.
pub fn is_file_name(name: &str) -> bool {
    let is_override = |character| matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_forbidden =
        |character: char| matches!(character, '/' | '\\') || character.is_control() || is_override(character);
    !name.is_empty() && name.len() <= 255 && name != "." && name != ".." && !name.chars().any(is_forbidden)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use idlewood_overlay::WallTime;

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

    fn input(name: &str) -> Input {
        Input { name: name.to_owned(), blob: BlobId([1; 32]), bytes: 1 }
    }

    fn entry(text: &str, file: Option<&str>) -> Entry {
        Entry { text: text.to_owned(), input: file.map(input) }
    }

    pub(crate) fn manifest() -> Manifest {
        Manifest {
            version: MANIFEST_VERSION,
            name: "bag".to_owned(),
            submitter: PeerId([2; 32]),
            nonce: 3,
            made_s: 1_700_000_000,
            tasks: 2,
            program: input("program.wasm"),
            args: vec!["{index}".to_owned(), "{}".to_owned()],
            entries: vec![entry("a", Some("own")), entry("b", Some("own"))],
            fields: None,
            inputs: vec![input("shared")],
            stdin: None,
            env: BTreeMap::from([("KEY".to_owned(), "{}".to_owned())]),
            memory_bytes: 1 << 20,
            disk_bytes: 1 << 20,
            time_limit_s: 1,
            success_codes: vec![0],
            deterministic: false,
            native: false,
            rounds: None,
            blob: None,
        }
    }

    #[test]
    fn an_input_hash_covers_all_of_a_tasks_input_and_nothing_else() {
        let plain = manifest();
        let hash = plain.input_hash(0);
        assert_ne!(hash, plain.input_hash(1));
        let same = |change: fn(&mut Manifest)| {
            let mut changed = manifest();
            change(&mut changed);
            changed.input_hash(0) == hash
        };
        assert!(same(|it| (it.name, it.nonce, it.time_limit_s) = ("other".to_owned(), 99, 77)));
        assert!(same(|it| it.made_s = 5));
        assert!(same(|it| (it.tasks, it.submitter) = (3, PeerId([9; 32]))));
        assert!(!same(|it| it.args.push("more".to_owned())));
        assert!(!same(|it| it.env.clear()));
        assert!(!same(|it| it.stdin = Some("shared".to_owned())));
        assert!(!same(|it| it.inputs[0].blob = BlobId([7; 32])));
        assert!(!same(|it| it.entries[0].text = "other".to_owned()));
        assert!(same(|it| it.entries[1].text = "other".to_owned()));
        // Moving text from one part to the next changes the hash.
        assert!(!same(|it| it.args = vec!["{index}{}".to_owned(), String::new()]));
    }

    #[test]
    fn fields_are_filled_in_and_read_by_this_version_alone() {
        let fields = Some(Fields { separator: " ".to_owned(), names: vec!["who".to_owned()] });
        let entries = vec![entry("ada 1", None), entry("grace 2", None)];
        let swept = Manifest { version: MANIFEST_VERSION_FIELDS, fields, entries, stdin: None, ..manifest() };
        let filled = |template| swept.fill(template, 1);
        assert_eq!(filled("{index}: {} {2} {who} {{who}} {x} {3}"), "1: grace 2 2 grace {who} {x} {3}");
        assert_eq!(Manifest::decode(&swept.encode()).expect("it is sound"), swept);
        let older = Manifest { version: MANIFEST_VERSION, ..swept.clone() };
        assert!(matches!(older.validate(), Err(ManifestError::Version(1))), "others would not fill them in");
        assert!(Manifest { version: MANIFEST_VERSION_FIELDS, ..manifest() }.validate().is_err());
        let flawed = Fields { separator: String::new(), names: Vec::new() };
        assert!(Manifest { fields: Some(flawed), ..swept.clone() }.validate().is_err());
        assert_eq!(Manifest { fields: None, ..swept }.fill("{1}", 0), "ada 1", "the whole entry is the first field");
    }

    #[test]
    fn a_sound_manifest_survives_its_encoding() {
        for stdin in [None, Some("{}"), Some("shared"), Some("own")] {
            let manifest = Manifest { stdin: stdin.map(str::to_owned), ..manifest() };
            assert_eq!(Manifest::decode(&manifest.encode()).expect("it is sound"), manifest);
        }
    }

    #[test]
    fn older_manifests_get_the_defaults_of_later_fields() {
        let without = |name: &str| {
            let mut value: ciborium::Value = ciborium::from_reader(manifest().encode().as_slice()).expect("it is CBOR");
            let fields = value.as_map_mut().expect("a map");
            fields.retain(|(key, _)| key.as_text() != Some(name));
            let mut bytes = Vec::new();
            ciborium::into_writer(&value, &mut bytes).expect("a Vec takes every write");
            Manifest::decode(&bytes).expect("it is sound")
        };
        assert_eq!(without("disk_bytes"), Manifest { disk_bytes: DISK_BYTES_DEFAULT, ..manifest() });
        let undated = without("made_s");
        assert_eq!(undated, Manifest { made_s: 0, ..manifest() });
        assert_eq!(undated.label().age(WallTime(1_700_000_000_000_000)), Duration::MAX, "nobody knows");
    }

    #[test]
    fn a_manifest_is_as_old_as_its_date_says() {
        let at = |s: i64| WallTime(s * 1_000_000);
        let age = |made_s, now| Manifest { made_s, ..manifest() }.label().age(now);
        assert_eq!(age(1_700_000_000, at(1_700_000_077)), Duration::from_secs(77));
        assert_eq!(age(1_700_000_000, at(1_699_999_900)), Duration::ZERO, "clocks are never quite alike");
        assert_eq!(age(1_700_000_000, at(1_699_000_000)), Duration::MAX, "one of the two clocks is wrong");
        for made_s in [u64::MAX, i64::MAX as u64, i64::MAX as u64 / 1_000_000 + 1] {
            assert_eq!(age(made_s, at(1_700_000_000)), Duration::MAX);
        }
    }

    #[test]
    fn a_manifest_that_no_machine_can_run_is_refused() {
        let refused = |what: &str, change: fn(&mut Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            assert!(matches!(manifest.validate(), Err(ManifestError::Invalid(_))), "{what}");
            assert!(Manifest::decode(&manifest.encode()).is_err(), "{what}, decoded");
        };
        refused("a shared name twice", |manifest| manifest.inputs.push(input("shared")));
        refused("an own name that is shared", |manifest| manifest.entries[1] = entry("b", Some("shared")));
        refused("a path as program", |manifest| manifest.program.name = "../program".to_owned());
        refused("an unnamed program", |manifest| manifest.program.name.clear());
        refused("too many inputs", |manifest| {
            manifest.inputs = (0..=INPUTS_MAX).map(|number| input(&number.to_string())).collect();
        });
        refused("a zero byte in an argument", |manifest| manifest.args.push("a\0".to_owned()));
        refused("a zero byte in an entry", |manifest| manifest.entries[0].text = "\0".to_owned());
        refused("a zero byte in the name", |manifest| manifest.name = "\0".to_owned());
        for key in ["", "A=B", "A\0"] {
            let env = BTreeMap::from([(key.to_owned(), String::new())]);
            assert!(Manifest { env, ..manifest() }.validate().is_err(), "{key:?}");
        }
        let env = BTreeMap::from([("A".to_owned(), "\0".to_owned())]);
        assert!(Manifest { env, ..manifest() }.validate().is_err());
    }

    #[test]
    fn standard_input_is_an_input_of_every_task() {
        let stdin = |name: &str, entries: Vec<Entry>| {
            let tasks = entries.len().max(1) as u64;
            Manifest { stdin: Some(name.to_owned()), entries, tasks, ..manifest() }.validate().is_ok()
        };
        assert!(stdin("shared", Vec::new()));
        assert!(!stdin("other", Vec::new()));
        assert!(!stdin("{}", Vec::new()));
        assert!(!stdin("{}", vec![entry("a", Some("a")), entry("b", None)]));
        assert!(stdin("{}", vec![entry("a", Some("a")), entry("b", Some("b"))]));
        assert!(!stdin("a", vec![entry("a", Some("a")), entry("b", Some("b"))]));
    }

    #[test]
    fn arguments_count_as_they_are_filled_in() {
        let with = |copies: usize, length: usize| {
            let entries = vec![entry("a", None), entry(&"x".repeat(length), None)];
            Manifest { args: vec!["{}".repeat(copies)], entries, env: BTreeMap::new(), ..manifest() }.validate().is_ok()
        };
        assert!(with(1, 200_000));
        assert!(!with(3, 200_000));
        assert!(!with(0, 600_000));
        assert!(!with(300_000, 1));
    }

    /// Any manifest that decodes answers for each of its tasks.
    #[test]
    fn mutations_of_manifests_and_outputs() {
        use idlewood_testing::mutations;

        mutations("manifest", vec![manifest().encode()], |bytes| {
            let Ok(read) = Manifest::decode(bytes) else { return false };
            for index in [0, 1, read.tasks / 2, read.tasks - 1] {
                let entry = read.entry(index);
                assert!(read.args.iter().all(|arg| read.fill(arg, index).len() < 1 << 24), "{entry:?}");
                assert!(
                    read.task_stdin(index).is_none_or(|name| read.task_inputs(index).iter().any(|i| i.name == name))
                );
            }
            assert_eq!(Manifest::decode(&read.encode()).map_err(|error| error.to_string()), Ok(read));
            true
        });
        let files = BTreeMap::from([("a/b".to_owned(), serde_bytes::ByteBuf::from(vec![1; 30]))]);
        let output = TaskOutput { exit_code: Some(3), stdout: vec![1; 9], files, cpu_s: 0.5, ..TaskOutput::default() };
        mutations("output", vec![output.encode()], |bytes| TaskOutput::decode(bytes).is_ok());
    }
}
