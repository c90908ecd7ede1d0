//! The files of a submission: which tasks get which, and under which names.
//!
//! A folder is carried file by file, each named by its path from the folder on: `tools/deep/run.sh` of the folder `tools`. Links to files
//! of the folder are carried as the files that they lead to; links that lead out of it are refused, since the user may not know what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::mem;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use blake3::Hash;
use idlewood_scheduler::BlobId;
use idlewood_trust::manifest::{
    self, Entry, Fields, INPUT_BYTES_MAX, INPUTS_MAX, Input, OwnFolder, OwnInput, PATH_BYTES_MAX, Piece, is_file_name,
    is_path,
};
use idlewood_worker::check_program;

use super::error::SubmitError;

/// A file to be uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// The local files a plan needs, by content.
pub(super) struct Files {
    local: BTreeMap<[u8; 32], LocalFile>,
    /// Files that were read already.
    known: BTreeMap<PathBuf, (Hash, u64)>,
    /// Names of inputs that native programs can execute.
    executable: BTreeSet<String>,
    /// Empty folders of inputs of all tasks; meanwhile those of one task.
    empty: BTreeSet<String>,
    native: bool,
}

/// An input, and where it is here.
type Found = (Input, PathBuf);

/// A path of `--input` as a template with places that are filled in for each task; `None` where it has none, or is there as it stands.
pub(super) fn template(path: &Path) -> Option<&str> {
    let text = path.to_str().filter(|_| !path.exists())?;
    let is_place = |piece: &Piece<'_>| matches!(piece, Piece::Entry | Piece::Index | Piece::Field(_));
    manifest::pieces(text).iter().any(is_place).then_some(text)
}

impl Files {
    pub(super) fn new(native: bool) -> Self {
        Self {
            local: BTreeMap::new(),
            known: BTreeMap::new(),
            executable: BTreeSet::new(),
            empty: BTreeSet::new(),
            native,
        }
    }

    /// The distinct files.
    pub(super) fn into_local(self) -> BTreeMap<[u8; 32], LocalFile> {
        self.local
    }

    /// Names of inputs that native programs can execute.
    pub(super) fn executable(&self) -> Vec<String> {
        self.executable.iter().cloned().collect()
    }

    /// Empty folders of inputs of all tasks.
    pub(super) fn empty(&self) -> Vec<String> {
        self.empty.iter().cloned().collect()
    }

    pub(super) fn add_program(&mut self, path: &Path) -> Result<Input, SubmitError> {
        let (mut file, _) = open("program", path)?;
        let mut module = Vec::new();
        file.read_to_end(&mut module).map_err(|source| SubmitError::File {
            what: "program",
            path: path.to_owned(),
            source,
        })?;
        match (self.native, module.first_chunk()) {
            (false, _) => {
                check_program(&module).map_err(|source| SubmitError::Program { path: path.to_owned(), source })?;
            }
            (true, Some(b"\0asm")) => {
                return Err(SubmitError::Value(format!(
                    "{} is WebAssembly: submit it without --native",
                    path.display()
                )));
            }
            (true, Some(b"\x7fELF" | [b'#', b'!', ..])) => {}
            (true, _) => {
                let path = path.display();
                return Err(SubmitError::Value(format!(
                    "{path} cannot be executed: a native program is an executable (ELF), or a script that begins with #!"
                )));
            }
        }
        let name = file_name(path)?;
        Ok(self.insert(path, name, blake3::hash(&module), module.len() as u64))
    }

    /// A file under its own name.
    pub(super) fn add(&mut self, what: &'static str, path: &Path) -> Result<Input, SubmitError> {
        self.add_named(what, path, file_name(path)?)
    }

    fn add_named(&mut self, what: &'static str, path: &Path, name: String) -> Result<Input, SubmitError> {
        if !is_path(&name) {
            let (path, most) = (path.display(), PATH_BYTES_MAX);
            return Err(SubmitError::Value(format!(
                "{name:?} cannot be the name of an input ({path}): rename it; a path has at most {most} bytes and 32 folders"
            )));
        }
        let failed = |source| SubmitError::File { what, path: path.to_owned(), source };
        let (hash, bytes) = match self.known.get(path) {
            Some(known) => *known,
            None => {
                let (mut file, bytes) = open(what, path)?;
                let mut hasher = blake3::Hasher::new();
                io::copy(&mut file, &mut hasher).map_err(failed)?;
                let read = (hasher.finalize(), bytes);
                self.known.insert(path.to_owned(), read);
                read
            }
        };
        if self.native && is_executable(&fs::metadata(path).map_err(failed)?) {
            self.executable.insert(name.clone());
        }
        Ok(self.insert(path, name, hash, bytes))
    }

    fn insert(&mut self, path: &Path, name: String, hash: Hash, bytes: u64) -> Input {
        self.local.entry(*hash.as_bytes()).or_insert_with(|| LocalFile { path: path.to_owned(), bytes });
        Input { name, blob: BlobId(*hash.as_bytes()), bytes }
    }

