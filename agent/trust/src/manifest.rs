//! Manifests: the part of a submission that executors need and the scheduler does not.
//!
//! The manifest is a blob; the bag's signed envelope names it ([`crate::envelope`]). Executors fetch it from the
//! submitter, or from another holder, when they first start a task of the bag. A task's output travels back as one
//! blob, too: [`TaskOutput`].

mod bounded;
mod files;
mod in_rounds;
mod lines;
mod output;
mod rounds;
mod start;
mod tail;
mod template;

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::PeerId;
use idlewood_scheduler::{BAG_TASKS_MAX, BlobId};
use serde::{Deserialize, Serialize};

use self::bounded::{at_most, at_most_pairs};
pub use self::files::{Input, OUTPUTS_MAX, OwnFolder, OwnInput, PATH_BYTES_MAX, is_file_name, is_path};
pub use self::output::{ERROR_BYTES_MAX, TaskOutput};
pub use self::rounds::{GIVEN, Rounds};
pub use self::start::{Given, Place, START_BYTES_MAX, Start};
pub use self::tail::TAIL_BYTES;
pub use self::template::{FIELD_NAME_BYTES_MAX, FIELDS_MAX, Fields, Piece, filled, filled_with, is_number, pieces};
use crate::label::Label;

/// Version of the forms below.
pub const MANIFEST_VERSION: u32 = 1;
/// Version of manifests whose entries have fields: agents that do not fill these in must not run their tasks.
pub const MANIFEST_VERSION_FIELDS: u32 = 2;
/// Version of manifests with inputs in folders, inputs of single tasks, or outputs that are chosen: agents that do not know them must not run
/// their tasks.
pub const MANIFEST_VERSION_FILES: u32 = 3;
/// Version of manifests of endless bags: agents that cannot tell what a task of one is must not run any.
pub const MANIFEST_VERSION_ENDLESS: u32 = 4;
/// Version of manifests of applications in rounds: agents that give their tasks nothing must not run them.
pub const MANIFEST_VERSION_ROUNDS: u32 = 5;
/// Version of manifests with empty folders: agents that do not make them must not run their tasks.
pub const MANIFEST_VERSION_FOLDERS: u32 = 6;
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
/// A machine is taken to be at most so many times slower than its submitter's. Our choice: desktops are within ten times of each other, so
/// that more is a mistake.
const TIMES_SLOWER_MAX: f64 = 64.0;
/// Most exit codes that mean success: systems have 256.
const SUCCESS_CODES_MAX: usize = 1024;
/// Most files shared by all tasks, or of one task alone.
pub const INPUTS_MAX: usize = 10_000;
/// As many files shared by all tasks as agents read that know no folders.
const INPUTS_WITHOUT_FOLDERS_MAX: usize = 1000;
/// Longest name of a bag, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

/// The part of a task's input that differs between tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its text (a line of text, number or file), as `IDLEWOOD_ENTRY` and `{}` show it.
    pub text: String,
    /// Its own file, if it has one.
    pub input: Option<Input>,
}

/// Everything an executor needs to run the tasks of a bag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The lowest that says all of it: [`Manifest::needed_version`].
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
    /// Of an endless bag: what its tasks are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
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
    /// Time that a task may run, without the time that it is frozen, on a machine as fast as its submitter's ([`Manifest::time_limit_on`]).
    pub time_limit_s: u64,
    /// Speed of a slot of the submitter's machine, in Mop/s; 0 in manifests from before this field.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub speed_mops: u64,
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
    /// Names of inputs, shared ones or those of tasks, that are executable.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "at_most::<_, _, INPUTS_MAX>")]
    pub executable: Vec<String>,
    /// Empty folders that all tasks find among their inputs, as paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "at_most::<_, _, INPUTS_MAX>")]
    pub folders: Vec<String>,
    /// Empty folders of single tasks, by ascending task.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "at_most::<_, _, ENTRIES_MAX>")]
    pub own_folders: Vec<OwnFolder>,
    /// Files of single tasks beside those of their entries, by ascending task.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "at_most::<_, _, ENTRIES_MAX>")]
    pub own: Vec<OwnInput>,
    /// Patterns of paths in the working directory, filled in as arguments are: files that match one are the output, and each has to match
    /// one at least. None: all files are the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "at_most::<_, _, OUTPUTS_MAX>")]
    pub outputs: Vec<String>,
    /// Largest output of a task, in bytes; none: [`OUTPUT_BYTES_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// The tasks are rounds of an application's processes, and merges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Rounds>,
    /// The blob that it was read from. None if it is part of the signed blob, and before it is written.
    #[serde(skip)]
    pub blob: Option<BlobId>,
    /// Of an endless bag whose tasks are lines or files: a task and its entry, which came with the task.
    #[serde(skip)]
    pub line: Option<(u64, Entry)>,
}

