//! The files of a bag: program, inputs shared by all tasks and inputs of single tasks, and which files of a task are its output.
//!
//! A file of a folder has a path as its name, `folder/below/file`. Paths are checked here, when a manifest is read, and again where files are
//! laid out (`agent/worker/src/inputs.rs`): whoever submits may write anything.

use std::collections::BTreeSet;

use idlewood_scheduler::BlobId;
use serde::{Deserialize, Serialize};

use super::{ENTRIES_MAX, INPUT_BYTES_MAX, INPUTS_MAX, Manifest, ManifestError, OUTPUT_BYTES_MAX, to_cbor};

/// Prefix of a task's input when it is hashed.
const INPUT_DOMAIN: &[u8] = b"idlewood input v1";
/// Longest path of an input, and longest pattern of outputs, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;
/// Most folders around an input.
const DEPTH_MAX: usize = 32;
/// Most patterns of outputs.
pub const OUTPUTS_MAX: usize = 64;
/// Least limit of an output: less would be over it with nothing in it.
const OUTPUT_BYTES_LEAST: u64 = 4096;

/// A file that tasks can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Where it is below `inputs/`: a file name, or names of folders and a file name with `/` between.
    pub name: String,
    /// Its content.
    pub blob: BlobId,
    /// Its size.
    pub bytes: u64,
}

/// A file that one task can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnInput {
    /// The task's index.
    pub task: u64,
    /// The file.
    pub input: Input,
}

/// An empty folder that one task finds among its inputs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OwnFolder {
    /// The task's index.
    pub task: u64,
    /// Its path below `inputs/`.
    pub folder: String,
}

/// Whether a name is a plain file name: no separator, no `..`, no control character, and no change of text direction
/// that makes it look like another name.
pub fn is_file_name(name: &str) -> bool {
    let is_override = |character| matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_forbidden =
        |character: char| matches!(character, '/' | '\\') || character.is_control() || is_override(character);
    !name.is_empty() && name.len() <= 255 && name != "." && name != ".." && !name.chars().any(is_forbidden)
}

/// Whether a name is a path to a file below a directory: plain file names with `/` between.
pub fn is_path(name: &str) -> bool {
    name.len() <= PATH_BYTES_MAX && name.split('/').count() <= DEPTH_MAX + 1 && name.split('/').all(is_file_name)
}

/// Paths that are taken: files, and the folders around them.
#[derive(Default)]
struct Taken<'a> {
    files: BTreeSet<&'a str>,
    folders: BTreeSet<&'a str>,
}

impl<'a> Taken<'a> {
    /// Whether a file can be there: it is no other, no folder of one, and in none.
    fn has_room_for(&self, path: &str) -> bool {
        !self.files.contains(path)
            && !self.folders.contains(path)
            && folders(path).all(|folder| !self.files.contains(folder))
    }

    fn take(&mut self, path: &'a str) -> bool {
        let has_room = self.has_room_for(path);
        self.files.insert(path);
        self.folders.extend(folders(path));
        has_room
    }
}