    /// Where a file is here.
    fn path(&self, input: &Input) -> PathBuf {
        self.local.get(&input.blob.0).map_or_else(|| PathBuf::from(&input.name), |file| file.path.clone())
    }

    /// A file, the files of a folder, or what matches a pattern.
    pub(super) fn add_all(&mut self, path: &Path) -> Result<Vec<Found>, SubmitError> {
        let is_pattern = path.to_str().is_some_and(|text| text.contains(['*', '?', '[']));
        if !is_pattern || path.exists() {
            return self.add_file_or_folder(path);
        }
        let pattern = path.to_str().unwrap_or_default();
        let (mut all, mut matches) = (Vec::new(), false);
        for path in found(pattern)? {
            all.extend(self.add_file_or_folder(&path?)?);
            matches = true;
        }
        if !matches {
            return Err(SubmitError::Value(format!("no input matches {pattern}")));
        }
        Ok(all)
    }

    fn add_file_or_folder(&mut self, path: &Path) -> Result<Vec<Found>, SubmitError> {
        if !path.is_dir() {
            return Ok(vec![(self.add("input", path)?, path.to_owned())]);
        }
        let failed = |source| SubmitError::File { what: "folder", path: path.to_owned(), source };
        let root = fs::canonicalize(path).map_err(failed)?;
        // `.` has the name of the folder that it is.
        let name = file_name(if path.file_name().is_some() { path } else { &root })?;
        let mut all = Vec::new();
        self.walk(&Folder { shown: path, root: &root }, path, &name, &mut all)?;
        Ok(all)
    }

    /// Adds the files below a directory, in the order of their names.
    fn walk(
        &mut self,
        folder: &Folder<'_>,
        directory: &Path,
        name: &str,
        all: &mut Vec<Found>,
    ) -> Result<(), SubmitError> {
        let failed = |source| SubmitError::File { what: "folder", path: directory.to_owned(), source };
        let entries = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut paths: Vec<PathBuf> = entries.map_err(failed)?.iter().map(fs::DirEntry::path).collect();
        paths.sort();
        if paths.is_empty() {
            if self.empty.len() >= INPUTS_MAX {
                let folder = folder.shown.display();
                return Err(SubmitError::Value(format!(
                    "the folder {folder} has more than {INPUTS_MAX} empty folders"
                )));
            }
            self.empty.insert(name.to_owned());
        }
        for path in paths {
            let inside = format!("{name}/{}", file_name(&path)?);
            let kind = path.symlink_metadata().map_err(failed)?.file_type();
            if kind.is_dir() {
                self.walk(folder, &path, &inside, all)?;
                continue;
            }
            if kind.is_symlink() {
                folder.check_link(&path)?;
            }
            if all.len() >= INPUTS_MAX {
                let folder = folder.shown.display();
                return Err(SubmitError::Value(format!(
                    "the folder {folder} has more than {INPUTS_MAX} files: pack it into one file, and have the task unpack it"
                )));
            }
            all.push((self.add_named("input", &path, inside)?, path));
        }
        Ok(())
    }

    /// What a template of a path gives each task: files, and empty folders.
    pub(super) fn add_for_each(
        &mut self,
        template: &str,
        entries: &[Entry],
        fields: Option<&Fields>,
    ) -> Result<(Vec<OwnInput>, Vec<OwnFolder>), SubmitError> {
        let (mut own, mut folders, one) = (Vec::new(), Vec::new(), [Entry::default()]);
        let of_all = mem::take(&mut self.empty);
        for (task, entry) in (0..).zip(if entries.is_empty() { &one } else { entries }) {
            // What is filled in is the name of a file, and no pattern.
            let path = PathBuf::from(manifest::filled(template, task, entry, fields, None));
            let found = if path.exists() {
                self.add_file_or_folder(&path)?
            } else {
                let pattern = manifest::filled_with(template, task, entry, fields, None, glob::Pattern::escape);
                self.add_all(Path::new(&pattern)).map_err(|error| match error {
                    SubmitError::File { source, .. } => {
                        SubmitError::File { what: "input of a task,", path: path.clone(), source }
                    }
                    error => SubmitError::Value(format!("task {task} has no input: {error}")),
                })?
            };
            own.extend(found.into_iter().map(|(input, _)| OwnInput { task, input }));
            folders.extend(mem::take(&mut self.empty).into_iter().map(|folder| OwnFolder { task, folder }));
        }
        self.empty = of_all;
        Ok((own, folders))
    }

    /// One entry for each file that matches. Equal names are no matter: each task has its own.
    pub(super) fn matches(&mut self, pattern: &str, left_out: &mut Vec<PathBuf>) -> Result<Vec<Entry>, SubmitError> {
        let mut entries = Vec::new();
        for path in found(pattern)? {
            let path = path?;
            if path.is_dir() {
                left_out.push(path);
                continue;
            }
            let input = self.add("input", &path)?;
            let text = path.to_str().map(str::to_owned).ok_or_else(|| not_unicode(&path))?;
            entries.push(Entry { text, input: Some(input) });
        }
        match left_out.first() {
            _ if !entries.is_empty() => Ok(entries),
            None => Err(SubmitError::NoTask(format!("no file matches {pattern}"))),
            Some(directory) => Err(SubmitError::NoTask(format!(
                "only directories match {pattern}; the files in the first match {}",
                directory.join("*").display()
            ))),
        }
    }
}