/// What the tasks of an endless bag are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// Numbers.
    #[serde(rename = "range")]
    Range {
        /// Of the first task.
        first: u64,
        /// From one task to the next.
        step: u64,
    },
    /// Lines that come with the tasks, as they are written into a pipe.
    #[serde(rename = "lines")]
    Lines,
    /// Files that come with the tasks, as they appear in a directory. The line of each task is its [`Entry`] as JSON.
    #[serde(rename = "files")]
    Files,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn disk_bytes_default() -> u64 {
    DISK_BYTES_DEFAULT
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not a manifest at all.
    #[error("not a manifest: {0}")]
    Malformed(String),
    /// The manifest has another version.
    #[error("manifest of version {0}; this idlewood reads versions up to {MANIFEST_VERSION_FOLDERS}: update it")]
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

    /// How long a task may run on a machine whose slots have this speed in Mop/s: longer than on its submitter's where that is faster, since it
    /// takes longer for the same, but no shorter where it is slower.
    pub fn time_limit_on(&self, speed_mops: f64) -> Duration {
        let times = (self.speed_mops as f64 / speed_mops.max(f64::MIN_POSITIVE)).clamp(1.0, TIMES_SLOWER_MAX);
        Duration::try_from_secs_f64(self.time_limit_s as f64 * times).unwrap_or(Duration::MAX)
    }

    /// The lowest version that says all of it, so that as many agents as can be read it.
    pub fn needed_version(&self) -> u32 {
        let mut names = self.blobs().map(|input| input.name.as_str());
        let chooses_outputs = !self.outputs.is_empty() || self.output_bytes.is_some();
        let has_files = !self.executable.is_empty() || !self.own.is_empty() || chooses_outputs;
        if !self.folders.is_empty() || !self.own_folders.is_empty() {
            MANIFEST_VERSION_FOLDERS
        } else if self.rounds.is_some() {
            MANIFEST_VERSION_ROUNDS
        } else if self.source.is_some() {
            MANIFEST_VERSION_ENDLESS
        } else if has_files || self.inputs.len() > INPUTS_WITHOUT_FOLDERS_MAX || names.any(|name| name.contains('/')) {
            MANIFEST_VERSION_FILES
        } else if self.fields.is_some() {
            MANIFEST_VERSION_FIELDS
        } else {
            MANIFEST_VERSION
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
        if self.version != self.needed_version() {
            return Err(ManifestError::Version(self.version));
        }
        if let Some(flaw) = self.fields.as_ref().and_then(Fields::flaw) {
            return invalid(flaw);
        }
        if self.tasks == 0 {
            return invalid("a bag needs at least one task".to_owned());
        }
        if self.source.is_some() != (self.tasks == BAG_TASKS_MAX) {
            return invalid(format!("a bag has {BAG_TASKS_MAX} tasks if it is endless, and says then what they are"));
        }
        if self.source.is_some() && !self.entries.is_empty() {
            return invalid("an endless bag has no list of entries".to_owned());
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
        if self.rounds.is_some() && (!self.own.is_empty() || !self.own_folders.is_empty()) {
            return invalid("in rounds a process has the file of its entry alone as its own".to_owned());
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

    /// Checks that C programs can take arguments, environment and entries, and that a worker's job message can hold
    /// them.
    fn validate_texts(&self) -> Result<(), ManifestError> {
        let invalid = |sentence: String| Err(ManifestError::Invalid(sentence));
        let entries = self.entries.iter().map(|entry| &entry.text);
        let mut texts = self.args.iter().chain(self.env.values()).chain(&self.outputs).chain(entries);
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

    /// Approximate memory use, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let text = |text: &String| size_of::<String>() + text.len();
        let input = |input: &Input| size_of::<Input>() + input.name.len();
        let own = self.own.iter().map(|own| size_of::<OwnInput>() + own.input.name.len()).sum::<usize>();
        let empty = self.own_folders.iter().map(|own| size_of::<OwnFolder>() + own.folder.len()).sum::<usize>();
        let entry = |entry: &Entry| {
            size_of::<Entry>() + entry.text.len() + entry.input.as_ref().map_or(0, |input| input.name.len())
        };
        let entries: usize = self.entries.iter().map(entry).sum();
        let inputs: usize = self.inputs.iter().map(input).sum();
        let texts = self.args.iter().chain(self.env.keys()).chain(self.env.values());
        let texts: usize = texts.chain(&self.executable).chain(&self.folders).chain(&self.outputs).map(text).sum();
        (size_of::<Self>() + entries + inputs + own + empty + texts) as u64
    }

    /// The entry of a task; an empty one if the bag has none.
    pub fn entry(&self, index: u64) -> Entry {
        match (&self.source, &self.line) {
            (Some(Source::Range { first, step }), _) => {
                let text = first.saturating_add(index.saturating_mul(*step)).to_string();
                return Entry { text, input: None };
            }
            (Some(Source::Lines | Source::Files), Some((of, entry))) if *of == index => return entry.clone(),
            _ => {}
        }
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
}

fn to_cbor<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes)
        .expect("a Vec takes every write, and these types hold no unserialisable value");
    bytes
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use idlewood_overlay::WallTime;

    use super::*;

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
            speed_mops: 0,
            success_codes: vec![0],
            deterministic: false,
            native: false,
            executable: Vec::new(),
            folders: Vec::new(),
            own_folders: Vec::new(),
            own: Vec::new(),
            outputs: Vec::new(),
            output_bytes: None,
            rounds: None,
            blob: None,
            source: None,
            line: None,
        }
    }

    #[test]
    fn a_slower_machine_has_longer_and_a_faster_one_no_shorter() {
        let on = |of: u64, here: f64| Manifest { time_limit_s: 60, speed_mops: of, ..manifest() }.time_limit_on(here);
        let limits = [on(2000, 2000.0), on(2000, 500.0), on(2000, 8000.0), on(0, 500.0), on(u64::MAX, 1.0), on(1, 0.0)];
        assert_eq!(limits.map(|limit| limit.as_secs()), [60, 240, 60, 60, 3840, 3840]);
        let longest = Manifest { time_limit_s: u64::MAX, speed_mops: 2, ..manifest() };
        assert_eq!(longest.time_limit_on(1.0), Duration::MAX);
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
        assert!(!same(|it| it.folders = vec!["empty".to_owned()]));
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
            manifest.version = manifest.needed_version();
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