/// The folders around a file.
fn folders(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

impl Manifest {
    /// The program and all inputs.
    pub fn blobs(&self) -> impl Iterator<Item = &Input> {
        let of_entries = self.entries.iter().filter_map(|entry| entry.input.as_ref());
        let own = self.own.iter().map(|own| &own.input);
        let merge = self.rounds.iter().filter_map(|rounds| rounds.merge.as_ref());
        self.inputs.iter().chain(of_entries).chain(own).chain([&self.program]).chain(merge)
    }

    /// The files that a task has alone, beside that of its entry.
    fn own_of(&self, index: u64) -> &[OwnInput] {
        let begin = self.own.partition_point(|own| own.task < index);
        let rest = &self.own[begin..];
        &rest[..rest.partition_point(|own| own.task == index)]
    }

    /// The empty folders that a task has alone.
    fn own_folders_of(&self, index: u64) -> &[OwnFolder] {
        let begin = self.own_folders.partition_point(|own| own.task < index);
        let rest = &self.own_folders[begin..];
        &rest[..rest.partition_point(|own| own.task == index)]
    }

    /// Whether a task has files or folders that others have not.
    pub fn has_own_files(&self, index: u64) -> bool {
        let has_folders = !self.own_folders_of(index).is_empty();
        has_folders || self.entry(index).input.is_some() || !self.own_of(index).is_empty()
    }

    /// The empty folders a task finds among its inputs: the shared ones and its own.
    pub fn task_folders(&self, index: u64) -> Vec<String> {
        let own = self.own_folders_of(index).iter().map(|own| &own.folder);
        self.folders.iter().chain(own).cloned().collect()
    }

    /// The files a task can read: the shared ones and its own.
    pub fn task_inputs(&self, index: u64) -> Vec<Input> {
        let own = self.own_of(index).iter().map(|own| own.input.clone());
        self.inputs.iter().cloned().chain(self.entry(index).input).chain(own).collect()
    }

    /// The name of the input that is a task's standard input.
    pub fn task_stdin(&self, index: u64) -> Option<String> {
        let name = self.stdin.as_ref()?;
        if name == "{}" { self.entry(index).input.map(|input| input.name) } else { Some(name.clone()) }
    }

    /// Largest output of a task, in bytes.
    pub fn output_bytes_max(&self) -> u64 {
        self.output_bytes.unwrap_or(OUTPUT_BYTES_MAX).min(OUTPUT_BYTES_MAX)
    }

    /// Hash of a task's input: arguments and environment filled in, its entry, its standard input's name, and names and
    /// hashes of its files (`docs/formats.md`); which of these are executable and which outputs are chosen, where that is
    /// said. Equal across bags; leaves out variables that the agent adds, such as the attempt, and the line that came with a task
    /// of an endless bag.
    pub fn input_hash(&self, index: u64) -> [u8; 32] {
        let args: Vec<String> = self.args.iter().map(|argument| self.fill(argument, index)).collect();
        let env: Vec<(&String, String)> =
            self.env.iter().map(|(name, value)| (name, self.fill(value, index))).collect();
        let files = self.task_inputs(index);
        let known: BTreeSet<&String> = self.executable.iter().collect();
        let executable: Vec<&String> =
            files.iter().map(|input| &input.name).filter(|name| known.contains(name)).collect();
        let outputs: Vec<String> = self.outputs.iter().map(|pattern| self.fill(pattern, index)).collect();
        let files: Vec<(&String, &serde_bytes::Bytes)> =
            files.iter().map(|input| (&input.name, serde_bytes::Bytes::new(&input.blob.0))).collect();
        let stdin = self.task_stdin(index).unwrap_or_default();
        let text = self.entry(index).text;
        let given = if executable.is_empty() && outputs.is_empty() {
            to_cbor(&(args, env, text, stdin, files))
        } else {
            to_cbor(&(args, env, text, stdin, files, executable, outputs))
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(INPUT_DOMAIN).update(&given);
        let own: Vec<&String> = self.own_folders_of(index).iter().map(|own| &own.folder).collect();
        if !own.is_empty() {
            hasher.update(&to_cbor(&(&self.folders, own)));
        } else if !self.folders.is_empty() {
            hasher.update(&to_cbor(&self.folders));
        }
        if self.rounds.is_some() {
            // What it begins with differs from round to round.
            hasher.update(&index.to_be_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Program, inputs, standard input and outputs.
    pub(super) fn validate_files(&self) -> Result<(), ManifestError> {
        let invalid = |sentence: String| Err(ManifestError::Invalid(sentence));
        let own = self.own.chunk_by(|a, b| a.task == b.task).map(<[OwnInput]>::len).max().unwrap_or(0);
        if self.inputs.len() + own > INPUTS_MAX {
            return invalid(format!(
                "{} inputs of a task are too many: pack them, {INPUTS_MAX} at most",
                self.inputs.len() + own
            ));
        }
        if self.own.len() > ENTRIES_MAX {
            return invalid(format!("{} inputs of tasks are too many: submit several bags", self.own.len()));
        }
        if !is_file_name(&self.program.name) {
            return invalid(format!("{:?} cannot be the name of a program: use a plain file name", self.program.name));
        }
        for input in self.blobs() {
            if !is_path(&input.name) {
                return invalid(format!("{:?} cannot be the name of a file: use a plain file name", input.name));
            }
            if input.bytes > INPUT_BYTES_MAX {
                return invalid(format!("{} is over {} GiB: split it", input.name, INPUT_BYTES_MAX >> 30));
            }
        }
        let mut shared = Taken::default();
        let twice = self.inputs.iter().find(|input| !shared.take(&input.name));
        let of_entries = self.entries.iter().filter_map(|entry| entry.input.as_ref());
        let own = self.own.iter().map(|own| &own.input);
        let twice = twice.or_else(|| of_entries.chain(own).find(|input| !shared.has_room_for(&input.name)));
        if let Some(input) = twice.or_else(|| self.own_twice()) {
            return invalid(format!(
                "two inputs of a task are named {:?}, or one lies inside the other: give each its own name",
                input.name
            ));
        }
        if self.own.iter().any(|own| own.task >= self.tasks) || !self.own.is_sorted_by_key(|own| own.task) {
            return invalid("inputs of tasks are not in the order of the tasks of the bag".to_owned());
        }
        self.validate_folders(&shared)?;
        if let Some(name) = &self.stdin {
            let is_it = |own: &Input| name == "{}" || *name == own.name;
            let all_have_it =
                !self.entries.is_empty() && self.entries.iter().all(|entry| entry.input.as_ref().is_some_and(is_it));
            let all_have_it = all_have_it || name == "{}" && self.has_files();
            if !all_have_it && !shared.files.contains(name.as_str()) {
                return invalid(format!("standard input {name:?} is not among the inputs of every task: add it"));
            }
        }
        self.validate_outputs()
    }

    /// Empty folders of all tasks and of single ones, beside the files of all tasks.
    fn validate_folders(&self, shared: &Taken<'_>) -> Result<(), ManifestError> {
        let invalid = |sentence: String| Err(ManifestError::Invalid(sentence));
        for folder in &self.folders {
            let is_in_a_file = || folders(folder).chain([folder.as_str()]).any(|path| shared.files.contains(path));
            if !is_path(folder) || is_in_a_file() {
                return invalid(format!("{folder:?} cannot be an empty folder among the inputs: rename it"));
            }
        }
        let empty: BTreeSet<&str> =
            self.folders.iter().flat_map(|folder| folders(folder).chain([folder.as_str()])).collect();
        let own = self.own.iter().map(|own| &own.input);
        let own = self.entries.iter().filter_map(|entry| entry.input.as_ref()).chain(own);
        let told: BTreeSet<&str> = self.folders.iter().map(String::as_str).collect();
        let is_below = |path: &str| folders(path).any(|around| told.contains(around));
        if let Some(input) = own.into_iter().find(|input| empty.contains(input.name.as_str()) || is_below(&input.name))
        {
            return invalid(format!("{:?} is an empty folder of all tasks, and a file of one: rename it", input.name));
        }
        let own = self.own_folders.chunk_by(|a, b| a.task == b.task);
        let most = own.clone().map(<[OwnFolder]>::len).max().unwrap_or(0);
        if self.own_folders.len() > ENTRIES_MAX || self.folders.len() + most > INPUTS_MAX {
            return invalid(format!("a task has {INPUTS_MAX} empty folders at most, and a bag {ENTRIES_MAX}"));
        }
        let is_ordered = self.own_folders.is_sorted_by_key(|own| own.task);
        if !is_ordered || self.own_folders.iter().any(|own| own.task >= self.tasks) {
            return invalid("empty folders of tasks are not in the order of the tasks of the bag".to_owned());
        }
        if self.source.is_some() && !self.own_folders.is_empty() {
            return invalid("tasks of an endless bag have no folders of their own".to_owned());
        }
        for folders_of_one in own {
            let task = folders_of_one[0].task;
            let entry = usize::try_from(task).ok().and_then(|index| self.entries.get(index));
            let entry = entry.and_then(|entry| entry.input.as_ref());
            let own = self.own_of(task).iter().map(|own| &own.input).chain(entry);
            let files: BTreeSet<&str> = own.map(|input| input.name.as_str()).collect();
            for OwnFolder { folder, .. } in folders_of_one {
                let is_file = |path: &str| shared.files.contains(path) || files.contains(path);
                if !is_path(folder) || folders(folder).chain([folder.as_str()]).any(is_file) {
                    return invalid(format!("{folder:?} cannot be an empty folder among the inputs: rename it"));
                }
            }
        }
        Ok(())
    }

    /// A file of a single task that cannot be beside another of that task.
    fn own_twice(&self) -> Option<&Input> {
        self.own.chunk_by(|a, b| a.task == b.task).find_map(|own| {
            let mut taken = Taken::default();
            let entry = usize::try_from(own[0].task).ok().and_then(|index| self.entries.get(index));
            entry.and_then(|entry| entry.input.as_ref()).map(|input| taken.take(&input.name));
            own.iter().map(|own| &own.input).find(|input| !taken.take(&input.name))
        })
    }

    fn validate_outputs(&self) -> Result<(), ManifestError> {
        let invalid = |sentence: String| Err(ManifestError::Invalid(sentence));
        if self.outputs.len() > OUTPUTS_MAX {
            return invalid(format!("{} patterns of outputs are too many: {OUTPUTS_MAX} at most", self.outputs.len()));
        }
        let is_bad = |pattern: &&String| pattern.is_empty() || pattern.len() > PATH_BYTES_MAX;
        if let Some(pattern) = self.outputs.iter().find(is_bad) {
            return invalid(format!("the pattern {pattern:?} of outputs has to have 1 to {PATH_BYTES_MAX} bytes"));
        }
        match self.output_bytes {
            Some(bytes) if !(OUTPUT_BYTES_LEAST..=OUTPUT_BYTES_MAX).contains(&bytes) => invalid(format!(
                "the output of a task can be limited to 4K to {}M, not to {bytes} bytes",
                OUTPUT_BYTES_MAX >> 20
            )),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::manifest;
    use super::super::{
        Fields, MANIFEST_VERSION, MANIFEST_VERSION_FIELDS, MANIFEST_VERSION_FILES, MANIFEST_VERSION_FOLDERS,
    };
    use super::*;

    fn input(name: &str) -> Input {
        Input { name: name.to_owned(), blob: BlobId([1; 32]), bytes: 1 }
    }

    fn own(task: u64, name: &str) -> OwnInput {
        OwnInput { task, input: input(name) }
    }

    fn empty(task: u64, folder: &str) -> OwnFolder {
        OwnFolder { task, folder: folder.to_owned() }
    }

    fn with(change: impl FnOnce(&mut Manifest)) -> Manifest {
        let mut manifest = manifest();
        change(&mut manifest);
        manifest.version = manifest.needed_version();
        manifest
    }

    /// The machine that runs the task writes its inputs at these paths: whoever submits could write anywhere.
    #[test]
    fn a_manifest_whose_files_would_leave_their_directory_is_not_read() {
        for name in ["../x", "/etc/x", "a/../../x", "a/..", "..", ".", "a//b", "a/", "./a", "a\\b", "a/\0", "a/\n", ""]
        {
            assert!(!is_path(name), "{name:?}");
            for hostile in [
                with(|it| it.inputs.push(input(name))),
                with(|it| it.entries[1].input = Some(input(name))),
                with(|it| it.own.push(own(1, name))),
                with(|it| it.folders.push(name.to_owned())),
                with(|it| it.own_folders.push(empty(1, name))),
                with(|it| it.program = input(name)),
            ] {
                assert!(Manifest::decode(&hostile.encode()).is_err(), "{name:?}");
            }
        }
        let deep = ["d"; DEPTH_MAX + 2].join("/");
        assert!(!is_path(&deep) && is_path(&deep[2..]) && !is_path(&["x".repeat(250).as_str(); 5].join("/")));
        let fine = with(|it| it.inputs.push(input("data/deep/a b.csv")));
        assert_eq!(Manifest::decode(&fine.encode()).expect("it is sound"), fine);
    }

    #[test]
    fn files_do_not_lie_in_files() {
        let refused = |change: fn(&mut Manifest)| assert!(with(change).validate().is_err());
        refused(|it| it.inputs.extend([input("a"), input("a/b")]));
        refused(|it| it.inputs.extend([input("a/b/c"), input("a/b")]));
        refused(|it| it.inputs.extend([input("a/b"), input("a/b")]));
        refused(|it| it.own.push(own(0, "shared")));
        refused(|it| it.own.push(own(0, "shared/x")));
        refused(|it| it.own.extend([own(0, "x"), own(0, "x/y")]));
        refused(|it| it.own.push(own(0, "own")));
        refused(|it| it.own.extend([own(1, "x"), own(0, "x")]));
        refused(|it| it.own.push(own(2, "x")));
        refused(|it| it.program = input("bin/program"));
        for (name, is_fine) in [("e", false), ("e/f", false), ("e/f/x", false), ("e/g", true)] {
            let of_one = with(|it| {
                it.folders.push("e/f".to_owned());
                it.own.push(own(0, name));
            });
            assert_eq!(of_one.validate().is_ok(), is_fine, "{name} and the empty folder e/f of all");
        }
        let fine = with(|it| {
            it.inputs.extend([input("a/b"), input("a/c"), input("a.b")]);
            it.own.extend([own(0, "a/x"), own(0, "y"), own(1, "a/x")]);
        });
        fine.validate().expect("they are different");
        let names = |index| fine.task_inputs(index).into_iter().map(|input| input.name).collect::<Vec<_>>();
        assert_eq!(names(0), ["shared", "a/b", "a/c", "a.b", "own", "a/x", "y"]);
        assert_eq!(names(1), ["shared", "a/b", "a/c", "a.b", "own", "a/x"]);
    }

    #[test]
    fn an_empty_folder_of_one_task_is_that_tasks_alone() {
        let bag = with(|it| {
            it.folders.push("of all".to_owned());
            it.own.push(own(0, "part/x"));
            it.own_folders.extend([empty(0, "part/results"), empty(0, "z"), empty(1, "part")]);
        });
        assert_eq!(bag.version, MANIFEST_VERSION_FOLDERS, "others would not make them");
        assert_eq!(Manifest::decode(&bag.encode()).expect("it is sound"), bag);
        assert_eq!(
            [bag.task_folders(0), bag.task_folders(1)],
            [vec!["of all", "part/results", "z"], vec!["of all", "part"]]
        );
        let lone = with(|it| {
            it.entries.clear();
            it.own_folders.push(empty(1, "part"));
        });
        assert_eq!([0, 1].map(|task| lone.has_own_files(task)), [false, true], "no other task is given its directory");

        let refused = |change: fn(&mut Manifest)| assert!(with(change).validate().is_err());
        refused(|it| it.own_folders.push(empty(2, "of no task")));
        refused(|it| it.own_folders.extend([empty(1, "x"), empty(0, "x")]));
        refused(|it| it.own_folders.push(empty(0, "shared")));
        refused(|it| it.own_folders.push(empty(0, "shared/below")));
        refused(|it| it.own_folders.push(empty(0, "own")));
        refused(|it| (it.own, it.own_folders) = (vec![own(1, "x")], vec![empty(1, "x/y")]));
        refused(|it| it.own_folders = (0..=INPUTS_MAX).map(|number| empty(0, &number.to_string())).collect());
        let of_another = with(|it| (it.own, it.own_folders) = (vec![own(0, "x")], vec![empty(1, "x/y")]));
        of_another.validate().expect("the file is of task 0");
    }

    /// As many machines as can be run a bag.
    #[test]
    fn the_version_is_the_lowest_that_says_all_and_nothing_new_changes_no_byte() {
        let version = |change: fn(&mut Manifest)| with(change).version;
        assert_eq!(version(|_| ()), MANIFEST_VERSION);
        let fields = || Some(Fields { separator: " ".to_owned(), names: Vec::new() });
        let with_fields = with(|it| it.fields = fields());
        assert_eq!(with_fields.version, MANIFEST_VERSION_FIELDS);
        for change in [
            (|it: &mut Manifest| it.inputs.push(input("a/b"))) as fn(&mut Manifest),
            |it| it.entries[0].input = Some(input("a/b")),
            |it| it.own.push(own(0, "x")),
            |it| it.executable.push("shared".to_owned()),
            |it| it.outputs.push("*.csv".to_owned()),
            |it| it.output_bytes = Some(1 << 20),
            |it| it.inputs = (0..1001).map(|number| input(&number.to_string())).collect(),
        ] {
            let newer = with(change);
            assert_eq!(newer.version, MANIFEST_VERSION_FILES);
            assert_eq!(Manifest::decode(&newer.encode()).expect("it is sound"), newer);
            assert!(
                Manifest { version: MANIFEST_VERSION, ..newer }.validate().is_err(),
                "others would run it otherwise"
            );
        }
        let plain = with(|_| ()).encode();
        for name in ["executable", "outputs", "output_bytes"] {
            assert!(!plain.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn an_input_hash_covers_what_is_executable_and_which_outputs_are_chosen() {
        let hash = |change: fn(&mut Manifest)| with(change).input_hash(0);
        let plain = hash(|_| ());
        assert_ne!(hash(|it| it.executable.push("shared".to_owned())), plain);
        assert_eq!(hash(|it| it.executable.push("of no task".to_owned())), plain);
        assert_ne!(hash(|it| it.outputs.push("{index}.csv".to_owned())), plain);
        assert_ne!(hash(|it| it.own.push(own(0, "x"))), plain);
        assert_eq!(hash(|it| it.own.push(own(1, "x"))), plain);
        let folder = hash(|it| it.own_folders.push(empty(0, "x")));
        assert_eq!(hash(|it| it.own_folders.push(empty(1, "x"))), plain);
        assert_ne!(folder, plain);
        assert_ne!(hash(|it| it.folders.push("x".to_owned())), folder);
    }

    #[test]
    fn outputs_have_bounds() {
        assert!(with(|it| it.outputs.push(String::new())).validate().is_err());
        assert!(with(|it| it.outputs.push("x".repeat(PATH_BYTES_MAX + 1))).validate().is_err());
        assert!(with(|it| it.output_bytes = Some(1)).validate().is_err());
        let over = with(|it| it.output_bytes = Some(OUTPUT_BYTES_MAX + 1));
        assert!(over.validate().is_err());
        assert_eq!(over.output_bytes_max(), OUTPUT_BYTES_MAX, "whatever a manifest says");
        assert_eq!(with(|it| it.output_bytes = Some(1 << 20)).output_bytes_max(), 1 << 20);
    }
}
