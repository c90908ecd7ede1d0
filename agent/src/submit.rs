//! Planning a submission: from the user's options to a [`Plan`], the request with the files that it needs.
//!
//! Everything that can be checked without an agent is checked here, before a byte is uploaded: the program is valid
//! WebAssembly, files can be read, names do not collide, there is at least one task. The user can fix every failure, so
//! every [`SubmitError`] is bad usage (exit code 2).
//!
//! Files are hashed here and named by their hash, so that a file shared by many tasks is uploaded once, and one that
//! the agent has already is not uploaded at all.
//!
//! Left out: uploads that are resumed.

mod endless;
mod error;
mod files;
mod lists;
mod mode;
pub mod options;
mod rounds;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use idlewood_scheduler::{AFTER_MAX, BAG_TASKS_MAX, PRIORITY_MAX, REPLICAS_MAX, Replication, STEWARDS_MAX};
use idlewood_trust::manifest::{self, DISK_BYTES_DEFAULT, Entry, Fields, OUTPUT_BYTES_MAX, OwnInput, Rounds, Source};
use idlewood_units::{Span, TASKS_MAX};

use idlewood_api::SubmitRequest;

use crate::chosen;

use files::{Files, Shared};
use options::Options;
use sweep::Swept;

pub use error::SubmitError;
pub use files::LocalFile;
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

impl Plan {
    /// Checks `options`, reads and hashes the files they name, and makes the request. Reads `stdin` for `--each-line
    /// -`.
    ///
    /// # Errors
    /// [`SubmitError`], with a remedy.
    pub fn new(options: Options, stdin: impl io::Read) -> Result<Self, SubmitError> {
        check_values(&options)?;
        let mut files = Files::new(options.native);
        let path = options.program.as_ref().ok_or(SubmitError::NoProgram)?;
        let program = files.add_program(path)?;
        let mut left_out = Vec::new();
        let endless = endless::request(&options)?;
        let (entries, fields) = match endless {
            Some(_) => (Vec::new(), endless::fields(&options)),
            None => entries(&options, stdin, &mut files, &mut left_out)?,
        };
        let merge = options.merge.as_ref().map(|path| files.add_program(path)).transpose()?;
        let rounds = rounds::rounds(&options, &entries, merge)?;
        let doubt = rounds::doubt(&options, rounds.as_ref());
        if endless.is_none() {
            check_places(&options, &entries, fields.as_ref(), rounds.as_ref())?;
        }
        let (mut shared, mut own, mut own_folders) = (Shared::default(), Vec::new(), BTreeSet::new());
        for path in &options.input {
            match files::template(path) {
                Some(template) => {
                    let (more, folders) = files.add_for_each(template, &entries, fields.as_ref())?;
                    own.extend(more);
                    own_folders.extend(folders);
                }
                None => shared.add_all(files.add_all(path)?)?,
            }
        }
        own.sort_by_key(|own: &OwnInput| own.task);
        let comes_with_files = endless.is_some_and(|endless| endless.source == Source::Files);
        let own_files = comes_with_files || entries.iter().any(|entry| entry.input.is_some());
        let stdin = options.stdin.as_deref().map(|name| shared.stdin(name, own_files, &mut files)).transpose()?;
        let of_entries = entries.iter().filter_map(|entry| entry.input.as_ref());
        shared.check_beside(of_entries.chain(own.iter().map(|own| &own.input)), &files)?;
        let stem = Path::new(&program.name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let replication = replication(&options);
        let request = SubmitRequest {
            name: options.name.or(stem).unwrap_or_default(),
            tasks: match &rounds {
                Some(rounds) => rounds.plan.tasks(),
                None if endless.is_some() => BAG_TASKS_MAX,
                None => entries.len().max(1) as u64,
            },
            program,
            args: options.args,
            entries,
            fields,
            inputs: shared.into_inputs(),
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
            executable: files.executable(),
            folders: files.empty(),
            own_folders: own_folders.into_iter().collect(),
            own,
            outputs: options.output_files,
            output_bytes: options.output_limit.map(|size| size.0),
            replication,
            stewards: options.stewards,
            keep_results: options.keep_results,
            hold: options.hold,
            after: options.after,
            max_running: options.max_running,
            priority: options.priority.unwrap_or(0),
            retry_on: options.retry_on.map(|codes| codes.into_iter().collect()),
            endless,
            rounds,
            notify: options.notify.map(notify),
        };
        Ok(Self { request, files: files.into_local(), left_out, doubt })
    }

    /// Bytes of all files together.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }
}

/// `template` filled in for the task at `index`. For previews: executors fill in from the manifest.
pub fn fill(template: &str, index: u64, request: &SubmitRequest) -> String {
    let entry = usize::try_from(index).ok().and_then(|position| request.entries.get(position)).cloned();
    let entry = entry.or_else(|| endless::entry(index, request));
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

/// Whether the bag has stewards that can keep its results.
fn check_keeps_results(options: &Options) -> Result<(), SubmitError> {
    let against = [
        ("--stewards 0", options.stewards == Some(0)),
        ("--replicas", replication(options).replicas > 1),
        ("--each-line and --watch of endless bags", options.endless && options.array.is_none()),
    ];
    match against.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(SubmitError::Value(format!(
            "--keep-results does not go with {option}: other machines keep the results of bags that they keep, and none keeps this one"
        ))),
        None => Ok(()),
    }
}

fn check_values(options: &Options) -> Result<(), SubmitError> {
    let wrong = |sentence: String| Err(SubmitError::Value(sentence));
    if options.sources() > 1 {
        return wrong(
            "more than one source of tasks: use one of array, each-line, csv, from-json, glob, watch and `:::`"
                .to_owned(),
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
    if options.keep_results {
        check_keeps_results(options)?;
    }
    if options.max_running == Some(0) {
        return wrong("no task could ever run: --max-running takes 1 or more, and --hold holds a bag".to_owned());
    }
    if let Some(priority) = options.priority.filter(|priority| !(-PRIORITY_MAX..=PRIORITY_MAX).contains(priority)) {
        return wrong(format!("a priority is a number from -{PRIORITY_MAX} to {PRIORITY_MAX}, not {priority}"));
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
        return wrong(format!("a task can have from 64K to 4G of memory, not {size}"));
    }
    if let Some(size) = options.disk.filter(|size| size.0 < 1 << 16) {
        return wrong(format!("a task needs at least 64K of disk, not {size}"));
    }
    if let Some(size) = options.output_limit.filter(|size| size.0 < 4096 || size.0 > OUTPUT_BYTES_MAX) {
        let most = idlewood_units::ByteSize(OUTPUT_BYTES_MAX);
        return wrong(format!("the output of a task can be limited to 4K to {most}, not to {size}"));
    }
    if let Some(Err(why)) = options.output_files.iter().map(|text| chosen::pattern(text)).find(Result::is_err) {
        return wrong(format!("{why}; write for example --output-files 'out/*.csv'"));
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
        return Ok((files.matches(pattern, left_out)?, None));
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
    let variables = options.env.iter().map(|it| (it.value.as_str(), format!("the variable {}", it.key)));
    let arguments = options.args.iter().map(|argument| (argument.as_str(), format!("the argument {argument:?}")));
    let outputs = options.output_files.iter().map(|pattern| (pattern.as_str(), format!("the output {pattern:?}")));
    let paths = options.input.iter().filter_map(|path| files::template(path));
    let inputs = paths.map(|path| (path, format!("the input {path:?}")));
    let first = entries.first();
    for (template, place) in arguments
        .chain(variables)
        .chain(outputs)
        .chain(inputs)
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

#[cfg(test)]
mod tests;
