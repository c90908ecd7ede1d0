//! Planning a submission: from the user's options to a [`Plan`], the request with the files that it needs.
//!
//! Everything that can be checked without an agent is checked here, before a byte is uploaded: the program is valid
//! WebAssembly, files can be read, names do not collide, there is at least one task. The user can fix every failure, so
//! every [`SubmitError`] is bad usage (exit code 2).
//!
//! Files are hashed here and named by their hash, so that a file shared by many tasks is uploaded once, and one that
//! the agent has already is not uploaded at all.
//!
//! Left out: directories as inputs (pack them), and uploads that are resumed.

mod error;
mod lists;
mod mode;
pub mod options;
mod rounds;
mod sweep;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use blake3::Hash;
use idlewood_scheduler::{AFTER_MAX, BlobId, REPLICAS_MAX, Replication, STEWARDS_MAX};
use idlewood_trust::manifest::{self, DISK_BYTES_DEFAULT, Entry, Fields, INPUT_BYTES_MAX, Input, Rounds, is_file_name};
use idlewood_units::{Span, TASKS_MAX};
use idlewood_worker::check_program;

use idlewood_api::SubmitRequest;

use options::Options;
use sweep::Swept;

pub use error::SubmitError;
pub use lists::{List, Lists};

/// Default memory of a task. Our choice: what a machine of 4 GiB can spare in most hours.
pub const MEMORY_BYTES_DEFAULT: u64 = 512 << 20;
/// Default time limit of a task. Our choice.
pub const TIME_LIMIT_S_DEFAULT: u64 = 86_400;
/// Default retries. Our choice: they distinguish a task that fails from a machine that does.
pub const RETRIES_DEFAULT: u32 = 2;
/// Most retries that can be asked for.
pub const RETRIES_MAX: u32 = 100;

/// A submission that is ready to be sent.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The request to the agent, once it has the files.
    pub request: SubmitRequest,
    /// The distinct blobs that the request names, and the path of each.
    pub files: BTreeMap<[u8; 32], LocalFile>,
    /// Directories that the pattern matches: tasks are made of files only.
    pub left_out: Vec<PathBuf>,
    /// What the user may have forgotten.
    pub doubt: Option<String>,
}

/// A file to be uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