/// A folder that is an input.
struct Folder<'a> {
    /// As the user named it.
    shown: &'a Path,
    /// Without links.
    root: &'a Path,
}

impl Folder<'_> {
    /// Refuses a link unless it leads to a file of the folder.
    fn check_link(&self, link: &Path) -> Result<(), SubmitError> {
        let (shown, folder) = (link.display(), self.shown.display());
        let target = fs::canonicalize(link)
            .map_err(|error| SubmitError::Value(format!("the link {shown} leads nowhere ({error}): remove it")))?;
        if !target.starts_with(self.root) {
            return Err(SubmitError::Value(format!(
                "the link {shown} leaves the folder {folder}, to {}: put a copy in its place, or name that as an input of its own",
                target.display()
            )));
        }
        if target.is_dir() {
            return Err(SubmitError::Value(format!(
                "the link {shown} leads to a folder: only links to files of the folder {folder} are carried; put a copy in its place"
            )));
        }
        Ok(())
    }
}

fn is_executable(metadata: &Metadata) -> bool {
    metadata.permissions().mode() & 0o111 != 0
}

/// What matches a pattern, by name.
fn found(pattern: &str) -> Result<impl Iterator<Item = Result<PathBuf, SubmitError>>, SubmitError> {
    let found =
        glob::glob(pattern).map_err(|error| SubmitError::Value(format!("{pattern:?} is no pattern: {}", error.msg)))?;
    Ok(found.map(|path| {
        path.map_err(|error| SubmitError::File {
            what: "matches in",
            path: error.path().to_owned(),
            source: error.into(),
        })
    }))
}

fn file_name(path: &Path) -> Result<String, SubmitError> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| not_unicode(path))?;
    if !is_file_name(name) {
        return Err(SubmitError::Value(format!("{name:?} cannot be the name of an input: rename the file")));
    }
    Ok(name.to_owned())
}

fn open(what: &'static str, path: &Path) -> Result<(File, u64), SubmitError> {
    let failed = |source| SubmitError::File { what, path: path.to_owned(), source };
    // Before opening: opening a pipe would wait for its other end.
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    if metadata.len() > INPUT_BYTES_MAX {
        return Err(failed(io::Error::other(format!("it is over {} GiB: split it", INPUT_BYTES_MAX >> 30))));
    }
    Ok((File::open(path).map_err(failed)?, metadata.len()))
}

fn not_unicode(path: &Path) -> SubmitError {
    SubmitError::Value(format!("the name of {} is not UTF-8: rename the file", path.display()))
}

/// The inputs of all tasks, by name, with their paths.
#[derive(Default)]
pub(super) struct Shared(BTreeMap<String, Found>);

impl Shared {
    pub(super) fn into_inputs(self) -> Vec<Input> {
        self.0.into_values().map(|(input, _)| input).collect()
    }

    pub(super) fn add_all(&mut self, found: Vec<Found>) -> Result<(), SubmitError> {
        found.into_iter().try_for_each(|(input, path)| self.add(input, &path))
    }

    fn add(&mut self, input: Input, path: &Path) -> Result<(), SubmitError> {
        match self.0.get(&input.name) {
            // The same file twice is harmless.
            Some((known, _)) if known.blob == input.blob => Ok(()),
            Some((_, first)) => {
                Err(SubmitError::SameName { name: input.name, first: first.clone(), second: path.to_owned() })
            }
            None => {
                self.0.insert(input.name.clone(), (input, path.to_owned()));
                Ok(())
            }
        }
    }

    /// Refuses inputs of single tasks that have the names of these.
    pub(super) fn check_beside<'a>(
        &self,
        mut own: impl Iterator<Item = &'a Input>,
        files: &Files,
    ) -> Result<(), SubmitError> {
        let twice = own.find_map(|input| self.0.get(&input.name).map(|(_, first)| (input, first)));
        match twice {
            Some((input, first)) => {
                let (name, second) = (input.name.clone(), files.path(input));
                Err(SubmitError::SameName { name, first: first.clone(), second })
            }
            None => Ok(()),
        }
    }

    /// The input that `name` stands for as standard input; adds the file if it is not an input yet.
    pub(super) fn stdin(&mut self, name: &str, own_files: bool, files: &mut Files) -> Result<String, SubmitError> {
        if name == "{}" {
            return if own_files {
                Ok(name.to_owned())
            } else {
                Err(SubmitError::Value(
                    "--stdin {} needs tasks with a file of their own: use --glob, or --watch".to_owned(),
                ))
            };
        }
        let path = Path::new(name);
        let plain = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !path.exists()
            && let Some(known) = [name, plain].into_iter().find(|name| self.0.contains_key(*name))
        {
            return Ok(known.to_owned());
        }
        let input = files.add("standard input", path)?;
        let plain = input.name.clone();
        self.add(input, path)?;
        Ok(plain)
    }
}