impl Plan {
    /// Checks `options`, reads and hashes the files they name, and makes the request. Reads `stdin` for `--each-line
    /// -`.
    ///
    /// # Errors
    /// [`SubmitError`], with a remedy.
    pub fn new(options: Options, stdin: impl io::Read) -> Result<Self, SubmitError> {
        check_values(&options)?;
        let mut files = Files::default();
        let path = options.program.as_ref().ok_or(SubmitError::NoProgram)?;
        let program = files.add_program(path, options.native)?;
        let mut left_out = Vec::new();
        let (entries, fields) = entries(&options, stdin, &mut files, &mut left_out)?;
        let merge = options.merge.as_ref().map(|path| files.add_program(path, options.native)).transpose()?;
        let rounds = rounds::rounds(&options, &entries, merge)?;
        check_places(&options, &entries, fields.as_ref(), rounds.as_ref())?;
        let doubt = rounds::doubt(&options, rounds.as_ref());
        let mut shared = Shared::default();
        for path in &options.input {
            shared.add(files.add("input", path)?, path)?;
        }
        let own_files = entries.iter().any(|entry| entry.input.is_some());
        let stdin = options.stdin.as_deref().map(|name| shared.stdin(name, own_files, &mut files)).transpose()?;
        for entry in &entries {
            if let Some(input) = &entry.input
                && let Some((_, first)) = shared.0.get(&input.name)
            {
                let second = files.path(input);
                return Err(SubmitError::SameName { name: input.name.clone(), first: first.clone(), second });
            }
        }
        let stem = Path::new(&program.name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let replication = replication(&options);
        let request = SubmitRequest {
            name: options.name.or(stem).unwrap_or_default(),
            tasks: rounds.as_ref().map_or(entries.len().max(1) as u64, |rounds| rounds.plan.tasks()),
            program,
            args: options.args,
            entries,
            fields,
            inputs: shared.0.into_values().map(|(input, _)| input).collect(),
            stdin,
            env: options.env.into_iter().map(|variable| (variable.key, variable.value)).collect(),
            memory_bytes: options.memory.map_or(MEMORY_BYTES_DEFAULT, |size| size.0),
            disk_bytes: options.disk.map_or(DISK_BYTES_DEFAULT, |size| size.0),
            time_limit_s: options.time_limit.map_or(TIME_LIMIT_S_DEFAULT, Span::seconds),
            success_codes: options.success_codes.unwrap_or_else(|| vec![0]),
            work_mops: options.work,
            retries_max: options.max_retries.unwrap_or(RETRIES_DEFAULT),
            deterministic: options.deterministic || replication.quorum > 1,
            native: options.native,
            replication,
            stewards: options.stewards,
            hold: options.hold,
            after: options.after,
            max_running: options.max_running,
            retry_on: options.retry_on.map(|codes| codes.into_iter().collect()),
            rounds,
            notify: options.notify.map(notify),
        };
        Ok(Self { request, files: files.0, left_out, doubt })
    }

    /// Bytes of all files together.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }
}

/// `template` filled in for the task at `index`. For previews: executors fill in from the manifest.
pub fn fill(template: &str, index: u64, request: &SubmitRequest) -> String {
    let entry = usize::try_from(index).ok().and_then(|position| request.entries.get(position)).cloned();
    let (fields, rounds) = (request.fields.as_ref(), request.rounds.as_ref());
    manifest::filled(template, index, &entry.unwrap_or_default(), fields, rounds)
}

/// A command that is run where this one was.
fn notify(command: String) -> idlewood_api::Notify {
    let directory = std::env::current_dir().unwrap_or_default();
    idlewood_api::Notify { command, directory: directory.to_string_lossy().into_owned() }
}

/// How many machines run each task, by the options.
fn replication(options: &Options) -> Replication {
    let replicas = options.replicas.unwrap_or(1);
    let quorum = options.quorum.unwrap_or(if replicas > 1 { (replicas / 2 + 1).max(2) } else { 1 });
    Replication { replicas, quorum, recheck: options.recheck.unwrap_or(0) }
}

fn check_values(options: &Options) -> Result<(), SubmitError> {
    let wrong = |sentence: String| Err(SubmitError::Value(sentence));
    if options.sources() > 1 {
        return wrong(
            "more than one source of tasks: use one of array, each-line, csv, from-json, glob and `:::`".to_owned(),
        );
    }
    if let Some(work) = options.work.filter(|work| !work.is_finite() || *work <= 0.0) {
        return wrong(format!("the work of a task cannot be {work} Mop: give a number above 0, or leave it out"));
    }
    if let Some(retries) = options.max_retries.filter(|&retries| retries > RETRIES_MAX) {
        return wrong(format!("{retries} retries are too many: {RETRIES_MAX} at most"));
    }
    if let Some(stewards) = options.stewards.filter(|&stewards| stewards > STEWARDS_MAX) {
        return wrong(format!("{stewards} stewards are too many: {STEWARDS_MAX} at most"));
    }
    if options.max_running == Some(0) {
        return wrong("no task could ever run: --max-running takes 1 or more, and --hold holds a bag".to_owned());
    }
    if options.after.len() > AFTER_MAX || options.after.iter().any(String::is_empty) {
        return wrong(format!("--after names from 1 to {AFTER_MAX} bags, with commas between"));
    }
    if replication(options).replicas > 1 && (options.max_running.is_some() || options.retry_on.is_some()) {
        let why = "machines vote on how a task ends, and as many as vote run it";
        return wrong(format!("--max-running and --retry-on do not go with --replicas: {why}"));
    }
    if let Some(codes) = &options.retry_on {
        let success = options.success_codes.as_deref().unwrap_or(&[0]);
        if let Some(code) = codes.iter().find(|code| success.contains(&i32::from(**code))) {
            return wrong(format!(
                "exit code {code} means success, so that nothing is tried again: leave it out of --retry-on"
            ));
        }
        if options.max_retries == Some(0) {
            return wrong("--max-retries 0 tries nothing again, and --retry-on says what to try again".to_owned());
        }
    }
    if options.notify.as_ref().is_some_and(|command| command.trim().is_empty() || command.contains('\0')) {
        return wrong("--notify takes a command, as /bin/sh does".to_owned());
    }
    if let Some(size) = options.memory.filter(|size| size.0 < 1 << 16 || size.0 > 4 << 30) {
        return wrong(format!("a task can have from 64K to 4G of memory, not {} bytes", size.0));
    }
    if let Some(size) = options.disk.filter(|size| size.0 < 1 << 16) {
        return wrong(format!("a task needs at least 64K of disk, not {} bytes", size.0));
    }
    let replication = replication(options);
    if !replication.is_valid() {
        return wrong(format!(
            "{} replicas with a quorum of {} make no sense: up to {REPLICAS_MAX} replicas, and a quorum from 2 to as many",
            replication.replicas, replication.quorum
        ));
    }
    if options.recheck.is_some_and(|recheck| recheck == 0 || replication.replicas == 1) {
        return wrong("--recheck takes 1 or more, and goes with --replicas".to_owned());
    }
    match &options.success_codes {
        Some(codes) if codes.is_empty() => return wrong("no exit code would count as success: name one".to_owned()),
        Some(codes) => {
            if let Some(code) = codes.iter().find(|code| !(0..=255).contains(*code)) {
                return wrong(format!("{code} is no exit code: use 0 to 255"));
            }
        }
        None => {}
    }
    if let Some(arg) = options.args.iter().find(|arg| arg.contains('\0')) {
        return wrong(format!("the argument {arg:?} holds a zero byte, which no program can be given"));
    }
    Ok(())
}

/// The entries, and how they are cut into fields.
fn entries(
    options: &Options,
    mut stdin: impl io::Read,
    files: &mut Files,
    left_out: &mut Vec<PathBuf>,
) -> Result<(Vec<Entry>, Option<Fields>), SubmitError> {
    if let Some(pattern) = &options.glob {
        return Ok((matches(pattern, files, left_out)?, None));
    }
    let Some(Swept { texts, fields }) = sweep::sweep(options, &mut stdin)? else { return Ok((Vec::new(), None)) };
    if texts.len() as u64 > TASKS_MAX {
        return Err(SubmitError::Value(format!("{} tasks are too many: {TASKS_MAX} at most", texts.len())));
    }
    if let Some(text) = texts.iter().find(|text| text.contains('\0')) {
        return Err(SubmitError::Value(format!("the entry {text:?} holds a zero byte, which no program can be given")));
    }
    Ok((texts.into_iter().map(|text| Entry { text, input: None }).collect(), fields))
}

/// Refuses arguments and variables with places that nothing would fill.
fn check_places(
    options: &Options,
    entries: &[Entry],
    fields: Option<&Fields>,
    rounds: Option<&Rounds>,
) -> Result<(), SubmitError> {
    let variables = options.env.iter().map(|variable| (&variable.value, format!("the variable {}", variable.key)));
    let arguments = options.args.iter().map(|argument| (argument, format!("the argument {argument:?}")));
    let first = entries.first();
    for (template, place) in arguments
        .chain(variables)
        .flat_map(|(template, whose)| manifest::pieces(template).into_iter().map(move |piece| (piece, whose.clone())))
        .filter_map(|(piece, whose)| match piece {
            manifest::Piece::Entry => Some((String::new(), whose)),
            // A number of the round that the first process has, others have, too.
            manifest::Piece::Field(name) if rounds.is_some_and(|rounds| rounds.value(0, name).is_some()) => None,
            manifest::Piece::Field(name) => Some((name.to_owned(), whose)),
            manifest::Piece::Text(_) | manifest::Piece::Index => None,
        })
    {
        let sources = "--array, --each-line, --csv, --from-json, --glob or `:::`";
        let Some(first) = first else {
            return Err(SubmitError::Value(format!(
                "{place} has {{{template}}}, and the bag has no entries to fill it with: say what its tasks are by {sources}{}",
                stay(&template)
            )));
        };
        let is_known =
            template.is_empty() || fields.map_or(template == "1", |fields| fields.of(&first.text, &template).is_some());
        if !is_known {
            return Err(SubmitError::Value(format!(
                "{place} has {{{template}}}, which is no field of the tasks: they have {}{}",
                known(first, fields),
                stay(&template)
            )));
        }
    }
    Ok(())
}

/// How to write what looks like a place.
fn stay(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("; write {{{{{name}}}}} for braces that are to stay") }
}

/// The places that entries can fill.
fn known(first: &Entry, fields: Option<&Fields>) -> String {
    let Some(fields) = fields else { return "{} and {index}".to_owned() };
    let columns = first.text.split(&fields.separator).count();
    let names = fields.names.iter().map(|name| format!("{{{name}}}"));
    let numbers = (1..=columns).map(|number| format!("{{{number}}}"));
    format!("{{}}, {{index}}, {}", names.chain(numbers).collect::<Vec<_>>().join(", "))
}

fn matches(pattern: &str, files: &mut Files, left_out: &mut Vec<PathBuf>) -> Result<Vec<Entry>, SubmitError> {
    let found =
        glob::glob(pattern).map_err(|error| SubmitError::Value(format!("{pattern:?} is no pattern: {}", error.msg)))?;
    let mut entries = Vec::new();
    let mut paths: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in found {
        let path = path.map_err(|error| SubmitError::File {
            what: "matches in",
            path: error.path().to_owned(),
            source: error.into(),
        })?;
        if path.is_dir() {
            left_out.push(path);
            continue;
        }
        let input = files.add("input", &path)?;
        if let Some(first) = paths.insert(input.name.clone(), path.clone()) {
            return Err(SubmitError::SameName { name: input.name, first, second: path });
        }
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

/// The local files a plan needs, by content.
#[derive(Default)]
struct Files(BTreeMap<[u8; 32], LocalFile>);

impl Files {
    fn add(&mut self, what: &'static str, path: &Path) -> Result<Input, SubmitError> {
        let (mut file, bytes) = open(what, path)?;
        let mut hasher = blake3::Hasher::new();
        io::copy(&mut file, &mut hasher).map_err(|source| SubmitError::File { what, path: path.to_owned(), source })?;
        self.insert(path, hasher.finalize(), bytes)
    }

    fn add_program(&mut self, path: &Path, native: bool) -> Result<Input, SubmitError> {
        let (mut file, _) = open("program", path)?;
        let mut module = Vec::new();
        file.read_to_end(&mut module).map_err(|source| SubmitError::File {
            what: "program",
            path: path.to_owned(),
            source,
        })?;
        match (native, module.first_chunk()) {
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
        self.insert(path, blake3::hash(&module), module.len() as u64)
    }

    fn insert(&mut self, path: &Path, hash: Hash, bytes: u64) -> Result<Input, SubmitError> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| not_unicode(path))?.to_owned();
        if !is_file_name(&name) {
            return Err(SubmitError::Value(format!("{name:?} cannot be the name of an input: rename the file")));
        }
        self.0.entry(*hash.as_bytes()).or_insert_with(|| LocalFile { path: path.to_owned(), bytes });
        Ok(Input { name, blob: BlobId(*hash.as_bytes()), bytes })
    }

    fn path(&self, input: &Input) -> PathBuf {
        self.0.get(&input.blob.0).map_or_else(|| PathBuf::from(&input.name), |file| file.path.clone())
    }
}

fn open(what: &'static str, path: &Path) -> Result<(File, u64), SubmitError> {
    let failed = |source| SubmitError::File { what, path: path.to_owned(), source };
    // Before opening: opening a pipe would wait for its other end.
    let metadata = std::fs::metadata(path).map_err(failed)?;
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
struct Shared(BTreeMap<String, (Input, PathBuf)>);

impl Shared {
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

    /// The input that `name` stands for as standard input; adds the file if it is not an input yet.
    fn stdin(&mut self, name: &str, own_files: bool, files: &mut Files) -> Result<String, SubmitError> {
        if name == "{}" {
            return if own_files {
                Ok(name.to_owned())
            } else {
                Err(SubmitError::Value("--stdin {} needs tasks with a file of their own: use --glob".to_owned()))
            };
        }
        let path = Path::new(name);
        let plain = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !path.exists() && self.0.contains_key(plain) {
            return Ok(plain.to_owned());
        }
        let input = files.add("standard input", path)?;
        let plain = input.name.clone();
        self.add(input, path)?;
        Ok(plain)
    }
}

#[cfg(test)]
mod tests;
